"""Evaluate a map: the paper's measures before and after mapping, next to the scores of each model alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

import numpy as np

from congruence._utils.display import short
from congruence._utils.ids import id_texts, text_keys
from congruence._utils.plain import PlainData
from congruence._utils.typing import RowsLike
from congruence._utils.validation import check_same_rows, name_rows
from congruence.embeddings import (
    UNNAMED,
    Embeddings,
    Pairs,
    Space,
    as_embeddings,
    by_modality,
    check_space,
    normalize_rows,
)
from congruence.errors import InputError, ModalityError, ShapeError
from congruence.evaluation.controls import Controls, chance_at_k, control_rows, control_rows_of
from congruence.maps import HeadsMap, Map, OrthogonalMap
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
from congruence.splits import Split

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Rows of one side, or by modality.
RowsOfSide: TypeAlias = "RowsLike | Mapping[str, RowsLike]"

#: Rows by modality of ``"source"`` and ``"target"``, with ids as strings.
Sides: TypeAlias = dict[str, dict[str, Embeddings]]

#: Labels by id.
LabelsById: TypeAlias = "Mapping[str, str] | None"

#: Modalities whose rows are not those that labels are for.
UNLABELED = ("text", "other")


@dataclass(frozen=True)
class Score:
    """One line of an evaluation.

    - ``metric``: ``"retrieval"``, ``"retrieval_other"``, ``"zero_shot"``, ``"cosine"``, ``"distance"``; for joint-space
      maps ``"recall_at_k"``, ``"mean_recall_at_1"``, ``"zero_shot"``, ``"cosine"``. With a correction for hubs the name
      ends in that of the correction.
    - ``query``, ``against``: What is compared with what, e.g. ``"aligned image"`` with ``"target text"``.
    - ``after``, ``before``, ``source``, ``target``: Score with the map, with the unmapped vectors, and of each model
      alone (the target's is the oracle), as far as widths agree.
    - ``n``: Number of items (for a joint-space map: pairs, or queries).
    - ``chance``: Score of neighbors drawn at random.
    - ``control_constant``, ``control_random_rotation``: The cosine or distance with every mapped row replaced by the
      target's mean, and with a random rotation about the correct means (``congruence.evaluation.controls``).
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


def suffix(hubness: Hubness | None) -> str:
    """Return the end of a score's name under a correction for hubs."""
    return f"_{hubness.name}" if hubness else ""


def bank_notes(hubness: Hubness | None) -> list[str]:
    """Return the note on the rows from which a correction for hubs is computed."""
    if hubness is None:
        return []
    return [
        f"Scores corrected by {hubness.name} use the evaluated queries as the bank: they are those of queries that "
        "arrive together (transductive)."
    ]


@dataclass(frozen=True)
class Scores(PlainData):
    """Result of ``evaluate``: plain data, ready for a table, JSON or a report. ``rows`` has retrieval and
    classification first, then cosines and distances with their controls; ``covered_share``, by modality, the mean share
    of the source vectors' variance in directions that the anchors cover.
    """

    rows: list[Score]
    covered_share: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        """Return a table of the scores, then the notes."""
        table: list[tuple[str, ...]] = [("score", "before", "after", "source", "target", "chance")]
        for row in self.rows:
            numbers = (row.before, row.after, row.source, row.target, row.chance)
            cells = ("-" if number is None else f"{number:.3f}" for number in numbers)
            table.append((f"{row.metric}: {row.query}, {row.against}", *cells))
        width = max(len(line[0]) for line in table)
        lines = (line[0].ljust(width) + "".join(cell.rjust(8) for cell in line[1:]) for line in table)
        return "\n".join([*lines, *self.notes])

    def plot(self, ax: Axes | None = None, *, annotate: bool = True) -> Axes:
        """Draw each score before and after mapping, with the target's own and the controls', on ``ax`` or new axes."""
        from congruence.plotting import draw_scores

        return draw_scores([asdict(row) for row in self.rows], ax, annotate=annotate)

    def get(self, metric: str, query: str, against: str) -> Score:
        """Return one line."""
        for row in self.rows:
            if (row.metric, row.query, row.against) == (metric, query, against):
                return row
        raise KeyError((metric, query, against))


def evaluate(
    mapping: Map,
    source: RowsLike | Mapping[str, RowsLike],
    target: RowsLike | Mapping[str, RowsLike],
    *,
    modality: str | None = None,
    labels: Mapping[str, str] | None = None,
    prompt_labels: Mapping[str, str] | None = None,
    hubness: str | Hubness | None = None,
) -> Scores:
    """Score a map on embeddings from both models, within each modality and across modalities.

    Rows are mapped in the map's own role (``congruence.maps.readout``). Joint-space maps are measured in their joint
    space: every modality of the source against every modality of the target, matched by id within a modality and by
    class (or id) across modalities. Each cosine is reported with two controls, retrieval and classification with
    chance.

    Parameters
    ----------
    source, target : Embeddings or array_like, or mapping of str to those
        Rows of one modality in both models, or a mapping by modality (``"image"``, ``"text"`` …), any of which may be
        missing. Rows are paired by id, or by position if they have no ids.
    modality : str, optional
        Modality of rows that are not in a mapping. By default the one they declare, else the map's, else ``"other"``.
    labels : mapping of str to str, optional
        Class of each image, sound or video, by id. By default its id is its class.
    prompt_labels : mapping of str to str, optional
        Class of each text, by id, for several prompts per class, which are ensembled. By default a text's id is its
        class. For joint-space maps the label may also be the id of the image that a text describes.
    hubness : {"csls", "qb_norm"} or Hubness, optional
        Also measure retrieval and classification with a correction for hubs, with the evaluated queries as the bank.

    Source: Gupta et al. (2026), appendix D.4.2. SOTAlign, section 6 (mean recall at 1).
    """
    mapping.check_fitted()
    sides = read_sides({"the map": mapping}, source, target, modality)
    if not sides["source"]:
        raise InputError("No source embeddings.", "Pass `source=…` as a dict of embeddings by modality.")
    labels, prompt_labels = (None if side is None else text_keys(side) for side in (labels, prompt_labels))
    variants = (None,) if hubness is None else (None, as_hubness(hubness))
    measure = _measure_joint if isinstance(mapping, HeadsMap) else _measure
    rows, notes = measure(mapping, sides, labels, prompt_labels, variants)
    if not rows:
        raise InputError(
            "The two sides have no ids or classes in common: nothing can be measured.",
            "Pass the same ids, or `labels=…`.",
        )
    covered = {}
    if isinstance(mapping, OrthogonalMap):
        for m, items in ensembled(sides["source"], prompt_labels).items():
            covered[m] = float(map_for(mapping, m).covered_share(items.vectors).mean())
    distances = ("cosine", "distance")  # they mean little without the controls, so they are last
    return Scores(sorted(rows, key=lambda row: row.metric in distances), covered, notes + bank_notes(variants[-1]))


# ------------------------------------------------------------------ rows


def read_sides(models: Mapping[str, Map], source: RowsOfSide | None, target: RowsOfSide, modality: str | None) -> Sides:
    """Return rows by side and modality, after checking that they come from the spaces of all fitted ``models``."""
    by_side: Sides
    if source is None:
        if models:
            raise InputError(f"No source rows for the map {next(iter(models))}.", "Pass `source=…`, or mapped rows.")
        if not isinstance(target, Mapping):
            rows = as_embeddings(target, "target")
            target = {modality or rows.space.modality or UNNAMED: rows}
        by_side = {"source": {}, "target": {m: as_embeddings(rows, f"target[{m!r}]") for m, rows in target.items()}}
    else:
        first = next(iter(models.values()), None)
        spaces = (Space(), Space()) if first is None else (first.source_space_, first.target_space_)
        by_side = dict(zip(("source", "target"), by_modality(source, target, modality, spaces=spaces), strict=True))
    for side, items in by_side.items():
        for m, rows in items.items():
            if rows.space.modality not in (None, m):
                raise ModalityError(
                    f"Got {rows.space.modality} vectors as {m!r}.", f"Pass them as {rows.space.modality!r}."
                )
            for mapping in models.values():
                spaces = mapping.source_space_, mapping.target_space_
                if isinstance(mapping, HeadsMap):
                    mapping.side_of(replace(rows.space, modality=None), side)
                else:
                    check_space(rows.space, *(spaces if side == "source" else spaces[::-1]), modality=False)
    return {side: {m: rows.by_text() for m, rows in items.items()} for side, items in by_side.items()}


def held_out(
    mapping: Map, items: Mapping[str, Embeddings], labels: LabelsById, prompt_labels: LabelsById
) -> dict[str, np.ndarray]:
    """Return by modality which rows a map held out by its own record, as far as their ids tell it.

    With labels, ids of images are not classes, so that a class among the fitted texts does not identify images.
    """
    split, joint = Split.from_dict(mapping.scores_["holdout"]), isinstance(mapping, HeadsMap)
    fitted = mapping.source_space_.modality
    if joint and fitted == "text":  # if it was fitted on texts and images, the labels are those of images
        fitted = mapping.target_space_.modality
    found = {}
    for m, rows in items.items():
        if labels is None or fitted in (None, m):
            ids = id_texts(rows.ids)
            if m == "text" and prompt_labels and joint:  # a text stays with its image
                ids = id_texts([prompt_labels.get(i, i) for i in ids.tolist()])
            found[m] = split.held_out(ids)
    return found


def labels_of(items: Embeddings, labels: LabelsById) -> np.ndarray:
    """Return the class of each image: its label or, without labels, its id."""
    if labels is None:
        return items.ids
    missing = [i for i in items.ids.tolist() if i not in labels]
    if missing:
        raise InputError(
            f"{len(missing)} images have no label ({short(repr(missing[0]))}, …).", "Add their ids to `labels=…`."
        )
    return id_texts([labels[i] for i in items.ids.tolist()])


def shared_codes(*sides: np.ndarray) -> list[np.ndarray]:
    """Return a number for each id or label of several sides: equal for equal texts, in the order of the texts."""
    texts = np.concatenate([id_texts(side) for side in sides])
    codes = np.unique(texts, return_inverse=True)[1].reshape(-1)
    return np.split(codes, np.cumsum([len(side) for side in sides])[:-1])


def _labeled_prompts(prompts: Embeddings, labels: Mapping[str, str]) -> Embeddings:
    """Return the prompts that have a class."""
    kept = np.array([name in labels for name in prompts.ids.tolist()])
    if not kept.any():
        raise InputError("No prompt has a class.", "Pass `prompt_labels=…` whose keys are the ids of the texts.")
    return prompts.take(kept)


def ensembled(items: Mapping[str, Embeddings], labels: LabelsById) -> dict[str, Embeddings]:
    """Return rows by modality, of labeled texts the ensemble of each class, with the classes as ids."""
    items = dict(items)
    if labels is not None and "text" in items:
        prompts = _labeled_prompts(items["text"], labels)
        vectors, classes = ensemble_prompts(prompts.vectors, np.array([labels[name] for name in prompts.ids.tolist()]))
        items["text"] = Embeddings(vectors, ids=classes, space=prompts.space, allow_zero_rows=True)
    return items


MapT = TypeVar("MapT", bound=Map)


def map_for(mapping: MapT, modality: str) -> MapT:
    """Return the map set to a modality or, if it has no means of this modality, to its default means."""
    unknown = isinstance(mapping, OrthogonalMap) and modality not in mapping.modality_means_
    return mapping.for_modality(None if unknown else modality)


def with_vectors(rows: Embeddings, vectors: RowsLike) -> Embeddings:
    """Return other vectors of the same items, with the ids of the rows."""
    return Embeddings(vectors, ids=rows.ids if rows.has_ids else None, allow_zero_rows=True)


# ------------------------------------------------------------------ maps into the target's space


def _measure(
    mapping: Map, sides: Sides, labels: LabelsById, prompt_labels: LabelsById, variants: Sequence[Hubness | None]
) -> tuple[list[Score], list[str]]:
    """Compare mapped rows with the target's: the same items, and images with texts."""
    sides = {side: ensembled(items, prompt_labels) for side, items in sides.items()}
    aligned = {
        m: with_vectors(items, map_for(mapping, m).transform(items.vectors)) for m, items in sides["source"].items()
    }
    rows: list[Score] = []
    for m in sides["source"]:
        if m in sides["target"]:
            rows += _within(map_for(mapping, m), m, sides, aligned[m], labels if m not in UNLABELED else None, variants)
    return rows + _across(sides, aligned, labels, variants), []


def _within(
    mapping: Map,
    modality: str,
    sides: Sides,
    aligned: Embeddings,
    labels: LabelsById,
    variants: Sequence[Hubness | None],
) -> list[Score]:
    """Compare the same items in both models: class retrieval, cosine and distance."""
    raw = Pairs.join(sides["source"][modality], sides["target"][modality])
    mapped = Pairs.join(aligned, sides["target"][modality])
    classes = labels_of(mapped.target if mapped.target.has_ids else mapped.source, labels)
    _, group, sizes = np.unique(id_texts(classes), return_inverse=True, return_counts=True)
    n = len(raw)
    controls = control_rows(mapping, raw.source.vectors, raw.target.vectors)

    def line(metric: str, fn: Callable[[np.ndarray, np.ndarray], float], **columns: Any) -> Score:
        before = fn(*raw) if raw.source.dim == raw.target.dim else None
        return Score(metric, f"aligned {modality}", f"target {modality}", fn(*mapped), before, n=n, **columns)

    old, new = raw.source.vectors, raw.target.vectors
    rows = []
    for variant in variants:
        own: Callable[..., float] = partial(class_retrieval, query_labels=group, hubness=variant)
        target = own(new, new) if variant else 1.0
        rows.append(line(f"retrieval{suffix(variant)}", own, target=target, chance=chance_at_k(sizes[group], n)))
        if len(sizes) < n:
            # With several items per class, the query's own counterpart makes the task too easy; exclude it as well.
            other = partial(own, exclude_self=True)
            chance = chance_at_k((sizes - 1)[group], n - 1)
            name = f"retrieval_other{suffix(variant)}"
            rows.append(line(name, other, source=other(old, old), target=other(new, new), chance=chance))
    for name, fn, best in (("cosine", paired_cosine, 1.0), ("distance", paired_distance, 0.0)):
        found = controls.score(lambda rows, fn=fn: fn(rows, mapped.target.vectors))  # type: ignore[misc]
        rows.append(
            line(name, fn, target=best, control_constant=found.constant, control_random_rotation=found.random_rotation)
        )
    return rows


def _across(
    sides: Sides, aligned: Mapping[str, Embeddings], labels: LabelsById, variants: Sequence[Hubness | None]
) -> list[Score]:
    """Classify images, sounds or videos by texts, for every combination of models that the embeddings allow."""
    spaces = {
        (side, m): items
        for side, by_modality in (*sides.items(), ("aligned", aligned))
        for m, items in by_modality.items()
    }

    def case(image: str, text: str) -> tuple[_Keyed, _Keyed] | None:
        a, b = spaces.get((image, kind)), spaces.get((text, "text"))
        if a is None or b is None or a.dim != b.dim:
            return None
        wanted = labels_of(a, labels)
        of_image, of_text = shared_codes(wanted, b.ids)
        if not np.isin(of_image, of_text).any():
            first = np.arange(1)
            raise InputError(
                f"No {kind}'s class is among the texts ({name_rows(first, wanted)}, …; {name_rows(first, b.ids)}, …).",
                "Pass `labels=…` whose values are ids of the texts.",
            )
        return _Keyed(a.vectors, of_image), _Keyed(b.vectors, of_text)

    rows = []
    kinds = dict.fromkeys(m for _, m in spaces if m not in UNLABELED)
    ways: tuple[tuple[str, str, tuple[str, str] | None], ...] = (
        ("aligned", "target", ("source", "target")),
        ("target", "aligned", ("target", "source")),
        ("aligned", "aligned", None),
    )
    for kind, (image, text, before) in product(kinds, ways):
        if (after := case(image, text)) is not None:
            found = {"source": case("source", "source"), "target": case("target", "target")}
            found["before"] = case(*before) if before else None
            cases = {"after": after} | {column: both for column, both in found.items() if both is not None}
            names = f"{image} {kind}", f"{text} text"
            rows += [_zero_shot(names, cases, variant, prompts=False) for variant in variants]
    return rows


# ------------------------------------------------------------------ maps into a joint space


class _Keyed(NamedTuple):
    """Vectors and their keys: rows of two sides match if their keys are equal."""

    vectors: np.ndarray
    keys: np.ndarray


#: Queries and gallery for each column of ``Score``: "after", and "before", "source" and "target" if available.
_Cases: TypeAlias = dict[str, tuple[_Keyed, _Keyed]]


def _measure_joint(
    mapping: Map, sides: Sides, labels: LabelsById, prompt_labels: LabelsById, variants: Sequence[Hubness | None]
) -> tuple[list[Score], list[str]]:
    """Compare every modality of the source with every modality of the target in the joint space."""
    sides = {side: dict(items) for side, items in sides.items()}
    notes: list[str] = []
    if prompt_labels is not None:
        for items in sides.values():
            if "text" in items:
                texts, items["text"] = items["text"], _labeled_prompts(items["text"], prompt_labels)
                if missing := len(texts) - len(items["text"]):
                    notes.append(f"{missing} texts without a class were left out.")
    spaces = {"source": mapping.source_space_, "target": mapping.target_space_}
    mapped = {}
    for side, transform in (("source", mapping.transform), ("target", mapping.transform_target)):
        wanted = spaces[side].modality  # a map that joins two modalities maps only one on each side
        joins = spaces["source"].modality != spaces["target"].modality
        kept = {m: items for m, items in sides[side].items() if not joins or wanted in (None, m)}
        mapped[side] = {m: transform(items.vectors) for m, items in kept.items()}
    scores: list[Score] = []
    for ours, a in mapped["source"].items():
        for theirs, b in mapped["target"].items():
            names = (f"aligned source {ours}", f"aligned target {theirs}")
            cases = _cases(sides, (ours, theirs), (a, b), labels, prompt_labels)
            if "after" not in cases:
                continue
            scores += _matched(names, cases, variants)
            if labels is not None and "text" in (ours, theirs) and not {ours, theirs} <= {*UNLABELED}:
                images_first = (names[::-1], _swapped(cases)) if ours == "text" else (names, cases)
                scores += [_zero_shot(*images_first, variant) for variant in variants]
    return scores, notes


def _keys(
    modalities: tuple[str, str], items: tuple[Embeddings, Embeddings], labels: LabelsById, prompt_labels: LabelsById
) -> Sequence[np.ndarray]:
    """Return integer keys by which rows of two sides match: ids (or row numbers) or, across modalities, classes."""

    def classes(modality: str, rows: Embeddings) -> np.ndarray:
        if modality not in UNLABELED:
            return labels_of(rows, labels)
        if modality == "text" and prompt_labels is not None:
            return id_texts([prompt_labels[i] for i in rows.ids.tolist()])
        return rows.ids

    if modalities[0] != modalities[1] and not (labels is None and prompt_labels is None):
        return shared_codes(*(classes(m, rows) for m, rows in zip(modalities, items, strict=True)))
    if items[0].has_ids and items[1].has_ids:
        return shared_codes(items[0].ids, items[1].ids)
    check_same_rows(len(items[0]), len(items[1]))
    return [np.arange(len(items[0]))] * 2


def _cases(
    sides: Sides,
    modalities: tuple[str, str],
    mapped: tuple[np.ndarray, np.ndarray],
    labels: LabelsById,
    prompt_labels: LabelsById,
) -> _Cases:
    """Return the rows for each column of ``Score``, as far as widths and keys allow."""
    ours, theirs = modalities
    raw = (sides["source"][ours], sides["target"][theirs])
    keys = _keys(modalities, raw, labels, prompt_labels)
    cases = {"after": (_Keyed(mapped[0], keys[0]), _Keyed(mapped[1], keys[1]))}
    if raw[0].dim == raw[1].dim:
        cases["before"] = (_Keyed(raw[0].vectors, keys[0]), _Keyed(raw[1].vectors, keys[1]))
    for side, items in sides.items():
        if ours == theirs or ours not in items or theirs not in items or items[ours].dim != items[theirs].dim:
            continue
        try:
            own = _keys(modalities, (items[ours], items[theirs]), labels, prompt_labels)
        except ShapeError:  # rows without ids, whose numbers differ
            continue
        cases[side] = (_Keyed(items[ours].vectors, own[0]), _Keyed(items[theirs].vectors, own[1]))
    return {name: both for name, both in cases.items() if np.isin(both[0].keys, both[1].keys).any()}


def _swapped(cases: _Cases) -> _Cases:
    return {name: (b, a) for name, (a, b) in cases.items()}


def _line(
    metric: str,
    names: tuple[str, ...],
    cases: _Cases,
    fn: Callable[[_Keyed, _Keyed], float],
    n: int,
    k: int = 1,
    chance: float | None = None,
    controls: Controls | None = None,
) -> Score:
    """Return one score, of every case whose gallery has at least k rows, with its controls."""
    values: dict[str, Any] = {name: fn(*both) for name, both in cases.items() if len(both[1].keys) >= k}
    if controls is not None:
        values |= {"control_constant": controls.constant, "control_random_rotation": controls.random_rotation}
    return Score(metric, names[0], names[1], n=n, chance=chance, **values)


def _matched(names: tuple[str, str], cases: _Cases, variants: Sequence[Hubness | None]) -> list[Score]:
    """Return the scores of matching rows: their mean cosine, and retrieval in both directions."""
    a, b = cases["after"]
    _, ours, theirs = _counts(a.keys, b.keys)
    controls = control_rows_of(a.vectors, b.vectors).score(lambda rows: _mean_cosine(_Keyed(rows, a.keys), b))
    scores = [_line("cosine", names, cases, _mean_cosine, int(ours @ theirs), controls=controls)]
    for hubness in variants:
        for k in (1, 5, 10):
            scores += _recalls(names, cases, hubness, k)
    return scores


def _recalls(names: tuple[str, str], cases: _Cases, hubness: Hubness | None, k: int) -> list[Score]:
    """Return recall at k in both directions and, for k = 1, also their mean."""
    scores = []
    for direction, both in ((names, cases), (names[::-1], _swapped(cases))):
        queries, gallery = both["after"]
        if len(gallery.keys) >= k:
            keys, counts = np.unique(gallery.keys, return_counts=True)
            known = queries.keys[np.isin(queries.keys, keys)]
            chance = chance_at_k(counts[np.searchsorted(keys, known)], len(gallery.keys), k)
            recall = partial(_recall, k=k, hubness=hubness)
            scores.append(
                _line(f"recall_at_{k}{suffix(hubness)}", direction, both, recall, len(known), k, chance=chance)
            )
    if k == 1:
        means: dict[str, Any] = {}
        for column in ("after", "before", "source", "target", "chance"):
            values = [getattr(score, column) for score in scores]
            means[column] = None if None in values else float(np.mean(values))
        scores.append(Score(f"mean_recall_at_1{suffix(hubness)}", *names, n=sum(score.n for score in scores), **means))
    return scores


def _counts(ours: np.ndarray, theirs: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the keys that both sides have, and the number of rows of each side per key."""
    common = np.intersect1d(ours, theirs)
    first, second = (
        np.bincount(np.searchsorted(common, keys[np.isin(keys, common)]), minlength=len(common))
        for keys in (ours, theirs)
    )
    return common, first, second


def _mean_cosine(a: _Keyed, b: _Keyed) -> float:
    """Return the mean cosine over all n·m matching pairs, from the sums of unit rows per key: n + m operations."""
    common, ours, theirs = _counts(a.keys, b.keys)
    sums = []
    for rows in (a, b):
        kept = np.flatnonzero(np.isin(rows.keys, common))
        total = np.zeros((len(common), rows.vectors.shape[1]))
        unit = normalize_rows(rows.vectors[kept].astype(np.float64))
        np.add.at(total, np.searchsorted(common, rows.keys[kept]), unit)
        sums.append(total)
    return float(np.vdot(*sums) / (ours @ theirs))


def _recall(queries: _Keyed, gallery: _Keyed, k: int, hubness: Hubness | None) -> float:
    """Return the share of queries with a match that find one among their k nearest gallery rows."""
    asked = np.flatnonzero(np.isin(queries.keys, gallery.keys))
    order = np.argsort(gallery.keys, kind="stable")
    starts, stops = (np.searchsorted(gallery.keys[order], queries.keys[asked], side) for side in ("left", "right"))
    relevant = [order[start:stop] for start, stop in zip(starts, stops, strict=True)]
    return recall_at_k(queries.vectors[asked], gallery.vectors, relevant, k, hubness=hubness)


def _zero_shot(names: tuple[str, ...], cases: _Cases, hubness: Hubness | None, *, prompts: bool = True) -> Score:
    """Return the accuracy of classifying images by texts, each class's ``prompts`` being ensembled first."""

    def accuracy(images: _Keyed, texts: _Keyed) -> float:
        prototypes, classes = ensemble_prompts(texts.vectors, texts.keys) if prompts else texts
        known = np.isin(images.keys, classes)
        return zero_shot_accuracy(images.vectors[known], prototypes, images.keys[known], classes, hubness=hubness)

    images, texts = cases["after"]
    n, chance = int(np.isin(images.keys, texts.keys).sum()), 1 / len(np.unique(texts.keys))
    return _line(f"zero_shot{suffix(hubness)}", names, cases, accuracy, n, chance=chance)
