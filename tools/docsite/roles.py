"""Conversion of docstrings from reStructuredText to Markdown: names with a role become links to their description in the API."""

from __future__ import annotations

import re
from collections import defaultdict
from functools import cache

from docsite import api

#: ``:func:`name```, ``:func:`~long.name```, ``:func:`text <name>```.
ROLE = re.compile(
    r":(?:func|meth|class|data|attr|mod|exc|obj):`(?:(?P<text>[^`<]+?)\s*<)?(?P<short>~?)(?P<name>[\w.]+)>?`"
)
_LITERAL = re.compile(r"^::\n\n", re.MULTILINE)


def in_markdown(text: str) -> str:
    """Return a docstring with links in place of roles, and without the marks before literal blocks, since Markdown needs only their indentation.

    Parameters
    ----------
    text : str

    Returns
    -------
    str
    """
    return _LITERAL.sub("", ROLE.sub(_link, text))


def _link(match: re.Match[str]) -> str:
    name = match["name"]
    text = match["text"] or (name.rpartition(".")[2] if match["short"] else name.removeprefix("congruence."))
    anchor = described(name)
    return f"[`{text}`][{anchor}]" if anchor else f"`{text}`"


def described(name: str) -> str | None:
    """Return the anchor of a name's description in the API, for an attribute or method that of its class; None if there is none.

    A name without its module is found if only one module describes such a name.
    """
    known, short = _anchors()
    modules = api.public_modules()
    parts = name.split(".")
    for n in range(len(parts), 0, -1):
        start = ".".join(parts[:n])
        if start in known:
            return start
        module, _, last = start.rpartition(".")
        if module in modules and last in modules[module].taken:
            return described(f"{modules[module].taken[last]}.{last}")
        if parts[0] != "congruence" and len(short[start]) == 1:
            return short[start][0]
    # A name of a package may be described in one of its modules.
    *home, last = parts
    candidates = [anchor for anchor in short[last] if home and anchor.startswith(".".join(home) + ".")]
    if len(candidates) == 1:
        return candidates[0]
    return described(".".join(home)) if len(home) > 1 and home[0] == "congruence" and home[-1][:1].isupper() else None


@cache
def _anchors() -> tuple[frozenset[str], defaultdict[str, list[str]]]:
    """Return the anchors of the API's pages, and the described names by their last part."""
    pages = api.pages().values()
    names = [name for page in pages for name in re.findall(r"^::: (\S+)$", page, re.MULTILINE)]
    sections = [anchor for page in pages for anchor in re.findall(r"\{: #(\S+) \}$", page, re.MULTILINE)]
    short: defaultdict[str, list[str]] = defaultdict(list)
    for name in names:
        short[name.rpartition(".")[2]].append(name)
    return frozenset([*names, *sections]), short
