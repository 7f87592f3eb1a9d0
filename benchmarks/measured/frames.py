"""Tables of docs/frames.md and docs/drift.md."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import stats

from measured.blocks import Block, minus, table
from measured.jobs import JOBS

TEXT, IMAGE = 0, 2  # indices of the three scores of a map: text to text, the same centered, image to text centered


def half_width(values: np.ndarray) -> float:
    """Return half the width of the 95 % t-interval of a mean over splits."""
    return float(stats.t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values)))


def mean(values: list[float] | np.ndarray, digits: int = 3) -> str:
    values = np.asarray(values)
    return f"{values.mean():.{digits}f} ± {half_width(values):.{digits}f}"


def difference(one: np.ndarray, two: np.ndarray) -> str:
    values = one - two
    return minus(f"{values.mean():+.3f} ± {half_width(values):.3f}")


def _of(runs: list[dict[str, list[float]]], name: str, which: int) -> np.ndarray:
    return np.array([run[name][which] for run in runs])


def complete(results: list[Any]) -> str:
    rows = []
    for n, runs in results[0]["results"]["complete"].items():
        direct, composed, frame = (_of(runs, name, TEXT) for name in ("direct", "composed", "frame"))
        images = [_of(runs, name, IMAGE) for name in ("direct", "frame")]
        cells = [mean(direct), mean(composed), mean(frame), difference(frame, direct)]
        rows.append([n, *cells, mean(images[0]), difference(images[1], images[0])])
    texts = (f"text@1: {what}" for what in ("direct", "composed", "frame", "frame − direct"))
    header = ["common names", *texts, "image@1: direct", "image@1: frame − direct"]
    return table(header, rows)


def partial(results: list[Any]) -> str:
    rows = []
    for n, runs in results[1]["results"]["partial"].items():
        composed, frame = (_of(runs, name, TEXT) for name in ("composed", "frame"))
        direct = _of(runs, "direct", TEXT) if n != "0" else None
        rows.append(
            [
                n,
                "–" if direct is None else mean(direct),
                mean(composed),
                mean(frame),
                "–" if direct is None else difference(frame, direct),
                difference(frame, composed),
            ]
        )
    header = (f"text@1: {what}" for what in ("direct", "composed", "frame", "frame − direct", "frame − composed"))
    return table(["common names", *header], rows)


def chain(results: list[Any]) -> str:
    rows = []
    for setting, runs in results[2]["results"]["chain"].items():
        for k, name in enumerate(("direct", "composed", "frame")):
            errors = np.array([run[name] for run in runs])
            rows.append([setting * (k == 0), name, *(mean(errors[:, step - 1]) for step in (1, 2, 4, 8))])
    return table(["anchors, noise", "map", "1 step", "2 steps", "4 steps", "8 steps"], rows)


def quiet(results: list[Any]) -> str:
    found = results[0]["results"]["quiet"]
    rows = []
    for alpha, alarms in found["alarms"].items():
        n = found["streams"]
        most = stats.beta.ppf(0.95, alarms + 1, n - alarms)
        per = 1000 * alarms / found["looks"]
        rows.append(
            [alpha, str(n), f"{found['looks']:,}", str(alarms), f"{alarms / n:.4f}", f"{most:.4f}", f"{per:.4f}"]
        )
    header = ["with an alarm", "share with an alarm", "upper bound (95 %)", "alarms per 1,000 checks"]
    return table(["α", "streams", "checks", *header], rows)


def _delay(values: list[int | None]) -> str:
    seen = [one for one in values if one is not None]
    if not seen:
        return "none"
    if len(seen) < len(values):
        return f"{len(seen)} of {len(values)} streams"
    return f"{np.median(seen):.0f} ({min(seen)} to {max(seen)})"


def delays(results: list[Any]) -> str:
    found = results[0]["results"]
    rows = []
    for name, one in found["delays"].items():
        canaries = one["canaries"]
        rows.append(
            [
                minus(name) if "cosine" in name else name,
                _delay(one["at once"]),
                _delay(one["late"]),
                canaries["kind"],
                f"{canaries['largest']:.2g}",
            ]
        )
    rows.append(["other content, same model", _delay(found["content"]), "–", "–", "–"])
    header = [
        "vectors until the alarm",
        "after 400 unchanged vectors",
        "canaries: `kind`",
        "canaries: largest distance",
    ]
    return table(["change", *header], rows)


BLOCKS = {
    "frame-complete": Block(complete, JOBS["frames"]),
    "frame-partial": Block(partial, JOBS["frames"]),
    "frame-chain": Block(chain, JOBS["frames"]),
    "drift-quiet": Block(quiet, JOBS["drift"]),
    "drift-delays": Block(delays, JOBS["drift"]),
}
