"""Embeddings by unimodal encoders of images and texts, split for semi-supervised alignment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from congruence._utils.validation import check_choice, check_positive
from congruence.errors import InputError, ParameterError, ShapeError
from congruence.papers.data import Data, check_embedded
from congruence.splits import unpaired_pools

__all__ = ["Heldout", "Parts", "SOTAlignData", "check_sources"]


@dataclass(frozen=True)
class Heldout:
    """Rows a pair of heads is measured on.

    Attributes
    ----------
    images, texts : ndarray, shape (n, d) and (m, e)
    image_labels, text_labels : ndarray, shape (n,) and (m,)
        Equal labels belong together: several texts may belong to an image, and several images to a text.
    """

    images: np.ndarray
    texts: np.ndarray
    image_labels: np.ndarray
    text_labels: np.ndarray

    @property
    def validation(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """The rows and labels in the order in which the methods of :mod:`congruence.train` take them."""
        return self.images, self.texts, self.image_labels, self.text_labels


@dataclass(frozen=True)
class Parts:
    """One split.

    Attributes
    ----------
    images, texts : ndarray, shape (n, d) and (n, e)
        Pairs.
    unpaired_images, unpaired_texts : ndarray
        In an order of their own.
    validation, test : Heldout
    partners : tuple of two tuples, optional
        All rows of either side, and which of them are further pairs: those of the unpaired rows' items. No method sees them but the upper bound,
        which is trained as if they were known.
    """

    images: np.ndarray
    texts: np.ndarray
    unpaired_images: np.ndarray
    unpaired_texts: np.ndarray
    validation: Heldout
    test: Heldout
    partners: tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]] | None = None

    def all_pairs(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the pairs, and behind them the true pairs of the unpaired rows' items."""
        if self.partners is None:
            return self.images, self.texts
        (images, a), (texts, b) = self.partners
        return np.concatenate([self.images, images[a]]), np.concatenate([self.texts, texts[b]])


@dataclass(frozen=True)
class SOTAlignData(Data):
    """Images and texts by encoders that know nothing of each other; see :class:`congruence.papers.Data` for what all data have.

    Attributes
    ----------
    images, texts : dict of str to ndarray, shape (n, d) and (m, e)
        Rows by encoder.
    image_labels, text_labels : ndarray of int, shape (n,) and (m,)
        Equal labels belong together. A label of several images is a class: its images and texts are then split apart within it. A label of one
        image is an item: it goes into one part with all its texts.
    encoders : tuple of (str, str)
        Pairs of encoders; the first is the one used unless they are compared.
    image_source, text_source : ndarray of int, shape (n,) and (m,)
        Which collection a row is from; 0, the one that is measured on, by default.
    sources : tuple of str
        Names of the collections.

    Raises
    ------
    ShapeError
        An encoder has another number of rows than there are labels, or there is not one source for each label.
    InputError
        A row is of a source without a name, is not finite or is all zeros.
    ParameterError
        A pair names an unknown encoder.
    """

    images: Mapping[str, np.ndarray]
    texts: Mapping[str, np.ndarray]
    image_labels: np.ndarray
    text_labels: np.ndarray
    encoders: tuple[tuple[str, str], ...] = ()
    image_source: np.ndarray = field(default_factory=lambda: np.zeros(0, int))
    text_source: np.ndarray = field(default_factory=lambda: np.zeros(0, int))
    sources: tuple[str, ...] = ("all",)

    def __post_init__(self) -> None:
        if not self.encoders:
            object.__setattr__(self, "encoders", tuple((i, t) for i in self.images for t in self.texts))
        for pair in self.encoders:
            for encoder, known in zip(pair, (self.images, self.texts), strict=True):
                check_choice(encoder, known, "encoder")
        for what, rows, labels in (
            ("image", self.images, self.image_labels),
            ("text", self.texts, self.text_labels),
        ):
            if not len(getattr(self, f"{what}_source")):
                object.__setattr__(self, f"{what}_source", np.zeros(len(labels), int))
            source = getattr(self, f"{what}_source")
            if len(source) != len(labels):
                raise ShapeError(
                    f"Got {len(source)} sources of {len(labels)} {what}s; expected one source each. Pass as many sources as {what}s."
                )
            if not np.isin(source, np.arange(len(self.sources))).all():
                raise InputError(
                    f"Got a {what} from none of the {len(self.sources)} sources; expected numbers from 0 to {len(self.sources) - 1}. Add the missing names to sources=…."
                )
            for encoder, array in rows.items():
                check_embedded(array, len(labels), f"{what}s of {encoder}")

    @property
    def classes(self) -> bool:
        """Whether labels are classes of several images, so that an image can be classified."""
        return len(np.unique(self.image_labels)) < len(self.image_labels)

    def contents(self) -> dict[str, object]:
        """Return the shapes of the embeddings, the number of labels and the sources."""
        return {
            "images": {name: list(rows.shape) for name, rows in self.images.items()},
            "texts": {name: list(rows.shape) for name, rows in self.texts.items()},
            "labels": len(np.unique(self.image_labels)),
            "sources": list(self.sources),
        }

    def split(
        self,
        pairs: int,
        *,
        unpaired: int | None = None,
        validation: int = 100,
        test: int = 200,
        seed: int = 0,
        encoders: tuple[str, str] | None = None,
        pair_source: int = 0,
        unpaired_sources: tuple[int, int] = (0, 0),
        overlap: float | None = 0.0,
    ) -> Parts:
        """Draw pairs, unpaired rows of either side, and rows to choose by and to measure on.

        What is measured on depends on ``seed``, ``validation`` and ``test`` alone, and the pairs of a smaller number are among those of a larger one.

        Parameters
        ----------
        pairs : int
        unpaired : int, optional
            The most unpaired rows of either side; all that are left over by default.
        validation, test : int
            Images. Of the texts, those with the same labels; where labels are classes, an eighth of each class's for either.
        seed : int
        encoders : (str, str), optional
            Image and text encoder; the first pair by default.
        pair_source : int, default=0
            Where the pairs are from. What is measured on is always from the first source.
        unpaired_sources : (int, int), default=(0, 0)
            Where the unpaired images and texts are from.
        overlap : float, optional
            Share of the items of either side's unpaired rows that the other's have too; by default the sides have no item in common. None
            draws each side from all that are left, whether the other has its partner or not. Where labels are classes, or the sides are of
            different sources, no row has a partner, and nothing is to be chosen.

        Returns
        -------
        Parts

        Raises
        ------
        ParameterError
            Fewer rows than asked for.
        """
        for value, name in ((pairs, "pairs"), (validation, "validation"), (test, "test")):
            check_positive(value, name, integer=True)
        image_encoder, text_encoder = encoders or self.encoders[0]
        images, texts = self.images[image_encoder], self.texts[text_encoder]
        rng = np.random.default_rng([seed, 77])
        home = np.flatnonzero(self.image_source == 0)
        heldout = rng.permutation(home)
        heldout_images = {"test": heldout[:test], "validation": heldout[test : test + validation]}
        free_images = np.setdiff1d(np.arange(len(images)), heldout[: test + validation])
        heldout_texts, free_texts = self._texts(heldout_images, rng)
        pool = rng.permutation(free_images[self.image_source[free_images] == pair_source])
        pool, partner = self._partners(pool, rng.permutation(free_texts))
        if len(heldout) < test + validation or len(pool) < pairs:
            raise ParameterError(
                f"Got {pairs} pairs, {validation} validation and {test} test images of {self.name}; expected {len(pool)} pairs at most "
                f"beside the {min(len(heldout), test + validation)} held out. Pass fewer pairs=…."
            )
        a, b = pool[:pairs], partner[:pairs]
        rest: list[np.ndarray] = []
        for left, used, source, labels, paired_labels in (
            (free_images, a, self.image_source == unpaired_sources[0], self.image_labels, self.image_labels[a]),
            (free_texts, b, self.text_source == unpaired_sources[1], self.text_labels, self.text_labels[b]),
        ):
            left = np.setdiff1d(left, used)
            left = left[source[left]]
            if not self.classes:  # the other captions of a paired image would be pairs in disguise
                left = left[~np.isin(labels[left], paired_labels)]
            rest.append(left)
        partners = not self.classes and unpaired_sources[0] == unpaired_sources[1]
        if overlap is not None and partners and all(map(len, rest)):
            mine, of = self.image_labels[rest[0]], self.text_labels[rest[1]]
            pools = unpaired_pools(mine, of, overlap, unpaired, random_state=[seed, 78])
            rest = [left[pool] for left, pool in zip(rest, pools, strict=True)]
        rest = [rng.permutation(left)[:unpaired] for left in rest]
        more, theirs = pool[pairs:], partner[pairs:]
        if self.classes:  # no text is of one image: as many pairs as there are unpaired images
            more, theirs = more[: len(rest[0])], theirs[: len(rest[0])]
        else:
            loose = np.union1d(self.image_labels[rest[0]], self.text_labels[rest[1]])
            known = np.isin(self.image_labels[more], loose)
            more, theirs = more[known], theirs[known]
        parts = {
            part: Heldout(
                images[heldout_images[part]],
                texts[heldout_texts[part]],
                self.image_labels[heldout_images[part]],
                self.text_labels[heldout_texts[part]],
            )
            for part in heldout_images
        }
        return Parts(
            images[a], texts[b], images[rest[0]], texts[rest[1]], **parts, partners=((images, more), (texts, theirs))
        )

    def _texts(
        self, heldout_images: Mapping[str, np.ndarray], rng: np.random.Generator
    ) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Return the texts that are measured on with some images, by part, and the texts that may be trained on."""
        order = rng.permutation(len(self.text_labels))
        if self.classes:
            order = order[np.argsort(self.text_labels[order], kind="stable")]
            labels = self.text_labels[order]
            place = np.arange(len(order)) - np.searchsorted(labels, labels)
            eighth = np.maximum(1, np.bincount(labels)[labels] // 8)
            apart = {"test": order[place < eighth], "validation": order[(place >= eighth) & (place < 2 * eighth)]}
            free = order[place >= 2 * eighth]
        else:
            apart = dict.fromkeys(heldout_images, order)
            gone = np.concatenate([self.image_labels[rows] for rows in heldout_images.values()])
            free = order[~np.isin(self.text_labels, gone)[order]]
        heldout = {
            part: np.sort(apart[part][np.isin(self.text_labels[apart[part]], self.image_labels[rows])])
            for part, rows in heldout_images.items()
        }
        return heldout, np.sort(free)

    def _partners(self, pool: np.ndarray, texts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Give each image a text of its label, another one each time as long as there are some; drop images without any."""
        texts = texts[np.argsort(self.text_labels[texts], kind="stable")]
        labels = self.text_labels[texts]
        wanted = self.image_labels[pool]
        first, past = (np.searchsorted(labels, wanted, side) for side in ("left", "right"))
        known = past > first
        pool, wanted, first, past = pool[known], wanted[known], first[known], past[known]
        order = np.argsort(wanted, kind="stable")
        turn = np.empty(len(pool), int)
        turn[order] = np.arange(len(pool)) - np.searchsorted(wanted[order], wanted[order])
        return pool, texts[first + turn % np.maximum(past - first, 1)]


def check_sources(data: SOTAlignData, names: Sequence[str]) -> None:
    """Refuse data of one source where several are to be compared.

    Raises
    ------
    InputError
        The data have one source.
    """
    if len(data.sources) < 2:
        raise InputError(
            f"Got {data.name} of one source for {', '.join(names)}; expected at least two. Pass data of two sources or more."
        )
