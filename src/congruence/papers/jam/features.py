"""JAM's experiments on real features: images and SugarCrepe's captions as ``congruence embed`` writes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from congruence._utils.ids import id_texts
from congruence.datasets import SugarCrepe, load_sugarcrepe
from congruence.embeddings import Embeddings
from congruence.errors import FileError, IdError, ParameterError
from congruence.papers.jam.data import JAMData, layer_numbers
from congruence.stores import matrices, read_embeddings, suffixes

__all__ = ["open_features"]

_KINDS = ("images", "captions", "negatives")


def open_features(
    models: Sequence[str],
    file: str | Path | None,
    root: str | Path | None,
    variant: str | None = None,
    *,
    dual_encoders: Sequence[str] = (),
    device: str = "auto",
) -> JAMData:
    """Open embeddings of SugarCrepe's images and captions.

    Parameters
    ----------
    models : sequence of str
        Pairs of folders, ``"dinov2-base/gemma2-2b"``: the image encoder's and the text encoder's.
    file : path-like
        The folder in which these lie. An image encoder's holds ``images``, a text encoder's ``captions`` and ``negatives``, each a folder of
        ``layer_0.parquet``, ``layer_1.parquet``, … (``congruence embed --layer all``) or one file. Images are found by their file names, below whatever
        folder, captions by the ids of :class:`congruence.datasets.SugarCrepe`. What else is there is left alone. ``unrelated`` beside them, if
        there is one, holds what has nothing to do with SugarCrepe.
    root : path-like
        The folder of SugarCrepe's JSON files.
    variant : {"layers", "sizes"}, optional
        ``"layers"``: read an early and a middle layer too.
    dual_encoders : sequence of str
        Folders of dual encoders, with ``images``, ``captions`` and ``negatives``; those that are missing are left out, and a note says so.
    device : str, default="auto"
        To train on.

    Returns
    -------
    JAMData

    Raises
    ------
    ParameterError
        No folder given, a name that is no pair, or one layer where several are wanted.
    FileError, CorruptFileError, IdError
        Nothing at a place, or items without a vector.
    """
    if file is None or root is None:
        raise ParameterError(
            f"Got {', '.join(models)} without the folder of their embeddings or of SugarCrepe; expected both. Pass file=… and "
            "root=…, the two folders (or models='synthetic')."
        )
    folder, items = Path(file).expanduser(), load_sugarcrepe(root)
    pairs = []
    for spec in models:
        parts = spec.split("/")
        if len(parts) != 2 or not all(parts):
            raise ParameterError(
                f"Got {spec!r}; expected an image and a text encoder joined by /. Pass models='dinov2/minilm', for example."
            )
        pairs.append((parts[0], parts[1]))
    several = variant == "layers"
    images = {name: _layers(folder, name, "images", items, several) for name in dict.fromkeys(i for i, _ in pairs)}
    texts = list(dict.fromkeys(t for _, t in pairs))
    captions, negatives = (
        {name: _layers(folder, name, kind, items, several) for name in texts} for kind in ("captions", "negatives")
    )
    dual, notes = {}, []
    for name in dual_encoders:
        if all(_found(folder / name, kind) for kind in _KINDS):
            V, P, N = (_layers(folder, name, kind, items, False)["late"] for kind in _KINDS)
            dual[name] = (V, P, N)
        else:
            notes.append(f"{name} is left out: no images, captions and negatives of it.")
    unrelated = {
        name: np.asarray(_read(place, "late")["late"].vectors)
        for name in (*images, *texts)
        if (place := _found(folder / name, "unrelated"))
    }
    return JAMData(
        "SugarCrepe",
        items,
        images,
        captions,
        negatives,
        tuple(pairs),
        dual=dual,
        unrelated=unrelated,
        sizes={"training": {"device": device}},
        notes=tuple(notes),
    )


def _found(folder: Path, kind: str) -> Path | None:
    """Return a folder or file of vectors by its name before the suffix."""
    places = [folder / f"{kind}{suffix}" for suffix in ("", *(s for s in suffixes() if s))]
    return next((place for place in places if place.exists()), None)


def _read(place: Path, *wanted: str) -> dict[str, Embeddings]:
    """Return the wanted depths of what lies at a place; one file, or a folder of parts, is the last layer."""
    layers = {}
    if place.is_dir():
        layers = {name: spec for name, spec in matrices(place).items() if name.startswith("layer_")}
    if not layers:
        if set(wanted) != {"late"}:
            raise ParameterError(
                f"Got one layer at {place}; expected a folder of all, since early, mid and late are compared. Run congruence embed with --layer all."
            )
        return {"late": read_embeddings(place)}
    number = layer_numbers(len(layers) - 1)
    missing = [f"layer_{number[depth]}" for depth in wanted if f"layer_{number[depth]}" not in layers]
    if missing:
        raise FileError(
            f"Got {len(layers)} layers at {place} without {', '.join(missing)}; expected layer_0 to layer_{len(layers) - 1}. Run congruence embed --layer all again."
        )
    return {depth: read_embeddings(layers[f"layer_{number[depth]}"]) for depth in wanted}


def _layers(folder: Path, name: str, kind: str, items: SugarCrepe, several: bool) -> Mapping[str, np.ndarray]:
    """Return rows in the order of the items' images, or of the items, by depth."""
    place = _found(folder / name, kind)
    if place is None:
        raise FileError(
            f"Got no {kind} of {name} in {folder}; expected {folder / name / kind}. Run congruence embed … --layer all -o "
            f"{folder / name / kind}."
        )
    wanted = items.images if kind == "images" else items.ids
    out = {}
    for depth, found in _read(place, *(("early", "mid", "late") if several else ("late",))).items():
        names = id_texts(found.ids).tolist()
        names = [i.rsplit("/", 1)[-1] for i in names] if kind == "images" else names
        row = {i: k for k, i in enumerate(names)}
        absent = [i for i in wanted.tolist() if i not in row]
        if absent:
            raise IdError(
                f"Got no vector for {len(absent)} of {len(wanted)} {kind} at {place}, {absent[0]} for example; expected all. Embed them under "
                f"{'their file names' if kind == 'images' else 'the ids of SugarCrepe'}."
            )
        out[depth] = np.asarray(found.vectors[[row[i] for i in wanted.tolist()]], np.float32)
    return out
