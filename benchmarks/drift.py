"""False alarms and delays of DriftMonitor on class names of LVIS and photos of Caltech-101.

``python benchmarks/drift.py ../shared/data``. Reference: 600 random class names in OpenAI ViT-B/32; the stream: the
other 603, in random order, by the same model (no change) or by a changed one from the first vector on. ``late``: 400
unchanged vectors come first. Other content: the reference has photos of 50 classes of Caltech-101, the stream photos of
the other 50, encoded by the same model.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.linalg import expm

from common import arguments, write_json
from congruence.compare.drift import DriftMonitor, compare_canaries
from congruence.embeddings import normalize_rows


def changes(texts: dict[str, np.ndarray]) -> dict[str, Callable[[np.ndarray], np.ndarray]]:
    """Return possible replacements of the old encoder, as functions from row numbers to vectors."""
    old = texts["openai_vitb32"]
    draw = np.random.default_rng(0)
    d = old.shape[1]
    skew = draw.standard_normal((d, d))
    skew = (skew - skew.T) / np.sqrt(2 * d)
    turns = [expm(size * skew) for size in (0.1, 0.2, 0.3, 3.0)]
    noise = draw.standard_normal(old.shape) / np.sqrt(d)
    out = {
        "none": lambda rows: old[rows],
        "float16": lambda rows: old[rows].astype(np.float16),
        "norms: twice as long": lambda rows: 2 * old[rows],
        "another model: OpenAI ViT-B/16": lambda rows: texts["openai_vitb16"][rows],
        "another model: EVA-02 B/16": lambda rows: texts["eva02_b16"][rows],
        "noise of 0.05 of the norm": lambda rows: normalize_rows(old[rows] + 0.05 * noise[rows]),
        "noise of 0.1 of the norm": lambda rows: normalize_rows(old[rows] + 0.1 * noise[rows]),
    }
    for turn in turns:
        cosine = float(np.mean(np.sum(old * (old @ turn), axis=1)))
        out[f"rotation, cosine {cosine:.2f} with the old vector"] = lambda rows, turn=turn: old[rows] @ turn
    return out


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("data")
    parser.add_argument("--streams", type=int, default=400)
    parser.add_argument("--repeats", type=int, default=20)
    given = parser.parse_args()
    with np.load(f"{given.data}/lvis1203_clip.npz", allow_pickle=False) as file:
        texts = {name: file[f"text_{name}"] for name in ("openai_vitb32", "openai_vitb16", "eva02_b16")}
    old, kinds = texts["openai_vitb32"], changes(texts)
    alarms = {alpha: 0 for alpha in (0.05, 0.01, 0.001)}
    looks, highest = 0, []
    for seed in range(given.streams):
        order = np.random.default_rng(seed).permutation(len(old))
        reports = {}
        for alpha in alarms:
            if alpha == 0.05 or reports[0.05].alarm:  # the threshold of a larger α is lower, so it is passed first
                reports[alpha] = DriftMonitor(alpha, random_state=seed).fit(old[order[:600]]).update(old[order[600:]])
                alarms[alpha] += reports[alpha].alarm
            else:
                reports[alpha] = reports[0.05]
        looks += reports[0.05].n
        highest.append(reports[0.05].evidence)
    quiet = {"streams": given.streams, "looks": looks, "alarms": {str(alpha): n for alpha, n in alarms.items()}}
    print(quiet)
    delays: dict[str, dict] = {}
    for name, encode in kinds.items():
        found = {"at once": [], "late": []}
        for seed in range(given.repeats):
            order = np.random.default_rng(1000 + seed).permutation(len(old))
            reference, before, after = np.split(order, [600, 1000])
            monitor = DriftMonitor(random_state=seed).fit(old[reference])
            found["at once"].append(monitor.update(encode(order[600:])).alarm_at)
            monitor.fit(old[reference]).update(old[before])
            report = monitor.update(encode(after))
            found["late"].append(None if report.alarm_at is None else report.alarm_at - len(before))
        canaries = compare_canaries(old[:50], encode(np.arange(50)))
        delays[name] = {**found, "canaries": canaries.to_dict()}
        print(name, found["at once"][:5], found["late"][:5], canaries.kind)
    with np.load(f"{given.data}/caltech101_unimodal.npz", allow_pickle=False) as file:
        photos, label = file["image_mobilenet_v2"].astype(np.float32), file["label"]
    content = []
    for seed in range(given.repeats):
        draw = np.random.default_rng(seed)
        first = np.isin(label, draw.permutation(100)[:50])
        reference, stream = draw.permutation(photos[first])[:2000], draw.permutation(photos[~first])[:500]
        content.append(DriftMonitor(random_state=seed).fit(reference).update(stream).alarm_at)
    print("other content", content)
    write_json(given, {"quiet": quiet, "delays": delays, "content": content})


if __name__ == "__main__":
    main()
