"""Run the command line in forked processes that are killed, or wait for each other, at a chosen write step."""

import multiprocessing
import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.forkserver import ensure_running
from pathlib import Path
from typing import Any

import pytest
from commands import CASES

import congruence._utils.atomic as atomic
from congruence.embed import VectorCache
from congruence_papers.image_sets import archives

#: Processes are forked from one that has imported everything commands need, so that a case does not pay for imports.
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    [
        # Also what libraries import on first use: those of typer and torch's optimizers took most of a case's time.
        *("torch", "torch._dynamo", "faiss", "lance", "scipy.optimize", "scipy.stats", "sklearn.cross_decomposition"),
        *("onnx.checker", "onnx.helper", "onnx.numpy_helper", "array_api_compat.numpy", "pyarrow.parquet", "jinja2"),
        *("yaml", "rich.console", "rich.table", "typer._adapters", "congruence.integrations.faiss"),
        *("congruence.cli", "congruence.train", "congruence.recipe", "congruence.report", "congruence.datasets"),
        *("congruence.upgrade.certify", "congruence.upgrade.transform", "congruence.compare.spaces"),
        *("congruence.embed", "congruence_papers.commands", "congruence_papers.running"),
        *("congruence_papers", "congruence_papers.negatives", "congruence_papers.image_sets", "warm"),
    ]
)


def run(case: str, folder: Path, *more: str, dies: int | None = None) -> int:
    return finish(start(case, folder, *more, dies=dies))


def start(case: str, folder: Path, *more: str, dies: int | None = None, barrier: Any = None) -> Any:
    with pytest.MonkeyPatch.context() as patch:  # for the fork server, which is started once and has to find "warm"
        patch.setenv("PYTHONPATH", str(Path(__file__).parent))
        ensure_running()
    process = CONTEXT.Process(target=_command, args=(case, str(folder), more, dies, barrier))
    process.start()
    return process


def finish(process: Any, seconds: float = 120) -> int:
    process.join(seconds)
    if process.exitcode is None:
        process.kill()
        process.join()
        raise AssertionError("the command did not end")
    return process.exitcode


def said(folder: Path) -> str:
    return (folder.parent / "said.txt").read_text(errors="replace")


def _command(case: str, folder: str, more: tuple[str, ...], dies: int | None, barrier: Any) -> None:
    os.chdir(folder)
    log = os.open(os.path.join(os.path.dirname(folder), "said.txt"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for number in (1, 2):
        os.dup2(log, number)
    sys.argv = ["congruence", *CASES[case].arguments, *more]
    if CASES[case].patch is not None:
        CASES[case].patch()
    if dies is not None:
        _die_at(dies)
    if barrier is not None:
        _wait_at(barrier)
    from congruence.cli import main

    code = 0
    try:
        main()
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 0
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        if barrier is not None:
            barrier.abort()  # release processes that still wait
    os._exit(code)


def _die_at(step: int) -> None:
    count = 0

    def reach() -> None:
        nonlocal count
        if count == step:
            os.kill(os.getpid(), signal.SIGKILL)
        count += 1

    def wrap(real: Callable[..., Any], before: bool) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            if before:
                reach()
            result = real(*arguments, **options)
            reach()
            return result

        return call

    # The functions that write, and whether a step lies before and after the call.
    for place, name, before in (
        (atomic, "_publish", True),
        (atomic, "exchange", False),
        (VectorCache, "put", True),
        (shutil, "rmtree", True),
        (archives, "_merge", True),
    ):
        setattr(place, name, wrap(getattr(place, name), before))


def _wait_at(barrier: Any) -> None:
    """Make the first publication in this process wait until all other processes have reached theirs, or have ended."""
    real, waited = atomic._publish, False

    def publish(*arguments: Any) -> None:
        nonlocal waited
        if not waited:
            waited = True
            with suppress(threading.BrokenBarrierError):
                barrier.wait(30)
        real(*arguments)

    atomic._publish = publish
