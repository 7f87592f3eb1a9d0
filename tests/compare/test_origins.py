"""Rows of known models are told apart, rows of none are found, and damaged rows are reported rather than refused."""

import csv
import json

import numpy as np
import pytest

import congruence
from congruence import Embeddings, Space
from congruence.compare.origins import OriginDetector, judge
from congruence.errors import InputError, ParameterError
from congruence.io import open_source

D = 64


def cone(seed: int, n: int, model: int = 0, unit: bool = True) -> np.ndarray:
    """Rows of a made-up model: a cone about a mean of its own, with a covariance of its own."""
    own = np.random.default_rng(1000 + model)
    mean, spread = 2 * own.normal(size=D), own.normal(size=(D, D)) / D**0.5
    X = mean + np.random.default_rng(seed).normal(size=(n, D)) @ spread
    return X / np.linalg.norm(X, axis=1, keepdims=True) if unit else X


@pytest.fixture(scope="module")
def detector():
    return OriginDetector().fit({"old": cone(1, 200), "new": cone(2, 200, 1)})


def test_a_mixed_store_is_told_apart(detector):
    report = detector.examine(np.vstack([cone(3, 300), cone(4, 100, 1)]))
    assert report.counts == [300, 100]
    assert report.looks_like == "old"
    assert not report.odd
    assert min(report.recognized) > 0.98
    assert report.summary() == [
        "Rows of several models: 75.0% old, 25.0% new. Scores of one query against them are not comparable."
    ]


def test_rows_of_an_unknown_model_are_named(detector):
    ids = [f"item {k}" for k in range(305)]
    store = Embeddings(np.vstack([cone(3, 300), cone(5, 5, 2)]), ids=ids)
    report = detector.examine(store)
    assert sorted(one["row"] for one in report.odd) == [300, 301, 302, 303, 304]
    assert {one["id"] for one in report.odd} == set(ids[300:])
    assert all(one["p"] < 1e-4 and one["distance"] > 2 for one in report.odd)
    assert report.counts[0] == 300
    assert np.array_equal(report.origin, [0] * 300 + [-1] * 5)


def test_false_discoveries_stay_rare():
    """Own rows alone: a rejection of any is a false one, and at 5 % it may come in 5 % of stores."""
    wrong = 0
    for seed in range(60):
        rows = cone(seed, 500)
        wrong += bool(OriginDetector(0.05, random_state=seed).fit({"old": rows[:200]}).examine(rows[200:]).odd)
    # Above this in fewer than one of a thousand if the probability is 5 %: the upper tail of a binomial distribution of
    # 60.
    assert wrong <= 9


@pytest.mark.parametrize("content", ["the same", "other"])
def test_few_foreign_photos_are_found_among_many(shared, content):
    """Photo encoders' rows share no direction, and known rows of half of the classes must not accuse the others."""
    with np.load(shared("caltech101_unimodal.npz"), allow_pickle=False) as data:
        own, foreign = (data[f"image_{key}"].astype(np.float32) for key in ("mobilenet_v2", "effnet_lite0"))
        classes = data["label"]
    rng = np.random.default_rng(7)
    half = classes < np.median(np.unique(classes))
    known, store = np.split(rng.permutation(len(own)), [4000])
    if content == "other":
        known, store = known[half[known]], store[~half[store]]
    rows = np.vstack([own[store[:1000]], foreign[known[-10:]]])
    found = OriginDetector().fit({"own": own[known[:300]]}).examine(rows).origin < 0
    assert found[-10:].all()
    assert found[:-10].mean() < 0.005


def test_norms_belong_to_a_model():
    raw = cone(0, 300, unit=False)
    detector = OriginDetector().fit({"raw": raw[:200]})
    assert not detector.examine(raw[200:]).odd
    assert len(detector.examine(50 * raw[200:]).odd) == 100
    assert OriginDetector().fit({"unit": cone(0, 200)}).examine(cone(1, 100).astype(np.float16)).odd == []


def test_damaged_rows_are_reported(detector):
    store = cone(3, 100)
    store[[4, 7]] = np.nan
    store[9] = 0
    store[20:40] *= 3
    report = detector.examine(store)
    assert (report.not_finite, report.zero) == ([4, 7], [9])
    assert report.unit == pytest.approx(77 / 97)
    assert np.isnan(report.p_value[[4, 7, 9]]).all()
    said = " ".join(report.summary())
    assert "2 rows with NaN or infinity, the first is row 4" in said
    assert "1 row with only zeros" in said
    assert "79.4% of the rows have unit norm" in said


def test_other_widths_are_not_compared(detector):
    report = detector.examine(np.eye(7))
    assert report.names == []
    assert report.other_width == {"old": D, "new": D}
    assert report.looks_like is None
    assert "The rows are 7-d, so they cannot be of old (64-d), new (64-d)." in report.summary()


def test_nothing_known_is_said():
    assert "There is nothing to compare the rows with" in OriginDetector().fit().examine(cone(0, 5)).summary()[-1]


@pytest.fixture(scope="module")
def mapping():
    old, new = cone(10, 100), cone(11, 100, 1)
    source, target = (Embeddings(X, space=Space(name)) for X, name in ((old, "old"), (new, "new")))
    return congruence.fit(source, target, "orthogonal", modality="text", check=False)


def test_a_map_knows_the_rows_of_its_models_and_those_it_mapped(mapping):
    detector = OriginDetector().fit(maps={"m": mapping})
    assert detector.names_ == ["old, text", "new, text", "mapped by m, text"]
    assert detector.examine(cone(12, 50)).looks_like == "old, text"
    assert detector.examine(cone(13, 50, 1)).looks_like == "new, text"
    stranger = detector.examine(cone(14, 50, 2))
    assert stranger.looks_like is None
    assert len(stranger.odd) == 50
    assert detector.examine(np.vstack([cone(12, 30), cone(13, 20, 1)])).counts[0] == 30
    mapped = mapping.transform_embeddings(cone(15, 40)).vectors
    assert detector.examine(mapped).looks_like == "mapped by m, text"


def test_a_map_without_a_description_is_refused():
    hand_built = congruence.OrthogonalMap().fit(cone(1, 100), cone(2, 100, 1))
    with pytest.raises(InputError, match="The map m keeps no description"):
        OriginDetector().fit(maps={"m": hand_built})


def test_a_store_is_read_in_blocks_to_the_same_result(detector, tmp_path):
    X = np.vstack([cone(3, 5000), cone(5, 4, 2)]).astype(np.float32)
    np.save(tmp_path / "s.npy", X)
    assert detector.examine(open_source(tmp_path / "s.npy")).to_dict() == detector.examine(X).to_dict()


def test_the_same_seed_gives_the_same_report():
    known, store = {"old": cone(1, 100)}, cone(3, 100)
    one, two = (OriginDetector(random_state=4).fit(known).examine(store).p_value for _ in range(2))
    assert np.array_equal(one, two)


def test_bad_input():
    with pytest.raises(InputError, match="Got 39 different rows of old; expected at least 40"):
        OriginDetector().fit({"old": cone(0, 39)})
    with pytest.raises(ParameterError, match=r"Got fdr=1\.5; expected a share below 1"):
        OriginDetector(fdr=1.5).fit({})
    with pytest.raises(ParameterError, match=r"Call fit\(known\) first"):
        OriginDetector().examine(cone(0, 5))
    with pytest.raises(InputError, match="No rows"):
        OriginDetector().fit({}).examine(np.empty((0, 3)))


@pytest.fixture
def files(tmp_path, mapping):
    np.save(tmp_path / "old.npy", cone(1, 100))
    np.save(tmp_path / "new.npy", cone(2, 100, 1))
    store = np.vstack([cone(3, 60), cone(5, 3, 2)])
    np.savez(tmp_path / "store.npz", v=store, names=[f"k{k}" for k in range(63)])
    mapping.save(tmp_path / "map")
    return tmp_path


def test_command(here, files):
    command = ["lab doctor", "store.npz:v", "--ids", "names", "--known", "old=old.npy", "--known", "new=new.npy"]
    result = here(*command, "--out", "rows.csv").ends(0)
    assert "60 " in result.out
    assert "3 rows of 63 fit no known model" in result.out
    with open(files / "rows.csv", newline="") as lines:
        rows = list(csv.DictReader(lines))
    assert [row["id"] for row in rows] == [f"k{k}" for k in range(63)]
    assert [row["model"] for row in rows] == ["old"] * 60 + [""] * 3
    data = json.loads(here(*command, "--map", "map", "--json", "--exit-code").out)
    assert data["n_odd"] == 3
    assert {one["id"] for one in data["odd"]} == {"k60", "k61", "k62"}
    assert set(data["names"]) == {"old", "new", "old, text", "new, text", "mapped by map, text"}
    assert here(*command, "--exit-code").code == 1
    np.save(files / "whole.npy", cone(3, 60))
    assert here("lab doctor", "whole.npy", "--known", "old=old.npy", "--exit-code").code == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["store.npz:v", "--known", "old.npy"], "Got --known old.npy; expected NAME=FILE"),
        (["store.npz:v", "--known", "a=old.npy", "--known", "a=new.npy"], "Got --known a=… twice"),
        (["store.npz:v", "--known", "a=none.npy"], "none.npy"),
        (["store.npz:v", "--known", "a=old.npy", "--set", "fdr=0"], "Got --set fdr=0"),
        (["store.npz:v", "--out", "rows.txt"], "Got --out rows.txt; expected a .csv or .parquet file"),
        (["store.npz:v", "--out", "old.npy"], "expected a .csv or .parquet file"),
        (["store.npz:v", "--known", "a=known.csv", "--out", "known.csv", "--force"], "is the source known.csv"),
        (["store.npz:v", "--map", "old.npy"], "old.npy"),
    ],
)
def test_command_refuses(here, files, arguments, said):
    (files / "known.csv").write_text("v0,v1\n1,0\n0,1\n")
    here("lab doctor", *arguments).refused(said)


@pytest.mark.parametrize("width", [5, 12])
def test_rows_of_another_width_are_not_judged(width):
    """What checks the width refuses them, and says it better."""
    draw = np.random.default_rng(0)
    mapping = congruence.fit(*draw.normal(size=(2, 200, 6)), modality="image", check=False)
    judged = judge(mapping, draw.normal(size=(50, width)), "image")
    assert (judged.outcome, judged.shares) == ("unknown", {})
    assert f"{width}-d" in judged.detail
