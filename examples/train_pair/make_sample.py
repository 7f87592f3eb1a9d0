"""Embed the held-out vendor's pictures and all captions with both models, measure each model, write the bundle."""

from __future__ import annotations

import argparse
import hashlib
import io
import json
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file

from captions import EDITS, prompts_of
from congruence.datasets import Bundle, write_bundle
from congruence.embeddings import Embeddings, Space
from congruence.metrics import recall_at_k
from towers import DualEncoder, on_white

HELD_OUT = "fluent-emoji-flat"
MODELS = {"a": "emoji-a", "b": "emoji-b"}
TOWERS = {
    "emoji-a": "EfficientNet-Lite0 and MiniLM, SigLIP, trained on Noto",
    "emoji-b": "MobileNet-v2 and multilingual E5, InfoNCE, trained on Twemoji, EmojiOne and OpenMoji",
}
THUMBNAIL = 64
LICENCES = [
    "Thumbnails, and the pictures embedded: Fluent Emoji by Microsoft, MIT licence (flat style, via "
    "@iconify-json/fluent-emoji-flat).",
    "Names, tags and groups: Unicode CLDR (Unicode licence) via emojibase-data by Miles Johnson, MIT licence.",
    "Model a was trained on Noto Emoji by Google (Apache-2.0; also the 2013–2017 design) with image weights of "
    "EfficientNet-Lite0 (Apache-2.0) and the frozen text model all-MiniLM-L6-v2 (Apache-2.0).",
    "Model b was trained on Twemoji by Twitter and contributors (CC BY 4.0), EmojiOne 2 by Ranks.com (CC BY 4.0) "
    "and OpenMoji (CC BY-SA 4.0) with image weights of MobileNet-v2 from torchvision (BSD-3-Clause) and the "
    "frozen text model multilingual-e5-small (MIT). Their pictures are not contained here.",
]


def embed(model: str, build: Path, device: str) -> dict[str, np.ndarray]:
    """Unit vectors of the held-out pictures, of every prompt of every emoji, and of the edited captions."""
    index = json.loads((build / f"captions_{model}.json").read_text())
    features = torch.from_numpy(np.load(build / f"text_{model}.npz")["features"]).float()
    network = DualEncoder(model, features)
    network.load_state_dict(load_file(build / f"model_{model}.safetensors"))
    network = network.to(device).eval()
    pictures = torch.from_numpy(np.load(build / f"{HELD_OUT}.npz")["pictures"])
    with torch.inference_mode():
        images = torch.cat([network.image(on_white(part.to(device))).cpu() for part in pictures.split(64)])
        texts = network.text(features.to(device)).cpu().numpy()
    return {
        "image": images.numpy(),
        "prompts": texts[np.array(index["prompts"])],
        "edit": texts[np.array(index["edits"])],
    }


def unit(X: np.ndarray) -> np.ndarray:
    return X / np.linalg.norm(X, axis=-1, keepdims=True)


def thumbnail(picture: np.ndarray) -> bytes:
    image = Image.fromarray(picture, "RGBA")
    flat = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
    out = io.BytesIO()
    flat.resize((THUMBNAIL, THUMBNAIL), Image.Resampling.LANCZOS).save(out, "WEBP", quality=80, method=6)
    return out.getvalue()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("build", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    torch.set_num_threads(2)
    items = json.loads((options.build / "items.json").read_text(encoding="utf-8"))
    held = np.load(options.build / f"{HELD_OUT}.npz")
    drawn = [items[row] for row in held["rows"]]
    ids = [item["id"] for item in drawn]
    # Two of the four patterns may give the same prompt; both rows are kept.
    prompt_rows = json.loads((options.build / "captions_a.json").read_text())["prompts"]
    sides: dict[str, dict[str, Embeddings]] = {}
    measured = {}
    prompt_ids = [f"{i}#{k}" for i in ids for k in range(len(prompt_rows[0]))]
    edit_ids = [f"edit-{k}" for k in range(len(EDITS))]
    for side, model in (("source", "a"), ("target", "b")):
        vectors = embed(model, options.build, options.device)
        prompts = vectors["prompts"][held["rows"]]
        captions = unit(prompts.mean(axis=1))
        space = {"model": MODELS[model]}
        sides[side] = {
            "image": Embeddings(vectors["image"], ids=ids, space=Space(**space, modality="image")),
            "text": Embeddings(captions, ids=ids, space=Space(**space, modality="text")),
            "prompt": Embeddings(
                prompts.reshape(len(prompt_ids), -1), ids=prompt_ids, space=Space(**space, modality="text")
            ),
            "edit": Embeddings(vectors["edit"], ids=edit_ids, space=Space(**space, modality="text")),
        }
        codes = np.arange(len(ids))
        groups = np.array([item["subgroup"] for item in drawn])
        similarity = vectors["image"] @ captions.T
        measured[MODELS[model]] = {
            **{f"recall_at_{k}": recall_at_k(vectors["image"], captions, codes, k) for k in (1, 5, 10)},
            "subgroup_of_the_first": float((groups[similarity.argmax(axis=1)] == groups).mean()),
        }
        print(MODELS[model], measured[MODELS[model]])
    names = {item["name"]: item["id"] for item in items}
    bundle = Bundle(
        sides["source"],
        sides["target"],
        classes={
            "prompt": {f"{i}#{k}": i for i in ids for k in range(len(prompt_rows[0]))},
            "edit": {name: names[after] for name, (_, after) in zip(edit_ids, EDITS, strict=True)},
        },
        labels={item["id"]: item["subgroup"] for item in drawn},
        texts={
            "image": {item["id"]: item["name"] for item in drawn},
            "text": {item["id"]: item["name"] for item in drawn},
            "prompt": {f"{item['id']}#{k}": text for item in drawn for k, text in enumerate(prompts_of(item))},
            "edit": {name: after for name, (_, after) in zip(edit_ids, EDITS, strict=True)},
        },
        before={name: names[before] for name, (before, _) in zip(edit_ids, EDITS, strict=True)},
        thumbnails={item["id"]: thumbnail(picture) for item, picture in zip(drawn, held["pictures"], strict=True)},
        info={
            "title": "Two dual encoders trained apart on emoji, on pictures of a third vendor",
            "images_of": "Fluent Emoji (flat), which neither model was trained on",
            "text": "mean of four prompts an emoji",
            "models": TOWERS,
            "each_model_alone": measured,
            "trained_with": "examples/train_pair",
            "licences": LICENCES,
        },
    )
    options.out.parent.mkdir(parents=True, exist_ok=True)
    write_bundle(options.out, bundle, force=True)
    print(
        f"{options.out}: {options.out.stat().st_size / 1e6:.2f} MB, SHA-256 "
        f"{hashlib.sha256(options.out.read_bytes()).hexdigest()}"
    )


if __name__ == "__main__":
    main()
