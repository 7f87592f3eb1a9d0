"""Maps fitted without pairs: how often the score reports a success, for correct maps and for wrong ones.

``python benchmarks/bench_unpaired.py --part texts`` and the other parts. Each world has two sides of 300 rows in
independent random orders. "right": the share of mapped source rows whose nearest neighbor, among the target rows of the
source's items, is of the same item, both sides centered; an alignment counts as correct if it is at least one half.
Nothing was chosen using these worlds except the threshold of 0.5, which lies in the middle between the agreement of
failures and of successes.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from common import arguments, write_json
from congruence import UnpairedMap
from congruence.metrics import class_retrieval
from congruence.synthetic import rigid_problem, unimodal_problem, upgrade_problem

ROWS = 300
Sides = tuple[np.ndarray, np.ndarray]


def read(data: Path, name: str, *keys: str) -> list[np.ndarray]:
    with np.load(data / name, allow_pickle=False) as arrays:
        return [arrays[key].astype(np.float32) for key in keys]


def texts(data: Path) -> Iterator[tuple[str, Callable[[int], Sides], float]]:
    """Two CLIP text encoders on LVIS class names; the sides share all names or some."""
    b32, b16, eva = read(data, "lvis1203_clip.npz", "text_openai_vitb32", "text_openai_vitb16", "text_eva02_b16")
    for name, A, B in (
        ("ViT-B/32 to B/16", b32, b16),
        ("ViT-B/32 to EVA-02", b32, eva),
        ("ViT-B/16 to EVA-02", b16, eva),
    ):
        for share in (1.0, 0.9, 0.75, 0.5, 0.0):
            yield f"LVIS texts, {name}", lambda seed, A=A, B=B: (A, B), share


def other(data: Path) -> Iterator[tuple[str, Callable[[int], Sides], float]]:
    """Images and texts, unimodal encoders, and collections without common items."""
    b32, eva, photo = read(
        data, "lvis1203_clip.npz", "text_openai_vitb32", "text_eva02_b16", "image_openai_vitb32_avg5"
    )
    eff, mob, mpnet, minilm = read(
        data, "imagenet1000_unimodal.npz", "image_effnet_lite0", "image_mobilenet_v2", "text_mpnet", "text_minilm_l6"
    )
    caltech = read(data, "caltech101_unimodal.npz", "image_effnet_lite0", "image_mobilenet_v2")
    yield "LVIS, images to own texts, ViT-B/32", lambda seed: (photo, b32), 1.0
    yield "LVIS, images to EVA-02 texts", lambda seed: (photo, eva), 1.0
    yield "ImageNet names, MPNet to MiniLM", lambda seed: (mpnet, minilm), 1.0
    yield "ImageNet photos, EfficientNet to MobileNet", lambda seed: (eff, mob), 1.0
    yield "ImageNet, EfficientNet photos to MPNet names", lambda seed: (eff, mpnet), 1.0
    yield "Caltech-101 photos, EfficientNet to MobileNet", lambda seed: (caltech[0], caltech[1]), 1.0
    yield "LVIS texts to ImageNet names", lambda seed: (b32[:1000], minilm), 1.0


def synthetic(data: Path) -> Iterator[tuple[str, Callable[[int], Sides], float]]:
    """Simulated worlds with a known alignment, and worlds without one."""

    def gaussian(noise: float) -> Callable[[int], Sides]:
        def make(seed: int) -> Sides:
            p = rigid_problem(ROWS, 32, noise=noise, decay=0.5, random_state=seed)
            return p.X, p.Y

        return make

    def unimodal(nuisance: float, classes: int | None) -> Callable[[int], Sides]:
        def make(seed: int) -> Sides:
            p = unimodal_problem(
                ROWS, 48, latent=24, noise=nuisance, nuisance=nuisance, classes=classes, spread=0.3, random_state=seed
            )
            return p.images, p.texts

        return make

    def upgrade(noise: float) -> Callable[[int], Sides]:
        def make(seed: int) -> Sides:
            p = upgrade_problem(
                ROWS, 64, source_noise=noise, target_noise=noise, classes=60, spread=0.4, random_state=seed
            )
            return p.source_texts, p.target_texts

        return make

    def unrelated(seed: int) -> Sides:
        return upgrade(0.2)(seed)[0], upgrade(0.2)(seed + 1000)[1]

    def cube(seed: int) -> Sides:
        """Corners of a cube: every permutation of the axes fits as well as the correct one."""
        rng = np.random.default_rng(seed)
        corners = 1 - 2 * (np.arange(256)[:, None] >> np.arange(8) & 1)
        rows = corners[rng.integers(256, size=ROWS)] + 0.2 * rng.standard_normal((ROWS, 8))
        return rows, rows @ np.linalg.qr(rng.standard_normal((8, 8)))[0] + 0.05 * rng.standard_normal((ROWS, 8))

    def mirrored(seed: int) -> Sides:
        """Each item with its mirror image: two alignments fit, and only one is correct."""
        rng = np.random.default_rng(seed)
        half = rigid_problem(ROWS // 2, 16, decay=0.5, random_state=seed).X ** 3
        rows = np.concatenate([half, half * np.r_[-1, np.ones(15)]])
        return rows, rows @ np.linalg.qr(rng.standard_normal((16, 16)))[0]

    for noise in (0.0, 0.1, 0.3):
        yield f"Gaussian, noise {noise}", gaussian(noise), 1.0
    for nuisance in (0.1, 0.3, 1.0):
        for classes in (60, None):
            yield f"unimodal, {classes or 'no'} classes, noise {nuisance}", unimodal(nuisance, classes), 1.0
    for noise in (0.2, 0.5, 1.0):
        yield f"dual encoders, noise {noise}", upgrade(noise), 1.0
    yield "dual encoders of two worlds", unrelated, 1.0
    yield "corners of a cube", cube, 1.0
    yield "mirrored", mirrored, 1.0


PARTS = {"texts": texts, "other": other, "synthetic": synthetic}


def measure(make: Callable[[int], Sides], share: float, seed: int) -> dict[str, float]:
    """Fit one world and compare the score with the truth."""
    A, B = make(seed)
    rng = np.random.default_rng(seed)
    size = min(ROWS, len(A) // (1 if share == 1 else 2))
    order = rng.permutation(len(A))
    common = round(size * share)
    left = order[:size]
    right = rng.permutation(np.concatenate([order[:common], order[size : 2 * size - common]]))
    start = time.process_time()
    mapping = UnpairedMap(random_state=seed).fit(A[left], B[right])
    seconds = time.process_time() - start
    mapped = (A[left] - A[left].mean(axis=0)) @ mapping.rotation_
    truth = class_retrieval(mapped, B[left] - B[left].mean(axis=0), np.arange(size))
    found = mapping.alignment_
    return {
        "right": truth,
        "found": found.found,
        "agreement": found.agreement,
        "matched": found.matched_share,
        "restarts": found.n_restarts,
        "seconds": seconds,
    }


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--part", choices=sorted(PARTS), required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    results = []
    for name, make, share in PARTS[options.part](options.data):
        for seed in range(options.first, options.first + options.seeds):
            one = {"world": name, "share": share, "seed": seed, **measure(make, share, seed)}
            results.append(one)
            print(
                f"{name:<48}{share:>5.0%}  right {one['right']:.3f}  agreement {one['agreement']:.3f}  matched "
                f"{one['matched']:.3f}  {'found' if one['found'] else 'not found'}  {one['seconds']:.1f} s",
                flush=True,
            )
    write_json(options, results)


if __name__ == "__main__":
    main()
