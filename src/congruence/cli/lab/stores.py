"""``congruence lab doctor``, ``drift`` and ``exposure``: what the vectors of a store give away."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from congruence.cli._input import ids_of, read, read_given, read_labels, split_named
from congruence.cli._options import Force, Ids, Json, Seed, argument, option, settable
from congruence.cli._output import (
    check_out,
    number,
    print_facts,
    print_json,
    print_table,
    progress,
    report_as,
    say,
    write_table,
)
from congruence.errors import ParameterError

if TYPE_CHECKING:
    from congruence.compare.origins import OriginReport
    from congruence.embeddings import Embeddings
    from congruence.io import Source

#: Largest number of rows of no known model that are printed, and of rows of each kind that ``--json`` lists.
_PRINTED, _LISTED = 10, 1000

#: What has changed, by what ``compare_canaries`` calls it.
_CHANGED = {
    "none": "no",
    "norms": "yes: other norms, the same directions",
    "rotation": "yes: other directions, the same cosines between canaries",
    "model": "yes: another model",
}


def doctor(
    store: str = argument(..., "Vectors to examine: a file, file:key, or a folder of parts."),
    known: list[str] | None = option(None, "NAME=FILE: some hundred rows of a known model; repeatable.", "--known"),
    maps: list[str] | None = option(None, "A map, which knows the rows of its two models; repeatable.", "--map"),
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
    from congruence.io import open_source
    from congruence.maps import load

    source = open_source(store, ids=ids)
    named = [split_named(entry, "--known", "NAME=FILE", "old=old.npy") for entry in known or []]
    check_out(out, source, *(spec for _, spec in named), force=force, kind="table")
    rows: dict[str, Embeddings] = {}
    for name, spec in named:
        if name in rows:
            raise ParameterError(f"Got --known {name}=… twice; expected each name once.", "Pass another name.")
        rows[name] = read(spec, "none")
    detector = OriginDetector(**settings, random_state=seed).fit(rows, {spec: load(spec) for spec in maps or []})
    report = detector.examine(source)
    if out is not None:
        write_table(_origins(source, report), out, force=force)
    if as_json:
        data = report.to_dict()
        for key, entries in (("odd", report.odd), ("not_finite", report.not_finite), ("zero", report.zero)):
            data |= {key: entries[:_LISTED], f"n_{key}": len(entries)}  # --out lists all
        print_json({"store": store, "written": out, "summary": report.summary(), **data})
    else:
        _print_origins(store, report)
    healthy = not (report.odd or report.not_finite or report.zero) and report.looks_like is not None
    if exit_code and not (healthy and sum(count > 0 for count in report.counts) <= 1):
        raise typer.Exit(1)


def _print_origins(store: str, report: OriginReport) -> None:
    facts = {"rows": f"{report.n:,} × {report.width}", "of unit norm": f"{report.unit:.1%}"}
    bad = {"with NaN or infinity": report.not_finite, "all zeros": report.zero}
    print_facts(store, facts | {name: f"{len(entries):,}" for name, entries in bad.items() if entries})
    if report.names:
        lines = [
            [name, f"{count:,}", f"{count / report.n:.1%}", f"{recognized:.1%}"]
            for name, count, recognized in zip(report.names, report.counts, report.recognized, strict=True)
        ]
        lines.append(["none of these", f"{len(report.odd):,}", f"{len(report.odd) / report.n:.1%}", ""])
        print_table("Rows look like those of", ["", "rows", "share", "of its own known rows"], lines)
    if report.odd:
        lines = [
            [f"{row['row']:,}", str(row["id"] or ""), row["nearest"], number(row["distance"]), f"{row['p']:.1e}"]
            for row in report.odd[:_PRINTED]
        ]
        title = f"Rows that fit no known model (false discovery rate {report.fdr:g})"
        print_table(title, ["row", "id", "nearest", "distance (1 usual)", "p"], lines)
    say(*report.summary())


def _origins(source: Source, report: OriginReport) -> Any:
    """Return one line per row: its id or number, the model it looks like (empty for none), and its p-value."""
    import pyarrow as pa

    names = pa.array([*report.names, None], pa.string())
    ids = {"id": pa.chunked_array([block for block, _ in source.scan()])} if source.has_ids else {}
    looks = names.take(pa.array(report.origin % len(names), pa.int16()))
    rows = pa.array(range(report.n), pa.int64())
    return pa.table({"row": rows, **ids, "model": looks, "p": pa.array(report.p_value, from_pandas=True)})


def drift(
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
    """Detect a changed encoder, by canaries (reference items encoded again) or from a stream of unpaired vectors.

    Example: congruence lab drift library/old-photos.parquet library/new-photos.parquet --canaries
    """
    from congruence._utils.validation import RowNames, check_rows
    from congruence.cli._sides import read_anchors
    from congruence.compare.drift import DriftMonitor, compare_canaries
    from congruence.io import open_source

    data: dict[str, Any] = {"reference": reference, "stream": stream}
    if canaries:
        if len(stream) > 1:
            raise ParameterError(
                f"Got {len(stream)} files with --canaries; expected one, with the canaries as they are encoded now.",
                "Pass the newest.",
            )
        sides, paired_by = read_anchors((reference, stream[0]), ids)
        found = compare_canaries(*sides, tolerance=tolerance)
        changed, data = found.changed, {**data, "paired_by": paired_by, **found.to_dict()}
        title = "Canaries"
        facts = {
            "canaries": f"{found.n}, paired by {paired_by}",
            "changed": _CHANGED[found.kind],
            "moved by more than the tolerance": f"{found.moved:.0%}",
            "distance, median and largest": f"{found.median:.2g}, {found.largest:.2g}",
            "largest change of a cosine": f"{found.angles:.2g}",
        }
    else:
        monitor = DriftMonitor(alpha=alpha, random_state=seed).fit(read(reference, "none"))
        report = None
        for spec in stream:
            row = 0
            for _, block in open_source(spec, ids=False).scan():
                check_rows(block, spec, ids=RowNames(None, row))  # errors name the file and its row numbers
                report = monitor.update(block)
                row += len(block)
        assert report is not None  # open_source refuses empty files
        changed, data = report.alarm, {**data, "alpha": alpha, **report.to_dict()}
        title = f"Stream, false alarms below {alpha:g}"
        facts = {
            "vectors": f"{report.n:,}",
            "alarm": f"at vector {report.alarm_at:,}" if report.alarm_at is not None else "none",
            "evidence now, alarm at": f"{number(report.evidence, 1)}, {number(report.threshold, 1)}",
            **{f"  by {name}": number(value, 1) for name, value in report.by_score.items()},
        }
    report_as(as_json, data, title, facts)
    if changed and exit_code:
        raise typer.Exit(1)


def exposure(
    store: str = argument(..., "Stored vectors: a file, or file:key."),
    texts: str = option(..., "Candidate texts in another model, including those of the store."),
    pairs: list[int] | None = option(None, "Number of vectors whose texts are known (10 and 100); repeatable."),
    protections: list[str] | None = option(
        None, "none, rotation, noise=0.5, pca=64, int8, binary, joined by +; repeatable.", "--protect"
    ),
    ids: Ids = None,
    labels: str | None = option(None, "file:column with the id of each vector's text; by default its own id."),
    queries: str | None = option(None, "The owner's queries, to measure search; by default the vectors."),
    settings: dict[str, Any] = settable(rounds=4, draws=5),
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Measure how many stored vectors can be matched to their text with a few known pairs, and what reduces this.

    Example: congruence lab exposure library/old-photos.parquet --texts library/new-photos.parquet
    """
    from congruence.evaluation.exposure import measure_exposure

    stored_ids, given_ids = ids_of(ids)
    vectors, candidates = read(store, None if labels else stored_ids), read(texts, given_ids)
    applied, draws = protections or ["none"], settings.get("draws", 5)
    with progress("measuring", draws * len(applied), as_json) as callback:
        lines = measure_exposure(
            vectors,
            candidates,
            pairs=pairs or (10, 100),
            labels=read_labels(labels, "--labels", vectors),
            queries=read_given(queries),
            protections=applied,
            random_state=seed,
            callback=callback,
            **settings,
        )
    if as_json:
        print_json({"store": store, "texts": texts, "draws": draws, "exposure": [line.to_dict() for line in lines]})
        return
    rows = [
        [
            *(line.protection, str(line.pairs), f"{number(line.found)} ({number(line.low)} … {number(line.high)})"),
            *map(number, (line.by_pairs, line.found_at_k, line.chance, line.search)),
        ]
        for line in lines
    ]
    print_table(
        f"{len(vectors):,} vectors, {len(candidates):,} candidate texts, {draws} draws of the pairs; 95 % intervals",
        ["protection", "pairs", "find their text", "by the pairs alone", "among ten", "chance", "search keeps"],
        rows,
    )
    print(
        "search keeps: share of the ten nearest stored vectors of the owner's queries that are still found. "
        "An attacker may know more than this measurement assumes."
    )
