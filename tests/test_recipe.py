"""Recipes: what may be written in them, and what a run of one leaves."""

import numpy as np
import pytest
import yaml

from congruence import load
from congruence.errors import (
    CorruptFileError,
    FileError,
    InputError,
    PairingWarning,
    ParameterError,
    TeacherWarning,
    TrainingError,
)
from congruence.recipe import Recipe, make_recipe, read_recipe, run_recipe
from congruence.train import SAIL
from congruence.train.retrieval import recalls

pytest.importorskip("torch", reason="training needs torch")

QUICK = {"n_components": 16, "max_steps": 20, "learning_rate": 3e-3, "validate_every": 10}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    rng = np.random.default_rng(0)
    folder = tmp_path_factory.mktemp("recipe")
    A, B = rng.normal(size=(6, 20)), rng.normal(size=(6, 16))
    for name, n, both in (("pairs", 120, True), ("loose_images", 80, False), ("loose_texts", 90, False)):
        z = rng.normal(size=(n, 6))
        ids = np.array([f"{name} {i}" for i in range(n)])
        for side, M in (("x", A), ("y", B)):
            if both or side == ("x" if "images" in name else "y"):
                rows = (z @ M + 0.1 * rng.normal(size=(n, M.shape[1]))).astype(np.float32)
                np.savez(folder / f"{name}_{side}.npz", vectors=rows, ids=ids)
    return folder


def entries(files, **more):
    pairs = [str(files / f"pairs_{side}.npz") for side in "xy"]
    return {"method": "sail", "pairs": pairs, "parameters": QUICK, **more}


def run(recipe, **options):
    return run_recipe(make_recipe(recipe), verbose=False, **options)


@pytest.fixture
def seen(monkeypatch):
    """Ids of what SAIL was last fitted on: pairs, and unpaired rows of each side; and the validation."""
    found, original = {}, SAIL.fit

    def watch(self, X, Y, *, unpaired, validation=None, **options):
        found.update(train=set(X.ids), validation=validation)
        found["loose"] = [set(side[0].ids) if side else set() for side in unpaired]
        return original(self, X, Y, unpaired=unpaired, validation=validation, **options)

    monkeypatch.setattr(SAIL, "fit", watch)
    return found


@pytest.mark.filterwarnings("ignore::congruence.errors.ConvergenceWarning")  # few steps, from far away
def test_a_file_says_everything(files, tmp_path):
    loose = str(files / "loose_images_x.npz"), str(files / "loose_texts_y.npz")
    written = entries(files, method="sotalign", unpaired_source=[loose[0]], unpaired_target=loose[1])
    written |= {"validation": 20, "test": 0.25, "keep_pairs": 40, "grid": {"divergence_weight": [0.0, 0.1]}, "seed": 3}
    written["parameters"] = {**written["parameters"], "init": "random", "teacher": "cca"}
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(written))
    recipe = read_recipe(tmp_path / "recipe.yaml")
    with pytest.warns(TeacherWarning, match="30 test pairs"):  # twenty steps from a random start
        done = run_recipe(recipe, checkpoint=tmp_path / "checkpoints", verbose=False)
    facts, scores = done.map.facts_, done.map.scores_
    # 120 pairs: 30 to test, 40 to train, of which 20 are left out once, and 50 of which one side each is unpaired.
    assert (facts["n_pairs"], facts["n_unpaired_source"], facts["n_unpaired_target"]) == (40, 105, 115)
    assert scores["test_pairs"] == 30
    assert scores["folds"]["folds"] == 1
    assert [trial["divergence_weight"] for trial in scores["trials"]] == [0.0, 0.1]
    assert done.score == max(trial["reciprocal_rank"] for trial in scores["trials"])
    directions = [scores[f"test_{way}@1"] for way in ("source_to_target", "target_to_source")]
    assert scores["test_mean@1"] == pytest.approx(np.mean(directions))
    assert facts["training"]["random_state"] == 3
    again = load(done.map.save(tmp_path / "map"))
    assert make_recipe(again.scores_["recipe"]) == recipe
    assert sorted(p.name for p in (tmp_path / "checkpoints").iterdir()) == ["000", "001"]


def test_pairs_that_validate_are_trained_on_and_those_of_the_test_are_not(files, seen):
    done = run(entries(files, validation=0.2, test=0.2, keep_pairs=30, overlap=1.0))
    assert (len(seen["train"]), len(seen["loose"][0]), seen["validation"]) == (30, 66, 0.2)
    assert len(seen["train"] | seen["loose"][0]) == 96  # the other 24 are for the test
    assert done.map.scores_["test_pairs"] == 24
    assert done.map.facts_["n_pairs"] == 30


def test_pairs_in_files_of_their_own_validate_only(files, seen):
    sides = [np.load(files / f"pairs_{side}.npz") for side in "xy"]
    for part, rows in (("some", slice(0, 90)), ("other", slice(90, None))):
        for side, file in zip("xy", sides, strict=True):
            np.savez(files / f"{part}_{side}.npz", vectors=file["vectors"][rows], ids=file["ids"][rows])
    some, other = ([str(files / f"{part}_{side}.npz") for side in "xy"] for part in ("some", "other"))
    done = run(entries(files, pairs=some, validation=other))
    assert set(seen["validation"][0].ids) == {f"pairs {i}" for i in range(90, 120)}
    assert (len(seen["train"]), done.map.scores_["validation_pairs"]) == (90, 30)
    assert done.score == done.map.scores_["validation_mean_recall_at_1"]


@pytest.mark.parametrize(("overlap", "each", "common"), [(None, 33, 0), (0.0, 33, 0), (0.5, 44, 22), (1.0, 66, 66)])
def test_pairs_that_are_not_kept_give_as_many_partners_as_asked_for(files, seen, overlap, each, common):
    done = run(entries(files, validation=0.2, test=0.2, keep_pairs=30, overlap=overlap))
    assert done.map.scores_["recipe"]["overlap"] == overlap
    mine, theirs = seen["loose"]
    assert (len(mine), len(theirs), len(mine & theirs)) == (each, each, common)
    assert not (mine | theirs) & seen["train"]


def test_pairs_without_ids_go_by_position(files, tmp_path):
    sides = [np.load(files / f"pairs_{side}.npz")["vectors"] for side in "xy"]
    for name, rows in zip(("a", "b"), sides, strict=True):
        np.save(tmp_path / f"{name}.npy", rows)
    pairs = [str(tmp_path / "a.npy"), str(tmp_path / "b.npy")]
    done = run(entries(files, pairs=pairs, validation=0, parameters={**QUICK, "max_steps": 150}))
    assert np.isnan(done.score)
    assert recalls(done.map.transform(sides[0]), done.map.transform_target(sides[1]))["mean@1"] > 0.3
    np.save(tmp_path / "c.npy", sides[1][:-1])
    with pytest.raises(InputError, match="120 rows in .* and 119"):
        run(entries(files, pairs=[pairs[0], str(tmp_path / "c.npy")]))


@pytest.mark.parametrize("method", ["cca", "procrustes", "csa"])
def test_closed_forms_are_methods_too(files, method):
    done = run(entries(files, method=method, parameters={}, grid={"n_components": [2, 6]}, test=0.2))
    assert done.parameters == {"n_components": 6}
    assert done.map.scores_["test_mean@1"] > 0.5


def test_the_test_is_measured_as_a_search_finds_rows(files):
    pairs = [str(files / f"pairs_{side}.npz") for side in "xy"]
    done = run(entries(files, method="self_trained", parameters={"hubness": "csls", "matches": "none"}, test=pairs))
    sides = [np.load(file)["vectors"] for file in pairs]
    assert done.map.scores_["test_mean@1"] == pytest.approx(done.map.score(*sides))
    mapped = done.map.transform(sides[0]), done.map.transform_target(sides[1])
    assert done.map.scores_["test_mean@1"] != recalls(*mapped)["mean@1"]


def test_pairs_among_the_unpaired(files):
    sides = {"unpaired_source": [str(files / "pairs_x.npz")], "unpaired_target": [str(files / "loose_texts_y.npz")]}
    with pytest.warns(PairingWarning, match="listed as unpaired source"):
        run(entries(files, method="sotalign", **sides))


def test_a_checkpoint_of_another_recipe(files, tmp_path):
    run(entries(files), checkpoint=tmp_path / "c")
    with pytest.raises(TrainingError, match="of another run"):
        run(entries(files, seed=1), checkpoint=tmp_path / "c")


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"method": "clip"}, "method"),
        ({"pairs": ["one"]}, "pairs"),
        ({"epochs": 3}, "epochs"),
        ({"grid": {"divergence_weight": [1.0]}}, "divergence_weight"),  # SAIL has none
        ({"method": "jam", "parameters": {}, "grid": {"random_state": [1, 2]}, "validation": 0}, "a grid without"),
        ({"keep_pairs": 0}, "keep_pairs"),
        ({"overlap": 0.5}, "overlap=0.5 without keep_pairs"),
        ({"overlap": 1.5, "keep_pairs": 9}, "overlap=1.5; expected a share"),
        ({"test": True}, "Got test=True"),  # it was taken for one pair
        ({"test": 1.5}, "Got test=1.5; expected a share below 1"),
        ({"validation": float("nan")}, "validation=nan"),
        ({"seed": "x"}, "Got seed='x'; expected a whole number"),
        ({"seed": True}, "seed=True"),
        ({"seed": 10**400}, "seed=1000"),
        ({"groups": 3}, "groups=3"),
        ({"unpaired_source": {"a": 1}}, "unpaired_source"),
        ({"parameters": {1: 2}}, "parameters"),
        ({"parameters": {"random_state": "x"}}, "Got random_state='x'"),
        ({"parameters": {"negatives": 1}}, "negatives=1; expected true or false"),
        ({"parameters": {"temperature": "warm"}}, "temperature='warm'"),
        ({"parameters": {"optimizer": ["lion"]}}, "optimizer="),
        ({"grid": {"max_steps": []}}, "grid"),
        ({"grid": {"max_steps": [5, "x"]}}, "max_steps='x'"),
    ],
)
def test_what_may_not_be_written(files, wrong, said):
    with pytest.raises(ParameterError, match=said):
        make_recipe(entries(files, **wrong))


WRITTEN = """\
method: sail
pairs:
  - a.npz
  - b.npz
validation: 0.1
seed: 3
parameters:
  max_steps: 20
  negatives: true
grid:
  temperature: [0.1, 0.5]
"""


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("seed: 3", "seed: x", "Got seed 'x' in {}, line 6; expected a whole number from 0 .* Write seed: 0, for"),
        ("validation: 0.1", "validaton: 0.1", "Got 'validaton' in {}, line 5; expected one of method, pairs, "),
        ("  - b.npz", "  - 2", "Got pairs .'a.npz', 2. in {}, line 2; expected two files"),
        ("  max_steps: 20", "  max_step: 20", "Got 'max_step' in parameters of sail in {}, line 8; expected one"),
        ("[0.1, 0.5]", "[0.1, warm]", "Got temperature 'warm' in {}, line 11; expected a number"),
        ("[0.1, 0.5]", "0.1", "Got grid .* in {}, line 10; expected a mapping of names to lists"),
        ("method: sail\n", "", "Got 'max_steps' in parameters of self_trained in {}, line 7"),
    ],
)  # fmt: skip
def test_what_is_wrong_in_a_file_has_its_line(tmp_path, old, new, said):
    path = tmp_path / "r.yaml"
    assert old in WRITTEN
    path.write_text(WRITTEN.replace(old, new))
    with pytest.raises(ParameterError, match=said.replace("{}", str(path))):
        read_recipe(path)


def test_what_is_given_beside_a_file_has_no_line(tmp_path):
    path = tmp_path / "r.yaml"
    path.write_text(WRITTEN)
    assert read_recipe(path, seed=4, parameters={"max_steps": 5}).parameters == {"max_steps": 5, "negatives": True}
    for changes, said in (
        ({"seed": -1}, r"Got seed=-1; expected a whole number .* Pass seed=0, for example\.$"),
        ({"parameters": {"max_steps": "x"}}, r"Got max_steps='x'; expected a whole number ≥ 0\. Pass max_steps=2000"),
        ({"grid": {"temperature": ["x"]}}, r"Got temperature='x'; expected a number"),
        ({"method": "clip"}, r"Got method='clip'; expected one of self_trained"),
    ):
        with pytest.raises(ParameterError, match=said):
            read_recipe(path, **changes)
    with pytest.raises(ParameterError, match=r"Got 'negatives' in parameters of nnclr in .*r\.yaml, line 9"):
        read_recipe(path, method="nnclr", parameters={"max_steps": 5})  # the rest is still the file's


def test_files_that_are_no_recipes(tmp_path):
    with pytest.raises(FileError):
        read_recipe(tmp_path / "none.yaml")
    for text in ("[1, 2]", "method: [", "!!python/object/apply:os.system ['true']", "method: sail\nmethod: csa"):
        (tmp_path / "bad.yaml").write_text(text)
        with pytest.raises(CorruptFileError):
            read_recipe(tmp_path / "bad.yaml")
    (tmp_path / "bad.yaml").write_text("method: sail")
    with pytest.raises(ParameterError, match="pairs"):
        read_recipe(tmp_path / "bad.yaml")
    least = Recipe("sail", ("a.npy", "b.npy"))
    assert make_recipe(least.to_dict()) == least


def test_more_pairs_to_keep_than_there_are(files):
    with pytest.raises(ParameterError, match="keep_pairs=200"):
        run(entries(files, keep_pairs=200))
