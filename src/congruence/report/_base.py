"""Helpers that the parts of a report share."""

from __future__ import annotations

import numpy as np

from congruence._utils.ids import id_texts
from congruence.datasets import Bundle
from congruence.embeddings import Embeddings, normalize_rows
from congruence.maps import Map, OrthogonalMap
from congruence.splits import Split


def held_out_ids(bundle: Bundle, split: Split, fitted: str | None) -> dict[str, np.ndarray]:
    """Keep only items that the map was not fitted on and, if ids name classes, hold out those classes in the other modality too."""
    keep = {}
    for kind in ("image", "text"):
        sides = [side[kind].ids for side in (bundle.source, bundle.target) if kind in side]
        if sides and (kind == fitted or fitted is None or not bundle.classes.get("image")):
            ids = np.unique(np.concatenate([id_texts(side) for side in sides]))
            keep[kind] = ids[split.held_out(ids)]
    return keep


def with_means(mapping: Map, modality: str) -> Map:
    """Return the map with the means of a modality, or with its default means if it does not know the modality."""
    known = isinstance(mapping, OrthogonalMap) and modality in mapping.modality_means_
    return mapping.for_modality(modality if known else None)


def map_rows(mapping: Map, modality: str, rows: Embeddings) -> Embeddings:
    """Return the rows mapped, of unit norm."""
    vectors = with_means(mapping, modality).transform(rows.vectors)
    return Embeddings(normalize_rows(vectors), ids=rows.ids, allow_zero_rows=True)


def unit(rows: Embeddings) -> np.ndarray:
    """Return the vectors with unit rows, shape (n, d)."""
    return normalize_rows(rows.vectors.astype(np.float32, copy=False))


def some_rows(n: int, most: int, rng: np.random.Generator) -> np.ndarray:
    """Return the numbers of all of n rows, or of ``most`` random ones."""
    return np.arange(n) if n <= most else np.sort(rng.choice(n, most, replace=False))
