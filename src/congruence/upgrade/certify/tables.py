"""Embeddings of both models arranged into paired rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from congruence._utils.ids import id_texts, is_in, text_keys
from congruence._utils.validation import name_rows
from congruence.embeddings import Embeddings, Pairs
from congruence.errors import IdError, InputError, ModalityError, ShapeError, SpaceMismatchError, TooFewAnchorsError

__all__ = ["Tables", "check_alike", "describe_model", "make_tables"]

#: Fewest anchors on which held-out scores and a learning curve mean anything.
FEWEST = 20


@dataclass(frozen=True)
class Tables:
    """Vectors of the items of one collection in two models.

    Attributes
    ----------
    ids : dict of str to ndarray of object (str)
        Ids of each modality's rows. Without labels both modalities have the same ids.
    source, target : dict of str to ndarray
        Rows by modality; a modality may be missing in the target.
    store_modality, query_modality : str
        Modality of the vectors in the store, and of the queries; the same if there is only one.
    classes : ndarray of int, shape (n,), or None
        With labels: class of each stored row, as a row number of the queries' modality or, with one modality, an arbitrary code.
    dropped : int
        Number of rows without a partner.
    """

    ids: dict[str, np.ndarray]
    source: dict[str, np.ndarray]
    target: dict[str, np.ndarray]
    store_modality: str
    query_modality: str
    classes: np.ndarray | None
    dropped: int

    @property
    def n(self) -> int:
        """Number of rows in the store."""
        return len(self.source[self.store_modality])

    def take(self, rows: np.ndarray) -> Tables:
        """Return some items: of both modalities, unless the other one describes classes."""
        names = [self.store_modality] if self.by_class else list(self.source)
        picked = [
            {name: table[rows] if name in names else table for name, table in side.items()}
            for side in (self.ids, self.source, self.target)
        ]
        classes = None if self.classes is None else self.classes[rows]
        return replace(self, ids=picked[0], source=picked[1], target=picked[2], classes=classes)

    @property
    def shown(self) -> str:
        """Modality whose cosines are drawn: the stored one, if the target has it."""
        return self.store_modality if self.store_modality in self.target else self.query_modality

    @property
    def by_class(self) -> bool:
        """Whether stored rows are assigned to classes described by rows of the other modality."""
        return self.classes is not None and self.store_modality != self.query_modality


def make_tables(
    source: Mapping[str, Embeddings],
    target: Mapping[str, Embeddings],
    labels: Mapping[str, str] | None,
    *,
    what: str = "anchors",
) -> Tables:
    """Pair rows by id, across models and, without labels, across modalities.

    Parameters
    ----------
    source, target : mapping of str to Embeddings
        By modality, at most two.
    labels : mapping of str to str, optional
        Class of each stored item by id. With two modalities the classes are the ids of the other one.
    what : str
        Name of the rows in error messages.

    Returns
    -------
    Tables

    Raises
    ------
    InputError, ModalityError, IdError, ShapeError, SpaceMismatchError
        If arrays have the wrong shape; the modality does not fit; ids are missing, repeated or without a partner; vectors belong to
        another space; or the input cannot be used otherwise.
    """
    _check_sides(source, target, what)
    names = list(source)
    store_modality = "image" if "image" in names else names[0]
    query_modality = next((name for name in names if name != store_modality), store_modality)
    ids: dict[str, np.ndarray] = {}
    left: dict[str, np.ndarray] = {}
    right: dict[str, np.ndarray] = {}
    for modality in names:
        if modality in target:
            pairs = Pairs.join(source[modality], target[modality])
            ids[modality], left[modality], right[modality] = id_texts(pairs.ids), *map(_widened, pairs)
        else:
            ids[modality], left[modality] = id_texts(source[modality].ids), _widened(source[modality].vectors)
    classes = None
    if labels is not None:
        classes = _classes(text_keys(labels), ids, store_modality, query_modality)
    elif store_modality != query_modality:
        for modality, take in _same_items(ids, store_modality, query_modality).items():
            for table in (ids, left, right):
                if modality in table:
                    table[modality] = table[modality][take]
    by_class = classes is not None and store_modality != query_modality
    least = min(
        len(rows)
        for name, rows in right.items()
        if not (by_class and name == query_modality) or store_modality not in right
    )
    if what == "anchors" and least < FEWEST:
        raise TooFewAnchorsError(
            f"Got {least} anchors that both models have; expected {FEWEST} at least to certify anything. Encode more items with both models."
        )
    dropped = sum(len(items) for items in source.values()) - sum(len(rows) for rows in left.values())
    return Tables(ids, left, right, store_modality, query_modality, classes, dropped)


def check_alike(tables: Tables, heldout: Tables) -> None:
    """Refuse queries whose vectors do not come from the anchors' two models, or that are anchors themselves.

    Parameters
    ----------
    tables, heldout : Tables
        The anchors, and the queries.

    Raises
    ------
    ModalityError
        If the modalities differ.
    InputError
        If the widths differ, or an item is in both.
    """
    if (tables.store_modality, tables.query_modality, set(tables.target)) != (
        heldout.store_modality,
        heldout.query_modality,
        set(heldout.target),
    ):
        raise ModalityError(
            f"Got queries of {sorted(heldout.source)} (target: {sorted(heldout.target)}); expected the anchors' modalities, "
            f"{sorted(tables.source)} (target: {sorted(tables.target)}). Pass queries=… of the same modalities as the anchors."
        )
    for one, other, name in ((tables.source, heldout.source, "source"), (tables.target, heldout.target, "target")):
        a, b = next(iter(one.values())).shape[1], next(iter(other.values())).shape[1]
        if a != b:
            raise InputError(
                f"Got queries of width {b} in the {name} model; expected {a} as the anchors. Encode them with the same model."
            )
    same = heldout.ids[heldout.store_modality][
        is_in(heldout.ids[heldout.store_modality], tables.ids[tables.store_modality])
    ]
    if len(same):
        raise InputError(
            f"Got {len(same)} queries that are anchors too (first {name_rows(np.arange(1), same)}); expected other items, since anchors are in-sample. Remove these items from the anchors."
        )


def _widened(rows: np.ndarray) -> np.ndarray:
    """Return half precision converted to single precision, which processors multiply hundreds of times faster."""
    return rows.astype(np.float32) if rows.dtype == np.float16 else rows


def _check_sides(source: Mapping[str, Embeddings], target: Mapping[str, Embeddings], what: str) -> None:
    """Refuse modalities, models or widths that do not match."""
    names = list(source)
    if not names or not set(target) & set(names):
        raise InputError(
            f"Got {what} of {', '.join(names) or 'no modality'} in the source model and {', '.join(target) or 'none'} in the "
            "target; expected one modality at least in both. Pass the same items encoded by both models."
        )
    if len(names) > 2 or set(target) - set(names):
        raise ModalityError(
            f"Got {what} of {', '.join(names)} in the source and {', '.join(target)} in the target; expected one or two modalities, those of the target among those of the source. Remove the other modalities."
        )
    for side, name in ((source, "source"), (target, "target")):
        for modality, items in side.items():
            if items.space.modality not in (None, modality):
                raise ModalityError(
                    f"Got {items.space.modality} vectors as {modality}; expected {modality} vectors. Pass them as {items.space.modality}."
                )
        models = {items.space.model for items in side.values()} - {None}
        if len(models) > 1:
            raise SpaceMismatchError(
                f"Got vectors of {' and '.join(sorted(map(str, models)))} as one {name} model; expected one model. Pass files of one model as {name}."
            )
        widths = {items.vectors.shape[1] for items in side.values()}
        if len(widths) > 1:
            raise ShapeError(
                f"Got modalities of widths {sorted(widths)} in the {name} model; expected one space. Pass vectors of one model as {name}."
            )


def _classes(
    labels: Mapping[str, str], ids: Mapping[str, np.ndarray], store_modality: str, query_modality: str
) -> np.ndarray:
    """Return the class of each stored row: a row of the other modality, or any code if there is none."""
    missing = [i for i in ids[store_modality] if i not in labels]
    if missing:
        raise IdError(
            f"Got no label for {len(missing)} of {len(ids[store_modality])} items (first {name_rows(np.arange(1), missing)}); expected one for each. Add these ids to labels=…, or drop the items."
        )
    of_item = [str(labels[i]) for i in ids[store_modality]]
    if store_modality == query_modality:
        return np.unique(of_item, return_inverse=True)[1]
    place = {str(name): k for k, name in enumerate(ids[query_modality])}
    unknown = sorted(set(of_item) - set(place))
    if unknown:
        raise IdError(
            f"Got labels without a {query_modality} of that id ({', '.join(map(repr, unknown[:5]))}); expected the class names to be ids of the {query_modality} rows. Name classes in labels=… as these ids do."
        )
    return np.array([place[label] for label in of_item])


def _same_items(ids: Mapping[str, np.ndarray], store_modality: str, query_modality: str) -> dict[str, np.ndarray]:
    """Return, for both modalities, the rows of the items that both have, in one order."""
    place = {name: k for k, name in enumerate(ids[query_modality])}
    rows = np.array([k for k, name in enumerate(ids[store_modality]) if name in place], dtype=int)
    if not len(rows):
        raise IdError(
            f"Got {store_modality} and {query_modality} rows without a common id; expected the same items in both modalities, or labels that say "
            f"which {query_modality} describes each {store_modality}. Pass labels=…."
        )
    return {store_modality: rows, query_modality: np.array([place[name] for name in ids[store_modality][rows]])}


def describe_model(side: Mapping[str, Embeddings]) -> str:
    """Return the name of a side's model and its width."""
    named = {replace(rows.space, modality=None, dim=None, normalized=None) for rows in side.values()}
    space = next((space for space in named if space.model), next(iter(named)))
    return f"{space}, {next(iter(side.values())).dim}-d"
