"""SOTAlign: heads trained on few pairs and regularized, on unpaired rows, toward the geometry of a linear teacher."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import numpy as np

from congruence._utils.arrays import normalize_rows
from congruence._utils.validation import check_choice, check_positive, check_width
from congruence.errors import ParameterError
from congruence.maps import CCAMap, HeadsMap, ProcrustesHeads
from congruence.maps.heads import SIDES
from congruence.maps.history import History
from congruence.train._base import Batch, HeadsObjective, HeadTrainer
from congruence.train.losses import cka_divergence, generalized_infonce
from congruence.train.retrieval import mean_recall
from congruence.train.rows import Rows, TrainingData, sample
from congruence.train.sail import SAIL
from congruence.train.self_trained import BANK_ROWS, SelfTrainedMap
from congruence.transport import klot_features, solve_teacher
from congruence.transport.divergence import warn_unconverged
from congruence.transport.entropic import Side, check_rho

if TYPE_CHECKING:
    from torch import Tensor

    from congruence.train._layers import Head


#: Rows of both sides and their labels.
Heldout: TypeAlias = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]

#: Candidates for ``ridge="auto"``, and number of folds of the pairs if there are no validation rows to choose by.
RIDGES = (0.1, 1.0, 10.0, 100.0)
FOLDS = 5


class _Objective(HeadsObjective):
    trainer: SOTAlign

    def prepare(self) -> None:
        import torch

        from congruence.train._layers import Head

        trainer, data = self.trainer, self.data
        self.need_unpaired("the heads are compared with the teacher on these")
        pools = data.unpaired_source, data.unpaired_target
        # If a step uses all rows, they are the same in each step, and so are the teacher's vectors.
        all_pairs = not trainer.pairs_too or self.pair_batch == len(data.source)
        self.constant_rows = all_pairs and self.unpaired_batch == [len(rows) for rows in pools if rows is not None]
        self.cached_teacher: tuple[list[Tensor], Side | None] | None = None
        if self.constant_rows and trainer.divergence == "klot":
            # Each step starts from the last one's plan; as a buffer, its potentials are a part of every checkpoint.
            columns = self.unpaired_batch[1] + (self.pair_batch if trainer.pairs_too else 0)
            self.module.register_buffer("potentials", torch.zeros(columns, device=self.device))
        self.teacher = trainer.fit_teacher(data.source, data.target, data.validation, pools)
        self.hubness = self.teacher.facts_.get("hubness")
        self.teacher_heads = [Head(side).to(self.device).requires_grad_(False) for side in self.teacher.layers()]
        if trainer.init == "teacher":
            for head, teacher in zip((self.module.source, self.module.target), self.teacher_heads, strict=True):
                _initialize(head, teacher)

    def training_step(self, batch: Batch) -> Mapping[str, Tensor]:
        import torch

        X, Y = self.heads(batch.source, 0), self.heads(batch.target, 1)
        supervised = self.pair_loss(X, Y)
        weight = self.trainer.divergence_weight
        if isinstance(weight, str):  # "auto"
            weight = 1.0 if self.trainer.pair_loss == "infonce" else 10 / len(X)
        if not weight:
            return {"loss": supervised, "supervised": supervised}
        rows: list[Tensor] = [batch.unpaired_source, batch.unpaired_target]
        students = [self.heads(side, i) for i, side in enumerate(rows)]
        if self.trainer.pairs_too:
            rows = [torch.cat(sides) for sides in zip((batch.source, batch.target), rows, strict=True)]
            students = [torch.cat([X, students[0]]), torch.cat([Y, students[1]])]
        divergence, convergence = self._divergence(students, *(self.cached_teacher or self._teach(rows)))
        name = str(getattr(self.trainer.divergence, "__name__", self.trainer.divergence))
        terms = {"supervised": supervised, name: divergence, **convergence}
        return {"loss": supervised + weight * divergence, **terms}

    def _teach(self, rows: list[Tensor]) -> tuple[list[Tensor], Side | None]:
        """Return the teacher's vectors and, if the rows are the same in each step, its plan, and cache both then."""
        import torch

        with torch.no_grad():
            teachers = [
                torch.nn.functional.normalize(head(side), dim=1)
                for head, side in zip(self.teacher_heads, rows, strict=True)
            ]
        if not self.constant_rows:
            return teachers, None
        plan, t = None, self.trainer
        if t.divergence == "klot":
            TX, TY = teachers
            plan = solve_teacher(TX, TY, t.epsilon_teacher, t.max_iter, t.tolerance, rho_teacher=t.rho_teacher)
        self.cached_teacher = teachers, plan
        return self.cached_teacher

    def _divergence(
        self, students: list[Tensor], teachers: list[Tensor], plan: Side | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the divergence and, for KLOT, how well its iterations converged."""
        import torch

        t = self.trainer
        X, Y, TX, TY = *students, *teachers
        if callable(t.divergence):
            value: Any = t.divergence(X, Y, TX, TY)
            if getattr(value, "shape", None) != () or not value.requires_grad:
                problem = (
                    f"Got a divergence that returned {type(value).__name__}; expected a scalar tensor of the rows."
                )
                raise ParameterError(problem, "Return one, as of `.mean()`.")
            return value, {}
        if t.divergence == "cka":
            return cka_divergence(X, Y, TX, TY), {}
        if t.divergence == "infonce":
            return generalized_infonce(X, Y, TX, TY, t.epsilon, t.epsilon_teacher, symmetric=True), {}
        start = self.module.potentials if self.constant_rows else None
        options: dict[str, Any] = {"rho_teacher": t.rho_teacher, "teacher": plan, "start": start, "return_info": True}
        value, info = klot_features(X, Y, TX, TY, t.epsilon, t.epsilon_teacher, t.max_iter, t.tolerance, **options)
        if self.constant_rows:
            self.module.potentials = info.student.v
        return value, {
            "marginal_error": torch.tensor(info.student.marginal_error),
            "marginal_error_teacher": torch.tensor(info.teacher.marginal_error),
            "gradient_error": torch.tensor(info.gradient_error),
        }


@dataclass(eq=False, repr=False)
class SOTAlign(HeadTrainer):
    """Train heads on few pairs, and on unpaired rows by the divergence from a linear teacher.

    The loss is the supervised loss on pairs, plus α times the divergence between the affinities that the heads and the
    teacher give to a batch of unpaired rows.

    Parameters
    ----------
    teacher : {"self_trained", "cca", "procrustes", "contrastive"} or fitted joint-space map, default="self_trained"
        ``SelfTrainedMap``, which chooses by folds whether to use the unpaired rows; or, fitted on the pairs alone:
        canonical correlation analysis (the paper's), Procrustes analysis, or linear heads trained as in SAIL.
    divergence : {"klot", "infonce", "cka"} or callable, default="klot"
        A function of the students' and the teachers' unit rows, ``f(X, Y, TX, TY)``, returns a scalar tensor.
    divergence_weight : float or "auto", default="auto"
        α, the weight of the divergence of plans of mass 1, beside a supervised loss that is the mean over all n² logits
        of a step's n pairs; for plans of mass n, as in the paper, the same weight is α/n. The paper uses 1e-4, within a
        factor of ten, with 10,000 pairs. ``"auto"`` is 10/n, which retrieves better with few pairs, and 1 for InfoNCE,
        which is a mean over rows (docs/research/sotalign.md).
    epsilon, epsilon_teacher : float, default=0.05 and 0.01
        ε of the two transport plans, or temperatures of the two softmaxes. ε* is 0.005 in the paper's public code.
    max_iter, tolerance, rho_teacher
        As for ``congruence.transport.klot``. If the iterations do not suffice in any recorded step, one warning is
        given after the training.
    teacher_n_components : int, optional
        Width d′ of the teacher's space; by default as wide as the pairs support.
    ridge : float or "auto", default="auto"
        λ of the CCA teacher. The paper's is 0.1, which is far too small for a few hundred pairs. ``"auto"`` chooses
        among 0.1, 1, 10 and 100 by the mean recall at 1 on the validation rows or, without these, on five folds of the
        pairs, each searched among its own rows. Ties go to the smallest.
    pairs_too : bool, default=False
        Include the rows of the pairs in the divergence as well.
    init : {"random", "teacher"}, default="teacher"
        With "teacher", linear heads rank exactly as the teacher does before the first step, and with validation rows
        the map is never worse on these than its teacher. If the teacher is wider than ``n_components``, its first
        directions are used. The paper uses "random".
    folds : int, optional, default=3
        Without validation rows: left-out pairs choose the number of steps, and at step 0 the teacher itself is the
        result, which ``scores_["note"]`` says. None trains for ``max_steps``, as the paper does.
    **parameters
        Parameters of ``HeadTrainer``. The defaults of the last seven below are for a start at the teacher. With 50
        pairs and 500 disjoint unpaired rows a side, and with 200 and 2000 (docs/research/sotalign.md), no step was
        better than the teacher but on one split of four. For a random start, the paper has 1024 components, batches of
        32768 with 10000 pairs, 2000 steps and 1e-4.

    Attributes
    ----------
    teacher_ : HeadsMap
        The teacher. Compare its score on the validation rows, ``scores_["teacher_validation_mean_recall_at_1"]``, with
        that of the heads, ``scores_["validation_mean_recall_at_1"]``. For a CCA teacher, ``teacher_.ridge`` is the λ
        chosen. With KLOT the history also has ``marginal_error``, ``marginal_error_teacher`` and ``gradient_error``;
        see ``congruence.transport.Convergence``.

    Source: Roschmann et al. (2026), "SOTAlign", algorithm 1, equation 5, sections 4 and 5, appendix A.1.
    """

    method: ClassVar[str] = "sotalign"
    objective = _Objective
    positive = ("epsilon", "epsilon_teacher")

    teacher: str | HeadsMap = "self_trained"
    divergence: str | Callable[[Tensor, Tensor, Tensor, Tensor], Tensor] = "klot"
    divergence_weight: float | str = "auto"
    epsilon: float = 0.05
    epsilon_teacher: float = 0.01
    max_iter: int = 1000
    tolerance: float = 1e-3
    rho_teacher: float | None = None
    teacher_n_components: int | None = None
    ridge: float | str = "auto"
    pairs_too: bool = False
    init: str = "teacher"
    _: KW_ONLY
    n_components: int = 256
    batch_size: int = 1024
    pair_batch_size: int = 512
    folds: int | None = 3
    max_steps: int = 60
    learning_rate: float = 1e-4
    validate_every: int = 10
    patience: int | None = 2

    def fit_teacher(
        self,
        X: np.ndarray,
        Y: np.ndarray,
        validation: Heldout | None = None,
        unpaired: tuple[Rows | None, Rows | None] = (None, None),
    ) -> HeadsMap:
        """Fit the teacher only, on rows (n, d_source) and (n, d_target); ``ridge="auto"`` chooses by the validation
        rows, "self_trained" by folds of the pairs.
        """
        if self.teacher == "self_trained":
            teacher = self._self_trained()
            teacher.fit_data(TrainingData(X, Y, *unpaired, None), getattr(self, "_choice", None))
            return teacher
        if isinstance(self.teacher, HeadsMap):
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

    def _self_trained(self) -> SelfTrainedMap:
        return SelfTrainedMap(n_components=self.teacher_n_components, random_state=self.random_state)

    def _fit_cca(self, X: np.ndarray, Y: np.ndarray, validation: Heldout | None) -> CCAMap:
        """Fit the CCA teacher with the given λ, or with the best of ``RIDGES``."""
        if not isinstance(self.ridge, str):
            return CCAMap(n_components=self.teacher_n_components, ridge=self.ridge).fit(X, Y)
        teacher = CCAMap(n_components=self.teacher_n_components)
        if validation is None:
            best = RIDGES[int(np.argmax(_score_on_folds(teacher, X, Y)))]
            return CCAMap(n_components=self.teacher_n_components, ridge=best).fit(X, Y)
        A, B, a, b = validation
        fitted = teacher.fit_ridges(X, Y, RIDGES)
        scores = [mean_recall(cca.transform(A), cca.transform_target(B), a, b) for cca in fitted]
        return fitted[int(np.argmax(scores))]

    def _choose_steps(
        self, data: TrainingData, share: float | None, folder: Path | None, options: Mapping[str, Any]
    ) -> tuple[int, dict[str, Any]]:
        if self.teacher == "self_trained":
            teacher = self._self_trained()
            teacher.fit_data(replace(data, validation=None))
            self._choice, self._told = teacher.choice_, teacher.scores_["self_training"]
        return super()._choose_steps(data, share, folder, options)

    def _check_parameters(self) -> None:
        super()._check_parameters()
        for chosen in ("_choice", "_told"):
            vars(self).pop(chosen, None)
        if self.ridge != "auto":
            check_positive(self.ridge, "ridge", zero=True)
        if not isinstance(self.teacher, HeadsMap):
            check_choice(self.teacher, ("self_trained", "cca", "procrustes", "contrastive"), "teacher")
        if not callable(self.divergence):
            check_choice(self.divergence, ("klot", "infonce", "cka"), "divergence")
        check_choice(self.init, ("random", "teacher"), "init")
        if self.init == "teacher" and self.head != "linear":
            raise ParameterError(
                f"Got `init='teacher'` with `head={self.head!r}`.", "Pass `head='linear'`, or `init='random'`."
            )
        if self.divergence_weight != "auto":
            check_positive(self.divergence_weight, "divergence_weight", zero=True)
        if self.rho_teacher is not None:
            check_rho(self.rho_teacher, "rho_teacher")
            if self.divergence != "klot":
                raise ParameterError(
                    f"Got `rho_teacher={self.rho_teacher}` with `divergence={self.divergence!r}`, without plans.",
                    "Pass `divergence='klot'`, or leave out `rho_teacher=…`.",
                )

    def _finish(self, objective: HeadsObjective, data: TrainingData, history: History) -> None:
        assert isinstance(objective, _Objective)
        self.teacher_ = objective.teacher
        self.facts_["hubness"] = objective.hubness
        if self.teacher == "self_trained":
            self.scores_["self_training"] = getattr(self, "_told", self.teacher_.scores_["self_training"])
        self.banks_ = self.teacher_.banks_
        if self.init == "teacher" and 0 in (history.steps, history.best_step):
            layers = dict(zip(SIDES, self.teacher_.layers(), strict=True))
            facts = {name: fact for name, fact in self.facts_.items() if name not in ("method", "layers")}
            self.set_layers(layers, self.method, facts)
            self.scores_["note"] = "The teacher is returned: left-out pairs are not found better after any training."
        elif self.banks_ is not None:
            parts = (data.source, data.unpaired_source), (data.target, data.unpaired_target)
            known = [np.concatenate([paired, sample(pool, BANK_ROWS)]) for paired, pool in parts]  # type: ignore[arg-type]
            self.banks_ = normalize_rows(self.transform(known[0])), normalize_rows(self.transform_target(known[1]))
        errors = history.losses.get("gradient_error", [])
        if errors:
            above = sum(error > self.tolerance for error in errors)
            where = f"at worst, and above the tolerance in {above} of {len(errors)} recorded steps"
            if above:
                warn_unconverged(max(errors), where, "", stacklevel=4)
        if data.validation is not None:
            X, Y, x_labels, y_labels = data.validation
            score = mean_recall(self.teacher_.transform(X), self.teacher_.transform_target(Y), x_labels, y_labels)
            self.scores_["teacher_validation_mean_recall_at_1"] = score


def _score_on_folds(teacher: CCAMap, X: np.ndarray, Y: np.ndarray) -> list[float]:
    """Return the cross-validated mean recall at 1 for each of ``RIDGES``; each fold is searched among its own rows."""
    n = len(X)
    fold = np.arange(n) % min(FOLDS, n)
    scores: list[list[float]] = []
    for number in np.unique(fold) if n > 2 * FOLDS else []:
        out = fold == number
        width = None if teacher.n_components is None else min(teacher.n_components, int((~out).sum()) - 1)
        fitted = CCAMap(**{**teacher.get_params(), "n_components": width}).fit_ridges(X[~out], Y[~out], RIDGES)
        scores.append([mean_recall(cca.transform(X[out]), cca.transform_target(Y[out])) for cca in fitted])
    return np.mean(scores, axis=0).tolist() if scores else [0.0] * len(RIDGES)


def _initialize(head: Head, teacher: Head) -> None:
    """Initialize a linear head so that it maps every row as the teacher does, up to one common factor."""
    import torch

    *first, last = head.layers
    with torch.no_grad():
        head_kinds, teacher_kinds = (
            [layer.kind for layer in layers if layer.kind in ("normalize", "center", "linear")]
            for layers in (head.layers, teacher.layers)
        )
        same_scaling = ("normalize" in head_kinds) == ("normalize" in teacher_kinds)
        if not same_scaling or teacher_kinds[-1] != "linear" or teacher_kinds.count("linear") != 1:
            raise ParameterError(
                f"Got a teacher of layers {', '.join(teacher_kinds)} and heads of {', '.join(head_kinds)}; "
                "expected one linear layer after the same scaling.",
                'Pass `preprocess="center"` or "normalize", or `init="random"`.',
            )
        head_mean, teacher_mean = (
            next((layer.mean for layer in layers if layer.kind == "center"), torch.zeros_like(last.weight[:, 0]))
            for layers in (first, teacher.layers)
        )
        matrix = teacher.layers[-1].weight[:, : last.weight.shape[1]].to(last.weight)
        bias = (head_mean - teacher_mean) @ matrix
        if getattr(teacher.layers[-1], "bias", None) is not None:
            bias = bias + teacher.layers[-1].bias[: matrix.shape[1]].to(bias)
        # Scaled to the norm of the weights it replaces, so that the same learning rate is suitable; the other columns
        # are small, but not zero.
        factor = last.weight.norm() / matrix.norm() * (matrix.shape[1] / last.weight.shape[1]) ** 0.5
        last.weight.mul_(1e-3)
        last.bias.mul_(1e-3)
        last.weight[:, : matrix.shape[1]] = factor * matrix
        last.bias[: matrix.shape[1]] = factor * bias
