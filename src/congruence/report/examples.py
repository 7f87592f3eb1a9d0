"""The examples of a report: the commuting diagram and edited captions."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import numpy as np

from congruence import metrics
from congruence._utils.ids import is_in
from congruence.datasets import Bundle
from congruence.embeddings import Embeddings
from congruence.evaluation.controls import chance_at_k
from congruence.maps import Map
from congruence.report._base import map_rows, some_rows, unit

__all__ = ["commuting", "data_uri", "edits"]

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
    """Compare the direct path with the one through texts (appendix E.12, figures 53 and 54)."""
    if not all(m in side for side in (source, target) for m in ("image", "text")):
        return None
    # Drawn from the pictures that both models have, where there are any: a few encoded again may be all that can be shown.
    common = np.flatnonzero(is_in(source["image"].ids, target["image"].ids))
    common = common if len(common) else np.arange(len(source["image"]))
    queries = common[some_rows(len(common), 2_000, rng)]
    pictures = unit(target["image"])
    mapped = aligned["image"].vectors[queries].astype(np.float32, copy=False)
    direct = _nearest(mapped, pictures, 5)
    read = _nearest(unit(source["image"])[queries], unit(source["text"]), 1)[:, 0]
    moved = _nearest(aligned["text"].vectors[read].astype(np.float32, copy=False), unit(target["text"]), 1)[:, 0]
    mediated = _nearest(unit(target["text"])[moved], pictures, 5)
    own = np.flatnonzero(is_in(source["image"].ids[queries], target["image"].ids))
    own_row = {i: k for k, i in enumerate(target["image"].ids.tolist())}

    def own_at(q: int, found: np.ndarray) -> int | None:
        """Return the rank, from 1, at which a query finds the target's vector of the same picture."""
        hits = np.flatnonzero(found[q] == own_row[str(source["image"].ids[queries[q]])])
        return int(hits[0]) + 1 if len(hits) else None

    overlap = np.array([len({*a} & {*b}) / len(a) for a, b in zip(direct.tolist(), mediated.tolist(), strict=True)])
    image_ids, text_ids = source["image"].ids[queries], source["text"].ids
    labels = [bundle.labels.get(c) for c in bundle.class_of("image", target["image"].ids).tolist()]
    result: dict[str, Any] = {
        "overlap": float(overlap.mean()),
        "chance": float(direct.shape[1] / len(pictures)),
        "n": len(queries),
        "label_agreement": None,
        "n_own": len(own),
        "found": float(np.mean([own_at(q, direct) is not None for q in own.tolist()])) if len(own) else None,
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
        both = {*direct[q].tolist()} & {*mediated[q].tolist()}
        paths = {
            name: [
                {
                    **_item(bundle, "image", str(target["image"].ids[k])),
                    "shared": k in both,
                    "own": r + 1 == own_at(q, found),
                }
                for r, k in enumerate(found[q].tolist())
            ]
            for name, found in (("direct", direct), ("mediated", mediated))
        }
        result["examples"].append(
            {
                "query": _item(bundle, "image", str(image_ids[q])),
                "read": _words(bundle, "text", str(text_ids[read[q]])),
                "carried_to": _words(bundle, "text", str(target["text"].ids[moved[q]])),
                **paths,
                "own_at": {"direct": own_at(q, direct), "mediated": own_at(q, mediated)},
                "shared": round(float(overlap[q]) * direct.shape[1]),
            }
        )
    return result


def edits(mapping: Map, bundle: Bundle) -> dict[str, Any] | None:
    """Change only the class in a caption, map it, and retrieve images (appendix E.13, figures 55 and 56)."""
    if "edit" not in bundle.source or "image" not in bundle.target:
        return None
    edits, pictures = bundle.source["edit"], bundle.target["image"]
    queries = map_rows(mapping, "text", edits).vectors.astype(np.float32, copy=False)
    gallery = unit(pictures)
    found = _nearest(queries, gallery, 5)
    oracle = None
    if "edit" in bundle.target:
        oracle = _nearest(unit(bundle.target["edit"].take(edits.ids)), gallery, 5)
    wanted, classes = bundle.class_of("edit", edits.ids), bundle.class_of("image", pictures.ids)
    rows = []
    for q, i in enumerate(edits.ids.tolist()):
        before = bundle.before.get(i)
        hit = np.flatnonzero(classes[found[q]] == wanted[q])
        rows.append(
            {
                "found_at": int(hit[0]) + 1 if len(hit) else None,
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
        "chance": chance_at_k([int((classes == name).sum()) for name in wanted], len(classes), found.shape[1]),
        "n": len(rows),
        "gallery": len(gallery),
    }


def _words(bundle: Bundle, kind: str, i: str) -> str:
    return bundle.texts.get(kind, {}).get(i, i)


def _item(bundle: Bundle, kind: str, i: str) -> dict[str, object]:
    return {"id": i, "text": _words(bundle, kind, i), "picture": data_uri(bundle.thumbnails.get(i))}


def data_uri(picture: bytes | None) -> str | None:
    """Return a picture as a data URI; anything that is not clearly a PNG, JPEG or WebP is omitted."""
    if not picture:
        return None
    for magic, kind in _PICTURES.items():
        if picture.startswith(magic) and (kind != "image/webp" or picture[8:12] == b"WEBP"):
            return f"data:{kind};base64,{base64.b64encode(picture).decode()}"
    return None
