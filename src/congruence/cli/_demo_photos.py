"""``congruence demo``: a photo library is searched by names that the map has not seen, and moved there and back."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from congruence._utils.atomic import atomic_path, has_marker
from congruence._utils.optional import require
from congruence.cli._output import number, print_table, say, write_table
from congruence.errors import MigrationError, ParameterError

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

#: Number of first photos of each search; of photos that both models encode as pairs; that a lazy search encodes.
SHOWN, PAIRS, BUDGET = 10, 200, 50

#: What is shown meanwhile, and in how many steps; the page, and its name in the JSON.
LABEL, STEPS, RENDER, PAGE = "moving the library", 3, "render_story", "page"

#: Where a search finds its photos, with what searches there.
BEFORE = "old model", "the old model's query, its vectors"
PLACES = {
    "only the encoder changed": "the new model's query, the old model's vectors",
    "mapped": f"the new model's query, vectors mapped by {PAIRS} pairs of photos",
    "after a lazy search": f"the same, and the first {BUDGET} photos encoded when the query asks for them",
    "re-embedded": "the new model's query, every photo encoded by the new model",
}


def run(
    sample: Bundle, query: str | None, seed: int, callback: Callable[[int], object]
) -> tuple[Map, dict[str, Any], dict[str, Any]]:
    """Check the change, search by names that were kept out of it, and move the library; return the map, the page's
    story, and the same without pictures.
    """
    known, asked = split_names(sample)
    if query is not None and query not in asked.tolist():
        raise unknown_name(f"There is no vector for {query!r}: the sample has names, and no encoder for free text.")
    certificate = certify_sample(sample, known, random_state=seed)
    callback(1)
    mapping = certificate.fit()
    story = search_library(sample, mapping, asked, query)
    callback(1)
    story |= move_library(sample, mapping, asked) | {"certificate": certified(certificate)}
    callback(1)
    shown = [{key: value for key, value in place.items() if key != "found"} for place in story["places"]]
    return mapping, story, story | {"places": shown}


def split_names(sample: Bundle) -> tuple[np.ndarray, np.ndarray]:
    """Return the names that the check may use, and those that only search: neither map nor check has seen them."""
    import numpy as np

    names = sample.source["text"].ids
    halves = np.array_split(np.random.default_rng([0, 1]).permutation(len(names)), 2)  # as benchmarks/photo_sample.py
    return names[np.sort(halves[0])], names[np.sort(halves[1])]


def unknown_name(problem: str = "Option '--query' requires a name.") -> ParameterError:
    """Return the error that lists the names one may search for."""
    from congruence.datasets import load_sample

    return ParameterError(problem, f"Pass one of: {', '.join(split_names(load_sample('photos'))[1])}.")


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


def certify_sample(sample: Bundle, names: np.ndarray, *, random_state: int = 0) -> Certificate:
    """Certify the change of models from some photos that both have encoded, for searches by these names."""
    from congruence.upgrade.certify import certify, split_anchors

    old, new = sample.source, sample.target
    pairs, rest = split_anchors({"image": old["image"]}, {"image": new["image"]}, PAIRS, random_state=random_state)
    texts = old["text"].take(names), new["text"].take(names)
    return certify(*pairs, queries=rest, text_queries=texts, random_state=random_state, data="photos")


def certified(certificate: Certificate) -> dict[str, Any]:
    """Return what the page tells of a certificate: the verdict, and the quality expected of each strategy."""
    from congruence.upgrade.certify import name_strategy

    costs = []
    for cost in certificate.costs:
        score, share = cost["score"], cost["share"]
        found = {name: getattr(score, name, None) for name in ("value", "low", "high")}
        costs.append({"name": name_strategy(cost["strategy"], share), "share": share} | found)
    verdict = certificate.verdict
    told = {"pairs": PAIRS, "measure": certificate.task, "headline": verdict.headline, "reason": verdict.reason}
    return told | {"costs": costs}


def search_library(sample: Bundle, mapping: Map, asked: np.ndarray, query: str | None = None) -> dict[str, Any]:
    """Search the old, mapped, lazily re-embedded and re-embedded photos by each of the ``asked`` names; return the
    scores of all, and the photos found for one, by default the one whose scores are nearest to the average.
    """
    import numpy as np

    from congruence import LazySearch
    from congruence.metrics import nearest

    old, new = sample.source, sample.target
    photos, own = old["image"], sample.class_of("image", old["image"].ids)
    native = new["image"].take(photos.ids).vectors
    queries = {model: side["text"].take(asked).vectors for model, side in (("old", old), ("new", new))}

    def first(vectors: np.ndarray, model: str = "new") -> np.ndarray:
        return nearest(queries[model], SHOWN, vectors)

    def first_of_lazy(text: np.ndarray) -> np.ndarray:
        search = LazySearch(photos.vectors, mapping, lambda k: native[k], BUDGET, modality="image", check=False)
        return search.search(text, SHOWN).ids  # a new one for each name, so that none gains by another's photos

    mapped = mapping.transform_embeddings(photos).vectors
    found = [first(photos.vectors, "old"), first(photos.vectors), first(mapped)]
    found += [np.array([first_of_lazy(text) for text in queries["new"]]), first(native)]
    right = [own[rows] == asked[:, None] for rows in found]
    same = [(rows[:, :, None] == found[-1][:, None]).any(axis=2) for rows in found]
    scores = np.array([hits.mean(axis=1) for hits in (*right, *same)])
    unusual = abs(scores - scores.mean(axis=1, keepdims=True)).sum(axis=0)
    k = int(unusual.argmin()) if query is None else asked.tolist().index(query)
    places = [
        {
            "name": name, "note": note, "encoded": encoded,
            "right": int(hits[k].sum()), "same": int(agree[k].sum()),
            "precision": float(hits.mean()), "overlap": float(agree.mean()),
            "found": [_photo(sample, one, asked[k]) for one in photos.ids[rows[k]]],
        }
        for (name, note), encoded, rows, hits, agree in zip(
            (BEFORE, *PLACES.items()), (0, 0, 0, BUDGET, len(photos)), found, right, same, strict=True
        )
    ]  # fmt: skip
    facts = {"query": str(asked[k]), "chosen": query is not None, "rows": len(photos), "names": len(asked)}
    models = {"models": dict(sample.info["models"]), "photos_of_each_model": sample.info["photos_of_each_model"]}
    return facts | models | {"shown": SHOWN, "places": places, "licences": list(sample.info["licences"])}


def _photo(sample: Bundle, name: str, wanted: str) -> dict[str, object]:
    from congruence.report.summary import data_uri

    of_class = sample.classes["image"][name]
    return {"text": of_class, "picture": data_uri(sample.thumbnails.get(name)), "wanted": bool(of_class == wanted)}


def move_library(sample: Bundle, mapping: Map, asked: np.ndarray) -> dict[str, Any]:
    """Map a table of the old model's photo vectors, switch, search it by the ``asked`` names, and roll back; return
    the kind of table, the share of the right photos found at each step, and whether everything is back as it was.
    """
    import numpy as np

    from congruence.databases import open_database
    from congruence.upgrade.migrate import Migration

    texts = [side["text"].take(asked).vectors.astype(np.float32) for side in (sample.source, sample.target)]
    with tempfile.TemporaryDirectory(prefix="congruence-demo-") as folder:
        library = Library(_photos(sample), Path(folder))
        before = library.find(texts[0], SHOWN)
        database = open_database(str(library.path))
        with Migration(database, mapping, journal=Path(folder) / "journal", modality="image") as migration:
            migration.run()
            verify_and_switch(migration)
            mapped = library.find(texts[1], SHOWN)
            rolled = migration.rollback()
            after = library.find(texts[0], SHOWN)
        store, library.table = "LanceDB table" if library.live else "Parquet file", None

    def precision(found: list[list[str]]) -> float:
        classes = sample.classes["image"]
        return float(np.mean([[classes[i] == name for i in ids] for ids, name in zip(found, asked, strict=True)]))

    steps = {"before": precision(before), "switched": precision(mapped), "rolled back": precision(after)}
    return {"store": store, "steps": steps, "identical": rolled["identical"], "same_lists": before == after}


def tell(_: Bundle, story: dict[str, Any], result: dict[str, Any]) -> None:
    """Print what each search finds, and the result of the rollback."""
    say(
        f"{result['rows']:,} photos that neither model has seen, searched by {result['names']} names that the map has "
        "not seen."
    )
    say(f"Certificate, from {PAIRS} photos encoded by both models: {result['certificate']['headline']}.")
    print()
    rows = [
        [one["name"], f"{one['encoded']:,}", str(one["right"]), number(one["precision"]), number(one["overlap"])]
        for one in result["places"]
    ]
    header = ["", "photos encoded", f"“{result['query']}”", "all names", "as by the new model"]
    print_table(f"right ones among the first {SHOWN} photos", header, rows)
    if result["store"].startswith("Parquet"):
        say("With LanceDB the demo uses a live table: pip install 'congruence[lancedb]'")
    same = result["identical"] and result["same_lists"]
    steps = ", ".join(f"{name} {number(value)}" for name, value in result["steps"].items())
    print(f"The {result['store']} itself, all names: {steps}.")
    print(f"Rolled back: {'bit for bit the old vectors, and the same results' if same else 'NOT the same'}.")
