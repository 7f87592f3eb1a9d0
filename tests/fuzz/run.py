"""Fuzz the readers for a while: ``python tests/fuzz/run.py --minutes 60 [--target NAME] [--seed N] [--out FOLDER]``.

With ``--cases 100000`` so many files are read, of all targets alike. ``--target commands`` maps and lists each file by
the commands: one sentence and exit 2, or an output and exit 0.

The input of every finding is kept under ``--out`` with its outcome; ``--replay FOLDER`` reads it again.
"""

import argparse
import json
import sys
import time
from collections import Counter
from itertools import count
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "src")]

from driver import PER_SEED, Child, all_targets  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0, help="how long, for all targets together")
    parser.add_argument("--cases", type=int, default=sys.maxsize, help="how many, for all targets together")
    parser.add_argument("--target", action="append", help="a target, or the beginning of several; may be repeated")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("out/fuzz"), help="folder of findings")
    parser.add_argument("--replay", type=Path, help="read the input of one finding again, and show what happens")
    options = parser.parse_args()
    if options.replay:  # in this process, so that a debugger can be attached
        finding = json.loads((options.replay / "finding.json").read_text())
        (place,) = (path for path in options.replay.iterdir() if path.name != "finding.json")
        all_targets()[finding["target"]].read(place)
        print("read without a failure")
        return 0
    names = [name for name in all_targets() if name.startswith(tuple(options.target or [""]))]
    if not names:
        parser.error(f"got no target {options.target}; expected some of: {', '.join(all_targets())}")
    return 1 if fuzz(names, options.seed, options.minutes * 60, options.out, options.cases) else 0


def fuzz(names: list[str], seed: int, seconds: float, out: Path, cases: int) -> int:
    """Run the targets in turn, in rounds, until the time or the cases are over; return the number of findings."""
    counts = {name: Counter() for name in names}
    stop, child = time.monotonic() + seconds, Child()
    try:
        for name, first in ((name, first) for first in count(0, PER_SEED) for name in names):
            left = cases - sum(map(Counter.total, counts.values()))
            if time.monotonic() > stop or not left:
                break
            for number, what, result in child.run(name, range(first, first + min(PER_SEED, left)), seed):
                counts[name][what] += 1
                if what == "finding":
                    place = out / f"{name.replace(' ', '_').replace('.', '-').replace(',', '')}-{seed}-{number}"
                    child.keep(place)
                    finding = {"target": name, "seed": seed, "number": number, "what": result}
                    (place / "finding.json").write_text(json.dumps(finding, indent=2) + "\n")
                    shown = result.encode("ascii", "backslashreplace").decode()
                    print(f"\n{name} {number}: {shown}\n  input: {place}", flush=True)
    finally:
        child.close()
    print(f"\n{'target':40}{'cases':>8}{'read':>8}{'refused':>9}{'findings':>10}")
    whole = sum(counts.values(), Counter())
    for name, one in [*counts.items(), ("all", whole)]:
        print(f"{name:40}{sum(one.values()):8}{one['read']:8}{one['refused']:9}{one['finding']:10}")
    print("worst case: {:.1f} s ({})".format(*child.slowest))
    print("most memory beyond that of the start of a process: {:.0f} MiB ({})".format(*child.largest))
    return whole["finding"]


if __name__ == "__main__":
    sys.exit(main())
