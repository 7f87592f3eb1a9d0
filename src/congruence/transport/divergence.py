"""KLOT: the divergence of two transport plans, with a gradient that needs no derivative of the solver (SOTAlign)."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING

from congruence._utils.optional import require
from congruence._utils.typing import RowsLike
from congruence._utils.validation import check_choice, check_same_rows
from congruence.errors import ConvergenceWarning, DtypeError, ShapeError
from congruence.transport._comparison import Side as Side
from congruence.transport._kernel import Affinity, Dense
from congruence.transport.balanced import (
    CONVERGED,
    LEAST,
    MASSES,
    MEMORY,
    check_epsilon,
    check_options,
    computing_dtype,
    iterate,
    products,
    same_library,
    weights,
)
from congruence.transport.unbalanced import check_rho, relax

if TYPE_CHECKING:
    from torch import Tensor

#: A warning is given if the marginal errors exceed this share of ‖P − P*‖₁: the gradient is then off by at least 1 % to
#: 5 % in L1 norm (docs/transport.md).
GRADIENT_ERROR = 0.01


@dataclass(frozen=True)
class Convergence:
    """Convergence of the iterations for the two plans of a KLOT.

    - ``marginal_error``, ``marginal_error_teacher``: L1 distance of the row sums of the student's and of the
      teacher's plan from their marginals, for mass 1: from 0 to 2. The column sums are exact. Computed during the
      last iteration at no extra cost, so the final plan is at least this accurate.
    - ``n_iter``, ``n_iter_teacher``: Number of iterations.
    - ``difference``: ‖P − P*‖₁ for mass 1, from 0 to 2: ε times the L1 norm of the gradient with respect to the
      affinities. The maximum, 2, if the GPU kernels do not report it.
    - ``settled``: Marginal errors up to this always count as converged: the largest of ``tol`` (if given), 1e-6, and
      the rounding error.
    """

    marginal_error: float
    marginal_error_teacher: float
    n_iter: int
    n_iter_teacher: int
    difference: float
    settled: float

    @property
    def gradient_error(self) -> float:
        """Sum of the marginal errors divided by ‖P − P*‖₁, at most 1; 0 if both are ``settled``.

        In all measurements the gradient's relative error in L1 norm was 1 to 5 times this.
        """
        errors = self.marginal_error, self.marginal_error_teacher
        if max(errors) <= self.settled or self.difference == 0:
            return 0.0
        return sum(errors) / max(sum(errors), self.difference)

    @property
    def converged(self) -> bool:
        """Whether ``gradient_error`` is at most 0.01."""
        return self.gradient_error <= GRADIENT_ERROR


def warn_unconverged(gradient_error: float, where: str, otherwise: str, stacklevel: int) -> None:
    """Warn if the iterations ended too early for an accurate gradient: ``where`` says when, ``otherwise`` adds a
    remedy.
    """
    if gradient_error <= GRADIENT_ERROR:
        return
    # Two digits at most, so that a loop over batches repeats a few messages, each of which Python shows once.
    off = f"{math.ceil(100 * gradient_error) / 100:.2g}"
    warnings.warn(
        ConvergenceWarning(
            f"The plans' marginals are off by {off} of ‖P − P*‖₁ {where}, and the gradient of KLOT by that or more.",
            f"Raise `max_iter=…` or `epsilon=…`, or lower `tol=…`{otherwise}.",
        ),
        stacklevel=stacklevel + 1,
    )


def klot(
    student: Tensor,
    teacher: Tensor,
    epsilon: float = 0.05,
    epsilon_teacher: float = 0.01,
    max_iter: int = 100,
    tol: float | None = None,
    *,
    mass: str = "unit",
    rho_teacher: float | None = None,
    return_info: bool = False,
) -> Tensor | tuple[Tensor, Convergence]:
    """KL(P* ‖ P): the divergence of the student's plan P from the teacher's P*, with its explicit gradient.

    Parameters
    ----------
    student : tensor, shape (n, m)
        Affinities A. Gradients flow into them, in the same dtype; float16 and bfloat16 are computed in float32.
    teacher : tensor, shape (n, m)
        Affinities T. No gradient flows into them.
    epsilon, epsilon_teacher : float, default=0.05 and 0.01
        ε of the two plans, in units of affinity.
    max_iter : int, default=100
        Largest number of Sinkhorn iterations per plan; fewer are run if more would only change rounding.
    tol : float, optional
        Stop when the row sums are within this L1 distance of the marginals; see ``sinkhorn``.
    mass : {"unit", "bistochastic"}, default="unit"
        Mass of both plans, 1 or n. The value and the gradient of the second are n times those of the first, so that a
        loss weight α on the first acts as α/n on the second.
    rho_teacher : float, optional
        Strength ρ of the marginal constraints of the teacher's plan, in units of its affinities, for rows that may have
        no partner; see ``sinkhorn_unbalanced``. P* is then the unbalanced plan divided by its mass, and P has the
        marginals of P*, so that rows without a known partner have little weight. Balanced, with uniform marginals, by
        default. This is our extension, not the paper's.
    return_info : bool, default=False
        Also return information on convergence.

    Returns
    -------
    tensor, shape ()
        In nats. float64 if either input is, else float32.
    Convergence
        Only with ``return_info``: marginal errors and iterations of both plans, and their effect on the gradient.

    Notes
    -----
    P = exp(u_i + A_ij/ε + v_j) has the marginals of P*, and among all potentials u, v those of P minimize the
    divergence:

        KLOT = min over u, v of Σ P* log(P*/P) − P* + P, since the derivative with respect to u_i is that of the
        marginals, Σ_j P_ij − P*_ij = 0.

    The change of the potentials therefore does not contribute (Danskin's theorem), and the gradient is the partial
    derivative with respect to A alone, (P − P*)/ε; the paper's equation 13 divides by ε*, which finite differences
    refute. Before the iterations have converged it is off in L1 norm by at least the marginal error/ε.

    One n·m kernel is in memory during the solution and one n·m gradient during the backward pass; nothing of this size
    is kept in between.

    Source: SOTAlign, equations 11 to 13, theorem 5.1, appendix B.1.

    Examples
    --------
    >>> import torch
    >>> from congruence.transport import klot
    >>> T = torch.eye(3, dtype=torch.float64)
    >>> A = torch.zeros(3, 3, dtype=torch.float64, requires_grad=True)
    >>> value = klot(A, T)  # the teacher's plan is the identity, the student's uniform: log 3
    >>> value.backward()
    >>> round(value.item(), 6), A.grad.numpy().round(3)
    (1.098612, array([[-4.444,  2.222,  2.222],
           [ 2.222, -4.444,  2.222],
           [ 2.222,  2.222, -4.444]]))
    """
    torch = require("torch", extra="train")
    from congruence.transport import _autograd

    check_choice(mass, MASSES, "mass")
    check_options(max_iter, tol, MEMORY)
    A, T = _tensors(torch, {"student": student, "teacher": teacher})
    if A.shape != T.shape:
        raise ShapeError(
            f"Got student of shape {tuple(A.shape)} and teacher of shape {tuple(T.shape)}.", "Use one batch."
        )
    dtype = computing_dtype(A, T)
    memory = A.numel() * 8
    check_epsilon(Dense(A, dtype), epsilon, "epsilon")
    solved_teacher = _solve_teacher(Dense(T, dtype), epsilon_teacher, rho_teacher, max_iter, tol, memory)
    sides = _solve_student(Dense(A, dtype), epsilon, solved_teacher, max_iter, tol, memory), solved_teacher
    tracked = student if isinstance(student, torch.Tensor) else A
    differences: list[float] = []
    value = _autograd.Klot.apply(tracked, T, *sides, float(len(A)) if mass == "bistochastic" else 1.0, differences)
    return _with_info(value, sides, differences[0], max_iter, tol, return_info)


def klot_features(
    X: Tensor,
    Y: Tensor,
    TX: Tensor,
    TY: Tensor,
    epsilon: float = 0.05,
    epsilon_teacher: float = 0.01,
    max_iter: int = 100,
    tol: float | None = None,
    *,
    mass: str = "unit",
    rho_teacher: float | None = None,
    memory: int = MEMORY,
    teacher: Side | None = None,
    return_info: bool = False,
) -> Tensor | tuple[Tensor, Convergence]:
    """Like ``klot`` for affinities that are inner products, without ever forming the matrix: O((n + m)·d) memory.

    Parameters
    ----------
    X : tensor, shape (n, d)
        The student's vectors: A_ij = ⟨x_i, y_j⟩. For cosines, normalize the rows first.
    Y : tensor, shape (m, d)
        Gradients flow into X and Y.
    TX : tensor, shape (n, e)
        The teacher's vectors of the same items: T_ij = ⟨tx_i, ty_j⟩.
    TY : tensor, shape (m, e)
    epsilon, epsilon_teacher, max_iter, tol, mass, rho_teacher
        As for ``klot``.
    memory : int, default=2**30
        Bytes of a kernel that are kept in memory during the solution; the rest is recomputed in each iteration, in
        strips of about 50 MB.
    teacher : result of ``solve_teacher``, optional
        The teacher's plan for the same rows, if they are used repeatedly. The arguments ``TX``, ``TY``,
        ``epsilon_teacher`` and ``rho_teacher`` are then ignored.
    return_info : bool, default=False
        As for ``klot``.

    Notes
    -----
    With G = P − P* the gradients are G Y/ε and Gᵀ X/ε, summed over strips of G in the same pass as the value.

    Source: SOTAlign, theorem 5.1; the strips are ours.

    Examples
    --------
    >>> import torch
    >>> from congruence.transport import klot, klot_features
    >>> _ = torch.manual_seed(0)
    >>> X, Y, TX, TY = torch.nn.functional.normalize(torch.randn(4, 50, 8), dim=2)
    >>> bool(torch.isclose(klot_features(X, Y, TX, TY, memory=0), klot(X @ Y.T, TX @ TY.T), rtol=1e-4))
    True
    """
    torch = require("torch", extra="train")
    from congruence.transport import _autograd

    check_choice(mass, MASSES, "mass")
    check_options(max_iter, tol, memory)
    arrays = {"X": X, "Y": Y} if teacher is not None else {"X": X, "Y": Y, "TX": TX, "TY": TY}
    A, B, *teacher_rows = _tensors(torch, arrays)
    n, m = teacher.affinity.shape if teacher is not None else map(len, teacher_rows)
    check_same_rows(len(A), n, "X", "TX")
    check_same_rows(len(B), m, "Y", "TY")
    dtype = computing_dtype(A, B, *teacher_rows)
    student_affinity = products(A, B, ("X", "Y"), dtype)
    check_epsilon(student_affinity, epsilon, "epsilon")
    if teacher is None:
        teacher_affinity = products(teacher_rows[0], teacher_rows[1], ("TX", "TY"), dtype)
        teacher = _solve_teacher(teacher_affinity, epsilon_teacher, rho_teacher, max_iter, tol, memory)
    elif teacher.affinity.dtype != dtype:
        raise DtypeError(f"Got a teacher solved in {teacher.affinity.dtype} and X, Y in {dtype}.", "Convert X and Y.")
    sides = _solve_student(student_affinity, epsilon, teacher, max_iter, tol, memory), teacher
    tracked = [side if isinstance(side, torch.Tensor) else plain for side, plain in zip((X, Y), (A, B), strict=True)]
    differences: list[float] = []
    value = _autograd.KlotFeatures.apply(
        *tracked, *sides, float(len(A)) if mass == "bistochastic" else 1.0, memory, differences
    )
    return _with_info(value, sides, differences[0], max_iter, tol, return_info)


def solve_teacher(
    TX: Tensor,
    TY: Tensor,
    epsilon_teacher: float = 0.01,
    max_iter: int = 100,
    tol: float | None = None,
    *,
    rho_teacher: float | None = None,
    memory: int = MEMORY,
) -> Side:
    """Solve for a teacher's plan once, for repeated use as ``teacher`` in ``klot_features``, whose arguments these are.

    It is kept as vectors and potentials, O((n + m)·d) numbers.

    Examples
    --------
    >>> import torch
    >>> from congruence.transport import klot_features, solve_teacher
    >>> _ = torch.manual_seed(0)
    >>> X, Y, TX, TY = torch.nn.functional.normalize(torch.randn(4, 50, 8), dim=2)
    >>> teacher = solve_teacher(TX, TY)
    >>> bool(klot_features(X, Y, TX, TY, teacher=teacher) == klot_features(X, Y, TX, TY))
    True
    """
    torch = require("torch", extra="train")
    check_options(max_iter, tol, memory)
    A, B = _tensors(torch, {"TX": TX, "TY": TY})
    affinity = products(A, B, ("TX", "TY"), computing_dtype(A, B))
    return _solve_teacher(affinity, epsilon_teacher, rho_teacher, max_iter, tol, memory)


def _tensors(torch: ModuleType, arrays: Mapping[str, RowsLike]) -> list[Tensor]:
    """Return validated matrices as tensors without their graph."""
    return [torch.as_tensor(array) for array in same_library(arrays)]


def _with_info(
    value: Tensor, sides: tuple[Side, ...], difference: float, max_iter: int, tol: float | None, return_info: bool
) -> Tensor | tuple[Tensor, Convergence]:
    """Return the value, with information on convergence if requested; otherwise warn if convergence is insufficient."""
    (student, teacher), affinity = (side.potentials for side in sides), sides[0].affinity
    settled = max(tol or 0.0, CONVERGED, 64 * float(affinity.xp.finfo(affinity.dtype).eps))
    convergence = Convergence(student.error, teacher.error, student.n_iter, teacher.n_iter, difference, settled)
    if return_info:
        return value, convergence
    warn_unconverged(
        convergence.gradient_error, f"after {max_iter} iterations", ", or check with return_info=True", stacklevel=3
    )
    return value


def _solve_teacher(
    affinity: Affinity, epsilon: float, rho: float | None, max_iter: int, tol: float | None, memory: int
) -> Side:
    """Solve for a plan with uniform marginals, exact or, with ``rho``, as soft constraints of that strength."""
    check_epsilon(affinity, epsilon, "epsilon_teacher")
    n, m = affinity.shape
    r, c = weights(None, n, "row", affinity), weights(None, m, "column", affinity)
    if rho is None or math.isinf(check_rho(rho, "rho_teacher")):
        return Side(affinity, float(epsilon), iterate(affinity, float(epsilon), r, c, max_iter, tol, memory), (r, c))
    relaxed, sums = relax(affinity, float(epsilon), float(rho), r, c, max_iter, tol, memory)
    # Marginals below this are numerically zero, but the student's solver needs positive ones.
    xp, least = affinity.xp, LEAST[8 if affinity.dtype == affinity.xp.float64 else 4]
    raised = (xp.clip(side, least, 1.0) for side in sums)
    rows, columns = (xp.astype(side / xp.sum(side), affinity.dtype) for side in raised)
    return Side(affinity, float(epsilon), relaxed, (rows, columns))


def _solve_student(
    affinity: Affinity, epsilon: float, teacher: Side, max_iter: int, tol: float | None, memory: int
) -> Side:
    """Solve for the plan with the teacher's marginals. The teacher's kernel is not in memory any more."""
    r, c = teacher.marginals
    potentials = iterate(affinity, float(epsilon), r, c, max_iter, tol, memory)
    return Side(affinity, float(epsilon), potentials, teacher.marginals)
