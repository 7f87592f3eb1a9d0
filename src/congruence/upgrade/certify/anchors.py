"""Split items into anchors, held-out queries and texts of other items, and determine the modalities to fit on."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from congruence._utils.ids import as_ids, id_texts, is_in
from congruence._utils.typing import Ids, RowsLike
from congruence._utils.validation import check_choice, check_seed
from congruence.embeddings import Embeddings, Pairs, as_embeddings, as_pair, by_modality
from congruence.errors import IdError, InputError, ModalityError, ParameterError
from congruence.splits import Split
from congruence.upgrade.certify.tables import Tables

__all__ = ["choose_fitted", "join_texts", "split_anchors", "split_texts"]

Sides = tuple[dict[str, Embeddings], dict[str, Embeddings]]


def split_anchors(
    source: RowsLike | Mapping[str, RowsLike],
    target: RowsLike | Mapping[str, RowsLike],
    anchors: int | Ids,
    *,
    by_class: bool = False,
    random_state: int = 0,
    name: str = "anchors=",
) -> tuple[Sides, Sides]:
    """Split the items that both models have into anchors and held-out queries.

    Rows are first paired by id, so that all samples are drawn from the items that both models have, even if only a few of a large store.

    Parameters
    ----------
    source, target : Embeddings or array_like, or mapping of str to those
        As for :func:`congruence.certify`.
    anchors : int or sequence of str or int
        Number of items to choose at random, or the ids of those to use, e.g. from :func:`congruence.upgrade.anchors.choose_anchors`. The others are
        the queries. Ids that only one model has are ignored.
    by_class : bool, default=False
        The second modality describes classes, and belongs to both parts.
    random_state : int, default=0
    name : str, default="anchors="
        Name of the anchors in error messages.

    Returns
    -------
    ((dict, dict), (dict, dict))
        Source and target of the anchors, and of the queries. Texts that share no id with the images belong to both.

    Raises
    ------
    ParameterError
        If there are not fewer anchors than common items.
    IdError
        If none of the ids is an item that both models have.
    IdError, ShapeError
        As for :meth:`congruence.Pairs.join`.
    """
    check_seed(random_state)
    source, target = by_modality(source, target)
    stored = "image" if "image" in source else next(iter(source), "image")
    apart = by_class or _are_apart(source)
    split = [kind for kind in source if kind == stored or not apart]
    first, second = dict(source), dict(target)
    names: dict[str, np.ndarray] = {}
    for kind in split:
        if kind in target:
            pairs = Pairs.join(source[kind], target[kind])
            first[kind], second[kind], names[kind] = pairs.source, pairs.target, id_texts(pairs.ids)
        else:
            names[kind] = id_texts(source[kind].ids)
    common = names[stored] if stored in names else np.empty(0, dtype=object)
    for other in names.values():
        common = common[is_in(common, other)]
    if len(common) < 2:
        raise ParameterError(
            f"Got {len(common)} items that both models have; expected at least two, one to fit on and one to score. Pass the same items on "
            "both sides, by the same ids."
        )
    if not isinstance(anchors, (int, np.integer)):
        heldout_ids = common[~_listed(common, anchors, name)]
    elif not 0 < anchors < len(common):
        raise ParameterError(
            f"Got {name}{anchors} of {len(common)} items that both models have; expected at least 1, and some left to score. "
            f"Pass {name}{len(common) // 2}, for example."
        )
    else:
        heldout_ids = common[Split.choose(common, len(common) - int(anchors), random_state).held_out(common)]

    def part(heldout: bool) -> Sides:
        take = {kind: is_in(ids, common) & (is_in(ids, heldout_ids) == heldout) for kind, ids in names.items()}
        one, two = (
            {kind: rows.take(take[kind]) if kind in take else rows for kind, rows in side.items()}
            for side in (first, second)
        )
        return one, two

    return part(False), part(True)


def _listed(common: np.ndarray, anchors: Ids, name: str) -> np.ndarray:
    """Return which common items are listed. Raises IdError, ParameterError."""
    listed = is_in(common, id_texts(as_ids(anchors, name="anchors")))
    if not listed.any():
        raise IdError(
            f"Got {len(anchors)} anchors, none of which is among the {len(common)} items that both models have (first {common[0]!r}); expected their ids. "
            f"Pass {name}… with ids of these items."
        )
    if listed.all():
        raise ParameterError(
            f"Got {name}… with all {len(common)} items that both models have; expected some left to score, since chosen anchors are easier to tell apart than "
            f"other items are. Encode some that were drawn at random, or leave out {name}… to score the anchors among each other."
        )
    return listed


def split_texts(
    source: Mapping[str, Embeddings], target: Mapping[str, Embeddings]
) -> tuple[dict[str, Embeddings], dict[str, Embeddings], tuple[Embeddings | None, Embeddings] | None]:
    """Separate texts that describe none of the images from the anchors; they can still be used as queries.

    Parameters
    ----------
    source, target : mapping of str to Embeddings

    Returns
    -------
    source, target : dict of str to Embeddings
    texts : (Embeddings or None, Embeddings) or None
        None if texts and images are of the same items, or there are no texts, or no images, in both models.
    """
    images = {"image": source["image"]} if "image" in source else {}
    if "text" not in target or "image" not in target or not images or not _are_apart(source):
        return dict(source), dict(target), None
    return images, {"image": target["image"]}, (source.get("text"), target["text"])


def _are_apart(side: Mapping[str, Embeddings]) -> bool:
    """Return whether images and texts cannot be paired: no common id, or no ids and different lengths."""
    if not {"image", "text"} <= set(side):
        return False
    images, texts = side["image"], side["text"]
    if not images.has_ids and not texts.has_ids:
        return len(images) != len(texts)
    return not is_in(texts.ids, images.ids).any()


def join_texts(texts: tuple[RowsLike | None, RowsLike], tables: Tables) -> tuple[np.ndarray | None, np.ndarray]:
    """Pair text queries by row, and check that they come from the anchors' two models.

    Parameters
    ----------
    texts : (Embeddings, array_like or None, Embeddings or array_like), shapes (m, d_source) and (m, d_target)
        In the source and the target model.
    tables : Tables
        The anchors.

    Returns
    -------
    source : ndarray, shape (m, d_source), or None
    target : ndarray, shape (m, d_target)

    Raises
    ------
    ModalityError
        If the anchors have captions or labels.
    InputError
        If there are no texts in the target model, or their width differs from that of the anchors.
    """
    if tables.store_modality != tables.query_modality or tables.classes is not None:
        raise ModalityError(
            f"Got text queries beside {'labels' if tables.classes is not None else 'captions of the anchors'}; expected one "
            "stored modality alone. Remove text_queries=…."
        )
    ours, theirs = texts
    first: Embeddings | None = None
    if theirs is None:
        raise InputError(
            "Got text_queries without texts of the target model; expected them, since they search the store. "
            "Pass text_queries=(source or None, target)."
        )
    if ours is None:
        second = as_embeddings(theirs, "text_queries[1]")
    else:
        pairs = Pairs.join(*as_pair(ours, theirs, ("text_queries[0]", "text_queries[1]")))
        first, second = pairs.source, pairs.target
    for rows, side, name in ((first, tables.source, "source"), (second, tables.target, "target")):
        if rows is not None and rows.dim != side[tables.store_modality].shape[1]:
            raise InputError(
                f"Got text queries of width {rows.dim} in the {name} model; expected {side[tables.store_modality].shape[1]} as the "
                "anchors. Encode them with the same model."
            )
    return None if first is None else first.vectors, second.vectors


def choose_fitted(tables: Tables, fitted: str | None, together: bool = True) -> list[str]:
    """Return the modalities to fit on.

    Parameters
    ----------
    tables : Tables
    fitted : str or None
        One of them, ``"both"``, or None for all that both models have; with labels, None means the stored one.
    together : bool, default=True
        Whether a map can be fitted on several modalities; if not, None means the stored one, too.

    Returns
    -------
    list of str

    Raises
    ------
    ModalityError
        If ``"both"`` is requested and there are not two modalities of the same items in both models.
    ParameterError
        If the modality is not available in both models.
    """
    both = [name for name in (tables.store_modality, tables.query_modality) if name in tables.target]
    both = list(dict.fromkeys(both))
    if fitted is None:
        return both if together and not tables.by_class else both[:1]
    if fitted == "both":
        if len(both) < 2 or tables.by_class:
            raise ModalityError(
                'Got fitted="both"; expected two modalities of the same items in both models. Pass fitted=… with one of '
                f"{', '.join(both)}."
            )
        return both
    check_choice(fitted, both, "fitted")
    return [fitted]
