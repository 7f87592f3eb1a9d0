"""Orthonormal bases of each side's centered rows, from which canonical correlations are computed."""

from __future__ import annotations

from types import ModuleType
from typing import overload

import numpy as np

from congruence._utils.arrays import device, is_tensor
from congruence._utils.typing import Array, ArrayNamespace
from congruence._utils.validation import check_choice, check_positive
from congruence.errors import InputError, ParameterError
from congruence.linalg.canonical import gains

EPS = float(np.finfo(np.float64).eps)
COMPONENTS = ("mean", "first", "all")


def check_options(
    components: str, rank: object, reduce: str | None, ridge: object, reductions: tuple[str | None, ...]
) -> None:
    """Check the options of CCA; ``reductions`` are the values that ``reduce`` may have.

    Raises
    ------
    ParameterError
        If an option has an invalid value.
    """
    check_choice(components, COMPONENTS, "components")
    if reduce not in reductions:
        raise ParameterError(
            f"Got reduce={reduce!r}; expected one of {', '.join(map(repr, reductions))}. Choose one of these."
        )
    check_positive(rank, "rank", integer=True)
    check_positive(ridge, "ridge", zero=True)


def equal_rows(name: str, n: int) -> InputError:
    """Return the error for a side whose rows are all equal."""
    return InputError(
        f"Got {n} equal rows in {name}; expected rows that differ, since a correlation needs variance. Drop repeated items, or check the encoder's outputs."
    )


def contrasts(xp: ArrayNamespace, A: Array, name: str) -> Array:
    """Return n − 1 orthonormal contrasts of A's rows, without constant columns, scaled to a largest absolute entry of 1.

    Up to that scale, inner products of columns are those of the centered columns, but without the zero singular value of the centered matrix:
    with fewer rows than columns, that zero breaks the gradient of its decomposition.
    """
    n = A.shape[0]
    # Subtracting the first row leaves exact zeros in constant columns. The next step is the Householder reflection that
    # maps the vector of ones to the first axis, with that axis dropped.
    C = A[1:, :] - A[:1, :]
    C = C - xp.sum(C, axis=0, keepdims=True) / (n - n**0.5)
    size = xp.max(xp.abs(C), axis=0)
    # Differences below this threshold are rounding errors of the caller's own arithmetic.
    varies = size > 4 * EPS * xp.max(xp.abs(A), axis=0)
    if not bool(xp.any(varies)):
        raise equal_rows(name, n)
    C = C[:, varies]
    return C / xp.max(size)  # avoids overflow and underflow of squares


def _number(value: Array) -> float:
    return float(value.detach() if is_tensor(value) else value)  # torch warns about converting a tensor with a graph


@overload
def spectrum(xp: ModuleType, C: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]: ...
@overload
def spectrum(xp: ArrayNamespace, C: Array) -> tuple[Array, Array, Array]: ...
def spectrum(xp: ArrayNamespace | ModuleType, C: Array) -> tuple[Array, Array, Array]:
    """Return U, s and Vᵀ of C without the directions that are only rounding error."""
    U, s, Vt = xp.linalg.svd(C, full_matrices=False)
    r = int(xp.sum(xp.astype(s > max(C.shape) * EPS * s[0], xp.int64)))
    return U[:, :r], s[:r], Vt[:r, :]


def _kernel_spectrum(xp: ArrayNamespace, A: Array, name: str) -> tuple[Array, Array]:
    """Return the basis and singular values of A's centered RBF features; see :func:`cca` for the bandwidth."""
    n = A.shape[0]
    C = A - A[:1, :]
    C = C - xp.mean(C, axis=0, keepdims=True)
    top = xp.max(xp.abs(C))
    if _number(top) <= 4 * EPS * _number(xp.max(xp.abs(A))):
        raise equal_rows(name, n)
    C = C / top
    norms = xp.sum(C * C, axis=1)
    squared = xp.clip(norms[:, None] + norms[None, :] - 2 * (C @ xp.matrix_transpose(C)), 0.0, None)
    rows = xp.arange(n, device=device(A))
    pairs = xp.sort(squared[rows[:, None] < rows[None, :]])
    median = (pairs[(len(pairs) - 1) // 2] + pairs[len(pairs) // 2]) / 2
    if _number(median) <= 64 * EPS * _number(xp.max(norms)):
        raise InputError(
            f"Got a median distance of 0 between rows of {name}; expected mostly different rows, since the "
            "kernel's bandwidth is that median. Drop duplicates, or pass reduce='pca'."
        )
    K = xp.exp(-squared / (2 * median))
    K = K - xp.mean(K, axis=0, keepdims=True)
    K = K - xp.mean(K, axis=1, keepdims=True)
    values, vectors = xp.linalg.eigh((K + xp.matrix_transpose(K)) / 2)
    values, vectors = xp.flip(values), xp.flip(vectors, axis=1)
    r = int(xp.sum(xp.astype(values > n * EPS * values[0], xp.int64)))
    return vectors[:, :r], xp.sqrt(values[:r])


def whitened(xp: ArrayNamespace, A: Array, name: str, rank: int, reduce: str | None, ridge: float) -> Array:
    """Return the whitened side: a matrix of orthonormal columns, shorter ones with a ridge (λ as a share of the mean variance)."""
    if reduce == "kernel":
        U, s = _kernel_spectrum(xp, A, name)
        return _shrink(xp, U[:, :rank], s[:rank], ridge)
    C = contrasts(xp, A, name)
    if reduce is None and ridge == 0:
        # Only the span matters: with columns of unit length, a column in other units does not affect the numerical rank. QR stays
        # differentiable if singular values repeat, for example on whitened data, but needs full rank.
        C = C / xp.max(xp.abs(C), axis=0)
        C = C / xp.sqrt(xp.sum(C * C, axis=0))
        if C.shape[0] >= C.shape[1]:
            Q, R = xp.linalg.qr(C)
            s = xp.linalg.svdvals(R)
            if bool(s[-1] > max(C.shape) * EPS * s[0]):
                return Q
    U, s, _ = spectrum(xp, C)
    if reduce == "pca":
        U, s = U[:, :rank], s[:rank]
    return _shrink(xp, U, s, ridge)


def _shrink(xp: ArrayNamespace, U: Array, s: Array, ridge: float) -> Array:
    return U if ridge == 0 else U * gains(xp, s, ridge * xp.mean(s * s))


@overload
def summarize(xp: ModuleType, correlations: np.ndarray, components: str) -> float | np.ndarray: ...
@overload
def summarize(xp: ArrayNamespace, correlations: Array, components: str) -> float | Array: ...
def summarize(xp: ArrayNamespace | ModuleType, correlations: Array, components: str) -> float | Array:
    """Return the mean, the first or all correlations; a single value is a float for NumPy and a tensor for torch."""
    if components == "all":
        return correlations
    value = correlations[0] if components == "first" else xp.mean(correlations)
    return value if is_tensor(value) else float(value)
