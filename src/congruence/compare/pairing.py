"""Say whether anchors are paired at all, and which pairs look wrong.

A map fitted to shuffled anchors looks like any other map: least squares and Procrustes never complain. But a map fitted
on some true pairs brings *other* true pairs together, and a map fitted on wrong pairs does not. So the anchors are cut
into folds, each fold is carried by a map fitted without it, and its alignment is compared with what the same rows give
when they are paired again at random.
"""

from __future__ import annotations

import warnings
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from congruence._arrays import blocks
from congruence._check import as_matrix, check_positive, check_same_rows, name_rows
from congruence._inputs import check_order
from congruence.errors import PairingWarning, UnpairedError
from congruence.linalg import cross_svd, rotation_from_svd
from congruence.moments import CrossMoments

__all__ = ["FEWEST", "PairingReport", "check_pairing", "warn_pairing"]

#: Fewest pairs on which the question can be answered.
FEWEST = 20

#: Rows of a fold that are compared with each other; more would only make the null more precise.
_FOLD_ROWS = 1000


@dataclass(frozen=True)
class PairingReport:
    """Outcome of :func:`check_pairing`.

    Attributes
    ----------
    n_pairs : int
    alignment : float
        Mean cosine of held-out pairs after centring and rotation.
    null_mean, null_sd : float
        Mean and standard deviation of the same when the held-out rows are paired at random.
    p_value : float
        Probability of aligning as well without being paired.
    share_wrong : float
        Estimated share of wrong pairs.
    decided : bool
        Whether there were enough pairs to say anything.
    looks_paired : bool
    suspects : tuple of str
        Ids (or row numbers) of pairs that look wrong, most suspicious first.
    suspect_probability : tuple of float
        Estimated probability of each being wrong.
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

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain data."""
        return {**asdict(self), "suspects": list(self.suspects), "suspect_probability": list(self.suspect_probability)}

    @property
    def sentence(self) -> str:
        """One sentence for people."""
        if not self.decided:
            return f"{self.n_pairs} pairs are too few to tell whether they are paired (at least {FEWEST} are needed)."
        against = (
            f"held-out alignment {self.alignment:.3f} against {self.null_mean:.3f} ± {self.null_sd:.3f} "
            f"under random re-pairing, p = {self.p_value:.3g}"
        )
        if not self.looks_paired:
            return f"The {self.n_pairs} anchors do not look paired: {against}."
        if self.suspects:
            listed = name_rows(np.arange(len(self.suspects)), list(self.suspects))
            return f"The anchors look paired ({against}), but {len(self.suspects)} of {self.n_pairs} pairs look wrong: {listed}."
        return f"The anchors look paired: {against}."


def check_pairing(
    X: Any,
    Y: Any,
    *,
    ids: Any = None,
    folds: int = 5,
    permutations: int = 999,
    level: float = 0.01,
    random_state: int = 0,
) -> PairingReport:
    """Compare the alignment of paired rows with random re-pairing, and find pairs that look wrong.

    Parameters
    ----------
    X : array_like, shape (n, d_source)
    Y : array_like, shape (n, d_target)
    ids : sequence of str, optional
        Names of the pairs; row numbers by default.
    folds : int, default=5
    permutations : int, default=999
        Random re-pairings of the held-out rows.
    level : float, default=0.01
        Largest p-value at which the anchors count as paired.
    random_state : int, default=0

    Returns
    -------
    PairingReport

    Raises
    ------
    ShapeError, DtypeError, NotFiniteError

    Notes
    -----
    Within a fold the test is exact: its map never saw the fold, so if the rows are not paired each re-pairing of the
    fold is as likely as the one given. Folds lend each other their rows to fit on and are not independent, so their p-values
    are combined by Bonferroni, which needs no independence. Below 60 pairs two folds are used whatever was asked,
    since smaller ones have too few re-pairings.

    A pair's own evidence is its cosine measured in standard deviations of what the same source row reaches with other target
    rows. For wrong pairs this is about standard normal; for right pairs its centre and spread are estimated
    robustly, and the two are weighed by a mixture whose share of wrong pairs is fitted by EM.
    """
    check_positive(folds, "folds", integer=True)
    check_positive(permutations, "permutations", integer=True)
    check_order(X, Y)
    A = as_matrix(X, "X", allow_zero_rows=True)
    B = as_matrix(Y, "Y", allow_zero_rows=True)
    check_same_rows(len(A), len(B), "X", "Y")
    n = len(A)
    names = np.arange(n).astype(str) if ids is None else np.asarray(ids).astype(str)
    if n < FEWEST:
        return PairingReport(n, float("nan"), float("nan"), float("nan"), 1.0, float("nan"), False, True, (), ())
    rng = np.random.default_rng(random_state)
    order = rng.permutation(n)
    parts = [np.sort(part) for part in np.array_split(order, folds if n >= 60 else 2)]
    evidence, own, reached, null = _fold_evidence(A, B, parts, permutations, rng)
    alignment = float(own.mean())
    by_fold = (1 + np.count_nonzero(null >= reached[:, None] - 1e-12, axis=1)) / (1 + permutations)
    p_value = float(min(1.0, len(parts) * by_fold.min()))
    pooled = np.average(null, axis=0, weights=[len(part) for part in parts])
    probability, share = _wrong_probability(evidence)
    paired = p_value <= level
    rows = np.flatnonzero(probability > 0.5) if paired else np.empty(0, int)
    rows = rows[np.argsort(-probability[rows], kind="stable")]
    return PairingReport(
        n_pairs=n,
        alignment=alignment,
        null_mean=float(pooled.mean()),
        null_sd=float(pooled.std()),
        p_value=p_value,
        share_wrong=float(share) if paired else 1.0,
        decided=True,
        looks_paired=paired,
        suspects=tuple(names[rows].tolist()),
        suspect_probability=tuple(float(p) for p in probability[rows]),
    )


def warn_pairing(report: PairingReport, *, strict: bool = False) -> None:
    """Warn when a report is bad; under ``strict`` raise instead.

    Parameters
    ----------
    report : PairingReport
    strict : bool, default=False

    Raises
    ------
    UnpairedError
        Under ``strict``, when the anchors do not look paired or some pairs look wrong.

    Warns
    -----
    PairingWarning
    """
    if report.decided and report.looks_paired and not report.suspects:
        return
    if not report.decided and not strict:
        return
    advice = "Check that both sides list the same items in the same order, or pass ids=… to pair them by id"
    if report.looks_paired and report.suspects:
        advice = "Look at these items, and drop those that are wrong"
    if strict:
        raise UnpairedError(
            f"Got anchors that fail the pairing check; expected pairs of the same item. {report.sentence} {advice}."
        )
    warnings.warn(
        f"Got anchors that fail the pairing check; expected pairs of the same item. {report.sentence} {advice}.",
        PairingWarning,
        stacklevel=3,
    )


def _fold_evidence(
    A: np.ndarray, B: np.ndarray, parts: list[np.ndarray], permutations: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Carry each fold by a map fitted on the others.

    Returns each pair's evidence in standard deviations and its cosine; and for a sample of each fold the mean cosine, as
    paired and under every re-pairing.
    """
    gathered = [CrossMoments.of(A[part], B[part]) for part in parts]
    evidence, own = np.empty(len(A)), np.empty(len(A))
    reached, null = np.empty(len(parts)), np.empty((len(parts), permutations))
    for k, part in enumerate(parts):
        train = CrossMoments(A.shape[1], B.shape[1])
        for j, moments in enumerate(gathered):
            if j != k:
                train = train.merge(moments)
        size = np.sqrt(train.source_scatter * train.target_scatter)
        svd = cross_svd(train.cross, max_rank=train.rows - 1, scale=size)
        rotation = rotation_from_svd(svd, (np.arange(len(svd.s)) < svd.rank).astype(float))
        # Each row is compared with a sample of the fold's other rows: enough to know its background.
        sample = rng.permutation(len(part))[:_FOLD_ROWS]
        others = _directions(B[part[sample]] - train.target_mean)
        place = np.full(len(part), -1)
        place[sample] = np.arange(len(sample))
        for rows in blocks(len(part), 8 * max(len(sample), A.shape[1], B.shape[1])):
            here = part[rows]
            x = _directions((A[here] - train.source_mean) @ rotation)
            own[here] = np.einsum("ij,ij->i", x, _directions(B[here] - train.target_mean))
            background = x @ others.T
            sampled = np.flatnonzero(place[rows] >= 0)
            background[sampled, place[rows][sampled]] = np.nan  # its own partner is no background
            mean = np.nanmean(background, axis=1)
            spread = np.nanstd(background, axis=1)
            evidence[here] = (own[here] - mean) / np.maximum(spread, 1e-12)
        pairs = _directions((A[part[sample]] - train.source_mean) @ rotation) @ others.T
        order = np.arange(len(sample))
        reached[k] = pairs[order, order].mean()
        for b in range(permutations):
            null[k, b] = pairs[order, rng.permutation(len(sample))].mean()
    return evidence, own, reached, null


def _directions(Z: np.ndarray) -> np.ndarray:
    norms = np.linalg.norm(Z, axis=1, keepdims=True)
    return Z / np.where(norms > 0, norms, 1.0)


def _wrong_probability(evidence: np.ndarray) -> tuple[np.ndarray, float]:
    """Probability that each pair is wrong, and the share of wrong pairs, by EM on a two-part mixture."""
    centre = float(np.median(evidence))
    spread = max(1.4826 * float(np.median(np.abs(evidence - centre))), 0.5)
    # Anything below its own background is as bad as the background.
    wrong = np.exp(-0.5 * np.clip(evidence, 0, None) ** 2)
    right = np.exp(-0.5 * np.clip((centre - evidence) / spread, 0, None) ** 2) / spread
    share = 0.05
    for _ in range(50):
        probability = share * wrong / np.maximum(share * wrong + (1 - share) * right, 1e-300)
        share = float(np.clip(probability.mean(), 1e-4, 1 - 1e-4))
    return probability, share
