"""``congruence bridge evaluate``: evaluate a new model's queries on an unchanged index, and save a bridge."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from congruence.cli._base import check_both, number, print_json, print_table, read, refuse_options, say, unit_rows
from congruence.cli._options import Force, Json, Seed, argument, option
from congruence.cli._scores import print_thresholds
from congruence.errors import ParameterError

if TYPE_CHECKING:
    from congruence.upgrade.bridge.bridge import BridgeScores


def command(
    map_path: str = argument(..., "Saved map from the queries' model to the index's, or a bridge.", metavar="MAP"),
    queries: str = option(..., "Queries in the new model."),
    index: str = option(..., "Vectors of the index, made with the old model."),
    queries_old: str | None = option(None, "The same queries in the old model."),
    index_new: str | None = option(None, "The index's items in the new model, for two-stage search and comparison."),
    qrels: str | None = option(None, "Relevance judgments in TREC format: query 0 document grade."),
    query_labels: str | None = option(
        None, "Instead of --qrels, with --index-labels: file:column, class of each query."
    ),
    index_labels: str | None = option(None, "file:column with the class of each row of the index."),
    ids: str | None = option(None, "Key, column or file of the ids, in all files."),
    modality: str | None = option(None, "Modality of the queries: image, text, audio, video, other."),
    at: list[int] | None = option(None, "Cutoff k for recall; may be repeated. 1 and 10 by default."),
    mode: str = option(
        "any", "Recall: any (queries with a relevant row among the first k), or share of the relevant rows."
    ),
    candidates: int = option(100, "Rows that the first stage of two-stage search returns."),
    center: bool = option(False, "Center queries and index at their own means first.", "--center"),
    hubness: str | None = option(None, "csls or qb_norm: correct for hubs, with the queries as query bank."),
    bank: str | None = option(None, "Past queries in the new model, for --center and --hubness instead of --queries."),
    threshold: list[float] | None = option(
        None, "A threshold of the old model to translate, with --queries-old; may be repeated."
    ),
    normalize: str | None = option(
        None, "Scale bridged queries to unit norm: auto (as the index's rows at the fit), yes or no."
    ),
    seed: Seed = 0,
    out: str | None = option(
        None, "Folder to save the bridge to, with thresholds if --queries-old is given.", "--out", "-o"
    ),
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Search an unchanged index with a new model's queries: recall and nDCG next to the old model's, and translated
    thresholds.
    """
    from congruence import Bridge
    from congruence.embeddings import Space
    from congruence.evaluation.judgments import read_qrels
    from congruence.io import read_column
    from congruence.persist import check_map_output

    if threshold:
        if queries_old is None:
            raise ParameterError("Got --threshold without --queries-old.", "Pass the same queries in the old model.")
        refuse_options({"--center": center, "--hubness": hubness}, "with --threshold, which is for plain cosines")
    check_both("--query-labels", "--index-labels", query_labels, index_labels)
    if out is not None:
        check_map_output(out, force=force)  # checked before the work starts
    bridge = Bridge.load(map_path)
    if normalize is not None or (modality is not None and modality != bridge.modality):
        unit = bridge.normalize if normalize is None else unit_rows(normalize)
        bridge = Bridge(bridge.map, normalize=unit, modality=modality or bridge.modality)
    new_queries = read(queries, ids, Space(modality=modality))
    rows = read(index, ids, Space())
    old_queries = None if queries_old is None else read(queries_old, ids, Space(modality=modality))
    judgments: dict[str, Any] = {"qrels": None if qrels is None else read_qrels(qrels)}
    if query_labels is not None and index_labels is not None:
        judgments["labels"] = read_column(query_labels), read_column(index_labels)
    scores = bridge.evaluate(
        new_queries,
        rows,
        queries_old=old_queries,
        index_new=None if index_new is None else read(index_new, ids, Space()),
        **judgments,
        at=tuple(at or (1, 10)),
        mode=mode,
        candidates=candidates,
        center=center,
        hubness=hubness,
        bank=None if bank is None else read(bank, False, Space(modality=modality)),
    )
    translated = []
    if old_queries is not None and (threshold or out is not None):
        bridge.fit_thresholds(new_queries, old_queries, rows, **judgments, random_state=seed)
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
        if bridge.thresholds is not None and (center or scores.hubness):
            say("Its thresholds are for plain cosines, without the correction.")


def _print_scores(scores: BridgeScores) -> None:
    names = list(scores.systems[0].scores)
    title = f"{scores.n_queries:,} queries over {scores.n_rows:,} rows"
    if scores.candidates is not None:
        title += f"; two-stage: {scores.candidates} candidates"
    title += "; centered" * scores.center + (f"; hubness: {scores.hubness}" if scores.hubness else "")
    rows = []
    for line in scores.systems:
        cells = [number(line.scores[name]) + (f" ± {line.errors[name]:.3f}" if line.errors else "") for name in names]
        rows.append([line.system, *cells])
    print_table(title, ["", *names], rows)
    print("±: standard error over queries.")
