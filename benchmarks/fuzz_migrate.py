"""Fuzz test of migrations with damaged and malicious journals and maps: each must give a CongruenceError or a result,
and change nothing it should not.

``python benchmarks/fuzz_migrate.py --cases 100000``. A small migration in an in-memory database is complete and
verified, but not switched. Each case changes its journal or its saved map: bits, lengths and pieces
(``tests/fuzz/mutators.py``), values of another type or size, exchanged fields, files of megabytes; half of the journals
and of the maps get the right digest, as by an informed attacker. Then everything that reads them runs: opening, status,
summary, verification, a resumed run, another verification, a switch and a rollback. Each step must return its result or
raise one ``CongruenceError`` of a bounded length. The old vectors must be bit-identical after each step and, if opening
is refused, the new vectors and all files too. A case that takes more than ten seconds fails.
"""

from __future__ import annotations

import json
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "tests" / "databases"), str(HERE.parent / "tests" / "fuzz")]

import numpy as np  # noqa: E402
from memory_database import MemoryDatabase, Table  # noqa: E402
from mutators import BYTES, TEXT, mutate, mutate_data, mutate_safetensors  # noqa: E402

from common import arguments, write_json  # noqa: E402

#: Largest length of a message, in characters, and time limit of a case in seconds.
LONGEST, SECONDS = 6000, 10

N, D = 12, 4


def made() -> tuple[Table, Any]:
    """Return a table and a map for its rows."""
    from congruence import OrthogonalMap

    rng = np.random.default_rng(0)
    rows = rng.normal(size=(40, D)).astype(np.float32) + 1
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    target = rows[:, ::-1] + np.float32(0.1)
    target /= np.linalg.norm(target, axis=1, keepdims=True)
    mapping = OrthogonalMap().fit(rows, target, modality="image")
    return Table({k: {"kind": "image"} for k in range(N)}, {k: rows[k] for k in range(N)}), mapping


def copied(table: Table) -> Table:
    return Table(table.rows, dict(table.old), dict(table.new), table.made, table.switched)


def bits(vectors: dict[int, np.ndarray]) -> bytes:
    return b"".join(str(key).encode() + vectors[key].tobytes() for key in sorted(vectors))


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def hostile_journal(rng: random.Random, raw: bytes) -> bytes:
    """Damage a journal, or change its values and write the right digest."""
    from congruence.upgrade.migrate.journal import digest_of

    what = rng.random()
    if what < 0.4:
        return mutate(rng, raw, TEXT)
    result = json.loads(raw)
    if what < 0.5:
        return json.dumps(mutate_data(rng, result)).encode()
    if what < 0.51:
        return raw + b" " * rng.choice((2**20, 5 * 2**20))
    given = result.pop("digest")
    if what < 0.6:
        one, other = rng.sample(sorted(result), 2)
        result[one], result[other] = result[other], result[one]
    else:
        result = mutate_data(rng, result)
    try:
        return json.dumps({**result, "digest": digest_of(result)} if isinstance(result, dict) else result).encode()
    except (TypeError, ValueError):  # values that cannot be written as JSON, and so get no digest
        return json.dumps({**result, "digest": given} if isinstance(result, dict) else result).encode()


def hostile_map(rng: random.Random, folder: Path) -> None:
    """Damage one of a map's files, with or without correcting its checksums."""
    from own import seal_map

    if rng.random() < 0.5:
        seal_map(rng, folder)
        return
    path = rng.choice(sorted(one for one in folder.iterdir() if one.is_file()))
    raw = path.read_bytes()
    if path.suffix == ".safetensors" and rng.random() < 0.3:
        path.write_bytes(mutate_safetensors(rng, raw))
    elif rng.random() < 0.05:
        path.unlink()
    else:
        path.write_bytes(mutate(rng, raw, TEXT if path.suffix == ".json" else BYTES))


class Case:
    """One damaged copy and its result."""

    def __init__(self, table: Table, folder: Path) -> None:
        self.table, self.folder = table, folder
        self.old = bits(table.old)
        self.refusals = 0

    def step(self, run: Any) -> Any:
        """Run one step; return its result, or None after a CongruenceError. The old vectors must be unchanged."""
        from congruence.errors import CongruenceError

        result, said = None, "."
        try:
            result = run()
        except CongruenceError as error:
            self.refusals += 1
            said = str(error)
        assert 0 < len(said) <= LONGEST, f"a message of {len(said)} characters"
        assert bits(self.table.old) == self.old, "the old vectors changed"
        return result


def judge(table: Table, folder: Path) -> str:
    """Return ``refused`` if the migration could not be opened, ``read`` if it could, or ``read, then refused`` if a
    later step failed.
    """
    from congruence.upgrade.migrate import Migration

    case, new, files = Case(table, folder), bits(table.new), contents(folder)
    migration = case.step(lambda: Migration(MemoryDatabase(table), journal=folder))
    if migration is None:
        assert (bits(table.new), contents(folder)) == (new, files), "a refusal has touched something"
        return "refused"
    case.step(migration.status)
    case.step(migration.summary)
    case.step(migration.verify)
    case.step(lambda: migration.run(resume=True))
    case.step(migration.verify)  # a resumed run must be verified again before the switch
    case.step(migration.switch)
    case.step(migration.rollback)
    return "read" if not case.refusals else "read, then refused"


def stop(*_: object) -> None:
    raise TimeoutError(f"more than {SECONDS} s")


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--cases", type=int, default=100_000)
    parser.add_argument("--first", type=int, default=0, help="number of the first case, to repeat one")
    parser.add_argument("--maps", type=float, default=0.2, help="share of the cases in which the map is damaged")
    options = parser.parse_args()
    from congruence.upgrade.migrate import Migration

    signal.signal(signal.SIGALRM, stop)
    counts: Counter[str] = Counter()
    slowest = 0.0
    findings: dict[str, int] = {}
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as scratch:
        table, mapping = made()
        good, folder = Path(scratch) / "good", Path(scratch) / "journal"
        with Migration(MemoryDatabase(table), mapping, journal=good, modality="image") as migration:
            migration.run()
            assert migration.verify().passed
        (good / "other.txt").write_text("a file of somebody else's")
        raw = (good / "journal.json").read_bytes()
        outcome = ""
        for number in range(options.first, options.first + options.cases):
            rng = random.Random(f"migrate {number}")
            if outcome == "journal refused":  # only that file has changed
                (folder / "journal.json").write_bytes(raw)
            else:
                shutil.rmtree(folder, ignore_errors=True)
                shutil.copytree(good, folder)
            what = "map" if rng.random() < options.maps else "journal"
            if what == "map":
                hostile_map(rng, folder / "map")
            else:
                (folder / "journal.json").write_bytes(hostile_journal(rng, raw))
            began = time.process_time()
            signal.alarm(SECONDS)
            try:
                outcome = f"{what} {judge(copied(table), folder)}"
            except Exception as error:
                outcome = f"{what} finding"
                where = traceback.extract_tb(error.__traceback__)[-1]
                said = f"{type(error).__name__} in {Path(where.filename).name}:{where.lineno}: {error}"[:300]
                if said not in findings:
                    print(f"case {number}: {said}", flush=True)
                findings.setdefault(said, number)
            signal.alarm(0)
            slowest = max(slowest, time.process_time() - began)
            counts[outcome] += 1
    results = {"cases": options.cases, **dict(sorted(counts.items())), "findings": len(findings), "slowest": slowest}
    print(results)
    write_json(options, results)
    sys.exit(1 if findings else 0)


if __name__ == "__main__":
    main()
