"""Run cases of a target in a child process with limits of time and memory, and report the outcome of each."""

from __future__ import annotations

import json
import os
import random
import resource
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent

#: Time limit of a case in seconds, and bytes that it may allocate in addition to the child's memory at its start.
SECONDS, MEMORY = 60.0, 2 * 2**30

#: Cases that share one valid input.
PER_SEED = 25


@dataclass
class Outcome:
    """Outcomes of the cases of a target."""

    #: Cases by outcome: ``read`` (everything, with valid values), ``refused`` (at least a part) and ``finding``.
    counts: Counter = field(default_factory=Counter)
    #: ``target``, ``number``, ``what`` and, if inputs are kept, ``input``.
    findings: list[dict[str, Any]] = field(default_factory=list)


def run_cases(
    target: str, first: int, count: int, *, seed: int = 0, keep: Path | None = None, child: Child | None = None
) -> Outcome:
    """Run cases of a target; one that kills or hangs the child is a finding, and a new child continues after it."""
    out, number, own = Outcome(), first, child is None
    child = child or Child()
    try:
        while number < first + count:
            for done, what, result in child.ask(target, seed, number, first + count - number):
                number = done
                if what == "finding":
                    finding = {"target": target, "seed": seed, "number": number, "what": result}
                    out.findings.append(finding | ({"input": child.keep(keep, target, seed, number)} if keep else {}))
                out.counts[what] += 1
            number += 1
    finally:
        if own:
            child.close()
    return out


class Child:
    """A process that reads damaged files, and is restarted after it died."""

    def __init__(self) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="fuzz-"))
        self.process: subprocess.Popen[bytes] | None = None
        self._ended = self._tired = False

    def _start(self) -> subprocess.Popen[bytes]:
        if self.process is not None and self._tired:
            self.process.wait()
        if self.process is None or self.process.poll() is not None:
            self._tired = False
            self.process = subprocess.Popen(
                [sys.executable, str(Path(__file__)), str(self.home)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=open(self.home / "stderr", "wb"),
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                bufsize=0,
            )
            self._lines = self._read(self.process, 600)  # imports may take long on a busy machine
            if next(self._lines, None) != "ready":
                raise RuntimeError(
                    f"the reading process did not start\n{(self.home / 'stderr').read_text(errors='replace')[-2000:]}"
                )
        return self.process

    def ask(self, target: str, seed: int, first: int, count: int) -> Iterator[tuple[int, str, str]]:
        """Yield number, outcome and explanation of each case, until all are done or the child has ended."""
        process = self._start()
        assert process.stdin is not None
        process.stdin.write(json.dumps([target, seed, first, count]).encode() + b"\n")
        number = first
        for line in self._lines:
            if line in ("done", "tired"):
                self._tired = line == "tired"
                return
            number, what, result = json.loads(line)
            if what == "broken":
                raise RuntimeError(f"{target}, case {number}: its valid input could not be created\n{result}")
            yield number, what, result
            number += 1
        hung = not self._ended
        process.kill() if hung else process.wait()
        process.wait()
        stderr = (self.home / "stderr").read_text(errors="replace")[-2000:]
        code = process.returncode
        yield number, "finding", f"no answer within {SECONDS:.0f} s" if hung else f"the process died ({code}): {stderr}"

    def _read(self, process: subprocess.Popen[bytes], patience: float) -> Iterator[str]:
        assert process.stdout is not None
        buffer = b""
        while True:
            while b"\n" in buffer:
                line, _, buffer = buffer.partition(b"\n")
                yield line.decode()
                patience = SECONDS + 5
            ready, _, _ = select.select([process.stdout], [], [], patience)
            more = os.read(process.stdout.fileno(), 65536) if ready else b""
            if not more:
                self._ended = bool(ready)
                return
            buffer += more

    def keep(self, folder: Path, target: str, seed: int, number: int) -> str:
        """Copy the input of a case to a folder of findings."""
        place = folder / f"{target.replace(' ', '_').replace('.', '-').replace(',', '')}-{seed}-{number}"
        place.mkdir(parents=True, exist_ok=True)
        kept = self.home / "found" / str(number)
        # If the process died, its input is still in "in".
        for source in (kept if kept.is_dir() else self.home / "in").iterdir():
            copy(source, place / source.name)
        return str(place)

    def close(self) -> None:
        """End the process and remove its folder."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
        shutil.rmtree(self.home, ignore_errors=True)


def copy(source: Path, target: Path) -> None:
    """Copy a file, or a folder with its links as links."""
    if source.is_dir():
        shutil.copytree(source, target, symlinks=True, dirs_exist_ok=True)
    else:
        shutil.copy(source, target)


def remove(path: Path) -> None:
    """Remove a file or a folder."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


def _all_targets() -> dict[str, Any]:
    sys.path[:0] = [str(HERE), str(HERE.parent / "image_sets")]
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


def _serve(home: Path) -> None:
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    targets = _all_targets()
    import h5py  # noqa: F401
    import lance  # noqa: F401
    import torch  # noqa: F401
    from targets import REFUSALS, check_message

    import congruence.stores.hdf5 as hdf5
    from congruence.errors import CongruenceError

    hdf5._PATIENCE = 3.0
    tempfile.tempdir = str(home / "tmp")
    for name in ("in", "tmp", "cwd", "seeds"):
        (home / name).mkdir(exist_ok=True)
    os.chdir(home / "cwd")
    guard = Guard(home)
    for name in ("vectors.lance", "map mlp"):  # their libraries start threads, which allocate memory
        place = home / "tmp" / name
        place.mkdir()
        targets[name].read(targets[name].make(random.Random(1), place))
        remove(place)
    limit = _memory() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**30, 2**30))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    print("ready", file=out, flush=True)
    made: dict[tuple[str, int, int], list[Path]] = {}
    for line in sys.stdin.buffer:
        name, seed, first, count = json.loads(line)
        target = targets[name]
        for number in range(first, first + count):
            try:
                valid = _prepare(home, target, name, seed, number, made)
            except Exception:
                print(json.dumps([number, "broken", traceback.format_exc()]), file=out, flush=True)
                break
            place = home / "in" / valid.name
            REFUSALS.clear()
            what, result = _judge(target.read, place, guard, CongruenceError, check_message)
            what = "refused" if what == "read" and REFUSALS else what
            left = [p.name for p in (home / "cwd").iterdir()]
            if left or guard.seen:
                what, result = "finding", f"{guard.seen} {left}"
                guard.seen.clear()
                for path in (home / "cwd").iterdir():
                    remove(path)
            if what == "finding":
                (home / "found" / str(number)).mkdir(parents=True, exist_ok=True)
                copy(place, home / "found" / str(number) / valid.name)
            print(json.dumps([number, what, result]), file=out, flush=True)
            if limit - _memory() < MEMORY // 2:  # memory pools of earlier cases must not count against later ones
                print("tired", file=out, flush=True)
                return
        print("done", file=out, flush=True)


def _prepare(
    home: Path, target: Any, name: str, seed: int, number: int, made: dict[tuple[str, int, int], list[Path]]
) -> Path:
    """Write the input of a case; return the valid input from which it was made."""
    group = number // PER_SEED
    if (name, seed, group) not in made:
        made.clear()
        shutil.rmtree(home / "seeds")
        inputs = []
        for extra in range(2):
            (home / "seeds" / str(extra)).mkdir(parents=True)
            inputs.append(target.make(random.Random(f"{name} {seed} {group} {extra}"), home / "seeds" / str(extra)))
        made[name, seed, group] = inputs
    for old in (home / "in").iterdir():
        remove(old)
    rng = random.Random(f"{name} {seed} {number}")
    valid, *donors = made[name, seed, group]
    if target.damage is not None:
        copy(valid, home / "in" / valid.name)
        target.damage(rng, home / "in" / valid.name)
    else:
        damage(rng, valid, home / "in" / valid.name, donors)
    return valid


def _memory() -> int:
    with open("/proc/self/statm") as stream:
        return int(stream.read().split()[0]) * resource.getpagesize()


def _judge(read: Any, place: Path, guard: Guard, kind: type[Exception], check_message: Any) -> tuple[str, str]:
    began = time.perf_counter()
    guard.on = True
    try:
        read(place)
        what, result = "read", ""
    except kind as error:
        what, result = "refused", ""
        try:
            check_message(error)
        except Exception as bad:
            what, result = "finding", f"message: {bad}"
    except BaseException:
        what, result = "finding", traceback.format_exc()[-3000:]
    guard.on = False
    took = time.perf_counter() - began
    if took > SECONDS:
        return "finding", f"took {took:.1f} s"
    return what, result


if __name__ == "__main__":
    _serve(Path(sys.argv[1]))
