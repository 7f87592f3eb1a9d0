"""The page of ``congruence demo``, which shows each step of the migration of a photo library."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from congruence._version import __version__
from congruence.plotting import draw_progress
from congruence.report.rendering import fill, svg


def render_story(story: Mapping[str, Any]) -> str:
    """Return the demo as one page.

    Parameters
    ----------
    story : mapping
        ``rows``, ``names`` and ``embedded`` (counts), ``share`` (re-embedded), ``store`` and ``models`` (text);
        ``certificate``: ``headline``, ``reason``, ``anchors`` and ``costs``, the quality expected of each strategy;
        ``steps``: before, encoder changed, mapped, re-embedded and rolled back, each with ``name``, ``note``,
        ``accuracy``
        (share of photos whose nearest name is that of their class) and ``first`` (share of names whose first hit is of
        their
        class); ``new_model``: accuracy; ``stages``: ``share`` re-embedded and ``value`` of accuracy; ``examples`` of
        searches: ``text``, ``harmed`` (chosen because mapping degrades it) and the ``found`` photos of each step, each
        with
        ``text``, ``picture`` (data URI) and ``wanted``; ``identical`` and ``same_lists``: whether the rollback restored
        the
        vectors and the results; ``licences``.
    """
    points = [
        {"share": stage["share"], "value": stage["value"], "low": stage["value"], "high": stage["value"]}
        for stage in story["stages"]
    ]
    picture = {
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
