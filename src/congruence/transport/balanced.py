"""Entropic optimal transport between two collections with given affinities (Cuturi 2013)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from numpy.typing import ArrayLike

from congruence._utils.typing import Array, RowsLike, Tensor
from congruence._utils.validation import check_choice, check_positive
from congruence.errors import ParameterError
from congruence.transport._inputs import check_epsilon, computing_dtype, products, same_library, weights
from congruence.transport._kernel import Affinity, Dense, exponential
from congruence.transport._scaling import iterate
from congruence.transport._scaling import marginals as plan_marginals

__all__ = [
    "CONVERGED",
    "MASSES",
    "MEMORY",
    "SinkhornResult",
    "check_marginals",
    "check_options",
    "choose_affinity",
    "sinkhorn",
]

MASSES = ("unit", "bistochastic")
#: The L1 error of the marginals at which the paper calls a plan converged (SOTAlign, figure 6).
CONVERGED = 1e-6
#: Bytes of a kernel that are kept in memory; the rest is recomputed in each iteration.
MEMORY = 2**30


@dataclass(frozen=True)
class SinkhornResult:
    """An entropic transport plan stored in O(n + m) numbers: P = exp(u_i + A_ij/ε + v_j).

    Attributes
    ----------
    u : array, shape (n,)
        Natural logarithms of the row scalings, dimensionless: ε·u is the dual potential in units of affinity.
    v : array, shape (m,)
        The same for columns.
    epsilon : float
        Weight of the entropy, in units of affinity.
    mass : {"unit", "bistochastic"}
        Sum of P: 1 or n.
    marginal_error : float
        L1 distance of the row sums from their marginals plus that of the column sums, for the plan of mass 1: from 0 to 4.
    n_iter : int
        Number of iterations; each updates rows and columns.
    converged : bool
        Whether ``marginal_error`` is at most ``tol``, or 1e-6 if none was given.
    """

    u: Array
    v: Array
    epsilon: float
    mass: str
    marginal_error: float
    n_iter: int
    converged: bool
    _affinity: Affinity = field(repr=False)

    def plan(self, rows: slice | None = None) -> Array:
        """Return the plan, or some of its rows, computed from the current content of the arrays that were passed in.

        Parameters
        ----------
        rows : slice, optional
            With step 1. By default all rows, which takes n·m numbers.

        Returns
        -------
        array, shape (n, m) or (rows, m)
            In the array library that was passed in.

        Raises
        ------
        ParameterError
            If the step of the slice is not 1.
        """
        n = self._affinity.shape[0]
        start, stop, step = (rows or slice(None)).indices(n)
        if step != 1:
            raise ParameterError(f"Got rows with step {step}; expected 1. Take every {step}th of the result.")
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
    """Transport one collection to another along high affinities, smoothed by an entropy term: argmax ⟨P, A⟩ − ε ⟨P, log P⟩.

    Parameters
    ----------
    affinity : array_like, shape (n, m), optional
        A: similarity of row and column, i.e. the negative of a cost. NumPy or torch, computed on the tensor's device; no gradient flows through.
        float16 and bfloat16 are computed in float32.
    epsilon : float, default=0.05
        Weight of the entropy, in units of affinity.
    max_iter : int, default=100
        Largest number of iterations; each corrects the row marginals and then the column marginals. Fewer are run if more would only change
        rounding.
    tol : float, optional
        Stop when the row sums are within this L1 distance of the marginals (mass 1). float32 does not get much below 1e-6.
    X : array_like, shape (n, d), optional
        Instead of ``affinity``, together with Y: the affinities are the inner products ⟨x_i, y_j⟩ (cosines if rows have unit norm), computed in
        strips and never stored as a whole.
    Y : array_like, shape (m, d), optional
    marginals : tuple of array_like, shapes (n,) and (m,), optional
        Positive weights of rows and of columns, each summing to 1. Uniform by default.
    mass : {"unit", "bistochastic"}, default="unit"
        Whether the plan sums to 1, or to n so that rows of a square plan sum to 1 (SOTAlign, equation 11). The latter is n times the former.
    memory : int, default=2**30
        Bytes of the kernel (n·m numbers) that are kept in memory; further rows are recomputed in each iteration. The kernel of ``affinity`` is always kept.

    Returns
    -------
    SinkhornResult

    Raises
    ------
    ShapeError, DtypeError, NotFiniteError
        If arrays have the wrong shape, are not real numbers or contain NaN or infinity.
    ParameterError
        If ``epsilon`` is too small for the precision, marginals are not positive, or an option is out of range.

    Notes
    -----
    A stored kernel is read once per iteration, with n·m multiplications and additions twice. A recomputed one costs a matrix product and n·m
    exponentials per iteration, in O((n + m)·d) memory. If at most one entry in twenty can matter, only those are stored and read. The plan is that of
    the logarithmic iteration, whatever ε: scalings are absorbed before they overflow.

    References
    ----------
    Cuturi (2013), "Sinkhorn distances". Schmitzer (2019), "Stabilized sparse scaling algorithms for entropy regularized transport
    problems", section 3. SOTAlign, equation 11 and appendix C.2.

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
    rows, columns = plan_marginals(A, float(epsilon), solved.u, solved.v, memory)
    error = float(xp.sum(xp.abs(rows - r)) + xp.sum(xp.abs(columns - c)))
    u = solved.u + math.log(n) if mass == "bistochastic" else solved.u
    return SinkhornResult(
        u, solved.v, float(epsilon), mass, error, solved.n_iter, error <= (CONVERGED if tol is None else tol), A
    )


def choose_affinity(
    affinity: RowsLike | None, X: RowsLike | None, Y: RowsLike | None, memory: int
) -> tuple[Affinity, int]:
    """Return the affinities, passed in one of the two ways, and the number of bytes of the kernel to keep.

    Raises
    ------
    ShapeError, DtypeError, NotFiniteError
        If arrays have the wrong shape, are not real numbers or contain NaN or infinity.
    ParameterError
        If the affinities are not passed in exactly one way.
    """
    if (affinity is None) == (X is None) or (X is None) != (Y is None):
        passed = [
            name for name, array in zip(("affinity", "X", "Y"), (affinity, X, Y), strict=True) if array is not None
        ]
        raise ParameterError(
            f"Got {' and '.join(passed) or 'nothing'}; expected affinity, or both X and Y. Pass affinity=…, or X=… and Y=…."
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
    """Return the marginals of rows and of columns, each summing to 1.

    Raises
    ------
    ShapeError, DtypeError, NotFiniteError, ParameterError
        If there are not two marginals, or one is invalid; see :func:`congruence.transport._inputs.weights`.
    """
    sides = (None, None) if marginals is None else tuple(marginals)
    if len(sides) != 2:
        raise ParameterError(f"Got {len(sides)} marginals; expected two, of rows and of columns. Pass both as a tuple.")
    n, m = affinity.shape
    return weights(sides[0], n, "row", affinity), weights(sides[1], m, "column", affinity)


def check_options(max_iter: int, tol: float | None, memory: int) -> None:
    """Check the options of the iteration.

    Raises
    ------
    ParameterError
        If ``max_iter`` or ``memory`` is not an integer or out of range, or ``tol`` is not positive.
    """
    check_positive(max_iter, "max_iter", integer=True)
    check_positive(memory, "memory", integer=True, zero=True)
    if tol is not None:
        check_positive(tol, "tol")
