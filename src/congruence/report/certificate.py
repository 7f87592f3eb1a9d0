"""A certificate as one page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from congruence._utils.atomic import atomic_path
from congruence.report.figures import Plot
from congruence.report.render import fill
from congruence.upgrade.certify import ACTIONS, Certificate, Estimate

__all__ = ["curve_chart", "render_certificate", "ways_chart", "write_certificate"]

_NAMES = {
    "keep": "keep the old model",
    "stored": "map the store",
    "queries": "map the queries",
    "re-embed": "re-embed",
}
#: Short enough to stand side by side on an axis.
_LABELS = {"keep": "keep old", "stored": "map store", "queries": "map queries", "re-embed": "re-embed"}
_KINDS = {"keep": "before", "stored": "after", "queries": "queries", "re-embed": "oracle"}

#: What each verdict has a user type or do.
_NEXT = {
    "map": "fit the map (congruence fit), write the mapped store (congruence transform), and query it with the target model.",
    "queries": "fit the map (congruence fit), leave the store as it is, and map each query of the target model with the inverse map.",
    "collect": "encode more items by both models, and certify again.",
    "re-embed": "encode the store again by the target model.",
    "keep": "leave store and queries as they are.",
}


def render_certificate(certificate: Certificate) -> str:
    """Return a certificate as one self-contained HTML page.

    Parameters
    ----------
    certificate : Certificate

    Returns
    -------
    str
        HTML without scripts and without references to anything outside it. All text is escaped.
    """
    verdict = certificate.verdict
    level = {"map": "carries", "queries": "carries", "collect": "partly"}.get(verdict.action, "fails")
    return fill(
        "certificate.html",
        c=certificate,
        level="" if verdict.action == "keep" else level,
        next=_NEXT[verdict.action],
        actions=ACTIONS,
        names=_NAMES,
        plots={
            "ways": {task: Markup(ways_chart(certificate.strategies[task], task)) for task in _charted(certificate)},
            "curve": Markup(curve_chart(certificate)),
        },
    )


def _charted(certificate: Certificate) -> list[str]:
    """Return the measures to draw: what the verdict rests on, and the plain overlap of result lists."""
    overlap = next((name for name in certificate.strategies if name.startswith("overlap@")), certificate.task)
    return list(dict.fromkeys([certificate.task, overlap]))


def write_certificate(path: str | Path, certificate: Certificate, *, force: bool = False) -> None:
    """Write a certificate's page, atomically.

    Parameters
    ----------
    path : path-like
    certificate : Certificate
    force : bool, default=False
        Replace an existing file.

    Raises
    ------
    OutputExistsError, StorageError
    """
    html = render_certificate(certificate)
    with atomic_path(path, force=force) as temporary:
        temporary.write_text(html, encoding="utf-8")


def ways_chart(ways: dict[str, Estimate], task: str) -> str:
    """Draw the score of each way to search with its interval.

    Parameters
    ----------
    ways : dict of str to Estimate
    task : str

    Returns
    -------
    str
    """
    shown = [way for way in _NAMES if way in ways]
    plot = Plot(f"{task} of each way to search", (0, len(shown)), (0, 1), y_label=task, x_ticks=[])
    for k, way in enumerate(shown):
        estimate = ways[way]
        place = k + 0.5
        plot.line([place, place], [estimate.low, estimate.high], _KINDS[way])
        plot.dots([place], [estimate.value], _KINDS[way], 4)
        plot.text(plot.px(place), plot.py(0) + 15, _LABELS[way], "middle", "label")
        plot.text(plot.px(place) + 7, plot.py(estimate.value) + 4, f"{estimate.value:.3f}")
    return plot.svg()


def curve_chart(certificate: Certificate) -> str:
    """Draw the learning curve of the score and its continuation to four times the anchors.

    Parameters
    ----------
    certificate : Certificate

    Returns
    -------
    str
    """
    data, now = certificate.curve, certificate.n_anchors
    sizes: list[Any] = data["anchors"]
    mean, sd = np.array(data["mean"]), np.array(data["sd"])
    law = data["law"]
    ahead = np.geomspace(sizes[-1], 4 * now, 20)
    future = law["best"] - law["drop"] * ahead ** -law["exponent"]
    top = max(1.0, float(future.max()))
    best = certificate.strategies[certificate.task].get("re-embed")
    plot = Plot(
        f"{certificate.task} by number of anchors",
        (sizes[0], 4.8 * now),  # room for the last label
        (min(0.0, float((mean - sd).min())), top),
        "anchors (logarithmic)",
        certificate.task,
        log_x=True,
        x_ticks=[*sizes[::2], now, 4 * now] if sizes[-1] not in sizes[::2] else [*sizes[::2], 4 * now],
    )
    plot.band(sizes, (mean - sd).tolist(), (mean + sd).tolist(), "after")
    plot.line(sizes, mean.tolist(), "after")
    plot.dots(sizes, mean.tolist(), "after")
    plot.line(ahead.tolist(), future.tolist(), "same")
    plot.upright(now, "same")
    if best is not None:
        plot.rule(best.value, "oracle")
    return plot.svg()
