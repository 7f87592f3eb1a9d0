"""Two separately trained dual encoders for Caltech-101: heads on frozen towers, each pair of heads trained on different
photos.

*Old*: MobileNet-v2 and MiniLM-L6 with linear heads trained by InfoNCE (``congruence.train.Contrastive``). *New*:
EfficientNet-Lite0 and MPNet, by the sigmoid loss (``congruence.train.SAIL``). Each trains on 2,250 photos, paired with
the name of their class in one of 34 wordings at random, and keeps the weights that match 250 further photos to their
classes best. No photo is used by both. The 3,242 photos that neither has seen form the index; both have seen the names
of all classes. All settings below were fixed before the first search of an index.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from congruence.embeddings import normalize_rows
from congruence.evaluation.judgments import read_qrels
from congruence.train import SAIL, Contrastive

#: Number of photos on which each model is trained, and number of photos by which its weights are chosen.
TRAINED, VALIDATED = 2250, 250
#: Width and learning rate are those of the package's other heads on these towers; 400 steps of 512 pairs take about 20
#: s per split.
TRAINING = {"n_components": 256, "max_steps": 400, "learning_rate": 3e-4, "pair_batch_size": 512, "device": "cpu"}
MODELS = {
    "old": (
        "image_mobilenet_v2", "text_minilm_l6", lambda seed: Contrastive(head="linear", random_state=seed, **TRAINING)
    ),
    "new": ("image_effnet_lite0", "text_mpnet", lambda seed: SAIL(random_state=seed, **TRAINING)),
}  # fmt: skip
#: The wording of queries, "a photo of a …"; maps are fitted on the others.
ASKED = 0


@dataclass(frozen=True)
class Dual:
    """One model's unit rows: the index's photos, shape (n, d), and the names of classes in every wording, shape
    (classes, wordings, d).
    """

    photos: np.ndarray
    texts: np.ndarray


@dataclass(frozen=True)
class Pair:
    """Both models on the photos that neither has seen, and the class and the name of each photo."""

    old: Dual
    new: Dual
    label: np.ndarray
    photos: list[str]
    classes: list[str]

    def judgments(self, asked: np.ndarray) -> dict[str, dict[str, int]]:
        """Return the relevance of photos to class names, written in TREC's format and read back like a user's file."""
        lines = [
            f"{self.classes[c]} 0 {photo} 1" for c in asked
            for photo, k in zip(self.photos, self.label, strict=True) if k == c
        ]  # fmt: skip
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "qrels.txt"
            path.write_text("\n".join(lines) + "\n", encoding="utf-8")
            return read_qrels(path)


def classified(names: np.ndarray, photos: np.ndarray, label: np.ndarray) -> float:
    """Return the share of photos whose nearest name is that of their class."""
    return float(((photos @ names.T).argmax(axis=1) == label).mean())


def parts(n: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Split photos into training photos of the old model, training photos of the new one, and the index."""
    order = np.random.default_rng(seed).permutation(n)
    each = TRAINED + VALIDATED
    return order[:each], order[each : 2 * each], np.sort(order[2 * each :])


def load(path: str | Path, seed: int) -> Pair:
    """Train both models on their photos of this split; about 20 s of processor time."""
    arrays, label, classes, files = _read(path)
    *own, rest = parts(len(label), seed)
    rng = np.random.default_rng([seed, 1])
    found = {}
    for (name, (image, text, trainer)), rows in zip(MODELS.items(), own, strict=True):
        photos, texts = arrays[image], arrays[text]
        worded = texts[label[rows], rng.integers(texts.shape[1], size=len(rows))]
        chosen = rows[TRAINED:]
        there = np.unique(label[chosen])  # a class without photos cannot be matched
        validation = photos[chosen], texts[there, ASKED], label[chosen], there
        heads = trainer(seed).fit(photos[rows[:TRAINED]], worded[:TRAINED], validation=validation, verbose=False)
        mapped = heads.transform_target(texts.reshape(-1, texts.shape[-1]))
        found[name] = Dual(_unit(heads.transform(photos[rest])), _unit(mapped).reshape(*texts.shape[:2], -1))
    return Pair(found["old"], found["new"], label[rest], files[rest].tolist(), classes)


def anchors_and_asked(pair: Pair, seed: int, known: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return the classes whose names in other wordings the map is fitted on, and those used as queries: half each, or
    all for both.
    """
    order = np.random.default_rng([seed, 2]).permutation(len(pair.classes))
    if known:
        return np.sort(order), np.sort(order)
    half = len(order) // 2
    return np.sort(order[:half]), np.sort(order[half:])


def anchor_rows(texts: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """Return the names of some classes in every wording except that of queries."""
    return np.delete(texts[classes], ASKED, axis=1).reshape(-1, texts.shape[-1])


@cache
def _read(path: str | Path) -> tuple[dict[str, np.ndarray], np.ndarray, list[str], np.ndarray]:
    with np.load(path, allow_pickle=False) as data:
        arrays = {key: _unit(data[key]) for towers in MODELS.values() for key in towers[:2]}
        return arrays, data["label"], data["classes"].tolist(), data["image_file"]


def _unit(rows: np.ndarray) -> np.ndarray:
    flat = normalize_rows(np.asarray(rows, np.float32).reshape(-1, rows.shape[-1]))
    return flat.reshape(rows.shape)
