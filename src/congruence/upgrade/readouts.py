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
from congruence.upgrade.choose import FEWEST, Candidate, Quality, measure_quality


def choose_readout(
    model: AffineMap, quality: Quality, queries: tuple[str, ...], sides: Sequence[Mapping[Any, np.ndarray]]
) -> Readout:
    """Return the read-out of a map for queries; ``sides`` holds rows of other modalities in the old and new model."""
    fitted = names = {model.source_space_.modality or ""}
    if isinstance(model, OrthogonalMap):
        fitted = set(model.moments_)
        names = fitted | set(model.modality_means_)
    cosines: dict[str, float] = {}
    height: dict[str, float] = {}
    lift: dict[str, float] = {}
    slope: dict[str, float] = {}
    shares: list[dict[str, float]] = [{}, {}]
    for name in sorted(names):
        for direction, table in enumerate(shares):
            cosine, length = quality.cosine[direction], quality.length[direction]
            rows = sides[direction].get(name)
            if name not in fitted and rows is not None and length > 0:
                means = model.for_modality(name)
                own = _relative_length(rows, means, direction)
                cosine, length = cosine * own / length, own
            cosine = min(1.0, cosine)
            table[name] = query_share(cosine, length)
            if direction == 0:
                cosines[name], height[name] = cosine, cosine * quality.slope
        old, new = (side.get(name) for side in sides)
        if name in fitted:
            lift[name] = quality.lift
        elif old is not None and new is not None and min(len(old), len(new)) >= FEWEST:
            height[name] = cosines[name] ** 2
            slope[name], found = _of_unpaired(
                model.for_modality(name), _some(old), _some(new), quality.means, height[name]
            )
            lift |= {} if found is None else {name: found}
    unit = model.target_space_.normalized
    return Readout(queries, "cone", height, shares[0], shares[1], lift, slope) if unit else Readout(queries, "plain")


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
    rows = _some(rows)
    typical = max(1 - float(mean @ mean), 1e-3)  # of unit rows
    return float(np.sqrt(np.square((rows - rows.mean(axis=0)) @ matrix).sum(axis=1).mean() / typical))


def _some(rows: np.ndarray) -> np.ndarray:
    """Return at most some 2,000 of the rows, evenly spaced, in float64."""
    return np.asarray(rows[:: max(1, len(rows) // 2000)], dtype=np.float64)


def _of_unpaired(
    mapping: AffineMap, old: np.ndarray, new: np.ndarray, correlation: float, height: float
) -> tuple[float, float | None]:
    """Return ``slope`` and ``lift`` of a modality without pairs from rows of both models. What the pairs tell of its
    rows' part along the new mean is little, or wrong; their part along the old mean tells more, as much as the pairs'.
    """
    old, new = old - mapping.source_mean_, new - mapping.target_mean_
    axes = [mean / max(float(np.linalg.norm(mean)), 1e-12) for mean in (mapping.source_mean_, mapping.target_mean_)]
    parts = [rows @ axis for rows, axis in zip((old, new), axes, strict=True)]
    slope = correlation * float(parts[1].std() / parts[0].std()) if parts[0].std() > 0.01 * parts[1].std() else 0.0
    mapped = old @ mapping.matrix
    mapped += np.outer(slope * parts[0] - mapped @ axes[1], axes[1])
    return slope, find_lift(mapped, new, mapping.target_mean_, height)


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
