"""Regenerate the numbers in README and docs from the commands that print them.

python benchmarks/regenerate.py                  every block: those of seconds are measured, the others rendered from their records
python benchmarks/regenerate.py --slow           run the commands that take minutes first, and keep new records in docs/numbers
python benchmarks/regenerate.py --hours          and those that take hours
python benchmarks/regenerate.py --only NAME …    these blocks, whatever they take
python benchmarks/regenerate.py --check          write nothing; exit 1 where a page prints something else
python benchmarks/regenerate.py --list           every block: page, kind, last run, command

A block stands between ``<!-- numbers: NAME -->`` and ``<!-- end -->``. tests/test_numbers.py measures those of seconds, and renders the others
from their records; a table with measured numbers outside a block fails there. Times and memory are compared with the record only.
"""

from __future__ import annotations

import argparse
import json
import sys

from measured import BLOCKS, PAGES, ROOT, SENTENCES, Block, Job, blocks, records, replace, same
from measured.measures import MEASURES


def chosen(block: Block, options: argparse.Namespace, name: str) -> bool:
    """Return whether to run a block's commands, rather than only render its record."""
    if options.only:
        return name in options.only
    return block.kind == "seconds" or (options.slow and block.kind == "minutes") or options.hours


def run(job: Job, done: dict[str, dict], check: bool) -> dict | None:
    """Return a job's record: from a new run, or the stored one if only times would be compared."""
    if check and job.timing:
        return records.read(job)
    if job.name not in done:
        print(f"running {job.name}: {len(job.commands)} commands", flush=True)
        done[job.name] = records.make(job)
        if not check:
            records.write(job, done[job.name])
    return done[job.name]


def listing() -> None:
    for page in PAGES:
        for name in blocks(page):
            block = BLOCKS[name]
            first, more = (block.job.commands[0], len(block.job.commands) - 1) if block.job else ("", 0)
            command = f"{first}{f' (and {more} more)' * bool(more)}" or "python benchmarks/regenerate.py --only " + name
            print(f"{page.relative_to(ROOT)!s:22s} {name:29s} {block.kind:8s} {records.last_run(block):34s} {command}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--slow", action="store_true")
    parser.add_argument("--hours", action="store_true")
    parser.add_argument("--only", nargs="+", choices=sorted(BLOCKS), metavar="NAME")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--list", action="store_true")
    parser.add_argument(
        "--measure", choices=sorted(MEASURES), help="print one measure as JSON; some records are made with this option"
    )
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(MEASURES[options.measure]()))
        return 0
    if options.list:
        listing()
        return 0
    wrong = 0
    done: dict[str, dict] = {}
    for page in PAGES:
        for name, printed in blocks(page).items():
            block = BLOCKS[name]
            now = chosen(block, options, name)
            if options.only and not now:
                continue
            if now and (missing := block.missing()):
                print(f"{page.name} {name}: needs {', '.join(missing)}")
                continue
            if block.job is None:
                measured = block.write() if now else printed
            else:
                record = run(block.job, done, options.check) if now else records.read(block.job)
                if record and records.stale(block.job, record):
                    print(f"{page.name} {name}: the record is of other commands; run --only {name}")
                    wrong += 1
                    continue
                measured = block.write([r["results"] for r in record["runs"]]) if record else printed
            # A new run may differ by rounding; a page rendered from its record must be identical.
            fresh = block.job is None or (now and options.check)
            agrees = same(printed, measured) if fresh else printed == measured
            wrong += not agrees
            print(f"{page.name} {name}: {'as printed' if agrees else 'differs'}", flush=True)
            if not agrees and not options.check:
                replace(page, name, measured)
    for sentence in SENTENCES:  # not written automatically: other numbers may need other words
        known = records.results(sentence.job) if sentence.job else None
        if not (options.only or known == [] or sentence.agrees(known)):
            wrong += 1
            print(f"{sentence.page}: write “{sentence.written(known)}”")
    return int(bool(wrong) and options.check)


if __name__ == "__main__":
    sys.exit(main())
