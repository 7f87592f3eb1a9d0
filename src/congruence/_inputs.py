"""What callers pass for embeddings, as embeddings: one array, a column or a table, or several by modality."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from congruence._utils.columns import index_ids
from congruence._utils.ids import as_ids, same_ids
from congruence._utils.typing import Ids, RowsLike
from congruence._utils.validation import as_matrix, check_choice
from congruence.embeddings import MODALITIES, Embeddings, Space, has_unit_rows
from congruence.errors import IdError, InputError, ModalityError

#: Modality of rows for which none is known, where a table needs a name for them.
UNNAMED = "other"


def as_embeddings(data: RowsLike, name: str, *, ids: Ids | None = None, allow_zero_rows: bool = False) -> Embeddings:
    """Return embeddings as they are, and anything else that holds vectors as embeddings.

    Parameters
    ----------
    data : Embeddings or array_like, shape (n, d)
        See :func:`congruence._utils.columns.to_rows`. The index of a pandas object becomes the ids, unless it is the default one.
    name : str
        What the caller calls it, for messages.
    ids : sequence of str or int, optional
        Instead of the index.
    allow_zero_rows : bool, default=False

    Returns
    -------
    Embeddings
        Without ids where there are none: rows then pair by position.

    Raises
    ------
    ShapeError, DtypeError, NotFiniteError, ZeroRowError, IdError, InputError
    """
    if isinstance(data, Embeddings):
        return data
    if isinstance(data, Mapping):
        raise InputError(
            f"Got {name} by modality ({', '.join(map(str, data))}); expected the vectors of one. Pass one of its values."
        )
    found = index_ids(data) if ids is None else ids
    names = None if found is None else as_ids(found)
    X = as_matrix(data, name, ids=names, allow_zero_rows=allow_zero_rows, copy_half=False)
    space = Space(dim=X.shape[1], normalized=has_unit_rows(X))
    return Embeddings._trusted(X, np.arange(len(X)) if names is None else names, space, found is not None)


def as_pair(
    source: RowsLike, target: RowsLike, names: tuple[str, str] = ("source", "target"), *, allow_zero_rows: bool = False
) -> tuple[Embeddings, Embeddings]:
    """Return two sides as embeddings that :meth:`~congruence.Pairs.join` pairs as their caller means it.

    Two pandas objects pair by their indexes, as pandas would, if either index is not the default one.

    Parameters
    ----------
    source, target : Embeddings or array_like
    names : (str, str)
        What the caller calls them, for messages.
    allow_zero_rows : bool, default=False

    Returns
    -------
    Embeddings, Embeddings

    Raises
    ------
    ShapeError, DtypeError, NotFiniteError, ZeroRowError, IdError, InputError
    """
    ids = [index_ids(source), index_ids(target)]
    if any(one is not None for one in ids):
        # A shuffled frame beside one with row numbers 0, 1, 2, …: by position they would be paired wrongly.
        ids = [index_ids(source, default=True), index_ids(target, default=True)]
        if any(one is None for one in ids):
            ids = [index_ids(source), index_ids(target)]
    return (
        as_embeddings(source, names[0], ids=ids[0], allow_zero_rows=allow_zero_rows),
        as_embeddings(target, names[1], ids=ids[1], allow_zero_rows=allow_zero_rows),
    )


def by_modality(
    source: RowsLike | Mapping[str, RowsLike],
    target: RowsLike | Mapping[str, RowsLike],
    modality: str | None = None,
    *,
    spaces: tuple[Space, Space] = (Space(), Space()),
) -> tuple[dict[str, Embeddings], dict[str, Embeddings]]:
    """Return both sides as embeddings by modality, whether they came so or as the rows of one.

    Parameters
    ----------
    source, target : Embeddings, array_like, or mapping of str to those
    modality : str, optional
        Of rows that are not in a mapping; by default what embeddings say of themselves, or else the other side's, or else that of
        ``spaces``, or else :data:`UNNAMED`.
    spaces : (Space, Space)
        Where the sides should come from.

    Returns
    -------
    dict, dict

    Raises
    ------
    ParameterError
        An unknown modality.
    ModalityError
        ``modality`` beside a mapping, which says it, or embeddings that say another.
    InputError
        A mapping on one side only.
    """
    if modality is not None:
        check_choice(modality, MODALITIES, "modality")
    if isinstance(source, Mapping) and isinstance(target, Mapping):
        if modality is not None:
            raise ModalityError(
                f"Got modality={modality!r} beside embeddings by modality, whose keys say it; expected one of the two. "
                "Leave modality out."
            )
        sides: tuple[dict[str, Embeddings], dict[str, Embeddings]] = ({}, {})
        for name in dict.fromkeys([*source, *target]):
            words = f"source[{name!r}]", f"target[{name!r}]"
            if name in source and name in target:
                sides[0][name], sides[1][name] = as_pair(source[name], target[name], words)
            elif name in source:
                sides[0][name] = as_embeddings(source[name], words[0])
            else:
                sides[1][name] = as_embeddings(target[name], words[1])
        return sides
    if isinstance(source, Mapping) or isinstance(target, Mapping):
        side = "source" if isinstance(source, Mapping) else "target"
        raise InputError(
            f"Got the {side} by modality and the other side not; expected the same form of both. Pass two mappings, or two "
            "tables of vectors."
        )
    pair = as_pair(source, target)
    said = [items.space.modality for items in pair]
    for one in said:
        if modality is not None and one not in (None, modality):
            raise ModalityError(
                f"Got {one} vectors with modality={modality!r}; expected them to agree. Leave modality out."
            )
    meant = [space.modality for space in spaces]
    joined = meant[0] != meant[1]  # a map that joins two modalities: one side says nothing of the other
    keys = [modality or said[k] or (meant[k] if joined else None) or said[1 - k] or meant[k] or UNNAMED for k in (0, 1)]
    return {keys[0]: pair[0]}, {keys[1]: pair[1]}


def check_order(X: object, Y: object) -> None:
    """Refuse embeddings as rows paired by position whose ids say otherwise.

    Raises
    ------
    IdError
    """
    if not (isinstance(X, Embeddings) and isinstance(Y, Embeddings) and X.has_ids and Y.has_ids):
        return
    if not same_ids(X.ids, Y.ids):
        raise IdError(
            "Got embeddings whose ids are not the same in the same order; expected rows paired by position. Use "
            "congruence.fit(source, target), which pairs by id, or congruence.Pairs.join."
        )
