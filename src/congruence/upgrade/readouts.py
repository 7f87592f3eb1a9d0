"""Choose the read-out of a map by how much of its rows is right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from congruence._utils.validation import check_choice
from congruence.embeddings import MODALITIES
from congruence.errors import ModalityError
from congruence.maps import AffineMap, OrthogonalMap, make_map
from congruence.maps.readout import Readout, find_lift, query_share
from congruence.upgrade.choose import Candidate, Quality, measure_quality


def choose_readout(
    model: AffineMap, quality: Quality, queries: tuple[str, ...], sides: Sequence[Mapping[Any, np.ndarray]]
) -> Readout:
    """Return the read-out of a map for queries; ``sides`` holds rows of other modalities in the old and new model."""
    fitted = names = {model.source_space_.modality or ""}
    if isinstance(model, OrthogonalMap):
        fitted = set(model.moments_)
        names = fitted | set(model.modality_means_)
    tables: list[dict[str, float]] = [{}, {}, {}, {}]
    for name in sorted(names):
        for direction, table in ((0, tables[1]), (1, tables[2])):
            cosine, length = quality.cosine[direction], quality.length[direction]
            rows = sides[direction].get(name)
            if name not in fitted and rows is not None and length > 0:
                means = model.for_modality(name)
                own = _relative_length(rows, means, direction)
                cosine, length = cosine * own / length, own
            cosine = min(1.0, cosine)
            table[name] = query_share(cosine, length)
            if direction == 0:
                tables[0][name] = cosine * quality.slope
        lift = quality.lift if name in fitted else None
        if name not in fitted and queries == (name,):  # of other queries' lists, such rows already hold too much
            lift = _lift_of(name, model, sides, tables[0][name])
        if lift is not None:
            tables[3][name] = lift
    unit = model.target_space_.normalized
    return Readout(queries, "cone" if unit else "plain", *(tables if unit else ()))


def read_as_store(
    model: AffineMap,
    pairs: tuple[np.ndarray, np.ndarray],
    method: str,
    queries: tuple[str, ...] = (),
    sides: Sequence[Mapping[Any, np.ndarray]] = ({}, {}),
    groups: np.ndarray | None = None,
) -> None:
    """Give a fitted map the role of stored rows, with the read-out of what its method gets right of left-out pairs."""
    given = {name: value for name, value in model.get_params().items() if name in make_map(method).get_params()}
    quality = measure_quality(*pairs, Candidate(method, method, given), groups)
    model.readout_, model.role_ = choose_readout(model, quality, queries, sides), "store"


def _relative_length(rows: np.ndarray, mapping: AffineMap, direction: int) -> float:
    """Return the root mean square length of mapped rows without their mean, relative to that of the other model's."""
    matrix, mean = [(mapping.matrix, mapping.target_mean_), (mapping.matrix.T, mapping.source_mean_)][direction]
    rows = rows[:: max(1, len(rows) // 2000)].astype(np.float64)
    typical = max(1 - float(mean @ mean), 1e-3)  # of unit rows
    return float(np.sqrt(np.square((rows - rows.mean(axis=0)) @ matrix).sum(axis=1).mean() / typical))


def _lift_of(name: str, model: AffineMap, sides: Sequence[Mapping[Any, np.ndarray]], height: float) -> float | None:
    """Return the lift of rows of a modality without pairs, of which both models' rows are known."""
    there, (old, new) = model.for_modality(name), (side.get(name) for side in sides)
    if old is None or new is None:
        return None
    mapped = (old.astype(np.float64) - there.source_mean_) @ there.matrix
    return find_lift(mapped, new - there.target_mean_, there.target_mean_, height)


def read_queries(queries: str | Sequence[str] | None, model: AffineMap, fitted: str | None) -> tuple[str, ...]:
    """Return the modalities of the queries; empty for all whose new mean is known."""
    names = ("all",) if queries is None else (queries,) if isinstance(queries, str) else tuple(queries)
    if "all" in names:
        return ()
    for name in names:
        check_choice(name, MODALITIES, "queries")
        known = model.modality_means_ if isinstance(model, OrthogonalMap) else {fitted: None}
        if name not in known:
            raise ModalityError(
                f"Got `queries={name!r}`, but the map knows no mean of {name} rows.",
                f"Pass `modality={name!r}` if the pairs are {name} rows, or `means={{{name!r}: (old, new)}}`.",
            )
    return names
