"""What the panels of a paper's figure show, as plain data: which rows go together, under which names and colors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from congruence.papers.plain import ExperimentResults, Row
from congruence.papers.registry import STUDIES
from congruence.plotting.data import Bars, BarsPanel, CloudsPanel, LinesPanel, Panel, Series

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


def panels(results: ExperimentResults) -> list[Panel]:
    """Return the panels of a figure: clouds, kernels, and for each metric bars or lines.

    Parameters
    ----------
    results : mapping
        As for :func:`congruence.papers.run`.

    Returns
    -------
    list of dict
        Each with ``kind``, ``title``, and what :func:`congruence.plotting.draw_panel` needs for that kind.
    """
    rows, extra = results["rows"], results["extra"]
    axes = {part: words for part, words in extra.get("axes", [])}  # what the horizontal axes say, by part
    out: list[Panel] = []
    for cloud in extra.get("clouds", []):
        out.append(_in_pairs(cloud["title"], cloud["points"]))
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
    # One measure over another.
    return [*out, *extra.get("curves", [])]


def _in_pairs(title: str, points: Mapping[str, list[list[float]]]) -> CloudsPanel:
    """Give clouds the names their drawing knows; images of one model are joined to its own texts."""
    if {*points} == {"target image", "target text"}:
        joined = {"source image": points["target image"], "target image": points["target text"]}
        names = {"source image": "images", "target image": "texts"}
        return {"kind": "clouds", "title": title, "points": {**joined}, "names": names}
    return {"kind": "clouds", "title": title, "points": dict(points), "names": {}}


def _title(metric: str) -> str:
    """Return a metric in words: those of the study that has it."""
    for study in STUDIES.values():
        if metric in study.metrics:
            return study.metrics[metric]
    return _WORDS.get(metric, metric.replace("_", " "))


def _name(row: Row) -> str:
    """Name a bar or line by what distinguishes it: series, part, quantity."""
    words = [word for word in (row["series"], row["part"]) if word]
    if row["quantity"] in ("floor", "gain"):  # there is one beside each bar, not one for all
        return ", ".join([*words, _WORDS[row["quantity"]]])
    if row["quantity"] != "after":
        return _WORDS.get(row["quantity"], row["quantity"])
    return ", ".join(words) or "after"


def _groups(rows: Sequence[Row]) -> list[tuple[str, str]]:
    return list(dict.fromkeys((row["data"] or "", row["pair"] or "") for row in rows))


def _bars(metric: str, rows: list[Row]) -> BarsPanel:
    groups = _groups(rows)
    several = len({data for data, _ in groups}) > 1
    ordered = sorted(rows, key=lambda row: _ORDER.get(row["quantity"], 1))
    series: list[Bars] = []
    for name, color in _colors((_name(row), row["quantity"]) for row in ordered).items():
        own = [row for row in rows if _name(row) == name]
        at = [groups.index((row["data"] or "", row["pair"] or "")) for row in own]
        series.append({"name": name, "color": color, "group": at, "mean": _means(own), "sd": _spread(own)})
    return {
        "kind": "bars",
        "title": _title(metric),
        "groups": [", ".join(filter(None, [data if several or not pair else "", pair])) for data, pair in groups],
        "series": series,
    }


def _lines(metric: str, rows: list[Row], axis: str | None) -> LinesPanel:
    several = len(_groups(rows)) > 1

    def name(row: Row) -> str:
        own = ", ".join(filter(None, [_name(row), row["part"] if row["quantity"] != "after" else ""]))
        return f"{row['pair']}: {own}" if several else own

    # What is the same at every step, or nothing, needs no line.
    shown = [row for row in rows if row["x"] is not None and row["quantity"] not in ("oracle", "before")]
    series: list[Series] = []
    for line, color in _colors((name(row), row["quantity"]) for row in shown).items():
        own = sorted((row for row in shown if name(row) == line), key=_x)
        xs = [_x(row) for row in own]
        series.append({"name": line, "color": color, "x": xs, "mean": _means(own), "sd": _spread(own)})
    counts = isinstance(min(map(_x, shown)), int)
    label = axis or ("classes fitted on" if counts else "share of the gap closed")
    return {"kind": "lines", "title": _title(metric), "label": label, "series": series}


def _x(row: Row) -> float:
    assert row["x"] is not None  # else it is not shown along an axis
    return row["x"]


def _means(rows: Sequence[Row]) -> list[float]:
    return [row["mean"] for row in rows]


def _spread(rows: Sequence[Row]) -> list[float | None]:
    return [row["sd"] for row in rows]


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
