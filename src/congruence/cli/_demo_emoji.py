"""``congruence demo --sample emoji``: test the paper's claim on emoji, and migrate a table with the same map; offline,
in a few seconds.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from congruence._utils.atomic import check_output
from congruence._utils.optional import require
from congruence.cli._base import number, print_json, print_table, progress, say
from congruence.cli._demo_photos import print_rollback, verify_and_switch
from congruence.cli._ending import knows_unicode
from congruence.errors import DuplicateWarning, ParameterError

if TYPE_CHECKING:
    import lancedb
    import numpy as np
    import pyarrow as pa

    from congruence.datasets import Bundle
    from congruence.embeddings import Embeddings
    from congruence.evaluation import Score
    from congruence.maps import Map, OrthogonalMap
    from congruence.splits import Split


def run(
    out: str,
    *,
    classes: int,
    seed: int,
    save_map: str | None,
    report: bool,
    migration: bool,
    migration_page: str,
    as_json: bool,
) -> None:
    """Fit a map on the images of some classes, map texts by the same rotation, and score it on the other classes.

    Then put the old model's vectors of pictures and captions in a LanceDB table, migrate it with this map, and search
    it before and after.
    """
    from congruence.cli._demo_photos import has_lancedb
    from congruence.cli._scores import CONTROLS
    from congruence.datasets import load_sample
    from congruence.persist import check_map_output
    from congruence.report import summarize, write_migration, write_report
    from congruence.splits import Split

    if save_map is not None:
        check_map_output(save_map)
    migrates = migration and has_lancedb()
    if report:
        check_output(out, force=True)
        if migrates:
            check_output(migration_page, force=True)
    sample = load_sample("emoji")
    with progress("fitting and measuring", 3 + migrates, as_json) as callback:
        advance = callback or (lambda count: None)
        mapping = fit_on_images(sample, classes, seed)
        split = Split.from_dict(mapping.scores_["holdout"])
        table = seen_and_unseen(sample, mapping)
        advance(1)
        round_trips = round_trip(sample, mapping, split)
        advance(1)
        summary = summarize(mapping, sample, random_state=seed)
        if save_map is not None:
            mapping.save(save_map)
        if report:
            write_report(out, summary, force=True)
        advance(1)
        migrated = None
        if migrates:
            migrated = migrate_table(sample, mapping, split, random_state=seed)
            if report:
                write_migration(
                    migration_page,
                    migrated["summary"],
                    migrated["searches"],
                    licenses=sample.info["licences"][:1],
                    force=True,
                )
            advance(1)
    if as_json:
        print_json(
            {
                "fitted_on_images_of": mapping.scores_["n_pairs"],
                "models_alone": sample.info["each_model_alone"],
                "table": table,
                "few_anchors": summary["few_anchors"],
                "round_trip": round_trips,
                "commuting_overlap": summary["commuting"]["overlap"],
                "report": out if report else None,
                "migration": migrated and {key: migrated[key] for key in ("searches", "identical", "same_lists")},
                "migration_page": migration_page if report and migrates else None,
            }
        )
        return
    for name, towers in sample.info["models"].items():
        alone = sample.info["each_model_alone"][name]
        print(
            f"{name}: {towers}; its own retrieval of {len(sample.source['image'])} captions from pictures: "
            + ", ".join(f"{alone[f'recall_at_{k}']:.3f} at {k}" for k in (1, 5, 10))
        )
    print(f"Pictures: {sample.info['images_of']}.\n")
    print_table(
        f"fitted on the images of {mapping.scores_['n_pairs']} classes; texts mapped by the same rotation",
        ["", "seen: before", "after", "oracle", "unseen: before", "after", "oracle", "chance"],
        [
            [
                line["measure"],
                *(number(line[part][k]) for part in ("seen", "unseen") for k in ("before", "after", "oracle")),
                number(line["unseen"]["chance"]),
            ]
            for line in table
            if "cosine" not in line["measure"]
        ],
    )
    print_table(
        "mapped vectors and the target's own",
        ["", "seen: before", "after", "unseen: before", "after", "constant", "random rotation"],
        [
            [
                line["measure"],
                *(number(line[part][k]) for part in ("seen", "unseen") for k in ("before", "after")),
                *(number(line["unseen"][k]) for k in ("control_constant", "control_random_rotation")),
            ]
            for line in table
            if "cosine" in line["measure"]
        ],
    )
    print(f"{CONTROLS}\n")
    curve = summary["few_anchors"]
    print_table(
        "unseen classes by number of anchor images",
        ["", *map(str, curve["n"])],
        [[line["name"], *map(number, line["mean"])] for line in curve["curves"]],
    )
    print_table(
        "round trip on unseen classes: how often a vector retrieves its original, and its cosine with it",
        ["", "images, at 1", "cosine", "texts, at 1", "cosine"],
        [
            [line["path"], *(number(line[k]) for k in ("image_retrieval", "image", "text_retrieval", "text"))]
            for line in round_trips
        ],
    )
    print(summary["verdict"]["sentence"], summary["verdict"]["action"])
    if migrated is not None:
        print_table_searches(migrated)
    elif migration:
        say("\nWith LanceDB the demo also migrates a live table: pip install 'congruence[lancedb]'")
    if report:
        say(f"Report: {out}" + (f"; report of the migration: {migration_page}" if migrates else ""))


def fit_on_images(sample: Bundle, classes: int, seed: int) -> OrthogonalMap:
    """Fit a map on the images of some classes; of their texts, only the means are used."""
    import warnings

    import congruence

    source, target = sample.source, sample.target
    n = len(source["image"])
    if not 2 <= classes < n:
        raise ParameterError(
            f"Got {classes} classes; expected 2 to {n - 1} of the sample's {n}.", "Pass --classes with such a number."
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DuplicateWarning)  # three pairs of emoji look alike, which does not matter here
        mapping = congruence.fit(
            source["image"],
            target["image"],
            "orthogonal",  # the method that the page explains
            holdout=n - classes,
            random_state=seed,
            means={"text": (source["text"], target["text"])},
            check=False,  # the pairs are correct by construction, and the check takes longer than the fit
        )
    assert isinstance(mapping, congruence.OrthogonalMap)
    return mapping


def seen_and_unseen(sample: Bundle, mapping: OrthogonalMap) -> list[dict[str, Any]]:
    """Return scores before and after mapping, and of each model alone, on the classes the map was fitted on and on the
    others.
    """
    from congruence.evaluation import evaluate
    from congruence.splits import Split

    split = Split.from_dict(mapping.scores_["holdout"])
    measures = {
        "image → its image, at 1": ("retrieval", "aligned image", "target image"),
        "text → its text, at 1": ("retrieval", "aligned text", "target text"),
        "mapped image → target's text, at 1": ("zero_shot", "aligned image", "target text"),
        "target's image → mapped text, at 1": ("zero_shot", "target image", "aligned text"),
    }
    cosines = {
        "image–image cosine": ("cosine", "aligned image", "target image"),
        "text–text cosine": ("cosine", "aligned text", "target text"),
    }
    parts, groups = {}, {}
    for name in ("seen", "unseen"):

        def cut(rows: Embeddings, unseen: bool = name == "unseen") -> Embeddings:
            return rows.take(split.held_out(rows.ids) == unseen)

        sides = [{kind: cut(rows) for kind, rows in sample.side(side).items()} for side in ("source", "target")]
        parts[name] = evaluate(mapping, *sides)
        groups[name] = {
            modality: _subgroup_retrieval(sample, mapping, modality, *sides) for modality in ("image", "text")
        }
    table = []
    for measure, key in measures.items():
        rows = {name: scores.get(*key) for name, scores in parts.items()}
        table.append(
            {"measure": measure, **{name: {**_columns(row), "chance": row.chance} for name, row in rows.items()}}
        )
    for modality in ("image", "text"):
        measure = f"{modality} → another {modality} of its subgroup, at 1"
        table.append({"measure": measure, **{name: scores[modality] for name, scores in groups.items()}})
    for measure, key in cosines.items():
        line: dict[str, Any] = {"measure": measure}
        for name, scores in parts.items():
            row = scores.get(*key)
            controls = {k: getattr(row, k) for k in ("control_constant", "control_random_rotation")}
            line[name] = {**_columns(row), **controls}
        table.append(line)
    return table


def _columns(row: Score) -> dict[str, object]:
    return {"before": row.before, "after": row.after, "oracle": row.target, "classes": row.n}


def _subgroup_retrieval(
    sample: Bundle, mapping: OrthogonalMap, modality: str, source: dict[str, Embeddings], target: dict[str, Embeddings]
) -> dict[str, object]:
    """Return how often the target's nearest other item belongs to an item's subgroup: before and after mapping, in the
    target, and by chance.
    """
    import numpy as np

    from congruence.evaluation.controls import chance_at_k
    from congruence.metrics import class_retrieval

    X, Y = source[modality].vectors, target[modality].vectors
    labels = np.array([sample.labels[i] for i in source[modality].ids.tolist()])

    def score(queries: np.ndarray) -> float:
        return class_retrieval(queries, Y, labels, exclude_self=True)

    mapped = mapping.for_modality(modality).transform(X)
    _, group, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    chance = chance_at_k((sizes - 1)[group], len(X) - 1)
    return {"before": score(X), "after": score(mapped), "oracle": score(Y), "classes": len(X), "chance": chance}


def round_trip(sample: Bundle, mapping: OrthogonalMap, split: Split) -> list[dict[str, Any]]:
    """Score round trips: back by the inverse, by a map fitted in the reverse direction, and by one fitted on other
    anchors.

    In the third, the two maps share no anchor, so their composition is the identity only if both are correct. The last
    two lines are controls: every vector at the source's mean, and a random rotation about that mean.
    """
    import numpy as np

    from congruence.evaluation.controls import ControlRows
    from congruence.maps import OrthogonalMap
    from congruence.metrics import class_retrieval, paired_cosine

    source, target = sample.source, sample.target
    seen = ~split.held_out(source["image"].ids)
    halves = np.flatnonzero(seen)[::2], np.flatnonzero(seen)[1::2]

    def fit(rows: np.ndarray, back: bool) -> OrthogonalMap:
        start, end = (target, source) if back else (source, target)
        fitted = OrthogonalMap().fit(start["image"].vectors[rows], end["image"].vectors[rows], modality="image")
        return fitted.recenter(start["text"].vectors[rows].mean(0), end["text"].vectors[rows].mean(0), modality="text")

    paths = {
        "its inverse": (mapping, mapping.inverse()),
        "a map fitted backwards on the same anchors": (mapping, fit(np.flatnonzero(seen), back=True)),
        "two maps that share no anchor": (fit(halves[0], back=False), fit(halves[1], back=True)),
    }
    lines = []
    for path, (forward, reverse) in paths.items():
        line: dict[str, Any] = {"path": path}
        for modality in ("image", "text"):
            X = source[modality].vectors[~seen]
            returned = reverse.for_modality(modality).transform(forward.for_modality(modality).transform(X))
            line[f"{modality}_retrieval"] = class_retrieval(returned, X, np.arange(len(X)))
            line[modality] = paired_cosine(X, returned)
        lines.append(line)
    constant: dict[str, Any] = {"path": "constant"}
    rotation: dict[str, Any] = {"path": "random rotation"}
    for modality in ("image", "text"):
        X = source[modality].vectors[~seen]
        mean = mapping.modality_means_[modality][0]
        rows = ControlRows(mean, np.linalg.norm(X - mean, axis=1), X.shape[1], in_sample=False)
        controls = rows.score(lambda control, X=X: paired_cosine(X, control))  # type: ignore[misc]
        constant[modality], rotation[modality] = controls.constant, controls.random_rotation
        constant[f"{modality}_retrieval"] = rotation[f"{modality}_retrieval"] = 1 / len(X)  # chance
    return [*lines, constant, rotation]


#: Number of searches shown, and of rows per search.
EXAMPLES, SHOWN = 6, 5

#: Cutoff k of each measure.
MEASURES = {"recall@1": 1, "recall@10": 10}


def migrate_table(sample: Bundle, mapping: Map, split: Split, *, random_state: int = 0) -> dict[str, Any]:
    """Put the old model's vectors of all pictures and captions in a LanceDB table, and move it to the new model and
    back.

    ``mapping``: from the old model to the new one; ``split``: the texts of its held-out classes are used as queries.
    Returns: ``searches`` as for ``congruence.report.render_migration``; ``summary`` of the completed migration;
    ``identical``: whether the rollback restored the old vectors bit for bit; ``same_lists``: whether it restored the
    search results.
    """
    import numpy as np

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
    """Print the result of ``migrate_table``; the pictures are emoji, so a terminal can show them."""
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
    items = list(zip(kinds, names, strict=True))
    pictures = [sample.thumbnails.get(name) if kind == "image" else None for kind, name in items]
    return pa.table(
        {
            "id": [f"{kind}/{name}" for kind, name in items],
            "kind": kinds,
            "caption": [_caption(sample, name) for name in names],
            "picture": pa.array(pictures, pa.binary()),
            "embedding": pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), vectors.shape[1]),
        }
    )


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
