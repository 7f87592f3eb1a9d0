"""What the kinds that look for neighbors share."""

from __future__ import annotations

import numpy as np

from congruence import metrics
from congruence.errors import InputError
from congruence.papers.canonical.anchors import pair_name, test_part
from congruence.papers.canonical.data import Collection
from congruence.papers.job import Job
from congruence.papers.plain import Item

__all__ = ["item", "nearest", "usable"]


def usable(job: Job[Collection]) -> list[tuple[Collection, Collection, tuple[int, int]]]:
    """Return each collection, the classes of it that are measured on, and each pair with images and texts of both models."""
    out = []
    for collection in job.data:
        heldout = test_part(collection)
        for pair in collection.pairs:
            if any(heldout.models[k].images is None or heldout.models[k].prompts is None for k in pair):
                job.remark(f"{pair_name(heldout, pair)}: left out, it needs images and texts of both models.")
            else:
                out.append((collection, heldout, pair))
    if not out:
        raise InputError(
            "Got no pair with images and texts of both models; expected at least one. Pass a collection with such a pair."
        )
    return out


def nearest(queries: np.ndarray, gallery: np.ndarray, k: int) -> np.ndarray:
    """Return row numbers of the k largest cosines of unit rows, best first."""
    return metrics.nearest(queries, min(k, len(gallery)), gallery, exact=False)


def item(heldout: Collection, i: str) -> Item:
    """Return an image as an example shows it."""
    return {"id": i, "text": heldout.captions.get(i, "")}
