"""Check of the finished site's search in a real browser, on pages opened as files and without a network."""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
import time
from pathlib import Path

#: The query; several pages contain these words.
QUERY = "partial isometry"

#: Text in an answer of the worker that has results.
_HAS_RESULTS = re.compile(r'"total":[1-9]')

#: Script that records the answers of the search's worker, since the dialog itself is in closed shadow trees.
_LISTEN = """
window.answers = "";
const tell = Worker.prototype.tell;
Worker.prototype.tell = function (name, event) { window.answers += JSON.stringify(event.data ?? name); return tell.call(this, name, event); };
1"""


def problems(site: Path) -> list[str]:
    """Return the problems of the search, one sentence each; without Chromium the search is not tried, and a note is printed.

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
            tab.picture()  # forces a frame, with which the search field takes the focus
            time.sleep(2)
            tab.evaluate("window.answers = ''")
            tab.ask("Input.insertText", text=QUERY)
            while not _HAS_RESULTS.search(shown) and time.monotonic() < end:
                time.sleep(0.5)
                shown = tab.evaluate("window.answers")
        finally:
            browser.close()
    return [] if _HAS_RESULTS.search(shown) else [f"a search for {QUERY!r} from a file is answered by {shown[-300:]!r}"]
