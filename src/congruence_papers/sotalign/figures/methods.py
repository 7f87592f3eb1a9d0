"""Semi-supervised alignment: comparisons of methods, of teachers and divergences, and of numbers of pairs and unpaired rows."""

from __future__ import annotations

from congruence_papers.job import Job
from congruence_papers.sotalign.baselines import choose
from congruence_papers.sotalign.data import SOTAlignData
from congruence_papers.sotalign.protocol import TUNING_SEEDS, add_chance, measure_baseline, size, split, training, tuned
from congruence_papers.sotalign.shift import add_shift

__all__ = ["run_methods", "run_sweep", "run_teachers"]

#: Baseline that corresponds to each teacher on its own.
_ALONE = {"cca": "cca", "procrustes": "procrustes", "contrastive": "sail"}
#: Values of α tried for each teacher and divergence, as in the paper.
_ALPHAS = (1e-4, 1e-3, 1e-5)


def run_methods(job: Job[SOTAlignData]) -> None:
    """Choose each method's parameters on separate tuning splits, then fit it on every draw (tables 4, 5, 6, 9, 10 and 11)."""
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


def run_teachers(job: Job[SOTAlignData]) -> None:
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


def run_sweep(job: Job[SOTAlignData]) -> None:
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
