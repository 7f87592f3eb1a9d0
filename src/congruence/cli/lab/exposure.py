"""``congruence lab exposure``: estimate how many vectors of a store an outsider can match to their texts."""

from __future__ import annotations

from typing import Any

from congruence.cli._base import ids_of, number, print_json, print_table, progress, read
from congruence.cli._options import Ids, Json, Seed, argument, option, settable, with_groups
from congruence.errors import ShapeError


@with_groups
def command(
    store: str = argument(..., "Stored vectors: a file, or file:key."),
    texts: str = option(..., "Candidate texts in another model, including those of the store."),
    pairs: list[int] | None = option(
        None, "Number of vectors whose texts are known; may be repeated. 10 and 100 by default."
    ),
    protections: list[str] | None = option(
        None, "Protection of the store: none, rotation, noise=0.5, pca=64, int8, binary, joined by +.", "--protect"
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
    from congruence._utils.ids import id_texts
    from congruence.embeddings import Space
    from congruence.evaluation.exposure import measure_exposure
    from congruence.io import read_column

    stored_ids, given_ids = ids_of(ids)
    vectors, candidates = read(store, None if labels else stored_ids, Space()), read(texts, given_ids, Space())
    text_ids = None
    if labels is not None:
        column = read_column(labels)
        if len(column) != len(vectors):
            raise ShapeError(
                f"Got {len(column)} labels for {len(vectors)} vectors; expected one label per vector.",
                f"Pass --labels with a column that has one entry for each row of {store}.",
            )
        text_ids = dict(zip(id_texts(vectors.ids).tolist(), map(str, column.tolist()), strict=True))
    applied, draws = protections or ["none"], settings.get("draws", 5)
    with progress("measuring", draws * len(applied), as_json) as callback:
        lines = measure_exposure(
            vectors,
            candidates,
            pairs=pairs or (10, 100),
            labels=text_ids,
            queries=None if queries is None else read(queries, None, Space()),
            protections=applied,
            random_state=seed,
            callback=callback,
            **settings,
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
