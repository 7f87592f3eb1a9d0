"""The trade-off between reconstruction and alignment, and the alignment of every layer of one encoder with every layer of the other."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from congruence.errors import InputError
from congruence.plotting.data import LinesPanel, Series
from congruence_papers.jam.baselines import BASELINES, fit_baseline
from congruence_papers.jam.data import LAYERS, JAMData, JAMParts
from congruence_papers.jam.metrics import measure_recall
from congruence_papers.jam.pareto import pareto_front
from congruence_papers.jam.protocol import check_layers, in_task, pair_name, split, tasks, training
from congruence_papers.job import Job

__all__ = ["reconstruction_errors", "run_layer_pairs", "run_reconstruction"]

#: Metric that is traded off against the reconstruction error.
_GAIN = "five_way_recall"

#: Reconstruction weight in the first step and in the last.
Span: TypeAlias = tuple[float, float]


def run_reconstruction(job: Job[JAMData]) -> None:
    """Train with each reconstruction weight, and mark the weights on the Pareto front of reconstruction error and recall."""
    draws: dict[tuple[str, str, str], dict[Span, list[list[float]]]] = {}
    for data in job.data:
        for task in tasks(job, data):
            for seed in job.seeds:
                for encoders in data.encoders:
                    parts = split(job, data, task, seed, encoders)
                    for method in job["methods"]:
                        for weight in map(_span, job["weights"]):
                            options = {**training(job, data), "reconstruction": weight}
                            mapping = fit_baseline(method, parts, options, seed)
                            values = {
                                **measure_recall(mapping, parts.items, parts.test, seed)[task],
                                **reconstruction_errors(mapping, parts),
                            }
                            pair = in_task(task, pair_name(data, encoders))
                            # A schedule is a series of its own, placed at its mean weight: no constant weight is equivalent to it.
                            schedule = f", λ {_named(weight)}" * (weight[0] != weight[1])
                            line = {
                                "data": data.name,
                                "pair": pair,
                                "series": BASELINES[method] + schedule,
                                "x": sum(weight) / 2,
                            }
                            job.add_scores(line, values)
                            error = (values["image_error"] + values["text_error"]) / 2
                            by_weight = draws.setdefault((data.name, pair, BASELINES[method]), {})
                            by_weight.setdefault(weight, []).append([error, values[_GAIN]])
                    job.tick()
    job.extra["axes"] = [[None, "weight of the reconstruction, λ"]]
    job.extra["curves"] = [_pareto(job, key, points) for key, points in draws.items()]


def reconstruction_errors(mapping: object, parts: JAMParts) -> dict[str, float]:
    """Return the squared error of reconstructed test rows, divided by that of the training mean; 1 is no better than the mean.

    Parameters
    ----------
    mapping : HeadsMap
        A map with decoders, as fitted by :class:`congruence.train.JAM`.
    parts : JAMParts

    Returns
    -------
    dict of str to float
        ``image_error`` and ``text_error``.

    Raises
    ------
    InputError
        If the map has no decoders.
    """
    if not hasattr(mapping, "reconstruct"):
        raise InputError(
            f"Got {type(mapping).__name__}, which cannot reconstruct; expected a map with decoders. Pass one that JAM trained."
        )
    V, P, _ = parts.test
    out = {}
    for name, reconstructed, rows, train in (
        ("image_error", mapping.reconstruct(V), V, parts.train.source),
        ("text_error", mapping.reconstruct_target(P), P, parts.train.target),  # type: ignore[attr-defined]
    ):
        A = np.asarray(rows, np.float64)
        out[name] = float(np.sum((reconstructed - A) ** 2) / np.sum((A - train.mean(axis=0, dtype=np.float64)) ** 2))
    return out


def _span(weight: float | list[float]) -> Span:
    """Return the weight in the first step and in the last, equal for a constant weight."""
    first, last = weight if isinstance(weight, list | tuple) else (weight, weight)
    return float(first), float(last)


def _named(weight: Span) -> str:
    """Format a constant weight, or the start and end of a schedule."""
    return f"{weight[0]:g}" if weight[0] == weight[1] else f"{weight[0]:g} → {weight[1]:g}"


def _pareto(job: Job[JAMData], key: tuple[str, str, str], points: dict[Span, list[list[float]]]) -> LinesPanel:
    """Return a panel of recall against reconstruction error, with the Pareto front as a separate series, and record which weights are on the front."""
    mean = np.array([np.mean(values, axis=0) for values in points.values()])
    front = pareto_front(mean[:, 0], mean[:, 1])
    weights = list(points)
    job.extra.setdefault("fronts", []).append(
        {
            "of": " | ".join(key),
            "weights": [first if first == last else [first, last] for first, last in weights],
            "error": mean[:, 0].tolist(),
            "recall": mean[:, 1].tolist(),
            "on_front": front.tolist(),
        }
    )
    on_front = ", ".join(_named(weight) for weight, on in zip(weights, front, strict=True) if on)
    job.add_note(f"{key[1]}, {key[2]}: λ = {on_front} on the Pareto front of reconstruction error and 5-way recall.")
    series: list[Series] = []
    for name, on, color in (("on the Pareto front", front, "series-0"), ("dominated", ~front, "before")):
        order = [k for k in np.argsort(mean[:, 0]) if on[k]]
        if order:
            sd = [
                float(np.std([v[1] for v in points[weights[k]]], ddof=1)) if len(job.seeds) > 1 else None for k in order
            ]
            series.append(
                {
                    "name": name,
                    "color": color,
                    "x": [float(mean[k, 0]) for k in order],
                    "mean": [float(mean[k, 1]) for k in order],
                    "sd": sd,
                }
            )
    return {
        "kind": "lines",
        "title": f"Pareto front of {key[2]}, {key[1].partition(':')[0]}: 5-way recall",
        "label": "reconstruction error",
        "series": series,
    }


def run_layer_pairs(job: Job[JAMData]) -> None:
    """Train on every combination of a layer of the image encoder and a layer of the text encoder."""
    for data in job.data:
        check_layers(data)
        for task in tasks(job, data):
            for seed in job.seeds:
                for encoders in data.encoders:
                    for image_layer in LAYERS:
                        for text_layer in LAYERS:
                            parts = split(job, data, task, seed, encoders, (image_layer, text_layer))
                            for method in job["methods"]:
                                mapping = fit_baseline(method, parts, training(job, data), seed)
                                pair = f"{pair_name(data, encoders)}, " * (len(data.encoders) > 1)
                                line: dict[str, Any] = {
                                    "data": data.name,
                                    "pair": in_task(task, f"{pair}images {image_layer}"),
                                    "series": BASELINES[method],
                                    "part": f"texts {text_layer}",
                                }
                                job.add_scores(line, measure_recall(mapping, parts.items, parts.test, seed)[task])
                    job.tick()
