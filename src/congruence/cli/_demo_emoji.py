"""``congruence demo --sample emoji``: test the paper's claim on emoji, and migrate a table with the same map; offline,
in a few seconds.
"""

from __future__ import annotations

import os
import tempfile
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from congruence._utils.atomic import check_output
from congruence.cli._demo_photos import Library, has_lancedb, library_rows, print_rollback, verify_and_switch
from congruence.cli._ending import knows_unicode
from congruence.cli._output import number, print_json, print_table, progress, say
from congruence.cli._scores import CONTROLS
from congruence.errors import DuplicateWarning, ParameterError

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    from congruence.datasets import Bundle
    from congruence.maps import Map, OrthogonalMap
    from congruence.splits import Split

#: Number of searches shown, and of rows per search; cutoff k of each measure.
EXAMPLES, SHOWN = 6, 5
MEASURES = {"recall@1": 1, "recall@10": 10}

#: Scores of the table: metric, queries, and what they are compared with.
_SCORES = {
    "image → its image, at 1": ("retrieval", "aligned image", "target image"),
    "text → its text, at 1": ("retrieval", "aligned text", "target text"),
    "mapped image → target's text, at 1": ("zero_shot", "aligned image", "target text"),
    "target's image → mapped text, at 1": ("zero_shot", "target image", "aligned text"),
    "image–image cosine": ("cosine", "aligned image", "target image"),
    "text–text cosine": ("cosine", "aligned text", "target text"),
}


def run(page: str | None, *, classes: int, seed: int, save_map: str | None, migration: bool, as_json: bool) -> None:
    """Fit a map on the images of some classes, map texts by the same rotation, and score it on the other classes.

    Then put the old model's vectors of pictures and captions in a LanceDB table, migrate it with this map, and search
    it before and after; its page ``migration.html`` is beside ``page``.
    """
    from congruence.datasets import load_sample
    from congruence.report import render, render_migration, summarize, write_page
    from congruence.splits import Split

    migrates = migration and has_lancedb()
    pages = [] if page is None else [page, os.path.join(os.path.dirname(page), "migration.html")][: 1 + migrates]
    for one in pages:
        check_output(one, force=True)
    sample = load_sample("emoji")
    with progress("fitting and measuring", 2 + migrates, as_json) as callback:
        advance = callback or (lambda count: None)
        mapping = fit_on_images(sample, classes, seed)
        split = Split.from_dict(mapping.scores_["holdout"])
        table = seen_and_unseen(sample, mapping, split)
        advance(1)
        summary = summarize(mapping, sample, random_state=seed)
        if save_map is not None:
            mapping.save(save_map)
        if page is not None:
            write_page(page, render(summary), force=True)
        advance(1)
        migrated = migrate_table(sample, mapping, split, random_state=seed) if migrates else None
        if migrated and len(pages) == 2:
            licenses = sample.info["licences"][:1]
            html = render_migration(migrated.pop("summary"), migrated["searches"], licenses=licenses)
            write_page(pages[1], html, force=True)
    result = {
        "fitted_on_images_of": mapping.scores_["n_pairs"],
        "models_alone": sample.info["each_model_alone"],
        "table": table,
        "few_anchors": summary["few_anchors"],
        "commuting_overlap": summary["commuting"]["overlap"],
        "report": page,
        "migration": migrated and {key: migrated[key] for key in ("searches", "identical", "same_lists")},
        "migration_page": pages[1] if len(pages) == 2 else None,
    }
    if as_json:
        print_json(result)
        return
    for name, towers in sample.info["models"].items():
        alone = sample.info["each_model_alone"][name]
        recalls = ", ".join(f"{alone[f'recall_at_{k}']:.3f} at {k}" for k in (1, 5, 10))
        print(f"{name}: {towers}; its own retrieval of {len(sample.source['image'])} captions from pictures: {recalls}")
    print(f"Pictures: {sample.info['images_of']}.\n")
    print_scores(result)
    print(summary["verdict"]["sentence"], summary["verdict"]["action"])
    if migrated is not None:
        print_searches(migrated)
    elif migration:
        say("\nWith LanceDB the demo also migrates a live table: pip install 'congruence[lancedb]'")
    if pages:
        say("; report of the migration: ".join([f"Report: {pages[0]}", *pages[1:]]))


def fit_on_images(sample: Bundle, classes: int, seed: int) -> OrthogonalMap:
    """Fit a map on the images of some classes; of their texts, only the means are used."""
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


def seen_and_unseen(sample: Bundle, mapping: OrthogonalMap, split: Split) -> list[dict[str, Any]]:
    """Return scores before and after mapping, and of each model alone, on the classes the map was fitted on and on the
    others: those of ``_SCORES``, and how often the nearest other item is of an item's subgroup.
    """
    import numpy as np

    from congruence.evaluation import evaluate
    from congruence.evaluation.controls import chance_at_k
    from congruence.metrics import class_retrieval

    table: dict[str, dict[str, Any]] = {}
    for part in ("seen", "unseen"):
        source, target = (
            {m: rows.take(split.held_out(rows.ids) == (part == "unseen")) for m, rows in sample.side(side).items()}
            for side in ("source", "target")
        )
        scores = evaluate(mapping, source, target)
        for measure, key in _SCORES.items():
            row = scores.get(*key)
            line = {"before": row.before, "after": row.after, "oracle": row.target, "classes": row.n}
            line |= {name: getattr(row, name) for name in ("chance", "control_constant", "control_random_rotation")}
            table.setdefault(measure, {"measure": measure})[part] = line
        for modality in ("image", "text"):
            old, new = source[modality], target[modality].vectors
            labels = np.array([sample.labels[i] for i in old.ids.tolist()])
            _, group, sizes = np.unique(labels, return_inverse=True, return_counts=True)
            mapped = mapping.for_modality(modality).transform(old.vectors)
            queries = {"before": old.vectors, "after": mapped, "oracle": new}
            line = {name: class_retrieval(X, new, labels, exclude_self=True) for name, X in queries.items()}
            line |= {"classes": len(labels), "chance": chance_at_k((sizes - 1)[group], len(labels) - 1)}
            measure = f"{modality} → another {modality} of its subgroup, at 1"
            table.setdefault(measure, {"measure": measure})[part] = line
    return list(table.values())


def print_scores(result: dict[str, Any]) -> None:
    """Print the scores, and those of unseen classes by the number of anchors."""

    def lines(cosines: bool, columns: tuple[str, ...], controls: tuple[str, ...]) -> list[list[str]]:
        keys = [(part, column) for part in ("seen", "unseen") for column in columns]
        keys += [("unseen", control) for control in controls]
        shown = [line for line in result["table"] if ("cosine" in line["measure"]) == cosines]
        return [[line["measure"], *(number(line[part][key]) for part, key in keys)] for line in shown]

    print_table(
        f"fitted on the images of {result['fitted_on_images_of']} classes; texts mapped by the same rotation",
        ["", "seen: before", "after", "oracle", "unseen: before", "after", "oracle", "chance"],
        lines(False, ("before", "after", "oracle"), ("chance",)),
    )
    print_table(
        "mapped vectors and the target's own",
        ["", "seen: before", "after", "unseen: before", "after", "constant", "random rotation"],
        lines(True, ("before", "after"), ("control_constant", "control_random_rotation")),
    )
    print(f"{CONTROLS}\n")
    curve = result["few_anchors"]
    rows = [[line["name"], *map(number, line["mean"])] for line in curve["curves"]]
    print_table("unseen classes by number of anchor images", ["", *map(str, curve["n"])], rows)


def migrate_table(sample: Bundle, mapping: Map, split: Split, *, random_state: int = 0) -> dict[str, Any]:
    """Put the old model's vectors of all pictures and captions in a LanceDB table, and move it to the new model and
    back; the texts of the held-out classes are the queries.

    Returns ``searches`` as for ``congruence.report.render_migration``; ``summary`` of the completed migration;
    ``identical``: whether the rollback restored the old vectors bit for bit; ``same_lists``: whether it restored the
    search results.
    """
    import numpy as np

    from congruence.databases import open_database
    from congruence.metrics import recall_at_k
    from congruence.report.summary import data_uri
    from congruence.upgrade.migrate import Migration

    old, new, captions = sample.source, sample.target, sample.texts["text"]
    names = old["text"].ids[split.held_out(old["text"].ids)]
    queries = {model: side["text"].take(names).vectors.astype(np.float32) for model, side in (("o", old), ("n", new))}
    shown = np.random.default_rng(random_state).permutation(len(names))[:EXAMPLES]

    def recall(model: str, ids: list[str], vectors: np.ndarray) -> dict[str, float]:
        """Return the share of texts whose own picture is among the first hits, by exact search."""
        rows = {name: row for row, name in enumerate(ids)}
        own = np.array([rows[name] for name in names.tolist()])
        return {name: recall_at_k(queries[model], vectors, own, k) for name, k in MEASURES.items()}

    def search(name: str, note: str, model: str) -> dict[str, Any]:
        """Search the table with its own client, as an application does."""
        ids, vectors = library.vectors()
        found = [[hit.rpartition("/")[2] for hit in hits] for hits in library.find(queries[model][shown], SHOWN)]
        scores = recall(model, [i.rpartition("/")[2] for i in ids.tolist()], vectors)
        return {"name": name, "note": note, "found": found, "scores": scores}

    with tempfile.TemporaryDirectory(prefix="congruence-demo-") as folder:
        library = Library(_rows(sample), Path(folder), where="kind = 'image'")
        steps = [
            search("before", "old model's texts, old vectors", "o"),
            search("only the encoder changed", "new model's texts, old vectors", "n"),
        ]
        database = open_database(str(library.path), modality_column="kind")
        with Migration(database, mapping, journal=Path(folder) / "journal") as migration:
            migration.run()
            verify_and_switch(migration)
            steps.append(search("after the switch", "new model's texts, mapped vectors", "n"))
            identical = migration.rollback()["identical"]
            steps.append(search("rolled back", "old model's texts, old vectors again", "o"))
            summary = migration.summary()
        library.table = None
    oracle = recall("n", new["image"].ids.tolist(), new["image"].vectors.astype(np.float32))
    note = "new model's texts and pictures; not done here"
    measured = [*steps, {"name": "all re-embedded", "note": note, "scores": oracle}]

    def item(name: str, wanted: str) -> dict[str, Any]:
        picture = data_uri(sample.thumbnails.get(name))
        return {"id": name, "text": captions.get(name, name), "picture": picture, "wanted": name == wanted}

    examples = []
    for i, name in enumerate(names[shown].tolist()):
        found = [{"name": s["name"], "found": [item(hit, name) for hit in s["found"][i]]} for s in steps[:3]]
        examples.append({"text": captions.get(name, name), "steps": found})
    searches = {
        "n": len(names),
        "gallery": len(new["image"]),
        "measures": list(MEASURES),
        "steps": [{key: step[key] for key in ("name", "note", "scores")} for step in measured],
        "examples": examples,
    }
    same = steps[0]["found"] == steps[-1]["found"]
    return {"searches": searches, "summary": summary, "identical": identical, "same_lists": same}


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
        caption=[sample.texts["text"].get(name, name) for _, name in items],
        picture=pa.array(pictures, pa.binary()),
    )


def print_searches(result: dict[str, Any]) -> None:
    """Print the result of ``migrate_table``; the pictures are emoji, so a terminal can show them."""
    searches = result["searches"]
    print_table(
        f"a LanceDB table of {searches['gallery']:,} pictures and their captions, migrated; queried with "
        f"{searches['n']} unseen texts",
        ["", "", *searches["measures"]],
        [[step["name"], step["note"], *map(number, step["scores"].values())] for step in searches["steps"]],
    )

    def glyph(name: str) -> str:
        return "".join(chr(int(part, 16)) for part in name.split("-"))

    if knows_unicode():
        width = max(len(example["text"]) for example in searches["examples"])
        for example in searches["examples"]:
            before, _, after = (" ".join(glyph(one["id"]) for one in step["found"]) for step in example["steps"])
            say(f" {example['text']:{width}}  before {before}  after {after}")
    print_rollback(result)
