"""How the figures and tables of the Canonical paper are measured."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from congruence import metrics
from congruence.embeddings import normalize_rows
from congruence.errors import InputError
from congruence.metrics import cross_kernel_cka, linear_cka, zero_shot_accuracy
from congruence_papers.canonical.data import CaptionBank, Collection, first_templates, no_captions, shared_words
from congruence_papers.canonical.maps import (
    EvaluationRows,
    Means,
    ModalityMap,
    controls,
    fit_modality_map,
    measure,
    references,
)
from congruence_papers.core import ExperimentJob

#: Maximum number of anchors in a quick run.
QUICK_ANCHORS = 600

#: Description of what the draws resample, for fits on text.
ALL_PROMPTS = "nothing for fits on text, which use every prompt; the test part is fixed"


def fit_modality(job: ExperimentJob[Collection], collection: Collection, pair: tuple[int, int]) -> str:
    """Return the modality to fit on: the configured one if both models have it, otherwise the other."""
    configured: str = job.parameters.get("fit", "image")
    for modality in (configured, "text" if configured == "image" else "image"):
        if all(rows_of(collection, k, modality) is not None for k in pair):
            if modality != configured:
                job.add_note(f"{collection.name}: fitted on {modality}s, since not every model has {configured}s.")
                # Claims about cycles and compositions hold for maps fitted on either modality.
                if job.experiment.kind not in ("cycle", "composition"):
                    job.unchecked = f"it is about maps fitted on {configured}s; here they were fitted on {modality}s"
            return modality
    raise InputError(f"{pair_name(collection, pair)} have no modality in common.", "Embed one modality with both.")


def rows_of(collection: Collection, model: int, modality: str) -> np.ndarray | None:
    """Return the embeddings of all images or all prompts by one model, or None if it has none."""
    return collection.models[model].images if modality == "image" else collection.models[model].prompts


def both_rows(collection: Collection, pair: tuple[int, int], modality: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the embeddings of all images or all prompts by both models."""
    source, target = (rows_of(collection, k, modality) for k in pair)
    if source is None or target is None:
        raise InputError(f"{modality}s of {pair_name(collection, pair)} are missing.", "Embed them with both models.")
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


def draw(job: ExperimentJob[Collection], rows: np.ndarray, share: float, rng: np.random.Generator) -> np.ndarray:
    """Draw a share of the rows without replacement: at least two, and at most ``QUICK_ANCHORS`` in a quick run."""
    count = max(2, round(share * len(rows)))
    if job.quick:
        count = min(count, QUICK_ANCHORS)
    return np.sort(rng.choice(rows, min(count, len(rows)), replace=False))


def draw_anchors(
    job: ExperimentJob[Collection], collection: Collection, modality: str, share: float, rng: np.random.Generator
) -> np.ndarray:
    """Draw a share of the images a map may be fitted on, or return all prompts (or the first template of each class, if
    configured): a subset of prompts would omit whole classes, and the paper splits by image.
    """
    rows = anchor_rows(collection, modality)
    if modality == "image":
        return draw(job, rows, share, rng)
    job.resampled = ALL_PROMPTS
    if job.parameters.get("fit_templates") == "single":
        return rows[first_templates(collection.prompt_labels[rows], collection.prompt_templates[rows])]
    return rows


def draw_subset(
    job: ExperimentJob[Collection], collection: Collection, modality: str, share: float, rng: np.random.Generator
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


def means(
    collection: Collection, pair: tuple[int, int], modality: str, anchors: np.ndarray, classes: np.ndarray | None = None
) -> dict[str, Means]:
    """Return the means that a map exchanges: of the anchors, and of the other modality's rows of ``classes``, by
    default all that are not held out.
    """
    out: dict[str, Means] = {}
    source, target = both_rows(collection, pair, modality)

    def mean(rows: np.ndarray) -> np.ndarray:
        return rows.mean(axis=0, dtype=np.float64)

    out[modality] = (mean(source[anchors]), mean(target[anchors]))
    if classes is None:
        # With one text per class, not even the mean of the test classes' texts may be used.
        all_classes = np.arange(len(collection.classes))
        classes = all_classes if collection.heldout_classes.all() else all_classes[~collection.heldout_classes]
    if modality == "image":
        a, b = (collection.prototypes[k] for k in pair)
        if a is not None:
            out["text"] = (mean(a[classes]), None if b is None else mean(b[classes]))
    else:
        a, b = (collection.models[k].images for k in pair)
        rows = anchor_rows(collection, "image", classes)
        if a is not None and len(rows):
            out["image"] = (mean(a[rows]), None if b is None else mean(b[rows]))
    return out


def fit_on(
    job: ExperimentJob[Collection],
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
) -> EvaluationRows:
    """Return the test images and the class prototypes, with ``classes`` (by default all) and their images as queries.

    With ``every_image``, training images are included, for maps that were not fitted on images.
    """
    rows = np.ones(len(collection.train), bool) if every_image else ~collection.train
    source, target = (None if (own := collection.models[k].images) is None else own[rows] for k in pair)
    texts = collection.prototypes[pair[0]], collection.prototypes[pair[1]]
    labels = collection.labels[rows]
    queried = np.arange(len(collection.classes)) if classes is None else classes
    return EvaluationRows((source, target), texts, labels, np.flatnonzero(np.isin(labels, queried)), queried, centers)


@dataclass(frozen=True)
class Case:
    """Two models of a collection, and the modality that maps between them are fitted on."""

    job: ExperimentJob[Collection]
    data: Collection
    pair: tuple[int, int]
    modality: str

    @cached_property
    def heldout(self) -> Collection:
        """The collection restricted to the classes to evaluate."""
        return test_part(self.data)

    def what(self, **more: Any) -> dict[str, Any]:
        """Return what identifies a measured value of this case."""
        return {"data": self.data.name, "pair": pair_name(self.data, self.pair), **more}

    def seeds(self) -> list[int]:
        """Return the seeds whose draws give different rotations."""
        return self.job.seeds[:1] if fitted_once(self.modality, "orthogonal") else self.job.seeds

    def draw(self, seed: int, stream: int) -> np.ndarray:
        """Draw the anchors; each figure has its own stream of random numbers."""
        return draw_anchors(
            self.job, self.data, self.modality, self.job["share"], np.random.default_rng([seed, stream])
        )

    def fit(self, anchors: np.ndarray, *more: Any, **options: Any) -> tuple[ModalityMap, dict[str, Means]]:
        """Fit a map on anchors, as ``fit_on``."""
        return fit_on(self.job, self.data, self.pair, self.modality, anchors, *more, **options)

    def subset(self, pair: tuple[int, int], seed: int, number: int) -> ModalityMap:
        """Fit the map of a pair with this number on its own random subset of the anchors."""
        rng = np.random.default_rng([seed, 17, number])
        anchors = draw_subset(self.job, self.data, self.modality, self.job["share"], rng)
        return replace(self, pair=pair).fit(anchors, seed=seed)[0]

    def view(self, centers: dict[str, Means] | None = None) -> EvaluationRows:
        """Return the test images and classes, by default with the means of all anchors."""
        if centers is None:
            centers = means(self.data, self.pair, self.modality, anchor_rows(self.data, self.modality))
        return view(self.heldout, self.pair, centers)

    def add_fitted(self, what: Mapping[str, Any], anchors: np.ndarray, *more: Any, **options: Any) -> ModalityMap:
        """Fit a map, and add its scores on the test part."""
        mapping, centers = self.fit(anchors, *more, **options)
        self.job.add_all(what, measure(mapping, self.view(centers), self.job.metrics))
        return mapping

    def add_references(self, what: Mapping[str, Any], view: EvaluationRows) -> None:
        """Add the scores before mapping and of each model alone, and the controls where they apply."""
        self.job.add_references(what, references(view, self.job.metrics))
        random = "random" not in self.job.parameters.get("methods", [])  # otherwise it is one of the figure's methods
        self.job.add_references(what, controls(view, self.job.metrics, random=random))


def cases(job: ExperimentJob[Collection]) -> Iterator[Case]:
    """Yield every pair of models of every collection."""
    for data in job.data:
        for pair in data.pairs:
            yield Case(job, data, pair, fit_modality(job, data, pair))


def usable(job: ExperimentJob[Collection]) -> list[Case]:
    """Return the cases in which both models have images and texts."""
    out = []
    for case in cases(job):
        if any(case.heldout.models[k].images is None or case.heldout.models[k].prompts is None for k in case.pair):
            job.add_note(f"{case.what()['pair']}: left out, it needs images and texts of both models.")
        else:
            out.append(case)
    if not out:
        raise InputError("No pair with images and texts of both models.", "Pass a collection with such a pair.")
    return out


def nearest(queries: np.ndarray, gallery: np.ndarray, k: int) -> np.ndarray:
    """Return the indices of the k gallery rows nearest to each query by cosine, best first; rows have unit norm."""
    return metrics.nearest(queries, min(k, len(gallery)), gallery, exact=False)


def item(heldout: Collection, i: str) -> dict[str, str]:
    """Return the id and the description of an image, for an example."""
    return {"id": i, "text": heldout.captions.get(i, "")}


def main(job: ExperimentJob[Collection]) -> None:
    """Fit every method on random draws of the anchors, and evaluate on the test part."""
    methods = list(job["methods"])
    if "mlp" in methods and importlib.util.find_spec("torch") is None:
        methods.remove("mlp")
        job.add_note("The MLP was left out: it needs PyTorch (pip install 'congruence[train]').")
    for case in cases(job):
        what = case.what(part=case.data.kind_of(case.pair))
        case.add_references(what, case.view())
        for number, seed in enumerate(job.seeds):
            anchors = case.draw(seed, 11)
            for method in methods:
                if not (number and fitted_once(case.modality, method)):
                    case.add_fitted({**what, "series": method}, anchors, method, seed=seed)
            if job["fit"] == "text" and all(case.data.models[k].images is not None for k in case.pair):
                on_images = replace(case, modality="image")  # for comparison with the fit on text
                series = "orthogonal, fitted on images"
                on_images.add_fitted({**what, "series": series}, on_images.draw(seed, 11), seed=seed)
            job.tick()


def few_anchors(job: ExperimentJob[Collection]) -> None:
    """Draw N classes, fit on all of their training rows, and evaluate on seen and unseen classes separately."""
    for case in cases(job):
        data, on_text = case.data, case.modality == "text"
        labels = data.prompt_labels if on_text else data.labels
        pool = np.unique(labels[anchor_rows(data, case.modality)])
        for n in _steps(job, data, len(pool)):
            for seed in job.seeds:
                chosen = np.sort(np.random.default_rng([seed, n]).choice(pool, n, replace=False))
                anchors = anchor_rows(data, case.modality, chosen)
                mean_classes = chosen if job["means"] == "seen" else np.arange(len(data.classes))
                parts = {"seen": chosen, "unseen": np.setdiff1d(np.flatnonzero(data.heldout_classes), chosen)}
                for method in job["methods"]:
                    mapping, centers = case.fit(anchors, method, classes=mean_classes, seed=seed)
                    for part, classes in parts.items():
                        if not len(classes):
                            continue
                        what = case.what(part=part, x=n)
                        shown = view(data, case.pair, centers, classes=classes, every_image=on_text)
                        job.add_all({**what, "series": method}, measure(mapping, shown, job.metrics))
                        if method == job["methods"][0]:
                            case.add_references(what, shown)
                job.tick()


def _steps(job: ExperimentJob[Collection], collection: Collection, most: int) -> list[int]:
    """Return the numbers of classes to fit on, below ``most``."""
    steps = sorted({n for n in (collection.steps or job["classes"]) if n < most})
    return steps[:: max(1, len(steps) // 3)] if job.quick else steps


def transfer(job: ExperimentJob[Collection]) -> None:
    """Fit on each data set and evaluate on both."""
    for couple in _couples(job.data):
        for pair in couple[0].pairs:
            for fitted in couple:
                case = Case(job, fitted, pair, fit_modality(job, fitted, pair))
                for seed in case.seeds():
                    anchors = case.draw(seed, 13)
                    for evaluated in couple:
                        _add_transferred(case, replace(case, data=evaluated), anchors, seed)
                    job.tick()
            for evaluated in couple:
                own = replace(case, data=evaluated)
                own.add_references(own.what(), own.view())


def _couples(collections: list[Collection]) -> list[tuple[Collection, Collection]]:
    """Return pairs of data sets with the same models, or the two groups of classes of a single data set."""
    couples = []
    by_models: dict[tuple[str, ...], list[Collection]] = {}
    for collection in collections:
        by_models.setdefault(tuple(model.name for model in collection.models), []).append(collection)
    for same in by_models.values():
        if len(same) == 1:
            couples.append(same[0].split_domains())
        elif len(same) == 2:
            couples.append((same[0], same[1]))
        else:
            raise InputError(f"A transfer needs two data sets, not {len(same)}.", "Pass two in `data=…`.")
    return couples


def _add_transferred(fitted: Case, evaluated: Case, anchors: np.ndarray, seed: int) -> None:
    """Add the scores on one data set of a map fitted on another or the same, with each of the configured means."""
    job, same = fitted.job, fitted.data is evaluated.data
    own_means = means(
        evaluated.data, evaluated.pair, evaluated.modality, anchor_rows(evaluated.data, evaluated.modality)
    )
    for which in job["means"][:1] if same else job["means"]:
        if which == "evaluated" and not same:
            source, target = both_rows(fitted.data, fitted.pair, fitted.modality)
            mapping = fit_modality_map("orthogonal", source[anchors], target[anchors], own_means, seed=seed)
            centers = own_means
        else:
            mapping, centers = fitted.fit(anchors, seed=seed)
        part = "in domain" if same else f"means of the data {which}"
        what = evaluated.what(series=f"fitted on {fitted.data.name}", part=part)
        job.add_all(what, measure(mapping, evaluated.view(centers), job.metrics))


def cycle(job: ExperimentJob[Collection]) -> None:
    """Map from A to B and back with two independently fitted maps, and compare the result with A."""
    for case in cases(job):
        a, b = case.pair
        what = case.what(pair=pair_name(case.data, (a, b, a)))
        own = replace(case, pair=(a, a)).view()
        case.add_references(what, own)
        for seed in job.seeds:
            forward, backward = case.subset((a, b), seed, 0), case.subset((b, a), seed, 1)
            scores = measure(_compose(forward, backward), own, job.metrics)
            job.add_all({**what, "series": "round trip"}, scores)
            job.tick()


def composition(job: ExperimentJob[Collection]) -> None:
    """Compare the composed map A → B → C with the direct map A → C, for every chain of the data."""
    for collection in job.data:
        if len(collection.models) < 3:
            raise InputError(
                f"A composition needs three models, not {len(collection.models)}.", "Pass `models='a/b/c'`."
            )
        for a, b, c in collection.chains:
            case = Case(job, collection, (a, c), fit_modality(job, collection, (a, c)))
            what, ends = case.what(pair=pair_name(collection, (a, b, c))), case.view()
            case.add_references(what, ends)
            for seed in job.seeds:
                pairs = ((a, b), (b, c), (a, c))
                first, second, direct = (case.subset(pair, seed, number) for number, pair in enumerate(pairs))
                for name, mapping in (("composed", _compose(first, second)), ("direct", direct)):
                    job.add_all({**what, "series": name}, measure(mapping, ends, job.metrics))
                job.tick()


def _compose(first: ModalityMap, second: ModalityMap) -> Callable[[str, np.ndarray], np.ndarray]:
    """Return the map that applies one map after the other."""
    return lambda modality, rows: second(modality, first(modality, rows))


def gap(job: ExperimentJob[Collection]) -> None:
    """Measure the modality gap of each model, and the zero-shot accuracy while a translation closes it."""
    clouds: list[dict[str, Any]] = []
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
            job.add({**what, "metric": "gap", "quantity": "value"}, float(np.linalg.norm(gap)))
            for step in np.linspace(0, 1, 3 if job.quick else job["steps"]).round(3).tolist():
                moved = (
                    normalize_rows(texts + step * gap, dtype=np.float32),
                    normalize_rows(images - step * gap, dtype=np.float32),
                )
                for series, accuracy in (
                    ("texts moved", zero_shot_accuracy(images, moved[0], labels)),
                    ("images moved", zero_shot_accuracy(moved[1], texts, labels)),
                ):
                    key = {**what, "series": series, "x": step, "metric": "zero_shot", "quantity": "after"}
                    job.add(key, accuracy)
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
        raise InputError("No model with images and texts.", "Pass a collection with such a model.")
    job.extra["clouds"] = clouds


def kernels(job: ExperimentJob[Collection]) -> None:
    """Compare the image–text similarity kernels of two models, and their image and text kernels."""
    kernels: list[dict[str, Any]] = []
    for collection in job.data:
        heldout = test_part(collection)
        test = np.flatnonzero(~heldout.train)
        for pair in heldout.pairs:
            (fa, fb), (ga, gb) = ([heldout.models[k].images for k in pair], [heldout.prototypes[k] for k in pair])
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
                # The paper's unimodal kernel ⟨f(x), f̃(x′)⟩ compares vectors of different models, so it depends on
                # their coordinates.
                within, across = fa @ fa.T, fa @ fb.T
                numbers["cross_model_correlation"] = float(np.corrcoef(within.ravel(), across.ravel())[0, 1])
            for metric, value in numbers.items():
                job.add({**what, "metric": metric}, value)
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
        raise InputError("No pair with images and texts of both models.", "Pass a collection with such a pair.")
    job.extra["kernels"] = kernels


def clouds(job: ExperimentJob[Collection]) -> None:
    """Project both models onto two principal directions before and after mapping, and measure the metrics."""
    clouds: list[dict[str, Any]] = []
    for case in cases(job):
        case.add_references(case.what(), case.view())
        for seed in case.seeds():
            mapping = case.add_fitted(case.what(series="orthogonal"), case.draw(seed, 19), seed=seed)
            job.tick()
        clouds += _before_after(case.heldout, case.pair, mapping, job["points"], job.seeds[0])
    job.extra["clouds"] = clouds


def _before_after(
    heldout: Collection, pair: tuple[int, int], mapping: ModalityMap, points: int, seed: int
) -> list[dict[str, Any]]:
    """Return the projections of both models after mapping, and before if they have the same width."""
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
        after[f"source {modality}"] = normalize_rows(mapping(modality, source[chosen]), dtype=np.float32)
        after[f"target {modality}"] = target[chosen]
    out: list[dict[str, Any]] = []
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


def commuting(job: ExperimentJob[Collection]) -> None:
    """Compare mapping the image with the path through the nearest text, by the overlap of their top five images."""
    examples: list[dict[str, Any]] = []
    for case in usable(job):
        heldout, what, test = case.heldout, case.what(), ~case.heldout.train
        source_images, target_images = (side[test] for side in both_rows(heldout, case.pair, "image"))
        source_texts, target_texts = both_rows(heldout, case.pair, "text")
        ids, labels = heldout.ids[test], heldout.labels[test]
        for seed in job.seeds:
            anchors = case.draw(seed, 29)
            read = nearest(source_images, source_texts, 1)[:, 0]
            used, position = np.unique(read, return_inverse=True)
            for method in ("random", "orthogonal"):
                mapping, _ = case.fit(anchors, method, seed=seed)
                direct = nearest(normalize_rows(mapping("image", source_images), dtype=np.float32), target_images, 5)
                mapped = nearest(
                    normalize_rows(mapping("text", source_texts[used]), dtype=np.float32), target_texts, 1
                )[:, 0][position]
                mediated = nearest(target_texts[mapped], target_images, 5)
                shared = [len({*x} & {*y}) / len(x) for x, y in zip(direct.tolist(), mediated.tolist(), strict=True)]
                right, through = (np.mean(labels[found] == labels[:, None]) for found in (direct, mediated))
                same = np.mean(heldout.prompt_labels[mapped] == heldout.prompt_labels[read])
                scores = {"overlap_at_5": np.mean(shared), "right_class_at_5": right, "same_text": same}
                if method == "random":
                    job.add_all(what, scores, "random_rotation")
                    continue
                job.add_all({**what, "series": "both paths"}, {"overlap_at_5": scores["overlap_at_5"]})
                job.add_all({**what, "series": "direct"}, {"right_class_at_5": right})
                job.add_all({**what, "series": "through texts"}, {"right_class_at_5": through, "same_text": same})
            if seed == job.seeds[0]:
                chance = {
                    "overlap_at_5": direct.shape[1] / len(target_images),
                    "right_class_at_5": float(np.mean(labels[:, None] == labels[None])),
                }
                job.add_all(what, chance, "chance")
            job.tick()
        for q in np.random.default_rng(job.seeds[0]).permutation(len(ids))[: job["examples"]].tolist():
            examples.append(
                {
                    "query": item(heldout, str(ids[q])),
                    "read": heldout.texts[read[q]] if heldout.texts else "",
                    "mapped_to": heldout.texts[mapped[q]] if heldout.texts else "",
                    "rows": {
                        "direct": [item(heldout, str(ids[k])) for k in direct[q]],
                        "through texts": [item(heldout, str(ids[k])) for k in mediated[q]],
                    },
                }
            )
    job.extra["examples"] = examples


_AT_5 = "edited_class_image_at_5"


@dataclass(frozen=True)
class _Texts:
    """Texts that are searched, and edited texts that are mapped."""

    gallery: tuple[np.ndarray, np.ndarray]
    gallery_words: tuple[str, ...]
    gallery_labels: np.ndarray
    queries: np.ndarray
    read: np.ndarray
    edited: tuple[np.ndarray, np.ndarray]
    edited_words: Sequence[str]
    wanted: np.ndarray
    templates: tuple[np.ndarray, np.ndarray] | None = None

    def find(
        self, model: int, queries: np.ndarray, images: np.ndarray, labels: np.ndarray
    ) -> tuple[dict[str, float], np.ndarray, np.ndarray]:
        """Return how often each query's nearest text, and its nearest images, are of the wanted class, and both."""
        text = nearest(queries, self.gallery[model], 1)[:, 0]
        found = nearest(self.gallery[model][text], images, 5)
        right = labels[found] == self.wanted[:, None]
        scores = {
            "edited_class_text": np.mean(self.gallery_labels[text] == self.wanted),
            "edited_class_image": np.mean(right[:, 0]),
            _AT_5: np.mean(right.any(axis=1)),
        }
        return {metric: float(score) for metric, score in scores.items()}, text, found


def edits(job: ExperimentJob[Collection]) -> None:
    """Change only the class in a text, map the edited text, and evaluate the nearest text and image in the target.

    The text is the caption nearest to an image in the source; without captions, the nearest class prompt, edited to the
    prompt of another class with the same template.
    """
    examples: list[dict[str, Any]] = []
    for case in usable(job):
        heldout, what, test = case.heldout, case.what(), ~case.heldout.train
        _note_texts(job, heldout)
        source_images, target_images = (side[test] for side in both_rows(heldout, case.pair, "image"))
        ids, labels = heldout.ids[test], heldout.labels[test]
        for seed in job.seeds:
            rng = np.random.default_rng([seed, 31])
            anchors = draw_anchors(job, case.data, case.modality, job["share"], rng)
            mapping, _ = case.fit(anchors, seed=seed)
            most = min(job["swaps"], 100) if job.quick else job["swaps"]
            texts = (
                _prompts(heldout, case.pair, source_images, most, rng)
                if heldout.bank is None
                else _captions(heldout, heldout.bank, case.pair, source_images, most, rng)
            )
            scores, text, mapped = texts.find(
                1, normalize_rows(mapping("text", texts.edited[0]), dtype=np.float32), target_images, labels
            )
            job.add_all({**what, "series": "mapped"}, scores)
            alone = texts.find(1, texts.edited[1], target_images, labels)[0]
            job.add_all({**what, "series": "target alone"}, alone)
            alone = texts.find(0, texts.edited[0], source_images, labels)[0]
            job.add_all({**what, "series": "source alone"}, {metric: alone[metric] for metric in [_AT_5]})
            random, _ = case.fit(anchors, "random", seed=seed)
            scores, other, _ = texts.find(
                1, normalize_rows(random("text", texts.edited[0]), dtype=np.float32), target_images, labels
            )
            control = {**scores, "rest_kept": _rest_kept(heldout, texts, other)["after"]}
            job.add_all(what, control, "random_rotation")
            for quantity, kept in _rest_kept(heldout, texts, text).items():
                line = {**what, "series": "mapped"} if quantity == "after" else what
                job.add({**line, "metric": "rest_kept", "quantity": quantity}, kept)
            job.tick()
        for q in range(min(job["examples"], len(texts.queries))):
            examples.append(
                {
                    "query": item(heldout, str(ids[texts.queries[q]])),
                    "read": texts.gallery_words[texts.read[q]] if texts.gallery_words else "",
                    "mapped_to": texts.edited_words[q] if texts.edited_words else "",
                    "rows": {"found": [item(heldout, str(ids[k])) for k in mapped[q]]},
                }
            )
    job.extra["examples"] = examples


def _note_texts(job: ExperimentJob[Collection], heldout: Collection) -> None:
    """Add a note on the texts that are edited; refuse data in which an edit preserves nothing."""
    templates = len(np.unique(heldout.prompt_templates))
    named = ", ".join(f"{before} → {after}" for before, after in job["edits"].items())
    if heldout.bank is not None:
        count = len(heldout.bank.edited_texts)
        job.add_note(
            f"{heldout.name}: {len(heldout.bank.texts)} captions, {count} of them "
            f"edited{f' ({named})' if named else ''}."
        )
        return
    if templates < 2:
        raise no_captions(heldout.name, job.experiment.name)
    job.add_note(
        f"{heldout.name}: no captions here. Class prompts of {templates} templates are edited instead, with the "
        f"class replaced by a random one{f'; {named} needs a file of captions' if named else ''}."
    )


def _prompts(
    heldout: Collection, pair: tuple[int, int], images: np.ndarray, most: int, rng: np.random.Generator
) -> _Texts:
    """Find the class prompt nearest to each image, and replace its class by a random one."""
    source_texts, target_texts = both_rows(heldout, pair, "text")
    queries = rng.choice(len(images), min(most, len(images)), replace=False)
    read = nearest(images[queries], source_texts, 1)[:, 0]
    edited = np.empty(len(read), dtype=int)
    for q, row in enumerate(read.tolist()):
        same = heldout.prompt_templates == heldout.prompt_templates[row]
        other = np.flatnonzero(same & (heldout.prompt_labels != heldout.prompt_labels[row]))
        edited[q] = rng.choice(other) if len(other) else row
    return _Texts(
        (source_texts, target_texts),
        heldout.texts,
        heldout.prompt_labels,
        queries,
        read,
        (source_texts[edited], target_texts[edited]),
        [heldout.texts[k] for k in edited] if heldout.texts else [],
        heldout.prompt_labels[edited],
        (heldout.prompt_templates[edited], heldout.prompt_templates),
    )


def _captions(
    heldout: Collection,
    bank: CaptionBank,
    pair: tuple[int, int],
    images: np.ndarray,
    most: int,
    rng: np.random.Generator,
) -> _Texts:
    """Find the caption nearest to each image, and keep the images whose caption has an edited version."""
    source_texts, target_texts = (bank.vectors[k] for k in pair)
    version = np.full(len(bank.texts), -1)
    version[bank.origin[::-1]] = np.arange(len(bank.origin))[::-1]  # the first edited version of each caption
    read = nearest(images, source_texts, 1)[:, 0]
    editable = np.flatnonzero(version[read] >= 0)
    if not len(editable):
        raise InputError(
            f"None of {len(images)} images of {heldout.name} is near a caption that names a class to replace.",
            "Pass `captions=…` of these images, or other `edits=…`.",
        )
    queries = np.sort(rng.choice(editable, min(most, len(editable)), replace=False))
    edited = version[read[queries]]
    return _Texts(
        (source_texts, target_texts),
        bank.texts,
        bank.labels,
        queries,
        read[queries],
        (bank.edited[pair[0]][edited], bank.edited[pair[1]][edited]),
        [bank.edited_texts[k] for k in edited],
        bank.wanted[edited],
    )


def _rest_kept(heldout: Collection, texts: _Texts, text: np.ndarray) -> dict[str, float]:
    """Return how much of the text apart from the class is kept: the template, or a share of the other words."""
    if texts.templates is not None:
        edited, gallery = texts.templates
        labels = texts.gallery_labels
        same = [np.mean(gallery[labels == w] == t) for w, t in zip(texts.wanted, edited, strict=True)]
        return {"after": float(np.mean(gallery[text] == edited)), "chance": float(np.mean(same))}
    words = texts.gallery_words
    kept = shared_words(texts.edited_words, [words[k] for k in text], heldout.classes)
    by_chance = []
    for caption, wanted in zip(texts.edited_words, texts.wanted.tolist(), strict=True):
        others = [words[k] for k in np.flatnonzero(texts.gallery_labels == wanted)]
        by_chance.append(np.mean(shared_words([caption] * len(others), others, heldout.classes)) if others else np.nan)
    out = {"after": kept, "chance": np.array(by_chance)}
    return {quantity: float(np.nanmean(values)) for quantity, values in out.items() if not np.isnan(values).all()}


def statistics(job: ExperimentJob[Collection]) -> None:
    """Count the classes, training images and test images."""
    for collection in job.data:
        counts = {
            "classes": len(collection.classes),
            "train_images": int(collection.train.sum()),
            "test_images": int((~collection.train).sum()),
        }
        for metric, count in counts.items():
            job.add({"data": collection.name, "metric": metric, "quantity": "count"}, count)
        job.tick()


def templates(job: ExperimentJob[Collection]) -> None:
    """Count the templates, and list the prompts of the first class."""
    listed = {}
    for collection in job.data:
        first = np.flatnonzero(collection.prompt_labels == 0)
        count = len(np.unique(collection.prompt_templates))
        job.add({"data": collection.name, "metric": "templates", "quantity": "count"}, count)
        listed[collection.name] = [collection.texts[k] for k in first.tolist()] if collection.texts else []
        job.tick()
    job.extra["templates"] = listed
