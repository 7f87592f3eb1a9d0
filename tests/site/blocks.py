"""Run the blocks of a page in the order in which they stand, as a reader would, and compare what they print with what the page says."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from pathlib import Path
from typing import Any

BLOCK = re.compile(r"^```(\w+)[^\n]*\n(.*?)^```", re.M | re.S)

#: Numbers differ in the last digits between machines.
NUMBER = re.compile(r"[-−+]?\d[\d,]*\.?\d*(?:e[-+]?\d+)?")
TOLERANCE = 0.03


def commands(script: str) -> list[list[str]]:
    """Split a block of shell into commands of congruence; nothing else may stand there."""
    lines = [line.removeprefix("$ ") for line in script.replace("\\\n", " ").splitlines() if line.strip()]
    found = [shlex.split(line, comments=True) for line in lines]
    assert all(words[0] == "congruence" for words in found if words), script
    return [words[1:] for words in found if words]


def agrees(said: str, printed: str) -> bool:
    """Whether a line of the page is a printed one, up to spaces and the last digits of numbers."""
    if NUMBER.sub("#", " ".join(said.split())) != NUMBER.sub("#", " ".join(printed.split())):
        return False
    pairs = zip(NUMBER.findall(said), NUMBER.findall(printed), strict=True)
    values = [[float(text.replace(",", "").replace("−", "-")) for text in pair] for pair in pairs]
    return all(abs(a - b) <= TOLERANCE * max(1, abs(a), abs(b)) for a, b in values)


def run_page(page: Path, here: Any, replace: dict[str, str] | None = None) -> str:
    """Run a page in the current folder; return all that it printed.

    Parameters
    ----------
    page : Path
    here : callable
        The fixture that runs a command in this process.
    replace : dict of str to str, optional
        Addresses that a test has under another name.
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
