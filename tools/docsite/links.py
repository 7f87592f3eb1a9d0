"""Links of the pages to files outside of ``docs``: to their copy on the site, or, where the site has none, to a path one can look up."""

from __future__ import annotations

import posixpath
import re

#: Files of the repository that the site shows, as pages of other names.
COPIES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "benchmarks/README.md": "benchmarks.md",
}

#: A fenced block, a link (whose text may hold code), or code: the first that begins is meant.
_PARTS = re.compile(
    r"(?P<fence>^```.*?^```)|(?<!!)\[(?P<text>[^\]]*)\]\((?P<path>[^)\s#:]+)?(?P<anchor>#[^)\s]*)?\)|(?P<code>`[^`\n]+`)",
    re.M | re.S,
)


def rewrite(markdown: str, page: str) -> str:
    """Rewrite the links of a page.

    Parameters
    ----------
    markdown : str
    page : str
        Where it stands in the repository: ``docs/python.md``, ``CHANGELOG.md``.

    Returns
    -------
    str
        Links relative to the page's place on the site. Code is left as it is.
    """
    home = posixpath.dirname(page)
    here = posixpath.dirname(COPIES.get(page) or posixpath.relpath(page, "docs"))

    def link(found: re.Match[str]) -> str:
        path, anchor = found["path"], found["anchor"] or ""
        if not path:  # code, an address, or a place on this page
            return found[0]
        there = posixpath.normpath(posixpath.join(home, path))
        if there in COPIES:
            return f"[{found['text']}]({posixpath.relpath(COPIES[there], here or '.')}{'' if there == 'README.md' else anchor})"
        if there.startswith("docs/notebooks/"):
            there = there.removesuffix(".py") + ".md"
        if there.startswith("docs/"):
            return f"[{found['text']}]({posixpath.relpath(there[5:], here or '.')}{anchor})"
        text = found["text"]
        return f"{text} (`{there}` in the repository)" if there not in text else f"`{there}`"

    return _PARTS.sub(link, markdown)
