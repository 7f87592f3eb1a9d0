"""Choose a map by how much of left-out pairs it gets right.

A rotation fitted on texts also maps images; a linear map may retrieve texts better but degrade images. It is therefore
a candidate only if rows of no other modality will be mapped. Where the widths agree, the two models may be related:
then rotations near the identity are candidates, and the identity itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from congruence._utils.arrays import blocks
from congruence._utils.plain import PlainData
from congruence._utils.validation import check_choice
from congruence.embeddings import normalize_rows
from congruence.errors import InputError, ParameterError
from congruence.linalg.distribution import distinct
from congruence.linalg.moments import CrossMoments, pooled_cross, pooled_size
from congruence.linalg.procrustes import CrossSVD, half_svd, near_identity
from congruence.linalg.shrinkage import SHRINKAGES, choose_gains, mean_isometry
from congruence.maps import OrthogonalMap, make_map
from congruence.maps.readout import Measured, find_lift
from congruence.splits import duplicate_groups, equal_rows

#: Share of the anchors' offset μ_B − μ_A @ rotation that is used for a modality whose target mean is unknown;
#: docs/research/readouts.md gives the reason and the data on which it was chosen.
OFFSET = 0.5


class Product(NamedTuple):
    """A map of rows without their mean, and the map back."""

    forward: Callable[[np.ndarray], np.ndarray]
    backward: Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True, eq=False)
class Candidate:
    """A candidate map: its description, its method and its parameters."""

    name: str
    method: str
    parameters: Mapping[str, Any] = field(default_factory=dict)

    def chosen(self, evidence: str, *facts: Any, **others: Any) -> Choice:
        """Return the choice of this map; the arguments are the fields of ``Choice`` after its name and parameters."""
        return Choice(self.name, self.method, dict(self.parameters), evidence, *facts, **others)


ROTATION = Candidate("rotation about the means", "orthogonal")

#: Rotations of models that may be related, by the weight of the identity.
RELATED = (
    *(
        Candidate(f"rotation near the identity ({weight:g})", "orthogonal", {"identity": weight})
        for weight in (0.03, 0.1, 0.3, 1.0)
    ),
    Candidate("identity about the means", "orthogonal", {"identity": 1e6}),
)
NEAR = RELATED[1]  # the one that shows whether the models are related
UNMAPPED = RELATED[-1]  # which shows it without a fit
#: Share of left-out pairs that must find each other by it: with few pairs a rotation can be worse than that by chance.
RELATED_FIND = 0.5
#: Fewest pairs and dimensions that show whether models are related, and the cosine of pairs, without their means, from
#: which they are, or if it is less, in multiples of its standard deviation by chance, where all items lie on a line.
FEWEST_RELATED, NARROW, RELATED_COSINE, CHANCE = 3, 16, 0.5, 4.0
#: Cosine of unmapped pairs, without their means, below which the identity is of no use: models that are not related
#: reach .03, and those that are .25 or more.
UNRELATED = 0.05
LINEAR = (
    Candidate("ridge regression", "linear"),
    Candidate("ridge regression without intercept", "linear", {"center": False}),
    Candidate("least squares with intercept", "linear", {"ridge": 0.0}),
)


def in_span(*tables: np.ndarray, most: float = 0.8) -> list[np.ndarray]:
    """Return rows of one width in an orthonormal basis of all their span, in which their products are the same; or the
    rows themselves, if they are more than ``most`` of their width. Equal rows stay equal.
    """
    some = np.concatenate([table[: 2 * table.shape[1]] for table in tables])
    if len(np.unique(equal_rows(some))) > most * some.shape[1]:
        return list(tables)
    rows = np.concatenate(tables)
    first, labels = np.unique(equal_rows(rows), return_index=True, return_inverse=True)[1:]
    if len(first) > most * rows.shape[1]:
        return list(tables)
    triangle: Any = np.linalg.qr(rows[first].T.astype(np.float64), mode="r")
    return np.split(np.ascontiguousarray(triangle.T)[labels], np.cumsum([len(table) for table in tables])[:-1])


class FittedPairs:
    """The pairs that candidates are fitted on; what several candidates need is computed once. ``narrow``: dimensions of
    the narrower model, if the rows are in coordinates of their span.
    """

    def __init__(
        self,
        X: np.ndarray,
        Y: np.ndarray,
        which: np.ndarray,
        moments: CrossMoments | None = None,
        narrow: int | None = None,
    ) -> None:
        self._pairs, self._which, self.moments = (X, Y), which, moments
        self._narrow = narrow or min(X.shape[1], Y.shape[1])
        self._solved: dict[bool, tuple[CrossSVD, float]] = {}

    @cached_property
    def X(self) -> np.ndarray:
        """The source rows, shape (n, d_source): a copy, made only if rows themselves are needed."""
        return np.asarray(self._pairs[0][self._which])

    @cached_property
    def Y(self) -> np.ndarray:
        """The target rows, shape (n, d_target)."""
        return np.asarray(self._pairs[1][self._which])

    @cached_property
    def means(self) -> tuple[np.ndarray, np.ndarray]:
        """The means of both sides, in float64."""
        if self.moments is not None:
            return self.moments.source_mean, self.moments.target_mean
        return self.X.mean(axis=0, dtype=np.float64), self.Y.mean(axis=0, dtype=np.float64)

    def solved(self, center: bool) -> tuple[CrossSVD, float]:
        """Return the SVD of the mean cross-covariance, singular values padded with zeros, and its alignment."""
        if center not in self._solved:
            if self.moments is None:
                self._solved[center] = self._thin(center)
            else:
                svd = half_svd(pooled_cross([self.moments], center=center))
                svd = replace(svd, s=np.pad(svd.s, (0, self._narrow - len(svd.s))))
                size = pooled_size([self.moments], center=center)
                self._solved[center] = svd, float(svd.s.sum() / size) if size else 0.0
        return self._solved[center]

    def _thin(self, center: bool) -> tuple[CrossSVD, float]:
        """Return ``solved`` from the rows, if there are fewer pairs than dimensions."""
        a, b = self.means if center else (0.0, 0.0)
        x, y = self.X.astype(np.float64) - a, self.Y.astype(np.float64) - b
        n = len(x)
        (qx, rx), (qy, ry) = np.linalg.qr(x.T), np.linalg.qr(y.T)
        U, s, Vt = np.linalg.svd(rx @ ry.T / n)
        size = float(np.linalg.norm(x) * np.linalg.norm(y)) / n
        rank = int(np.count_nonzero(s > 4 * max(x.shape[1], y.shape[1]) * np.finfo(np.float64).eps * max(size, 1e-300)))
        rank = min(rank, n - center)
        whole = np.zeros(self._narrow)
        whole[:rank] = s[:rank]
        return CrossSVD(qx @ U[:, :rank], whole, Vt[:rank] @ qy.T, rank), float(s.sum() / size) if size else 0.0


#: The rows that are scored, the other pairs, and the number of folds that are scored.
Fold: TypeAlias = tuple[np.ndarray, FittedPairs, int]


def left_out(
    X: np.ndarray,
    Y: np.ndarray,
    groups: np.ndarray,
    folds: int,
    repeats: int = 1,
    random_state: int = 0,
    *,
    narrow: int | None = None,
    moments: CrossMoments | None = None,
) -> Iterator[Fold]:
    """Yield the folds of paired rows, whose groups are not divided. ``moments`` are those of all, if they are known."""
    parts = 1 if len(X) >= MANY and min(X.shape[1], Y.shape[1]) > WIDE else folds
    rng = np.random.default_rng(random_state)
    for _ in range(repeats):
        fold = rng.permutation(np.arange(groups.max() + 1) % folds)[groups]
        for part in range(parts):
            test = np.flatnonzero(fold == part)
            test = test if len(test) <= MOST_SCORED else np.sort(rng.choice(test, MOST_SCORED, replace=False))
            kept, left = np.ones(len(X), bool), None
            kept[test] = False
            # A product of thin matrices is decomposed faster than their cross-covariance.
            if np.count_nonzero(kept) > min(X.shape[1], Y.shape[1]):
                moments = moments or CrossMoments.of(X, Y)
                left = moments.without(CrossMoments.of(X[test], Y[test]))
            yield test, FittedPairs(X, Y, kept, left, narrow), parts


def product(candidate: Candidate, kept: FittedPairs) -> Product:
    """Fit a candidate, and return how it maps rows without their mean."""
    if candidate.method != "orthogonal":
        there = _coefficients(candidate, kept.X, kept.Y)
        # Such a map has no inverse: what maps back is fitted back.
        return Product(lambda rows: rows @ there, lambda rows: rows @ _coefficients(candidate, kept.Y, kept.X))
    given = OrthogonalMap(**candidate.parameters)
    if candidate is UNMAPPED:  # what its weight leaves of the pairs is below rounding: nothing is solved
        return Product(lambda rows: rows, lambda rows: rows)
    svd, alignment = kept.solved(given.center)
    if given.identity:
        basis, turn = near_identity(svd, given.identity, half=True)
        return Product(
            lambda rows: rows + (rows @ basis) @ turn @ basis.T, lambda rows: rows + (rows @ basis) @ turn.T @ basis.T
        )
    shrinkage = given.shrinkage
    if shrinkage in ("auto", "cv"):  # the strength found by cross-validation makes little difference here
        shrinkage = "wiener" if given.allow_reflection else "full"
    gains, extra = np.zeros(0), None
    if svd.rank:
        gains = choose_gains(shrinkage, svd, alignment, given.shrinkage_strength)[1][: svd.rank]
        if given.center and shrinkage == "wiener" and svd.rank < len(svd.s):
            extra = mean_isometry(svd, [kept.means])[0]

    def turned(left: np.ndarray, right: np.ndarray, more: np.ndarray | None) -> Callable[[np.ndarray], np.ndarray]:
        return lambda rows: (rows @ left * gains) @ right + (0 if more is None else rows @ more)

    if extra is None and svd.rank == len(svd.s):  # one product of the rows, not two
        whole = (svd.U * gains) @ svd.Vt
        return Product(lambda rows: rows @ whole.astype(rows.dtype), lambda rows: rows @ whole.T.astype(rows.dtype))
    return Product(turned(svd.U, svd.Vt, extra), turned(svd.Vt.T, svd.U.T, None if extra is None else extra.T))


def _coefficients(candidate: Candidate, X: np.ndarray, Y: np.ndarray) -> np.ndarray:
    """Return the matrix of a linear candidate fitted on rows; of wide ones in their span, in which it is the same."""
    fitted: Any = make_map(candidate.method, **candidate.parameters)
    if len(X) >= X.shape[1]:
        return np.asarray(fitted.solve(X, Y).coef_)
    basis = np.linalg.qr(X.T.astype(np.float64))[0]
    return np.asarray(basis @ fitted.solve(X @ basis, Y).coef_)


#: Minimum number of different pairs for cross-validation; with fewer, the preferred map is taken without comparison.
FEWEST = 12

#: Numbers of folds: of the comparison by retrieval, and of what is measured of every map.
FOLDS, MEASURED_FOLDS = 3, 5

#: Numbers of repeats below a number of pairs: with few pairs, the result depends more on how they are split.
REPEATS = ((60, 8), (150, 4), (400, 2))

#: From this many pairs, of more than this many dimensions, only one fold is scored, so that the cost stays that of one
#: or two fits.
MANY, WIDE = 400, 128

MOST_COUNTED = 2000  # rows of which the distinct ones are counted
MOST_SCORED = 1000  # largest number of pairs scored per fold

#: Difference of mean reciprocal ranks too small to prefer another map, even if it is statistically significant.
WORTH = 0.005


@dataclass(frozen=True)
class Quality(PlainData):
    """How much of mapped rows is right, from the old model to the new one and back, measured on left-out pairs.
    ``cosine``: mean cosine between a mapped row and the pair's other row, both without their means; ``length``: root
    mean square of the first one's length, relative to the second one's; ``slope``: of the second one's part along the
    new mean on the first one's; ``lift``: ``congruence.maps.readout.find_lift``, 0 if unknown; ``means``: correlation
    of old rows' parts along the old mean with new rows' along the new one.
    """

    cosine: tuple[float, float] = (0.0, 0.0)
    length: tuple[float, float] = (0.0, 0.0)
    slope: float = 1.0
    n_pairs: int = 0
    lift: float = 0.0
    means: float = 0.0


@dataclass(frozen=True)
class Choice(PlainData):
    """The map that was chosen, and the evidence for the choice."""

    name: str  # the map in words
    method: str
    parameters: dict[str, Any]
    evidence: str  # which rows decided, or why nothing was compared
    quality: Quality = Quality()
    measure: str = ""  # by which candidates were compared
    n_pairs: int = 0  # held out and scored; 0 if nothing was compared
    folds: int = 0
    repeats: int = 0
    lead: float | None = None  # score minus that of the first candidate
    lead_error: float | None = None
    tried: list[dict[str, Any]] = field(default_factory=list)  # scores of each candidate, and its distance to the best
    not_tried: str = ""  # why other kinds of map were no candidates


def choose_map(
    X: np.ndarray,
    Y: np.ndarray,
    *,
    fixed: Mapping[str, object] | None = None,
    single_modality: bool = False,
    groups: np.ndarray | None = None,
    random_state: int = 0,
    moments: CrossMoments | None = None,
) -> Choice:
    """Choose a map, with the one-standard-error rule, and measure it on left-out pairs.

    ``fixed`` holds parameters of ``OrthogonalMap``, with which there is no choice. With ``single_modality`` linear maps
    are candidates too. Pairs of one of the ``groups`` (n,) share a fold; by default pairs with identical vectors do.
    ``moments`` are those of the pairs, if they are known.

    Notes
    -----
    A candidate is fitted without one fold. Models are related if at least half of the pairs find each other, without
    their means, unmapped; or by a rotation near the identity, and more by it than by the rotation, by two standard
    errors of the paired difference, or no fewer and their cosines are larger by as much. Then the candidate with the
    largest cosines is taken, the rotation only if no fewer pairs find each other by it than by the best, within two
    standard errors. Fewer than 12 pairs show it only unmapped; and of unmapped pairs whose cosines are below 0.05 no
    map near the identity is tried. Linear maps are compared by retrieval: the
    pairs of the fold are searched in both directions, and a pair's score is its mean reciprocal rank among different
    rows. The first candidate is taken whose score is within one standard error of the best (where the pairs of a group
    count once), or within 0.005 of it (Breiman et al. 1984, "Classification and regression trees", §3.4.3).
    """
    fixed = dict(fixed or {})
    foreign = sorted(set(fixed) - set(OrthogonalMap().get_params()))
    if foreign:
        raise ParameterError(
            f"Got {foreign[0]}=… for `method='auto'`, a rotation.", f"Pass a `method=…`, or leave out `{foreign[0]}=…`."
        )
    for side, rows in (("old", X), ("new", Y)):
        if fixed.get("center", True) and len(rows) > 1 and (rows[:2] == rows[:1]).all() and (rows == rows[:1]).all():
            raise InputError(f"All {side} rows of {len(rows)} pairs are equal.", "Pass pairs that differ.")
    groups = duplicate_groups(X, Y) if groups is None else np.unique(groups, return_inverse=True)[1]
    if fixed:
        check_choice(fixed.get("shrinkage", "auto"), SHRINKAGES, "shrinkage")
        given = Candidate("rotation as given", "orthogonal", fixed)
        evidence = "its parameters were given, so nothing was compared"
        return given.chosen(evidence, measure_quality(X, Y, given, groups))
    same_width, narrow = X.shape[1] == Y.shape[1], min(X.shape[1], Y.shape[1])
    least_squares = len(X) * (1 - 1 / FOLDS) > X.shape[1] + 1
    whole, different = (X, Y), int(groups.max()) + 1
    parted = partial(left_out, groups=groups, folds=min(MEASURED_FOLDS, different), narrow=narrow)
    folds = [*parted(X, Y, moments=moments)]
    same = _LeftOut(X, Y, folds, UNMAPPED) if same_width else None
    # Products of rows of different models are needed only by maps near the identity.
    related = False
    if same is not None and len(same.rows):
        related = same.quality.cosine[0] >= UNRELATED or bool(same.hits.mean() >= RELATED_FIND)
    X, Y = in_span(X, Y) if related else (*in_span(X), *in_span(Y))
    folds = folds if X is whole[0] and Y is whole[1] else [*parted(X, Y)]
    measure = partial(_LeftOut, X, Y, folds)
    found = measure(ROTATION)
    not_tried = "" if single_modality else "linear maps: their effect on rows of another modality is unknown"
    if different < FEWEST:
        evidence = f"{different} different {'pairs are' if different > 1 else 'pair is'} too few to compare maps on"
        if same is not None and narrow >= NARROW and different >= FEWEST_RELATED:
            least = min(RELATED_COSINE, CHANCE / narrow**0.5)
            if same.hits.mean() >= RELATED_FIND and same.quality.cosine[0] >= least:
                evidence = f"unmapped rows of {different} different pairs resemble each other"
                return UNMAPPED.chosen(evidence, same.quality, not_tried=not_tried)
        return ROTATION.chosen(evidence, found.quality, not_tried=not_tried)
    tried = {ROTATION: found}
    if same is not None:
        tried[UNMAPPED] = same
    if related:
        tried[NEAR] = measure(NEAR)
    chosen = _among_rotations(measure, tried, groups, not_tried)
    if not single_modality:
        return chosen
    rotation = next(candidate for candidate in tried if candidate.name == chosen.name)
    linear = [kind for kind in LINEAR if kind.parameters.get("ridge") != 0 or least_squares]
    repeats = next((times for most, times in REPEATS if different < most), 1)
    candidates = [rotation, *linear]
    by_retrieval = _compare_by_retrieval(X, Y, candidates, groups, repeats, random_state)
    best = next(candidate for candidate in candidates if candidate.name == by_retrieval.name)
    return replace(by_retrieval, quality=tried[best].quality if best in tried else measure(best).quality)


def count_distinct(X: np.ndarray) -> float:
    """Return in how many directions rows (n, d) vary: exp of the entropy of their variance by principal direction, the
    effective rank (Roy and Vetterli 2007), with copies counted once.

    Pairs of few classes are many rows of few things, and a map fitted on them fails on others. That does not show on
    left-out pairs, which are of the same classes.
    """
    # By chance, since files repeat their kinds at regular distances; of copies one counts.
    drawn = np.random.default_rng(0).permutation(len(X))[:MOST_COUNTED]
    rows = distinct(X[np.sort(drawn)], MOST_COUNTED)
    dtype = np.result_type(rows.dtype, np.float32)
    rows = np.divide(rows, max(float(np.abs(rows).max()), 1e-300), dtype=dtype)
    rows -= rows.mean(axis=0, dtype=np.float64).astype(dtype)
    gram = rows @ rows.T if len(rows) < rows.shape[1] else rows.T @ rows
    values = np.linalg.eigvalsh(gram.astype(np.float64, copy=False))
    least = 16 * np.finfo(dtype).eps if dtype == np.float32 else 1e-12
    share = values[values > least * max(values[-1], 1e-300)] / max(values.sum(), 1e-300)
    return float(np.exp(-(share * np.log(share)).sum()))


def measure_quality(X: np.ndarray, Y: np.ndarray, candidate: Candidate, groups: np.ndarray | None = None) -> Quality:
    """Return how much of left-out rows a kind of map gets right."""
    groups = duplicate_groups(X, Y) if groups is None else groups
    return _LeftOut(X, Y, left_out(X, Y, groups, min(MEASURED_FOLDS, int(groups.max()) + 1)), candidate).quality


class _LeftOut:
    """The quality of a candidate, the pairs that were left out, and both rows of each, mapped and without means."""

    def __init__(self, X: np.ndarray, Y: np.ndarray, folds: Iterable[Fold], candidate: Candidate) -> None:
        found, lifts, parted, along = [], [], [], []
        for test, kept, parts in folds:
            if len(X) - len(test) < 2:
                continue
            forward, backward = product(candidate, kept)
            first = np.unique(duplicate_groups(X[test], Y[test]), return_index=True)[1]
            test = test[np.sort(first)]  # of copies none is a wrong answer for another, and all count once
            test = test[:: -(-len(test) * parts // MOST_COUNTED)]
            dtypes = (np.result_type(side.dtype, np.float32) for side in (X, Y))
            x, y = (
                np.subtract(side[test], mean.astype(dtype), dtype=dtype)
                for side, mean, dtype in zip((X, Y), kept.means, dtypes, strict=True)
            )
            mapped = forward(x)
            there, back = Measured.of(mapped, y, kept.means[1]), Measured.of(backward(y), x, kept.means[0])
            found.append([there, back])
            lifts.append(find_lift(mapped, y, kept.means[1], there.height))  # native rows too are unseen here
            parted.append((test, mapped, y))
            along.append((x @ kept.means[0], y @ kept.means[1]))
        self.quality, self.rows = Quality(), np.zeros(0, np.intp)
        if parted:
            self.rows, self.mapped, self.own = map(np.concatenate, zip(*parted, strict=True))
            there, back = (Measured(*means) for means in np.mean(found, axis=0).tolist())
            known = [lift for lift in lifts if lift is not None]
            cosines = max(there.cosine, 0.0), max(back.cosine, 0.0)
            old, new = map(np.concatenate, zip(*along, strict=True))
            size = float(np.linalg.norm(old) * np.linalg.norm(new))
            self.quality = Quality(
                cosines,
                (there.length, back.length),
                there.slope,
                len(self.rows),
                float(np.mean(known or 0.0)),
                float(np.clip(old @ new / size, 0, 1)) if size > 0 else 0.0,
            )

    def cosines(self) -> np.ndarray:
        """Return the cosine of the two rows of each pair that was left out, without their means."""
        return np.einsum("ij,ij->i", normalize_rows(self.mapped), normalize_rows(self.own))

    @cached_property
    def hits(self) -> np.ndarray:
        """Return for each pair that was left out whether its rows find each other: 0, ½ or 1."""
        a, b = normalize_rows(self.mapped), normalize_rows(self.own)
        near = a @ b.T
        eps = 8 * np.finfo(near.dtype).eps  # equal rows may differ in the last digits of a product
        tied = [near >= near.max(axis=axis, keepdims=True) - eps for axis in (0, 1)]
        return np.asarray(sum(found.diagonal() / found.sum(axis=axis) for axis, found in enumerate(tied)) / 2)


def _among_rotations(
    measure: Callable[[Candidate], _LeftOut], tried: dict[Candidate, _LeftOut], groups: np.ndarray, not_tried: str
) -> Choice:
    """Return the rotation or, if the models are related, the best one near the identity."""
    table = np.stack([one.hits for one in tried.values()])
    labels = np.unique(groups[tried[ROTATION].rows], return_inverse=True)[1]
    lead = error = 0.0
    chosen, better, same = ROTATION, False, len(tried) > 1 and table[1].mean() >= RELATED_FIND
    if NEAR in tried:
        lead, error = float((table[-1] - table[0]).mean()), _error(table[-1] - table[0], labels)
        nearer = tried[NEAR].cosines() - tried[ROTATION].cosines()  # tells more where both find nearly all
        better = lead > 2 * error or (lead >= 0 and float(nearer.mean()) > 2 * _error(nearer, labels))
    if same or (better and table[-1].mean() >= RELATED_FIND):
        tried |= {candidate: measure(candidate) for candidate in RELATED if candidate not in tried}
        table = np.stack([one.hits for one in tried.values()])
        ahead = table[int(np.argmax(table.mean(axis=1)))] - table[0]
        # A rotation may have the larger cosines, by what all rows share, and yet tell no two of them apart.
        lost = not same or ahead.mean() > 2 * _error(ahead, labels)
        kept = [candidate for candidate in tried if not lost or candidate is not ROTATION]
        chosen = max(kept, key=lambda candidate: tried[candidate].quality.cosine[0])
        ahead = table[list(tried).index(chosen)] - table[0]
        lead, error = float(ahead.mean()), _error(ahead, labels)
    if chosen is ROTATION:
        lead = error = 0.0
    scores = _records(list(tried), table, int(np.argmax(table.mean(axis=1))), labels) if len(tried) > 1 else []
    facts = "share found", len(labels), MEASURED_FOLDS, 1, lead, error, scores, not_tried
    return chosen.chosen("pairs" if len(tried) > 1 else "nothing to compare", tried[chosen].quality, *facts)


def _error(difference: np.ndarray, labels: np.ndarray) -> float:
    """Return the standard error of a mean, of values whose groups count once."""
    sums = np.bincount(labels, difference - difference.mean())
    return float(np.sqrt(np.square(sums).sum()) / len(difference))


def _records(candidates: Sequence[Candidate], table: np.ndarray, best: int, labels: np.ndarray) -> list[dict[str, Any]]:
    """Return the score of each candidate and its distance to the best, from scores (candidates, pairs)."""
    mean = table.mean(axis=1)
    return [
        {
            "name": candidate.name,
            "score": float(mean[k]),
            "behind": float(mean[best] - mean[k]),
            "error": _error(table[best] - table[k], labels),
        }
        for k, candidate in enumerate(candidates)
    ]


def _compare_by_retrieval(
    X: np.ndarray, Y: np.ndarray, candidates: Sequence[Candidate], groups: np.ndarray, repeats: int, random_state: int
) -> Choice:
    """Score each candidate on the pairs of each fold after fitting it without, and apply the one-standard-error rule.

    Equal rows count as one.
    """
    source, target = equal_rows(X), equal_rows(Y)
    rank, times = np.zeros((len(X), len(candidates))), np.zeros(len(X))
    for test, kept, _ in left_out(X, Y, groups, FOLDS, repeats, random_state):
        rows, mapped = X[test].astype(np.float64), []
        for candidate in candidates:
            a, b = kept.means if candidate.parameters.get("center", True) else (0.0, 0.0)
            mapped.append(product(candidate, kept).forward(rows - a) + b)
        if len(test) > 1:
            rank[test] += _reciprocal_ranks(mapped, Y[test], source[test], target[test])
            times[test] += 2
    scored = times > 0
    table = (rank[scored] / times[scored, None]).T
    mean, labels = table.mean(axis=1), np.unique(groups[scored], return_inverse=True)[1]
    tried = _records(candidates, table, int(np.argmax(mean)), labels)
    chosen = next(k for k, one in enumerate(tried) if one["behind"] <= max(one["error"], WORTH))
    return candidates[chosen].chosen(
        "pairs",
        measure="mean reciprocal rank",
        n_pairs=int(scored.sum()),
        folds=FOLDS,
        repeats=repeats,
        lead=float(mean[chosen] - mean[0]),
        lead_error=_error(table[chosen] - table[0], labels),
        tried=tried,
    )


def _reciprocal_ranks(
    mapped: Sequence[np.ndarray], theirs: np.ndarray, sources: np.ndarray, targets: np.ndarray
) -> np.ndarray:
    """Search each candidate's mapped rows and the target rows (k, d) among each other; return the sum, (k, candidates).

    Rows of equal ``sources`` or ``targets`` (k,) are copies.
    """
    k, found = len(theirs), np.empty((len(theirs), len(mapped)))
    theirs = normalize_rows(theirs.astype(np.float64)).T
    # Another copy of the row that is sought is no wrong answer, and copies of a wrong answer are one.
    wrong = (sources[:, None] != sources) & (targets[:, None] != targets)
    weights = [1 / np.bincount(labels, minlength=1)[labels] for labels in (sources, targets)]
    # With small folds, processing candidates one by one would spend more time on calls than on arithmetic.
    for part in blocks(len(mapped), 8 * k * k, budget=4 * 2**20, minimum=1):
        near = normalize_rows(np.concatenate(mapped[part])).reshape(-1, k, len(theirs)) @ theirs
        own = np.diagonal(near, axis1=1, axis2=2)
        total = 0.0
        for least, count in (
            (own[:, :, None], lambda found: (found & wrong) @ weights[1]),
            (own[:, None, :], lambda found: weights[0] @ (found & wrong)),
        ):
            ahead = count(near > least + 1e-9)
            tied = count(near >= least - 1e-9) - ahead
            total = total + 1 / (1 + ahead + tied / 2)
        found[:, part] = np.asarray(total).T
    return found
