"""Checks of the finished site: every public name is described, no link is broken, and nothing is fetched from other servers."""

from __future__ import annotations

import re
import zlib
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

#: Attributes whose files a browser fetches with the page, unlike links that a reader follows.
_FETCHED = {("script", "src"), ("img", "src"), ("link", "href"), ("iframe", "src"), ("source", "src")}

#: Markup of reStructuredText that Markdown does not convert: roles, directives and marks of literal blocks.
_MARKS = re.compile(r":(?:func|meth|class|data|attr|mod|exc|obj):[`<]|<p>\s*\.\. \w+::|<p>\s*::|<code>::")


class _Page(HTMLParser):
    """The anchors, links and fetched files of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.fetched: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Record the anchors, links and fetched files of a tag."""
        attributes = {name: value or "" for name, value in attrs}
        self.anchors |= {attributes[name] for name in ("id", "name") if name in attributes}
        if tag == "a" and "href" in attributes:
            self.links.append(attributes["href"])
        for name, value in attributes.items():
            canonical = tag == "link" and attributes.get("rel") in ("canonical", "prev", "next")
            if (tag, name) in _FETCHED and not canonical:
                self.fetched.append(value)


def problems(site: Path, modules: dict[str, Any]) -> list[str]:
    """Return the problems of a finished site, one sentence each.

    Parameters
    ----------
    site : Path
        Folder of the site.
    modules : dict
        As returned by ``api.public_modules``.

    Returns
    -------
    list of str
    """
    return [*_missing_names(site, modules), *_broken(site), *_marks(site)]


def _marks(site: Path) -> list[str]:
    """Return the pages of the API that show markup of reStructuredText."""
    found = []
    for path in sorted(site.glob("api/*.html")):
        if mark := _MARKS.search(path.read_text(encoding="utf-8")):
            found.append(f"{path.relative_to(site)} shows the mark {mark[0]} of a docstring")
    return found


def _missing_names(site: Path, modules: dict[str, Any]) -> list[str]:
    """Return the public names that are missing in the inventory that mkdocstrings writes for other projects."""
    data = (site / "objects.inv").read_bytes()
    lines = zlib.decompress(data.split(b"\n", 4)[4]).decode().splitlines()
    known = {line.split(" ", 1)[0] for line in lines}
    return [
        f"{module.name}.{name} is public, and no page describes it"
        for module in modules.values()
        for name in module.own
        if f"{module.name}.{name}" not in known
    ]


def _broken(site: Path) -> list[str]:
    """Return broken links, and files that are fetched from other servers."""
    found = []
    pages = {path: _Page(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}
    for path, page in pages.items():
        where = path.relative_to(site)
        found += [f"{where} fetches {url}" for url in page.fetched if urlsplit(url).netloc]
        if path.name == "404.html":  # its links are those of a server's root
            continue
        for link in {*page.links, *page.fetched}:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc or link.startswith("data:"):
                continue
            target = path if not parts.path else (path.parent / unquote(parts.path)).resolve()
            target = target / "index.html" if target.is_dir() else target
            if not target.exists():
                found.append(f"{where} leads to {link}, which is not there")
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].anchors:
                found.append(f"{where} leads to {link}, which has no such anchor")
    return found
