"""SOTAlign: a linear teacher from few pairs, whose geometry on unpaired rows the trained heads are held to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from congruence._utils.validation import check_choice, check_positive, check_width
from congruence.embeddings import Space
from congruence.errors import InputError, ParameterError
from congruence.maps import CCAMap, HeadsMap, ProcrustesHeads
from congruence.maps.two_sided import TwoSidedMap
from congruence.train._base import Batch, Data, HeadTrainer
from congruence.train.checkpoint import History
from congruence.train.losses import cka_divergence, generalized_infonce
from congruence.train.retrieval import mean_recall
from congruence.train.sail import SAIL
from congruence.transport import klot_features, solve_teacher
from congruence.transport.convergence import GRADIENT_ERROR, warn_unconverged

__all__ = ["SOTAlign"]

TEACHERS = ("cca", "procrustes", "contrastive")
DIVERGENCES = ("klot", "infonce", "cka")
STARTS = ("random", "teacher")


class SOTAlign(HeadTrainer):
    """Train heads on few pairs, and on unpaired rows by the divergence from a linear teacher.

    The loss is the supervised one on pairs, plus α times the divergence between the affinities of a batch of unpaired rows under the heads and
    under the teacher.

    Parameters
    ----------
    teacher : {"cca", "procrustes", "contrastive"} or fitted two-sided map, default="cca"
        Fitted on the pairs: canonical correlation analysis, Procrustes analysis, or linear heads trained as SAIL's.
    divergence : {"klot", "infonce", "cka"}, default="klot"
    alpha : float or "auto", default="auto"
        Weight of the divergence. The supervised loss is the mean over all n² logits of a step's n pairs, KLOT is that of plans of mass 1;
        under plans of mass n, as the paper writes them, the same weight is α/n. The paper takes 1e-4, give or take a factor of ten, with
        10,000 pairs. That its SigLIP loss is the mean over n² logits is our reading: the paper does not say, its published code has KLOT
        only, and SigLIP's own loss is a sum over n² logits divided by n, under which α would be n times as large. The gradient of a mean over n² logits, of which n are of pairs,
        falls as 1/n, so the same balance with n pairs is 1/n, which ``"auto"`` is (1 for InfoNCE, a mean over rows).
    epsilon, epsilon_teacher : float, default=0.05 and 0.01
        Of the two transport plans, or temperatures of the two softmaxes.
    max_iter : int, default=100
        The most Sinkhorn iterations for a plan. If they are too few in any step recorded, one warning is given after the training.
    tol : float, optional
        Stop them when the marginals are within this; see :func:`congruence.transport.klot`.
    teacher_dim : int, optional
        Width d′ of the teacher's space; by default as wide as the pairs support.
    regularization : float, default=0.1
        λ of the CCA teacher.
    pairs_too : bool, default=False
        Let the rows of the pairs take part in the divergence as well.
    start : {"random", "teacher"}, default="random"
        Where the heads begin. At the teacher, linear heads rank as it does before the first step, and with validation rows the map
        is never worse on these than its teacher; of a teacher wider than ``dim`` the first directions are taken. The paper says random.
    **parameters
        See :class:`~congruence.train.HeadTrainer`.

    Attributes
    ----------
    teacher_ : TwoSidedMap
        The teacher of the last fit. Its score on the validation rows is ``scores_["teacher_validation_mean_recall_at_1"]`` of the map that
        ``fit`` returns, to compare with that of the heads, ``scores_["validation_mean_recall_at_1"]``.

    Notes
    -----
    The history has the terms ``marginal_error``, ``marginal_error_teacher`` and ``gradient_error`` beside the losses, if the divergence is KLOT: see
    :class:`congruence.transport.Convergence`.

    References
    ----------
    Roschmann et al. (2026), "SOTAlign", algorithm 1, equation 5, sections 4 and 5, appendix A.1.
    """

    method = "sotalign"

    def __init__(
        self,
        teacher: str | TwoSidedMap = "cca",
        divergence: str = "klot",
        alpha: float | str = "auto",
        epsilon: float = 0.05,
        epsilon_teacher: float = 0.01,
        max_iter: int = 100,
        tol: float | None = None,
        teacher_dim: int | None = None,
        regularization: float = 0.1,
        pairs_too: bool = False,
        start: str = "random",
        **parameters: Any,
    ):
        super().__init__(**parameters)
        self.teacher = teacher
        self.divergence = divergence
        self.alpha = alpha
        self.epsilon = epsilon
        self.epsilon_teacher = epsilon_teacher
        self.max_iter = max_iter
        self.tol = tol
        self.teacher_dim = teacher_dim
        self.regularization = regularization
        self.pairs_too = pairs_too
        self.start = start

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if not isinstance(self.teacher, TwoSidedMap):
            check_choice(self.teacher, TEACHERS, "teacher")
        check_choice(self.divergence, DIVERGENCES, "divergence")
        check_choice(self.start, STARTS, "start")
        if self.start == "teacher" and self.head != "linear":
            raise ParameterError(
                f"Got start='teacher' with head={self.head!r}; expected head='linear'. Pass that, or start='random'."
            )
        if self.alpha != "auto":
            check_positive(self.alpha, "alpha", zero=True)
        for name in ("epsilon", "epsilon_teacher"):
            check_positive(getattr(self, name), name)

    def fit_teacher(self, X: Any, Y: Any) -> TwoSidedMap:
        """Fit the teacher alone.

        Parameters
        ----------
        X : ndarray, shape (n, d_source)
        Y : ndarray, shape (n, d_target)

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
            return ProcrustesHeads(dim=self.teacher_dim).fit(X, Y)
        if self.teacher == "cca":
            return CCAMap(dim=self.teacher_dim, regularization=self.regularization).fit(X, Y)
        shared = {name: getattr(self, name) for name in HeadTrainer._get_param_names()}
        shared |= {"head": "linear", "dim": self.teacher_dim or self.dim}
        return SAIL(**shared).fit(X, Y, progress=False)

    def _prepare(self, torch: Any, task: Any) -> None:
        from congruence.train._layers import Head

        data = task.data
        if data.unpaired_source is None or data.unpaired_target is None:
            raise InputError(
                "Got no unpaired rows of one side or both; expected some of each, on which the teacher is applied. Pass unpaired_source=… and unpaired_target=…, or train SAIL or the teacher alone."
            )
        # Where a step has all rows, they are the same rows each time, and so is what the teacher says of them.
        sizes = (
            task.unpaired_batch[0] == len(data.unpaired_source),
            task.unpaired_batch[1] == len(data.unpaired_target),
        )
        task.always_the_same = all(sizes) and (not self.pairs_too or task.pair_batch == len(data.source))
        task.taught = None
        self.teacher_ = self.fit_teacher(data.source, data.target)
        task.teacher = [Head(side).to(task.device).requires_grad_(False) for side in self.teacher_.layers()]
        if self.start == "teacher":
            for i, head in enumerate((task.module.source, task.module.target)):
                _begin_at(torch, head, task.teacher[i])

    def _map(self, task: Any, data: Data, history: History, spaces: tuple[Space, Space]) -> HeadsMap:
        errors = history.losses.get("gradient_error", [])
        if errors:
            off = sum(error > GRADIENT_ERROR for error in errors)
            where = f"at worst, and past the bound in {off} of the {len(errors)} steps recorded"
            warn_unconverged(max(errors), where, "", stacklevel=3)
        model = super()._map(task, data, history, spaces)
        if data.validation is not None:
            X, Y, x_labels, y_labels = data.validation
            its = mean_recall(self.teacher_.transform(X), self.teacher_.transform_target(Y), x_labels, y_labels)
            model.scores_["teacher_validation_mean_recall_at_1"] = its
        return model

    def _loss(self, torch: Any, task: Any, batch: Batch, step: int) -> Mapping[str, Any]:
        X, Y = task.heads(batch.source, 0), task.heads(batch.target, 1)
        supervised = task.supervise(X, Y)
        alpha = self._weight(len(X))
        if not alpha:
            return {"loss": supervised, "supervised": supervised}
        rows = [batch.unpaired_source, batch.unpaired_target]
        students = [task.heads(side, i) for i, side in enumerate(rows)]
        if self.pairs_too:
            rows = [torch.cat(sides) for sides in zip((batch.source, batch.target), rows, strict=True)]
            students = [torch.cat([X, students[0]]), torch.cat([Y, students[1]])]
        taught = task.taught or self._teach(torch, task, rows)
        divergence, found = self._divergence(torch, students, *taught)
        return {"loss": supervised + alpha * divergence, "supervised": supervised, self.divergence: divergence, **found}

    def _teach(self, torch: Any, task: Any, rows: list[Any]) -> tuple[list[Any], Any]:
        """Return the teacher's vectors and, where the rows come again each step, its plan; such are kept."""
        with torch.no_grad():
            teachers = [
                torch.nn.functional.normalize(head(side), dim=1) for head, side in zip(task.teacher, rows, strict=True)
            ]
        if not task.always_the_same:
            return teachers, None
        plan = None
        if self.divergence == "klot":
            plan = solve_teacher(teachers[0], teachers[1], self.epsilon_teacher, self.max_iter, self.tol)
        task.taught = teachers, plan
        return task.taught

    def _weight(self, pairs: int) -> float:
        if isinstance(self.alpha, str):
            return 1.0 if self.supervised == "infonce" else 1 / pairs
        return self.alpha

    def _divergence(
        self, torch: Any, students: list[Any], teachers: list[Any], plan: Any
    ) -> tuple[Any, dict[str, Any]]:
        """Return the divergence, and of KLOT's how far its iterations got."""
        (X, Y), (TX, TY) = students, teachers
        if self.divergence == "cka":
            return cka_divergence(X, Y, TX, TY), {}
        if self.divergence == "infonce":
            return generalized_infonce(X, Y, TX, TY, self.epsilon, self.epsilon_teacher, symmetric=True), {}
        value, info = klot_features(
            X,
            Y,
            TX,
            TY,
            self.epsilon,
            self.epsilon_teacher,
            self.max_iter,
            self.tol,
            teacher=plan,
            return_info=True,
        )
        errors = ("marginal_error", "marginal_error_teacher", "gradient_error")
        return value, {name: torch.tensor(getattr(info, name)) for name in errors}


def _begin_at(torch: Any, head: Any, teacher: Any) -> None:
    """Give a linear head the weights with which it does as the teacher, up to one factor, on every row.

    The teacher's matrix and offset are read off what it does behind the head's own first layers, which must differ from its by an
    affine map only: they do where both or neither scale rows to unit norm.
    """
    *first, last = head.layers
    with torch.no_grad():
        here, there = (
            [layer.kind for layer in layers if layer.kind in ("normalize", "center", "linear")]
            for layers in (head.layers, teacher.layers)
        )
        if ("normalize" in here) != ("normalize" in there) or there[-1] != "linear" or there.count("linear") != 1:
            raise ParameterError(
                f"Got a teacher of layers {', '.join(there)} and heads of {', '.join(here)}; expected one linear layer after the same scaling. "
                'Pass preprocess="center" or "normalize", or start="random".'
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
