"""Save and restore a plan: as arrays and plain data, or in a folder."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from congruence import persist
from congruence._utils.arrays import blocks
from congruence._utils.atomic import atomic_path, check_output
from congruence._utils.typing import RowsLike
from congruence.errors import CorruptFileError, ParameterError
from congruence.maps import Map
from congruence.stores import Source
from congruence.upgrade.progressive._lazy import RowsOnDisk, row_blocks
from congruence.upgrade.progressive._pieces import STATE, read_piece, sweep, why_no_plan, write_piece
from congruence.upgrade.progressive._stage import Stage
from congruence.upgrade.progressive.meter import Reading
from congruence.upgrade.progressive.refit import Correction

__all__ = ["KIND", "load", "read_map", "restore", "save", "state", "write"]

PlanT = TypeVar("PlanT", bound=Stage)

#: ``kind`` of a plan in ``config.json``; that of a map is its method.
KIND = "progressive"

#: Parameters that are part of the state.
PARAMETERS = ("meter_share", "clip", "tolerance", "n_neighbors", "random_state")


def state(plan: Stage) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return arrays and plain data; see :meth:`Progressive.state`."""
    arrays, facts = _state(plan)
    rows = plan.new_vectors.rows
    arrays |= {"rows": rows, "vectors": plan.new_vectors.take(rows), "surprise": plan.new_vectors.surprise}
    for slot, correction in plan.written.maps.items():
        arrays |= {f"map.{slot}.{name}": array for name, array in correction.arrays().items()}
    facts["maps"] = [[slot, correction.facts()] for slot, correction in plan.written.maps.items()]
    return {name: array.copy() for name, array in arrays.items()}, facts


def _state(plan: Stage) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return the part of the state that every save writes again: all but new vectors and maps."""
    states = plan._row_states
    arrays = {"role": states.role, "due": states.due, "embedded": states.embedded, "slot": plan.written.slot}
    facts = {
        "order": plan.order if isinstance(plan.order, str) else None,
        "inputs": _digest(plan),
        "place": states.place,
        "drawn": states.drawn,
        "views": plan._views,
        "chosen_at": plan._chosen_at,
        "selection": plan._selection.state(),
        "history": [reading.to_dict() for reading in plan.history_],
        **{name: getattr(plan, name) for name in PARAMETERS},
    }
    return arrays, facts


def restore(
    cls: Callable[..., PlanT],
    state: tuple[Mapping[str, np.ndarray], Mapping[str, Any]],
    mapping: Map,
    old: RowsLike | Source | RowsOnDisk,
    inputs: Mapping[str, Any],
    folder: Path | None = None,
) -> PlanT:
    """Resume a plan; see :meth:`Progressive.from_state`. Vectors and maps are read from ``folder``, or from the state if it is None."""
    arrays, facts = state
    if saved := [name for name in PARAMETERS if name in inputs]:
        raise ParameterError(
            f"Got {saved[0]}={inputs[saved[0]]!r}, which the saved plan sets; expected inputs only. Leave out {saved[0]}=…."
        )
    try:
        parameters = {name: facts[name] for name in PARAMETERS}
        order = facts["order"] or inputs.get("order", "auto")
        plan = cls(mapping, old, **{**inputs, "order": order}, **parameters)
        if _digest(plan) != facts["inputs"]:
            raise CorruptFileError(
                "Got the state of a plan for another store, map or texts; expected the same ones. Pass the mapping, old=…, texts=… and new_texts=… of the saved plan."
            )
        if folder is None:
            _check_vectors(arrays, plan)
            plan.new_vectors.add(arrays["rows"], np.array(arrays["vectors"], np.float32), arrays["surprise"])
            maps = {
                int(slot): Correction.restore(_with_prefix(arrays, f"map.{slot}."), record)
                for slot, record in facts["maps"]
            }
        else:
            plan.new_vectors.load(folder, facts["vectors"])
            maps = {int(slot): read_map(folder, name, record) for slot, name, record in facts["maps"]}
        _fill(plan, arrays, facts, maps)
    except (KeyError, TypeError, IndexError, ValueError, AttributeError) as error:
        raise CorruptFileError(
            f"Got a damaged state of a plan ({type(error).__name__}: {error}); expected the result of state(). Start a new plan, and pass the re-embedded rows "
            "to update."
        ) from error
    return plan


def _check_vectors(arrays: Mapping[str, np.ndarray], plan: Stage) -> None:
    rows, vectors = arrays["rows"], arrays["vectors"]
    if vectors.shape != (len(rows), plan._mapped.shape[1]) or arrays["surprise"].shape != (len(rows),):
        raise ValueError(f"vectors have shape {vectors.shape}")
    if len(rows) and (len(np.unique(rows)) < len(rows) or not 0 <= rows.min() <= rows.max() < len(plan)):
        raise ValueError("vectors are not those of the re-embedded rows")


def _fill(plan: Stage, arrays: Mapping[str, np.ndarray], facts: Mapping[str, Any], maps: dict[int, Correction]) -> None:
    """Set the state of a new plan that has its vectors. Raises KeyError, TypeError or ValueError if it is not valid."""
    states, n = plan._row_states, len(plan)
    for name, kind in (("role", np.uint8), ("due", bool), ("embedded", bool)):
        if arrays[name].shape != (n,):
            raise ValueError(f"{name} has shape {arrays[name].shape}")
        setattr(states, name, np.array(arrays[name], kind))
    rows = plan.new_vectors.rows
    if not np.array_equal(np.sort(rows), np.flatnonzero(states.embedded)):
        raise ValueError("vectors are not those of the re-embedded rows")
    for part in row_blocks(plan._mapped):
        if not np.isfinite(plan.new_vectors.take(rows[part])).all():
            raise ValueError("vectors are not finite")
    states.place, states.drawn = int(facts["place"]), int(facts["drawn"])
    plan._views, plan._chosen_at = int(facts["views"]), int(facts["chosen_at"])
    plan._resumed = True
    plan._selection.restore(facts["selection"])
    plan.history_ = [Reading.from_dict(reading) for reading in facts["history"]]
    plan.written.restore(arrays["slot"], maps)
    plan.correction_ = plan.written.maps[plan.written.current]
    plan._map()
    if plan.order == "auto":
        plan.order_ = plan._selection.current_order()


def save(plan: Stage, path: str | Path, *, force: bool) -> Path:
    """Write a plan's folder; see :meth:`Progressive.save`."""
    path = Path(path)
    check_output(path, force=force, directory=True, foreign=why_no_plan)
    if path.exists():
        write(plan, path, {"kind": KIND})
    else:
        with atomic_path(path, directory=True) as folder:
            write(plan, folder, {"kind": KIND}, release=False)
        plan.new_vectors.release(path)
    return path


def write(
    plan: Stage,
    folder: Path,
    config: Mapping[str, Any],
    arrays: Mapping[str, np.ndarray] | None = None,
    pieces: Mapping[str, str] | None = None,
    *,
    release: bool = True,
) -> None:
    """Write a plan to an existing folder: first new vectors and maps in files of their own, then the state, which names these files.

    Parameters
    ----------
    plan : Progressive
    folder : Path
    config : mapping
        Further plain data for ``config.json``.
    arrays : mapping of str to ndarray, optional
        Further arrays for the state.
    pieces : mapping of str to str, optional
        Names of further files in this folder, added to ``facts``.
    release : bool, default=True
        Free the vectors of a stream, and read them from these files from now on.

    Raises
    ------
    StorageError, FileError
        If the output cannot be written, or a file cannot be read.
    """
    states, facts = _state(plan)
    states = {name: array.astype(np.uint8) for name, array in states.items()}
    facts["vectors"] = plan.new_vectors.save(folder)
    facts["maps"] = [[slot, _write_map(folder, fitted), fitted.facts()] for slot, fitted in plan.written.maps.items()]
    facts |= pieces or {}
    card = f"# A progressive migration\n\n{plan.meter()}\n\nContinue it with `congruence.upgrade.progressive.Progressive.load`.\n"
    persist.write_folder(folder / STATE, {**states, **(arrays or {})}, {**config, "facts": facts}, card, force=True)
    sweep(folder, {*facts["vectors"], *(name for _, name, _ in facts["maps"]), *(pieces or {}).values()})
    if release:
        plan.new_vectors.release(folder)


def load(
    cls: Callable[..., PlanT],
    path: str | Path,
    mapping: Map,
    old: RowsLike | Source | RowsOnDisk,
    inputs: Mapping[str, Any],
) -> PlanT:
    """Read a plan's folder; see :meth:`Progressive.load`."""
    path = Path(path)
    if (path / persist.CONFIG).exists():
        raise CorruptFileError(f"Got the folder of a map at {path}; expected a progressive migration. Check the path.")
    arrays, config = persist.read_folder(path / STATE)
    if config.get("kind") != KIND:
        raise CorruptFileError(
            f"Got a folder of kind {config.get('kind')!r} at {path}; expected a progressive migration. Check the path."
        )
    if not isinstance(config.get("facts"), dict):
        raise CorruptFileError(
            f"Got a state without facts at {path}; expected those of a plan. Restore the folder of the plan from a backup."
        )
    return restore(cls, (arrays, config["facts"]), mapping, old, inputs, path)


def _write_map(folder: Path, correction: Correction) -> str:
    import safetensors.numpy

    # The map before any row was re-embedded is a file without arrays.
    raw = safetensors.numpy.save({name: np.ascontiguousarray(array) for name, array in correction.arrays().items()})
    return write_piece(folder, raw, ".safetensors")


def read_map(folder: Path, name: str, record: Mapping[str, Any]) -> Correction:
    """Read a map by which rows were written. Raises CorruptFileError, FileError."""
    import safetensors.numpy

    raw = read_piece(folder, name)
    try:
        return Correction.restore(safetensors.numpy.load(raw), record)
    except (KeyError, TypeError, IndexError, ValueError, AttributeError, safetensors.SafetensorError) as error:
        raise CorruptFileError(
            f"Got an unreadable map, {folder / name} ({error}); expected safetensors. Restore the folder of the plan from a backup."
        ) from error


def _with_prefix(arrays: Mapping[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


def _digest(plan: Stage) -> str:
    """Return a digest of a plan's inputs (store, first map and texts), which is computed once."""
    if plan._inputs is not None:
        return plan._inputs
    digest = hashlib.sha256()
    sample = plan._old[:: -(-len(plan._old) // 1000)]
    total = np.zeros(plan._old.shape[1])
    for part in row_blocks(plan._old):
        total += plan._old[part].sum(axis=0, dtype=np.float64)
    parts = [np.array(plan._old.shape), sample, np.asarray(plan.refit.mapping.transform(sample)).round(5) + 0.0, total]
    if plan.texts is not None:
        parts += [plan.texts.old, plan.texts.new]
    for array in parts:
        digest.update(np.ascontiguousarray(array).tobytes())
    if plan._has_ids:
        for part in blocks(len(plan.ids), 256):
            digest.update("".join(f"{name}\n" for name in plan.ids[part].tolist()).encode())
    plan._inputs = digest.hexdigest()
    return plan._inputs
