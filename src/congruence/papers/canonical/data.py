"""What an experiment needs of data: images and class prompts in two models or more, classes and a split."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from congruence._utils.arrays import normalize_rows
from congruence.errors import InputError, ShapeError
from congruence.metrics import ensemble_prompts
from congruence.papers.canonical.captions import CaptionBank
from congruence.papers.data import Data, check_embedded

__all__ = ["Collection", "Model", "every_second", "unit_rows"]


@dataclass(frozen=True)
class Model:
    """Embeddings by one dual encoder.

    Attributes
    ----------
    name : str
    images : ndarray, shape (n, d), or None
        Unit rows; None where only the texts are at hand.
    prompts : ndarray, shape (p, d), or None
        Unit rows, one a class and template.
    """

    name: str
    images: np.ndarray | None
    prompts: np.ndarray | None


@dataclass(frozen=True)
class Collection(Data):
    """Images and prompts of the same classes in every model; see :class:`congruence.papers.Data` for what all data have.

    Attributes
    ----------
    models : tuple of Model
    classes : tuple of str
    ids : ndarray of str, shape (n,)
    labels : ndarray of int, shape (n,)
        Class of each image.
    train : ndarray of bool, shape (n,)
        Images a map may be fitted on; the others are measured on.
    prompt_labels, prompt_templates : ndarray of int, shape (p,)
        Class and template of each prompt.
    pairs : tuple of (int, int)
        Models to align, source and target.
    chains : tuple of (int, int, int)
        Of three models: source, the one in the middle, target.
    text_fit : ndarray of bool, shape (p,)
        Prompts a map may be fitted on; all by default.
    heldout_classes : ndarray of bool, shape (k,)
        Classes measured on; all by default. Where each class has one text only, those fitted on are left out.
    domain : ndarray of int, shape (k,), or None
        Two groups of classes that stand for two data sets.
    domains : tuple of str
        Their names.
    texts : tuple of str
        Words of each prompt, for examples.
    captions : dict of str to str
        Words of each image.
    picture : callable, optional
        ``id -> bytes`` of a small PNG, JPEG or WebP, or None.
    steps : tuple of int
        Numbers of classes to fit on that suit these data better than the paper's.
    evaluation_templates : {"all", "single"}
        Class prototypes for evaluation are the mean of all prompts of a class, or its first template alone; fits do not depend on it.
    kinds : tuple of str
        What kind of pair each of ``pairs`` is, where they differ (``"same training data"``).
    bank : CaptionBank, optional
        Captions in every model, with edited versions of them.

    Raises
    ------
    ShapeError
        Ids, labels, marks and templates, or the rows of a model, are not one for each image or prompt.
    InputError
        A label is of no class, a class has no prompt, or a row is not finite or all zeros.
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
        if len(self.labels) != n or len(self.train) != n or len(self.prompt_templates) != p or len(self.text_fit) != p:
            raise ShapeError(
                f"Got {n} ids, {len(self.labels)} labels, {len(self.train)} marks of training images, {p} prompts and "
                f"{len(self.prompt_templates)} templates; expected one each. Pass a label and a mark for each id, and a template for each prompt."
            )
        for what, codes in (("images", self.labels), ("prompts", self.prompt_labels)):
            if len(codes) and not (codes.min() >= 0 and codes.max() < k):
                raise InputError(
                    f"Got {what} of classes outside 0 to {k - 1}; expected labels from 0 to {k - 1}. Pass the place of each class in classes=…."
                )
        bare = np.setdiff1d(np.arange(k), self.prompt_labels)
        if len(bare):
            raise InputError(
                f"Got no prompt for {len(bare)} classes ({self.classes[bare[0]]!r}, …); expected at least one for each. Add prompts, or drop these classes."
            )
        for model in self.models:
            for what, rows, count in (("images", model.images, n), ("prompts", model.prompts, p)):
                if rows is not None:
                    check_embedded(rows, count, f"{what} of {model.name}")

    @cached_property
    def prototypes(self) -> tuple[np.ndarray | None, ...]:
        """Class prototypes of each model, shape (k, d): by eq. (6), or the first template of each class alone."""
        rows = np.ones(len(self.prompt_labels), bool)
        if self.evaluation_templates == "single":
            first = np.full(len(self.classes), np.iinfo(int).max)
            np.minimum.at(first, self.prompt_labels, self.prompt_templates)
            rows = self.prompt_templates == first[self.prompt_labels]
        return tuple(
            None if model.prompts is None else ensemble_prompts(model.prompts[rows], self.prompt_labels[rows])[0]
            for model in self.models
        )

    def kind_of(self, pair: tuple[int, int]) -> str | None:
        """Return what kind of pair one of ``pairs`` is, where they differ."""
        return self.kinds[self.pairs.index(pair)] if self.kinds else None

    def contents(self) -> dict[str, object]:
        """Return the shapes of the embeddings, and numbers of classes, images, templates and captions."""
        return {
            "models": {
                model.name: {
                    "images": None if model.images is None else list(model.images.shape),
                    "prompts": None if model.prompts is None else list(model.prompts.shape),
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
        """Return the picture of an image, where there are pictures."""
        return None if self.picture is None or item not in self.captions else self.picture(item)

    def restrict(self, classes: np.ndarray, name: str) -> Collection:
        """Return the collection with some classes only.

        Parameters
        ----------
        classes : ndarray of bool, shape (k,)
        name : str

        Returns
        -------
        Collection
        """
        new = np.cumsum(classes) - 1
        images, prompts = classes[self.labels], classes[self.prompt_labels]
        return replace(
            self,
            name=name,
            bank=None if self.bank is None else self.bank.relabel(np.where(classes, new, -1)),
            models=tuple(
                Model(
                    m.name,
                    None if m.images is None else m.images[images],
                    None if m.prompts is None else m.prompts[prompts],
                )
                for m in self.models
            ),
            classes=tuple(np.array(self.classes, dtype=object)[classes]),
            ids=self.ids[images],
            labels=new[self.labels[images]],
            train=self.train[images],
            prompt_labels=new[self.prompt_labels[prompts]],
            prompt_templates=self.prompt_templates[prompts],
            text_fit=self.text_fit[prompts],
            heldout_classes=self.heldout_classes[classes],
            domain=None,
            domains=(),
            texts=tuple(np.array(self.texts, dtype=object)[prompts]) if self.texts else (),
        )

    def split_domains(self) -> tuple[Collection, Collection]:
        """Return the two groups of classes that stand for two data sets.

        Raises
        ------
        InputError
            The collection has no such groups.
        """
        if self.domain is None:
            raise InputError(
                f"Got {self.name} alone for a transfer between data sets; expected two data sets. Pass data=… with another one."
            )
        first, second = (self.restrict(self.domain == k, self.domains[k]) for k in (0, 1))
        return first, second


def unit_rows(rows: np.ndarray) -> np.ndarray:
    """Return float32 rows of unit length.

    Parameters
    ----------
    rows : ndarray, shape (n, d)

    Returns
    -------
    ndarray of float32, shape (n, d)
    """
    return np.asarray(normalize_rows(np.asarray(rows, dtype=np.float64)), dtype=np.float32)


def every_second(labels: np.ndarray, seed: int = 0) -> np.ndarray:
    """Mark half of the images of every class, chosen at random; of a single image, none.

    Parameters
    ----------
    labels : ndarray of int, shape (n,)
    seed : int, default=0

    Returns
    -------
    ndarray of bool, shape (n,)
    """
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    place = np.arange(len(order)) - np.searchsorted(labels[order], labels[order])
    marks = np.zeros(len(labels), bool)
    marks[order] = place % 2 == 1
    return marks
