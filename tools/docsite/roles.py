"""What docstrings say in reStructuredText, as the site's Markdown: names with a role become links to where the API describes them."""

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
    """Return a docstring with links in place of roles, and without the marks before literal blocks, which their indent shows.

    Parameters
    ----------
    text : str

    Returns
    -------
    str
    """
    return _LITERAL.sub("", ROLE.sub(_link, text))


def _link(found: re.Match[str]) -> str:
    name = found["name"]
    shown = found["text"] or (name.rpartition(".")[2] if found["short"] else name.removeprefix("congruence."))
    place = described(name)
    return f"[`{shown}`][{place}]" if place else f"`{shown}`"


def described(name: str) -> str | None:
    """Return the anchor of the API at which a name is described: its own or, of an attribute or method, its class's; None if there is none.

    A name without its module is found if one module alone describes such a name.
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
    # A package offers what its modules describe.
    *home, last = parts
    inside = [one for one in short[last] if home and one.startswith(".".join(home) + ".")]
    if len(inside) == 1:
        return inside[0]
    return described(".".join(home)) if len(home) > 1 and home[0] == "congruence" and home[-1][:1].isupper() else None


@cache
def _anchors() -> tuple[frozenset[str], defaultdict[str, list[str]]]:
    """Return the anchors of the API's pages, and by the last part of their names."""
    pages = api.pages().values()
    offered = [one for page in pages for one in re.findall(r"^::: (\S+)$", page, re.MULTILINE)]
    sections = [one for page in pages for one in re.findall(r"\{: #(\S+) \}$", page, re.MULTILINE)]
    short: defaultdict[str, list[str]] = defaultdict(list)
    for one in offered:
        short[one.rpartition(".")[2]].append(one)
    return frozenset([*offered, *sections]), short
