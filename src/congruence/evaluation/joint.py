"""Evaluation of joint-space maps: both models' vectors are compared in the joint space."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from congruence._utils.ids import id_texts
from congruence._utils.validation import check_same_rows
from congruence.embeddings import Embeddings, normalize_rows
from congruence.errors import InputError, ShapeError
from congruence.evaluation._base import (
    Ranking,
    Score,
    Scores,
    labeled_prompts,
    labels_of,
    rankings,
    retrieval_first,
    shared_codes,
)
from congruence.evaluation.controls import Controls, chance_at_k, control_rows_of
from congruence.maps import HeadsMap
from congruence.metrics import Hubness, ensemble_prompts, recall_at_k, zero_shot_accuracy

__all__ = ["evaluate_joint"]

#: Values of k for recall at k.
RECALLS = (1, 5, 10)


@dataclass(frozen=True)
class _Rows:
    """Vectors and their keys: rows of two sides match if their keys are equal."""

    vectors: np.ndarray
    keys: np.ndarray


#: Query and gallery rows by the column of :class:`Score` for which they are compared: "after", and "before", "source" and "target" if available.
_Cases = dict[str, tuple[_Rows, _Rows]]


class _Keys:
    """Keys by which rows are matched: ids within a modality; classes across modalities, or ids if there are no labels."""

    def __init__(self, labels: Mapping[str, str] | None, prompt_labels: Mapping[str, str] | None) -> None:
        self.labels, self.prompt_labels = labels, prompt_labels

    def of(self, modality: str, items: Embeddings) -> np.ndarray:
        """Return the class of each row, or its id."""
        if modality == "image":
            return labels_of(items, self.labels)
        if modality == "text" and self.prompt_labels is not None:
            return id_texts([self.prompt_labels[i] for i in items.ids.tolist()])
        return items.ids

    def both(self, modalities: tuple[str, str], items: tuple[Embeddings, Embeddings]) -> tuple[np.ndarray, np.ndarray]:
        """Return the keys of the rows of two sides as integers."""
        across = modalities[0] != modalities[1]
        if across and not (self.labels is None and self.prompt_labels is None):
            ours, theirs = shared_codes(self.of(modalities[0], items[0]), self.of(modalities[1], items[1]))
            return ours, theirs
        if items[0].has_ids and items[1].has_ids:
            ours, theirs = shared_codes(items[0].ids, items[1].ids)
            return ours, theirs
        check_same_rows(len(items[0]), len(items[1]))
        rows = np.arange(len(items[0]))
        return rows, rows


def evaluate_joint(
    mapping: HeadsMap,
    source: Mapping[str, Embeddings],
    target: Mapping[str, Embeddings],
    *,
    labels: Mapping[str, str] | None = None,
    prompt_labels: Mapping[str, str] | None = None,
    center: bool = False,
    hubness: str | Hubness | None = None,
) -> Scores:
    """Evaluate a joint-space map; called by :func:`congruence.evaluation.evaluate`.

    Returns
    -------
    Scores

    Raises
    ------
    InputError
        If nothing can be measured.
    SpaceMismatchError, DirectionError, ShapeError
        If arrays have the wrong shape, or vectors belong to another space or to the other side of the map.
    """
    sides: dict[str, dict[str, Embeddings]] = {"source": dict(source), "target": dict(target)}
    notes: list[str] = []
    for side, items in sides.items():
        for rows in items.values():
            mapping.side_of(replace(rows.space, modality=None), side)
        if prompt_labels is not None and "text" in items:
            texts, items["text"] = items["text"], labeled_prompts(items["text"], prompt_labels)
            if missing := len(texts) - len(items["text"]):
                notes.append(f"{missing} texts without a class were left out.")
    mapped = {
        "source": {
            m: mapping.transform(sides["source"][m].vectors) for m in _mapped_modalities(mapping, "source", sides)
        },
        "target": {
            m: mapping.transform_target(sides["target"][m].vectors)
            for m in _mapped_modalities(mapping, "target", sides)
        },
    }
    keys = _Keys(labels, prompt_labels)
    variants = rankings(center, hubness)
    scores: list[Score] = []
    for ours, a in mapped["source"].items():
        for theirs, b in mapped["target"].items():
            names = (f"aligned source {ours}", f"aligned target {theirs}")
            cases = _cases(sides, (ours, theirs), (a, b), keys)
            if "after" not in cases:
                continue
            scores += _matched(names, cases, variants)
            if labels is not None and {ours, theirs} == {"image", "text"}:
                images_first = ((names[1], names[0]), _swapped(cases)) if ours == "text" else (names, cases)
                scores += [_zero_shot(*images_first, variant) for variant in variants if _has_means(variant, cases)]
    if not scores:
        raise InputError(
            "Got source and target embeddings without common ids or classes, so nothing can be measured; expected rows that have an id "
            "or a class in common. Pass the same ids on both sides, or labels=… of the images and prompt_labels=… of the texts."
        )
    return Scores(retrieval_first(scores), {}, notes + variants[-1].notes)


def _mapped_modalities(mapping: HeadsMap, side: str, sides: Mapping[str, Mapping[str, Embeddings]]) -> list[str]:
    """Return the modalities that a head maps: its own if the map joins two different ones, otherwise all."""
    own, other = mapping.source_space_.modality, mapping.target_space_.modality
    if own == other:
        return list(sides[side])
    wanted = own if side == "source" else other
    return [m for m in sides[side] if wanted in (None, m)]


def _cases(
    sides: Mapping[str, Mapping[str, Embeddings]],
    modalities: tuple[str, str],
    mapped: tuple[np.ndarray, np.ndarray],
    keys: _Keys,
) -> _Cases:
    """Return the mapped rows, the same rows unmapped, and the rows of each model alone, as far as widths and keys allow."""
    ours, theirs = modalities
    raw = (sides["source"][ours], sides["target"][theirs])
    matched_by = keys.both(modalities, raw)
    cases = {"after": (_Rows(mapped[0], matched_by[0]), _Rows(mapped[1], matched_by[1]))}
    if raw[0].dim == raw[1].dim:
        cases["before"] = (_Rows(raw[0].vectors, matched_by[0]), _Rows(raw[1].vectors, matched_by[1]))
    for side, items in sides.items():
        if ours == theirs or ours not in items or theirs not in items or items[ours].dim != items[theirs].dim:
            continue
        try:
            own = keys.both(modalities, (items[ours], items[theirs]))
        except ShapeError:  # rows without ids, whose numbers differ
            continue
        cases[side] = (_Rows(items[ours].vectors, own[0]), _Rows(items[theirs].vectors, own[1]))
    return {name: both for name, both in cases.items() if np.isin(both[0].keys, both[1].keys).any()}


def _swapped(cases: _Cases) -> _Cases:
    """Return the cases with queries and gallery exchanged."""
    return {name: (b, a) for name, (a, b) in cases.items()}


def _score(
    metric: str,
    names: tuple[str, str],
    cases: _Cases,
    fn: Callable[[_Rows, _Rows], float],
    n: int,
    k: int = 1,
    chance: float | None = None,
    controls: Controls | None = None,
) -> Score:
    """Return one score, computed for every case whose gallery has at least k rows, together with its controls."""
    values = {name: fn(*both) for name, both in cases.items() if len(both[1].keys) >= k}
    return Score(
        metric,
        *names,
        after=values["after"],
        before=values.get("before"),
        source=values.get("source"),
        target=values.get("target"),
        n=n,
        chance=chance,
        control_constant=None if controls is None else controls.constant,
        control_random_rotation=None if controls is None else controls.random_rotation,
    )


def _matched(names: tuple[str, str], cases: _Cases, variants: Sequence[Ranking]) -> list[Score]:
    """Return the scores of matching rows: their mean cosine, and retrieval in both directions."""
    a, b = cases["after"]
    _, ours, theirs = _counts(a.keys, b.keys)
    controls = control_rows_of(a.vectors, b.vectors).score(lambda rows: _mean_cosine(_Rows(rows, a.keys), b))
    scores = [_score("cosine", names, cases, _mean_cosine, int(ours @ theirs), controls=controls)]
    for ranking in variants:
        for k in RECALLS if _has_means(ranking, cases) else ():
            scores += _recalls(names, cases, ranking, k)
    return scores


def _has_means(ranking: Ranking, cases: _Cases) -> bool:
    """Return whether the rows can be centered: with a single key, centering leaves nothing to compare."""
    return not ranking.center or all(
        len(np.unique(rows.keys[np.isin(rows.keys, other.keys)])) > 1
        for a, b in cases.values()
        for rows, other in ((a, b), (b, a))
    )


def _recalls(names: tuple[str, str], cases: _Cases, ranking: Ranking, k: int) -> list[Score]:
    """Return recall at k in both directions and, for k = 1, also their mean."""
    scores = []
    for direction, both in ((names, cases), ((names[1], names[0]), _swapped(cases))):
        queries, gallery = both["after"]
        if len(gallery.keys) >= k:
            keys, counts = np.unique(gallery.keys, return_counts=True)
            known = queries.keys[np.isin(queries.keys, keys)]
            chance = chance_at_k(counts[np.searchsorted(keys, known)], len(gallery.keys), k)
            recall = partial(_recall, k=k, ranking=ranking)
            scores.append(
                _score(f"recall_at_{k}{ranking.suffix}", direction, both, recall, len(known), k, chance=chance)
            )
    if k == 1:
        scores.append(
            Score(
                f"mean_recall_at_1{ranking.suffix}",
                *names,
                after=float(np.mean([score.after for score in scores])),
                before=_mean([score.before for score in scores]),
                source=_mean([score.source for score in scores]),
                target=_mean([score.target for score in scores]),
                n=sum(score.n for score in scores),
                chance=_mean([score.chance for score in scores]),
            )
        )
    return scores


def _mean(values: list[float | None]) -> float | None:
    """Return the mean, or None if a value is missing."""
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if len(known) == len(values) else None


def _counts(ours: np.ndarray, theirs: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the keys that both sides have, and the number of rows of each side per key."""
    common = np.intersect1d(ours, theirs)
    both = [
        np.bincount(np.searchsorted(common, keys[np.isin(keys, common)]), minlength=len(common))
        for keys in (ours, theirs)
    ]
    return common, both[0], both[1]


def _mean_cosine(a: _Rows, b: _Rows) -> float:
    """Return the mean cosine over all matching pairs, from the sums of unit rows per key: the cost is n + m for n·m pairs."""
    common, ours, theirs = _counts(a.keys, b.keys)
    sums = []
    for rows in (a, b):
        kept = np.flatnonzero(np.isin(rows.keys, common))
        total = np.zeros((len(common), rows.vectors.shape[1]))
        np.add.at(
            total, np.searchsorted(common, rows.keys[kept]), normalize_rows(rows.vectors[kept].astype(np.float64))
        )
        sums.append(total)
    return float(np.vdot(*sums) / (ours @ theirs))


def _recall(queries: _Rows, gallery: _Rows, k: int, ranking: Ranking) -> float:
    """Return the share of queries that find a match among their k nearest gallery rows; queries without a match are left out."""
    asked = np.flatnonzero(np.isin(queries.keys, gallery.keys))
    order = np.argsort(gallery.keys, kind="stable")
    ordered = gallery.keys[order]
    starts = np.searchsorted(ordered, queries.keys[asked], side="left")
    stops = np.searchsorted(ordered, queries.keys[asked], side="right")
    relevant = [order[start:stop] for start, stop in zip(starts, stops, strict=True)]
    return recall_at_k(queries.vectors[asked], gallery.vectors, relevant, k, **ranking.options)


def _zero_shot(names: tuple[str, str], cases: _Cases, ranking: Ranking) -> Score:
    """Return the accuracy of classifying images by prompts, which are averaged per class in the space in which they are compared."""

    def accuracy(images: _Rows, texts: _Rows) -> float:
        prototypes, classes = ensemble_prompts(texts.vectors, texts.keys)
        known = np.isin(images.keys, classes)
        return zero_shot_accuracy(images.vectors[known], prototypes, images.keys[known], classes, **ranking.options)

    images, texts = cases["after"]
    n, chance = int(np.isin(images.keys, texts.keys).sum()), 1 / len(np.unique(texts.keys))
    return _score(f"zero_shot{ranking.suffix}", names, cases, accuracy, n, chance=chance)
