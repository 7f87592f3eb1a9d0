"""Entropic optimal transport: balanced plans (Cuturi 2013) and unbalanced ones (Chizat et al. 2018)."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
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
#: times both scalings they are below 1e-15, too small to affect any marginal.
GROWTH = 30.0
#: The same of an unbalanced iteration: beyond it, entries of K that were raised to e^-65 would matter.
LEAP = 40.0
#: L1 error of the marginals, in machine epsilons, below which further iterations change only rounding errors, and that
#: below which they may, if PATIENCE iterations have not halved it.
SETTLED, ROUNDED, PATIENCE = 4, 100, 20
#: Acceleration: iterates combined, and the share of the trace of their Gram matrix added to its diagonal; the largest
#: range of a change of potentials, by itself and as a multiple of the plain one; an iterate whose marginal error is
#: WORSE times the smallest is left for the best one.
DEPTH, RIDGE, LONGEST, FURTHER, WORSE = 10, 1e-10, 4.0, 1000.0, 3.0
#: Estimated errors of plans: from this many rows, promised as this multiple (estimates are mostly a little too small).
#: The error is known after FEWEST changes of residuals, or if an iteration left less than FAST of the marginal error.
#: An estimate is made where the last one, as a multiple of the marginal error, would be within NEAR of the goal.
ROWS, PROMISE, FEWEST, FAST, NEAR = 50, 2.5, 3, 0.2, 1.3
#: Largest logarithm of entries of a plan below which they are multiplied.
SMALL = -40.0


@dataclass(frozen=True)
class SinkhornResult:
    """An entropic transport plan stored in O(n + m) numbers: P = exp(u_i + A_ij/ε + v_j).

    - ``u``, ``v``, shapes (n,) and (m,): ε·u and ε·v are the dual potentials in units of affinity.
    - ``mass``: Sum of P: 1 ("unit") or n ("bistochastic").
    - ``marginal_error``: L1 distances of the row sums and of the column sums from their marginals, for mass 1: from 0
      to 4. For an unbalanced plan: from those that the potentials imply, r·exp(−ε(u_i − log r_i)/ρ) with u of the
      unnormalized plan.
    - ``error``, ``converged``: Estimated L1 distance to the converged plan, for mass 1, from 0 to 2, and whether it is
      at most ``tolerance``.
    - ``row_marginal``, ``column_marginal``, shapes (n,) and (m,): Sums of the plan of mass 1.
    - ``rho``, ``log_mass``: Strength of the marginal constraints in units of affinity, infinite for a balanced plan,
      and the logarithm of the sum before normalization.
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
        """Return the plan (n, m), or some of its ``rows``, a slice with step 1, from the arrays that were passed in."""
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
        A: similarity of row and column, i.e. the negative of a cost. NumPy or torch, computed on the tensor's device
        without a graph. float16 and bfloat16 are computed in float32.
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
    return _transport(affinity, X, Y, math.inf, epsilon, max_iter, tolerance, marginals, mass, memory)


def sinkhorn_unbalanced(
    affinity: RowsLike | None = None,
    rho: float = 0.1,
    epsilon: float = 0.05,
    max_iter: int = MAX_ITER,
    tolerance: float = CONVERGED,
    *,
    X: RowsLike | None = None,
    Y: RowsLike | None = None,
    marginals: tuple[ArrayLike | Tensor | None, ArrayLike | Tensor | None] | None = None,
    memory: int = MEMORY,
) -> SinkhornResult:
    """Transport one collection to another when some rows have no partner: marginals are soft constraints of strength ρ.

    The optimal plan is that of argmax ⟨P, A⟩ − ε KL(P | r cᵀ) − ρ KL(P1 | r) − ρ KL(Pᵀ1 | c), and the result is this
    plan divided by its mass.

    Parameters
    ----------
    rho : float, default=0.1
        Cost of leaving mass unmatched, in units of affinity: with a smaller value, more of the plan's mass is where
        affinities are high. ``math.inf`` gives the result of ``sinkhorn``, to the bit.
    affinity, epsilon, max_iter, tolerance, X, Y, marginals, memory
        As for ``sinkhorn``; the tolerance is a share of the mass.

    Notes
    -----
    The entropy is relative to r cᵀ (POT's ``reg_type="kl"``). Row potentials are updated by u ← log r − λ log Σ_j
    exp(A_ij/ε + v_j) with λ = ρ/(ρ + ε); the balance between u and v is set in closed form. Adding a constant k to all
    affinities multiplies the plan by exp(k/(ε + 2ρ)), so it changes ``log_mass`` only; adding a vector to all rows or
    columns changes the plan (docs/research/transport.md).

    Source: Chizat, Peyré, Schmitzer and Vialard (2018), "Scaling algorithms for unbalanced optimal transport problems".
    Séjourné, Vialard and Peyré (2022), "Faster unbalanced optimal transport: translation invariant Sinkhorn and 1-D
    Frank-Wolfe".
    """
    rho = float(check_rho(rho, "rho"))
    return _transport(affinity, X, Y, rho, epsilon, max_iter, tolerance, marginals, "unit", memory)


def _transport(
    affinity: RowsLike | None,
    X: RowsLike | None,
    Y: RowsLike | None,
    rho: float,
    epsilon: float,
    max_iter: int,
    tolerance: float,
    marginals: tuple[ArrayLike | Tensor | None, ArrayLike | Tensor | None] | None,
    mass: str,
    memory: int,
) -> SinkhornResult:
    """Return the plan for marginal constraints of strength ``rho``, exact ones if it is infinite."""
    check_options(max_iter, tolerance, memory)
    A, memory = choose_affinity(affinity, X, Y, memory)
    check_epsilon(A, epsilon, "epsilon")
    r, c = check_marginals(marginals, A)
    epsilon, goal = float(epsilon), Goal(tolerance)
    if math.isinf(rho):
        solved, _ = iterate(A, epsilon, r, c, max_iter, goal, memory)
        with strip_pool_for(A, memory) as pool:
            rows, columns = kernel_marginals(Kernel(A, epsilon, memory, pool), solved.u, solved.v)
        error = float(np.abs(rows - r).sum() + np.abs(columns - c).sum())
        solved = replace(solved, marginal_error=error)
    else:
        solved, (rows, columns) = relax(A, epsilon, rho, r, c, max_iter, goal, memory)
    return SinkhornResult(
        u=A.vector(solved.u + math.log(len(r)) if mass == "bistochastic" else solved.u),
        v=A.vector(solved.v),
        epsilon=epsilon,
        mass=mass,
        marginal_error=solved.marginal_error,
        error=solved.error,
        n_iter=solved.n_iter,
        converged=solved.error <= tolerance,
        row_marginal=A.xp.asarray(rows, device=A.device),
        column_marginal=A.xp.asarray(columns, device=A.device),
        _affinity=A,
        rho=rho,
        log_mass=solved.log_mass,
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


def check_rho(rho: float, name: str) -> float:
    """Return a strength of the marginal constraints that is positive or infinite."""
    return rho if isinstance(rho, float) and rho == math.inf else check_positive(rho, name)


def check_options(max_iter: int, tolerance: float, memory: int) -> None:
    """Check the options of the iteration."""
    check_positive(max_iter, "max_iter", integer=True)
    check_positive(memory, "memory", integer=True, zero=True)
    check_positive(tolerance, "tolerance")


def same_library(arrays: Mapping[str, RowsLike]) -> list[Array]:
    """Return matrices in one library, on one device, without a graph; lists follow the others, integers are float64."""
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
        raise DtypeError(f"Got {where}.", "Move them to one device with .to(…).")
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
    """Potentials u (n,) and v (m,) of a plan of mass 1, its estimated L1 distance to the converged plan, from 0 to 2 (2
    also if it is not known), and the L1 error of the column sums half an iteration earlier, which none increases.
    """

    u: ArrayT
    v: ArrayT
    n_iter: int
    error: float
    marginal_error: float
    log_mass: float = 0.0


@dataclass(frozen=True)
class Side:
    """The plan of one side: its affinities, its potentials, and its marginals at convergence."""

    affinity: Affinity
    epsilon: float
    potentials: Potentials[np.ndarray]
    marginals: tuple[np.ndarray, np.ndarray]
    kernel: Kernel | None = field(default=None, repr=False)  # of the last iteration, if it may be overwritten

    def exponent(self, part: slice, out: Array) -> Array:
        """Write the rows ``part`` of log P into ``out``, and return it."""
        return self.affinity.exponent(part, self.potentials.u, self.potentials.v, self.epsilon, out)


class Goal:
    """The estimated error at which a plan is good enough."""

    def __init__(self, error: float) -> None:
        self.error = error

    def reached(self, error: float, rows: np.ndarray) -> bool:
        """Return whether a plan with this error, and with these ``rows`` of the sample, is good enough."""
        return error <= self.error


class Sample:
    """Rows of a plan, evenly spaced, that estimate L1 norms of all; a whole ``kernel`` gives them."""

    def __init__(self, affinity: Affinity, epsilon: float, r: np.ndarray, kernel: Kernel | None = None) -> None:
        self._rows = slice(None, None, max(1, affinity.shape[0] // ROWS))
        self._affinity, self._epsilon, self._kernel = affinity, epsilon, kernel
        self._share = float(r[self._rows].sum() / r.sum())

    def plan(self, u: np.ndarray, v: np.ndarray) -> np.ndarray:
        """Return these rows of the plan, or a multiple of them where they are too large or too small."""
        A, K, some = self._affinity, self._kernel, self._rows
        if K is not None and K.fits:
            du, dv = u[some] - K.u[some], v - K.v
            size = float(du.max() + dv.max())  # the mass of an unbalanced plan may be any number
            a, b = np.exp(du - size if abs(size) > LEAP else du), np.exp(dv)
            rows: np.ndarray = to_numpy(K.buffer[some, :]) * b.astype(K.real)  # type: ignore[index]
            rows *= a.astype(K.real)[:, None]
            return rows
        out = A.xp.empty((len(u[some]), A.shape[1]), dtype=A.dtype, device=A.device)
        L = A.exponent(some, u, v, self._epsilon, out)
        if not SMALL < float(A.xp.max(L)) <= 0:
            L -= A.xp.max(L)
        return to_numpy(exponential(L))

    def norm(self, rows: np.ndarray) -> float:
        """Return the L1 norm of a matrix of which these are the rows."""
        return float(np.abs(rows).sum(axis=1).sum(dtype=np.float64)) / self._share


class Anderson:
    """Acceleration of an iteration x ← G(x) for the column potentials x (m,): the next iterate combines the last ones
    so that their combined residual Σ w (G(x) − x)² is smallest.

    Near convergence residuals shrink by a fixed symmetric matrix, and few combinations remove its largest eigenvalues,
    as conjugate gradients do. Sums are NumPy's own, so that they do not depend on the number of threads.

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
    """A plan on the way, whose columns are to change by ``rest`` more; ``known``: whether this is a good estimate."""

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
        self._before, self._off = 0.0, PROMISE  # marginal error before; estimated error per marginal error
        self._least, self._since = math.inf, 0

    def change(self, x: np.ndarray, plain: np.ndarray, u: np.ndarray, residual: np.ndarray) -> np.ndarray | None:
        """Return the change of the column potentials ``x`` (m,), which the iteration would change by ``plain``; None if
        the plan is good enough, or will not get better. ``u`` (n,) are the row potentials before, and ``residual`` (m,)
        is what the column sums lack.
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
        after = marginal * min(1.0, marginal / self._before) if self._before else marginal
        self._before = marginal
        if marginal < self._least / 2:
            self._least, self._since = marginal, 0
        else:
            self._since += 1
        if self._best is None or marginal < self._best.marginal_error:
            self._best, self._error = now, 2.0
        if known and self._off * after <= self._goal.error:  # estimates are not free
            error, rows = self._estimate(now)
            if self._goal.reached(error, rows):
                self._best, self._error = now, error
                return None
            self._off = max(PROMISE, error / after / NEAR) if after else PROMISE
        done = marginal <= self._settled or (self._since >= PATIENCE and marginal <= self._rounding)
        return None if done else change

    def restart(self) -> None:
        """Accelerate without the iterations so far."""
        self._accelerated.restart()

    def _estimate(self, at: Iterate) -> tuple[float, np.ndarray]:
        """Return the promised error, the mean of |δu_i + δv_j|, and the sampled rows of a plan: if column potentials
        before the last plain change are to change by s, δu is the mean of −λs over the row, and δv the rest of s.
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
    rows first: a ← r/(K b), b ← c/(Kᵀa), with K = exp(U_i + A_ij/ε + V_j), in ``buffer`` if that is passed.

    When logarithms of the scalings exceed GROWTH, they are absorbed into U and V, and K is computed again, so nothing
    overflows, and entries below e^-65 that matter appear (Schmitzer 2019, section 3.1).
    """
    with strip_pool_for(affinity, memory) as pool:
        kernel = Kernel(affinity, epsilon, memory, pool, buffer)
        marginals = None if kernel.fits else (r, c)
        narrow, log_c = r.astype(kernel.real), np.log(c)
        sample = Sample(affinity, epsilon, r, kernel)
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
    """Return row potentials u (n,) from column potentials v (m,) in one pass in the log domain: ``row_potentials`` gets
    a slice of rows, the largest exponent A_ij/ε + v_j of each, and the log of the sum of exp of all minus it. The same
    two are returned for each column of u_i + A_ij/ε + v_j.
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


def relax(
    affinity: Affinity,
    epsilon: float,
    rho: float,
    r: np.ndarray,
    c: np.ndarray,
    max_iter: int,
    goal: Goal,
    memory: int,
) -> tuple[Potentials[np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Return potentials and marginals of the optimal plan divided by its mass, after accelerated iterations from
    v = log c.

    One iteration is u ← log r − λ log Σ_j exp(A_ij/ε + v_j), λ = ρ/(ρ + ε), then the same for columns, written as in
    ``iterate`` with scalings a, b of a stored kernel K = exp(U_i + A_ij/ε + V_j). Since λ damps the whole potential,
    log a = log r − λ log(K b) − (1 − λ) U − (1 + λ) h; the scalar h keeps the mass of K near 1, and u = U + log a + h.
    The shift (u + t, v − t), on which the plan does not depend, would converge only at the rate λ², and is set in
    closed form after every iteration (Séjourné, Vialard and Peyré 2022). A row without a partner may correctly have a
    sum far below its marginal, so no entries are dropped.
    """
    with strip_pool_for(affinity, memory) as pool:
        kernel, ratio = Kernel(affinity, epsilon, memory, pool), epsilon / rho
        lam, damp = 1 / (1 + ratio), ratio / (1 + ratio)  # damp = 1 − λ, without cancellation
        log_r, log_c = np.log(r), np.log(c)
        sample = Sample(affinity, epsilon, r, kernel)
        progress = Progress(c, float(np.finfo(kernel.real).eps), goal, sample, lam)
        h = _log_domain_iteration(kernel, lam, ratio, log_r, log_c, log_c)
        log_a, log_b = np.zeros(len(r)), np.zeros(len(c))
        n_iter = 1
        while n_iter < max_iter:
            b = np.exp(log_b)
            narrow = b.astype(kernel.real)
            new_log_a = log_r - damp * kernel.u - (1 + lam) * h  # − λ log(K b)

            def scale(part: slice, K: Strip, b: np.ndarray = narrow, log_a: np.ndarray = new_log_a) -> np.ndarray:
                log_a[part] -= lam * np.log(K.times(b))
                return K.transposed_times(np.exp(log_a[part]).astype(b.dtype))

            sums = functools.reduce(operator.iadd, kernel.strips(scale), np.zeros(len(c)))
            new_log_b = log_c - damp * kernel.v - (1 + lam) * h - lam * np.log(sums)
            grown = float(np.abs(new_log_a).max()) + max(float(np.abs(side).max()) for side in (log_b, new_log_b))
            n_iter += 1
            # The potentials may change by thousands in an early iteration: repeat this one in the log domain, like the
            # first.
            if not grown <= LEAP:
                h = _log_domain_iteration(kernel, lam, ratio, log_r, log_c, kernel.v + log_b + h)
                log_a, log_b = np.zeros(len(r)), np.zeros(len(c))
                progress.restart()
                continue
            t = _shift(ratio, kernel.u + new_log_a - log_r + h, kernel.v + new_log_b - log_c + h, log_r, log_c)
            # An update changes a potential by λ times the logarithmic error of its sum.
            have = b * sums
            plain = new_log_b - log_b
            wanted = have * np.exp(np.clip(plain / lam, -2 * GROWTH, 2 * GROWTH))
            residual = (wanted - have) / max(wanted.sum(), have.sum())
            change = progress.change(kernel.v + log_b + h, plain - t, kernel.u + new_log_a + (t + h), residual)
            log_a = new_log_a
            if change is None:
                break
            kernel.u, kernel.v = kernel.u + t, kernel.v - t  # its entries, which depend on u + v only, stay valid
            log_b = log_b + change + t
            if n_iter < max_iter and grown > GROWTH:
                half = 0.5 * math.log(float(np.exp(log_b) @ sums))
                h += half
                kernel.rebase(kernel.u + (log_a - half), kernel.v + (log_b - half))
                log_a, log_b = np.zeros(len(r)), np.zeros(len(c))
        best = progress.result(n_iter, kernel.u + log_a + h, kernel.v + log_b + h)
        return _result(kernel, best, h, ratio, log_r, log_c)


def _result(
    kernel: Kernel, best: Potentials[np.ndarray], h: float, ratio: float, log_r: np.ndarray, log_c: np.ndarray
) -> tuple[Potentials[np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Normalize the plan, and measure its distance from the optimality conditions; ``best`` has potentials with h."""
    u, v = best.u - h, best.v - h
    rows, columns = kernel_marginals(kernel, u, v)
    log_mass = math.log(rows.sum())
    h += 0.5 * log_mass
    u, v = u - 0.5 * log_mass, v - 0.5 * log_mass
    rows, columns = kernel_marginals(kernel, u, v)
    error = 0.0
    for potential, log_weight, sums in ((u, log_r, rows), (v, log_c, columns)):
        log_implied = log_weight - ratio * (potential + h - log_weight) - 2 * h
        # Far from convergence the exponent may be arbitrarily large: clip it to avoid overflow.
        error += float(np.abs(sums - np.exp(np.clip(log_implied, -700.0, 700.0))).sum())
    return replace(best, u=u, v=v, marginal_error=error, log_mass=2 * h), (rows, columns)


def _log_domain_iteration(
    kernel: Kernel, lam: float, ratio: float, log_r: np.ndarray, log_c: np.ndarray, start: np.ndarray
) -> float:
    """Run one log-domain iteration from the column potentials ``start``, rebase to mass 1, and return h."""
    u, largest, log_sums = log_domain_pass(
        kernel, start, lambda part, largest, log_sums: log_r[part] - lam * (largest + log_sums)
    )
    log_column_sums = largest + log_sums - start  # log of the sums of exp(u + A/ε) over rows
    v = log_c - lam * log_column_sums
    half = 0.5 * _log_sum(v + log_column_sums)
    t = _shift(ratio, u - log_r, v - log_c, log_r, log_c)
    kernel.rebase(u + (t - half), v - (t + half))
    return half


def _shift(ratio: float, f: np.ndarray, g: np.ndarray, log_r: np.ndarray, log_c: np.ndarray) -> float:
    """Return the t that maximizes the dual value of (f + t, g − t); f and g are potentials divided by ε."""
    return (_log_sum(log_r - ratio * f) - _log_sum(log_c - ratio * g)) / (2 * ratio)


def _log_sum(L: np.ndarray) -> float:
    """Return log Σ exp(L)."""
    return float(np.logaddexp.reduce(L))


def float64(vector: Array) -> np.ndarray:
    """Return a vector as a NumPy array."""
    return to_numpy(vector).astype(np.float64)
