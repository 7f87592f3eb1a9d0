"""``congruence bridge``: evaluate a new model's queries on an unchanged index, and save a bridge."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from congruence.upgrade.bridge.bridge import BridgeScores

__all__ = ["command"]


def command(
    map_path: Annotated[
        str,
        typer.Argument(
            metavar="MAP", help="Folder of a saved map from the queries' model to the index's model, or of a bridge."
        ),
    ],
    queries: Annotated[str, typer.Option(help="Queries in the new model.")],
    index: Annotated[str, typer.Option(help="Vectors of the index, made with the old model.")],
    queries_old: Annotated[str | None, typer.Option(help="The same queries in the old model.")] = None,
    index_new: Annotated[
        str | None,
        typer.Option(
            help="Items of the index in the new model, for two-stage search and for comparison with re-embedding."
        ),
    ] = None,
    qrels: Annotated[
        str | None, typer.Option(help="Relevance judgments in TREC format: query 0 document grade.")
    ] = None,
    query_labels: Annotated[
        str | None,
        typer.Option(help="Instead of --qrels, with --index-labels: file:column with the class of each query."),
    ] = None,
    index_labels: Annotated[
        str | None, typer.Option(help="file:column with the class of each row of the index.")
    ] = None,
    ids: Annotated[str | None, typer.Option(help="Key, column or file of the ids, in all files.")] = None,
    modality: Annotated[
        str | None, typer.Option(help="Modality of the queries: image, text, audio, video, other.")
    ] = None,
    at: Annotated[
        list[int] | None, typer.Option(help="Cutoffs k for recall; may be repeated. 1 and 10 by default.")
    ] = None,
    mode: Annotated[
        str,
        typer.Option(
            help="What recall measures: any (share of queries with a relevant row among the first k) or share (of "
            "the relevant rows among them)."
        ),
    ] = "any",
    candidates: Annotated[
        int, typer.Option(help="Number of rows that the first stage of two-stage search returns.")
    ] = 100,
    center: Annotated[
        bool,
        typer.Option("--center", help="Center queries and index at their own means before all searches."),
    ] = False,
    hubness: Annotated[
        str | None,
        typer.Option(help="csls or qb_norm: correct all searches for hubs; the queries serve as the query bank."),
    ] = None,
    bank: Annotated[
        str | None,
        typer.Option(help="Past queries in the new model, used for --center and --hubness instead of --queries."),
    ] = None,
    threshold: Annotated[
        list[float] | None,
        typer.Option(help="A threshold of the old model's cosine to translate; needs --queries-old. May be repeated."),
    ] = None,
    normalize: Annotated[
        str | None,
        typer.Option(
            help="Scale bridged queries to unit norm: auto (if the index's rows had unit norm at the fit; the "
            "default for a map), yes or no."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Random seed of the folds and resampled queries of --threshold.")] = 0,
    out: Annotated[
        str | None,
        typer.Option(
            "--out", "-o", help="Folder to save the bridge to, including thresholds if --queries-old is given."
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing bridge.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Report as JSON.")] = False,
) -> None:
    """Search an unchanged index with a new model's queries: recall and nDCG next to the old model's, and translated
    thresholds.
    """
    from congruence import Bridge
    from congruence._utils.validation import check_choice
    from congruence.cli._base import print_json, read, say
    from congruence.cli._thresholds import print_thresholds
    from congruence.embeddings import Space
    from congruence.errors import ParameterError
    from congruence.evaluation.judgments import read_qrels
    from congruence.persist import check_map_output
    from congruence.stores import read_column

    if threshold and queries_old is None:
        raise ParameterError(
            "Got --threshold without --queries-old; expected the same queries in the old model, whose scores "
            "are translated. Pass --queries-old with their file."
        )
    if threshold and (center or hubness is not None):
        raise ParameterError(
            f"Got --threshold with {'--center' if center else '--hubness'}; expected plain cosines, since only "
            "their thresholds can be translated. Leave out one of the two."
        )
    if (query_labels is None) != (index_labels is None):
        raise ParameterError(
            "Got one of --query-labels and --index-labels; expected both, or neither. Pass the class of each "
            "query and of each row of the index."
        )
    if out is not None:
        check_map_output(out, force=force)  # checked before the work starts
    bridge = Bridge.load(map_path)
    if normalize is not None or (modality is not None and modality != bridge.modality):
        unit: bool | str = bridge.normalize
        if normalize is not None:
            check_choice(normalize, ("auto", "yes", "no"), "normalize")
            unit = "auto" if normalize == "auto" else normalize == "yes"
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
    from congruence.cli._base import number, print_table

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
