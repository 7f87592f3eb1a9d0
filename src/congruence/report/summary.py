"""From a map and both models' embeddings to the plain data a report is drawn from."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from congruence._version import __version__
from congruence.datasets import Bundle
from congruence.embeddings import Embeddings, Pairs, normalize_rows
from congruence.errors import InputError
from congruence.evaluate import Scores, evaluate
from congruence.maps import Map, OrthogonalMap
from congruence.metrics import paired_cosines, zero_shot_accuracy
from congruence.splits import Split

#: Most rows looked at for histograms and scatter plots, and most marks drawn; a picture needs no more.
_ROWS, _MARKS = 5_000, 400

#: A carried query reaches this share of what the target model reaches by itself.
CARRIES, PARTLY = 0.8, 0.4

_PICTURES = {b"\x89PNG": "image/png", b"\xff\xd8\xff": "image/jpeg", b"RIFF": "image/webp"}


def summarize(
    mapping: Map,
    bundle: Bundle,
    *,
    held_out: bool | None = None,
    scores: Scores | None = None,
    seed: int = 0,
    examples: int = 6,
    repeats: int = 5,
) -> dict[str, Any]:
    """Measure a map and gather everything a report shows, as plain data.

    Parameters
    ----------
    mapping : Map
        Fitted.
    bundle : Bundle
        Embeddings by both models; whatever is missing is left out of the report.
    held_out : bool, optional
        Measure only on classes the map was not fitted on. By default, if it knows them.
    scores : Scores, optional
        From :func:`congruence.evaluate`, if they were computed already.
    seed : int, default=0
        Chooses examples and anchors.
    examples : int, default=6
        Pictures shown in the commuting diagram.
    repeats : int, default=5
        Draws of anchors for each point of the few-anchor curve.

    Returns
    -------
    dict
        JSON-able: numbers, text, lists, and thumbnails as data URIs.

    Raises
    ------
    InputError
        ``held_out`` for a map fitted on all pairs, or nothing can be measured.
    SpaceMismatchError, IdError, ShapeError
        As :func:`congruence.evaluate`.
    """
    rule = mapping.scores_.get("holdout")
    if held_out and rule is None:
        raise InputError(
            "Got held_out=True for a map fitted on all pairs; expected held-out ones; do fit with a holdout."
        )
    unseen = bundle
    if rule is not None and held_out is not False:
        unseen = bundle.take(_held_out_ids(bundle, Split.from_dict(rule), mapping.source_space_.modality))
    rng = np.random.default_rng(seed)
    source, target = unseen.side("source"), unseen.side("target")
    if scores is None:
        scores = evaluate(mapping, source, target, labels=_classes(unseen, "image"), prompt_labels=None)
    aligned = {m: _carry(mapping, m, rows) for m, rows in source.items()}
    summary = {
        "version": __version__,
        "title": f"{mapping.source_space_.model or 'source model'} → {mapping.target_space_.model or 'target model'}",
        "held_out": unseen is not bundle,
        "verdict": _verdict(scores, unseen is not bundle),
        "facts": _facts(mapping, source, target),
        "scores": [asdict(row) for row in scores.rows],
        "notes": list(scores.notes),
        "probed": dict(scores.probed_energy),
        "histograms": _histograms(source, target, aligned, rng),
        "spectrum": _spectrum(mapping),
        "clouds": _clouds(source, target, aligned, rng),
        "kernel": _kernel(unseen, source, target, rng),
        "few_anchors": _few_anchors(mapping, bundle, rule, rng, repeats),
        "commuting": _commuting(unseen, source, target, aligned, rng, examples),
        "edits": _edits(mapping, bundle),
        "info": _plain_info(bundle.info),
    }
    return summary


def _held_out_ids(bundle: Bundle, split: Split, fitted: str | None) -> dict[str, np.ndarray]:
    """Hold out what the map was not fitted on and, where ids name classes, those classes in the other modality too."""
    keep = {}
    for kind in ("image", "text"):
        sides = [side[kind].ids for side in (bundle.source, bundle.target) if kind in side]
        if sides and (kind == fitted or fitted is None or not bundle.classes.get("image")):
            ids = np.unique(np.concatenate(sides))
            keep[kind] = ids[split.held_out(ids)]
    return keep


def _classes(bundle: Bundle, kind: str) -> dict[str, str] | None:
    if kind not in bundle.classes:
        return None
    ids = {i for side in (bundle.source, bundle.target) if kind in side for i in side[kind].ids.tolist()}
    return {i: bundle.classes[kind].get(i, i) for i in ids}


def _carry(mapping: Map, modality: str, rows: Embeddings) -> Embeddings:
    known = isinstance(mapping, OrthogonalMap) and modality in mapping.modality_means_
    vectors = mapping.for_modality(modality if known else None).transform(rows.vectors)
    return Embeddings(normalize_rows(vectors), ids=rows.ids, allow_zero_rows=True)


def _unit(rows: Embeddings) -> np.ndarray:
    return normalize_rows(rows.vectors.astype(np.float32, copy=False))


def _some(n: int, most: int, rng: np.random.Generator) -> np.ndarray:
    return np.arange(n) if n <= most else np.sort(rng.choice(n, most, replace=False))


# ------------------------------------------------------------------ words


def _verdict(scores: Scores, held_out: bool) -> dict[str, Any]:
    """Say in one sentence what the numbers say."""
    by_key = {(row.metric, row.query, row.against): row for row in scores.rows}
    main = by_key.get(("zero_shot", "aligned image", "target text")) or by_key.get(
        ("zero_shot", "target image", "aligned text")
    )
    cosines = [row for row in scores.rows if row.metric == "cosine"]
    where = "held-out items" if held_out else "items, some of which the map may have been fitted on"
    parts = []
    reached, rule = None, ""
    own = None if main is None else (main.target or main.source)
    if main is not None and own:
        reached = main.after / own
        model = "target" if main.target else "source"
        rule = f"accuracy of carried vectors relative to the {model} model's own"
        kind = "a carried image finds its text" if main.query == "aligned image" else "an image finds its carried text"
        unmapped = "" if main.before is None else f" and {main.before:.1%} without the map"
        parts.append(f"{kind} {main.after:.1%} of the time, against {own:.1%} in the {model} model itself{unmapped}")
    else:
        retrieval = [row for row in scores.rows if row.metric == "retrieval"]
        if retrieval:
            reached = retrieval[0].after
            rule = "retrieval of each item's own counterpart"
            parts.append(f"a carried vector finds its own counterpart first {retrieval[0].after:.1%} of the time")
    for row in cosines:
        modality = row.query.split(" ")[1]
        change = _cosine(row.after) if row.before is None else f"{_cosine(row.before)} → {_cosine(row.after)}"
        parts.append(f"{modality}–{modality} cosine {change}")
    if reached is None:
        level, opening = "unknown", "The vectors were carried"
    elif reached >= CARRIES:
        level, opening = "carries", "The map carries"
    elif reached >= PARTLY:
        level, opening = "partly", "The map carries part of the way"
    else:
        level, opening = "fails", "The map does not carry"
    n = max(row.n for row in scores.rows)
    sentence = f"{opening}: on {n:,} {where}, {'; '.join(parts)}."
    return {"level": level, "sentence": sentence, "reached": reached, "rule": rule}


def _cosine(value: float) -> str:
    return f"{round(value, 2) + 0.0:.2f}".replace("-", "−")  # adding zero turns −0.0 into 0.0


def _facts(mapping: Map, source: Mapping[str, Embeddings], target: Mapping[str, Embeddings]) -> list[list[str]]:
    def width(side: Mapping[str, Embeddings], space: Any) -> str:
        dim = next((rows.dim for rows in side.values()), space.dim)
        return f"{space.model or 'unnamed'}, {dim}-d"

    facts = [
        ["Source", width(source, mapping.source_space_)],
        ["Target", width(target, mapping.target_space_)],
        ["Map", type(mapping).__name__],
    ]
    fitted = mapping.source_space_.modality
    anchors = mapping.scores_.get("n_pairs")
    if anchors:
        facts.append(["Fitted on", f"{anchors:,} pairs" + (f" of {fitted}s" if fitted else "")])
    if isinstance(mapping, OrthogonalMap):
        carried = ", ".join(mapping.modality_means_) or fitted or "as fitted"
        facts += [["Means known for", carried], ["Directions kept", f"{mapping.rank_} of {len(mapping.gains_)}"]]
    return facts


def _plain_info(info: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "title": str(info.get("title", "")),
        "licences": [str(line) for line in info.get("licences", [])],
    }


# ------------------------------------------------------------------ pictures


def _histograms(
    source: Mapping[str, Embeddings],
    target: Mapping[str, Embeddings],
    aligned: Mapping[str, Embeddings],
    rng: np.random.Generator,
) -> list[dict[str, Any]]:
    out = []
    for modality in source:
        if modality not in target:
            continue
        raw, moved = (Pairs.join(rows, target[modality]) for rows in (source[modality], aligned[modality]))
        rows = _some(len(raw), _ROWS, rng)
        after = paired_cosines(moved.source.vectors[rows], moved.target.vectors[rows])
        before = None
        if raw.source.dim == raw.target.dim:
            before = paired_cosines(raw.source.vectors[rows], raw.target.vectors[rows])
        both = after if before is None else np.concatenate([before, after])
        edges = np.linspace(min(float(both.min()), 0.0), 1.0, 41)
        out.append(
            {
                "name": f"{modality}–{modality}",
                "edges": edges.tolist(),
                "before": None if before is None else (np.histogram(before, edges)[0] / len(rows)).tolist(),
                "after": (np.histogram(after, edges)[0] / len(rows)).tolist(),
                "mean_before": None if before is None else float(before.mean()),
                "mean_after": float(after.mean()),
            }
        )
    return out


def _spectrum(mapping: Map) -> dict[str, Any] | None:
    if not isinstance(mapping, OrthogonalMap):
        return None
    return {
        "singular_values": mapping.singular_values_.tolist(),
        "gains": mapping.gains_.tolist(),
        "rank": int(mapping.rank_),
    }


def _clouds(
    source: Mapping[str, Embeddings],
    target: Mapping[str, Embeddings],
    aligned: Mapping[str, Embeddings],
    rng: np.random.Generator,
) -> dict[str, Any] | None:
    """Project both models onto two principal directions, before and after (figures 1, 2 and 9)."""
    shared = [m for m in ("image", "text") if m in source and m in target]
    if not shared:
        return None
    rows: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    for m in shared:
        theirs = set(target[m].ids.tolist())
        ids = np.array([i for i in source[m].ids.tolist() if i in theirs])
        ids = ids[_some(len(ids), 60, rng)]
        rows[m] = (ids, ids)

    def project(side: Mapping[str, Embeddings]) -> dict[str, Any]:
        clouds = {f"source {m}": _unit(side[m].take(rows[m][0])) for m in shared}
        clouds |= {f"target {m}": _unit(target[m].take(rows[m][1])) for m in shared}
        width = max(cloud.shape[1] for cloud in clouds.values())
        # A narrower model is padded with zeros: its coordinates have no meaning in the other model anyway.
        stacked = np.vstack([np.pad(cloud, ((0, 0), (0, width - cloud.shape[1]))) for cloud in clouds.values()])
        stacked = stacked.astype(np.float64)
        centred = stacked - stacked.mean(axis=0)
        _, s, vt = np.linalg.svd(centred, full_matrices=False)
        # Signs of principal directions are arbitrary: fix them, so that equal data give equal pictures.
        vt = vt[:2] * np.sign(vt[:2][[0, 1], np.abs(vt[:2]).argmax(axis=1)])[:, None]
        flat = centred @ vt.T
        points, start = {}, 0
        for name, cloud in clouds.items():
            points[name] = np.round(flat[start : start + len(cloud)], 4).tolist()
            start += len(cloud)
        energy = float((s[:2] ** 2).sum() / (s**2).sum()) if s.any() else 0.0
        return {"points": points, "energy": energy}

    return {
        "before": {**project(source), "gaps": {"source": _gap(source), "target": _gap(target)}},
        "after": {**project(aligned), "gaps": {"carried source": _gap(aligned), "target": _gap(target)}},
    }


def _gap(side: Mapping[str, Embeddings]) -> float | None:
    """Distance between the mean image and the mean text (Liang et al. 2022)."""
    if not {"image", "text"} <= {*side}:
        return None
    return float(np.linalg.norm(side["image"].mean - side["text"].mean))


def _kernel(
    bundle: Bundle, source: Mapping[str, Embeddings], target: Mapping[str, Embeddings], rng: np.random.Generator
) -> dict[str, Any] | None:
    """Compare ⟨f(x), g(y)⟩ with ⟨f̃(x), g̃(y)⟩ (figures 3 and 10)."""
    if not all(m in side for side in (source, target) for m in ("image", "text")):
        return None
    images, texts = Pairs.join(source["image"], target["image"]), Pairs.join(source["text"], target["text"])
    images, texts = images.take(_some(len(images), 1_000, rng)), texts.take(_some(len(texts), 1_000, rng))
    ours = _unit(images.source) @ _unit(texts.source).T
    theirs = _unit(images.target) @ _unit(texts.target).T
    same = bundle.class_of("image", images.ids)[:, None] == bundle.class_of("text", texts.ids)[None]
    centred = [k - k.mean(0) - k.mean(1, keepdims=True) + k.mean() for k in (ours, theirs)]
    bottom = np.linalg.norm(centred[0]) * np.linalg.norm(centred[1])

    def draw(which: np.ndarray, most: int) -> list[list[float]]:
        a, b = ours[which], theirs[which]
        chosen = _some(len(a), most, rng)
        return np.round(np.stack([a[chosen], b[chosen]], 1), 4).tolist()

    return {
        "matched": draw(same, _MARKS),
        "other": draw(~same, 1_500),
        "correlation": float(np.corrcoef(ours.ravel(), theirs.ravel())[0, 1]),
        "centred_alignment": float((centred[0] * centred[1]).sum() / bottom) if bottom else None,
        "difference": float(np.sqrt(np.mean((ours - theirs) ** 2))),
        "n": int(ours.size),
    }


def _few_anchors(
    mapping: Map, bundle: Bundle, rule: Mapping[str, Any] | None, rng: np.random.Generator, repeats: int
) -> dict[str, Any] | None:
    """Fit again on fewer and fewer anchors (figure 5)."""
    fitted = mapping.source_space_.modality
    if not isinstance(mapping, OrthogonalMap) or fitted not in bundle.source or fitted not in bundle.target:
        return None
    pairs = Pairs.join(bundle.source[fitted], bundle.target[fitted])
    split = Split.from_dict(rule) if rule is not None else None
    if split is None or not split.threshold:
        split = Split.choose(pairs.ids, 0.5, seed=0)
    held = split.held_out(pairs.ids)
    pool, unseen = pairs.take(~held), bundle.take(_held_out_ids(bundle, split, fitted))
    if len(pool) < 10 or not held.any():
        return None
    sizes = [n for n in (5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000) if n < len(pool)] + [min(len(pool), 10_000)]
    source, target = unseen.side("source"), unseen.side("target")
    draws: dict[str, list[list[float]]] = {}
    for n in sizes:
        drawn: dict[str, list[float]] = {}
        for _ in range(repeats):
            chosen = rng.choice(len(pool), n, replace=False)
            for name, value in _small_fit(mapping, pool.take(chosen), fitted, unseen, source, target).items():
                drawn.setdefault(name, []).append(value)
        for name, values in drawn.items():
            draws.setdefault(name, []).append(values)
    kinds = {"image–image cosine": "before", "text–text cosine": "after", "images classified by carried text": "oracle"}
    curves = [
        {
            "name": name,
            "kind": kinds.get(name, "after"),
            "mean": [float(np.mean(values)) for values in drawn],
            "low": [float(np.min(values)) for values in drawn],
            "high": [float(np.max(values)) for values in drawn],
        }
        for name, drawn in draws.items()
    ]
    return {"n": sizes, "repeats": repeats, "curves": curves, "held_out": rule is not None}


def _small_fit(
    mapping: OrthogonalMap,
    anchors: Pairs,
    fitted: str,
    unseen: Bundle,
    source: Mapping[str, Embeddings],
    target: Mapping[str, Embeddings],
) -> dict[str, float]:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # few anchors leave directions unprobed: that is what is being shown
        small = OrthogonalMap(**mapping.get_params())
        small.fit(anchors.source.vectors, anchors.target.vectors, modality=fitted)
        for modality, (ours, theirs) in mapping.modality_means_.items():
            if modality != fitted:
                small = small.recenter(ours, theirs, modality=modality)
    out = {}
    for modality in source:
        if modality in target and modality in small.modality_means_:
            moved = Pairs.join(_carry(small, modality, source[modality]), target[modality])
            out[f"{modality}–{modality} cosine"] = float(paired_cosines(*moved).mean())
    if "text" in source and "image" in target and "text" in small.modality_means_:
        texts = _carry(small, "text", source["text"])
        classes, images = unseen.class_of("text", texts.ids), unseen.class_of("image", target["image"].ids)
        if len(np.unique(classes)) == len(classes) and np.isin(images, classes).all():
            out["images classified by carried text"] = zero_shot_accuracy(
                target["image"].vectors, texts.vectors, images, classes
            )
    return out


# ------------------------------------------------------------------ examples


def _nearest(queries: np.ndarray, gallery: np.ndarray, k: int) -> np.ndarray:
    """Return row numbers of the ``k`` largest cosines of unit rows, best first."""
    k = min(k, len(gallery))
    out = np.empty((len(queries), k), dtype=np.intp)
    step = max(1, 2**24 // len(gallery))
    for start in range(0, len(queries), step):
        similarity = queries[start : start + step] @ gallery.T
        best = np.argpartition(-similarity, k - 1, axis=1)[:, :k]
        order = np.take_along_axis(-similarity, best, axis=1).argsort(axis=1, kind="stable")
        out[start : start + step] = np.take_along_axis(best, order, axis=1)
    return out


def _commuting(
    bundle: Bundle,
    source: Mapping[str, Embeddings],
    target: Mapping[str, Embeddings],
    aligned: Mapping[str, Embeddings],
    rng: np.random.Generator,
    examples: int,
) -> dict[str, Any] | None:
    """Compare the direct path with the one through texts (appendix E.12, figures 53 and 54)."""
    if not all(m in side for side in (source, target) for m in ("image", "text")):
        return None
    queries = _some(len(source["image"]), 2_000, rng)
    pictures = _unit(target["image"])
    carried = aligned["image"].vectors[queries].astype(np.float32, copy=False)
    direct = _nearest(carried, pictures, 5)
    read = _nearest(_unit(source["image"])[queries], _unit(source["text"]), 1)[:, 0]
    moved = _nearest(aligned["text"].vectors[read].astype(np.float32, copy=False), _unit(target["text"]), 1)[:, 0]
    mediated = _nearest(_unit(target["text"])[moved], pictures, 5)
    own = np.flatnonzero(np.isin(source["image"].ids[queries], target["image"].ids))
    overlap = np.array([len({*a} & {*b}) / len(a) for a, b in zip(direct.tolist(), mediated.tolist(), strict=True)])
    image_ids, text_ids = source["image"].ids[queries], source["text"].ids
    labels = [bundle.labels.get(c) for c in bundle.class_of("image", target["image"].ids).tolist()]
    result: dict[str, Any] = {
        "overlap": float(overlap.mean()),
        "chance": float(direct.shape[1] / len(pictures)),
        "n": len(queries),
        "label_agreement": None,
        "examples": [],
    }
    if all(label is not None for label in labels):
        names = np.array(labels)
        mine = np.array([bundle.labels.get(c) for c in bundle.class_of("image", image_ids).tolist()], dtype=object)
        result["label_agreement"] = {
            "direct": float((names[direct] == mine[:, None]).mean()),
            "mediated": float((names[mediated] == mine[:, None]).mean()),
            "chance": float(np.mean([(names == label).mean() for label in mine])),
        }
    for q in rng.permutation(own)[:examples].tolist():
        result["examples"].append(
            {
                "query": _item(bundle, "image", str(image_ids[q])),
                "read": _words(bundle, "text", str(text_ids[read[q]])),
                "carried_to": _words(bundle, "text", str(target["text"].ids[moved[q]])),
                "direct": [_item(bundle, "image", str(target["image"].ids[k])) for k in direct[q]],
                "mediated": [_item(bundle, "image", str(target["image"].ids[k])) for k in mediated[q]],
                "shared": round(float(overlap[q]) * direct.shape[1]),
            }
        )
    return result


def _edits(mapping: Map, bundle: Bundle) -> dict[str, Any] | None:
    """Change only the class in a caption, carry it, and look (appendix E.13, figures 55 and 56)."""
    if "edit" not in bundle.source or "image" not in bundle.target:
        return None
    edits, pictures = bundle.source["edit"], bundle.target["image"]
    queries = _carry(mapping, "text", edits).vectors.astype(np.float32, copy=False)
    gallery = _unit(pictures)
    found = _nearest(queries, gallery, 5)
    oracle = None
    if "edit" in bundle.target:
        oracle = _nearest(_unit(bundle.target["edit"].take(edits.ids)), gallery, 5)
    wanted, classes = bundle.class_of("edit", edits.ids), bundle.class_of("image", pictures.ids)
    rows = []
    for q, i in enumerate(edits.ids.tolist()):
        before = bundle.before.get(i)
        rows.append(
            {
                "text": _words(bundle, "edit", i),
                "before": _words(bundle, "text", before) if before else None,
                "found": [
                    {**_item(bundle, "image", str(pictures.ids[k])), "wanted": bool(classes[k] == wanted[q])}
                    for k in found[q]
                ],
            }
        )

    def hits(best: np.ndarray) -> float:
        return float((classes[best] == wanted[:, None]).any(axis=1).mean())

    return {
        "rows": rows,
        "top5": hits(found),
        "oracle_top5": None if oracle is None else hits(oracle),
        "n": len(rows),
        "gallery": len(gallery),
    }


def _words(bundle: Bundle, kind: str, i: str) -> str:
    return bundle.texts.get(kind, {}).get(i, i)


def _item(bundle: Bundle, kind: str, i: str) -> dict[str, Any]:
    return {"id": i, "text": _words(bundle, kind, i), "picture": _data_uri(bundle.thumbnails.get(i))}


def _data_uri(picture: bytes | None) -> str | None:
    """Return a picture as a data URI; what is not plainly a PNG, JPEG or WebP is not shown."""
    if not picture:
        return None
    for magic, kind in _PICTURES.items():
        if picture.startswith(magic) and (kind != "image/webp" or picture[8:12] == b"WEBP"):
            return f"data:{kind};base64,{base64.b64encode(picture).decode()}"
    return None
