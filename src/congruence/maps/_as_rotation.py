"""Base of orthogonal maps with a fit of their own, which are saved as plain orthogonal maps."""

from __future__ import annotations

from pathlib import Path

from congruence.maps.orthogonal import OrthogonalMap


class SavedAsRotation(OrthogonalMap):
    """Base of orthogonal maps with additional parameters, which are not needed after loading."""

    def to_orthogonal(self) -> OrthogonalMap:
        """Return the fitted map as a plain :class:`~congruence.OrthogonalMap`, without the additional parameters.

        Returns
        -------
        OrthogonalMap
            Gives the same results as this map, and shares its scores.

        Raises
        ------
        NotFittedMapError
            If the map is not fitted.
        """
        self.check_fitted()
        plain = OrthogonalMap(**{name: getattr(self, name) for name in OrthogonalMap().get_params()})
        plain._restore(self.state(), self.facts_)
        plain.source_space_, plain.target_space_, plain.scores_ = self.source_space_, self.target_space_, self.scores_
        return plain

    def save(self, path: str | Path, *, force: bool = False) -> Path:
        """Write the map as a folder that :func:`congruence.load` reads as an :class:`~congruence.OrthogonalMap`.

        Parameters
        ----------
        path : path-like
            The folder to create.
        force : bool, default=False
            Replace an existing folder.

        Returns
        -------
        Path

        Raises
        ------
        NotFittedMapError, OutputExistsError, StorageError
            If the map is not fitted; the output already exists; or the output cannot be written.
        """
        return self.to_orthogonal().save(path, force=force)
