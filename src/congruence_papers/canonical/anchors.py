"""Helpers shared by the kinds of figures: drawing anchors, computing means, fitting maps, and selecting the test part."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from congruence.errors import InputError
from congruence_papers.canonical.baselines import ModalityMap, fit_modality_map
from congruence_papers.canonical.controls import controls
from congruence_papers.canonical.data import Collection
from congruence_papers.canonical.metrics import Means, View, references
from congruence_papers.job import Job

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

#: Maximum number of anchors in a quick run.
QUICK_ANCHORS = 600

#: Description of what the draws resample, for fits on text.
ALL_PROMPTS = "nothing for fits on text, which use every prompt; the test part is fixed"


def fit_modality(job: Job[Collection], collection: Collection, pair: tuple[int, int]) -> str:
    """Return the modality to fit on: the configured one if both models have it, otherwise the other. Raises InputError if they share none."""
    configured: str = job.config.parameters.get("fit", "image")
    for modality in (configured, "text" if configured == "image" else "image"):
        if all(rows_of(collection, k, modality) is not None for k in pair):
            if modality != configured:
                job.add_note(f"{collection.name}: fitted on {modality}s, since not every model has {configured}s.")
                # Claims about cycles and compositions hold for maps fitted on either modality.
                if job.config.kind not in ("cycle", "composition"):
                    job.unchecked = f"it is about maps fitted on {configured}s; here they were fitted on {modality}s"
            return modality
    raise InputError(
        f"Got {pair_name(collection, pair)} without a modality that both models have; expected images or texts of both. Embed one modality with both models."
    )


def rows_of(collection: Collection, model: int, modality: str) -> np.ndarray | None:
    """Return the embeddings of all images or all prompts by one model, or None if it has none."""
    return collection.models[model].images if modality == "image" else collection.models[model].prompts


def both_rows(collection: Collection, pair: tuple[int, int], modality: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the embeddings of all images or all prompts by both models.

    Raises
    ------
    InputError
        If a model has no embeddings of this modality.
    """
    source, target = (rows_of(collection, k, modality) for k in pair)
    if source is None or target is None:
        raise InputError(
            f"Got no {modality}s of both models of {pair_name(collection, pair)}; expected both. Embed the {modality}s with both models."
        )
    return source, target


def pair_name(collection: Collection, pair: tuple[int, ...]) -> str:
    """Return the display name of a pair or chain of models, such as ``a → b``."""
    return " → ".join(collection.models[k].name for k in pair)


def anchor_rows(collection: Collection, modality: str, classes: np.ndarray | None = None) -> np.ndarray:
    """Return the indices of the rows that a map may be fitted on, of the given classes or of all classes."""
    allowed = collection.train if modality == "image" else collection.text_fit
    labels = collection.labels if modality == "image" else collection.prompt_labels
    if classes is not None:
        allowed = allowed & np.isin(labels, classes)
    return np.flatnonzero(allowed)


def draw(job: Job[Collection], rows: np.ndarray, share: float, rng: np.random.Generator) -> np.ndarray:
    """Draw a share of the rows without replacement: at least two, and at most ``QUICK_ANCHORS`` in a quick run."""
    count = max(2, round(share * len(rows)))
    if job.quick:
        count = min(count, QUICK_ANCHORS)
    return np.sort(rng.choice(rows, min(count, len(rows)), replace=False))


def draw_anchors(
    job: Job[Collection], collection: Collection, modality: str, share: float, rng: np.random.Generator
) -> np.ndarray:
    """Draw a share of the images a map may be fitted on, or return all prompts (or the first template of each class, if configured).

    Prompts are not subsampled: with one template per class, a subset would omit whole classes. The paper splits by image.
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
    """Draw a share of the anchors, images or prompts, for maps that must be fitted on different subsets.

    A subset of prompts contains at least one prompt of every class, unless every class has a single prompt.
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
    """Return whether every draw would give the same map, because the fit has a closed form and uses all prompts."""
    return modality == "text" and method not in ("mlp", "random")


def add_references(job: Job[Collection], what: Mapping[str, object], view: View) -> None:
    """Add the scores before mapping and of each model alone, and the constant and random-rotation controls where they apply."""
    job.results.add_references(what, references(view, job.config.metrics))
    random = "random" not in job.config.parameters.get("methods", [])  # otherwise it is one of the figure's methods
    job.results.add_references(what, controls(view, job.config.metrics, random=random))


def means(
    collection: Collection, pair: tuple[int, int], modality: str, anchors: np.ndarray, classes: np.ndarray | None = None
) -> dict[str, Means]:
    """Return the means that a map exchanges: of the anchors, and, for the other modality, of the rows of ``classes``.

    By default these are all classes, or those that are not held out.
    """
    out: dict[str, Means] = {}
    source, target = both_rows(collection, pair, modality)
    out[modality] = (_mean(source[anchors]), _mean(target[anchors]))
    if classes is None:
        # With one text per class, not even the mean of the test classes' texts may be used.
        all_classes = np.arange(len(collection.classes))
        classes = all_classes if collection.heldout_classes.all() else all_classes[~collection.heldout_classes]
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
    """Fit a map between two models on the given anchors, and return it with the means it exchanges."""
    source, target = both_rows(collection, pair, modality)
    exchanged = means(collection, pair, modality, anchors, classes)
    return fit_modality_map(method, source[anchors], target[anchors], exchanged, seed=seed, quick=job.quick), exchanged


def test_part(collection: Collection) -> Collection:
    """Return the collection restricted to the classes to evaluate, which are then the only candidates."""
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
    """Return the test images and the class prototypes, with ``classes`` (by default all) and their images as queries.

    All test images and all classes are candidates. With ``every_image``, training images are included, for maps that were not fitted on images.
    """
    rows = np.ones(len(collection.train), bool) if every_image else ~collection.train
    images = [collection.models[k].images for k in pair]
    labels = collection.labels[rows]
    queried = np.arange(len(collection.classes)) if classes is None else classes
    return View(
        (None if images[0] is None else images[0][rows], None if images[1] is None else images[1][rows]),
        (collection.prototypes[pair[0]], collection.prototypes[pair[1]]),
        labels,
        np.flatnonzero(np.isin(labels, queried)),
        queried,
        centers,
    )
