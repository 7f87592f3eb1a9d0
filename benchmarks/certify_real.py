"""Certificates of pairs of real models: the table in docs/certify.md, one line per pair."""

from __future__ import annotations

import warnings

import numpy as np

from common import arguments, arrays, write_json
from congruence import Embeddings
from congruence.datasets import load_sample
from congruence.upgrade.certify import STRATEGIES, certify, split_anchors

#: Results of each pair, for ``--json``.
FOUND: list[dict] = []


def show(name, source, target, anchors, labels=None):
    given, held = split_anchors(source, target, anchors)
    c = certify(*given, queries=held, labels=labels)
    confidence = ", ".join(f"{action} {share:.1%}" for action, share in c.verdict.confidence.items())
    print(f"\n{name}, {anchors} anchors: {confidence}\n{c.verdict.reason}")
    for measure, ways in c.strategies.items():
        cells = [f"{w} {e.value:.3f} ({e.low:.3f} … {e.high:.3f})" for w in STRATEGIES if (e := ways.get(w))]
        cells += [f"{control} {value:.3f}" for control, value in c.controls.get(measure, {}).items()]
        print(f"| {measure} | " + " | ".join(cells) + " |")
    scores = {
        measure: {
            "ways": {way: [e.value, e.low, e.high] for way, e in ways.items()},
            "controls": c.controls.get(measure, {}),
        }
        for measure, ways in c.strategies.items()
    }
    FOUND.append({"pair": name, "anchors": anchors, "task": c.task, "shares": c.verdict.confidence, "scores": scores})


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--data", default="../shared/data")
    parser.add_argument("--only", choices=("sample", "imagenet", "lvis", "caltech"))
    options = parser.parse_args()
    warnings.simplefilter("ignore")

    def side(n, **rows):
        return {kind: Embeddings(v.astype(np.float32), ids=[str(i) for i in range(n)]) for kind, v in rows.items()}

    if options.only in (None, "sample"):
        bundle = load_sample("emoji")
        for anchors in (200, 400, 800):
            show("the sample's", bundle.side("source"), bundle.side("target"), anchors)
    if options.only in (None, "imagenet"):
        z = arrays(f"{options.data}/imagenet1000_unimodal.npz")
        sides = (side(1000, image=z[f"image_{name}"]) for name in ("effnet_lite0", "mobilenet_v2"))
        show("EfficientNet-Lite0 to MobileNet-v2, ImageNet", *sides, 500)
    if options.only in (None, "lvis"):
        z = arrays(f"{options.data}/lvis1203_clip.npz")
        for name in ("eva02_b16", "openai_vitb16"):
            source = side(1203, image=z["image_openai_vitb32_avg5"], text=z["text_openai_vitb32"])
            target = side(1203, text=z[f"text_{name}"])
            show(f"OpenAI ViT-B/32 to {name}", source, target, 300)
            show(f"OpenAI ViT-B/32 to {name}, texts alone", {"text": source["text"]}, target, 300)
    if options.only in (None, "caltech"):
        z = arrays(f"{options.data}/caltech101_unimodal.npz")
        n = len(z["label"])
        sides = (side(n, image=z[f"image_{name}"]) for name in ("effnet_lite0", "mobilenet_v2"))
        labels = {str(i): str(label) for i, label in enumerate(z["label"])}
        show("EfficientNet-Lite0 to MobileNet-v2, Caltech-101", *sides, 400, labels)
    write_json(options, FOUND)


if __name__ == "__main__":
    main()
