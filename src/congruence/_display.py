"""How objects show themselves: a few lines in a terminal, a small table in a notebook."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from html import escape

#: Longest line of a text display.
WIDTH = 110


def as_text(title: str, facts: Mapping[str, str], *, most: int = 1) -> str:
    """Write a title and facts below each other, names aligned.

    Parameters
    ----------
    title : str
    facts : mapping of str to str
    most : int, default=1
        Lines a fact may take; what is longer ends in an ellipsis.

    Returns
    -------
    str
    """
    pad = max(map(len, facts), default=0)
    lines = [textwrap.shorten(title, WIDTH, placeholder=" …")]
    for name, value in facts.items():
        wrapped = textwrap.wrap(value, WIDTH - pad - 4, max_lines=most, placeholder=" …") or [""]
        lines += [f"  {name:<{pad}}  {wrapped[0]}", *(" " * (pad + 4) + line for line in wrapped[1:])]
    return "\n".join(lines)


def as_html(title: str, facts: Mapping[str, str]) -> str:
    """Write the same as an HTML table whose colors are the notebook's own; every text is escaped.

    Parameters
    ----------
    title : str
    facts : mapping of str to str

    Returns
    -------
    str
    """
    rows = "".join(
        f'<tr><th scope="row" style="text-align:left;font-weight:normal;opacity:.7">{escape(name)}</th>'
        f'<td style="text-align:left">{escape(value)}</td></tr>'
        for name, value in facts.items()
    )
    return f"<div><strong>{escape(title)}</strong><table>{rows}</table></div>"
