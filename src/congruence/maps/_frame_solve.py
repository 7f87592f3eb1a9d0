"""The computations of a frame from matched items: rotations, gains, means and the consensus of all models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from congruence._utils.arrays import blocks
from congruence._utils.ids import id_texts
from congruence.errors import InputError
from congruence.linalg.generalized import GeneralizedProcrustes, generalized_procrustes
from congruence.linalg.moments import CrossMoments
from congruence.linalg.procrustes import CrossSVD, cross_svd
from congruence.linalg.shrinkage import choose_gains
from congruence.maps._frame_items import Items, Rows, pair_moments, space_of, width_of
from congruence.maps._frame_model import Consensus, FrameModel

#: Moments of the items that two models share, by models and modality.
Moments = dict[tuple[int, int, str], CrossMoments]

#: A model's means by modality, each with what it was taken from.
Means = dict[str, tuple[np.ndarray, str]]


@dataclass(frozen=True)
class FrameRotation:
    """One model's rotation into the frame.

    Attributes
    ----------
    isometry : ndarray of float64, shape (d, k)
        Partial isometry of the directions that its anchors cover (of all directions with ``shrinkage="full"``).
    gains : ndarray, shape (min(d, k),)
        Gains of its singular directions; a map uses the products of two models' square roots.
    shrunk : ndarray of float64, shape (d, k)
        The isometry multiplied by the square roots of the gains.
    rank : int
        Number of directions that the anchors cover.
    used : str
        The shrinkage applied.
    """

    isometry: np.ndarray
    gains: np.ndarray
    shrunk: np.ndarray
    rank: int
    used: str


def gather(models: Sequence[Rows], items: Mapping[str, Items]) -> tuple[Moments, list[np.ndarray | None]]:
    """Compute the moments of every pair of models on the items both have, each item weighted by 1 / (number of models that have it).

    Models with fewer shared rows than dimensions are described in an orthonormal basis of these rows.

    Returns
    -------
    moments : dict of (m, j, modality) to CrossMoments
    bases : list of (ndarray, shape (d_m, r), or None)
    """
    bases: list[np.ndarray | None] = []
    reduced: list[dict[str, np.ndarray]] = []
    places: list[dict[str, np.ndarray]] = []
    for m, rows in enumerate(models):
        used = {q: items[q].rows[m][(items[q].rows[m] >= 0) & (items[q].count > 1)] for q in rows}
        width = width_of(rows)
        if sum(map(len, used.values())) < width:
            stacked = np.concatenate([rows[q].vectors[used[q]] for q in rows]).astype(np.float64)
            basis = np.linalg.qr(stacked.T)[0]
            bases.append(basis)
            # Where few rows are used, only they are kept; a table says where each row went.
            reduced.append({q: rows[q].vectors[used[q]].astype(np.float64) @ basis for q in rows})
            place = {q: np.full(len(rows[q]), -1) for q in rows}
            for q in rows:
                place[q][used[q]] = np.arange(len(used[q]))
            places.append(place)
        else:
            bases.append(None)
            reduced.append({q: rows[q].vectors for q in rows})
            places.append({q: np.arange(len(rows[q])) for q in rows})
    moments: Moments = {}
    for q, table in items.items():
        weights = 1 / np.maximum(table.count, 1)
        for j in range(len(models)):
            for m in range(j):
                both = np.flatnonzero((table.rows[m] >= 0) & (table.rows[j] >= 0))
                if len(both):
                    pair = places[m][q][table.rows[m][both]], places[j][q][table.rows[j][both]]
                    moments[m, j, q] = pair_moments(reduced[m][q], reduced[j][q], pair, weights[both])
    return moments, bases


def solve(
    moments: Moments,
    bases: Sequence[np.ndarray | None],
    widths: Sequence[int],
    *,
    center: bool,
    max_iter: int,
    tol: float,
) -> tuple[GeneralizedProcrustes, list[np.ndarray], list[float]]:
    """Solve for the rotations.

    Returns
    -------
    solution : GeneralizedProcrustes
        In the models' bases.
    evidence : list of ndarray, shapes (d_m, k)
        Cross-covariance of each model with all others in the frame.
    sizes : list of float
        Largest possible sum of the singular values of each.
    """
    cross: dict[tuple[int, int], np.ndarray] = {}
    weight: dict[tuple[int, int], float] = {}
    sizes = [0.0] * len(widths)
    pooled: dict[tuple[int, int], list[CrossMoments]] = {}
    for (m, j, _), found in moments.items():
        pooled.setdefault((m, j), []).append(found)
    for (m, j), parts in pooled.items():
        cross[m, j] = sum(p.cross if center else p.uncentered_cross() for p in parts)  # type: ignore[assignment]
        weight[m, j] = float(sum(p.weight for p in parts))
        size = _size(parts, center)
        sizes[m] += size
        sizes[j] += size
    inner = [d if basis is None else basis.shape[1] for d, basis in zip(widths, bases, strict=True)]
    solution = generalized_procrustes(cross, weight, inner, max(widths), max_iter=max_iter, tol=tol)
    evidence = [B if Q is None else Q @ B for B, Q in zip(solution.evidence, bases, strict=True)]
    return solution, evidence, sizes


def _size(parts: Sequence[CrossMoments], center: bool) -> float:
    source, target = sum(p.source_scatter for p in parts), sum(p.target_scatter for p in parts)
    if not center:
        source += sum(p.weight * float(p.source_mean @ p.source_mean) for p in parts)
        target += sum(p.weight * float(p.target_mean @ p.target_mean) for p in parts)
    return float(np.sqrt(source * target))


def make_rotation(
    name: str, evidence: np.ndarray, size: float, most: int, width: int, shrinkage: str, strength: float | None
) -> FrameRotation:
    """Compute a model's rotation into the frame from its evidence.

    Parameters
    ----------
    name : str
        Used in error messages.
    evidence : ndarray, shape (d, k)
    size : float
        Largest possible sum of its singular values.
    most : int
        Bound on the number of covered directions.
    width : int
        Width of the widest other model, which bounds the number of covered directions.
    shrinkage : str
    strength : float or None

    Raises
    ------
    InputError
        If the rows do not covary with those of other models.
    """
    found = cross_svd(evidence, max_rank=most, scale=size, complete=shrinkage == "full")
    if not found.rank:
        raise InputError(
            f"Got rows of {name!r} that do not vary together with those of other models (constant rows, or one common item with each); "
            "expected anchors that vary. Pass other anchors, or more common items."
        )
    k = min(len(found.s), width)
    svd = CrossSVD(found.U[:, :k], found.s[:k], found.Vt[:k], min(found.rank, k))
    used, _, gains = choose_gains(shrinkage, svd, float(svd.s.sum() / size), strength)
    if used == "full":  # and directions that no narrower model has are filled as well
        svd, gains = found, np.ones(len(found.s))
    kept = len(svd.s) if used == "full" else svd.rank
    isometry = svd.U[:, :kept] @ svd.Vt[:kept]
    return FrameRotation(isometry, gains, (svd.U * np.sqrt(gains[: svd.U.shape[1]])) @ svd.Vt, svd.rank, used)


def means_of(
    models: Sequence[Rows],
    items: Items,
    modality: str,
    moments: Moments,
    bases: Sequence[np.ndarray | None],
    legs: Sequence[FrameRotation],
    *,
    center: bool,
) -> dict[int, tuple[np.ndarray, str]]:
    """Return each model's mean of one modality, all at the same point of the frame, and the rows it was computed from.

    If models lack items, their means are over different items. The translations into the frame are therefore least-squares solutions over all
    pairs of models, in closed form; with complete data they are the models' own means. Models that share no item of the modality
    are connected by their means.

    Returns
    -------
    dict of int to (ndarray of shape (d_m,), {"items", "rows"})
    """
    here = [m for m, rows in enumerate(models) if modality in rows]
    if not center:
        return {m: (np.zeros(len(legs[m].isometry)), "items") for m in here}
    shared = {(m, j): found for (m, j, q), found in moments.items() if q == modality}
    laplacian = np.zeros((len(models), len(models)))
    right = np.zeros((len(models), legs[0].isometry.shape[1]))
    for (m, j), found in shared.items():
        gap = (
            _full(found.source_mean, bases[m]) @ legs[m].isometry
            - _full(found.target_mean, bases[j]) @ legs[j].isometry
        )
        laplacian[[m, j], [m, j]] += found.weight
        laplacian[[m, j], [j, m]] -= found.weight
        right[m] += found.weight * gap
        right[j] -= found.weight * gap
    offset = np.linalg.pinv(laplacian, hermitian=True) @ right
    weights = 1 / np.maximum(items.count, 1)
    out: dict[int, tuple[np.ndarray, str]] = {}
    for group in _groups(here, shared):
        means, total, middle = {}, 0.0, np.zeros(right.shape[1])
        for m in group:
            known = np.flatnonzero((items.rows[m] >= 0) & ((items.count > 1) | (len(group) == 1)))
            X, rows = models[m][modality].vectors, items.rows[m][known]
            means[m] = _weighted_mean(X, rows, np.ones(len(rows)))
            weight = float(weights[known].sum())
            middle += weight * (_weighted_mean(X, rows, weights[known]) @ legs[m].isometry - offset[m])
            total += weight
        middle /= total
        for m in group:
            R = legs[m].isometry
            shift = means[m] @ R - offset[m] - middle  # where this model's items lie beside the items of all
            out[m] = means[m] - shift @ R.T, "items" if len(group) > 1 else "rows"
    return out


def _full(mean: np.ndarray, basis: np.ndarray | None) -> np.ndarray:
    return mean if basis is None else basis @ mean


def _weighted_mean(X: np.ndarray, rows: np.ndarray, weights: np.ndarray) -> np.ndarray:
    total = np.zeros(X.shape[1])
    for part in blocks(len(rows), 8 * X.shape[1]):
        total += weights[part] @ X[rows[part]].astype(np.float64)
    return np.asarray(total / weights.sum())


def _groups(models: Sequence[int], shared: Mapping[tuple[int, int], object]) -> list[list[int]]:
    """Return the groups of models that are connected by shared items."""
    left, groups = list(models), []
    while left:
        group, new = [], [left.pop(0)]
        while new:
            group.append(new.pop())
            joined = [m for m in left if any({m, g} == set(pair) for g in group[-1:] for pair in shared)]
            left = [m for m in left if m not in joined]
            new += joined
        groups.append(sorted(group))
    return groups


def consensus(
    models: Sequence[Rows], items: Items, modality: str, means: Mapping[int, np.ndarray], legs: Sequence[FrameRotation]
) -> np.ndarray:
    """Return each item's mean over the models that have it, in the frame: float32, shape (n, k)."""
    k = legs[0].isometry.shape[1]
    out = np.zeros((len(items.ids), k), dtype=np.float32)
    for part in blocks(len(items.ids), 24 * k):
        total = np.zeros((part.stop - part.start, k))
        for m in means:
            rows = items.rows[m][part]
            here = np.flatnonzero(rows >= 0)
            total[here] += (models[m][modality].vectors[rows[here]] - means[m]) @ legs[m].isometry
        out[part] = total / np.maximum(items.count[part], 1)[:, None]
    return out


def mean_place(
    means: Sequence[Means], legs: Sequence[FrameRotation], modality: str, without: int | None = None
) -> np.ndarray:
    """Return the mean over models of their means of a modality in the frame, shape (k,)."""
    places = [
        mine[modality][0] @ leg.isometry
        for m, (mine, leg) in enumerate(zip(means, legs, strict=True))
        if modality in mine and m != without
    ]
    return np.asarray(np.mean(places, axis=0))


def make_model(
    rows: Rows, leg: FrameRotation, means: Means, others: Mapping[str, np.ndarray], axes: Sequence[str], anchors: int
) -> FrameModel:
    """Put together what a frame keeps of one model; ``others`` are the means of the other models, in the frame."""
    own = {q: mean for q, (mean, _) in means.items()}
    rotation = np.hstack([leg.shrunk, mean_axes(own, others, leg, axes)])
    return FrameModel(
        space_of(rows),
        rotation,
        own,
        {q: word for q, (_, word) in means.items()},
        leg.isometry.shape[1],
        anchors,
        leg.rank,
    )


def extend_items(
    known: dict[str, Consensus], rows: Rows, means: Mapping[str, np.ndarray], isometry: np.ndarray, name: str
) -> None:
    """Add a model's items that a frame does not have."""
    for q, side in rows.items():
        new = side.vectors.any(axis=1)
        if q in known:
            new &= known[q].rows_of(side, name) < 0
        ids, vectors = id_texts(side.ids[new]), (side.vectors[new] - means[q]) @ isometry
        if q in known:
            known[q] = known[q].extended(ids, vectors)
        else:
            known[q] = Consensus(ids, vectors.astype(np.float32), side.has_ids, means[q] @ isometry)


def mean_axes(
    means: Mapping[str, np.ndarray], others: Mapping[str, np.ndarray], leg: FrameRotation, names: Sequence[str]
) -> np.ndarray:
    """Return what a model has on the frame's axes for means: one axis a modality, shape (d, len(names)).

    The rule is that of :func:`congruence.linalg.shrinkage.mean_isometry`: where the covered part of a model's mean lies as that of the
    others does, the part that no anchor covered is taken to correspond as well.

    Parameters
    ----------
    means : mapping of modality to ndarray, shape (d,)
    others : mapping of modality to ndarray, shape (k,)
        Mean of the other models' means in the frame.
    leg : FrameRotation
    names : sequence of str
        The modalities that have an axis.
    """
    out = np.zeros((len(leg.isometry), len(names)))
    rests, axes = [], []
    for axis, name in enumerate(names):
        if name not in means or name not in others:
            continue
        covered = means[name] @ leg.isometry
        size = float(np.linalg.norm(covered) * np.linalg.norm(others[name]))
        if size == 0 or covered @ others[name] <= size * max(0.5, 2.33 / np.sqrt(leg.rank)):
            continue
        rest = means[name] - leg.isometry @ covered
        if np.linalg.norm(rest) > 1e-6 * np.linalg.norm(means[name]):
            rests.append(rest / np.linalg.norm(rest))
            axes.append(axis)
    if rests:  # orthonormal, and as near to the modalities' own directions as can be
        svd = cross_svd(np.array(rests).T)
        out[:, axes] = svd.U[:, : svd.rank] @ svd.Vt[: svd.rank]
    return out


def join_frame(rows: Rows, known: Mapping[str, Consensus], places: Mapping[str, np.ndarray]) -> dict[str, CrossMoments]:
    """Gather the moments of one model's rows and the frame's items, by modality.

    Parameters
    ----------
    rows : dict of modality to Embeddings
    known : mapping of modality to Consensus
    places : mapping of modality to ndarray, shape (n,)
        Each row's item, −1 where it is none of the frame's.
    """
    moments = {}
    for q, place in places.items():
        both = np.flatnonzero((place >= 0) & rows[q].vectors.any(axis=1))
        if len(both):
            moments[q] = pair_moments(rows[q].vectors, known[q].vectors, (both, place[both]), np.ones(len(both)))
    return moments


def means_to_join(rows: Rows, moments: Mapping[str, CrossMoments], leg: FrameRotation, *, center: bool) -> Means:
    """Return the means of a model that joins a frame, as :func:`means_of` does for those it is fitted on."""
    means: Means = {}
    for q, side in rows.items():
        if not center:
            means[q] = np.zeros(side.dim), "items"
        elif q in moments:
            means[q] = moments[q].source_mean - leg.isometry @ moments[q].target_mean, "items"
        else:
            means[q] = side.vectors[side.vectors.any(axis=1)].mean(axis=0, dtype=np.float64), "rows"
    return means
