"""Forecast what further re-embedding would gain and cost, before it is paid for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np

from congruence._utils.plain import PlainData
from congruence.upgrade.progressive.meter import rest_interval

FEWEST = 20  # minimum number of random rows for a verdict
LAST = 10  # minimum number of them on which each point of the forecast is measured
UNMEASURED = "no forecast yet"  # the verdict with fewer
WIDE, TOO_FEW = 0.1, "too few measured rows to stop"  # the verdict while the interval is wider than ± WIDE
MOST = 0.5  # beyond this share of the store, re-embedding all of it is simpler, and costs at most twice as much


@dataclass(frozen=True)
class Forecast(PlainData):
    """The quality after further batches with the present map; refitting the map adds to it."""

    metric: str
    share: list[float]  # of the store re-embedded, from the present one
    value: list[float]  # with its 95 % interval from low to high
    low: list[float]
    high: list[float]
    rows: list[int]  # still to be re-embedded
    minutes: list[float | None]  # None if the rate is unknown
    price: list[float | None]  # None if the price per row is unknown
    target: float
    needed: float | None  # share at which the target is reached, if ever
    needed_at_random: float | None  # the same in random order
    #: UNMEASURED, TOO_FEW, "done", "keep the old model", "re-embed progressively" or "re-embed everything"
    verdict: str
    reason: str

    def __str__(self) -> str:
        lines = [f"{self.verdict}: {self.reason}"]
        # With too few measured rows for a verdict, the forecast is too uncertain to print.
        for k in range(1, len(self.share) if self.verdict != UNMEASURED else 1):
            more, gain = 100 * (self.share[k] - self.share[0]), 100 * (self.value[k] - self.value[0])
            line = f"{more:.1f} % more: {gain:+.1f} ± {50 * (self.high[k] - self.low[k]):.1f} points"
            line += "" if self.minutes[k] is None else f", {self.minutes[k]:.0f} minutes"
            lines.append(line + ("" if self.price[k] is None else f", price {self.price[k]:.2f}"))
        return "\n".join(lines)


def make_forecast(
    values: np.ndarray,
    ahead: np.ndarray,
    n_rows: int,
    n_embedded: int,
    *,
    metric: str,
    meter_share: float,
    target: float,
    further: Sequence[float],
    rate: float | None,
    price: float | None,
    support: tuple[float, float] = (0.0, 1.0),
    better: tuple[float, float] | None = None,
) -> Forecast:
    """Forecast from the quality (m,) of the meter's rows and the share of rows that the order takes before each."""
    rest, done = n_rows - n_embedded, n_embedded / n_rows
    last = float(np.sort(ahead)[-min(LAST, len(ahead))]) if len(ahead) else 0.0

    def kept(more: float, ordered: bool = True) -> tuple[np.ndarray, float]:
        """Return the quality of rows still mapped after re-embedding this further share, and their number."""
        rows = min(more * n_rows, rest)
        # The random share of a batch comes from all rows alike, the rest of it from the front of the order.
        cut = (1 - meter_share) * rows / max(rest - meter_share * rows, 1.0) if ordered else 0.0
        # The last few rows represent all that the order takes after them; otherwise a single row could decide.
        return values[ahead >= min(cut, last)], rest - rows

    def at(more: float) -> list[float]:
        sample, left = kept(more)
        interval = rest_interval(sample, int(left), support) if left >= 1 else (1.0, 1.0, 1.0)
        return [(n_rows - left + left * end) / n_rows for end in interval]

    def reached(ordered: bool) -> float | None:
        for more in np.linspace(0.0, rest / n_rows, 201):
            sample, left = kept(float(more), ordered)
            if left < 1 or (len(sample) and (n_rows - left + left * sample.mean()) / n_rows >= target):
                return float(done + more)
        return None

    grid = [0.0, *sorted({float(share) for share in further if share * n_rows <= rest})]
    value, low, high = np.array([at(more) for more in grid]).T.tolist()
    rows = [round(more * n_rows) for more in grid]
    needed, at_random = reached(True), reached(False)
    when, other = ("never" if share is None else f"at {100 * share:.0f} %" for share in (needed, at_random))
    if better is not None and better[0] >= better[1]:
        verdict = "keep the old model"
        reason = f"its accuracy is {better[0]:.3f}, and the new model's is at most {better[1]:.3f}, by the random rows"
    elif len(values) < FEWEST and done < 1:
        verdict, more = UNMEASURED, min(rest, ceil((FEWEST - len(values)) / meter_share))
        reason = f"{len(values)} of the re-embedded rows were drawn at random, and {FEWEST} are needed; "
        reason += f"re-embed about {more:,} more rows"
    elif high[0] - low[0] > 2 * WIDE:
        times = ((high[0] - low[0]) / (2 * WIDE)) ** 2  # as many rows as make it narrow enough
        verdict, more = TOO_FEW, min(rest, ceil((times - 1) * len(values) / meter_share))
        reason = f"{metric} is {value[0]:.3f} ({low[0]:.3f} … {high[0]:.3f}) by {len(values)} rows that were drawn at "
        reason += f"random; re-embed about {more:,} more rows"
    elif value[0] >= target:
        verdict, reason = "done", f"{metric} is {value[0]:.3f}, the target {target:.3f}"
    elif needed is None or needed > MOST:
        verdict = "re-embed everything"
        reason = f"{metric} of mapped rows is {values.mean():.3f}: the target {target:.3f} is reached {when} of the "
        reason += "store, so the old vectors contain too little of what the new model distinguishes"
    else:
        verdict = "re-embed progressively"
        reason = f"{metric} reaches {target:.3f} {when} of the store, in random order {other}"
    shares = [(n_embedded + row) / n_rows for row in rows]
    minutes = [rate and row / rate for row in rows]
    prices = [price and row * price for row in rows]
    return Forecast(metric, shares, value, low, high, rows, minutes, prices, target, needed, at_random, verdict, reason)
