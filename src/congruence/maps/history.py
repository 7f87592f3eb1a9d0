"""The record of a training: losses and validation scores by step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from congruence._utils.validation import check_choice

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from congruence.plotting.data import TrainingRecord

__all__ = ["History"]


@dataclass
class History:
    """What happened in a run.

    Attributes
    ----------
    losses : dict of str to list of float
        ``"step"`` and each term of the loss, every ``log_every`` steps.
    validation : list of (int, float)
        Steps done and score; larger is better.
    best_step : int or None
        Steps done when the score was highest.
    steps : int
        Steps done in all.
    """

    losses: dict[str, list[float]] = field(default_factory=dict)
    validation: list[tuple[int, float]] = field(default_factory=list)
    best_step: int | None = None
    steps: int = 0

    @property
    def best_score(self) -> float | None:
        """The highest validation score."""
        return max((score for _, score in self.validation), default=None)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Return a record from plain data, as :meth:`to_dict` makes it and JSON gives it back.

        Parameters
        ----------
        data : mapping

        Returns
        -------
        History

        Raises
        ------
        ValueError, TypeError
            Steps that are no counts, scores that are no pairs of numbers, or losses that are no lists of numbers.
        """
        history = cls(**data)
        history.validation = [(int(step), float(score)) for step, score in history.validation]
        counts = [history.steps, *([] if history.best_step is None else [history.best_step])]
        if not all(type(count) is int and count >= 0 for count in counts):
            raise ValueError(f"steps {counts}")
        if not isinstance(history.losses, dict) or not all(
            isinstance(values, list) and all(type(value) in (int, float) for value in values)
            for values in history.losses.values()
        ):
            raise TypeError("losses that are no lists of numbers")
        return history

    def to_dict(self) -> TrainingRecord:
        """Return everything as plain data."""
        return {
            "losses": {term: [*values] for term, values in self.losses.items()},
            "validation": [*self.validation],
            "best_step": self.best_step,
            "steps": self.steps,
        }

    def plot(self, ax: Axes | None = None, *, term: str | None = None, annotate: bool = True) -> Axes:
        """Draw the validation score or a term of the loss by step; dashed, the step whose weights were kept.

        Parameters
        ----------
        ax : matplotlib.axes.Axes, optional
            By default of a new figure, which a notebook shows and pyplot does not know.
        term : str, optional
            ``"validation"``, or a term of the loss; of ``x_source`` and ``x_target``, which share a picture, it is ``"x"``. By default
            the validation score where there is one, else ``"loss"``.
        annotate : bool, default=True
            Add a title, and say which is which.

        Returns
        -------
        matplotlib.axes.Axes

        Raises
        ------
        ParameterError
            A term that the training does not have.
        """
        from congruence.plotting.training import draw_loss, draw_validation, loss_curves, validation_curve

        record = self.to_dict()
        score, terms = validation_curve(record), {data["term"]: data for data in loss_curves(record)}
        names = [*(["validation"] if score else []), *terms]
        wanted = names[0] if term is None and names else str(term)
        named = check_choice(wanted, names or ["none, before the first step"], "term")
        if score and named == "validation":
            return draw_validation(score, ax, annotate=annotate)
        return draw_loss(terms[named], ax, annotate=annotate)
