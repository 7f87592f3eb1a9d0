"""The page of a map, and the computation of its data, as plain data, from the map and both models' embeddings."""

from __future__ import annotations

import base64
import warnings
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, TypeAlias

import numpy as np

from congruence._utils.arrays import normalize_rows
from congruence._utils.ids import id_rows, id_texts, is_in
from congruence._utils.validation import check_seed
from congruence._version import __version__
from congruence.datasets import Bundle
from congruence.embeddings import Embeddings, Pairs
from congruence.errors import InputError, ParameterError
from congruence.evaluation import Comparison, Score, Scores, evaluate
from congruence.evaluation.controls import DRAWS, RANDOM_STATE, chance_at_k, control_rows, cosine_controls
from congruence.maps import HeadsMap, Map, OrthogonalMap
from congruence.maps.card import choice_rows
from congruence.metrics import class_retrieval, nearest, paired_cosines, zero_shot_accuracy
from congruence.plotting import draw_clouds, draw_cosines, draw_few_anchors, draw_kernel, draw_spectrum
from congruence.report.rendering import fill, svg
from congruence.splits import Split, duplicate_groups

Side: TypeAlias = Mapping[str, Embeddings]  # the images and texts of one model

#: Smallest share of the model's own score that mapped vectors must reach for the levels "passes" and "partial".
PASSES, PARTLY_PASSES = 0.8, 0.4


def summarize(
    mapping: Map,
    bundle: Bundle,
    *,
    held_out: bool | None = None,
    scores: Scores | None = None,
    comparison: Comparison | None = None,
    random_state: int = 0,
    examples: int = 6,
    repeats: int = 5,
) -> dict[str, Any]:
    """Score a map, and return everything that a report shows, as plain data: numbers, text, lists, data URIs.

    Parts of the report whose data are missing are left out. ``held_out``: measure only on items that the map was not
    fitted on; by default, if the map records them. ``scores`` and ``comparison``, if they have already been computed,
    are from ``congruence.evaluate`` and ``congruence.compare_maps``. ``examples`` are those of the commuting diagram;
    ``repeats``, the draws of anchors for each point of the few-anchor curve.
    """
    check_seed(random_state)
    if isinstance(mapping, HeadsMap):
        problem = f"Got a joint-space map ({mapping.kind}); expected a map into the new model's space."
        raise ParameterError(problem, "Use summarize_training.")
    rule = mapping.scores_.get("holdout")
    if held_out and rule is None:
        raise InputError("No held-out pairs: the map was fitted on all pairs.", "Fit with `holdout=0.2`, for example.")
    unseen = bundle
    if rule is not None and held_out is not False:
        unseen = bundle.take(held_out_ids(bundle, Split.from_dict(rule), mapping.source_space_.modality))
    rng = np.random.default_rng(random_state)
    source, target = unseen.side("source"), unseen.side("target")
    if scores is None:
        labels = None
        if "image" in unseen.classes:
            ids = {i for side in (source, target) if "image" in side for i in side["image"].ids.tolist()}
            labels = {i: unseen.classes["image"].get(i, i) for i in ids}
        scores = evaluate(mapping, source, target, labels=labels, prompt_labels=None)
    aligned = {m: map_rows(mapping, m, rows) for m, rows in source.items()}
    spectrum = None
    if isinstance(mapping, OrthogonalMap):
        values = {"singular_values": mapping.singular_values_.tolist(), "gains": mapping.gains_.tolist()}
        spectrum = {**values, "rank": int(mapping.rank_)}
    return {
        "version": __version__,
        "title": f"{mapping.source_space_.model or 'old model'} → {mapping.target_space_.model or 'new model'}",
        "held_out": unseen is not bundle,
        "verdict": _verdict(scores, unseen is not bundle),
        "facts": _facts(mapping, source, target),
        "scores": [asdict(row) for row in scores.rows],
        "notes": list(scores.notes),
        "comparison": None if comparison is None else comparison.to_dict(),
        "covered": dict(scores.covered_share),
        "histograms": _histograms(mapping, source, target, aligned, rng),
        "spectrum": spectrum,
        "clouds": _clouds(source, target, aligned, rng),
        "kernel": _kernel(unseen, source, target, rng),
        "few_anchors": _few_anchors(mapping, bundle, rule, rng, repeats),
        "commuting": commuting(unseen, source, target, aligned, rng, examples),
        "edits": edits(mapping, bundle),
        "info": {
            "title": str(bundle.info.get("title", "")),
            "licences": [str(line) for line in bundle.info.get("licences", [])],
        },
    }


#: The beginning of the sentence, and what to do, for each level of the verdict.
_WORDS = {
    "passes": (
        "The map works",
        "Mapped vectors can stand in for re-embedded ones in search. Run congruence check for intervals before you "
        "switch.",
    ),
    "partial": (
        "The map works partly",
        "Add pairs (congruence lab anchors chooses them), or re-embed the items that matter most. Run congruence "
        "check to see what more pairs would add.",
    ),
    "fails": (
        "The map does not work",
        "Do not search with this map. Check that its rows are paired (congruence fit reports this), add pairs, or "
        "re-embed.",
    ),
    "unknown": (
        "Retrieval could not be measured",
        "Pass images and texts, or the same items in both models, to measure retrieval.",
    ),
}


def _verdict(scores: Scores, held_out: bool) -> dict[str, object]:
    """Return the level, what to do, and a sentence with retrieval scores; cosines say little without controls."""
    by_key = {(row.metric, row.query, row.against): row for row in scores.rows}
    ways = ("aligned image", "target text"), ("target image", "aligned text")
    main = next((by_key["zero_shot", *way] for way in ways if ("zero_shot", *way) in by_key), None)
    own = main and (main.target or main.source)
    retrieval = [row for row in scores.rows if row.metric == "retrieval"]
    parts, reached, rule = [], None, ""
    if main is not None and own:  # both modalities are given
        reached, model = main.after / own, "new" if main.target else "old"
        rule = f"accuracy of mapped vectors relative to the {model} model's own"
        kind = "a mapped image finds its text" if main.query == "aligned image" else "an image finds its mapped text"
        parts.append(
            f"{kind} {main.after:.1%} of the time, against {own:.1%} in the {model} model itself{_in_parentheses(main)}"
        )
    elif retrieval:
        reached, rule = retrieval[0].after, "retrieval of each item's own counterpart"
        parts = [
            f"a mapped {row.query.split(' ')[1]} finds its own counterpart first {row.after:.1%} of the time"
            f"{_in_parentheses(row)}"
            for row in retrieval
        ]
    level = "unknown"
    if reached is not None:
        level = "passes" if reached >= PASSES else "partial" if reached >= PARTLY_PASSES else "fails"
    opening, action = _WORDS[level]
    where = "held-out items" if held_out else "items, some of which the map may have been fitted on"
    on = f"on {max(row.n for row in scores.rows):,} {where}"
    sentence = f"{opening}: {on}, {'; '.join(parts)}." if parts else f"{opening} {on}."
    return {"level": level, "action": action, "sentence": sentence, "reached": reached, "rule": rule}


def _in_parentheses(row: Score) -> str:
    references = (row.before, "without the map"), (row.chance, "by chance")
    said = ", ".join(f"{value:.1%} {name}" for value, name in references if value is not None)
    return f" ({said})" if said else ""


def _facts(mapping: Map, source: Side, target: Side) -> list[list[str]]:
    facts = []
    for name, side, space in (
        ("Old model", source, mapping.source_space_),
        ("New model", target, mapping.target_space_),
    ):
        dim = next((rows.dim for rows in side.values()), space.dim)
        facts.append([name, f"{space.model or 'unnamed'}, {dim}-d"])
    facts.append(["Map", type(mapping).__name__])
    fitted, anchors = mapping.source_space_.modality, mapping.scores_.get("n_pairs")
    if anchors:
        facts.append(["Fitted on", f"{anchors:,} pairs" + (f" of {fitted}s" if fitted else "")])
    if "choice" in mapping.scores_:
        evidence = [row for row in choice_rows(mapping.scores_["choice"]) if not row[0].startswith(" ")]
        facts += [[name.capitalize(), value] for name, value in evidence]
    if isinstance(mapping, OrthogonalMap):
        modalities = ", ".join(mapping.modality_means_) or fitted or "as fitted"
        facts += [["Means known for", modalities], ["Directions kept", f"{mapping.rank_} of {len(mapping.gains_)}"]]
    return facts


def render(summary: dict[str, Any]) -> str:
    """Return a report as one page, from the data of ``congruence.report.summarize``."""
    spectrum, kernel, clouds, curves = (summary[name] for name in ("spectrum", "kernel", "clouds", "few_anchors"))
    measured = {curve["measure"] for curve in curves["curves"]} if curves else set()
    plots = {
        "histograms": [
            svg(draw_cosines, data, title=f"{data['name']}: cosines of pairs") for data in summary["histograms"]
        ],
        "spectrum": spectrum and svg(draw_spectrum, spectrum, title="singular values and gains"),
        "kernel": kernel and svg(draw_kernel, kernel, title="image–text similarities in both models"),
        "few_anchors": {
            name: svg(draw_few_anchors, curves, measures, title=f"{name} by number of pairs")
            for name, measures in (("retrieval", ("classified", "retrieval")), ("cosine", ("cosine",)))
            if measured.intersection(measures)
        },
        "clouds": clouds
        and {
            when: svg(draw_clouds, clouds[when]["points"], title=f"both models {when} the map", mapped=when == "after")
            for when in ("before", "after")
        },
    }
    return fill("report.html", s=summary, plots=plots)


_ROWS, _MARKS = 5_000, 400  # largest number of rows in a histogram, and of points in a scatter plot
_GALLERY = 2_000  # largest number of rows that a fit of the few-anchor curve is scored on
_Key: TypeAlias = tuple[str, str, str]  # measure, items, and "mapped" or the name of a control

#: Measures of the few-anchor curves in their order, and names of the curves by measure and kind: the mapped rows or a
#: control.
_MEASURES = ("classified", "retrieval", "cosine")
_NAMES = {
    ("classified", "mapped"): "images classified by mapped text",
    ("retrieval", "mapped"): "{0} → its {0}, at 1",
    ("cosine", "mapped"): "{0}–{0} cosine",
    ("cosine", "constant"): "{0}–{0} cosine, constant",
    ("cosine", "random rotation"): "{0}–{0} cosine, random rotation",
}


def _histograms(
    mapping: Map, source: Side, target: Side, aligned: Side, rng: np.random.Generator
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


def _clouds(source: Side, target: Side, aligned: Side, rng: np.random.Generator) -> dict[str, object] | None:
    """Project both models' rows onto two principal directions, before and after mapping (figures 1, 2 and 9)."""
    shared = [m for m in ("image", "text") if m in source and m in target]
    if not shared:
        return None
    drawn_ids: dict[str, np.ndarray] = {}
    for m in shared:
        ids = Pairs.join(source[m], target[m]).ids
        drawn_ids[m] = ids[some_rows(len(ids), 60, rng)]

    def project(side: Side) -> dict[str, object]:
        clouds = {
            f"{name} {m}": normalize_rows(own[m].take(drawn_ids[m]).vectors, dtype=np.float32)
            for name, own in (("source", side), ("target", target))
            for m in shared
        }
        width = max(cloud.shape[1] for cloud in clouds.values())
        # Rows of a narrower model are padded with zeros; before mapping, coordinates of different models are unrelated
        # anyway.
        stacked = np.vstack([np.pad(cloud, ((0, 0), (0, width - cloud.shape[1]))) for cloud in clouds.values()])
        centered = stacked.astype(np.float64) - stacked.mean(axis=0, dtype=np.float64)
        _, s, vt = np.linalg.svd(centered, full_matrices=False)
        # Signs of principal directions are arbitrary: fix them, so that equal data give equal plots.
        vt = vt[:2] * np.sign(vt[:2][[0, 1], np.abs(vt[:2]).argmax(axis=1)])[:, None]
        ends = np.cumsum([len(cloud) for cloud in clouds.values()])[:-1]
        points = [part.tolist() for part in np.split(np.round(centered @ vt.T, 4), ends)]
        variance_share = float((s[:2] ** 2).sum() / (s**2).sum()) if s.any() else 0.0
        return {"points": dict(zip(clouds, points, strict=True)), "variance_share": variance_share}

    return {
        "before": {**project(source), "gaps": {"source": _gap(source), "target": _gap(target)}},
        "after": {**project(aligned), "gaps": {"mapped source": _gap(aligned), "target": _gap(target)}},
    }


def _gap(side: Side) -> float | None:
    """Return the modality gap, the distance between the mean image and the mean text (Liang et al. 2022)."""
    if not {"image", "text"} <= {*side}:
        return None
    return float(np.linalg.norm(side["image"].mean - side["text"].mean))


def _kernel(bundle: Bundle, source: Side, target: Side, rng: np.random.Generator) -> dict[str, object] | None:
    """Compare the similarities ⟨f(x), g(y)⟩ of the source with those of the target (figures 3 and 10)."""
    if not all(m in side for side in (source, target) for m in ("image", "text")):
        return None
    images, texts = Pairs.join(source["image"], target["image"]), Pairs.join(source["text"], target["text"])
    images, texts = images.take(some_rows(len(images), 1_000, rng)), texts.take(some_rows(len(texts), 1_000, rng))
    source_kernel, target_kernel = (
        normalize_rows(rows.vectors, dtype=np.float32) @ normalize_rows(columns.vectors, dtype=np.float32).T
        for rows, columns in ((images.source, texts.source), (images.target, texts.target))
    )
    same = bundle.class_of("image", images.ids)[:, None] == bundle.class_of("text", texts.ids)[None]
    centered = [k - k.mean(0) - k.mean(1, keepdims=True) + k.mean() for k in (source_kernel, target_kernel)]
    norms = np.linalg.norm(centered[0]) * np.linalg.norm(centered[1])

    def draw(mask: np.ndarray, most: int) -> list[list[float]]:
        a, b = source_kernel[mask], target_kernel[mask]
        chosen = some_rows(len(a), most, rng)
        points: list[list[float]] = np.round(np.stack([a[chosen], b[chosen]], 1), 4).tolist()
        return points

    return {
        "matched": draw(same, _MARKS),
        "other": draw(~same, 1_500),
        "correlation": float(np.corrcoef(source_kernel.ravel(), target_kernel.ravel())[0, 1]),
        "centered_alignment": float((centered[0] * centered[1]).sum() / norms) if norms else None,
        "difference": float(np.sqrt(np.mean((source_kernel - target_kernel) ** 2))),
        "n": int(source_kernel.size),
    }


def _few_anchors(
    mapping: Map, bundle: Bundle, rule: Mapping[str, object] | None, rng: np.random.Generator, repeats: int
) -> dict[str, Any] | None:
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
    draws: dict[_Key, list[list[float]]] = {}
    for n in sizes:
        drawn: dict[_Key, list[float]] = {}
        for k in range(repeats):
            anchors = pool.take(rng.choice(len(pool), n, replace=False))
            # Controls depend on the anchors only through their means, so the controls of one draw are enough.
            for key, value in _small_fit(mapping, anchors, fitted, unseen, controls=k == 0).items():
                drawn.setdefault(key, []).append(value)
        for key, values in drawn.items():
            draws.setdefault(key, []).append(values)
    curves = [
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
    mapping: OrthogonalMap, anchors: Pairs, fitted: str, unseen: Bundle, controls: bool
) -> dict[_Key, float]:
    """Fit a map on few anchors, and return its scores by measure, items, and "mapped" or the name of a control."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # few anchors do not cover all directions, which is what the figure shows
        small = OrthogonalMap(**mapping.get_params())
        small.fit(anchors.source.vectors, anchors.target.vectors, modality=fitted)
        for modality, (source_mean, target_mean) in mapping.modality_means_.items():
            if modality != fitted:
                small = small.recenter(source_mean, target_mean, modality=modality)
    small.readout_, small.role_ = mapping.readout_, mapping.role_
    source, target = unseen.side("source"), unseen.side("target")
    out: dict[_Key, float] = {}
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


# ------------------------------------------------------------------ examples: the commuting diagram and edited captions

_PICTURES = {b"\x89PNG": "image/png", b"\xff\xd8\xff": "image/jpeg", b"RIFF": "image/webp"}


def _nearest(queries: np.ndarray, gallery: np.ndarray, k: int) -> np.ndarray:
    return nearest(queries, min(k, len(gallery)), gallery, exact=False)


def commuting(
    bundle: Bundle, source: Side, target: Side, aligned: Side, rng: np.random.Generator, examples: int
) -> dict[str, Any] | None:
    """Compare images retrieved by mapped images with those retrieved through texts (E.12, figures 53 and 54)."""
    if not all(m in side for side in (source, target) for m in ("image", "text")):
        return None
    # If both models have some pictures in common, the queries are drawn from these, since only they have a correct
    # result.
    common = np.flatnonzero(is_in(source["image"].ids, target["image"].ids))
    common = common if len(common) else np.arange(len(source["image"]))
    queries = common[some_rows(len(common), 2_000, rng)]
    pictures = normalize_rows(target["image"].vectors, dtype=np.float32)
    mapped = aligned["image"].vectors[queries].astype(np.float32, copy=False)
    direct = _nearest(mapped, pictures, 5)
    texts, target_texts = (normalize_rows(side["text"].vectors, dtype=np.float32) for side in (source, target))
    captions = _nearest(normalize_rows(source["image"].vectors[queries], dtype=np.float32), texts, 1)[:, 0]
    mapped_captions = aligned["text"].vectors[captions].astype(np.float32, copy=False)
    target_captions = _nearest(mapped_captions, target_texts, 1)[:, 0]
    mediated = _nearest(target_texts[target_captions], pictures, 5)
    found = {"direct": direct, "mediated": mediated}
    own_row = id_rows(target["image"].ids, source["image"].ids[queries])  # of the same picture, or −1
    own, hits = np.flatnonzero(own_row >= 0), {name: rows == own_row[:, None] for name, rows in found.items()}
    overlap = np.array([len({*a} & {*b}) / len(a) for a, b in zip(direct.tolist(), mediated.tolist(), strict=True)])
    image_ids, text_ids = source["image"].ids[queries], source["text"].ids
    result: dict[str, Any] = {
        "overlap": float(overlap.mean()),
        "chance": float(direct.shape[1] / len(pictures)),
        "n": len(queries),
        "label_agreement": None,
        "n_own": len(own),
        "found": float(hits["direct"][own].any(axis=1).mean()) if len(own) else None,
        "examples": [],
    }
    picture_labels = [bundle.labels.get(c) for c in bundle.class_of("image", target["image"].ids).tolist()]
    if all(label is not None for label in picture_labels):
        labels = np.array(picture_labels)
        query_labels = np.array([bundle.labels.get(c) for c in bundle.class_of("image", image_ids).tolist()], object)
        agreement = {name: float((labels[rows] == query_labels[:, None]).mean()) for name, rows in found.items()}
        agreement["chance"] = float(np.mean([(labels == label).mean() for label in query_labels]))
        result["label_agreement"] = agreement
    for q in rng.permutation(own)[:examples].tolist():
        both = {*direct[q].tolist()} & {*mediated[q].tolist()}
        paths = {
            name: [
                {**_item(bundle, "image", str(target["image"].ids[k])), "shared": k in both, "own": bool(hit)}
                for k, hit in zip(rows[q].tolist(), hits[name][q], strict=True)
            ]
            for name, rows in found.items()
        }
        result["examples"].append(
            {
                "query": _item(bundle, "image", str(image_ids[q])),
                "read": _text(bundle, "text", str(text_ids[captions[q]])),
                "mapped_to": _text(bundle, "text", str(target["text"].ids[target_captions[q]])),
                **paths,
                "own_at": {name: _first(hit[q]) for name, hit in hits.items()},
                "shared": round(float(overlap[q]) * direct.shape[1]),
            }
        )
    return result


def edits(mapping: Map, bundle: Bundle) -> dict[str, Any] | None:
    """Retrieve images by mapped captions in which only the class was changed (appendix E.13, figures 55 and 56)."""
    if "edit" not in bundle.source or "image" not in bundle.target:
        return None
    edited, pictures = bundle.source["edit"], bundle.target["image"]
    queries = map_rows(mapping, "text", edited).vectors.astype(np.float32, copy=False)
    gallery = normalize_rows(pictures.vectors, dtype=np.float32)
    found = _nearest(queries, gallery, 5)
    wanted, classes = bundle.class_of("edit", edited.ids), bundle.class_of("image", pictures.ids)
    rows = []
    for q, i in enumerate(edited.ids.tolist()):
        right, before = classes[found[q]] == wanted[q], bundle.before.get(i)
        rows.append(
            {
                "found_at": _first(right),
                "text": _text(bundle, "edit", i),
                "before": _text(bundle, "text", before) if before else None,
                "found": [
                    {**_item(bundle, "image", str(name)), "wanted": bool(hit)}
                    for name, hit in zip(pictures.ids[found[q]], right, strict=True)
                ],
            }
        )

    found_by = {"top5": found}
    if "edit" in bundle.target:
        own = normalize_rows(bundle.target["edit"].take(edited.ids).vectors, dtype=np.float32)
        found_by["oracle_top5"] = _nearest(own, gallery, 5)
    rates = {name: float((classes[at] == wanted[:, None]).any(axis=1).mean()) for name, at in found_by.items()}
    return {
        "rows": rows,
        "oracle_top5": None,
        **rates,
        "chance": chance_at_k([int((classes == name).sum()) for name in wanted], len(classes), found.shape[1]),
        "n": len(rows),
        "gallery": len(gallery),
    }


def _first(hits: np.ndarray) -> int | None:
    return int(hits.argmax()) + 1 if hits.any() else None


def _text(bundle: Bundle, kind: str, i: str) -> str:
    return bundle.texts.get(kind, {}).get(i, i)


def _item(bundle: Bundle, kind: str, i: str) -> dict[str, object]:
    return {"id": i, "text": _text(bundle, kind, i), "picture": data_uri(bundle.thumbnails.get(i))}


def data_uri(picture: bytes | None) -> str | None:
    """Return a picture as a data URI; None if its first bytes are not those of a PNG, JPEG or WebP."""
    if not picture:
        return None
    for magic, kind in _PICTURES.items():
        if picture.startswith(magic) and (kind != "image/webp" or picture[8:12] == b"WEBP"):
            return f"data:{kind};base64,{base64.b64encode(picture).decode()}"
    return None


# ------------------------------------------------------------------ rows


def held_out_ids(bundle: Bundle, split: Split, fitted: str | None) -> dict[str, np.ndarray]:
    """Return the ids of the items that a map was not fitted on, by modality, for ``Bundle.take``.

    Ids of a bundle without classes of images may name classes, which are then held out in both modalities.
    """
    held_out = {}
    for modality in ("image", "text"):
        sides = [side[modality].ids for side in (bundle.source, bundle.target) if modality in side]
        if sides and (modality == fitted or fitted is None or not bundle.classes.get("image")):
            ids = np.unique(np.concatenate([id_texts(side) for side in sides]))
            held_out[modality] = ids[split.held_out(ids)]
    return held_out


def with_means(mapping: Map, modality: str) -> Map:
    """Return the map with the means of a modality, or with its default means if it has none for this modality."""
    known = isinstance(mapping, OrthogonalMap) and modality in mapping.modality_means_
    return mapping.for_modality(modality if known else None)


def map_rows(mapping: Map, modality: str, rows: Embeddings) -> Embeddings:
    """Return the mapped rows, scaled to unit norm."""
    vectors = with_means(mapping, modality).transform(rows.vectors)
    return Embeddings(normalize_rows(vectors), ids=rows.ids, allow_zero_rows=True)


def some_rows(n: int, most: int, rng: np.random.Generator) -> np.ndarray:
    """Return the numbers of all n rows, or of ``most`` random ones if there are more."""
    return np.arange(n) if n <= most else np.sort(rng.choice(n, most, replace=False))
