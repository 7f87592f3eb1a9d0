"""Helpers shared by the kinds of figures that search for nearest neighbors."""

from __future__ import annotations

import numpy as np

from congruence import metrics
from congruence.errors import InputError
from congruence_papers.canonical.anchors import pair_name, test_part
from congruence_papers.canonical.data import Collection
from congruence_papers.job import Job
from congruence_papers.plain import Item

__all__ = ["item", "nearest", "usable"]


def usable(job: Job[Collection]) -> list[tuple[Collection, Collection, tuple[int, int]]]:
    """Return (collection, test part, pair) for every pair whose models both have images and texts. Raises InputError if there are none."""
    out = []
    for collection in job.data:
        heldout = test_part(collection)
        for pair in collection.pairs:
            if any(heldout.models[k].images is None or heldout.models[k].prompts is None for k in pair):
                job.add_note(f"{pair_name(heldout, pair)}: left out, it needs images and texts of both models.")
            else:
                out.append((collection, heldout, pair))
    if not out:
        raise InputError(
            "Got no pair with images and texts of both models; expected at least one. Pass a collection with such a pair."
        )
    return out


def nearest(queries: np.ndarray, gallery: np.ndarray, k: int) -> np.ndarray:
    """Return the gallery indices of the k nearest rows to each query by cosine, best first; rows must have unit norm."""
    return metrics.nearest(queries, min(k, len(gallery)), gallery, exact=False)


def item(heldout: Collection, i: str) -> Item:
    """Return the id and the description of an image, for an example."""
    return {"id": i, "text": heldout.captions.get(i, "")}
