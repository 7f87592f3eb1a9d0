"""The page of a trained joint-space map: its numbers by hand, their rows, what it draws, and what it refuses."""

import base64
import io
import json
import math
import re
import sys
from shlex import split
from types import SimpleNamespace

import numpy as np
import pytest
from test_report import NASTY, Page, check_page

import congruence
from congruence import Embeddings, HeadsMap, Space, errors
from congruence.datasets import SugarCrepe
from congruence.evaluation.compositional import sugarcrepe_recall
from congruence.plotting import MARKS, thin
from congruence.recipe import make_recipe, run_recipe
from congruence.report import render_training, summarize_training
from congruence.report.training import changed
from congruence.train import split_by_group

#: What the planted decoder does to a row.
HALF = np.random.default_rng(8).normal(size=(8, 8)) / 4


def make(images=20, each=2, d=8, k=1, seed=0):
    """Images with captions near them and wrong captions a little farther off."""
    rng = np.random.default_rng(seed)
    V = np.repeat(rng.normal(size=(images, d)), each, axis=0).astype(np.float32)
    T = (V + 0.8 * rng.normal(size=V.shape)).astype(np.float32)
    N = (V[:, None] + 1.2 * rng.normal(size=(len(V), k, d))).astype(np.float32)
    groups = np.array([f"{i // each:03d}.png" for i in range(len(V))])
    return SimpleNamespace(X=V, Y=T, N=N[:, 0] if k == 1 else N, wrong=N, groups=groups)


def heads(d=8, **facts):
    """A map that leaves vectors where they are, with what a trainer would have written down."""
    same, half = ([{"kind": "linear", "weight": weight}] for weight in (np.eye(d), HALF))
    spaces = {"source_space": Space("vision", modality="image"), "target_space": Space("language", modality="text")}
    return HeadsMap.from_layers(same, same, decode_source=half, decode_target=half, method="jam", facts=facts, **spaces)


def trained(data, seed=5):
    """A map that remembers the division of these rows as JAM does."""
    parts = split_by_group(data.groups, random_state=seed)
    error = {"rows": "validation"}
    for side, rows in (("source", data.X), ("target", data.Y)):
        heldout, mean = rows[parts[1]].astype(float), rows[parts[0]].mean(0, dtype=float)
        error[side] = float(np.sum((heldout @ HALF - heldout) ** 2) / np.sum((heldout - mean) ** 2))
    steps = list(range(10, 2001, 10))
    losses = {"loss": [100 / step for step in steps], "alignment": [1 + 1 / step for step in steps]}
    rebuilt = {"reconstruct_source": [2.0] * len(steps), "reconstruct_target": [3.0] * len(steps)}
    history = {"losses": {"step": steps, **losses, **rebuilt}, "best_step": 1000, "steps": 2000}
    training = {"loss": "spread", "spread_mix": [0.0, 1.0], "hidden": [16, 12], "temperature": 0.07}
    size = {"source_parameters": 6_840_000, "source_flops_per_row": 13_600_000}
    facts = {"n_pairs": len(parts[0]), "steps": 2000, "best_step": 1000, "reconstruction_error": error}
    return heads(
        split=dict(zip(("train", "validation", "test"), map(len, parts), strict=True)),
        size={**size, "target_parameters": 8_150_000, "target_flops_per_row": 16_300_000},
        training={"random_state": seed, "standardize": True, **training},
        history={**history, "validation": [[0, 0.1], [500, 0.4], [1000, 0.7], [1500, 0.6]]},
        **facts,
    )


def summarize(data, mapping=None, **options):
    return summarize_training(mapping or heads(), data.X, data.Y, data.N, **options)


def cosine(a, b):
    a, b = a.astype(float), b.astype(float)
    return float(a @ b / math.sqrt(a @ a) / math.sqrt(b @ b))


def margins_of(data):
    """How much nearer each image is to its caption than to the nearest wrong one."""
    return np.array(
        [cosine(v, t) - max(cosine(v, w) for w in N) for v, t, N in zip(data.X, data.Y, data.wrong, strict=True)]
    )


@pytest.fixture(scope="module")
def data():
    return make()


@pytest.fixture(scope="module")
def words():
    return tuple([f"caption {i}, {what}{NASTY}" for i in range(40)] for what in ("", "wrong "))


@pytest.fixture(scope="module")
def summary(data, words):
    return summarize(data, trained(data), groups=data.groups, texts=words, held_out=False, note=f"A {NASTY} note.")


def test_recall_by_task_by_hand():
    data = make()
    data.N[7] = data.Y[7]  # a tie
    tasks = np.where(np.arange(40) % 3 == 0, "colour, size", "count")
    got = summarize(data, groups=data.groups, tasks=tasks)["by_task"]
    margin = margins_of(data)
    won = np.where(abs(margin) < 1e-9, 0.5, margin > 0)
    assert [row["task"] for row in got["rows"]] == ["colour, size", "count", "all"]
    for row, of in zip(got["rows"], (tasks == "colour, size", tasks == "count", tasks == tasks), strict=True):
        assert (row["n"], row["ties"]) == (of.sum(), of[7])
        assert row["binary"] == pytest.approx(won[of].mean())
        assert row["choice"] <= row["binary"]
    assert 0 < won.mean() < 1
    assert got["chance"] == {"binary": 0.5, "choice": 0.2}
    assert got["low"] < won.mean() < got["high"]


def test_the_nearest_of_several_wrong_captions():
    data = make(k=3)
    wrong = [[f"wrong{i}.{j}" for j in range(3)] for i in range(40)]
    texts = [f"caption{i}" for i in range(40)], wrong
    found = summarize(data, groups=data.groups, texts=texts)
    got = found["by_task"]
    assert got["rows"][0]["binary"] == pytest.approx(np.mean(margins_of(data) > 0))
    assert (got["wrong"], got["options"]) == (3, 7)
    assert got["chance"] == {"binary": 1 / 4, "choice": 1 / 7}
    assert found["margins"][0]["mean"] == pytest.approx(np.mean(margins_of(data)))
    for e in found["examples"]:
        row = int(e["name"].removeprefix("row "))
        cosines = [cosine(data.X[row], w) for w in data.wrong[row]]
        assert e["cosine_wrong"] == pytest.approx(max(cosines))
        assert e["wrong"] == [[wrong[row][int(np.argmax(cosines))], True]]
        assert (e["kind"] == "wrong") == (max(cosines) > e["cosine"])
    assert {e["kind"] for e in found["examples"]} == {"wide", "narrow", "wrong"}


def test_recall_among_all_by_hand(data):
    got = summarize_training(heads(), data.X, data.Y, groups=data.groups)["between"]
    assert (got["source"], got["target"]) == (20, 40)  # an image that stands there twice would fill two places of five
    images = data.X[::2]
    for row in got["rows"]:
        k = row["k"]
        nearest = [sorted(range(40), key=lambda j: -cosine(image, data.Y[j]))[:k] for image in images]
        forth = [i in [j // 2 for j in found] for i, found in enumerate(nearest)]
        back = [j // 2 in sorted(range(20), key=lambda i: -cosine(images[i], data.Y[j]))[:k] for j in range(40)]
        assert row["source_to_target"] == pytest.approx(np.mean(forth))
        assert row["target_to_source"] == pytest.approx(np.mean(back))
        assert row["source_to_target_chance"] == pytest.approx(1 - math.comb(38, k) / math.comb(40, k))
        assert row["target_to_source_chance"] == pytest.approx(k / 20)
    assert [row["k"] for row in got["rows"]] == [1, 5, 10]


def items_of(data, categories):
    n = range(len(data.X))
    captions = [f"a {i} red cat on a blue mat" for i in n]
    swapped = [category == "swap_att" and i % 2 for i, category in enumerate(categories)]
    wrong = [f"a {i} blue cat on a red mat" if swapped[i] else f"a {i} red dog on a blue mat" for i in n]
    ids = [f"{category}/{i}" for i, category in enumerate(categories)]
    return SugarCrepe(*map(np.array, (ids, categories, data.groups, captions, wrong)))


def test_sugarcrepe_by_its_own_measure(data):
    items = items_of(data, ["swap_att", "replace_obj", "add_obj", "swap_att"] * 10)
    got = summarize(data, items=items, random_state=2)
    expected = sugarcrepe_recall(items, data.X, data.Y, data.N, random_state=2)
    rows = got["by_task"]["rows"]
    assert [row["task"] for row in rows] == ["replace", "add", "swap", "swap, order only", "swap, other words", "all"]
    for row, line in zip(rows, expected, strict=False):
        assert (row["n"], row["ties"]) == (line.n, line.ties)
        assert [row["binary"], row["choice"]] == pytest.approx([line.binary, line.choice])
    assert rows[-1]["choice"] == pytest.approx(sum(line.n * line.choice for line in expected[:3]) / 40)
    assert {e["task"] for e in got["examples"]} <= {"swap", "replace", "add"}
    only = summarize(data, items=items_of(data, ["swap_att"] * 40))
    assert [row["task"] for row in only["by_task"]["rows"]] == ["swap", "swap, order only", "swap, other words"]
    assert f"{only['by_task']['rows'][0]['binary']:.1%}" in only["verdict"]["sentence"]


def test_rows_are_paired_by_id_where_there_are_ids(data):
    ids = [f"r{i}" for i in range(40)]
    tasks = np.array(["even", "odd"] * 20)
    mixed = np.random.default_rng(1).permutation(40)
    X = Embeddings(data.X, ids=ids, space=Space("vision", modality="image"))
    Y = Embeddings(data.Y[mixed], ids=[ids[i] for i in mixed], space=Space("language", modality="text"))
    N = Embeddings(data.N, ids=ids)
    texts = [f"caption {i}" for i in mixed], [f"wrong {i}" for i in mixed]
    got = summarize_training(heads(), X, Y, N, groups=data.groups[mixed], tasks=tasks[mixed], texts=texts)
    plain = summarize(data, groups=data.groups, tasks=tasks)
    for row, line in zip(got["by_task"]["rows"], plain["by_task"]["rows"], strict=True):
        assert (row["n"], row["binary"]) == (line["n"], pytest.approx(line["binary"]))
    for row, line in zip(got["between"]["rows"], plain["between"]["rows"], strict=True):
        assert row == pytest.approx(line)
    assert len(got["examples"]) == len(plain["examples"]) > 0
    for e, p in zip(got["examples"], plain["examples"], strict=True):
        assert e["caption"] == f"caption {e['name'][1:]}"
        assert (f"row {e['name'][1:]}", e["image"], e["task"]) == (p["name"], p["image"], p["task"])
    with pytest.raises(errors.DirectionError):
        summarize_training(heads(), Y, X)


def test_the_interval_is_of_images_not_of_rows(data):
    """A row that stands there ten times says no more than one."""
    once = summarize_training(heads(), data.X[::2], data.Y[::2], data.N[::2], groups=data.groups[::2])["by_task"]
    ten = [np.repeat(rows[::2], 10, axis=0) for rows in (data.X, data.Y, data.N, data.groups)]
    copies = summarize_training(heads(), *ten[:3], groups=ten[3])["by_task"]
    apart = summarize_training(heads(), *ten[:3], groups=np.arange(200))["by_task"]
    assert copies["low"] == pytest.approx(once["low"], abs=0.02)
    assert apart["high"] - apart["low"] < 0.5 * (once["high"] - once["low"])


@pytest.mark.long
def test_only_the_test_rows_of_the_training_are_measured_on(data):
    mapping = trained(data)
    test = split_by_group(data.groups, random_state=5)[2]
    items = items_of(data, ["swap_att", "replace_obj"] * 20)
    got = summarize(data, mapping, items=items, options=2)
    alone = summarize_training(heads(), data.X[test], data.Y[test], data.N[test], items=items.take(test), options=2)
    assert {e["caption"] for e in got["examples"]} <= set(items.captions[test])
    assert got["held_out"]
    assert not alone["held_out"]
    assert got["by_task"] == alone["by_task"]
    assert got["between"] == alone["between"]
    assert "they were not used to train it" in render_training(got)
    assert "is not known" in render_training(alone)
    everything = summarize(data, mapping, groups=data.groups, held_out=False)
    assert everything["by_task"]["rows"][0]["n"] == 40
    assert "which may include rows that the map was trained on" in render_training(everything)


def test_a_division_that_is_not_the_trainings_is_refused(data):
    mapping = trained(data)
    for groups, said in (
        (np.arange(40), "reconstructed"),  # parts of the same sizes with other rows
        (np.char.add("other ", data.groups), "reconstructed"),
        (np.arange(40) % 11, "rows instead of"),
        (["one"] * 40, "cannot be split"),
    ):
        with pytest.raises(errors.InputError, match=said):
            summarize(data, mapping, groups=groups)
    with pytest.raises(errors.InputError, match="reconstructed"):
        summarize_training(mapping, data.X, data.Y + 1, data.N, groups=data.groups)
    for mapping in (heads(), heads(split={"train": 28, "validation": 6, "test": 6})):  # the second could not be checked
        with pytest.raises(errors.InputError, match="does not record how its rows were split"):
            summarize_training(mapping, data.X, data.Y, held_out=True)


def test_pairs_held_out_by_a_recipe_are_found_again(data, tmp_path):
    for name, rows in (("x", data.X[::2]), ("y", data.Y[::2])):
        np.save(tmp_path / f"{name}.npy", rows)
    pairs = [str(tmp_path / "x.npy"), str(tmp_path / "y.npy")]
    options = {"validation": 0, "test": 0.4, "parameters": {"n_components": 3}}
    done = run_recipe(make_recipe({}, method="csa", pairs=pairs, **options))
    got = summarize_training(done.map, data.X[::2], data.Y[::2])
    first = got["between"]["rows"][0]
    assert got["between"]["source"] == done.map.scores_["test_pairs"] == 8
    assert first["source_to_target"] == pytest.approx(done.map.scores_["test_source_to_target@1"])
    assert first["target_to_source"] == pytest.approx(done.map.scores_["test_target_to_source@1"])
    assert got["held_out"]
    with pytest.raises(errors.InputError, match="rows instead of 8"):
        summarize_training(done.map, data.X, data.Y)
    with pytest.raises(errors.InputError, match="but different ones: .*@"):
        summarize_training(done.map, data.X[::2], np.roll(data.Y[::2], 1, axis=0))


def test_curves_are_thinned_to_means(summary):
    steps, values = thin(range(1000), [float(i % 2) for i in range(1000)])
    assert len(steps) == len(values) == MARKS
    assert np.mean(values) == pytest.approx(0.5, abs=0.01)
    assert steps == sorted(steps)
    assert thin([3, 4], [1, 2]) == [[3.0, 4.0], [1.0, 2.0]]
    names = [curve["name"] for curve in summary["curves"]]
    assert names == ["total loss", "alignment", "reconstruction error"]
    assert [curve["log"] for curve in summary["curves"]] == [True, False, False]
    assert [line["name"] for line in summary["curves"][2]["lines"]] == ["source", "target"]
    assert summary["validation"]["best"] == 0.7
    page = render_training(summary)
    for fact in ("6.84 M parameters, 13.6 MFLOP", "16 → 12 → 8", "0 → 1", "weights of step 1,000"):
        assert fact in page


def test_worked_examples_are_the_widest_narrowest_and_worst(data):
    got = summarize(data, groups=data.groups, examples=3)["examples"]
    margin = margins_of(data)
    assert len({e["image"] for e in got}) == len(got)
    narrow = np.where(margin > 0, margin, 9).argmin()
    for kind, first in (("wide", margin.argmax()), ("narrow", narrow), ("wrong", margin.argmin())):
        e, *others = (e for e in got if e["kind"] == kind)
        assert len(others) == 2
        assert (e["name"], e["image"]) == (f"row {first}", data.groups[first])
        assert e["cosine"] - e["cosine_wrong"] == pytest.approx(margin[first])
        assert e["caption"] is e["picture"] is None
    assert summarize(data, examples=0)["examples"] == []
    crowded = summarize(data, groups=np.arange(40) // 10, examples=3)["examples"]
    assert len(crowded) == len({e["image"] for e in crowded}) == 4


@pytest.mark.parametrize(
    ("caption", "other", "marked"),
    [
        ("a red cat", "a blue cat", ["blue"]),
        ("a cat on a mat", "a mat on a cat", ["mat", "cat"]),
        ("a cat", "a very big cat", ["very big"]),
        ("a cat", "", []),
    ],
)
def test_words_the_caption_does_not_have_are_marked(caption, other, marked):
    pieces = changed(caption, other)
    assert " ".join(words for words, _ in pieces) == other
    assert [words for words, new in pieces if new] == marked


def test_the_verdict_says_when_it_is_chance():
    rng = np.random.default_rng(0)
    X, Y, N = rng.normal(size=(3, 60, 8))
    got = summarize_training(heads(), X, Y, N)
    assert got["verdict"]["level"] == "partial"
    assert "which includes chance" in got["verdict"]["sentence"]
    assert summarize_training(heads(), X, X, N)["verdict"]["level"] == "passes"
    assert summarize_training(heads(), X, N, X)["verdict"]["level"] == "fails"


def test_the_page_is_well_formed_escaped_and_alone(summary):
    text = render_training(summary)
    page = check_page(text, NASTY)
    assert text.count("&lt;script&gt;") >= 10
    assert not re.search("https?://", text)
    assert page.tags.count("svg") > 4


def test_names_from_outside_are_escaped_in_drawings_too(data):
    mapping = heads(history={"losses": {"step": [1, 2], NASTY: [1.0, 2.0]}, "validation": []}, training={"loss": NASTY})
    mapping.source_space_ = Space(NASTY)
    tasks = [NASTY + str(i % 2) for i in range(40)]
    text = render_training(summarize(data, mapping, tasks=tasks, groups=np.char.add(NASTY, data.groups)))
    assert NASTY not in text
    assert "script" not in Page(text).tags


def test_the_summary_is_plain_data_and_repeats(data, words, summary):
    assert json.loads(json.dumps(summary, allow_nan=False)) == summary
    given = {"groups": data.groups, "texts": words, "held_out": False, "note": f"A {NASTY} note."}
    assert render_training(summarize(data, trained(data), **given)) == render_training(summary)
    other = summarize(data, trained(data), **given, random_state=1)
    assert other["by_task"]["rows"][0]["choice"] != summary["by_task"]["rows"][0]["choice"]


@pytest.fixture
def pictures(data, tmp_path):
    image = pytest.importorskip("PIL.Image")
    folder = tmp_path / "pictures"
    folder.mkdir()
    for i, name in enumerate(np.unique(data.groups)):
        picture = image.new("RGB", (300, 200), (10 * i, 0, 90))
        picture.save(folder / name, "JPEG", comment=b"a secret", exif=b"Exif\0\0a secret")
    return folder


def show(data, pictures, **options):
    return summarize(data, groups=data.groups, pictures=pictures, **options)


def test_pictures_are_small_and_bare(data, pictures):
    from PIL import Image

    got = show(data, pictures)
    for e in got["examples"]:
        kind, _, rest = e["picture"].partition(",")
        raw = base64.b64decode(rest)
        assert kind == "data:image/jpeg;base64"
        assert b"secret" not in raw
        picture = Image.open(io.BytesIO(raw))
        assert picture.size == (128, 85)
        assert abs(picture.getpixel((5, 5))[0] - 10 * int(e["image"][:3])) < 8
    in_memory = {name: (pictures / name).read_bytes() for name in np.unique(data.groups)}
    assert show(data, in_memory)["examples"] == got["examples"]
    assert check_page(render_training(got)).tags.count("img") == len(got["examples"])


def test_pictures_that_are_none_are_refused(data, pictures, monkeypatch):
    with pytest.raises(errors.FileError, match="folder"):
        show(data, pictures / "nowhere")
    with pytest.raises(errors.FileError, match="No picture of"):
        show(data, {})
    for name in ("../pictures/x.png", str(pictures / "000.png")):
        changed = SimpleNamespace(**{**vars(data), "groups": np.where(data.groups == "000.png", name, data.groups)})
        with pytest.raises(errors.ParameterError, match="outside of the folder"):
            show(changed, pictures, examples=20)
    (pictures / "003.png").write_text("%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n")
    with pytest.raises(errors.CorruptFileError, match="003"):
        show(data, pictures, examples=20)
    (pictures / "003.png").unlink()
    with pytest.raises(errors.FileError, match="003"):
        show(data, pictures, examples=20)
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(errors.MissingExtraError, match=r"congruence\[images\]"):
        show(data, pictures)


ITEMS = items_of(make(), ["swap_att"] * 40)


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"tasks": ["a"] * 39}, errors.ShapeError, "tasks"),
        ({"texts": (["a"] * 40, ["b"] * 3)}, errors.ShapeError, "texts of wrong captions"),
        ({"negatives": None, "tasks": ["a"] * 40}, errors.ParameterError, "tasks=… without"),
        ({"negatives": None, "groups": ["a"] * 40, "pictures": "."}, errors.ParameterError, "pictures=… without"),
        ({"pictures": "."}, errors.ParameterError, "names of the images"),
        ({"items": ITEMS.take(np.arange(39))}, errors.ShapeError, "39 items"),
        ({"items": ITEMS, "tasks": ["a"] * 40}, errors.ParameterError, "tasks=… together with items"),
        ({"items": ITEMS, "negatives": make(k=2).N}, errors.ShapeError, "texts of wrong captions"),
        ({"options": 1}, errors.ParameterError, "options"),
        ({"examples": -1}, errors.ParameterError, "examples"),
        ({"negatives": np.zeros((40, 0, 8))}, errors.InputError, "negatives"),
        ({"captions": np.ones((40, 7))}, errors.InputError, "7"),
        ({"images": np.full((40, 8), np.nan)}, errors.InputError, "NaN"),
        ({"captions": []}, errors.InputError, "captions"),
    ],
)
def test_bad_input(data, options, error, said):
    given = {"images": data.X, "captions": data.Y, "negatives": data.N, **options}
    with pytest.raises(error, match=said):
        summarize_training(heads(), **given)


@pytest.fixture
def files(data, words, tmp_path):
    trained(data).save(tmp_path / "map")
    congruence.OrthogonalMap().fit(data.X, data.Y).save(tmp_path / "one-sided")
    np.savez(tmp_path / "d.npz", v=data.X, t=data.Y, n=data.N)
    rows = zip(data.groups, *words, ["a", "b"] * 20, strict=True)
    with open(tmp_path / "pairs.csv", "w", encoding="utf-8") as file:
        print("image,caption,wrong,task", file=file)
        for row in rows:
            print(",".join('"' + cell.replace('"', '""') + '"' for cell in row), file=file)
    return tmp_path


REPORT = split("report map --pairs d.npz:v,d.npz:t --negatives d.npz:n --groups pairs.csv:image")


def test_report_from_files(here, files, data, pictures):
    words = ["--texts", "pairs.csv:caption,pairs.csv:wrong", "--tasks", "pairs.csv:task", "--pictures", str(pictures)]
    done = here(*REPORT, *words, "--set", "note=A note.", "-o", "jam.html", "--json").ends(0)
    got = json.loads(done.out)
    test = split_by_group(data.groups, random_state=5)[2]
    facts = {"groups": data.groups[test], "tasks": np.array(["a", "b"] * 20)[test]}
    expected = summarize_training(heads(), data.X[test], data.Y[test], data.N[test], **facts)
    assert got["by_task"] == json.loads(json.dumps(expected["by_task"]))
    page = (files / "jam.html").read_text(encoding="utf-8")
    assert "A note." in page
    assert "vision + language" in page
    assert page.count("data:image/jpeg") == len(got["examples"]) > 0
    again = here(*REPORT, "--all", "-o", "all.html").ends(0)
    assert "On 40 captions of 20 images given" in again.out
    here("report", "map", "--pairs", "d.npz:v,d.npz:t", "--all", "-o", "pairs.html").ends(0)
    assert "which may include rows that the map was trained on" in (files / "pairs.html").read_text(encoding="utf-8")


@pytest.mark.long
def test_report_with_sugarcrepes_files(here, files, data):
    folder = files / "sugarcrepe"
    folder.mkdir()
    items = items_of(data, ["swap_att"] * 20 + ["replace_obj"] * 20)
    for category in ("swap_att", "replace_obj"):
        part = items.take(items.categories == category)
        columns = (part.ids, part.filenames, part.captions, part.negative_captions)
        entries = {
            name.split("/")[1]: {"filename": file, "caption": right, "negative_caption": wrong}
            for name, file, right, wrong in zip(*columns, strict=True)
        }
        (folder / f"{category}.json").write_text(json.dumps(entries))
    arguments = [*REPORT[:6], *split("--sugarcrepe sugarcrepe --all --set categories=swap_att,replace_obj --json")]
    done = here(*arguments, "-o", "s.html").ends(0)
    lines = sugarcrepe_recall(items, data.X, data.Y, data.N)
    got = json.loads(done.out)["by_task"]["rows"]
    assert [row["binary"] for row in got][:-1] == pytest.approx([line.binary for line in lines])
    # Rows with SugarCrepe's ids are found by these, whatever their order and number.
    some = np.random.default_rng(0).permutation(40)[:30]
    for name, rows in (("v", data.X), ("t", data.Y), ("n", data.N)):
        np.savez(files / f"{name}.npz", v=rows[some], ids=items.ids[some])
    arguments[3], arguments[5] = "v.npz:v,t.npz:v", "n.npz:v"
    by_id = here(*arguments, "-o", "i.html").ends(0)
    right = sugarcrepe_recall(items.take(some), data.X[some], data.Y[some], data.N[some])
    got = json.loads(by_id.out)["by_task"]["rows"]
    assert [row["binary"] for row in got][:-1] == pytest.approx([line.binary for line in right])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["report", "map"], "no --pairs"),
        (["report", "map", "sample"], "joint-space map"),
        (["report", "map", "sample", "--pairs", "d.npz:v,d.npz:t"], "a bundle"),
        (["report", "one-sided", "--pairs", "d.npz:v,d.npz:t"], "Got --pairs for a map into"),
        ([*REPORT, "--sugarcrepe", "s"], "--groups together with --sugarcrepe, which has its own"),
        ([*REPORT, "--texts", "pairs.csv:caption"], "--texts"),
        ([*REPORT[:6], "--pictures", "."], "--pictures without --groups or --sugarcrepe"),
        (REPORT[:6], "split differently"),
        ([*REPORT[:2], "--pairs", "d.npz:v,d.npz:t", "--negatives", "nowhere.npy"], "nowhere.npy"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(here, files, arguments, said):
    here(*arguments, "-o", "x.html").refused(said)
    assert not (files / "x.html").exists()
    if said not in ("split differently", "nowhere.npy"):  # a mistaken argument is told before a taken output
        (files / "x.html").write_text("mine")
        here(*arguments, "-o", "x.html").refused(said)


def test_train_jam_writes_a_report(here, files, data):
    pytest.importorskip("torch", reason="training needs torch")
    quick = split("--set max_epochs=3 --set hidden=[8] --set latent=4 -q")
    rows = split(" ".join(REPORT[2:]).replace("--groups ", "--set groups="))
    arguments = ["train", "jam", *rows, "-o", "new", *quick]
    done = here(*arguments, "--seed", "7", "--report", "jam.html", "--json").ends(0)
    scores = json.loads(done.out)["scores"]
    page = (files / "jam.html").read_text(encoding="utf-8")
    assert f"in {scores['test_binary_recall']:.1%} of cases" in page
    assert f"On {scores['test_pairs']} captions" in page
    assert "held out from training" in page
    # The same page from the saved map; it finds the same rows.
    here("report", "new", *REPORT[2:], "-o", "again.html").ends(0)
    assert (files / "again.html").read_text(encoding="utf-8") == page
    refused = here(*arguments, "--force", "--report", "jam.html", "--set", "spread_mix=7")
    assert refused.code == 2
    assert (files / "jam.html").read_text(encoding="utf-8") == page
    here(*arguments[:-3], "--report", "jam.html", "-o", "other").refused("jam.html")
    assert not (files / "other").exists()
    short = split("--set max_steps=2 --set n_components=4 --test 0.3 -q")
    other = here("train", "sail", *REPORT[2:4], *short, "-o", "other", "--report", "x.html", "--json").ends(0)
    page = (files / "x.html").read_text(encoding="utf-8")
    assert f"On {json.loads(other.out)['scores']['test_pairs']} pairs held out" in page


def test_margins_by_task(data):
    tasks = np.array(["a", "b"] * 20)
    for name, part in zip("ab", summarize(data, tasks=tasks)["margins"], strict=True):
        mine = margins_of(data)[tasks == name]
        assert (part["name"], part["n"], sum(part["counts"])) == (name, 20, pytest.approx(1))
        assert part["mean"] == pytest.approx(mine.mean())
        half = len(part["counts"]) // 2
        assert part["edges"][half] == pytest.approx(0, abs=1e-12)
        assert sum(part["counts"][half:]) == pytest.approx((mine > 0).mean())
    assert [part["name"] for part in summarize(data, tasks=np.arange(40) % 10)["margins"]] == ["all"]


def test_pairs_held_out_by_fit_are_found_again(data):
    X, Y = (
        Embeddings(rows, ids=[f"i{k}" for k in range(40)], space=Space(name))
        for rows, name in ((data.X, "a"), (data.Y, "b"))
    )
    options = {"n_components": 4, "ridge": 1.0, "holdout": 11, "check": False, "groups": None}
    mapping = congruence.fit(X, Y, method="cca", **options)
    got = summarize_training(mapping, X, Y)
    assert got["held_out"]
    assert got["between"]["target"] == 11
    known = np.flatnonzero(~congruence.splits.Split.from_dict(mapping.scores_["holdout"]).held_out(X.ids))
    with pytest.raises(errors.InputError, match="none of them was held out"):
        summarize_training(mapping, X.take(known), Y.take(known))


def test_too_few_images_to_draw_from_are_said():
    data = make(images=2, each=2)
    got = summarize(data, groups=data.groups)
    assert got["by_task"]["rows"][0]["choice"] is got["by_task"]["options"] is None
    assert "was not measured" in render_training(got)
