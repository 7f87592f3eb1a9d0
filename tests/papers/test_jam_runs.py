"""JAM's experiments from end to end: on the synthetic stand-in, and on folders of features of congruence embed."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from congruence.datasets import SugarCrepe, load_sugarcrepe
from congruence.embed import open_items
from congruence.embeddings import Embeddings
from congruence.errors import FileError, IdError, InputError, ParameterError
from congruence.io import open_sink
from congruence_papers import run
from congruence_papers.jam import open_features, open_sample

pytest.importorskip("torch")

pytestmark = pytest.mark.long
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "encoders"))

NOUNS, COLOURS = ("cat", "dog", "bird"), ("red", "blue", "big", "small")


def write_sugarcrepe(folder: Path, images: int = 40) -> SugarCrepe:
    folder.mkdir()
    rng = np.random.default_rng(0)
    for category in ("add_att", "add_obj", "replace_att", "replace_obj", "replace_rel", "swap_att", "swap_obj"):
        found = {}
        for k in range(images):
            a, b = rng.permutation(NOUNS)[:2]
            c, d = rng.permutation(COLOURS)[:2]
            right = f"a {c} {a} and the {d} {b} on grass" + " sky" * (k % 9)
            wrong = {"add": f"{right} and a photo", "swap": f"a {d} {a} and the {c} {b} on grass" + " sky" * (k % 9)}
            negative = wrong.get(category[:4].rstrip("_"), right.replace(c, "photo"))
            found[str(k)] = {"filename": f"{k:012d}.jpg", "caption": right, "negative_caption": negative}
        (folder / f"{category}.json").write_text(json.dumps(found))
    return load_sugarcrepe(folder)


def plant(path: Path, ids, vectors) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    made = Embeddings(np.asarray(vectors, np.float32), ids=ids)
    with open_sink(path, n=len(made), dim=made.dim, has_ids=True, space=made.space) as sink:
        sink.write(pa.array([str(i) for i in ids]), made.vectors)


@pytest.fixture(scope="module")
def features(tmp_path_factory):
    """SugarCrepe's files, and vectors of a latent as documented: rows shuffled, images in a folder."""
    root = tmp_path_factory.mktemp("paper")
    items = write_sugarcrepe(root / "sugarcrepe")
    rng = np.random.default_rng(1)
    scenes = {name: rng.standard_normal(6) for name in items.images.tolist()}
    truth = np.array([scenes[name] for name in items.filenames.tolist()])
    wrong = truth + np.array([0, 0, 0, 0, 0, 3.0])
    images = [*scenes, "never_asked_for.jpg"]
    V = np.array([*scenes.values(), rng.standard_normal(6)])
    for encoder, kind, ids, rows in (
        ("dino", "images", [f"val2017/{name}" for name in images], V),
        ("gemma", "captions", items.ids.tolist(), truth),
        ("gemma", "negatives", items.ids.tolist(), wrong),
    ):
        order = rng.permutation(len(ids))
        for layer in range(5):
            A = np.random.default_rng([layer, len(encoder)]).standard_normal((6, 12))
            path = root / "features" / encoder / kind / f"layer_{layer}.parquet"
            plant(path, [ids[i] for i in order], (rows @ A)[order])
    for kind, ids, rows in (("images", images, V), ("captions", items.ids, truth), ("negatives", items.ids, wrong)):
        plant(root / "features" / "clip" / f"{kind}.parquet", list(ids), rows)
    plant(root / "features" / "dino" / "unrelated.parquet", [f"n{k}" for k in range(30)], rng.standard_normal((30, 12)))
    return root, items, truth


@pytest.fixture(scope="module")
def table2():
    return run("jam-table2", seeds=1).results


def test_training_learns_and_knows_its_runs(table2):
    found = {(r["series"], r["pair"].partition(":")[0], r["metric"]): r["mean"] for r in table2["rows"]}
    assert {task for _, task, _ in found} == {"replace", "add", "swap", "swap, order only"}
    assert {series for series, _, _ in found} == {"Con", "NegCon", "Spread", "CCA", "text only", "made-up dual encoder"}
    assert found["Spread", "add", "binary_recall"] > 0.7
    assert found["made-up dual encoder", "add", "binary_recall"] > 0.7
    for (series, part, metric), value in found.items():
        if metric == "five_way_recall":
            assert value <= found[series, part, "binary_recall"] + 1e-12
    runs = table2["extra"]["runs"]
    assert len(runs) == 9
    for line in runs:
        assert line["pairs"] == 140
        assert line["best_step"] == line["epoch_at_best"] * 5  # 140 pairs in batches of 32
        assert line["steps"] <= 60


def test_the_losses_are_compared_item_by_item(table2):
    """The means of the items' differences are those of the table, and what is told apart is said."""
    means = {(r["pair"], r["series"], r["metric"]): r["mean"] for r in table2["rows"]}
    tests = table2["extra"]["item_tests"]
    assert len(tests) == 3 * 2 * 2
    for one in tests:
        gap = means[one["pair"], one["first"], one["metric"]] - means[one["pair"], one["second"], one["metric"]]
        assert one["difference"] == pytest.approx(gap)
        assert one["low"] <= one["difference"] <= one["high"]
        assert one["p_value"] <= one["adjusted_p_value"] <= 1
        assert one["draws"] == 1
    assert sum(note.startswith("Item by item") for note in table2["notes"]) == 2


def test_the_curriculum_ends_where_it_should():
    results = run("jam-fig4", seeds=1, quick=True).results
    for line in results["extra"]["runs"]:
        assert line["training"]["spread_mix"] == [0.0, 1.0]
        want = max(line["best_step"] - 1, 0) / 3  # two epochs of two steps
        assert line["alpha_at_best"] == pytest.approx(want)


def test_data_without_layers_or_items_are_refused():
    data = open_sample("synthetic")
    with pytest.raises(InputError, match="lacks early, mid or late"):
        run("jam-fig5", collections=[data], quick=True)
    only = replace(data, items=replace(data.items, categories=np.full(len(data.items), "add_obj")))
    with pytest.raises(InputError, match="without items of swap"):
        run("jam-table8", collections=[only])


def test_users_features_run_and_have_no_stand_in_in_their_title(features):
    root, _, _ = features
    data = open_features(["dino/gemma"], root / "features", root / "sugarcrepe")
    results = run("jam-table12", collections=[data]).results
    assert results["title"] == "Size of the autoencoders, on SugarCrepe"
    own = {(r["data"], r["pair"]): r["mean"] for r in results["rows"] if r["metric"] == "parameters"}
    assert own["SugarCrepe", "gemma (12)"] < own[None, "gemma2-2b (2304)"]
    # Two backbones of one family differ by one row of each first layer and of the last.
    assert own[None, "dinov2-large (1024)"] - own[None, "dinov2-base (768)"] == pytest.approx(256 * (2 * 512 + 1) / 1e6)


def test_features_are_found_by_file_name_and_id(features):
    root, _, truth = features
    where = root / "features", root / "sugarcrepe"
    data = open_features(["dino/gemma"], *where, "layers", dual_encoders=["clip", "siglip"])
    assert data.encoders == (("dino", "gemma"),)
    assert data.layers == ("early", "mid", "late")
    for depth, layer in (("early", 1), ("mid", 2), ("late", 4)):
        A = np.random.default_rng([layer, 5]).standard_normal((6, 12))
        np.testing.assert_allclose(data.captions["gemma"][depth], truth @ A, atol=1e-4)
        A = np.random.default_rng([layer, 4]).standard_normal((6, 12))
        np.testing.assert_allclose(data.images["dino"][depth][data.image_of], truth @ A, atol=1e-4)
    assert list(data.dual) == ["clip"]
    assert data.notes == ("siglip is left out: its images, captions or negatives are missing.",)
    assert len(data.unrelated["dino"]) == 30
    assert data.stand_in is None


def test_features_that_are_not_there_are_named(features, tmp_path):
    root, items, _ = features
    folder, sugar = root / "features", root / "sugarcrepe"
    for models, file, place, error, message in [
        (["dino/gemma"], None, sugar, ParameterError, "Pass file="),
        (["dino/gemma"], folder, None, ParameterError, "and root="),
        (["dino"], folder, sugar, ParameterError, "no image/text pair"),
        (["dino/llama"], folder, sugar, FileError, "Got no captions of llama.*congruence embed"),
        (["clip/clip"], folder, tmp_path, FileError, "annotation files of SugarCrepe"),
    ]:
        with pytest.raises(error, match=message):
            open_features(models, file, place)
    with pytest.raises(ParameterError, match="Got one layer at .*--layer all"):
        open_features(["clip/clip"], folder, sugar, "layers")
    plant(tmp_path / "clip" / "images.parquet", items.images[:-2], np.ones((len(items.images) - 2, 3)))
    with pytest.raises(IdError, match="No vector for 2 of 40 images"):
        open_features(["clip/clip"], tmp_path, sugar)
    for layer in (0, 1, 3):
        plant(tmp_path / "gap" / "images" / f"layer_{layer}.parquet", items.images, np.ones((40, 3)))
    with pytest.raises(FileError, match="without layer_2"):
        open_features(["gap/clip"], tmp_path, sugar)


def test_the_command_runs_the_paper_s_way_from_features(features, here, tmp_path):
    root, _, _ = features
    where = ["--file", root / "features", "--root", root / "sugarcrepe"]
    quick = ["--models", "dino/gemma", *where, "--quick", "--seeds", 1]
    here("lab reproduce", "jam-fig1", *quick, "-o", tmp_path / "one").ends(0)
    results = json.loads((tmp_path / "one" / "results.json").read_text())
    assert results["data"][0]["name"] == "SugarCrepe"
    assert {row["part"] for row in results["rows"]} >= {"match", "hard non-match", "easy: noise for images"}
    here("lab reproduce", "jam-table2", "--models", "paper", *where, "-o", tmp_path / "two").refused(
        "Got no images of dinov2-base"
    )
    assert not (tmp_path / "two").exists()
    data = here("lab reproduce", "jam-table2", "--models", "caltech101", "--data", "pets", "-o", tmp_path / "three")
    assert "contains its own data" in data.err
    other = here("lab reproduce", "jam-fig4", "--models", "caltech101", *where[:2], "-o", tmp_path / "four")
    assert "runs on synthetic, sugarcrepe" in other.err


@pytest.mark.heavy
def test_from_pictures_and_saved_models_to_jam_s_table(here, tmp_path):
    """The documented commands, with tiny models of random weights in place of DINOv2 and of a language model."""
    transformers = pytest.importorskip("transformers")
    image = pytest.importorskip("PIL.Image")
    from tiny_models import VISION, make, make_tokenizer, text_config
    from transformers.models.bit.image_processing_pil_bit import BitImageProcessorPil

    items = write_sugarcrepe(tmp_path / "sugarcrepe", 30)
    (tmp_path / "val2017").mkdir()
    rng = np.random.default_rng(2)
    for name in items.images.tolist():
        image.fromarray(rng.integers(0, 255, (20, 20, 3)).astype(np.uint8)).save(tmp_path / "val2017" / name)
    processor = BitImageProcessorPil(size={"shortest_edge": 16}, crop_size={"height": 16, "width": 16})
    make(tmp_path / "dino", transformers.Dinov2Model(transformers.Dinov2Config(**VISION, mlp_ratio=2)), processor)
    words = text_config(max_position_embeddings=32, num_key_value_heads=2)
    make(tmp_path / "llama", transformers.LlamaModel(transformers.LlamaConfig(**words)), tokenizer=make_tokenizer())
    quiet = ["--layer", "all", "--device", "cpu"]
    for command in (
        [f"hf:{tmp_path / 'dino'}", "val2017", "--set", "pooling=cls", "-o", "features/dino/images"],
        [f"hf:{tmp_path / 'llama'}", "sugarcrepe", "--split", "captions", "-o", "features/llama/captions"],
        [f"hf:{tmp_path / 'llama'}", "sugarcrepe", "--split", "negatives", "-o", "features/llama/negatives"],
    ):
        (tmp_path / command[-1]).parent.mkdir(parents=True, exist_ok=True)
        here("embed", *command, *quiet).ends(0)
    where = ["--models", "dino/llama", "--file", "features", "--root", "sugarcrepe"]
    where += ["--quick", "--seeds", 1, "--device", "cpu"]
    for name in ("jam-table2", "jam-fig5"):
        here("lab reproduce", name, *where, "-o", name).ends(0)
        results = json.loads((tmp_path / name / "results.json").read_text())
        assert {row["pair"].partition(": ")[2] for row in results["rows"]} == {"llama"}
        assert results["data"][0]["stand_in"] is None
        assert {line["training"]["device"] for line in results["extra"]["runs"]} == {"cpu"}


def test_sugarcrepe_s_captions_are_items_to_embed(tmp_path):
    items = write_sugarcrepe(tmp_path / "s")
    right, wrong = (open_items(tmp_path / "s", split=split) for split in ("captions", "negatives"))
    assert right.ids.tolist() == wrong.ids.tolist() == items.ids.tolist()
    assert [right.fetch(3), wrong.fetch(3)] == [items.captions[3], items.negative_captions[3]]
    assert right.modality == "text"
    for options in (
        {},
        {"split": "test"},
        {"modality": "image", "split": "captions"},
        {"column": "x", "split": "captions"},
    ):
        with pytest.raises(ParameterError):
            open_items(tmp_path / "s", **options)
