"""A fitted map together with its reverse."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from congruence.maps import AffineMap, LinearMap, OrthogonalMap

__all__ = ["TwoWay"]


class TwoWay:
    """A fitted map and its reverse: the inverse or, if there is none, the same method fitted in the other direction.

    Parameters
    ----------
    forward : OrthogonalMap or LinearMap
    backward : callable, optional
        Fits the map from the target to the source, on first use. By default ``forward.inverse()`` is used.
    anchors : callable, optional
        Returns the source rows that were fitted on, for :meth:`covered_share` of maps that do not store it.
    """

    def __init__(
        self,
        forward: OrthogonalMap | LinearMap,
        backward: Callable[[], LinearMap] | None = None,
        anchors: Callable[[], np.ndarray] | None = None,
    ) -> None:
        self.forward = forward
        self._backward, self._anchors = backward, anchors
        self._fitted_backward: LinearMap | None = None
        self._inverses: dict[str | None, AffineMap] = {}

    @property
    def d_source(self) -> int:
        """Width of the source model's vectors."""
        return self.forward.n_features_in_

    @property
    def d_target(self) -> int:
        """Width of the target model's vectors."""
        return self.forward.d_target

    def to_target(self, modality: str | None) -> AffineMap:
        """Return the map for stored vectors of a modality."""
        found = self.forward.for_modality(modality)
        assert isinstance(found, AffineMap)
        return found

    def to_source(self, modality: str | None) -> AffineMap:
        """Return the map for the target model's queries of a modality."""
        if isinstance(self.forward, OrthogonalMap):
            if modality not in self._inverses:
                self._inverses[modality] = self.forward.for_modality(modality).inverse()
            return self._inverses[modality]
        if self._fitted_backward is None:
            assert self._backward is not None
            self._fitted_backward = self._backward()
        return self._fitted_backward

    def recentered(self, source: np.ndarray, target: np.ndarray, modality: str) -> TwoWay:
        """Return the map with the means of a further modality, computed from rows; the same map if it keeps no means."""
        if isinstance(self.forward, OrthogonalMap):
            return TwoWay(self.forward.recenter(source.mean(axis=0), target.mean(axis=0), modality=modality))
        return self

    def covered_share(self, modality: str | None, rows: np.ndarray) -> np.ndarray:
        """Return the share of each row's variance (norm²) in directions the anchors cover, shape (m,)."""
        if isinstance(self.forward, OrthogonalMap):
            return self.forward.for_modality(modality).covered_share(rows)
        assert self._anchors is not None
        anchors = self._anchors() - self.forward.source_mean_
        _, s, basis = np.linalg.svd(anchors, full_matrices=False)
        centered = rows - self.forward.source_mean_
        inside = np.square(centered @ basis[s > 1e-8 * s[0]].T).sum(axis=1)
        total = np.einsum("ij,ij->i", centered, centered)
        return np.asarray(np.minimum(np.divide(inside, total, out=np.ones(len(rows)), where=total > 0), 1.0))
