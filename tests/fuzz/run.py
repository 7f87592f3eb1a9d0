"""Fuzz the readers for a while: ``python tests/fuzz/run.py --minutes 60 [--target NAME] [--seed N] [--out FOLDER]``.

The input of every finding is kept under ``--out`` with its outcome; ``--replay FOLDER`` reads it again.
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "src")]

from driver import PER_SEED, Child, Outcome, _all_targets, copy, run_cases  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0, help="how long, for all targets together")
    parser.add_argument("--target", action="append", help="a target, or the beginning of several; may be repeated")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("out/fuzz"), help="folder of findings")
    parser.add_argument("--replay", type=Path, help="read the input of one finding again, and show what happens")
    options = parser.parse_args()
    names = list(_all_targets())
    if options.replay:
        return replay(options.replay)
    chosen = [name for name in names if not options.target or any(name.startswith(t) for t in options.target)]
    if not chosen:
        parser.error(f"got no target {options.target}; expected some of: {', '.join(names)}")
    found = fuzz(chosen, options.seed, options.minutes * 60, options.out)
    return 1 if found else 0


def fuzz(names: list[str], seed: int, seconds: float, out: Path) -> int:
    """Run the targets in turn, in rounds, until the time is over; return the number of findings."""
    totals = {name: Outcome() for name in names}
    stop, first = time.monotonic() + seconds, 0
    child = Child()
    try:
        while time.monotonic() < stop:
            for name in names:
                if time.monotonic() > stop:
                    break
                done = run_cases(name, first, PER_SEED, seed=seed, keep=out, child=child)
                totals[name].counts += done.counts
                totals[name].findings += done.findings
                for finding in done.findings:
                    (Path(finding["input"]) / "finding.json").write_text(json.dumps(finding, indent=2) + "\n")
                    result = finding["what"].encode("ascii", "backslashreplace").decode()
                    print(f"\n{name} {finding['number']}: {result}\n  input: {finding['input']}", flush=True)
            first += PER_SEED
    finally:
        child.close()
    print(f"\n{'target':40}{'cases':>8}{'read':>8}{'refused':>9}{'findings':>10}")
    for name, total in [*totals.items(), ("all", sum_of(totals))]:
        count = total.counts
        print(f"{name:40}{sum(count.values()):8}{count['read']:8}{count['refused']:9}{count['finding']:10}")
    return len(sum_of(totals).findings)


def sum_of(totals: dict[str, Outcome]) -> Outcome:
    whole = Outcome()
    for total in totals.values():
        whole.counts.update(total.counts)
        whole.findings += total.findings
    return whole


def replay(folder: Path) -> int:
    """Read the input of a finding in this process, so that a debugger can be attached."""
    finding = json.loads((folder / "finding.json").read_text())
    with tempfile.TemporaryDirectory() as home:
        (source,) = (path for path in folder.iterdir() if path.name != "finding.json")
        place = Path(home) / source.name
        copy(source, place)
        _all_targets()[finding["target"]].read(place)
    print("read without a failure")
    return 0


if __name__ == "__main__":
    sys.exit(main())
