"""The examples of a report: the commuting diagram and edited captions."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import numpy as np

from congruence import metrics
from congruence._utils.arrays import normalize_rows
from congruence._utils.ids import is_in
from congruence.datasets import Bundle
from congruence.embeddings import Embeddings
from congruence.evaluation.controls import chance_at_k
from congruence.maps import Map
from congruence.report._base import map_rows, some_rows

_PICTURES = {b"\x89PNG": "image/png", b"\xff\xd8\xff": "image/jpeg", b"RIFF": "image/webp"}


def _nearest(queries: np.ndarray, gallery: np.ndarray, k: int) -> np.ndarray:
    """Return row numbers of the ``k`` largest cosines of unit rows, best first."""
    return metrics.nearest(queries, min(k, len(gallery)), gallery, exact=False)


def commuting(
    bundle: Bundle,
    source: Mapping[str, Embeddings],
    target: Mapping[str, Embeddings],
    aligned: Mapping[str, Embeddings],
    rng: np.random.Generator,
    examples: int,
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
    own = np.flatnonzero(is_in(source["image"].ids[queries], target["image"].ids))
    target_row = {i: k for k, i in enumerate(target["image"].ids.tolist())}

    def own_at(q: int, nearest: np.ndarray) -> int | None:
        """Return the rank, from 1, at which a query finds the target's vector of the same picture."""
        hits = np.flatnonzero(nearest[q] == target_row[str(source["image"].ids[queries[q]])])
        return int(hits[0]) + 1 if len(hits) else None

    overlap = np.array([len({*a} & {*b}) / len(a) for a, b in zip(direct.tolist(), mediated.tolist(), strict=True)])
    image_ids, text_ids = source["image"].ids[queries], source["text"].ids
    picture_labels = [bundle.labels.get(c) for c in bundle.class_of("image", target["image"].ids).tolist()]
    result: dict[str, Any] = {
        "overlap": float(overlap.mean()),
        "chance": float(direct.shape[1] / len(pictures)),
        "n": len(queries),
        "label_agreement": None,
        "n_own": len(own),
        "found": float(np.mean([own_at(q, direct) is not None for q in own.tolist()])) if len(own) else None,
        "examples": [],
    }
    if all(label is not None for label in picture_labels):
        labels = np.array(picture_labels)
        query_classes = bundle.class_of("image", image_ids).tolist()
        query_labels = np.array([bundle.labels.get(c) for c in query_classes], dtype=object)
        result["label_agreement"] = {
            "direct": float((labels[direct] == query_labels[:, None]).mean()),
            "mediated": float((labels[mediated] == query_labels[:, None]).mean()),
            "chance": float(np.mean([(labels == label).mean() for label in query_labels])),
        }
    for q in rng.permutation(own)[:examples].tolist():
        both = {*direct[q].tolist()} & {*mediated[q].tolist()}
        paths = {
            name: [
                {
                    **_item(bundle, "image", str(target["image"].ids[k])),
                    "shared": k in both,
                    "own": r + 1 == own_at(q, nearest),
                }
                for r, k in enumerate(nearest[q].tolist())
            ]
            for name, nearest in (("direct", direct), ("mediated", mediated))
        }
        result["examples"].append(
            {
                "query": _item(bundle, "image", str(image_ids[q])),
                "read": _text(bundle, "text", str(text_ids[captions[q]])),
                "mapped_to": _text(bundle, "text", str(target["text"].ids[target_captions[q]])),
                **paths,
                "own_at": {"direct": own_at(q, direct), "mediated": own_at(q, mediated)},
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
    nearest = _nearest(queries, gallery, 5)
    oracle = None
    if "edit" in bundle.target:
        oracle = _nearest(normalize_rows(bundle.target["edit"].take(edited.ids).vectors, dtype=np.float32), gallery, 5)
    wanted, classes = bundle.class_of("edit", edited.ids), bundle.class_of("image", pictures.ids)
    rows = []
    for q, i in enumerate(edited.ids.tolist()):
        before = bundle.before.get(i)
        hits = np.flatnonzero(classes[nearest[q]] == wanted[q])
        rows.append(
            {
                "found_at": int(hits[0]) + 1 if len(hits) else None,
                "text": _text(bundle, "edit", i),
                "before": _text(bundle, "text", before) if before else None,
                "found": [
                    {**_item(bundle, "image", str(pictures.ids[k])), "wanted": bool(classes[k] == wanted[q])}
                    for k in nearest[q]
                ],
            }
        )

    def hit_rate(nearest: np.ndarray) -> float:
        return float((classes[nearest] == wanted[:, None]).any(axis=1).mean())

    return {
        "rows": rows,
        "top5": hit_rate(nearest),
        "oracle_top5": None if oracle is None else hit_rate(oracle),
        "chance": chance_at_k([int((classes == name).sum()) for name in wanted], len(classes), nearest.shape[1]),
        "n": len(rows),
        "gallery": len(gallery),
    }


def _text(bundle: Bundle, kind: str, i: str) -> str:
    """Return the text of an item, or its id if there is none."""
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
