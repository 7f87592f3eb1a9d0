"""Small real data that replace the paper's models: linear heads in closed form, class names, and emoji."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np
from scipy import linalg

from congruence.datasets import load_sample
from congruence.embeddings import normalize_rows
from congruence.synthetic import random_rotation
from congruence_papers.canonical.data import Collection, Model, random_half_mask
from congruence_papers.core import check_choice
from congruence_papers.features import open_npz


@dataclass(frozen=True)
class Heads:
    """Linear image and text heads into a joint space; see ``contrastive_heads``."""

    image_mean: np.ndarray
    image_matrix: np.ndarray
    text_mean: np.ndarray
    text_matrix: np.ndarray

    def images(self, rows: np.ndarray) -> np.ndarray:
        """Return the embeddings of image features, as unit rows."""
        return normalize_rows((np.asarray(rows, np.float64) - self.image_mean) @ self.image_matrix, dtype=np.float32)

    def texts(self, rows: np.ndarray) -> np.ndarray:
        """Return the embeddings of text features, as unit rows."""
        return normalize_rows((np.asarray(rows, np.float64) - self.text_mean) @ self.text_matrix, dtype=np.float32)


def contrastive_heads(images: np.ndarray, texts: np.ndarray, dim: int, *, ridge: float = 0.1, seed: int = 0) -> Heads:
    """Fit linear heads on images (n, p) and texts (n, q) that minimize the spectral contrastive loss, in closed form:
    regularized CCA, each direction scaled by the root of its singular value.

    The loss does not determine a common rotation of both heads, which is drawn at random, as after a random
    initialization. Source: HaoChen et al. (2021), "Provable guarantees for self-supervised deep learning with spectral
    contrastive loss", §3.
    """
    X, Y = (np.asarray(rows, np.float64) for rows in (images, texts))
    x_mean, y_mean = X.mean(axis=0), Y.mean(axis=0)
    X, Y = X - x_mean, Y - y_mean
    roots = []
    for rows in (X, Y):
        covariance = rows.T @ rows / len(rows)
        covariance.flat[:: len(covariance) + 1] += ridge * np.trace(covariance) / len(covariance)
        roots.append(linalg.cholesky(covariance, lower=True))
    cross = linalg.solve_triangular(roots[0], X.T @ Y / len(X), lower=True)
    cross = linalg.solve_triangular(roots[1], cross.T, lower=True).T
    U, s, Vt = linalg.svd(cross, full_matrices=False, check_finite=False)
    rotation = random_rotation(dim, random_state=seed)
    scale = np.sqrt(s[:dim])
    A = linalg.solve_triangular(roots[0].T, U[:, :dim] * scale, lower=False)
    B = linalg.solve_triangular(roots[1].T, Vt[:dim].T * scale, lower=False)
    return Heads(x_mean, A @ rotation, y_mean, B @ rotation)


#: Names of the data that replace the paper's models and data sets, and variants of them that an experiment may request.
SAMPLE_DATA = ("sample", "lvis", "caltech101")
VARIANTS = ("items", "narrow", "third", "same_data")

#: Kinds of pairs in the variant ``same_data``.
SAME_DATA, OTHER_DATA = "same training data", "other training data"

#: Pairs of three models, and the chains (the default of ``Collection``) of which they are the ends.
_PAIRS_OF_THREE = ((0, 1), (1, 2), (0, 2))
_CHAINS = ((0, 1, 2), (1, 2, 0), (2, 0, 1))

_STEPS = (5, 10, 20, 50, 100, 200, 400, 800)


def _titles(name: str) -> dict[str, Any]:
    """Return what the titles say of data and of what replaces the paper's models, and the chains of models."""
    title, stand_in = {
        "sample": ("emoji", "stand-in: two small models of emoji"),
        "lvis": ("LVIS class names", "stand-in: texts of three CLIPs, images of one"),
        "caltech101": ("Caltech-101 photos", "stand-in: linear heads on unimodal encoders"),
    }[name]
    return {"title": title, "stand_in": stand_in, "chains": _CHAINS}


def open_sample(name: str, file: str | Path | None = None, variant: str | None = None) -> Collection:
    """Open data that replace the paper's models and data sets."""
    check_choice(name, SAMPLE_DATA, "models")
    if variant:
        check_choice(variant, VARIANTS, "variant")
    if name == "sample":
        return _sample(variant)
    return open_npz(name, file, lambda arrays: (_lvis if name == "lvis" else _caltech)(arrays, variant))


def _narrow(models: tuple[Model, Model], dim: int) -> tuple[Model, Model]:
    """Project the first model onto the leading principal directions of its images, or of its texts without any."""
    first, second = models
    rows = first.prompts if second.images is None else first.images
    assert rows is not None
    _, _, directions = np.linalg.svd(rows - rows.mean(axis=0), full_matrices=False)
    cut = directions[:dim].T
    sides = (None if side is None else side @ cut for side in (first.images, first.prompts))
    return Model.unit(f"{first.name} ({dim}-d)", *sides), second


# ---------------------------------------------------------------------------------------------------- the sample


@cache
def _emoji() -> tuple[Any, tuple[Model, ...], np.ndarray, np.ndarray]:
    """Return the emoji sample, its two models, and the emoji and the template of each prompt."""
    sample = load_sample("emoji")
    models = tuple(
        Model.unit(name, side["image"].vectors, side["prompt"].vectors)
        for name, side in (("emoji-a", sample.source), ("emoji-b", sample.target))
    )
    prompts = sample.source["prompt"].ids
    row = {i: k for k, i in enumerate(sample.source["image"].ids.tolist())}
    owner = np.array([row[i] for i in sample.class_of("prompt", prompts).tolist()])
    return sample, models, owner, np.array([int(i.rsplit("#", 1)[1]) for i in prompts.tolist()])


def _sample(variant: str | None) -> Collection:
    sample, models, owner, template = _emoji()
    ids = sample.source["image"].ids
    whole = Collection(
        "sample",
        models,
        tuple(sample.texts["text"].get(i, i) for i in ids.tolist()),
        ids,
        np.arange(len(ids)),
        np.random.default_rng(0).permutation(len(ids)) < 800,
        owner,
        template,
        texts=tuple(sample.texts["prompt"][i] for i in sample.source["prompt"].ids.tolist()),
        captions=sample.texts["image"] if "image" in sample.texts else sample.texts["text"],
        picture=sample.thumbnails.get,
        **_titles("sample"),
    )
    if variant == "items":
        note = "A class is one emoji; fitted on 800 emoji, measured on the others."
        return replace(whole, text_fit=whole.train[owner], heldout_classes=~whole.train, notes=(note,))
    groups = np.array([sample.labels[i] for i in ids.tolist()])
    names, counts = np.unique(groups, return_counts=True)
    names = names[counts >= 8]
    kept = np.isin(groups, names)
    prompts = kept[owner]
    labels = np.searchsorted(names, groups[kept])
    item = (np.cumsum(kept) - 1)[owner[prompts]]  # the kept item that each kept prompt describes
    models = tuple(model.take(kept, prompts) for model in models)
    notes = [
        f"A class is a Unicode subgroup with at least 8 emoji ({len(names)} of them); its prompts are those of "
        "its emoji."
    ]
    train = random_half_mask(labels)
    if variant == "narrow":
        models = _narrow((models[0], models[1]), 32)
        notes.append("The narrow source is emoji-a in its 32 leading principal directions.")
    elif variant == "third":
        models = (*models, _third_model(models, train, item, template[prompts]))
        notes.append(
            "The third model is not independent: closed-form contrastive heads join the images of emoji-a and the "
            "texts of emoji-b, fitted on the training images and their captions."
        )
    elif variant == "same_data":
        notes.append("The sample has no two models trained on the same data: this is its ordinary pair.")
    people = np.array([name.startswith(("face", "person", "hand", "cat-face", "emotion", "body")) for name in names])
    return replace(
        whole,
        models=models,
        classes=tuple(names.tolist()),
        ids=ids[kept],
        labels=labels,
        train=train,
        prompt_labels=labels[item],
        prompt_templates=template[prompts],
        pairs=_PAIRS_OF_THREE if variant == "third" else ((0, 1),),
        text_fit=np.zeros(0, bool),  # all
        heldout_classes=np.zeros(0, bool),
        domain=np.where(people, 0, 1),
        domains=("people", "things"),
        texts=tuple(compress(whole.texts, prompts)),
        notes=tuple(notes),
    )


def _third_model(models: tuple[Model, ...], train: np.ndarray, owner: np.ndarray, template: np.ndarray) -> Model:
    """Return heads on the images of one model and the prompts of another, fitted on each training image's first
    prompt.
    """
    images, prompts = models[0].images, models[1].prompts
    assert images is not None
    assert prompts is not None
    first = template == 0
    caption = np.empty(len(train), dtype=int)
    caption[owner[first]] = np.flatnonzero(first)
    heads = contrastive_heads(images[train], prompts[caption[train]], 64, seed=2)
    return Model("joined", heads.images(images), heads.texts(prompts))


# ---------------------------------------------------------------------------------------------------------- lvis


def _lvis(arrays: Mapping[str, np.ndarray], variant: str | None) -> Collection:
    names = arrays["names"]
    models = tuple(
        Model.unit(name, arrays[image] if image else None, arrays[text])
        for name, image, text in (
            ("OpenAI B/32", "image_openai_vitb32_avg5", "text_openai_vitb32"),
            ("OpenAI B/16", "", "text_openai_vitb16"),
            ("EVA-02 B/16", "", "text_eva02_b16"),
        )
    )
    heldout = np.random.default_rng(0).permutation(len(names)) >= 900
    notes = [
        "Fitted on texts: only OpenAI B/32 has images here. One text and one image (a mean of five) a class; fitted on "
        "900 classes, measured on the other 303.",
        "The target has no images whose mean could be known, so the mapped images keep the modality gap of the source.",
    ]
    if variant == "narrow":
        models = (*_narrow((models[0], models[1]), 256), models[2])
        notes.append("The narrow source is OpenAI B/32 in the 256 leading principal directions of its texts.")
    elif variant == "same_data":
        notes.append("B/32 and B/16 of OpenAI were trained on the same data; EVA-02 was not.")
    initial = np.array([name[:1].lower() for name in names.tolist()])
    every = np.arange(len(names))
    return Collection(
        "lvis",
        models,
        tuple(names.tolist()),
        names.astype(str),
        every,
        ~heldout,
        every,
        np.zeros(len(names), int),
        pairs=_PAIRS_OF_THREE if variant == "third" else ((0, 1), (0, 2)),
        text_fit=~heldout,
        heldout_classes=heldout,
        domain=np.where(initial < "m", 0, 1),
        domains=("names a to l", "names m to z"),
        texts=tuple(names.tolist()),
        captions={name: name for name in names.tolist()},
        notes=tuple(notes),
        steps=_STEPS,
        kinds=(SAME_DATA, OTHER_DATA) if variant == "same_data" else (),
        **_titles("lvis"),
    )


# ---------------------------------------------------------------------------------------------------- caltech101

#: Number of photos that each model's heads are fitted on; the remaining photos are for the maps.
_PART = 1_900
_WIDTH = 96


def _caltech(arrays: Mapping[str, np.ndarray], variant: str | None) -> Collection:
    labels = arrays["label"].astype(int)
    order = np.random.default_rng(0).permutation(len(labels))
    parts = [order[k * _PART : (k + 1) * _PART] for k in range(3)]
    remaining = np.sort(order[3 * _PART :])
    towers = {
        "EfficientNet + MPNet": ("image_effnet_lite0", "text_mpnet"),
        "MobileNet + MiniLM": ("image_mobilenet_v2", "text_minilm_l6"),
        "MobileNet + MPNet": ("image_mobilenet_v2", "text_mpnet"),
    }
    (a, b, c) = towers
    built = [(a, 0, _WIDTH // 2 if variant == "narrow" else _WIDTH), (b, 1, _WIDTH)]  # towers, part of photos, width
    pairs: tuple[tuple[int, int], ...] = ((0, 1),)
    notes = [
        f"Dual encoders made here: linear heads of width {_WIDTH} in closed form (spectral contrastive loss) on frozen "
        f"unimodal features, each on its own {_PART} photos; maps are fitted and measured on photos no head has seen.",
        "The heads center their inputs, so that these models have next to no modality gap.",
    ]
    if variant == "items":
        notes.append("A class has many photos here, and the class is what is edited or retrieved.")
    elif variant == "third":
        built.append((c, 2, _WIDTH))
        pairs = _PAIRS_OF_THREE
    elif variant == "same_data":
        built.append((b, 0, _WIDTH))
        pairs = ((0, 1), (0, 2))
        notes.append("The third model is the second, its heads fitted on the same photos as the first's.")
    models = []
    for seed, (name, part, width) in enumerate(built):
        images, texts = (arrays[key] for key in towers[name])
        template = np.random.default_rng(seed).integers(texts.shape[1], size=len(parts[part]))
        given = images[parts[part]], texts[labels[parts[part]], template]  # a random prompt for each photo
        X, Y = (normalize_rows(rows, dtype=np.float32) for rows in given)
        heads = contrastive_heads(X, Y, width, seed=seed)
        shown = images[remaining], texts.reshape(-1, texts.shape[2])
        photos, prompts = (normalize_rows(rows, dtype=np.float32) for rows in shown)
        name += f" ({width}-d)" * (width != _WIDTH) + " (same photos)" * (variant == "same_data" and seed == 2)
        models.append(Model(name, heads.images(photos), heads.texts(prompts)))
    templates, classes = arrays["templates"].tolist(), arrays["classes"].tolist()
    files = arrays["image_file"][remaining]
    return Collection(
        "caltech101-heads",  # "caltech101" is the data set itself, embedded by real dual encoders
        tuple(models),
        tuple(classes),
        files.astype(str),
        labels[remaining],
        random_half_mask(labels[remaining]),
        np.repeat(np.arange(len(classes)), len(templates)),
        np.tile(np.arange(len(templates)), len(classes)),
        pairs=pairs,
        domain=np.arange(len(classes)) % 2,
        domains=("even classes", "odd classes"),
        texts=tuple(t.format(c) for c in classes for t in templates),
        captions={i: classes[k] for i, k in zip(files.tolist(), labels[remaining], strict=True)},
        notes=tuple(notes),
        kinds=(OTHER_DATA, SAME_DATA) if variant == "same_data" else (),
        **_titles("caltech101"),
    )
