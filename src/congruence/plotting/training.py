"""Plots of a training run: terms of the loss, the validation score, and recall of captions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from congruence.plotting.look import COLOR, HEIGHT, WIDTH, canvas, tidy, words

#: Largest number of points of a curve.
MARKS = 300

#: Ratio of largest to smallest value above which a curve is drawn on a logarithmic axis.
_WIDE = 30

#: Largest number of tasks that are drawn.
_TASKS = 14

#: Labels of terms of losses; by default the name of the term.
_TERMS = {
    "loss": "total loss",
    "reconstruct": "reconstruction error",
    "klot": "KLOT",
    "cka": "CKA",
    "infonce": "InfoNCE",
    "marginal_error": "Marginal error of the heads' plan",
    "marginal_error_teacher": "Marginal error of the teacher's plan",
    "gradient_error": "Estimated relative error of the gradient",
}

_SIDES = {"": "after", "source": "source", "target": "target"}
_DASHED = (0, (4, 4))


def loss_curves(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the terms of the loss by step, ready for ``draw_loss``; terms of both sides share a plot.

    ``record`` is a training's history, with ``losses``, ``best_step`` and ``steps``. An entry has ``term``, ``name``,
    ``log`` (whether to use a logarithmic axis), ``best_step``, ``steps`` and ``lines``, each with ``name``, ``step``
    and ``value``.
    """
    losses = record.get("losses", {})
    steps = losses.get("step", [])
    lines_of: dict[str, list[dict[str, Any]]] = {}
    for term, values in losses.items():
        if term != "step" and len(values) == len(steps) > 0:
            stem, _, suffix = term.rpartition("_")
            name, side = (stem, suffix) if suffix in ("source", "target") else (term, "")
            step, value = thin(steps, values)
            lines_of.setdefault(name, []).append({"name": side, "step": step, "value": value})
    out: list[dict[str, Any]] = []
    for term, lines in lines_of.items():
        values = [value for line in lines for value in line["value"]]
        out.append(
            {
                "term": term,
                "name": _TERMS.get(term, term.replace("_", " ")),
                "log": min(values) > 0 and max(values) > _WIDE * min(values),
                "best_step": record.get("best_step"),
                "steps": record.get("steps") or max(steps),
                "lines": lines,
            }
        )
    return out


def validation_curve(record: Mapping[str, Any], teacher: float | None = None) -> dict[str, Any] | None:
    """Return the validation score by step, ready for ``draw_validation``; None if there was no validation.

    ``record`` is a training's history, with ``validation``, ``best_step`` and ``steps``; ``teacher``, the score of a
    linear teacher on the same rows.
    """
    scores = record.get("validation", [])
    if not scores:
        return None
    step, value = thin([step for step, _ in scores], [score for _, score in scores])
    return {
        "step": step,
        "value": value,
        "best_step": record.get("best_step"),
        "best": float(max(score for _, score in scores)),
        "teacher": None if teacher is None else float(teacher),
        "steps": record.get("steps") or step[-1],
    }


def thin(steps: Sequence[float], values: Sequence[float]) -> tuple[list[float], list[float]]:
    """Return steps and values averaged over consecutive records, so that at most ``MARKS`` are left."""
    parts = min(len(steps), MARKS)
    return tuple(
        [float(np.mean(part)) for part in np.array_split(np.asarray(column, dtype=float), parts)]
        for column in (steps, values)
    )  # type: ignore[return-value]


def draw_loss(data: Mapping[str, Any], ax: Axes | None = None, *, annotate: bool = True) -> Axes:
    """Draw a term of the loss by step, for both sides if it has two; a dashed line marks the step that was kept.

    ``data``: one entry of ``loss_curves``.
    """
    with canvas(ax, title=annotate and words(data["name"])) as ax:
        values = [value for line in data["lines"] for value in line["value"]]
        lines = [(line, _SIDES[line["name"]], line["name"] or data["name"]) for line in data["lines"]]
        _draw_curves(ax, data, words(data["name"]), values, lines, log=data["log"])
    return ax


def draw_validation(data: Mapping[str, Any], ax: Axes | None = None, *, annotate: bool = True) -> Axes:
    """Draw the validation score by step, with the best step marked.

    ``data``: from ``validation_curve``.
    """
    with canvas(ax, title=annotate and "validation score") as ax:
        lines: list[tuple[Mapping[str, Any], str, str]] = [(data, "target", "heads")]
        values = [*data["value"], data["best"]]
        if data["teacher"] is not None:
            teacher = {"step": [0, data["steps"]], "value": [data["teacher"]] * 2}
            lines.append((teacher, "source", "their linear teacher"))
            values.append(data["teacher"])
        _draw_curves(ax, data, "validation score", values, lines)
        if data["best_step"] is not None:
            ax.plot([data["best_step"]], [data["best"]], "o", color=COLOR["target"], markersize=8)
    return ax


def _draw_curves(
    ax: Axes,
    data: Mapping[str, Any],
    label: str,
    values: Sequence[float],
    lines: Sequence[tuple[Mapping[str, Any], str, str]],
    *,
    log: bool = False,
) -> None:
    """Draw lines by step, each with a color and a label; ``values`` set the range of the axis, ``label`` its name."""
    low, high = min(values), max(values)
    if data["best_step"] is not None:
        ax.axvline(data["best_step"], color=COLOR["faint"], linestyle=_DASHED)
    for line, color, name in lines:
        marker = "o" if len(line["step"]) <= 40 else None
        ax.plot(line["step"], line["value"], color=COLOR[color], label=words(name), marker=marker, markersize=3.6)
    if log:
        ax.set_yscale("log")
        ax.set_ylim(low * 0.9, high * 1.1)
    else:
        margin = (high - low) * 0.06 or abs(high) * 0.1 or 1.0
        ax.set_ylim(0.0 if 0 <= low < 0.6 * high else low - margin, high + margin)
    ax.set_xlim(0, 1.05 * max(data["steps"], 1))  # room for the last tick label
    ax.set(xlabel="step", ylabel=f"{label}, logarithmic" if log else label)
    tidy(ax)


def recalls_size(data: Mapping[str, Any]) -> tuple[float, float]:
    """Return the size in points that ``draw_recalls`` needs."""
    return WIDTH, 10 + _task_height(data) * len(_tasks(data))


def _task_height(data: Mapping[str, Any]) -> int:
    """Return the height of a task in points: its name, and one or two bars."""
    return 24 + 16 * (1 + (data["options"] is not None))


def _tasks(data: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """Return the tasks to draw: all or, if there are too many, the first ones and the last, that of all items."""
    rows = data["rows"]
    return rows if len(rows) <= _TASKS else [*rows[: _TASKS - 1], rows[-1]]


def draw_recalls(data: Mapping[str, Any], ax: Axes | None = None, *, annotate: bool = True) -> Axes:
    """Draw both recalls of each task as horizontal bars, with chance as dashed lines.

    ``data``: ``by_task`` of ``congruence.report.summarize_training``.
    """
    size = recalls_size(data)
    with canvas(ax, (size[0], size[1] + (50 if annotate else 0)), title=annotate and "Recall at 1 by task") as ax:
        height = _task_height(data)
        rows, chances = _tasks(data), data["chance"]
        kinds = (
            ([row["binary"] for row in rows], chances["binary"], "after", f"of {1 + data['wrong']} captions"),
            ([row["choice"] for row in rows], chances["choice"], "source", f"of {data['options']}"),
        )
        for j, (recalls, chance, color, label) in enumerate(kinds):
            shown = [(i, recall) for i, recall in enumerate(recalls) if recall is not None]
            if not shown or chance is None:
                continue
            middle = [height * i + 25.5 + 16 * j for i, _ in shown]
            ax.barh(middle, [share for _, share in shown], 11, color=COLOR[color], label=label)
            for y, (_, share) in zip(middle, shown, strict=True):
                ax.annotate(
                    f"{share:.3f}", (share, y), xytext=(5, 0), textcoords="offset points", va="center_baseline",
                    color=COLOR["soft"],
                )  # fmt: skip
            ends = [y - 7.5 for y in middle], [y + 7.5 for y in middle]
            ax.vlines([chance] * len(middle), *ends, color=COLOR["ink"], linestyles=(0, (2, 2)), linewidth=1.6)
        for i, row in enumerate(rows):
            ax.text(0, height * i + 13, f"{words(row['task'], 40)}, {row['n']:,}", va="baseline", color=COLOR["ink"])
        ax.set(xlim=(0, 1.13), ylim=(height * len(rows), 0))
        ax.set_axis_off()
    return ax


def draw_margins(data: Mapping[str, Any], ax: Axes | None = None, *, annotate: bool = True) -> Axes:
    """Draw a histogram of the cosine of the caption minus that of the nearest wrong caption; a dashed line is the mean.

    ``data``: one of ``margins`` of ``congruence.report.summarize_training``: ``name``, ``edges`` (symmetric about
    zero), ``counts``, ``mean``.
    """
    with canvas(ax, (WIDTH, HEIGHT), title=annotate and words(data["name"])) as ax:
        edges, counts = data["edges"], data["counts"]
        half = len(counts) // 2
        for color, bins, bin_edges, label in (
            ("source", slice(half), slice(half + 1), "nearer the wrong one"),
            ("after", slice(half, None), slice(half, None), "nearer the caption"),
        ):
            ax.stairs(counts[bins], edges[bin_edges], fill=True, color=COLOR[color], alpha=0.55, label=label)
        ax.axvline(data["mean"], color=COLOR["faint"], linestyle=_DASHED)
        ax.set(
            xlim=(edges[0], edges[-1]),
            ylim=(0, max(counts) * 1.08),
            xlabel="cos(caption) − cos(wrong caption)",
            ylabel="share of captions",
        )
        tidy(ax)
    return ax
