"""Data shared by the tests of metrics: recorded values' rows, and rows full of ties, copies or odd layouts."""

from contextlib import contextmanager

import numpy as np
import pytest

KINDS = ["smooth", "single", "half", "integers", "copies", "near copies", "constant columns", "offset", "strided"]


@contextmanager
def in_blocks(rows):
    """Search in blocks of this many rows."""
    with pytest.MonkeyPatch.context() as patch:
        slices = lambda n, *_, **__: (slice(a, min(a + rows, n)) for a in range(0, n, rows))  # noqa: E731
        patch.setattr("congruence.metrics.search.blocks", slices)
        yield


def recipe():
    """Return the rows of values recorded from other packages, (40, 6) and (40, 5)."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((40, 6))
    return X, np.concatenate([X[:, :3] + rng.standard_normal((40, 3)), rng.standard_normal((40, 2))], axis=1)


def sample(seed, n, d, kind):
    rng = np.random.default_rng(seed)
    if kind == "integers":
        return rng.integers(-2, 3, (n, d)).astype(np.float32)
    A = rng.standard_normal((n, d))
    if kind == "copies":
        A = A[rng.integers(0, max(2, n // 3), n)]
    if kind == "near copies":  # differences that a float32 product does not see
        A = 1 + 1e-5 * A
    if kind == "constant columns":
        A[:, : d // 2] = 3.0
    if kind == "offset":
        A += 2.0
    if kind == "strided":
        A = np.asfortranarray(np.repeat(A, 2, axis=0))[::2]
    dtypes = {"half": np.float16, "single": np.float32, "near copies": np.float32}
    return A.astype(dtypes.get(kind, np.float64), copy=False)


def similarities(A, B, metric="inner"):
    """All pairs at once in float64; each pair is summed in the same order, so copies tie."""
    A, B = (np.ascontiguousarray(side, dtype=np.float64) for side in (A, B))
    if metric == "cosine":
        A, B = (side / np.linalg.norm(side, axis=1, keepdims=True) for side in (A, B))
    if metric == "euclidean":
        return -((A[:, None] - B[None]) ** 2).sum(axis=2)
    return (A[:, None] * B[None]).sum(axis=2)


def shares(S, k):
    """Probability that j is among the k largest of row i of S, if ties are in random order."""
    kth = np.sort(S, axis=1)[:, -k, None]
    eps = 1e-13 * np.abs(np.where(np.isfinite(S), S, 0)).max()
    above, tied = kth + eps < S, np.abs(S - kth) <= eps
    return above + tied * (k - above.sum(axis=1, keepdims=True)) / tied.sum(axis=1, keepdims=True)
