"""Sample data of the semi-supervised experiments: embeddings from unimodal encoders."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from congruence.errors import ParameterError
from congruence.synthetic import unimodal_problem
from congruence_papers.core import check_choice
from congruence_papers.features import IMAGE_ENCODERS, TEXT_ENCODERS, open_npz
from congruence_papers.sotalign.data import SOTAlignData

#: Names of the sample data of the semi-supervised experiments.
SAMPLE_DATA = ("synthetic", "imagenet1000", "caltech101")

#: Number of animal classes in ImageNet, which come first in the order of its classes.
_ANIMALS = 398

#: Lion changes a weight by at most rate × steps / 2: 0.06 here, and 0.1 with the paper's schedule.
_TRAINING = {
    **{"n_components": 256, "max_steps": 120, "learning_rate": 1e-3, "validate_every": 20, "max_iter": 500},
    **{"tolerance": 1e-3, "device": "cpu", "spectral_steps": 120},
}


def _sizes(
    pairs: tuple[int, list[int]], unpaired: tuple[int, list[int]], validation: int, test: int, **training: Any
) -> dict[str, Any]:
    return {
        **{"pairs": pairs[0], "pairs_sweep": pairs[1], "unpaired": unpaired[0], "unpaired_sweep": unpaired[1]},
        **{"validation": validation, "test": test, "training": {**_TRAINING, **training}},
    }


def open_sample(name: str, file: str | Path | None = None, variant: str | None = None) -> SOTAlignData:
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
    small = {"n_components": 32, "max_steps": 60, "learning_rate": 1e-2, "validate_every": 10, "tolerance": 1e-2}
    return SOTAlignData(
        "synthetic",
        {"clear": clear.images, "dim": noisy.images},
        {"plain": clear.texts, "vague": noisy.texts},
        clear.image_labels,
        clear.text_labels,
        image_source=clear.source,
        text_source=np.repeat(clear.source, len(clear.texts) // len(clear.images)),
        sources=("home", "away") if sources == 2 else ("all",),
        sizes=_sizes((30, [15, 30, 60, 120]), (250, [60, 120, 250]), 60, 100, **small),
        title="made-up rows",
        stand_in="stand-in: made up of one latent",
        notes=(
            "Synthetic: a latent of 10 dimensions that all encoders observe with noise (more of it in 'dim' "
            "and 'vague'), plus variation of each encoder alone.",
        ),
    )


def _rows(arrays: Mapping[str, np.ndarray], names: Mapping[str, str]) -> dict[str, np.ndarray]:
    return {name: np.asarray(arrays[key], np.float32).reshape(-1, arrays[key].shape[-1]) for name, key in names.items()}


def _imagenet(arrays: Mapping[str, np.ndarray], variant: str | None) -> SOTAlignData:
    if variant == "classes":
        raise ParameterError("imagenet1000 has one photo per class, too few to classify.", "Pass `models='synthetic'`.")
    items = np.arange(len(arrays["names"]))
    animals = (items < _ANIMALS).astype(int) if variant else np.zeros(len(items), int)
    sizes = _sizes((100, [50, 100, 200, 400]), (600, [100, 300, 600]), 100, 200)
    if variant:
        sizes |= {"pairs": 100, "unpaired": 200, "validation": 60, "test": 150}
    return SOTAlignData(
        "imagenet1000",
        _rows(arrays, IMAGE_ENCODERS),
        _rows(arrays, TEXT_ENCODERS),
        items,
        items,
        image_source=animals,
        text_source=animals,
        sources=("things", "animals") if variant else ("all",),
        sizes=sizes,
        title="1,000 ImageNet photos and class names",
        stand_in="stand-in: small encoders of photos and class names",
        notes=('One photo and one text ("a photo of a …") of each of 1,000 classes; parts have no class in common.',),
    )


def _caltech(arrays: Mapping[str, np.ndarray], variant: str | None) -> SOTAlignData:
    labels = arrays["label"].astype(int)
    templates = len(arrays["templates"])
    texts = np.repeat(np.arange(len(arrays["classes"])), templates)
    parity = (
        (labels % 2, texts % 2) if variant == "sources" else (np.zeros(len(labels), int), np.zeros(len(texts), int))
    )
    sizes = _sizes((200, [50, 200, 800]), (2000, [200, 600, 2000]), 300, 1000, unpaired_batch=600)
    if variant == "sources":
        sizes |= {"unpaired": 1000}
    return SOTAlignData(
        "caltech101",
        _rows(arrays, IMAGE_ENCODERS),
        _rows(arrays, TEXT_ENCODERS),
        labels,
        texts,
        image_source=parity[0],
        text_source=parity[1],
        sources=("even classes", "odd classes") if variant == "sources" else ("all",),
        sizes=sizes,
        title="Caltech-101 photos and class prompts",
        stand_in="stand-in: small encoders of photos and class prompts",
        notes=(
            "A label is one of 100 classes, and any text of an image's class is a hit; no method is trained on "
            "the test photos and texts, but their classes may occur in training.",
        ),
    )
