"""Rows of two models whose relation is known."""

import numpy as np

from congruence import Embeddings
from congruence.upgrade.certify.design import make_tables


def sides(p, rows=slice(None), modalities=("image", "text")):
    """Return the source's and the target's rows of each modality, with their numbers as ids."""
    ids = [str(i) for i in np.arange(len(p.labels))[rows]]
    return tuple(
        {m: Embeddings(getattr(p, f"{side}_{m}s")[rows], ids=ids) for m in modalities} for side in ("source", "target")
    )


def tables(p, rows, modalities=("image", "text"), what="anchors"):
    return make_tables(*sides(p, rows, modalities), None, what=what)
