"""Geometry of both spaces: modality gap, similarity kernels and PCA projections (figures 1–3, 9, 10)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from congruence.errors import InputError
from congruence.metrics import cross_kernel_cka, linear_cka, zero_shot_accuracy
from congruence_papers.canonical.anchors import (
    add_references,
    anchor_rows,
    draw_anchors,
    fit_modality,
    fit_on,
    fitted_once,
    means,
    pair_name,
    test_part,
    view,
)
from congruence_papers.canonical.data import Collection, unit_rows
from congruence_papers.canonical.metrics import measure
from congruence_papers.job import Job
from congruence_papers.plain import Cloud, Kernel

if TYPE_CHECKING:
    from congruence_papers.canonical.baselines import ModalityMap

__all__ = ["run_clouds", "run_gap", "run_kernels"]

RESAMPLED_CLOUDS = "the anchors: each draw takes {share:.0%} of the training rows"
RESAMPLED_GAP = "nothing: every number is a property of the embeddings"
RESAMPLED_KERNELS = RESAMPLED_GAP


def run_gap(job: Job[Collection]) -> None:
    """Measure the modality gap of each model, and the zero-shot accuracy while a translation closes it."""
    clouds: list[Cloud] = []
    for collection in job.data:
        heldout = test_part(collection)
        test = ~heldout.train
        for k, model in enumerate(heldout.models):
            texts = heldout.prototypes[k]
            if model.images is None or texts is None:
                continue
            images, labels = model.images[test], heldout.labels[test]
            gap = images.mean(axis=0) - texts.mean(axis=0)
            what = {"data": heldout.name, "pair": model.name}
            job.results.add({**what, "metric": "gap", "quantity": "value"}, float(np.linalg.norm(gap)))
            for step in np.linspace(0, 1, 3 if job.quick else job["steps"]).round(3).tolist():
                moved = unit_rows(texts + step * gap), unit_rows(images - step * gap)
                for series, accuracy in (
                    ("texts moved", zero_shot_accuracy(images, moved[0], labels)),
                    ("images moved", zero_shot_accuracy(moved[1], texts, labels)),
                ):
                    key = {**what, "series": series, "x": step, "metric": "zero_shot", "quantity": "after"}
                    job.results.add(key, accuracy)
            # Each image is plotted together with the text of its class.
            chosen = _sample(len(images), job["points"], job.seeds[0])
            clouds.append(
                {
                    "title": f"{heldout.name}: {model.name}",
                    "points": _project([images[chosen], texts[labels[chosen]]], ["target image", "target text"]),
                }
            )
            job.tick()
    if not clouds:
        raise InputError(
            "Got no model with images and texts; expected at least one. Pass a collection with such a model."
        )
    job.extra["clouds"] = clouds


def run_kernels(job: Job[Collection]) -> None:
    """Compare the image–text similarity kernels of two models, and their image and text kernels."""
    kernels: list[Kernel] = []
    for collection in job.data:
        heldout = test_part(collection)
        test = np.flatnonzero(~heldout.train)
        for pair in heldout.pairs:
            (fa, fb), (ga, gb) = (
                [heldout.models[k].images for k in pair],
                [heldout.prototypes[k] for k in pair],
            )
            if fa is None or fb is None or ga is None or gb is None:
                job.add_note(f"{pair_name(heldout, pair)}: left out, it needs images and texts of both models.")
                continue
            rows = test[_sample(len(test), 2_000, job.seeds[0])]
            fa, fb = fa[rows], fb[rows]
            kernel_a, kernel_b = fa @ ga.T, fb @ gb.T
            what = {"data": heldout.name, "pair": pair_name(heldout, pair), "quantity": "value"}
            numbers = {
                "kernel_correlation": float(np.corrcoef(kernel_a.ravel(), kernel_b.ravel())[0, 1]),
                "kernel_cka": float(cross_kernel_cka(fa, ga, fb, gb)),
                "kernel_rms_difference": float(np.sqrt(np.mean((kernel_a - kernel_b) ** 2))),
                "image_cka": float(linear_cka(fa, fb)),
                "text_cka": float(linear_cka(ga, gb)),
            }
            if fa.shape[1] == fb.shape[1]:
                # The paper's unimodal kernel ⟨f(x), f̃(x′)⟩ compares vectors of different models, so it depends on their coordinates.
                within, across = fa @ fa.T, fa @ fb.T
                numbers["cross_model_correlation"] = float(np.corrcoef(within.ravel(), across.ravel())[0, 1])
            for metric, value in numbers.items():
                job.results.add({**what, "metric": metric}, value)
            same = heldout.labels[rows][:, None] == np.arange(len(heldout.classes))[None]
            kernels.append(
                {
                    "title": f"{heldout.name}: {pair_name(heldout, pair)}",
                    "matched": _sample_points(kernel_a[same], kernel_b[same], job["points"], job.seeds[0]),
                    "other": _sample_points(kernel_a[~same], kernel_b[~same], 3 * job["points"], job.seeds[0]),
                }
            )
            job.tick()
    if not kernels:
        raise InputError(
            "Got no pair with images and texts of both models; expected at least one. Pass a collection with such a pair."
        )
    job.extra["kernels"] = kernels


def run_clouds(job: Job[Collection]) -> None:
    """Project both models onto two principal directions before and after mapping, and measure the configured metrics."""
    clouds: list[Cloud] = []
    for collection in job.data:
        heldout = test_part(collection)
        for pair in collection.pairs:
            modality = fit_modality(job, collection, pair)
            rows = anchor_rows(collection, modality)
            what = {"data": collection.name, "pair": pair_name(collection, pair)}
            whole = view(heldout, pair, means(collection, pair, modality, rows))
            add_references(job, what, whole)
            for seed in job.seeds[:1] if fitted_once(modality, "orthogonal") else job.seeds:
                anchors = draw_anchors(job, collection, modality, job["share"], np.random.default_rng([seed, 19]))
                mapping, centers = fit_on(job, collection, pair, modality, anchors, seed=seed)
                scores = measure(mapping, view(heldout, pair, centers), job.config.metrics)
                job.results.add_all({**what, "series": "orthogonal"}, scores)
                job.tick()
            clouds += _before_after(heldout, pair, mapping, job["points"], job.seeds[0])
    job.extra["clouds"] = clouds


def _before_after(
    heldout: Collection, pair: tuple[int, int], mapping: ModalityMap, points: int, seed: int
) -> list[Cloud]:
    """Return the projections of both models before and after mapping; before mapping only if the models have the same width."""
    (a, b), (ta, tb) = [heldout.models[k].images for k in pair], [heldout.prototypes[k] for k in pair]
    before: dict[str, np.ndarray] = {}
    after: dict[str, np.ndarray] = {}
    test = ~heldout.train
    for modality, (source, target) in {
        "image": (None if a is None else a[test], None if b is None else b[test]),
        "text": (ta, tb),
    }.items():
        if source is None or target is None:
            continue
        chosen = _sample(len(source), points, seed)
        before[f"source {modality}"], before[f"target {modality}"] = source[chosen], target[chosen]
        after[f"source {modality}"] = unit_rows(mapping(modality, source[chosen]))
        after[f"target {modality}"] = target[chosen]
    out: list[Cloud] = []
    for when, rows in (("before", before), ("after", after)):
        if len({side.shape[1] for side in rows.values()}) == 1:
            out.append(
                {"title": f"{pair_name(heldout, pair)}, {when}", "points": _project(list(rows.values()), list(rows))}
            )
    return out


def _project(sides: list[np.ndarray], names: list[str]) -> dict[str, list[list[float]]]:
    """Project rows onto the two leading principal directions of all sides together."""
    rows = np.concatenate(sides).astype(np.float64)
    center = rows.mean(axis=0)
    directions = np.linalg.svd(rows - center, full_matrices=False)[2][:2].T
    return {name: ((side - center) @ directions).round(4).tolist() for name, side in zip(names, sides, strict=True)}


def _sample(n: int, most: int, seed: int) -> np.ndarray:
    """Return at most ``most`` of n indices, drawn at random and sorted."""
    return np.arange(n) if n <= most else np.sort(np.random.default_rng([seed, 23]).choice(n, most, replace=False))


def _sample_points(a: np.ndarray, b: np.ndarray, most: int, seed: int) -> list[list[float]]:
    """Return at most ``most`` pairs of values, rounded."""
    chosen = _sample(len(a), most, seed)
    return np.stack([a[chosen], b[chosen]], axis=1).round(4).tolist()
