"""Maps through a frame, compared with pairwise maps and their composition.

``python benchmarks/frames.py ../shared/data/lvis1203_clip.npz``. Three parts:

``complete``: n class names of LVIS in three text towers (OpenAI ViT-B/32 and B/16, EVA-02 B/16), all of them encoded by
all three. Maps from ViT-B/32 to EVA-02: fitted directly, composed through ViT-B/16, through a frame of all three.
Measured on 303 unseen classes: whether a mapped text finds its own text, and whether the mean image of a class finds
its text, with both sides centered.

``partial``: only n names are encoded by both ViT-B/32 and EVA-02; ViT-B/16 shares 200 other names with the first and
200 others with the second.

``chain``: an encoder is replaced again and again. Simulated: 64 dimensions with a falling spectrum, each model a
rotation and a shift of the truth with independent noise; 100 anchors per step. The error (mean squared, as a share of
the variance) is that of the map from the first model to the k-th.
"""

from __future__ import annotations

import numpy as np

from common import arguments, write_json
from congruence import CanonicalFrame, Embeddings, OrthogonalMap
from congruence.embeddings import normalize_rows
from congruence.metrics import class_retrieval

TOWERS = {"a": "text_openai_vitb32", "b": "text_openai_vitb16", "c": "text_eva02_b16"}
IMAGES = "image_openai_vitb32_avg5"


def at_1(found: np.ndarray, wanted: np.ndarray) -> float:
    return class_retrieval(found, wanted, np.arange(len(wanted)))


def scores(mapping: OrthogonalMap, data: dict[str, np.ndarray], test: np.ndarray) -> list[float]:
    """Return the scores of text to text, of the same centered, and of image to text centered."""
    texts, images, target = mapping.transform(data["a"][test]), mapping.transform(data["image"][test]), data["c"][test]
    centered = [normalize_rows(side - side.mean(axis=0)) for side in (texts, images, target)]
    return [at_1(texts, target), at_1(centered[0], centered[2]), at_1(centered[1], centered[2])]


def some(data: dict[str, np.ndarray], **rows: np.ndarray) -> dict[str, Embeddings]:
    return {name: Embeddings(data[name][which], which) for name, which in rows.items()}


def pairwise(data: dict[str, np.ndarray], one: str, two: str, rows: np.ndarray) -> OrthogonalMap:
    return OrthogonalMap().fit(data[one][rows], data[two][rows])


def complete(data: dict[str, np.ndarray], fit: np.ndarray, test: np.ndarray) -> dict[str, list[float]]:
    through = pairwise(data, "a", "b", fit).then(pairwise(data, "b", "c", fit))
    frame = CanonicalFrame().fit(some(data, a=fit, b=fit, c=fit)).map("a", "c")
    maps = {"direct": pairwise(data, "a", "c", fit), "composed": through, "frame": frame}
    return {name: scores(mapping, data, test) for name, mapping in maps.items()}


def partial(data: dict[str, np.ndarray], n: int, order: np.ndarray, test: np.ndarray) -> dict[str, list[float]]:
    common, with_a, with_c = order[:n], order[100:300], order[300:500]
    maps = {
        "composed": pairwise(data, "a", "b", with_a).then(pairwise(data, "b", "c", with_c)),
        "frame": CanonicalFrame()
        .fit(some(data, a=np.r_[common, with_a], b=np.r_[with_a, with_c], c=np.r_[common, with_c]))
        .map("a", "c"),
    }
    if n:
        maps["direct"] = pairwise(data, "a", "c", common)
    return {name: scores(mapping, data, test) for name, mapping in maps.items()}


def chain(steps: int, anchors: int, noise: float, fresh: bool, seed: int, d: int = 64) -> dict[str, list[float]]:
    """Return the errors after 1, 2, …, ``steps`` replacements."""
    draw = np.random.default_rng(seed)
    truth = draw.standard_normal((anchors * (steps if fresh else 1) + 500, d)) * np.linspace(2, 0.2, d)
    models = []
    for _ in range(steps + 1):
        own = truth + noise * truth.std() * draw.standard_normal(truth.shape)
        models.append(own @ np.linalg.qr(draw.standard_normal((d, d)))[0] + draw.standard_normal(d))
    test = np.arange(len(truth) - 500, len(truth))
    rows = [
        np.arange(anchors) + (anchors * k if fresh else 0) for k in range(steps)
    ]  # items of the step from k to k + 1
    frame, composed, out = None, None, {"direct": [], "composed": [], "frame": []}
    for k in range(steps):
        step = OrthogonalMap().fit(models[k][rows[k]], models[k + 1][rows[k]])
        composed = step if composed is None else composed.then(step)
        new = Embeddings(models[k + 1][rows[k]], rows[k])
        if frame is None:
            frame = CanonicalFrame().fit({"0": Embeddings(models[0][rows[0]], rows[0]), "1": new})
        else:
            if fresh:  # the model that is replaced also encodes the items of this step
                frame.extend(str(k), Embeddings(models[k][rows[k]], rows[k]))
            frame.add(str(k + 1), new)
        maps = {"composed": composed, "frame": frame.map("0", str(k + 1))}
        maps["direct"] = OrthogonalMap().fit(models[0][rows[k]], models[k + 1][rows[k]])
        for name, mapping in maps.items():
            error = np.square(mapping.transform(models[0][test]) - models[k + 1][test]).mean()
            out[name].append(float(error / models[k + 1][test].var(axis=0).mean()))
    return out


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("file")
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument(
        "--part", nargs="+", choices=("complete", "partial", "chain"), default=["complete", "partial", "chain"]
    )
    given = parser.parse_args()
    with np.load(given.file, allow_pickle=False) as file:
        data = {name: file[key] for name, key in {**TOWERS, "image": IMAGES}.items()}
    out: dict[str, dict[str, list]] = {part: {} for part in given.part}
    for split in range(given.splits):
        order = np.random.default_rng(split).permutation(len(data["a"]))
        test = order[900:]
        if "complete" in out:
            for n in (10, 20, 50, 200, 900):
                out["complete"].setdefault(str(n), []).append(complete(data, order[:n], test))
        if "partial" in out:
            for n in (0, 20, 50, 100):
                out["partial"].setdefault(str(n), []).append(partial(data, n, order, test))
        if "chain" in out:
            for fresh in (False, True):
                for noise in (0.2, 0.5):
                    name = f"{'new anchors each step' if fresh else 'the same anchors'}, noise {noise}"
                    out["chain"].setdefault(name, []).append(chain(8, 100, noise, fresh, split))
    for part, settings in out.items():
        for name, runs in settings.items():
            print(
                part, name, {key: np.round(np.mean([run[key] for run in runs], axis=0), 3).tolist() for key in runs[0]}
            )
    write_json(given, out)


if __name__ == "__main__":
    main()
