"""What a stranger reads of a store from ten and a hundred pairs, and what protections cost the owner's search.

``python benchmarks/bench_exposure.py --data ../shared/data``. Four stores: LVIS class names by OpenAI ViT-B/32, and images of the same classes, read with
EVA-02's texts; 1,200 prompts of Caltech-101 (12 templates of each class) by MiniLM, read with MPNet's; Caltech-101 photos by one dual encoder, read with the
class names of the other (heads on frozen features, each fitted on its own photos), where a text is that of the photo's class. The known pairs are drawn anew in each draw and
left out of what is counted. Control: the known pairs have each other's texts.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from congruence import Embeddings
from congruence.evaluation import measure_exposure
from congruence.metrics import ensemble_prompts
from congruence.papers.canonical.sample_data import open_sample
from machine_output import add_json, write_json

PAIRS = (10, 100)
TEMPLATES = 12
PROTECTIONS = ("none", "rotation", "noise=0.5", "noise=1", "pca=64", "pca=16", "int8", "binary")


def stores(folder: Path) -> dict[str, tuple[Embeddings, Embeddings, dict[str, str] | None]]:
    """Return each store with its candidates and, where ids differ, the text of each vector."""
    with np.load(folder / "lvis1203_clip.npz", allow_pickle=False) as data:
        names = data["names"].tolist()
        old, photos, new = (
            Embeddings(data[key], ids=names)
            for key in ("text_openai_vitb32", "image_openai_vitb32_avg5", "text_eva02_b16")
        )
    with np.load(folder / "caltech101_unimodal.npz", allow_pickle=False) as data:
        minilm, mpnet = (
            data[key][:, :TEMPLATES].astype(np.float32).reshape(100 * TEMPLATES, -1)
            for key in ("text_minilm_l6", "text_mpnet")
        )
    heads = open_sample("caltech101", folder / "caltech101_unimodal.npz")
    mine, theirs = heads.models
    prototypes, classes = ensemble_prompts(theirs.prompts, heads.prompt_labels)
    names_of = [heads.classes[k] for k in classes.tolist()]
    labels = {name: heads.classes[k] for name, k in zip(heads.ids.tolist(), heads.labels.tolist(), strict=True)}
    return {
        "LVIS names": (old, new, None),
        "LVIS images": (photos, new, None),
        "Caltech prompts": (Embeddings(minilm), Embeddings(mpnet), None),
        "Caltech photos": (Embeddings(mine.images, ids=heads.ids), Embeddings(prototypes, ids=names_of), labels),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--draws", type=int, default=5)
    add_json(parser)
    options = parser.parse_args()
    results = []
    for name, (store, texts, labels) in stores(options.data).items():
        print(f"{name}: {len(store)} vectors, {len(texts)} candidates", flush=True)
        lines = [
            line
            for spec in PROTECTIONS
            for line in measure_exposure(
                store, texts, pairs=PAIRS, labels=labels, protections=[spec], draws=options.draws
            )
        ]
        # Texts in an order of their own: every known pair is wrong, and so is what is looked for.
        wrong = np.random.default_rng(0).permutation(len(texts))
        shuffled = Embeddings(texts.vectors[wrong], ids=texts.ids if texts.has_ids else None)
        (control,) = measure_exposure(store, shuffled, pairs=[PAIRS[-1]], labels=labels, draws=options.draws)
        for line in lines:
            print(f"  {line.protection:10} {line.pairs:4} {line.by_pairs:.3f} {line.found:.3f} ({line.low:.3f} … {line.high:.3f}) search {line.search:.3f}", flush=True)  # fmt: skip
        print(f"  control {control.found:.4f}", flush=True)
        results.append({"store": name, "lines": [line.to_dict() for line in lines], "control": control.to_dict()})
    write_json(options, results)


if __name__ == "__main__":
    main()
