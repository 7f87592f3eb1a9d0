"""How objects show themselves: a few lines in a terminal, a small table in a notebook."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

#: Longest line of a text display; longer ones end in an ellipsis.
WIDTH = 110


def as_text(title: str, facts: Mapping[str, str]) -> str:
    """Write a title and facts, one a line, names aligned.

    Parameters
    ----------
    title : str
    facts : mapping of str to str

    Returns
    -------
    str
        ``len(facts) + 1`` lines.
    """
    pad = max(map(len, facts), default=0)
    lines = [title, *(f"  {name:<{pad}}  {value}" for name, value in facts.items())]
    return "\n".join(line if len(line) <= WIDTH else f"{line[: WIDTH - 1]}…" for line in lines)


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
