"""How the figures and tables of SOTAlign are measured."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np

from congruence.train.retrieval import chance_recall
from congruence.transport import DistributionShift, distribution_shift
from congruence_papers.core import ExperimentJob
from congruence_papers.sotalign.data import Parts, SOTAlignData, check_sources
from congruence_papers.sotalign.methods import (
    BASELINES,
    choose,
    combinations,
    encoder_agreement,
    fit_baseline,
    measure_heads,
)

RESAMPLED = "the split: pairs, unpaired rows, validation rows and test rows"

#: Seeds of the tuning splits, which are not used for reported results.
TUNING_SEEDS = (1000, 1001, 1002)

#: Sizes used if neither the configuration nor the data specify them.
PAPER_SIZES: dict[str, object] = {
    "pairs": 10_000,
    "pairs_sweep": [100, 300, 1000, 3000, 10_000, 30_000, 100_000],
    "unpaired": 1_000_000,
    "unpaired_sweep": [10_000, 30_000, 100_000, 300_000, 1_000_000],
    "validation": 5000,
    "test": 5000,
    "training": {},
}
#: Parameters of training that are replaced in a quick run.
QUICK_TRAINING = {
    "n_components": 8,
    "max_steps": 2,
    "validate_every": 2,
    "max_iter": 5,
    "unpaired_batch": 64,
    "spectral_steps": 2,
    "n_spectral_components": 8,
}


def size(job: ExperimentJob[SOTAlignData], data: SOTAlignData, key: str) -> Any:
    """Return a size from the configuration, else from the data, else from the paper."""
    return job.size(data, key, PAPER_SIZES[key])


def training(job: ExperimentJob[SOTAlignData], data: SOTAlignData) -> dict[str, Any]:
    """Return the parameters shared by all trained methods."""
    return {**size(job, data, "training"), **(QUICK_TRAINING if job.quick else {})}


def split(
    job: ExperimentJob[SOTAlignData], data: SOTAlignData, seed: int, pairs: int | None = None, **options: Any
) -> Parts:
    """Draw a split with the sizes of this run."""
    options.setdefault("unpaired", size(job, data, "unpaired"))
    options.setdefault("overlap", job["overlap"])
    return data.split(
        pairs or size(job, data, "pairs"),
        validation=size(job, data, "validation"),
        test=size(job, data, "test"),
        seed=seed,
        **options,
    )


def tuned(
    job: ExperimentJob[SOTAlignData], data: SOTAlignData, names: list[str], pairs: int
) -> dict[str, dict[str, object]]:
    """Choose the parameters of baselines on tuning splits; without tuning, the first combination of each."""
    if not job["tune"] or job.quick:
        return {name: combinations(name)[0] for name in names}
    splits = [split(job, data, seed, pairs) for seed in TUNING_SEEDS]
    chosen = {}
    for name in names:
        chosen[name], trials = choose(name, splits, training(job, data), data.classes)
        job.extra.setdefault("tuning", []).append(
            {
                "data": data.name,
                "pairs": pairs,
                "method": name,
                "chosen": chosen[name],
                "trials": [{"tried": tried, "found": scores} for tried, scores in trials],
            }
        )
        job.tick()
    return chosen


def measure_baseline(
    job: ExperimentJob[SOTAlignData],
    data: SOTAlignData,
    name: str,
    parts: Parts,
    seed: int,
    what: Mapping[str, object],
    tried: Mapping[str, object] | None = None,
) -> dict[str, float]:
    """Fit a baseline to a split, add the configuration's metrics to the results, and return all metrics."""
    mapping = fit_baseline(name, parts, training(job, data), tried, seed)
    scores = measure_heads(mapping, parts.test, data.classes)
    line = {"data": data.name, "series": BASELINES[name].words, **what}
    for metric in job.metrics:
        if metric in scores:
            job.add({**line, "metric": metric, "quantity": "after"}, scores[metric])
    teacher = getattr(mapping, "teacher_", None)
    if teacher is not None:
        teacher_score = measure_heads(teacher, parts.test, data.classes)["mean_r1"]
        if scores["mean_r1"] < teacher_score:
            _note_below_teacher(job, line, seed, scores["mean_r1"], teacher_score)
    return scores


def _note_below_teacher(
    job: ExperimentJob[SOTAlignData], line: Mapping[str, object], seed: int, score: float, teacher_score: float
) -> None:
    """Note that the heads score below their teacher: one note per cell of the table, listing the draws."""
    where = ", ".join(str(value) for key, value in line.items() if key != "series" and value is not None)
    start = f"{line['series']} ({where}) retrieves worse than its linear teacher on the test rows, by MeanR@1: "
    earlier = next((note for note in job.notes if note.startswith(start)), None)
    draw = f"draw {seed}, {score:.3f} against {teacher_score:.3f}"
    if earlier is None:
        job.add_note(f"{start}{draw}.")
    else:
        job.notes[job.notes.index(earlier)] = f"{earlier.removesuffix('.')}; {draw}."


def add_chance(job: ExperimentJob[SOTAlignData], data: SOTAlignData, parts: Parts, what: Mapping[str, object]) -> None:
    """Add the scores of a random ranking."""
    heldout = parts.test
    values: dict[str, float] = {}
    for k in (1, 5, 10):
        for direction, queries, gallery in (
            ("i2t", heldout.image_labels, heldout.text_labels),
            ("t2i", heldout.text_labels, heldout.image_labels),
        ):
            values[f"{direction}_r{k}"] = chance_recall(queries, gallery, k)
        values[f"mean_r{k}"] = (values[f"i2t_r{k}"] + values[f"t2i_r{k}"]) / 2
    if data.classes:
        values["zero_shot"] = 1 / len(np.unique(heldout.text_labels))
    for metric in job.metrics:
        if metric in values:
            job.add({"data": data.name, **what, "metric": metric, "quantity": "chance"}, values[metric])


#: Metrics of the shift that a configuration can list.
SHIFTS = ("shift", "image_shift", "text_shift")


def distance(job: ExperimentJob[SOTAlignData], *clouds: np.ndarray, seed: int = 0) -> DistributionShift:
    """Measure the distance of equation 14 between unpaired images, paired images, unpaired texts and paired texts,
    shape (rows, d) each, with one draw of random circles.
    """
    return distribution_shift(
        *clouds, normalize=True, n_projections=20 if job.quick else 500, repeats=1, random_state=seed
    )


def shift_of(job: ExperimentJob[SOTAlignData], parts: Parts, seed: int = 0) -> DistributionShift:
    """Measure the distance of a split's unpaired rows from its pairs."""
    return distance(job, parts.unpaired_images, parts.images, parts.unpaired_texts, parts.texts, seed=seed)


def add_distances(job: ExperimentJob[SOTAlignData], what: Mapping[str, object], shift: DistributionShift) -> None:
    """Add the distances among the configuration's metrics to the results, each with its floor."""
    for metric, measured in zip(SHIFTS, (shift.total, shift.image, shift.text), strict=True):
        if metric in job.metrics and measured is not None:
            job.add({**what, "metric": metric, "quantity": "after"}, measured.value)
            job.add({**what, "metric": metric, "quantity": "floor"}, measured.floor)


def add_shift(
    job: ExperimentJob[SOTAlignData],
    data: SOTAlignData,
    parts: Parts,
    seed: int,
    what: Mapping[str, object] | None = None,
) -> None:
    """Measure a split's shift and add it to the results, if it is among the configuration's metrics."""
    if set(SHIFTS) & set(job.metrics) and len(parts.unpaired_images) and len(parts.unpaired_texts):
        add_distances(job, {"data": data.name, **(what or {})}, shift_of(job, parts, seed))


#: Baseline that corresponds to each teacher on its own.
_ALONE = {"cca": "cca", "procrustes": "procrustes", "contrastive": "sail"}
#: Values of α tried for each teacher and divergence, as in the paper.
_ALPHAS = (1e-4, 1e-3, 1e-5)


def methods(job: ExperimentJob[SOTAlignData]) -> None:
    """Choose each method's parameters on tuning splits, then fit it on every draw (tables 4, 5, 6, 9, 10, 11)."""
    for data in job.data:
        for pairs in job["pairs"] or [size(job, data, "pairs")]:
            chosen = tuned(job, data, job["methods"], pairs)
            for seed in job.seeds:
                parts = split(job, data, seed, pairs)
                what = {"part": f"{pairs} pairs"}
                add_chance(job, data, parts, what)
                add_shift(job, data, parts, seed, what)
                for name in job["methods"]:
                    measure_baseline(job, data, name, parts, seed, what, chosen[name])
                    job.tick()


def teachers(job: ExperimentJob[SOTAlignData]) -> None:
    """Fit every teacher on its own and with every divergence (table 1)."""
    for data in job.data:
        pairs = size(job, data, "pairs")
        for seed in job.seeds:
            add_shift(job, data, split(job, data, seed), seed, {"pair": f"{pairs} pairs"})
        for teacher in job["teachers"]:
            for divergence in job["divergences"]:
                name = _ALONE[teacher] if divergence == "none" else "sotalign"
                tried: dict[str, object] | None = None
                if divergence != "none":
                    grid = [{"paper_alpha": a, "teacher": teacher, "divergence": divergence} for a in _ALPHAS]
                    tried = grid[0]
                    if job["tune"] and not job.quick:
                        tuning = [split(job, data, seed) for seed in TUNING_SEEDS]
                        tried, _ = choose(name, tuning, training(job, data), data.classes, grid)
                for seed in job.seeds:
                    what = {"series": f"{teacher} teacher", "part": divergence, "pair": f"{pairs} pairs"}
                    measure_baseline(job, data, name, split(job, data, seed), seed, what, tried)
                    job.tick()


def sweep(job: ExperimentJob[SOTAlignData]) -> None:
    """Vary the number of pairs or of unpaired rows (figures 4, 7 and 8)."""
    axes = {"pairs": "pairs", "unpaired": "unpaired rows of either side"}
    job.extra["axes"] = [[axes[over], axes[over]] for over in job["over"]]
    for data in job.data:
        for over in job["over"]:
            steps = size(job, data, f"{over}_sweep")
            for step in steps[:2] if job.quick else steps:
                pairs = step if over == "pairs" else size(job, data, "pairs")
                unpaired = step if over == "unpaired" else size(job, data, "unpaired")
                chosen = tuned(job, data, job["methods"], pairs)
                for seed in job.seeds:
                    parts = split(job, data, seed, pairs, unpaired=unpaired)
                    what = {"part": axes[over], "x": step}
                    add_shift(job, data, parts, seed, what)
                    for name in job["methods"]:
                        measure_baseline(job, data, name, parts, seed, what, chosen[name])
                        job.tick()


def unpaired_sources(job: ExperimentJob[SOTAlignData]) -> None:
    """Use unpaired rows from every source, and report eq. 14's distance (table 7, figures 5, 10, 11)."""
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


def source_distances(job: ExperimentJob[SOTAlignData]) -> None:
    """Measure the distances between the sources, for images and for texts (figure 12)."""
    for data in job.data:
        check_sources(data, ["distances"])
        image, text = data.encoders[0]
        for i, j in itertools.combinations_with_replacement(range(len(data.sources)), 2):
            for seed in job.seeds:
                clouds = []
                for rows, source in ((data.images[image], data.image_source), (data.texts[text], data.text_source)):
                    order = np.random.default_rng([seed, 5]).permutation(np.flatnonzero(source == i))
                    # A source is compared with itself by its two halves, and with others by one half of each, so that
                    # sample sizes are comparable.
                    half = len(order) // 2
                    other = order[half:] if i == j else _half(np.flatnonzero(source == j), seed)
                    clouds += [rows[order[:half]], rows[other]]
                part = f"{data.sources[i]} – {data.sources[j]}"
                add_distances(job, {"data": data.name, "part": part}, distance(job, *clouds, seed=seed))
                job.tick()


def paired_sources(job: ExperimentJob[SOTAlignData]) -> None:
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


def encoders(job: ExperimentJob[SOTAlignData]) -> None:
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
                job.add({"data": data.name, "pair": pair, "metric": "mutual_knn", "quantity": "value"}, agreement)
        _add_correlation(job, data, points)


def _combinations(data: SOTAlignData, vary: str) -> list[tuple[int, int]]:
    """Return all pairs of sources of unpaired images and texts; a side that does not vary uses the first."""
    sources = range(len(data.sources))
    return list(itertools.product(sources if vary != "texts" else range(1), sources if vary != "images" else range(1)))


def _half(rows: np.ndarray, seed: int) -> np.ndarray:
    """Return a random half of the rows."""
    return np.random.default_rng([seed, 6]).permutation(rows)[: len(rows) // 2]


def _add_correlation(job: ExperimentJob[SOTAlignData], data: SOTAlignData, points: list[tuple[float, float]]) -> None:
    """Add Pearson's r between the points' x and MeanR@1, if there are at least three points and both vary."""
    x, y = np.array(points).T
    if "correlation" in job.metrics and len(points) > 2 and x.std() > 0 and y.std() > 0:
        job.add({"data": data.name, "metric": "correlation", "quantity": "value"}, float(np.corrcoef(x, y)[0, 1]))


def _add_gains(
    job: ExperimentJob[SOTAlignData],
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
        for metric in job.metrics:
            if metric in scores[last]:
                line = {"data": data.name, "series": f"{BASELINES[last].words} over {BASELINES[first].words}", **what}
                gain = scores[last][metric] - scores[first][metric]
                job.add({**line, "metric": metric, "quantity": "gain"}, gain)
    return scores
