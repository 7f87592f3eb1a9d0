"""Real features for JAM's experiments: SugarCrepe's images and captions, embedded with ``congruence embed``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from congruence._utils.ids import id_texts
from congruence.datasets import SugarCrepe, load_sugarcrepe
from congruence.embeddings import Embeddings
from congruence.errors import FileError, IdError, ParameterError
from congruence.stores import matrices, read_embeddings
from congruence_papers.encoder_folders import encoder_pairs, find_embeddings
from congruence_papers.jam.data import JAMData, layer_numbers

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
    """Read embeddings of SugarCrepe's images and captions.

    Parameters
    ----------
    models : sequence of str
        Pairs of folder names, an image encoder's and a text encoder's, such as ``"dinov2-base/gemma2-2b"``.
    file : path-like
        The folder that contains these folders. An image encoder's folder contains ``images``, a text encoder's ``captions`` and ``negatives``,
        each of them a folder of ``layer_0.parquet``, ``layer_1.parquet``, … (``congruence embed --layer all``) or a single file. Images are
        matched by file name, without their folders, and captions by the ids of :class:`congruence.datasets.SugarCrepe`; other rows are ignored.
        An optional ``unrelated`` next to them contains items that have nothing to do with SugarCrepe.
    root : path-like
        The folder of SugarCrepe's JSON files.
    variant : {"layers", "sizes"}, optional
        ``"layers"``: also read an early and a middle layer. ``"sizes"`` has no effect here.
    dual_encoders : sequence of str
        Folders of dual encoders, with ``images``, ``captions`` and ``negatives``. A dual encoder that lacks one of them is left out, with a note.
    device : str, default="auto"
        Device to train on.

    Returns
    -------
    JAMData

    Raises
    ------
    ParameterError
        If ``file`` or ``root`` is None, a name is not a pair, or there is one layer where several are required.
    FileError, CorruptFileError, IdError
        If embeddings are missing or cannot be read, or an item has no vector.
    """
    if file is None or root is None:
        raise ParameterError(
            f"Got {', '.join(models)} without the folder of their embeddings or of SugarCrepe; expected both. Pass file=… and "
            "root=…, the two folders (or models='synthetic')."
        )
    folder, items = Path(file).expanduser(), load_sugarcrepe(root)
    pairs = encoder_pairs(models)
    several = variant == "layers"
    images = {name: _layers(folder, name, "images", items, several) for name in dict.fromkeys(i for i, _ in pairs)}
    texts = list(dict.fromkeys(t for _, t in pairs))
    captions, negatives = (
        {name: _layers(folder, name, kind, items, several) for name in texts} for kind in ("captions", "negatives")
    )
    dual, notes = {}, []
    for name in dual_encoders:
        if all(find_embeddings(folder / name, kind) for kind in _KINDS):
            V, P, N = (_layers(folder, name, kind, items, False)["late"] for kind in _KINDS)
            dual[name] = (V, P, N)
        else:
            notes.append(f"{name} is left out: its images, captions or negatives are missing.")
    unrelated = {
        name: np.asarray(_read(path, "late")["late"].vectors)
        for name in (*images, *texts)
        if (path := find_embeddings(folder / name, "unrelated"))
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


def _read(path: Path, *depths: str) -> dict[str, Embeddings]:
    """Read the embeddings at a path, by depth; a single file, or a folder without layers, is the last layer."""
    layers = {}
    if path.is_dir():
        layers = {name: spec for name, spec in matrices(path).items() if name.startswith("layer_")}
    if not layers:
        if set(depths) != {"late"}:
            raise ParameterError(
                f"Got one layer at {path}; expected a folder of all layers, since early, mid and late are compared. Run congruence embed with --layer all."
            )
        return {"late": read_embeddings(path)}
    number = layer_numbers(len(layers) - 1)
    missing = [f"layer_{number[depth]}" for depth in depths if f"layer_{number[depth]}" not in layers]
    if missing:
        raise FileError(
            f"Got {len(layers)} layers at {path} without {', '.join(missing)}; expected layer_0 to layer_{len(layers) - 1}. Run congruence embed --layer all again."
        )
    return {depth: read_embeddings(layers[f"layer_{number[depth]}"]) for depth in depths}


def _layers(folder: Path, name: str, kind: str, items: SugarCrepe, several: bool) -> Mapping[str, np.ndarray]:
    """Return the embeddings by depth, with rows in the order of ``items.images`` or of ``items.ids``."""
    path = find_embeddings(folder / name, kind)
    if path is None:
        raise FileError(
            f"Got no {kind} of {name} in {folder}; expected {folder / name / kind}. Run congruence embed … --layer all -o "
            f"{folder / name / kind}."
        )
    ids = items.images if kind == "images" else items.ids
    out = {}
    for depth, rows in _read(path, *(("early", "mid", "late") if several else ("late",))).items():
        names = id_texts(rows.ids).tolist()
        names = [i.rsplit("/", 1)[-1] for i in names] if kind == "images" else names
        row = {i: k for k, i in enumerate(names)}
        missing = [i for i in ids.tolist() if i not in row]
        if missing:
            raise IdError(
                f"Got no vector for {len(missing)} of {len(ids)} {kind} at {path}, {missing[0]} for example; expected all. Embed them under "
                f"{'their file names' if kind == 'images' else 'the ids of SugarCrepe'}."
            )
        out[depth] = np.asarray(rows.vectors[[row[i] for i in ids.tolist()]], np.float32)
    return out
