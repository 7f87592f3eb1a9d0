"""Prepare the rows on which two maps are compared: read and check them, keep those held out by both maps, and map them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from congruence._inputs import UNNAMED, as_embeddings, by_modality
from congruence._utils.ids import id_texts
from congruence.embeddings import Embeddings, check_space
from congruence.errors import InputError, ModalityError
from congruence.evaluation._base import ensembled_prompts, map_for, with_vectors
from congruence.evaluation.query_scores import Mapped
from congruence.maps import HeadsMap, Map
from congruence.splits import Split

if TYPE_CHECKING:
    from congruence._utils.typing import RowsLike

__all__ = ["FITTED_ROWS", "mapped_rows", "read_sides", "unseen_rows"]

#: What to do with rows that a map may have been fitted on.
FITTED_ROWS = ("refuse", "drop", "keep")

Sides = dict[str, dict[str, Embeddings]]

#: Rows of one side, or by modality.
RowsOfSide: TypeAlias = "RowsLike | Mapping[str, RowsLike]"


def read_sides(models: Mapping[str, Map], source: RowsOfSide | None, target: RowsOfSide, modality: str | None) -> Sides:
    """Return rows by side and modality, after checking that they come from the spaces of all maps.

    Parameters
    ----------
    models : mapping of str to Map
        Fitted.
    source, target : Embeddings or array_like, or mapping of str to those
        ``source`` may be None if there are no maps.
    modality : str or None
        Modality of rows that are not in a mapping.

    Returns
    -------
    dict of str to (dict of str to Embeddings)
        ``"source"`` and ``"target"``, with ids as strings.

    Raises
    ------
    InputError
        If a map is passed without source rows.
    SpaceMismatchError, DirectionError, ModalityError, ShapeError, DtypeError, NotFiniteError
        If arrays have the wrong shape, are not real numbers or contain NaN or infinity; or vectors belong to another space, to the other side of
        the map, or to another modality.
    """
    if source is None and models:
        raise InputError(
            f"Got source=None for the map {next(iter(models))}; expected the rows to map. Pass source=…, or mapped rows instead of the map."
        )
    if source is None:
        if not isinstance(target, Mapping):
            rows = as_embeddings(target, "target")
            target = {modality or rows.space.modality or UNNAMED: rows}
        rows_of: tuple[Mapping[str, Embeddings], Mapping[str, Embeddings]] = (
            {},
            {m: as_embeddings(rows, f"target[{m!r}]") for m, rows in target.items()},
        )
    else:
        first = next(iter(models.values()), None)
        known = {} if first is None else {"spaces": (first.source_space_, first.target_space_)}
        rows_of = by_modality(source, target, modality, **known)
    sides = {
        side: {m: rows.by_text() for m, rows in items.items()}
        for side, items in zip(("source", "target"), rows_of, strict=True)
    }
    for side, items in sides.items():
        for m, rows in items.items():
            if rows.space.modality not in (None, m):
                raise ModalityError(
                    f"Got {rows.space.modality} vectors for the modality {m!r}; expected {m} vectors. Pass them under the key {rows.space.modality!r}."
                )
            for mapping in models.values():
                spaces = (mapping.source_space_, mapping.target_space_)
                check_space(rows.space, *(spaces if side == "source" else spaces[::-1]), modality=False)
    return sides


def unseen_rows(
    models: Mapping[str, Map],
    sides: Sides,
    labels: Mapping[str, str] | None,
    prompt_labels: Mapping[str, str] | None,
    fitted_rows: str,
) -> tuple[Sides, list[str]]:
    """Leave out, or refuse, rows that a map may have been fitted on according to its own record.

    Parameters
    ----------
    models : mapping of str to Map
    sides : dict of str to (dict of str to Embeddings)
    labels, prompt_labels : mapping of str to str, or None
        With labels, image ids are not classes, so a class among the fitted texts does not identify images.
    fitted_rows : {"refuse", "drop", "keep"}

    Returns
    -------
    sides : dict of str to (dict of str to Embeddings)
    notes : list of str
        Notes on maps whose records, or rows whose ids, are not sufficient to decide.

    Raises
    ------
    InputError
        If there are such rows and ``fitted_rows="refuse"``, or no other rows remain with ``"drop"``.
    """
    notes: list[str] = []
    if fitted_rows == "keep":
        return sides, notes
    kept = {side: dict(items) for side, items in sides.items()}
    for name, mapping in models.items():
        if "holdout" not in mapping.scores_:
            notes.append(
                f"{name} was fitted without held-out pairs: whether its anchors are among these rows is not known."
            )
            continue
        split = Split.from_dict(mapping.scores_["holdout"])
        joint = isinstance(mapping, HeadsMap)
        fitted = mapping.source_space_.modality
        if joint and mapping.target_space_.modality != fitted:
            fitted = "image"  # if it was fitted on images and texts, the labels are those of images
        for side, items in kept.items():
            for m, rows in items.items():
                if labels is not None and fitted not in (None, m):
                    continue
                if fitted_rows == "refuse" and not rows.has_ids:
                    notes.append(f"The {side}'s {m} rows have no ids: whether {name} was fitted on them is not known.")
                    continue
                ids = id_texts(rows.ids)
                if m == "text" and prompt_labels and joint:
                    ids = id_texts([prompt_labels.get(i, i) for i in ids.tolist()])  # a text stays with its image
                unseen = split.held_out(ids)
                if fitted_rows == "refuse" and not unseen.all():
                    raise InputError(
                        f"Got {np.count_nonzero(~unseen):,} of {len(rows):,} {m} rows that {name} may have been fitted on; expected rows that it held out. "
                        "Pass fitted_rows='drop' to leave them out, or fitted_rows='keep' if they are new items."
                    )
                if not unseen.any():
                    raise InputError(
                        f"Got no {m} row that all maps held out; expected some. Fit the maps with the same holdout=… and random_state=…, or pass fitted_rows='keep' for new items."
                    )
                items[m] = rows.take(unseen)
    return kept, notes


def mapped_rows(
    name: str, map_or_rows: Map | RowsOfSide, sides: Sides, prompt_labels: Mapping[str, str] | None
) -> Mapped:
    """Map the source rows, or use rows that are already mapped.

    Parameters
    ----------
    name : str
    map_or_rows : Map, or Embeddings or array_like, or mapping of str to those
    sides : dict of str to (dict of str to Embeddings)
    prompt_labels : mapping of str to str, or None
        Class of each text; texts of a class are ensembled after mapping.

    Returns
    -------
    Mapped

    Raises
    ------
    InputError
        If mapped rows do not declare their modality but the target has several, or no prompt has a class.
    ShapeError, DtypeError, NotFiniteError
        If arrays have the wrong shape, are not real numbers or contain NaN or infinity.
    """
    target = dict(sides["target"])
    if isinstance(map_or_rows, Map):
        aligned = {
            m: with_vectors(rows, map_for(map_or_rows, m).transform(rows.vectors))
            for m, rows in sides["source"].items()
            if _applies_to(map_or_rows, m)
        }
        if isinstance(map_or_rows, HeadsMap):
            target = {m: with_vectors(rows, map_or_rows.transform_target(rows.vectors)) for m, rows in target.items()}
    elif isinstance(map_or_rows, Mapping):
        aligned = {m: as_embeddings(rows, f"{name}[{m!r}]").by_text() for m, rows in map_or_rows.items()}
    elif len(target) == 1:
        aligned = {next(iter(target)): as_embeddings(map_or_rows, name).by_text()}
    else:
        raise InputError(
            f"Got mapped rows for {name} and a target of {', '.join(target)}; expected their modality. Pass them in a dict by modality."
        )
    if prompt_labels is not None:
        for side in (aligned, target):
            if "text" in side:
                vectors, classes = ensembled_prompts(side["text"], prompt_labels)
                side["text"] = Embeddings(vectors, ids=classes, allow_zero_rows=True)
    return Mapped(name, map_or_rows if isinstance(map_or_rows, Map) else None, aligned, target)


def _applies_to(mapping: Map, modality: str) -> bool:
    """Return whether a map applies to a modality; a cross-modal map applies to the source's only."""
    ours, theirs = mapping.source_space_.modality, mapping.target_space_.modality
    return not isinstance(mapping, HeadsMap) or ours == theirs or ours in (None, modality)
