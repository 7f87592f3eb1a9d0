"""Images with captions and wrong captions by unimodal encoders, divided as JAM does, and what is measured of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from congruence._check import as_matrix, check_choice
from congruence.datasets import SugarCrepe
from congruence.errors import InputError, ParameterError, ShapeError
from congruence.evaluation.compositional import sugarcrepe_recall
from congruence.maps import CCAMap, TwoSidedMap
from congruence.train import JAM, split_by_group
from congruence.train.captions import Captions

#: Every measure, with what it is.
JOINT_METRICS = {
    "binary_recall": "the image is nearer its caption than the wrong one",
    "five_way_recall": "nearest of its caption, the wrong one, and three of other images",
    "alpha_at_best": "α at the step with the best validation",
    "epoch_at_best": "epoch of that step",
    "cca_linear": "first canonical correlation of 50 principal components",
    "cca_kernel": "the same of kernel principal components",
    "cka_linear": "biased linear CKA of 10 principal components",
    "cka_rbf": "the same with a Gaussian kernel",
    "svcca": "mean canonical correlation of 10 principal components",
    "cknna": "CKNNA by JAM's equations 6 to 9, of 10 principal components, 10 neighbours",
    "parameters": "millions of parameters of an autoencoder",
    "mflops": "millions of operations of a row, round trip",
}

#: What can stand in a row of a table.
JOINT_METHODS = {"con": "Con", "negcon": "NegCon", "spread": "Spread", "cca": "CCA"}

TASKS = ("replace", "add", "swap")

#: Depths of hidden layers. The paper prints no numbers: a quarter of the blocks, half of them, and the last.
LAYERS = ("early", "mid", "late")

#: Seeds of the paper's draws; further ones follow the last.
PAPER_SEEDS = (5, 42, 55)

Layered = Mapping[str, Mapping[str, np.ndarray]]


@dataclass(frozen=True)
class JointParts:
    """One division of one task.

    Attributes
    ----------
    train : Captions
    validation : tuple
        As :meth:`congruence.train.JAM.fit` takes it.
    items : SugarCrepe
        Those that are measured on.
    test : tuple of ndarray, shape (n, d), (n, e) and (n, e)
        Their images, captions and wrong captions.
    rows : ndarray of int, shape (n,)
        Their numbers among all.
    encoders : (str, str)
        Whose vectors these are.
    """

    train: Captions
    validation: tuple[Any, ...]
    items: SugarCrepe
    test: tuple[np.ndarray, np.ndarray, np.ndarray]
    rows: np.ndarray
    encoders: tuple[str, str]


@dataclass(frozen=True)
class JointData:
    """Images, captions and wrong captions by encoders that know nothing of each other, some of them in several layers.

    Attributes
    ----------
    name : str
    items : SugarCrepe
        Which image, caption and wrong caption belong together, and the task: the category up to its ``_``.
    images : dict of str to dict of str to ndarray, shape (m, d)
        By encoder and layer (``"early"``, ``"mid"``, ``"late"``), a row for each of ``items.images``. ``"late"`` must be there.
    captions, negatives : dict of str to dict of str to ndarray, shape (n, e)
        By encoder and layer, a row for each item.
    encoders : tuple of (str, str)
        Pairs of encoders that are joined; every pair by default.
    dual : dict of str to tuple of ndarray
        Images, captions and wrong captions by dual encoders such as CLIP, in one space of their own, rows as above: what is measured beside.
    unrelated : dict of str to ndarray, shape (r, d)
        Of an image encoder, white noise; of a text encoder, texts of something else. For the easy non-matches.
    labels : ndarray, shape (n,), optional
        Where captions of one label are right for each other's images (class names): what is a hit in the validation, from which wrong
        captions are then left out.
    stand_in : str, optional
        What stands for something else, and what it is made of. It is part of every output.
    sizes : dict
        Parameters that suit these data better than the paper's: ``train``, ``validation`` and ``test``, the most items of these parts, and
        ``training``, parameters of :class:`congruence.train.JAM`.
    notes : tuple of str
        What a reader of the numbers must know.
    title : str
        What the data are, as it stands in titles; the name by default.

    Raises
    ------
    ShapeError, InputError, ParameterError
    """

    name: str
    items: SugarCrepe
    images: Layered
    captions: Layered
    negatives: Layered
    encoders: tuple[tuple[str, str], ...] = ()
    dual: Mapping[str, tuple[np.ndarray, np.ndarray, np.ndarray]] = field(default_factory=dict)
    unrelated: Mapping[str, np.ndarray] = field(default_factory=dict)
    labels: np.ndarray | None = None
    stand_in: str | None = None
    sizes: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    title: str = ""

    def __post_init__(self) -> None:
        n, m = len(self.items), len(self.items.images)
        if not self.encoders:
            object.__setattr__(self, "encoders", tuple((i, t) for i in self.images for t in self.captions))
        for pair in self.encoders:
            for encoder, known in zip(pair, (self.images, self.captions), strict=True):
                check_choice(encoder, known, "encoder")
        if not self.encoders and not self.dual:
            raise InputError(
                "Got no encoders; expected at least one of images and one of texts. Pass the embeddings of both."
            )
        if {name: set(layers) for name, layers in self.captions.items()} != {
            name: set(layers) for name, layers in self.negatives.items()
        }:
            raise InputError(
                f"Got wrong captions of {self.name} by other encoders or layers than its captions; expected the same ones. Embed both with the same encoders and layers."
            )
        for side, rows in ((self.images, m), (self.captions, n), (self.negatives, n)):
            for encoder, layers in side.items():
                if "late" not in layers or not set(layers) <= set(LAYERS):
                    raise ParameterError(
                        f"Got layers {', '.join(layers) or 'none'} of {encoder}; expected late, and early and mid where they are wanted. Name the layers so."
                    )
                for layer, array in layers.items():
                    _rows(array, rows, f"{layer} layer of {encoder}")
        for encoder, (V, P, N) in self.dual.items():
            for array, rows in ((V, m), (P, n), (N, n)):
                _rows(array, rows, encoder)
        for encoder, array in self.unrelated.items():
            check_choice(encoder, {**self.images, **self.captions}, "encoder of unrelated rows")
            as_matrix(array, f"unrelated rows of {encoder}")
        if self.labels is not None and len(self.labels) != n:
            raise ShapeError(
                f"Got {len(self.labels)} labels of {n} items; expected one each. Pass a label for each item."
            )

    @property
    def tasks(self) -> tuple[str, ...]:
        """The tasks that have items."""
        found = set(self.task_of.tolist())
        return tuple(task for task in TASKS if task in found)

    @property
    def task_of(self) -> np.ndarray:
        """The task of each item."""
        return np.array([category.partition("_")[0] for category in self.items.categories.tolist()])

    @property
    def image_of(self) -> np.ndarray:
        """The row of each item's image."""
        return np.searchsorted(self.items.images, self.items.filenames)

    @property
    def layers(self) -> tuple[str, ...]:
        """The layers that all encoders have."""
        sides = (*self.images.values(), *self.captions.values())
        return tuple(layer for layer in LAYERS if all(layer in side for side in sides))

    def facts(self) -> dict[str, Any]:
        """Return what the data hold, as plain data."""
        return {
            "name": self.name,
            "title": self.title or self.name,
            "stand_in": self.stand_in,
            "items": {task: int((self.task_of == task).sum()) for task in self.tasks},
            "distinct_images": len(self.items.images),
            "images": {name: list(side["late"].shape) for name, side in self.images.items()},
            "texts": {name: list(side["late"].shape) for name, side in self.captions.items()},
            "dual": sorted(self.dual),
            "layers": list(self.layers),
            "notes": list(self.notes),
        }

    def split(
        self,
        task: str,
        seed: int,
        *,
        encoders: tuple[str, str] | None = None,
        layer: str = "late",
        most: Mapping[str, int] | None = None,
    ) -> JointParts:
        """Divide a task's items 70–15–15 by image.

        Parameters
        ----------
        task : {"replace", "add", "swap"}
        seed : int
        encoders : (str, str), optional
            Image and text encoder; the first pair by default.
        layer : {"early", "mid", "late"}, default="late"
            Of both.
        most : dict of str to int, optional
            The most items of ``"train"``, ``"validation"`` and ``"test"``, drawn at random; 0 or nothing: all.

        Returns
        -------
        JointParts

        Raises
        ------
        ParameterError
            A task without items, or a layer that is not there.
        TooFewAnchorsError
        """
        check_choice(task, self.tasks, "task")
        image, text = encoders or self.encoders[0]
        check_choice(
            layer, [name for name in LAYERS if name in self.images[image] and name in self.captions[text]], "layer"
        )
        own = np.flatnonzero(self.task_of == task)
        rng = np.random.default_rng([seed, 31])
        parts = []
        for name, part in zip(
            ("train", "validation", "test"), split_by_group(self.items.filenames[own], seed=seed), strict=True
        ):
            limit = (most or {}).get(name) or len(part)
            parts.append(own[np.sort(rng.permutation(part)[:limit])])
        V, P, N = self.images[image][layer], self.captions[text][layer], self.negatives[text][layer]
        groups = self.items.filenames if self.labels is None else self.labels
        seen = self.image_of
        train, held, test = parts
        return JointParts(
            Captions(V[seen[train]], P[train], N[train][:, None], self.items.filenames[train]),
            (V[seen[held]], P[held], N[held] if self.labels is None else None, groups[held]),
            self.items.take(test),
            (V[seen[test]], P[test], N[test]),
            test,
            (image, text),
        )


def _rows(array: Any, rows: int, name: str) -> None:
    as_matrix(array, name)
    if len(array) != rows:
        raise ShapeError(f"Got {len(array)} rows of {name}; expected {rows}. Embed all {rows} with this encoder.")


def fit_joint(method: str, parts: JointParts, training: Mapping[str, Any] | None = None, seed: int = 5) -> TwoSidedMap:
    """Fit JAM with one of its losses, or canonical correlations in closed form, to a division.

    Parameters
    ----------
    method : {"con", "negcon", "spread", "cca"}
    parts : JointParts
    training : mapping, optional
        Parameters of :class:`congruence.train.JAM`; of these, canonical correlation analysis heeds ``latent``, its width.
    seed : int, default=5

    Returns
    -------
    TwoSidedMap
        Its spaces bear the names of the encoders.

    Raises
    ------
    ParameterError
    """
    check_choice(method, JOINT_METHODS, "method")
    options = dict(training or {})
    train = parts.train
    if method == "cca":
        # Rows repeat, since an image has several captions, and a caption several wrong ones.
        distinct = min(len(np.unique(rows, axis=0)) for rows in (train.source, train.target))
        width = min(options.get("latent", JAM().latent), distinct - 1, train.source.shape[1], train.target.shape[1])
        mapping: TwoSidedMap = CCAMap(dim=width, regularization=0.1).fit(train.source, train.target)
    else:
        jam = JAM(method, seed=seed, **options)
        mapping = jam.fit(train.source, train.target, train.negatives, validation=parts.validation, progress=False)
    for side, model in zip(("source", "target"), parts.encoders, strict=True):
        space = getattr(mapping, f"{side}_space_")
        setattr(
            mapping, f"{side}_space_", replace(space, model=model, modality={"source": "image", "target": "text"}[side])
        )
    return mapping


def measure_joint(
    mapping: TwoSidedMap | None, items: SugarCrepe, test: Sequence[np.ndarray], seed: int = 5
) -> dict[str, dict[str, float]]:
    """Measure binary and 5-way recall of a map, or of vectors that share a space already.

    Parameters
    ----------
    mapping : TwoSidedMap or None
        Images are its source, texts its target; None for vectors of a dual encoder.
    items : SugarCrepe
    test : sequence of ndarray
        Images, captions and wrong captions of the items.
    seed : int, default=5
        Of the distractors.

    Returns
    -------
    dict of str to dict of str to float
        ``binary_recall`` and ``five_way_recall`` by task; swap items are there again in two parts.
    """
    V, P, N = test
    if mapping is not None:
        V, P, N = mapping.transform(V), mapping.transform_target(P), mapping.transform_target(N)
    return {
        line.task: {"binary_recall": line.binary, "five_way_recall": line.choice}
        for line in sugarcrepe_recall(items, V, P, N, seed=seed)
    }


def paper_seeds(draws: int) -> list[int]:
    """Return the paper's seeds, and further ones where more are asked for."""
    return [*PAPER_SEEDS, *range(PAPER_SEEDS[-1] + 1, PAPER_SEEDS[-1] + 1 + draws)][:draws]
