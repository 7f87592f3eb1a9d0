"""JAM with each of its losses, and canonical correlations in closed form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from congruence._utils.validation import check_choice
from congruence.maps import CCAMap, TwoSidedMap
from congruence.papers.jam.data import JAMParts
from congruence.train import JAM

__all__ = ["BASELINES", "fit_baseline"]

#: What can stand in a row of a table.
BASELINES = {"con": "Con", "negcon": "NegCon", "spread": "Spread", "cca": "CCA"}


def fit_baseline(method: str, parts: JAMParts, training: Mapping[str, Any] | None = None, seed: int = 5) -> TwoSidedMap:
    """Fit JAM with one of its losses, or canonical correlations in closed form, to a division.

    Parameters
    ----------
    method : {"con", "negcon", "spread", "cca"}
    parts : JAMParts
    training : mapping, optional
        Parameters of :class:`congruence.train.JAM`; of these, canonical correlation analysis heeds ``latent``, its width.
    seed : int, default=5

    Returns
    -------
    TwoSidedMap
        Its spaces bear the names of the encoders.

    Raises
    ------
    ParameterError
        The method is unknown, or has no such parameter.
    """
    check_choice(method, BASELINES, "method")
    options = dict(training or {})
    train = parts.train
    if method == "cca":
        # Rows repeat, since an image has several captions, and a caption several wrong ones.
        distinct = min(len(np.unique(rows, axis=0)) for rows in (train.source, train.target))
        width = min(options.get("latent", JAM().latent), distinct - 1, train.source.shape[1], train.target.shape[1])
        mapping: TwoSidedMap = CCAMap(n_components=width, ridge=0.1).fit(train.source, train.target)
    else:
        jam = JAM(method, random_state=seed, **options)
        heldout = parts.validation
        mapping = jam.fit(train.source, train.target, negatives=train.negatives, validation=heldout, verbose=False)
    for side, model in zip(("source", "target"), parts.encoders, strict=True):
        space = getattr(mapping, f"{side}_space_")
        setattr(
            mapping, f"{side}_space_", replace(space, model=model, modality={"source": "image", "target": "text"}[side])
        )
    return mapping
