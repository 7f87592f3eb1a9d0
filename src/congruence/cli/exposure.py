"""``congruence exposure``: estimate how many vectors of a store an outsider can match to their texts."""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = ["command"]


def command(
    store: Annotated[str, typer.Argument(help="Stored vectors: a file, or file:key.")],
    texts: Annotated[str, typer.Option(help="Candidate texts in another model, including those of the store.")],
    pairs: Annotated[
        list[int] | None,
        typer.Option(
            help="Number of vectors whose texts are known, 0 for none; may be repeated. 10 and 100 by default."
        ),
    ] = None,
    protections: Annotated[
        list[str] | None,
        typer.Option(
            "--protect",
            help="Protection applied to the store: none, rotation, noise=0.5, pca=64, int8, binary, or several "
            "joined by +. May be repeated.",
        ),
    ] = None,
    ids: Annotated[str | None, typer.Option(help="Key, column or file of the ids, in both files.")] = None,
    labels: Annotated[
        str | None, typer.Option(help="file:column with the id of each vector's text; by default the vector's own id.")
    ] = None,
    queries: Annotated[
        str | None, typer.Option(help="The owner's queries, to measure search; by default the stored vectors.")
    ] = None,
    rounds: Annotated[int, typer.Option(help="Number of refits on mutual nearest neighbors; 0 for none.")] = 4,
    draws: Annotated[
        int, typer.Option(help="Number of random draws of the known pairs, and of rotations and noise.")
    ] = 5,
    seed: Annotated[int, typer.Option(help="Random seed of all draws.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Report as JSON.")] = False,
) -> None:
    """Measure how many stored vectors can be matched to their text with a few known pairs, and what reduces this."""
    from congruence._utils.ids import id_texts
    from congruence.cli._base import number, print_json, print_table, progress, read
    from congruence.embeddings import Space
    from congruence.errors import ShapeError
    from congruence.evaluation.exposure import measure_exposure
    from congruence.stores import read_column

    vectors, candidates = read(store, None if labels else ids, Space()), read(texts, ids, Space())
    text_ids = None
    if labels is not None:
        column = read_column(labels)
        if len(column) != len(vectors):
            raise ShapeError(
                f"Got {len(column)} labels for {len(vectors)} vectors; expected one label per vector. Pass "
                f"--labels with a column that has one entry for each row of {store}."
            )
        text_ids = dict(zip(id_texts(vectors.ids).tolist(), map(str, column.tolist()), strict=True))
    applied = protections or ["none"]
    with progress("measuring", draws * len(applied), as_json) as callback:
        lines = measure_exposure(
            vectors,
            candidates,
            pairs=pairs or (10, 100),
            labels=text_ids,
            queries=None if queries is None else read(queries, None, Space()),
            protections=applied,
            rounds=rounds,
            draws=draws,
            random_state=seed,
            callback=callback,
        )
    if as_json:
        print_json({"store": store, "texts": texts, "draws": draws, "exposure": [line.to_dict() for line in lines]})
        return
    print_table(
        f"{len(vectors):,} vectors, {len(candidates):,} candidate texts, {draws} draws of the pairs; 95 % intervals",
        ["protection", "pairs", "find their text", "by the pairs alone", "among ten", "chance", "search keeps"],
        [
            [
                line.protection,
                str(line.pairs),
                f"{number(line.found)} ({number(line.low)} … {number(line.high)})",
                *map(number, (line.by_pairs, line.found_at_k, line.chance, line.search)),
            ]
            for line in lines
        ],
    )
    print(
        "search keeps: share of the ten nearest stored vectors of the owner's queries that are still found. "
        "An attacker may know more than this measurement assumes."
    )
