"""What the panels of a paper's figure show, as plain data: which rows go together, under which names and colors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from congruence.papers.registry import STUDIES

__all__ = ["panels"]

#: Series that have a color of their own; further ones begin again.
_SERIES = 8

#: Colors of what is not a map's work; the order of bars, series in between.
_GRAYS = {
    "before": "before",
    "chance": "before",
    "constant": "constant",
    "random_rotation": "random-rotation",
    "model_a": "model-a",
    "model_b": "model-b",
    "oracle": "oracle",
}
_ORDER = {"before": 0, "chance": 0, "constant": 0.3, "random_rotation": 0.6, "model_a": 2, "model_b": 3, "oracle": 4}

_WORDS = {
    "before": "before",
    "constant": "every row at the target's mean",
    "random_rotation": "random rotation about the right means",
    "model_a": "model A alone",
    "model_b": "model B alone",
    "oracle": "model B itself",
    "after": "after",
    "chance": "chance",
    "value": "value",
    "gain": "gain",
    "floor": "between samples of one collection",
    "zero_shot": "zero-shot accuracy",
    "gap": "distance between the means",
    "right_class_at_5": "right class among five",
    "overlap_at_5": "images shared among five",
    "rest_kept": "rest of the text kept",
    "same_text": "same class of text",
}


def panels(results: Mapping[str, Any]) -> list[dict[str, object]]:
    """Return the panels of a figure: clouds, kernels, and for each metric bars or lines.

    Parameters
    ----------
    results : mapping
        Of :func:`congruence.papers.run`.

    Returns
    -------
    list of dict
        Each with ``kind``, ``title``, and what :func:`congruence.plotting.draw_panel` needs for that kind.
    """
    rows, extra = results["rows"], results["extra"]
    axes = dict(extra.get("axes", []))  # what the horizontal axes say, by part
    out: list[dict[str, object]] = []
    for cloud in extra.get("clouds", []):
        out.append({"kind": "clouds", "title": cloud["title"], **_in_pairs(cloud["points"])})
    for data in extra.get("kernels", []):
        out.append({**data, "kind": "kernel"})
    for metric in dict.fromkeys(row["metric"] for row in rows):
        mine = [row for row in rows if row["metric"] == metric]
        if all(row["x"] is None for row in mine):
            out.append(_bars(metric, mine))
        elif axes and None not in axes and {*axes} <= {row["part"] for row in mine}:
            # A panel for each thing that is varied.
            out += [
                _lines(metric, [{**r, "part": None} for r in mine if r["part"] == k], axis) for k, axis in axes.items()
            ]
        else:
            out.append(_lines(metric, mine, next(iter(axes.values()), None)))
    return out


def _in_pairs(points: Mapping[str, object]) -> dict[str, object]:
    """Give clouds the names their drawing knows; images of one model are joined to its own texts."""
    if {*points} == {"target image", "target text"}:
        joined = {"source image": points["target image"], "target image": points["target text"]}
        return {"points": joined, "names": {"source image": "images", "target image": "texts"}}
    return {"points": dict(points), "names": {}}


def _title(metric: str) -> str:
    """Return a metric in words: those of the study that has it."""
    for study in STUDIES.values():
        if metric in study.metrics:
            return study.metrics[metric]
    return _WORDS.get(metric, metric.replace("_", " "))


def _name(row: Mapping[str, Any]) -> str:
    """Name a bar or line by what distinguishes it: series, part, quantity."""
    words = [row[key] for key in ("series", "part") if row[key]]
    if row["quantity"] in ("floor", "gain"):  # there is one beside each bar, not one for all
        return ", ".join([*words, _WORDS[row["quantity"]]])
    if row["quantity"] != "after":
        return _WORDS.get(row["quantity"], row["quantity"])
    return ", ".join(words) or "after"


def _groups(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    return list(dict.fromkeys((row["data"] or "", row["pair"] or "") for row in rows))


def _bars(metric: str, rows: list[dict[str, Any]]) -> dict[str, object]:
    groups = _groups(rows)
    several = len({data for data, _ in groups}) > 1
    ordered = sorted(rows, key=lambda row: _ORDER.get(row["quantity"], 1))
    series = []
    for name, color in _colors((_name(row), row["quantity"]) for row in ordered).items():
        own = [row for row in rows if _name(row) == name]
        at = [groups.index((row["data"] or "", row["pair"] or "")) for row in own]
        series.append({"name": name, "color": color, "group": at, **_spread(own)})
    return {
        "kind": "bars",
        "title": _title(metric),
        "groups": [", ".join(filter(None, [data if several or not pair else "", pair])) for data, pair in groups],
        "series": series,
    }


def _lines(metric: str, rows: list[dict[str, Any]], axis: str | None) -> dict[str, object]:
    several = len(_groups(rows)) > 1

    def name(row: Mapping[str, Any]) -> str:
        own = ", ".join(filter(None, [_name(row), row["part"] if row["quantity"] != "after" else ""]))
        return f"{row['pair']}: {own}" if several else own

    # What is the same at every step, or nothing, needs no line.
    shown = [row for row in rows if row["x"] is not None and row["quantity"] not in ("oracle", "before")]
    series = []
    for line, color in _colors((name(row), row["quantity"]) for row in shown).items():
        own = sorted((row for row in shown if name(row) == line), key=lambda row: row["x"])
        series.append({"name": line, "color": color, "x": [row["x"] for row in own], **_spread(own)})
    counts = isinstance(min(row["x"] for row in shown), int)
    label = axis or ("classes fitted on" if counts else "share of the gap closed")
    return {"kind": "lines", "title": _title(metric), "label": label, "series": series}


def _spread(rows: Sequence[Mapping[str, object]]) -> dict[str, object]:
    return {key: [row[key] for row in rows] for key in ("mean", "sd")}


def _colors(named: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Give each name a color: a gray for what models reach alone, else the next of the series."""
    colors: dict[str, str] = {}
    used = 0
    for name, quantity in named:
        if name in colors:
            continue
        if quantity in _GRAYS:
            colors[name] = _GRAYS[quantity]
        else:
            colors[name] = f"series-{used % _SERIES}"
            used += 1
    return colors
