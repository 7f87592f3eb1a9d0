"""``congruence certify``: recommend how to handle a change of models, from items encoded by both."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from congruence.cli._engines import (
    ADDRESS_HELP,
    ENGINE_HELP,
    SAMPLE_HELP,
    WORKERS_HELP,
    make_engine,
    runs_by_fragments,
    sample_data_sets,
)

if TYPE_CHECKING:
    import numpy as np

    from congruence.embeddings import Embeddings

__all__ = ["command"]


def command(
    data: Annotated[
        str | None,
        typer.Argument(
            help="Bundle (.parquet) of both models' embeddings, or the name of a built-in sample: photos, emoji."
        ),
    ] = None,
    source_image: Annotated[
        str | None, typer.Option(help="Anchor images in the source model: a file, or file:key.")
    ] = None,
    source_text: Annotated[str | None, typer.Option(help="Anchor texts in the source model.")] = None,
    target_image: Annotated[str | None, typer.Option(help="The same images in the target model.")] = None,
    target_text: Annotated[str | None, typer.Option(help="The same texts in the target model.")] = None,
    query_source_image: Annotated[
        str | None, typer.Option(help="Held-out images in the source model, as for the anchors.")
    ] = None,
    query_source_text: Annotated[str | None, typer.Option(help="Held-out texts in the source model.")] = None,
    query_target_image: Annotated[str | None, typer.Option(help="Held-out images in the target model.")] = None,
    query_target_text: Annotated[str | None, typer.Option(help="Held-out texts in the target model.")] = None,
    ids: Annotated[str | None, typer.Option(help="Key, column or file of the ids, in all files.")] = None,
    queries_text: Annotated[
        str | None,
        typer.Option(
            help="Texts in the target model, of any items: queries that test whether a mapped store returns the "
            "same items as a re-embedded one."
        ),
    ] = None,
    queries_text_source: Annotated[
        str | None,
        typer.Option(
            help="The same texts in the source model, in the same order, to include the strategy of keeping the "
            "source model."
        ),
    ] = None,
    labels: Annotated[
        str | None,
        typer.Option(help="file:column with the class of each image (or of each text, if there are no images)."),
    ] = None,
    query_labels: Annotated[str | None, typer.Option(help="file:column with the class of each held-out item.")] = None,
    anchors: Annotated[
        str | None,
        typer.Option(
            help="Number of items to use as anchors, drawn at random from those that both models have, or a file "
            "of their ids, e.g. from congruence anchors. The other items are the held-out queries."
        ),
    ] = None,
    method: Annotated[
        str, typer.Option(help="Map to certify: auto (the one that congruence fit chooses), orthogonal or linear.")
    ] = "auto",
    single_modality: Annotated[
        bool,
        typer.Option(
            "--single-modality", help="Only one modality will be mapped, so that linear maps may be chosen (auto)."
        ),
    ] = False,
    fitted: Annotated[
        str | None,
        typer.Option(help="Fit on image, text or both. By default, on all modalities that both models have."),
    ] = None,
    retention: Annotated[
        float, typer.Option(help="Smallest share of the target's own score that mapped vectors must reach.")
    ] = 0.95,
    worth: Annotated[float, typer.Option(help="Smallest difference of scores that justifies a change.")] = 0.01,
    tie: Annotated[
        float,
        typer.Option(
            help="Smallest advantage in score for which mapping the queries is preferred to mapping the store."
        ),
    ] = 0.03,
    most_anchors: Annotated[
        int, typer.Option(help="Largest number of additional anchors that you could collect.")
    ] = 5000,
    must_move: Annotated[
        bool,
        typer.Option(
            "--must-move", help="Keeping the source model is not an option, because it will no longer be available."
        ),
    ] = False,
    n_neighbors: Annotated[int, typer.Option(help="Length of the result lists whose overlap is measured.")] = 10,
    center: Annotated[
        bool, typer.Option("--center", help="Search with queries and store each centered at its own mean.")
    ] = False,
    hubness: Annotated[
        str | None,
        typer.Option(
            help="csls or qb_norm: search with a correction for hubs, which uses the queries as the query bank."
        ),
    ] = None,
    theory: Annotated[
        str, typer.Option(help="brief, or full, which adds κ; its linear programs take minutes.")
    ] = "brief",
    rows: Annotated[
        int | None, typer.Option(help="Number of rows of the store, to estimate what each strategy costs.")
    ] = None,
    encode_rate: Annotated[float | None, typer.Option(help="Items per second that the target model encodes.")] = None,
    price: Annotated[float | None, typer.Option(help="Price of encoding one item.")] = None,
    source_model: Annotated[str | None, typer.Option(help="Name of the source model, for the certificate.")] = None,
    target_model: Annotated[str | None, typer.Option(help="Name of the target model.")] = None,
    folds: Annotated[int, typer.Option(help="Number of cross-validation folds of the anchors.")] = 10,
    repeats: Annotated[int, typer.Option(help="Number of random orders of the anchors for the learning curve.")] = 10,
    seed: Annotated[int, typer.Option(help="Random seed of folds, orders and draws.")] = 0,
    engine: Annotated[str, typer.Option(help=ENGINE_HELP)] = "local",
    address: Annotated[str | None, typer.Option(help=ADDRESS_HELP)] = None,
    workers: Annotated[int | None, typer.Option(help=WORKERS_HELP)] = None,
    sample: Annotated[int, typer.Option(help=SAMPLE_HELP)] = 20_000,
    report: Annotated[str | None, typer.Option(help="HTML file to write the certificate to.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing report.")] = False,
    exit_code: Annotated[
        bool,
        typer.Option("--exit-code", help="Exit with code 1 unless the verdict is to map the store or the queries."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Report as JSON.")] = False,
) -> None:
    """Recommend whether to map vectors between two models or to re-embed, with the evidence."""
    from congruence._utils.atomic import check_output
    from congruence._utils.optional import require
    from congruence.cli._base import print_json, progress, say
    from congruence.cli._certificate import print_certificate
    from congruence.errors import ParameterError
    from congruence.upgrade.certify import Thresholds, certify, split_anchors

    if report is not None:  # checked before the work starts
        check_output(report, force=force)
        require("matplotlib", extra="plot")
    thresholds = Thresholds(retention, worth, tie, most_anchors, must_move)
    anchor_specs = (
        {"image": source_image, "text": source_text},
        {"image": target_image, "text": target_text},
    )
    query_specs = (
        {"image": query_source_image, "text": query_source_text},
        {"image": query_target_image, "text": query_target_text},
    )
    models = (source_model, target_model)
    bundle_classes = None
    files = [spec for side in (*anchor_specs, *query_specs) for spec in side.values() if spec]
    by_fragments = runs_by_fragments(engine, " ".join(files), "", {"--address": address, "--workers": workers})
    if by_fragments:
        if data is not None:
            raise ParameterError(
                f"Got a bundle, {data}, for --engine {engine}; expected data sets. Pass --source-image, "
                "--target-image and the like, or leave out --engine."
            )
        by_row = {"--labels": labels, "--query-labels": query_labels}
        names = dict(zip(("source", "target"), models, strict=True))
        runner = make_engine(engine, address, workers, 0)

        def read_sample(
            specs: tuple[dict[str, str | None], ...],
        ) -> tuple[dict[str, Embeddings], dict[str, Embeddings]]:
            sampled = sample_data_sets(
                dict(zip(names, specs, strict=True)),
                ids,
                names,
                engine=runner,
                sample=sample,
                random_state=seed,
                needs_rows=[flag for flag, value in by_row.items() if value],
            )
            return sampled["source"], sampled["target"]

        sides = read_sample(anchor_specs)
    elif data is not None:
        sides, bundle_classes = _from_bundle(data, models)
    else:
        sides = _read(anchor_specs, ids, models)
    classes = _labels(labels, sides) or bundle_classes
    queries = None
    if any(spec for side in query_specs for spec in side.values()):
        queries = read_sample(query_specs) if by_fragments else _read(query_specs, ids, models)
    if queries is not None and classes is not None:
        classes |= _labels(query_labels, queries) or {}
    if anchors is not None:
        if queries is not None:
            raise ParameterError(
                "Got --anchors and held-out queries; expected one of them. Leave out --anchors or the --query-… files."
            )
        sides, queries = split_anchors(
            *sides, _count_or_ids(anchors), by_class=classes is not None, random_state=seed, name="--anchors "
        )
    with progress("certifying", (1 if queries else folds) + repeats, as_json) as callback:
        certificate = certify(
            *sides,
            method,
            fitted=fitted,
            queries=queries,
            text_queries=_text_queries(queries_text_source, queries_text, models),
            labels=classes,
            thresholds=thresholds,
            n_neighbors=n_neighbors,
            theory=theory,
            folds=folds,
            repeats=repeats,
            random_state=seed,
            center=center,
            hubness=hubness,
            single_modality=single_modality,
            rows=rows,
            encode_rate=encode_rate,
            price=price,
            data=data or ", ".join(files),
            callback=callback,
        )
    if report is not None:
        from congruence.report import write_certificate

        write_certificate(report, certificate, force=force)
    if as_json:
        print_json(certificate.to_dict())
    else:
        print_certificate(certificate)
        if report is not None:
            say(f"Report: {report}")
    if exit_code and certificate.verdict.action not in ("map", "queries"):
        raise typer.Exit(1)


def _count_or_ids(anchors: str) -> int | np.ndarray:
    """Return the number of anchors, or the ids listed in a file."""
    from congruence.cli._base import read
    from congruence.embeddings import Space
    from congruence.errors import IdError
    from congruence.stores import parse_spec, read_column

    try:
        return int(anchors)
    except ValueError:
        pass
    path, key = parse_spec(anchors)
    if key is not None or str(path).lower().endswith(".txt"):
        return read_column(anchors)
    rows = read(anchors, None, Space(), allow_zero_rows=True)
    if not rows.has_ids:
        raise IdError(
            f"Got {anchors} without ids for --anchors; expected a number, or a file of ids. Pass --anchors "
            "FILE:COLUMN, or a .txt with one id per line."
        )
    return rows.ids


def _read(
    specs: tuple[dict[str, str | None], ...], ids: str | None, models: tuple[str | None, str | None]
) -> tuple[dict[str, Embeddings], dict[str, Embeddings]]:
    from congruence.cli._base import read
    from congruence.embeddings import Space

    first, second = (
        {m: read(spec, ids, Space(model=model, modality=m)) for m, spec in side.items() if spec is not None}
        for side, model in zip(specs, models, strict=True)
    )
    return first, second


def _text_queries(
    source: str | None, target: str | None, models: tuple[str | None, str | None]
) -> tuple[Embeddings | None, Embeddings] | None:
    from congruence.errors import ParameterError

    if target is None:
        if source is not None:
            raise ParameterError(
                "Got --queries-text-source without --queries-text; expected both, the same texts encoded by "
                "both models. Pass --queries-text too."
            )
        return None
    first, second = _read(({"text": source}, {"text": target}), None, models)
    return first.get("text"), second["text"]


def _from_bundle(
    data: str, models: tuple[str | None, str | None]
) -> tuple[tuple[dict[str, Embeddings], dict[str, Embeddings]], dict[str, str] | None]:
    """Return both sides of a bundle, and the class of each image if the bundle has classes."""
    from dataclasses import replace

    from congruence.datasets import open_bundle

    bundle = open_bundle(data)
    first, second = bundle.side("source"), bundle.side("target")
    for side, model in zip((first, second), models, strict=True):
        for modality, rows in side.items():
            if model is not None:
                side[modality] = replace(rows, space=replace(rows.space, model=model))
    return (first, second), bundle.classes.get("image")


def _labels(spec: str | None, sides: tuple[dict[str, Embeddings], dict[str, Embeddings]]) -> dict[str, str] | None:
    """Return the label of each item of the source by id; labels and items have the same order."""
    from congruence._utils.ids import id_texts
    from congruence.errors import InputError
    from congruence.stores import read_column

    if spec is None:
        return None
    column = read_column(spec)
    stored = sides[0].get("image") or sides[0].get("text")
    if stored is None or len(stored) != len(column):
        raise InputError(
            f"Got {len(column)} labels for {len(stored or ())} items; expected one label for each of the "
            "source's images (texts, if there are no images). Pass a file with as many labels as the source "
            f"has rows, not {spec}."
        )
    return dict(zip(id_texts(stored.ids).tolist(), map(str, column.tolist()), strict=True))
