"""Determine which of the given rows a map was not trained on, by repeating and checking the split of its training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from congruence.errors import InputError, TooFewAnchorsError
from congruence.maps import TwoSidedMap
from congruence.splits import Split
from congruence.train import split_by_group
from congruence.train.captions import Captions
from congruence.train.retrieval import recalls, unique_pairs

if TYPE_CHECKING:
    from congruence.maps import Map

__all__ = ["remembers", "unseen_rows"]

#: Relative difference up to which two reconstruction errors count as equal: other rows differ by more, other machines by less.
_SAME = 1e-4


def remembers(mapping: TwoSidedMap) -> bool:
    """Return whether a map stores how the rows of its training were split, and enough to check it."""
    return "holdout" in mapping.scores_ or _by_groups(mapping)


def _by_groups(mapping: TwoSidedMap) -> bool:
    facts = getattr(mapping, "facts_", {})
    return all(isinstance(facts.get(name), Mapping) for name in ("split", "training", "reconstruction_error"))


def unseen_rows(mapping: TwoSidedMap, data: Captions, names: np.ndarray) -> np.ndarray:
    """Return the rows that a map's own training held out for testing.

    Parameters
    ----------
    mapping : TwoSidedMap
        A map that stores the split of its training.
    data : Captions
        All rows, including those that the map was trained on.
    names : ndarray of str, shape (n,)
        Ids of the rows.

    Returns
    -------
    ndarray of int

    Raises
    ------
    InputError
        If the rows are split differently than in the training.
    """
    if "holdout" not in mapping.scores_:
        return _by_image(mapping, data)
    rows = np.flatnonzero(Split.from_dict(mapping.scores_["holdout"]).held_out(names))
    if not len(rows):
        _refuse("none of them was held out")
    if "test_pairs" in mapping.scores_:
        _check_test(mapping, data.take(rows))
    return rows


def _by_image(mapping: Map, data: Captions) -> np.ndarray:
    """Return the test rows of the split that JAM makes, after checking that it is the split of the training."""
    facts = mapping.facts_
    settings, wanted = facts["training"], facts["split"]
    try:
        parts = split_by_group(data.groups, random_state=settings["random_state"])
    except TooFewAnchorsError as error:
        raise InputError(f"Got rows that cannot be split as in the training ({error}); {_WANTED}.") from error
    counts = dict(zip(("train", "validation", "test"), map(len, parts), strict=True))
    if counts != dict(wanted):
        _refuse(f"train, validation and test have {_said(counts)} rows instead of {_said(wanted)}")
    # Equal counts do not imply an equal split, because other labels may lead to the same counts. Reconstruction errors reveal it.
    train, heldout = (data.take(rows) for rows in parts[:2])
    for side, again in (("source", mapping.reconstruct), ("target", mapping.reconstruct_target)):
        rows = getattr(heldout, side)
        mean = getattr(train, side).mean(0, dtype=np.float64) if settings["standardize"] else 0.0
        spread = float(np.sum((rows - mean) ** 2))
        now = float(np.sum((again(rows).astype(np.float64) - rows) ** 2)) / spread if spread else 0.0
        remembered = facts["reconstruction_error"][side]
        if abs(now - remembered) > _SAME * max(now, remembered):
            _refuse(
                f"the parts have the same sizes but contain other rows: the {side} vectors for validation are reconstructed with an error of {now:.4f} "
                f"instead of {remembered:.4f}"
            )
    return parts[2]


def _check_test(mapping: TwoSidedMap, test: Captions) -> None:
    """Refuse rows whose held-out part differs from the one that ``congruence train`` measured on."""
    wanted = mapping.scores_["test_pairs"]
    if len(test) != wanted:
        _refuse(f"the test has {len(test)} rows instead of {wanted}")
    sides = unique_pairs(test.source, test.target, test.groups)
    for name, score in recalls(mapping.transform(sides[0]), mapping.transform_target(sides[1]), *sides[2:]).items():
        remembered = mapping.scores_.get(f"test_{name}", score)
        if abs(score - remembered) > 1.5 / len(test):  # rounding may change a rank
            _refuse(
                f"the test has the same number of rows but other rows: {name} is {score:.3f} instead of {remembered:.3f}"
            )


_WANTED = "expected the pairs, groups and order of the training. Pass the same files, or held_out=False to measure on all rows"


def _refuse(what: str) -> NoReturn:
    raise InputError(f"Got rows that are split differently than in the training ({what}); {_WANTED}.")


def _said(counts: Mapping[str, int]) -> str:
    return ", ".join(str(counts.get(part, "–")) for part in ("train", "validation", "test"))
