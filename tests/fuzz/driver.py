"""Run cases of a target in a child process with limits of time and memory, and report the outcome of each."""

from __future__ import annotations

import multiprocessing
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterable, Iterator
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "image_sets")]

#: Time limit of a case in seconds, and bytes that it may allocate in addition to the child's memory at its start.
SECONDS, MEMORY = 60.0, 2 * 2**30

PER_SEED = 25  # cases that share one valid input

CONTEXT = multiprocessing.get_context("spawn")


class Child:
    """A process that reads damaged files, and is started again after it died."""

    def __init__(self) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="fuzz-"))
        self.process: Any = None
        self._more = 0.0
        #: The most seconds that a case took, and MiB that a process needed more than at its start, with the target.
        self.slowest, self.largest = (0.0, ""), (0.0, "")

    def run(self, target: str, numbers: Iterable[int], seed: int = 0) -> Iterator[tuple[int, str, str]]:
        """Yield number, outcome and explanation of each case; one that kills or hangs the process is a finding.

        An outcome is ``read`` (everything, with valid values), ``refused`` (at least a part) or ``finding``.
        """
        for number in numbers:
            self._start()
            self.pipe.send((target, seed, number))
            began = time.monotonic()
            what, result = self._answer(SECONDS + 5)
            self.slowest = max(self.slowest, (time.monotonic() - began, target))
            self.largest = max(self.largest, (self._more, target))
            if what == "broken":
                raise RuntimeError(f"{target}, case {number}: its valid input could not be created\n{result}")
            yield number, what, result

    def _start(self) -> None:
        if self.process is None or not self.process.is_alive():
            self.pipe, theirs = CONTEXT.Pipe()
            self.process = CONTEXT.Process(target=_serve, args=(self.home, theirs), daemon=True)
            self.process.start()
            theirs.close()
            what, result = self._answer(600)  # imports may take long on a busy machine
            if what != "ready":
                raise RuntimeError(f"the reading process did not start\n{result}")

    def _answer(self, seconds: float) -> tuple[str, str]:
        try:
            if not self.pipe.poll(seconds):
                self._end()
                return "finding", f"no answer within {seconds:.0f} s"
            what, result, tired, self._more = self.pipe.recv()
        except (EOFError, ConnectionError):
            self.process.join()
            stderr = (self.home / "stderr").read_text(errors="replace")[-2000:]
            return "finding", f"the process died ({self.process.exitcode}): {stderr}"
        if tired:
            self._end()
        return what, result

    def _end(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.join()

    def keep(self, place: Path) -> None:
        """Copy the input of the last case to a new folder."""
        shutil.rmtree(place, ignore_errors=True)
        copy(self.home / "in", place)

    def close(self) -> None:
        """End the process and remove its folder."""
        self._end()
        shutil.rmtree(self.home, ignore_errors=True)


def copy(source: Path, target: Path) -> None:
    """Copy a file, or a folder with its links as links."""
    if source.is_dir():
        shutil.copytree(source, target, symlinks=True, dirs_exist_ok=True)
    else:
        shutil.copy(source, target)


def empty(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()


@cache
def all_targets() -> dict[str, Any]:
    from own import OWN
    from targets import TARGETS

    return {**TARGETS, **OWN}


def damage(rng: random.Random, seed_input: Path, place: Path, donors: list[Path]) -> None:
    """Write a damaged copy of a file, or of a folder one or two of whose files are damaged or missing."""
    from mutators import BYTES, TEXT, mutate, mutate_json, mutate_lines, mutate_safetensors, mutate_zip

    inner = {".json": mutate_json, ".jsonl": mutate_lines, ".npz": mutate_zip, ".safetensors": mutate_safetensors}
    inner[".zip"] = mutate_zip
    copy(seed_input, place)
    if seed_input.is_dir():
        files = sorted(file for file in place.rglob("*") if file.is_file())
        chosen = rng.sample(files, min(len(files), rng.choice((1, 1, 2))))
    else:
        chosen = [place]
    for file in chosen:
        raw, suffix = file.read_bytes(), file.suffix.lower()
        if place.is_dir() and rng.random() < 0.05:
            file.unlink()
            continue
        if rng.random() < 0.04:
            continue
        if suffix in inner and rng.random() < 0.6:
            try:
                file.write_bytes(inner[suffix](rng, raw))
                continue
            except Exception:  # the valid input is hostile on purpose, or another mutator broke it
                pass
        text = suffix in (".csv", ".tsv", ".json", ".jsonl", ".txt", ".yaml")
        others = [d.read_bytes() for d in donors if d.is_file()]
        file.write_bytes(mutate(rng, raw, TEXT if text else BYTES, others))


class Guard:
    """Records what a reader must not do: write outside its folder, unpickle, or use the network."""

    def __init__(self, home: Path) -> None:
        self.home, self.seen, self.on = str(home), [], False
        sys.addaudithook(self._hook)

    def _hook(self, event: str, args: Any) -> None:
        if not self.on:
            return
        if event == "pickle.find_class" or event.startswith("socket.connect"):
            self.seen.append(f"{event} {args!r}"[:300])
        if event == "open":
            path, _, flags = args
            writes = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
            if writes and isinstance(path, (str, bytes)) and not self._inside(os.fsdecode(path)):
                self.seen.append(f"a write to {path!r}")
        if event in ("os.remove", "os.rename", "os.mkdir", "os.rmdir", "shutil.rmtree") and not self._inside(
            os.fspath(args[0]) if not isinstance(args[0], int) else ""
        ):
            self.seen.append(f"{event} {args!r}"[:300])

    def _inside(self, path: str) -> bool:
        return os.path.abspath(path).startswith((self.home, "/dev/"))


def _serve(home: Path, pipe: Any) -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    log = os.open(home / "stderr", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for number in (1, 2):
        os.dup2(log, number)
    targets = all_targets()
    import h5py  # noqa: F401
    import lance  # noqa: F401
    import torch  # noqa: F401

    import congruence.io.hdf5 as hdf5

    hdf5._PATIENCE = 3.0
    tempfile.tempdir = str(home / "tmp")
    for name in ("in", "tmp", "cwd", "seeds"):
        empty(home / name)
    os.chdir(home / "cwd")
    guard = Guard(home)
    for name in ("vectors.lance", "vectors.faiss", "map mlp"):  # their libraries start threads, which allocate memory
        targets[name].read(targets[name].make(random.Random(1), home / "tmp"))
    empty(home / "tmp")
    limit = _memory() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**30, 2**30))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    before, tired = _peak(), False
    pipe.send(("ready", "", False, 0.0))
    while not tired:
        name, seed, number = pipe.recv()
        try:
            place = _prepare(home, name, seed, number)
        except Exception:
            what, result = "broken", traceback.format_exc()
        else:
            what, result = _judge(targets[name].read, place, guard)
            left = [path.name for path in (home / "cwd").iterdir()]
            if left or guard.seen:
                what, result = "finding", f"{guard.seen} {left}"
                guard.seen.clear()
                for path in (home / "cwd").iterdir():
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
        tired = limit - _memory() < MEMORY // 2  # memory pools of earlier cases must not count against later ones
        pipe.send((what, result, tired, (_peak() - before) / 2**10))


def _prepare(home: Path, name: str, seed: int, number: int) -> Path:
    """Write the input of a case, and return its path."""
    valid, *donors = _valid_inputs(home, name, seed, number // PER_SEED)
    empty(home / "in")
    place = home / "in" / valid.name
    rng, own = random.Random(f"{name} {seed} {number}"), all_targets()[name].damage
    if own is not None:
        copy(valid, place)
        own(rng, place)
    else:
        damage(rng, valid, place, donors)
    return place


@lru_cache(maxsize=1)
def _valid_inputs(home: Path, name: str, seed: int, group: int) -> list[Path]:
    """Write two valid inputs, of which the second gives pieces to damage the first with."""
    empty(home / "seeds")
    inputs = []
    for extra in range(2):
        folder = home / "seeds" / str(extra)
        folder.mkdir()
        inputs.append(all_targets()[name].make(random.Random(f"{name} {seed} {group} {extra}"), folder))
    return inputs


def _memory() -> int:
    with open("/proc/self/statm") as stream:
        return int(stream.read().split()[0]) * resource.getpagesize()


def _peak() -> int:
    """Return the largest memory that this process has had, in KiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _judge(read: Any, place: Path, guard: Guard) -> tuple[str, str]:
    from targets import REFUSALS, check_message

    from congruence.errors import CongruenceError

    REFUSALS.clear()
    began = time.perf_counter()
    guard.on = True
    try:
        read(place)
        what, result = "refused" if REFUSALS else "read", ""
    except CongruenceError as error:
        what, result = "refused", ""
        try:
            check_message(error)
        except Exception as bad:
            what, result = "finding", f"message: {bad}"
    except BaseException:
        what, result = "finding", traceback.format_exc()[-3000:]
    guard.on = False
    took = time.perf_counter() - began
    return ("finding", f"took {took:.1f} s") if took > SECONDS else (what, result)
