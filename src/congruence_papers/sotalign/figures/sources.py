"""Effect of the source of pairs and unpaired rows, of its distance from the paired data, and of the aligned encoders."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np

from congruence_papers.job import Job
from congruence_papers.sotalign.baselines import BASELINES
from congruence_papers.sotalign.data import Parts, SOTAlignData, check_sources
from congruence_papers.sotalign.metrics import encoder_agreement
from congruence_papers.sotalign.protocol import measure_baseline, size, split, tuned
from congruence_papers.sotalign.shift import add_distances, add_shift, distance, shift_of

__all__ = ["run_encoders", "run_paired_sources", "run_source_distances", "run_unpaired_sources"]


def run_unpaired_sources(job: Job[SOTAlignData]) -> None:
    """Use unpaired images and texts from every source, and report eq. 14's distance for each (table 7, figures 5, 10 and 11)."""
    if job["scatter"]:
        job.extra["axes"] = [[None, "distance from the paired data (turns)"]]
    for data in job.data:
        check_sources(data, ["unpaired sources"])
        pairs = size(job, data, "pairs")
        # Baselines that do not depend on the unpaired source.
        baselines = ["sail"] if job["scatter"] else ["sail_all", "sail"]
        chosen = tuned(job, data, [*baselines, "sotalign"], pairs)
        points = []
        for seed in job.seeds:
            for name in baselines:
                measure_baseline(job, data, name, split(job, data, seed), seed, {}, chosen[name])
                job.tick()
        for images, texts in _combinations(data, job["vary"]):
            shift = shift_of(job, split(job, data, job.seeds[0], unpaired_sources=(images, texts)))
            varied = {"images": shift.image, "texts": shift.text or shift.total, "both": shift.total}[job["vary"]]
            where = f"{data.sources[images]} images, {data.sources[texts]} texts"
            what: dict[str, object] = {"part": where, "x": round(varied.value, 4) if job["scatter"] else None}
            scores = []
            for seed in job.seeds:
                parts = split(job, data, seed, unpaired_sources=(images, texts))
                measured = measure_baseline(job, data, "sotalign", parts, seed, what, chosen["sotalign"])
                scores.append(measured["mean_r1"])
                add_shift(job, data, parts, seed, {"part": where})
                job.tick()
            points.append((varied.value, float(np.mean(scores))))
        _add_correlation(job, data, points)


def run_source_distances(job: Job[SOTAlignData]) -> None:
    """Measure the distances between the sources, for images and for texts (figure 12)."""
    for data in job.data:
        check_sources(data, ["distances"])
        image, text = data.encoders[0]
        for i, j in itertools.combinations_with_replacement(range(len(data.sources)), 2):
            for seed in job.seeds:
                clouds = []
                for rows, source in ((data.images[image], data.image_source), (data.texts[text], data.text_source)):
                    order = np.random.default_rng([seed, 5]).permutation(np.flatnonzero(source == i))
                    # A source is compared with itself by its two halves, and with others by one half of each, so that sample sizes are comparable.
                    half = len(order) // 2
                    other = order[half:] if i == j else _half(np.flatnonzero(source == j), seed)
                    clouds += [rows[order[:half]], rows[other]]
                part = f"{data.sources[i]} – {data.sources[j]}"
                add_distances(job, {"data": data.name, "part": part}, distance(job, *clouds, seed=seed))
                job.tick()


def run_paired_sources(job: Job[SOTAlignData]) -> None:
    """Use pairs from every source, and unpaired rows from the first (table 2)."""
    for data in job.data:
        check_sources(data, ["paired sources"])
        chosen = tuned(job, data, job["methods"], size(job, data, "pairs"))
        for number, source in enumerate(data.sources):
            for seed in job.seeds:
                parts = split(job, data, seed, pair_source=number)
                what = {"part": f"pairs of {source}"}
                add_shift(job, data, parts, seed, what)
                _add_gains(job, data, parts, seed, what, chosen)


def run_encoders(job: Job[SOTAlignData]) -> None:
    """Align every pair of encoders, and report the mutual k-NN of each (tables 3 and 8, figure 9)."""
    if job["scatter"]:
        job.extra["axes"] = [[None, "mutual k-NN of the two encoders"]]
    for data in job.data:
        chosen = tuned(job, data, job["methods"], size(job, data, "pairs"))
        points = []
        for encoders in data.encoders:
            pair = " – ".join(encoders)
            agreement = encoder_agreement(data, encoders)
            what: dict[str, object] = {"pair": pair, "x": round(agreement, 4) if job["scatter"] else None}
            scores = []
            for seed in job.seeds:
                parts = split(job, data, seed, encoders=encoders)
                add_shift(job, data, parts, seed, {"pair": pair})
                by_method = _add_gains(job, data, parts, seed, what, chosen)
                scores.append(by_method[job["methods"][-1]]["mean_r1"])
            points.append((agreement, float(np.mean(scores))))
            if not job["scatter"]:
                job.results.add(
                    {"data": data.name, "pair": pair, "metric": "mutual_knn", "quantity": "value"}, agreement
                )
        _add_correlation(job, data, points)


def _combinations(data: SOTAlignData, vary: str) -> list[tuple[int, int]]:
    """Return all combinations of sources of unpaired images and texts; a side that does not vary uses the first source."""
    sources = range(len(data.sources))
    return list(itertools.product(sources if vary != "texts" else range(1), sources if vary != "images" else range(1)))


def _half(rows: np.ndarray, seed: int) -> np.ndarray:
    """Return a random half of the rows."""
    return np.random.default_rng([seed, 6]).permutation(rows)[: len(rows) // 2]


def _add_correlation(job: Job[SOTAlignData], data: SOTAlignData, points: list[tuple[float, float]]) -> None:
    """Add Pearson's r between the points' x and MeanR@1, if there are at least three points and both vary."""
    x, y = np.array(points).T
    if "correlation" in job.config.metrics and len(points) > 2 and x.std() > 0 and y.std() > 0:
        job.results.add(
            {"data": data.name, "metric": "correlation", "quantity": "value"}, float(np.corrcoef(x, y)[0, 1])
        )


def _add_gains(
    job: Job[SOTAlignData],
    data: SOTAlignData,
    parts: Parts,
    seed: int,
    what: Mapping[str, object],
    chosen: Mapping[str, Any],
) -> dict[str, dict[str, float]]:
    """Fit the methods to a split, add the gain of the last method over the first, and return the metrics by method."""
    scores = {}
    for name in job["methods"]:
        scores[name] = measure_baseline(job, data, name, parts, seed, what, chosen[name])
        job.tick()
    first, last = job["methods"][0], job["methods"][-1]
    if first != last and not job["scatter"]:
        for metric in job.config.metrics:
            if metric in scores[last]:
                line = {"data": data.name, "series": f"{BASELINES[last].words} over {BASELINES[first].words}", **what}
                gain = scores[last][metric] - scores[first][metric]
                job.results.add({**line, "metric": metric, "quantity": "gain"}, gain)
    return scores
