"""Data of the Canonical paper: images, class prompts and captions of dual encoders, and data that replace them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np
from scipy import linalg

from congruence.datasets import load_sample
from congruence.embeddings import normalize_rows
from congruence.errors import InputError, ShapeError
from congruence.io import read_column
from congruence.metrics import ensemble_prompts
from congruence.synthetic import random_rotation
from congruence_papers.core import Data, check_choice, check_embedded, told_of_sample
from congruence_papers.features import open_npz


@dataclass(frozen=True)
class CaptionBank:
    """Captions and edited versions of some of them, embedded by every model, as unit rows (n, d) and (m, d).

    ``labels`` (n,) are classes, −1 for none available; ``origin`` and ``wanted`` (m,) the original of each edited
    caption, and the class that it names.
    """

    texts: tuple[str, ...]
    labels: np.ndarray
    vectors: tuple[np.ndarray, ...]
    edited_texts: tuple[str, ...]
    origin: np.ndarray
    wanted: np.ndarray
    edited: tuple[np.ndarray, ...]

    def relabel(self, classes: np.ndarray) -> CaptionBank:
        """Return the captions with class k renumbered to ``classes[k]``, −1 for one no longer available."""
        labels, wanted = (np.where(own >= 0, classes[own], -1) for own in (self.labels, self.wanted))
        return replace(self, labels=labels, wanted=wanted)


def edit_caption(caption: str, before: str, after: str) -> str | None:
    """Return a caption with one name replaced by another, or None if it does not contain the name as whole words.

    Examples
    --------
    >>> edit_caption("A fluffy birman on a chair", "Birman", "Russian Blue")
    'A fluffy Russian Blue on a chair'
    >>> edit_caption("Two birmans", "Birman", "Russian Blue") is None
    True
    """
    words = r"[\s_-]+".join(map(re.escape, re.split(r"[\s_-]+", before.strip())))
    edited, count = re.subn(rf"(?<!\w){words}(?!\w)", lambda _: after, caption, flags=re.IGNORECASE)
    return edited if count else None


def edit_captions(
    captions: Sequence[tuple[str, str]], edits: Mapping[str, str], classes: Sequence[str], label_of: Mapping[str, int]
) -> CaptionBank:
    """Return captions, and versions of them in which class names are replaced."""
    number = {normalize_name(name): k for k, name in enumerate(classes)}
    labels = [label_of.get(i, number.get(normalize_name(i))) for i, _ in captions]
    if None in labels:
        i, caption = captions[labels.index(None)]
        raise InputError(f"The caption {caption!r} is of {i!r}, no image or class.", "Use an image's id or a class.")
    for name in (*edits, *edits.values()):
        if normalize_name(name) not in number:
            raise InputError(f"{name!r} is no class ({', '.join(list(classes)[:5])}, …).", "Pass other `edits=…`.")
    texts = tuple(caption for _, caption in captions)
    versions = [
        (k, new, number[normalize_name(after)])
        for before, after in edits.items()
        for k, caption in enumerate(texts)
        if (new := edit_caption(caption, before, after)) is not None
    ]
    if not versions:
        named = " or ".join(edits) or "a class to replace"
        raise InputError(f"None of the {len(texts)} captions contains {named}.", "Pass `edits=…` with a name in them.")
    origin, edited, wanted = zip(*versions, strict=True)
    return CaptionBank(texts, np.array(labels), (), edited, np.array(origin), np.array(wanted), ())


def read_captions(path: str | Path) -> list[tuple[str, str]]:
    """Return the captions in a table with columns ``id``, an image's or its class's name, and ``caption``."""
    columns = (read_column(f"{path}:{name}") for name in ("id", "caption"))
    captions = [(str(i).strip(), str(caption).strip()) for i, caption in zip(*columns, strict=True)]
    if not captions:
        raise InputError(f"No caption in {path}.", "Check the file.")
    for i, caption in captions:
        if not i or not caption:
            what = "caption" if i else "id"
            raise InputError(f"An empty {what} in {path}, beside {(i or caption)[:80]!r}.", "Fill it in.")
    return captions


def no_captions(data: str, figure: str) -> InputError:
    """Return the error for data without captions, where a text holds nothing but the class that is edited."""
    return InputError(
        f"Got {data} with one template per class and no captions, which {figure} edits.",
        "Set the parameter captions to a file.",
    )


def normalize_name(name: str) -> str:
    """Return a name in lower case with single spaces, so that ``russian_blue`` and ``Russian Blue`` are equal."""
    return " ".join(re.split(r"[\s_-]+", name.strip().lower()))


def shared_words(captions: Sequence[str], others: Sequence[str], names: Sequence[str]) -> np.ndarray:
    """Return the share, shape (n,), of each caption's words, without class names, that its counterpart has too."""
    longest_first = [re.escape(normalize_name(name)) for name in sorted(names, key=len, reverse=True)]
    class_name = re.compile("|".join(rf"(?<!\w){name}(?!\w)" for name in longest_first) or r"(?!)")

    def words(text: str) -> set[str]:
        return set(re.findall(r"\w+", class_name.sub(" ", normalize_name(text))))

    pairs = [(words(caption), words(other)) for caption, other in zip(captions, others, strict=True)]
    return np.array([len(own & other) / len(own) if own else np.nan for own, other in pairs])


@dataclass(frozen=True)
class Model:
    """Unit rows by one dual encoder: images (n, d), or None, and prompts (p, d), one per class and template."""

    name: str
    images: np.ndarray | None
    prompts: np.ndarray | None

    @classmethod
    def unit(cls, name: str, images: np.ndarray | None, prompts: np.ndarray | None) -> Model:
        """Return a model with its rows scaled to unit length, in float32."""
        sides = (None if rows is None else normalize_rows(rows, dtype=np.float32) for rows in (images, prompts))
        return cls(name, *sides)

    def take(self, images: np.ndarray, prompts: np.ndarray) -> Model:
        """Return some of the images and of the prompts, selected by masks or row numbers."""
        sides = (self.images, images), (self.prompts, prompts)
        return Model(self.name, *(None if rows is None else rows[chosen] for rows, chosen in sides))


@dataclass(frozen=True)
class Collection(Data):
    """Images and prompts of the same classes, embedded by every model.

    See ``congruence_papers.Data`` for the attributes that all data share.

    - ``ids``, shape (n,)
    - ``labels``, shape (n,): Class of each image; −1 for an image of none of them, which only fits are made on.
    - ``train``, shape (n,): Images a map may be fitted on; the others are the test images.
    - ``prompt_labels``, ``prompt_templates``, shape (p,): Class and template of each prompt.
    - ``pairs``: Models to align, source and target.
    - ``chains``: Chains of three models: source, intermediate, target.
    - ``text_fit``, shape (p,): Prompts a map may be fitted on; by default all.
    - ``heldout_classes``, shape (k,): Classes to evaluate; by default all. If each class has only one text, the classes
      fitted on are excluded.
    - ``domain``, shape (k,): Group (0 or 1) of each class. The two groups serve as two data sets.
    - ``domains``: Names of the two groups.
    - ``texts``: Text of each prompt, for examples.
    - ``captions``: Description of each image, by id, for examples.
    - ``picture``: Function of an image id that returns a small PNG, JPEG or WebP as bytes, or None.
    - ``steps``: Numbers of classes to fit on that fit these data better than the paper's.
    - ``evaluation_templates``: Whether class prototypes for evaluation average all prompts of a class or use its first
      template only. Fits on text do not use prototypes.
    - ``kinds``: Kind of each pair in ``pairs``, if they differ (``"same training data"``).
    - ``bank``: Captions embedded by every model, with edited versions of them.
    """

    models: tuple[Model, ...]
    classes: tuple[str, ...]
    ids: np.ndarray
    labels: np.ndarray
    train: np.ndarray
    prompt_labels: np.ndarray
    prompt_templates: np.ndarray
    pairs: tuple[tuple[int, int], ...] = ((0, 1),)
    chains: tuple[tuple[int, int, int], ...] = ((0, 1, 2),)
    text_fit: np.ndarray = field(default_factory=lambda: np.zeros(0, bool))
    heldout_classes: np.ndarray = field(default_factory=lambda: np.zeros(0, bool))
    domain: np.ndarray | None = None
    domains: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()
    captions: dict[str, str] = field(default_factory=dict)
    picture: Callable[[str], bytes | None] | None = None
    steps: tuple[int, ...] = ()
    evaluation_templates: str = "all"
    kinds: tuple[str, ...] = ()
    bank: CaptionBank | None = None

    def __post_init__(self) -> None:
        n, p, k = len(self.ids), len(self.prompt_labels), len(self.classes)
        if len(self.text_fit) == 0:
            object.__setattr__(self, "text_fit", np.ones(p, bool))
        if len(self.heldout_classes) == 0:
            object.__setattr__(self, "heldout_classes", np.ones(k, bool))
        if not len(self.labels) == len(self.train) == n or not len(self.prompt_templates) == len(self.text_fit) == p:
            raise ShapeError(
                f"Got {n} ids, {len(self.labels)} labels and {len(self.train)} marks, or other numbers of {p} prompts.",
                "Pass a label and a mark for each id, and a template and a mark for each prompt.",
            )
        for what, codes, least in (("images", self.labels, -1), ("prompts", self.prompt_labels, 0)):
            if len(codes) and not (codes.min() >= least and codes.max() < k):
                raise InputError(f"Some {what} have classes outside 0 to {k - 1}.", "Pass positions in `classes=…`.")
        missing = np.setdiff1d(np.arange(k), self.prompt_labels)
        if len(missing):
            raise InputError(f"No prompt for {len(missing)} classes ({self.classes[missing[0]]!r}, …).", "Add prompts.")
        for model in self.models:
            for what, rows, count in (("images", model.images, n), ("prompts", model.prompts, p)):
                if rows is not None:
                    check_embedded(rows, f"{what} of {model.name}", count)

    @cached_property
    def prototypes(self) -> tuple[np.ndarray | None, ...]:
        """Class prototypes of each model, shape (k, d): prompt ensembles (eq. 6), or first templates."""
        rows = np.ones(len(self.prompt_labels), bool)
        if self.evaluation_templates == "single":
            rows = first_templates(self.prompt_labels, self.prompt_templates)
        return tuple(
            None if model.prompts is None else ensemble_prompts(model.prompts[rows], self.prompt_labels[rows])[0]
            for model in self.models
        )

    def rows(self, model: int, modality: str) -> np.ndarray | None:
        """Return the embeddings of all images or all prompts by one model, or None if it has none."""
        return self.models[model].images if modality == "image" else self.models[model].prompts

    def both(self, pair: tuple[int, int], modality: str) -> tuple[np.ndarray, np.ndarray]:
        """Return the embeddings of all images or all prompts by two models."""
        source, target = (self.rows(k, modality) for k in pair)
        if source is None or target is None:
            raise InputError(f"{modality}s of {self.pair_name(pair)} are missing.", "Embed them with both models.")
        return source, target

    def pair_name(self, pair: tuple[int, ...]) -> str:
        """Return the display name of a pair or chain of models, such as ``a → b``."""
        return " → ".join(self.models[k].name for k in pair)

    def anchors(self, modality: str, classes: np.ndarray | None = None) -> np.ndarray:
        """Return the indices of the rows that a map may be fitted on, of the given classes or of all classes."""
        allowed = self.train if modality == "image" else self.text_fit
        labels = self.labels if modality == "image" else self.prompt_labels
        return np.flatnonzero(allowed if classes is None else allowed & np.isin(labels, classes))

    @property
    def heldout(self) -> Collection:
        """The collection restricted to the classes to evaluate, which are then the only candidates."""
        return self if self.heldout_classes.all() else self.restrict(self.heldout_classes, self.name)

    def kind_of(self, pair: tuple[int, int]) -> str | None:
        """Return the kind of one of ``pairs``, or None if all are of the same kind."""
        return self.kinds[self.pairs.index(pair)] if self.kinds else None

    def contents(self) -> dict[str, object]:
        """Return the shapes of the embeddings and the numbers of classes, images, templates and captions."""
        return {
            "models": {
                model.name: {
                    kind: None if rows is None else list(rows.shape)
                    for kind, rows in (("images", model.images), ("prompts", model.prompts))
                }
                for model in self.models
            },
            "classes": len(self.classes),
            "train_images": int(self.train.sum()),
            "test_images": int((~self.train).sum()),
            "templates": len(np.unique(self.prompt_templates)),
            "evaluation_templates": self.evaluation_templates,
            "captions": 0 if self.bank is None else len(self.bank.texts),
        }

    def thumbnail(self, item: str) -> bytes | None:
        """Return a thumbnail of an image, or None if there is none."""
        return None if self.picture is None or item not in self.captions else self.picture(item)

    def restrict(self, classes: np.ndarray, name: str) -> Collection:
        """Return the collection restricted to the classes of a mask, shape (k,), renumbered from 0."""
        new = np.cumsum(classes) - 1
        images, prompts = classes[self.labels] & (self.labels >= 0), classes[self.prompt_labels]
        own: dict[str, Any] = {
            "models": tuple(model.take(images, prompts) for model in self.models),
            "classes": tuple(compress(self.classes, classes)),
            **{"ids": self.ids[images], "labels": new[self.labels[images]], "train": self.train[images]},
            **{"prompt_labels": new[self.prompt_labels[prompts]], "text_fit": self.text_fit[prompts]},
            **{"prompt_templates": self.prompt_templates[prompts], "texts": tuple(compress(self.texts, prompts))},
            **{"heldout_classes": self.heldout_classes[classes], "domain": None, "domains": ()},
            "bank": None if self.bank is None else self.bank.relabel(np.where(classes, new, -1)),
        }
        return replace(self, name=name, **own)

    def split_domains(self) -> tuple[Collection, Collection]:
        """Return the two groups of classes as two collections."""
        if self.domain is None:
            raise InputError(f"A transfer needs two data sets, not {self.name} alone.", "Pass two in `data=…`.")
        first, second = (self.restrict(self.domain == k, self.domains[k]) for k in (0, 1))
        return first, second


def first_templates(labels: np.ndarray, templates: np.ndarray) -> np.ndarray:
    """Return a mask of the prompts whose template is the first of their class."""
    first = np.full(labels.max(initial=0) + 1, np.iinfo(int).max)
    np.minimum.at(first, labels, templates)
    return np.asarray(templates == first[labels])


def random_half_mask(labels: np.ndarray, seed: int = 0) -> np.ndarray:
    """Return a random mask, shape (n,), of half of the images of every class, rounded down."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    rank = np.arange(len(order)) - np.searchsorted(labels[order], labels[order])  # within the class
    mask = np.zeros(len(labels), bool)
    mask[order] = rank % 2 == 1
    return mask


# ------------------------------------------------------------------ data that replace the paper's


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
SAMPLE_DATA = ("sample", "lvis", "caltech101", "clip")
VARIANTS = ("items", "narrow", "third", "same_data")

#: Kinds of pairs in the variant ``same_data``.
SAME_DATA, OTHER_DATA = "same training data", "other training data"

#: Pairs of three models, and the chains (the default of ``Collection``) of which they are the ends.
_PAIRS_OF_THREE = ((0, 1), (1, 2), (0, 2))
_CHAINS = ((0, 1, 2), (1, 2, 0), (2, 0, 1))

_STEPS = (5, 10, 20, 50, 100, 200, 400, 800)


def open_sample(name: str, file: str | Path | None = None, variant: str | None = None, **_: object) -> Collection:
    """Open data that replace the paper's models and data sets."""
    check_choice(name, SAMPLE_DATA, "models")
    if variant:
        check_choice(variant, VARIANTS, "variant")
    if name == "sample":
        return _sample(variant)
    build = {"lvis": _lvis, "caltech101": _caltech, "clip": _clip}[name]
    return open_npz(name, file, lambda arrays: build(arrays, variant))


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
        chains=_CHAINS,
        **told_of_sample("canonical", "sample"),
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
    """Return heads on one model's images and another's prompts, fitted on each training image's first prompt."""
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
        chains=_CHAINS,
        **told_of_sample("canonical", "lvis"),
    )


# ---------------------------------------------------------------------------------------------- two published CLIPs


def _clip(arrays: Mapping[str, np.ndarray], variant: str | None) -> Collection:
    def plain(name: str) -> str:  # Faces, face (of a person)
        return normalize_name(name.partition("(")[0]).removesuffix("s")

    kinds = ("lvis", "imagenet")
    names = np.concatenate([arrays[f"{kind}_names"] for kind in kinds])
    first: dict[str, int] = {}  # the text of each name
    for row, name in enumerate(names.tolist()):
        first.setdefault(plain(name), row)
    known = [plain(name) for name in arrays["classes"].tolist() if plain(name) in first]
    order = np.array([first[name] for name in dict.fromkeys((*known, *first))])
    number = {name: k for k, name in enumerate(known)}
    labels = np.array([number.get(plain(name), -1) for name in arrays["classes"].tolist()])[arrays["label"]]
    evaluated = np.arange(len(order)) < len(known)
    models = tuple(
        Model.unit(
            title,
            arrays[f"image_openai_{key}"],
            np.concatenate([arrays[f"{kind}_text_openai_{key}"] for kind in kinds])[order],
        )
        for title, key in (("OpenAI RN50", "rn50"), ("OpenAI B/32", "vitb32"))
    )
    texts = tuple(f"a {name.replace('_', ' ')}" for name in names[order].tolist())
    ids = np.array([f"photo {k}" for k in range(len(labels))])
    return Collection(
        "clip",
        models,
        tuple(names[order].tolist()),
        ids,
        labels,
        random_half_mask(labels) | (labels < 0),
        np.arange(len(order)),
        np.zeros(len(order), int),
        pairs=((1, 0),) if variant == "narrow" else ((1, 0), (0, 1)),
        text_fit=~evaluated,
        heldout_classes=evaluated,
        domain=np.arange(len(order)) % 2,
        domains=("even classes", "odd classes"),
        texts=texts,
        captions={i: texts[k] if k >= 0 else "" for i, k in zip(ids.tolist(), labels.tolist(), strict=True)},
        notes=(
            f"Photos of Caltech-101's validation part. The {len(known)} classes with a text of their name are "
            "evaluated, by the half of their photos and the texts that no map has seen; fits on photos use the other "
            f"half and all {int((labels < 0).sum())} photos of other classes, fits on texts the names of "
            f"{len(order) - len(known)} other things. One template; RN50 has 1,024 dimensions, B/32 has 512.",
        ),
        **told_of_sample("canonical", "clip"),
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
        chains=_CHAINS,
        **told_of_sample("canonical", "caltech101"),
    )
