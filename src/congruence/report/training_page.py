"""The page of a trained two-sided map."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Any

from markupsafe import Markup

from congruence._utils.atomic import atomic_path
from congruence.report.figures import WIDTH, Plot
from congruence.report.render import fill

__all__ = ["loss_curves", "margin_histogram", "render_training", "task_bars", "validation_curve", "write_training"]

#: Most tasks drawn as bars; the table has all of them.
_TASKS = 12

_KINDS = {"": "after", "source": "source", "target": "target"}


def render_training(summary: dict[str, Any]) -> str:
    """Return the page of a trained map as self-contained HTML.

    Parameters
    ----------
    summary : dict
        From :func:`congruence.report.summarize_training`.

    Returns
    -------
    str
        HTML without scripts and without references to anything outside it. All text is escaped.
    """
    tasks = summary["by_task"]
    plots = {
        "tasks": tasks and Markup(task_bars(tasks)),
        "margins": [Markup(margin_histogram(data)) for data in summary["margins"]],
        "curves": [Markup(loss_curves(data)) for data in summary["curves"]],
        "validation": summary["validation"] and Markup(validation_curve(summary["validation"])),
    }
    return fill("training.html", s=summary, plots=plots)


def write_training(path: str | Path, summary: dict[str, Any], *, force: bool = False) -> None:
    """Write the page of a trained map, atomically.

    Parameters
    ----------
    path : path-like
    summary : dict
        From :func:`congruence.report.summarize_training`.
    force : bool, default=False
        Replace an existing file.

    Raises
    ------
    OutputExistsError, StorageError
    """
    html = render_training(summary)
    with atomic_path(path, force=force) as temporary:
        temporary.write_text(html, encoding="utf-8")


def task_bars(data: dict[str, Any]) -> str:
    """Draw both recalls of each task as bars from the left, with chance as upright lines.

    Parameters
    ----------
    data : dict
        ``rows`` and ``chance``, from :func:`congruence.report.summarize_training`.

    Returns
    -------
    str
    """
    left, right, step = 8, WIDTH - 46, 24 + 16 * (1 + (data["options"] is not None))
    rows = data["rows"] if len(data["rows"]) <= _TASKS else [*data["rows"][: _TASKS - 1], data["rows"][-1]]
    height = 10 + step * len(rows)

    def place(share: float) -> float:
        return left + share * (right - left)

    parts = []
    for i, row in enumerate(rows):
        top = 8 + step * i
        name = row["task"] if len(row["task"]) <= 40 else f"{row['task'][:39]}…"
        parts.append(f'<text class="label" x="{left}" y="{top + 13}">{escape(name)}, {row["n"]:,}</text>')
        for j, (recall, kind) in enumerate((("binary", "after"), ("choice", "before"))):
            if row[recall] is None:
                continue
            y, end = top + 20 + 16 * j, place(row[recall])
            parts.append(f'<path class="bar {kind}" d="M{left} {y}H{end:.1f}v11H{left}Z"/>')
            parts.append(f'<text class="tick" x="{end + 5:.1f}" y="{y + 9.5}">{row[recall]:.3f}</text>')
            chance = place(data["chance"][recall])
            parts.append(f'<path class="line chance" d="M{chance:.1f} {y - 2}v15"/>')
    title = "recall by task"
    return f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{title}">{"".join(parts)}</svg>'


def margin_histogram(data: dict[str, Any]) -> str:
    """Draw how much nearer images are their captions than the wrong ones.

    Parameters
    ----------
    data : dict
        ``name``, ``edges`` (symmetric about zero), ``counts``, ``mean``.

    Returns
    -------
    str
    """
    edges, counts = data["edges"], data["counts"]
    half = len(counts) // 2
    plot = Plot(
        f"{data['name']}: cosine of the caption less that of the wrong one",
        (edges[0], edges[-1]),
        (0, max(counts) * 1.08),
        "cos(caption) − cos(wrong caption)",
        "share of captions",
    )
    plot.steps(edges[: half + 1], counts[:half], "before")
    plot.steps(edges[half:], counts[half:], "after")
    plot.upright(data["mean"], "same")
    return plot.svg()


def loss_curves(data: dict[str, Any]) -> str:
    """Draw a term of the loss by step, of both sides where it has two.

    Parameters
    ----------
    data : dict
        ``name``, ``log``, ``best_step``, ``steps``, ``lines``.

    Returns
    -------
    str
    """
    values = [value for line in data["lines"] for value in line["value"]]
    return _curve(data, data["name"], values, [(line, _KINDS[line["name"]]) for line in data["lines"]], log=data["log"])


def validation_curve(data: dict[str, Any]) -> str:
    """Draw the score on validation rows by step, the best marked.

    Parameters
    ----------
    data : dict
        ``step``, ``value``, ``best_step``, ``best``, ``steps``, and ``teacher``, the score of a linear teacher or None.

    Returns
    -------
    str
    """
    lines, values = [(data, "oracle")], [*data["value"], data["best"]]
    if data["teacher"] is not None:
        lines.append(({"step": [0, data["steps"]], "value": [data["teacher"]] * 2}, "before"))
        values.append(data["teacher"])
    return _curve(data, "validation score", values, lines, best=data["best"])


def _curve(
    data: dict[str, Any],
    title: str,
    values: list[float],
    lines: list[tuple[dict[str, Any], str]],
    *,
    log: bool = False,
    best: float | None = None,
) -> str:
    low, high = min(values), max(values)
    if log:
        y = (low * 0.9, high * 1.1)
    else:
        room = (high - low) * 0.06 or abs(high) * 0.1 or 1.0
        y = (0.0 if 0 <= low < 0.6 * high else low - room, high + room)
    plot = Plot(
        f"{title} by step",
        (0, 1.05 * max(data["steps"], 1)),  # room for the last label
        y,
        "step",
        f"{title}, logarithmic" if log else title,
        log_y=log,
    )
    if data["best_step"] is not None:
        plot.upright(data["best_step"], "same")
    for line, kind in lines:
        plot.line(line["step"], line["value"], kind)
        if len(line["step"]) <= 40:
            plot.dots(line["step"], line["value"], kind, 1.8)
    if best is not None and data["best_step"] is not None:
        plot.dots([data["best_step"]], [best], lines[0][1], 4)
    return plot.svg()
