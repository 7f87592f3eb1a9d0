"""Fit on one task and evaluate on the others, to see how much of a score depends on the task's own wrong captions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from congruence_papers.jam.data import JAMData
from congruence_papers.jam.fitted import fit_method

__all__ = ["Transferred", "measure_transfer"]


@dataclass(frozen=True)
class Transferred:
    """Recall of a method that was fitted on one task and evaluated on another.

    Attributes
    ----------
    fitted_on : str
        A task, or ``"all"``.
    task : str
        The task of the test items.
    n : int
        Number of test items.
    binary, choice : float
        Binary recall, of the caption against its wrong caption, and 5-way recall, against three captions of other images as well. Chance is 0.5 and 0.2.
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
    """Fit a method on each task, and on all tasks together, and evaluate each fit on every task.

    The images of all tasks are split once, so that no method is evaluated on images that it was fitted on.

    Parameters
    ----------
    data : JAMData
    method : str, default="spread"
        A key of :data:`congruence_papers.jam.BASELINES`. Compare other methods with ``"text_only"``, which does not use the images.
    seed : int, default=5
        Seed of the split, the training and the distractors.
    encoders : (str, str), optional
        Image and text encoder; the first pair by default.
    training : mapping, optional
        Parameters of :class:`congruence.train.JAM`; those of the data by default.
    most : dict of str to int, optional
        Maximum numbers of items of ``"train"``, ``"validation"`` and ``"test"`` of each task.

    Returns
    -------
    list of Transferred
        One entry for each combination of tasks, by the task fitted on.

    Raises
    ------
    ParameterError
        If the method is unknown.
    TooFewAnchorsError
        If there are too few images to split.

    Examples
    --------
    >>> from congruence_papers.jam import open_sample
    >>> lines = measure_transfer(open_sample("synthetic"), "text_only")
    >>> [(line.fitted_on, line.task) for line in lines][:3]
    [('replace', 'replace'), ('replace', 'add'), ('replace', 'swap')]
    """
    parts = data.split_tasks(seed, encoders=encoders, most=most)
    out = []
    for fitted_on, own in parts.items():
        fitted = fit_method(method, own, data.sizes.get("training") if training is None else training, seed)
        for task in data.tasks:
            items = parts[task].items
            recall = fitted.measure(items, parts[task].test, seed)[task]
            out.append(Transferred(fitted_on, task, len(items), recall["binary_recall"], recall["five_way_recall"]))
    return out
