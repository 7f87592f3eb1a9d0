"""Canonical's figures on folders of embeddings, in the layouts that other tools write."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from congruence.errors import FileError, IdError, InputError, ShapeError
from congruence_papers import run
from congruence_papers.canonical import open_sample
from congruence_papers.canonical.folders import read_folders

torch = pytest.importorskip("torch")

CLASSES = ("owl", "cat", "bee", "fox", "dog", "ant")
TRAIN, TEST = 120, 60


def world(model, width=16):
    """Return unit images to fit on and to measure on with labels, and prompts, two a class: one rotation from all."""
    rng = np.random.default_rng(0)
    labels = [rng.integers(len(CLASSES), size=n) for n in (TRAIN, TEST)]
    center = rng.normal(size=(len(CLASSES), 16))
    images = [center[own] + 0.3 * rng.normal(size=(len(own), 16)) + 1 for own in labels]
    prompts = np.repeat(center, 2, axis=0) + 0.1 * rng.normal(size=(2 * len(CLASSES), 16)) - 1
    turn = np.linalg.qr(np.random.default_rng(sum(map(ord, model))).normal(size=(width, 16)))[0].T
    sides = [rows @ turn for rows in (*images, prompts)]
    return [(rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32) for rows in sides], labels


def tip_adapter(place, model, keys=False):
    (train, test, prompts), labels = world(model)
    place.mkdir(parents=True)
    torch.save(torch.tensor(test), place / "test_f.pt")
    torch.save(torch.tensor(labels[1]), place / "test_l.pt")
    if keys:
        torch.save(torch.tensor(train.T.copy()).half(), place / "keys_16shots.pt")
        torch.save(torch.nn.functional.one_hot(torch.tensor(labels[0])).half(), place / "values_16shots.pt")
    else:
        torch.save(torch.tensor(train), place / "train_f.pt")
        torch.save(torch.tensor(labels[0]), place / "train_l.pt")
    torch.save(torch.tensor(prompts[::2].T.copy()), place / "clip_weights.pt")
    (place / "classes.txt").write_text("\n".join(CLASSES) + "\n")


def clip_retrieval(place, model):
    (train, test, prompts), labels = world(model)
    for name, rows, own in (("train", train, labels[0]), ("test", test, labels[1])):
        (place / name / "img_emb").mkdir(parents=True)
        (place / name / "metadata").mkdir()
        half = len(rows) // 2
        for part, chosen in enumerate((slice(0, half), slice(half, None))):
            np.save(place / name / "img_emb" / f"img_emb_{part}.npy", rows[chosen])
            numbers = zip(range(len(rows))[chosen], own[chosen], strict=True)
            paths = [f"/photos/{CLASSES[k]}/{i}.jpg" for i, k in numbers]
            pq.write_table(pa.table({"image_path": paths}), place / name / "metadata" / f"metadata_{part}.parquet")
    for folder in ("text_emb", "metadata"):
        (place / "prompts" / folder).mkdir(parents=True)
    np.save(place / "prompts/text_emb/text_emb_0.npy", prompts)
    texts = [f"{start} {name}" for name in CLASSES for start in ("a photo of a", "a")]
    named = {"caption": texts, "label": np.repeat(CLASSES, 2).tolist()}
    pq.write_table(pa.table(named), place / "prompts/metadata/metadata_0.parquet")


def tables(place, model):
    """Write what ``congruence embed`` writes, rows in an order of the model's own."""
    parts, labels = world(model)
    place.mkdir(parents=True)
    rng = np.random.default_rng(len(model))
    ids = [[f"{CLASSES[k]}/{part}{i}.jpg" for i, k in enumerate(own)] for part, own in zip("ab", labels, strict=True)]
    ids.append([f"{name}:{k}" for name in CLASSES for k in range(2)])
    for name, rows, own in zip(("train", "test", "prompts"), parts, ids, strict=True):
        order = rng.permutation(len(rows))
        table = pa.table({"id": [own[k] for k in order], "vector": list(rows[order])})
        pq.write_table(table, place / f"{name}.parquet")


def hugging_face(place, model):
    datasets = pytest.importorskip("datasets")
    parts, labels = world(model)
    kinds, named = ("image", "image", "text"), [*labels, np.repeat(np.arange(len(CLASSES)), 2)]
    splits = {
        name: datasets.Dataset.from_dict({f"{kind}_embedding": list(rows), "label": own, "other": list(rows[:, :3])})
        for name, kind, rows, own in zip(("train", "test", "prompts"), kinds, parts, named, strict=True)
    }
    datasets.DatasetDict(splits).save_to_disk(str(place))


@pytest.mark.parametrize("write", [tip_adapter, clip_retrieval, tables, hugging_face])
def test_layouts_are_read_alike(tmp_path, write):
    for model in ("first", "second"):
        write(tmp_path / model / "zoo", model)
    (found,) = read_folders(tmp_path, [["first", "second"]], ["zoo"])
    (train, test, _), labels = world("first")
    assert (found.train.sum(), (~found.train).sum()) == (TRAIN, TEST)
    names = [found.classes[k] for k in found.labels]
    expected = [str(k) if found.classes[0] == "0" else CLASSES[k] for k in np.concatenate(labels)]
    row = {rows.tobytes(): k for k, rows in enumerate(np.concatenate([train, test]))}
    order = [row[rows.tobytes()] for rows in np.concatenate([train, test])]
    found_rows = np.argmax(found.models[0].images @ np.concatenate([train, test]).T, axis=1)
    assert sorted(found_rows) == order
    assert names == [expected[k] for k in found_rows]
    rows = run("fig11", models="first/second", data=["zoo"], file=tmp_path, seeds=1).results["rows"]
    after = {line["metric"]: line["mean"] for line in rows if line["quantity"] == "after"}
    assert after["image_cosine"] == pytest.approx(1, abs=1e-3)
    assert after["text_cosine"] == pytest.approx(1, abs=1e-3)


def test_few_shots_and_other_places_are_found(tmp_path):
    tip_adapter(tmp_path / "first" / "caches" / "zoo", "first", keys=True)
    tables(tmp_path / "zoo" / "second", "second")
    with pytest.raises(InputError, match="rows|Labels"):  # few shots are other photos than all in another order
        read_folders(tmp_path, [["first", "second"]], ["zoo"])
    tip_adapter(tmp_path / "third" / "zoo", "third", keys=True)
    (found,) = read_folders(tmp_path, [["first", "third"]], ["zoo"])
    assert found.classes == tuple(sorted(CLASSES))


def spoil(place, change):
    table = pq.read_table(place)
    pq.write_table(change(table), place)


def turned(name, count):
    """Return a change of a table that moves the entries of a column by ``count`` rows."""

    def change(table):
        rows = table[name].to_pylist()
        return table.set_column(table.schema.get_field_index(name), name, [rows[count:] + rows[:count]])

    return change


def cut(table):
    return table.set_column(1, "vector", [[row[:8] for row in table["vector"].to_pylist()]])


@pytest.mark.parametrize(
    ("file", "change", "error", "words"),
    [
        ("test.parquet", lambda table: table.slice(0, 50), IdError, "10 of 60 ids differ"),
        ("prompts.parquet", lambda table: table.slice(0, 10), InputError, "Got other prompts in"),
        ("train.parquet", turned("vector", 40), InputError, "belong to other items"),
        ("prompts.parquet", turned("id", 2), InputError, "classify images of second at 0"),
        ("test.parquet", cut, ShapeError, "Got 16 and 8 dimensions of images and 16 of prompts"),
    ],
)
def test_what_does_not_belong_is_refused(tmp_path, file, change, error, words):
    for model in ("first", "second"):
        tables(tmp_path / model / "zoo", model)
    spoil(tmp_path / "second" / "zoo" / file, change)
    with pytest.raises(error, match=words):
        read_folders(tmp_path, [["first", "second"]], ["zoo"])


def test_missing_prompts_and_other_labels_are_refused(tmp_path):
    tables(tmp_path / "first" / "zoo", "first")
    spoil(tmp_path / "first/zoo/prompts.parquet", lambda table: table.filter(pc.not_equal(table["id"], "owl:0")))
    spoil(tmp_path / "first/zoo/prompts.parquet", lambda table: table.filter(pc.not_equal(table["id"], "owl:1")))
    with pytest.raises(InputError, match=r"No prompt for 1 classes in .*'owl'"):
        read_folders(tmp_path, [["first"]], ["zoo"])
    for model in ("third", "fourth"):
        tip_adapter(tmp_path / model / "zoo", model)
    labels = torch.load(tmp_path / "fourth/zoo/test_l.pt")
    torch.save(labels.roll(1), tmp_path / "fourth/zoo/test_l.pt")
    with pytest.raises(InputError, match="Labels of .* differ in"):
        read_folders(tmp_path, [["third", "fourth"]], ["zoo"])


def test_two_classes_of_one_name_are_refused(tmp_path):
    tip_adapter(tmp_path / "first" / "zoo", "first")
    (tmp_path / "first/zoo/classes.txt").write_text("\n".join([*CLASSES[:-1], CLASSES[0]]) + "\n")
    with pytest.raises(InputError, match=f"1 names more than once in .*classes.txt .'{CLASSES[0]}'"):
        read_folders(tmp_path, [["first"]], ["zoo"])


def test_a_known_model_or_data_set_has_its_sizes(tmp_path):
    for model in ("openai-b32", "flava"):
        tables(tmp_path / model / "zoo", model)
    with pytest.raises(ShapeError, match="expected 512 of openai-b32"):
        read_folders(tmp_path, [["openai-b32", "flava"]], ["zoo"])
    tables(tmp_path / "mine" / "pets", "mine")
    with pytest.raises(InputError, match="6 classes and 60 test images .*; pets has 37 and 3669"):
        read_folders(tmp_path, [["mine"]], ["pets"])


def test_all_that_is_missing_is_named_at_once(tmp_path, here):
    tip_adapter(tmp_path / "f" / "openai-l14" / "pets", "openai-l14")
    (tmp_path / "f/openai-l14/pets/test_l.pt").unlink()
    (tmp_path / "f/openai-l14/pets/clip_weights.pt").unlink()
    done = here("lab reproduce", "fig5", "--models", "paper", "--file", "f", "-o", "out").ends(2)
    for name in ("openai-l14/pets/test_l.pt", "openai-l14/pets/*weights*.pt", "flava/pets"):
        assert name in done.err
    assert not (tmp_path / "out").exists()
    assert "no pair of models" in here("lab reproduce", "fig5", "--models", "flava", "--file", "f").ends(2).err
    with pytest.raises(FileError, match="no folder at"):
        read_folders(tmp_path / "none", [["a", "b"]], ["pets"])


def test_a_figure_says_which_embeddings_it_was_made_of(tmp_path, here):
    for model in ("first", "second"):
        clip_retrieval(tmp_path / "f" / model / "zoo", model)
    where = ["--models", "first/second", "--data", "zoo", "--file", "f", "--quick", "-o", "out"]
    done = here("lab reproduce", "fig4", *where).ends(0)
    assert "Real: embeddings by first, second. The paper's figure is of openai-b32/laion400m-b32" in done.out
    assert json.loads((tmp_path / "out/results.json").read_text())["embeddings"] == "real"


@pytest.mark.long
def test_published_clips_are_measured_as_numpy_does(shared):
    file = shared("clip_rn50_vitb32.npz")
    rows = run("fig11", models="clip", file=file, seeds=1, parameters={"share": 1.0}).results["rows"]
    found = {(row["pair"], row["metric"]): row["mean"] for row in rows if row["quantity"] == "after"}
    data = open_sample("clip", file)
    known, test = data.heldout_classes, ~data.train
    assert set(data.labels[test]) <= set(np.flatnonzero(known))
    for a, b in data.pairs:
        (X, Y), (S, T) = data.both((a, b), "image"), data.both((a, b), "text")
        A, B = (side[data.train].astype(float) for side in (X, Y))
        U, _, Vt = np.linalg.svd((A - A.mean(0)).T @ (B - B.mean(0)), full_matrices=False)
        turn = U @ Vt
        mapped = (S[known] - S[~known].mean(0)) @ turn + T[~known].mean(0)
        mapped /= np.linalg.norm(mapped, axis=1, keepdims=True)
        own = np.mean(np.argmax(mapped @ T[known].T, axis=1) == np.arange(known.sum()))
        name = data.pair_name((a, b))
        assert own > 0.9
        assert found[name, "text_retrieval"] == pytest.approx(own, abs=0.03)
        cosine = np.sum(mapped * T[known], axis=1).mean()
        assert found[name, "text_cosine"] == pytest.approx(cosine, abs=0.01)
        classified = np.argmax(Y[test] @ mapped.T, axis=1) == data.labels[test]
        assert found[name, "image_aligned_text"] == pytest.approx(classified.mean(), abs=0.02)
