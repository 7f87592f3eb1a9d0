"""``congruence search``: search an index that is partly of the old model and partly of the new one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from congruence.cli._input import read, two_sides
from congruence.cli._options import Force, Json, Seed, argument, option, settable
from congruence.cli._output import check_out, print_json, print_table, say, write_table
from congruence.cli._sides import placed, refuse_same

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np


_PRINTED = 20  # number of hits printed


def search(
    map_path: str = argument(..., "Folder of a bridge or map from the new model to the old one.", metavar="MAP"),
    queries: str = option(..., "Queries in the new model."),
    old: str = option(..., "The rows that are still of the old model."),
    new: str = option(..., "The rows of the new model; an id in both parts counts as new."),
    k: int = option(10, "Number of hits per query.", "--k", "-k"),
    background: str | None = option(
        None, "OLD,NEW: similar items in both models, which set the scales; else random rows."
    ),
    settings: dict[str, Any] = settable(merge="standardize"),
    ids: str | None = option(None, "Key, column or file of the ids in all files; none for row numbers."),
    modality: str | None = option(None, "Modality of the queries: image, text, audio, video, other."),
    seed: Seed = 0,
    out: str | None = option(None, "Write all hits to a .csv or .parquet file.", "--out", "-o"),
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Search an index that is half migrated with a new model's queries, with one ranked list of hits.

    Example: congruence search back --queries library/new-texts.parquet --old library/old-photos.parquet --new
    library/new-photos.parquet

    An index that is wholly of the old model is searched by ``congruence bridge search``.
    """
    from congruence import Bridge
    from congruence.upgrade.bridge import search_mixed

    files = two_sides(background, "--background") or ()
    refuse_same(old, new)
    refuse_same(*files)
    check_out(out, queries, old, new, *files, force=force, kind="table")
    bridge = Bridge.load(map_path)
    new_queries, old_rows, new_rows = read(queries, ids, modality=modality), read(old, ids), read(new, ids)
    placed((old, new), (old_rows, new_rows))
    scale = (read(files[0], "none"), read(files[1], "none")) if files else None
    mixed = search_mixed(bridge, new_queries, old_rows, new_rows, k, background=scale, random_state=seed, **settings)
    share = float(mixed.new.mean())
    notes = [f"{share:.1%} of the hits come from the new part."]
    if mixed.n_in_both:
        notes.append(
            f"{mixed.n_in_both:,} rows of the old part have an id that is also in the new part, and count as new."
        )
    counts = {"n_old": len(old_rows), "n_new": len(new_rows), "n_in_both": mixed.n_in_both, "share_new": share}
    counts["merge"] = settings.get("merge", "standardize")
    title = f"{len(new_queries):,} queries, {len(old_rows):,} old and {len(new_rows):,} new rows"
    hits = list_hits(new_queries.ids, mixed.scores, mixed.ids, mixed.new)
    report = {"map": map_path, "output": out, "k": k, "n_queries": len(new_queries), **counts}
    print_hits(title, hits, report, notes, force=force, as_json=as_json)


def print_hits(
    title: str, hits: list[Any], report: dict[str, Any], notes: Sequence[str] = (), *, force: bool, as_json: bool
) -> None:
    """Write the hits where ``report["output"]`` says, and print the first of them, or the report as JSON."""
    out = report["output"]
    if out is not None:
        import pyarrow as pa  # not before: it imports pandas

        write_table(pa.Table.from_pylist(hits), out, force=force)
    if as_json:
        print_json({**report, "hits": hits if out is None else None})
        return
    lines = [
        [str(hit["query"]), str(hit["rank"]), str(hit["id"]), hit["model"], f"{hit['score']:.4f}"]
        for hit in hits[:_PRINTED]
    ]
    print_table(title, ["query", "rank", "id", "model", "score"], lines)
    say(*notes)
    if out is not None:
        say(f"written to {out}: {len(hits):,} hits")
    elif len(hits) > _PRINTED:
        say(f"{len(hits) - _PRINTED:,} more hits: pass --out or --json for all.")


def list_hits(
    queries: np.ndarray, scores: np.ndarray, hit_ids: np.ndarray, is_new: np.ndarray, other: str = "old"
) -> list[Any]:
    """Return one row per hit, query by query, nearest first."""
    # If one part has ids and the other row numbers, both become strings: a column has one type.
    of_query, of_hit = (int if ids.dtype.kind in "iu" else str for ids in (queries, hit_ids))
    return [
        {"query": of_query(query), "rank": rank, "id": of_hit(name), "model": (other, "new")[new], "score": score}
        for query, *found in zip(*(side.tolist() for side in (queries, hit_ids, is_new, scores)), strict=True)
        for rank, (name, new, score) in enumerate(zip(*found, strict=True), 1)
    ]
