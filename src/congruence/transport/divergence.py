"""KLOT: the divergence of two transport plans, with a gradient that needs no derivative of the solver (SOTAlign)."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from congruence._utils.arrays import to_numpy
from congruence._utils.optional import require
from congruence._utils.typing import Array, DType, RowsLike
from congruence._utils.validation import check_choice, check_same_rows
from congruence.errors import ConvergenceWarning, DtypeError, NotFiniteError, ShapeError
from congruence.transport._kernel import Affinity, Dense, fits
from congruence.transport.entropic import (
    LEAST,
    MASSES,
    MAX_ITER,
    MEMORY,
    Goal,
    Potentials,
    Sample,
    Side,
    check_epsilon,
    check_options,
    check_rho,
    computing_dtype,
    iterate,
    products,
    relax,
    same_library,
    weights,
)

if TYPE_CHECKING:
    from torch import Tensor

#: The plan that is solved first is solved to this share of the tolerance: how much the plans differ is not known yet.
TIGHT = 0.2
#: A teacher's plan that is kept is solved to this share, since students come near it.
KEPT = 0.02
#: Share of the tolerance at which iterations stop, since ‖P − P*‖₁ is estimated from a sample.
SAFE = 0.9


@dataclass(frozen=True)
class Convergence:
    """Convergence of the iterations for the two plans of a KLOT.

    - ``student``, ``teacher``: Potentials, iterations and errors of the two plans, for mass 1.
    - ``difference``: ‖P − P*‖₁ for mass 1, from 0 to 2: ε times the L1 norm of the gradient with respect to the
      affinities.
    - ``rounding``: L1 error of the plans due to rounding of A/ε.
    - ``tolerance``: The largest ``gradient_error`` that counts as converged.
    """

    student: Potentials[Array]
    teacher: Potentials[Array]
    difference: float
    rounding: float
    tolerance: float

    @property
    def gradient_error(self) -> float:
        """Estimated error of the gradient in L1 norm, relative to the gradient, at most 1."""
        error = self.student.error + self.teacher.error + self.rounding
        return error / max(error, self.difference) if error else 0.0

    @property
    def converged(self) -> bool:
        """Whether ``gradient_error`` is at most ``tolerance``."""
        return self.gradient_error <= self.tolerance


def warn_unconverged(gradient_error: float, where: str, otherwise: str, stacklevel: int) -> None:
    """Warn that the gradient is not accurate: ``where`` says when, ``otherwise`` adds a remedy."""
    # One digit, rounded up, so that a loop over batches repeats a few messages, each of which Python shows once.
    unit = 10.0 ** math.floor(math.log10(gradient_error))
    off = f"{math.ceil(round(gradient_error / unit, 6)) * unit:.1g}"
    warnings.warn(
        ConvergenceWarning(
            f"The gradient of KLOT is off by up to {off} of its L1 norm {where}.",
            f"Raise `max_iter=…`, `epsilon=…` or `tolerance=…`, or pass float64{otherwise}.",
        ),
        stacklevel=stacklevel + 1,
    )


def klot(
    student: Tensor,
    teacher: Tensor,
    epsilon: float = 0.05,
    epsilon_teacher: float = 0.01,
    max_iter: int = MAX_ITER,
    tolerance: float = 1e-3,
    *,
    mass: str = "unit",
    rho_teacher: float | None = None,
    start: Tensor | None = None,
    return_info: bool = False,
) -> Tensor | tuple[Tensor, Convergence]:
    """KL(P* ‖ P): the divergence of the student's plan P from the teacher's P*, with its explicit gradient.

    Parameters
    ----------
    student, teacher : tensor, shape (n, m)
        Affinities A, into which gradients flow, and T. float16 and bfloat16 are computed in float32.
    epsilon, epsilon_teacher : float, default=0.05 and 0.01
        ε of the two plans, in units of affinity.
    tolerance : float, default=1e-3
        Stop when the gradient's estimated error in L1 norm, relative to the gradient, is at most this. A warning says
        where that was not reached.
    mass : {"unit", "bistochastic"}, default="unit"
        Mass of both plans, 1 or n. The value and the gradient of the second are n times those of the first, so that a
        loss weight α on the first acts as α/n on the second.
    rho_teacher : float, optional
        Strength ρ of the marginal constraints of the teacher's plan, in units of its affinities, for rows that may have
        no partner; see ``sinkhorn_unbalanced``. P* is then the unbalanced plan divided by its mass, and P has the
        marginals of P*. Balanced by default. This is our extension, not the paper's.
    start : tensor, shape (m,), optional
        Column potentials to start the student's iterations from: ``student.v`` of the ``Convergence`` of an earlier
        call for the same rows.
    return_info : bool, default=False
        Also return a ``Convergence``: potentials, errors and iterations of both plans.

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
    check_options(max_iter, tolerance, MEMORY)
    A, T = _tensors(torch, {"student": student, "teacher": teacher})
    if A.shape != T.shape:
        raise ShapeError(
            f"Got student of shape {tuple(A.shape)} and teacher of shape {tuple(T.shape)}.", "Use one batch."
        )
    dtype = computing_dtype(A, T)
    memory = A.numel() * 8
    solver = _Solver(epsilon, epsilon_teacher, rho_teacher, max_iter, tolerance, memory)
    sides = solver.solve(Dense(A, dtype), Dense(T, dtype), start)
    tracked = student if isinstance(student, torch.Tensor) else A
    differences: list[float] = []
    value = _autograd.Klot.apply(tracked, T, *sides, float(len(A)) if mass == "bistochastic" else 1.0, differences)
    return _with_info(value, sides, differences[0], tolerance, return_info)


def klot_features(
    X: Tensor,
    Y: Tensor,
    TX: Tensor,
    TY: Tensor,
    epsilon: float = 0.05,
    epsilon_teacher: float = 0.01,
    max_iter: int = MAX_ITER,
    tolerance: float = 1e-3,
    *,
    mass: str = "unit",
    rho_teacher: float | None = None,
    memory: int = MEMORY,
    teacher: Side | None = None,
    start: Tensor | None = None,
    return_info: bool = False,
) -> Tensor | tuple[Tensor, Convergence]:
    """Like ``klot`` for affinities that are inner products, in O((n + m)·d) memory beyond ``memory``.

    Parameters
    ----------
    X, Y : tensor, shapes (n, d) and (m, d)
        The student's vectors, into which gradients flow: A_ij = ⟨x_i, y_j⟩. For cosines, normalize the rows first.
    TX, TY : tensor, shapes (n, e) and (m, e)
        The teacher's vectors of the same items: T_ij = ⟨tx_i, ty_j⟩.
    memory : int, default=2**30
        Bytes of matrices (n, m) that are kept: both affinities and a kernel if they fit, otherwise rows of a kernel;
        the rest is recomputed in each iteration, in strips of about 50 MB.
    teacher : result of ``solve_teacher``, optional
        The teacher's plan for the same rows, in place of the other arguments about the teacher.

    Notes
    -----
    With G = P − P* the gradients are G Y/ε and Gᵀ X/ε, summed over strips of G in the same pass as the value.

    Source: SOTAlign, theorem 5.1; the strips are ours.
    """
    torch = require("torch", extra="train")
    from congruence.transport import _autograd

    check_choice(mass, MASSES, "mass")
    check_options(max_iter, tolerance, memory)
    arrays = {"X": X, "Y": Y} if teacher is not None else {"X": X, "Y": Y, "TX": TX, "TY": TY}
    A, B, *teacher_rows = _tensors(torch, arrays)
    n, m = teacher.affinity.shape if teacher is not None else map(len, teacher_rows)
    check_same_rows(len(A), n, "X", "TX")
    check_same_rows(len(B), m, "Y", "TY")
    dtype = computing_dtype(A, B, *teacher_rows)
    student_affinity = _products(A, B, ("X", "Y"), dtype, memory)
    if teacher is not None and teacher.affinity.dtype != dtype:
        raise DtypeError(f"Got a teacher solved in {teacher.affinity.dtype} and X, Y in {dtype}.", "Convert X and Y.")
    given = _products(teacher_rows[0], teacher_rows[1], ("TX", "TY"), dtype, memory) if teacher is None else teacher
    solver = _Solver(epsilon, epsilon_teacher, rho_teacher, max_iter, tolerance, memory)
    sides = solver.solve(student_affinity, given, start)
    tracked = [side if isinstance(side, torch.Tensor) else plain for side, plain in zip((X, Y), (A, B), strict=True)]
    differences: list[float] = []
    value = _autograd.KlotFeatures.apply(
        *tracked, *sides, float(len(A)) if mass == "bistochastic" else 1.0, memory, differences
    )
    return _with_info(value, sides, differences[0], tolerance, return_info)


def solve_teacher(
    TX: Tensor,
    TY: Tensor,
    epsilon_teacher: float = 0.01,
    max_iter: int = MAX_ITER,
    tolerance: float = 1e-3,
    *,
    rho_teacher: float | None = None,
    memory: int = MEMORY,
) -> Side:
    """Solve for a teacher's plan once, for repeated use in ``klot_features``, whose arguments these are."""
    torch = require("torch", extra="train")
    check_options(max_iter, tolerance, memory)
    A, B = _tensors(torch, {"TX": TX, "TY": TY})
    affinity = _products(A, B, ("TX", "TY"), computing_dtype(A, B), memory)
    return _Solver(epsilon_teacher, epsilon_teacher, rho_teacher, max_iter, tolerance, memory).teacher(affinity, KEPT)


def _tensors(torch: ModuleType, arrays: Mapping[str, RowsLike]) -> list[Tensor]:
    """Return validated matrices as tensors without their graph."""
    return [torch.as_tensor(array) for array in same_library(arrays)]


def _products(X: Array, Y: Array, names: tuple[str, str], dtype: DType, memory: int) -> Affinity:
    """Return the affinities ⟨x_i, y_j⟩, as a matrix if those of both sides and a kernel fit in ``memory``."""
    affinity = products(X, Y, names, dtype)
    return affinity.formed() if fits(affinity, memory // 3) else affinity


def _with_info(
    value: Tensor, sides: tuple[Side, ...], difference: float, tolerance: float, return_info: bool
) -> Tensor | tuple[Tensor, Convergence]:
    """Return the value, with information on convergence if requested; otherwise warn if convergence is insufficient."""
    rounding = sum(_rounding(side.affinity, side.epsilon) for side in sides)
    student, teacher = (_in_library(side) for side in sides)
    convergence = Convergence(student, teacher, difference, rounding, tolerance)
    if return_info:
        return value, convergence
    if not convergence.converged:
        where = f"after {max(side.potentials.n_iter for side in sides)} iterations"
        warn_unconverged(convergence.gradient_error, where, ", or check with return_info=True", stacklevel=3)
    return value


def _in_library(side: Side) -> Potentials[Array]:
    """Return the potentials of a side in its library."""
    found, vector = side.potentials, side.affinity.vector
    return replace(found, u=vector(found.u), v=vector(found.v))


def _rounding(affinity: Affinity, epsilon: float) -> float:
    """Return the L1 error of a plan that rounding of its exponents causes."""
    return affinity.bound / epsilon * float(affinity.xp.finfo(affinity.dtype).eps) / 2


class _Relative(Goal):
    """The error of a plan at which the gradient is accurate enough, if the other plan is ``known``."""

    def __init__(self, known: Side, other: Affinity, epsilon: float, tolerance: float) -> None:
        potentials, r, most = known.potentials, known.marginals[0], 2 * SAFE * tolerance  # plans differ by 2 at most
        super().__init__(max(most - potentials.error, most / 2))
        self._sample = Sample(known.affinity, known.epsilon, r, known.kernel)
        self._known, self._tolerance = self._sample.plan(potentials.u, potentials.v), tolerance
        self._error = potentials.error
        self._rounding = _rounding(other, epsilon) + _rounding(known.affinity, known.epsilon)

    def reached(self, error: float, rows: np.ndarray) -> bool:
        """Return whether the gradient is accurate enough, or will not get better by this plan."""
        if error > self.error:
            return False
        both = SAFE * self._tolerance * self._sample.norm(rows - self._known) - self._rounding
        self.error = max(both - self._error, both / 2, self._rounding)
        return error <= self.error


@dataclass(frozen=True)
class _Solver:
    """Solves for both plans, until the gradient is as accurate as asked for."""

    epsilon: float
    epsilon_teacher: float
    rho: float | None
    max_iter: int
    tolerance: float
    memory: int

    def solve(self, student: Affinity, teacher: Affinity | Side, start: Tensor | None) -> tuple[Side, Side]:
        """Return the plans of student and teacher. Only one kernel is in memory at a time."""
        check_epsilon(student, self.epsilon, "epsilon")
        if start is not None and tuple(start.shape) != student.shape[1:]:
            raise ShapeError(
                f"Got start of shape {tuple(start.shape)}; expected {student.shape[1:]}.", "Pass one number a column."
            )
        first = None if start is None else to_numpy(start).astype(np.float64)
        if first is not None and not np.isfinite(first).all():
            raise NotFiniteError("Got NaN or inf in start.", "Pass the potentials of an earlier call, or leave it out.")
        if isinstance(teacher, Side) or self._soft:
            known = teacher if isinstance(teacher, Side) else self.teacher(teacher)
            return self._against(known, student, self.epsilon, first), known
        # The student converges in few iterations, so it can be solved before it is known how accurately it must be.
        check_epsilon(teacher, self.epsilon_teacher, "epsilon_teacher")
        n, m = student.shape
        uniform = weights(None, n, "row", student), weights(None, m, "column", student)
        pupil = self._side(student, self.epsilon, uniform, Goal(TIGHT * self.tolerance), first)
        # Potentials in units of affinity are a start as good as zero, and a far better one where the two sides agree.
        same = pupil.potentials.v * (self.epsilon / self.epsilon_teacher)
        model = self._against(pupil, teacher, self.epsilon_teacher, same)
        if model.potentials.n_iter < self.max_iter and pupil.potentials.error > model.potentials.error:
            pupil = self._against(model, student, self.epsilon, pupil.potentials.v)
            model = replace(model, kernel=None)
        return replace(pupil, kernel=None), model

    @property
    def _soft(self) -> bool:
        return self.rho is not None and not math.isinf(check_rho(self.rho, "rho_teacher"))

    def teacher(self, affinity: Affinity, share: float = TIGHT) -> Side:
        """Solve for a teacher's plan to a share of the tolerance, with uniform marginals, with ρ soft ones."""
        check_epsilon(affinity, self.epsilon_teacher, "epsilon_teacher")
        n, m = affinity.shape
        r, c = weights(None, n, "row", affinity), weights(None, m, "column", affinity)
        goal, epsilon = Goal(share * self.tolerance), float(self.epsilon_teacher)
        if not self._soft:
            return replace(self._side(affinity, epsilon, (r, c), goal), kernel=None)
        assert self.rho is not None
        relaxed, sums = relax(affinity, epsilon, float(self.rho), r, c, self.max_iter, goal, self.memory)
        # Marginals below this are numerically zero, but the student's solver needs positive ones.
        rows, columns = (np.clip(side, LEAST[affinity.itemsize], 1.0) for side in sums)
        return Side(affinity, epsilon, relaxed, (rows / rows.sum(), columns / columns.sum()))

    def _against(self, known: Side, affinity: Affinity, epsilon: float, start: np.ndarray | None = None) -> Side:
        """Solve for a plan as accurately as its difference from one that is known needs it, in the same memory."""
        goal = _Relative(known, affinity, epsilon, self.tolerance)
        buffer = None if known.kernel is None else known.kernel.buffer
        return self._side(affinity, epsilon, known.marginals, goal, start, buffer)

    def _side(
        self,
        affinity: Affinity,
        epsilon: float,
        marginals: tuple[np.ndarray, np.ndarray],
        goal: Goal,
        start: np.ndarray | None = None,
        buffer: Array | None = None,
    ) -> Side:
        solved, kernel = iterate(affinity, float(epsilon), *marginals, self.max_iter, goal, self.memory, start, buffer)
        return Side(affinity, float(epsilon), solved, marginals, kernel)
