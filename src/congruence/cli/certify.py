"""``congruence certify``: what two models' anchors say about a change of models, ending in a verdict."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from congruence.embeddings import Embeddings
    from congruence.upgrade.certify import Certificate


def command(
    data: Annotated[
        str | None,
        typer.Argument(help="Bundle (.parquet) of both models' embeddings, or “sample” for the bundled one."),
    ] = None,
    source_image: Annotated[
        str | None, typer.Option(help="Anchor images in the source model: a file, or file:key.")
    ] = None,
    source_text: Annotated[str | None, typer.Option(help="Anchor texts in the source model.")] = None,
    target_image: Annotated[str | None, typer.Option(help="The same images in the target model.")] = None,
    target_text: Annotated[str | None, typer.Option(help="The same texts in the target model.")] = None,
    query_source_image: Annotated[str | None, typer.Option(help="Held-out items, in the form of the anchors.")] = None,
    query_source_text: Annotated[str | None, typer.Option(help="Held-out texts in the source model.")] = None,
    query_target_image: Annotated[str | None, typer.Option(help="Held-out images in the target model.")] = None,
    query_target_text: Annotated[str | None, typer.Option(help="Held-out texts in the target model.")] = None,
    ids: Annotated[str | None, typer.Option(help="Key, column or file of ids, in all files.")] = None,
    labels: Annotated[
        str | None,
        typer.Option(help="file:column with the class of each image (of each text, if there are no images)."),
    ] = None,
    query_labels: Annotated[str | None, typer.Option(help="The same for the held-out items.")] = None,
    anchors: Annotated[
        int | None, typer.Option(help="Take this many items at random as anchors; the others are the held-out queries.")
    ] = None,
    fitted: Annotated[
        str | None, typer.Option(help="Fit on image, text or both. Default: all that both models have.")
    ] = None,
    retention: Annotated[
        float, typer.Option(help="Least share of the target's own score to ask of carried vectors.")
    ] = 0.95,
    worth: Annotated[float, typer.Option(help="Smallest difference of scores worth acting on.")] = 0.01,
    tie: Annotated[
        float, typer.Option(help="Least advantage of carried queries over a carried store to leave the store as it is.")
    ] = 0.03,
    most_anchors: Annotated[int, typer.Option(help="Most further anchors that could be collected.")] = 5000,
    must_move: Annotated[
        bool, typer.Option("--must-move", help="The source model goes away: staying is no choice.")
    ] = False,
    folds: Annotated[int, typer.Option(help="Parts of the anchors that are scored in turn.")] = 10,
    repeats: Annotated[int, typer.Option(help="Random orders of the anchors for the learning curve.")] = 10,
    seed: Annotated[int, typer.Option(help="Of folds, orders and bootstrap samples.")] = 0,
    report: Annotated[str | None, typer.Option(help="HTML file to write the certificate to.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing report.")] = False,
    exit_code: Annotated[bool, typer.Option("--exit-code", help="Exit with 1 unless the verdict is to carry.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Report as JSON.")] = False,
) -> None:
    """Ask whether vectors can be carried between two models, how far the answer holds, and what to do."""
    from pathlib import Path

    from congruence.cli._base import print_json, progress
    from congruence.errors import OutputExistsError
    from congruence.upgrade.certify import Thresholds, certify

    if report is not None and Path(report).exists() and not force:  # said before the work, not after it
        raise OutputExistsError(f"Got a report that exists, {report}; expected a new path. Pass --force to replace it.")
    thresholds = Thresholds(retention, worth, tie, most_anchors, must_move)
    given = (
        {"image": source_image, "text": source_text},
        {"image": target_image, "text": target_text},
    )
    asked = (
        {"image": query_source_image, "text": query_source_text},
        {"image": query_target_image, "text": query_target_text},
    )
    sides = _from_bundle(data) if data is not None else _read(given, ids)
    classes = _labels(labels, sides)
    queries = _read(asked, ids) if any(spec for side in asked for spec in side.values()) else None
    if queries is not None and classes is not None:
        classes |= _labels(query_labels, queries) or {}
    if anchors is not None:
        sides, queries = _split(sides, queries, anchors, seed, by_class=classes is not None)
    with progress("certifying", (1 if queries else folds) + repeats, as_json) as advance:
        certificate = certify(
            *sides,
            fitted=fitted,
            queries=queries,
            labels=classes,
            thresholds=thresholds,
            folds=folds,
            repeats=repeats,
            seed=seed,
            advance=advance,
        )
    if report is not None:
        from congruence.report import write_certificate

        write_certificate(report, certificate, force=force)
    if as_json:
        print_json(certificate.to_dict())
    else:
        print_certificate(certificate)
        if report is not None:
            print(f"Report: {report}")
    if exit_code and certificate.verdict.action not in ("carry", "queries"):
        raise typer.Exit(1)


def _read(
    specs: tuple[dict[str, str | None], ...], ids: str | None
) -> tuple[dict[str, Embeddings], dict[str, Embeddings]]:
    from congruence.cli._base import read
    from congruence.embeddings import Space

    first, second = (
        {m: read(spec, ids, Space(modality=m)) for m, spec in side.items() if spec is not None} for side in specs
    )
    return first, second


def _from_bundle(data: str) -> tuple[dict[str, Embeddings], dict[str, Embeddings]]:
    from congruence.datasets import load_sample, read_bundle

    bundle = load_sample() if data == "sample" else read_bundle(data)
    return bundle.side("source"), bundle.side("target")


def _labels(spec: str | None, sides: tuple[dict[str, Embeddings], dict[str, Embeddings]]) -> dict[str, str] | None:
    """Join a column of labels to the ids of the stored items by the order of rows."""
    from congruence.errors import InputError
    from congruence.stores import read_column

    if spec is None:
        return None
    column = read_column(spec)
    stored = sides[0].get("image") or sides[0].get("text")
    if stored is None or len(stored) != len(column):
        raise InputError(
            f"Got {len(column)} labels for {len(stored or ())} items; expected one a row of the source's images (texts, if there are no images). Pass a file with as many labels as the source has rows, not {spec}."
        )
    return dict(zip(stored.ids.tolist(), map(str, column.tolist()), strict=True))


def _split(
    sides: tuple[dict[str, Embeddings], dict[str, Embeddings]], queries: Any, anchors: int, seed: int, *, by_class: bool
) -> tuple[tuple[dict[str, Embeddings], dict[str, Embeddings]], tuple[dict[str, Embeddings], dict[str, Embeddings]]]:
    """Take some items as anchors and leave the others as queries; texts of classes belong to both."""
    from congruence.errors import ParameterError
    from congruence.splits import Split

    if queries is not None:
        raise ParameterError(
            "Got --anchors and held-out queries; expected one of them. Leave out --anchors or the --query-… files."
        )
    stored = "image" if "image" in sides[0] else next(iter(sides[0]), "image")
    n = len(sides[0].get(stored, ()))
    if not 0 < anchors < n:
        raise ParameterError(
            f"Got --anchors {anchors} of {n} items; expected fewer, so that some are left to score. Pass --anchors {n // 2}, for example."
        )
    rule = Split.choose(sides[0][stored].ids, n - anchors, seed)

    def part(held: bool) -> tuple[dict[str, Embeddings], dict[str, Embeddings]]:
        first, second = (
            {
                m: rows if by_class and m != stored else rows.take(rule.held_out(rows.ids) == held)
                for m, rows in side.items()
            }
            for side in sides
        )
        return first, second

    return part(False), part(True)


def print_certificate(certificate: Certificate) -> None:
    """Print a certificate as tables, the verdict first."""
    from congruence.cli._base import number, print_table
    from congruence.upgrade.certify import ACTIONS

    verdict = certificate.verdict
    print(f"Verdict: {verdict.headline}\n{verdict.reason[:1].upper()}{verdict.reason[1:]}")
    print("In bootstrap samples: " + ", ".join(f"{ACTIONS[a]} {share:.0%}" for a, share in verdict.confidence.items()))
    if not verdict.settled:
        print("Below 90 %: these items cannot tell the verdicts named apart; encode more of them.")
    print()

    def cell(estimate: Any) -> str:
        return (
            "–" if estimate is None else f"{number(estimate.value)} ({number(estimate.low)} … {number(estimate.high)})"
        )

    print_table(
        f"{certificate.n_anchors} anchors ({' and '.join(certificate.fitted)}), {certificate.n_queries} items scored; 95 % intervals",
        ["measure", "stay", "carry the store", "carry queries", "re-embed"],
        [
            [task, *(cell(ways.get(way)) for way in ("stay", "stored", "queries", "re-embed"))]
            for task, ways in certificate.ways.items()
        ],
    )
    rows = [[f"{name.replace('/', ' ÷ ')}, {certificate.task}", cell(e)] for name, e in certificate.retention.items()]
    rows += [
        [f"cosine of carried {modality} and target {modality}", cell(e)] for modality, e in certificate.cosines.items()
    ]
    rows += [
        [f"{m} energy in directions the anchors probed", f"{share:.1%}"] for m, share in certificate.probed.items()
    ]
    print_table("", ["", "value"], rows)
    print_table(
        f"More anchors (now {certificate.n_anchors})",
        ["more", f"{certificate.task} gains", "at most", "cosine gains", "at most"],
        [
            [f"{int(g['more']):,}", *(number(g[k]) for k in ("score", "score_at_most", "cosine", "cosine_at_most"))]
            for g in certificate.gains
        ],
    )
    if certificate.theory:
        print("Theory")
        for entry in certificate.theory:
            print(f"  {entry['sentence']}")
        print()
    for note in certificate.notes:
        print(note)
