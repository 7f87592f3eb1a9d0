"""State of a progressive migration: which rows are re-embedded, and by which map the others are mapped."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from congruence import persist
from congruence._utils.arrays import blocks
from congruence._utils.ids import id_rows, id_texts
from congruence.errors import CorruptFileError
from congruence.io.reading import PACKED, pack, unpack
from congruence.maps import Map
from congruence.upgrade.migrate.journal import PROGRESSIVE, hashes, make_folder
from congruence.upgrade.progressive import Progressive, Reading
from congruence.upgrade.progressive.refit import Correction, Refit
from congruence.upgrade.progressive.state import STATE, Received, inputs_of, read_part
from congruence.upgrade.progressive.texts import Scale, Texts

KIND = "progressive migration"  # value of ``kind`` in ``config.json``
POINT = ("share", "value", "low", "high")  # keys of a point in the plot data


@dataclass(frozen=True, eq=False)
class NativeRows:
    """Rows of a progressive migration, which replace rows mapped by the migration's own map.

    A re-embedded row whose old vector has changed since then has other content now, and is mapped.
    """

    ids: np.ndarray  # (m,), of the re-embedded rows
    digests: np.ndarray  # (m,), of their old vectors (``hashes``) when they were encoded
    new: Received  # their unit vectors, in the same order
    refit: Refit
    correction: Correction  # the map of the other rows
    among: str | None  # modality of the rows to re-embed

    def take(self, places: np.ndarray) -> np.ndarray:
        """Return the vectors at the given positions of ``ids``, shape (b, d_new)."""
        return self.new.take(self.new.rows[places])

    def replace(
        self, ids: pa.Array, old: np.ndarray, rows: np.ndarray, modalities: pa.Array | None, out: np.ndarray
    ) -> np.ndarray:
        """Replace mapped rows (b, d_new) in place by the plan's vectors.

        ``old`` are the rows as they are stored, and ``rows`` as the migration's map takes them.
        """
        which = np.arange(len(rows))
        if self.among is not None and modalities is not None:
            which = np.flatnonzero([name == self.among for name in modalities.to_pylist()])
        if len(which):
            out[which] = self.refit.transform(np.ascontiguousarray(rows[which]), self.correction)
        names = id_texts(ids.to_pylist())
        place = id_rows(self.ids, names)
        native = place >= 0
        native[native] = hashes(ids.filter(pa.array(native)), old[native]) == self.digests[place[native]]
        out[native] = self.take(place[native])
        return out


def plan_folder(folder: Path, among: str | None) -> Path:
    """Return the folder of the plan for rows of a modality, None for all rows, in that of a journal."""
    path = folder / PROGRESSIVE
    return path if among is None else path / f"of-{hashlib.sha256(among.encode()).hexdigest()[:16]}"


def save_plan(
    plan: Progressive,
    path: Path,
    digests: np.ndarray,
    among: str | None,
    modality: str | None,
    texts: tuple[np.ndarray, np.ndarray] | None,
    *,
    forecast: bool = False,
) -> None:
    """Save what has changed in a plan, with ids, texts and plot data; ``digests`` are those of ``NativeRows``."""
    picture = plan.picture(forecast=forecast) if plan.history_ else None
    make_folder(path)
    arrays = {"size": np.array([plan.refit.size]), "digests": digests}
    if plan.texts is not None:
        arrays |= {"texts.mean": plan.texts.scale.mean, "texts.spread": np.array([plan.texts.scale.spread])}
    if not (path / inputs_of(plan.inputs)).exists():
        inputs = {f"ids{part}": array for part, array in pack(id_texts(plan.ids)).items()}
        inputs |= {} if texts is None else {"old": texts[0], "new": texts[1]}
        persist.write_folder(path / inputs_of(plan.inputs), inputs, {"kind": "inputs"}, "# Ids and texts\n")
    config = {"kind": KIND, "among": among, "modality": modality, "picture": picture}
    plan.write(path, config, arrays)


def read_native(folder: Path, mapping: Map) -> dict[str | None, tuple[NativeRows, dict[str, Any]]]:
    """Return, by modality, what ``save_plan`` wrote in a journal's folder, with what a plan is resumed from."""
    return {saved[0].among: saved for saved in (_read_native(*one, mapping) for one in _read_states(folder))}


def _read_native(
    path: Path, arrays: dict[str, np.ndarray], config: dict[str, Any], mapping: Map
) -> tuple[NativeRows, dict[str, Any]]:
    with _reading(path):
        among, modality, facts = config["among"], config["modality"], config["facts"]
        inputs = read_part(path / inputs_of(facts["inputs"]))
        texts_of_ids, offsets = (inputs[f"ids{part}"] for part in PACKED)
        names = unpack(texts_of_ids, offsets, str(path))
        known: dict[str, Any] = {"ids": names, "state": (arrays, facts), "folder": path, "among": among}
        texts = None
        if "old" in inputs:
            scale = Scale(arrays["texts.mean"], float(arrays["texts.spread"][0]))
            texts = Texts.of(inputs["old"], inputs["new"], scale)
            known |= {"texts": inputs["old"], "new_texts": inputs["new"]}
        size, correction = float(arrays["size"][0]), Correction.restore(arrays, facts["map"])
        new = Received(len(names), mapping.d_out)
        new.load(path, facts["vectors"])
        digests = arrays["digests"]
        if digests.shape != new.rows.shape or digests.dtype != np.uint64:
            raise ValueError("digests of other rows")
        if not (among is None or isinstance(among, str)):
            raise ValueError("a modality that is not a string")
        refit = Refit(mapping.for_modality(modality), texts, size)
        native = NativeRows(names[new.rows], digests, new, refit, correction, among)
        refit.transform(np.zeros((1, mapping.n_features_in_), np.float32), correction)  # raises if it does not fit
    return native, known


def read_stages(folder: Path) -> dict[str, Any] | None:
    """Return the readings of a progressive migration's stages and its plot data; None if nothing was re-embedded.

    If rows of several modalities were, those of the latest.
    """
    saved = _read_states(folder)
    if not saved:
        return None
    path, _, config = max(saved, key=lambda one: persist.find_map(one[0] / STATE).stat().st_mtime)
    with _reading(path):
        stages = config["facts"]["history"]
        for stage in stages:
            Reading.from_dict(stage)  # raises if it is not valid
        if (picture := config.get("picture")) is not None:

            def point(values: dict[str, Any]) -> dict[str, float]:  # unknown values are NaN, stored as null in JSON
                return {name: np.nan if values[name] is None else float(values[name]) for name in POINT}

            lines = {str(name): float(value) for name, value in picture["lines"].items() if value is not None}
            points = {part: list(map(point, picture[part])) for part in ("stages", "forecast")}
            picture = {"metric": str(picture["metric"]), "lines": lines, **points}
    return {"stages": stages, "picture": picture} if stages else None


def _read_states(folder: Path) -> list[tuple[Path, dict[str, np.ndarray], dict[str, Any]]]:
    """Return folder, arrays and facts of each plan, but of those whose first save was interrupted."""
    root, found = folder / PROGRESSIVE, []
    for path in (root, *sorted(root.glob("of-*"))):
        if persist.find_map(path / STATE).is_dir():
            arrays, config = persist.read_folder(path / STATE)
            with _reading(path):
                if config.get("kind") != KIND:
                    raise ValueError("another kind of folder")
            found.append((path, arrays, config))
    return found


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Raise CorruptFileError instead of what damaged facts lead to."""
    try:
        yield
    except (KeyError, TypeError, IndexError, ValueError, AttributeError) as error:
        raise CorruptFileError(
            f"The folder {path} of re-embedded rows is damaged ({type(error).__name__}).",
            "Restore it from a backup, or remove it: all re-embedded rows must then be encoded again.",
        ) from error


class EncodedRows:
    """Encoded rows (dim,) by id, with the digests of their old vectors, stored as one small folder per chunk."""

    def __init__(self, folder: Path, dim: int) -> None:
        self.folder, self.dim = folder / "encoded", dim
        self.rows: dict[str, tuple[int, np.ndarray]] = {}
        self._parts: dict[Path, list[str]] = {}  # ids by folder
        self.read()

    def read(self) -> None:
        """Read what other processes have added or removed since."""
        found = sorted(self.folder.glob("part-*"))
        for path in self._parts.keys() - {*found}:
            for name in self._parts.pop(path):
                self.rows.pop(name, None)
        for path in found:
            if path in self._parts:
                continue
            try:
                arrays, config = persist.read_folder(path)
            except CorruptFileError as error:
                error.fix = (f"Remove {path}: its rows are encoded again.",)
                raise
            names, none = config.get("ids"), np.empty(0)
            digests, vectors = arrays.get("digests", none), arrays.get("vectors", none)
            if not isinstance(names, list) or (digests.shape, vectors.shape) != ((len(names),), (len(names), self.dim)):
                names = []
            self._remember(path, names, digests, vectors)

    def _remember(self, path: Path, ids: list[str], digests: np.ndarray, vectors: np.ndarray) -> None:
        self._parts[path] = list(map(str, ids))
        if ids:
            self.rows |= dict(zip(self._parts[path], zip(digests.tolist(), vectors, strict=True), strict=True))

    def add(self, ids: list[str], digests: np.ndarray, vectors: np.ndarray) -> None:
        """Store a chunk, on disk before in memory."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"part-{time.time_ns():020d}"  # a name that no other process has used or will
        arrays = {"digests": digests, "vectors": vectors}
        persist.write_folder(path, arrays, {"kind": "encoded rows", "ids": ids}, "# Encoded rows\n")
        self._remember(path, ids, digests, vectors)

    def has(self, ids: list[str], digests: np.ndarray) -> np.ndarray:
        """Return which rows are encoded, and have the old vector that they had then, bool of shape (b,)."""
        pairs = zip(ids, digests.tolist(), strict=True)
        return np.array([name in self.rows and self.rows[name][0] == digest for name, digest in pairs], bool)

    def holds(self, name: str, vector: np.ndarray) -> bool:
        """Return whether a row was encoded as this vector (dim,), up to its length."""
        if name not in self.rows:
            return False
        kept = self.rows[name][1]
        return bool(vector @ kept >= (1 - 1e-6) * np.linalg.norm(vector) * np.linalg.norm(kept))

    def take(self, ids: list[str]) -> np.ndarray:
        """Return the vectors of encoded rows, shape (b, dim)."""
        return np.stack([self.rows[name][1] for name in ids])

    def forget(self, ids: list[str]) -> None:
        """Remove rows that are now in the plan; a file is deleted with the last of its rows."""
        for name in ids:
            self.rows.pop(name, None)
        for path in [path for path, names in self._parts.items() if self.rows.keys().isdisjoint(names)]:
            persist.remove_folder(path)
            del self._parts[path]
        with suppress(OSError):  # not empty: another process has added rows
            self.folder.rmdir()

    def keep(self, native: NativeRows, which: np.ndarray) -> None:
        """Store the vectors of re-embedded rows at these positions."""
        for part in blocks(len(which), 4 * native.new.width):
            some = which[part]
            self.add([str(name) for name in native.ids[some].tolist()], native.digests[some], native.take(some))
