"""``congruence lab doctor``: determine which model a store's rows come from, and which rows do not fit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from congruence.cli._base import (
    check_new,
    check_table_name,
    number,
    print_facts,
    print_json,
    print_table,
    read,
    say,
    split_named,
    write_table,
)
from congruence.cli._options import Force, Json, Seed, argument, option, settable, with_groups
from congruence.errors import ParameterError

if TYPE_CHECKING:
    from congruence.compare.origins import OriginReport
    from congruence.embeddings import Embeddings
    from congruence.io import Source


#: Largest number of rows of no known model that are printed.
_PRINTED = 10

#: Largest number of rows of each kind that ``--json`` lists.
_LISTED = 1000


@with_groups
def command(
    store: str = argument(..., "Vectors to examine: a file, file:key, or a folder of parts."),
    known: list[str] | None = option(
        None, "NAME=FILE: some hundred rows of a known model; may be repeated.", "--known"
    ),
    maps: list[str] | None = option(
        None, "A map from congruence fit, which knows the rows of its two models; may be repeated.", "--map"
    ),
    ids: str | None = option(None, "Key, column or file of the store's ids."),
    settings: dict[str, Any] = settable(fdr=0.01),
    out: str | None = option(None, "Write each row's model and p-value: .csv or .parquet.", "--out", "-o"),
    force: Force = False,
    seed: Seed = 0,
    exit_code: bool = option(False, "Exit with code 1 unless all rows fit the same known model.", "--exit-code"),
    as_json: Json = False,
) -> None:
    """Determine from the vectors alone which model a store's rows come from, and find rows that do not fit.

    Example: congruence lab doctor library/old-photos.parquet --known old=library/old-photos.parquet --known
    new=library/new-photos.parquet
    """
    from congruence.compare.origins import OriginDetector
    from congruence.embeddings import Space
    from congruence.io import open_source
    from congruence.maps import load

    source = open_source(store, ids=ids)
    if out is not None:
        check_table_name(out, "--out")
        check_new(out, source, force=force)
    known_rows: dict[str, Embeddings] = {}
    for name, spec in (split_named(entry, "--known", "NAME=FILE", "old=old.npy") for entry in known or []):
        if name in known_rows:
            raise ParameterError(f"Got --known {name}=… twice; expected each name once.", "Pass another name.")
        if out is not None:
            check_new(out, open_source(spec, ids=False), force=force)
        known_rows[name] = read(spec, False, Space())
    detector = OriginDetector(**settings, random_state=seed).fit(known_rows, {spec: load(spec) for spec in maps or []})
    report = detector.examine(source)
    if out is not None:
        _write_rows(out, source, report, force)
    if as_json:
        data = report.to_dict()
        for key, entries in (("odd", report.odd), ("not_finite", report.not_finite), ("zero", report.zero)):
            data |= {key: entries[:_LISTED], f"n_{key}": len(entries)}  # --out lists all
        print_json({"store": store, "written": out, "summary": report.summary(), **data})
    else:
        _print(store, report)
        for line in report.summary():
            say(line)
    healthy = not (report.odd or report.not_finite or report.zero) and report.looks_like is not None
    if exit_code and not (healthy and sum(count > 0 for count in report.counts) <= 1):
        raise typer.Exit(1)


def _print(store: str, report: OriginReport) -> None:
    facts = [["rows", f"{report.n:,} × {report.width}"], ["of unit norm", f"{report.unit:.1%}"]]
    facts += [["with NaN or infinity", f"{len(report.not_finite):,}"]] * bool(report.not_finite)
    facts += [["all zeros", f"{len(report.zero):,}"]] * bool(report.zero)
    print_facts(store, facts)
    if report.names:
        lines = [
            [name, f"{count:,}", f"{count / report.n:.1%}", f"{recognized:.1%}"]
            for name, count, recognized in zip(report.names, report.counts, report.recognized, strict=True)
        ]
        lines.append(["none of these", f"{len(report.odd):,}", f"{len(report.odd) / report.n:.1%}", ""])
        print_table("Rows look like those of", ["", "rows", "share", "of its own known rows"], lines)
    if report.odd:
        print_table(
            f"Rows that fit no known model (false discovery rate {report.fdr:g})",
            ["row", "id", "nearest", "distance (1 usual)", "p"],
            [
                [f"{row['row']:,}", str(row["id"] or ""), row["nearest"], number(row["distance"]), f"{row['p']:.1e}"]
                for row in report.odd[:_PRINTED]
            ],
        )


def _write_rows(out: str, source: Source, report: OriginReport, force: bool) -> None:
    """Write one line per row: its id or number, the model it looks like (empty for none), and its p-value."""
    import pyarrow as pa

    names = pa.array([*report.names, None], pa.string())
    table = pa.table(
        {
            "row": pa.array(range(report.n), pa.int64()),
            **({"id": pa.chunked_array([ids for ids, _ in source.scan()])} if source.has_ids else {}),
            "model": names.take(pa.array(report.origin % len(names), pa.int16())),
            "p": pa.array(report.p_value, from_pandas=True),
        }
    )
    write_table(table, out, force=force)
