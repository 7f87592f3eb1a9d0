"""Compute the data of a report's plots: histograms, spectrum, clouds, kernels, and the few-anchor curve."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

import numpy as np

from congruence._utils.ids import id_texts, is_in
from congruence.datasets import Bundle
from congruence.embeddings import Embeddings, Pairs
from congruence.evaluation.controls import DRAWS, RANDOM_STATE, control_rows, cosine_controls
from congruence.maps import Map, OrthogonalMap
from congruence.metrics import class_retrieval, paired_cosines, zero_shot_accuracy
from congruence.plotting.data import FewAnchors, FewAnchorsCurve
from congruence.report._base import held_out_ids, map_rows, some_rows, unit, with_means
from congruence.splits import Split, duplicate_groups

__all__ = ["FewAnchorsFigure", "clouds", "few_anchors", "histograms", "kernel", "spectrum"]

#: Largest number of rows in a histogram, and of points in a scatter plot.
_ROWS, _MARKS = 5_000, 400

#: Largest number of rows that a fit of the few-anchor curve is scored on.
_GALLERY = 2_000

#: Measures of the few-anchor curves in their order, and names of the curves by measure and kind: the mapped rows or a control.
_MEASURES = ("classified", "retrieval", "cosine")
_NAMES = {
    ("classified", "mapped"): "images classified by mapped text",
    ("retrieval", "mapped"): "{0} → its {0}, at 1",
    ("cosine", "mapped"): "{0}–{0} cosine",
    ("cosine", "constant"): "{0}–{0} cosine, constant",
    ("cosine", "random rotation"): "{0}–{0} cosine, random rotation",
}


class FewAnchorsFigure(FewAnchors):
    """The curves, the number of draws, the smallest chance level of retrieval, and whether they are for held-out classes."""

    repeats: int
    chance: float
    held_out: bool


def histograms(
    mapping: Map,
    source: Mapping[str, Embeddings],
    target: Mapping[str, Embeddings],
    aligned: Mapping[str, Embeddings],
    rng: np.random.Generator,
) -> list[dict[str, object]]:
    """Return histograms of the cosines of pairs, by modality: before and after mapping, and of the controls."""
    out = []
    for modality in source:
        if modality not in target:
            continue
        raw, mapped = (Pairs.join(rows, target[modality]) for rows in (source[modality], aligned[modality]))
        rows = some_rows(len(raw), _ROWS, rng)
        after = paired_cosines(mapped.source.vectors[rows], mapped.target.vectors[rows])
        before = None
        if raw.source.dim == raw.target.dim:
            before = paired_cosines(raw.source.vectors[rows], raw.target.vectors[rows])
        cosines = {"after": after, "before": before, **_controls(with_means(mapping, modality), raw.take(rows))}
        lowest = min(0.0, *[float(values.min()) for values in cosines.values() if values is not None])
        edges = np.linspace(lowest, 1.0, 41)
        entry: dict[str, object] = {"name": f"{modality}–{modality}", "edges": edges.tolist()}
        for name, values in cosines.items():
            entry[name] = None if values is None else (np.histogram(values, edges)[0] / len(values)).tolist()
            entry[f"mean_{name}"] = None if values is None else float(values.mean())
        out.append(entry)
    return out


def _controls(mapping: Map, pairs: Pairs) -> dict[str, np.ndarray | None]:
    """Return the cosines of the target's rows with control rows, which depend on the target only through its mean."""
    X, Y = pairs
    rows, rng = control_rows(mapping, X, Y), np.random.default_rng(RANDOM_STATE)
    constant, draws = rows.constant(), [rows.rotated(rng) for _ in range(DRAWS)]
    rotated = [paired_cosines(draw, Y) for draw in draws if draw is not None]
    return {
        "constant": None if constant is None else paired_cosines(constant, Y),
        "random_rotation": np.concatenate(rotated) if rotated else None,
    }


def spectrum(mapping: Map) -> dict[str, object] | None:
    """Return the singular values of the anchors' cross-covariance and the gains; None if the map is not orthogonal."""
    if not isinstance(mapping, OrthogonalMap):
        return None
    return {
        "singular_values": mapping.singular_values_.tolist(),
        "gains": mapping.gains_.tolist(),
        "rank": int(mapping.rank_),
    }


def clouds(
    source: Mapping[str, Embeddings],
    target: Mapping[str, Embeddings],
    aligned: Mapping[str, Embeddings],
    rng: np.random.Generator,
) -> dict[str, object] | None:
    """Project the rows of both models onto their first two principal directions, before and after mapping (figures 1, 2 and 9)."""
    shared = [m for m in ("image", "text") if m in source and m in target]
    if not shared:
        return None
    drawn_ids: dict[str, np.ndarray] = {}
    for m in shared:
        ids = id_texts(source[m].ids)
        ids = ids[is_in(ids, target[m].ids)]
        drawn_ids[m] = ids[some_rows(len(ids), 60, rng)]

    def project(side: Mapping[str, Embeddings]) -> dict[str, object]:
        clouds = {f"source {m}": unit(side[m].take(drawn_ids[m])) for m in shared}
        clouds |= {f"target {m}": unit(target[m].take(drawn_ids[m])) for m in shared}
        width = max(cloud.shape[1] for cloud in clouds.values())
        # Rows of a narrower model are padded with zeros; before mapping, coordinates of different models are unrelated anyway.
        stacked = np.vstack([np.pad(cloud, ((0, 0), (0, width - cloud.shape[1]))) for cloud in clouds.values()])
        stacked = stacked.astype(np.float64)
        centered = stacked - stacked.mean(axis=0)
        _, s, vt = np.linalg.svd(centered, full_matrices=False)
        # Signs of principal directions are arbitrary: fix them, so that equal data give equal plots.
        vt = vt[:2] * np.sign(vt[:2][[0, 1], np.abs(vt[:2]).argmax(axis=1)])[:, None]
        projected = centered @ vt.T
        points, start = {}, 0
        for name, cloud in clouds.items():
            points[name] = np.round(projected[start : start + len(cloud)], 4).tolist()
            start += len(cloud)
        variance_share = float((s[:2] ** 2).sum() / (s**2).sum()) if s.any() else 0.0
        return {"points": points, "variance_share": variance_share}

    return {
        "before": {**project(source), "gaps": {"source": _gap(source), "target": _gap(target)}},
        "after": {**project(aligned), "gaps": {"mapped source": _gap(aligned), "target": _gap(target)}},
    }


def _gap(side: Mapping[str, Embeddings]) -> float | None:
    """Return the modality gap, the distance between the mean image and the mean text (Liang et al. 2022)."""
    if not {"image", "text"} <= {*side}:
        return None
    return float(np.linalg.norm(side["image"].mean - side["text"].mean))


def kernel(
    bundle: Bundle, source: Mapping[str, Embeddings], target: Mapping[str, Embeddings], rng: np.random.Generator
) -> dict[str, object] | None:
    """Compare the image–text similarities ⟨f(x), g(y)⟩ of the source with ⟨f̃(x), g̃(y)⟩ of the target (figures 3 and 10)."""
    if not all(m in side for side in (source, target) for m in ("image", "text")):
        return None
    images, texts = Pairs.join(source["image"], target["image"]), Pairs.join(source["text"], target["text"])
    images, texts = images.take(some_rows(len(images), 1_000, rng)), texts.take(some_rows(len(texts), 1_000, rng))
    source_kernel = unit(images.source) @ unit(texts.source).T
    target_kernel = unit(images.target) @ unit(texts.target).T
    same = bundle.class_of("image", images.ids)[:, None] == bundle.class_of("text", texts.ids)[None]
    centered = [k - k.mean(0) - k.mean(1, keepdims=True) + k.mean() for k in (source_kernel, target_kernel)]
    norms = np.linalg.norm(centered[0]) * np.linalg.norm(centered[1])

    def draw(mask: np.ndarray, most: int) -> list[list[float]]:
        a, b = source_kernel[mask], target_kernel[mask]
        chosen = some_rows(len(a), most, rng)
        return np.round(np.stack([a[chosen], b[chosen]], 1), 4).tolist()

    return {
        "matched": draw(same, _MARKS),
        "other": draw(~same, 1_500),
        "correlation": float(np.corrcoef(source_kernel.ravel(), target_kernel.ravel())[0, 1]),
        "centered_alignment": float((centered[0] * centered[1]).sum() / norms) if norms else None,
        "difference": float(np.sqrt(np.mean((source_kernel - target_kernel) ** 2))),
        "n": int(source_kernel.size),
    }


def few_anchors(
    mapping: Map, bundle: Bundle, rule: Mapping[str, object] | None, rng: np.random.Generator, repeats: int
) -> FewAnchorsFigure | None:
    """Return the scores of maps fitted on small numbers of anchors (figure 5); None if they cannot be measured."""
    fitted = mapping.source_space_.modality
    if not isinstance(mapping, OrthogonalMap) or fitted not in bundle.source or fitted not in bundle.target:
        return None
    pairs = Pairs.join(bundle.source[fitted], bundle.target[fitted])
    split = Split.from_dict(rule) if rule is not None else None
    if split is None or not split.threshold:
        split = Split.choose(pairs.ids, 0.5, random_state=0, groups=duplicate_groups(pairs.source, pairs.target))
    heldout = split.held_out(pairs.ids)
    pool, unseen = pairs.take(~heldout), bundle.take(held_out_ids(bundle, split, fitted))
    if len(pool) < 10 or not heldout.any():
        return None
    sizes = [n for n in (5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000) if n < len(pool)] + [min(len(pool), 10_000)]
    source, target = unseen.side("source"), unseen.side("target")
    draws: dict[tuple[str, str, str], list[list[float]]] = {}
    for n in sizes:
        drawn: dict[tuple[str, str, str], list[float]] = {}
        for k in range(repeats):
            anchors = pool.take(rng.choice(len(pool), n, replace=False))
            # Controls depend on the anchors only through their means, so the controls of one draw are enough.
            for key, value in _small_fit(mapping, anchors, fitted, unseen, source, target, controls=k == 0).items():
                drawn.setdefault(key, []).append(value)
        for key, values in drawn.items():
            draws.setdefault(key, []).append(values)
    curves: list[FewAnchorsCurve] = [
        {
            "name": _NAMES[measure, kind].format(items),
            "measure": measure,
            "items": items,
            "kind": kind,
            "mean": [float(np.mean(values)) for values in drawn],
            "low": [float(np.min(values)) for values in drawn],
            "high": [float(np.max(values)) for values in drawn],
        }
        # Retrieval first, then cosines with their controls right after them.
        for (measure, items, kind), drawn in sorted(draws.items(), key=lambda entry: _MEASURES.index(entry[0][0]))
    ]
    chance = 1 / min(int(heldout.sum()), _GALLERY)
    return {"n": sizes, "repeats": repeats, "curves": curves, "chance": chance, "held_out": rule is not None}


def _small_fit(
    mapping: OrthogonalMap,
    anchors: Pairs,
    fitted: str,
    unseen: Bundle,
    source: Mapping[str, Embeddings],
    target: Mapping[str, Embeddings],
    controls: bool,
) -> dict[tuple[str, str, str], float]:
    """Fit a map on few anchors, and return its scores by measure, items, and kind: "mapped" or the name of a control."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # few anchors do not cover all directions, which is what the figure shows
        small = OrthogonalMap(**mapping.get_params())
        small.fit(anchors.source.vectors, anchors.target.vectors, modality=fitted)
        for modality, (source_mean, target_mean) in mapping.modality_means_.items():
            if modality != fitted:
                small = small.recenter(source_mean, target_mean, modality=modality)
    out: dict[tuple[str, str, str], float] = {}
    for modality in source:
        if modality in target and modality in small.modality_means_:
            raw = Pairs.join(source[modality], target[modality])
            raw = raw.take(some_rows(len(raw), _GALLERY, np.random.default_rng(0)))  # the same rows for every fit
            mapped = map_rows(small, modality, raw.source).vectors
            own = np.arange(len(raw))
            out["retrieval", modality, "mapped"] = class_retrieval(mapped, raw.target.vectors, own)
            out["cosine", modality, "mapped"] = float(paired_cosines(mapped, raw.target.vectors).mean())
            if controls:
                scores = cosine_controls(with_means(small, modality), *raw)
                for kind, value in (("constant", scores.constant), ("random rotation", scores.random_rotation)):
                    if value is not None:
                        out["cosine", modality, kind] = value
    if "text" in source and "image" in target and "text" in small.modality_means_:
        texts = map_rows(small, "text", source["text"])
        classes, images = unseen.class_of("text", texts.ids), unseen.class_of("image", target["image"].ids)
        if len(np.unique(classes)) == len(classes) and is_in(images, classes).all():
            out["classified", "image", "mapped"] = zero_shot_accuracy(
                target["image"].vectors, texts.vectors, images, classes
            )
    return out
