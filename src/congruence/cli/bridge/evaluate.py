"""``congruence bridge evaluate``: evaluate a new model's queries on an unchanged index, and save a bridge."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from congruence.cli._base import number, print_json, print_table, read, refuse_options, say, two_sides, unit_rows
from congruence.cli._options import Force, Ids, Json, Seed, argument, option, settable, with_groups
from congruence.cli._scores import print_thresholds
from congruence.errors import ParameterError

if TYPE_CHECKING:
    from congruence.upgrade.bridge.bridge import BridgeScores


@with_groups
def command(
    map_path: str = argument(..., "Saved map from the new model to the old one, or a bridge.", metavar="MAP"),
    queries: str = option(..., "Queries in the new model."),
    index: str = option(..., "Vectors of the index, made with the old model."),
    old_queries: str | None = option(None, "The same queries in the old model."),
    new_index: str | None = option(None, "The index's items in the new model, for two-stage search and comparison."),
    qrels: str | None = option(None, "Relevance judgments in TREC format: query 0 document grade."),
    labels: str | None = option(
        None, "Instead of --qrels, QUERIES,INDEX: file:column with the class of each query, and of each row."
    ),
    ids: Ids = None,
    modality: str | None = option(None, "Modality of the queries: image, text, audio, video, other."),
    at: list[int] | None = option(None, "Cutoff k for recall; may be repeated. 1 and 10 by default."),
    threshold: list[float] | None = option(
        None, "A threshold of the old model to translate, with --old-queries; may be repeated."
    ),
    settings: dict[str, Any] = settable(mode="any", candidates=100, hubness=str, bank=str, normalize="auto"),
    seed: Seed = 0,
    out: str | None = option(
        None, "Folder to save the bridge to, with thresholds if --old-queries is given.", "--out", "-o"
    ),
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Search an unchanged index with a new model's queries: recall and nDCG next to the old model's, and translated
    thresholds.

    Example: congruence bridge evaluate back --queries library/new-texts.parquet --index library/old-photos.parquet
    --labels library/new-texts.parquet:class,library/old-photos.parquet:class
    """
    from congruence import Bridge
    from congruence.embeddings import Space
    from congruence.evaluation.judgments import read_qrels
    from congruence.io import read_column
    from congruence.persist import check_map_output

    if threshold:
        if old_queries is None:
            raise ParameterError("Got --threshold without --old-queries.", "Pass the same queries in the old model.")
        refuse_options({"--set hubness": settings.get("hubness")}, "with --threshold, which is for plain cosines")
    classes = two_sides(labels, "--labels", "QUERIES,INDEX")
    if out is not None:
        check_map_output(out, force=force)  # checked before the work starts
    bridge = Bridge.load(map_path)
    normalize, bank = settings.pop("normalize", None), settings.pop("bank", None)
    if normalize is not None or (modality is not None and modality != bridge.modality):
        unit = bridge.normalize if normalize is None else unit_rows(normalize)
        bridge = Bridge(bridge.map, normalize=unit, modality=modality or bridge.modality)
    asked = Space(modality=modality)
    new_queries, rows = read(queries, ids, asked), read(index, ids, Space())
    before = None if old_queries is None else read(old_queries, ids, asked)
    judgments: dict[str, Any] = {"qrels": None if qrels is None else read_qrels(qrels)}
    if classes is not None:
        judgments["labels"] = tuple(map(read_column, classes))
    scores = bridge.evaluate(
        new_queries,
        rows,
        queries_old=before,
        index_new=None if new_index is None else read(new_index, ids, Space()),
        **judgments,
        at=tuple(at or (1, 10)),
        bank=None if bank is None else read(bank, False, asked),
        **settings,
    )
    translated = []
    if before is not None and (threshold or out is not None):
        bridge.fit_thresholds(new_queries, before, rows, **judgments, random_state=seed)
        translated = [bridge.translate(value) for value in threshold or []]
    if out is not None:
        bridge.save(out, force=force)
    if as_json:
        print_json(
            {"map": map_path, "output": out, **scores.to_dict(), "thresholds": [row.to_dict() for row in translated]}
        )
        return
    _print_scores(scores)
    print_thresholds(translated)
    for note in scores.notes:
        say(note)
    if out is not None:
        say(f"saved: {out}")
        if bridge.thresholds is not None and scores.hubness:
            say("Its thresholds are for plain cosines, without the correction.")


def _print_scores(scores: BridgeScores) -> None:
    names = list(scores.systems[0].scores)
    title = f"{scores.n_queries:,} queries over {scores.n_rows:,} rows"
    if scores.candidates is not None:
        title += f"; two-stage: {scores.candidates} candidates"
    title += f"; hubness: {scores.hubness}" if scores.hubness else ""
    rows = []
    for line in scores.systems:
        cells = [number(line.scores[name]) + (f" ± {line.errors[name]:.3f}" if line.errors else "") for name in names]
        rows.append([line.system, *cells])
    print_table(title, ["", *names], rows)
    print("±: standard error over queries.")
