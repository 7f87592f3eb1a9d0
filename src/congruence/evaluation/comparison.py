"""Compare two maps on the same held-out queries, with tests of the paired differences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from congruence._utils.arrays import blocks
from congruence._utils.ids import id_texts, text_keys
from congruence._utils.plain import PlainData
from congruence._utils.validation import check_choice, check_positive, check_seed
from congruence.embeddings import Embeddings, Pairs, as_embeddings, normalize_rows
from congruence.errors import IdError, InputError, ParameterError, ShapeError
from congruence.evaluation.paired_tests import bootstrap_intervals, group_sums, holm, mcnemar, sign_flip
from congruence.evaluation.scores import (
    UNLABELED,
    LabelsById,
    RowsOfSide,
    Sides,
    ensembled,
    held_out,
    labels_of,
    map_for,
    read_sides,
    shared_codes,
    with_vectors,
)
from congruence.maps import HeadsMap, Map
from congruence.metrics import paired_cosines, top1_scores
from congruence.metrics.retrieval import check_prototypes
from congruence.metrics.search import neighbor_overlap
from congruence.splits import duplicate_groups

if TYPE_CHECKING:
    from congruence._utils.typing import Labels


@dataclass(frozen=True)
class Difference:
    """One measure of two maps on the same queries.

    - ``metric``: ``"retrieval"``, ``"retrieval_other"``, ``"zero_shot"`` and ``"cosine"`` as in ``Score``;
      ``"recall_at_k"``: whether the query's own counterpart is among the k nearest; ``"overlap_at_k"``: the share of
      the k nearest rows of the target model's own vector, without the item itself, that the mapped vector finds too.
    - ``first``, ``second``: Mean score of each map over the queries; ``difference`` is positive if the first is better,
      and has an interval (``low``, ``high``) from a bootstrap over the groups.
    - ``p_value``: For the null hypothesis that the scores of the two maps are exchangeable within each group;
      ``adjusted_p_value`` is corrected (Holm) over all lines of the comparison.
    - ``wins``, ``losses``: Number of queries on which the first map, and the second, scores higher.
    """

    metric: str
    query: str
    against: str
    first_name: str
    second_name: str
    first: float
    second: float
    difference: float
    low: float
    high: float
    p_value: float
    adjusted_p_value: float
    test: str
    wins: int
    losses: int
    n: int
    n_groups: int


@dataclass(frozen=True)
class Comparison(PlainData):
    """Result of ``compare_maps``: one line per measure, the confidence level of the intervals, and notes."""

    rows: list[Difference]
    level: float
    notes: list[str] = field(default_factory=list)

    def get(self, metric: str, query: str, against: str, second_name: str | None = None) -> Difference:
        """Return one line; if there are several second maps, that of the one named."""
        for row in self.rows:
            same = (row.metric, row.query, row.against) == (metric, query, against)
            if same and second_name in (None, row.second_name):
                return row
        raise KeyError((metric, query, against, second_name))


def compare_maps(
    A: Map | RowsOfSide | Mapping[str, Map | RowsOfSide],
    B: Map | RowsOfSide | Mapping[str, Map | RowsOfSide],
    source: RowsOfSide | None,
    target: RowsOfSide,
    *,
    modality: str | None = None,
    labels: Mapping[str, str] | None = None,
    prompt_labels: Mapping[str, str] | None = None,
    metrics: Sequence[str] | None = None,
    k: int = 10,
    name: str = "A",
    groups: Labels | Mapping[str, str] | str | None = "identical",
    fitted_rows: str = "refuse",
    level: float = 0.95,
    draws: int = 2000,
    permutations: int = 9999,
    random_state: int = 0,
) -> Comparison:
    """Test whether one map is better than another on the same held-out rows.

    Parameters
    ----------
    A : Map, or Embeddings or array_like of shape (n, d), or mapping of str to those
        A fitted map, or rows that are already mapped, paired with the target's rows, by modality or of one modality.
    B : as A, or mapping of str to Map
        The map that ``A`` is compared with, or several by name.
    source, target : Embeddings or array_like, or mapping of str to those
        As for ``congruence.evaluate``, and ``labels`` and ``prompt_labels``. ``source`` is None for mapped rows.
    metrics : sequence of str, optional
        Measure only these (see ``Difference``); Holm's correction is then over fewer lines.
    groups : "identical", mapping of str to str, sequence of length n, or None, default="identical"
        Queries whose errors depend on each other, such as photos of one object; groups are resampled and exchanged as a
        whole. Either queries with identical vectors, those with equal labels, by id or in the order of the source rows,
        or (None) each query on its own. If no query of a line has a label, each is on its own too.
    fitted_rows : {"refuse", "drop", "keep"}, default="refuse"
        What to do with rows that a map's ``holdout`` rule does not hold out, so that it may have been fitted on them.
        Use ``"keep"`` for new items, which the rule does not know.

    Notes
    -----
    Hits of ungrouped queries are compared by McNemar's exact test; other scores, and groups, by flipping the signs of
    the groups' sums (Dror et al. 2018). The result is about these two fitted maps and queries like these. To test
    whether a *method* is better, fit on several samples of the anchors.

    Examples
    --------
    >>> from congruence import OrthogonalMap
    >>> from congruence.synthetic import rigid_problem
    >>> problem = rigid_problem(n=300, d_source=16, noise=0.3, random_state=0)
    >>> few, many = (OrthogonalMap().fit(problem.X[:n], problem.Y[:n]) for n in (8, 100))
    >>> found = compare_maps(many, few, problem.X[100:], problem.Y[100:])
    >>> line = found.get("cosine", "aligned other", "target other")
    >>> bool(line.low > 0 and line.adjusted_p_value < 0.01)
    True
    """
    check_choice(fitted_rows, ("refuse", "drop", "keep"), "fitted_rows")
    check_seed(random_state)
    check_positive(k, "k", integer=True)
    check_positive(draws, "draws", integer=True)
    check_positive(permutations, "permutations", integer=True)
    if not 0 < level < 1:
        raise ParameterError(argument="level", got=level, expected="a number between 0 and 1", fix="Pass `level=0.95`.")
    others: dict[str, Any] = {"B": B}
    if isinstance(B, Mapping) and any(isinstance(value, Map) for value in B.values()):
        others = {str(other): value for other, value in B.items()}
    if name in others:
        raise ParameterError(f"Two maps have the name {name!r}.", "Pass another `name=…`.")
    compared: dict[str, Any] = {name: A, **others}
    models = {key: mapping for key, mapping in compared.items() if isinstance(mapping, Map)}
    for mapping in models.values():
        mapping.check_fitted()
    labels, prompt_labels = (None if side is None else text_keys(side) for side in (labels, prompt_labels))
    sides = read_sides(models, source, target, modality)
    label_of = _groups_by_id(groups, sides["source"] or sides["target"])
    sides, notes = _unseen_rows(models, sides, labels, prompt_labels, fitted_rows)
    maps = [_mapped_rows(key, rows, sides, prompt_labels) for key, rows in compared.items()]
    scored = _score(maps, {side: ensembled(items, prompt_labels) for side, items in sides.items()}, labels, k)
    measured = list(dict.fromkeys(name for scores in scored for name in scores.scores))
    missing = [name for name in metrics or () if name not in measured]
    if missing:
        raise ParameterError(
            f"These rows have no {missing[0]!r}, but {', '.join(measured)}.", "Pass `metrics=…` with these names only."
        )
    rng = np.random.default_rng(random_state)
    lines: list[Difference] = []
    for scores in scored:
        chosen = [name for name in scores.scores if metrics is None or name in metrics]
        if chosen:
            group = _groups(groups, label_of, scores)
            lines += _differences(list(compared), scores, chosen, group, (level, draws, permutations), rng)
    adjusted = holm(np.array([line.p_value for line in lines]))
    rows = [replace(line, adjusted_p_value=float(p)) for line, p in zip(lines, adjusted, strict=True)]
    return Comparison(sorted(rows, key=lambda row: row.metric == "cosine"), level, notes)


# ------------------------------------------------------------------ rows


@dataclass(frozen=True)
class _MappedRows:
    """The mapped rows to compare, by modality, and the target's rows beside them, which a joint-space map maps too."""

    name: str
    aligned: Mapping[str, Embeddings]
    target: Mapping[str, Embeddings]


def _unseen_rows(
    models: Mapping[str, Map], sides: Sides, labels: LabelsById, prompt_labels: LabelsById, fitted_rows: str
) -> tuple[Sides, list[str]]:
    """Leave out, or refuse, rows that a map may have been fitted on by its own record; note what cannot be decided."""
    notes: list[str] = []
    if fitted_rows == "keep":
        return sides, notes
    kept = {side: dict(items) for side, items in sides.items()}
    for name, mapping in models.items():
        if "holdout" not in mapping.scores_:
            notes.append(
                f"{name} was fitted without held-out pairs: whether its anchors are among these rows is not known."
            )
            continue
        for side, items in kept.items():
            for m, unseen in held_out(mapping, items, labels, prompt_labels).items():
                rows = items[m]
                if fitted_rows == "refuse" and not rows.has_ids:
                    notes.append(f"The {side}'s {m} rows have no ids: whether {name} was fitted on them is not known.")
                    continue
                fitted_on = np.count_nonzero(~unseen)
                if fitted_rows == "refuse" and fitted_on:
                    raise InputError(
                        f"{name} may have been fitted on {fitted_on:,} of {len(rows):,} {m} rows.",
                        "Pass `fitted_rows='drop'`, or `fitted_rows='keep'` for new items.",
                    )
                if not unseen.any():
                    raise InputError(
                        f"No {m} row was held out by all maps.",
                        "Fit with one `holdout=…`, or pass `fitted_rows='keep'` for new items.",
                    )
                items[m] = rows.take(unseen)
    return kept, notes


def _mapped_rows(name: str, map_or_rows: Map | RowsOfSide, sides: Sides, prompt_labels: LabelsById) -> _MappedRows:
    """Map the source rows, or use rows that are already mapped; texts of a class are ensembled after mapping."""
    target = dict(sides["target"])
    if isinstance(map_or_rows, Map):
        ours, theirs = map_or_rows.source_space_.modality, map_or_rows.target_space_.modality
        joint = isinstance(map_or_rows, HeadsMap)
        aligned = {
            m: with_vectors(rows, map_for(map_or_rows, m).transform(rows.vectors))
            for m, rows in sides["source"].items()
            if not joint or ours == theirs or ours in (None, m)  # a cross-modal map applies to the source's modality
        }
        if joint:
            target = {m: with_vectors(rows, map_or_rows.transform_target(rows.vectors)) for m, rows in target.items()}
    elif isinstance(map_or_rows, Mapping):
        aligned = {m: as_embeddings(rows, f"{name}[{m!r}]").by_text() for m, rows in map_or_rows.items()}
    elif len(target) == 1:
        aligned = {next(iter(target)): as_embeddings(map_or_rows, name).by_text()}
    else:
        raise InputError(
            f"The mapped rows of {name} may be of {', '.join(target)}.", "Pass them in a dict by modality."
        )
    return _MappedRows(name, ensembled(aligned, prompt_labels), ensembled(target, prompt_labels))


def _check_same(mapped: _MappedRows, first: _MappedRows, modality: str, rows: Embeddings, known: Embeddings) -> None:
    """Check that the rows belong to the first map's items, in the same order."""
    if len(rows) != len(known) or (rows.has_ids and (id_texts(rows.ids) != id_texts(known.ids)).any()):
        raise IdError(
            f"Got {len(rows)} {modality} rows of {mapped.name!r}, not the {len(known)} of {first.name!r}.",
            "Pass the same ids for all.",
        )


def _groups_by_id(
    groups: Labels | Mapping[str, str] | str | None, side: Mapping[str, Embeddings]
) -> dict[str, str] | None:
    """Return the group of each query by id, if groups are given."""
    if groups is None or isinstance(groups, str):
        check_choice(groups or "identical", ("identical",), "groups")
        return None
    if isinstance(groups, Mapping):
        return text_keys(groups)
    rows = next((items for items in side.values() if len(items) == len(groups)), None)
    if rows is None:
        sizes = ", ".join(str(len(items)) for items in side.values())
        raise ShapeError(f"Got {len(groups)} groups for {sizes} rows.", "Pass a label for each row as `groups=…`.")
    return dict(zip(id_texts(rows.ids).tolist(), np.asarray(groups).tolist(), strict=True))


def _groups(groups: object, label_of: Mapping[str, object] | None, scores: _QueryScores) -> np.ndarray | None:
    """Return the group of each query, or None if each query is on its own."""
    if groups is None:
        return None
    if label_of is None:
        labels = duplicate_groups(scores.vectors)
    else:
        missing = [name for name in scores.ids.tolist() if name not in label_of]
        if len(missing) == len(scores.ids):  # the labels are those of images, and the queries are texts
            return None
        if missing:
            raise InputError(
                f"{len(missing)} queries have no group ({missing[0]!r}, …).", "Add their ids to `groups=…`."
            )
        labels = np.unique(np.array([str(label_of[name]) for name in scores.ids.tolist()]), return_inverse=True)[1]
    return labels if len(np.unique(labels)) < len(labels) else None


# ------------------------------------------------------------------ scores of individual queries


@dataclass(frozen=True)
class _QueryScores:
    """Scores (n, maps) by measure of the same queries, of these unmapped ``vectors``, under several maps."""

    query: str
    against: str
    ids: np.ndarray
    vectors: np.ndarray
    scores: dict[str, np.ndarray]


def _score(maps: list[_MappedRows], sides: Sides, labels: LabelsById, k: int) -> list[_QueryScores]:
    """Score every query that all maps can answer."""
    scored = []
    for m, native in sides["target"].items():
        if all(m in side.aligned and m in side.target for side in maps):
            source = sides["source"].get(m)
            scored.append(_within(maps, m, native, source, labels if m not in UNLABELED else None, k))
    kinds = dict.fromkeys(m for side in sides.values() for m in side if m not in UNLABELED)
    for kind, which in product(kinds, (("aligned", "target"), ("target", "aligned"))):
        scores = _across(maps, which, kind, sides["source"], labels)
        if scores is not None:
            scored.append(scores)
    if not scored:
        raise InputError("The two sides have no items or classes in common.", "Pass the same ids for both.")
    return scored


def hits_at_k(queries: np.ndarray, gallery: np.ndarray, k: int) -> np.ndarray:
    """Return whether each query's own gallery row is among its k nearest (n,); for ties, with what probability."""
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


def _within(
    maps: list[_MappedRows], modality: str, native: Embeddings, source: Embeddings | None, labels: LabelsById, k: int
) -> _QueryScores:
    """Score every mapped row against the target's rows of the same items, whose own ones are ``native``."""
    pairs = [Pairs.join(mapped.aligned[modality], mapped.target[modality]) for mapped in maps]
    ids = id_texts(pairs[0].ids)
    first = Embeddings(pairs[0].source.vectors, ids=ids, allow_zero_rows=True)
    for mapped, joined in zip(maps, pairs, strict=True):
        _check_same(mapped, maps[0], modality, joined.source, first)
    n = len(ids)
    classes = labels_of(Embeddings(pairs[0].target.vectors, ids=ids, allow_zero_rows=True), labels)
    _, group, sizes = np.unique(id_texts(classes), return_inverse=True, return_counts=True)
    own = Pairs.join(maps[0].aligned[modality], native).target.vectors
    columns: dict[str, list[np.ndarray]] = {}
    for rows, gallery in pairs:
        by_name = {"retrieval": top1_scores(rows, gallery, group, group)}
        if len(sizes) < n:  # an item's own counterpart is easy to find: leave it out as well
            by_name["retrieval_other"] = top1_scores(rows, gallery, group, group, exclude_self=True)
        if n > k:
            by_name[f"recall_at_{k}"] = hits_at_k(rows, gallery, k)
        if n > k + 1:
            lists = (rows, gallery), (own, own)
            by_name[f"overlap_at_{k}"] = neighbor_overlap(*lists, k, left_out=np.arange(n))
        by_name["cosine"] = paired_cosines(rows, gallery)
        for name, scores in by_name.items():
            columns.setdefault(name, []).append(scores)
    before = own if source is None else Pairs.join(source, native).source.vectors
    scored = {name: np.stack(each, axis=1) for name, each in columns.items()}
    return _QueryScores(f"aligned {modality}", f"target {modality}", ids, before, scored)


def _across(
    maps: list[_MappedRows], which: tuple[str, str], kind: str, source: Mapping[str, Embeddings], labels: LabelsById
) -> _QueryScores | None:
    """Classify images (or sounds, videos) by texts, one of them mapped: ``which`` names both sides. None if this cannot
    be measured.
    """
    columns = []
    first: Embeddings | None = None
    for mapped in maps:
        images, texts = getattr(mapped, which[0]).get(kind), getattr(mapped, which[1]).get("text")
        if images is None or texts is None or images.dim != texts.dim:
            return None
        if first is None:
            first = images.by_text()
        _check_same(mapped, maps[0], kind, images, first)
        of_image, of_text = shared_codes(labels_of(first, labels), texts.ids)
        known = np.isin(of_image, of_text)
        if not known.any():
            return None
        scores = np.full(len(images), np.nan)  # images whose class is not among the texts are not queries
        check_prototypes(of_text)
        scores[known] = top1_scores(images.vectors[known], texts.vectors, of_image[known], of_text)
        columns.append(scores)
    assert first is not None
    scores = np.stack(columns, axis=1)
    kept = np.isfinite(scores).all(axis=1)
    before = source.get(kind) if which[0] == "aligned" else None
    vectors = (first if before is None else before).vectors[kept]
    return _QueryScores(f"{which[0]} {kind}", f"{which[1]} text", first.ids[kept], vectors, {"zero_shot": scores[kept]})


def _differences(
    names: list[str],
    queries: _QueryScores,
    metrics: list[str],
    groups: np.ndarray | None,
    settings: tuple[float, int, int],
    rng: np.random.Generator,
) -> list[Difference]:
    """Compare the first map with every other on each measure of the same queries."""
    level, draws, permutations = settings
    scores = np.stack([queries.scores[name] for name in metrics], axis=2)  # (queries, maps, measures)
    n, lines = len(scores), list[Difference]()
    for other in range(1, len(names)):
        first, second = scores[:, 0], scores[:, other]
        sums, sizes = group_sums(first - second, groups)
        largest = np.array([2.0 if name == "cosine" else 1.0 for name in metrics])
        ends = bootstrap_intervals(sums, sizes, level, draws, rng, largest)
        for q, name in enumerate(metrics):
            a, b = first[:, q], second[:, q]
            hits = groups is None and bool(np.isin((a, b), (0.0, 1.0)).all()) and name != "cosine"
            p = mcnemar(a, b) if hits else sign_flip(sums[:, q], permutations, rng)
            what = (name, queries.query, queries.against, names[0], names[other])
            means = float(a.mean()), float(b.mean()), float((a - b).mean())
            ends_of, test = (float(ends[0, q]), float(ends[1, q])), "mcnemar" if hits else "sign-flip"
            wins = int(np.sum(a > b)), int(np.sum(b > a))
            lines.append(Difference(*what, *means, *ends_of, p, p, test, *wins, n, len(sizes)))
    return lines
