"""What every metric declares, and the checks and steps that metrics share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from congruence._utils.arrays import NUMPY, device, is_tensor, namespace, to_numpy
from congruence._utils.ids import fits_fixed_width, id_texts
from congruence._utils.typing import Array, ArrayNamespace, Labels, RowsLike, Tensor
from congruence._utils.validation import as_matrix, as_native, check_same_rows, check_same_width, in_range
from congruence.embeddings import in_order
from congruence.errors import DtypeError, InputError, ShapeError

#: Transformations that leave a value unchanged. Up to ``"joint permutation"``, they may be applied to either side
#: independently.
INVARIANCES = {
    "rotation": "rotating or reflecting either side",
    "isotropic scaling": "multiplying either side by a positive number",
    "translation": "adding a vector to all rows of either side",
    "invertible linear": "any invertible linear map of either side",
    "joint permutation": "reordering the rows of both sides alike",
    "joint rotation": "rotating both sides alike",
    "row scaling": "multiplying each row by a positive number of its own",
    "symmetry": "exchanging the sides",
}

#: Those of metrics of centered shapes.
OF_SHAPES = frozenset({"rotation", "isotropic scaling", "translation", "joint permutation", "symmetry"})

EPS = float(np.finfo(np.float64).eps)

#: Differences of rows up to this many machine epsilons of the entries are rounding errors of the caller's arithmetic.
NOISE = 4

#: Number of rows up to which all pairs are compared by default: 100 MB per side.
MOST_ROWS = 5000


def _one_space(*_: object) -> Any:
    raise TypeError("a metric within one space is not compared with random re-pairings")


@dataclass(frozen=True)
class Metric:
    """A measure of agreement with its declared properties, which tests verify.

    - ``fn``: ``fn(X, Y)`` on paired rows; its name is the metric's.
    - ``range``, ``invariances``, ``reference``: Smallest and largest value; keys of ``INVARIANCES``; source.
    - ``prepare``, ``compare``, ``reorder``: The same value in steps, so that random re-pairings reuse the first:
      ``prepare(A, name)`` computes from checked rows what depends on one side only (a basis, a Gram matrix, a table
      of neighbors), ``compare(first, second)`` is the value, and ``reorder(side, order)`` equals preparing
      ``A[order]``. Metrics within one space have no steps.
    - ``shared``: The part of ``prepare`` that is the same for several metrics; its result is a third argument of it.
    - ``cost``: Number of operations, up to a constant, for n rows of width d.
    """

    fn: Callable[..., float | Array]
    range: tuple[float, float]
    invariances: frozenset[str]
    reference: str
    prepare: Callable[..., Any] = _one_space
    compare: Callable[[Any, Any], float] = _one_space
    reorder: Callable[[Any, np.ndarray], Any] = lambda side, order: side[order]
    larger_is_closer: bool = True
    shared: Callable[[np.ndarray, str], Any] | None = None
    cost: str = "n·d²"
    one_space: bool = False

    @property
    def name(self) -> str:
        """Name in ``METRICS``."""
        return self.fn.__name__


def prepare_each(metrics: Iterable[Metric], A: np.ndarray, name: str) -> Iterator[Any]:
    """Yield a side prepared for each metric, with what several of them share computed once."""
    known: dict[object, Any] = {}
    for metric in metrics:
        if metric.shared is None:
            yield metric.prepare(A, name)
            continue
        if metric.shared not in known:
            known[metric.shared] = metric.shared(A, name)
        yield metric.prepare(A, name, known[metric.shared])


# ------------------------------------------------------------------ checks


def paired(X: RowsLike, Y: RowsLike) -> tuple[np.ndarray, np.ndarray]:
    """Validate two matrices of equal shape whose rows are paired by position."""
    X, Y = in_order(X, Y)
    A, B = (as_matrix(side, name, allow_zero_rows=True) for side, name in ((X, "X"), (Y, "Y")))
    check_same_rows(len(A), len(B), "X", "Y")
    check_same_width(A, B)
    return A, B


def native_pair(
    X: RowsLike, Y: RowsLike, *, min_rows: int = 2, names: tuple[str, str] = ("X", "Y")
) -> tuple[ArrayNamespace, Array, Array]:
    """Validate two matrices with paired rows, and return their array namespace and them; tensors stay tensors."""
    X, Y = in_order(X, Y)
    A: Array
    B: Array
    A, B = (as_native(side, name, min_rows=min_rows) for side, name in zip((X, Y), names, strict=True))
    check_same_rows(len(A), len(B), *names)
    try:
        xp = namespace(X, Y)
    except TypeError as error:
        raise DtypeError(
            f"Got {names[0]} of {type(X)} and {names[1]} of {type(Y)}; expected one library.", "Convert one."
        ) from error
    tensors = [side for side in (A, B) if is_tensor(side)]
    if len({side.device for side in tensors}) > 1:
        raise DtypeError(
            f"Got {names[0]} on {tensors[0].device} and {names[1]} on {tensors[1].device}.", "Move one with .to(…)."
        )
    if tensors:  # the other side may be a list
        A, B = (side if is_tensor(side) else xp.asarray(side, device=device(tensors[0])) for side in (A, B))
        return xp, A, B
    return xp, xp.asarray(A), xp.asarray(B)


def float_pair(X: RowsLike, Y: RowsLike, *, min_rows: int = 2) -> tuple[ArrayNamespace, Array, Array]:
    """Like ``native_pair``, with both matrices in float64 and of a scale whose sums do not overflow."""
    xp, A, B = native_pair(X, Y, min_rows=min_rows)
    return xp, in_range(xp.astype(A, xp.float64)), in_range(xp.astype(B, xp.float64))


def equal_rows(name: str, n: int) -> InputError:
    """Return the error for a side whose rows are all equal."""
    return InputError(
        f"All {n} rows of {name} are equal, so they have no variance.",
        "Drop repeated items, or check the encoder's outputs.",
    )


def contrasts(xp: ArrayNamespace, A: Array, name: str) -> Array:
    """Return n − 1 orthonormal contrasts of A's rows, without constant columns, with a largest entry of 1.

    Inner products of columns are those of the centered columns, but without the zero singular value of the centered
    matrix, which breaks the gradient of its decomposition if there are fewer rows than columns.
    """
    n = A.shape[0]
    # Subtracting the first row leaves exact zeros in constant columns. The next step is the Householder reflection that
    # maps the vector of ones to the first axis, with that axis dropped.
    C = A[1:, :] - A[:1, :]
    C -= xp.sum(C, axis=0, keepdims=True) / (n - n**0.5)
    size = xp.max(xp.abs(C), axis=0)
    varies = size > NOISE * EPS * xp.max(xp.abs(A), axis=0)
    if not bool(xp.any(varies)):
        raise equal_rows(name, n)
    C = C if bool(xp.all(varies)) else C[:, varies]
    return C / xp.max(size)  # avoids overflow and underflow of squares


def check_varies(xp: ArrayNamespace, A: Array, name: str) -> None:
    """Check that rows differ by more than rounding errors of their own precision."""
    A = A.detach() if is_tensor(A) else A
    if not xp.isdtype(A.dtype, "real floating"):
        A = xp.astype(A, xp.float64)
    noise = NOISE * float(xp.finfo(A.dtype).eps)

    def differ(low: Array, high: Array, limit: float) -> bool:
        return bool(xp.any(xp.abs(high - low) > limit * xp.maximum(xp.abs(low), xp.abs(high))))

    # Two rows nearly always tell; where they do not, the extremes of each column are compared.
    if not differ(A[0, :], A[-1, :], 4 * noise) and not differ(xp.min(A, axis=0), xp.max(A, axis=0), noise):
        raise equal_rows(name, A.shape[0])


def from_contrasts(contrast: Array) -> np.ndarray:
    """Return the centered rows (n, d) of contrasts (n − 1, d), which can be reordered as the items."""
    C = to_numpy(contrast)
    n, total = len(C) + 1, C.sum(axis=0)
    return np.vstack([total / n**0.5, C - total / (n - n**0.5)])


def as_scalar(value: Array) -> float | Tensor:
    """Return a Python float for NumPy and a 0-d tensor, with its graph, for torch."""
    return value if is_tensor(value) else float(value)


def as_labels(labels: Labels, n: int, name: str) -> np.ndarray:
    """Return labels as a flat array of n entries."""
    array = to_numpy(labels)
    if array.shape != (n,):
        raise ShapeError(
            f"Got {name} of shape {array.shape}; expected one label for each of {n} rows.", "Pass one for each."
        )
    if array.dtype != object:
        return array
    texts = id_texts(array.tolist())  # fixed widths compare faster
    return texts.astype(str) if fits_fixed_width(texts) else texts


# ------------------------------------------------------------------ steps of several metrics


def positive(size: float, name: str) -> float:
    """Return the size of a side, by which it is divided, after checking that it is not zero."""
    if not size > 0:
        raise InputError(
            f"All rows of {name} are equal, or all equally far from each other.", "Remove duplicate items."
        )
    return size


def scaled(A: np.ndarray, name: str) -> np.ndarray:
    """Return centered rows in float64 whose largest entry is 1, shape (n, d)."""
    check_varies(NUMPY, A, name)
    A = A.astype(np.float64)
    A = A - A.mean(axis=0)
    return A / np.abs(A).max()


def narrowed(C: np.ndarray) -> np.ndarray:
    """Return rows (n, d) in at most n coordinates of their span, in which their products are the same."""
    return np.asarray(np.linalg.qr(C.T, mode="r")).T if C.shape[1] > len(C) else C


class Spectrum(NamedTuple):
    """Contrasts (n − 1, d) of one side, and their left singular vectors and values, descending."""

    contrast: np.ndarray
    basis: np.ndarray
    values: np.ndarray


def spectrum(A: np.ndarray, name: str) -> Spectrum:
    """Decompose the contrasts of checked rows, in float64."""
    C = contrasts(NUMPY, A.astype(np.float64), name)
    return Spectrum(C, *decompose(NUMPY, C))


def singular_vectors(xp: Any, C: Any, most: int | None = None) -> tuple[Any, Any, Any]:
    """Return U, s and Vᵀ of C without the directions that are only rounding error; at most ``most``, if given."""
    U, s, Vt = xp.linalg.svd(C, full_matrices=False)
    r = int(xp.sum(xp.astype(s > max(C.shape) * EPS * s[0], xp.int64)))
    r = r if most is None else min(r, most)
    return U[:, :r], s[:r], Vt[:r, :]


def decompose(xp: Any, C: Any, most: int | None = None) -> tuple[Any, Any]:
    """Return U and s of ``singular_vectors``, where possible by the smaller Gram matrix."""
    wide = C.shape[0] <= C.shape[1]
    if not is_tensor(C) and (wide or (most or C.shape[1]) < C.shape[1]):
        values, vectors = (np.flip(part, -1)[..., :most] for part in np.linalg.eigh(C @ C.T if wide else C.T @ C))
        # Squaring loses few digits here: of U hardly any if it is found directly.
        if values[-1] > (1e-8 if wide else 1e-3) * values[0]:
            s = np.sqrt(values)
            return (vectors if wide else C @ (vectors / s)), s
    return singular_vectors(xp, C, most)[:2]


def own_precision(rows: np.ndarray, A: np.ndarray) -> np.ndarray:
    """Return coordinates (n, r) of A's rows in A's precision, if they are so many that no two re-pairings are equal,
    which single precision might not show.
    """
    return rows.astype(A.dtype, copy=False) if rows.shape[1] > 256 else rows


def nuclear_norm(C: np.ndarray) -> float:
    """Return the sum of the singular values; of a large matrix by its Gram, unless some are too small for that. In
    float32 its relative error is about 1e-6 if the rows and columns are in principal coordinates, leading ones first.
    """
    large = min(C.shape) > 128

    def gram(C: np.ndarray) -> np.ndarray:
        return C.T @ C if C.shape[0] > C.shape[1] else C @ C.T

    if large and C.dtype == np.float32:
        from scipy.linalg import eigvalsh  # NumPy's computes in float64

        values = eigvalsh(gram(C), driver="evd", check_finite=False).astype(np.float64)
        error = float(np.finfo(np.float32).eps) * values[-1]  # of each eigenvalue at most, about; their signs differ
        s, least = np.sqrt(np.maximum(values, 0)), np.sqrt(max(error, 0.0))
        lost = least * np.count_nonzero(values < 2 * error)  # of those near 0 all may be positive
        if error > 0 and np.linalg.norm(error / np.maximum(2 * s, least)) < 1e-4 * s.sum() and lost < 1e-3 * s.sum():
            return float(s.sum())
    C = C.astype(np.float64, copy=False)
    if large:
        values = np.linalg.eigvalsh(gram(C))
        if values[0] > 0:
            s = np.sqrt(values)
            if EPS * values[-1] * (1 / s).sum() < 1e-10 * s.sum():  # the error of each eigenvalue is about EPS λ₁
                return float(s.sum())
    return float(np.linalg.svd(C, compute_uv=False).sum())


def check_square(A: np.ndarray, metric: str) -> None:
    """Check that n × n matrices fit in memory."""
    if len(A) > MOST_ROWS:
        raise ShapeError(
            f"Got {len(A)} rows for {metric} with re-pairings, above {MOST_ROWS}.", "Pass a sample of the rows."
        )


def reorder_square(L: np.ndarray, order: np.ndarray) -> np.ndarray:
    """Return L[order][:, order], in blocks of rows that fit the processor's cache."""
    out = np.empty_like(L)
    for i in range(0, len(L), 256):
        np.take(L[order[i : i + 256]], order, axis=1, out=out[i : i + 256], mode="clip")
    return out


def inner(K: np.ndarray, L: np.ndarray) -> float:
    """Return the inner product of two kernels."""
    return float(np.vdot(K, L))
