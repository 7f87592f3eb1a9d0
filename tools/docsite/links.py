"""Links from pages to files outside ``docs``, which lead to the site's copy of the file or, if there is none, become its path as text."""

from __future__ import annotations

import posixpath
import re

#: Files outside ``docs`` that are pages of the site, and the names of these pages.
COPIES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "benchmarks/README.md": "benchmarks.md",
}

#: A fenced block, a link (whose text may contain code), or inline code, whichever begins first.
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
        Path of the page in the repository: ``docs/python.md``, ``CHANGELOG.md``.

    Returns
    -------
    str
        The page with links relative to its path on the site. Code is not changed.
    """
    home = posixpath.dirname(page)
    here = posixpath.dirname(COPIES.get(page) or posixpath.relpath(page, "docs"))

    def link(match: re.Match[str]) -> str:
        text, path, anchor = match["text"], match["path"], match["anchor"] or ""
        if not path:  # code, a URL, or an anchor on this page
            return match[0]
        target = posixpath.normpath(posixpath.join(home, path))
        if target in COPIES:
            return (
                f"[{text}]({posixpath.relpath(COPIES[target], here or '.')}{'' if target == 'README.md' else anchor})"
            )
        if target.startswith("docs/notebooks/"):
            target = target.removesuffix(".py") + ".md"
        if target.startswith("docs/"):
            return f"[{text}]({posixpath.relpath(target[5:], here or '.')}{anchor})"
        return f"{text} (`{target}` in the repository)" if target not in text else f"`{target}`"

    return _PARTS.sub(link, markdown)
