"""The page of ``congruence demo``: a photo library moved to a new model, told step by step."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from congruence._utils.atomic import atomic_path
from congruence._version import __version__
from congruence.plotting import draw_progress
from congruence.report.render import fill, svg

__all__ = ["render_story", "write_story"]


def render_story(story: Mapping[str, Any]) -> str:
    """Return the demo as one self-contained HTML page.

    Parameters
    ----------
    story : mapping
        ``rows``, ``names`` and ``embedded`` (counts), ``share`` (re-embedded), ``store`` and ``models`` (words); ``certificate``: ``headline``,
        ``reason``, ``anchors`` and ``roads``; ``ways``: before, encoder changed, mapped, re-embedded and rolled back, each with ``name``, ``note``,
        ``accuracy`` and ``first``; ``new_model``: accuracy; ``stages``: ``share`` and ``value`` of accuracy; ``examples``: ``text``, ``harmed`` and
        the ``found`` photos of each way; ``identical`` and ``same_lists``: what the rollback gave back; ``licences``.

    Returns
    -------
    str
        HTML without scripts and without references to anything outside it. All text is escaped.
    """
    points = [{**one, "low": one["value"], "high": one["value"]} for one in story["stages"]]
    picture = {
        "metric": "accuracy",
        "stages": points,
        "forecast": [],
        "lines": {"new model": story["new_model"], "old model": story["ways"][0]["accuracy"]},
    }
    return fill(
        "story.html",
        s={**story, "version": __version__},
        ways={way["name"]: way for way in story["ways"]},
        picture=svg(draw_progress, picture, title="accuracy by the share of photos that is re-embedded"),
    )


def write_story(path: str | Path, story: Mapping[str, Any], *, force: bool = False) -> None:
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
    """
    html = render_story(story)
    with atomic_path(path, force=force) as temporary:
        temporary.write_text(html, encoding="utf-8")
