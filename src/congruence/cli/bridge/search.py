"""``congruence bridge search``: search an old model's index with queries of a new model."""

from __future__ import annotations

from congruence.cli._base import read
from congruence.cli._options import Force, Json, argument, option
from congruence.cli.search import check_hits_output, print_hits, table_of_hits


def command(
    map_path: str = argument(..., "Folder of a bridge or map from the new model to the old one.", metavar="MAP"),
    queries: str = option(..., "Queries in the new model."),
    index: str = option(..., "Vectors of the index, made with the old model."),
    k: int = option(10, "Number of hits per query.", "--k", "-k"),
    ids: str | None = option(None, "Key, column or file of the ids in all files; none for row numbers."),
    modality: str | None = option(None, "Modality of the queries: image, text, audio, video, other."),
    out: str | None = option(None, "Write all hits to a .csv or .parquet file.", "--out", "-o"),
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Search an old model's index with a new model's queries.

    Example: congruence bridge search back --queries library/new-texts.parquet --index library/old-photos.parquet
    """
    import numpy as np

    from congruence import Bridge
    from congruence.embeddings import Space

    check_hits_output(out, queries, index, force=force)
    bridge = Bridge.load(map_path)
    id_column = False if ids == "none" else ids
    new_queries, old_rows = read(queries, id_column, Space(modality=modality)), read(index, id_column, Space())
    found = bridge.search(new_queries, old_rows, k)
    hits = table_of_hits(new_queries.ids, found.scores, found.ids, np.zeros(found.ids.shape, bool))
    report = {"map": map_path, "output": out, "k": k, "n_queries": len(new_queries), "n_rows": len(old_rows)}
    title = f"{len(new_queries):,} queries, {len(old_rows):,} rows"
    print_hits(title, hits, report, force=force, as_json=as_json)
