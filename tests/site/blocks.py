"""Run the code blocks of a page in order, as a reader would, and compare their output with the output on the page."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from pathlib import Path
from typing import Any

BLOCK = re.compile(r"^```(\w+)[^\n]*\n(.*?)^```", re.M | re.S)

#: Numbers on a page are compared with a relative tolerance, since their last digits differ between machines.
NUMBER = re.compile(r"[-−+]?\d[\d,]*\.?\d*(?:e[-+]?\d+)?")
TOLERANCE = 0.03


def commands(script: str) -> list[list[str]]:
    """Split a shell block into congruence commands, the only commands allowed there."""
    lines = [line.removeprefix("$ ") for line in script.replace("\\\n", " ").splitlines() if line.strip()]
    found = [shlex.split(line, comments=True) for line in lines]
    assert all(words[0] == "congruence" for words in found if words), script
    return [words[1:] for words in found if words]


def agrees(said: str, printed: str) -> bool:
    """Return whether a line of the page equals a printed line, up to spaces and the last digits of numbers."""
    if NUMBER.sub("#", " ".join(said.split())) != NUMBER.sub("#", " ".join(printed.split())):
        return False
    pairs = zip(NUMBER.findall(said), NUMBER.findall(printed), strict=True)
    values = [[float(text.replace(",", "").replace("−", "-")) for text in pair] for pair in pairs]
    return all(abs(a - b) <= TOLERANCE * max(1, abs(a), abs(b)) for a, b in values)


def run_page(page: Path, here: Any, replace: dict[str, str] | None = None) -> str:
    """Run the code blocks of a page in the current folder, and return all output.

    Parameters
    ----------
    page : Path
    here : callable
        The fixture that runs a command in this process.
    replace : dict of str to str, optional
        Strings of the page, such as addresses, and what the test uses instead.
    """
    text = page.read_text(encoding="utf-8")
    for old, new in (replace or {}).items():
        assert old in text, old
        text = text.replace(old, new)
    names: dict[str, Any] = {"__name__": page.stem}
    everything, last = [], ""
    for language, code in BLOCK.findall(text):
        if language == "python":
            with contextlib.redirect_stdout(io.StringIO()) as out:
                exec(compile(code, page.name, "exec"), names)
            last = out.getvalue()
        elif language == "bash":
            last = ""
            for words in commands(code):
                into = words[words.index(">") + 1] if ">" in words else None
                done = here(*(words[: words.index(">")] if into else words))
                assert done.code == 0, (words, done.err)
                if into:
                    Path(into).write_text(done.out, encoding="utf-8")
                else:
                    last += done.out
        elif language == "text":
            printed = last.splitlines()
            for line in code.splitlines():
                if line.strip() not in ("", "…"):
                    assert any(agrees(line, one) for one in printed), (page.name, line, last)
            continue
        everything.append(last)
    return "".join(everything)
