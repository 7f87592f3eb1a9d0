"""Entropic optimal transport between two collections with given affinities (Cuturi 2013)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike

from congruence._utils.arrays import is_tensor, namespace, to_numpy
from congruence._utils.typing import Array, DType, RowsLike, Tensor
from congruence._utils.validation import as_matrix, as_native, check_choice, check_positive
from congruence.errors import DtypeError, ParameterError, ShapeError
from congruence.transport._kernel import Affinity, Dense, Kernel, Products, Scratch, Strip, exponential, strip_pool_for
from congruence.transport._strip_pool import single_threaded

MASSES = ("unit", "bistochastic")
#: The L1 error of the marginals at which the paper calls a plan converged (SOTAlign, figure 6).
CONVERGED = 1e-6
#: Bytes of a kernel that are kept in memory; the rest is recomputed in each iteration.
MEMORY = 2**30
#: The largest relative error of a plan's entries that rounding of A/ε may cause.
ROUNDING = 1e-3
#: Smallest allowed marginal, by bytes per number: entries below it cannot be distinguished from those at
#: ``_kernel.FLOOR``.
LEAST = {4: 1e-10, 8: 1e-100}
#: Largest |log a| + |log b| before the scalings are absorbed. Entries of K below e^-65 are raised to e^-65 (6e-29):
#: times both scalings they are below 3e-20, too small to affect any marginal.
GROWTH = 20.0
#: L1 error of the marginals, in machine epsilons, below which further iterations change only rounding errors.
SETTLED = 4


@dataclass(frozen=True)
class SinkhornResult:
    """An entropic transport plan stored in O(n + m) numbers: P = exp(u_i + A_ij/ε + v_j).

    - ``u``, shape (n,): Natural logarithms of the row scalings, dimensionless: ε·u is the dual potential in units of
      affinity.
    - ``v``, shape (m,): The same for columns.
    - ``epsilon``: Weight of the entropy, in units of affinity.
    - ``mass``: "unit", "bistochastic". Sum of P: 1 or n.
    - ``marginal_error``: L1 distance of the row sums from their marginals plus that of the column sums, for the plan
      of mass 1: from 0 to 4. For an unbalanced plan: L1 distance of the row sums from those that the potentials
      imply, r·exp(−ε(u_i − log r_i)/ρ) with u of the unnormalized plan, plus the same for columns, as a share of the
      mass.
    - ``n_iter``: Number of iterations; each updates rows and columns.
    - ``converged``: Whether ``marginal_error`` is at most ``tol``, or 1e-6 if none was given.
    - ``row_marginal``, ``column_marginal``, shapes (n,) and (m,): Sums of the plan of mass 1: in an unbalanced plan,
      rows without a near partner have little mass.
    - ``rho``: Strength of the marginal constraints of an unbalanced plan, in units of affinity; else infinite.
    - ``log_mass``: Natural logarithm of an unbalanced plan's sum before normalization.
    """

    u: Array
    v: Array
    epsilon: float
    mass: str
    marginal_error: float
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
        return exponential(A.exponent(part, self.u, self.v, self.epsilon, P))


def sinkhorn(
    affinity: RowsLike | None = None,
    epsilon: float = 0.05,
    max_iter: int = 100,
    tol: float | None = None,
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
    max_iter : int, default=100
        Largest number of iterations; each corrects the row marginals and then the column marginals. Fewer are run if
        more would only change rounding.
    tol : float, optional
        Stop when the row sums are within this L1 distance of the marginals (mass 1). float32 does not get much below
        1e-6.
    X : array_like, shape (n, d), optional
        Instead of ``affinity``, together with Y: the affinities are the inner products ⟨x_i, y_j⟩ (cosines if rows have
        unit norm), computed in strips and never stored as a whole.
    Y : array_like, shape (m, d), optional
    marginals : tuple of array_like, shapes (n,) and (m,), optional
        Positive weights of rows and of columns, each summing to 1. Uniform by default.
    mass : {"unit", "bistochastic"}, default="unit"
        Whether the plan sums to 1, or to n so that rows of a square plan sum to 1 (SOTAlign, equation 11). The latter
        is n times the former.
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
    check_options(max_iter, tol, memory)
    A, memory = choose_affinity(affinity, X, Y, memory)
    check_epsilon(A, epsilon, "epsilon")
    r, c = check_marginals(marginals, A)
    n = A.shape[0]
    solved = iterate(A, float(epsilon), r, c, max_iter, tol, memory)
    xp = A.xp
    with strip_pool_for(A, memory) as pool:
        rows, columns = kernel_marginals(Kernel(A, float(epsilon), memory, pool), solved.u, solved.v)
    error = float(xp.sum(xp.abs(rows - r)) + xp.sum(xp.abs(columns - c)))
    u = solved.u + math.log(n) if mass == "bistochastic" else solved.u
    converged = error <= (CONVERGED if tol is None else tol)
    return SinkhornResult(u, solved.v, float(epsilon), mass, error, solved.n_iter, converged, rows, columns, A)


def choose_affinity(
    affinity: RowsLike | None, X: RowsLike | None, Y: RowsLike | None, memory: int
) -> tuple[Affinity, int]:
    """Return the affinities, passed in one of the two ways, and the bytes of the kernel to keep."""
    if (affinity is None) == (X is None) or (X is None) != (Y is None):
        passed = [
            name for name, array in zip(("affinity", "X", "Y"), (affinity, X, Y), strict=True) if array is not None
        ]
        raise ParameterError(
            f"Got {' and '.join(passed) or 'nothing'} instead of affinities.", "Pass `affinity=…`, or `X=…` and `Y=…`."
        )
    if affinity is not None:
        (A,) = same_library({"affinity": affinity})
        return Dense(A, computing_dtype(A)), 8 * A.shape[0] * A.shape[1]
    assert X is not None
    assert Y is not None
    A, B = same_library({"X": X, "Y": Y})
    return products(A, B, ("X", "Y"), computing_dtype(A, B)), memory


def check_marginals(
    marginals: tuple[ArrayLike | Tensor | None, ArrayLike | Tensor | None] | None, affinity: Affinity
) -> tuple[Array, Array]:
    """Return the marginals of rows (n,) and of columns (m,), each summing to 1."""
    sides = (None, None) if marginals is None else tuple(marginals)
    if len(sides) != 2:
        raise ParameterError(
            f"Got {len(sides)} marginals; expected those of rows and of columns.", "Pass both as a tuple."
        )
    n, m = affinity.shape
    return weights(sides[0], n, "row", affinity), weights(sides[1], m, "column", affinity)


def check_options(max_iter: int, tol: float | None, memory: int) -> None:
    """Check the options of the iteration."""
    check_positive(max_iter, "max_iter", integer=True)
    check_positive(memory, "memory", integer=True, zero=True)
    if tol is not None:
        check_positive(tol, "tol")


def same_library(arrays: Mapping[str, RowsLike]) -> list[Array]:
    """Validate matrices and return them in one array library, on one device, without a graph; lists take the library of
    the others, integers and booleans become float64.
    """
    with single_threaded(*arrays.values()):
        checked = {name: as_native(array, name) for name, array in arrays.items()}
    tensors = {name: array.detach() for name, array in checked.items() if is_tensor(array)}
    for name, array in arrays.items():
        if tensors and hasattr(array, "dtype") and name not in tensors:
            raise DtypeError(
                f"Got {next(iter(tensors))} as a tensor and {name} as {type(array)}.",
                "Convert one with torch.as_tensor.",
            )
    if len({str(array.device) for array in tensors.values()}) > 1:
        where = ", ".join(f"{name} on {array.device}" for name, array in tensors.items())
        raise DtypeError(f"Got {where}; expected one device.", "Move them to one with .to(…).")
    if tensors:
        first = next(iter(tensors.values()))
        xp = namespace(first)
        moved = [tensors[n] if n in tensors else xp.asarray(a, device=first.device) for n, a in checked.items()]
        return [a if xp.isdtype(a.dtype, "real floating") else xp.astype(a, xp.float64) for a in moved]
    return list(checked.values())


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
    xp = affinity.xp
    with single_threaded(xp.zeros(0)):
        bound = affinity.bound()
    least = bound * xp.finfo(affinity.dtype).eps / ROUNDING
    if epsilon < least:
        kind = "float64" if affinity.dtype == xp.float64 else "float32"
        remedy = "Scale the affinities down" if kind == "float64" else "Pass float64"
        raise ParameterError(
            f"Got `{name}={epsilon}` for affinities up to {bound:.3g} in {kind}; expected at least {least:.1g}.",
            f"{remedy} or pass a larger `{name}=…`.",
        )
    return float(epsilon)


def weights(marginal: ArrayLike | Tensor | None, n: int, name: str, affinity: Affinity) -> Array:
    """Return a marginal that adds up to 1, shape (n,); uniform if None."""
    xp = affinity.xp
    if marginal is None:
        return xp.full((n,), 1 / n, dtype=affinity.dtype, device=affinity.device)
    array = to_numpy(marginal)
    if array.shape != (n,):
        raise ShapeError(f"Got {name} marginal of shape {array.shape}; expected ({n},).", "Pass one weight each.")
    w = as_matrix(array[:, None], f"{name} marginal")[:, 0].astype(np.float64)
    least = LEAST[8 if affinity.dtype == xp.float64 else 4]
    if w.min() < least:
        raise ParameterError(
            f"Got a {name} marginal of {w.min():g} at {int(w.argmin())}; expected at least {least:g}.",
            "Leave out such items.",
        )
    if abs(w.sum() - 1) > 1e-6:
        raise ParameterError(f"Got {name} marginals that add up to {w.sum():g}; expected 1.", "Divide by their sum.")
    return xp.asarray(w / w.sum(), dtype=affinity.dtype, device=affinity.device)


@dataclass(frozen=True)
class Potentials:
    """Potentials u (n,) and v (m,) of the plan P = exp(u_i + A_ij/ε + v_j) of mass 1, and the L1 error of its row
    sums before the last iteration, or after the only one; for an unbalanced plan as in ``SinkhornResult``.
    """

    u: Array
    v: Array
    n_iter: int
    error: float
    log_mass: float = 0.0


def iterate(
    affinity: Affinity, epsilon: float, r: Array, c: Array, max_iter: int, tol: float | None, memory: int
) -> Potentials:
    """Return the potentials after Sinkhorn iterations from v = 0, rows first, as a ← r/(K b), b ← c/(Kᵀa).

    Only the first iteration can meet rows or columns of very different magnitudes, so it is done in the log domain.
    After it K = P has column marginals c: no sum vanishes, and the logarithms of the scalings grow by at most
    log(1/min) per iteration, so they can always be absorbed into the potentials before they overflow (Schmitzer 2019,
    section 3.1). It stops after an iteration before which the L1 error of the row marginals was at most ``tol``, or
    the rounding error if that is larger; an iteration never increases it.
    """
    with strip_pool_for(affinity, memory) as pool:
        return _iterate(Kernel(affinity, epsilon, memory, pool), r, c, max_iter, tol)


def _iterate(kernel: Kernel, r: Array, c: Array, max_iter: int, tol: float | None) -> Potentials:
    xp, affinity = kernel.xp, kernel.affinity
    u, largest, log_sums = log_domain_pass(
        kernel, kernel.zeros(len(c)), lambda part, largest, log_sums: xp.log(r[part]) - largest - log_sums
    )
    v = xp.log(c) - largest - log_sums
    if max_iter == 1:  # otherwise the next iteration would compute the error anyway
        return Potentials(u, v, 1, float(xp.sum(xp.abs(kernel_marginals(kernel, u, v)[0] - r))))
    kernel.rebase(u, v, (r, c))
    # Computing a kernel takes as long as reading it dozens of times: if the whole kernel fits in memory, try a sparse
    # one only once.
    sparse_marginals = None if kernel.fits else (r, c)
    a, b, growth = xp.exp(kernel.zeros(len(u))), xp.exp(kernel.zeros(len(v))), 0.0
    settled = max(tol or 0.0, SETTLED * float(xp.finfo(affinity.dtype).eps))
    n_iter, error = 1, math.inf
    while n_iter < max_iter:
        new_a, sums = kernel.zeros(len(u)), kernel.zeros(len(v))
        row_error: Array | float = 0.0

        def scale(part: slice, K: Strip, a: Array = a, b: Array = b, new_a: Array = new_a) -> tuple[Array, Array]:
            row = K.times(b)
            new_a[part] = r[part] / row
            return xp.sum(xp.abs(a[part] * row - r[part])), K.transposed_times(new_a[part])

        for strip_error, columns in kernel.strips(scale):
            row_error += strip_error
            sums += columns
        new_b = c / sums
        log_a, log_b = xp.log(new_a), xp.log(new_b)
        grown = float(xp.max(xp.abs(log_a)) + xp.max(xp.abs(log_b)))
        if kernel.reach is not None and not grown <= kernel.reach:
            # The dropped entries may matter now: restart from here; with a dense kernel if a single iteration already
            # exceeded the limit.
            kernel.rebase(kernel.u + xp.log(a), kernel.v + xp.log(b), sparse_marginals if growth else None)
            a, b, growth = xp.exp(kernel.zeros(len(u))), xp.exp(kernel.zeros(len(v))), 0.0
            continue
        a, b, growth = new_a, new_b, grown
        n_iter, error = n_iter + 1, float(row_error)
        if error <= settled:
            break
        if n_iter < max_iter and kernel.reach is None and growth > GROWTH:
            kernel.rebase(kernel.u + log_a, kernel.v + log_b, sparse_marginals)
            a, b, growth = xp.exp(kernel.zeros(len(u))), xp.exp(kernel.zeros(len(v))), 0.0
    return Potentials(kernel.u + xp.log(a), kernel.v + xp.log(b), n_iter, error)


def log_domain_pass(
    kernel: Kernel, v: Array, row_potentials: Callable[[slice, Array, Array], Array]
) -> tuple[Array, Array, Array]:
    """Return row potentials u (n,) from column potentials v (m,) in the log domain, in one pass over the rows.

    ``row_potentials`` gets, for a slice of rows, the largest exponent A_ij/ε + v_j of each and the log of the sum of
    exp of the others minus it. The same two are returned for each column of u_i + A_ij/ε + v_j.
    """
    xp, (n, m) = kernel.xp, kernel.affinity.shape
    u = kernel.zeros(n)
    scratch = Scratch(kernel.affinity)

    def work(part: slice, L: Array) -> tuple[Array, Array]:
        row_largest = xp.max(L, axis=1)
        spare = scratch.rows(len(L))
        xp.subtract(L, row_largest[:, None], out=spare)
        u[part] = row_potentials(part, row_largest, xp.log(xp.sum(exponential(spare), axis=1)))
        L += u[part][:, None]
        strip_largest = xp.max(L, axis=0)
        L -= strip_largest
        return strip_largest, xp.sum(exponential(L), axis=0)

    largest, sums = kernel.zeros(m) - xp.inf, kernel.zeros(m)
    for strip_largest, strip_sums in kernel.exponents(work, kernel.zeros(n), v):
        new_largest = xp.maximum(largest, strip_largest)
        sums = sums * xp.exp(largest - new_largest) + strip_sums * xp.exp(strip_largest - new_largest)
        largest = new_largest
    return u, largest, xp.log(sums)


def kernel_marginals(kernel: Kernel, u: Array, v: Array) -> tuple[Array, Array]:
    """Return the row sums and the column sums of exp(u_i + A_ij/ε + v_j), in float64."""
    xp = kernel.xp
    rows, columns = (xp.astype(kernel.zeros(size), xp.float64) for size in kernel.affinity.shape)

    def add_up(part: slice, L: Array) -> Array:
        P = exponential(L)
        rows[part] = xp.sum(P, axis=1)
        return xp.sum(P, axis=0)

    for sums in kernel.exponents(add_up, u, v):
        columns += sums
    return rows, columns
