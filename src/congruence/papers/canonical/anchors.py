"""Anchors, means and the part that is measured on: what the kinds of figure share."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from congruence.errors import InputError
from congruence.papers.canonical.baselines import ModalityMap, fit_modality_map
from congruence.papers.canonical.controls import controls
from congruence.papers.canonical.data import Collection
from congruence.papers.canonical.metrics import Means, View, references
from congruence.papers.job import Job

__all__ = [
    "add_references",
    "anchor_rows",
    "both_rows",
    "draw",
    "draw_anchors",
    "draw_subset",
    "fit_modality",
    "fit_on",
    "fitted_once",
    "means",
    "pair_name",
    "rows_of",
    "test_part",
    "view",
]

#: Most anchors in a quick run.
QUICK_ANCHORS = 600

#: What draws resample in a fit on text.
ALL_PROMPTS = "nothing where a map is fitted on text: it takes every prompt; the test part is fixed"


def fit_modality(job: Job[Collection], collection: Collection, pair: tuple[int, int]) -> str:
    """Return the modality to fit on: what the configuration says where both models have it, else the other."""
    wanted: str = job.config.parameters.get("fit", "image")
    for modality in (wanted, "text" if wanted == "image" else "image"):
        if all(rows_of(collection, k, modality) is not None for k in pair):
            if modality != wanted:
                job.remark(f"{collection.name}: fitted on {modality}s, since not every model has {wanted}s.")
                if job.config.kind not in ("cycle", "composition"):  # whose claims hold of a map of either modality
                    job.unchecked = f"it is about a fit on {wanted}s, and {modality}s were fitted here"
            return modality
    raise InputError(
        f"Got {pair_name(collection, pair)} without a modality both have; expected images or texts of both. Embed one modality with both models."
    )


def rows_of(collection: Collection, model: int, modality: str) -> np.ndarray | None:
    """Return all images or all prompts of a model."""
    return collection.models[model].images if modality == "image" else collection.models[model].prompts


def both_rows(collection: Collection, pair: tuple[int, int], modality: str) -> tuple[np.ndarray, np.ndarray]:
    """Return all images or all prompts of both models.

    Raises
    ------
    InputError
        A model has none.
    """
    source, target = (rows_of(collection, k, modality) for k in pair)
    if source is None or target is None:
        raise InputError(
            f"Got no {modality}s of both models of {pair_name(collection, pair)}; expected both. Embed the {modality}s with both models."
        )
    return source, target


def pair_name(collection: Collection, pair: tuple[int, ...]) -> str:
    """Write a pair as ``a → b``."""
    return " → ".join(collection.models[k].name for k in pair)


def anchor_rows(collection: Collection, modality: str, classes: np.ndarray | None = None) -> np.ndarray:
    """Return the rows a map may be fitted on, of some classes or of all."""
    allowed = collection.train if modality == "image" else collection.text_fit
    labels = collection.labels if modality == "image" else collection.prompt_labels
    if classes is not None:
        allowed = allowed & np.isin(labels, classes)
    return np.flatnonzero(allowed)


def draw(job: Job[Collection], rows: np.ndarray, share: float, rng: np.random.Generator) -> np.ndarray:
    """Draw a share of the anchors without replacement."""
    count = max(2, round(share * len(rows)))
    if job.quick:
        count = min(count, QUICK_ANCHORS)
    return np.sort(rng.choice(rows, min(count, len(rows)), replace=False))


def draw_anchors(
    job: Job[Collection], collection: Collection, modality: str, share: float, rng: np.random.Generator
) -> np.ndarray:
    """Draw a share of the images a map may be fitted on, or take every prompt.

    A share of the prompts would leave classes out of a fit on text where there is one template a class; the paper's split is by image.
    """
    rows = anchor_rows(collection, modality)
    if modality == "image":
        return draw(job, rows, share, rng)
    job.resampled = ALL_PROMPTS
    if "fit_templates" in job.config.parameters and job["fit_templates"] == "single":
        templates = collection.prompt_templates[rows]
        first = np.full(len(collection.classes), np.iinfo(int).max)
        np.minimum.at(first, collection.prompt_labels[rows], templates)
        return rows[templates == first[collection.prompt_labels[rows]]]
    return rows


def draw_subset(
    job: Job[Collection], collection: Collection, modality: str, share: float, rng: np.random.Generator
) -> np.ndarray:
    """Draw a share of the anchors where maps must be fitted on different ones; of prompts, one of each class at least.

    Only where every class has a single prompt does a share leave classes out.
    """
    rows = anchor_rows(collection, modality)
    drawn = draw(job, rows, share, rng)
    labels = collection.prompt_labels[rows] if modality == "text" else np.zeros(len(rows), int)
    if modality == "image" or np.bincount(labels)[np.unique(labels)].max() == 1:
        return drawn
    order = rng.permutation(rows)
    _, first = np.unique(collection.prompt_labels[order], return_index=True)
    return np.union1d(drawn, order[first])


def fitted_once(modality: str, method: str) -> bool:
    """Say whether every draw would fit the same map: a closed form on all prompts."""
    return modality == "text" and method not in ("mlp", "random")


def add_references(job: Job[Collection], what: Mapping[str, object], seen: View) -> None:
    """Add what each model reaches alone and, beside cosines, the constant and the random-rotation control."""
    job.results.add_references(what, references(seen, job.config.metrics))
    shown = "random" not in job.config.parameters.get("methods", [])  # else it is a method of the figure already
    job.results.add_references(what, controls(seen, job.config.metrics, random=shown))


def means(
    collection: Collection, pair: tuple[int, int], modality: str, anchors: np.ndarray, classes: np.ndarray | None = None
) -> dict[str, Means]:
    """Return the means to exchange: of the anchors, and of the other modality's rows of the classes fitted on."""
    out: dict[str, Means] = {}
    source, target = both_rows(collection, pair, modality)
    out[modality] = (_mean(source[anchors]), _mean(target[anchors]))
    if classes is None:
        # With one text a class, texts of the classes measured on stay unseen, their mean included.
        known = np.arange(len(collection.classes))
        classes = known if collection.heldout_classes.all() else known[~collection.heldout_classes]
    if modality == "image":
        a, b = (collection.prototypes[k] for k in pair)
        if a is not None:
            out["text"] = (_mean(a[classes]), None if b is None else _mean(b[classes]))
    else:
        a, b = (collection.models[k].images for k in pair)
        rows = anchor_rows(collection, "image", classes)
        if a is not None and len(rows):
            out["image"] = (_mean(a[rows]), None if b is None else _mean(b[rows]))
    return out


def _mean(rows: np.ndarray) -> np.ndarray:
    return rows.mean(axis=0, dtype=np.float64)


def fit_on(
    job: Job[Collection],
    collection: Collection,
    pair: tuple[int, int],
    modality: str,
    anchors: np.ndarray,
    method: str = "orthogonal",
    *,
    classes: np.ndarray | None = None,
    seed: int = 0,
) -> tuple[ModalityMap, dict[str, Means]]:
    """Fit a map between two models on some anchors; return it with the means it exchanges."""
    source, target = both_rows(collection, pair, modality)
    exchanged = means(collection, pair, modality, anchors, classes)
    return fit_modality_map(method, source[anchors], target[anchors], exchanged, seed=seed, quick=job.quick), exchanged


def test_part(collection: Collection) -> Collection:
    """Return the classes that are measured on; they are also the candidates."""
    if collection.heldout_classes.all():
        return collection
    return collection.restrict(collection.heldout_classes, collection.name)


def view(
    collection: Collection,
    pair: tuple[int, int],
    centers: dict[str, Means],
    *,
    classes: np.ndarray | None = None,
    every_image: bool = False,
) -> View:
    """Return the test images and the prototypes, asking about some classes or about all of them.

    All test images, or every image where none was fitted on, and all classes are candidates.
    """
    rows = np.ones(len(collection.train), bool) if every_image else ~collection.train
    images = [collection.models[k].images for k in pair]
    labels = collection.labels[rows]
    asked = np.arange(len(collection.classes)) if classes is None else classes
    return View(
        (None if images[0] is None else images[0][rows], None if images[1] is None else images[1][rows]),
        (collection.prototypes[pair[0]], collection.prototypes[pair[1]]),
        labels,
        np.flatnonzero(np.isin(labels, asked)),
        asked,
        centers,
    )
