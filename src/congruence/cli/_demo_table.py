"""The second part of ``congruence demo --sample emoji``: a LanceDB table is migrated, searched by text before and after, switched and rolled back."""

from __future__ import annotations

import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import lancedb
    import numpy as np
    import pyarrow as pa

    from congruence.datasets import Bundle
    from congruence.maps import Map
    from congruence.splits import Split

__all__ = ["has_lancedb", "migrate_table", "print_table_searches"]

#: Number of searches shown, and of rows per search.
EXAMPLES, SHOWN = 6, 5

MEASURES = {"recall@1": 1, "recall@10": 10}


def has_lancedb() -> bool:
    """Return whether the extra ``lancedb`` is installed."""
    return all(find_spec(name) is not None for name in ("lancedb", "lance"))


def migrate_table(sample: Bundle, mapping: Map, split: Split, *, random_state: int = 0) -> dict[str, Any]:
    """Put the old model's vectors of all pictures and captions in a LanceDB table, and move it to the new model and back.

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
        ``searches`` as for :func:`congruence.report.render_migration`; ``summary`` of the completed migration; ``identical``: whether the rollback
        restored the old vectors bit for bit; ``same_lists``: whether it restored the search results.

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
    from congruence.errors import MigrationError
    from congruence.upgrade.migrate import Migration

    lancedb = require("lancedb", extra="lancedb")
    old, new = sample.source, sample.target
    asked = old["text"].ids[split.held_out(old["text"].ids)]
    by_old, by_new = (side["text"].take(asked).vectors.astype(np.float32) for side in (old, new))
    shown = np.random.default_rng(random_state).permutation(len(asked))[:EXAMPLES]
    with tempfile.TemporaryDirectory(prefix="congruence-demo-") as folder:
        table = lancedb.connect(folder).create_table("items", _rows(sample))
        where = str(Path(folder) / "items.lance")

        def search(name: str, note: str, queries: np.ndarray) -> dict[str, Any]:
            """Search the table with its own client, as an application does."""
            table.checkout_latest()
            found = [_ask(table, queries[k], SHOWN) for k in shown]
            pictures = table.search().where("kind = 'image'").select(["id", "embedding"]).to_arrow()
            vectors = np.stack(pictures["embedding"].to_numpy()).astype(np.float32)
            return {
                "name": name,
                "note": note,
                "found": found,
                "scores": _score(queries, vectors, pictures["id"].to_pylist(), asked),
            }

        steps = [search("before", "old model's texts, old vectors", by_old)]
        unmapped = search("only the encoder changed", "new model's texts, old vectors", by_new)
        database = open_database(where, modality_column="kind")
        with Migration(database, mapping, journal=Path(folder) / "journal") as migration:
            migration.run()
            found = migration.verify()
            if not found.passed:
                raise MigrationError(
                    f"Got new vectors that do not verify ({'; '.join(found.problems)}); expected vectors that verify. Please report this."
                )
            migration.switch()
            steps += [unmapped, search("after the switch", "new model's texts, mapped vectors", by_new)]
            result = migration.rollback()
            steps.append(search("rolled back", "old model's texts, old vectors again", by_old))
            summary = migration.summary()
        table = None
    own = new["image"].vectors.astype(np.float32)
    oracle = _score(by_new, own, new["image"].ids.tolist(), asked)
    measured = [
        *steps,
        {"name": "all re-embedded", "note": "new model's texts and pictures; not done here", "scores": oracle},
    ]
    examples = [
        {
            "text": _caption(sample, str(asked[k])),
            "steps": [
                {"name": step["name"], "found": [_item(sample, one, str(asked[k])) for one in step["found"][place]]}
                for step in steps[:3]
            ],
        }
        for place, k in enumerate(shown.tolist())
    ]
    return {
        "searches": {
            "n": len(asked),
            "gallery": len(own),
            "measures": list(MEASURES),
            "steps": [{key: step[key] for key in ("name", "note", "scores")} for step in measured],
            "examples": examples,
        },
        "summary": summary,
        "identical": result["identical"],
        "same_lists": steps[0]["found"] == steps[-1]["found"],
    }


def print_table_searches(moved: dict[str, Any]) -> None:
    """Print the result of :func:`migrate_table`; the pictures are emoji, so a terminal can show them."""
    from congruence.cli._base import number, print_table, say
    from congruence.cli._streams import knows_unicode

    searches = moved["searches"]
    print_table(
        f"a LanceDB table of {searches['gallery']:,} pictures and their captions, migrated; queried with {searches['n']} unseen texts",
        ["", "", *searches["measures"]],
        [[step["name"], step["note"], *map(number, step["scores"].values())] for step in searches["steps"]],
    )
    if knows_unicode():
        width = max(len(one["text"]) for one in searches["examples"])
        for one in searches["examples"]:
            lists = {step["name"]: " ".join(_glyph(item["id"]) for item in step["found"]) for step in one["steps"]}
            say(f" {one['text']:{width}}  before {lists['before']}  after {lists['after the switch']}")
    same = (
        "bit for bit the old vectors, and the same results"
        if moved["identical"] and moved["same_lists"]
        else "NOT the same"
    )
    say(f"rolled back: {same}.")


def _glyph(name: str) -> str:
    """Return the character that an id of the sample stands for."""
    return "".join(chr(int(part, 16)) for part in name.split("-"))


def _rows(sample: Bundle) -> pa.Table:
    """Create the table as an application would have it: one index for pictures and captions."""
    import numpy as np
    import pyarrow as pa

    sides = [(kind, sample.source[kind]) for kind in ("image", "text")]
    vectors = np.concatenate([side.vectors.astype(np.float32) for _, side in sides])
    names = [str(one) for _, side in sides for one in side.ids.tolist()]
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


def _ask(table: lancedb.table.Table, query: np.ndarray, k: int) -> list[str]:
    """Return the names of the ``k`` pictures nearest to a text."""
    found = table.search(query, vector_column_name="embedding").distance_type("cosine")
    rows = found.where("kind = 'image'", prefilter=True).select(["id", "_distance"]).limit(k).to_list()
    return [str(row["id"]).partition("/")[2] for row in rows]


def _score(queries: np.ndarray, vectors: np.ndarray, ids: list[str], asked: np.ndarray) -> dict[str, float]:
    """Return the share of texts whose own picture is among the first hits, by exact search."""
    import numpy as np

    from congruence.metrics import recall_at_k

    place = {str(one).rpartition("/")[2]: row for row, one in enumerate(ids)}
    own = np.array([place[str(one)] for one in asked.tolist()])
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
