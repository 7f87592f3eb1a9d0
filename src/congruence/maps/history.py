"""The record of a training run: losses and validation scores by step."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Self

from congruence._utils.validation import check_choice

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass
class History:
    """Losses and validation scores of a training run. ``losses`` has ``"step"`` and each term of the loss, every
    ``log_every`` steps; ``validation`` pairs of steps completed and score (larger is better), ``best_step`` the steps
    completed at the highest score, ``steps`` their total.
    """

    losses: dict[str, list[float]] = field(default_factory=dict)
    validation: list[tuple[int, float]] = field(default_factory=list)
    best_step: int | None = None
    steps: int = 0

    @property
    def best_score(self) -> float | None:
        """The highest validation score."""
        return max((score for _, score in self.validation), default=None)

    @property
    def validations_since_best(self) -> int:
        """Number of validations after the one with the highest score."""
        best = math.inf if self.best_step is None else self.best_step
        return sum(step > best for step, _ in self.validation)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Build a record from plain data, as ``to_dict`` returns; a ValueError or TypeError if it is malformed."""
        history = cls(**data)
        history.validation = [(int(step), float(score)) for step, score in history.validation]
        counts = [history.steps, *([] if history.best_step is None else [history.best_step])]
        if not all(type(count) is int and count >= 0 for count in counts):
            raise ValueError(f"steps {counts} that are not counts")
        if not isinstance(history.losses, dict) or not all(
            isinstance(values, list) and all(type(value) in (int, float) for value in values)
            for values in history.losses.values()
        ):
            raise TypeError("losses that are not lists of numbers")
        return history

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as plain data."""
        return asdict(self)

    def plot(self, ax: Axes | None = None, *, term: str | None = None, annotate: bool = True) -> Axes:
        """Draw the validation score or a term of the loss by step, on ``ax`` or new axes; a dashed line marks the step
        kept. ``term`` is ``"validation"``, or a term of the loss; ``"x"`` draws ``x_source`` and ``x_target`` together.
        By default the validation score if there is one, else ``"loss"``.
        """
        from congruence.plotting import draw_loss, draw_validation, loss_curves, validation_curve

        record = self.to_dict()
        score, terms = validation_curve(record), {data["term"]: data for data in loss_curves(record)}
        names = [*(["validation"] if score else []), *terms]
        chosen = names[0] if term is None and names else str(term)
        check_choice(chosen, names or ["none, before the first step"], "term")
        if score and chosen == "validation":
            return draw_validation(score, ax, annotate=annotate)
        return draw_loss(terms[chosen], ax, annotate=annotate)
