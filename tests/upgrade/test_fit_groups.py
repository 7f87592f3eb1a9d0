"""Pairs with identical vectors stay in one part, whoever divides."""

import numpy as np
import pytest

import congruence
from congruence import Embeddings, OrthogonalMap
from congruence.errors import DuplicateWarning
from congruence.maps import MLPMap
from congruence.splits import Split


@pytest.fixture
def repeated():
    rng = np.random.default_rng(0)
    X = np.repeat(rng.normal(size=(60, 8)), 2, axis=0)
    Y = X @ np.linalg.qr(rng.normal(size=(8, 8)))[0] + 0.1 * rng.normal(size=(120, 8))
    return X, Y


def test_fit_holds_out_copies_together(repeated):
    ids = [f"caption {i}" for i in range(120)]
    sides = [Embeddings(rows, ids=ids) for rows in repeated]
    with pytest.warns(DuplicateWarning, match="120 of 120 rows"):
        mapping = congruence.fit(*sides, holdout=30, check=False)
    heldout = Split.from_dict(mapping.scores_["holdout"]).held_out(np.array(ids))
    assert heldout.sum() == 30
    assert np.array_equal(heldout[::2], heldout[1::2])
    assert (mapping.scores_["identical_rows"], mapping.scores_["identical_groups"]) == (120, 60)
    # A column of labels stands in for the vectors, in the order of the source; None divides row by row, silently.
    order = np.random.default_rng(1).permutation(120)
    labels = np.arange(120) // 4
    mapping = congruence.fit(sides[0].take(order), sides[1], holdout=0.25, groups=labels[order], check=False)
    heldout = Split.from_dict(mapping.scores_["holdout"]).held_out(np.array(ids)).reshape(30, 4)
    assert np.array_equal(heldout.all(axis=1), heldout.any(axis=1))
    alone = congruence.fit(*sides, holdout=30, groups=None, check=False)
    heldout = Split.from_dict(alone.scores_["holdout"]).held_out(np.array(ids))
    assert not np.array_equal(heldout[::2], heldout[1::2])


def test_folds_and_early_stopping_see_no_copies(repeated, monkeypatch):
    X, Y = repeated
    from congruence.linalg import shrinkage

    kept = []
    of = shrinkage.CrossMoments.of
    monkeypatch.setattr(shrinkage.CrossMoments, "of", lambda A, *rest: kept.append(A) or of(A, *rest))
    OrthogonalMap(shrinkage="cv").fit(X, Y)
    folds = [rows for rows in kept if len(rows) < 120]
    assert len(folds) == 5
    for rows in folds:
        assert (np.unique(rows, axis=0, return_counts=True)[1] == 2).all()
    groups = np.arange(120) // 2
    heldout = MLPMap(validation_share=0.2)._hold_out(groups)
    assert heldout.sum() == 24
    assert np.array_equal(heldout[::2], heldout[1::2])
