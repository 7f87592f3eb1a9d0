"""Coverage and width of confidence intervals for the mean of the unsampled rest of artificial skewed populations, from
small samples.

``python benchmarks/progressive_intervals.py --json OUT``. The interval of the progressive meter
(``upgrade/progressive/_interval.py``) was chosen among these, on these populations only. *Shares* are multiples of a
tenth, like overlaps of ten neighbors; *cosines* lie near 1 with a tail below; *weighted* are shares with lognormal
weights. Samples have 10 to 100 rows, drawn without replacement from 300 to 1,200. *Least seen*: the minimum value of a
row is assumed to be the least among other random rows, three times the sample; otherwise it is the provable 0 or −1.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.stats import skew, t

from common import arguments, write_json
from congruence.upgrade.progressive.meter import rest_interval

SIZES = ((10, 300), (20, 1200), (40, 300), (100, 1200))
Draw = Callable[[np.random.Generator, int], np.ndarray]


def tenths(draw: Draw) -> Draw:
    return lambda rng, n: np.round(10 * np.clip(draw(rng, n), 0, 1)) / 10


def mixed(share: float, rare: Draw, usual: Draw) -> Draw:
    return lambda rng, n: np.where(rng.random(n) < share, rare(rng, n), usual(rng, n))


BAD, GOOD = (lambda rng, n: rng.beta(1, 6, n)), (lambda rng, n: rng.beta(30, 2, n))
LOW, HIGH = (lambda rng, n: rng.normal(0.1, 0.1, n)), (lambda rng, n: np.minimum(rng.normal(0.95, 0.02, n), 1))

SHARES: dict[str, Draw] = {
    "beta(8, 2)": tenths(lambda rng, n: rng.beta(8, 2, n)),
    "beta(2, 2)": tenths(lambda rng, n: rng.beta(2, 2, n)),
    "beta(.5, 3)": tenths(lambda rng, n: rng.beta(0.5, 3, n)),
    "5 % bad": tenths(mixed(0.05, BAD, GOOD)),
    "15 % bad": tenths(mixed(0.15, BAD, GOOD)),
    "80 % whole": tenths(mixed(0.2, lambda rng, n: rng.beta(2, 4, n), lambda rng, n: np.ones(n))),
    "97 % whole": tenths(mixed(0.03, lambda rng, n: rng.beta(2, 4, n), lambda rng, n: np.ones(n))),
}
COSINES: dict[str, Draw] = {
    "normal": lambda rng, n: rng.normal(0.7, 0.1, n),
    "exponential loss": lambda rng, n: 1 - np.minimum(0.08 * rng.exponential(1, n), 2),
    "lognormal loss": lambda rng, n: 1 - np.minimum(0.05 * rng.lognormal(0, 1, n), 2),
    "beta loss": lambda rng, n: 1 - 0.4 * rng.beta(1, 8, n),
    "10 % lost": mixed(0.1, LOW, HIGH),
    "3 % lost": mixed(0.03, LOW, HIGH),
    "two groups": mixed(
        0.4, lambda rng, n: rng.normal(0.6, 0.05, n), lambda rng, n: np.minimum(rng.normal(0.9, 0.03, n), 1)
    ),
}  # fmt: skip

Interval = tuple[float, float]


def student(x: np.ndarray, rest: int, w: np.ndarray | None = None) -> Interval:
    mean, e = x.mean(), x
    if w is not None:  # the linearized ratio
        mean = np.average(x, weights=w)
        e = w * (x - mean) / w.mean()
    half = t.ppf(0.975, len(x) - 1) * e.std(ddof=1) * np.sqrt(1 / len(x) + 1 / rest)
    return mean - half, mean + half


def wilson(x: np.ndarray, rest: int) -> Interval:
    """Wilson's interval, with the number of trials at which a rate has the sample's variance."""
    p, v, z = x.mean(), x.var(ddof=1) * (1 / len(x) + 1 / rest), 1.96
    n = p * (1 - p) / v * (z / t.ppf(0.975, len(x) - 1)) ** 2 if v > 0 else 1 / (1 / len(x) + 1 / rest)
    middle, half = (p + z**2 / 2 / n), z * np.sqrt(p * (1 - p) / n + z**2 / 4 / n**2)
    return (middle - half) / (1 + z**2 / n), (middle + half) / (1 + z**2 / n)


def hall(x: np.ndarray, rest: int) -> Interval:
    """Hall's (1992) cubic transformation against skewness, with Student's quantiles."""
    g = 0.0 if np.ptp(x) == 0 else float(skew(x))
    part = 1 / len(x) + 1 / rest
    y = np.array([1, -1]) * t.ppf(0.975, len(x) - 1) * np.sqrt(part) - g * part / 6
    moved = y if abs(g) < 1e-6 else (np.cbrt(1 + g * y) - 1) * 3 / g
    low, high = x.mean() - x.std(ddof=1) * moved
    return float(low), float(high)


def bootstrap_t(x: np.ndarray, rest: int) -> Interval:
    drawn = x[np.random.default_rng(1).integers(0, len(x), (500, len(x)))]
    error = np.maximum(drawn.std(axis=1, ddof=1), 1e-12) / np.sqrt(len(x))
    low, high = np.quantile(np.clip((drawn.mean(axis=1) - x.mean()) / error, -30, 30), [0.975, 0.025])
    scale = x.std(ddof=1) * np.sqrt(1 / len(x) + 1 / rest)
    return x.mean() - low * scale, x.mean() - high * scale


def likelihood(x: np.ndarray, rest: int) -> Interval:
    """Empirical likelihood (Owen 1988) with the quantile of F(1, m − 1), scaled by 1 + m/rest, as the variance of the
    difference to the rest's mean is.
    """
    grid, limit = np.linspace(0, 1, 61)[1:], t.ppf(0.975, len(x) - 1) ** 2 * (1 + len(x) / rest)

    def end(x: np.ndarray) -> float:
        y = x - x.min()
        best = y.mean()
        for tilt in np.concatenate([grid, 1 / grid[::-1], 10 / grid[::-1], 1000 / grid[::-1]]) / max(y.max(), 1e-12):
            p = 1 / (1 + tilt * y)
            p /= p.sum()
            if -2 * np.log(len(x) * p).sum() > limit:
                break
            best = p @ y
        return float(best + x.min())

    return end(x), -end(-x)


def betting(x: np.ndarray, rest: int, least: float) -> Interval:
    """Hedged capital without replacement (Waudby-Smith and Ramdas 2024, section 5), for the mean of the whole
    population, from which the rest's follows.
    """
    y, m, n = (x - least) / (1 - least), len(x), len(x) + rest
    count, before = np.arange(1, m + 1), np.append(0, np.cumsum(y)[:-1])
    mean = (0.5 + np.cumsum(y)) / (count + 1)
    spread = np.append(0.25, ((0.25 + np.cumsum((y - mean) ** 2)) / (count + 1))[:-1])
    bet = np.sqrt(2 * np.log(2 / 0.05) / (m * spread))[:, None]
    grid = np.linspace(0, 1, 201)
    expected = (n * grid - before[:, None]) / (n - count + 1)[:, None]
    inner = np.clip(expected, 1e-12, 1 - 1e-12)
    away = y[:, None] - expected
    up = np.log1p(np.minimum(bet, 0.75 / inner) * away.clip(-1, 1)).sum(axis=0)
    down = np.log1p(-np.minimum(bet, 0.75 / (1 - inner)) * away.clip(-1, 1)).sum(axis=0)
    possible = ((expected >= 0) & (expected <= 1)).all(axis=0) & (np.maximum(up, down) < np.log(2 / 0.05))
    kept = grid[possible] if possible.any() else np.array([y.mean()])
    ends = [np.clip((n * one - y.sum()) / rest, 0, 1) for one in (kept[0] - 0.005, kept[-1] + 0.005)]
    return tuple(float(least + (1 - least) * one) for one in ends)  # type: ignore[return-value]


def measure(kind: str, draw: Draw, m: int, n: int, runs: int) -> dict[str, list[float]]:
    """Return for each candidate the share of runs whose interval contains the true mean, and the mean width."""
    rng = np.random.default_rng([m, n])
    least = -1.0 if kind == "cosines" else 0.0
    found: dict[str, list[tuple[bool, float]]] = {}
    for _ in range(runs):
        population, other = draw(rng, n), draw(rng, 3 * m)
        x, rest = population[:m], population[m:]
        w = rng.lognormal(0, 1, n) if kind == "weighted" else None
        truth = float(np.average(rest, weights=None if w is None else w[m:]))
        if w is not None:
            result = {
                "Student": student(x, n - m, w[:m]),
                "Gaffke": rest_interval(x, n - m, weights=w[:m], rest_weights=w[m:])[1:],
            }
        else:
            result = {one.__name__: one(x, n - m) for one in (student, hall, bootstrap_t, likelihood)}
            if kind == "shares":
                result["wilson"] = wilson(x, n - m)
            result["betting"] = betting(x, n - m, least)
            result["Gaffke"] = rest_interval(x, n - m, (least, 1.0))[1:]
            seen = float(min(other.min(), x.min()))
            result["Gaffke, least seen"] = rest_interval(x, n - m, (seen, 1.0) if seen < x.max() else (least, 1.0))[1:]
        for name, (low, high) in result.items():
            found.setdefault(name, []).append((low - 1e-9 <= truth <= high + 1e-9, high - low))
    return {name: [float(np.mean(one)) for one in zip(*rows, strict=True)] for name, rows in found.items()}


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--runs", type=int, default=200)
    given = parser.parse_args()
    results = {}
    for kind, populations in (("shares", SHARES), ("cosines", COSINES), ("weighted", SHARES)):
        for m, n in SIZES:
            each = [measure(kind, draw, m, n, given.runs) for draw in populations.values()]
            for name in each[0]:
                held, width = np.array([one[name] for one in each]).T
                results[f"{kind}: {name}: {m}"] = [held.mean(), held.min(), width.mean()]
                print(f"{kind:9s} {name:20s} {m:4d} {held.mean():.3f} {held.min():.3f} {width.mean():.3f}", flush=True)
    write_json(given, results)


if __name__ == "__main__":
    main()
