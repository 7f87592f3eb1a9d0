"""``congruence demo``: a photo library is moved to a new model and back, and searched at each step."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from congruence._utils.atomic import atomic_path, has_marker
from congruence._utils.optional import require
from congruence.cli._output import number, print_table, say, write_table
from congruence.errors import MigrationError

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    from congruence.datasets import Bundle
    from congruence.embeddings import Embeddings
    from congruence.maps import Map
    from congruence.upgrade.certify import Certificate
    from congruence.upgrade.migrate import Migration

#: Name and format of the file that marks a folder written by ``write_files``.
MARKER, FORMAT = "sample.json", "congruence-photo-sample"

_NAMES = {MARKER, "photos.lance", "photos.parquet"}
_NAMES |= {f"{model}-{items}.parquet" for model in ("old", "new") for items in ("photos", "texts")}

#: Number of searches shown, of which half are those that mapping degrades most; number of photos per search.
EXAMPLES, SHOWN = 6, 5

#: Number of photos that both models encode for the certificate; share of the library that is re-embedded.
ANCHORS, SIZE = 200, 0.1

#: What is shown meanwhile, and in how many steps: the certificate and each search; the page, and its name in the JSON.
LABEL, STEPS, RENDER, PAGE = "moving the library", 6, "render_story", "page"


def run(
    sample: Bundle, share: float, seed: int, callback: Callable[[int], object]
) -> tuple[Map, dict[str, Any], dict[str, Any]]:
    """Certify the change, and move the library; return the map, the page's story, and the same without pictures."""
    certificate = certify_sample(sample, random_state=seed)
    callback(1)
    mapping = certificate.fit()
    story = move_library(sample, mapping, share=share, random_state=seed, callback=callback)
    story["certificate"] = certified(certificate)
    story["by_use"] = search_by_use(sample, mapping, story["examples"][0]["text"])
    return mapping, story, {key: value for key, value in story.items() if key not in ("examples", "by_use")}


def has_lancedb() -> bool:
    """Return whether the extra ``lancedb`` is installed."""
    return all(find_spec(name) is not None for name in ("lancedb", "lance"))


class Library:
    """A table of an application: written once, then read and searched with the database's own client.

    A LanceDB table or, without the extra ``lancedb``, a Parquet file.
    """

    def __init__(self, rows: pa.Table, folder: Path) -> None:
        self.live = has_lancedb()
        self.path = folder / ("photos.lance" if self.live else "photos.parquet")
        self.table: Any = None
        if self.live:
            self.table = require("lancedb", extra="lancedb").connect(str(folder)).create_table("photos", rows)
        else:
            write_table(rows, str(self.path), force=False)

    def vectors(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the ids and vectors that readers currently see."""
        import numpy as np

        from congruence.io import read_embeddings

        if not self.live:
            stored = read_embeddings(f"{self.path}:embedding")
            return stored.ids, stored.vectors
        rows = self._search().select(["id", "embedding"]).to_arrow()
        return np.array(rows["id"].to_pylist(), object), np.stack(rows["embedding"].to_numpy()).astype(np.float32)

    def find(self, queries: np.ndarray, k: int) -> list[list[str]]:
        """Return the ids of the ``k`` rows nearest to each query."""
        if not self.live:
            from congruence.metrics import nearest

            ids, vectors = self.vectors()
            return [ids[row].tolist() for row in nearest(queries, k, vectors)]
        hits = [self._search(query).select(["id", "_distance"]).limit(k).to_list() for query in queries]
        return [[str(row["id"]) for row in rows] for rows in hits]

    def _search(self, query: np.ndarray | None = None) -> Any:
        self.table.checkout_latest()
        search = self.table.search()
        if query is not None:
            search = self.table.search(query, vector_column_name="embedding").distance_type("cosine")
        return search


def verify_and_switch(migration: Migration) -> None:
    """Verify the new vectors and switch to them. Raises MigrationError if they fail verification."""
    verification = migration.verify()
    if not verification.passed:
        raise MigrationError(f"The new vectors do not verify: {'; '.join(verification.problems)}.", "Please report it.")
    migration.switch()


def _table(sample: Bundle, rows: Embeddings, modality: str) -> pa.Table:
    """Return rows with their ids, classes and vectors, in float32 as in most stores; the metadata contain their
    space.
    """
    import numpy as np
    import pyarrow as pa

    flat = pa.array(rows.vectors.astype(np.float32).reshape(-1))
    table = {"id": rows.ids.tolist(), "class": sample.class_of(modality, rows.ids).tolist()}
    table["embedding"] = pa.FixedSizeListArray.from_arrays(flat, rows.dim)
    return pa.table(table).replace_schema_metadata({"congruence.space": json.dumps(rows.space.to_dict())})


def _photos(sample: Bundle) -> pa.Table:
    """Return the photos with the old model's vectors, as an application would store them."""
    import pyarrow as pa

    rows = _table(sample, sample.source["image"], "image")
    pictures = [sample.thumbnails[name] for name in rows["id"].to_pylist()]
    return rows.append_column("picture", pa.array(pictures, pa.binary()))


def why_not_replaced(folder: Path) -> str | None:
    """Return why a folder was not written by ``write_files``; None if it was."""
    if others := sorted(path.name for path in folder.iterdir() if path.name not in _NAMES):
        return f"contains other files than the sample ({', '.join(others[:3])})"
    return None if has_marker(folder / MARKER, FORMAT) else f"contains no {MARKER} that marks it as the sample"


def write_files(sample: Bundle, folder: str | Path) -> list[str]:
    """Write the library, and Parquet files of both models' vectors of photos and class names; return the names.

    A folder that an earlier call has written is replaced.
    """
    with atomic_path(folder, force=True, directory=True, foreign=why_not_replaced) as temporary:
        (temporary / MARKER).write_text(json.dumps({"format": FORMAT, "format_version": 1}) + "\n", encoding="utf-8")
        Library(_photos(sample), temporary)
        for model, side in (("old", sample.source), ("new", sample.target)):
            for modality, items in (("image", "photos"), ("text", "texts")):
                rows = _table(sample, side[modality], modality)
                write_table(rows, f"{temporary}/{model}-{items}.parquet", force=False)
        return sorted(path.name for path in temporary.iterdir() if path.name != MARKER)


def certify_sample(sample: Bundle, *, random_state: int = 0) -> Certificate:
    """Certify the change of models from some photos that both models have encoded, and the class names, which are the
    fixed list that this library is searched by.
    """
    from congruence.upgrade.certify import certify, split_anchors

    sides = sample.side("source"), sample.side("target")
    pairs, queries = split_anchors(*sides, ANCHORS, by_class=True, random_state=random_state)
    labels = sample.classes["image"]
    return certify(*pairs, queries=queries, labels=labels, seen=True, random_state=random_state, data="photos")


def certified(certificate: Certificate) -> dict[str, Any]:
    """Return what the page tells of a certificate: the verdict, and the quality expected of each strategy."""
    from congruence.upgrade.certify import name_strategy

    costs = []
    for cost in certificate.costs:
        score, share = cost["score"], cost["share"]
        found = {name: getattr(score, name, None) for name in ("value", "low", "high")}
        costs.append({"name": name_strategy(cost["strategy"], share), "share": share} | found)
    verdict = certificate.verdict
    return {"anchors": ANCHORS, "headline": verdict.headline, "reason": verdict.reason, "costs": costs}


def move_library(
    sample: Bundle,
    mapping: Map,
    *,
    share: float = 0.1,
    random_state: int = 0,
    callback: Callable[[int], object] | None = None,
) -> dict[str, Any]:
    """Map a table of the old model's photo vectors, switch, re-embed the worst photos, and roll back; search it at each
    of five steps, after which ``callback`` is called with 1.

    The sample's vectors of the new model take the place of encoding photos. Returns what
    ``congruence.report.render_story`` expects, except for ``certificate``.
    """
    import numpy as np

    from congruence.databases import open_database
    from congruence.upgrade.migrate import Migration
    from congruence.upgrade.migrate.stages import reembed

    old, new, names = sample.source, sample.target, sample.source["text"].ids
    texts = {model: side["text"].vectors.astype(np.float32) for model, side in (("old", old), ("new", new))}
    steps: list[dict[str, Any]] = []
    hits: list[list[list[str]]] = []

    def accuracy(ids: np.ndarray, vectors: np.ndarray, model: str = "new") -> float:
        """Return the share of photos whose nearest name is that of their class."""
        nearest = (vectors.astype(np.float32) @ texts[model].T).argmax(axis=1)
        return float((names[nearest] == sample.class_of("image", ids)).mean())

    def search(name: str, note: str, model: str) -> None:
        hits.append(library.find(texts[model], SHOWN))
        first = sample.class_of("image", np.array([photos[0] for photos in hits[-1]])) == names
        found = accuracy(*library.vectors(), model)
        steps.append({"name": name, "note": note, "accuracy": found, "first": float(first.mean())})
        if callback:
            callback(1)

    with tempfile.TemporaryDirectory(prefix="congruence-demo-") as folder:
        library = Library(_photos(sample), Path(folder))
        search("before", "the old model's texts, its vectors", "old")
        search("only the encoder changed", "the new model's texts, the old model's vectors", "new")
        database = open_database(str(library.path))
        with Migration(database, mapping, journal=Path(folder) / "journal", modality="image") as migration:
            migration.run()
            verify_and_switch(migration)
            search("mapped", f"the new model's texts, vectors mapped from {ANCHORS} photos in both models", "new")
            if not library.live:  # a switch replaces the whole file, so rows are re-embedded before it
                migration.rollback()
            stages = [{"share": 0.0, "value": steps[-1]["accuracy"]}]
            budget = round(share * len(old["image"]))
            for part in range(1, 6):
                plan = reembed(
                    migration, lambda ids: new["image"].take(ids).vectors, texts=old["text"], new_texts=new["text"],
                    size=max(1, round(budget / 5)), budget=round(budget * part / 5), random_state=random_state,
                )  # fmt: skip
                if library.live or part == 5:
                    if not library.live:
                        verify_and_switch(migration)
                    stages.append({"share": float(plan.embedded.mean()), "value": accuracy(*library.vectors())})
            embedded = int(plan.embedded.sum())
            search("re-embedded", f"{embedded:,} photos encoded by the new model, the others mapped", "new")
            rolled = migration.rollback()
            search("rolled back", "the old model's texts, its vectors again", "old")
        library.table = None
    return {
        "rows": len(old["image"]),
        "names": len(names),
        "store": "LanceDB table" if library.live else "Parquet file",
        "models": dict(sample.info["models"]),
        "photos_of_each_model": sample.info["photos_of_each_model"],
        "share": embedded / len(old["image"]),
        "embedded": embedded,
        "steps": steps,
        "new_model": accuracy(new["image"].ids, new["image"].vectors),
        "stages": stages,
        "examples": _examples(sample, names, steps[:4], hits[:4], random_state),
        "identical": rolled["identical"],
        "same_lists": hits[0] == hits[-1],
        "licences": list(sample.info["licences"]),
    }


def _examples(
    sample: Bundle, names: np.ndarray, steps: list[dict[str, Any]], hits: list[list[list[str]]], random_state: int
) -> list[dict[str, Any]]:
    """Return the searches to show, of classes with enough photos: those that mapping degrades most, and random ones."""
    import numpy as np

    classes, photo = sample.classes["image"], partial(_photo, sample)
    sizes = Counter(classes.values())
    candidates = [k for k, name in enumerate(names.tolist()) if sizes[name] >= SHOWN]
    right = np.array([[sum(classes[i] == names[k] for i in found[k]) for k in range(len(names))] for found in hits])
    harmed = sorted(candidates, key=lambda k: int(right[2, k] - right[0, k]))[: EXAMPLES // 2]
    others = [k for k in np.random.default_rng(random_state).permutation(candidates).tolist() if k not in harmed]

    examples = []
    for k in [*harmed, *others[: EXAMPLES - len(harmed)]]:
        shown = [
            {"name": step["name"], "right": int(right[j, k]), "found": [photo(i, names[k]) for i in hits[j][k]]}
            for j, step in enumerate(steps)
        ]
        examples.append({"text": str(names[k]), "harmed": k in harmed, "steps": shown})
    return examples


def _photo(sample: Bundle, name: str, wanted: str) -> dict[str, object]:
    from congruence.report.summary import data_uri

    of_class = sample.classes["image"][name]
    return {"text": of_class, "picture": data_uri(sample.thumbnails.get(name)), "wanted": bool(of_class == wanted)}


def search_by_use(sample: Bundle, mapping: Map, text: str) -> dict[str, Any]:
    """Search the mapped library for a class name by the map, after its first lazy search, and after ten; return what is
    found at each step, and how much of it the new model finds, too.
    """
    from congruence import LazySearch

    new, texts = sample.target["image"], sample.target["text"]
    asked = dict(zip(texts.ids.tolist(), texts.vectors.astype("float32"), strict=True))
    others = [name for name in asked if name != text][:9]
    search = LazySearch(sample.source["image"], mapping, lambda ids: new.take(ids).vectors, check=False)
    own = {new.ids[row] for row in (new.vectors.astype("float32") @ asked[text]).argsort()[-SHOWN:]}
    steps: list[dict[str, Any]] = []
    for step, names in {"by the map": [], "after its first search": [text], "after ten searches": others}.items():
        search.limit = None
        for name in names:
            search.search(asked[name], SHOWN)
        search.limit = 0
        found = search.search(asked[text], SHOWN).ids.tolist()
        facts = {"name": step, "encoded": search.rows.n_native, "same": len(own & {*found})}
        shown = [_photo(sample, one, text) for one in found]
        steps.append({**facts, "right": sum(bool(one["wanted"]) for one in shown), "found": shown})
    return {"text": text, "steps": steps}


def tell(_: Bundle, story: dict[str, Any], result: dict[str, Any]) -> None:
    """Print the scores of each step, and the result of the rollback."""
    say(
        f"{result['rows']:,} photos that neither model has seen, in a {result['store']}; searched by "
        f"{result['names']} class names, which both models know."
    )
    say(f"Certificate, from {ANCHORS} photos encoded by both models: {result['certificate']['headline']}.")
    print()
    rows = [[step["name"], number(step["accuracy"]), number(step["first"])] for step in result["steps"]]
    rows.append(["all re-embedded (not done here)", number(result["new_model"]), "–"])
    print_table("the library at each step", ["", "photos nearest to their name", "first photo found is right"], rows)
    if result["store"].startswith("Parquet"):
        say("With LanceDB the demo uses a live table: pip install 'congruence[lancedb]'")
    by_use = story["by_use"]
    found = (f"{one['same']} {one['name']} ({one['encoded']:,} photos encoded)" for one in by_use["steps"])
    say(f"“{by_use['text']}” finds, of the new model's {SHOWN} first photos, {', '.join(found)}.")
    same = result["identical"] and result["same_lists"]
    print(f"Rolled back: {'bit for bit the old vectors, and the same results' if same else 'NOT the same'}.")
