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
from congruence.train.retrieval import each_once, recalls

if TYPE_CHECKING:
    from congruence.maps import Map

__all__ = ["remembers", "unseen_rows"]

#: Errors of reconstruction this close to each other, as a share, are one: other rows differ by more, other machines by less.
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
        That remembers its division.
    data : Captions
        All rows, those trained on included.
    names : ndarray of str, shape (n,)
        Ids of the rows.

    Returns
    -------
    ndarray of int

    Raises
    ------
    InputError
        The rows divide otherwise than those of the training.
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
    """Divide as JAM does."""
    facts = mapping.facts_
    settings, wanted = facts["training"], facts["split"]
    try:
        parts = split_by_group(data.groups, random_state=settings["random_state"])
    except TooFewAnchorsError as error:
        raise InputError(f"Got rows that cannot be divided as in the training ({error}); {_WANTED}.") from error
    counts = dict(zip(("train", "validation", "test"), map(len, parts), strict=True))
    if counts != dict(wanted):
        _refuse(f"{_said(counts)} where it was {_said(wanted)} in the training")
    # Equal counts do not make an equal division: labels that are others may divide as many rows. Errors tell.
    train, heldout = (data.take(rows) for rows in parts[:2])
    for side, again in (("source", mapping.reconstruct), ("target", mapping.reconstruct_target)):
        rows = getattr(heldout, side)
        mean = getattr(train, side).mean(0, dtype=np.float64) if settings["standardize"] else 0.0
        spread = float(np.sum((rows - mean) ** 2))
        now = float(np.sum((again(rows).astype(np.float64) - rows) ** 2)) / spread if spread else 0.0
        remembered = facts["reconstruction_error"][side]
        if abs(now - remembered) > _SAME * max(now, remembered):
            _refuse(
                f"as many rows in each part, but others: their {side} vectors are reconstructed with an error of {now:.4f}, and "
                f"those of the training's validation were with {remembered:.4f}"
            )
    return parts[2]


def _check_test(mapping: TwoSidedMap, test: Captions) -> None:
    """Refuse rows of which those held out are not the ones ``congruence train`` measured on."""
    wanted = mapping.scores_["test_pairs"]
    if len(test) != wanted:
        _refuse(f"{len(test)} to test on where it was {wanted} in the training")
    sides = each_once(test.source, test.target, test.groups)
    for name, score in recalls(mapping.transform(sides[0]), mapping.transform_target(sides[1]), *sides[2:]).items():
        remembered = mapping.scores_.get(f"test_{name}", score)
        if abs(score - remembered) > 1.5 / len(test):  # rounding may turn a rank
            _refuse(f"as many rows, but others: {name} is {score:.3f} where it was {remembered:.3f}")


_WANTED = "expected the pairs, groups and order of the training. Pass the same files, or held_out=False to measure on all rows"


def _refuse(what: str) -> NoReturn:
    raise InputError(f"Got rows that are divided differently from those of the training ({what}); {_WANTED}.")


def _said(counts: Mapping[str, int]) -> str:
    return ", ".join(str(counts.get(part, "–")) for part in ("train", "validation", "test"))
