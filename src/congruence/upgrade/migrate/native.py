"""Rows that hold the new model's own vectors, among rows that are mapped: what each row of a database is to hold."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from congruence import persist
from congruence._utils.ids import id_rows, id_texts
from congruence.errors import CorruptFileError
from congruence.maps import Map
from congruence.upgrade.migrate.journal import PROGRESSIVE
from congruence.upgrade.progressive import Progressive, Reading
from congruence.upgrade.progressive.refit import Correction, Refit
from congruence.upgrade.progressive.texts import Scale, Texts, unit

__all__ = ["NativeRows", "read_native", "read_stages", "save_plan"]

#: What ``config.json`` calls it.
KIND = "progressive migration"

#: What a point of the picture has.
POINT = ("share", "value", "low", "high")


@dataclass(frozen=True, eq=False)
class NativeRows:
    """What a progressive migration puts in the place of plainly mapped rows.

    Attributes
    ----------
    ids : ndarray of str, shape (m,)
        Of rows that were re-embedded.
    vectors : ndarray of float32, shape (m, d_new)
        Of unit norm.
    refit : Refit
    correction : Correction
        The map as it was refitted.
    among : str or None
        The modality that is re-embedded; rows of others keep what the migration's own map gives.
    """

    ids: np.ndarray
    vectors: np.ndarray
    refit: Refit
    correction: Correction
    among: str | None

    @classmethod
    def of(cls, plan: Progressive, among: str | None) -> NativeRows:
        """Return what a plan stands at."""
        done = np.flatnonzero(plan.embedded)
        return cls(plan.ids[done], plan.store()[done], plan._refit, plan.correction_, among)

    def replace(self, ids: pa.Array, rows: np.ndarray, modalities: pa.Array | None, out: np.ndarray) -> np.ndarray:
        """Put in what these rows are to hold.

        Parameters
        ----------
        ids : pyarrow.Array, shape (b,)
        rows : ndarray of float32, shape (b, d_old)
        modalities : pyarrow.Array, shape (b,), or None
        out : ndarray of float32, shape (b, d_new)
            By the migration's own map; changed.

        Returns
        -------
        ndarray of float32, shape (b, d_new)
        """
        which = np.arange(len(rows))
        if self.among is not None and modalities is not None:
            which = np.flatnonzero([one == self.among for one in modalities.to_pylist()])
        if len(which):
            out[which] = self.refit.transform(np.ascontiguousarray(rows[which]), self.correction)
        place = id_rows(self.ids, id_texts(ids.to_pylist()))
        out[place >= 0] = self.vectors[place[place >= 0]]
        return out


def save_plan(
    plan: Progressive,
    folder: Path,
    among: str | None,
    modality: str | None,
    texts: tuple[np.ndarray, np.ndarray] | None,
    *,
    forecast: bool = False,
) -> None:
    """Write a plan with the ids of its rows and the texts it was given: all that :func:`read_native` needs, and its picture. Raises StorageError."""
    # A forecast looks at the rows like a batch does, so it comes before the state that counts these looks.
    picture = plan.picture(forecast=forecast) if plan.history_ else None
    arrays, facts = plan.state()
    whole = {f"plan.{name}": array.astype(np.uint8) if array.dtype == bool else array for name, array in arrays.items()}
    names = json.dumps(plan.ids.tolist()).encode()
    whole["ids"] = np.frombuffer(names, np.uint8)
    whole["size"] = np.array([plan._refit.size])
    if plan.texts is not None and texts is not None:
        whole |= {"texts.old": texts[0], "texts.new": texts[1]}
        whole |= {"texts.mean": plan.texts.scale.mean, "texts.spread": np.array([plan.texts.scale.spread])}
    card = f"# A progressive migration\n\n{plan.meter()}\n"
    persist.write_folder(
        folder / PROGRESSIVE,
        whole,
        {"kind": KIND, "facts": facts, "among": among, "modality": modality, "picture": picture},
        card,
        force=True,
    )


def read_native(folder: Path, mapping: Map) -> tuple[NativeRows, dict[str, Any]] | None:
    """Read what :func:`save_plan` wrote, or None where there is nothing.

    Parameters
    ----------
    folder : Path
        Of the journal.
    mapping : Map
        The migration's.

    Returns
    -------
    (NativeRows, dict) or None
        The dict has ``ids`` (all of the plan's rows), ``state`` (for :meth:`Progressive.from_state`), ``texts`` and ``new_texts``.

    Raises
    ------
    CorruptFileError, FileError, VersionError
    """
    path = folder / PROGRESSIVE
    if not path.is_dir():
        return None
    arrays, config = persist.read_folder(path)
    try:
        if config["kind"] != KIND:
            raise ValueError("another kind of folder")
        among, modality = config["among"], config["modality"]
        names = id_texts(json.loads(arrays["ids"].tobytes().decode()))
        plan = {name.removeprefix("plan."): array for name, array in arrays.items() if name.startswith("plan.")}
        texts = None
        if "texts.old" in arrays:
            scale = Scale(arrays["texts.mean"], float(arrays["texts.spread"][0]))
            texts = Texts(unit(arrays["texts.old"]), unit(arrays["texts.new"]), scale)
        size = float(arrays["size"][0])
        facts = config["facts"]
        solved = {name.removeprefix("map."): array for name, array in plan.items() if name.startswith("map.")}
        rows, vectors = plan["rows"], plan["vectors"]
        if plan["role"].shape != (len(names),) or vectors.shape != (len(rows), mapping.d_out):
            raise ValueError("arrays of other shapes")
        if not np.isfinite(vectors).all() or (among is not None and not isinstance(among, str)):
            raise ValueError("values that no plan has")
        for name in ("due", "embedded"):
            plan[name] = plan[name].astype(bool)
        native = NativeRows(
            names[rows], vectors, Refit(mapping.for_modality(modality), texts, size), Correction.restore(solved, facts["correction"]), among
        )  # fmt: skip
    except (KeyError, TypeError, IndexError, ValueError, AttributeError) as error:
        raise CorruptFileError(
            f"Got a damaged folder of a progressive migration, {path} ({type(error).__name__}); expected one as congruence wrote it. "
            "Restore it, or remove it: what was re-embedded must then be encoded again."
        ) from error
    known: dict[str, Any] = {"ids": names, "state": (plan, facts), "among": among}
    if texts is not None:
        known |= {"texts": arrays["texts.old"], "new_texts": arrays["texts.new"]}
    return native, known


def read_stages(folder: Path) -> dict[str, Any] | None:
    """Read what each stage of a progressive migration was worth.

    Parameters
    ----------
    folder : Path
        Of the journal.

    Returns
    -------
    dict or None
        ``stages``: :meth:`congruence.upgrade.progressive.Reading.to_dict` of each, None for what is not known; ``picture``: :meth:`congruence.upgrade.progressive.Progressive.picture`. None where nothing was re-embedded.

    Raises
    ------
    CorruptFileError, FileError, VersionError
    """
    path = folder / PROGRESSIVE
    if not path.is_dir():
        return None
    config = persist.read_folder(path)[1]
    try:
        if config["kind"] != KIND:
            raise ValueError("another kind of folder")
        stages = config["facts"]["history"]
        for one in stages:
            Reading.from_dict(one)  # to see that it is one
        picture = config.get("picture")
        if picture is not None:
            # What is not known is NaN, and null in JSON.
            points = {
                part: [
                    {name: np.nan if one[name] is None else float(one[name]) for name in POINT} for one in picture[part]
                ]
                for part in ("stages", "forecast")
            }
            lines = {str(name): float(value) for name, value in picture["lines"].items() if value is not None}
            picture = {"metric": str(picture["metric"]), "lines": lines, **points}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CorruptFileError(
            f"Got a damaged folder of a progressive migration, {path} ({type(error).__name__}); expected one as congruence wrote it. Restore it."
        ) from error
    return {"stages": stages, "picture": picture} if stages else None
