"""The computations of a frame from matched items: rotations, gains, means and the consensus of all models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from congruence._utils.arrays import blocks
from congruence._utils.ids import id_texts
from congruence.errors import InputError
from congruence.linalg.generalized import GeneralizedProcrustes, generalized_procrustes
from congruence.linalg.moments import CrossMoments, total_cross, total_size
from congruence.linalg.procrustes import CrossSVD, cross_svd
from congruence.linalg.shrinkage import choose_gains, means_correspond
from congruence.maps._frame_items import Items, Rows, connected_groups, pair_moments, space_of, width_of
from congruence.maps._frame_model import Consensus, FrameModel

#: Moments of the items that two models share, by models and modality.
Moments = dict[tuple[int, int, str], CrossMoments]

#: A model's means by modality, each with its origin.
Means = dict[str, tuple[np.ndarray, str]]


@dataclass(frozen=True)
class FrameRotation:
    """One model's rotation into the frame.

    Attributes
    ----------
    isometry : ndarray of float64, shape (d, k)
        Partial isometry of the directions that its anchors cover (of all directions with ``shrinkage="full"``).
    gains : ndarray, shape (min(d, k),)
        Gains of its singular directions; a map between two models multiplies the square roots of both.
    shrunk : ndarray of float64, shape (d, k)
        The isometry multiplied by the square roots of the gains.
    rank : int
        Number of directions that the anchors cover.
    """

    isometry: np.ndarray
    gains: np.ndarray
    shrunk: np.ndarray
    rank: int


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
    new_positions: list[dict[str, np.ndarray]] = []
    for m, rows in enumerate(models):
        used = {q: items[q].rows[m][(items[q].rows[m] >= 0) & (items[q].count > 1)] for q in rows}
        width = width_of(rows)
        if sum(map(len, used.values())) < width:
            stacked = np.concatenate([rows[q].vectors[used[q]] for q in rows]).astype(np.float64)
            basis = np.linalg.qr(stacked.T)[0]
            bases.append(basis)
            # Keep only the rows that are used, and a table of the new position of each row.
            reduced.append({q: rows[q].vectors[used[q]].astype(np.float64) @ basis for q in rows})
            positions = {q: np.full(len(rows[q]), -1) for q in rows}
            for q in rows:
                positions[q][used[q]] = np.arange(len(used[q]))
            new_positions.append(positions)
        else:
            bases.append(None)
            reduced.append({q: rows[q].vectors for q in rows})
            new_positions.append({q: np.arange(len(rows[q])) for q in rows})
    moments: Moments = {}
    for q, matched in items.items():
        weights = 1 / np.maximum(matched.count, 1)
        for j in range(len(models)):
            for m in range(j):
                both = np.flatnonzero((matched.rows[m] >= 0) & (matched.rows[j] >= 0))
                if len(both):
                    pair = new_positions[m][q][matched.rows[m][both]], new_positions[j][q][matched.rows[j][both]]
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
        Largest possible sum of the singular values of each cross-covariance.
    """
    cross: dict[tuple[int, int], np.ndarray] = {}
    weight: dict[tuple[int, int], float] = {}
    sizes = [0.0] * len(widths)
    pooled: dict[tuple[int, int], list[CrossMoments]] = {}
    for (m, j, _), part in moments.items():
        pooled.setdefault((m, j), []).append(part)
    for (m, j), parts in pooled.items():
        cross[m, j] = total_cross(parts, center=center)
        weight[m, j] = float(sum(p.weight for p in parts))
        size = total_size(parts, center=center)
        sizes[m] += size
        sizes[j] += size
    inner = [d if basis is None else basis.shape[1] for d, basis in zip(widths, bases, strict=True)]
    solution = generalized_procrustes(cross, weight, inner, max(widths), max_iter=max_iter, tol=tol)
    evidence = [B if Q is None else Q @ B for B, Q in zip(solution.evidence, bases, strict=True)]
    return solution, evidence, sizes


def make_rotation(
    name: str, evidence: np.ndarray, size: float, most: int, width: int, shrinkage: str, strength: float | None
) -> FrameRotation:
    """Compute a model's rotation into the frame from its cross-covariance with the other models.

    Parameters
    ----------
    name : str
        Used in error messages.
    evidence : ndarray, shape (d, k)
        Cross-covariance of the model with all others in the frame.
    size : float
        Largest possible sum of its singular values.
    most : int
        Bound on the number of covered directions.
    width : int
        Width of the widest other model, which bounds the number of covered directions.
    shrinkage : {"wiener", "covered", "full"}
    strength : float or None

    Returns
    -------
    FrameRotation

    Raises
    ------
    InputError
        If the rows do not covary with those of other models.
    """
    complete = cross_svd(evidence, max_rank=most, scale=size, complete=shrinkage == "full")
    if not complete.rank:
        raise InputError(
            f"Got rows of {name!r} that do not vary together with those of other models (constant rows, or one common item with each); "
            "expected anchors that vary. Pass other anchors, or more common items."
        )
    k = min(len(complete.s), width)
    svd = CrossSVD(complete.U[:, :k], complete.s[:k], complete.Vt[:k], min(complete.rank, k))
    gains = choose_gains(shrinkage, svd, float(svd.s.sum() / size), strength)[1]
    if shrinkage == "full":  # fill also the directions that narrower models do not have
        svd, gains = complete, np.ones(len(complete.s))
    kept = len(svd.s) if shrinkage == "full" else svd.rank
    isometry = svd.U[:, :kept] @ svd.Vt[:kept]
    return FrameRotation(isometry, gains, (svd.U * np.sqrt(gains[: svd.U.shape[1]])) @ svd.Vt, svd.rank)


def means_of(
    models: Sequence[Rows],
    items: Items,
    modality: str,
    moments: Moments,
    bases: Sequence[np.ndarray | None],
    rotations: Sequence[FrameRotation],
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
    with_modality = [m for m, rows in enumerate(models) if modality in rows]
    if not center:
        return {m: (np.zeros(len(rotations[m].isometry)), "items") for m in with_modality}
    shared = {(m, j): pair for (m, j, q), pair in moments.items() if q == modality}
    laplacian = np.zeros((len(models), len(models)))
    right_hand_side = np.zeros((len(models), rotations[0].isometry.shape[1]))
    for (m, j), pair in shared.items():
        gap = (
            _expand(pair.source_mean, bases[m]) @ rotations[m].isometry
            - _expand(pair.target_mean, bases[j]) @ rotations[j].isometry
        )
        laplacian[[m, j], [m, j]] += pair.weight
        laplacian[[m, j], [j, m]] -= pair.weight
        right_hand_side[m] += pair.weight * gap
        right_hand_side[j] -= pair.weight * gap
    offset = np.linalg.pinv(laplacian, hermitian=True) @ right_hand_side
    weights = 1 / np.maximum(items.count, 1)
    out: dict[int, tuple[np.ndarray, str]] = {}
    for group in connected_groups(with_modality, shared):
        means, total, center_of_items = {}, 0.0, np.zeros(right_hand_side.shape[1])
        for m in group:
            known = np.flatnonzero((items.rows[m] >= 0) & ((items.count > 1) | (len(group) == 1)))
            X, rows = models[m][modality].vectors, items.rows[m][known]
            means[m] = _weighted_mean(X, rows, np.ones(len(rows)))
            weight = float(weights[known].sum())
            center_of_items += weight * (_weighted_mean(X, rows, weights[known]) @ rotations[m].isometry - offset[m])
            total += weight
        center_of_items /= total
        for m in group:
            R = rotations[m].isometry
            shift = means[m] @ R - offset[m] - center_of_items  # mean of this model's items minus the mean of all items
            out[m] = means[m] - shift @ R.T, "items" if len(group) > 1 else "rows"
    return out


def _expand(mean: np.ndarray, basis: np.ndarray | None) -> np.ndarray:
    """Return a mean in the model's own coordinates, given in coordinates of a basis."""
    return mean if basis is None else basis @ mean


def _weighted_mean(X: np.ndarray, rows: np.ndarray, weights: np.ndarray) -> np.ndarray:
    total = np.zeros(X.shape[1])
    for part in blocks(len(rows), 8 * X.shape[1]):
        total += weights[part] @ X[rows[part]].astype(np.float64)
    return np.asarray(total / weights.sum())


def consensus(
    models: Sequence[Rows],
    items: Items,
    modality: str,
    means: Mapping[int, np.ndarray],
    rotations: Sequence[FrameRotation],
) -> np.ndarray:
    """Return each item's mean over the models that have it, in the frame: float32, shape (n, k)."""
    k = rotations[0].isometry.shape[1]
    out = np.zeros((len(items.ids), k), dtype=np.float32)
    for part in blocks(len(items.ids), 24 * k):
        total = np.zeros((part.stop - part.start, k))
        for m in means:
            rows = items.rows[m][part]
            present = np.flatnonzero(rows >= 0)
            total[present] += (models[m][modality].vectors[rows[present]] - means[m]) @ rotations[m].isometry
        out[part] = total / np.maximum(items.count[part], 1)[:, None]
    return out


def mean_in_frame(
    means: Sequence[Means], rotations: Sequence[FrameRotation], modality: str, without: int | None = None
) -> np.ndarray:
    """Return the mean over models, except one if ``without`` is given, of their means of a modality in the frame, shape (k,)."""
    in_frame = [
        own[modality][0] @ rotation.isometry
        for m, (own, rotation) in enumerate(zip(means, rotations, strict=True))
        if modality in own and m != without
    ]
    return np.asarray(np.mean(in_frame, axis=0))


def make_model(
    rows: Rows,
    rotation: FrameRotation,
    means: Means,
    others: Mapping[str, np.ndarray],
    axes: Sequence[str],
    anchors: int,
) -> FrameModel:
    """Build a model of a frame; ``others`` are the means of the other models, in the frame."""
    own = {q: mean for q, (mean, _) in means.items()}
    return FrameModel(
        space_of(rows),
        np.hstack([rotation.shrunk, mean_axes(own, others, rotation, axes)]),
        own,
        {q: origin for q, (_, origin) in means.items()},
        rotation.isometry.shape[1],
        anchors,
        rotation.rank,
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
    means: Mapping[str, np.ndarray], others: Mapping[str, np.ndarray], rotation: FrameRotation, names: Sequence[str]
) -> np.ndarray:
    """Return the columns of a model's rotation for the frame's axes of means, one axis per modality.

    The rule is that of :func:`congruence.linalg.shrinkage.mean_isometry`: if the covered part of a model's mean corresponds to that of the
    other models, the uncovered part is assumed to correspond as well.

    Parameters
    ----------
    means : mapping of modality to ndarray, shape (d,)
    others : mapping of modality to ndarray, shape (k,)
        Mean of the other models' means in the frame.
    rotation : FrameRotation
    names : sequence of str
        The modalities that have an axis.

    Returns
    -------
    ndarray, shape (d, len(names))
    """
    out = np.zeros((len(rotation.isometry), len(names)))
    residuals, axes = [], []
    for axis, name in enumerate(names):
        if name not in means or name not in others:
            continue
        covered = means[name] @ rotation.isometry
        if not means_correspond(covered, others[name], rotation.rank):
            continue
        residual = means[name] - rotation.isometry @ covered
        if np.linalg.norm(residual) > 1e-6 * np.linalg.norm(means[name]):
            residuals.append(residual / np.linalg.norm(residual))
            axes.append(axis)
    if residuals:  # the nearest orthonormal directions
        svd = cross_svd(np.array(residuals).T)
        out[:, axes] = svd.U[:, : svd.rank] @ svd.Vt[: svd.rank]
    return out


def join_frame(
    rows: Rows, known: Mapping[str, Consensus], positions: Mapping[str, np.ndarray]
) -> dict[str, CrossMoments]:
    """Gather the moments of one model's rows and the frame's items, by modality.

    Parameters
    ----------
    rows : dict of modality to Embeddings
    known : mapping of modality to Consensus
    positions : mapping of modality to ndarray, shape (n,)
        Position of each row among the frame's items, −1 if it is not among them.

    Returns
    -------
    dict of modality to CrossMoments
    """
    moments = {}
    for q, position in positions.items():
        shared = np.flatnonzero((position >= 0) & rows[q].vectors.any(axis=1))
        if len(shared):
            moments[q] = pair_moments(
                rows[q].vectors, known[q].vectors, (shared, position[shared]), np.ones(len(shared))
            )
    return moments


def means_to_join(rows: Rows, moments: Mapping[str, CrossMoments], rotation: FrameRotation, *, center: bool) -> Means:
    """Return the means of a model that joins a frame, as :func:`means_of` does for the models of the fit."""
    means: Means = {}
    for q, side in rows.items():
        if not center:
            means[q] = np.zeros(side.dim), "items"
        elif q in moments:
            means[q] = moments[q].source_mean - rotation.isometry @ moments[q].target_mean, "items"
        else:
            means[q] = side.vectors[side.vectors.any(axis=1)].mean(axis=0, dtype=np.float64), "rows"
    return means
