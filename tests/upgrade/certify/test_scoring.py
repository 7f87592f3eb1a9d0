"""Hits are what brute force finds, and pulls are what removing an item really does."""

from dataclasses import replace

import numpy as np
import pytest

from congruence.metrics import CSLS, QBNorm, nearest
from congruence.upgrade.certify.scoring import recall


def clouds(n=40, d=5, noise=1.0, seed=0):
    rng = np.random.default_rng(seed)
    gallery = rng.standard_normal((n, d))
    queries = gallery + noise * rng.standard_normal((n, d))
    return tuple(A / np.linalg.norm(A, axis=1, keepdims=True) for A in (queries, gallery))


def hits_without(near, codes, k, gone=None):
    """Scores of all queries but the removed one's, with one gallery row removed, by sorting everything."""
    near = near.copy()
    if gone is not None:
        near[:, gone] = -np.inf
    order = np.argsort(-near, axis=1)[:, :k]
    found = (codes[order] == codes[:, None]) & np.isfinite(np.take_along_axis(near, order, axis=1))
    return found.any(axis=1) * (np.arange(len(near)) != gone)


@pytest.mark.parametrize("k", [1, 3, 8])
@pytest.mark.parametrize(("classes", "find_own"), [(None, True), (6, True), (6, False)])
def test_pulls_are_what_removal_does(k, classes, find_own):
    queries, gallery = clouds(noise=2.0)
    near = queries @ gallery.T
    if not find_own:
        np.fill_diagonal(near, -np.inf)
    n = len(near)
    codes = np.arange(n) if classes is None else np.random.default_rng(1).integers(classes, size=n)
    got = recall(near, codes[:, None] == codes, k, find_own=find_own)
    whole = hits_without(near, codes, k)
    np.testing.assert_array_equal(got.score, whole)
    for gone in range(n):
        assert got.pull[gone] == hits_without(near, codes, k, gone).sum() - whole[np.arange(n) != gone].sum()
    assert got.pull.any()


@pytest.mark.parametrize("hubness", [None, CSLS(), QBNorm()])
def test_rows_equally_near_come_lowest_number_first(hubness):
    """Copies are equally near to every query, though a product may round them apart."""
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((6, 50)).astype(np.float32)
    gallery = rows[rng.permutation(np.repeat(np.arange(6), 20))]
    queries = rng.standard_normal((30, 50)).astype(np.float32)
    correction = None if hubness is None else hubness.of(queries, gallery)
    if correction is not None:  # copies have one correction, up to its own rounding
        which = np.unique(gallery, axis=0, return_inverse=True)[1].reshape(-1)
        correction = replace(correction, shift=correction.shift[np.unique(which, return_index=True)[1]][which])
    inner = (queries, gallery) if correction is None else correction.as_inner_products(queries, gallery)
    near = nearest(inner[0], 30, inner[1])
    for listed in near:
        same = (gallery[listed[1:]] == gallery[listed[:-1]]).all(axis=1)
        assert same.sum() == 28  # twenty of one row, then ten of another
        assert (np.diff(listed)[same] > 0).all()
