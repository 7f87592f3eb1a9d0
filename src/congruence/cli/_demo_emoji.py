"""``congruence demo --sample emoji``: test the paper's claim on emoji, and migrate a table with the same map; offline,
in a few seconds.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from congruence._utils.atomic import check_output
from congruence.cli._base import number, print_json, print_table, progress, say
from congruence.cli._demo_photos import Library, has_lancedb, library_rows, print_rollback, verify_and_switch
from congruence.cli._ending import knows_unicode
from congruence.errors import DuplicateWarning, ParameterError

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    from congruence.datasets import Bundle
    from congruence.embeddings import Embeddings
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
    from congruence.cli._scores import CONTROLS
    from congruence.datasets import load_sample
    from congruence.persist import check_map_output
    from congruence.report import render, render_migration, summarize, write_page
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
            write_page(out, render(summary), force=True)
        advance(1)
        migrated = None
        if migrates:
            migrated = migrate_table(sample, mapping, split, random_state=seed)
            if report:
                licenses = sample.info["licences"][:1]
                html = render_migration(migrated["summary"], migrated["searches"], licenses=licenses)
                write_page(migration_page, html, force=True)
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
        recalls = ", ".join(f"{alone[f'recall_at_{k}']:.3f} at {k}" for k in (1, 5, 10))
        n = len(sample.source["image"])
        print(f"{name}: {towers}; its own retrieval of {n} captions from pictures: {recalls}")
    print(f"Pictures: {sample.info['images_of']}.\n")

    def lines(cosines: bool, columns: tuple[str, ...], controls: tuple[str, ...]) -> list[list[str]]:
        shown = [line for line in table if ("cosine" in line["measure"]) == cosines]
        keys = [*((part, column) for part in ("seen", "unseen") for column in columns)]
        keys += [("unseen", control) for control in controls]
        return [[line["measure"], *(number(line[part][key]) for part, key in keys)] for line in shown]

    print_table(
        f"fitted on the images of {mapping.scores_['n_pairs']} classes; texts mapped by the same rotation",
        ["", "seen: before", "after", "oracle", "unseen: before", "after", "oracle", "chance"],
        lines(False, ("before", "after", "oracle"), ("chance",)),
    )
    print_table(
        "mapped vectors and the target's own",
        ["", "seen: before", "after", "unseen: before", "after", "constant", "random rotation"],
        lines(True, ("before", "after"), ("control_constant", "control_random_rotation")),
    )
    print(f"{CONTROLS}\n")
    curve = summary["few_anchors"]
    print_table(
        "unseen classes by number of anchor images",
        ["", *map(str, curve["n"])],
        [[line["name"], *map(number, line["mean"])] for line in curve["curves"]],
    )
    columns = ("image_retrieval", "image", "text_retrieval", "text")
    print_table(
        "round trip on unseen classes: how often a vector retrieves its original, and its cosine with it",
        ["", "images, at 1", "cosine", "texts, at 1", "cosine"],
        [[line["path"], *(number(line[column]) for column in columns)] for line in round_trips],
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


#: Scores of the table: metric, queries, and what they are compared with.
_SCORES = {
    "image → its image, at 1": ("retrieval", "aligned image", "target image"),
    "text → its text, at 1": ("retrieval", "aligned text", "target text"),
    "mapped image → target's text, at 1": ("zero_shot", "aligned image", "target text"),
    "target's image → mapped text, at 1": ("zero_shot", "target image", "aligned text"),
    "image–image cosine": ("cosine", "aligned image", "target image"),
    "text–text cosine": ("cosine", "aligned text", "target text"),
}


def seen_and_unseen(sample: Bundle, mapping: OrthogonalMap) -> list[dict[str, Any]]:
    """Return scores before and after mapping, and of each model alone, on the classes the map was fitted on and on the
    others.
    """
    from congruence.evaluation import evaluate
    from congruence.splits import Split

    split = Split.from_dict(mapping.scores_["holdout"])
    table: dict[str, dict[str, Any]] = {}
    for part in ("seen", "unseen"):
        source, target = (
            {
                kind: rows.take(split.held_out(rows.ids) == (part == "unseen"))
                for kind, rows in sample.side(side).items()
            }
            for side in ("source", "target")
        )
        scores = evaluate(mapping, source, target)
        for measure, key in _SCORES.items():
            row = scores.get(*key)
            line = {"before": row.before, "after": row.after, "oracle": row.target, "classes": row.n}
            controls = {name: getattr(row, name) for name in ("chance", "control_constant", "control_random_rotation")}
            table.setdefault(measure, {"measure": measure})[part] = line | controls
        for modality in ("image", "text"):
            measure = f"{modality} → another {modality} of its subgroup, at 1"
            line = _subgroup_retrieval(sample, mapping, modality, source[modality], target[modality])
            table.setdefault(measure, {"measure": measure})[part] = line
    return list(table.values())


def _subgroup_retrieval(
    sample: Bundle, mapping: OrthogonalMap, modality: str, source: Embeddings, target: Embeddings
) -> dict[str, Any]:
    """Return how often the target's nearest other item belongs to an item's subgroup: before and after mapping, in the
    target, and by chance.
    """
    import numpy as np

    from congruence.evaluation.controls import chance_at_k
    from congruence.metrics import class_retrieval

    labels = np.array([sample.labels[i] for i in source.ids.tolist()])
    _, group, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    mapped = mapping.for_modality(modality).transform(source.vectors)
    queries = {"before": source.vectors, "after": mapped, "oracle": target.vectors}
    found = {name: class_retrieval(X, target.vectors, labels, exclude_self=True) for name, X in queries.items()}
    return {**found, "classes": len(labels), "chance": chance_at_k((sizes - 1)[group], len(labels) - 1)}


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
    lines: dict[str, dict[str, Any]] = {path: {"path": path} for path in (*paths, "constant", "random rotation")}
    for modality in ("image", "text"):
        X = source[modality].vectors[~seen]
        for path, (forward, reverse) in paths.items():
            returned = reverse.for_modality(modality).transform(forward.for_modality(modality).transform(X))
            lines[path][f"{modality}_retrieval"] = class_retrieval(returned, X, np.arange(len(X)))
            lines[path][modality] = paired_cosine(X, returned)
        mean = mapping.modality_means_[modality][0]
        rows = ControlRows(mean, np.linalg.norm(X - mean, axis=1), X.shape[1], in_sample=False)
        controls = rows.score(lambda control, X=X: paired_cosine(X, control))  # type: ignore[misc]
        for path, value in (("constant", controls.constant), ("random rotation", controls.random_rotation)):
            lines[path] |= {f"{modality}_retrieval": 1 / len(X), modality: value}  # found by chance
    return list(lines.values())


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
    from congruence.report.summary import data_uri
    from congruence.upgrade.migrate import Migration

    old, new = sample.source, sample.target
    names = old["text"].ids[split.held_out(old["text"].ids)]
    old_queries, new_queries = (side["text"].take(names).vectors.astype(np.float32) for side in (old, new))
    shown = np.random.default_rng(random_state).permutation(len(names))[:EXAMPLES]
    with tempfile.TemporaryDirectory(prefix="congruence-demo-") as folder:
        library = Library(_rows(sample), Path(folder), where="kind = 'image'")

        def search(name: str, note: str, queries: np.ndarray) -> dict[str, Any]:
            """Search the table with its own client, as an application does."""
            ids, vectors = library.vectors()
            found = [[_name(hit) for hit in hits] for hits in library.find(queries[shown], SHOWN)]
            return {"name": name, "note": note, "found": found, "scores": _score(queries, vectors, ids, names)}

        steps = [
            search("before", "old model's texts, old vectors", old_queries),
            search("only the encoder changed", "new model's texts, old vectors", new_queries),
        ]
        database = open_database(str(library.path), modality_column="kind")
        with Migration(database, mapping, journal=Path(folder) / "journal") as migration:
            migration.run()
            verify_and_switch(migration)
            steps.append(search("after the switch", "new model's texts, mapped vectors", new_queries))
            result = migration.rollback()
            steps.append(search("rolled back", "old model's texts, old vectors again", old_queries))
            summary = migration.summary()
        library.table = None
    note = "new model's texts and pictures; not done here"
    oracle = _score(new_queries, new["image"].vectors.astype(np.float32), new["image"].ids, names)
    measured = [*steps, {"name": "all re-embedded", "note": note, "scores": oracle}]

    def item(name: str, wanted: str) -> dict[str, Any]:
        picture = data_uri(sample.thumbnails.get(name))
        return {"id": name, "text": _caption(sample, name), "picture": picture, "wanted": name == wanted}

    examples = [
        {
            "text": _caption(sample, name),
            "steps": [
                {"name": step["name"], "found": [item(hit, name) for hit in step["found"][i]]} for step in steps[:3]
            ],
        }
        for i, name in enumerate(names[shown].tolist())
    ]
    return {
        "searches": {
            "n": len(names),
            "gallery": len(new["image"]),
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

    items = [(kind, str(name)) for kind in ("image", "text") for name in sample.source[kind].ids.tolist()]
    pictures = [sample.thumbnails.get(name) if kind == "image" else None for kind, name in items]
    return library_rows(
        np.concatenate([sample.source[kind].vectors for kind in ("image", "text")]),
        id=[f"{kind}/{name}" for kind, name in items],
        kind=[kind for kind, _ in items],
        caption=[_caption(sample, name) for _, name in items],
        picture=pa.array(pictures, pa.binary()),
    )


def _name(item: str) -> str:
    """Return the name of the emoji of a row."""
    return item.rpartition("/")[2]


def _score(queries: np.ndarray, vectors: np.ndarray, ids: np.ndarray, names: np.ndarray) -> dict[str, float]:
    """Return the share of texts whose own picture is among the first hits, by exact search."""
    import numpy as np

    from congruence.metrics import recall_at_k

    rows = {_name(i): row for row, i in enumerate(ids.tolist())}
    own = np.array([rows[name] for name in names.tolist()])
    return {name: recall_at_k(queries, vectors, own, k) for name, k in MEASURES.items()}


def _caption(sample: Bundle, name: str) -> str:
    return sample.texts["text"].get(name, name)
