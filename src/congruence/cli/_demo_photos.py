"""``congruence demo``: a photo library is moved to a new model and back, and searched at each step."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from congruence._utils.atomic import atomic_path, has_marker
from congruence._utils.optional import require
from congruence.cli._base import number, print_table, say, write_table
from congruence.errors import MigrationError

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    from congruence.datasets import Bundle
    from congruence.embeddings import Embeddings
    from congruence.maps import Map
    from congruence.upgrade.certify import Certificate
    from congruence.upgrade.migrate import Migration


def has_lancedb() -> bool:
    """Return whether the extra ``lancedb`` is installed."""
    return all(find_spec(name) is not None for name in ("lancedb", "lance"))


def verify_and_switch(migration: Migration) -> None:
    """Verify the new vectors and switch to them. Raises MigrationError if they fail verification."""
    verification = migration.verify()
    if not verification.passed:
        raise MigrationError(
            f"Got new vectors that do not verify ({'; '.join(verification.problems)}); expected vectors that verify.",
            "Please report this.",
        )
    migration.switch()


def print_rollback(identical: bool, same_lists: bool) -> None:
    """Print whether a rollback restored the vectors and the search results."""
    restored = "bit for bit the old vectors, and the same results" if identical and same_lists else "NOT the same"
    print(f"Rolled back: {restored}.")


#: Name and content of the file that marks a folder written by ``write_files``.
MARKER, FORMAT = "sample.json", "congruence-photo-sample"

_NAMES = {
    MARKER,
    "photos.lance",
    "photos.parquet",
    *(f"{model}-{items}.parquet" for model in ("old", "new") for items in ("photos", "texts")),
}


class Library:
    """A table of an application: written once, then read and searched with the database's own client.

    A LanceDB table or, without the extra ``lancedb``, a Parquet file. ``where`` selects the rows that are searched.
    """

    def __init__(self, rows: pa.Table, folder: Path, where: str | None = None) -> None:
        self.live, self.where = has_lancedb(), where
        self.path = folder / ("photos.lance" if self.live else "photos.parquet")
        self.table: Any = None
        if self.live:
            self.table = require("lancedb", extra="lancedb").connect(str(folder)).create_table("photos", rows)
        else:
            write_table(rows, str(self.path), force=False)

    @property
    def store(self) -> str:
        """What the library is stored in, for display."""
        return "LanceDB table" if self.live else "Parquet file"

    def vectors(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the ids and vectors that readers currently see."""
        import numpy as np

        from congruence.io import read_embeddings

        if not self.live:
            stored = read_embeddings(f"{self.path}:embedding")
            return stored.ids, stored.vectors
        self.table.checkout_latest()
        search = self.table.search()
        rows = (search.where(self.where) if self.where else search).select(["id", "embedding"]).to_arrow()
        return np.array(rows["id"].to_pylist(), object), np.stack(rows["embedding"].to_numpy()).astype(np.float32)

    def find(self, queries: np.ndarray, k: int) -> list[list[str]]:
        """Return the ids of the ``k`` photos nearest to each text."""
        if not self.live:
            from congruence.metrics import nearest

            ids, vectors = self.vectors()
            return [ids[row].tolist() for row in nearest(queries, k, vectors)]
        self.table.checkout_latest()
        hits = []
        for query in queries:
            search = self.table.search(query, vector_column_name="embedding").distance_type("cosine")
            search = search.where(self.where, prefilter=True) if self.where else search
            hits.append([str(row["id"]) for row in search.select(["id", "_distance"]).limit(k).to_list()])
        return hits


def library_rows(vectors: np.ndarray, **columns: Any) -> pa.Table:
    """Return a table of columns, and of vectors in float32, as in most stores; the samples have float16."""
    import numpy as np
    import pyarrow as pa

    flat = pa.array(vectors.astype(np.float32).reshape(-1))
    return pa.table({**columns, "embedding": pa.FixedSizeListArray.from_arrays(flat, vectors.shape[1])})


def _photos(sample: Bundle) -> pa.Table:
    """Return the photos with the old model's vectors, as an application would store them."""
    import pyarrow as pa

    rows = _table(sample, sample.source["image"], "image")
    pictures = [sample.thumbnails[name] for name in rows["id"].to_pylist()]
    return rows.append_column("picture", pa.array(pictures, pa.binary()))


def why_not_replaced(folder: Path) -> str | None:
    """Return why a folder was not written by ``write_files``; None if it was."""
    others = sorted(path.name for path in folder.iterdir() if path.name not in _NAMES)
    if others:
        return f"contains other files than the sample ({', '.join(others[:3])})"
    return None if has_marker(folder / MARKER, FORMAT) else f"contains no {MARKER} that marks it as the sample"


def write_files(sample: Bundle, folder: str | Path) -> list[str]:
    """Write the sample as a folder: the library, and Parquet files of both models' vectors of photos and class names.

    A folder that an earlier call has written is replaced.
    """
    import json

    with atomic_path(folder, force=True, directory=True, foreign=why_not_replaced) as temporary:
        (temporary / MARKER).write_text(json.dumps({"format": FORMAT, "format_version": 1}) + "\n", encoding="utf-8")
        Library(_photos(sample), temporary)
        for model, side in (("old", sample.source), ("new", sample.target)):
            for modality, items in (("image", "photos"), ("text", "texts")):
                write_table(
                    _table(sample, side[modality], modality), f"{temporary}/{model}-{items}.parquet", force=False
                )
        names = sorted(path.name for path in temporary.iterdir() if path.name != MARKER)
    return names


def _table(sample: Bundle, rows: Embeddings, modality: str) -> pa.Table:
    """Return rows with their ids, classes and vectors; the metadata contain their space."""
    import json

    classes = sample.class_of(modality, rows.ids).tolist()
    table = library_rows(rows.vectors, **{"id": rows.ids.tolist(), "class": classes})
    return table.replace_schema_metadata({"congruence.space": json.dumps(rows.space.to_dict())})


#: Number of searches shown, of which half are those that mapping degrades most; number of photos per search.
EXAMPLES, SHOWN = 6, 5

#: Number of photos that both models encode for the certificate.
ANCHORS = 200

#: Steps that ``move_library`` reports to its callback.
STEPS = 4


def fit_on_names(sample: Bundle) -> Map:
    """Fit the map on the class names in both models; of the photos, only the mean in the old model is used."""
    import congruence

    return congruence.fit(
        sample.source["text"], sample.target["text"], means={"image": (sample.source["image"], None)}, check=False
    )


def certify_sample(sample: Bundle, *, random_state: int = 0) -> Certificate:
    """Certify the change of models from some photos that both models have encoded, and the class names."""
    from congruence.upgrade.certify import certify, split_anchors

    labels = sample.classes["image"]
    sides, queries = split_anchors(
        sample.side("source"), sample.side("target"), ANCHORS, by_class=True, random_state=random_state
    )
    return certify(*sides, queries=queries, labels=labels, random_state=random_state, data="photos")


def certified_strategies(certificate: Certificate) -> list[dict[str, Any]]:
    """Return the quality that the certificate expects of each strategy, with its interval."""
    names = {
        "keep": "keep the old model",
        "map": "map the stored vectors",
        "progressive": "map, and re-embed the worst {:.0%}",
    }
    strategies: list[dict[str, Any]] = []
    for cost in certificate.costs:
        score = cost["score"]
        value, low, high = (None, None, None) if score is None else (score.value, score.low, score.high)
        name = names.get(cost["strategy"], "re-embed everything").format(cost["share"])
        strategies.append({"name": name, "value": value, "low": low, "high": high, "share": cost["share"]})
    return strategies


class _Step(NamedTuple):
    """Scores of the library at one step, and the ids of the photos found for each name."""

    result: dict[str, Any]
    hits: list[list[str]]


def move_library(
    sample: Bundle,
    mapping: Map,
    *,
    share: float = 0.1,
    random_state: int = 0,
    callback: Callable[[int], object] | None = None,
) -> dict[str, Any]:
    """Map a table of the old model's photo vectors, switch, re-embed the worst photos, and roll back; search it at each
    step.

    ``sample``: the sample ``photos``; its vectors of the new model are used in place of encoding photos; ``mapping``:
    from the old model to the new one; ``random_state``: determines the random rows of the plan, and half of the
    searches that are shown; ``callback``: called with 1 after each of ``STEPS`` steps. Returns: as
    ``congruence.report.render_story`` expects it, except for ``certificate``.
    """
    import numpy as np

    from congruence.databases import open_database
    from congruence.upgrade.migrate import Migration
    from congruence.upgrade.migrate.stages import reembed

    old, new = sample.source, sample.target
    queries = {side: rows["text"].vectors.astype(np.float32) for side, rows in (("old", old), ("new", new))}
    names = old["text"].ids
    advance = callback or (lambda count: None)
    with tempfile.TemporaryDirectory(prefix="congruence-demo-") as folder:
        library = Library(_photos(sample), Path(folder))

        def search(name: str, note: str, model: str) -> _Step:
            ids, vectors = library.vectors()
            hits = library.find(queries[model], SHOWN)
            accuracy = _accuracy(sample, names, queries[model], ids, vectors)
            first = _precision_at_1(sample, names, hits)
            return _Step({"name": name, "note": note, "accuracy": accuracy, "first": first}, hits)

        steps = [
            search("before", "the old model's texts, its vectors", "old"),
            search("only the encoder changed", "the new model's texts, the old model's vectors", "new"),
        ]
        advance(1)
        with Migration(
            open_database(str(library.path)), mapping, journal=Path(folder) / "journal", modality="image"
        ) as migration:
            migration.run()
            verify_and_switch(migration)
            steps.append(search("mapped", f"the new model's texts, vectors mapped from {len(names)} names", "new"))
            advance(1)
            if not library.live:  # a switch replaces the whole file, so rows are re-embedded before it
                migration.rollback()
            stages: list[dict[str, Any]] = [{"share": 0.0, "value": steps[-1].result["accuracy"]}]
            budget = round(share * len(old["image"]))
            for part in range(1, 6):
                plan = reembed(
                    migration, lambda ids: new["image"].take(ids).vectors, texts=old["text"], new_texts=new["text"],
                    size=max(1, round(budget / 5)), budget=round(budget * part / 5), random_state=random_state,
                )  # fmt: skip
                if library.live:
                    ids, vectors = library.vectors()
                    accuracy = _accuracy(sample, names, queries["new"], ids, vectors)
                    stages.append({"share": float(plan.embedded.mean()), "value": accuracy})
            embedded = int(plan.embedded.sum())
            if not library.live:
                verify_and_switch(migration)
            steps.append(
                search("re-embedded", f"{embedded:,} photos encoded by the new model, the others mapped", "new")
            )
            if not library.live:
                stages.append({"share": float(plan.embedded.mean()), "value": steps[-1].result["accuracy"]})
            advance(1)
            result = migration.rollback()
            steps.append(search("rolled back", "the old model's texts, its vectors again", "old"))
            advance(1)
        library.table = None
    return {
        "rows": len(old["image"]),
        "names": len(names),
        "store": library.store,
        "models": dict(sample.info["models"]),
        "photos_of_each_model": sample.info["photos_of_each_model"],
        "share": embedded / len(old["image"]),
        "embedded": embedded,
        "steps": [step.result for step in steps],
        "new_model": _accuracy(sample, names, queries["new"], new["image"].ids, new["image"].vectors),
        "stages": stages,
        "examples": _examples(sample, names, steps[:4], random_state),
        "identical": result["identical"],
        "same_lists": steps[0].hits == steps[-1].hits,
        "licences": list(sample.info["licences"]),
    }


def _accuracy(sample: Bundle, names: np.ndarray, queries: np.ndarray, ids: np.ndarray, vectors: np.ndarray) -> float:
    """Return the share of photos whose nearest name is that of their class."""
    import numpy as np

    own = sample.class_of("image", ids)
    return float((names[(vectors.astype(np.float32) @ queries.T).argmax(axis=1)] == own).mean())


def _precision_at_1(sample: Bundle, names: np.ndarray, hits: list[list[str]]) -> float | None:
    """Return the share of names whose first hit is a photo of their class."""
    import numpy as np

    classes = sample.classes["image"]
    right = [classes[photos[0]] == name for photos, name in zip(hits, names.tolist(), strict=True)]
    return float(np.mean(right)) if right else None


def _examples(sample: Bundle, names: np.ndarray, steps: list[_Step], random_state: int) -> list[dict[str, Any]]:
    """Return the searches to show, of classes with enough photos: those that mapping degrades most, and random ones."""
    import numpy as np

    from congruence.report.summary import data_uri

    classes = sample.classes["image"]
    sizes = Counter(classes.values())
    candidates = [k for k, name in enumerate(names.tolist()) if sizes[name] >= SHOWN]

    def right(step: _Step, k: int) -> int:
        return sum(classes[photo] == names[k] for photo in step.hits[k])

    harmed = sorted(candidates, key=lambda k: right(steps[2], k) - right(steps[0], k))[: EXAMPLES // 2]
    others = [k for k in np.random.default_rng(random_state).permutation(candidates).tolist() if k not in harmed]

    def found(photo: str, k: int) -> dict[str, object]:
        picture = data_uri(sample.thumbnails.get(photo))
        return {"text": classes[photo], "picture": picture, "wanted": bool(classes[photo] == names[k])}

    def shown(step: _Step, k: int) -> dict[str, Any]:
        hits = [found(photo, k) for photo in step.hits[k]]
        return {"name": step.result["name"], "right": right(step, k), "found": hits}

    return [
        {"text": str(names[k]), "harmed": k in harmed, "steps": [shown(step, k) for step in steps]}
        for k in [*harmed, *others[: EXAMPLES - len(harmed)]]
    ]


def print_story(result: dict[str, Any]) -> None:
    """Print the scores of each step, and the result of the rollback."""
    say(
        f"{result['rows']:,} photos that neither model has seen, in a {result['store']}; searched by "
        f"{result['names']} class names, which both models know."
    )
    say(f"Certificate, from {ANCHORS} photos encoded by both models: {result['certificate']['headline']}.")
    print()
    print_table(
        "the library at each step",
        ["", "photos nearest to their name", "first photo found is right"],
        [
            *([step["name"], number(step["accuracy"]), number(step["first"])] for step in result["steps"]),
            ["all re-embedded (not done here)", number(result["new_model"]), "–"],
        ],
    )
    if result["store"].startswith("Parquet"):
        say("With LanceDB the demo uses a live table: pip install 'congruence[lancedb]'")
    print_rollback(result["identical"], result["same_lists"])
