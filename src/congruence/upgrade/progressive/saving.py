"""A plan between two runs: arrays and plain data, and a folder that holds them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from congruence import persist
from congruence._utils.arrays import blocks
from congruence._utils.atomic import atomic_path, check_output
from congruence.errors import CorruptFileError, ParameterError
from congruence.maps import Map
from congruence.upgrade.progressive._lazy import row_blocks
from congruence.upgrade.progressive._pieces import STATE, read_piece, sweep, why_no_plan, write_piece
from congruence.upgrade.progressive._stage import Stage
from congruence.upgrade.progressive.meter import Reading
from congruence.upgrade.progressive.refit import Correction

__all__ = ["KIND", "load", "read_map", "restore", "save", "state", "write"]

PlanT = TypeVar("PlanT", bound=Stage)

#: What ``config.json`` calls a plan, where a map names its method.
KIND = "progressive"

#: Parameters that the state holds.
PARAMETERS = ("meter_share", "clip", "tolerance", "n_neighbors", "random_state")

#: From nothing to the new vectors, surprises and maps of a plan that is being restored.
Fill = Callable[[Stage], None]


def state(plan: Stage) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return arrays and plain data; see :meth:`Progressive.state`."""
    arrays, facts = _state(plan)
    rows = plan._new.rows
    arrays |= {"rows": rows, "vectors": plan._new.take(rows), "surprise": plan._new.surprise}
    for slot, one in plan._written.maps.items():
        arrays |= {f"map.{slot}.{name}": array for name, array in one.arrays().items()}
    facts["maps"] = [[slot, one.facts()] for slot, one in plan._written.maps.items()]
    return {name: array.copy() for name, array in arrays.items()}, facts


def _state(plan: Stage) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return what is small, or changes with each update."""
    states = plan._row_states
    arrays = {"role": states.role, "due": states.due, "embedded": states.embedded, "slot": plan._written.slot}
    facts = {
        "order": plan.order if isinstance(plan.order, str) else None,
        "inputs": _digest(plan),
        "place": states.place,
        "drawn": states.drawn,
        "views": plan._views,
        "chosen_at": plan._chosen_at,
        "race": plan._selection.state(),
        "history": [one.to_dict() for one in plan.history_],
        **{name: getattr(plan, name) for name in PARAMETERS},
    }
    return arrays, facts


def restore(
    cls: Callable[..., PlanT],
    state: tuple[Mapping[str, np.ndarray], Mapping[str, Any]],
    mapping: Map,
    old: Any,
    inputs: Mapping[str, Any],
    folder: Path | None = None,
) -> PlanT:
    """Continue a plan; see :meth:`Progressive.from_state`. Vectors and maps are in the files of a folder, or in the state."""
    arrays, facts = state
    if known := [name for name in PARAMETERS if name in inputs]:
        raise ParameterError(
            f"Got {known[0]}={inputs[known[0]]!r} for a plan that has one; expected the inputs alone. Leave out {known[0]}=…."
        )
    try:
        parameters = {name: facts[name] for name in PARAMETERS}
        order = facts["order"] or inputs.get("order", "auto")
        plan = cls(mapping, old, **{**inputs, "order": order}, **parameters)
        if _digest(plan) != facts["inputs"]:
            raise CorruptFileError(
                "Got the state of a plan for another store, map or texts; expected that of these. Pass mapping, old=…, texts=… and new_texts=… as they were then."
            )
        if folder is None:
            _check_vectors(arrays, plan)
            plan._new.add(arrays["rows"], np.array(arrays["vectors"], np.float32), arrays["surprise"])
            maps = {
                int(slot): Correction.restore(_fitted(arrays, f"map.{slot}."), record) for slot, record in facts["maps"]
            }
        else:
            plan._new.load(folder, facts["vectors"])
            maps = {int(slot): read_map(folder, name, record) for slot, name, record in facts["maps"]}
        _fill(plan, arrays, facts, maps)
    except (KeyError, TypeError, IndexError, ValueError, AttributeError) as error:
        raise CorruptFileError(
            f"Got the state of a plan that is damaged ({type(error).__name__}: {error}); expected what state() returned. Start a new plan, and pass what was "
            "re-embedded to update."
        ) from error
    return plan


def _check_vectors(arrays: Mapping[str, np.ndarray], plan: Stage) -> None:
    rows, vectors = arrays["rows"], arrays["vectors"]
    if vectors.shape != (len(rows), plan._mapped.shape[1]) or arrays["surprise"].shape != (len(rows),):
        raise ValueError(f"vectors have shape {vectors.shape}")
    if len(rows) and (len(np.unique(rows)) < len(rows) or not 0 <= rows.min() <= rows.max() < len(plan)):
        raise ValueError("vectors are not those of the re-embedded rows")


def _fill(plan: Stage, arrays: Mapping[str, np.ndarray], facts: Mapping[str, Any], maps: dict[int, Correction]) -> None:
    states, n = plan._row_states, len(plan)
    for name, kind in (("role", np.uint8), ("due", bool), ("embedded", bool)):
        if arrays[name].shape != (n,):
            raise ValueError(f"{name} has shape {arrays[name].shape}")
        setattr(states, name, np.array(arrays[name], kind))
    rows = plan._new.rows
    if not np.array_equal(np.sort(rows), np.flatnonzero(states.embedded)):
        raise ValueError("vectors are not those of the re-embedded rows")
    for part in row_blocks(plan._mapped):
        if not np.isfinite(plan._new.take(rows[part])).all():
            raise ValueError("vectors are not finite")
    states.place, states.drawn = int(facts["place"]), int(facts["drawn"])
    plan._views, plan._chosen_at = int(facts["views"]), int(facts["chosen_at"])
    plan._resumed = True
    plan._selection.restore(facts["race"])
    plan.history_ = [Reading.from_dict(one) for one in facts["history"]]
    plan._written.restore(arrays["slot"], maps)
    plan.correction_ = plan._written.maps[plan._written.now]
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
        plan._new.release(path)
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
    """Write a plan into a folder that is there: first what is new as files of their own, then the state that names them.

    Parameters
    ----------
    plan : Progressive
    folder : Path
    config : mapping
        What else is kept as plain data.
    arrays : mapping of str to ndarray, optional
        And as arrays.
    pieces : mapping of str to str, optional
        Names of further files of this folder, kept as ``facts``.
    release : bool, default=True
        Vectors of a stream are read from these files from now on.

    Raises
    ------
    StorageError, FileError
        If the output cannot be written, or a file cannot be read.
    """
    # A look ahead counts as a look at the rows, so what is in config comes before the state.
    mine, facts = _state(plan)
    mine = {name: array.astype(np.uint8) for name, array in mine.items()}
    facts["vectors"] = plan._new.save(folder)
    facts["maps"] = [[slot, _write_map(folder, one), one.facts()] for slot, one in plan._written.maps.items()]
    facts |= pieces or {}
    card = f"# A progressive migration\n\n{plan.meter()}\n\nContinue it with `congruence.upgrade.progressive.Progressive.load`.\n"
    persist.write_folder(folder / STATE, {**mine, **(arrays or {})}, {**config, "facts": facts}, card, force=True)
    sweep(folder, {*facts["vectors"], *(one[1] for one in facts["maps"]), *(pieces or {}).values()})
    if release:
        plan._new.release(folder)


def load(cls: Callable[..., PlanT], path: str | Path, mapping: Map, old: Any, inputs: Mapping[str, Any]) -> PlanT:
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


def _write_map(folder: Path, one: Correction) -> str:
    import safetensors.numpy

    # An empty file stands for the map before any row was re-embedded.
    raw = safetensors.numpy.save({name: np.ascontiguousarray(array) for name, array in one.arrays().items()})
    return write_piece(folder, raw, ".safetensors")


def read_map(folder: Path, name: str, record: Mapping[str, Any]) -> Correction:
    """Read one of the maps that rows were written by. Raises CorruptFileError."""
    import safetensors.numpy

    raw = read_piece(folder, name)
    try:
        return Correction.restore(safetensors.numpy.load(raw), record)
    except (KeyError, TypeError, IndexError, ValueError, AttributeError, safetensors.SafetensorError) as error:
        raise CorruptFileError(
            f"Got an unreadable map, {folder / name} ({error}); expected safetensors. Restore the folder of the plan from a backup."
        ) from error


def _fitted(arrays: Mapping[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


def _digest(plan: Stage) -> str:
    """Return a digest of what a state is of: store, first map and texts. Computed once."""
    if plan._inputs is not None:
        return plan._inputs
    found = hashlib.sha256()
    some = plan._old[:: -(-len(plan._old) // 1000)]
    total = np.zeros(plan._old.shape[1])
    for part in row_blocks(plan._old):
        total += plan._old[part].sum(axis=0, dtype=np.float64)
    parts = [np.array(plan._old.shape), some, np.asarray(plan._refit.mapping.transform(some)).round(5) + 0.0, total]
    if plan.texts is not None:
        parts += [plan.texts.old, plan.texts.new]
    for one in parts:
        found.update(np.ascontiguousarray(one).tobytes())
    if plan._has_ids:
        for part in blocks(len(plan.ids), 256):
            found.update("".join(f"{name}\n" for name in plan.ids[part].tolist()).encode())
    plan._inputs = found.hexdigest()
    return plan._inputs
