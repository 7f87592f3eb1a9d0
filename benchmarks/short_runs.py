"""Short measurements of docs pages: ``python benchmarks/short_runs.py NAME`` prints one as JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from common import arrays, unit

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


def joint_maps() -> list[dict[str, Any]]:
    """Measure closed-form joint-space maps on 800 pairs by retrieval among 200 others, three splits: docs/maps.md."""
    from congruence import CCAMap, ProcrustesHeads
    from congruence.metrics import recall_at_k

    data = arrays(DATA / "imagenet1000_unimodal.npz")
    X, Y = data["image_effnet_lite0"].astype(np.float64), data["text_mpnet"].astype(np.float64)
    own = [[k] for k in range(200)]
    found = []
    for name, mapping in {
        "`procrustes`": ProcrustesHeads(),
        "`procrustes`, `n_components=100`": ProcrustesHeads(n_components=100),
        "`cca`": CCAMap(),
        "`cca`, `power=1`": CCAMap(power=1.0),
        "`cca`, `n_components=100`": CCAMap(n_components=100),
        "`cca`, `ridge=10`": CCAMap(ridge=10.0),
    }.items():
        scores = []
        for seed in range(3):
            fit, test = np.split(np.random.default_rng(seed).permutation(len(X)), [800])
            mapping.fit(X[fit], Y[fit])
            A, B = mapping.transform(X[test]), mapping.transform_target(Y[test])
            scores.append([recall_at_k(A, B, own, 1), recall_at_k(B, A, own, 1), recall_at_k(A, B, own, 10)])
        means, sds = np.mean(scores, axis=0), np.std(scores, axis=0, ddof=1)
        found.append({"map": name, "width": A.shape[1], "mean": means.tolist(), "sd": sds.tolist()})
    return found


def spanning() -> dict[str, Any]:
    """Measure the span of anchors, the position of texts relative to images, and the classes that the margins
    guarantee: docs/research/theory.md.
    """
    from congruence.datasets import load_sample
    from congruence.theory import anchors_needed, covered_share, covered_subspace, kappa, sym_spanning

    sample, lvis = load_sample("emoji"), arrays(DATA / "lvis1203_clip.npz")
    images, texts = (unit(sample.source[kind].vectors) for kind in ("image", "text"))

    def strongest(r: int) -> np.ndarray:
        return unit(images @ covered_subspace(images, rank=r).basis.T)

    anchors = []
    for name, A in {
        "sample, images": images,
        "sample, captions": texts,
        "sample, prompts (four a class)": unit(sample.source["prompt"].vectors),
        "sample, images, in their 40 strongest directions": strongest(40),
        "… in their 55 strongest": strongest(55),
        "LVIS, images of OpenAI ViT-B/32": unit(lvis["image_openai_vitb32_avg5"]),
    }.items():
        found, bounds = sym_spanning(A), None
        if found.spans:
            bounds = kappa(A)
        line = {"anchors": name, "d": A.shape[1], "n": len(A), "needed": anchors_needed(A.shape[1]), "rank": found.rank}
        anchors.append(line | {"spans": found.spans, "kappa": [bounds.lower, bounds.upper] if bounds else None})
    clip_images, clip_texts = unit(lvis["image_openai_vitb32_avg5"]), unit(lvis["text_openai_vitb32"])
    shares = []
    for r in (48, 128, 256, 400, 505, 508, 511, 512):
        medians = [float(np.median(covered_share(clip_images, Q, rank=r).shares)) for Q in (clip_texts, clip_images)]
        shares.append({"r": r, "text": medians[0], "image": medians[1]})
    inside = {r: float(np.median(covered_share(images, texts, rank=r).shares)) for r in (32, 48)}
    singular = np.linalg.svd(clip_images, compute_uv=False)[[0, -1]].tolist()
    return {
        "anchors": anchors,
        "shares": shares,
        "sample_texts_inside": inside,
        "singular": singular,
        "margins": _margins(images, texts, sample, lvis),
    }


def _margins(images: np.ndarray, texts: np.ndarray, sample: Any, lvis: dict[str, np.ndarray]) -> list[dict[str, Any]]:
    from congruence import OrthogonalMap
    from congruence.theory import class_margins

    def rotation(X: np.ndarray, Y: np.ndarray) -> np.ndarray:
        return OrthogonalMap(shrinkage="full", center=False).fit(X, Y).rotation_

    F, G = unit(lvis["image_openai_vitb32_avg5"]), unit(lvis["text_openai_vitb32"])
    eva, b16 = unit(lvis["text_eva02_b16"]), unit(lvis["text_openai_vitb16"])
    images_target, texts_target = (unit(sample.target[kind].vectors) for kind in ("image", "text"))
    by_images, by_texts = rotation(images, images_target), rotation(G, eva)
    fit, test = np.split(np.random.default_rng(0).permutation(len(G)), [900])

    def centered(X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return unit(X[fit] - X[fit].mean(0)), unit(X[test] - X[fit].mean(0))

    (G_fit, G_test), (eva_fit, eva_test), (F_fit, _) = centered(G), centered(eva), centered(F)
    cases = [
        *(("sample A → B" if r == 64 else "…", images, texts, texts_target, by_images, r) for r in (64, 48, 32)),
        *(("LVIS → EVA-02 B/16" if r == 512 else "…", F, G, eva, by_texts, r) for r in (512, 400, 256)),
        ("LVIS → OpenAI ViT-B/16", F, G, b16, rotation(G, b16), 512),
        ("LVIS → EVA-02, unseen", F[fit], G[test], eva[test], rotation(G[fit], eva[fit]), 512),
        ("… centered by modality", F_fit, G_test, eva_test, rotation(G_fit, eva_fit), 512),
    ]
    lines = []
    for name, F_, G_, G_target, Q, r in cases:
        m = class_margins(F_, G_, G_target, Q, rank=r)
        counts = {
            "promised": int(m.safe.sum()),
            "wrong": int((m.safe & ~m.right).sum()),
            "within": int(m.certified_within().sum()),
            "certified": int(m.certified.sum()),
            "by_difference": int(m.certified_by_difference.sum()),
            "found": int(m.right.sum()),
        }
        lines.append({"case": name, "K": len(G_), "r": r, "gamma": m.gamma, "eta": m.eta, "rho": m.rho, **counts})
    return lines


def shift() -> list[dict[str, Any]]:
    """Measure sliced Wasserstein distances between two photo collections and their texts: research/similarity.md."""
    from congruence.transport import distribution_shift

    inet, caltech = arrays(DATA / "imagenet1000_unimodal.npz"), arrays(DATA / "caltech101_unimodal.npz")
    label, lines = caltech["label"], []

    def add(name: str, column: str, A: np.ndarray, B: np.ndarray, variant: str = "circular") -> None:
        found = distribution_shift(A, B, variant=variant, normalize=True).image
        lines.append({"line": name, "model": column, "value": found.value, "sd": found.sd, "floor": found.floor})

    def halves(A: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        order = np.random.default_rng(0).permutation(len(A))
        return A[order[: len(A) // 2]], A[order[len(A) // 2 :]]

    for model in ("image_effnet_lite0", "image_mobilenet_v2"):
        A, B = unit(inet[model]), unit(caltech[model])
        turn = np.linalg.qr(np.random.default_rng(0).standard_normal((A.shape[1], A.shape[1])))[0]
        add("ImageNet – Caltech, images, `circular`", model, A, B)
        add("the same, `linear`", model, A, B, "linear")
        add("a random half of ImageNet – the other half", model, *halves(A))
        add("a random half of Caltech – the other half", model, *halves(B))
        add("Caltech, its first 50 classes – the last 50", model, B[label < 50], B[label >= 50])
        add("ImageNet – Caltech, each centered by its own mean", model, A - A.mean(0), B - B.mean(0))
        add("ImageNet – the same, turned by a random rotation", model, A, A @ turn)
    photo = caltech["templates"].tolist().index("a photo of a {}.")
    for model in ("text_minilm_l6", "text_mpnet"):
        A, every = unit(inet[model]), caltech[model]
        B, one = unit(every.reshape(-1, every.shape[2])), unit(every[:, photo])
        add("ImageNet – Caltech in 34 templates, `circular`", model, A, B)
        add("the same, `linear`", model, A, B, "linear")
        add("ImageNet – Caltech in the one template of both", model, A, one)
        add("a random half of ImageNet's – the other half", model, *halves(A))
    return lines


def quantized() -> list[dict[str, Any]]:
    """Measure the search quality after mapping with old and new vectors in fewer bits, three splits:
    docs/reference/databases.md.
    """
    import pyarrow as pa

    from congruence import OrthogonalMap
    from congruence.metrics import recall_at_k
    from congruence.upgrade.migrate.mapper import RowMapper
    from congruence.upgrade.migrate.quantize import Quantizer, recall_of

    lvis = arrays(DATA / "lvis1203_clip.npz")
    names = ("text_openai_vitb32", "text_openai_vitb16", "image_openai_vitb32_avg5")
    text, target, image = (unit(lvis[name]).astype(np.float32) for name in names)
    ids, dim = pa.array(range(len(text))), text.shape[1]

    def stored(kind: str, rows: np.ndarray) -> tuple[Quantizer, np.ndarray]:
        quantizer = Quantizer(kind, dim).calibrated(rows)
        codes = quantizer.encode(rows)
        return quantizer, codes.astype(np.float16).astype(np.float32) if kind == "float16" else codes

    lines = []
    single = "float32"
    pairs = [
        *((single, new) for new in (single, "float16", "int8", "binary")),
        ("int8", single),
        ("int8", "int8"),
        ("binary", single),
        ("binary", "binary"),
    ]
    for before, after in pairs:
        scores = []
        for seed in range(3):
            fit, test = np.split(np.random.default_rng(seed).permutation(len(text)), [900])
            mapping = (
                OrthogonalMap().fit(text[fit], target[fit], modality="text").recenter(image[fit], modality="image")
            )
            found = []
            for modality, rows in (("text", text), ("image", image)):
                old, codes = stored(before, rows)
                mapper = RowMapper(mapping, modality=modality, old=old)
                mapper.scale = old.coded  # as set by RowMapper.check for a map of unit rows
                mapped = mapper(ids, codes, None)
                new, gallery = stored(after, mapped)
                asked = new.encode(target[test])
                gallery_, asked_ = (X / np.linalg.norm(X, axis=1, keepdims=True) for X in (gallery, asked))
                found += [
                    recall_of(mapped, gallery, "cosine"),
                    recall_at_k(asked_, gallery_, [[k] for k in test], 1 if modality == "text" else 10),
                ]
            scores.append(found)
        lines.append(
            {
                "old": before,
                "new": after,
                "mean": np.mean(scores, axis=0).tolist(),
                "sd": np.std(scores, axis=0, ddof=1).tolist(),
            }
        )
    return lines


def sample_spectra() -> list[dict[str, Any]]:
    """Fit the sample's maps with two shrinkages, on images or texts, over four random splits."""
    import congruence
    from congruence.datasets import load_sample
    from congruence.evaluation import evaluate
    from congruence.splits import Split

    sample, found = load_sample("emoji"), []
    for fitted, other in (("image", "text"), ("text", "image")):
        old, new = sample.source[fitted], sample.target[fitted]
        means = {other: (sample.source[other], sample.target[other])}
        for name, given in (("full", {"shrinkage": "full"}), ("default", {})):
            scores = []
            for seed in range(4):
                mapping = congruence.fit(
                    old, new, "orthogonal", modality=fitted, means=means, holdout=len(old) - 800, random_state=seed,
                    check=False, **given,
                )  # fmt: skip
                split = Split.from_dict(mapping.scores_["holdout"])
                sides = [side["text"].take(split.held_out(side["text"].ids)) for side in (sample.source, sample.target)]
                got = evaluate(mapping, {"text": sides[0]}, {"text": sides[1]})
                scores.append([got.get(m, "aligned text", "target text").after for m in ("retrieval", "cosine")])
            retrieval, cosine = np.mean(scores, axis=0).tolist()
            found.append({"shrinkage": name, "fitted": fitted, "retrieval": retrieval, "cosine": cosine})
    return found


def curations() -> list[dict[str, Any]]:
    """Score data sets chosen from ten worlds of four topics, and the loss of a critic of the world on them:
    docs/research/theory.md.
    """
    from congruence.theory import critic_gap, curate, independent_weights, kernel_agreement, latent_joint, pmi
    from congruence.theory import realize_critic as realize

    found: dict[str, list[list[float]]] = {}
    for seed in range(10):
        P = latent_joint(12, 10, 4, concentration=0.3, random_state=seed)
        rng, one = np.random.default_rng(seed), np.ones(12)
        topic = P[0] / P.sum(axis=0)
        ways = {
            "independent (C.10), weights 0.1 to 1.9": independent_weights(P, strength=0.9, random_state=seed),
            "random weights of texts, 0.1 to 1.9": (one, rng.uniform(0.1, 1.9, 10)),
            "texts weighted by p(one image given the text)": (one, topic / topic.mean()),
        }
        world = realize(pmi(P), random_state=seed)
        for words, weights in ways.items():
            chosen = curate(P, *weights)
            own = realize(pmi(chosen.joint), random_state=seed + 1)
            agreed = kernel_agreement(world.images, world.texts, own.images, own.texts, "affine")
            gap, apart = critic_gap(pmi(P), chosen.joint), np.abs(chosen.joint - P).sum() / 2
            found.setdefault(words, []).append([apart, chosen.departure, gap.spread / 2, agreed.epsilon, gap.excess])
    keys = ("total_variation", "departure", "departure_measured", "epsilon", "excess_loss")
    medians = {words: np.median(values, axis=0).tolist() for words, values in found.items()}
    return [{"curation": words, **dict(zip(keys, values, strict=True))} for words, values in medians.items()]


def ranks() -> list[dict[str, Any]]:
    """Measure how closely dual encoders of d dimensions approximate a world's pointwise mutual information:
    docs/research/theory.md.
    """
    from congruence.theory import critic_rank, latent_joint, pmi, realize_critic

    dims, found = (3, 4, 6, 8, 12, 16, 20), []
    for topics in (3, 10):
        worlds = [pmi(latent_joint(24, 20, topics, concentration=0.3, random_state=seed)) for seed in range(10)]
        for d in dims:
            least = [critic_rank(K).rms_error(d) / K.std() for K in worlds]
            reached = [np.sqrt(np.mean((realize_critic(K, dim=d).scores - K) ** 2)) / K.std() for K in worlds]
            medians = {"lower_bound": float(np.median(least)), "realize_critic": float(np.median(reached))}
            found.append({"topics": topics, "d": d, **medians})
    return found


def default_training() -> dict[str, Any]:
    """Measure SOTAlign's default run on 200 pairs and 2,000 unpaired photos a side, of their full width: its time, its
    recall beside its teacher's, and the error of KLOT's gradient at the first and the last step: docs/research.
    """
    import time

    import torch

    from congruence.train import SOTAlign
    from congruence.train.retrieval import mean_recall
    from congruence.transport import klot

    data = arrays(DATA / "caltech101_unimodal.npz")
    X, Y = (data[name].astype(np.float32) for name in ("image_effnet_lite0", "image_mobilenet_v2"))
    test, pairs, u, v = np.split(np.random.default_rng([0, 47]).permutation(len(X))[:5200], [1000, 1200, 3200])
    start = time.process_time()
    chosen = SOTAlign().fit(X[pairs], Y[pairs], unpaired=(X[u], Y[v]), verbose=False)
    found = {"seconds": time.process_time() - start, "steps": chosen.history_.steps, "note": chosen.scores_.get("note")}
    for name, mapping in (("chosen", chosen), ("teacher", chosen.teacher_)):
        mapped = mapping.transform(X[test]), mapping.transform_target(Y[test])
        found[name] = 100 * mean_recall(*mapped, banks=mapping.banks_)
    trained = SOTAlign(folds=None, patience=None).fit(X[pairs], Y[pairs], unpaired=(X[u], Y[v]), verbose=False)
    found["promised"] = trained.history_.losses["gradient_error"]
    T = _affinities(trained.teacher_, X[u[:824]], Y[v[:824]])
    for name, student in (("first", T), ("last", _affinities(trained, X[u[:824]], Y[v[:824]]))):
        slopes = []
        for dtype, tolerance in ((torch.float32, 1e-3), (torch.float64, 1e-6)):
            A = torch.tensor(student, dtype=dtype, requires_grad=True)
            value, info = klot(A, torch.tensor(T, dtype=dtype), 0.05, 0.01, 20_000, tolerance, return_info=True)
            value.backward()
            slopes.append((A.grad.double(), float(info.gradient_error)))
        (fast, promised), (exact, own) = slopes
        found[name] = {
            "promised": promised,
            "error": float((fast - exact).abs().sum() / exact.abs().sum()),
            "exact": own,
        }
    return found


def _affinities(mapping: Any, U: np.ndarray, V: np.ndarray) -> np.ndarray:
    return unit(mapping.transform(U)) @ unit(mapping.transform_target(V)).T


RUNS = {
    "default-training": default_training,
    "joint-maps": joint_maps,
    "quantized": quantized,
    "spanning": spanning,
    "shift": shift,
    "sample-spectra": sample_spectra,
    "theory-curations": curations,
    "theory-ranks": ranks,
}

if __name__ == "__main__":
    print(json.dumps(RUNS[sys.argv[1]]()))
