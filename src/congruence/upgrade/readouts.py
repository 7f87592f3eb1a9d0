"""Measure on left-out pairs how much of a mapped row is right, and choose the read-out of a map by it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from congruence._utils.validation import check_choice
from congruence.embeddings import MODALITIES
from congruence.errors import CongruenceWarning, ModalityError
from congruence.maps import AffineMap, OrthogonalMap
from congruence.maps.readout import Readout
from congruence.splits import duplicate_groups

#: Folds, and the largest number of pairs that are used: what is left out decides, and more of it changes nothing.
FOLDS, MOST = 5, 10_000

#: From this many pairs one fold is enough, so that the cost stays that of one fit.
ONE_FOLD = 1500


class Quality:
    """How much of mapped rows is right, in both directions, measured on left-out pairs.

    ``cosine``: mean cosine between what is left of a mapped row and of the pair's other row without their means;
    ``length``: root mean square of the first one's length, relative to the second one's.
    """

    def __init__(self, X: np.ndarray, Y: np.ndarray, fit: Callable[[np.ndarray, np.ndarray], AffineMap]) -> None:
        rng = np.random.default_rng(0)
        some = np.sort(rng.choice(len(X), MOST, replace=False)) if len(X) > MOST else np.arange(len(X))
        X, Y = X[some], Y[some]
        groups = duplicate_groups(X, Y)
        parts = min(FOLDS, int(groups.max()) + 1)
        self.cosine, self.length = (0.0, 0.0), (0.0, 0.0)
        if parts < 2:
            return
        fold = rng.permutation(np.arange(groups.max() + 1) % parts)[groups]
        found = []
        for part in range(1 if len(X) >= ONE_FOLD else parts):
            test = fold == part
            if np.count_nonzero(~test) < 2:
                continue
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", CongruenceWarning)
                matrix = fit(X[~test], Y[~test]).matrix
            x, y = (side[test].astype(np.float64) - side[~test].mean(axis=0, dtype=np.float64) for side in (X, Y))
            found.append([_compare(x @ matrix, y), _compare(y @ matrix.T, x)])
        if found:
            (self.cosine, self.length) = np.clip(np.mean(found, axis=0).T, 0, None).tolist()


def _compare(mapped: np.ndarray, own: np.ndarray) -> tuple[float, float]:
    """Return the mean cosine of rows, and the ratio of their lengths."""
    sizes = [np.linalg.norm(rows, axis=1) for rows in (mapped, own)]
    product = np.einsum("ij,ij->i", mapped, own)
    cosine = np.divide(product, sizes[0] * sizes[1], out=np.zeros_like(product), where=sizes[0] * sizes[1] > 0)
    ratio = np.sqrt(np.square(sizes[0]).sum() / max(float(np.square(sizes[1]).sum()), 1e-300))
    return float(cosine.mean()), float(ratio)


def choose_readout(
    model: AffineMap,
    quality: Quality,
    queries: tuple[str, ...],
    sides: Sequence[Mapping[str, np.ndarray]],
) -> Readout:
    """Return the read-out of a map for queries; ``sides`` holds rows of other modalities in the old and new model."""
    fitted = (model.source_space_.modality if not isinstance(model, OrthogonalMap) else model.modality_) or ""
    names = {fitted, *(model.modality_means_ if isinstance(model, OrthogonalMap) else ())}
    tables: list[dict[str, float]] = [{}, {}, {}]
    for name in sorted(names):
        for direction, table in ((0, tables[1]), (1, tables[2])):
            cosine, length = quality.cosine[direction], quality.length[direction]
            rows = sides[direction].get(name)
            if name != fitted and rows is not None and length > 0:
                means = model.for_modality(name)
                own = _relative_length(rows, means, direction)
                cosine, length = cosine * own / length, own
            cosine = min(1.0, cosine)
            table[name] = min(1.0, cosine * length)
            if direction == 0:
                tables[0][name] = cosine
    unit = model.target_space_.normalized
    return Readout(queries, "cone" if unit else "plain", *(tables if unit else ({}, {}, {})))


def _relative_length(rows: np.ndarray, mapping: AffineMap, direction: int) -> float:
    """Return the root mean square length of mapped rows without their mean, relative to that of the other model's."""
    matrix, mean = [(mapping.matrix, mapping.target_mean_), (mapping.matrix.T, mapping.source_mean_)][direction]
    rows = rows[:: max(1, len(rows) // 2000)].astype(np.float64)
    typical = max(1 - float(mean @ mean), 1e-3)  # of unit rows
    return float(np.sqrt(np.square((rows - rows.mean(axis=0)) @ matrix).sum(axis=1).mean() / typical))


def read_queries(queries: str | Sequence[str] | None, model: AffineMap, fitted: str | None) -> tuple[str, ...]:
    """Return the modalities of the queries; empty for all whose new mean is known."""
    if queries is None or queries == "all":
        return ()
    names = (queries,) if isinstance(queries, str) else tuple(queries)
    for name in names:
        check_choice(name, MODALITIES, "queries")
        known = model.modality_means_ if isinstance(model, OrthogonalMap) else {fitted: None}
        if name not in known:
            raise ModalityError(
                f"Got `queries={name!r}`, but the map knows no mean of {name} rows.",
                f"Pass `modality={name!r}` if the pairs are {name} rows, or `means={{{name!r}: (old, new)}}`.",
            )
    return names
