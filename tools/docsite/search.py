"""Search the finished site in a real browser, from files and without a network, as a reader of a downloaded copy does."""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
import time
from pathlib import Path

#: What is typed; the documentation speaks of it on several pages.
ASKED = "partial isometry"

#: How the worker says that it found something.
_FOUND = re.compile(r'"total":[1-9]')

#: Keeps what the search's worker answers: the dialog itself lives in shadow trees of the theme's own making.
_LISTEN = """
window.answers = "";
const tell = Worker.prototype.tell;
Worker.prototype.tell = function (name, event) { window.answers += JSON.stringify(event.data ?? name); return tell.call(this, name, event); };
1"""


def problems(site: Path) -> list[str]:
    """Return what is wrong with the search, a sentence each; nothing where there is no Chromium, which is said.

    Parameters
    ----------
    site : Path

    Returns
    -------
    list of str
    """
    executable = shutil.which("chromium") or shutil.which("google-chrome")
    if executable is None:
        print("no chromium: the search was not tried", file=sys.stderr)
        return []
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "report"))
    from browser import Browser

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home:
        browser = Browser(executable, Path(home))
        try:
            tab = browser.open(site / "tutorials" / "qdrant.html", width=1280, height=900)
            tab.evaluate(_LISTEN)
            tab.evaluate("document.querySelector('.md-search__button').click(); 1")
            end, shown = time.monotonic() + 45, ""
            tab.picture()  # the field takes the focus with the next frame, and nobody looks
            time.sleep(2)
            tab.evaluate("window.answers = ''")
            tab.ask("Input.insertText", text=ASKED)
            while not _FOUND.search(shown) and time.monotonic() < end:
                time.sleep(0.5)
                shown = tab.evaluate("window.answers")
        finally:
            browser.close()
    return [] if _FOUND.search(shown) else [f"a search for {ASKED!r} from a file is answered by {shown[-300:]!r}"]
