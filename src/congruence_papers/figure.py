"""The results of an experiment as a figure with one panel per metric, as a page, and as files."""

from __future__ import annotations

import base64
import csv
import io
import itertools
import json
import string
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from congruence.persist import atomic_path, why_foreign
from congruence.plotting import draw_clouds, draw_kernel
from congruence.plotting.look import COLOR, HEIGHT, WIDTH, canvas, explain, style, tidy, words
from congruence.report.pictures import write_figure
from congruence.report.rendering import fill, templates
from congruence_papers.core import COLUMNS, Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Panel = dict[str, Any]
Results = Mapping[str, Any]

#: Number of colors for series; further series reuse them.
_SERIES = 8

#: Quantities that do not depend on the fitted map, with their colors, names and order among bars; series have order 1.
_FIXED = {
    "before": ("before", "before", 0),
    "chance": ("before", "chance", 0),
    "constant": ("constant", "every row at the target's mean", 0.3),
    "random_rotation": ("random-rotation", "random rotation about the right means", 0.6),
    "model_a": ("model-a", "model A alone", 2),
    "model_b": ("model-b", "model B alone", 3),
    "oracle": ("oracle", "model B itself", 4),
}
_OF_SERIES = {"floor": "between samples of one collection", "gain": "gain"}

#: Labels of metrics that are not among a paper's.
_WORDS = {
    "zero_shot": "zero-shot accuracy",
    "gap": "distance between the means",
    "right_class_at_5": "right class among five",
    "overlap_at_5": "images shared among five",
    "rest_kept": "rest of the text kept",
    "same_text": "same class of text",
}

#: Largest width of a bar (groups are 1 apart), and number of groups above which their names are slanted.
_WIDEST, _CROWDED = 0.3, 4

#: Margins around a panel's axes, for ticks and labels, and the gap between panels, in points.
_LEFT, _RIGHT, _TOP, _BOTTOM, _GAP = 52, 10, 14, 48, 16

#: Average width of a letter, height of a line of text, and size of a picture, in points.
_LETTER, _LINE, _PICTURE = 5.4, 14, 64


# ------------------------------------------------------------------ panels as plain data


def panels(results: Results) -> list[Panel]:
    """Return the panels of a figure as plain data: clouds, kernels, and for each metric bars or lines."""
    rows, extra = results["rows"], results["extra"]
    axes = {part: label for part, label in extra.get("axes", [])}  # labels of the horizontal axes, by part
    out = [_clouds(cloud["title"], cloud["points"]) for cloud in extra.get("clouds", [])]
    out += [{**data, "kind": "kernel"} for data in extra.get("kernels", [])]
    for metric in dict.fromkeys(row["metric"] for row in rows):
        own = [row for row in rows if row["metric"] == metric]
        title = results["words"].get(metric) or _WORDS.get(metric, metric.replace("_", " "))
        if all(row["x"] is None for row in own):
            out.append(_bars(title, own))
        elif axes and None not in axes and {*axes} <= {row["part"] for row in own}:
            # One panel for each parameter that is varied.
            for part, axis in axes.items():
                out.append(_lines(title, [{**row, "part": None} for row in own if row["part"] == part], axis))
        else:
            out.append(_lines(title, own, next(iter(axes.values()), None)))
    return [*out, *extra.get("curves", [])]  # curves of one metric against another


def _clouds(title: str, points: Mapping[str, Any]) -> Panel:
    """Return a panel of clouds under the names that the plot expects; images of one model are joined to its texts."""
    names: dict[str, str] = {}
    if {*points} == {"target image", "target text"}:
        points = {"source image": points["target image"], "target image": points["target text"]}
        names = {"source image": "images", "target image": "texts"}
    return {"kind": "clouds", "title": title, "points": dict(points), "names": names}


def _name(row: Row) -> str:
    quantity, series = row["quantity"], ", ".join(word for word in (row["series"], row["part"]) if word)
    if quantity in _OF_SERIES:
        return ", ".join(filter(None, [series, _OF_SERIES[quantity]]))
    if quantity == "after":
        return series or quantity
    return _FIXED[quantity][1] if quantity in _FIXED else quantity


def _group(row: Row) -> tuple[str, str]:
    return row["data"] or "", row["pair"] or ""


def _bars(title: str, rows: list[Row]) -> Panel:
    groups = list(dict.fromkeys(map(_group, rows)))
    several = len({data for data, _ in groups}) > 1
    ordered = sorted(rows, key=lambda row: _FIXED.get(row["quantity"], ("", "", 1))[2])
    series = []
    for name, color in _colors((_name(row), row["quantity"]) for row in ordered).items():
        own = [row for row in rows if _name(row) == name]
        group = [groups.index(_group(row)) for row in own]
        series.append({"name": name, "color": color, "group": group, **_spread(own)})
    names = [", ".join(filter(None, [data if several or not pair else "", pair])) for data, pair in groups]
    return {"kind": "bars", "title": title, "groups": names, "series": series}


def _lines(title: str, rows: list[Row], axis: str | None) -> Panel:
    several = len({*map(_group, rows)}) > 1

    def name(row: Row) -> str:
        own = ", ".join(filter(None, [_name(row), row["part"] if row["quantity"] != "after" else ""]))
        return f"{row['pair']}: {own}" if several else own

    # Quantities that are the same at every x are not drawn as lines.
    shown = [row for row in rows if row["x"] is not None and row["quantity"] not in ("oracle", "before")]
    series = []
    for line, color in _colors((name(row), row["quantity"]) for row in shown).items():
        own = sorted((row for row in shown if name(row) == line), key=lambda row: row["x"])
        series.append({"name": line, "color": color, "x": [row["x"] for row in own], **_spread(own)})
    counts = isinstance(min(row["x"] for row in shown), int)
    label = axis or ("classes fitted on" if counts else "share of the gap closed")
    return {"kind": "lines", "title": title, "label": label, "series": series}


def _spread(rows: Sequence[Row]) -> dict[str, list[Any]]:
    return {"mean": [row["mean"] for row in rows], "sd": [row["sd"] for row in rows]}


def _colors(names: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the color of each (name, quantity): that of the quantity if it is fixed, else the next one for series."""
    colors: dict[str, str] = {}
    used = 0
    for name, quantity in names:
        if name not in colors:
            colors[name] = _FIXED[quantity][0] if quantity in _FIXED else f"series-{used % _SERIES}"
            used += quantity not in _FIXED
    return colors


# ------------------------------------------------------------------ panels on axes


def draw_panel(panel: Panel, ax: Axes | None = None, *, annotate: bool = True) -> Axes:
    """Draw one of ``panels`` on axes, by default new ones; ``annotate`` adds the title and the legend."""
    if panel["kind"] == "clouds":
        return draw_clouds(panel["points"], ax, names=panel["names"], title=panel["title"], annotate=annotate)
    if panel["kind"] == "kernel":
        return draw_kernel(panel, ax, color="after", title=panel["title"], annotate=annotate)
    with canvas(ax) as ax:
        (_draw_bars if panel["kind"] == "bars" else _draw_lines)(panel, ax)
        if annotate:
            explain(ax, words(panel["title"]), columns=1)
    return ax


def _draw_bars(panel: Panel, ax: Axes) -> None:
    series, groups = panel["series"], panel["groups"]
    step = min(0.8 / len(series), _WIDEST)
    low, high = 0.0, 1e-9
    for k, bars in enumerate(series):
        positions = [group + step * (k + 0.5 - len(series) / 2) for group in bars["group"]]
        ax.bar(positions, bars["mean"], step * 0.9, color=COLOR[bars["color"]], label=words(bars["name"]))
        spread = [(x, mean, sd) for x, mean, sd in zip(positions, bars["mean"], bars["sd"], strict=True) if sd]
        if spread:
            x, mean, sd = zip(*spread, strict=True)
            ax.errorbar(x, mean, sd, fmt="none", ecolor=COLOR["ink"], elinewidth=1.2)
        low = min(low, *bars["mean"])
        high = max(high, *(mean + (sd or 0.0) for mean, sd in zip(bars["mean"], bars["sd"], strict=True)))
    ax.axhline(0, color=COLOR["soft"], linewidth=1)
    ax.set(xlim=(-0.5, len(groups) - 0.5), ylim=(low * 1.05, high * 1.05))
    tidy(ax)
    ax.spines["bottom"].set_visible(False)
    ax.tick_params(axis="x", length=0, pad=6)
    if len(groups) > _CROWDED:
        slanted: dict[str, Any] = {"rotation": 40, "ha": "right", "rotation_mode": "anchor"}
        ax.set_xticks(range(len(groups)), [words(name, 18) for name in groups], fontsize=9.5, **slanted)
    else:
        letters = max(4, int((WIDTH - 62) / len(groups) / 5.6))
        ax.set_xticks(range(len(groups)), [_wrap(name, letters) for name in groups], fontsize=9.5)


def _wrap(name: str, letters: int) -> str:
    """Return a name in lines of at most so many letters, truncated after three lines."""
    lines = textwrap.wrap(words(name), letters)
    return "\n".join(lines if len(lines) <= 3 else [*lines[:2], f"{lines[2][: letters - 1]}…"])


def _draw_lines(panel: Panel, ax: Axes) -> None:
    series = panel["series"]
    xs = sorted({x for line in series for x in line["x"]})
    low, high = 0.0, -np.inf
    for line in series:
        mean, sd = np.array(line["mean"]), np.array([value or 0.0 for value in line["sd"]])
        if sd.any():
            ax.fill_between(line["x"], mean - sd, mean + sd, color=COLOR[line["color"]], alpha=0.18, linewidth=0)
        ax.plot(line["x"], mean, "o-", color=COLOR[line["color"]], label=words(line["name"]))
        low, high = min(low, (mean - sd).min()), max(high, (mean + sd).max())
    log = xs[0] > 0 and xs[-1] > 10 * xs[0]
    if log:
        ax.set_xscale("log")
        margin = (xs[-1] / xs[0]) ** 0.02
        ax.set_xlim(xs[0] / margin, xs[-1] * margin)
    else:
        margin = 0.02 * (xs[-1] - xs[0]) or 0.5
        ax.set_xlim(xs[0] - margin, xs[-1] + margin)
    ax.set(ylim=(low, high * 1.05 if high > low else low + 1), xlabel=words(panel["label"]))
    tidy(ax, x_ticks=(xs if len(xs) < 8 else xs[::2]) if log else None)


# ------------------------------------------------------------------ the figure


def draw_experiment(results: Results, pictures: Mapping[str, bytes] | None = None) -> Figure:
    """Draw a paper's figure: panels, three per row, examples (text for unreadable pictures), the claim and the data."""
    shown = panels(results)
    columns = min(3, max(1, len(shown)))
    width = max(columns * (WIDTH + _GAP), 560)
    heading = textwrap.wrap(words(f"{results['experiment']}: {results['title']}", 1000), int(width / 8))
    wrapped = (
        textwrap.wrap(words(line, 10_000), int(width / _LETTER), subsequent_indent="    ")
        for line in summary_lines(results)
    )
    footer = [part for parts in wrapped for part in parts]
    rows = [shown[first : first + columns] for first in range(0, len(shown), columns)]
    heights = [HEIGHT + 46 + _LINE * max(_legend_lines(panel) for panel in row) for row in rows]
    examples = results["extra"].get("examples", [])
    tall = [max(16 + 74 * len(example["rows"]), 80) + _LINE for example in examples]
    top = 46 + 16 * len(heading)
    with style():
        sheet = _Sheet(width, top + sum(heights) + sum(tall) + _LINE * len(footer) + 6)
        for k, line in enumerate(heading):
            sheet.write(8, 20 + 16 * k, line, size=13, weight="bold")
        draws = f"{len(results['seeds'])} draws{' (quick run)' if results['quick'] else ''}"
        sheet.soft(8, top - 24, f"{draws}; claim and data are below the panels.")
        letters = itertools.cycle(string.ascii_lowercase)
        for row, height in zip(rows, heights, strict=True):
            for c, panel in enumerate(row):
                sheet.panel(c * (WIDTH + _GAP) + 8, top, panel, next(letters))
            top += height
        for example, height in zip(examples, tall, strict=True):
            sheet.example(example, pictures or {}, top)
            top += height
        for k, line in enumerate(footer):
            sheet.soft(8, top + _LINE * k, line)
        return sheet.figure


def _legend_lines(panel: Panel) -> int:
    if panel["kind"] == "clouds":
        return len(panel["points"])
    return 2 if panel["kind"] == "kernel" else len(panel["series"])


class _Sheet:
    """A figure with coordinates in points from its upper left corner, as in SVG."""

    def __init__(self, width: float, height: float) -> None:
        from matplotlib.figure import Figure

        self.figure = Figure(figsize=(width / 72, height / 72), dpi=144)
        self._width, self._height = width, height

    def write(self, x: float, y: float, text: str, **options: Any) -> None:
        self.figure.text(x / self._width, 1 - y / self._height, text, **{"size": 10.5, "va": "baseline", **options})

    def soft(self, x: float, y: float, text: str) -> None:
        self.write(x, y, text, size=9.5, color=COLOR["soft"])

    def axes(self, x: float, bottom: float, width: float, height: float) -> Axes:
        size = width / self._width, height / self._height
        return self.figure.add_axes((x / self._width, 1 - bottom / self._height, *size))

    def panel(self, left: float, top: float, panel: Panel, letter: str) -> None:
        self.write(left, top, f"({letter}) {words(panel['title'])}")
        bars = panel["kind"] == "bars"
        slanted = bars and len(panel["groups"]) > _CROWDED
        margin, bottom = (8, 8) if panel["kind"] == "clouds" else (_LEFT, _BOTTOM + 30 * slanted)
        ax = self.axes(left + margin, top + 4 + HEIGHT - bottom, WIDTH - margin - _RIGHT, HEIGHT - bottom - _TOP)
        draw_panel(panel, ax, annotate=False)
        # The legend is positioned on the figure, since the height of the axes varies.
        place = (left + _LEFT) / self._width, 1 - (top + HEIGHT + 10) / self._height
        squares = {"handlelength": 0.9, "handleheight": 0.8} if bars else {}
        options: dict[str, Any] = {"bbox_to_anchor": place, "bbox_transform": self.figure.transFigure, **squares}
        ax.legend(*ax.get_legend_handles_labels(), loc="upper left", labelspacing=0.25, **options)

    def example(self, example: Mapping[str, Any], pictures: Mapping[str, bytes], top: float) -> None:
        """Draw an image, the caption derived from it, and the images retrieved, in rows."""
        self._picture(example["query"], pictures, 8, top)
        self.write(100, top + 8, words(f"{example['read']} → {example['mapped_to']}", 90))
        for r, (name, items) in enumerate(example["rows"].items()):
            y = top + 16 + 74 * r
            self.soft(100, y + 34, words(name, 14))
            for k, item in enumerate(items):
                self._picture(item, pictures, 180 + 72 * k, y)

    def _picture(self, item: Mapping[str, str], pictures: Mapping[str, bytes], x: float, y: float) -> None:
        from PIL import Image

        try:
            encoded = io.BytesIO(pictures.get(item["id"]) or b"")
            picture = Image.open(encoded, formats=("PNG", "JPEG", "WEBP")).convert("RGBA")
        except (OSError, ValueError, SyntaxError, EOFError, MemoryError, Image.DecompressionBombError):
            self.soft(x, y + 34, words(item["text"] or item["id"], 12))
            return
        ax = self.axes(x, y + _PICTURE, _PICTURE, _PICTURE)
        ax.imshow(picture, interpolation="none")
        ax.set_axis_off()


# ------------------------------------------------------------------ text


def summary_lines(results: Results) -> list[str]:
    """Return the paper's claim, whether it held here, the data, the split and the seeds as lines of text."""
    held = results["held"]
    verdicts = {"yes": "yes, in every case checked", "no": "no, in no case checked", "partly": "partly"}
    verdict = verdicts.get(held["verdict"]) or f"not checked: {held.get('why')}"
    lines = [f"The paper's claim, for its own models and data: {results['claim']}", f"Held here: {verdict}."]
    for claim in held["claims"]:
        count = f"{claim['held']} of {claim['of']}" if claim["of"] else "not measured"
        lines.append(f"  {count}: {claim['claim']}")
    lines += [f"Data: {data['title']} ({data['name']}), {data['count']}." for data in results["data"]]
    lines.append(f"Seeds: {', '.join(map(str, results['seeds']))}. Resampled: {results['resampled']}.")
    if replaced := results["stands_for"]:
        models, data = "; ".join(replaced["models"]), ", ".join(replaced["data"])
        lines.append(f"Stand-in for {models} on {data}, which have not been run.")
    elif named := dict.fromkeys(name for data in results["data"] for name in data.get("models", ())):
        config, kind = results["config"], results["embeddings"].capitalize()
        paper = f"{'; '.join(config['models'])} on {', '.join(config['data'])}"
        lines.append(f"{kind}: embeddings by {', '.join(named)}. The paper's figure is of {paper}.")
    return lines


def note_lines(results: Results) -> list[str]:
    """Return what a reader needs to know to interpret the results: the notes of the run and of its data."""
    return [*results["notes"], *(note for data in results["data"] for note in data["notes"])]


def shown_rows(results: Results) -> tuple[list[str], list[Row]]:
    """Return the columns in use, and the rows by metric, so that each metric stands beside its controls."""
    rows = results["rows"]
    metrics = list(dict.fromkeys([*results["config"]["metrics"], *(row["metric"] for row in rows)]))
    columns = [column for column in COLUMNS if any(row[column] is not None for row in rows)]
    return columns, sorted(rows, key=lambda row: metrics.index(row["metric"]))


# ------------------------------------------------------------------ files


def render_experiment(results: Results, figure: str) -> str:
    """Return a self-contained HTML page with the claim, the figure (SVG) and all numbers; all text is escaped."""
    config, (columns, rows) = results["config"], shown_rows(results)
    facts = {key: config[key] for key in ("section", "kind")} | {"run on": results["ran_on"]}
    ran = ", ".join(f"{key}: {value}" for key, value in facts.items()) + f", {results['seconds']} s."
    return fill(
        templates().from_string(Path(__file__).with_name("experiment.html").read_text(encoding="utf-8")),
        s=results,
        lines=[*summary_lines(results), *note_lines(results), ran],
        figure=f"data:image/svg+xml;base64,{base64.b64encode(figure.encode()).decode()}",
        titles=[panel["title"] for panel in panels(results)],
        columns=columns,
        rows=rows,
        config=json.dumps(config, indent=1, ensure_ascii=False),
    )


def why_no_experiment(folder: Path) -> str | None:
    """Return why a folder must not be replaced; None if it contains the results of an experiment."""
    files = {"results.json", "results.csv", "figure.svg", "figure.png", "figure.pdf", "report.html"}
    return why_foreign(
        folder,
        "an experiment's results",
        "results.json",
        lambda results: isinstance(results.get("format"), int) and isinstance(results.get("experiment"), str),
        files.__contains__,
    )


def write_experiment(
    out: str | Path, outcome: Any, *, png: bool = False, pdf: bool = False, html: bool = False, force: bool = False
) -> None:
    """Write ``results.json``, ``results.csv`` and ``figure.svg`` of a run into a new folder, atomically.

    ``png``, ``pdf``, ``html``: write ``figure.png``, ``figure.pdf``, or ``report.html``, a page with figure, claim and
    numbers, as well. ``force`` replaces the results of an earlier experiment; other folders are never replaced.
    """
    with atomic_path(out, force=force, directory=True, foreign=why_no_experiment) as folder:
        write_files(folder, outcome, png=png, pdf=pdf, html=html)


def write_files(folder: Path, outcome: Any, *, png: bool = False, pdf: bool = False, html: bool = False) -> list[str]:
    """Write the files of ``write_experiment`` into an existing folder, and return their names."""
    results = outcome.results
    figures = [f"figure.{kind}" for kind, wanted in (("svg", True), ("png", png), ("pdf", pdf)) if wanted]
    text = json.dumps(results, indent=1, ensure_ascii=False, allow_nan=False)
    (folder / "results.json").write_text(text + "\n", encoding="utf-8")
    (folder / "results.csv").write_text(to_csv(results["rows"]), encoding="utf-8")
    figure = draw_experiment(results, outcome.pictures)
    title = f"{results['experiment']}: {results['title']}"
    for name in figures:
        write_figure(folder / name, figure, title)
    if html:
        svg = (folder / "figure.svg").read_text(encoding="utf-8")
        (folder / "report.html").write_text(render_experiment(results, svg), encoding="utf-8")
    return ["results.json", "results.csv", *figures, *["report.html"] * html]


def to_csv(rows: Sequence[Row]) -> str:
    """Return rows as CSV; the values of the draws are joined by spaces."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, [*COLUMNS, "mean", "sd", "n", "values"], lineterminator="\n")
    writer.writeheader()
    writer.writerows({**row, "values": " ".join(map(repr, row["values"]))} for row in rows)
    return buffer.getvalue()
