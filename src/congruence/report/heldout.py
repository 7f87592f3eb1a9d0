"""Determine which rows a map was not trained on, by repeating the split of its training and checking that it is the same."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from congruence.errors import InputError, TooFewAnchorsError
from congruence.maps import HeadsMap
from congruence.splits import Split
from congruence.train import split_by_group
from congruence.train.captions import Captions
from congruence.train.retrieval import recalls, unique_pairs

if TYPE_CHECKING:
    from congruence.maps import Map

__all__ = ["records_split", "unseen_rows"]

#: Largest relative difference of two equal reconstruction errors: other rows differ by more, other machines by less.
_TOLERANCE = 1e-4

_ADVICE = "expected the pairs, groups and order of the training. Pass the same files, or held_out=False to measure on all rows"


def records_split(mapping: HeadsMap) -> bool:
    """Return whether a map records how the rows of its training were split, and what is needed to check a repetition."""
    return "holdout" in mapping.scores_ or _records_group_split(mapping)


def _records_group_split(mapping: HeadsMap) -> bool:
    """Return whether a map records a split by groups, as that of JAM."""
    facts = getattr(mapping, "facts_", {})
    return all(isinstance(facts.get(name), Mapping) for name in ("split", "training", "reconstruction_error"))


def unseen_rows(mapping: HeadsMap, data: Captions, names: np.ndarray) -> np.ndarray:
    """Return the rows that a map's own training held out for testing.

    Parameters
    ----------
    mapping : HeadsMap
        A map that records the split of its training.
    data : Captions
        All rows, including those that the map was trained on.
    names : ndarray of str, shape (n,)
        Ids of the rows.

    Returns
    -------
    ndarray of int, shape (rows,)

    Raises
    ------
    InputError
        If the rows are split differently than in the training.
    """
    if "holdout" not in mapping.scores_:
        return _group_test_rows(mapping, data)
    rows = np.flatnonzero(Split.from_dict(mapping.scores_["holdout"]).held_out(names))
    if not len(rows):
        _refuse("none of them was held out")
    if "test_pairs" in mapping.scores_:
        _check_test_rows(mapping, data.take(rows))
    return rows


def _group_test_rows(mapping: Map, data: Captions) -> np.ndarray:
    """Return the test rows of JAM's split by groups, after checking that it is the split of the training."""
    facts = mapping.facts_
    parameters, recorded_counts = facts["training"], facts["split"]
    try:
        parts = split_by_group(data.groups, random_state=parameters["random_state"])
    except TooFewAnchorsError as error:
        raise InputError(f"Got rows that cannot be split as in the training ({error}); {_ADVICE}.") from error
    counts = dict(zip(("train", "validation", "test"), map(len, parts), strict=True))
    if counts != dict(recorded_counts):
        _refuse(
            f"train, validation and test have {_format_counts(counts)} rows instead of {_format_counts(recorded_counts)}"
        )
    # Equal counts do not imply an equal split, because other labels may lead to the same counts. Reconstruction errors reveal it.
    train, validation = (data.take(rows) for rows in parts[:2])
    for side, reconstruct in (("source", mapping.reconstruct), ("target", mapping.reconstruct_target)):
        rows = getattr(validation, side)
        mean = getattr(train, side).mean(0, dtype=np.float64) if parameters["standardize"] else 0.0
        spread = float(np.sum((rows - mean) ** 2))
        relative_error = float(np.sum((reconstruct(rows).astype(np.float64) - rows) ** 2)) / spread if spread else 0.0
        recorded = facts["reconstruction_error"][side]
        if abs(relative_error - recorded) > _TOLERANCE * max(relative_error, recorded):
            _refuse(
                f"the parts have the same sizes but contain other rows: the {side} vectors for validation are reconstructed with an error of {relative_error:.4f} "
                f"instead of {recorded:.4f}"
            )
    return parts[2]


def _check_test_rows(mapping: HeadsMap, test: Captions) -> None:
    """Refuse test rows other than those that ``congruence train`` measured on."""
    recorded_count = mapping.scores_["test_pairs"]
    if len(test) != recorded_count:
        _refuse(f"there are {len(test)} test rows instead of {recorded_count}")
    sides = unique_pairs(test.source, test.target, test.groups)
    for name, score in recalls(mapping.transform(sides[0]), mapping.transform_target(sides[1]), *sides[2:]).items():
        recorded = mapping.scores_.get(f"test_{name}", score)
        if abs(score - recorded) > 1.5 / len(test):  # rounding may change a rank
            _refuse(f"there are as many test rows, but different ones: {name} is {score:.3f} instead of {recorded:.3f}")


def _refuse(difference: str) -> NoReturn:
    raise InputError(f"Got rows that are split differently than in the training ({difference}); {_ADVICE}.")


def _format_counts(counts: Mapping[str, int]) -> str:
    return ", ".join(str(counts.get(part, "–")) for part in ("train", "validation", "test"))
