"""``congruence check``: recommend how to handle a change of models, from items encoded by both."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import typer

from congruence._utils.atomic import check_output
from congruence._utils.optional import require
from congruence.cli._base import number, print_json, print_table, progress, read, refuse_options, say
from congruence.cli._engines import SampleOptions, read_sides
from congruence.cli._options import Force, Json, Seed, argument, option, with_groups
from congruence.errors import IdError, InputError, ParameterError

if TYPE_CHECKING:
    import numpy as np

    from congruence.embeddings import Embeddings

    Sides: TypeAlias = tuple[dict[str, Embeddings], dict[str, Embeddings]]
    from congruence.upgrade.certify import Certificate, Estimate


@with_groups
def command(
    data: str | None = argument(
        None, "Bundle (.parquet) of both models' embeddings, or a built-in sample: photos, emoji."
    ),
    *,
    source_image: str | None = option(None, "Anchor images in the source model: a file, or file:key."),
    source_text: str | None = option(None, "Anchor texts in the source model."),
    target_image: str | None = option(None, "The same images in the target model."),
    target_text: str | None = option(None, "The same texts in the target model."),
    query_source_image: str | None = option(None, "Held-out images in the source model."),
    query_source_text: str | None = option(None, "Held-out texts in the source model."),
    query_target_image: str | None = option(None, "Held-out images in the target model."),
    query_target_text: str | None = option(None, "Held-out texts in the target model."),
    ids: str | None = option(None, "Key, column or file of the ids, in all files."),
    queries_text: str | None = option(
        None, "Texts of any items in the target model: queries for the overlap with a re-embedded store."
    ),
    queries_text_source: str | None = option(None, "The same texts in the source model, to include keeping it."),
    labels: str | None = option(None, "file:column with the class of each image (or text, if there are no images)."),
    query_labels: str | None = option(None, "file:column with the class of each held-out item."),
    anchors: str | None = option(
        None, "Number of items to draw as anchors, or a file of their ids; the others are held-out queries."
    ),
    method: str = option("auto", "Map to certify: auto (as congruence fit chooses), orthogonal or linear."),
    single_modality: bool = option(
        False, "Only one modality will be mapped: linear maps may be chosen.", "--single-modality"
    ),
    fitted: str | None = option(None, "Fit on image, text or both; by default on all that both models have."),
    retention: float = option(0.95, "Smallest share of the target's own score that mapped vectors must reach."),
    worth: float = option(0.01, "Smallest difference of scores that justifies a change."),
    tie: float = option(0.03, "Advantage in score from which mapping the queries is preferred."),
    most_anchors: int = option(5000, "Largest number of additional anchors that you could collect."),
    must_move: bool = option(
        False, "The source model will no longer be available, so it cannot be kept.", "--must-move"
    ),
    n_neighbors: int = option(10, "Length of the result lists whose overlap is measured."),
    center: bool = option(False, "Search with queries and store each centered at its own mean.", "--center"),
    hubness: str | None = option(None, "csls or qb_norm: search with a correction for hubs."),
    theory: str = option("brief", "brief, or full, which adds κ; its linear programs take minutes."),
    rows: int | None = option(None, "Number of rows of the store, to estimate costs."),
    encode_rate: float | None = option(None, "Items per second that the target model encodes."),
    price: float | None = option(None, "Price of encoding one item."),
    source_model: str | None = option(None, "Name of the source model, for the certificate."),
    target_model: str | None = option(None, "Name of the target model."),
    folds: int = option(10, "Number of cross-validation folds of the anchors."),
    repeats: int = option(10, "Number of random orders of the anchors for the learning curve."),
    seed: Seed = 0,
    runner: SampleOptions,
    report: str | None = option(None, "HTML file to write the certificate to."),
    force: Force = False,
    exit_code: bool = option(False, "Exit with code 1 unless the verdict is to map.", "--exit-code"),
    as_json: Json = False,
) -> None:
    """Recommend whether to map vectors between two models or to re-embed, with the evidence."""
    from congruence.upgrade.certify import Criteria, certify, split_anchors

    if report is not None:  # checked before the work starts
        check_output(report, force=force)
        require("matplotlib", extra="plot")
    thresholds = Criteria(retention, worth, tie, most_anchors, must_move)
    models = {"source": source_model, "target": target_model}
    anchor_specs = {
        "source": {"image": source_image, "text": source_text},
        "target": {"image": target_image, "text": target_text},
    }
    query_specs = {
        "source": {"image": query_source_image, "text": query_source_text},
        "target": {"image": query_target_image, "text": query_target_text},
    }
    specs = (*anchor_specs.values(), *query_specs.values())
    files = [spec for side in specs for spec in side.values() if spec]
    by_fragments = runner.by_fragments(*files)

    def read_models(specs: dict[str, dict[str, str | None]]) -> Sides:
        sides = read_sides(
            specs,
            ids,
            models,
            runner=runner if by_fragments else None,
            random_state=seed,
            needs_rows={"--labels": labels, "--query-labels": query_labels},
        )
        return sides["source"], sides["target"]

    bundle_classes = None
    if data is None:
        sides = read_models(anchor_specs)
    elif by_fragments:
        raise ParameterError(
            f"Got a bundle, {data}, for --engine {runner.engine}; expected data sets.",
            "Pass --source-image, --target-image and the like, or leave out --engine.",
        )
    else:
        sides, bundle_classes = _from_bundle(data, models)
    classes = _labels(labels, sides) or bundle_classes
    queries = None
    if any(spec for side in query_specs.values() for spec in side.values()):
        queries = read_models(query_specs)
    if queries is not None and classes is not None:
        classes |= _labels(query_labels, queries) or {}
    if anchors is not None:
        if queries is not None:
            raise ParameterError("Got --anchors and held-out queries; expected one of them.", "Leave out one.")
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
        from congruence.report import render_certificate, write_page

        write_page(report, render_certificate(certificate), force=force)
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
    from congruence.embeddings import Space
    from congruence.io import parse_spec, read_column

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
            f"Got {anchors} without ids for --anchors; expected a number, or a file of ids.",
            "Pass --anchors FILE:COLUMN, or a .txt with one id per line.",
        )
    return rows.ids


def _text_queries(
    source: str | None, target: str | None, models: dict[str, str | None]
) -> tuple[Embeddings | None, Embeddings] | None:
    from congruence.embeddings import Space

    if target is None:
        refuse_options({"--queries-text-source": source}, "without --queries-text", "Pass --queries-text too.")
        return None
    old, new = (Space(model, modality="text") for model in models.values())
    return None if source is None else read(source, None, old), read(target, None, new)


def _from_bundle(data: str, models: dict[str, str | None]) -> tuple[Sides, dict[str, str] | None]:
    """Return both sides of a bundle, and the class of each image if the bundle has classes."""
    from dataclasses import replace

    from congruence.datasets import open_bundle

    bundle = open_bundle(data)
    first, second = bundle.side("source"), bundle.side("target")
    for side, model in zip((first, second), models.values(), strict=True):
        for modality, rows in side.items():
            if model is not None:
                side[modality] = replace(rows, space=replace(rows.space, model=model))
    return (first, second), bundle.classes.get("image")


def _labels(spec: str | None, sides: Sides) -> dict[str, str] | None:
    """Return the label of each item of the source by id; labels and items have the same order."""
    from congruence._utils.ids import id_texts
    from congruence.io import read_column

    if spec is None:
        return None
    column = read_column(spec)
    stored = sides[0].get("image") or sides[0].get("text")
    if stored is None or len(stored) != len(column):
        raise InputError(
            f"Got {len(column)} labels for {len(stored or ())} items; expected one label for each of the "
            "source's images (texts, if there are no images).",
            f"Pass a file with as many labels as the source has rows, not {spec}.",
        )
    return dict(zip(id_texts(stored.ids).tolist(), map(str, column.tolist()), strict=True))


def print_certificate(certificate: Certificate) -> None:
    """Print a certificate as tables, the verdict first."""
    from congruence.upgrade.certify import ACTIONS

    verdict = certificate.verdict
    say(f"Verdict: {verdict.headline}")
    say(f"{verdict.reason[:1].upper()}{verdict.reason[1:]}")
    print("Share of draws: " + ", ".join(f"{ACTIONS[a]} {share:.0%}" for a, share in verdict.confidence.items()))
    if not verdict.settled:
        print(
            "No action has 90% of the draws: the evidence does not decide between these actions. Encode more "
            "items to narrow it down."
        )
    facts = certificate.facts
    say(f"{facts['source']} → {facts['target']}; {facts['data']}; {facts['date']}, seed {facts['seed']}")
    say(f"Map: {certificate.choice['name']}; {certificate.how_to_fit}")
    print()

    print_table(
        f"{certificate.n_anchors} anchors ({' and '.join(certificate.fitted)}), {certificate.n_queries} items "
        "scored; 95 % intervals",
        ["measure", "keep the old model", "map the store", "map the queries", "re-embed", "chance", "random rotation"],
        [
            [
                task,
                *(_cell(scores.get(strategy)) for strategy in ("keep", "stored", "queries")),
                "1 by definition" if task in certificate.controls else _cell(scores.get("re-embed")),
                *(number(certificate.controls.get(task, {}).get(control)) for control in ("chance", "random_rotation")),
            ]
            for task, scores in certificate.strategies.items()
        ],
    )
    _print_costs(certificate)
    rows = [[f"{name.replace('/', ' ÷ ')}, {certificate.task}", _cell(e)] for name, e in certificate.retention.items()]
    for modality, e in certificate.cosines.items():
        controls = certificate.controls.get(f"cosine/{modality}", {})
        rows.append([f"cosine of mapped {modality} and target {modality}", _cell(e)])
        rows.append([f"  control: every {modality} at the target's mean", number(controls.get("constant"))])
        rows.append(["  control: a random rotation about the correct means", number(controls.get("random_rotation"))])
    rows += [
        [f"{m} variance in directions the anchors cover", f"{share:.1%}"] for m, share in certificate.covered.items()
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
            say(f"  {entry['sentence']}")
        print()
    for note in certificate.notes:
        say(note)


def _print_costs(certificate: Certificate) -> None:
    """Print the expected quality and cost of each strategy."""
    names = {"keep": "keep the old model", "map": "map the store", "progressive": "map, re-embed {share:.0%}"}
    rows = []
    for cost in certificate.costs:
        rows.append(
            [
                names.get(cost["strategy"], "re-embed").format(share=cost["share"]),
                _cell(cost["score"]),
                f"{cost['share']:.0%} of the store" if cost["items"] is None else f"{cost['items']:,}",
                "–" if cost["minutes"] is None else number(cost["minutes"], 1),
                "–" if cost["price"] is None else f"{cost['price']:,.2f}",
            ]
        )
    print_table("Cost of each strategy", ["strategy", certificate.task, "items to encode", "minutes", "price"], rows)
    if certificate.progressive.get("sentence"):
        say(certificate.progressive["sentence"])
        print()


def _cell(estimate: Estimate | None) -> str:
    """Format a score with its interval; an unknown score is a dash."""
    return "–" if estimate is None else f"{number(estimate.value)} ({number(estimate.low)} … {number(estimate.high)})"
