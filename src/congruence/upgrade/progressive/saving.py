"""A plan between two runs: arrays and plain data, and a folder that holds them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from congruence import persist
from congruence.errors import CorruptFileError
from congruence.maps import Map
from congruence.upgrade.progressive._stage import Stage
from congruence.upgrade.progressive.meter import Reading
from congruence.upgrade.progressive.refit import Correction

__all__ = ["KIND", "load", "restore", "save", "state"]

PlanT = TypeVar("PlanT", bound=Stage)

#: What ``config.json`` calls a plan, where a map names its method.
KIND = "progressive"

#: Parameters that the state holds.
PARAMETERS = ("meter_share", "clip", "tolerance", "n_neighbors", "random_state")


def state(plan: Stage) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return arrays and plain data; see :meth:`Progressive.state`."""
    book = plan._ledger
    rows = np.fromiter(plan._new, np.int64, len(plan._new))
    width = plan._mapped.shape[1]
    arrays = {
        "role": book.role,
        "due": book.due,
        "embedded": book.embedded,
        "rows": rows,
        "vectors": np.stack(list(plan._new.values())) if len(rows) else np.empty((0, width), np.float32),
        "surprise": np.array([plan._surprise[row] for row in rows.tolist()], np.float64),
        **{f"map.{name}": array for name, array in plan.correction_.arrays().items()},
    }
    facts = {
        "order": plan.order if isinstance(plan.order, str) else None,
        "inputs": _digest(plan),
        "place": book.place,
        "drawn": book.drawn,
        "views": plan._views,
        "chosen_at": plan._chosen_at,
        "correction": plan.correction_.facts(),
        "race": plan._race.state(),
        "history": [one.to_dict() for one in plan.history_],
        **{name: getattr(plan, name) for name in PARAMETERS},
    }
    return {name: array.copy() for name, array in arrays.items()}, facts


def restore(
    cls: Callable[..., PlanT],
    state: tuple[Mapping[str, np.ndarray], Mapping[str, Any]],
    mapping: Map,
    old: Any,
    inputs: Mapping[str, Any],
) -> PlanT:
    """Continue a plan; see :meth:`Progressive.from_state`."""
    arrays, facts = state
    try:
        parameters = {name: facts[name] for name in PARAMETERS}
        order = facts["order"] or inputs.get("order", "auto")
        plan = cls(mapping, old, **{**inputs, "order": order}, **parameters)
        if _digest(plan) != facts["inputs"]:
            raise CorruptFileError(
                "Got the state of a plan for another store, map or texts; expected that of these. Pass mapping, old=…, texts=… and new_texts=… as they were then."
            )
        _fill(plan, arrays, facts)
    except (KeyError, TypeError, IndexError, ValueError) as error:
        raise CorruptFileError(
            f"Got the state of a plan that is damaged ({type(error).__name__}: {error}); expected what state() returned. Start a new plan, and pass what was "
            "re-embedded to update."
        ) from error
    return plan


def _fill(plan: Stage, arrays: Mapping[str, np.ndarray], facts: Mapping[str, Any]) -> None:
    book, n, width = plan._ledger, len(plan), plan._mapped.shape[1]
    for name, kind in (("role", np.uint8), ("due", bool), ("embedded", bool)):
        if arrays[name].shape != (n,):
            raise ValueError(f"{name} has shape {arrays[name].shape}")
        setattr(book, name, np.array(arrays[name], kind))
    rows = arrays["rows"].tolist()
    if arrays["vectors"].shape != (len(rows), width) or arrays["surprise"].shape != (len(rows),):
        raise ValueError(f"vectors have shape {arrays['vectors'].shape}")
    if sorted(rows) != np.flatnonzero(book.embedded).tolist() or not np.isfinite(arrays["vectors"]).all():
        raise ValueError("vectors are not those of the re-embedded rows")
    plan._new = dict(zip(rows, np.array(arrays["vectors"], np.float32), strict=True))
    plan._surprise = dict(zip(rows, arrays["surprise"].tolist(), strict=True))
    book.place, book.drawn = int(facts["place"]), int(facts["drawn"])
    plan._views, plan._chosen_at = int(facts["views"]), int(facts["chosen_at"])
    plan._resumed = True
    plan._race.restore(facts["race"])
    plan.history_ = [Reading.from_dict(one) for one in facts["history"]]
    solved = {name.removeprefix("map."): array for name, array in arrays.items() if name.startswith("map.")}
    plan.correction_ = Correction.restore(solved, facts["correction"])
    plan._mapped = plan._refit.transform(plan._old, plan.correction_)
    plan._written = plan._mapped.copy()
    if plan.order == "auto":
        plan.order_ = plan._race.leader()


def save(plan: Stage, path: str | Path, *, force: bool) -> Path:
    """Write a plan's folder; see :meth:`Progressive.save`."""
    arrays, facts = state(plan)
    arrays = {name: array.astype(np.uint8) if array.dtype == bool else array for name, array in arrays.items()}
    card = f"# A progressive migration\n\n{plan.meter()}\n\nContinue it with `congruence.upgrade.progressive.Progressive.load`.\n"
    return persist.write_folder(path, arrays, {"kind": KIND, "facts": facts}, card, force=force)


def load(cls: Callable[..., PlanT], path: str | Path, mapping: Map, old: Any, inputs: Mapping[str, Any]) -> PlanT:
    """Read a plan's folder; see :meth:`Progressive.load`."""
    arrays, config = persist.read_folder(path)
    if config.get("kind") != KIND:
        raise CorruptFileError(
            f"Got a folder of kind {config.get('kind')!r} at {path}; expected a progressive migration. Check the path."
        )
    return restore(cls, (arrays, config["facts"]), mapping, old, inputs)


def _digest(plan: Stage) -> str:
    """Return a digest of what a state is of: store, first map and texts."""
    found = hashlib.sha256()
    some = plan._old[:: -(-len(plan._old) // 1000)]
    parts = [
        np.array(plan._old.shape),
        some,
        np.asarray(plan._refit.mapping.transform(some)).round(5) + 0.0,
        plan._old.sum(axis=0, dtype=np.float64),
    ]
    if plan.texts is not None:
        parts += [plan.texts.old, plan.texts.new]
    for part in parts:
        found.update(np.ascontiguousarray(part).tobytes())
    if plan._has_ids:
        found.update("\n".join(map(str, plan.ids.tolist())).encode())
    return found.hexdigest()
