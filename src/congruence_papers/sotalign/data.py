"""Data of SOTAlign: embeddings by unimodal encoders, split for alignment, and data that replace the paper's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from congruence.errors import FileError, IdError, InputError, ParameterError, ShapeError
from congruence.io import read_column, read_embeddings
from congruence.splits import unpaired_pools
from congruence.synthetic import unimodal_problem
from congruence_papers.core import Data, check_choice, check_embedded, check_number, told_of_sample
from congruence_papers.features import IMAGE_ENCODERS, TEXT_ENCODERS, encoder_pairs, find_embeddings, open_npz


@dataclass(frozen=True)
class Heldout:
    """Held-out images (n, d) and texts (m, e) with their labels; rows with equal labels match."""

    images: np.ndarray
    texts: np.ndarray
    image_labels: np.ndarray
    text_labels: np.ndarray

    @property
    def validation(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """The rows and labels in the order expected by the methods of ``congruence.train``."""
        return self.images, self.texts, self.image_labels, self.text_labels


@dataclass(frozen=True)
class Parts:
    """One split: pairs row by row, unpaired rows of each side in a random order of its own, and held-out rows.

    ``partners``, for each side all rows and the indices of the true pairs of the unpaired items, serve the upper bound.
    """

    images: np.ndarray
    texts: np.ndarray
    unpaired_images: np.ndarray
    unpaired_texts: np.ndarray
    validation: Heldout
    test: Heldout
    partners: tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]] | None = None

    def all_pairs(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the pairs followed by the true pairs of the unpaired rows' items."""
        if self.partners is None:
            return self.images, self.texts
        (images, a), (texts, b) = self.partners
        return np.concatenate([self.images, images[a]]), np.concatenate([self.texts, texts[b]])


@dataclass(frozen=True)
class SOTAlignData(Data):
    """Images and texts from independent unimodal encoders; see ``congruence_papers.Data`` for the common
    attributes.

    - ``images``, ``texts``, shape (n, d) and (m, e): Embeddings by encoder.
    - ``image_labels``, ``text_labels``, shape (n,) and (m,): Rows with equal labels match. If labels are shared by
      several images they are classes, and the images and texts of a class are distributed over the parts of a split.
      Otherwise a label is an item, which is assigned to one part together with all its texts.
    - ``encoders``: Pairs of encoders; the first is used unless encoders are compared.
    - ``image_source``, ``text_source``, shape (n,) and (m,): Collection of each row; by default 0, the collection used
      for evaluation.
    - ``sources``: Names of the collections.
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
        for image, text in self.encoders:
            check_choice(image, self.images, "encoder")
            check_choice(text, self.texts, "encoder")
        sides = ("image", self.images, self.image_labels), ("text", self.texts, self.text_labels)
        for modality, rows, labels in sides:
            if not len(getattr(self, f"{modality}_source")):
                object.__setattr__(self, f"{modality}_source", np.zeros(len(labels), int))
            source = getattr(self, f"{modality}_source")
            if len(source) != len(labels):
                raise ShapeError(f"Got {len(source)} sources of {len(labels)} {modality}s.", "Pass one for each.")
            if not np.isin(source, np.arange(len(self.sources))).all():
                n = len(self.sources)
                raise InputError(f"A {modality} is of none of the {n} sources.", "Add it to `sources=…`.")
            for encoder, array in rows.items():
                check_embedded(array, f"{modality}s of {encoder}", len(labels))

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
        """Draw pairs, unpaired rows of each side (at most ``unpaired``), and validation and test images with the texts
        of the same labels.

        The held-out rows depend only on ``seed``, ``validation`` and ``test``, and a smaller number of pairs is a
        subset of a larger one. If labels are classes, an eighth of each class's texts is reserved for each held-out
        part.

        ``pair_source``: source of the pairs' images; held-out images are always from the first source.
        ``unpaired_sources``: sources of the unpaired images and texts. ``overlap``: share of each side's unpaired items
        that are also among the other side's; None draws each side from all remaining rows, regardless of partners. It
        has no effect if labels are classes or the two sources differ, since rows then have no partners.
        """
        for value, name in ((pairs, "pairs"), (validation, "validation"), (test, "test")):
            check_number(value, name, integer=True)
        image_encoder, text_encoder = encoders or self.encoders[0]
        images, texts = self.images[image_encoder], self.texts[text_encoder]
        rng = np.random.default_rng([seed, 77])
        heldout = rng.permutation(np.flatnonzero(self.image_source == 0))
        held_images = {"test": heldout[:test], "validation": heldout[test : test + validation]}
        free_images = np.setdiff1d(np.arange(len(images)), heldout[: test + validation])
        held_texts, free_texts = self._texts(held_images, rng)
        pool = rng.permutation(free_images[self.image_source[free_images] == pair_source])
        pool, partner = self._partners(pool, rng.permutation(free_texts))
        if len(heldout) < test + validation or len(pool) < pairs:
            raise ParameterError(
                f"Got {pairs} pairs, {validation} validation and {test} test images; {len(pool)} can be paired.",
                "Pass fewer `pairs=…`.",
            )
        a, b = pool[:pairs], partner[:pairs]
        # The unpaired images and texts.
        sides: list[np.ndarray] = []
        for free, paired, from_source, labels in (
            (free_images, a, self.image_source == unpaired_sources[0], self.image_labels),
            (free_texts, b, self.text_source == unpaired_sources[1], self.text_labels),
        ):
            rows = np.setdiff1d(free, paired)
            rows = rows[from_source[rows]]
            if not self.classes:  # other captions of a paired image would be hidden pairs
                rows = rows[~np.isin(labels[rows], labels[paired])]
            sides.append(rows)
        have_partners = not self.classes and unpaired_sources[0] == unpaired_sources[1]
        if overlap is not None and have_partners and all(map(len, sides)):
            items = self.image_labels[sides[0]], self.text_labels[sides[1]]
            pools = unpaired_pools(*items, overlap, unpaired, random_state=[seed, 78])
            sides = [rows[chosen] for rows, chosen in zip(sides, pools, strict=True)]
        sides = [rng.permutation(rows)[:unpaired] for rows in sides]
        # The true pairs of the unpaired rows' items, for the upper bound.
        true_images, true_texts = pool[pairs:], partner[pairs:]
        if self.classes:  # texts do not belong to a single image: use as many pairs as there are unpaired images
            known: Any = slice(len(sides[0]))
        else:
            unpaired_items = np.union1d(self.image_labels[sides[0]], self.text_labels[sides[1]])
            known = np.isin(self.image_labels[true_images], unpaired_items)
        validation_rows, test_rows = (
            Heldout(images[i], texts[t], self.image_labels[i], self.text_labels[t])
            for i, t in ((held_images[part], held_texts[part]) for part in ("validation", "test"))
        )
        partners = (images, true_images[known]), (texts, true_texts[known])
        unpaired_rows = images[sides[0]], texts[sides[1]]
        return Parts(images[a], texts[b], *unpaired_rows, validation_rows, test_rows, partners)

    def _texts(
        self, heldout_images: Mapping[str, np.ndarray], rng: np.random.Generator
    ) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Return the texts held out with the given images, by part, and the texts available for training."""
        order = rng.permutation(len(self.text_labels))
        if self.classes:
            order = order[np.argsort(self.text_labels[order], kind="stable")]
            labels = self.text_labels[order]
            place = np.arange(len(order)) - np.searchsorted(labels, labels)
            eighth = np.maximum(1, np.bincount(labels)[labels] // 8)
            reserved = {"test": order[place < eighth], "validation": order[(place >= eighth) & (place < 2 * eighth)]}
            free = order[place >= 2 * eighth]
        else:
            reserved = dict.fromkeys(heldout_images, order)
            heldout_labels = np.concatenate([self.image_labels[rows] for rows in heldout_images.values()])
            free = order[~np.isin(self.text_labels, heldout_labels)[order]]
        heldout = {
            part: np.sort(reserved[part][np.isin(self.text_labels[reserved[part]], self.image_labels[rows])])
            for part, rows in heldout_images.items()
        }
        return heldout, np.sort(free)

    def _partners(self, pool: np.ndarray, texts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Assign each image a text with its label, reused only if there are too few, and drop images without one."""
        texts = texts[np.argsort(self.text_labels[texts], kind="stable")]
        text_labels, image_labels = self.text_labels[texts], self.image_labels[pool]
        first, past = (np.searchsorted(text_labels, image_labels, side) for side in ("left", "right"))
        known = past > first
        pool, image_labels, first, past = pool[known], image_labels[known], first[known], past[known]
        order = np.argsort(image_labels, kind="stable")
        turn = np.empty(len(pool), int)
        turn[order] = np.arange(len(pool)) - np.searchsorted(image_labels[order], image_labels[order])
        return pool, texts[first + turn % np.maximum(past - first, 1)]


def check_sources(data: SOTAlignData, names: Sequence[str]) -> None:
    """Check that the data have several sources to compare."""
    if len(data.sources) < 2:
        raise InputError(f"Got {data.name} with one source for {', '.join(names)}.", "Pass data with several sources.")


#: The paper's sizes; for a user's data, at most these, and the given shares of the images.
PAPER_SIZES: dict[str, Any] = {
    "pairs": 10_000,
    "pairs_sweep": [100, 300, 1000, 3000, 10_000, 30_000, 100_000],
    "unpaired": 1_000_000,
    "unpaired_sweep": [10_000, 30_000, 100_000, 300_000, 1_000_000],
    "validation": 5000,
    "test": 5000,
    "training": {},
}
_SHARES = {"pairs": 0.1, "validation": 0.1, "test": 0.2}


def open_features(
    models: Sequence[str], file: str | Path, *, variant: str | None = None, device: str = "auto"
) -> SOTAlignData:
    """Open embeddings of images and their texts."""
    folder = Path(file).expanduser()
    if not folder.is_dir():
        raise ParameterError(f"{folder} is no folder of {', '.join(models)}.", "Pass its path as `file=…`.")
    pairs = encoder_pairs(models)
    images, image_ids = _read(folder, "images", [image for image, _ in pairs])
    texts, text_ids = _read(folder, "texts", [text for _, text in pairs])
    row = {name: number for number, name in enumerate(image_ids)}
    image_of = np.array([row.get(name, row.get(name.rsplit("#", 1)[0], -1)) for name in text_ids])
    without_text = np.setdiff1d(np.arange(len(image_ids)), image_of)
    if len(without_text) or (image_of < 0).any():
        what, partner, name = "text", "image", text_ids[int(np.argmin(image_of))]
        if len(without_text):
            what, partner, name = "image", "text", image_ids[without_text[0]]
        raise IdError(
            f"Got the {what} {name!r} in {folder} without its {partner}.",
            "Remove it, or write each text's id as its image's, optionally followed by # and a suffix.",
        )
    labels = _labels(folder, image_ids)
    name = folder.resolve().name
    data = SOTAlignData(
        *(name, images, texts, labels, labels[image_of], tuple(pairs)),
        sizes=_sizes(len(image_ids)) | {"training": {"device": device}},
        title=f"{name}, {len(image_ids):,} images",
    )
    if variant == "classes" and not data.classes:
        raise ParameterError(
            f"{folder} has no classes, but the experiment classifies images.",
            ("Write labels.csv with the columns id and label.", "Pass `models='synthetic'`."),
        )
    return data


def _read(folder: Path, kind: str, encoders: Sequence[str]) -> tuple[dict[str, np.ndarray], list[str]]:
    """Return the rows of every encoder, sorted by id, and the ids, which must be the same for all."""
    out, ids = dict[str, np.ndarray](), list[str]()
    for encoder in dict.fromkeys(encoders):
        path = find_embeddings(folder / encoder, kind)
        if path is None:
            where = folder / encoder
            raise FileError(f"Got no {kind} in {where}.", f"Run congruence embed … -o {where / kind}.parquet.")
        rows = read_embeddings(path)
        if not rows.has_ids:
            raise IdError(f"Got rows without ids in {path}; expected the image's id for each row.", "Add a column id.")
        rows = rows.take(np.argsort(np.array([str(i) for i in rows.ids]), kind="stable"))
        own = [str(i) for i in rows.ids]
        if out and own != ids:
            first = next(iter(out))
            raise IdError(f"Got different ids for {encoder} and {first} in {folder}.", "Embed the same rows with both.")
        out[encoder], ids = np.asarray(rows.vectors, np.float32), own
    return out, ids


def _labels(folder: Path, image_ids: list[str]) -> np.ndarray:
    """Return the class number of each image; without ``labels.csv``, each image has a number of its own."""
    file = folder / "labels.csv"
    if not file.exists():
        return np.arange(len(image_ids))
    ids, labels = (read_column(f"{file}:{column}") for column in ("id", "label"))
    classes = dict(zip(map(str, ids), map(str, labels), strict=True))
    missing = [name for name in image_ids if name not in classes]
    if missing:
        raise IdError(f"Got no label of {missing[0]!r} in {file}; expected one for each image.", "Add a line for it.")
    numbers: np.ndarray = np.unique([classes[name] for name in image_ids], return_inverse=True)[1].reshape(-1)
    return numbers


def _sizes(n: int) -> dict[str, object]:
    sizes: dict[str, object] = {name: max(2, min(PAPER_SIZES[name], int(share * n))) for name, share in _SHARES.items()}
    for name, most in (("pairs_sweep", n // 2), ("unpaired_sweep", n // 4)):
        sizes[name] = [step for step in PAPER_SIZES[name] if step <= most] or [max(2, most // 4), max(2, most)]
    return sizes


# ------------------------------------------------------------------ data that replace the paper's

#: Names of the sample data of the semi-supervised experiments.
SAMPLE_DATA = ("synthetic", "imagenet1000", "caltech101")

#: Number of animal classes in ImageNet, which come first in the order of its classes.
_ANIMALS = 398


def open_sample(name: str, file: str | Path | None = None, variant: str | None = None, **_: object) -> SOTAlignData:
    """Open data that replace the paper's encoders and collections."""
    check_choice(name, SAMPLE_DATA, "models")
    if variant:
        check_choice(variant, ("sources", "classes"), "variant")
    if name == "synthetic":
        return _synthetic(variant)
    return open_npz(name, file, lambda arrays: (_imagenet if name == "imagenet1000" else _caltech)(arrays, variant))


def _synthetic(variant: str | None) -> SOTAlignData:
    sources = 2 if variant == "sources" else 1
    options: dict[str, Any] = {"latent": 10, "sources": sources, "random_state": 0}
    if variant == "classes":
        options |= {"classes": 12, "captions": 2}
    clear = unimodal_problem(500 * sources, 40, 32, noise=0.2, **options)
    noisy = unimodal_problem(500 * sources, 40, 32, noise=0.6, **options)
    return SOTAlignData(
        "synthetic",
        {"clear": clear.images, "dim": noisy.images},
        {"plain": clear.texts, "vague": noisy.texts},
        clear.image_labels,
        clear.text_labels,
        image_source=clear.source,
        text_source=np.repeat(clear.source, len(clear.texts) // len(clear.images)),
        sources=("home", "away") if sources == 2 else ("all",),
        **told_of_sample("sotalign", "synthetic"),
    )


def _rows(arrays: Mapping[str, np.ndarray], names: Mapping[str, str]) -> dict[str, np.ndarray]:
    return {name: np.asarray(arrays[key], np.float32).reshape(-1, arrays[key].shape[-1]) for name, key in names.items()}


def _imagenet(arrays: Mapping[str, np.ndarray], variant: str | None) -> SOTAlignData:
    if variant == "classes":
        raise ParameterError("imagenet1000 has one photo per class, too few to classify.", "Pass `models='synthetic'`.")
    items = np.arange(len(arrays["names"]))
    animals = (items < _ANIMALS).astype(int) if variant else np.zeros(len(items), int)
    facts = told_of_sample("sotalign", "imagenet1000")
    if variant:
        facts["sizes"] = facts["sizes"] | {"unpaired": 200, "validation": 60, "test": 150}
    return SOTAlignData(
        "imagenet1000",
        _rows(arrays, IMAGE_ENCODERS),
        _rows(arrays, TEXT_ENCODERS),
        items,
        items,
        image_source=animals,
        text_source=animals,
        sources=("things", "animals") if variant else ("all",),
        **facts,
    )


def _caltech(arrays: Mapping[str, np.ndarray], variant: str | None) -> SOTAlignData:
    labels = arrays["label"].astype(int)
    templates = len(arrays["templates"])
    texts = np.repeat(np.arange(len(arrays["classes"])), templates)
    parity = (
        (labels % 2, texts % 2) if variant == "sources" else (np.zeros(len(labels), int), np.zeros(len(texts), int))
    )
    facts = told_of_sample("sotalign", "caltech101")
    if variant == "sources":
        facts["sizes"] = facts["sizes"] | {"unpaired": 1000}
    return SOTAlignData(
        "caltech101",
        _rows(arrays, IMAGE_ENCODERS),
        _rows(arrays, TEXT_ENCODERS),
        labels,
        texts,
        image_source=parity[0],
        text_source=parity[1],
        sources=("even classes", "odd classes") if variant == "sources" else ("all",),
        **facts,
    )
