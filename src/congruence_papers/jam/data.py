"""Data of JAM: images with captions and wrong captions, embedded by unimodal encoders, and their split."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from congruence.datasets import SugarCrepe, load_sugarcrepe
from congruence.embeddings import Embeddings
from congruence.errors import FileError, IdError, InputError, ParameterError, ShapeError
from congruence.io import matrices, read_embeddings
from congruence.train import split_by_group
from congruence.train.captions import Captions
from congruence_papers.core import Data, check_choice, check_embedded
from congruence_papers.features import encoder_pairs, find_embeddings

TASKS = ("replace", "add", "swap")

#: Depths of hidden layers. The paper gives no layer numbers; here they are a quarter of the blocks, half of them, and
#: the last.
LAYERS = ("early", "mid", "late")

Layered = Mapping[str, Mapping[str, np.ndarray]]


@dataclass(frozen=True)
class JAMParts:
    """One split of a task's items: for training, for validation in the form of ``congruence.train.JAM.fit``, and for
    the test, with the rows (n, d), (n, e) and (n, e) of images, captions and wrong captions.
    """

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
                    raise ParameterError(
                        f"Got layers {', '.join(layers)} of {encoder}.", "Name them late, early and mid."
                    )
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
        """Split a task's items 70–15–15 by image, with at most ``most`` random items of ``"train"``, ``"validation"``,
        ``"test"``.
        """
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
            raise ParameterError(
                f"Got one layer at {path}; expected early, mid and late.", "Run congruence embed with --layer all."
            )
        return {"late": read_embeddings(path)}
    number = layer_numbers(len(layers) - 1)
    missing = [f"layer_{number[depth]}" for depth in depths if f"layer_{number[depth]}" not in layers]
    if missing:
        raise FileError(
            f"Got {len(layers)} layers at {path} without {', '.join(missing)}.",
            "Run congruence embed --layer all again.",
        )
    return {depth: read_embeddings(layers[f"layer_{number[depth]}"]) for depth in depths}


def _layers(folder: Path, name: str, kind: str, items: SugarCrepe, depths: Sequence[str]) -> dict[str, np.ndarray]:
    path = find_embeddings(folder / name, kind)
    if path is None:
        raise FileError(
            f"Got no {kind} of {name} in {folder}.", f"Run congruence embed … --layer all -o {folder / name / kind}."
        )
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
