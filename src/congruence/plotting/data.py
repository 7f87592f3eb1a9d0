"""Types of the panels of a paper's figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias, TypedDict


class Bars(TypedDict):
    """Bars of one color: for each, its position among the groups, its mean, and its sd if there are several draws."""

    name: str
    color: str
    group: Sequence[int]
    mean: Sequence[float]
    sd: Sequence[float | None]


class Series(TypedDict):
    """A line along a horizontal axis, and its standard deviations if there are several draws."""

    name: str
    color: str
    x: Sequence[float]
    mean: Sequence[float]
    sd: Sequence[float | None]


class BarsPanel(TypedDict):
    """Bars by group."""

    kind: Literal["bars"]
    title: str
    groups: Sequence[str]
    series: Sequence[Bars]


class LinesPanel(TypedDict):
    """Lines with their standard deviations; ``label`` is that of the horizontal axis."""

    kind: Literal["lines"]
    title: str
    label: str
    series: Sequence[Series]


class CloudsPanel(TypedDict):
    """Points in two principal directions, by cloud; ``names`` are the labels for the legend, if they differ."""

    kind: Literal["clouds"]
    title: str
    points: dict[str, Sequence[Sequence[float]]]
    names: Mapping[str, str]


class KernelPoints(TypedDict):
    """Image–text similarities in the source and in the target, of pairs of the same class and of other pairs."""

    matched: Sequence[Sequence[float]]
    other: Sequence[Sequence[float]]


class KernelPanel(KernelPoints):
    """Image–text similarities with the title of their panel."""

    kind: Literal["kernel"]
    title: str


Panel: TypeAlias = BarsPanel | LinesPanel | CloudsPanel | KernelPanel
