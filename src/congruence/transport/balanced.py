"""Entropic optimal transport between two collections with given affinities (Cuturi 2013)."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Generic

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg.lapack import dposv

from congruence._utils.arrays import is_tensor, namespace, to_numpy
from congruence._utils.typing import Array, ArrayT, DType, RowsLike, Tensor
from congruence._utils.validation import as_matrix, as_native, check_choice, check_positive
from congruence.errors import DtypeError, ParameterError, ShapeError
from congruence.transport._kernel import Affinity, Dense, Kernel, Products, Scratch, Strip, exponential, strip_pool_for
from congruence.transport._strip_pool import single_threaded, times_columns, times_rows

MASSES = ("unit", "bistochastic")
#: The L1 error at which a plan counts as converged (the paper's bound for the marginals: SOTAlign, figure 6).
CONVERGED = 1e-6
MAX_ITER = 1000
#: Bytes of a kernel that are kept in memory; the rest is recomputed in each iteration.
MEMORY = 2**30
#: The largest relative error of a plan's entries that rounding of A/ε may cause.
ROUNDING = 1e-3
#: Smallest allowed marginal, by bytes per number: smaller entries cannot be told from those at ``_kernel.FLOOR``.
LEAST = {4: 1e-10, 8: 1e-100}
#: Largest |log a| + |log b| before the scalings are absorbed. Entries of K below e^-65 are raised to e^-65 (6e-29):
#: times both scalings they are below 3e-20, too small to affect any marginal.
GROWTH = 20.0
#: L1 error of the marginals, in machine epsilons, below which further iterations change only rounding errors, and that
#: below which they may, if PATIENCE iterations have not halved it.
SETTLED, ROUNDED, PATIENCE = 4, 100, 20
#: Acceleration: iterates combined, and the share of the trace of their Gram matrix added to its diagonal; the largest
#: range of a change of potentials, by itself and as a multiple of the plain one; an iterate whose marginal error is
#: WORSE times the smallest is left for the best one.
DEPTH, RIDGE, LONGEST, FURTHER, WORSE = 8, 1e-10, 4.0, 1000.0, 3.0
#: Estimated errors of plans: from this many rows, promised as this multiple (estimates are mostly a little too small),
#: once the marginal error is at most NEAR times the goal (estimates are not free). The error is known after FEWEST
#: changes of residuals, or if an iteration left less than FAST of the marginal error.
ROWS, PROMISE, NEAR, FEWEST, FAST = 50, 3.0, 10.0, 3, 0.2
#: Largest logarithm of entries of a plan below which they are multiplied.
SMALL = -40.0


@dataclass(frozen=True)
class SinkhornResult:
    """An entropic transport plan stored in O(n + m) numbers: P = exp(u_i + A_ij/ε + v_j).

    - ``u``, ``v``, shapes (n,) and (m,): Logarithms of the scalings: ε·u is the dual potential in units of affinity.
    - ``epsilon``, ``mass``: Weight of the entropy, in units of affinity, and sum of P: 1 ("unit") or n
      ("bistochastic").
    - ``marginal_error``: L1 distance of the row sums from their marginals plus that of the column sums, for the plan
      of mass 1: from 0 to 4. For an unbalanced plan: L1 distance of the row sums from those that the potentials
      imply, r·exp(−ε(u_i − log r_i)/ρ) with u of the unnormalized plan, plus the same for columns.
    - ``error``, ``converged``: Estimated L1 distance to the converged plan, for mass 1, from 0 to 2, and whether it is
      at most ``tolerance``.
    - ``n_iter``: Number of iterations; each updates rows and columns.
    - ``row_marginal``, ``column_marginal``, shapes (n,) and (m,): Sums of the plan of mass 1: in an unbalanced plan,
      rows without a near partner have little mass.
    - ``rho``, ``log_mass``: Strength of the marginal constraints of an unbalanced plan, in units of affinity, else
      infinite, and the logarithm of its sum before normalization.
    """

    u: Array
    v: Array
    epsilon: float
    mass: str
    marginal_error: float
    error: float
    n_iter: int
    converged: bool
    row_marginal: Array
    column_marginal: Array
    _affinity: Affinity = field(repr=False)
    rho: float = math.inf
    log_mass: float = 0.0

    def plan(self, rows: slice | None = None) -> Array:
        """Return the plan (n, m), or some of its ``rows``, a slice with step 1, in the array library passed in.

        It is computed from the current content of the arrays that were passed in.
        """
        n = self._affinity.shape[0]
        start, stop, step = (rows or slice(None)).indices(n)
        if step != 1:
            raise ParameterError(f"Got rows with step {step}; expected 1.", f"Take every {step}th of the result.")
        part = slice(start, max(start, stop))
        A = self._affinity
        P = A.xp.empty((part.stop - part.start, A.shape[1]), dtype=A.dtype, device=A.device)
        return exponential(A.exponent(part, to_numpy(self.u), to_numpy(self.v), self.epsilon, P))


def sinkhorn(
    affinity: RowsLike | None = None,
    epsilon: float = 0.05,
    max_iter: int = MAX_ITER,
    tolerance: float = CONVERGED,
    *,
    X: RowsLike | None = None,
    Y: RowsLike | None = None,
    marginals: tuple[ArrayLike | Tensor | None, ArrayLike | Tensor | None] | None = None,
    mass: str = "unit",
    memory: int = MEMORY,
) -> SinkhornResult:
    """Transport one collection to another along high affinities, with an entropy term: argmax ⟨P, A⟩ − ε ⟨P, log P⟩.

    Parameters
    ----------
    affinity : array_like, shape (n, m), optional
        A: similarity of row and column, i.e. the negative of a cost. NumPy or torch, computed on the tensor's device;
        no gradient flows through. float16 and bfloat16 are computed in float32.
    epsilon : float, default=0.05
        Weight of the entropy, in units of affinity.
    tolerance : float, default=1e-6
        Stop when the plan's estimated L1 distance to the converged one is at most this (mass 1: from 0 to 2), or
        when further iterations would only change rounding; float32 does not get much below 1e-5.
    X, Y : array_like, shapes (n, d) and (m, d), optional
        Instead of ``affinity``: the affinities are the inner products ⟨x_i, y_j⟩, computed in strips and never stored
        as a whole.
    marginals : tuple of array_like, shapes (n,) and (m,), optional
        Positive weights of rows and of columns, each summing to 1. Uniform by default.
    mass : {"unit", "bistochastic"}, default="unit"
        Whether the plan sums to 1, or to n so that rows of a square plan sum to 1 (SOTAlign, equation 11).
    memory : int, default=2**30
        Bytes of the kernel (n·m numbers) that are kept in memory; further rows are recomputed in each iteration. The
        kernel of ``affinity`` is always kept.

    Notes
    -----
    If at most one entry in twenty of the kernel can matter, only those are stored and read. The plan is that of the
    logarithmic iteration, whatever ε: scalings are absorbed before they overflow.

    Source: Cuturi (2013), "Sinkhorn distances". Schmitzer (2019), "Stabilized sparse scaling algorithms for entropy
    regularized transport problems", section 3. SOTAlign, equation 11 and appendix C.2.

    Examples
    --------
    >>> import numpy as np
    >>> from congruence.transport import sinkhorn
    >>> result = sinkhorn(np.eye(2), epsilon=0.5, mass="bistochastic")
    >>> result.plan().round(3), result.converged
    (array([[0.881, 0.119],
           [0.119, 0.881]]), True)
    """
    check_choice(mass, MASSES, "mass")
    check_options(max_iter, tolerance, memory)
    A, memory = choose_affinity(affinity, X, Y, memory)
    check_epsilon(A, epsilon, "epsilon")
    r, c = check_marginals(marginals, A)
    n = A.shape[0]
    solved, _ = iterate(A, float(epsilon), r, c, max_iter, Goal(tolerance), memory)
    with strip_pool_for(A, memory) as pool:
        rows, columns = kernel_marginals(Kernel(A, float(epsilon), memory, pool), solved.u, solved.v)
    error = float(np.abs(rows - r).sum() + np.abs(columns - c).sum())
    u = solved.u + math.log(n) if mass == "bistochastic" else solved.u
    return SinkhornResult(
        *(A.vector(u), A.vector(solved.v), float(epsilon), mass, error, solved.error, solved.n_iter),
        *(solved.error <= tolerance, as_array(rows, A), as_array(columns, A), A),
    )


def choose_affinity(
    affinity: RowsLike | None, X: RowsLike | None, Y: RowsLike | None, memory: int
) -> tuple[Affinity, int]:
    """Return the affinities, passed in one of the two ways, and the bytes of the kernel to keep."""
    passed = [name for name, array in (("affinity", affinity), ("X", X), ("Y", Y)) if array is not None]
    if passed not in (["affinity"], ["X", "Y"]):
        raise ParameterError(
            f"Got {' and '.join(passed) or 'nothing'} instead of affinities.", "Pass `affinity=…`, or `X=…` and `Y=…`."
        )
    if affinity is not None:
        (A,) = same_library({"affinity": affinity})
        return Dense(A, computing_dtype(A)), 8 * A.shape[0] * A.shape[1]
    A, B = same_library({"X": X, "Y": Y})  # type: ignore[dict-item]
    return products(A, B, ("X", "Y"), computing_dtype(A, B)), memory


def check_marginals(
    marginals: tuple[ArrayLike | Tensor | None, ArrayLike | Tensor | None] | None, affinity: Affinity
) -> tuple[np.ndarray, np.ndarray]:
    """Return the marginals of rows (n,) and of columns (m,), each summing to 1."""
    sides = (None, None) if marginals is None else tuple(marginals)
    if len(sides) != 2:
        raise ParameterError(
            f"Got {len(sides)} marginals; expected those of rows and of columns.", "Pass both as a tuple."
        )
    n, m = affinity.shape
    return weights(sides[0], n, "row", affinity), weights(sides[1], m, "column", affinity)


def check_options(max_iter: int, tolerance: float, memory: int) -> None:
    """Check the options of the iteration."""
    check_positive(max_iter, "max_iter", integer=True)
    check_positive(memory, "memory", integer=True, zero=True)
    check_positive(tolerance, "tolerance")


def same_library(arrays: Mapping[str, RowsLike]) -> list[Array]:
    """Return matrices in one array library, on one device, without a graph; lists take the library of the others,
    integers and booleans become float64.
    """
    with single_threaded(*arrays.values()):
        checked = {name: as_native(array, name) for name, array in arrays.items()}
    tensors = {name: array.detach() for name, array in checked.items() if is_tensor(array)}
    if not tensors:
        return list(checked.values())
    first = next(iter(tensors.values()))
    for name, array in arrays.items():
        if hasattr(array, "dtype") and name not in tensors:
            raise DtypeError(
                f"Got {next(iter(tensors))} as a tensor and {name} as {type(array)}.",
                "Convert one with torch.as_tensor.",
            )
    if any(tensor.device != first.device for tensor in tensors.values()):
        where = ", ".join(f"{name} on {array.device}" for name, array in tensors.items())
        raise DtypeError(f"Got {where}; expected one device.", "Move them to one with .to(…).")
    xp = namespace(first)
    moved = [tensors[n] if n in tensors else xp.asarray(a, device=first.device) for n, a in checked.items()]
    return [a if xp.isdtype(a.dtype, "real floating") else xp.astype(a, xp.float64) for a in moved]


def computing_dtype(*arrays: Array) -> DType:
    """Return float32 if all arrays are float32, float16 or bfloat16, else float64."""
    xp = namespace(*arrays)
    narrow = (xp.float32, xp.float16, getattr(xp, "bfloat16", xp.float16))
    return xp.float32 if all(array.dtype in narrow for array in arrays) else xp.float64


def products(X: Array, Y: Array, names: tuple[str, str], dtype: DType) -> Products:
    """Return the affinities ⟨x_i, y_j⟩."""
    if X.shape[1] != Y.shape[1]:
        raise ShapeError(
            f"Got widths {X.shape[1]} of {names[0]} and {Y.shape[1]} of {names[1]}.",
            "Map one side into the other space.",
        )
    return Products(X, Y, dtype)


def check_epsilon(affinity: Affinity, epsilon: float, name: str) -> float:
    """Return ``epsilon``; refuse one so small that rounding of A/ε changes the plan by more than ``ROUNDING``."""
    check_positive(epsilon, name)
    with single_threaded(affinity.xp.zeros(0)):
        bound = affinity.bound
    least = bound * float(affinity.xp.finfo(affinity.dtype).eps) / ROUNDING
    if epsilon < least:
        kind = "float64" if affinity.itemsize == 8 else "float32"
        remedy = "Scale the affinities down" if kind == "float64" else "Pass float64"
        raise ParameterError(
            f"Got `{name}={epsilon}` for affinities up to {bound:.3g} in {kind}; expected at least {least:.1g}.",
            f"{remedy} or pass a larger `{name}=…`.",
        )
    return float(epsilon)


def weights(marginal: ArrayLike | Tensor | None, n: int, name: str, affinity: Affinity) -> np.ndarray:
    """Return a marginal that adds up to 1, shape (n,); uniform if None."""
    if marginal is None:
        return np.full(n, 1 / n)
    array = to_numpy(marginal)
    if array.shape != (n,):
        raise ShapeError(f"Got {name} marginal of shape {array.shape}; expected ({n},).", "Pass one weight each.")
    w = as_matrix(array[:, None], f"{name} marginal")[:, 0].astype(np.float64)
    least = LEAST[affinity.itemsize]
    if w.min() < least:
        raise ParameterError(
            f"Got a {name} marginal of {w.min():g} at {int(w.argmin())}; expected at least {least:g}.",
            "Leave out such items.",
        )
    if abs(w.sum() - 1) > 1e-6:
        raise ParameterError(f"Got {name} marginals that add up to {w.sum():g}; expected 1.", "Divide by their sum.")
    return np.asarray(w / w.sum())


@dataclass(frozen=True)
class Potentials(Generic[ArrayT]):
    """Potentials u (n,) and v (m,) of the plan P = exp(u_i + A_ij/ε + v_j) of mass 1.

    ``error`` estimates the L1 distance to the converged plan, from 0 to 2 (2 also if it is not known yet);
    ``marginal_error`` is the L1 error of the column sums half an iteration earlier, which no half iteration increases.
    """

    u: ArrayT
    v: ArrayT
    n_iter: int
    error: float
    marginal_error: float
    log_mass: float = 0.0


class Goal:
    """The estimated error at which a plan is good enough."""

    def __init__(self, error: float) -> None:
        self.error = error

    def reached(self, error: float, rows: np.ndarray) -> bool:
        """Return whether a plan with this error, and with these ``rows`` of the sample, is good enough."""
        return error <= self.error


class Sample:
    """Rows of a plan, evenly spaced, from which L1 norms of all rows are estimated."""

    def __init__(self, affinity: Affinity, epsilon: float, r: np.ndarray) -> None:
        self._step = max(1, affinity.shape[0] // ROWS)
        self._rows, self._epsilon = affinity.every(self._step), epsilon
        self._share = float(r[:: self._step].sum() / r.sum())

    def plan(self, u: np.ndarray, v: np.ndarray) -> np.ndarray:
        """Return these rows of exp(u_i + A_ij/ε + v_j), or a multiple of them where that is too large or too small."""
        few = self._rows
        out = few.xp.empty(few.shape, dtype=few.dtype, device=few.device)
        L = few.exponent(slice(0, few.shape[0]), u[:: self._step], v, self._epsilon, out)
        if not SMALL < float(few.xp.max(L)) <= 0:  # the mass of an unbalanced plan may be any number
            L -= few.xp.max(L)
        return to_numpy(exponential(L))

    def norm(self, rows: np.ndarray) -> float:
        """Return the L1 norm of a matrix of which these are the rows."""
        return float(np.abs(rows).sum(dtype=np.float64)) / self._share


class Anderson:
    """Acceleration of an iteration x ← G(x) for the column potentials x (m,).

    The next iterate combines the last ones so that their combined residual Σ w (G(x) − x)² is smallest. The iteration
    is slow where the plan has nearly separate blocks. Near convergence its residuals shrink by a fixed symmetric
    matrix, and few combinations remove the largest eigenvalues, as conjugate gradients do. Sums are NumPy's own, so
    that they do not depend on the number of threads.

    Source: Anderson (1965), "Iterative procedures for nonlinear integral equations". Walker and Ni (2011), "Anderson
    acceleration for fixed-point iterations".
    """

    def __init__(self, weights: np.ndarray) -> None:
        self._root = np.sqrt(weights)
        # Differences of consecutive weighted residuals, those of the values of G, and the Gram matrix of the first.
        self._differences, self._moves = np.zeros((2, DEPTH, len(weights)))
        self._gram = np.zeros((DEPTH, DEPTH))
        self.restart()

    def restart(self) -> None:
        """Forget all iterates."""
        self.count = 0
        self._last: tuple[np.ndarray, np.ndarray] | None = None

    def change(self, x: np.ndarray, plain: np.ndarray) -> np.ndarray:
        """Return the difference between the next iterate and x, where ``plain`` is G(x) − x."""
        short = float(plain.max() - plain.min())
        if short > LONGEST:  # far from convergence, residuals do not shrink by a fixed matrix
            self.restart()
            return plain
        residual, g = plain * self._root, x + plain
        last, self._last = self._last, (residual, g)
        if last is None:
            return plain
        place = self.count % DEPTH
        self.count += 1
        k = min(self.count, DEPTH)
        np.subtract(residual, last[0], out=self._differences[place])
        np.subtract(g, last[1], out=self._moves[place])
        known = self._differences[:k]
        self._gram[place, :k] = self._gram[:k, place] = times_columns(known, known[place], True)
        gram = self._gram[:k, :k].copy()
        size = float(gram.trace())
        if not size > 0:
            return plain
        gram.flat[:: k + 1] += RIDGE * size
        _, shares, failed = dposv(gram, times_columns(known, residual, True))
        if failed:
            return plain
        change = plain - times_rows(self._moves[:k], shares, True)
        longest, most = float(change.max() - change.min()), min(LONGEST, FURTHER * short)
        return change if longest <= most else change * (most / longest)


@dataclass(frozen=True)
class Iterate:
    """A plan on the way: its potentials, and what is known of its error.

    The column potentials are to change by ``rest`` more, the row potentials by less than ``change`` of the columns'.
    """

    u: np.ndarray
    v: np.ndarray
    marginal_error: float
    change: np.ndarray
    rest: np.ndarray
    known: bool


class Progress:
    """Accelerates an iteration, estimates the error of its plans, and remembers the best of them."""

    def __init__(self, c: np.ndarray, eps: float, goal: Goal, sample: Sample, damping: float = 1.0) -> None:
        self._accelerated, self._goal, self._sample, self._damping = Anderson(c), goal, sample, damping
        self._settled, self._rounding = SETTLED * eps, ROUNDED * eps
        self._best: Iterate | None = None
        self._error = 2.0  # of the best; 2 if it is not known
        self._went_back = False
        self._before, self._look = 0.0, math.inf
        self._least, self._since = math.inf, 0

    def change(self, x: np.ndarray, plain: np.ndarray, u: np.ndarray, residual: np.ndarray) -> np.ndarray | None:
        """Return the change of the column potentials ``x`` (m,); None if the plan is good enough, or will not get
        better.

        The iteration would change them by ``plain``; ``u`` (n,) are the row potentials before, and ``residual`` (m,) is
        what the column sums lack.
        """
        marginal = float(np.abs(residual).sum())
        if self._best is not None and not (self._went_back or marginal <= WORSE * self._best.marginal_error):
            self._went_back = True
            self.restart()
            return self._best.v - x
        self._went_back = False
        change = self._accelerated.change(x, plain)
        known = self._accelerated.count >= FEWEST or marginal <= max(FAST * self._before, self._settled)
        now = Iterate(u, x + plain, marginal, change, change - plain, known)
        self._before = marginal
        if marginal < self._least / 2:
            self._least, self._since = marginal, 0
        else:
            self._since += 1
        if self._best is None or marginal < self._best.marginal_error:
            self._best, self._error = now, 2.0
        if known and marginal <= min(NEAR * self._goal.error, self._look):
            error, rows = self._estimate(now)
            if self._goal.reached(error, rows):
                self._best, self._error = now, error
                return None
            self._look = 1.3 * marginal * min(1.0, self._goal.error / error)
        done = marginal <= self._settled or (self._since >= PATIENCE and marginal <= self._rounding)
        return None if done else change

    def restart(self) -> None:
        """Accelerate without the iterations so far."""
        self._accelerated.restart()

    def _estimate(self, at: Iterate) -> tuple[float, np.ndarray]:
        """Return the promised error and the sampled rows of a plan.

        If the column potentials before the last plain change are to change by s, those of the rows change by the mean
        of −λs over the row, and those of the columns by the rest of s. The error is the mean of |δu_i + δv_j|.
        """
        P = self._sample.plan(at.u, at.v)
        change, rest = at.change.astype(P.dtype), at.rest.astype(P.dtype)
        rows = P.sum(axis=1)
        changes = rest - (self._damping * times_columns(P, change, True) / rows)[:, None]
        if self._damping < 1:  # a constant changes the mass only
            changes -= np.einsum("ij,ij", P, changes) / rows.sum()
        return PROMISE * float(np.einsum("ij,ij", P, np.abs(changes, out=changes)) / rows.sum()), P

    def result(self, n_iter: int, u: np.ndarray, v: np.ndarray) -> Potentials[np.ndarray]:
        """Return the best plan so far, or, if there is none, that of the last potentials."""
        best = self._best
        if best is None:
            return Potentials(u, v, n_iter, 2.0, 2.0)
        if best.known and self._error == 2.0:
            self._error = min(2.0, self._estimate(best)[0])
        return Potentials(best.u, best.v, n_iter, self._error, best.marginal_error)


def as_array(vector: np.ndarray, affinity: Affinity) -> Array:
    """Return a vector in the library and memory of an affinity."""
    return affinity.xp.asarray(vector, device=affinity.device)


def iterate(
    affinity: Affinity,
    epsilon: float,
    r: np.ndarray,
    c: np.ndarray,
    max_iter: int,
    goal: Goal,
    memory: int,
    start: np.ndarray | None = None,
    buffer: Array | None = None,
) -> tuple[Potentials[np.ndarray], Kernel]:
    """Return the potentials, and the kernel at the end, after accelerated Sinkhorn iterations from v = 0 or ``start``,
    rows first: a ← r/(K b), b ← c/(Kᵀa).

    Sums are those of a kernel K = exp(U_i + A_ij/ε + V_j), in ``buffer`` if that is passed. When logarithms of the
    scalings exceed GROWTH, they are absorbed into U and V, and K is computed again, so nothing overflows, and entries
    below e^-65 that matter appear (Schmitzer 2019, section 3.1). It stops when the plan is good enough, or further
    iterations would only change rounding.
    """
    with strip_pool_for(affinity, memory) as pool:
        return _iterate(Kernel(affinity, epsilon, memory, pool, buffer), r, c, max_iter, goal, start)


def _iterate(
    kernel: Kernel, r: np.ndarray, c: np.ndarray, max_iter: int, goal: Goal, start: np.ndarray | None
) -> tuple[Potentials[np.ndarray], Kernel]:
    marginals = None if kernel.fits else (r, c)
    narrow, log_c = r.astype(kernel.real), np.log(c)
    sample = Sample(kernel.affinity, kernel.epsilon, r)
    progress = Progress(c, float(np.finfo(kernel.real).eps), goal, sample)
    _start(kernel, np.zeros(len(c)) if start is None else start, r, c)
    n_iter, exact = 0, False
    # Potentials are those of the kernel's base plus these.
    log_a, x, a = np.zeros(len(r)), np.zeros(len(c)), np.empty_like(narrow)
    while n_iter < max_iter:
        b = np.exp(x).astype(kernel.real)

        def scale(part: slice, K: Strip, b: np.ndarray = b) -> np.ndarray:
            a[part] = narrow[part] / K.times(b)
            return K.transposed_times(a[part])

        sums = functools.reduce(operator.iadd, kernel.strips(scale), np.zeros_like(b))
        new_log_a, have = np.log(a, dtype=np.float64), b * sums.astype(np.float64)
        plain = log_c - np.log(have)
        grown = float(np.abs(new_log_a).max()) + max(float(np.abs(side).max()) for side in (x, x + plain))
        if kernel.reach is not None and not grown <= kernel.reach:
            # The dropped entries may matter now: start again from here, and densely if that is where it was.
            kernel.rebase(kernel.u + log_a, kernel.v + x, marginals if exact else None)
            log_a, x, exact = np.zeros(len(r)), np.zeros(len(c)), False
            continue
        n_iter += 1
        if grown > GROWTH:
            kernel.rebase(kernel.u + new_log_a, kernel.v + x + plain, marginals)
            progress.restart()
            log_a, x, exact = np.zeros(len(r)), np.zeros(len(c)), False
            continue
        change = progress.change(kernel.v + x, plain, kernel.u + new_log_a, c - have)
        if change is None:
            break
        log_a, x, exact = new_log_a, x + change, True
    return progress.result(n_iter, kernel.u + log_a, kernel.v + x), kernel


def _start(kernel: Kernel, v: np.ndarray, r: np.ndarray, c: np.ndarray) -> None:
    """Compute the kernel for the first base, from these column potentials."""
    log_r = np.log(r)
    if kernel.fits:  # the largest entry of each row becomes that row's marginal
        kernel.rebase(None, v, rows=log_r)
        return
    u, largest, log_sums = log_domain_pass(kernel, v, lambda part, largest, log_sums: log_r[part] - largest - log_sums)
    kernel.rebase(u, v + np.log(c) - largest - log_sums, (r, c))


def log_domain_pass(
    kernel: Kernel, v: np.ndarray, row_potentials: Callable[[slice, np.ndarray, np.ndarray], np.ndarray]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return row potentials u (n,) from column potentials v (m,) in the log domain, in one pass over the rows.

    ``row_potentials`` gets, for a slice of rows, the largest exponent A_ij/ε + v_j of each and the log of the sum of
    exp of the others minus it. The same two are returned for each column of u_i + A_ij/ε + v_j.
    """
    A, xp, (n, m) = kernel.affinity, kernel.xp, kernel.affinity.shape
    u = np.zeros(n)
    scratch = Scratch(A)

    def work(part: slice, L: Array) -> tuple[np.ndarray, np.ndarray]:
        row_largest = xp.max(L, axis=1)
        spare = scratch.rows(len(L))
        xp.subtract(L, row_largest[:, None], out=spare)
        log_sums = float64(xp.log(xp.sum(exponential(spare), axis=1)))
        u[part] = row_potentials(part, float64(row_largest), log_sums)
        L += A.vector(u[part])[:, None]
        strip_largest = xp.max(L, axis=0)
        L -= strip_largest
        return float64(strip_largest), float64(xp.sum(exponential(L), axis=0))

    largest, sums = np.full(m, -np.inf), np.zeros(m)
    for strip_largest, strip_sums in kernel.exponents(work, np.zeros(n), v):
        new_largest = np.maximum(largest, strip_largest)
        sums = sums * np.exp(largest - new_largest) + strip_sums * np.exp(strip_largest - new_largest)
        largest = new_largest
    return u, largest, np.log(sums)


def kernel_marginals(kernel: Kernel, u: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the row sums and the column sums of exp(u_i + A_ij/ε + v_j)."""
    xp = kernel.xp
    rows, columns = (np.zeros(size) for size in kernel.affinity.shape)

    def add_up(part: slice, L: Array) -> np.ndarray:
        P = exponential(L)
        rows[part] = to_numpy(xp.sum(P, axis=1))
        return to_numpy(xp.sum(P, axis=0))

    for sums in kernel.exponents(add_up, u, v):
        columns += sums
    return rows, columns


def float64(vector: Array) -> np.ndarray:
    """Return a vector as a NumPy array."""
    return to_numpy(vector).astype(np.float64)
