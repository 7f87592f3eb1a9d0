"""State of a progressive migration: which rows get the new model's own vectors, and by which map the others are mapped."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import safetensors.numpy

from congruence import persist
from congruence._utils.ids import id_rows, id_texts
from congruence.errors import CorruptFileError
from congruence.maps import Map
from congruence.upgrade.migrate.journal import PROGRESSIVE, make_folder
from congruence.upgrade.progressive import Progressive, Reading, saving
from congruence.upgrade.progressive._pieces import STATE, read_piece, write_piece
from congruence.upgrade.progressive._received import Received
from congruence.upgrade.progressive.refit import Correction, Refit
from congruence.upgrade.progressive.texts import Scale, Texts, unit

__all__ = ["NativeRows", "read_native", "read_stages", "save_plan"]

#: Value of ``kind`` in ``config.json``.
KIND = "progressive migration"

#: Keys of a point in the plot data.
POINT = ("share", "value", "low", "high")


@dataclass(frozen=True, eq=False)
class NativeRows:
    """Rows of a progressive migration, which replace rows mapped by the migration's own map.

    Attributes
    ----------
    ids : ndarray of str, shape (m,)
        Ids of the re-embedded rows.
    new : Received
        Vectors of these rows, with unit norm, in the same order; in memory or in files.
    refit : Refit
        Applies a map of ``maps`` to rows.
    maps : dict of int to Correction
        All maps by which the rows in the database were written, by number; the last is the current map.
    earlier : ndarray of str, shape (e,)
        Ids of the rows that were written by an earlier map than the current one.
    slots : ndarray of uint8, shape (e,)
        Number of the map by which these rows were written.
    among : str or None
        Modality of the rows to re-embed; rows of other modalities are mapped by the migration's own map.
    """

    ids: np.ndarray
    new: Received
    refit: Refit
    maps: dict[int, Correction]
    earlier: np.ndarray
    slots: np.ndarray
    among: str | None

    @classmethod
    def of(cls, plan: Progressive, among: str | None) -> NativeRows:
        """Return the current state of a plan."""
        written, new = plan.written, plan.new_vectors
        earlier = np.flatnonzero(written.slot != written.current)
        ids, slots = plan.ids[earlier], written.slot[earlier]
        return cls(plan.ids[new.rows], new, plan.refit, dict(written.maps), ids, slots, among)

    def take(self, places: np.ndarray) -> np.ndarray:
        """Return the vectors at the given positions of ``ids``, shape (b, d_new)."""
        return self.new.take(self.new.rows[places])

    def replace(self, ids: pa.Array, rows: np.ndarray, modalities: pa.Array | None, out: np.ndarray) -> np.ndarray:
        """Replace mapped rows by the vectors that the plan has for them.

        Parameters
        ----------
        ids : pyarrow.Array, shape (b,)
        rows : ndarray of float32, shape (b, d_old)
        modalities : pyarrow.Array, shape (b,), or None
        out : ndarray of float32, shape (b, d_new)
            The rows mapped by the migration's own map; modified in place.

        Returns
        -------
        ndarray of float32, shape (b, d_new)
        """
        which = np.arange(len(rows))
        if self.among is not None and modalities is not None:
            which = np.flatnonzero([name == self.among for name in modalities.to_pylist()])
        names, current = id_texts(ids.to_pylist()), next(reversed(self.maps))
        place = id_rows(self.earlier, names[which])
        slots = np.where(place >= 0, self.slots[place] if len(self.slots) else current, current)
        for slot in np.unique(slots).tolist():
            here = which[slots == slot]
            out[here] = self.refit.transform(np.ascontiguousarray(rows[here]), self.maps[slot])
        place = id_rows(self.ids, names)
        out[place >= 0] = self.take(place[place >= 0])
        return out


def save_plan(
    plan: Progressive,
    folder: Path,
    among: str | None,
    modality: str | None,
    texts: tuple[np.ndarray, np.ndarray] | None,
    *,
    files: dict[str, str] | None = None,
    forecast: bool = False,
) -> None:
    """Save what has changed in a plan: everything that :func:`read_native` needs, including ids and texts, and the plot data.

    Parameters
    ----------
    plan : Progressive
    folder : Path
        Folder of the journal.
    among, modality : str or None
        Modality of the rows to re-embed, if the table has several, and modality whose means the map uses.
    texts : (ndarray, ndarray), shapes (t, d_source) and (t, d_target), or None
        The texts of both models as they were passed.
    files : dict of str to str, optional
        Names of the files of ids and texts, which are written once; names of new files are added.
    forecast : bool, default=False
        Include the forecast in the plot data, for which all rows are scored.

    Raises
    ------
    StorageError, FileError
        If the folder cannot be written, or a file cannot be read.
    """
    files = {} if files is None else files
    picture = plan.picture(forecast=forecast) if plan.history_ else None
    path = folder / PROGRESSIVE
    make_folder(path)
    arrays = {"size": np.array([plan.refit.size])}
    if plan.texts is not None and texts is not None:
        arrays |= {"texts.mean": plan.texts.scale.mean, "texts.spread": np.array([plan.texts.scale.spread])}
        if not _is_saved(files, path, "texts"):
            both = {"old": np.ascontiguousarray(texts[0]), "new": np.ascontiguousarray(texts[1])}
            files["texts"] = write_piece(path, safetensors.numpy.save(both), ".safetensors")
    if not _is_saved(files, path, "ids"):
        files["ids"] = write_piece(path, json.dumps(plan.ids.tolist()).encode(), ".json")
    config = {"kind": KIND, "among": among, "modality": modality, "picture": picture}
    saving.write(plan, path, config, arrays, files)


def _is_saved(files: dict[str, str], path: Path, name: str) -> bool:
    return name in files and (path / files[name]).exists()


def read_native(folder: Path, mapping: Map) -> tuple[NativeRows, dict[str, Any]] | None:
    """Return what :func:`save_plan` wrote, or None if it wrote nothing.

    Parameters
    ----------
    folder : Path
        Folder of the journal.
    mapping : Map
        Map of the migration.

    Returns
    -------
    (NativeRows, dict) or None
        The dict has ``ids`` (of all rows of the plan), ``state`` and ``folder`` (for
        :func:`congruence.upgrade.progressive.saving.restore`), ``among``, ``texts`` and ``new_texts``.

    Raises
    ------
    CorruptFileError, FileError, VersionError
        If a file is damaged; a file cannot be read; or a file was written by a newer version.
    """
    path = folder / PROGRESSIVE
    if not _has_state(folder):
        return None
    arrays, config = persist.read_folder(path / STATE)
    try:
        if config["kind"] != KIND:
            raise ValueError("another kind of folder")
        among, modality, facts = config["among"], config["modality"], config["facts"]
        names = id_texts(json.loads(read_piece(path, facts["ids"])))
        known: dict[str, Any] = {"ids": names, "state": (arrays, facts), "folder": path, "among": among}
        texts = None
        if "texts" in facts:
            both = safetensors.numpy.load(read_piece(path, facts["texts"]))
            scale = Scale(arrays["texts.mean"], float(arrays["texts.spread"][0]))
            texts = Texts(unit(both["old"]), unit(both["new"]), scale)
            known |= {"texts": both["old"], "new_texts": both["new"]}
        size, slot = float(arrays["size"][0]), arrays["slot"]
        maps = {int(key): saving.read_map(path, name, record) for key, name, record in facts["maps"]}
        new = Received(len(names), mapping.d_out, keep=False)
        new.load(path, facts["vectors"])
        if slot.shape != (len(names),) or not set(np.unique(slot).tolist()) <= set(maps):
            raise ValueError("rows of maps that do not exist")
        if not (among is None or isinstance(among, str)):
            raise ValueError("a modality that is not a string")
        earlier = np.flatnonzero(slot != next(reversed(maps)))
        refit = Refit(mapping.for_modality(modality), texts, size)
        native = NativeRows(names[new.rows], new, refit, maps, names[earlier], slot[earlier], among)
    except (KeyError, TypeError, IndexError, ValueError, AttributeError, safetensors.SafetensorError) as error:
        raise CorruptFileError(
            f"Got a damaged folder of a progressive migration, {path} ({type(error).__name__}); expected one as congruence wrote it. "
            "Restore it from a backup, or remove it: all re-embedded rows must then be encoded again."
        ) from error
    return native, known


def _has_state(folder: Path) -> bool:
    """Return whether a journal's folder has the saved state of a progressive migration; writing the first one may have been interrupted."""
    return persist.find_map(folder / PROGRESSIVE / STATE).is_dir()


def read_stages(folder: Path) -> dict[str, Any] | None:
    """Return the measured quality at each stage of a progressive migration.

    Parameters
    ----------
    folder : Path
        Folder of the journal.

    Returns
    -------
    dict or None
        ``stages``: :meth:`congruence.upgrade.progressive.Reading.to_dict` of each stage, with None for unknown values; ``picture``:
        :meth:`congruence.upgrade.progressive.Progressive.picture`. None if nothing was re-embedded.

    Raises
    ------
    CorruptFileError, FileError, VersionError
        If a file is damaged; a file cannot be read; or a file was written by a newer version.
    """
    path = folder / PROGRESSIVE / STATE
    if not _has_state(folder):
        return None
    config = persist.read_folder(path)[1]
    try:
        if config["kind"] != KIND:
            raise ValueError("another kind of folder")
        stages = config["facts"]["history"]
        for stage in stages:
            Reading.from_dict(stage)  # raises if it is not valid
        picture = config.get("picture")
        if picture is not None:
            # Unknown values are NaN, stored as null in JSON.
            points = {
                part: [
                    {name: np.nan if point[name] is None else float(point[name]) for name in POINT}
                    for point in picture[part]
                ]
                for part in ("stages", "forecast")
            }
            lines = {str(name): float(value) for name, value in picture["lines"].items() if value is not None}
            picture = {"metric": str(picture["metric"]), "lines": lines, **points}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CorruptFileError(
            f"Got a damaged folder of a progressive migration, {path} ({type(error).__name__}); expected one as congruence wrote it. Restore it from a backup."
        ) from error
    return {"stages": stages, "picture": picture} if stages else None
