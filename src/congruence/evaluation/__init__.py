"""Evaluate a map: the paper's measures before and after mapping, next to the scores of each model alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TypedDict

import numpy as np

from congruence._inputs import by_modality
from congruence._utils.ids import id_texts, text_keys
from congruence._utils.typing import RowsLike
from congruence._utils.validation import name_rows
from congruence.embeddings import Embeddings, Pairs, check_space
from congruence.errors import InputError
from congruence.evaluation._base import (
    Ranking,
    Score,
    Scores,
    ensembled_prompts,
    labels_of,
    map_for,
    rankings,
    retrieval_first,
    shared_codes,
    with_vectors,
)
from congruence.evaluation.comparison import Comparison, Difference, compare_maps
from congruence.evaluation.controls import ControlRows, chance_at_k, control_rows
from congruence.evaluation.exposure import Exposure, measure_exposure
from congruence.evaluation.joint import evaluate_joint
from congruence.maps import HeadsMap, Map, OrthogonalMap
from congruence.metrics import (
    Hubness,
    class_retrieval,
    paired_cosine,
    paired_distance,
    zero_shot_accuracy,
)

__all__ = [
    "Comparison",
    "Difference",
    "Exposure",
    "Ranking",
    "Score",
    "Scores",
    "compare_maps",
    "evaluate",
    "measure_exposure",
    "rankings",
]


def evaluate(
    mapping: Map,
    source: RowsLike | Mapping[str, RowsLike],
    target: RowsLike | Mapping[str, RowsLike],
    *,
    modality: str | None = None,
    labels: Mapping[str, str] | None = None,
    prompt_labels: Mapping[str, str] | None = None,
    center: bool = False,
    hubness: str | Hubness | None = None,
) -> Scores:
    """Score a map on embeddings from both models, within each modality and across modalities.

    Parameters
    ----------
    mapping : Map
        A fitted map.
    source, target : Embeddings or array_like, or mapping of str to those
        Rows of one modality in both models, or a mapping by modality (``"image"``, ``"text"``), any of which may be missing; everything that the
        data allow is measured. Rows are paired as in :func:`congruence.fit`: by id, or by position if they have no ids.
    modality : str, optional
        Modality of rows that are not in a mapping. By default the modality the embeddings declare, else the modality the map was fitted on,
        else ``"other"``.
    labels : mapping of str to str, optional
        Class of each image, by id. By default an image's id is its class.
    prompt_labels : mapping of str to str, optional
        Class of each text, by id, for several prompts per class, which are ensembled. By default a text's
        id is its class. For joint-space maps the label may also be the id of the image that a text describes.
    center : bool, default=False
        Also measure retrieval after subtracting the mean of the evaluated queries from the queries and the mean of the evaluated gallery from the
        gallery. The names of these lines end in ``_centered``. ``zero_shot_centered`` is always measured.
    hubness : {"csls", "qb_norm"} or Hubness, optional
        Also measure retrieval and classification with a correction for hubs. The names of these lines end in ``_csls`` or ``_qb_norm``. The
        evaluated queries are the query bank (transductive).

    Returns
    -------
    Scores

    Raises
    ------
    NotFittedMapError
        If the map is not fitted.
    InputError
        If nothing can be measured, only one of source and target is a mapping, or images or prompts have no class.
    SpaceMismatchError, DirectionError, ModalityError
        If the embeddings do not belong to the map's spaces or modalities.
    IdError, ShapeError, DtypeError, NotFiniteError
        If the embeddings cannot be used or paired.

    Notes
    -----
    ``zero_shot_centered`` subtracts each modality's own mean on both sides before the cosine. It is the fair measure when the
    mean of one modality in the target space is unknown, and when there are few anchors: an offset in a
    direction that the anchors do not cover cannot be mapped.

    Joint-space maps are measured in their joint space: every modality of the source against every modality of the target, matched by id
    within a modality and by class (or id) across modalities. ``cosine`` is the mean over all matching pairs, ``recall_at_k`` the share of rows
    with a match among their k nearest, ``mean_recall_at_1`` the mean of both directions, and ``zero_shot``, with ``labels``, the accuracy
    of classifying images by prompts that are ensembled after they are mapped.

    Each cosine is reported with two controls on the same rows: every mapped row replaced by the target mean, and a random rotation about the
    correct means. Retrieval and classification are reported with chance (:mod:`congruence.evaluation.controls`).

    References
    ----------
    Gupta et al. (2026), appendix D.4.2. SOTAlign, section 6 (mean recall at 1).
    """
    mapping.check_fitted()
    source, target = by_modality(source, target, modality, spaces=(mapping.source_space_, mapping.target_space_))
    if not source:
        raise InputError(
            "Got no source embeddings; expected those of at least one modality. Pass source=… as a dict of embeddings by modality."
        )
    for modality, items in (*source.items(), *target.items()):
        if items.space.modality not in (None, modality):
            raise InputError(
                f"Got {items.space.modality} vectors for the modality {modality!r}; expected {modality} vectors. Pass them under the key {items.space.modality!r}."
            )
    source, target = ({m: items.by_text() for m, items in side.items()} for side in (source, target))
    labels, prompt_labels = (None if side is None else text_keys(side) for side in (labels, prompt_labels))
    if isinstance(mapping, HeadsMap):
        return evaluate_joint(
            mapping, source, target, labels=labels, prompt_labels=prompt_labels, center=center, hubness=hubness
        )
    for items in source.values():
        check_space(items.space, mapping.source_space_, mapping.target_space_, modality=False)
    for items in target.values():
        check_space(items.space, mapping.target_space_, mapping.source_space_, modality=False)
    sides = {"source": dict(source), "target": dict(target)}
    notes: list[str] = []
    for side in sides.values():
        if "text" in side and prompt_labels is not None:
            vectors, classes = ensembled_prompts(side["text"], prompt_labels)
            side["text"] = Embeddings(vectors, ids=classes, space=side["text"].space)
    aligned = {
        m: with_vectors(items, map_for(mapping, m).transform(items.vectors)) for m, items in sides["source"].items()
    }
    rows: list[Score] = []
    variants = rankings(center, hubness)
    for modality in sides["source"]:
        if modality in sides["target"]:
            rows += _within(mapping, modality, sides, aligned, labels if modality == "image" else None, variants)
    rows += _across(mapping, sides, aligned, labels, notes, rankings(True, hubness))
    if not rows:
        raise InputError(
            "Got embeddings between which nothing can be measured; expected the same items in both models, or images of one and texts of the other. Pass the same items, with the same ids, for both."
        )
    covered = {}
    if isinstance(mapping, OrthogonalMap):
        for m, items in sides["source"].items():
            covered[m] = float(map_for(mapping, m).covered_share(items.vectors).mean())
    return Scores(retrieval_first(rows), covered, notes + variants[-1].notes)


class _Both(TypedDict):
    """The columns of a result line that hold a measure with and without the map."""

    after: float
    before: float | None
    n: int


class _Controlled(TypedDict):
    """The columns of a result line that hold its controls."""

    control_constant: float | None
    control_random_rotation: float | None


def _within(
    mapping: Map,
    modality: str,
    sides: Mapping[str, Mapping[str, Embeddings]],
    aligned: Mapping[str, Embeddings],
    labels: Mapping[str, str] | None,
    variants: list[Ranking],
) -> list[Score]:
    """Compare the same items in both models: class retrieval, cosine and distance."""
    raw = Pairs.join(sides["source"][modality], sides["target"][modality])
    mapped = Pairs.join(aligned[modality], sides["target"][modality])
    same_width = raw.source.dim == raw.target.dim
    classes = labels_of(mapped.target if mapped.target.has_ids else mapped.source, labels)
    names = (f"aligned {modality}", f"target {modality}")
    n = len(raw)

    def both(fn: Callable[[np.ndarray, np.ndarray], float]) -> _Both:
        return {"after": fn(*mapped), "before": fn(*raw) if same_width else None, "n": n}

    controls = control_rows(map_for(mapping, modality), raw.source.vectors, raw.target.vectors)
    _, group, sizes = np.unique(id_texts(classes), return_inverse=True, return_counts=True)
    rows: list[Score] = []
    for variant in variants:
        if variant.center and n < 2:  # a single row minus its mean is zero
            continue

        def retrieval(
            queries: np.ndarray, gallery: np.ndarray, variant: Ranking = variant, *, exclude_self: bool = False
        ) -> float:
            return class_retrieval(queries, gallery, group, exclude_self=exclude_self, **variant.options)

        alone = raw.target.vectors
        rows.append(
            Score(
                f"retrieval{variant.suffix}",
                *names,
                **both(retrieval),
                target=retrieval(alone, alone) if variant.hubness else 1.0,
                chance=chance_at_k(sizes[group], n),
            )
        )
        if len(sizes) < n:
            # With several items per class, the query's own counterpart makes the task too easy; exclude it as well.
            other = partial(retrieval, exclude_self=True)
            rows.append(
                Score(
                    f"retrieval_other{variant.suffix}",
                    *names,
                    **both(other),
                    source=other(raw.source.vectors, raw.source.vectors),
                    target=other(alone, alone),
                    chance=chance_at_k((sizes - 1)[group], n - 1),
                )
            )
    rows.append(
        Score("cosine", *names, **both(paired_cosine), **_controlled(controls, paired_cosine, mapped), target=1.0)
    )
    rows.append(
        Score("distance", *names, **both(paired_distance), **_controlled(controls, paired_distance, mapped), target=0.0)
    )
    return rows


def _controlled(controls: ControlRows, fn: Callable[[np.ndarray, np.ndarray], float], mapped: Pairs) -> _Controlled:
    """Return the columns of a result line that hold its controls."""
    scores = controls.score(lambda rows: fn(rows, mapped.target.vectors))
    return {"control_constant": scores.constant, "control_random_rotation": scores.random_rotation}


def _across(
    mapping: Map,
    sides: Mapping[str, Mapping[str, Embeddings]],
    aligned: Mapping[str, Embeddings],
    labels: Mapping[str, str] | None,
    notes: list[str],
    variants: list[Ranking],
) -> list[Score]:
    """Classify images by texts, for every combination of models that the embeddings allow."""
    spaces = {("source", m): items for m, items in sides["source"].items() if m in ("image", "text")}
    spaces |= {("target", m): items for m, items in sides["target"].items() if m in ("image", "text")}
    spaces |= {("aligned", m): items for m, items in aligned.items() if m in ("image", "text")}
    centers = {key: _center(mapping, key, items) for key, items in spaces.items()}
    from_data = sorted({f"{side} {m}" for (side, m), (_, own) in centers.items() if not own and side != "aligned"})
    if from_data and any(m == "image" for _, m in spaces) and any(m == "text" for _, m in spaces):
        notes.append(f"Centered scores use the mean of the evaluated rows for: {', '.join(from_data)}.")

    def accuracy(image: str, text: str, variant: Ranking) -> tuple[float | None, int]:
        a, b = spaces.get((image, "image")), spaces.get((text, "text"))
        if a is None or b is None or a.dim != b.dim:
            return None, 0
        wanted = labels_of(a, labels)
        of_image, of_text = shared_codes(wanted, b.ids)
        known = np.isin(of_image, of_text)
        if not known.any():
            raise InputError(
                f"Got no image whose class is among the texts (image classes {name_rows(np.arange(1), wanted)}, …; texts {name_rows(np.arange(1), b.ids)}, …); "
                "expected classes with the names of texts. Pass labels=… whose values are ids of the texts."
            )
        center = (centers[image, "image"][0], centers[text, "text"][0]) if variant.center else None
        value = zero_shot_accuracy(
            a.vectors[known], b.vectors, of_image[known], of_text, center=center, hubness=variant.hubness
        )
        return value, int(known.sum())

    rows = []
    for image, text, before in (
        ("aligned", "target", ("source", "target")),
        ("target", "aligned", ("target", "source")),
        ("aligned", "aligned", None),
    ):
        for variant in variants:
            after, n = accuracy(image, text, variant)
            if after is None:
                continue
            rows.append(
                Score(
                    f"zero_shot{variant.suffix}",
                    f"{image} image",
                    f"{text} text",
                    after=after,
                    before=accuracy(*before, variant)[0] if before else None,
                    source=accuracy("source", "source", variant)[0],
                    target=accuracy("target", "target", variant)[0],
                    n=n,
                    chance=1 / len(spaces[text, "text"]),
                )
            )
    return rows


def _center(mapping: Map, key: tuple[str, str], items: Embeddings) -> tuple[np.ndarray, bool]:
    """Return a modality's mean on one side, and whether it is the map's own (otherwise it is the mean of the evaluated rows)."""
    side, modality = key
    means = mapping.modality_means_.get(modality) if isinstance(mapping, OrthogonalMap) else None
    if means is None:
        return items.mean, False
    # The center of the aligned rows is the image of the source mean under the map, which by construction is the target mean.
    return (means[0] if side == "source" else means[1]), True
