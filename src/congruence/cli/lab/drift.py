"""``congruence lab drift``: test whether the encoder behind a stream of vectors has changed."""

from __future__ import annotations

import typer

from congruence.cli._base import number, print_facts, print_json, read
from congruence.cli._options import Json, Seed, argument, option
from congruence.errors import ParameterError


def command(
    reference: str = argument(..., "Vectors from before a possible change: a file, or file:key."),
    stream: list[str] = argument(..., "Later vectors, oldest first: one or more files."),
    canaries: bool = option(False, "The stream is the reference's items, encoded again.", "--canaries"),
    alpha: float = option(0.001, "Probability of a false alarm over the whole stream."),
    tolerance: float = option(0.01, "Largest relative distance of a canary that counts as unchanged."),
    ids: str | None = option(None, "Key, column or file of the canaries' ids, in all files."),
    seed: Seed = 0,
    exit_code: bool = option(False, "Exit with code 1 if the encoder has changed.", "--exit-code"),
    as_json: Json = False,
) -> None:
    """Detect a changed encoder, by canaries encoded again or from a stream of unpaired vectors.

    Example: congruence lab drift library/old-photos.parquet library/new-photos.parquet --canaries
    """
    from congruence._utils.validation import RowNames, check_rows
    from congruence.cli.fit import read_anchors
    from congruence.compare.drift import DriftMonitor, compare_canaries
    from congruence.embeddings import Space
    from congruence.io import open_source

    if canaries:
        if len(stream) > 1:
            raise ParameterError(
                f"Got {len(stream)} files with --canaries; expected one, with the canaries as they are encoded now.",
                "Pass the newest.",
            )
        sides, paired_by = read_anchors((reference, stream[0]), ids, (Space(), Space()))
        comparison = compare_canaries(*sides, tolerance=tolerance)
        changed = comparison.changed
        if as_json:
            print_json({"reference": reference, "stream": stream, "paired_by": paired_by, **comparison.to_dict()})
        else:
            answers = {
                "none": "no",
                "norms": "yes: other norms, the same directions",
                "rotation": "yes: other directions, the same cosines between canaries",
                "model": "yes: another model",
            }
            rows = [
                ["canaries", f"{comparison.n}, paired by {paired_by}"],
                ["changed", answers[comparison.kind]],
                ["moved by more than the tolerance", f"{comparison.moved:.0%}"],
                ["distance, median and largest", f"{comparison.median:.2g}, {comparison.largest:.2g}"],
                ["largest change of a cosine", f"{comparison.angles:.2g}"],
            ]
            print_facts("Canaries", rows)
    else:
        monitor = DriftMonitor(alpha=alpha, random_state=seed).fit(read(reference, False, Space()))
        report = None
        for spec in stream:
            row = 0
            for _, block in open_source(spec, ids=False).scan():
                check_rows(block, spec, ids=RowNames(None, row))  # errors name the file and its row numbers
                report = monitor.update(block)
                row += len(block)
        assert report is not None  # open_source refuses empty files
        changed = report.alarm
        if as_json:
            print_json({"reference": reference, "stream": stream, "alpha": alpha, **report.to_dict()})
        else:
            rows = [
                ["vectors", f"{report.n:,}"],
                ["alarm", f"at vector {report.alarm_at:,}" if report.alarm_at is not None else "none"],
                ["evidence now, alarm at", f"{number(report.evidence, 1)}, {number(report.threshold, 1)}"],
                *([f"  by {name}", number(value, 1)] for name, value in report.by_score.items()),
            ]
            print_facts(f"Stream, false alarms below {alpha:g}", rows)
    if changed and exit_code:
        raise typer.Exit(1)
