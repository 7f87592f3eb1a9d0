"""Fit on one task and measure on the others: what of a score is of the task's own wrong captions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from congruence.papers.jam.data import JAMData
from congruence.papers.jam.fitted import fit_method

__all__ = ["Transferred", "measure_transfer"]


@dataclass(frozen=True)
class Transferred:
    """Recall of a method that was fitted on one task and measured on another.

    Attributes
    ----------
    fitted_on : str
        A task, or ``"all"``.
    task : str
        What it is measured on: a task.
    n : int
        Items measured on.
    binary, choice : float
        Recall among a caption and its wrong one, and with three captions of other images. Chance: 0.5 and 0.2.
    """

    fitted_on: str
    task: str
    n: int
    binary: float
    choice: float

    def to_dict(self) -> dict[str, object]:
        """Return all fields as plain data."""
        return asdict(self)


def measure_transfer(
    data: JAMData,
    method: str = "spread",
    seed: int = 5,
    *,
    encoders: tuple[str, str] | None = None,
    training: Mapping[str, Any] | None = None,
    most: Mapping[str, int] | None = None,
) -> list[Transferred]:
    """Fit a method on each task, and on all together, and measure each fit on every task.

    The images of all tasks are divided once, so that no task is measured on images that another was fitted on.

    Parameters
    ----------
    data : JAMData
    method : str, default="spread"
        A key of :data:`congruence.papers.jam.BASELINES`; ``"text_only"`` is the row to read the others against.
    seed : int, default=5
        Of the division, the training and the distractors.
    encoders : (str, str), optional
        Image and text encoder; the first pair by default.
    training : mapping, optional
        Parameters of :class:`congruence.train.JAM`; those of the data by default.
    most : dict of str to int, optional
        The most items of ``"train"``, ``"validation"`` and ``"test"`` of each task.

    Returns
    -------
    list of Transferred
        A line for each pair of tasks: the matrix row by row.

    Raises
    ------
    ParameterError
        The method is unknown.
    TooFewAnchorsError
        A task has too few images to divide.

    Examples
    --------
    >>> from congruence.papers.jam import open_sample
    >>> lines = measure_transfer(open_sample("synthetic"), "text_only")
    >>> [(line.fitted_on, line.task) for line in lines][:3]
    [('replace', 'replace'), ('replace', 'add'), ('replace', 'swap')]
    """
    parts = data.split_tasks(seed, encoders=encoders, most=most)
    out = []
    for fitted_on, own in parts.items():
        fitted = fit_method(method, own, data.sizes.get("training") if training is None else training, seed)
        for task in data.tasks:
            asked = parts[task]
            found = fitted.measure(asked.items, asked.test, seed)[task]
            out.append(Transferred(fitted_on, task, len(asked.items), found["binary_recall"], found["five_way_recall"]))
    return out
