"""Scores of individual queries, for paired comparisons of maps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from congruence._utils.arrays import blocks
from congruence._utils.ids import id_texts
from congruence.embeddings import Embeddings, Pairs, normalize_rows
from congruence.errors import IdError
from congruence.evaluation._base import labels_of, shared_codes
from congruence.maps import Map, OrthogonalMap
from congruence.metrics import nearest, paired_cosines, top1_scores, zero_shot_scores

__all__ = ["Mapped", "QueryScores", "across", "hits_at_k", "within"]


@dataclass(frozen=True)
class Mapped:
    """The rows to compare: mapped by a map, or passed as already mapped.

    Attributes
    ----------
    name : str
    mapping : Map or None
    aligned : dict of str to Embeddings
        Mapped rows by modality.
    target : dict of str to Embeddings
        Rows that they are compared with: the target's, mapped into the joint space by a joint-space map.
    """

    name: str
    mapping: Map | None
    aligned: Mapping[str, Embeddings]
    target: Mapping[str, Embeddings]

    def center(self, modality: str, side: int) -> np.ndarray:
        """Return a modality's mean in the target space: the map's, or that of the evaluated rows (0 mapped, 1 the target's)."""
        known = self.mapping.modality_means_.get(modality) if isinstance(self.mapping, OrthogonalMap) else None
        return known[1] if known is not None else (self.aligned, self.target)[side][modality].mean


@dataclass(frozen=True)
class QueryScores:
    """Scores of the same queries under several maps.

    Attributes
    ----------
    query, against : str
        Kind of the queries, and of the rows that are searched, as in :class:`~congruence.evaluation.Score`.
    ids : ndarray, shape (n,)
        Ids of the queries.
    vectors : ndarray, shape (n, d)
        Unmapped vectors of the queries, used to find identical ones; those of the target model if the unmapped ones are unknown.
    scores : dict of str to ndarray, shape (n, maps)
        Scores by measure.
    """

    query: str
    against: str
    ids: np.ndarray
    vectors: np.ndarray
    scores: dict[str, np.ndarray]


def hits_at_k(queries: np.ndarray, gallery: np.ndarray, k: int) -> np.ndarray:
    """Return for each query whether gallery row i, its counterpart, is among the k rows of largest cosine.

    Parameters
    ----------
    queries, gallery : ndarray, shape (n, d)
        Paired.
    k : int
        From 1 to n.

    Returns
    -------
    ndarray of float64, shape (n,)
        1 or 0; for ties the probability that it is among the first k in a random order.

    Raises
    ------
    ZeroRowError
        If a row is zero.
    """
    # In float64, so that copies of a row tie and other rows do not.
    Q, G = (normalize_rows(np.asarray(rows, dtype=np.float64)) for rows in (queries, gallery))
    tie = 4 * float(np.finfo(np.float32).eps) * np.sqrt(Q.shape[1])
    out = np.empty(len(Q))
    for part in blocks(len(Q), 8 * len(G)):
        near = Q[part] @ G.T
        own = near[np.arange(len(near)), np.arange(part.start, part.start + len(near))][:, None]
        above = (near > own + tie).sum(axis=1)
        level = (np.abs(near - own) <= tie).sum(axis=1)
        out[part] = np.clip((k - above) / level, 0.0, 1.0)
    return out


def within(
    maps: list[Mapped],
    modality: str,
    native: Embeddings,
    source: Embeddings | None,
    labels: Mapping[str, str] | None,
    k: int,
) -> QueryScores:
    """Score every mapped row against the target's rows of the same items.

    Parameters
    ----------
    maps : list of Mapped
    modality : str
    native : Embeddings
        The target model's own rows.
    source : Embeddings or None
        The rows before any map, if known.
    labels : mapping of str to str, optional
        Class of each item; its id by default.
    k : int
        Number of neighbors; fewer if there are fewer rows.

    Returns
    -------
    QueryScores

    Raises
    ------
    IdError
        If the maps' rows do not belong to the same items.
    InputError
        If an item has no label.
    """
    pairs = [Pairs.join(mapped.aligned[modality], mapped.target[modality]) for mapped in maps]
    ids = id_texts(pairs[0].ids)
    first = Embeddings(pairs[0].source.vectors, ids=ids, allow_zero_rows=True)
    for mapped, joined in zip(maps, pairs, strict=True):
        _check_same(mapped, maps[0], modality, joined.source, first)
    n = len(ids)
    classes = labels_of(Embeddings(pairs[0].target.vectors, ids=ids, allow_zero_rows=True), labels)
    _, group, sizes = np.unique(id_texts(classes), return_inverse=True, return_counts=True)
    own = Pairs.join(maps[0].aligned[modality], native).target.vectors
    theirs = np.sort(nearest(own, k, metric="cosine", exact=False), axis=1) if n > k + 1 else None
    columns: dict[str, list[np.ndarray]] = {}
    for rows, gallery in pairs:
        by_name = {"retrieval": top1_scores(rows, gallery, group, group)}
        if len(sizes) < n:  # an item's own counterpart is easy to find: leave it out as well
            by_name["retrieval_other"] = top1_scores(rows, gallery, group, group, exclude_self=True)
        if n > k:
            by_name[f"recall_at_{k}"] = hits_at_k(rows, gallery, k)
        if theirs is not None:
            ours = nearest(rows, k, gallery, metric="cosine", exact=False, left_out=np.arange(n))
            both = np.sort(np.concatenate([ours, theirs], axis=1), axis=1)
            by_name[f"overlap_at_{k}"] = (both[:, 1:] == both[:, :-1]).sum(axis=1) / k
        by_name["cosine"] = paired_cosines(rows, gallery)
        for name, scores in by_name.items():
            columns.setdefault(name, []).append(scores)
    before = own if source is None else Pairs.join(source, native).source.vectors
    scored = {name: np.stack(each, axis=1) for name, each in columns.items()}
    return QueryScores(f"aligned {modality}", f"target {modality}", ids, before, scored)


def _check_same(mapped: Mapped, first: Mapped, modality: str, rows: Embeddings, known: Embeddings) -> None:
    """Check that the rows belong to the first map's items, in the same order. Raises IdError."""
    if len(rows) != len(known) or (rows.has_ids and (id_texts(rows.ids) != id_texts(known.ids)).any()):
        raise IdError(
            f"Got {len(rows)} {modality} rows of {mapped.name!r} that are not those of {first.name!r}, which has {len(known)}; expected the "
            "same items in the same order. Pass rows with the same ids for all maps."
        )


def across(
    maps: list[Mapped],
    which: tuple[str, str],
    source: Mapping[str, Embeddings],
    labels: Mapping[str, str] | None,
) -> QueryScores | None:
    """Classify images by texts, where one of the two is mapped.

    Parameters
    ----------
    maps : list of Mapped
    which : (str, str)
        ``("aligned", "target")`` for mapped images and the target's texts, ``("target", "aligned")`` for the target's images and
        mapped texts.
    source : mapping of str to Embeddings
        The rows before any map, if known.
    labels : mapping of str to str, optional
        Class of each image; its id by default.

    Returns
    -------
    QueryScores or None
        None if one of the two is missing, their widths differ, or no image's class is among the texts.

    Raises
    ------
    IdError
        If the maps' images are not the same items.
    InputError
        If an image has no label.
    """
    sides = ({"aligned": mapped.aligned, "target": mapped.target} for mapped in maps)
    rows = [(side[which[0]].get("image"), side[which[1]].get("text")) for side in sides]
    columns: dict[str, list[np.ndarray]] = {"zero_shot": [], "zero_shot_centered": []}
    first: Embeddings | None = None
    for mapped, (images, texts) in zip(maps, rows, strict=True):
        if images is None or texts is None or images.dim != texts.dim:
            return None
        if first is None:
            first = images.by_text()
        _check_same(mapped, maps[0], "image", images, first)
        of_image, of_text = shared_codes(labels_of(first, labels), texts.ids)
        known = np.isin(of_image, of_text)
        if not known.any():
            return None
        means = mapped.center("image", int(which[0] == "target")), mapped.center("text", int(which[1] == "target"))
        for name, center in (("zero_shot", None), ("zero_shot_centered", means)):
            scores = np.full(len(images), np.nan)  # images whose class is not among the texts are not queries
            scores[known] = zero_shot_scores(
                images.vectors[known], texts.vectors, of_image[known], of_text, center=center
            )
            columns[name].append(scores)
    assert first is not None
    scored = {name: np.stack(each, axis=1) for name, each in columns.items()}
    kept = np.isfinite(scored["zero_shot"]).all(axis=1)
    before = source.get("image") if which[0] == "aligned" else None
    vectors = (first if before is None else before).vectors[kept]
    scored = {name: scores[kept] for name, scores in scored.items()}
    return QueryScores(f"{which[0]} image", f"{which[1]} text", first.ids[kept], vectors, scored)
