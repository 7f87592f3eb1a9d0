"""Items of several models, matched by id: the rows that two models share, and their moments."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from congruence._utils.arrays import blocks
from congruence._utils.ids import id_rows, id_texts
from congruence._utils.validation import check_choice
from congruence.embeddings import MODALITIES, Embeddings, Space, as_embeddings
from congruence.errors import (
    IdError,
    InputError,
    ModalityError,
    ParameterError,
    ShapeError,
    TooFewAnchorsError,
    ZeroRowError,
)
from congruence.linalg.moments import CrossMoments

#: Vectors of one model by modality; the key is "" if the modality is unknown.
Rows = dict[str, Embeddings]


def as_rows(data: Any, name: str, modality: str | None = None) -> Rows:
    """Return one model's vectors by modality.

    Parameters
    ----------
    data : Embeddings, array_like, or mapping of modality to those
    name : str
        Name of the model, for error messages.
    modality : str, optional
        Modality of rows that do not declare theirs.

    Returns
    -------
    dict of str to Embeddings
        Under ``""`` if the modality is unknown.

    Raises
    ------
    ShapeError, DtypeError, NotFiniteError, ZeroRowError
        If vectors have the wrong shape or several widths, are not real numbers, contain NaN or infinity, or have a row of zeros. Embeddings that
        allow rows of zeros may have some, which are left out of the fit, but not only these.
    InputError
        If the mapping is empty.
    ModalityError
        If rows declare another modality than the one given.
    ParameterError
        If a key of the mapping is not a modality.
    """
    if not isinstance(data, Mapping):
        rows = as_embeddings(data, f"the rows of {name!r}")
        declared = rows.space.modality
        if None not in (declared, modality) and declared != modality:
            raise ModalityError(
                f"Got {declared} vectors of {name!r} with modality={modality!r}; expected them to agree. Leave modality out."
            )
        by_modality = {declared or modality or "": rows}
    else:
        if not data:
            raise InputError(
                f"Got no rows of {name!r}; expected vectors of at least one modality. Leave this model out."
            )
        by_modality = {}
        for key, value in data.items():
            check_choice(key, MODALITIES, f"the modality of {name!r}")
            rows = as_embeddings(value, f"the {key} rows of {name!r}")
            if rows.space.modality not in (None, key):
                raise ModalityError(
                    f"Got {rows.space.modality} vectors of {name!r} under {key!r}; expected them to agree. Correct the key."
                )
            by_modality[key] = rows
    for key, rows in by_modality.items():
        if not rows.vectors.any():
            raise ZeroRowError(
                f"Got only rows of zeros of {name!r}{f' ({key})' * bool(key)}; expected vectors. Encode them again, or leave them out."
            )
    widths = {rows.dim for rows in by_modality.values()}
    if len(widths) > 1:
        raise ShapeError(
            f"Got vectors of widths {', '.join(map(str, sorted(widths)))} of {name!r}; expected one width per model. "
            "Pass them as two models."
        )
    return by_modality


def name_modalities(models: Mapping[str, Rows], known: Iterable[str] = ()) -> dict[str, Rows]:
    """Return the models with rows of unknown modality under the one modality that other rows have.

    Raises
    ------
    ModalityError
        If some rows have no modality, and the others have several.
    """
    modalities = sorted({q for rows in models.values() for q in rows} | set(known))
    named = [q for q in modalities if q]
    if "" not in modalities or not named:
        return dict(models)
    if len(named) > 1:
        unnamed = next((name for name, rows in models.items() if "" in rows), None)
        raise ModalityError(
            f"Got rows of {unnamed!r} without a modality, and {' and '.join(named)} rows; expected rows of a known modality. Pass modality=…, or a "
            "mapping of modality to rows."
        )
    return {name: {named[0]: rows[""]} if "" in rows else rows for name, rows in models.items()}


@dataclass(frozen=True)
class Items:
    """The items of one modality over all models.

    Attributes
    ----------
    ids : ndarray of object (str), shape (n,)
        Ids of all items, in the order in which they first occur in the models; row numbers if no model has ids.
    has_ids : bool
    rows : ndarray of int64, shape (M, n)
        Row number of each item in each model, −1 if the model does not have it.
    """

    ids: np.ndarray
    has_ids: bool
    rows: np.ndarray

    @property
    def count(self) -> np.ndarray:
        """Number of models that have each item, shape (n,)."""
        return np.asarray(np.count_nonzero(self.rows >= 0, axis=0))

    @classmethod
    def of(cls, models: Mapping[str, Rows], modality: str) -> Items:
        """Match the rows of one modality.

        Raises
        ------
        IdError
            If some models have ids and others do not.
        ShapeError
            If no model has ids, and their numbers of rows differ.
        """
        sides = {name: rows[modality] for name, rows in models.items() if modality in rows}
        named = [name for name, side in sides.items() if side.has_ids]
        if named and len(named) < len(sides):
            without_ids = next(name for name in sides if name not in named)
            raise IdError(
                f"Got ids for {named[0]!r} and none for {without_ids!r}; expected ids for every model, or for none. Pass ids=… for all of them."
            )
        if not named:
            lengths = {len(side) for side in sides.values()}
            if len(lengths) > 1:
                raise ShapeError(
                    f"Got {', '.join(f'{len(side)} rows of {name!r}' for name, side in sides.items())}, and no ids; expected as many "
                    "rows of every model, or ids to match them by. Pass ids=… for every model."
                )
            ids = id_texts(np.arange(lengths.pop()))
        else:
            ids = np.empty(0, dtype=object)
            for side in sides.values():
                texts = id_texts(side.ids)
                ids = np.concatenate([ids, texts[id_rows(ids, texts) < 0]]) if len(ids) else texts
        rows = np.full((len(models), len(ids)), -1)
        for m, name in enumerate(models):
            if name in sides:
                side, nonzero = sides[name], np.asarray(sides[name].vectors.any(axis=1))
                positions = id_rows(side.ids, ids) if named else np.arange(len(ids))
                # A zero row is a failed encoding.
                rows[m] = np.where((positions >= 0) & nonzero[positions], positions, -1)
        return cls(ids, bool(named), rows)


def pair_moments(
    X: np.ndarray, Y: np.ndarray, rows: tuple[np.ndarray, np.ndarray], weights: np.ndarray
) -> CrossMoments:
    """Compute the moments of rows that two models share, one block at a time.

    Parameters
    ----------
    X, Y : ndarray, shapes (n, d_source) and (m, d_target)
    rows : (ndarray, ndarray), shapes (s,)
        Row numbers of the shared items in each.
    weights : ndarray, shape (s,)

    Returns
    -------
    CrossMoments
    """
    moments = CrossMoments(X.shape[1], Y.shape[1])
    for part in blocks(len(weights), 8 * (X.shape[1] + Y.shape[1]), minimum=256):
        moments.update(X[rows[0][part]], Y[rows[1][part]], weights[part])
    return moments


def width_of(rows: Rows) -> int:
    """Return the width of a model's vectors."""
    return next(iter(rows.values())).dim


def space_of(rows: Rows) -> Space:
    """Return the space of a model's vectors, of any modality."""
    spaces = [side.space for side in rows.values()]
    unit = all(space.normalized for space in spaces)
    return replace(spaces[0], modality=None, normalized=unit)


def connected_groups(models: Iterable[int], pairs: Container[tuple[int, int]]) -> list[list[int]]:
    """Return the groups of models that are connected by shared items.

    Parameters
    ----------
    models : iterable of int
    pairs : container of (m, j) with m < j
        Pairs of models that share items.

    Returns
    -------
    list of list of int
        Each ascending; the first group contains the first model.
    """
    remaining, groups = list(models), []
    while remaining:
        group, pending = [], [remaining.pop(0)]
        while pending:
            member = pending.pop()
            group.append(member)
            joined = [m for m in remaining if (min(m, member), max(m, member)) in pairs]
            remaining = [m for m in remaining if m not in joined]
            pending += joined
        groups.append(sorted(group))
    return groups


def check_connected(names: Sequence[str], pairs: Iterable[tuple[int, int, str]]) -> None:
    """Check that all models are connected by shared items.

    Raises
    ------
    IdError
        If no chain of shared items leads from the first model to some other.
    """
    reached = connected_groups(range(len(names)), {(m, j) for m, j, _ in pairs})[0]
    if len(reached) < len(names):
        unreached = [name for m, name in enumerate(names) if m not in reached]
        raise IdError(
            f"Got no chain of shared items from {names[0]!r} to {', '.join(map(repr, unreached[:3]))}; "
            "expected one from every model to every other. Pass ids=… that name the same items alike, or leave models out."
        )


def most_directions(name: str, used: Sequence[int], *, center: bool) -> int:
    """Return the largest number of directions that a model's anchors can cover.

    Parameters
    ----------
    name : str
        Name of the model, for error messages.
    used : sequence of int
        Number of anchors of each modality.
    center : bool
        Whether the anchors of each modality are centered, which removes one direction.

    Returns
    -------
    int

    Raises
    ------
    TooFewAnchorsError
        If there are fewer than two anchors, or they cover no direction.
    """
    most = sum(used) - sum(n > 0 for n in used) * center
    if sum(used) < 2 or most < 1:
        raise TooFewAnchorsError(
            f"Got {sum(used)} item{'s' * (sum(used) != 1)} of {name!r} that other models have; expected at least 2{' of one modality' * center}. Pass more common items."
        )
    return most


def check_name(name: object) -> None:
    """Check that a model's name is a nonempty string. Raises ParameterError."""
    if not isinstance(name, str) or not name:
        raise ParameterError(f"Got a model named {name!r}; expected a nonempty string. Pass a name for every model.")
