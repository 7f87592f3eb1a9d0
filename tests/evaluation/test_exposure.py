"""What a stranger reads: the attack, the protections and what they cost, the interval, the command."""

import json
from shlex import split

import numpy as np
import pytest

from congruence import Embeddings
from congruence.errors import IdError, ParameterError, ShapeError, TooFewAnchorsError
from congruence.evaluation import measure_exposure
from congruence.evaluation.exposure import _interval, link, protect
from congruence.metrics import nearest
from congruence.synthetic import rigid_problem, unimodal_problem

COMMAND = split("lab exposure mine.npz:v --texts theirs.npz:v --ids ids --set draws=1")


@pytest.fixture(scope="module")
def problem():
    return rigid_problem(n=240, d_source=24, noise=0.1, random_state=0)


def unit(X):
    return (X / np.linalg.norm(X, axis=1, keepdims=True)).astype(np.float32)


def test_copies_among_the_candidates_share_the_hit():
    rng = np.random.default_rng(1)
    Z = unit(rng.standard_normal((30, 6)))
    by_pairs, _ = link(Z, np.concatenate([Z, Z]), np.arange(30), np.arange(20), 0)
    assert set(by_pairs.hits(1)) == {0.5}
    assert set(by_pairs.hits(2)) == {1.0}


def test_few_pairs_and_refinement_read_what_the_pairs_alone_do_not(problem):
    store, texts = unit(problem.X), unit(problem.Y)
    known = np.arange(6)
    by_pairs, refined = link(store, texts, np.arange(240), known, 6)
    assert by_pairs.hits(1)[6:].mean() < 0.6 < 0.95 < refined.hits(1)[6:].mean()
    same = link(store, texts, np.arange(240), known, 0)
    assert same[0] is same[1]


@pytest.mark.long
def test_without_pairs_what_unpaired_rows_show_is_read():
    p = unimodal_problem(300, 24, latent=20, noise=0, nuisance=0.05, classes=60, spread=0.3, random_state=0)
    line, none = measure_exposure(p.images, p.texts, pairs=[0], protections=["none", "noise=8"], draws=1)
    assert (line.pairs, line.n) == (0, 300)
    assert line.found > 0.9
    assert none.found < 0.1


def test_pairs_of_other_texts_read_nothing(problem):
    """The control: known pairs that are wrong leave chance."""
    own = np.random.default_rng(3).permutation(240)
    _, refined = link(unit(problem.X), unit(problem.Y), own, np.arange(20), 4)
    assert refined.hits(1)[20:].mean() < 0.05


def test_a_secret_rotation_costs_nothing_and_does_nothing(problem):
    plain, turned = measure_exposure(problem.X, problem.Y, pairs=[12], protections=["none", "rotation"], draws=3)
    assert turned.search > 0.999
    assert turned.values == pytest.approx(plain.values, abs=0.01)
    assert plain.search == 1.0
    assert plain.found > 0.9


def test_noise_and_coarse_stores_read_less_and_find_less(problem):
    kinds = ["none", "noise=1", "noise=3", "pca=12", "pca=4", "binary"]
    lines = {
        line.protection: line for line in measure_exposure(problem.X, problem.Y, pairs=[40], protections=kinds, draws=2)
    }
    for weak, strong in (("none", "noise=1"), ("noise=1", "noise=3"), ("none", "pca=12"), ("pca=12", "pca=4")):
        assert lines[weak].found > lines[strong].found
        assert lines[weak].search > lines[strong].search
    assert lines["binary"].search < 1
    for line in lines.values():
        assert line.low <= line.found <= line.high
        assert line.found == pytest.approx(np.mean(line.values))
        assert line.found_at_k >= line.found
        assert (line.n, line.candidates, line.chance) == (200, 240, 1 / 240)


def test_protections_do_what_they_say():
    rng = np.random.default_rng(4)
    X = unit(rng.standard_normal((300, 20)) * np.linspace(2, 0.2, 20))
    gram = X @ X.T
    rotated = protect(X, "rotation", rng)
    np.testing.assert_allclose(rotated.rows @ rotated.rows.T, gram, atol=1e-5)
    np.testing.assert_allclose(rotated.query(X), rotated.rows, atol=1e-5)
    assert np.abs(rotated.rows - X).max() > 0.1
    noisy = protect(X, "noise=0.5", rng)
    assert np.einsum("ij,ij->i", noisy.rows, X).mean() == pytest.approx(1 / np.sqrt(1.25), abs=0.01)
    assert noisy.query(X) is X
    U, lengths, _ = np.linalg.svd(X, full_matrices=False)
    cut, expected = protect(X, "pca=5", rng).rows, unit(U[:, :5] * lengths[:5])
    np.testing.assert_allclose(cut @ cut.T, expected @ expected.T, atol=1e-4)
    assert protect(X, "pca=5+rotation", rng).rows.shape == (300, 5)
    np.testing.assert_allclose(protect(X, "int8", rng).rows, X, atol=0.01)
    assert set(np.unique(np.abs(protect(X, "binary", rng).rows)).round(5)) == {np.float32(1 / np.sqrt(20)).round(5)}


def test_what_search_keeps_is_the_overlap_with_the_true_neighbors(problem):
    queries = np.random.default_rng(5).standard_normal((30, 24))
    (line,) = measure_exposure(
        problem.X, problem.Y, pairs=[40], protections=["int8+pca=6"], queries=queries, draws=1, k=5
    )
    X = unit(problem.X)
    kept = protect(X, "int8+pca=6", np.random.default_rng([0, 0, 1]))
    pairs = zip(
        nearest(queries, 5, X, metric="cosine"),
        nearest(kept.query(unit(queries)), 5, kept.rows, metric="cosine"),
        strict=True,
    )
    assert line.search == pytest.approx(np.mean([len(set(a) & set(b)) / 5 for a, b in pairs]), abs=0.01)


def test_the_interval_covers_draws_and_vectors():
    """A rate that differs between draws and between vectors; Wilson's interval of the vectors alone would miss it
    often.
    """
    rng = np.random.default_rng(6)
    missed = 0
    for _ in range(30):
        rate = np.clip(0.5 + 0.1 * rng.standard_normal((8, 1)) + 0.2 * rng.standard_normal((1, 150)), 0, 1)
        hits = (rng.random((8, 150)) < rate).astype(float)
        low, high = _interval(150, [(np.arange(150), one) for one in hits], 0)
        missed += not low <= 0.5 <= high
    assert missed <= 5  # at 5 % six and more have a probability of 0.003
    low, high = _interval(100, [(np.arange(100), np.ones(100))] * 3, 0)
    assert high == pytest.approx(1.0)
    assert low == pytest.approx(1 - 1.96**2 / (100 + 1.96**2), abs=1e-3)  # Wilson's, where nothing varies


def test_labels_and_ids_name_the_text(problem):
    rng = np.random.default_rng(7)
    photos = np.repeat(problem.X[:60], 3, axis=0) + 0.05 * rng.standard_normal((180, 24))
    store = Embeddings(photos, ids=[f"{k}.jpg" for k in range(180)])
    texts = Embeddings(problem.Y[::-1], ids=[f"class {k}" for k in range(240)][::-1])
    labels = {f"{k}.jpg": f"class {k // 3}" for k in range(180)}
    (line,) = measure_exposure(store, texts, pairs=[40], labels=labels, draws=2)
    assert line.found > 0.9
    # Photos whose class is among the pairs are not counted: with texts that belong to other classes nothing is read.
    order = [np.random.default_rng([0, draw]).permutation(180)[:40] // 3 for draw in range(2)]
    assert line.n == round(np.mean([180 - 3 * len(set(known)) for known in order]))
    wrong = Embeddings(texts.vectors[np.random.default_rng(0).permutation(240)], ids=texts.ids)
    (control,) = measure_exposure(store, wrong, pairs=[40], labels=labels, draws=2)
    assert control.found < 0.05
    with pytest.raises(TooFewAnchorsError, match="the texts of all 180 vectors"):
        measure_exposure(store, texts, pairs=[170], labels=labels, draws=1)
    with pytest.raises(IdError, match="1 vectors have no label"):
        measure_exposure(store, texts, labels={key: labels[key] for key in list(labels)[1:]})
    with pytest.raises(IdError, match="without a text"):
        measure_exposure(store, texts, labels=labels | {"0.jpg": "no class"})


def test_what_cannot_be_measured_is_said(problem):
    X, Y = problem.X, problem.Y
    with pytest.raises(ShapeError, match="240 vectors and 100 texts without ids"):
        measure_exposure(X, Y[:100])
    with pytest.raises(ParameterError, match="pairs=1; expected 0, or at least 2"):
        measure_exposure(X, Y, pairs=[1])
    with pytest.raises(TooFewAnchorsError, match="pairs=240 of 240"):
        measure_exposure(X, Y, pairs=[240])
    with pytest.raises(TooFewAnchorsError, match="k=239"):
        measure_exposure(X, Y, pairs=[10], k=239)
    with pytest.raises(ShapeError):
        measure_exposure(X, Y, pairs=[10], queries=Y[:, :5])
    for spec, words in (
        ("salt", "none, rotation"),
        ("noise", "noise=0.5"),
        ("pca=0", "pca=64"),
        ("pca=99", "width 24"),
        ("int8=3", "Write int8"),
        ("noise=x", "noise=0.5"),
    ):
        with pytest.raises(ParameterError, match=words):
            measure_exposure(X, Y, pairs=[10], protections=[spec])


def test_the_command_reports_and_advises(here, tmp_path, problem):
    np.savez(tmp_path / "mine.npz", v=problem.X, ids=[f"t{k}" for k in range(240)])
    np.savez(tmp_path / "theirs.npz", v=problem.Y[::-1], ids=[f"t{k}" for k in range(240)][::-1])
    command = [*COMMAND, "--pairs", "12"]
    data = json.loads(here(*command, "--protect", "none", "--protect", "noise=3", "--json").out)["exposure"]
    assert [(line["protection"], line["pairs"]) for line in data] == [("none", 12), ("noise=3", 12)]
    assert data[0]["found"] > 0.9 > data[1]["found"]
    table = here(*command)
    assert "find their text" in table.out
    assert "search keeps" in table.out
    here(*command[:-1], "1").refused("Pass --pairs 10")


def test_the_command_reads_labels_and_names_what_is_wrong(here, tmp_path, problem):
    np.savez(
        tmp_path / "mine.npz", v=np.repeat(problem.X[:40], 3, axis=0), label=np.repeat([f"t{k}" for k in range(40)], 3)
    )
    np.savez(tmp_path / "theirs.npz", v=problem.Y, ids=[f"t{k}" for k in range(240)])
    command = [*COMMAND, "--pairs", "30"]
    done = here(*command, "--labels", "mine.npz:label", "--json").ends(0)
    (line,) = json.loads(done.out)["exposure"]
    assert line["found"] > 0.9
    known = np.random.default_rng([0, 0]).permutation(120)[:30] // 3
    assert (line["n"], line["candidates"]) == (120 - 3 * len(set(known)), 240)
    wrong = here(*command, "--labels", "theirs.npz:ids")
    assert "Got 240 entries of --labels for 120 rows" in wrong.err
    assert "Name one of these" in here(*command, "--labels", "mine.npz:label", "--protect", "salt").err
