"""The content of a frame: its models, and the items that models share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from congruence._utils.ids import id_rows
from congruence.embeddings import Embeddings, Space
from congruence.errors import IdError, ShapeError


@dataclass(frozen=True)
class FrameModel:
    """One model of a frame.

    Attributes
    ----------
    space : Space
    rotation : ndarray of float64, shape (d, k + a)
        Rotation into the frame, multiplied by the square roots of the gains; the last columns are the axes of the modalities' means.
    means : dict of modality to ndarray, shape (d,)
        Means that correspond to the same point of the frame in every model; ``""`` if no modality was named.
    means_from : dict of modality to {"items", "rows", "frame"}
        Whether a mean comes from shared items, from rows that no other model has, or, for a modality without rows, from the gap between
        modalities in the other models.
    width : int
        k, the width of the frame.
    n_anchors : int
        Number of rows that the rotation was fitted on.
    rank : int
        Number of directions that they cover.
    """

    space: Space
    rotation: np.ndarray
    means: dict[str, np.ndarray]
    means_from: dict[str, str]
    width: int
    n_anchors: int
    rank: int

    @property
    def isometry(self) -> np.ndarray:
        """The rotation without its gains and without axes of means, shape (d, k)."""
        U, s, Vt = np.linalg.svd(self.rotation[:, : self.width], full_matrices=False)
        kept = s > 1e-8
        return np.asarray(U[:, kept] @ Vt[kept])


@dataclass(frozen=True)
class Consensus:
    """The items of one modality in the frame.

    Attributes
    ----------
    ids : ndarray of object (str), shape (n,)
    vectors : ndarray of float32, shape (n, k)
        Mean over the models that have the item.
    has_ids : bool
        If False, rows are matched by position.
    center : ndarray of float64, shape (k,)
        Mean of the models' means in the frame.
    """

    ids: np.ndarray
    vectors: np.ndarray
    has_ids: bool
    center: np.ndarray

    def rows_of(self, rows: Embeddings, name: str) -> np.ndarray:
        """Return the position of each row among the items, −1 for rows that are not among them, shape (n,).

        Raises
        ------
        IdError
            If only one of the two has ids.
        ShapeError
            If neither has ids, and their numbers differ.
        """
        if self.has_ids != rows.has_ids:
            with_ids, without = ("the frame", repr(name)) if self.has_ids else (repr(name), "the frame")
            raise IdError(
                f"Got ids for {with_ids} and none for {without}; expected ids for both, or for none. Pass ids=… for every model."
            )
        if rows.has_ids:
            return id_rows(self.ids, rows.ids)
        if len(rows) != len(self.ids):
            raise ShapeError(
                f"Got {len(rows)} rows of {name!r}, without ids; expected {len(self.ids)}, the frame's. Pass ids=… for every model."
            )
        return np.arange(len(rows))

    def extended(self, ids: np.ndarray, vectors: np.ndarray) -> Consensus:
        """Return a copy with more items."""
        more = np.concatenate([self.vectors, vectors.astype(np.float32)])
        return Consensus(np.concatenate([self.ids, ids]), more, self.has_ids, self.center)


def infer_means(models: Mapping[str, FrameModel], modalities: Iterable[str]) -> None:
    """Infer the mean of a modality for models without rows of it, from its gap to a modality that they have, measured in other models.

    An inferred mean is never inferred again, so that models added later do not change it.
    """
    measured = {
        name: [q for q, origin in model.means_from.items() if origin != "frame"] for name, model in models.items()
    }
    for q in modalities:
        for name, model in models.items():
            for p in [] if q in model.means else measured[name]:
                with_both = [other for key, other in models.items() if {p, q} <= set(measured[key])]
                if with_both:
                    gap = np.mean([(other.means[q] - other.means[p]) @ other.rotation for other in with_both], axis=0)
                    model.means[q] = model.means[p] + model.rotation @ gap
                    model.means_from[q] = "frame"
                    break


def known_modalities(model: FrameModel) -> str:
    """Return the modalities whose means a model has, for messages."""
    return ", ".join(q or "no modality named" for q in model.means)
