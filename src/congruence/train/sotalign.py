"""SOTAlign: a linear teacher from few pairs, whose geometry on unpaired rows the trained heads are held to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, ClassVar, TypeAlias

import numpy as np
from sklearn.base import clone

from congruence._utils.validation import check_choice, check_positive, check_width
from congruence.errors import InputError, ParameterError
from congruence.maps import CCAMap, ProcrustesHeads
from congruence.maps.history import History
from congruence.maps.two_sided import TwoSidedMap
from congruence.train._base import HeadTrainer
from congruence.train._objective import Batch, HeadsObjective
from congruence.train._reading import Data
from congruence.train.loop import Schedule
from congruence.train.losses import cka_divergence, generalized_infonce
from congruence.train.retrieval import mean_recall
from congruence.train.sail import SAIL
from congruence.transport import klot_features, solve_teacher
from congruence.transport.convergence import GRADIENT_ERROR, warn_unconverged
from congruence.transport.klot import Side
from congruence.transport.unbalanced import check_rho

if TYPE_CHECKING:
    from torch import Tensor

    from congruence.train._layers import Head

__all__ = ["SOTAlign"]

#: Rows of either side and their labels.
Heldout: TypeAlias = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]

TEACHERS = ("cca", "procrustes", "contrastive")
DIVERGENCES = ("klot", "infonce", "cka")
INITS = ("random", "teacher")
#: What ``ridge="auto"`` chooses among, and folds of the pairs where there are no validation rows to choose by.
RIDGES = (0.1, 1.0, 10.0, 100.0)
FOLDS = 5


@dataclass(eq=False, repr=False)
class SOTAlign(HeadTrainer):
    """Train heads on few pairs, and on unpaired rows by the divergence from a linear teacher.

    The loss is the supervised one on pairs, plus α times the divergence between the affinities of a batch of unpaired rows under the heads and
    under the teacher.

    Parameters
    ----------
    teacher : {"cca", "procrustes", "contrastive"} or fitted two-sided map, default="cca"
        Fitted on the pairs: canonical correlation analysis, Procrustes analysis, or linear heads trained as SAIL's.
    divergence : {"klot", "infonce", "cka"}, default="klot"
    divergence_weight : float or "auto", default="auto"
        α, the weight of the divergence. The supervised loss is the mean over all n² logits of a step's n pairs, KLOT is that of plans of mass 1;
        under plans of mass n, as the paper writes them, the same weight is α/n. The paper takes 1e-4, give or take a factor of ten, with
        10,000 pairs. That its SigLIP loss is the mean over n² logits is our reading: the paper does not say, its published code has KLOT
        only, and SigLIP's own loss is a sum over n² logits divided by n, under which α would be n times as large. The gradient of a mean over n² logits, of which n are of pairs,
        falls as 1/n, so the same balance with n pairs is 1/n. ``"auto"`` is ten times that, 10/n, which retrieves better with few pairs
        (docs/training.md), and 1 for InfoNCE, a mean over rows.
    epsilon, epsilon_teacher : float, default=0.05 and 0.01
        Of the two transport plans, or temperatures of the two softmaxes.
    max_iter : int, default=100
        The most Sinkhorn iterations for a plan. If they are too few in any step recorded, one warning is given after the training.
    tol : float, optional
        Stop them when the marginals are within this; see :func:`congruence.transport.klot`.
    rho_teacher : float, optional
        Strength of the marginals of the teacher's plan, in units of its affinities, where unpaired rows may have no partner on the other side: see
        :func:`congruence.transport.klot`. Of KLOT only. Balanced by default, as in the paper.
    teacher_n_components : int, optional
        Width d′ of the teacher's space; by default as wide as the pairs support.
    ridge : float or "auto", default="auto"
        λ of the CCA teacher. The paper's is 0.1, which is far too little for a few hundred pairs. ``"auto"`` takes of 0.1, 1, 10 and 100 the one
        whose teacher has the best mean recall at 1 on the validation rows; without these, in the mean over five folds of the pairs, each
        searched among its own rows. The smallest of equals.
    pairs_too : bool, default=False
        Let the rows of the pairs take part in the divergence as well.
    init : {"random", "teacher"}, default="random"
        Where the heads begin. At the teacher, linear heads rank as it does before the first step, and with validation rows the map
        is never worse on these than its teacher; of a teacher wider than ``n_components`` the first directions are taken. The paper says random.
    **parameters
        Those of :class:`~congruence.train.HeadTrainer`, with its defaults.

    Attributes
    ----------
    teacher_ : TwoSidedMap
        Its score on the validation rows is ``scores_["teacher_validation_mean_recall_at_1"]``, to compare with that of the heads,
        ``scores_["validation_mean_recall_at_1"]``. Of a CCA teacher, ``teacher_.ridge`` is the λ that was taken.

    Notes
    -----
    The history has the terms ``marginal_error``, ``marginal_error_teacher`` and ``gradient_error`` beside the losses, if the divergence is KLOT: see
    :class:`congruence.transport.Convergence`.

    References
    ----------
    Roschmann et al. (2026), "SOTAlign", algorithm 1, equation 5, sections 4 and 5, appendix A.1.
    """

    method: ClassVar[str] = "sotalign"

    teacher: str | TwoSidedMap = "cca"
    divergence: str = "klot"
    divergence_weight: float | str = "auto"
    epsilon: float = 0.05
    epsilon_teacher: float = 0.01
    max_iter: int = 100
    tol: float | None = None
    rho_teacher: float | None = None
    teacher_n_components: int | None = None
    ridge: float | str = "auto"
    pairs_too: bool = False
    init: str = "random"

    def fit_teacher(self, X: np.ndarray, Y: np.ndarray, validation: Heldout | None = None) -> TwoSidedMap:
        """Fit the teacher alone.

        Parameters
        ----------
        X : ndarray, shape (n, d_source)
        Y : ndarray, shape (n, d_target)
        validation : tuple of four, optional
            Rows of either side and their labels, by which ``ridge="auto"`` chooses.

        Returns
        -------
        TwoSidedMap

        Raises
        ------
        TooFewAnchorsError, ParameterError
        """
        if isinstance(self.teacher, TwoSidedMap):
            check_width(X.shape[1], self.teacher.n_features_in_, "the teacher's source")
            check_width(Y.shape[1], self.teacher.d_target, "the teacher's target")
            return self.teacher
        if self.teacher == "procrustes":
            return ProcrustesHeads(n_components=self.teacher_n_components).fit(X, Y)
        if self.teacher == "cca":
            return self._fit_cca(X, Y, validation)
        shared = {field.name: getattr(self, field.name) for field in fields(HeadTrainer)}
        shared |= {"head": "linear", "n_components": self.teacher_n_components or self.n_components}
        return SAIL(**shared).fit(X, Y, verbose=False)

    def _fit_cca(self, X: np.ndarray, Y: np.ndarray, validation: Heldout | None) -> CCAMap:
        """Fit the CCA teacher with its λ, or with the best of :data:`RIDGES`."""
        if not isinstance(self.ridge, str):
            return CCAMap(n_components=self.teacher_n_components, ridge=self.ridge).fit(X, Y)
        every = [CCAMap(n_components=self.teacher_n_components, ridge=ridge) for ridge in RIDGES]
        if validation is None:
            scores = _score_on_folds(every, X, Y)
            return every[int(np.argmax(scores))].fit(X, Y)
        A, B, a, b = validation
        fitted = [teacher.fit(X, Y) for teacher in every]
        scores = [mean_recall(teacher.transform(A), teacher.transform_target(B), a, b) for teacher in fitted]
        return fitted[int(np.argmax(scores))]

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if self.ridge != "auto":
            check_positive(self.ridge, "ridge", zero=True)
        if not isinstance(self.teacher, TwoSidedMap):
            check_choice(self.teacher, TEACHERS, "teacher")
        check_choice(self.divergence, DIVERGENCES, "divergence")
        check_choice(self.init, INITS, "init")
        if self.init == "teacher" and self.head != "linear":
            raise ParameterError(
                f"Got init='teacher' with head={self.head!r}; expected head='linear'. Pass that, or init='random'."
            )
        if self.divergence_weight != "auto":
            check_positive(self.divergence_weight, "divergence_weight", zero=True)
        for name in ("epsilon", "epsilon_teacher"):
            check_positive(getattr(self, name), name)
        if self.rho_teacher is not None:
            check_rho(self.rho_teacher, "rho_teacher")
            if self.divergence != "klot":
                raise ParameterError(
                    f"Got rho_teacher={self.rho_teacher} with divergence={self.divergence!r}; expected divergence='klot', the one "
                    "between transport plans. Pass that, or leave out rho_teacher=…."
                )

    def _objective(self, data: Data, schedule: Schedule) -> HeadsObjective:
        return _Objective(self, data, schedule)

    def _finish(self, objective: HeadsObjective, data: Data, history: History) -> None:
        assert isinstance(objective, _Objective)
        self.teacher_ = objective.teacher
        errors = history.losses.get("gradient_error", [])
        if errors:
            off = sum(error > GRADIENT_ERROR for error in errors)
            where = f"at worst, and past the bound in {off} of the {len(errors)} steps recorded"
            warn_unconverged(max(errors), where, "", stacklevel=3)
        if data.validation is not None:
            X, Y, x_labels, y_labels = data.validation
            its = mean_recall(self.teacher_.transform(X), self.teacher_.transform_target(Y), x_labels, y_labels)
            self.scores_["teacher_validation_mean_recall_at_1"] = its


class _Objective(HeadsObjective):
    trainer: SOTAlign

    def __init__(self, trainer: SOTAlign, data: Data, schedule: Schedule):
        from congruence.train._layers import Head

        super().__init__(trainer, data, schedule)
        if data.unpaired_source is None or data.unpaired_target is None:
            raise InputError(
                "Got no unpaired rows of one side or both; expected some of each, on which the teacher is applied. Pass unpaired=(U, V), or train SAIL or the teacher alone."
            )
        # Where a step has all rows, they are the same rows each time, and so is what the teacher says of them.
        sizes = (
            self.unpaired_batch[0] == len(data.unpaired_source),
            self.unpaired_batch[1] == len(data.unpaired_target),
        )
        self.always_the_same = all(sizes) and (not trainer.pairs_too or self.pair_batch == len(data.source))
        self.taught: tuple[list[Tensor], Side | None] | None = None
        self.teacher = trainer.fit_teacher(data.source, data.target, data.validation)
        self.teacher_heads = [Head(side).to(self.device).requires_grad_(False) for side in self.teacher.layers()]
        if trainer.init == "teacher":
            for head, teacher in zip((self.module.source, self.module.target), self.teacher_heads, strict=True):
                _begin_at(head, teacher)

    def training_step(self, batch: Batch) -> Mapping[str, Tensor]:
        import torch

        X, Y = self.heads(batch.source, 0), self.heads(batch.target, 1)
        supervised = self.pair_loss(X, Y)
        weight = self._weight(len(X))
        if not weight:
            return {"loss": supervised, "supervised": supervised}
        rows: list[Tensor] = [batch.unpaired_source, batch.unpaired_target]
        students = [self.heads(side, i) for i, side in enumerate(rows)]
        if self.trainer.pairs_too:
            rows = [torch.cat(sides) for sides in zip((batch.source, batch.target), rows, strict=True)]
            students = [torch.cat([X, students[0]]), torch.cat([Y, students[1]])]
        divergence, found = self._divergence(students, *(self.taught or self._teach(rows)))
        terms = {"supervised": supervised, self.trainer.divergence: divergence, **found}
        return {"loss": supervised + weight * divergence, **terms}

    def _teach(self, rows: list[Tensor]) -> tuple[list[Tensor], Side | None]:
        """Return the teacher's vectors and, where the rows come again each step, its plan; such are kept."""
        import torch

        with torch.no_grad():
            teachers = [
                torch.nn.functional.normalize(head(side), dim=1)
                for head, side in zip(self.teacher_heads, rows, strict=True)
            ]
        if not self.always_the_same:
            return teachers, None
        plan, trainer = None, self.trainer
        if trainer.divergence == "klot":
            plan = solve_teacher(
                teachers[0],
                teachers[1],
                trainer.epsilon_teacher,
                trainer.max_iter,
                trainer.tol,
                rho_teacher=trainer.rho_teacher,
            )
        self.taught = teachers, plan
        return self.taught

    def _weight(self, pairs: int) -> float:
        weight = self.trainer.divergence_weight
        if isinstance(weight, str):
            return 1.0 if self.trainer.pair_loss == "infonce" else 10 / pairs
        return weight

    def _divergence(
        self, students: list[Tensor], teachers: list[Tensor], plan: Side | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the divergence, and of KLOT's how far its iterations got."""
        import torch

        trainer = self.trainer
        (X, Y), (TX, TY) = students, teachers
        if trainer.divergence == "cka":
            return cka_divergence(X, Y, TX, TY), {}
        if trainer.divergence == "infonce":
            return generalized_infonce(X, Y, TX, TY, trainer.epsilon, trainer.epsilon_teacher, symmetric=True), {}
        value, info = klot_features(
            X,
            Y,
            TX,
            TY,
            trainer.epsilon,
            trainer.epsilon_teacher,
            trainer.max_iter,
            trainer.tol,
            rho_teacher=trainer.rho_teacher,
            teacher=plan,
            return_info=True,
        )
        errors = ("marginal_error", "marginal_error_teacher", "gradient_error")
        return value, {name: torch.tensor(getattr(info, name)) for name in errors}


def _score_on_folds(every: list[CCAMap], X: np.ndarray, Y: np.ndarray) -> list[float]:
    """Return each map's mean recall at 1 of the pairs of a fold, among these, when it is fitted on the other folds."""
    n = len(X)
    fold = np.arange(n) % min(FOLDS, n)
    found = []
    for one in every:
        scores = []
        for number in np.unique(fold) if n > 2 * FOLDS else []:
            out = fold == number
            width = None if one.n_components is None else min(one.n_components, int((~out).sum()) - 1)
            fitted = clone(one).set_params(n_components=width).fit(X[~out], Y[~out])
            scores.append(mean_recall(fitted.transform(X[out]), fitted.transform_target(Y[out])))
        found.append(float(np.mean(scores)) if scores else 0.0)
    return found


def _begin_at(head: Head, teacher: Head) -> None:
    """Give a linear head the weights with which it does as the teacher, up to one factor, on every row.

    The teacher's matrix and offset are read off what it does behind the head's own first layers, which must differ from its by an
    affine map only: they do where both or neither scale rows to unit norm.
    """
    import torch

    *first, last = head.layers
    with torch.no_grad():
        here, there = (
            [layer.kind for layer in layers if layer.kind in ("normalize", "center", "linear")]
            for layers in (head.layers, teacher.layers)
        )
        if ("normalize" in here) != ("normalize" in there) or there[-1] != "linear" or there.count("linear") != 1:
            raise ParameterError(
                f"Got a teacher of layers {', '.join(there)} and heads of {', '.join(here)}; expected one linear layer after the same scaling. "
                'Pass preprocess="center" or "normalize", or init="random".'
            )
        own, its = (
            next((layer.mean for layer in layers if layer.kind == "center"), torch.zeros_like(last.weight[:, 0]))
            for layers in (first, teacher.layers)
        )
        matrix = teacher.layers[-1].weight[:, : last.weight.shape[1]].to(last.weight)
        bias = (own - its) @ matrix
        if getattr(teacher.layers[-1], "bias", None) is not None:
            bias = bias + teacher.layers[-1].bias[: matrix.shape[1]].to(bias)
        # As large as what it replaces, so that one learning rate suits both; the other columns stay small, but not stuck at zero.
        factor = last.weight.norm() / matrix.norm() * (matrix.shape[1] / last.weight.shape[1]) ** 0.5
        last.weight.mul_(1e-3)
        last.bias.mul_(1e-3)
        last.weight[:, : matrix.shape[1]] = factor * matrix
        last.bias[: matrix.shape[1]] = factor * bias
