"""Maps from no pairs at all: that they are found where they can be, and that a failure is said to be one."""

import re
import warnings
from pathlib import Path

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.utils.estimator_checks import check_estimator

import congruence
from congruence import Embeddings, OrthogonalMap, UnpairedMap, errors
from congruence.maps import NotFittedMapError
from congruence.metrics import class_retrieval
from congruence.synthetic import random_rotation, rigid_problem

P = rigid_problem(160, 12, 14, noise=0.02, decay=0.5, random_state=1)
ORDER = np.random.default_rng(0).permutation(160)


def right(mapping, X=P.X, Y=P.Y):
    return class_retrieval(mapping.transform(X), Y, np.arange(len(X)))


@pytest.fixture(scope="module")
def fitted():
    return UnpairedMap().fit(P.X, P.Y[ORDER])


def test_a_rotation_is_found_without_any_pair(fitted):
    found = fitted.alignment_
    assert found.found
    assert found.agreement > 0.95
    assert found.left_out == 32
    assert right(fitted) == 1
    assert np.array_equal(ORDER[found.target_rows], found.source_rows)
    expected = OrthogonalMap().fit(P.X[found.source_rows], P.Y[found.source_rows])
    np.testing.assert_allclose(fitted.rotation_, expected.rotation_, atol=1e-10)
    assert fitted.scores_["alignment"]["found"]
    assert "The spaces were aligned: of 32 rows left out" in found.sentence


def test_two_worlds_match_most_rows_and_the_score_says_no():
    Y = rigid_problem(160, 12, 14, noise=0.02, decay=0.5, random_state=2).Y
    with pytest.warns(errors.AlignmentWarning, match=r"No alignment was found.*congruence\.refine"):
        mapping = UnpairedMap().fit(P.X, Y)
    found = mapping.alignment_
    assert not found.found
    assert found.agreement < 0.35
    assert found.n_restarts == 4
    assert found.matched_share > 0.35  # matches abound where nothing matches
    assert not mapping.scores_["alignment"]["found"]


@pytest.mark.parametrize("seed", range(6))
def test_noise_without_structure_is_never_aligned(seed):
    rng = np.random.default_rng(seed)
    with pytest.warns(errors.AlignmentWarning):
        mapping = UnpairedMap().fit(rng.standard_normal((90, 6)), rng.standard_normal((80, 8)))
    assert mapping.alignment_.agreement < 0.45


def test_too_few_rows_to_judge_are_no_success():
    p = rigid_problem(80, 12, 14, noise=0.02, decay=0.5, random_state=1)
    with pytest.warns(errors.AlignmentWarning, match="of 16 rows left out"):
        mapping = UnpairedMap().fit(p.X, p.Y[::-1])
    assert right(mapping, p.X, p.Y) == 1  # it is right, and ten rows less could not have shown that


def test_orders_rotations_copies_and_the_random_state(fitted):
    again = UnpairedMap().fit(P.X, P.Y[ORDER])
    np.testing.assert_array_equal(again.rotation_, fitted.rotation_)
    Q = random_rotation(12, random_state=3)
    turned = UnpairedMap().fit(P.X @ Q, P.Y[ORDER])
    np.testing.assert_allclose(Q @ turned.rotation_, fitted.rotation_, atol=1e-8)
    shuffled = np.random.default_rng(4).permutation(160)
    for X, Y in ((P.X[shuffled], P.Y), (np.concatenate([P.X, P.X[:40]]), np.concatenate([P.Y, P.Y[80:]]))):
        other = UnpairedMap(random_state=7).fit(X, Y)
        assert other.alignment_.sizes == (160, 160)
        np.testing.assert_allclose(other.rotation_, fitted.rotation_, atol=1e-8)


def test_sides_of_unequal_size_and_embeddings_with_ids():
    source = Embeddings(P.X[:150], ids=[f"a{k}" for k in range(150)])
    target = Embeddings(P.Y[ORDER], ids=[f"b{k}" for k in range(160)])
    mapping = UnpairedMap().fit(source, target, modality="text")
    assert mapping.alignment_.found
    assert right(mapping) > 0.95
    assert mapping.modality_ == "text"


def test_more_rows_than_are_coupled_go_by_centroids(lvis):
    """Random rows in place of the centroids, 250 of either side, have too few items in common."""
    rng = np.random.default_rng(0)
    rows = rng.permutation(1203)[:450]
    X, Y = lvis["text_openai_vitb32"][rows], lvis["text_openai_vitb16"][rows]
    mapping = UnpairedMap(max_rows=250).fit(X, Y[::-1])
    assert mapping.alignment_.found
    assert right(mapping, X, Y) > 0.95


def test_what_is_saved_is_a_plain_rotation_with_its_score(fitted, tmp_path):
    again = congruence.load(fitted.save(tmp_path / "map"))
    assert type(again) is OrthogonalMap
    np.testing.assert_array_equal(again.transform(P.X), fitted.transform(P.X))
    assert again.scores_["alignment"] == fitted.alignment_.to_dict()


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::congruence.errors.CongruenceWarning")
def test_scikit_learns_own_contract():
    results = check_estimator(UnpairedMap(n_restarts=2), on_fail=None)
    failed = {r["check_name"]: repr(r["exception"]) for r in results if r["status"] == "failed"}
    assert not failed
    fresh = clone(UnpairedMap(n_restarts=3))
    assert fresh.get_params()["n_restarts"] == 3
    with pytest.raises(NotFittedMapError):
        fresh.transform(P.X)


@pytest.mark.long
def test_real_text_encoders_are_aligned_without_pairs(lvis):
    """OpenAI ViT-B/32 to EVA-02 on 250 class names."""
    rng = np.random.default_rng(0)
    rows = rng.permutation(1203)[:250]
    mapping = UnpairedMap().fit(lvis["text_openai_vitb32"][rows], lvis["text_eva02_b16"][rng.permutation(rows)])
    assert mapping.alignment_.found
    assert right(mapping, lvis["text_openai_vitb32"][rows], lvis["text_eva02_b16"][rows]) > 0.95


def test_real_unimodal_encoders_are_not_and_it_says_so(shared):
    with np.load(shared("imagenet1000_unimodal.npz")) as data:
        X, Y = data["text_mpnet"][:200], data["text_minilm_l6"][:200]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        mapping = UnpairedMap(n_restarts=2).fit(X, Y[::-1])
    assert errors.AlignmentWarning in {one.category for one in caught}
    assert right(mapping, X.astype(np.float32), Y.astype(np.float32)) < 0.3


def test_the_command_says_whether_it_found_pairs(here, tmp_path):
    rng = np.random.default_rng(0)
    np.save(tmp_path / "a.npy", P.X)
    np.save(tmp_path / "b.npy", P.Y[ORDER])
    np.save(tmp_path / "noise.npy", rng.standard_normal((90, 7)))
    result = here(
        "fit", "a.npy", "b.npy", "--no-pairs", "-o", "map", "--modality", "text", "--set", "new_model=B"
    ).ends(0)
    assert "100% of 32" in result.out
    again = congruence.load(tmp_path / "map")
    assert right(again) == 1
    assert (again.target_space_.model, again.modality_) == ("B", "text")
    failed = here("fit", "a.npy", "noise.npy", "--no-pairs", "-o", "bad").ends(0)
    assert "NO: do not use this map" in failed.out
    assert "could not be aligned" in failed.err
    strict = here("fit", "a.npy", "noise.npy", "--no-pairs", "--set", "strict=true", "-o", "none").ends(2)
    assert "could not be aligned" in strict.err
    assert not (tmp_path / "none").exists()
    wrong = here("fit", "a.npy", "b.npy", "--no-pairs", "--holdout", "5", "-o", "none").ends(2)
    assert "Got --holdout together with --no-pairs" in wrong.err


def test_the_pages_examples_run_as_printed(capsys):
    names: dict = {}
    page = (Path(__file__).resolve().parents[2] / "docs/research/refine.md").read_text(encoding="utf-8")
    for code in re.findall(r"```python\n(.*?)```", page, flags=re.S):
        exec(compile(code, "refine.md", "exec"), names)
    said = capsys.readouterr().out
    assert "Unpaired rows improve the map" in said
    assert "The spaces were aligned" in said
