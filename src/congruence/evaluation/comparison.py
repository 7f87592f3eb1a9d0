"""Which of two maps is better, and by more than chance: paired differences on the same held-out queries."""

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
    from congruence.evaluation.compared_rows import RowsOfSide

__all__ = ["Comparison", "Difference", "compare_maps"]


@dataclass(frozen=True)
class Difference:
    """One measure of two maps on the same queries.

    Attributes
    ----------
    metric : str
        ``"retrieval"``, ``"retrieval_other"``, ``"zero_shot"``, ``"zero_shot_centered"`` and ``"cosine"`` as in
        :class:`~congruence.evaluation.Score`; ``"recall_at_k"``: the query's own counterpart is among the k nearest;
        ``"overlap_at_k"``: the share of the k nearest target rows of the target model's own vector that the mapped one finds too, the
        item itself left out.
    query, against : str
        What searches what.
    first_name, second_name : str
        The two maps.
    first, second : float
        Their means over the queries.
    difference : float
        ``first − second``: positive where the first is better.
    low, high : float
        Its interval, by a bootstrap of the groups.
    p_value : float
        Of the hypothesis that which of the two made which score is exchangeable within each group.
    adjusted_p_value : float
        After Holm, over all lines of the comparison.
    test : {"mcnemar", "sign-flip"}
    wins, losses : int
        Queries on which the first, and the second, scores higher.
    n, n_groups : int
        Queries, and groups of them.
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
    """Outcome of :func:`compare_maps`: plain data.

    Attributes
    ----------
    rows : list of Difference
        Retrieval and classification first.
    level : float
        Of the intervals.
    notes : list of str
        What a reader must know to read the numbers.
    """

    rows: list[Difference]
    level: float
    notes: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, object]:
        """Return everything as plain data."""
        return asdict(self)

    def get(self, metric: str, query: str, against: str, second_name: str | None = None) -> Difference:
        """Return one line; of several second maps that of the one named.

        Raises
        ------
        KeyError
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
    groups: object = "identical",
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
        A fitted map; or rows that were mapped already, paired with the target's, by modality or of one.
    B : as A, or mapping of str to Map
        What ``A`` is compared with. Several maps by name are each compared with ``A``.
    source : Embeddings or array_like, or mapping of str to those, or None
        Rows of the source model, as for :func:`congruence.evaluate`. None where mapped rows are given for all.
    target : Embeddings or array_like, or mapping of str to those
        Rows of the target model.
    modality : str, optional
        Of rows that are not in a mapping.
    labels, prompt_labels : mapping of str to str, optional
        Class of each image and of each text by id, as for :func:`congruence.evaluate`.
    metrics : sequence of str, optional
        Measure only these (:class:`Difference`): Holm's correction then pays for fewer.
    k : int, default=10
        Neighbors of ``recall_at_k`` and ``overlap_at_k``, which need more rows than that.
    name : str, default="A"
        What the result calls ``A``; a single other map is ``"B"``.
    groups : "identical", mapping of str to str, sequence of length n, or None, default="identical"
        Queries whose errors depend on each other, such as photos of one object: they are resampled, and exchanged, together. Those
        with identical vectors (:func:`congruence.splits.duplicate_groups`), those with equal labels by id or by the order of the source's
        rows (of the target's, without source), or each by itself. Where none of a line's queries has a label, each stands by itself too.
    fitted_rows : {"refuse", "drop", "keep"}, default="refuse"
        Rows that a map's own record says it may have been fitted on: those its ``holdout`` rule does not hold out. ``"keep"`` is for new
        items, of which the rule knows nothing.
    level : float, default=0.95
        Of the intervals.
    draws : int, default=2000
        Of the bootstrap.
    permutations : int, default=9999
        Of the sign-flip test.
    random_state : int, default=0

    Returns
    -------
    Comparison

    Raises
    ------
    InputError
        Rows a map was fitted on, under ``fitted_rows="refuse"``; none left, under ``"drop"``; nothing that can be measured; no source for a
        map.
    ParameterError
        An option out of range, or a metric that cannot be measured here.
    ShapeError, IdError
        Labels or rows that do not pair.
    SpaceMismatchError, DirectionError, ModalityError, DtypeError, NotFiniteError

    Notes
    -----
    Null hypothesis: within each group of queries it is exchangeable which of the two maps made which scores. Hits of queries that each
    stand alone are compared by McNemar's exact test; other scores, hits shared under ties, and groups by flipping the signs of the groups'
    sums. Holm's correction is over all lines returned.

    The maps and the gallery are fixed: the result is about these two fitted maps and queries like these. Whether a *method* is better
    needs fits on several draws of the anchors.

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
    given = _named(name, A, B)
    models = {key: one for key, one in given.items() if isinstance(one, Map)}
    for one in models.values():
        one._check_fitted()
    labels, prompt_labels = (None if one is None else text_keys(one) for one in (labels, prompt_labels))
    sides = read_sides(models, source, target, modality)
    label_of = _labels_by_id(groups, sides["source"] or sides["target"])
    sides, notes = unseen_rows(models, sides, labels, prompt_labels, fitted_rows)
    maps = [mapped_rows(key, one, sides, prompt_labels) for key, one in given.items()]
    found = _score(maps, sides, labels, k)
    known = list(dict.fromkeys(name for scores in found for name in scores.scores))
    missing = [name for name in metrics or () if name not in known]
    if missing:
        raise ParameterError(
            f"Got metrics with {missing[0]!r}; expected some of {', '.join(known)}, which these rows allow. Pass metrics=… with names of these alone."
        )
    rng = np.random.default_rng(random_state)
    lines: list[dict[str, Any]] = []
    for scores in found:
        chosen = [name for name in scores.scores if metrics is None or name in metrics]
        if chosen:
            together = _groups(groups, label_of, scores)
            lines += _differences(
                [one.name for one in maps], scores, chosen, together, (level, draws, permutations), rng
            )
    adjusted = holm(np.array([line["p_value"] for line in lines]))
    rows = [Difference(**line, adjusted_p_value=float(p)) for line, p in zip(lines, adjusted, strict=True)]
    return Comparison(sorted(rows, key=lambda row: row.metric == "cosine"), level, notes)


def _named(name: str, A: Any, B: Any) -> dict[str, Any]:
    """Return what is compared by name, the first first."""
    several = isinstance(B, Mapping) and any(isinstance(one, Map) for one in B.values())
    others = {str(other): one for other, one in B.items()} if several else {"B": B}
    if name in others:
        raise ParameterError(f"Got {name!r} as the name of two maps; expected different ones. Pass another name=….")
    return {name: A, **others}


def _labels_by_id(groups: Any, side: Mapping[str, Embeddings]) -> dict[str, Any] | None:
    """Return the group of each query by id, where groups are given."""
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
            f"Got {len(groups)} groups for {sizes} rows; expected one a row. Pass groups=… with a label for each row, or by id."
        )
    return dict(zip(id_texts(rows.ids).tolist(), np.asarray(groups).tolist(), strict=True))


def _groups(groups: object, label_of: Mapping[str, object] | None, scores: QueryScores) -> np.ndarray | None:
    """Return the group of each query, or None where each stands alone."""
    if groups is None:
        return None
    if label_of is None:
        labels = duplicate_groups(scores.vectors)
    else:
        alone = [name for name in scores.ids.tolist() if name not in label_of]
        if len(alone) == len(scores.ids):  # labels of the images, and the queries are texts
            return None
        if alone:
            raise InputError(
                f"Got {len(alone)} queries without a group ({alone[0]!r}, …); expected one for each. Pass groups=… with the group of every id."
            )
        labels = np.unique(np.array([str(label_of[name]) for name in scores.ids.tolist()]), return_inverse=True)[1]
    return labels if len(np.unique(labels)) < len(labels) else None


def _score(
    maps: list[Mapped], sides: Mapping[str, Mapping[str, Embeddings]], labels: Mapping[str, str] | None, k: int
) -> list[QueryScores]:
    """Score every query that all maps answer."""
    found = []
    for m, native in sides["target"].items():
        if all(m in one.aligned and m in one.target for one in maps):
            source = sides["source"].get(m)
            found.append(within(maps, m, native, source, labels if m == "image" else None, k))
    for which in (("aligned", "target"), ("target", "aligned")):
        scores = across(maps, which, sides["source"], labels)
        if scores is not None:
            found.append(scores)
    if not found:
        raise InputError(
            "Got embeddings between which nothing can be compared; expected the same items in both models, or images of one and texts of the other. Pass the same items, with the same ids, for both."
        )
    return found


def _differences(
    names: list[str],
    found: QueryScores,
    metrics: list[str],
    groups: np.ndarray | None,
    settings: tuple[float, int, int],
    rng: np.random.Generator,
) -> list[dict[str, object]]:
    """Compare the first map with every other on each measure of the same queries."""
    level, draws, permutations = settings
    scores = np.stack([found.scores[name] for name in metrics], axis=2)  # (queries, maps, measures)
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
                    "query": found.query,
                    "against": found.against,
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
