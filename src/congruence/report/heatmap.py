"""Layers against layers as a heat map: one SVG file that carries its own colours, in light and in dark."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Any

from congruence._utils.atomic import atomic_path
from congruence._utils.display import visible

__all__ = ["heatmap", "shades", "write_heatmap"]

_CELL_WIDTH, _CELL_HEIGHT, _LETTER = 52, 30, 6.6

#: Shades from which words turn to white in light, and to black in dark: on both sides of them the contrast is at least 4.5.
STRONG, MIDDLE = 0.86, 0.62

_STYLE = """
svg{--paper:#fff;--ink:#1b1f24;--soft:#57606a;--hue:#1f5fbf;--on-weak:#000;--on-middle:#000;--on-strong:#fff;font:11px system-ui,-apple-system,"DejaVu Sans",sans-serif}
@media(prefers-color-scheme:dark){svg{--paper:#14171b;--ink:#e8eaed;--soft:#a6aeb8;--hue:#7fb0ff;--on-weak:#fff;--on-middle:#000;--on-strong:#000}}
.paper{fill:var(--paper)}.cell{fill:var(--hue)}.best{fill:none;stroke:var(--ink);stroke-width:2.5}
text{fill:var(--ink)}.soft{fill:var(--soft)}.weak{fill:var(--on-weak)}.middle{fill:var(--on-middle)}.strong{fill:var(--on-strong)}.title{font-size:13px;font-weight:600}
"""


def shades(standing: list[list[float]]) -> list[list[float]]:
    """Return how strongly each cell is coloured, from 0 (no closer than chance) to 1 (the furthest above it).

    Parameters
    ----------
    standing : list of lists of float
        Standard deviations above chance.

    Returns
    -------
    list of lists of float
    """
    top = max((value for row in standing for value in row), default=0.0)
    return [[max(value, 0.0) / top if top > 0 else 0.0 for value in row] for row in standing]


def heatmap(data: dict[str, Any], title: str) -> str:
    """Draw scores of layers against layers.

    Parameters
    ----------
    data : dict
        From :meth:`congruence.compare.layers.LayerComparison.to_dict`.
    title : str
        Shown above, and read by screen readers.

    Returns
    -------
    str
        An SVG document without scripts and outside references. The stronger its colour, the further a cell is above chance;
        the best score has a frame, and every cell says its value.
    """
    rows, columns, values, colours = data["x_layers"], data["y_layers"], data["values"], shades(data["standing"])
    notes = [
        f"{data['metric']}, {data['n']} items. Stronger colour: more standard deviations closer than chance.",
        f"Framed: best of {len(rows) * len(columns)}, {data['best'][0]} and {data['best'][1]}, {data['best_value']:.3f}.",
        f"By chance the best is {data['best_null_mean']:.3f} ± {data['best_null_sd']:.3f} ({data['permutations']} re-pairings); "
        f"p = {data['best_adjusted_p_value']:.3f}, corrected for the search.",
    ]
    left = 16 + _LETTER * max(map(len, rows))
    # Column names stand at 45 degrees, and the last leans out over the right edge.
    slope = _LETTER * max(map(len, columns)) * 0.71
    top = 34 + slope + 12
    bottom = top + _CELL_HEIGHT * len(rows)
    width = max(left + _CELL_WIDTH * len(columns) + slope, 16 + _LETTER * max(map(len, [*notes, title])))
    parts = [f'<rect class="paper" width="{width:.0f}" height="{bottom + 66:.0f}"/>']

    def text(x: float, y: float, words: str, kind: str = "name", anchor: str = "start", turn: str = "") -> None:
        place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
        parts.append(f'<text class="{kind}" {place}{turn}>{escape(words)}</text>')

    text(8, 20, title, "title")
    for j, name in enumerate(columns):
        x, y = left + _CELL_WIDTH * (j + 0.5), top - 6
        text(x, y, name, turn=f' transform="rotate(-45 {x:.1f} {y:.1f})"')
    for i, name in enumerate(rows):
        y = top + _CELL_HEIGHT * i
        text(left - 6, y + _CELL_HEIGHT / 2 + 4, name, anchor="end")
        for j, other in enumerate(columns):
            x, shade = left + _CELL_WIDTH * j, colours[i][j]
            kind = "strong" if shade > STRONG else "middle" if shade > MIDDLE else "weak"
            hint = f"{name} and {other}: {values[i][j]:.3f}, by chance {data['null_mean'][i][j]:.3f} ± {data['null_sd'][i][j]:.3f}"
            parts.append(
                f'<g><title>{escape(hint)}</title><rect class="cell" x="{x:.1f}" y="{y:.1f}" width="{_CELL_WIDTH - 1}" '
                f'height="{_CELL_HEIGHT - 1}" fill-opacity="{shade:.3f}"/>'
            )
            text(x + _CELL_WIDTH / 2, y + _CELL_HEIGHT / 2 + 4, f"{values[i][j]:.2f}".replace("-", "−"), kind, "middle")
            if [name, other] == list(data["best"]):
                parts.append(
                    f'<rect class="best" x="{x + 1:.1f}" y="{y + 1:.1f}" width="{_CELL_WIDTH - 3}" height="{_CELL_HEIGHT - 3}"/>'
                )
            parts.append("</g>")
    for k, note in enumerate(notes):
        text(8, bottom + 20 + 17 * k, note, "soft")
    drawing = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {bottom + 66:.0f}" width="{width:.0f}" '
        f'role="group" aria-labelledby="title description"><title id="title">{escape(title)}</title>'
        f'<desc id="description">{escape(" ".join(notes))}</desc><style>{_STYLE}</style>{"".join(parts)}</svg>\n'
    )
    return visible(drawing, keep="\n\t")  # XML knows no control characters, not even escaped ones


def write_heatmap(path: str | Path, data: dict[str, Any], title: str, *, force: bool = False) -> None:
    """Write :func:`heatmap` to a file, atomically.

    Parameters
    ----------
    path : path-like
    data, title
        As for :func:`heatmap`.
    force : bool, default=False
        Replace an existing file.

    Raises
    ------
    OutputExistsError, FileError, StorageError
    """
    drawing = heatmap(data, title)
    with atomic_path(path, force=force) as temporary:
        temporary.write_text(drawing, encoding="utf-8")
