"""Synthetic scenes observed by images and texts with noise: JAM's default sample data, and data on which the Spread loss helps or does not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from congruence.datasets import SugarCrepe
from congruence_papers.jam.data import JAMData

__all__ = ["CONTEXTS", "synthetic_context", "synthetic_scenes"]

#: Dimension of a scene.
_LATENT = 12

_SIZES: dict[str, object] = {
    "training": {
        "hidden": (48, 48),
        "latent": 24,
        "max_epochs": 12,
        "learning_rate": 3e-3,
        "validate_every": 2,
        "device": "cpu",
    }
}

#: Text encoders of :func:`synthetic_context`, named by what a wrong caption contains besides its error.
CONTEXTS = ("wrong captions: another view", "wrong captions: the same view", "wrong captions: of other scenes")


def synthetic_scenes(variant: str | None = None, images: int = 200) -> JAMData:
    """Generate scenes observed by images and texts with little noise; a wrong caption changes one coordinate of the scene or swaps two.

    Parameters
    ----------
    variant : {"layers", "sizes"}, optional
    images : int, default=200

    Returns
    -------
    JAMData
    """
    rng = np.random.default_rng(11)
    scenes = rng.standard_normal((images, _LATENT))
    rows: list[tuple[str, ...]] = []
    correct, wrong = [], []
    for k, scene in enumerate(scenes):
        for category in ("replace_obj", "add_obj", "swap_obj"):
            changed = scene.copy()
            if category == "swap_obj":
                changed[[0, 1]] = changed[[1, 0]]
                words = (f"one {k} beside two", f"two beside one {k}")
            else:
                changed[rng.integers(_LATENT)] += 2.0 if category == "add_obj" else -2.0
                words = (f"scene {k} {category}", f"scene {k} not {category}")
            rows.append((f"{category}/{k}", category, f"{k:05d}", *words))
            correct.append(scene)
            wrong.append(changed)
    P, N = np.array(correct), np.array(wrong)
    noise = {"late": 0.2, "mid": 0.7, "early": 1.5} if variant == "layers" else {"late": 0.2}
    widths = {"made-up texts, small": 16, "made-up texts, large": 32}
    pairs = tuple(("made-up images", text) for text in widths)
    space = np.random.default_rng(3).standard_normal((_LATENT, 24))
    blurred = scenes + 0.3 * np.random.default_rng(4).standard_normal(scenes.shape)
    return JAMData(
        "synthetic",
        _items(rows),
        {"made-up images": _embed(scenes, 40, 1, noise)},
        {name: _embed(P, width, 2, noise) for name, width in widths.items()},
        {name: _embed(N, width, 3, noise) for name, width in widths.items()},
        encoders=pairs if variant == "sizes" else pairs[1:],
        dual={"made-up dual encoder": tuple(points @ space for points in (blurred, P, N))},  # type: ignore[dict-item]
        unrelated={
            "made-up images": np.random.default_rng(5).standard_normal((images, 40)).astype(np.float32),
            **{
                name: np.random.default_rng([6, width]).standard_normal((images, width)).astype(np.float32)
                for name, width in widths.items()
            },
        },
        title="made-up scenes",
        stand_in="stand-in: made up of one latent",
        sizes=_SIZES,
        notes=(
            f"Synthetic: {images} scenes of {_LATENT} numbers, observed by images and texts with noise; a wrong caption changes one number or swaps two.",
        ),
    )


def synthetic_context(images: int = 2000, noise: float = 1.0, change: float = 3.0) -> JAMData:
    """Generate scenes with noisy texts, where the part of a wrong caption that is correct adds information, or does not.

    There are three text encoders with the same captions. In the first, a wrong caption is another noisy view of the scene, with one number changed;
    in the second, it is the same view, with the caption's noise and one number changed; in the third, it is a view of another scene.

    Parameters
    ----------
    images : int, default=2000
    noise : float, default=1.0
        Standard deviation of the noise of the texts, relative to that of their signal. For images it is 0.3.
    change : float, default=3.0
        Size of the change, in standard deviations of the changed number.

    Returns
    -------
    JAMData
    """
    rng = np.random.default_rng(17)
    scenes = rng.standard_normal((images, _LATENT))
    coordinate, sign = rng.integers(_LATENT, size=images), rng.choice([-1.0, 1.0], size=images)
    changed = scenes.copy()
    changed[np.arange(images), coordinate] += change * sign
    rows = [(f"replace_obj/{k}", "replace_obj", f"{k:05d}", f"scene {k}", f"scene not {k}") for k in range(images)]
    level = {"late": noise}
    captions = _embed(scenes, 32, 2, level)
    wrong = (
        _embed(changed, 32, 3, level),
        _embed(changed, 32, 2, level),
        _embed(np.roll(changed, 1, axis=0), 32, 3, level),
    )
    image = "made-up images"
    return JAMData(
        "synthetic",
        _items(rows),
        {image: _embed(scenes, 40, 1, {"late": 0.3})},
        dict.fromkeys(CONTEXTS, captions),
        dict(zip(CONTEXTS, wrong, strict=True)),
        encoders=tuple((image, context) for context in CONTEXTS),
        title="made-up scenes, noisy texts",
        stand_in="made up of one latent",
        sizes=_SIZES | {"validation": 60},
        notes=(
            f"Synthetic: {images} scenes of {_LATENT} numbers. Images observe them clearly; texts with as much noise as signal. A wrong caption has one number "
            "changed, and is another view of the scene, the same view, or a view of another scene.",
        ),
    )


def _items(rows: Sequence[tuple[str, ...]]) -> SugarCrepe:
    """Return items from tuples of id, category, file name, caption and wrong caption."""
    return SugarCrepe(*(np.array(column, dtype=str) for column in zip(*rows, strict=True)))


def _embed(points: np.ndarray, width: int, seed: int, noise: Mapping[str, float]) -> dict[str, np.ndarray]:
    """Return the embeddings of points by an encoder of the given width, by layer; ``seed`` determines the noise, and the width the encoder."""
    signal = np.tanh(points @ np.random.default_rng(width).standard_normal((_LATENT, width)) / np.sqrt(_LATENT))
    out = {}
    for k, (layer, level) in enumerate(noise.items()):
        drawn = np.random.default_rng([seed, k]).standard_normal(signal.shape)
        out[layer] = (signal + level * signal.std() * drawn).astype(np.float32)
    return out
