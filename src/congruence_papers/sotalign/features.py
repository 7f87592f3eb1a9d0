"""User-supplied embeddings for SOTAlign's experiments: images and texts as written by ``congruence embed``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from congruence._utils.ids import id_texts
from congruence.embeddings import Embeddings
from congruence.errors import FileError, IdError, ParameterError
from congruence.stores import read_column, read_embeddings
from congruence_papers.encoder_folders import encoder_pairs, find_embeddings
from congruence_papers.sotalign.data import SOTAlignData

__all__ = ["open_features"]

#: The paper's sizes, which are the maxima for user-supplied data, and the maximum share of the images for each.
_SIZES = {"pairs": (10_000, 0.1), "validation": (5000, 0.1), "test": (5000, 0.2)}
_SWEEPS = {
    "pairs_sweep": (100, 300, 1000, 3000, 10_000, 30_000, 100_000),
    "unpaired_sweep": (10_000, 30_000, 100_000, 300_000, 1_000_000),
}


def open_features(
    models: Sequence[str], file: str | Path, *, variant: str | None = None, device: str = "auto"
) -> SOTAlignData:
    """Open embeddings of images and their texts.

    Parameters
    ----------
    models : sequence of str
        Pairs of folder names, such as ``"dinov2/minilm"``: image encoder and text encoder.
    file : path-like
        The folder that contains these. An image encoder's folder contains ``images``, a text encoder's ``texts``, each a file or folder of any
        format with ids (``images.parquet``). The id of a text is that of its image, followed by ``#`` and a suffix if an image has several texts
        (``cat.jpg#2``). If there is a ``labels.csv`` beside the folders (columns ``id`` and ``label``), its labels are the images' classes: any text of
        an image with the same label is a hit, and images can be classified.
    variant : {"sources", "classes"}, optional
        Requirement of the experiment. ``"classes"``: classes of several images. User-supplied embeddings always have a single source.
    device : str, default="auto"
        Device for training.

    Returns
    -------
    SOTAlignData
        Its sizes are the paper's, but at most a tenth of the images as pairs, a tenth for validation and a fifth for testing; all others are
        unpaired.

    Raises
    ------
    ParameterError
        If a model is not a pair of names, ``file`` is not a folder, or classes are required and missing.
    FileError, CorruptFileError, IdError
        If a file is missing or damaged, rows have no ids, or an image or text has no partner.
    """
    folder = Path(file).expanduser()
    if not folder.is_dir():
        raise ParameterError(
            f"Got {folder} for {', '.join(models)}; expected the folder that contains these. Pass file=… with the path of that folder."
        )
    pairs = encoder_pairs(models)
    images = {name: _read(folder / name, "images") for name in dict.fromkeys(image for image, _ in pairs)}
    texts = {name: _read(folder / name, "texts") for name in dict.fromkeys(text for _, text in pairs)}
    image_ids, text_ids = (_same_ids(side, folder) for side in (images, texts))
    row = {name: number for number, name in enumerate(image_ids)}
    image_of = np.array([row.get(name, row.get(name.rsplit("#", 1)[0], -1)) for name in text_ids])
    without_text = np.setdiff1d(np.arange(len(image_ids)), image_of)
    if len(without_text) or (image_of < 0).any():
        if len(without_text):
            what, partner, name = "image", "text", image_ids[without_text[0]]
        else:
            what, partner, name = "text", "image", text_ids[int(np.argmin(image_of))]
        raise IdError(
            f"Got the {what} {name!r} in {folder} without its {partner}; expected each text's id to be its image's, "
            "optionally followed by # and a suffix. Remove rows without a partner, or correct their ids."
        )
    labels = _labels(folder, image_ids)
    data = SOTAlignData(
        folder.resolve().name,
        {name: np.asarray(rows.vectors, np.float32) for name, rows in images.items()},
        {name: np.asarray(rows.vectors, np.float32) for name, rows in texts.items()},
        labels,
        labels[image_of],
        tuple(pairs),
        sizes=_sizes(len(image_ids)) | {"training": {"device": device}},
        title=f"{folder.resolve().name}, {len(image_ids):,} images",
    )
    if variant == "classes" and not data.classes:
        raise ParameterError(
            f"Got {folder} without classes, but the experiment classifies images; expected labels.csv with the columns id and label. Write this file, or pass models='synthetic'."
        )
    return data


def _read(folder: Path, kind: str) -> Embeddings:
    """Read rows and sort them by id, so that all encoders have the same order."""
    path = find_embeddings(folder, kind)
    if path is None:
        raise FileError(
            f"Got no {kind} in {folder}; expected a file such as {folder / kind}.parquet. Run congruence embed … -o {folder / kind}.parquet."
        )
    rows = read_embeddings(path)
    if not rows.has_ids:
        raise IdError(f"Got rows without ids in {path}; expected the image's id for each row. Add a column id.")
    return rows.take(np.argsort(id_texts(list(rows.ids)), kind="stable"))


def _same_ids(side: dict[str, Embeddings], folder: Path) -> list[str]:
    """Return the ids of a side, which must be the same for all its encoders."""
    names = {name: list(map(str, id_texts(list(rows.ids)))) for name, rows in side.items()}
    (first, ids), *others = names.items()
    for name, other in others:
        if other != ids:
            raise IdError(
                f"Got different ids for {name} and {first} in {folder}; expected the same rows for both. Embed the same rows with both."
            )
    return ids


def _labels(folder: Path, image_ids: list[str]) -> np.ndarray:
    """Return the class number of each image; without ``labels.csv``, each image has a number of its own."""
    file = folder / "labels.csv"
    if not file.exists():
        return np.arange(len(image_ids))
    ids, labels = (read_column(f"{file}:{column}") for column in ("id", "label"))
    classes = dict(zip(map(str, id_texts(list(ids))), map(str, labels), strict=True))
    missing = [name for name in image_ids if name not in classes]
    if missing:
        raise IdError(f"Got no label of {missing[0]!r} in {file}; expected one for each image. Add a line for it.")
    numbers: np.ndarray = np.unique([classes[name] for name in image_ids], return_inverse=True)[1].reshape(-1)
    return numbers


def _sizes(n: int) -> dict[str, object]:
    """Return the sizes for n images."""
    sizes: dict[str, object] = {name: max(2, min(most, int(share * n))) for name, (most, share) in _SIZES.items()}
    for name, steps in _SWEEPS.items():
        most = n // 2 if name == "pairs_sweep" else n // 4
        sizes[name] = [step for step in steps if step <= most] or [max(2, most // 4), max(2, most)]
    return sizes
