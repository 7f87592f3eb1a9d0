"""Fit a map on any number of rows, from the moments of fragments merged in a tree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import safetensors.numpy

from congruence._utils.engine import Engine
from congruence.compare.origins import remember_rows
from congruence.compare.pairing import check_pairing, warn_pairing
from congruence.embeddings import has_unit_rows
from congruence.engines.dataset import Fragment, PairedData
from congruence.errors import ParameterError
from congruence.linalg.moments import CrossMoments
from congruence.maps import LinearMap, Map, OrthogonalMap

#: Maximum number of pairs, all from the first fragment, on which the pairing is checked.
_CHECKED = 2000

#: Methods that can be fitted from moments.
METHODS = ("auto", "orthogonal", "linear")


def fit_dataset(
    pairs: PairedData,
    method: str = "auto",
    *,
    engine: Engine,
    modality: str | None = None,
    check: bool = True,
    strict: bool = False,
    **parameters: Any,
) -> Map:
    """Fit a map in one pass over two data sets.

    Each task sums the moments of a fragment in float64. The sums are merged in a tree whose shape depends only on the
    number of fragments, so that a second run gives the same numbers. Rounding makes them differ from those of one fit
    on all rows: by at most about n · 1.1e-16 relative to the sums of absolute products, in practice by 1e-13
    (tests/engines).

    Parameters
    ----------
    pairs : PairedData
        See ``congruence.engines.open_pairs``.
    method : {"auto", "orthogonal", "linear"}, default="auto"
        "auto" fits a rotation about the means, since the choice that ``congruence.fit`` makes needs the rows.
    engine : Engine
    modality : str, optional
        Modality of the anchors, by which a rotation stores their means.
    check : bool, default=True
        Compare the alignment of up to 2,000 pairs of the first fragment with random re-pairing.
    strict : bool, default=False
        If the check fails, raise UnpairedError instead of a PairingWarning.
    **parameters
        Parameters of the map.
    """
    if method not in METHODS:
        raise ParameterError(
            f"Got `method={method!r}` for an engine; expected one of {', '.join(METHODS)}.",
            "Pass one that can be fitted from moments, or fit on a sample without `engine=…`.",
        )
    scores: dict[str, object] = {"n_pairs": pairs.source.rows}
    X, Y = _first_pairs(pairs)
    if check:
        report = check_pairing(X, Y)
        warn_pairing(report, strict=strict)
        scores["pairing"] = report.to_dict()
    linear = method == "linear"
    work = _MomentsWork(pairs.without_fragments(), linear)
    state = safetensors.numpy.load(engine.reduce(work, _merge_moments, pairs.fragments))
    unit = bool(state["unit"][0]), bool(state["unit"][1])
    moments = CrossMoments.from_state(state)
    model: Map
    if linear:
        model = LinearMap.from_moments(moments, normalized=unit, **parameters)
    else:
        model = OrthogonalMap.from_moments({modality or "": moments}, normalized=unit, **parameters)
    source, target = pairs.source, pairs.target
    model.source_space_ = replace(source.space, dim=source.dim, normalized=unit[0], modality=modality)
    model.target_space_ = replace(target.space, dim=target.dim, normalized=unit[1], modality=modality)
    model.scores_ = scores
    remember_rows(model, {modality: X}, {modality: Y})
    return model


@dataclass(frozen=True)
class _MomentsWork:
    """The function sent to workers: it sums the moments of one fragment."""

    pairs: PairedData
    gram: bool

    def __call__(self, fragment: Fragment) -> bytes:
        """Return the moments of a fragment, and whether source and target rows have unit norm, as bytes."""
        moments = CrossMoments(self.pairs.source.dim, self.pairs.target.dim, gram=self.gram)
        unit = np.ones(2)
        for x, y in self.pairs.blocks(fragment):
            kept = x.any(axis=1) & y.any(axis=1)  # rows of zeros get here only if they are allowed
            x, y = (x, y) if kept.all() else (x[kept], y[kept])
            if len(x):
                moments.update(x, y)
                unit *= [has_unit_rows(x), has_unit_rows(y)]
        return _pack({**moments.state(), "unit": unit})


def _merge_moments(states: Sequence[bytes]) -> bytes:
    """Return the moments of several fragments merged into one."""
    first, *others = (safetensors.numpy.load(state) for state in states)
    moments, unit = CrossMoments.from_state(first), first["unit"]
    for other in others:
        moments = moments.merge(CrossMoments.from_state(other))
        unit = unit * other["unit"]
    return _pack({**moments.state(), "unit": unit})


def _first_pairs(pairs: PairedData) -> tuple[np.ndarray, np.ndarray]:
    sides: tuple[list[np.ndarray], list[np.ndarray]] = ([], [])
    for x, y in pairs.blocks(pairs.fragments[0]):
        sides[0].append(x)
        sides[1].append(y)
        if sum(map(len, sides[0])) >= _CHECKED:
            break
    return np.concatenate(sides[0])[:_CHECKED], np.concatenate(sides[1])[:_CHECKED]


def _pack(arrays: dict[str, np.ndarray]) -> bytes:
    packed: bytes = safetensors.numpy.save({name: np.ascontiguousarray(array) for name, array in arrays.items()})
    return packed
