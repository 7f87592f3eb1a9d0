"""Collections of the paper's own models and data sets, with cached embeddings."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from congruence import encoders
from congruence.embeddings import normalize_rows
from congruence.encoders import PAIRS
from congruence.errors import ParameterError
from congruence_papers import image_sets
from congruence_papers.canonical.data import Collection, Model, edit_captions, no_captions, read_captions
from congruence_papers.canonical.folders import read_folders
from congruence_papers.core import Experiment, told
from congruence_papers.features import embed_rows
from congruence_papers.image_sets import DATASETS

if TYPE_CHECKING:
    from congruence.encoders import Encoder
    from congruence_papers.image_sets import ImageDataset


#: The paper's models by short name. The paper gives no version of SigLIP and FLAVA; these have the width of CLIP
#: ViT-L/14, which the paper's square maps require.
MODELS: dict[str, str] = told("canonical")["published"]["weights"]


def resolve_models(spec: str) -> list[tuple[str, str]]:
    """Return the short and full names of the models in a specification.

    >>> resolve_models("openai-b32/openai-b16")[1]
    ('openai-b16', 'open_clip:ViT-B-16/openai')
    """
    if ":" in spec:
        names = [part.strip() for part in spec.split(",")]
        models = [(name.split(":", 1)[1], name) for name in names if ":" in name]
    else:
        names = spec.split("/")
        if spec in PAIRS:
            short = names if len(names) == 2 else [full.split(":", 1)[-1] for full in PAIRS[spec]]
            return list(zip(short, PAIRS[spec], strict=True))
        models = [(name, MODELS[name]) for name in names if name in MODELS]
    if len(models) < 2 or len(models) != len(names):
        raise ParameterError(
            argument="models",
            got=spec,
            expected=f"sample, lvis, caltech101, paper, two or three of {', '.join(MODELS)} joined by /, or "
            "full encoder names joined by commas",
            fix="Pass `models=…` in one of these forms.",
        )
    return models


def open_models(
    spec: str,
    data: str,
    *,
    root: str | Path,
    cache: str | Path,
    device: str = "auto",
    dtype: str = "auto",
    batch_size: int = 64,
    load_encoder: Callable[..., Any] | None = None,
    open_dataset: Callable[..., Any] | None = None,
    log: Callable[[str], None] | None = None,
    captions: str | Path | None = None,
    edits: Mapping[str, str] | None = None,
) -> Collection:
    """Embed a data set with two or more models."""
    models = resolve_models(spec)
    load, cache = load_encoder or encoders.load_encoder, Path(cache)
    folder = Path(root).expanduser()
    folder = folder / data if (folder / data).is_dir() else folder
    parts = [(open_dataset or image_sets.open_dataset)(data, root=folder, split=split) for split in ("train", "test")]
    classes, prompts = parts[0].classes, list(parts[0].prompts())
    images = [(part, k) for part in parts for k in range(len(part))]
    ids = [str(part.ids[k]) for part, k in images]
    labels = np.array([part.labels[k] for part, k in images], int)
    bank = None
    if captions:
        bank = edit_captions(
            read_captions(captions), edits or {}, classes, dict(zip(ids, labels.tolist(), strict=True))
        )
    embedded = []
    for short, full in models:

        def encoder(modality: str, short: str = short, full: str = full) -> Encoder:
            loaded = load(full, modality=modality, device=device, dtype=dtype)
            if log:
                log(f"{short}: {modality}s of {data}")
            return loaded

        eye = encoder("image")
        named = [(_Images(part), [f"{data}/{part.split}/{i}" for i in part.ids]) for part in parts]
        rows = np.concatenate([embed_rows(eye, items, names, cache, batch_size) for items, names in named])
        reader = encoder("text")
        texts = [[text for _, _, text in prompts], *([list(bank.texts), list(bank.edited_texts)] if bank else [])]
        words, *captioned = (embed_rows(reader, text, text, cache, batch_size) for text in texts)
        embedded.append(Model.unit(short, rows, words))
        if bank:
            own, edited = (normalize_rows(side, dtype=np.float32) for side in captioned)
            bank = replace(bank, vectors=(*bank.vectors, own), edited=(*bank.edited, edited))
    position = dict(zip(ids, images, strict=True))
    return Collection(
        data,
        tuple(embedded),
        tuple(classes),
        np.array(ids),
        labels,
        np.repeat([True, False], [len(part) for part in parts]),
        np.array([c for c, _, _ in prompts]),
        np.array([t for _, t, _ in prompts]),
        texts=tuple(text for _, _, text in prompts),
        captions={i: classes[k] for i, k in zip(ids, labels.tolist(), strict=True)},
        picture=lambda i: _thumbnail(*position[i]),
        title=DATASETS[data].title if data in DATASETS and data != "folder" else data,
        bank=bank,
    )


class _Images(Sequence[object]):
    """The images of a data set as a sequence, each opened on access."""

    def __init__(self, data: ImageDataset) -> None:
        self._data = data

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, which: Any) -> Any:
        return self._data.image(which)


def _thumbnail(data: ImageDataset, k: int) -> bytes | None:
    picture = data.image(k).convert("RGB")
    picture.thumbnail((96, 96))
    buffer = io.BytesIO()
    picture.save(buffer, "PNG")
    return buffer.getvalue()


def open_for(
    experiment: Experiment,
    models: str,
    *,
    data: Sequence[str] | None = None,
    file: str | Path | None = None,
    root: str | Path | None = None,
    cache: str | Path | None = None,
    **options: Any,
) -> list[Collection]:
    """Embed every data set of an experiment with every group of models, or read their embeddings.

    With ``file``, from the folder of embeddings of these models; else from the cache.
    """
    named = experiment.models if models == "paper" else [models]
    sets = list(data or experiment.data)
    if not named or not sets:
        raise ParameterError(f"{experiment.name} names no models or data sets.", "Pass `models=…` and `data=…`.")
    captions = experiment.parameters.get("captions")
    if file is not None:
        if captions:
            raise ParameterError("Captions need encoders, not embeddings.", "Pass `root=…`, or no captions.")
        groups = [spec.split("/") for spec in named]
        if not all(len(group) > 1 and all(group) for group in groups):
            raise ParameterError(f"{models!r} is no pair of models.", "Pass `models='openai-b32/laion400m-b32'`, say.")
        return read_folders(file, groups, sets)
    if root is None:
        raise ParameterError(f"No folder of {', '.join(sets)}.", "Pass `root=…`, or `file=…` with their embeddings.")
    if captions:
        options |= {"captions": captions, "edits": experiment.parameters["edits"]}
    elif experiment.kind == "edits":
        for name in sets:  # fail before hours of embedding, not after
            if name in DATASETS and len(DATASETS[name].templates) == 1:
                raise no_captions(name, experiment.name)
    cache = Path(root).expanduser() / "embeddings" if cache is None else cache
    return [open_models(spec, name, root=root, cache=cache, **options) for spec in named for name in sets]
