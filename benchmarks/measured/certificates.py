"""Tables in docs/certify.md: how often intervals and verdicts are correct, and certificates of real models."""

from __future__ import annotations

from typing import Any

import numpy as np

from measured.blocks import Block, minus, table
from measured.jobs import JOBS

KINDS = ("simulated", "distorted")
INTERVALS = {
    "retention": "ratio",
    "… pairs": "ratio, pairs",
    "… classes": "ratio, classes",
    "… one modality, labels": "ratio, one modality",
    "scores, all actions": "rate",
    "… map the queries": "rate, queries",
    "overlap, all metrics and actions": "overlap",
    "cosine": "cosine",
}


def _of(results: list[Any], kind: str) -> list[dict[str, Any]]:
    return [result["results"] for result in results if result["arguments"]["kind"] == kind]


def intervals(results: list[Any]) -> str:
    """Return the share of 95 % intervals that contain the true value, over both seeds."""
    rows = []
    for words, name in INTERVALS.items():
        cells = []
        for kind in KINDS:
            inside, count = np.sum([one["intervals"].get(name, [0, 0]) for one in _of(results, kind)], axis=0)
            share = inside / max(count, 1)
            error = f" ± {100 * np.sqrt(share * (1 - share) / count):.1f} %" if inside < count else ""
            cells += [str(count), f"{100 * share:.1f} %{error}" if inside < count else "100 %"]
        rows.append([words, *cells])
    header = ["95 % interval of", *(f"{kind}: {what}" for kind in KINDS for what in ("intervals", "coverage"))]
    return table(header, rows)


def shares(results: list[Any]) -> str:
    """Return how often verdicts were correct, by their share of the draws."""
    found = {
        kind: np.concatenate([np.array(one["shares"], dtype=float) for one in _of(results, kind)]) for kind in KINDS
    }
    rows = []
    for words, low, high in (("90 % or more", 0.9, 1.01), ("60 to 90 %", 0.6, 0.9), ("below 60 %", -1.0, 0.6)):
        parts = [of[(of[:, 0] >= low) & (of[:, 0] < high)] for of in found.values()]
        both = np.concatenate(parts)
        right, count = both[:, 1].mean() if len(both) else 0.0, max(len(both), 1)
        cells = [f"{part[:, 1].sum():.0f} of {len(part)}" for part in parts]
        mean = f"{100 * both[:, 0].mean():.0f} %" if len(both) else "–"
        rows.append([words, mean, *cells, f"{100 * right:.0f} % ± {100 * np.sqrt(right * (1 - right) / count):.0f} %"])
    return table(["share of draws", "mean share", *(f"{kind}: correct" for kind in KINDS), "both: correct"], rows)


def _reached(one: dict[str, Any]) -> float:
    """Return the share at which a run reached the required score; infinite if half of the store was not enough."""
    return np.inf if one["reached"] is None or one["reached"] > 0.5 else one["reached"]


def holds(one: dict[str, Any]) -> bool:
    """Return whether the interval of the share contains that at which the run reached the score; its ends are rounded up to whole percents."""
    low, high = (np.inf if end is None else end for end in one["between"])
    return low - 0.01 <= _reached(one) + 1e-9 and _reached(one) <= high


def progressive(results: list[Any]) -> str:
    """Return the share predicted to need re-embedding compared with what runs needed, and the forecast at 20 % compared with what they reached."""
    rows = []
    for found in (one["results"] for one in results):
        runs, place = found["runs"], found["at"].index(0.2)
        predicted = [one for one in runs if one["share"] is not None]
        whole = [one for one in runs if one["action"] == "re-embed"]
        off = [abs(min(one["share"], 0.5) - min(_reached(one), 0.5)) for one in predicted]
        ahead, true = ([one[key][place] for one in runs] for key in ("forecast", "refitted"))
        error = [value - score for (value, _, _), score in zip(ahead, true, strict=True)]
        inside = [low <= score <= high for (_, low, high), score in zip(ahead, true, strict=True)]
        rows.append(
            [
                PARTS[found["part"]].format(n=found["anchors"]),
                str(len(runs)),
                f"{sum(map(holds, predicted))} of {len(predicted)}" if predicted else "",
                f"{100 * np.mean(off):.0f}" if predicted else "",
                f"{sum(_reached(one) > 0.5 for one in whole)} of {len(whole)}" if whole else "",
                f"{sum(inside)} of {len(inside)}",
                minus(f"{np.mean(error):+.3f} ({np.std(error):.3f})"),
            ]
        )
    n = ["n: interval correct", "n: mean absolute error, points"]
    score = ["score at 20 %: interval correct", "score at 20 %: mean error (SD)"]
    header = ["data", "runs", *n, "*re-embed* correct: over 50 % needed", *score]
    return table(header, rows)


PARTS = {
    "simulated": "simulated, {n} items",
    "emoji": "emoji, 400 pairs, without texts",
    "caltech": "Caltech-101, {n} photos",
}

NAMES = {
    "the sample's": "emoji-a → emoji-b, the sample",
    "OpenAI ViT-B/32 to eva02_b16": "OpenAI ViT-B/32 → EVA-02 B/16, texts of LVIS",
    "OpenAI ViT-B/32 to eva02_b16, texts alone": "the same, texts alone",
    "OpenAI ViT-B/32 to openai_vitb16": "OpenAI ViT-B/32 → ViT-B/16, texts of LVIS",
    "OpenAI ViT-B/32 to openai_vitb16, texts alone": "the same, texts alone",
    "EfficientNet-Lite0 to MobileNet-v2, Caltech-101": "EfficientNet-Lite0 → MobileNet-v2, Caltech-101, labels",
    "EfficientNet-Lite0 to MobileNet-v2, ImageNet": "the same models, ImageNet, no labels",
}


def real(results: list[Any]) -> str:
    """Certificates of pairs of real models."""
    found = results[0]["results"]
    rows, last = [], None
    for name, words in NAMES.items():
        for one in (one for one in found if one["pair"] == name):
            scores = one["scores"][one["task"]]["ways"]
            cells = [
                "{:.3f} ({:.3f} … {:.3f})".format(*scores[action]) if action in scores else ""
                for action in ("keep", "stored", "queries", "re-embed")
            ]
            if not cells[
                3
            ]:  # the score of re-embedding is 1 by definition for overlaps, and unknown if the target has no images
                cells[3] = "1" if "overlap" in one["task"] else "unknown"
            label = f"{words}: `{one['task']}`" * (name != last)
            rows.append([label, str(one["anchors"]), *cells, _verdict(one["shares"])])
            last = name
    header = ["models and data: metric", "anchors", "keep", "map the store", "map the queries", "re-embed", "verdict"]
    return table(header, rows)


def _verdict(shares: dict[str, float]) -> str:
    """Return the verdict with its share of the draws, and the second one if its share is at least a tenth."""
    parts = [
        f"{action}, {100 * v:.{1 if 0.99 <= v < 0.9995 else 0}f} %"
        for action, v in sorted(shares.items(), key=lambda s: -s[1])
        if v >= 0.1
    ]
    return parts[0] + (f" ({parts[1]})" if parts[1:] else "")


BLOCKS = {
    "certify-intervals": Block(intervals, JOBS["certify-calibration"]),
    "certify-shares": Block(shares, JOBS["certify-calibration"]),
    "certify-progressive": Block(progressive, JOBS["certify-progressive"]),
    "certify-real": Block(real, JOBS["certify-real"]),
}
