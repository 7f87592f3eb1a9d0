"""The second part of ``congruence demo --sample emoji``: migrate a LanceDB table, roll it back, and search it by text
at each step.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from congruence.cli._demo_steps import print_rollback, verify_and_switch

if TYPE_CHECKING:
    import lancedb
    import numpy as np
    import pyarrow as pa

    from congruence.datasets import Bundle
    from congruence.maps import Map
    from congruence.splits import Split

__all__ = ["migrate_table", "print_table_searches"]

#: Number of searches shown, and of rows per search.
EXAMPLES, SHOWN = 6, 5

#: Cutoff k of each measure.
MEASURES = {"recall@1": 1, "recall@10": 10}


def migrate_table(sample: Bundle, mapping: Map, split: Split, *, random_state: int = 0) -> dict[str, Any]:
    """Put the old model's vectors of all pictures and captions in a LanceDB table, and move it to the new model and
    back.

    Parameters
    ----------
    sample : Bundle
    mapping : Map
        From the old model to the new one.
    split : Split
        The texts of its held-out classes are used as queries.
    random_state : int
        Determines the searches that are shown.

    Returns
    -------
    dict
        ``searches`` as for :func:`congruence.report.render_migration`; ``summary`` of the completed migration;
        ``identical``: whether the rollback restored the old vectors bit for bit; ``same_lists``: whether it restored
        the search results.

    Raises
    ------
    MissingExtraError
        If the extra ``lancedb`` is not installed.
    MigrationError
        If the new vectors fail verification.
    """
    import numpy as np

    from congruence._utils.optional import require
    from congruence.databases import open_database
    from congruence.upgrade.migrate import Migration

    lancedb = require("lancedb", extra="lancedb")
    old, new = sample.source, sample.target
    names = old["text"].ids[split.held_out(old["text"].ids)]
    old_queries, new_queries = (side["text"].take(names).vectors.astype(np.float32) for side in (old, new))
    shown = np.random.default_rng(random_state).permutation(len(names))[:EXAMPLES]
    with tempfile.TemporaryDirectory(prefix="congruence-demo-") as folder:
        table = lancedb.connect(folder).create_table("items", _rows(sample))
        where = str(Path(folder) / "items.lance")

        def search(name: str, note: str, queries: np.ndarray) -> dict[str, Any]:
            """Search the table with its own client, as an application does."""
            table.checkout_latest()
            hits = [_nearest_pictures(table, queries[k], SHOWN) for k in shown]
            pictures = table.search().where("kind = 'image'").select(["id", "embedding"]).to_arrow()
            vectors = np.stack(pictures["embedding"].to_numpy()).astype(np.float32)
            return {
                "name": name,
                "note": note,
                "found": hits,
                "scores": _score(queries, vectors, pictures["id"].to_pylist(), names),
            }

        steps = [
            search("before", "old model's texts, old vectors", old_queries),
            search("only the encoder changed", "new model's texts, old vectors", new_queries),
        ]
        database = open_database(where, modality_column="kind")
        with Migration(database, mapping, journal=Path(folder) / "journal") as migration:
            migration.run()
            verify_and_switch(migration)
            steps.append(search("after the switch", "new model's texts, mapped vectors", new_queries))
            result = migration.rollback()
            steps.append(search("rolled back", "old model's texts, old vectors again", old_queries))
            summary = migration.summary()
        table = None
    gallery = new["image"].vectors.astype(np.float32)
    oracle = _score(new_queries, gallery, new["image"].ids.tolist(), names)
    measured = [
        *steps,
        {"name": "all re-embedded", "note": "new model's texts and pictures; not done here", "scores": oracle},
    ]
    examples = [
        {
            "text": _caption(sample, str(names[k])),
            "steps": [
                {"name": step["name"], "found": [_item(sample, hit, str(names[k])) for hit in step["found"][i]]}
                for step in steps[:3]
            ],
        }
        for i, k in enumerate(shown.tolist())
    ]
    return {
        "searches": {
            "n": len(names),
            "gallery": len(gallery),
            "measures": list(MEASURES),
            "steps": [{key: step[key] for key in ("name", "note", "scores")} for step in measured],
            "examples": examples,
        },
        "summary": summary,
        "identical": result["identical"],
        "same_lists": steps[0]["found"] == steps[-1]["found"],
    }


def print_table_searches(result: dict[str, Any]) -> None:
    """Print the result of :func:`migrate_table`; the pictures are emoji, so a terminal can show them."""
    from congruence.cli._base import number, print_table, say
    from congruence.cli._streams import knows_unicode

    searches = result["searches"]
    print_table(
        f"a LanceDB table of {searches['gallery']:,} pictures and their captions, migrated; queried with "
        f"{searches['n']} unseen texts",
        ["", "", *searches["measures"]],
        [[step["name"], step["note"], *map(number, step["scores"].values())] for step in searches["steps"]],
    )
    if knows_unicode():
        width = max(len(example["text"]) for example in searches["examples"])
        for example in searches["examples"]:
            lists = {step["name"]: " ".join(_glyph(item["id"]) for item in step["found"]) for step in example["steps"]}
            say(f" {example['text']:{width}}  before {lists['before']}  after {lists['after the switch']}")
    print_rollback(result["identical"], result["same_lists"])


def _glyph(name: str) -> str:
    """Return the character that an id of the sample stands for."""
    return "".join(chr(int(part, 16)) for part in name.split("-"))


def _rows(sample: Bundle) -> pa.Table:
    """Create the table as an application would have it: one index for pictures and captions."""
    import numpy as np
    import pyarrow as pa

    sides = [(kind, sample.source[kind]) for kind in ("image", "text")]
    vectors = np.concatenate([side.vectors.astype(np.float32) for _, side in sides])
    names = [str(name) for _, side in sides for name in side.ids.tolist()]
    kinds = [kind for kind, side in sides for _ in range(len(side))]
    return pa.table(
        {
            "id": [f"{kind}/{name}" for kind, name in zip(kinds, names, strict=True)],
            "kind": kinds,
            "caption": [_caption(sample, name) for name in names],
            "picture": pa.array(
                [sample.thumbnails.get(name) if kind == "image" else None for kind, name in zip(kinds, names, strict=True)],
                pa.binary(),
            ),
            "embedding": pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), vectors.shape[1]),
        }
    )  # fmt: skip


def _nearest_pictures(table: lancedb.table.Table, query: np.ndarray, k: int) -> list[str]:
    """Return the names of the ``k`` pictures nearest to a text."""
    search = table.search(query, vector_column_name="embedding").distance_type("cosine")
    rows = search.where("kind = 'image'", prefilter=True).select(["id", "_distance"]).limit(k).to_list()
    return [str(row["id"]).partition("/")[2] for row in rows]


def _score(queries: np.ndarray, vectors: np.ndarray, ids: list[str], names: np.ndarray) -> dict[str, float]:
    """Return the share of texts whose own picture is among the first hits, by exact search."""
    import numpy as np

    from congruence.metrics import recall_at_k

    rows = {str(i).rpartition("/")[2]: row for row, i in enumerate(ids)}
    own = np.array([rows[str(name)] for name in names.tolist()])
    return {name: recall_at_k(queries, vectors, own, k) for name, k in MEASURES.items()}


def _caption(sample: Bundle, name: str) -> str:
    return sample.texts["text"].get(name, name)


def _item(sample: Bundle, name: str, wanted: str) -> dict[str, Any]:
    from congruence.report.examples import data_uri

    return {
        "id": name,
        "text": _caption(sample, name),
        "picture": data_uri(sample.thumbnails.get(name)),
        "wanted": name == wanted,
    }
