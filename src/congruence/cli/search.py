"""``congruence search``: search an old index, or one that is partly old and partly new, with queries of a new model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from congruence.cli._base import (
    check_both,
    check_new,
    check_table_name,
    print_json,
    print_table,
    read,
    refuse_options,
    say,
    write_table,
)
from congruence.cli._options import Force, Json, Seed, argument, option

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa


#: Number of hits printed.
_PRINTED = 20


def command(
    map_path: str = argument(..., "Folder of a bridge or map from the new model to the old one.", metavar="MAP"),
    queries: str = option(..., "Queries in the new model."),
    old: str = option(..., "The index, or the part of it that was made with the old model."),
    new: str | None = option(None, "The part made with the new model; an id in both parts counts as new."),
    k: int = option(10, "Number of hits per query.", "--k", "-k"),
    merge: str = option(
        "standardize", "With --new: how scores of both parts are put on one scale: standardize or none."
    ),
    background_old: str | None = option(
        None, "Rows in the old model that set the scale; by default random rows of --old."
    ),
    background_new: str | None = option(None, "The same or similar items in the new model."),
    ids: str | None = option(None, "Key, column or file of the ids in all files; none for row numbers."),
    modality: str | None = option(None, "Modality of the queries: image, text, audio, video, other."),
    seed: Seed = 0,
    out: str | None = option(None, "Write all hits to a .csv or .parquet file.", "--out", "-o"),
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Search with a new model's queries in an old model's index, or in a half-migrated index, with one ranked list of
    hits.
    """
    import numpy as np

    from congruence import Bridge
    from congruence.embeddings import Space
    from congruence.io import open_source
    from congruence.upgrade.bridge import search_mixed

    check_both("--background-old", "--background-new", background_old, background_new)
    if new is None:
        needs_new = {"--background-old": background_old, "--merge": merge != "standardize"}
        refuse_options(needs_new, "without --new", "Pass --new with the part of the new model, or leave it out.")
    if out is not None:
        check_table_name(out, "--out")
        specs = [spec for spec in (queries, old, new, background_old, background_new) if spec is not None]
        check_new(out, *(open_source(spec, ids=False) for spec in specs if force), force=force)
    bridge = Bridge.load(map_path)
    id_column = False if ids == "none" else ids
    new_queries = read(queries, id_column, Space(modality=modality))
    old_rows = read(old, id_column, Space())
    report: dict[str, object] = {
        "map": map_path,
        "output": out,
        "k": k,
        "n_queries": len(new_queries),
        "n_old": len(old_rows),
    }
    title = f"{len(new_queries):,} queries, {len(old_rows):,} old"
    notes = []
    if new is None:
        single = bridge.search(new_queries, old_rows, k)
        scores, hit_ids, is_new = single.scores, single.ids, np.zeros(single.ids.shape, bool)
        title += " rows"
    else:
        new_rows = read(new, id_column, Space())
        background = None
        if background_old is not None and background_new is not None:
            background = read(background_old, False, Space()), read(background_new, False, Space())
        mixed = search_mixed(
            bridge, new_queries, old_rows, new_rows, k, merge=merge, background=background, random_state=seed
        )
        scores, hit_ids, is_new = mixed.scores, mixed.ids, mixed.new
        share = float(is_new.mean())
        report |= {"n_new": len(new_rows), "n_in_both": mixed.n_in_both, "merge": merge, "share_new": share}
        title += f" and {len(new_rows):,} new rows"
        notes.append(f"{share:.1%} of the hits come from the new part.")
        if mixed.n_in_both:
            notes.append(
                f"{mixed.n_in_both:,} rows of the old part have an id that is also in the new part, and count as new."
            )
    hits = _table(new_queries.ids, scores, hit_ids, is_new)
    if out is not None:
        write_table(hits, out, force=force)
    if as_json:
        print_json({**report, "hits": hits.to_pylist() if out is None else None})
        return
    lines = [
        [str(hit["query"]), str(hit["rank"]), str(hit["id"]), hit["model"], f"{hit['score']:.4f}"]
        for hit in hits.slice(0, _PRINTED).to_pylist()
    ]
    print_table(title, ["query", "rank", "id", "model", "score"], lines)
    for note in notes:
        say(note)
    if out is not None:
        say(f"written to {out}: {len(hits):,} hits")
    elif len(hits) > _PRINTED:
        say(f"{len(hits) - _PRINTED:,} more hits: pass --out or --json for all.")


def _table(queries: np.ndarray, scores: np.ndarray, hit_ids: np.ndarray, is_new: np.ndarray) -> pa.Table:
    """Return one row per hit, query by query, nearest first."""
    import numpy as np
    import pyarrow as pa

    def column(ids: np.ndarray) -> pa.Array:
        # If one part has ids and the other row numbers, both become strings: a column has one type.
        return pa.array(ids) if ids.dtype.kind in "iu" else pa.array([str(i) for i in ids.tolist()], pa.string())

    m, k = hit_ids.shape
    return pa.table(
        {
            "query": column(np.repeat(queries, k)),
            "rank": np.tile(np.arange(1, k + 1), m),
            "id": column(hit_ids.ravel()),
            "model": pa.array(np.where(is_new, "new", "old").ravel().tolist(), pa.string()),
            "score": scores.ravel(),
        }
    )
