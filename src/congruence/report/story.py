"""The page of ``congruence demo``: a photo library is moved to a new model, step by step."""

from __future__ import annotations

from pathlib import Path
from typing import TypedDict

from congruence._utils.atomic import atomic_path
from congruence._version import __version__
from congruence.plotting import draw_progress
from congruence.plotting.data import ProgressPicture, ProgressPoint
from congruence.report.rendering import fill, svg

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
    """The library at one step: how often a photo's nearest name is correct, and how often a name's first hit is one of its photos."""

    name: str
    note: str
    accuracy: float
    first: float | None


class SearchStage(TypedDict):
    """The accuracy at a share that was re-embedded."""

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
    """A search that is shown, and whether it is one that the map alone degrades."""

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
    """The certificate in words, and what it expects of each step."""

    anchors: int
    headline: str
    reason: str
    costs: list[CertifiedStrategy]


class MovedLibrary(TypedDict):
    """The events of the demo; see :func:`render_story`."""

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
    """The same with the certificate that came before."""

    certificate: StoryCertificate


def render_story(story: Story) -> str:
    """Return the demo as one self-contained HTML page.

    Parameters
    ----------
    story : mapping
        ``rows``, ``names`` and ``embedded`` (counts), ``share`` (re-embedded), ``store`` and ``models`` (words); ``certificate``: ``headline``,
        ``reason``, ``anchors`` and ``costs``; ``steps``: before, encoder changed, mapped, re-embedded and rolled back, each with ``name``, ``note``,
        ``accuracy`` and ``first``; ``new_model``: accuracy; ``stages``: ``share`` and ``value`` of accuracy; ``examples``: ``text``, ``harmed`` and
        the ``found`` photos of each step; ``identical`` and ``same_lists``: what the rollback gave back; ``licences``.

    Returns
    -------
    str
        HTML without scripts and without references to anything outside it. All text is escaped.
    """
    points: list[ProgressPoint] = [
        {"share": one["share"], "value": one["value"], "low": one["value"], "high": one["value"]}
        for one in story["stages"]
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
        As of :func:`render_story`.
    force : bool, default=False
        Replace an existing file.

    Raises
    ------
    OutputExistsError, StorageError
        If the output already exists, or the output cannot be written.
    """
    html = render_story(story)
    with atomic_path(path, force=force) as temporary:
        temporary.write_text(html, encoding="utf-8")
