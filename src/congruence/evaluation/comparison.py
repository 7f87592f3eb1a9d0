"""Compare two maps on the same held-out queries, with tests of the paired differences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from congruence._utils.ids import id_texts, text_keys
from congruence._utils.validation import check_choice, check_positive, check_seed
from congruence.embeddings import Embeddings
from congruence.errors import InputError, ParameterError, ShapeError
from congruence.evaluation.compared_rows import FITTED_ROWS, mapped_rows, read_sides, unseen_rows
from congruence.evaluation.paired_tests import bootstrap_intervals, group_sums, holm, mcnemar, sign_flip
from congruence.evaluation.query_scores import Mapped, QueryScores, across, within
from congruence.maps import Map
from congruence.splits import duplicate_groups

if TYPE_CHECKING:
    from congruence._utils.typing import Labels
    from congruence.evaluation.compared_rows import RowsOfSide

__all__ = ["Comparison", "Difference", "compare_maps"]


@dataclass(frozen=True)
class Difference:
    """One measure of two maps on the same queries.

    Attributes
    ----------
    metric : str
        ``"retrieval"``, ``"retrieval_other"``, ``"zero_shot"``, ``"zero_shot_centered"`` and ``"cosine"`` as in
        :class:`~congruence.evaluation.Score`. ``"recall_at_k"``: whether the query's own counterpart is among the k nearest.
        ``"overlap_at_k"``: the share of the k nearest target rows of the target model's own vector that the mapped vector finds too, leaving
        out the item itself.
    query, against : str
        Kind of the queries, and of the rows that are searched.
    first_name, second_name : str
        Names of the two maps.
    first, second : float
        Mean score of each map over the queries.
    difference : float
        ``first − second``: positive if the first map is better.
    low, high : float
        Confidence interval of the difference, from a bootstrap over the groups.
    p_value : float
        For the null hypothesis that the scores of the two maps are exchangeable within each group.
    adjusted_p_value : float
        The p-value after Holm's correction over all lines of the comparison.
    test : {"mcnemar", "sign-flip"}
    wins, losses : int
        Number of queries on which the first map, and the second, scores higher.
    n, n_groups : int
        Number of queries, and of groups of queries.
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
class Comparison:
    """Result of :func:`compare_maps`: plain data.

    Attributes
    ----------
    rows : list of Difference
        One line per measure; retrieval and classification first.
    level : float
        Confidence level of the intervals.
    notes : list of str
        Notes a reader needs to interpret the numbers.
    """

    rows: list[Difference]
    level: float
    notes: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, object]:
        """Return all fields as plain data."""
        return asdict(self)

    def get(self, metric: str, query: str, against: str, second_name: str | None = None) -> Difference:
        """Return one line; if there are several second maps, the line of the one named.

        Raises
        ------
        KeyError
            If there is no such line.
        """
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
        The map that ``A`` is compared with. With a mapping, each of several named maps is compared with ``A``.
    source : Embeddings or array_like, or mapping of str to those, or None
        Rows of the source model, as for :func:`congruence.evaluate`. None if mapped rows are passed for all maps.
    target : Embeddings or array_like, or mapping of str to those
        Rows of the target model.
    modality : str, optional
        Modality of rows that are not in a mapping.
    labels, prompt_labels : mapping of str to str, optional
        Class of each image and of each text by id, as for :func:`congruence.evaluate`.
    metrics : sequence of str, optional
        Measure only these (see :class:`Difference`); Holm's correction is then over fewer lines.
    k : int, default=10
        Number of neighbors for ``recall_at_k`` and ``overlap_at_k``, which need more rows than this.
    name : str, default="A"
        Name of ``A`` in the result; a single other map is named ``"B"``.
    groups : "identical", mapping of str to str, sequence of length n, or None, default="identical"
        Queries whose errors depend on each other, such as photos of one object; groups are resampled and exchanged as a whole. Either queries
        with identical vectors (:func:`congruence.splits.duplicate_groups`), those with equal labels, by id or in the order of the source rows
        (the target rows, if there is no source), or (None) each query on its own. If no query of a line has a label, each is on its own too.
    fitted_rows : {"refuse", "drop", "keep"}, default="refuse"
        What to do with rows that, according to a map's own record, it may have been fitted on: those its ``holdout`` rule does not hold out.
        Use ``"keep"`` for new items, which the rule does not know.
    level : float, default=0.95
        Confidence level of the intervals.
    draws : int, default=2000
        Number of bootstrap samples.
    permutations : int, default=9999
        Number of permutations of the sign-flip test.
    random_state : int, default=0

    Returns
    -------
    Comparison

    Raises
    ------
    NotFittedMapError
        If a map is not fitted.
    InputError
        If a map was fitted on some rows and ``fitted_rows="refuse"``; if no rows are left with ``"drop"``; if nothing can be measured; or if a
        map is passed without source rows.
    ParameterError
        If an option is out of range, or a metric cannot be measured on these data.
    ShapeError, IdError
        If labels or rows cannot be paired.
    SpaceMismatchError, DirectionError, ModalityError, DtypeError, NotFiniteError
        If the rows cannot be used, or do not belong to the maps' spaces.

    Notes
    -----
    Null hypothesis: within each group of queries, the scores of the two maps are exchangeable. Hits of ungrouped queries are compared by
    McNemar's exact test. Other scores, fractional hits under ties, and groups are compared by flipping the signs of the groups'
    sums. Holm's correction is over all lines returned.

    The maps and the gallery are fixed: the result is about these two fitted maps and queries like these. To test whether a *method* is better,
    fit on several samples of the anchors.

    References
    ----------
    McNemar (1947); Holm (1979); Dror et al. (2018), "The hitchhiker's guide to testing statistical significance in natural language
    processing".

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
    check_choice(fitted_rows, FITTED_ROWS, "fitted_rows")
    check_seed(random_state)
    check_positive(k, "k", integer=True)
    check_positive(draws, "draws", integer=True)
    check_positive(permutations, "permutations", integer=True)
    if not 0 < level < 1:
        raise ParameterError(f"Got level={level!r}; expected a number between 0 and 1. Pass level=0.95, for example.")
    compared = _named(name, A, B)
    models = {key: mapping for key, mapping in compared.items() if isinstance(mapping, Map)}
    for mapping in models.values():
        mapping.check_fitted()
    labels, prompt_labels = (None if side is None else text_keys(side) for side in (labels, prompt_labels))
    sides = read_sides(models, source, target, modality)
    label_of = _labels_by_id(groups, sides["source"] or sides["target"])
    sides, notes = unseen_rows(models, sides, labels, prompt_labels, fitted_rows)
    maps = [mapped_rows(key, rows, sides, prompt_labels) for key, rows in compared.items()]
    scored = _score(maps, sides, labels, k)
    measured = list(dict.fromkeys(name for scores in scored for name in scores.scores))
    missing = [name for name in metrics or () if name not in measured]
    if missing:
        raise ParameterError(
            f"Got metrics with {missing[0]!r}; expected some of {', '.join(measured)}, which can be measured on these rows. Pass metrics=… with these names only."
        )
    rng = np.random.default_rng(random_state)
    lines: list[dict[str, Any]] = []
    for scores in scored:
        chosen = [name for name in scores.scores if metrics is None or name in metrics]
        if chosen:
            group = _groups(groups, label_of, scores)
            lines += _differences(
                [side.name for side in maps], scores, chosen, group, (level, draws, permutations), rng
            )
    adjusted = holm(np.array([line["p_value"] for line in lines]))
    rows = [Difference(**line, adjusted_p_value=float(p)) for line, p in zip(lines, adjusted, strict=True)]
    return Comparison(sorted(rows, key=lambda row: row.metric == "cosine"), level, notes)


def _named(name: str, A: Any, B: Any) -> dict[str, Any]:
    """Return the maps, or mapped rows, by name, the first one first. Raises ParameterError if a name is repeated."""
    several = isinstance(B, Mapping) and any(isinstance(value, Map) for value in B.values())
    others = {str(other): value for other, value in B.items()} if several else {"B": B}
    if name in others:
        raise ParameterError(f"Got {name!r} as the name of two maps; expected different ones. Pass another name=….")
    return {name: A, **others}


def _labels_by_id(
    groups: Labels | Mapping[str, str] | str | None, side: Mapping[str, Embeddings]
) -> dict[str, str] | None:
    """Return the group of each query by id, if groups are given."""
    if groups is None or isinstance(groups, str):
        if groups is not None:
            check_choice(groups, ("identical",), "groups")
        return None
    if isinstance(groups, Mapping):
        return text_keys(groups)
    rows = next((items for items in side.values() if len(items) == len(groups)), None)
    if rows is None:
        sizes = ", ".join(str(len(items)) for items in side.values())
        raise ShapeError(
            f"Got {len(groups)} groups for {sizes} rows; expected one per row. Pass groups=… with a label for each row, or by id."
        )
    return dict(zip(id_texts(rows.ids).tolist(), np.asarray(groups).tolist(), strict=True))


def _groups(groups: object, label_of: Mapping[str, object] | None, scores: QueryScores) -> np.ndarray | None:
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
                f"Got {len(missing)} queries without a group ({missing[0]!r}, …); expected one for each. Pass groups=… with the group of every id."
            )
        labels = np.unique(np.array([str(label_of[name]) for name in scores.ids.tolist()]), return_inverse=True)[1]
    return labels if len(np.unique(labels)) < len(labels) else None


def _score(
    maps: list[Mapped], sides: Mapping[str, Mapping[str, Embeddings]], labels: Mapping[str, str] | None, k: int
) -> list[QueryScores]:
    """Score every query that all maps can answer."""
    scored = []
    for m, native in sides["target"].items():
        if all(m in side.aligned and m in side.target for side in maps):
            source = sides["source"].get(m)
            scored.append(within(maps, m, native, source, labels if m == "image" else None, k))
    for which in (("aligned", "target"), ("target", "aligned")):
        scores = across(maps, which, sides["source"], labels)
        if scores is not None:
            scored.append(scores)
    if not scored:
        raise InputError(
            "Got embeddings between which nothing can be compared; expected the same items in both models, or images of one and texts of the other. Pass the same items, with the same ids, for both."
        )
    return scored


def _differences(
    names: list[str],
    queries: QueryScores,
    metrics: list[str],
    groups: np.ndarray | None,
    settings: tuple[float, int, int],
    rng: np.random.Generator,
) -> list[dict[str, object]]:
    """Compare the first map with every other on each measure of the same queries."""
    level, draws, permutations = settings
    scores = np.stack([queries.scores[name] for name in metrics], axis=2)  # (queries, maps, measures)
    n, lines = len(scores), []
    for other in range(1, len(names)):
        first, second = scores[:, 0], scores[:, other]
        sums, sizes = group_sums(first - second, groups)
        largest = np.array([2.0 if name == "cosine" else 1.0 for name in metrics])
        ends = bootstrap_intervals(sums, sizes, level, draws, rng, largest)
        for q, name in enumerate(metrics):
            a, b = first[:, q], second[:, q]
            hits = groups is None and bool(np.isin((a, b), (0.0, 1.0)).all()) and name != "cosine"
            p = mcnemar(a, b) if hits else sign_flip(sums[:, q], permutations, rng)
            lines.append(
                {
                    "metric": name,
                    "query": queries.query,
                    "against": queries.against,
                    "first_name": names[0],
                    "second_name": names[other],
                    "first": float(a.mean()),
                    "second": float(b.mean()),
                    "difference": float((a - b).mean()),
                    "low": float(ends[0, q]),
                    "high": float(ends[1, q]),
                    "p_value": p,
                    "test": "mcnemar" if hits else "sign-flip",
                    "wins": int(np.count_nonzero(a > b)),
                    "losses": int(np.count_nonzero(b > a)),
                    "n": n,
                    "n_groups": len(sizes),
                }
            )
    return lines
