"""The result of an evaluation, its lines, and the classes of items."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np

from congruence._inputs import by_modality
from congruence._utils.ids import id_texts, text_keys
from congruence._utils.typing import RowsLike
from congruence._utils.validation import check_same_rows, name_rows, shorten
from congruence.embeddings import Embeddings, Pairs, check_space, normalize_rows
from congruence.errors import InputError, ShapeError
from congruence.evaluation.controls import ControlRows, Controls, chance_at_k, control_rows, control_rows_of
from congruence.maps import Map, OrthogonalMap, TwoSidedMap
from congruence.metrics import (
    Hubness,
    class_retrieval,
    ensemble_prompts,
    paired_cosine,
    paired_distance,
    recall_at_k,
    zero_shot_accuracy,
)
from congruence.metrics.hubness import as_hubness

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class Score:
    """One line of an evaluation.

    Attributes
    ----------
    metric : str
        ``"retrieval"``, ``"retrieval_other"``, ``"zero_shot"``, ``"zero_shot_centered"``, ``"cosine"``, ``"distance"``; for joint-space
        maps ``"recall_at_1"``, ``"mean_recall_at_1"``, ``"recall_at_5"``, ``"recall_at_10"``, ``"zero_shot"``, ``"cosine"``. If retrieval uses
        centering or a correction for hubs, the name ends in that variant's suffix (:class:`Ranking`).
    query, against : str
        What is compared with what, e.g. ``"aligned image"`` with ``"target text"``; for joint-space maps ``"aligned source image"``
        with ``"aligned target text"``.
    after : float
        Score with the map.
    before : float or None
        Score with the unmapped source vectors; None if the widths differ or the comparison is not meaningful.
    source, target : float or None
        Scores of the source model alone and of the target model alone; the target's is the oracle.
    n : int
        Number of items (for a joint-space map: pairs, or queries).
    chance : float or None
        Score of neighbors drawn at random, for retrieval and classification.
    control_constant, control_random_rotation : float or None
        For cosine and distance: the score with every mapped row replaced by the target's mean, and with a random rotation about the
        correct means (:mod:`congruence.evaluation.controls`).
    """

    metric: str
    query: str
    against: str
    after: float
    before: float | None = None
    source: float | None = None
    target: float | None = None
    n: int = 0
    chance: float | None = None
    control_constant: float | None = None
    control_random_rotation: float | None = None


@dataclass(frozen=True)
class Ranking:
    """A variant of retrieval: with or without centering and a correction for hubs.

    Attributes
    ----------
    center : bool
        Whether each side is centered at the mean of its own evaluated rows.
    hubness : Hubness or None
        Correction for hubs, computed from the evaluated queries.
    """

    center: bool = False
    hubness: Hubness | None = None

    @property
    def suffix(self) -> str:
        """Suffix of the measure's name: empty, ``"_centered"``, ``"_csls"``, and so on."""
        return "_centered" * self.center + (f"_{self.hubness.name}" if self.hubness else "")

    @property
    def notes(self) -> list[str]:
        """Notes on the rows from which its means and its query bank are computed."""
        notes = (
            ["Centered retrieval subtracts the mean of the evaluated rows, on each side its own."]
            if self.center
            else []
        )
        if self.hubness:
            notes.append(
                f"Scores corrected by {self.hubness.name} use the evaluated queries as the bank: they are those of queries that arrive together (transductive)."
            )
        return notes

    @property
    def options(self) -> dict[str, Any]:
        """Arguments of a retrieval measure."""
        return {"center": self.center, "hubness": self.hubness}


def rankings(center: bool, hubness: str | Hubness | None) -> list[Ranking]:
    """Return the requested search variants: plain, centered, corrected, and both."""
    correction = as_hubness(hubness)
    corrections = (None,) if correction is None else (None, correction)
    return [Ranking(centered, kind) for kind in corrections for centered in ((False, True) if center else (False,))]


@dataclass(frozen=True)
class Scores:
    """Result of :func:`evaluate`: plain data, ready for a table, JSON or a report.

    Attributes
    ----------
    rows : list of Score
        Retrieval and classification first, then cosines and distances with their controls.
    covered_share : dict of str to float
        By modality, the mean share of the source vectors' variance (norm²) in directions that the anchors cover.
    notes : list of str
        Notes a reader needs to interpret the numbers.
    """

    rows: list[Score]
    covered_share: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        """Return a table: scores before and after mapping, of each model alone, and by chance; then the notes."""
        table: list[tuple[str, ...]] = [("score", "before", "after", "source", "target", "chance")]
        for row in self.rows:
            numbers = (row.before, row.after, row.source, row.target, row.chance)
            cells = ("-" if number is None else f"{number:.3f}" for number in numbers)
            table.append((f"{row.metric}: {row.query}, {row.against}", *cells))
        width = max(len(line[0]) for line in table)
        lines = (line[0].ljust(width) + "".join(cell.rjust(8) for cell in line[1:]) for line in table)
        return "\n".join([*lines, *self.notes])

    def to_dict(self) -> dict[str, object]:
        """Return all fields as plain data."""
        return asdict(self)

    def plot(self, ax: Axes | None = None, *, annotate: bool = True) -> Axes:
        """Draw each score before and after mapping, with the target's own score and those of the controls.

        ``ax`` are matplotlib axes to draw on, by default those of a new figure; ``annotate=False`` leaves out title and
        labels.
        """
        from congruence.plotting import draw_scores

        return draw_scores([asdict(row) for row in self.rows], ax, annotate=annotate)

    def get(self, metric: str, query: str, against: str) -> Score:
        """Return one line."""
        for row in self.rows:
            if (row.metric, row.query, row.against) == (metric, query, against):
                return row
        raise KeyError((metric, query, against))


#: Metrics that mean little without the controls: how far two vectors are apart, not which is nearest.
DISTANCES = ("cosine", "distance")


def retrieval_first(rows: list[Score]) -> list[Score]:
    """Return the lines with cosines and distances last, otherwise in their original order."""
    return sorted(rows, key=lambda row: row.metric in DISTANCES)


def labels_of(items: Embeddings, labels: Mapping[str, str] | None) -> np.ndarray:
    """Return the class of each image: its label or, without labels, its id. Raises InputError for images without a label."""
    if labels is None:
        return items.ids
    missing = [i for i in items.ids.tolist() if i not in labels]
    if missing:
        raise InputError(
            f"Got {len(missing)} images without a label ({shorten(repr(missing[0]))}, …); expected one for each.",
            "Add their ids to `labels=…`.",
        )
    return id_texts([labels[i] for i in items.ids.tolist()])


def shared_codes(*sides: np.ndarray) -> list[np.ndarray]:
    """Return a number for each id or label of several sides; numbers are equal if the texts are, and follow the order of the texts."""
    texts = np.concatenate([id_texts(side) for side in sides])
    codes = np.unique(texts, return_inverse=True)[1].reshape(-1)
    return np.split(codes, np.cumsum([len(side) for side in sides])[:-1])


def labeled_prompts(prompts: Embeddings, labels: Mapping[str, str]) -> Embeddings:
    """Return the prompts that have a class. Raises InputError if none has."""
    kept = np.array([name in labels for name in prompts.ids.tolist()])
    if not kept.any():
        raise InputError(
            "Got prompts without classes; expected the class of each prompt, by id.",
            "Pass `prompt_labels=…` whose keys are the ids of the texts.",
        )
    return prompts.take(kept)


def ensembled_prompts(prompts: Embeddings, labels: Mapping[str, str]) -> tuple[np.ndarray, np.ndarray]:
    """Return the ensemble of each class's prompts and the classes; prompts without a class are left out. Raises InputError if none has one."""
    prompts = labeled_prompts(prompts, labels)
    return ensemble_prompts(prompts.vectors, np.array([labels[name] for name in prompts.ids.tolist()]))


def map_for(mapping: Map, modality: str) -> Map:
    """Return the map set to a modality or, if it has no means of this modality, to its default means."""
    unknown = isinstance(mapping, OrthogonalMap) and modality not in mapping.modality_means_
    return mapping.for_modality(None if unknown else modality)


def with_vectors(rows: Embeddings, vectors: RowsLike) -> Embeddings:
    """Return other vectors of the same items, with the ids of the rows."""
    return Embeddings(vectors, ids=rows.ids if rows.has_ids else None, allow_zero_rows=True)


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
    InputError
        If nothing can be measured, only one of source and target is a mapping, or images or prompts have no class.
    SpaceMismatchError, DirectionError, ModalityError
        If the embeddings do not belong to the map's spaces or modalities.

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
            "Got no source embeddings; expected those of at least one modality.",
            "Pass `source=…` as a dict of embeddings by modality.",
        )
    for modality, items in (*source.items(), *target.items()):
        if items.space.modality not in (None, modality):
            raise InputError(
                f"Got {items.space.modality} vectors for the modality {modality!r}; expected {modality} vectors.",
                f"Pass them under the key {items.space.modality!r}.",
            )
    source, target = ({m: items.by_text() for m, items in side.items()} for side in (source, target))
    labels, prompt_labels = (None if side is None else text_keys(side) for side in (labels, prompt_labels))
    if isinstance(mapping, TwoSidedMap):
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
            "Got embeddings between which nothing can be measured; expected the same items in both models, or images of one and texts of the other.",
            "Pass the same items, with the same ids, for both.",
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
                f"Got no image whose class is among the texts (image classes {name_rows(np.arange(1), wanted)}, …; texts {name_rows(np.arange(1), b.ids)}, …); expected classes with the names of texts.",
                "Pass `labels=…` whose values are ids of the texts.",
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
    mapping: TwoSidedMap,
    source: Mapping[str, Embeddings],
    target: Mapping[str, Embeddings],
    *,
    labels: Mapping[str, str] | None = None,
    prompt_labels: Mapping[str, str] | None = None,
    center: bool = False,
    hubness: str | Hubness | None = None,
) -> Scores:
    """Evaluate a joint-space map; called by :func:`congruence.evaluation.evaluate`."""
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
            "Got source and target embeddings without common ids or classes, so nothing can be measured; expected rows that have an id or a class in common.",
            "Pass the same ids on both sides, or `labels=…` of the images and `prompt_labels=…` of the texts.",
        )
    return Scores(retrieval_first(scores), {}, notes + variants[-1].notes)


def _mapped_modalities(mapping: TwoSidedMap, side: str, sides: Mapping[str, Mapping[str, Embeddings]]) -> list[str]:
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
