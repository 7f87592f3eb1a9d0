"""An experiment's numbers as files: JSON, CSV, and the figure in the paper's layout as SVG."""

from __future__ import annotations

import base64
import csv
import io
import json
import re
import textwrap
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any

from congruence._utils.atomic import atomic_path, why_foreign
from congruence._utils.display import visible
from congruence.papers import STUDIES, Outcome, claim_lines, data_lines
from congruence.report.figures import HEIGHT, WIDTH, Plot, clouds, kernel, ticks
from congruence.report.png import svg_to_png

__all__ = ["draw_experiment", "to_csv", "why_no_experiment", "write_experiment", "write_files"]

_STYLE = """
svg{font:11px system-ui,sans-serif;background:#fff}
.title{font-size:13px;font-weight:600;fill:#1b2430}
.tick{font-size:9.5px;fill:#55606e}.label,.legend{font-size:10.5px;fill:#1b2430}
.grid{stroke:#e6e9ee;fill:none}.axis{stroke:#55606e;fill:none}.whisker{stroke:#1b2430;stroke-width:1.2}
.line{fill:none;stroke-width:1.8}.band{opacity:.18;stroke:none}.pair{stroke:#b9c0ca;fill:none;stroke-width:.6}
.dot{fill:none;stroke-linecap:round}.line.same{stroke:#b9c0ca;stroke-dasharray:3 3}
"""
#: Colours that stay apart for the colour-blind (Okabe and Ito); what is not a map's work is grey, its controls are brown.
_COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9", "#8c6d1f", "#5f3dc4")
_GREYS = {
    "before": "#d5dae1",
    "chance": "#d5dae1",
    "constant": "#c9b79c",
    "random_rotation": "#b08d57",
    "model_a": "#9aa4b1",
    "model_b": "#66717f",
    "oracle": "#1b2430",
}
_NAMED = {"source": "#0072b2", "target": "#d55e00", "after": "#0072b2", "faint": "#b9c0ca"}

#: Width of a letter of a label, on average.
_LETTER = 5.2

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


def write_experiment(out: str | Path, outcome: Outcome, *, png: bool = False, force: bool = False) -> None:
    """Write ``results.json``, ``results.csv`` and ``figure.svg`` into a folder, all of them or none.

    Parameters
    ----------
    out : path-like
        A new folder.
    outcome : Outcome
        Of :func:`congruence.papers.run`.
    png : bool, default=False
        Write ``figure.png`` as well (extra ``png``).
    force : bool, default=False
        Replace an experiment that is there; nothing else is replaced.

    Raises
    ------
    OutputExistsError, FileError, StorageError, MissingExtraError
    """
    with atomic_path(out, force=force, directory=True, foreign=why_no_experiment) as folder:
        write_files(folder, outcome, png=png)


def why_no_experiment(folder: Path) -> str | None:
    """Say why a folder must not be replaced by an experiment, or None for one."""
    return why_foreign(
        folder,
        "an experiment's results",
        "results.json",
        lambda results: isinstance(results.get("format"), int) and isinstance(results.get("experiment"), str),
        lambda name: name in ("results.json", "results.csv", "figure.svg", "figure.png"),
    )


def write_files(folder: Path, outcome: Outcome, *, png: bool = False) -> None:
    """Write the files into a folder that exists; see :func:`write_experiment`."""
    text = json.dumps(outcome.results, indent=1, ensure_ascii=False, allow_nan=False)
    (folder / "results.json").write_text(text + "\n", encoding="utf-8")
    (folder / "results.csv").write_text(to_csv(outcome.results["rows"]), encoding="utf-8")
    figure = draw_experiment(outcome.results, outcome.pictures)
    (folder / "figure.svg").write_text(figure, encoding="utf-8")
    if png:
        (folder / "figure.png").write_bytes(svg_to_png(figure))


def to_csv(rows: Sequence[dict[str, Any]]) -> str:
    """Return rows as CSV; the values of the draws are joined by spaces.

    Parameters
    ----------
    rows : sequence of dict

    Returns
    -------
    str
    """
    columns = ["data", "pair", "series", "part", "x", "metric", "quantity", "mean", "sd", "n", "values"]
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, columns, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({**row, "values": " ".join(repr(value) for value in row["values"])})
    return buffer.getvalue()


def draw_experiment(results: dict[str, Any], pictures: dict[str, bytes] | None = None) -> str:
    """Draw a figure: bars, curves over the number of classes, clouds, kernels or pictures, as the kind asks.

    Parameters
    ----------
    results : dict
        Of :func:`congruence.papers.run`.
    pictures : dict of str to bytes, optional
        PNG, JPEG or WebP by id.

    Returns
    -------
    str
        A whole SVG file.
    """
    rows, extra = results["rows"], results["extra"]
    panels: list[tuple[str, str, list[tuple[str, str]]]] = []
    for cloud in extra.get("clouds", []):
        words = ("images", "texts") if "source image" not in cloud["points"] else ("source", "target")
        legend = [(words[0], _NAMED["source"]), (words[1], _NAMED["target"])]
        panels.append((cloud["title"], clouds(_in_pairs(cloud["points"]), cloud["title"]), legend))
    for data in extra.get("kernels", []):
        panels.append((data["title"], kernel(data), [("same class", _NAMED["after"]), ("others", _NAMED["faint"])]))
    for metric in dict.fromkeys(row["metric"] for row in rows):
        mine = [row for row in rows if row["metric"] == metric]
        axes = _axes(results)
        if not any(row["x"] is not None for row in mine):
            panels.append(_bars(metric, mine))
        elif axes and None not in axes and {*axes} <= {row["part"] for row in mine}:
            # A panel for each thing that is varied.
            panels += [
                _curves(metric, [{**r, "part": None} for r in mine if r["part"] == k], axis) for k, axis in axes.items()
            ]
        else:
            panels.append(_curves(metric, mine, next(iter(axes.values()), None)))
    # XML knows no control characters, not even escaped ones.
    return visible(_sheet(results, panels, extra.get("examples", []), pictures or {}), keep="\n\t")


def _in_pairs(points: dict[str, Any]) -> dict[str, Any]:
    """Give clouds the names their drawing knows; images of one model are joined to its own texts."""
    if {*points} == {"target image", "target text"}:
        return {"source image": points["target image"], "target image": points["target text"]}
    return points


def _name(row: dict[str, Any], rows: Sequence[dict[str, Any]]) -> str:
    """Name a bar or curve by what distinguishes it: series, part, quantity."""
    words = [row[key] for key in ("series", "part") if row[key]]
    if row["quantity"] in ("floor", "gain"):  # there is one beside each bar, not one for all
        return ", ".join([*words, _WORDS[row["quantity"]]])
    if row["quantity"] != "after":
        return _WORDS.get(row["quantity"], row["quantity"])
    return ", ".join(words) or "after"


def _groups(rows: Sequence[dict[str, Any]]) -> list[tuple[str, str]]:
    return list(dict.fromkeys((row["data"] or "", row["pair"] or "") for row in rows))


def _bars(metric: str, rows: list[dict[str, Any]]) -> tuple[str, str, list[tuple[str, str]]]:
    groups = _groups(rows)
    order = {"before": 0, "chance": 0, "constant": 0.3, "random_rotation": 0.6, "model_a": 2, "model_b": 3, "oracle": 4}
    styles = _styles(
        (_name(row, rows), row["quantity"]) for row in sorted(rows, key=lambda r: order.get(r["quantity"], 1))
    )
    names = list(styles)
    low = min([0.0, *(row["mean"] for row in rows)])
    high = max([1e-9, *(row["mean"] + (row["sd"] or 0.0) for row in rows)])
    plot = Plot(metric, (-0.5, len(groups) - 0.5), (low * 1.05, high * 1.05), x_ticks=())
    step = 0.8 / len(names)
    for row in rows:
        slot = names.index(_name(row, rows))
        x = groups.index((row["data"] or "", row["pair"] or "")) - 0.4 + step * (slot + 0.5)
        plot.bar(x, step * 0.9, row["mean"], styles[names[slot]][0])
        if row["sd"]:
            plot.whisker(x, row["mean"] - row["sd"], row["mean"] + row["sd"])
    several = len({data for data, _ in groups}) > 1
    most = min(130 // len(groups) + 14, int(3 * WIDTH / len(groups) / _LETTER))  # there are three lines of labels
    for k, (data, pair) in enumerate(groups):
        words = ", ".join(filter(None, [data if several or not pair else "", pair]))
        words = _short(words, most)
        half = len(words) * _LETTER / 2  # outer ones must not leave the picture
        plot.text(max(half, min(plot.px(k), WIDTH - half)), HEIGHT - 23 + 10 * (k % 3), words, "middle")
    return (
        _words_of(metric),
        plot.svg(),
        [(name, colour) for name, (_, colour) in styles.items()],
    )


def _words_of(metric: str) -> str:
    """Return a metric in words: those of the study that has it."""
    for study in STUDIES.values():
        if metric in study.metrics:
            return study.metrics[metric]
    return _WORDS.get(metric, metric.replace("_", " "))


def _axes(results: dict[str, Any]) -> dict[Any, str]:
    """Return what the horizontal axes say, by part, where the kind says so."""
    return {part: words for part, words in results["extra"].get("axes", [])}


def _curves(metric: str, rows: list[dict[str, Any]], axis: str | None = None) -> tuple[str, str, list[tuple[str, str]]]:
    several = len(_groups(rows)) > 1

    def name(row: dict[str, Any]) -> str:
        own = ", ".join(filter(None, [_name(row, rows), row["part"] if row["quantity"] != "after" else ""]))
        return f"{row['pair']}: {own}" if several else own

    # What is the same at every step, or nothing, needs no curve.
    curves = [row for row in rows if row["x"] is not None and row["quantity"] not in ("oracle", "before")]
    styles = _styles((name(row), row["quantity"]) for row in curves)
    xs = sorted({row["x"] for row in curves})
    low = min([0.0, *(row["mean"] - (row["sd"] or 0) for row in curves)])
    high = max(row["mean"] + (row["sd"] or 0) for row in curves)
    wide = xs[0] > 0 and xs[-1] > 10 * xs[0]
    label = axis or ("classes fitted on" if isinstance(xs[0], int) else "share of the gap closed")
    shown = (xs if len(xs) < 8 else xs[::2]) if wide else ticks(xs[0], xs[-1])
    plot = Plot(
        metric,
        (xs[0], xs[-1] if xs[-1] > xs[0] else xs[0] + 1),
        (low, high * 1.05 or 1.0),
        label,
        log_x=wide,
        x_ticks=shown,
    )
    for curve, (kind, _) in styles.items():
        own = sorted((row for row in curves if name(row) == curve), key=lambda row: row["x"])
        at, mean, sd = ([r["x"] for r in own], [r["mean"] for r in own], [r["sd"] or 0.0 for r in own])
        if any(sd):
            plot.band(
                at, [m - s for m, s in zip(mean, sd, strict=True)], [m + s for m, s in zip(mean, sd, strict=True)], kind
            )
        plot.line(at, mean, kind)
        plot.dots(at, mean, kind)
    return (
        _words_of(metric),
        plot.svg(),
        [(name, colour) for name, (_, colour) in styles.items()],
    )


def _styles(named: Iterable[tuple[str, str]]) -> dict[str, tuple[str, str]]:
    """Give each name a class and a colour: a grey for what models reach alone, else the next of the palette."""
    styles: dict[str, tuple[str, str]] = {}
    used = 0
    for name, quantity in named:
        if name in styles:
            continue
        if quantity in _GREYS:
            styles[name] = (f"g-{quantity}", _GREYS[quantity])
        else:
            styles[name] = (f"c{used % len(_COLOURS)}", _COLOURS[used % len(_COLOURS)])
            used += 1
    return styles


def _short(words: str, most: int) -> str:
    return words if len(words) <= most else words[: most - 1] + "…"


def _sheet(
    results: dict[str, Any],
    panels: Sequence[tuple[str, str, list[tuple[str, str]]]],
    examples: Sequence[dict[str, Any]],
    pictures: dict[str, bytes],
) -> str:
    """Put panels side by side, three in a row, with letters, and examples below."""
    columns = min(3, max(1, len(panels)))
    width = max(columns * (WIDTH + 16), 560)
    heading = textwrap.wrap(f"{results['experiment']}: {results['title']}", width // 7)
    said = 20 + 16 * (len(heading) - 1)
    titles = [f'<text class="title" x="8" y="{20 + 16 * k}">{escape(line)}</text>' for k, line in enumerate(heading)]
    parts = []
    top = said + 42
    for first in range(0, len(panels), columns):
        row = panels[first : first + columns]
        tall = max(len(legend) for _, _, legend in row)
        for k, (title, svg, legend) in enumerate(row):
            left = k * (WIDTH + 16) + 8
            parts.append(f'<text class="legend" x="{left}" y="{top}">({_letter(first + k)}) {escape(title)}</text>')
            at = f'<svg x="{left}" y="{top + 4}" width="{WIDTH}" height="{HEIGHT}" viewBox'
            parts.append(re.sub(r"^<svg viewBox", at, svg))
            for line, (name, colour) in enumerate(legend):
                y = top + HEIGHT + 18 + 14 * line
                parts.append(f'<rect x="{left + 52}" y="{y - 8}" width="9" height="9" fill="{colour}"/>')
                parts.append(f'<text class="legend" x="{left + 66}" y="{y}">{escape(name)}</text>')
        top += HEIGHT + 14 * tall + 46
    for example in examples:
        drawn, top = _example(example, pictures, top)
        parts += drawn
    drawn, top = _claim(results, width, top)
    parts += drawn
    quick = " (quick run)" if results["quick"] else ""
    below = f"{len(results['seeds'])} draws{quick}; the claim and the data stand below."
    classes = {**{f"c{k}": c for k, c in enumerate(_COLOURS)}, **{f"g-{name}": c for name, c in _GREYS.items()}}
    colours = "".join(f".{k}{{fill:{c}}}.line.{k},.dot.{k}{{fill:none;stroke:{c}}}" for k, c in classes.items())
    named = "".join(
        f".line.{name},.dot.{name}{{stroke:{c}}}.band.{name},.mark.{name}{{fill:{c}}}" for name, c in _NAMED.items()
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {top}" width="{width}" height="{top}" role="img" '
        f'aria-label="{escape(" ".join(heading))}"><style>{_STYLE}{colours}{named}</style>'
        f'<rect width="100%" height="100%" fill="#fff"/>{"".join(titles)}'
        f'<text class="tick" x="8" y="{said + 18}">{escape(_short(below, width // 5))}</text>{"".join(parts)}</svg>\n'
    )


def _claim(results: dict[str, Any], width: int, top: int) -> tuple[list[str], int]:
    """Write the paper's claim, whether it held, and the data below the panels."""
    parts = []
    for line in [*claim_lines(results), *data_lines(results)]:
        for words in textwrap.wrap(line, int(width / _LETTER), subsequent_indent="    ", drop_whitespace=True):
            parts.append(f'<text class="tick" xml:space="preserve" x="8" y="{top}">{escape(words)}</text>')
            top += 14
    return parts, top + 6


def _letter(k: int) -> str:
    return chr(ord("a") + k % 26)


def _example(example: dict[str, Any], pictures: dict[str, bytes], top: int) -> tuple[list[str], int]:
    """Draw an image, the words read from it, and the images found, in rows."""
    parts = [_picture(example["query"], pictures, 8, top)]
    words = _short(f"{example['read']} → {example['mapped_to']}", 90)
    parts.append(f'<text class="legend" x="100" y="{top + 8}">{escape(words)}</text>')
    y = top + 16
    for name, items in example["rows"].items():
        parts.append(f'<text class="tick" x="100" y="{y + 34}">{escape(name)}</text>')
        parts += [_picture(item, pictures, 180 + 72 * k, y) for k, item in enumerate(items)]
        y += 74
    return parts, max(y, top + 80) + 14


def _picture(item: dict[str, str], pictures: dict[str, bytes], x: int, y: int) -> str:
    picture = pictures.get(item["id"])
    words = escape(item["text"] or item["id"])
    kind = _kind(picture)
    if picture is None or kind is None:
        return f'<text class="tick" x="{x}" y="{y + 34}">{escape(_short(item["text"] or item["id"], 12))}</text>'
    uri = f"data:{kind};base64,{base64.b64encode(picture).decode()}"
    return f'<image x="{x}" y="{y}" width="64" height="64" href="{uri}"><title>{words}</title></image>'


def _kind(picture: bytes | None) -> str | None:
    """Say what a picture is by its first bytes; what is none of the three is not shown."""
    if picture is None:
        return None
    if picture.startswith(b"RIFF") and picture[8:12] == b"WEBP":
        return "image/webp"
    known = {b"\x89PNG": "image/png", b"\xff\xd8\xff": "image/jpeg"}
    return next((kind for magic, kind in known.items() if picture.startswith(magic)), None)
