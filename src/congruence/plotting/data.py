"""Types of the plain data from which plots are drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypedDict

__all__ = [
    "AnchorsCurve",
    "Chance",
    "CosineHistogram",
    "Covered",
    "Curve",
    "FewAnchors",
    "FewAnchorsCurve",
    "KernelPoints",
    "LossCurves",
    "Margins",
    "MeasuredCurve",
    "PowerLaw",
    "ProgressPicture",
    "ProgressPoint",
    "Recalls",
    "Strategies",
    "TaskRecalls",
    "TermCurve",
    "TrainingRecord",
    "ValidationCurve",
]


class KernelPoints(TypedDict):
    """Image–text similarities in the source and in the target, of pairs of the same class and of other pairs."""

    matched: Sequence[Sequence[float]]
    other: Sequence[Sequence[float]]


class CosineHistogram(TypedDict):
    """Histograms of the cosines of pairs: before and after mapping, and of the controls; None if not available."""

    name: str
    edges: Sequence[float]
    before: Sequence[float] | None
    after: Sequence[float] | None
    constant: Sequence[float] | None
    random_rotation: Sequence[float] | None


class FewAnchorsCurve(TypedDict):
    """A score by number of anchors: the mean of several draws, and their range."""

    measure: str
    items: str
    kind: str
    name: str
    mean: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]


class FewAnchors(TypedDict):
    """Scores of maps fitted on few anchors."""

    n: Sequence[int]
    curves: Sequence[FewAnchorsCurve]


class TrainingRecord(TypedDict, total=False):
    """A training record: terms of the loss by name, including ``step``, and pairs of step and validation score."""

    losses: Mapping[str, Sequence[float]]
    validation: Sequence[Sequence[float]]
    best_step: float | None
    steps: float | None


class Curve(TypedDict):
    """A value by step."""

    step: Sequence[float]
    value: Sequence[float]


class TermCurve(Curve):
    """A term of a loss; if it has a value for each side, that of one side, whose name it has."""

    name: str


class LossCurves(TypedDict):
    """A term of the loss: its lines, and whether it should have a logarithmic axis."""

    term: str
    name: str
    log: bool
    best_step: float | None
    steps: float
    lines: Sequence[TermCurve]


class ValidationCurve(Curve):
    """The score on validation rows by step."""

    best_step: float | None
    best: float
    teacher: float | None
    steps: float


class TaskRecalls(TypedDict):
    """Both recalls of a task; None if it was not measured."""

    task: str
    n: int
    binary: float | None
    choice: float | None


class Chance(TypedDict):
    """Both recalls by chance."""

    binary: float
    choice: float | None


class Recalls(TypedDict):
    """Recall of the caption by task, and by chance."""

    rows: Sequence[TaskRecalls]
    wrong: int
    options: int | None
    chance: Chance


class Margins(TypedDict):
    """A histogram of the cosine of the caption minus that of the nearest wrong caption."""

    name: str
    n: int
    edges: Sequence[float]
    counts: Sequence[float]
    mean: float


class ProgressPoint(TypedDict):
    """Quality, with its interval, at one share of re-embedded rows."""

    share: float
    value: float
    low: float
    high: float


class ProgressPicture(TypedDict):
    """Quality against the share of re-embedded rows; ``lines`` are the scores of the old and the new model."""

    metric: str
    stages: Sequence[ProgressPoint]
    forecast: Sequence[ProgressPoint]
    lines: Mapping[str, float]


class Covered(TypedDict):
    """Shares of the rows' variance in the span of the first 1, 2, … anchors, by the order of the anchors."""

    shares: Mapping[str, Sequence[float]]


class Strategies(TypedDict):
    """The score of each strategy with its interval, and of the controls that were measured."""

    task: str
    strategies: Mapping[str, tuple[float, float, float]]
    controls: Mapping[str, float]


class PowerLaw(TypedDict):
    """A score by number of anchors n: best − drop · n^(−exponent)."""

    best: float
    drop: float
    exponent: float


class MeasuredCurve(TypedDict):
    """The score by number of anchors, over repeated draws, and the fitted law."""

    anchors: list[int]
    mean: list[float]
    sd: list[float]
    repeats: int
    law: PowerLaw


AnchorsCurve = TypedDict(
    "AnchorsCurve", {"task": str, "n_anchors": int, "curve": MeasuredCurve, "re-embed": float | None}
)
# The key "re-embed" is not an identifier, so a class statement, with a docstring, is not possible.
AnchorsCurve.__doc__ = "A task's score by number of anchors, the present number, and the score of re-embedding."
