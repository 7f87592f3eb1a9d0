"""Significance tests of the order of JAM's losses, from their paired outcomes on the same items."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import asdict, dataclass, field, replace
from itertools import combinations, pairwise

import numpy as np

from congruence.datasets import SugarCrepe
from congruence.evaluation.paired_tests import bootstrap_intervals, group_sums, holm, sign_flip
from congruence_papers.jam.data import JAMData
from congruence_papers.jam.protocol import PAPER_ORDER
from congruence_papers.job import Job

__all__ = ["ItemPairs", "ItemTest", "record_item_tests"]

LEVEL = 0.95
PERMUTATIONS = 9999
DRAWS = 2000


@dataclass(frozen=True)
class ItemTest:
    """A paired test of two losses on the same items.

    Attributes
    ----------
    data, pair : str
    metric : str
        ``"binary_recall"`` or ``"five_way_recall"``.
    first, second : str
        The losses; the first ranks above the second in the paper.
    difference : float
        Mean recall of the first minus that of the second, over all items of all draws.
    low, high : float
        95 % confidence interval of the difference, from a bootstrap over images.
    p_value : float
        P-value of a sign-flip permutation test over images: the differences of all items of an image, in all draws that tested it, flip sign
        together.
    adjusted_p_value : float
        Holm-adjusted over all tests of an experiment.
    n, n_images, draws : int
        Number of tested items over all draws, of distinct images, and of splits of the items.
    """

    data: str
    pair: str
    metric: str
    first: str
    second: str
    difference: float
    low: float
    high: float
    p_value: float
    adjusted_p_value: float
    n: int
    n_images: int
    draws: int


@dataclass
class ItemPairs:
    """Per-item outcomes of the losses of one experiment."""

    _right: dict[tuple[str, str], dict[str, dict[int, np.ndarray]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(dict))
    )
    _images: dict[tuple[str, str], dict[int, np.ndarray]] = field(default_factory=lambda: defaultdict(dict))

    def add(self, where: tuple[str, str], name: str, draw: int, items: SugarCrepe, right: np.ndarray) -> None:
        """Add the per-item outcomes of one fitted loss.

        Parameters
        ----------
        where : tuple of str
            Name of the data; task and pair of encoders.
        name : str
            Name of the loss.
        draw : int
            Seed of the split.
        items : SugarCrepe
            Test items, the same for each loss.
        right : ndarray, shape (n, 2)
            Outcomes from :func:`congruence_papers.jam.metrics.measure_outcomes`.
        """
        self._right[where][name][draw] = right
        self._images[where][draw] = items.filenames

    def tests(self, every: bool = False) -> list[ItemTest]:
        """Test adjacent losses in the paper's order, or every two if ``every`` is set; only losses that were run on the same draws are compared."""
        rng = np.random.default_rng(0)
        tests: list[ItemTest] = []
        for where, names in self._right.items():
            for first, second in combinations(PAPER_ORDER, 2) if every else pairwise(PAPER_ORDER):
                if first not in names or second not in names or names[first].keys() != names[second].keys():
                    continue
                draws = list(names[first])
                gaps = np.concatenate([names[first][draw] - names[second][draw] for draw in draws])
                images = np.concatenate([self._images[where][draw] for draw in draws])
                sums, sizes = group_sums(gaps, images)
                ends = bootstrap_intervals(sums, sizes, LEVEL, DRAWS, rng, np.ones(2))
                for k, metric in enumerate(("binary_recall", "five_way_recall")):
                    p = sign_flip(sums[:, k], PERMUTATIONS, rng)
                    middle, low, high = float(gaps[:, k].mean()), float(ends[0, k]), float(ends[1, k])
                    counts = (len(gaps), len(sizes), len(draws))
                    tests.append(ItemTest(*where, metric, first, second, middle, low, high, p, p, *counts))
        adjusted = holm(np.array([test.p_value for test in tests]))
        return [replace(test, adjusted_p_value=float(p)) for test, p in zip(tests, adjusted, strict=True)]


def record_item_tests(job: Job[JAMData], pairs: ItemPairs, every: bool = False) -> None:
    """Store the tests in the results' ``item_tests``, and add notes on how many differences, and which, are significant."""
    tests = pairs.tests(every)
    if not tests:
        return
    job.extra["item_tests"] = [asdict(test) for test in tests]
    for first, second in dict.fromkeys((test.first, test.second) for test in tests):
        lines = [test for test in tests if (test.first, test.second) == (first, second)]
        significant = [test for test in lines if test.adjusted_p_value < 1 - LEVEL]
        above, below = (sum(sign * test.difference > 0 for test in significant) for sign in (1, -1))
        job.add_note(
            f"Item by item (sign-flip tests of images, Holm, 5 %): {first} is above {second} in {above} of {len(lines)} tasks and measures, below in {below}, "
            f"and not significantly different in {len(lines) - above - below}."
        )
        for test in significant:
            job.add_note(
                f"{test.data}, {test.pair}, {test.metric.removesuffix('_recall').replace('_', '-')}: {first} − {second} "
                f"{test.difference:+.3f} ({test.low:+.3f} to {test.high:+.3f}), p = {test.adjusted_p_value:.2g}, {test.n_images} images."
            )
