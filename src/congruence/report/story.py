"""The page of ``congruence demo``, which shows each step of the migration of a photo library."""

from __future__ import annotations

from pathlib import Path
from typing import TypedDict

from congruence._version import __version__
from congruence.plotting import draw_progress
from congruence.plotting.data import ProgressPicture, ProgressPoint
from congruence.report.rendering import fill, svg, write_page

__all__ = [
    "CertifiedStrategy",
    "Found",
    "MovedLibrary",
    "Search",
    "SearchStage",
    "SearchedStep",
    "StepResults",
    "Story",
    "StoryCertificate",
    "render_story",
    "write_story",
]


class SearchedStep(TypedDict):
    """Scores at one step: share of photos whose nearest name is that of their class, and share of names whose first hit is of their class."""

    name: str
    note: str
    accuracy: float
    first: float | None


class SearchStage(TypedDict):
    """The accuracy after a share of the photos was re-embedded."""

    share: float
    value: float


class Found(TypedDict):
    """A photo found by a search: its class, a data URI, and whether it has the class searched for."""

    text: str
    picture: str | None
    wanted: bool


class StepResults(TypedDict):
    """The results of a search at one step, and how many of them are correct."""

    name: str
    right: int
    found: list[Found]


class Search(TypedDict):
    """A search that is shown, and whether it was chosen because mapping degrades it."""

    text: str
    harmed: bool
    steps: list[StepResults]


class CertifiedStrategy(TypedDict):
    """The quality that the certificate expects of a strategy, with its interval; None if it was not measured."""

    name: str
    value: float | None
    low: float | None
    high: float | None
    share: float


class StoryCertificate(TypedDict):
    """The certificate's verdict, and the quality that it expects of each strategy."""

    anchors: int
    headline: str
    reason: str
    costs: list[CertifiedStrategy]


class MovedLibrary(TypedDict):
    """The results of the demo without the certificate; see :func:`render_story`."""

    rows: int
    names: int
    store: str
    models: dict[str, str]
    photos_of_each_model: int
    share: float
    embedded: int
    steps: list[SearchedStep]
    new_model: float
    stages: list[SearchStage]
    examples: list[Search]
    identical: bool
    same_lists: bool
    licences: list[str]


class Story(MovedLibrary):
    """The results of the demo, with the certificate."""

    certificate: StoryCertificate


def render_story(story: Story) -> str:
    """Return the demo as one self-contained HTML page.

    Parameters
    ----------
    story : mapping
        ``rows``, ``names`` and ``embedded`` (counts), ``share`` (re-embedded), ``store`` and ``models`` (text); ``certificate``: ``headline``,
        ``reason``, ``anchors`` and ``costs``; ``steps``: before, encoder changed, mapped, re-embedded and rolled back, each with ``name``, ``note``,
        ``accuracy`` and ``first``; ``new_model``: accuracy; ``stages``: ``share`` and ``value`` of accuracy; ``examples``: ``text``, ``harmed`` and
        the ``found`` photos of each step; ``identical`` and ``same_lists``: whether the rollback restored the vectors and the results; ``licences``.

    Returns
    -------
    str
        HTML without scripts and without references to anything outside it. All text is escaped.
    """
    points: list[ProgressPoint] = [
        {"share": stage["share"], "value": stage["value"], "low": stage["value"], "high": stage["value"]}
        for stage in story["stages"]
    ]
    picture: ProgressPicture = {
        "metric": "accuracy",
        "stages": points,
        "forecast": [],
        "lines": {"new model": story["new_model"], "old model": story["steps"][0]["accuracy"]},
    }
    return fill(
        "story.html",
        s={**story, "version": __version__},
        steps={step["name"]: step for step in story["steps"]},
        picture=svg(draw_progress, picture, title="accuracy by the share of photos that is re-embedded"),
    )


def write_story(path: str | Path, story: Story, *, force: bool = False) -> None:
    """Write the demo's page, atomically.

    Parameters
    ----------
    path : path-like
    story : mapping
        As for :func:`render_story`.
    force : bool, default=False
        Replace an existing file.
    """
    write_page(path, render_story(story), force=force)
