"""Test whether anchors are paired, and find pairs that look wrong.

A map fitted on some true pairs brings *other* true pairs together, and a map fitted on wrong pairs does not. So each
fold is mapped by a map fitted on the others, and its alignment compared with that of the same rows paired at random.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from math import lgamma, pi
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from congruence._utils.arrays import blocks
from congruence._utils.ids import id_texts
from congruence._utils.typing import Ids, RowsLike
from congruence._utils.validation import as_matrix, check_positive, check_same_rows, check_scale, check_seed, name_rows
from congruence.compare.sequence import Step, assign, find_partners, sample_rows, whiten
from congruence.embeddings import in_order
from congruence.errors import DuplicateWarning, PairingWarning, TooFewAnchorsError, UnpairedError
from congruence.linalg.moments import CrossMoments
from congruence.linalg.procrustes import half_svd, rotation_from_svd
from congruence.splits import duplicate_groups, equal_rows

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Minimum number of pairs for the test.
FEWEST = 20

#: Largest number of pairs that are tested. Of more, all are compared by so many leading directions that a sample of
#: both sides, drawn at random, shares, and pairs of the sample and of stretches of the file are tested.
_TESTED, _DRAWN, _LEADING = 5000, 3000, 64

#: Largest number of rows of a fold that are compared with each other; more would only make the null more precise.
_FOLD_ROWS = 500

#: Largest number of coordinates per side; wider rows are projected on the leading directions of a sample of this many
#: rows.
_WIDTH, _SKETCH_ROWS = 256, 1000

#: Up to this many pairs, the Gram matrices of all pairs must agree as well. With more pairs, the alignment must exceed
#: its null by this many standard deviations: shuffled pairs reach four, true pairs thirty.
_WHOLE, _STANDS_OUT = 200, 8.0

#: Fewest distinct pairs among which rows out of step are searched.
_FEWEST_IN_ORDER = 40

#: Rows nearer than these shares of the root mean square distance of two rows are alike, and copies of one item. Of
#: names, photos and passages 98 % are further than the first from all others.
_NEAR, _COPY = 0.35, 0.15

#: Share of distinct pairs below which copies are told of.
_DISTINCT = 0.9

#: Share of pairs that look wrong from which the whole does not count as paired.
_MOST_WRONG = 0.2

_VERIFIED = 1500  # rows by which steps that were found in parts of a file are verified

#: The test reports "not paired" only if it could detect this cosine between paired rows (after removing noise).
_LINK = 0.5


@dataclass(frozen=True)
class PairingReport:
    """Result of ``check_pairing``.

    - ``alignment``: Mean cosine of held-out pairs after centering and rotation; ``null_mean``, ``null_sd``: of random
      pairs; ``p_value``: probability of such an alignment if the rows are not paired.
    - ``share_wrong``: Share of pairs that look wrong, NaN if unknown; ``suspects``: their ids (or row numbers), most
      suspicious first, with ``suspect_probability``.
    - ``decided``, ``looks_paired``: Whether there is a conclusion, and which (True if there are too few pairs).
    - ``state``: "paired", "shifted", "exchanged", "not paired", "cannot tell" or "too few" (docs/anchors.md).
    - ``steps``, ``moved``: The ``Step``s of a shifted file, and rows of X with those of Y that they belong to.
    - ``distinct``: Numbers of distinct items among the rows of X, of Y, and among the pairs; near-copies are one.
    """

    n_pairs: int
    alignment: float
    null_mean: float
    null_sd: float
    p_value: float
    share_wrong: float
    decided: bool
    looks_paired: bool
    suspects: tuple[str, ...]
    suspect_probability: tuple[float, ...]
    state: str = "paired"
    steps: tuple[Step, ...] = ()
    moved: tuple[tuple[int, int], ...] = ()
    distinct: tuple[int, int, int] = (0, 0, 0)

    @property
    def lags(self) -> tuple[tuple[int, int], ...]:
        """Pairs (row, lag): from this row of X on, row i belongs to row i + lag of Y. Without reversed parts."""
        return tuple((at.row, at.partner - at.row) for at in self.steps if at.step == 1)

    def realigned(self) -> np.ndarray:
        """Return rows of X and of Y that belong together, shape (m, 2): the given pairs, unless others were found. Of
        two rows that would share a partner, that in the longer stretch has it.
        """
        return _realigned(self.n_pairs, self.steps, self.moved)

    def to_dict(self) -> dict[str, object]:
        """Return the report as plain data."""
        return {**asdict(self), "suspects": list(self.suspects), "suspect_probability": list(self.suspect_probability)}

    def plot(self, ax: Axes | None = None, *, annotate: bool = True) -> Axes:
        """Draw the alignment of held-out pairs, and of random re-pairings, on ``ax`` or new axes."""
        from congruence.plotting import draw_pairing

        if self.state == "too few":
            raise TooFewAnchorsError(f"Got {self.n_pairs} pairs; expected at least {FEWEST}.", "Check more pairs.")
        return draw_pairing(self.to_dict(), ax, annotate=annotate)

    @property
    def sentence(self) -> str:
        """The result as one sentence, for display."""
        items = f"The {self.n_pairs} rows"
        if self.n_pairs and min(self.distinct) < _DISTINCT * self.n_pairs:
            old, new, pairs = self.distinct
            items += f" (near-copies counted once {pairs} pairs, of {old} old and {new} new items)"
        if self.state == "too few":
            return f"{items} are too few to tell whether they are paired (at least {FEWEST} are needed)."
        against = (
            f"held-out alignment {self.alignment:.3f} against {self.null_mean:.3f} ± {self.null_sd:.3f} "
            f"under random re-pairing, p = {self.p_value:.3g}"
        )
        if self.state == "cannot tell":
            return f"{items} have a signal too weak to tell whether they are paired row by row: {against}."
        if self.steps:
            where = "; ".join(map(_in_words, self.steps[:3]))
            more = f"; and {len(self.steps) - 3} more" if len(self.steps) > 3 else ""
            return f"{items} do not look paired, they are out of step: {where}{more}."
        if not self.looks_paired and self.state != "exchanged":
            return f"{items} do not look paired: {against}."
        if self.suspects:
            listed = name_rows(np.arange(len(self.suspects)), list(self.suspects))
            how = "look paired" if self.looks_paired else "are linked"
            return f"{items} {how} ({against}), but {len(self.suspects)} of {self.n_pairs} pairs look wrong: {listed}."
        return f"{items} look paired: {against}."


def _in_words(at: Step) -> str:
    """Return a step as a part of a sentence."""
    if at.step == -1:
        total = at.row + at.partner
        return f"from row {at.row} on one side is reversed, row i belongs to row {total} − i of the other side"
    lag = at.partner - at.row
    if not lag:
        return f"from row {at.row} on they are in step"
    return f"from row {at.row} on, row i belongs to row i {'−' if lag < 0 else '+'} {abs(lag)} of the other side"


def _too_few(n: int, distinct: tuple[int, int, int]) -> PairingReport:
    nan = float("nan")
    return PairingReport(n, nan, nan, nan, 1.0, nan, False, True, (), (), "too few", distinct=distinct)


def check_pairing(
    X: RowsLike,
    Y: RowsLike,
    *,
    ids: Ids | None = None,
    folds: int = 5,
    permutations: int = 999,
    level: float = 0.01,
    random_state: int = 0,
) -> PairingReport:
    """Test whether rows are paired, against random re-pairings, and find pairs that look wrong.

    Parameters
    ----------
    X, Y : array_like, shapes (n, d_source) and (n, d_target)
    ids : sequence of str, optional
        Names of the pairs; row numbers by default.
    level : float, default=0.01
        Largest p-value at which the anchors count as paired.

    Notes
    -----
    Within a fold the test is exact: the map has not seen the fold, so if the rows are not paired, every re-pairing of
    the fold is as likely as the given one. ``p_value`` is the larger of the folds' p-values combined by Bonferroni and
    that of their mean. A second test must agree; otherwise the state is "cannot tell". Wide rows are first projected on
    the 256 leading directions of their own side. Of more than 5,000 pairs a sample is tested; wrong pairs are looked
    for among all, and other pairings by ``find_partners``. The tests' error rates: benchmarks/right_link.py.

    Source: Gretton et al. (2008), "A kernel statistical test of independence".
    """
    check_seed(random_state)
    check_positive(folds, "folds", integer=True)
    check_positive(permutations, "permutations", integer=True)
    X, Y = in_order(X, Y)
    A, B = (as_matrix(side, name, allow_zero_rows=True) for side, name in ((X, "X"), (Y, "Y")))
    check_same_rows(len(A), len(B), "X", "Y")
    check_scale(A, "X")
    check_scale(B, "Y")
    A, B = map(_in_range, (A, B))
    n = len(A)
    names = range(n) if ids is None else ids
    if n < FEWEST:
        return _too_few(n, (n, n, n))
    rng = np.random.default_rng(random_state)
    stretches, sample, many = sample_rows(n), np.arange(n), None
    if n > _TESTED:
        some = np.sort(rng.choice(n, _DRAWN, replace=False))
        source, target = (_CenteredRows.of(side[some], rng) for side in (A, B))
        many = _ManyPairs(A, B, source, target)
        stretches = sample_rows(n, many.evidence)
        sample = np.union1d(stretches, some)
        source, target = source.of_rows(A[sample]), target.of_rows(B[sample])
    else:
        source, target = (_CenteredRows.of(side, rng) for side in (A, B))
    inside = np.searchsorted(sample, stretches)
    alike, items, distinct = _count_items(source, target, inside, n)
    if many:  # neighbors in a file may be copies: the numbers are those of rows drawn at random
        drawn = np.searchsorted(sample, rng.choice(some, len(stretches), replace=False))
        distinct = _count_items(source, target, np.sort(drawn), n)[2]
    if min(distinct) < 2:  # one side shows one item
        return _too_few(n, distinct)
    steps: list[Step] = []
    moved, nearest = np.empty((0, 2), int), True
    if len(np.unique(alike)) >= _FEWEST_IN_ORDER:
        steps, moved, nearest = find_partners(source.rows[inside], target.rows[inside], alike[inside], stretches)
    # Copies of a pair are no further evidence.
    kept = np.sort(np.unique(items, return_index=True)[1])
    m, groups = len(kept), duplicate_groups(A[sample[kept]], B[sample[kept]])
    if distinct[2] < FEWEST or m < FEWEST or groups.max() < 1:  # or one side shows one item
        return _too_few(n, distinct)
    if m < len(sample):
        source, target = (_CenteredRows.of(side[sample[kept]], rng) for side in (A, B))
    order = np.array_split(rng.permutation(int(groups.max()) + 1), min(folds if m >= 60 else 2, int(groups.max()) + 1))
    parts = order if groups.max() + 1 == m else [np.flatnonzero(np.isin(groups, part)) for part in order]
    heldout = _held_out(source, target, parts, permutations, rng)
    p_value = heldout.p_value
    linked = p_value <= level
    # One unrelated set in a hundred passes by chance: run a second test on all pairs together.
    if linked and m <= _WHOLE:
        paired = _agreement_p(source, target, permutations, rng) <= max(level / 10, 1 / (1 + permutations))
    else:
        paired = linked and bool(heldout.own.mean() - heldout.null.mean() >= _STANDS_OUT * heldout.null.std())
    state = "paired" if paired else "cannot tell" if linked else "not paired"
    if state == "not paired" and not _would_detect(source, target, parts, permutations, level, rng):
        state = "cannot tell"
    suspicion = np.zeros(n)
    share = 1.0 if state == "not paired" else float("nan")
    if steps:
        if len(stretches) < n:  # between the stretches they are guesses
            tried = [many.begun(steps), steps] if many else [steps]
            steps = next((one for one in tried if _put_right(A, B, one, rng)), [])
        paired, state, share = False, "shifted" if steps else "not paired", 1.0
        if steps:
            ends = [*(at.row for at in steps[1:]), n]
            share = sum(end - at.row for at, end in zip(steps, ends, strict=True) if at[1:] != (at.row, 1)) / n
    elif paired or len(moved):
        if many:
            rows, probability = find_wrong_pairs(many)
            suspicion[rows] = probability
        else:
            rows, probability = find_wrong_pairs(Agreement(source.directions, target.directions, rng))
            of_item = dict(zip(items[kept[rows]].tolist(), probability.tolist(), strict=True))
            suspicion = np.array([of_item.get(item, 0.0) for item in items.tolist()])
        suspicion[moved[:, 0]] = 1.0
        share = float(np.mean(suspicion > 0))
        if share > _MOST_WRONG:
            paired, state = False, "exchanged"
        elif paired and not nearest:
            paired, state = False, "cannot tell"
    rows = np.flatnonzero(suspicion)
    rows = rows[np.argsort(-suspicion[rows], kind="stable")]
    return PairingReport(
        n_pairs=n,
        alignment=float(heldout.own.mean()),
        null_mean=float(heldout.null.mean()),
        null_sd=float(heldout.null.std()),
        p_value=p_value,
        share_wrong=share,
        decided=state != "cannot tell",
        looks_paired=paired,
        suspects=tuple(id_texts([names[row] for row in rows.tolist()]).tolist()),
        suspect_probability=tuple(float(p) for p in suspicion[rows]),
        state=state,
        steps=tuple(steps),
        moved=tuple((int(row), int(other)) for row, other in moved),
        distinct=distinct,
    )


def _realigned(n: int, steps: Sequence[Step], moved: Sequence[tuple[int, int]] = ()) -> np.ndarray:
    rows = np.arange(n)
    partner, length = rows.copy(), np.zeros(n, int)
    ends = [*(at.row for at in steps[1:]), n]
    for at, end in zip(steps, ends, strict=False):  # without steps there is an end and no beginning
        partner[at.row : end] = at.partner + at.step * np.arange(end - at.row)
        length[at.row : end] = end - at.row
    for row, other in moved:
        partner[row], length[row] = other, 1
    rows = rows[np.argsort(-length, kind="stable")]
    rows = rows[(partner[rows] >= 0) & (partner[rows] < n)]
    rows = np.sort(rows[np.unique(partner[rows], return_index=True)[1]])
    return np.column_stack([rows, partner[rows]])


def _put_right(A: np.ndarray, B: np.ndarray, steps: Sequence[Step], rng: np.random.Generator) -> bool:
    """Return whether steps leave pairs of most rows, of which some drawn at random look paired."""
    pairs = _realigned(len(A), steps)
    some = np.sort(rng.choice(len(pairs), min(len(pairs), _VERIFIED), replace=False))
    report = check_pairing(*(side[pairs[some, k]] for k, side in enumerate((A, B))))
    return 2 * len(pairs) > len(A) and report.looks_paired and report.share_wrong < 0.1


def _in_range(Z: np.ndarray) -> np.ndarray:
    """Return rows, divided by a power of two if float32 cannot represent their squares; nothing depends on it."""
    top = max(float(Z.max()), -float(Z.min()))
    return Z if not top or 1e-9 < top < 1e9 else np.asarray(np.ldexp(Z, -int(np.log2(top))))


def _count_items(
    source: _CenteredRows, target: _CenteredRows, rows: np.ndarray, n: int
) -> tuple[np.ndarray, np.ndarray, tuple[int, int, int]]:
    """Return labels (m,) of pairs, equal for pairs that are alike, and equal for copies only, and the numbers of
    distinct items of each side and of pairs in a file of n, of which some ``rows`` are compared with each other.

    Pairs are alike if both rows are nearer than ``_NEAR`` of the root mean square distance of two rows, and copies if
    they are nearer than ``_COPY``. Of rows that are not compared, equal ones are copies. The numbers are those that
    would show as many items among the rows compared.
    """
    alike, copies = [], []
    for side in (source, target):
        Z = side.rows[rows].astype(np.float32)
        squares = np.einsum("ij,ij->i", Z, Z)
        Z /= np.sqrt(np.float32(max(float(squares.mean()), 1e-30)))
        halves = np.float32(0.5 - 5e-7) * np.einsum("ij,ij->i", Z, Z)
        apart = Z @ Z.T
        apart -= halves
        apart -= halves[:, None]
        np.negative(apart, out=apart)
        near = _copy_distance(apart)
        alike.append(apart <= (near * _NEAR / _COPY) ** 2)
        copies.append(apart <= near**2)
    counts = [len(np.unique(_leaders(each))) for each in (*copies, copies[0] & copies[1])]
    equal = np.arange(len(source.rows))
    if len(equal) > len(rows):
        sides = [equal_rows(side.rows) for side in (source, target)]
        first, inverse = np.unique(np.column_stack(sides), axis=0, return_index=True, return_inverse=True)[1:]
        equal = first[inverse.reshape(-1)]
    labels = []
    for one, two in (alike, copies):
        label = equal.copy()
        label[rows] = rows[_leaders(one & two)]
        labels.append(label)
    old, new, pairs = (_extrapolated(count, len(rows), n) for count in counts)
    return labels[0], labels[1], (old, new, pairs)


def _copy_distance(apart: np.ndarray) -> float:
    """Return up to which distance rows are copies of one item, from their squares: ``_COPY``, or less if items are no
    further apart, as on a grid of few dimensions.
    """
    near = _COPY
    while near > 1e-4:
        first, counts = np.unique(_leaders(apart <= near**2), return_counts=True)
        copied = first[counts > 1]
        others = np.where(copied[:, None] == first, np.inf, apart[np.ix_(copied, first)]).min(axis=1)
        if not len(copied) or np.median(others) > (2 * near) ** 2:
            break
        near /= 2
    return near


def _leaders(near: np.ndarray) -> np.ndarray:
    """Return for each row the first of the rows that it is near to and that have no other."""
    label = np.arange(len(near))
    some = np.flatnonzero(np.count_nonzero(near, axis=1) > 1)
    label[some] = -1
    for row in some.tolist():
        if label[row] < 0:
            label[near[row] & (label < 0)] = row
            label[row] = row
    return label


def _extrapolated(found: int, m: int, n: int) -> int:
    """Return of how many equally frequent items m of n rows would show ``found``."""
    if found >= m:
        return n
    low, high = found, n
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if middle * -np.expm1(-m / middle) >= found and n > m else (middle, high)
    return low if n > m else found


def warn_pairing(report: PairingReport, *, strict: bool = False) -> None:
    """Warn if a report is bad; with ``strict`` raise an error instead. Warn of copies."""
    if report.n_pairs and report.distinct[2] < _DISTINCT * report.n_pairs:
        old, new, pairs = report.distinct
        problem = f"Of {report.n_pairs:,} pairs about {pairs:,} are distinct, of {old:,} old and {new:,} new items."
        warnings.warn(DuplicateWarning(problem, "Copies are no further evidence: pass more items."), stacklevel=3)
    if report.decided and report.looks_paired and not report.suspects:
        return
    if report.state == "too few" and not strict:
        return
    advice = "Check that both sides list the same items in the same order, or pass `ids=…` to pair them by id"
    if report.looks_paired and report.suspects:
        advice = "Inspect these items, and remove the wrong pairs"
    message = f"Got pairs that fail the pairing check; expected the same item in each. {report.sentence} {advice}."
    if strict:
        raise UnpairedError(message)
    warnings.warn(PairingWarning(message), stacklevel=3)


@dataclass(frozen=True)
class _CenteredRows:
    """Centered rows in at most ``_WIDTH`` coordinates, which depend on one side only, and the rest's squared norm."""

    rows: np.ndarray
    rest: np.ndarray
    mean: np.ndarray
    basis: np.ndarray

    @classmethod
    def of(cls, Z: np.ndarray, rng: np.random.Generator) -> _CenteredRows:
        """Choose the coordinates by rows (n, d)."""
        mean = Z.mean(axis=0, dtype=np.float64).astype(Z.dtype)
        centered = Z - mean
        n, d = Z.shape
        if d <= _WIDTH:
            return cls(centered, np.zeros(n), mean, np.eye(d, dtype=Z.dtype))
        sample = centered if n <= _SKETCH_ROWS else centered[rng.permutation(n)[:_SKETCH_ROWS]]
        if len(sample) > _WIDTH:
            # A randomized range finder with one power iteration (Halko et al. 2011, algorithm 4.3).
            probe = rng.standard_normal((len(sample), _WIDTH)).astype(sample.dtype)
            sample = (sample.T @ (sample @ (sample.T @ probe))).T
        basis = np.linalg.qr(sample.T)[0]
        return cls(centered[:0], np.zeros(0), mean, basis).of_rows(Z)

    def of_rows(self, Z: np.ndarray) -> _CenteredRows:
        """Return other rows (m, d) in the same coordinates."""
        centered = Z - self.mean
        rows = centered @ self.basis
        rest = np.einsum("ij,ij->i", centered, centered) - np.einsum("ij,ij->i", rows, rows)
        return replace(self, rows=rows, rest=np.maximum(rest, 0).astype(np.float64))

    @property
    def directions(self) -> np.ndarray:
        """The rows divided by their full norms."""
        return _directions(self.rows, self.rest).astype(np.float32, copy=False)

    @property
    def excess(self) -> float:
        """Σλ²/(Σλ)² of the covariance minus 1/d, its value for isotropic rows; 0 if not distinguishable from 0."""
        sample = self.rows[:_SKETCH_ROWS]
        n = len(sample)
        gram = sample @ sample.T
        inner = float(np.einsum("ij,ij->", gram, gram) - np.square(np.diag(gram)).sum()) / (n * (n - 1))
        total = float((np.diag(gram) + self.rest[:n]).mean())
        d = len(self.mean)
        excess = inner / max(total**2, 1e-300) - 1 / d
        return excess if excess > 8 / (d * n) + 2 / n**2 else 0.0


class _HeldOut(NamedTuple):
    """Cosines of held-out pairs, the distribution of their mean under random re-pairing, and the p-value."""

    own: np.ndarray
    null: np.ndarray
    p_value: float


def _held_out(
    source: _CenteredRows, target: _CenteredRows, parts: list[np.ndarray], permutations: int, rng: np.random.Generator
) -> _HeldOut:
    """Map each fold by a rotation fitted on the others, and compare its rows with each other."""
    by_part = [CrossMoments.of(source.rows[part], target.rows[part]) for part in parts]
    own, orders = [], np.empty((0, 0), int)
    reached, null = np.empty(len(parts)), np.empty((len(parts), permutations))
    for k, part in enumerate(parts):
        train = CrossMoments.total(by_part[:k] + by_part[k + 1 :])
        rotation = rotation_from_svd(half_svd(train.cross, max_rank=train.rows - 1))
        x = _directions((source.rows[part] - train.source_mean) @ rotation)
        y = _directions(target.rows[part] - train.target_mean, target.rest[part])
        own.append(np.einsum("ij,ij->i", x, y))
        m = min(len(part), _FOLD_ROWS)
        cosines = x[:m] @ y[:m].T
        reached[k] = cosines.diagonal().mean()
        if m < _FOLD_ROWS or not len(orders):  # positions of re-paired rows in the table, which large folds share
            orders = rng.permuted(np.tile(np.arange(m), (permutations, 1)), axis=1) + m * np.arange(m)
        null[k] = cosines.take(orders).mean(axis=1)
    by_fold = (1 + np.count_nonzero(null >= reached[:, None] - 1e-12, axis=1)) / (1 + permutations)
    # The mean over folds must exceed its null as well: wrong pairs can align by chance in a single fold.
    mean, pooled = (np.average(side, axis=0, weights=[len(part) for part in parts]) for side in (reached, null))
    overall = (1 + np.count_nonzero(pooled >= mean - 1e-12)) / (1 + permutations)
    return _HeldOut(np.concatenate(own), pooled, float(max(overall, min(1.0, len(parts) * by_fold.min()))))


def _agreement_p(source: _CenteredRows, target: _CenteredRows, permutations: int, rng: np.random.Generator) -> float:
    """Return the exact p-value of the agreement of both sides' centered Gram matrices (HSIC), without folds."""
    K, L = (_centered_gram(side.directions.astype(np.float64)) for side in (source, target))
    flat = K.ravel()
    own = float(flat @ L.ravel())
    reached, (rows, both) = 0, np.empty((2, *L.shape))
    for order in (rng.permutation(len(K)) for _ in range(permutations)):
        # Two takes read memory in order, and need two thirds of the time of indexing by rows and columns.
        L.take(order, axis=0, out=rows, mode="clip").take(order, axis=1, out=both, mode="clip")
        reached += float(flat @ both.ravel()) >= own - 1e-12
    return (1 + reached) / (1 + permutations)


def _centered_gram(rows: np.ndarray) -> np.ndarray:
    """Return the cosines of unit rows with each other, centered by rows and columns, with zeros on the diagonal."""
    gram = rows @ rows.T
    np.fill_diagonal(gram, 0.0)
    means = gram.sum(axis=0) / (len(gram) - 1)
    gram -= means + means[:, None] - means.mean()
    np.fill_diagonal(gram, 0.0)
    return gram


def _directions(Z: np.ndarray, rest: np.ndarray | float = 0.0) -> np.ndarray:
    """Return rows divided by their norms, to whose squares ``rest`` is added."""
    norms = np.sqrt(np.einsum("ij,ij->i", Z, Z) + rest)[:, None].astype(Z.dtype)
    return Z / np.where(norms > 0, norms, 1.0)


def _would_detect(
    source: _CenteredRows,
    target: _CenteredRows,
    parts: list[np.ndarray],
    permutations: int,
    level: float,
    rng: np.random.Generator,
) -> bool:
    """Return whether the test would have detected a link of strength ``_LINK`` between these rows: each side is paired
    with its own rows, mixed with another row. If one side were a rotation of the other, with isotropic noise of share
    1 − f of the variance, its excess would be f² times the other's.
    """
    flat, steep = sorted((source.excess, target.excess))
    link = _LINK * (np.sqrt(flat / steep) if steep > 0 else 1.0)
    for side in (source, target):
        mixed = link * side.rows + np.sqrt(1 - link**2) * side.rows[rng.permutation(len(side.rows))]
        if _held_out(replace(side, rows=mixed), side, parts, permutations, rng).p_value > level:
            return False
    return True


#: Largest number of rows of a block that are compared with each other, and of rows among which exchanged partners are
#: searched.
_BLOCK, _CANDIDATES = 250, 300

#: Degrees of freedom of the tails: true pairs include outliers, while wrong pairs are nearly normal.
_TRUE_TAIL, _WRONG_TAIL = 5, 30

#: Prior for the spread of true pairs: that of wrong ones, 1, with the weight of this many rows.
_PRIOR_ROWS = 10

#: Log likelihood ratio, minus the logarithm of the number of alternatives tried, from which pairs are reported.
_EXCHANGED, _LONE = 3.0, 4.0

#: Largest contribution of one pair to an exchange, so that no exchange depends on one outlier.
_MOST = 5.0

#: Lone pairs are reported only if true pairs are this many spreads above random ones, and only up to this evidence
#: themselves.
_CLEAR, _AS_RANDOM = 4.0, 1.0


def find_wrong_pairs(agreement: Agreement | _ManyPairs) -> tuple[np.ndarray, np.ndarray]:
    """Return the row numbers of pairs that look wrong, most suspicious first, and the probability of each.

    *Exchanged* partners: the assignment that gains most by the log likelihood ratio of "true pair" to "random pair",
    minus log n for each row moved. *Lone* pairs, whose partner is not among the rows: the lowest k by this ratio, minus
    the logarithm of the number of ways to choose them. The densities are Student's t about the median with the spread
    of the lower quartile, and about 0 with spread 1.
    """
    evidence = agreement.evidence
    probability = np.maximum(_own_probability(evidence), _exchanged(agreement))
    rows = np.flatnonzero(probability > 0)
    rows = rows[np.lexsort((evidence[rows], -probability[rows]))]
    return rows, probability[rows]


class Agreement:
    """Agreement of row i of one side's Gram matrix with row j of the other's, for all i and j; ``evidence`` (n,) is
    that of each pair minus the means of the wrong pairs in its row and its column, in their standard deviations.
    """

    def __init__(self, X: np.ndarray, Y: np.ndarray, rng: np.random.Generator) -> None:
        (self.x, x_variance, _), (self.y, y_variance, _) = whiten(X), whiten(Y)
        self.n = n = len(X)
        self.x_own, self.y_own = (np.einsum("ij,ij->i", z, z) for z in (self.x, self.y))
        self.x_size, self.y_size = _sizes(self.x, self.x_own, x_variance), _sizes(self.y, self.y_own, y_variance)
        self.predicted = self.x @ (self.x.T @ self.y)
        own = np.einsum("ij,ij->i", self.predicted, self.y) - self.x_own * self.y_own * (1 + 1 / (n - 1))
        own /= self.x_size * self.y_size
        self.row, self.column, self.row_sd, self.column_sd = (np.empty(n) for _ in range(4))
        for part in np.array_split(rng.permutation(n), -(-n // _BLOCK)):
            others = len(part) - 1
            block = self._correlations(part, part)
            np.fill_diagonal(block, 0)
            row, column = block.sum(axis=1) / others, block.sum(axis=0) / others
            half = row.mean() / 2
            self.row[part], self.column[part] = row - half, column - half
            block -= self.row[part][:, None] + self.column[part]
            np.fill_diagonal(block, 0)
            np.square(block, out=block)
            self.row_sd[part] = np.sqrt(block.sum(axis=1) / others)
            self.column_sd[part] = np.sqrt(block.sum(axis=0) / others)
        scale = np.maximum(np.sqrt(self.row_sd * self.column_sd), 1e-12)
        self.evidence = (own - self.row - self.column) / scale

    def among(self, rows: np.ndarray) -> np.ndarray:
        """Return the evidence for each source row with each target row, square, with ``evidence`` on the diagonal."""
        scale = np.maximum(np.sqrt(self.row_sd[rows][:, None] * self.column_sd[rows]), 1e-12)
        table = (self._correlations(rows, rows) - self.row[rows][:, None] - self.column[rows]) / scale
        np.fill_diagonal(table, self.evidence[rows])
        return table

    def _correlations(self, i: np.ndarray, j: np.ndarray) -> np.ndarray:
        """Return the correlation of K[i, k] and L[k, j] over all k other than i and j; K and L are centered."""
        K, L = self.x[i] @ self.x[j].T, self.y[i] @ self.y[j].T
        a, b = self.x_own[i][:, None], self.y_own[j]
        inner = self.predicted[i] @ self.y[j].T - a * L - K * b - (a + K) * (L + b) / (self.n - 2)
        inner /= self.x_size[i][:, None] * self.y_size[j]
        return inner


class _ManyPairs:
    """``Agreement`` of many pairs (n, d) and (n, e), by the leading directions in which a sample of them agrees."""

    def __init__(self, A: np.ndarray, B: np.ndarray, source: _CenteredRows, target: _CenteredRows) -> None:
        self.n = len(A)
        own = source.directions, target.directions
        (x, _, into_x), (y, _, into_y) = map(whiten, own)
        svd = half_svd((x.T @ y).astype(np.float64))
        scale = np.sqrt(svd.s[: svd.rank])
        turns = [(into @ (turn * scale)[:, :_LEADING]) for into, turn in ((into_x, svd.U), (into_y, svd.Vt.T))]
        x, y = (z @ turn.astype(np.float32) for z, turn in zip(own, turns, strict=True))
        means = x.mean(axis=0), y.mean(axis=0)
        x, y = x - means[0], y - means[1]
        # Rows are scaled by what each reaches with rows of the other side by chance.
        chances = y.T @ y / len(y), x.T @ x / len(x)
        self._sides = [
            (rows, side.mean, (side.basis @ turn).astype(rows.dtype), mean, chance)
            for rows, side, turn, mean, chance in zip((A, B), (source, target), turns, means, chances, strict=True)
        ]
        self.evidence = self._agreement()

    def _along(self, side: int, rows: np.ndarray | slice) -> np.ndarray:
        """Return rows of a side, in directions from its mean, along the leading directions."""
        table, mean, turn, offset, chance = self._sides[side]
        centered = table[rows] - mean
        norms = np.sqrt(np.einsum("ij,ij->i", centered, centered))[:, None]
        z = (centered @ turn / np.where(norms > 0, norms, 1.0)).astype(np.float32, copy=False) - offset
        variance = np.einsum("ij,ij->i", z @ chance, z)
        z /= np.maximum(variance, 1e-24)[:, None] ** 0.25
        return z

    def _agreement(self, first: np.ndarray | None = None, second: np.ndarray | None = None) -> np.ndarray:
        """Return the evidence for source rows with target rows, one by one; by default for the given pairs."""
        out = np.empty(self.n if first is None else len(first))
        for part in blocks(len(out), 8 * max(side[0].shape[1] for side in self._sides), budget=2**21):
            x, y = (self._along(k, part if rows is None else rows[part]) for k, rows in enumerate((first, second)))
            out[part] = np.einsum("ij,ij->i", x, y)
        return out

    def among(self, rows: np.ndarray) -> np.ndarray:
        """Return the evidence for each source row with each target row, square."""
        return np.asarray(self._along(0, rows) @ self._along(1, rows).T, np.float64)

    def begun(self, steps: list[Step]) -> list[Step]:
        """Return steps that begin before the stretch where each was found, at the row from which on it agrees better
        than the one before.
        """
        out: list[Step] = []
        before = Step(0, 0, 1)
        for at in steps:
            rows = np.arange(before.row + len(out[:1]), at.row)
            gains = np.zeros(len(rows))
            for one, sign in ((at, 1), (before, -1)):
                partner = one.partner + one.step * (rows - one.row)
                inside = (partner >= 0) & (partner < self.n)
                gains[inside] += sign * self._agreement(rows[inside], partner[inside])
            total, noise = np.cumsum(gains[::-1]), np.sqrt(np.cumsum(np.square(gains[::-1])))
            earlier = int(np.argmax(total)) + 1 if len(rows) else 0
            if earlier and total[earlier - 1] < 6 * noise[earlier - 1]:  # where no map is known, it is a random walk
                earlier = 0
            before = Step(at.row - earlier, at.partner - at.step * earlier, at.step)
            out.append(before)
        return out


def _sizes(z: np.ndarray, own: np.ndarray, variance: np.ndarray) -> np.ndarray:
    """Return the norm of each row of the Gram matrix about its mean, without the diagonal."""
    squares = np.square(z) @ variance - own**2 * (1 + 1 / (len(z) - 1))
    return np.sqrt(np.maximum(squares, 1e-24))


def _log_t(x: np.ndarray, df: int) -> np.ndarray:
    """Return the log density of Student's t; importing ``scipy.stats`` would take longer than a fit."""
    size = lgamma((df + 1) / 2) - lgamma(df / 2) - 0.5 * np.log(df * pi)
    return size - (df + 1) / 2 * np.log1p(x * x / df)


def _log_true(evidence: np.ndarray, center: float, spread: float) -> np.ndarray:
    return _log_t((evidence - center) / spread, _TRUE_TAIL) - np.log(spread)


def _spread(raw: float, n: int) -> float:
    """Return the spread of n true pairs, shrunk toward that of wrong ones."""
    return float(np.sqrt((n * raw**2 + _PRIOR_ROWS) / (n + _PRIOR_ROWS)))


def _exchanged(agreement: Agreement | _ManyPairs) -> np.ndarray:
    """Return the probability that each pair is one of several whose partners were exchanged."""
    evidence, n = agreement.evidence, agreement.n
    center = np.median(evidence)
    spread = _spread((center - np.sort(evidence)[n // 4]) / 0.6745, n)
    rows = np.argsort(evidence, kind="stable")[:_CANDIDATES]
    # Above the median, more evidence cannot make a pair less likely to be true, although the density decreases there.
    table = np.minimum(agreement.among(rows), center)
    ratio = np.clip(_log_true(table, center, spread) - _log_t(table, _WRONG_TAIL), -_MOST, _MOST)
    own, probability = np.arange(len(rows)), np.zeros(n)
    partner = assign(ratio, np.log(n), _EXCHANGED)
    gains = np.where(partner == own, 0.0, ratio[own, partner] - np.diag(ratio) - np.log(n))
    for first in np.flatnonzero(partner != own) if gains.sum() >= _EXCHANGED else ():
        if probability[rows[first]] == 0:
            cycle = [first]
            while partner[cycle[-1]] != first:
                cycle.append(partner[cycle[-1]])
            probability[rows[cycle]] = 1 / (1 + np.exp(-gains[cycle].sum()))
    return probability


def _own_probability(evidence: np.ndarray) -> np.ndarray:
    """Return the probability that each pair is wrong by its own evidence; 0 for pairs not reported."""
    n = len(evidence)
    ordered = np.sort(evidence)
    best, found = _LONE, None
    few = range(1, min(n // 3, int(np.searchsorted(ordered, _AS_RANDOM, "right"))) + 1)
    for k in [*few, *range(n // 3 + 1, 2 * n // 3, max(1, n // 100))]:
        # Of few the highest is as low as a random pair's; of many the middle is, and most are nearly.
        if k > n // 3 and (ordered[k // 2] > _AS_RANDOM / 2 or ordered[int(0.84 * k)] > 2 * _AS_RANDOM):
            break
        others = ordered[k:]
        m = len(others)
        center = others[m // 2]
        spread = _spread(max((center - others[m // 4]) / 0.6745, (center - others[m // 10]) / 1.2816), m)
        if center < _CLEAR * spread:
            continue
        low = np.maximum(ordered[:k], 0)
        gain = (_log_t(low, _WRONG_TAIL) - _log_true(ordered[:k], center, spread)).sum()
        gain -= lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1)
        if gain >= best:
            best, found = gain, (center, spread)
    probability = np.zeros(n)
    if found is None:
        return probability
    center, spread = found
    # There are wrong pairs; some of them may by chance be closer to the true ones than those counted so far.
    rows = np.flatnonzero((evidence <= 2 * _AS_RANDOM) & (evidence <= center - 3.5 * spread))
    share = len(rows) / n
    wrong = share * np.exp(-np.square(np.maximum(evidence[rows], 0)) / 2) / np.sqrt(2 * pi)
    true = (1 - share) * np.exp(_log_true(evidence[rows], center, spread))
    probability[rows] = wrong / (wrong + true)
    return probability
