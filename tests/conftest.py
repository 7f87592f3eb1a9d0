from __future__ import annotations

import gc
import os
import re
import shlex
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

from congruence.errors import CongruenceWarning

# Few examples, but always the same: CI must not depend on luck. No deadlines, because the machines are noisy.
settings.register_profile(
    "ci", max_examples=20, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
settings.register_profile("costly", settings.get_profile("ci"), max_examples=10)  # many take 40 ms per example
settings.load_profile("ci")
# Examples would contain numbers out of the source of all modules that happen to be loaded: other ones in each worker.
providers._get_local_constants = providers.Constants


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Disable garbage collection during test collection, and then exempt what was loaded: thousands of tests and their
    libraries stay to the end.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(20_000)  # the default, 700, means a collection every few milliseconds of drawing or parsing
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run first what imports the largest libraries: workers start with equal parts, so only the first pays."""
    items.sort(key=lambda item: item.get_closest_marker("heavy") is None)


@pytest.fixture(scope="session", autouse=True)
def float32() -> Iterator[None]:
    """Train in float32 on every processor, so that results do not depend on the machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("congruence.train.loop.processor_has_bfloat16", lambda: False)
        yield


SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"


def shared_file(name: str) -> Path:
    path = SHARED / name
    if not path.is_file():
        pytest.skip(f"needs {name} of the shared test data, which is not beside this checkout")
    return path


@pytest.fixture(scope="session")
def shared():
    """Return a function that gives the path of a shared test file, or skips the test if it is missing."""
    return shared_file


@pytest.fixture(scope="session")
def lvis_path() -> Path:
    return shared_file("lvis1203_clip.npz")


@pytest.fixture(scope="session")
def lvis(lvis_path):
    with np.load(lvis_path, allow_pickle=False) as data:
        return {key: data[key] for key in data.files}


class Result(NamedTuple):
    code: int
    out: str
    err: str

    def ends(self, code: int) -> Result:
        assert self.code == code, self.err
        return self

    def refused(self, *words: str) -> Result:
        """Check that the input was refused in one sentence with these words, and that nothing was reported."""
        self.ends(2)
        assert self.out == ""
        assert self.err.splitlines()[-1].startswith("error: "), self.err
        assert not [word for word in words if word not in self.err], self.err
        return self


@pytest.fixture
def cli(tmp_path):
    """Return a function that runs the real command in a new process and an empty folder, as a user would."""

    def run(*arguments: object, cwd: Path | None = None) -> Result:
        process = subprocess.run(
            [sys.executable, "-c", "from congruence.cli import main; main()", *map(str, arguments)],
            capture_output=True,
            text=True,
            cwd=cwd or tmp_path,
            env={**os.environ, "COLUMNS": "200"},
            check=False,
        )
        return Result(process.returncode, process.stdout, process.stderr)

    return run


#: Words of Python that no message of a command may have: arguments, modules and classes of the library.
_OPTION = re.compile(r"--[\w-]+[ =]\S+")
_PYTHON = re.compile(
    r"\b[a-z]\w*=(?:[\"'…({[]|None|True|False)|\bcongruence\.[a-z]\w*"
    r"|\b(?:\w+Map|\w+Heads|Embeddings|Bridge|Pairs|ndarray)\b"
)


def python_words(said: str) -> list[str]:
    """Return what only a reader of Python understands in the errors and warnings of a command."""
    lines = [line for line in said.splitlines() if line.startswith(("error: ", "warning: "))]
    return [word for line in lines if "in Python" not in line for word in _PYTHON.findall(_OPTION.sub("", line))]


@pytest.fixture
def here(monkeypatch, tmp_path, capsys):
    """Return a function that runs the command in this process, which costs no new interpreter.

    It takes the words of the command, of which the first may hold several, or one text of all words.
    """
    from congruence.cli import main

    def run(*arguments: object, cwd: Path | None = None) -> Result:
        monkeypatch.chdir(cwd or tmp_path)
        first, *others = map(str, arguments) if arguments else [""]
        words = [*(first.split() if others else shlex.split(first)), *others]
        monkeypatch.setattr(sys, "argv", ["congruence", *words])
        code = 0
        with warnings.catch_warnings():  # pytest turns our warnings into errors; users see them as warnings
            warnings.simplefilter("always", CongruenceWarning)
            try:
                main()
            except SystemExit as stop:
                code = int(stop.code or 0)
        done = Result(code, *capsys.readouterr())
        assert not python_words(done.err), done.err
        return done

    return run
