"""Helpers that the parts of a report share."""

from __future__ import annotations

import numpy as np

from congruence._utils.ids import id_texts
from congruence.datasets import Bundle
from congruence.embeddings import Embeddings, normalize_rows
from congruence.maps import Map, OrthogonalMap
from congruence.splits import Split


def held_out_ids(bundle: Bundle, split: Split, fitted: str | None) -> dict[str, np.ndarray]:
    """Return the ids of the items that a map was not fitted on, by modality, for ``Bundle.take``.

    If the bundle has no classes of images, ids may name classes, so that classes held out in the fitted modality are
    held out in the other one, too. Otherwise only the fitted modality is restricted.
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
