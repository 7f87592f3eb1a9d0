"""The figures and tables of the Canonical paper: how they are measured, and its claims about them."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import compress
from typing import Any

import numpy as np

from congruence import metrics
from congruence.embeddings import normalize_rows
from congruence.errors import InputError
from congruence.metrics import cross_kernel_cka, linear_cka, zero_shot_accuracy
from congruence_papers.canonical import maps
from congruence_papers.canonical.data import (
    SAMPLE_DATA,
    Collection,
    first_templates,
    no_captions,
    open_sample,
    shared_words,
)
from congruence_papers.canonical.maps import BASELINES, EvaluationRows, Mapped, Means
from congruence_papers.canonical.models import open_for
from congruence_papers.core import ExperimentJob, Paper, described

#: Maximum number of anchors in a quick run.
QUICK_ANCHORS = 600

Job = ExperimentJob[Collection]


def fitted_once(modality: str, method: str) -> bool:
    """Return whether every draw would give the same map, because the fit has a closed form and uses all prompts."""
    return modality == "text" and method not in ("mlp", "random")


@dataclass(frozen=True)
class Case:
    """Two models of a collection, and the modality that maps between them are fitted on."""

    job: Job
    data: Collection
    pair: tuple[int, int]
    modality: str

    @classmethod
    def of(cls, job: Job, data: Collection, pair: tuple[int, int]) -> Case:
        """Return a case fitted on the configured modality if both models have it, otherwise on the other."""
        configured: str = job.parameters.get("fit", "image")
        for modality in (configured, "text" if configured == "image" else "image"):
            if any(data.rows(k, modality) is None for k in pair):
                continue
            if modality != configured:
                job.add_note(f"{data.name}: fitted on {modality}s, since not every model has {configured}s.")
                # Claims about cycles and compositions hold for maps fitted on either modality.
                if job.experiment.kind not in ("cycle", "composition"):
                    job.unchecked = f"it is about maps fitted on {configured}s; here they were fitted on {modality}s"
            return cls(job, data, pair, modality)
        raise InputError(f"{data.pair_name(pair)} have no modality in common.", "Embed one modality with both.")

    @cached_property
    def heldout(self) -> Collection:
        """The collection restricted to the classes to evaluate."""
        return self.data.heldout

    def what(self, pair: tuple[int, ...] = (), **more: Any) -> dict[str, Any]:
        """Return what identifies a measured value of this case, or of a chain of models."""
        return {"data": self.data.name, "pair": self.data.pair_name(pair or self.pair), **more}

    def seeds(self) -> list[int]:
        """Return the seeds whose draws give different rotations."""
        return self.job.seeds[:1] if fitted_once(self.modality, "orthogonal") else self.job.seeds

    def draw(self, rng: np.random.Generator) -> np.ndarray:
        """Draw the configured share of the images a map may be fitted on, or return all prompts (or the first template
        of each class, if configured): a subset of prompts would omit whole classes, and the paper splits by image.
        """
        if self.modality == "image":
            return self._share(rng)
        self.job.resampled = "nothing for fits on text, which use every prompt; the test part is fixed"
        rows = self.data.anchors("text")
        if self.job.parameters.get("fit_templates") == "single":
            return rows[first_templates(self.data.prompt_labels[rows], self.data.prompt_templates[rows])]
        return rows

    def draw_subset(self, rng: np.random.Generator) -> np.ndarray:
        """Draw a share of the anchors, images or prompts, for maps that must be fitted on different subsets.

        A subset of prompts contains at least one prompt of every class, unless every class has a single prompt.
        """
        drawn, rows = self._share(rng), self.data.anchors(self.modality)
        labels = self.data.prompt_labels
        if self.modality == "image" or np.bincount(labels[rows])[np.unique(labels[rows])].max() == 1:
            return drawn
        order = rng.permutation(rows)
        return np.union1d(drawn, order[np.unique(labels[order], return_index=True)[1]])

    def _share(self, rng: np.random.Generator) -> np.ndarray:
        """Draw a share of the anchors: at least two, and at most ``QUICK_ANCHORS`` in a quick run."""
        rows = self.data.anchors(self.modality)
        count = min(max(2, round(self.job["share"] * len(rows))), QUICK_ANCHORS if self.job.quick else len(rows))
        return np.sort(rng.choice(rows, min(count, len(rows)), replace=False))

    def means(self, anchors: np.ndarray | None = None, classes: np.ndarray | None = None) -> dict[str, Means]:
        """Return the means that a map exchanges: of the anchors, and of the other modality's rows of ``classes``."""
        data, pair = self.data, self.pair
        own = data.anchors(self.modality) if anchors is None else anchors
        every = classes is None
        if classes is None:
            # With one text per class, not even the mean of the test classes' texts may be used.
            classes = np.flatnonzero(~data.heldout_classes | data.heldout_classes.all())
        source, target = data.both(pair, self.modality)
        out: dict[str, Means] = {self.modality: (_mean(source, own), _mean(target, own))}
        if self.modality == "image":
            a, b, rows = *(data.prototypes[k] for k in pair), classes
        else:
            a, b, rows = *(data.rows(k, "image") for k in pair), data.anchors("image", None if every else classes)
        if a is not None and len(rows):
            out["text" if self.modality == "image" else "image"] = _mean(a, rows), None if b is None else _mean(b, rows)
        return out

    def fit(
        self, anchors: np.ndarray, method: str = "orthogonal", *, seed: int, centers: dict[str, Means] | None = None
    ) -> Mapped:
        """Fit a map between the models on the given anchors; by default it exchanges their means."""
        source, target = self.data.both(self.pair, self.modality)
        centers = self.means(anchors) if centers is None else centers
        return maps.fit_modality_map(method, source[anchors], target[anchors], centers, seed=seed, quick=self.job.quick)

    def fit_subset(self, pair: tuple[int, int], seed: int, number: int) -> Mapped:
        """Fit the map of a pair with this number on its own random subset of the anchors."""
        own = replace(self, pair=pair)
        return own.fit(own.draw_subset(np.random.default_rng([seed, 17, number])), seed=seed)

    def view(
        self, centers: dict[str, Means] | None = None, classes: np.ndarray | None = None, *, every_image: bool = False
    ) -> EvaluationRows:
        """Return the test images and the prototypes of the classes to evaluate, by default with the means of all
        anchors and all of these classes as queries. With ``classes`` of all, they and their images are the queries.

        With ``every_image``, training images are included, for maps that were not fitted on images.
        """
        centers = self.means() if centers is None else centers
        data = self.heldout if classes is None else self.data
        rows = np.ones(len(data.train), bool) if every_image else ~data.train
        source, target = (None if (own := data.models[k].images) is None else own[rows] for k in self.pair)
        texts = data.prototypes[self.pair[0]], data.prototypes[self.pair[1]]
        queried, labels = np.arange(len(data.classes)) if classes is None else classes, data.labels[rows]
        return EvaluationRows(
            (source, target), texts, labels, np.flatnonzero(np.isin(labels, queried)), queried, centers
        )

    def add(self, what: Mapping[str, Any], mapping: Mapped, view: EvaluationRows) -> None:
        """Add the scores of a map."""
        self.job.add_all(what, maps.measure(mapping, view, self.job.metrics))

    def add_fitted(self, anchors: np.ndarray, method: str = "orthogonal", *, seed: int, **what: Any) -> Mapped:
        """Fit a map, and add its scores on the test part."""
        centers = self.means(anchors)
        mapping = self.fit(anchors, method, seed=seed, centers=centers)
        self.add(self.what(**what), mapping, self.view(centers))
        return mapping

    def add_references(self, view: EvaluationRows, what: Mapping[str, Any] | None = None) -> None:
        """Add the scores before mapping and of each model alone, and the controls where they apply."""
        what = self.what() if what is None else what
        random = "random" not in self.job.parameters.get("methods", [])  # otherwise it is one of the figure's methods
        names = self.job.metrics
        for scores in (maps.references(view, names), maps.controls(view, names, random=random)):
            for metric, by_quantity in scores.items():
                for quantity, value in by_quantity.items():
                    self.job.add({**what, "metric": metric, "quantity": quantity}, value)


def _mean(values: np.ndarray, rows: np.ndarray) -> np.ndarray:
    return np.asarray(values[rows].mean(axis=0, dtype=np.float64))


def cases(job: Job) -> Iterator[Case]:
    """Yield every pair of models of every collection."""
    for data in job.data:
        yield from (Case.of(job, data, pair) for pair in data.pairs)


def usable(job: Job) -> list[Case]:
    """Return the cases in which both models have images and texts."""
    out = []
    for data in job.data:
        for pair in data.pairs:
            if all(data.rows(k, modality) is not None for k in pair for modality in ("image", "text")):
                out.append(Case.of(job, data, pair))
            else:
                job.add_note(f"{data.pair_name(pair)}: left out, it needs images and texts of both models.")
    if not out:
        raise InputError("No pair with images and texts of both models.", "Pass a collection with such a pair.")
    return out


def nearest(queries: np.ndarray, gallery: np.ndarray, k: int) -> np.ndarray:
    """Return the indices of the k gallery rows nearest to each query by cosine, best first; rows have unit norm."""
    return metrics.nearest(queries, min(k, len(gallery)), gallery, exact=False)


def unit(rows: np.ndarray) -> np.ndarray:
    """Return rows scaled to unit length, in float32."""
    return normalize_rows(rows, dtype=np.float32)


def example(data: Collection, query: str, read: str, mapped_to: str, **rows: Sequence[str]) -> dict[str, Any]:
    """Return an example: an image, the text that was read from it and mapped, and the images found, by ids."""

    def item(i: str) -> dict[str, str]:
        return {"id": str(i), "text": data.captions.get(str(i), "")}

    found = {name.replace("_", " "): list(map(item, own)) for name, own in rows.items()}
    return {"query": item(query), "read": read, "mapped_to": mapped_to, "rows": found}


# ------------------------------------------------------------------ studies


def main(job: Job) -> None:
    """Fit every method on random draws of the anchors, and evaluate on the test part."""
    methods = list(job["methods"])
    if "mlp" in methods and importlib.util.find_spec("torch") is None:
        methods.remove("mlp")
        job.add_note("The MLP was left out: it needs PyTorch (pip install 'congruence[train]').")
    for case in cases(job):
        part = case.data.kind_of(case.pair)
        case.add_references(case.view(), case.what(part=part))
        for number, seed in enumerate(job.seeds):
            anchors = case.draw(np.random.default_rng([seed, 11]))
            for method in methods:
                if not (number and fitted_once(case.modality, method)):
                    case.add_fitted(anchors, method, seed=seed, part=part, series=method)
            if job["fit"] == "text" and all(case.data.models[k].images is not None for k in case.pair):
                own = replace(case, modality="image")  # for comparison with the fit on text
                drawn = own.draw(np.random.default_rng([seed, 11]))
                own.add_fitted(drawn, seed=seed, part=part, series="orthogonal, fitted on images")
            job.tick()


def few_anchors(job: Job) -> None:
    """Draw N classes, fit on all of their training rows, and evaluate on seen and unseen classes separately."""
    for case in cases(job):
        seen = np.unique(case.data.labels[case.data.train])
        if case.modality == "image" and case.data.heldout_classes[seen[seen >= 0]].all():
            case = replace(case, data=case.heldout)  # other classes have texts only, and are no candidates
        data = case.data
        labels = data.prompt_labels if case.modality == "text" else data.labels
        pool = np.unique(labels[data.anchors(case.modality)])
        steps = sorted({n for n in (data.steps or job["classes"]) if n < len(pool)})
        for n in steps[:: max(1, len(steps) // 3)] if job.quick else steps:
            for seed in job.seeds:
                chosen = np.sort(np.random.default_rng([seed, n]).choice(pool, n, replace=False))
                anchors = data.anchors(case.modality, chosen)
                centers = case.means(anchors, chosen if job["means"] == "seen" else np.arange(len(data.classes)))
                parts = {"seen": chosen, "unseen": np.setdiff1d(np.flatnonzero(data.heldout_classes), chosen)}
                for method in job["methods"]:
                    mapping = case.fit(anchors, method, centers=centers, seed=seed)
                    for part, classes in parts.items():
                        if len(classes):
                            what = case.what(part=part, x=n)
                            shown = case.view(centers, classes, every_image=case.modality == "text")
                            case.add({**what, "series": method}, mapping, shown)
                            if method == job["methods"][0]:
                                case.add_references(shown, what)
                job.tick()


def transfer(job: Job) -> None:
    """Fit on each data set and evaluate on both."""
    for couple in _couples(job.data):
        for pair in couple[0].pairs:
            for fitted in couple:
                case = Case.of(job, fitted, pair)
                for seed in case.seeds():
                    anchors = case.draw(np.random.default_rng([seed, 13]))
                    for evaluated in couple:
                        _add_transferred(case, replace(case, data=evaluated), anchors, seed)
                    job.tick()
            for evaluated in couple:
                own = replace(case, data=evaluated)
                own.add_references(own.view())


def _couples(collections: list[Collection]) -> list[tuple[Collection, Collection]]:
    """Return pairs of data sets with the same models, or the two groups of classes of a single data set."""
    by_models: dict[tuple[str, ...], list[Collection]] = {}
    for collection in collections:
        by_models.setdefault(tuple(model.name for model in collection.models), []).append(collection)
    couples = []
    for same in by_models.values():
        if len(same) > 2:
            raise InputError(f"A transfer needs two data sets, not {len(same)}.", "Pass two in `data=…`.")
        couples.append(same[0].split_domains() if len(same) == 1 else (same[0], same[1]))
    return couples


def _add_transferred(fitted: Case, evaluated: Case, anchors: np.ndarray, seed: int) -> None:
    """Add the scores on one data set of a map fitted on another or the same, with each of the configured means."""
    same = fitted.data is evaluated.data
    for which in fitted.job["means"][:1] if same else fitted.job["means"]:
        centers = evaluated.means() if which == "evaluated" and not same else fitted.means(anchors)
        mapping = fitted.fit(anchors, seed=seed, centers=centers)
        part = "in domain" if same else f"means of the data {which}"
        what = evaluated.what(series=f"fitted on {fitted.data.name}", part=part)
        evaluated.add(what, mapping, evaluated.view(centers))


def cycle(job: Job) -> None:
    """Map from A to B and back with two independently fitted maps, and compare the result with A."""
    for case in cases(job):
        a, b = case.pair
        what, own = case.what((a, b, a)), replace(case, pair=(a, a)).view()
        case.add_references(own, what)
        for seed in job.seeds:
            forward, backward = case.fit_subset((a, b), seed, 0), case.fit_subset((b, a), seed, 1)
            case.add({**what, "series": "round trip"}, _compose(forward, backward), own)
            job.tick()


def composition(job: Job) -> None:
    """Compare the composed map A → B → C with the direct map A → C, for every chain of the data."""
    for collection in job.data:
        if len(collection.models) < 3:
            raise InputError(f"Compositions need three models, not {len(collection.models)}.", "Pass `models='a/b/c'`.")
        for a, b, c in collection.chains:
            case = Case.of(job, collection, (a, c))
            what, ends = case.what((a, b, c)), case.view()
            case.add_references(ends, what)
            for seed in job.seeds:
                pairs = ((a, b), (b, c), (a, c))
                first, second, direct = (case.fit_subset(pair, seed, number) for number, pair in enumerate(pairs))
                for name, mapping in (("composed", _compose(first, second)), ("direct", direct)):
                    case.add({**what, "series": name}, mapping, ends)
                job.tick()


def _compose(first: Mapped, second: Mapped) -> Mapped:
    return lambda modality, rows: second(modality, first(modality, rows))


def gap(job: Job) -> None:
    """Measure the modality gap of each model, and the zero-shot accuracy while a translation closes it."""
    clouds: list[dict[str, Any]] = []
    for heldout in (collection.heldout for collection in job.data):
        for model, texts in zip(heldout.models, heldout.prototypes, strict=True):
            if model.images is None or texts is None:
                continue
            images, labels = model.images[~heldout.train], heldout.labels[~heldout.train]
            gap = images.mean(axis=0) - texts.mean(axis=0)
            what = {"data": heldout.name, "pair": model.name}
            job.add_all(what, {"gap": float(np.linalg.norm(gap))}, "value")
            for step in np.linspace(0, 1, 3 if job.quick else job["steps"]).round(3).tolist():
                for series, accuracy in (
                    ("texts moved", zero_shot_accuracy(images, unit(texts + step * gap), labels)),
                    ("images moved", zero_shot_accuracy(unit(images - step * gap), texts, labels)),
                ):
                    job.add_all({**what, "series": series, "x": step}, {"zero_shot": accuracy})
            # Each image is plotted together with the text of its class.
            chosen = _sample(len(images), job["points"], job.seeds[0])
            points = _project({"target image": images[chosen], "target text": texts[labels[chosen]]})
            clouds.append({"title": f"{heldout.name}: {model.name}", "points": points})
            job.tick()
    if not clouds:
        raise InputError("No model with images and texts.", "Pass a collection with such a model.")
    job.extra["clouds"] = clouds


def kernels(job: Job) -> None:
    """Compare the image–text similarity kernels of two models, and their image and text kernels."""
    kernels: list[dict[str, Any]] = []
    for case in usable(job):
        heldout, seed = case.heldout, job.seeds[0]
        rows = np.flatnonzero(~heldout.train)
        rows = rows[_sample(len(rows), 2_000, seed)]
        fa, fb = (side[rows] for side in heldout.both(case.pair, "image"))
        ga, gb = (np.asarray(heldout.prototypes[k]) for k in case.pair)
        kernel_a, kernel_b = fa @ ga.T, fb @ gb.T
        numbers = {
            "kernel_correlation": float(np.corrcoef(kernel_a.ravel(), kernel_b.ravel())[0, 1]),
            "kernel_cka": float(cross_kernel_cka(fa, ga, fb, gb)),
            "kernel_rms_difference": float(np.sqrt(np.mean((kernel_a - kernel_b) ** 2))),
            "image_cka": float(linear_cka(fa, fb)),
            "text_cka": float(linear_cka(ga, gb)),
        }
        if fa.shape[1] == fb.shape[1]:
            # The paper's unimodal kernel ⟨f(x), f̃(x′)⟩ compares vectors of different models, so it depends on their
            # coordinates.
            across = np.corrcoef((fa @ fa.T).ravel(), (fa @ fb.T).ravel())[0, 1]
            numbers["cross_model_correlation"] = float(across)
        job.add_all(case.what(), numbers, "value")
        same = heldout.labels[rows][:, None] == np.arange(len(heldout.classes))[None]
        panel = {"title": f"{heldout.name}: {case.what()['pair']}"}
        for name, mask, most in (("matched", same, job["points"]), ("other", ~same, 3 * job["points"])):
            points = np.stack([kernel_a[mask], kernel_b[mask]], axis=1)
            panel[name] = points[_sample(len(points), most, seed)].round(4).tolist()
        kernels.append(panel)
        job.tick()
    job.extra["kernels"] = kernels


def clouds(job: Job) -> None:
    """Project both models onto two principal directions before and after mapping, and measure the metrics."""
    clouds: list[dict[str, Any]] = []
    for case in cases(job):
        case.add_references(case.view())
        for seed in case.seeds():
            anchors = case.draw(np.random.default_rng([seed, 19]))
            mapping = case.add_fitted(anchors, seed=seed, series="orthogonal")
            job.tick()
        before: dict[str, np.ndarray] = {}
        after: dict[str, np.ndarray] = {}
        view = case.view()
        for modality, (source, target) in (("image", view.images), ("text", view.texts)):
            if source is None or target is None:
                continue
            chosen = _sample(len(source), job["points"], job.seeds[0])
            before[f"source {modality}"] = source[chosen]
            after[f"source {modality}"] = unit(mapping(modality, source[chosen]))
            before[f"target {modality}"] = after[f"target {modality}"] = target[chosen]
        for when, rows in (("before", before), ("after", after)):
            if len({side.shape[1] for side in rows.values()}) == 1:
                clouds.append({"title": f"{case.what()['pair']}, {when}", "points": _project(rows)})
    job.extra["clouds"] = clouds


def _project(sides: Mapping[str, np.ndarray]) -> dict[str, list[list[float]]]:
    rows = np.concatenate(list(sides.values())).astype(np.float64)
    center = rows.mean(axis=0)
    directions = np.linalg.svd(rows - center, full_matrices=False)[2][:2].T
    return {name: ((side - center) @ directions).round(4).tolist() for name, side in sides.items()}


def _sample(n: int, most: int, seed: int) -> np.ndarray:
    """Return at most ``most`` of n indices, drawn at random and sorted."""
    return np.arange(n) if n <= most else np.sort(np.random.default_rng([seed, 23]).choice(n, most, replace=False))


def commuting(job: Job) -> None:
    """Compare mapping the image with the path through the nearest text, by the overlap of their top five images."""
    job.extra["examples"] = []
    for case in usable(job):
        heldout, what, test = case.heldout, case.what(), ~case.heldout.train
        source_images, target_images = (side[test] for side in heldout.both(case.pair, "image"))
        source_texts, target_texts = heldout.both(case.pair, "text")
        ids, labels = heldout.ids[test], heldout.labels[test]
        read = nearest(source_images, source_texts, 1)[:, 0]
        used, position = np.unique(read, return_inverse=True)
        for seed in job.seeds:
            anchors = case.draw(np.random.default_rng([seed, 29]))
            for method in ("random", "orthogonal"):
                mapping = case.fit(anchors, method, seed=seed)
                direct = nearest(unit(mapping("image", source_images)), target_images, 5)
                mapped = nearest(unit(mapping("text", source_texts[used])), target_texts, 1)[:, 0][position]
                mediated = nearest(target_texts[mapped], target_images, 5)
                overlap = [len({*x} & {*y}) / len(x) for x, y in zip(direct.tolist(), mediated.tolist(), strict=True)]
                shared = {"overlap_at_5": float(np.mean(overlap))}
                right, through = (
                    {"right_class_at_5": float(np.mean(labels[k] == labels[:, None]))} for k in (direct, mediated)
                )
                same = {"same_text": float(np.mean(heldout.prompt_labels[mapped] == heldout.prompt_labels[read]))}
                if method == "random":
                    job.add_all(what, {**shared, **right, **same}, "random_rotation")
                    continue
                job.add_all({**what, "series": "both paths"}, shared)
                job.add_all({**what, "series": "direct"}, right)
                job.add_all({**what, "series": "through texts"}, {**through, **same})
            if seed == job.seeds[0]:
                chance = {
                    "overlap_at_5": direct.shape[1] / len(target_images),
                    "right_class_at_5": float(np.mean(labels[:, None] == labels[None])),
                }
                job.add_all(what, chance, "chance")
            job.tick()
        for q in np.random.default_rng(job.seeds[0]).permutation(len(ids))[: job["examples"]].tolist():
            texts = [heldout.texts[k] if heldout.texts else "" for k in (read[q], mapped[q])]
            paths = {"direct": ids[direct[q]], "through_texts": ids[mediated[q]]}
            job.extra["examples"].append(example(heldout, ids[q], *texts, **paths))


_AT_5 = "edited_class_image_at_5"


@dataclass(frozen=True)
class _Texts:
    """Texts that are searched, with their words and classes; the images that are queries, with the text read from each;
    and that text edited, with its words and the class that is wanted. Pairs are of source and target.
    """

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
            "edited_class_text": float(np.mean(self.gallery_labels[text] == self.wanted)),
            "edited_class_image": float(np.mean(right[:, 0])),
            _AT_5: float(np.mean(right.any(axis=1))),
        }
        return scores, text, found

    def rest_kept(self, text: np.ndarray, classes: Sequence[str]) -> dict[str, float]:
        """Return how much of the text apart from the class is kept: the template, or a share of the other words."""
        if self.templates is not None:
            edited, gallery = self.templates
            by_chance = [
                np.mean(gallery[self.gallery_labels == w] == t) for w, t in zip(self.wanted, edited, strict=True)
            ]
            return {"after": float(np.mean(gallery[text] == edited)), "chance": float(np.mean(by_chance))}
        words = self.gallery_words
        kept = shared_words(self.edited_words, [words[k] for k in text], classes)
        by_chance = []
        for caption, wanted in zip(self.edited_words, self.wanted.tolist(), strict=True):
            others = list(compress(words, self.gallery_labels == wanted))
            by_chance.append(np.mean(shared_words([caption] * len(others), others, classes)) if others else np.nan)
        out = {"after": kept, "chance": np.array(by_chance)}
        return {quantity: float(np.nanmean(values)) for quantity, values in out.items() if not np.isnan(values).all()}


def edits(job: Job) -> None:
    """Change only the class in a text, map the edited text, and evaluate the nearest text and image in the target.

    The text is the caption nearest to an image in the source; without captions, the nearest class prompt, edited to the
    prompt of another class with the same template.
    """
    job.extra["examples"] = []
    for case in usable(job):
        heldout, what, test = case.heldout, case.what(), ~case.heldout.train
        _note_texts(job, heldout)
        images = [side[test] for side in heldout.both(case.pair, "image")]
        ids, labels = heldout.ids[test], heldout.labels[test]
        for seed in job.seeds:
            rng = np.random.default_rng([seed, 31])
            anchors = case.draw(rng)
            mapping, random = (case.fit(anchors, method, seed=seed) for method in ("orthogonal", "random"))
            most = min(job["swaps"], 100) if job.quick else job["swaps"]
            texts = (_prompts if heldout.bank is None else _captions)(heldout, case.pair, images[0], most, rng)
            scores, text, mapped = texts.find(1, unit(mapping("text", texts.edited[0])), images[1], labels)
            job.add_all({**what, "series": "mapped"}, scores)
            job.add_all({**what, "series": "target alone"}, texts.find(1, texts.edited[1], images[1], labels)[0])
            alone = texts.find(0, texts.edited[0], images[0], labels)[0]
            job.add_all({**what, "series": "source alone"}, {_AT_5: alone[_AT_5]})
            scores, other, _ = texts.find(1, unit(random("text", texts.edited[0])), images[1], labels)
            kept = texts.rest_kept(other, heldout.classes)["after"]
            job.add_all(what, {**scores, "rest_kept": kept}, "random_rotation")
            for quantity, kept in texts.rest_kept(text, heldout.classes).items():
                line = {**what, "series": "mapped"} if quantity == "after" else what
                job.add_all(line, {"rest_kept": kept}, quantity)
            job.tick()
        for q in range(min(job["examples"], len(texts.queries))):
            read = texts.gallery_words[texts.read[q]] if texts.gallery_words else ""
            mapped_to = texts.edited_words[q] if texts.edited_words else ""
            job.extra["examples"].append(example(heldout, ids[texts.queries[q]], read, mapped_to, found=ids[mapped[q]]))


def _note_texts(job: Job, heldout: Collection) -> None:
    """Add a note on the texts that are edited; refuse data in which an edit preserves nothing."""
    templates = len(np.unique(heldout.prompt_templates))
    named = ", ".join(f"{before} → {after}" for before, after in job["edits"].items())
    if heldout.bank is not None:
        counts = f"{len(heldout.bank.texts)} captions, {len(heldout.bank.edited_texts)} of them edited"
        job.add_note(f"{heldout.name}: {counts}{f' ({named})' if named else ''}.")
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
    source, target = heldout.both(pair, "text")
    labels, templates, words = heldout.prompt_labels, heldout.prompt_templates, heldout.texts
    queries = rng.choice(len(images), min(most, len(images)), replace=False)
    read = nearest(images[queries], source, 1)[:, 0]
    edited = read.copy()
    for q, row in enumerate(read.tolist()):
        other = np.flatnonzero((templates == templates[row]) & (labels != labels[row]))
        if len(other):
            edited[q] = rng.choice(other)
    both = (source[edited], target[edited]), [words[k] for k in edited] if words else []
    return _Texts((source, target), words, labels, queries, read, *both, labels[edited], (templates[edited], templates))


def _captions(
    heldout: Collection, pair: tuple[int, int], images: np.ndarray, most: int, rng: np.random.Generator
) -> _Texts:
    """Find the caption nearest to each image, and keep the images whose caption has an edited version."""
    bank = heldout.bank
    assert bank is not None
    source, target = (bank.vectors[k] for k in pair)
    version = np.full(len(bank.texts), -1)
    version[bank.origin[::-1]] = np.arange(len(bank.origin))[::-1]  # the first edited version of each caption
    read = nearest(images, source, 1)[:, 0]
    editable = np.flatnonzero(version[read] >= 0)
    if not len(editable):
        raise InputError(
            f"None of {len(images)} images of {heldout.name} is near a caption that names a class to replace.",
            "Pass `captions=…` of these images, or other `edits=…`.",
        )
    queries = np.sort(rng.choice(editable, min(most, len(editable)), replace=False))
    edited = version[read[queries]]
    a, b = (bank.edited[k][edited] for k in pair)
    both = (a, b), [bank.edited_texts[k] for k in edited]
    return _Texts((source, target), bank.texts, bank.labels, queries, read[queries], *both, bank.wanted[edited])


def statistics(job: Job) -> None:
    """Count the classes, training images and test images."""
    for collection in job.data:
        counts = {
            "classes": len(collection.classes),
            "train_images": int(collection.train.sum()),
            "test_images": int((~collection.train).sum()),
        }
        job.add_all({"data": collection.name}, counts, "count")
        job.tick()


def templates(job: Job) -> None:
    """Count the templates, and list the prompts of the first class."""
    listed = {}
    for collection in job.data:
        first = np.flatnonzero(collection.prompt_labels == 0)
        count = len(np.unique(collection.prompt_templates))
        job.add({"data": collection.name, "metric": "templates", "quantity": "count"}, count)
        listed[collection.name] = [collection.texts[k] for k in first.tolist()] if collection.texts else []
        job.tick()
    job.extra["templates"] = listed


STUDIES = (
    *(main, few_anchors, transfer, cycle, composition, gap, kernels, clouds, commuting, edits, statistics, templates),
)


def _count(facts: Mapping[str, Any]) -> str:
    single = ", the first of them measured" if facts["evaluation_templates"] == "single" else ""
    images = f"{facts['train_images']} images to fit on, {facts['test_images']} to measure on"
    return f"{facts['classes']} classes; {images}; {facts['templates']} templates a class{single}"


PAPER = Paper(
    *("canonical", "the Canonical paper", *described("canonical", STUDIES)),
    *(Collection, SAMPLE_DATA, open_sample, open_for, _count),
    choices={
        "methods": tuple(BASELINES),
        "fit": ("image", "text"),
        "means": ("seen", "all", "evaluated", "fitted"),
        "fit_templates": ("all", "single"),
        "evaluation_templates": ("all", "single"),
    },
    ranges={"share": ("a share above 0 and up to 1", lambda share: 0 < share <= 1)},
)
