"""Convert what callers pass (an array, a column, a table, or several by modality) to :class:`Embeddings`."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from congruence._utils.columns import index_ids
from congruence._utils.ids import as_ids, same_ids
from congruence._utils.typing import RowsLike
from congruence._utils.validation import as_matrix, check_choice
from congruence.embeddings import MODALITIES, Embeddings, Space, has_unit_rows
from congruence.errors import IdError, InputError, ModalityError

#: Modality name for rows whose modality is unknown, where a table needs a name for them.
UNNAMED = "other"


def as_embeddings(data: RowsLike, name: str, *, allow_zero_rows: bool = False) -> Embeddings:
    """Return the data as :class:`Embeddings`; existing embeddings are returned unchanged.

    ``data`` (n, d): see :func:`congruence._utils.columns.to_rows`. The index of a pandas object becomes the ids, unless
    it is the default one; ``name``: what the caller calls the data, for error messages. Returns: without ids if the
    data has none: its rows are then paired by position.
    """
    return _with_ids(data, name, index_ids(data), allow_zero_rows)


def _with_ids(data: RowsLike, name: str, index: np.ndarray | None, allow_zero_rows: bool) -> Embeddings:
    """Return the data as embeddings, with the labels of its index as ids if there are any."""
    if isinstance(data, Embeddings):
        return data
    if isinstance(data, Mapping):
        raise InputError(
            f"Got {name} by modality ({', '.join(map(str, data))}); expected the vectors of one.",
            "Pass one of its values.",
        )
    ids = None if index is None else as_ids(index)
    X = as_matrix(data, name, ids=ids, allow_zero_rows=allow_zero_rows, copy_half=False)
    space = Space(dim=X.shape[1], normalized=has_unit_rows(X))
    return Embeddings._trusted(X, np.arange(len(X)) if ids is None else ids, space, ids is not None)


def as_pair(
    source: RowsLike, target: RowsLike, names: tuple[str, str] = ("source", "target"), *, allow_zero_rows: bool = False
) -> tuple[Embeddings, Embeddings]:
    """Return both arguments as embeddings, ready for :meth:`~congruence.Pairs.join`.

    Two pandas objects are paired by their indexes, as pandas would do, if either index is not the default one.

    ``names``: what the caller calls them, for error messages.
    """
    first, second = index_ids(source), index_ids(target)
    if (first is None) != (second is None):
        # One frame is shuffled and the other has the default index 0, 1, 2, …: pairing by position would be wrong.
        labels = index_ids(source, default=True), index_ids(target, default=True)
        if labels[0] is not None and labels[1] is not None:
            first, second = labels
    return (
        _with_ids(source, names[0], first, allow_zero_rows),
        _with_ids(target, names[1], second, allow_zero_rows),
    )


def by_modality(
    source: RowsLike | Mapping[str, RowsLike],
    target: RowsLike | Mapping[str, RowsLike],
    modality: str | None = None,
    *,
    spaces: tuple[Space, Space] = (Space(), Space()),
) -> tuple[dict[str, Embeddings], dict[str, Embeddings]]:
    """Return source and target as embeddings by modality, passed as mappings or as rows of one modality.

    ``modality``: modality of rows that are not in a mapping. The default is the modality the embeddings declare, else
    that of the other argument, else that of ``spaces``, else :data:`UNNAMED`; ``spaces``: the spaces that source and
    target should belong to.
    """
    if modality is not None:
        check_choice(modality, MODALITIES, "modality")
    if isinstance(source, Mapping) and isinstance(target, Mapping):
        if modality is not None:
            raise ModalityError(
                f"Got modality={modality!r} beside embeddings by modality, whose keys say it; expected one of the two.",
                "Leave modality out.",
            )
        sides: tuple[dict[str, Embeddings], dict[str, Embeddings]] = ({}, {})
        for name in dict.fromkeys([*source, *target]):
            called = f"source[{name!r}]", f"target[{name!r}]"
            if name in source and name in target:
                sides[0][name], sides[1][name] = as_pair(source[name], target[name], called)
            elif name in source:
                sides[0][name] = as_embeddings(source[name], called[0])
            else:
                sides[1][name] = as_embeddings(target[name], called[1])
        return sides
    if isinstance(source, Mapping) or isinstance(target, Mapping):
        side = "source" if isinstance(source, Mapping) else "target"
        raise InputError(
            f"Got the {side} by modality and the other side not; expected the same form of both.",
            "Pass two mappings, or two tables of vectors.",
        )
    pair = as_pair(source, target)
    declared = [items.space.modality for items in pair]
    for kind in declared:
        if modality is not None and kind not in (None, modality):
            raise ModalityError(
                f"Got {kind} vectors with modality={modality!r}; expected them to agree.", "Leave modality out."
            )
    expected = [space.modality for space in spaces]
    joint = expected[0] != expected[1]  # a map that joins two modalities: neither side tells the modality of the other
    keys = [
        modality or declared[k] or (expected[k] if joint else None) or declared[1 - k] or expected[k] or UNNAMED
        for k in (0, 1)
    ]
    return {keys[0]: pair[0]}, {keys[1]: pair[1]}


def check_order(X: object, Y: object) -> None:
    """Refuse embeddings whose rows would be paired by position although their ids are in a different order."""
    if not (isinstance(X, Embeddings) and isinstance(Y, Embeddings) and X.has_ids and Y.has_ids):
        return
    if not same_ids(X.ids, Y.ids):
        raise IdError(
            "Got embeddings whose ids are not the same in the same order; expected rows paired by position.",
            "Use congruence.fit(source, target), which pairs by id, or congruence.Pairs.join.",
        )
