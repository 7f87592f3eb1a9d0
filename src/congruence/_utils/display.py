"""How objects are displayed: a few lines in a terminal, a small table in a notebook."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence

WIDTH = 110  # longest line of a text display

#: Control characters: those that move the cursor, set colors, end a line or change the writing direction, and those
#: that UTF-8 or XML cannot contain.
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")

#: Characters with a meaning in Markdown or in HTML, and those from which GitHub makes links (``://`` and ``www.``).
_MARKDOWN = re.compile(r"[\\`*_{}\[\]<>#|~&!$@]|:(?=//)|(?<=\bwww)\.", re.IGNORECASE)


def visible(text: str, keep: str = "") -> str:
    """Return a text with its control characters, which could set a terminal's colors or hide a line, escaped."""

    def escaped(match: re.Match[str]) -> str:
        return match[0] if match[0] in keep else match[0].encode("unicode_escape").decode("ascii")

    return _CONTROL.sub(escaped, text)


def short(text: str, most: int = 80) -> str:
    """Return a text for a message, cut to at most ``most`` characters before a closing quote, which stays."""
    end = text[-1] if text.endswith(("'", '"')) else ""
    return text if len(text) <= most else f"{text[: most - 1 - len(end)]}…{end}"


def visible_json(text: str) -> str:
    """Return a JSON document with its control characters, except line breaks, as JSON escapes."""
    return _CONTROL.sub(lambda match: match[0] if match[0] == "\n" else f"\\u{ord(match[0]):04x}", text)


def as_markdown(text: str) -> str:
    """Return a text within a line escaped for Markdown, so that it is shown literally."""
    return _MARKDOWN.sub(lambda match: f"\\{match[0]}", visible(text))


def is_formula(text: str) -> bool:
    """Return whether a spreadsheet would evaluate a cell of a CSV file as a formula."""
    return text[:1] in ("=", "+", "-", "@", "\t", "\r")


def as_text(title: str, facts: Mapping[str, str], *, most: int = 1) -> str:
    """Return a title and facts as text with the values aligned, cut to at most ``most`` lines per fact."""
    pad = max(map(len, facts), default=0)
    lines = [textwrap.shorten(visible(title), WIDTH, placeholder=" …")]
    for name, value in facts.items():
        wrapped = textwrap.wrap(visible(value), WIDTH - pad - 4, max_lines=most, placeholder=" …") or [""]
        lines += [f"  {name:<{pad}}  {wrapped[0]}", *(" " * (pad + 4) + line for line in wrapped[1:])]
    return "\n".join(lines)


def text_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table as text: the first column aligned to the left, numbers to the right."""
    cells = [[visible(cell) for cell in row] for row in (columns, *rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]

    def line(first: str, *others: str) -> str:
        numbers = (cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True))
        return "  ".join([first.ljust(widths[0]), *numbers])

    return "\n".join(line(*row) for row in cells)


def as_html(title: str, facts: Mapping[str, str], picture: str = "") -> str:
    """Return a title, facts and a picture as HTML in the notebook's own colors; all text is escaped."""
    from html import escape  # only notebooks need it

    rows = "".join(
        f'<tr><th scope="row" style="text-align:left;font-weight:normal;opacity:.7">{escape(visible(name))}</th>'
        f'<td style="text-align:left">{escape(visible(value))}</td></tr>'
        for name, value in facts.items()
    )
    return f"<div><strong>{escape(visible(title))}</strong><table>{rows}</table>{picture}</div>"


def svg_bars(title: str, bars: Mapping[str, float], chosen: str) -> str:
    """Return shares by name as horizontal bars in SVG, that of ``chosen`` in full color; all text is escaped."""
    from html import escape

    drawn = "".join(
        f'<rect x="0" y="{20 * k + 4}" width="{max(120 * min(share, 1), 1):.1f}" height="12" opacity="'
        f'{1 if name == chosen else 0.35}"/>'
        f'<text x="126" y="{20 * k + 14}">{share:.3f} {escape(visible(name))}</text>'
        for k, (name, share) in enumerate(bars.items())
    )
    return (
        f'<svg role="img" width="560" height="{20 * len(bars) + 4}" font-size="12" font-family="sans-serif" '
        f'fill="currentColor"><title>{escape(visible(title))}</title>{drawn}</svg>'
    )
