from __future__ import annotations

import gc
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

from congruence.errors import CongruenceWarning

# Examples are few but fixed: CI must not depend on luck. Deadlines are off: the machines are noisy.
settings.register_profile(
    "ci", max_examples=40, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
settings.register_profile("costly", settings.get_profile("ci"), max_examples=15)  # 40 ms an example, in many cases
settings.register_profile("process", settings.get_profile("ci"), max_examples=30)  # a new interpreter for every example
settings.load_profile("ci")


#: The names of all modules that collecting tests has imported.
COLLECTED = pytest.StashKey[set[str]]()


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Iterator[None]:
    """Collect garbage neither while thousands of tests and their libraries are loaded, nor among them later: they stay to the end."""
    gc.disable()
    try:
        return (yield)
    finally:
        session.config.stash[COLLECTED] = set(sys.modules)
        gc.freeze()
        gc.set_threshold(20_000)  # 700 make a collection of every few milliseconds of drawing or parsing
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the longest tests, so that no worker is left with one of them at the end, then those that import the largest libraries.

    Workers begin with equal stretches of this list, so that these imports are paid for by the first worker alone.
    """
    items.sort(key=lambda item: [item.get_closest_marker(name) is None for name in ("slow", "heavy")])


@pytest.fixture(scope="session")
def collected(request) -> set[str]:
    """Give the names of all modules that were imported before the first test ran."""
    return request.config.stash[COLLECTED]


@pytest.fixture(scope="session", autouse=True)
def asks_processor() -> Iterator[Callable[[], bool]]:
    """Train in float32 on every processor, as numbers must not depend on the machine, and give what ``precision="auto"`` asks elsewhere."""
    from congruence.train import loop

    asks = loop.processor_has_bfloat16
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "processor_has_bfloat16", lambda: False)
        yield asks


SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"


def shared_file(name: str) -> Path:
    path = SHARED / name
    if not path.is_file():
        pytest.skip(f"needs {name} of the shared test data, which is not beside this checkout")
    return path


@pytest.fixture(scope="session")
def shared():
    """Give the path of a file of the shared test data, or skip."""
    return shared_file


@pytest.fixture(scope="session")
def lvis_path() -> Path:
    return shared_file("lvis1203_clip.npz")


@pytest.fixture(scope="session")
def lvis(lvis_path):
    with np.load(lvis_path, allow_pickle=False) as data:
        return {key: data[key] for key in data.files}


class Result:
    def __init__(self, process: subprocess.CompletedProcess) -> None:
        self.code, self.out, self.err = process.returncode, process.stdout, process.stderr


@pytest.fixture
def cli(tmp_path):
    """Run the real command in a fresh folder, as a user would."""

    def run(*arguments: object, cwd: Path | None = None) -> Result:
        process = subprocess.run(
            [sys.executable, "-c", "from congruence.cli import main; main()", *map(str, arguments)],
            capture_output=True,
            text=True,
            cwd=cwd or tmp_path,
            env={**os.environ, "COLUMNS": "200"},
            check=False,
        )
        return Result(process)

    return run


@pytest.fixture
def here(cli, monkeypatch, tmp_path, capsys):
    """Run the command inside this process: the same entry point without the cost of a new interpreter."""
    import sklearn.base  # noqa: F401  # this process runs more than a command, so its maps are scikit-learn's estimators

    from congruence.cli import main

    def run(*arguments: object) -> Result:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["congruence", *map(str, arguments)])
        code = 0
        with warnings.catch_warnings():  # pytest turns our warnings into errors; a user sees them
            warnings.simplefilter("always", CongruenceWarning)
            try:
                main()
            except SystemExit as stop:
                code = int(stop.code or 0)
        captured = capsys.readouterr()
        return Result(subprocess.CompletedProcess([], code, captured.out, captured.err))

    return run
