"""The paper's claim on real CLIP embeddings: fit a map on texts alone, map the images, and classify images of unseen
classes.

python examples/lvis.py lvis1203_clip.npz: embeddings of 1,203 LVIS classes by three CLIP models (not part of this
package).
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

import congruence
from congruence.embeddings import Embeddings, Space
from congruence.evaluation import evaluate
from congruence.splits import Split

TARGETS = {"EVA-02 CLIP B/16": "text_eva02_b16", "OpenAI CLIP ViT-B/16": "text_openai_vitb16"}


def measure(data: str, key: str, holdout: int, seed: int) -> dict[str, dict[str, float | None]]:
    def read(column: str, modality: str) -> Embeddings:
        return congruence.read_embeddings(f"{data}:{column}", ids="names", space=Space(modality=modality))

    text, image = read("text_openai_vitb32", "text"), read("image_openai_vitb32_avg5", "image")
    other = read(key, "text")
    mapping = congruence.fit(
        text, other, holdout=holdout, random_state=seed, means={"image": (image, None)}, check=False
    )
    unseen = Split.from_dict(mapping.scores_["holdout"]).held_out(text.ids)
    scores = evaluate(mapping, {"text": text.take(unseen), "image": image.take(unseen)}, {"text": other.take(unseen)})
    images = scores.get("zero_shot", "aligned image", "target text")
    texts = scores.get("cosine", "aligned text", "target text")
    retrieval = scores.get("retrieval", "aligned text", "target text")
    return {
        "images → its text, at 1": {
            "mapped": images.after,
            "unmapped": images.before,
            "chance": images.chance,
            "source model itself": images.source,
        },
        "text → text, at 1": {"mapped": retrieval.after, "unmapped": retrieval.before, "chance": retrieval.chance},
        "text–text cosine": {
            "mapped": texts.after,
            "unmapped": texts.before,
            "constant": texts.control_constant,
            "random rotation": texts.control_random_rotation,
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data")
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--holdout", type=int, default=303)
    parser.add_argument("--json", type=Path, help="write every split's scores to this file as well")
    options = parser.parse_args()
    results = {
        name: [measure(options.data, key, options.holdout, seed) for seed in range(options.splits)]
        for name, key in TARGETS.items()
    }
    if options.json:
        options.json.write_text(json.dumps(results))
    for name, rows in results.items():
        print(f"OpenAI CLIP ViT-B/32 → {name}: {options.holdout} unseen classes, {options.splits} splits")
        for score, columns in rows[0].items():
            print(f"  {score}")
            for column in columns:
                values = np.array([row[score][column] for row in rows], dtype=float)
                print(
                    f"    {column:20} {values.mean():.3f} ± {values.std(ddof=1) if len(rows) > 1 else float('nan'):.3f}"
                )


if __name__ == "__main__":
    main()
