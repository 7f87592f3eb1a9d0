"""Maps that are fitted in their own way and saved as the rotation they are."""

from __future__ import annotations

from pathlib import Path

from congruence.maps.orthogonal import OrthogonalMap


class SavedAsRotation(OrthogonalMap):
    """An orthogonal map with more parameters than one, which whoever loads it does not need."""

    def to_orthogonal(self) -> OrthogonalMap:
        """Return the fitted map without the parameters of the search for its pairs.

        Returns
        -------
        OrthogonalMap
            Maps as this one does, and shares its record of scores.

        Raises
        ------
        NotFittedMapError
        """
        self._check_fitted()
        plain = OrthogonalMap(**{name: getattr(self, name) for name in OrthogonalMap._get_param_names()})
        plain._restore(self.state(), self.facts_)
        plain.source_space_, plain.target_space_, plain.scores_ = self.source_space_, self.target_space_, self.scores_
        return plain

    def save(self, path: str | Path, *, force: bool = False) -> Path:
        """Write the map as a folder that :func:`congruence.load` reads as an :class:`~congruence.OrthogonalMap`.

        Parameters
        ----------
        path : path-like
            The folder to make.
        force : bool, default=False
            Replace an existing folder.

        Returns
        -------
        Path

        Raises
        ------
        NotFittedMapError, OutputExistsError, StorageError
        """
        return self.to_orthogonal().save(path, force=force)
