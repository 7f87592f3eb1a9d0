"""What an attacker can read from a vector store with ten or a hundred known pairs, and what protections cost the
owner's search.

``python benchmarks/bench_exposure.py --data ../shared/data --store "LVIS names"``. Four stores: LVIS class names by
OpenAI ViT-B/32, and images of the same classes, read with EVA-02's texts; 1,200 prompts of Caltech-101 (12 templates of
each class) by MiniLM, read with MPNet's; Caltech-101 photos by one dual encoder, read with the class names of the other
(heads on frozen features, each fitted on its own photos), where the text of a photo is its class name. Each draw uses
new known pairs, which are not counted. Control: the texts are shuffled, so that known pairs are wrong. A store may be
smaller than the list of candidates: 600 and 200 of the LVIS names, with all 1,203 as candidates. ``--unpaired``: no
pairs are known, and the map is fitted by UnpairedMap.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from common import arguments, write_json
from congruence import Embeddings
from congruence.evaluation import measure_exposure
from congruence.metrics import ensemble_prompts
from congruence_papers.canonical.data import open_sample

PAIRS = (10, 100)
TEMPLATES = 12
PROTECTIONS = ("none", "rotation", "noise=1", "pca=64", "pca=16", "int8", "binary")

#: Protections tried on the other three stores, where a rotation and eight bits have as little effect.
FEWER = ("none", "noise=1", "pca=16", "binary")

STORES = ("LVIS names", "LVIS images", "Caltech prompts", "Caltech photos")

#: Stores that are smaller than the list of candidates.
SMALLER = ("600 LVIS names", "200 LVIS names")


def open_store(name: str, folder: Path) -> tuple[Embeddings, Embeddings, dict[str, str] | None]:
    """Return a store, its candidates and, if ids differ, the text of each vector."""
    if "LVIS" in name:
        with np.load(folder / "lvis1203_clip.npz", allow_pickle=False) as data:
            key = "image_openai_vitb32_avg5" if name == "LVIS images" else "text_openai_vitb32"
            store, texts = (Embeddings(data[one], ids=data["names"].tolist()) for one in (key, "text_eva02_b16"))
        if name in SMALLER:
            size = int(name.split()[0])
            store = store.take(np.sort(np.random.default_rng(size).permutation(len(store))[:size]))
        return store, texts, None
    file = folder / "caltech101_unimodal.npz"
    if name == "Caltech prompts":
        with np.load(file, allow_pickle=False) as data:
            prompts = (data[key][:, :TEMPLATES].astype(np.float32) for key in ("text_minilm_l6", "text_mpnet"))
            store, texts = (Embeddings(rows.reshape(-1, rows.shape[2])) for rows in prompts)
        return store, texts, None
    heads = open_sample("caltech101", file)
    prototypes, classes = ensemble_prompts(heads.models[1].prompts, heads.prompt_labels)
    labels = {name: heads.classes[k] for name, k in zip(heads.ids.tolist(), heads.labels.tolist(), strict=True)}
    texts = Embeddings(prototypes, ids=[heads.classes[k] for k in classes.tolist()])
    return Embeddings(heads.models[0].images, ids=heads.ids), texts, labels


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--store", choices=(*STORES, *SMALLER), required=True)
    parser.add_argument("--draws", type=int, default=5)
    parser.add_argument(
        "--unpaired", action="store_true", help="measure only an attack without known pairs, on the unprotected store"
    )
    options = parser.parse_args()
    store, texts, labels = open_store(options.store, options.data)
    measured = {"labels": labels, "draws": options.draws}
    if options.unpaired:
        (line,) = measure_exposure(store, texts, pairs=[0], **measured)
        print(f"{options.store}: {line.found:.3f} ({line.low:.3f} … {line.high:.3f}), draws {line.values}")
        write_json(options, line.to_dict())
        return
    lines = [
        line
        for spec in (PROTECTIONS if options.store == STORES[0] else FEWER)
        for line in measure_exposure(store, texts, pairs=PAIRS, protections=[spec], **measured)
    ]
    # Control: texts in random order, so that every known pair is wrong, and so is every text that is searched for.
    wrong = np.random.default_rng(0).permutation(len(texts))
    shuffled = Embeddings(texts.vectors[wrong], ids=texts.ids if texts.has_ids else None)
    (control,) = measure_exposure(store, shuffled, pairs=[PAIRS[-1]], **measured)
    found = {options.store: lines}
    for name in SMALLER if options.store == STORES[0] else ():
        part, _, _ = open_store(name, options.data)
        found[name] = measure_exposure(part, texts, pairs=PAIRS, draws=options.draws)
    for name, each in found.items():
        for line in each:
            print(
                f"{name}: {line.protection:10} {line.pairs:4} {line.by_pairs:.3f} {line.found:.3f} ({line.low:.3f} "
                f"… {line.high:.3f}) search {line.search:.3f}"
            )
    print(f"control {control.found:.4f}, by chance {control.chance:.4f}")
    write_json(
        options, {"control": control.to_dict(), "lines": {k: [one.to_dict() for one in v] for k, v in found.items()}}
    )


if __name__ == "__main__":
    main()
