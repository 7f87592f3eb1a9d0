"""How objects are displayed: a few lines in a terminal, a small table in a notebook."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping
from html import escape

#: Longest line of a text display.
WIDTH = 110

#: What moves a cursor, colors, ends a line, turns the direction of writing, or cannot be written as UTF-8 or in XML.
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")

#: What Markdown, or the HTML in it, takes for more than itself; and where GitHub makes links of plain text.
_MARKDOWN = re.compile(r"[\\`*_{}\[\]<>#|~&!$@]|:(?=//)|(?<=\bwww)\.", re.IGNORECASE)


def visible(text: str, keep: str = "") -> str:
    r"""Return a text with its control characters written out, as ``\x1b`` and ``\u202e``.

    Names and ids come from other people's files: printed as they are, they could recolor a terminal, hide a line or set its title.

    Parameters
    ----------
    text : str
    keep : str
        Characters that stay, for example ``"\n"``.

    Returns
    -------
    str
    """

    def written(found: re.Match[str]) -> str:
        return found[0] if found[0] in keep else found[0].encode("unicode_escape").decode("ascii")

    return _CONTROL.sub(written, text)


def short(text: str, most: int = 100) -> str:
    """Return a text for a message, cut where it is longer than ``most`` characters."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def visible_json(text: str) -> str:
    """Return the text of a JSON document with what :func:`visible` writes out as JSON's own escapes; it says the same data."""
    return _CONTROL.sub(lambda found: found[0] if found[0] == "\n" else f"\\u{ord(found[0]):04x}", text)


def as_markdown(text: str) -> str:
    r"""Return a text that Markdown shows as it is: ``\*`` and ``\<`` for what would mark up, link or open a tag.

    Parameters
    ----------
    text : str
        Of one line, not at its beginning.

    Returns
    -------
    str
    """
    return _MARKDOWN.sub(lambda found: f"\\{found[0]}", visible(text))


def is_formula(text: str) -> bool:
    """Say whether a spreadsheet would run a cell of a CSV file instead of showing it."""
    return text[:1] in ("=", "+", "-", "@", "\t", "\r")


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
    lines = [textwrap.shorten(visible(title), WIDTH, placeholder=" …")]
    for name, value in facts.items():
        wrapped = textwrap.wrap(visible(value), WIDTH - pad - 4, max_lines=most, placeholder=" …") or [""]
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
        f'<tr><th scope="row" style="text-align:left;font-weight:normal;opacity:.7">{escape(visible(name))}</th>'
        f'<td style="text-align:left">{escape(visible(value))}</td></tr>'
        for name, value in facts.items()
    )
    return f"<div><strong>{escape(visible(title))}</strong><table>{rows}</table></div>"
