"""The figures and tables of SOTAlign: how they are measured, and its claims about them."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from congruence.errors import ParameterError
from congruence.train.retrieval import chance_recall
from congruence.transport import DistributionShift, distribution_shift
from congruence_papers.core import Experiment, ExperimentJob, Paper, described
from congruence_papers.sotalign.data import (
    PAPER_SIZES,
    SAMPLE_DATA,
    Parts,
    SOTAlignData,
    check_sources,
    open_features,
    open_sample,
)
from congruence_papers.sotalign.methods import (
    BASELINES,
    choose,
    combinations,
    encoder_agreement,
    fit_baseline,
    measure_heads,
)

#: Seeds of the tuning splits, which are not used for reported results.
TUNING_SEEDS = (1000, 1001, 1002)

#: Parameters of training that are replaced in a quick run.
QUICK_TRAINING = {
    **{"n_components": 8, "max_steps": 2, "validate_every": 2, "max_iter": 5, "unpaired_batch": 64},
    **{"spectral_steps": 2, "n_spectral_components": 8},
}

#: Metrics of the shift that a configuration can list.
SHIFTS = ("shift", "image_shift", "text_shift")

#: Parameters of a baseline, and the metrics of its heads, by baseline.
Chosen = Mapping[str, Mapping[str, object] | None]
Scores = dict[str, dict[str, float]]


@dataclass(frozen=True)
class Case:
    """An experiment on one of its data."""

    job: ExperimentJob[SOTAlignData]
    data: SOTAlignData

    def size(self, key: str) -> Any:
        """Return a size from the configuration, else from the data, else from the paper."""
        return self.job.size(self.data, key, PAPER_SIZES[key])

    def training(self) -> dict[str, Any]:
        """Return the parameters shared by all trained methods."""
        return {**self.size("training"), **(QUICK_TRAINING if self.job.quick else {})}

    def split(self, seed: int, pairs: int | None = None, **options: Any) -> Parts:
        """Draw a split with the sizes of this run."""
        sizes = {key: self.size(key) for key in ("unpaired", "validation", "test")}
        options = {**sizes, "overlap": self.job["overlap"], **options}
        return self.data.split(pairs or self.size("pairs"), seed=seed, **options)

    def choose(
        self, name: str, pairs: int | None = None, among: Sequence[Mapping[str, object]] | None = None
    ) -> Mapping[str, object]:
        """Choose the parameters of a baseline on tuning splits; without tuning, the first combination."""
        if not self.job["tune"] or self.job.quick:
            return (among or combinations(name))[0]
        splits = [self.split(seed, pairs) for seed in TUNING_SEEDS]
        chosen, trials = choose(name, splits, self.training(), self.data.classes, among)
        if among is None:
            line = {"data": self.data.name, "pairs": pairs, "method": name, "chosen": chosen}
            found = [{"tried": tried, "found": scores} for tried, scores in trials]
            self.job.extra.setdefault("tuning", []).append({**line, "trials": found})
            self.job.tick()
        return chosen

    def tuned(self, names: Sequence[str] | None = None, pairs: int | None = None) -> dict[str, Mapping[str, object]]:
        """Choose the parameters of baselines, by default of the configuration's methods."""
        pairs = pairs or self.size("pairs")
        return {name: self.choose(name, pairs) for name in names or self.job["methods"]}

    def measure(self, chosen: Chosen, parts: Parts, seed: int, **what: object) -> Scores:
        """Fit baselines to a split, add the configuration's metrics to the results, and return all metrics."""
        out = {}
        for name, tried in chosen.items():
            mapping = fit_baseline(name, parts, self.training(), tried, seed)
            out[name] = scores = measure_heads(mapping, parts.test, self.data.classes)
            line = {"data": self.data.name, "series": BASELINES[name].words, **what}
            self.job.add_listed(line, scores)
            teacher = getattr(mapping, "teacher_", None)
            if teacher is not None:
                alone = measure_heads(teacher, parts.test, self.data.classes)["mean_r1"]
                if scores["mean_r1"] < alone:
                    self._note_below_teacher(line, f"draw {seed}, {scores['mean_r1']:.3f} against {alone:.3f}")
            self.job.tick()
        return out

    def _note_below_teacher(self, line: Mapping[str, object], draw: str) -> None:
        """Note that the heads score below their teacher: one note per cell of the table, listing the draws."""
        where = ", ".join(str(value) for key, value in line.items() if key != "series" and value is not None)
        start = f"{line['series']} ({where}) retrieves worse than its linear teacher on the test rows, by MeanR@1: "
        notes = self.job.notes
        place = next((k for k, note in enumerate(notes) if note.startswith(start)), len(notes))
        earlier = f"{notes.pop(place).removesuffix('.')}; " if place < len(notes) else start
        notes.insert(place, f"{earlier}{draw}.")

    def add_gains(self, scores: Scores, **what: object) -> None:
        """Add the gain of the last method over the first."""
        first, last = self.job["methods"][0], self.job["methods"][-1]
        if first != last and not self.job["scatter"]:
            line = {"data": self.data.name, "series": f"{BASELINES[last].words} over {BASELINES[first].words}", **what}
            gains = {metric: value - scores[first][metric] for metric, value in scores[last].items()}
            self.job.add_listed(line, gains, "gain")

    def add_chance(self, parts: Parts, **what: object) -> None:
        """Add the scores of a random ranking."""
        images, texts = parts.test.image_labels, parts.test.text_labels
        values: dict[str, float] = {}
        for k in (1, 5, 10):
            i2t, t2i = chance_recall(images, texts, k), chance_recall(texts, images, k)
            values |= {f"i2t_r{k}": i2t, f"t2i_r{k}": t2i, f"mean_r{k}": (i2t + t2i) / 2}
        if self.data.classes:
            values["zero_shot"] = 1 / len(np.unique(texts))
        self.job.add_listed({"data": self.data.name, **what}, values, "chance")

    def distance(self, *clouds: np.ndarray, seed: int = 0) -> DistributionShift:
        """Measure equation 14 between unpaired images, paired images, unpaired texts and paired texts (rows, d)."""
        projections = 20 if self.job.quick else 500
        return distribution_shift(*clouds, normalize=True, n_projections=projections, repeats=1, random_state=seed)

    def shift(self, parts: Parts, seed: int = 0) -> DistributionShift:
        """Measure the distance of a split's unpaired rows from its pairs."""
        return self.distance(parts.unpaired_images, parts.images, parts.unpaired_texts, parts.texts, seed=seed)

    def add_distances(self, shift: DistributionShift, **what: object) -> None:
        """Add the distances among the configuration's metrics to the results, each with its floor."""
        for metric, measured in zip(SHIFTS, (shift.total, shift.image, shift.text), strict=True):
            if measured is not None:
                line = {"data": self.data.name, **what}
                self.job.add_listed(line, {metric: measured.value})
                self.job.add_listed(line, {metric: measured.floor}, "floor")

    def add_shift(self, parts: Parts, seed: int, **what: object) -> None:
        """Measure a split's shift and add it to the results, if it is among the configuration's metrics."""
        if set(SHIFTS) & set(self.job.metrics) and len(parts.unpaired_images) and len(parts.unpaired_texts):
            self.add_distances(self.shift(parts, seed), **what)

    def add_correlation(self, points: list[tuple[float, float]]) -> None:
        """Add Pearson's r between the points' x and MeanR@1, if there are at least three points and both vary."""
        x, y = np.array(points).T
        if len(points) > 2 and x.std() > 0 and y.std() > 0:
            line, r = {"data": self.data.name}, float(np.corrcoef(x, y)[0, 1])
            self.job.add_listed(line, {"correlation": r}, "value")


def on_each(study: Callable[[Case], None]) -> Callable[[ExperimentJob[SOTAlignData]], None]:
    """Return a study of all data of a job, from one of a single case."""

    @functools.wraps(study)
    def measure(job: ExperimentJob[SOTAlignData]) -> None:
        for data in job.data:
            study(Case(job, data))

    return measure


@on_each
def methods(case: Case) -> None:
    """Choose each method's parameters on tuning splits, then fit it on every draw (tables 4, 5, 6, 9, 10, 11)."""
    for pairs in case.job["pairs"] or [case.size("pairs")]:
        chosen = case.tuned(pairs=pairs)
        for seed in case.job.seeds:
            parts, part = case.split(seed, pairs), f"{pairs} pairs"
            case.add_chance(parts, part=part)
            case.add_shift(parts, seed, part=part)
            case.measure(chosen, parts, seed, part=part)


#: Baseline that corresponds to each teacher on its own.
_ALONE = {"cca": "cca", "procrustes": "procrustes", "contrastive": "sail"}
#: Values of α tried for each teacher and divergence, as in the paper.
_ALPHAS = (1e-4, 1e-3, 1e-5)


@on_each
def teachers(case: Case) -> None:
    """Fit every teacher on its own and with every divergence (table 1)."""
    pair = f"{case.size('pairs')} pairs"
    for seed in case.job.seeds:
        case.add_shift(case.split(seed), seed, pair=pair)
    for teacher, divergence in itertools.product(case.job["teachers"], case.job["divergences"]):
        chosen: Chosen = {_ALONE[teacher]: None}
        if divergence != "none":
            grid = [{"paper_alpha": a, "teacher": teacher, "divergence": divergence} for a in _ALPHAS]
            chosen = {"sotalign": case.choose("sotalign", among=grid)}
        for seed in case.job.seeds:
            case.measure(chosen, case.split(seed), seed, series=f"{teacher} teacher", part=divergence, pair=pair)


@on_each
def sweep(case: Case) -> None:
    """Vary the number of pairs or of unpaired rows (figures 4, 7 and 8)."""
    axes = {"pairs": "pairs", "unpaired": "unpaired rows of either side"}
    case.job.extra["axes"] = [[axes[over], axes[over]] for over in case.job["over"]]
    for over in case.job["over"]:
        steps = case.size(f"{over}_sweep")
        for step in steps[:2] if case.job.quick else steps:
            sizes = {"pairs": case.size("pairs"), "unpaired": case.size("unpaired"), over: step}
            chosen = case.tuned(pairs=sizes["pairs"])
            for seed in case.job.seeds:
                parts = case.split(seed, **sizes)
                case.add_shift(parts, seed, part=axes[over], x=step)
                case.measure(chosen, parts, seed, part=axes[over], x=step)


@on_each
def unpaired_sources(case: Case) -> None:
    """Use unpaired rows from every source, and report eq. 14's distance (table 7, figures 5, 10, 11)."""
    job, data = case.job, case.data
    if job["scatter"]:
        job.extra["axes"] = [[None, "distance from the paired data (turns)"]]
    check_sources(data, ["unpaired sources"])
    # The first baselines do not depend on the unpaired source.
    chosen = case.tuned([*([] if job["scatter"] else ["sail_all"]), "sail", "sotalign"])
    sotalign = {"sotalign": chosen.pop("sotalign")}
    for seed in job.seeds:
        case.measure(chosen, case.split(seed), seed)
    points = []
    # A side that does not vary uses the first source.
    sides = [range(1 if job["vary"] == other else len(data.sources)) for other in ("texts", "images")]
    for images, texts in itertools.product(*sides):
        shift = case.shift(case.split(job.seeds[0], unpaired_sources=(images, texts)))
        varied = {"images": shift.image, "texts": shift.text or shift.total, "both": shift.total}[job["vary"]]
        part, x = f"{data.sources[images]} images, {data.sources[texts]} texts", round(varied.value, 4)
        scores = []
        for seed in job.seeds:
            parts = case.split(seed, unpaired_sources=(images, texts))
            measured = case.measure(sotalign, parts, seed, part=part, x=x if job["scatter"] else None)
            scores.append(measured["sotalign"]["mean_r1"])
            case.add_shift(parts, seed, part=part)
        points.append((varied.value, float(np.mean(scores))))
    case.add_correlation(points)


@on_each
def source_distances(case: Case) -> None:
    """Measure the distances between the sources, for images and for texts (figure 12)."""
    data, (image, text) = case.data, case.data.encoders[0]
    check_sources(data, ["distances"])
    for i, j in itertools.combinations_with_replacement(range(len(data.sources)), 2):
        for seed in case.job.seeds:
            clouds = []
            for rows, source in ((data.images[image], data.image_source), (data.texts[text], data.text_source)):
                order = np.random.default_rng([seed, 5]).permutation(np.flatnonzero(source == i))
                # A source is compared with itself by its two halves, and with others by one half of each, so that
                # sample sizes are comparable.
                half = len(order) // 2
                others = np.random.default_rng([seed, 6]).permutation(np.flatnonzero(source == j))
                clouds += [rows[order[:half]], rows[order[half:] if i == j else others[: len(others) // 2]]]
            case.add_distances(case.distance(*clouds, seed=seed), part=f"{data.sources[i]} – {data.sources[j]}")
            case.job.tick()


@on_each
def paired_sources(case: Case) -> None:
    """Use pairs from every source, and unpaired rows from the first (table 2)."""
    check_sources(case.data, ["paired sources"])
    chosen = case.tuned()
    for number, source in enumerate(case.data.sources):
        for seed in case.job.seeds:
            parts, part = case.split(seed, pair_source=number), f"pairs of {source}"
            case.add_shift(parts, seed, part=part)
            case.add_gains(case.measure(chosen, parts, seed, part=part), part=part)


@on_each
def encoders(case: Case) -> None:
    """Align every pair of encoders, and report the mutual k-NN of each (tables 3 and 8, figure 9)."""
    job, data = case.job, case.data
    if job["scatter"]:
        job.extra["axes"] = [[None, "mutual k-NN of the two encoders"]]
    chosen = case.tuned()
    points = []
    for encoders in data.encoders:
        pair, agreement = " – ".join(encoders), encoder_agreement(data, encoders)
        what = {"pair": pair, "x": round(agreement, 4) if job["scatter"] else None}
        scores = []
        for seed in job.seeds:
            parts = case.split(seed, encoders=encoders)
            case.add_shift(parts, seed, pair=pair)
            measured = case.measure(chosen, parts, seed, **what)
            case.add_gains(measured, **what)
            scores.append(measured[job["methods"][-1]]["mean_r1"])
        points.append((agreement, float(np.mean(scores))))
        if not job["scatter"]:
            job.add({"data": data.name, "pair": pair, "metric": "mutual_knn", "quantity": "value"}, agreement)
    case.add_correlation(points)


STUDIES = (methods, teachers, sweep, unpaired_sources, source_distances, paired_sources, encoders)


def _open_models(
    experiment: Experiment,
    models: str,
    *,
    data: Sequence[str] | None = None,
    file: str | Path | None = None,
    device: str = "auto",
    **_: object,
) -> list[SOTAlignData]:
    if file is None:
        among = ", ".join(experiment.sample_data)
        raise ParameterError(
            f"Got {models} for {experiment.name}; expected one of {among}: the paper's encoders and "
            "collections cannot be downloaded here.",
            "Embed the collections yourself, and pass `file=…` with their folder, or `collections=…`.",
        )
    if data:
        raise ParameterError(f"Got data {', '.join(data)} for the embeddings in {file}.", "Leave out `data=…`.")
    named = experiment.models if models == "paper" else models.split(",")
    return [open_features(named, file, variant=experiment.variant, device=device)]


def _count(facts: Mapping[str, Any]) -> str:
    images, texts = ({rows[0] for rows in facts[side].values()} for side in ("images", "texts"))
    return f"{max(images)} images, {max(texts)} texts, {facts['labels']} labels, split anew for each draw"


PAPER = Paper(
    *("sotalign", "SOTAlign", *described("sotalign", STUDIES)),
    *(SOTAlignData, SAMPLE_DATA, open_sample, _open_models, _count),
    choices={
        "methods": tuple(BASELINES),
        "teachers": ("procrustes", "cca", "contrastive"),
        "divergences": ("none", "cka", "infonce", "klot"),
        "over": ("pairs", "unpaired"),
        "vary": ("both", "images", "texts"),
    },
    ranges={"overlap": ("a share from 0 to 1, or null", lambda share: share is None or 0 <= share <= 1)},
    files=lambda models, _: [f"{models[0]}/images", f"{models[1]}/texts"],
)
