"""The panels of a paper's figure as plain data: bars, lines, clouds and kernels, with the names and colors of their series."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from congruence.plotting.data import Bars, BarsPanel, CloudsPanel, LinesPanel, Panel, Series
from congruence_papers.plain import ExperimentResults, Row
from congruence_papers.registry import STUDIES

__all__ = ["panels"]

#: Number of colors for series; further series reuse them.
_SERIES = 8

#: Colors of quantities that do not depend on the fitted map, and the order of bars by quantity; series have order 1.
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
        As for :func:`congruence_papers.run`.

    Returns
    -------
    list of dict
        Each with ``kind``, ``title``, and what :func:`congruence.plotting.draw_panel` needs for that kind.
    """
    rows, extra = results["rows"], results["extra"]
    axes = {part: label for part, label in extra.get("axes", [])}  # labels of the horizontal axes, by part
    out: list[Panel] = []
    for cloud in extra.get("clouds", []):
        out.append(_clouds(cloud["title"], cloud["points"]))
    for data in extra.get("kernels", []):
        out.append({**data, "kind": "kernel"})
    for metric in dict.fromkeys(row["metric"] for row in rows):
        own = [row for row in rows if row["metric"] == metric]
        if all(row["x"] is None for row in own):
            out.append(_bars(metric, own))
        elif axes and None not in axes and {*axes} <= {row["part"] for row in own}:
            # One panel for each parameter that is varied.
            out += [
                _lines(metric, [{**r, "part": None} for r in own if r["part"] == k], axis) for k, axis in axes.items()
            ]
        else:
            out.append(_lines(metric, own, next(iter(axes.values()), None)))
    # Curves of one metric against another.
    return [*out, *extra.get("curves", [])]


def _clouds(title: str, points: Mapping[str, list[list[float]]]) -> CloudsPanel:
    """Return a panel of clouds with the names that the plot expects; the images of a single model are paired with its own texts."""
    if {*points} == {"target image", "target text"}:
        joined = {"source image": points["target image"], "target image": points["target text"]}
        names = {"source image": "images", "target image": "texts"}
        return {"kind": "clouds", "title": title, "points": {**joined}, "names": names}
    return {"kind": "clouds", "title": title, "points": dict(points), "names": {}}


def _title(metric: str) -> str:
    """Return the label of a metric: that of the study that defines it, if any."""
    for study in STUDIES.values():
        if metric in study.metrics:
            return study.metrics[metric]
    return _WORDS.get(metric, metric.replace("_", " "))


def _name(row: Row) -> str:
    """Return the name of a bar or line, from its series, part and quantity."""
    words = [word for word in (row["series"], row["part"]) if word]
    if row["quantity"] in ("floor", "gain"):  # each series has its own
        return ", ".join([*words, _WORDS[row["quantity"]]])
    if row["quantity"] != "after":
        return _WORDS.get(row["quantity"], row["quantity"])
    return ", ".join(words) or "after"


def _groups(rows: Sequence[Row]) -> list[tuple[str, str]]:
    """Return the combinations of data and pair of models."""
    return list(dict.fromkeys((row["data"] or "", row["pair"] or "") for row in rows))


def _bars(metric: str, rows: list[Row]) -> BarsPanel:
    groups = _groups(rows)
    several = len({data for data, _ in groups}) > 1
    ordered = sorted(rows, key=lambda row: _ORDER.get(row["quantity"], 1))
    series: list[Bars] = []
    for name, color in _colors((_name(row), row["quantity"]) for row in ordered).items():
        own = [row for row in rows if _name(row) == name]
        group = [groups.index((row["data"] or "", row["pair"] or "")) for row in own]
        series.append({"name": name, "color": color, "group": group, "mean": _means(own), "sd": _spread(own)})
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

    # Quantities that are the same at every x are not drawn as lines.
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
    assert row["x"] is not None  # rows without an x are not drawn as lines
    return row["x"]


def _means(rows: Sequence[Row]) -> list[float]:
    return [row["mean"] for row in rows]


def _spread(rows: Sequence[Row]) -> list[float | None]:
    return [row["sd"] for row in rows]


def _colors(names: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the color of each (name, quantity): that of the quantity if it does not depend on the fitted map, else the next one for series."""
    colors: dict[str, str] = {}
    used = 0
    for name, quantity in names:
        if name in colors:
            continue
        if quantity in _GRAYS:
            colors[name] = _GRAYS[quantity]
        else:
            colors[name] = f"series-{used % _SERIES}"
            used += 1
    return colors
