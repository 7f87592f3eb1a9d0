"""Save and load maps: a folder on disk, a repository on the Hugging Face hub, and its model card."""

from __future__ import annotations

import tempfile
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from congruence import persist
from congruence.embeddings import Space
from congruence.errors import ParameterError
from congruence.maps._card import one_sided_text, write_card
from congruence.maps._display import DisplayMixin


class Saving(DisplayMixin, ABC):
    """Saving and loading of a map from its parameters, :meth:`state` and ``facts_``."""

    kind: ClassVar[str]

    @abstractmethod
    def state(self) -> dict[str, np.ndarray]:
        """Return the fitted arrays that, with the parameters, rebuild the map."""

    @abstractmethod
    def _restore(self, arrays: Mapping[str, np.ndarray], facts: Mapping[str, object]) -> None:
        """Set the fitted attributes from :meth:`state` and ``facts_``."""

    @abstractmethod
    def check_fitted(self) -> None:
        """Raise NotFittedMapError if the map is not fitted."""

    @classmethod
    def from_pretrained(
        cls, name_or_path: str | Path, *, revision: str | None = None, token: str | None = None
    ) -> Self:
        """Load a map of this kind from a local folder or from the Hugging Face hub (extra ``hub``).

        Parameters
        ----------
        name_or_path : str or path-like
            A folder, or ``"owner/name"`` on the hub.
        revision, token : str, optional
            Revision and access token on the hub.

        Returns
        -------
        Map
            Of this class; ``Map.from_pretrained`` and :func:`congruence.from_pretrained` accept any kind.

        Raises
        ------
        ParameterError
            If the folder holds another kind of map.
        FileError, CorruptFileError, VersionError, MissingExtraError
            If a file cannot be read; a file is damaged; a file was written by a newer version; or an optional dependency is not installed.
        """
        from congruence.maps import from_pretrained  # not at the top: congruence.maps imports this module

        loaded = from_pretrained(name_or_path, revision=revision, token=token)
        if not isinstance(loaded, cls):
            raise ParameterError(
                f"Got a map of kind {loaded.kind!r} in {str(name_or_path)!r}; expected {cls.__name__}. Load it with "
                f"{type(loaded).__name__}.from_pretrained, or with congruence.from_pretrained, which accepts every kind."
            )
        return loaded

    def save(self, path: str | Path, *, force: bool = False) -> Path:
        """Write the map as a folder: ``model.safetensors``, ``config.json``, ``README.md``.

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
        return persist.write_folder(path, self.state(), self.config(), self._card(), force=force)

    def config(self) -> dict[str, Any]:
        """Return everything that is saved of the map besides the arrays of :meth:`state`, as plain data.

        Returns
        -------
        dict

        Raises
        ------
        NotFittedMapError
            If the map is not fitted.
        """
        self.check_fitted()
        return {
            "kind": self.kind,
            "parameters": self.get_params(deep=False),
            "source_space": self.source_space_.to_dict(),
            "target_space": self.target_space_.to_dict(),
            "facts": self.facts_,
            "scores": self.scores_,
        }

    @classmethod
    def _from_saved(cls, arrays: Mapping[str, np.ndarray], config: Mapping[str, Any]) -> Self:
        new = cls(**config["parameters"])
        new._restore(arrays, config["facts"])
        new.source_space_ = Space.from_dict(config["source_space"])
        new.target_space_ = Space.from_dict(config["target_space"])
        new.scores_ = dict(config["scores"])
        return new

    def save_pretrained(
        self, save_directory: str | Path, *, push_to_hub: bool = False, repo_id: str | None = None, **hub: Any
    ) -> Path:
        """Save the map under the method name that Hugging Face users expect; existing files are overwritten.

        Parameters
        ----------
        save_directory : path-like
        push_to_hub : bool, default=False
            Also upload the map.
        repo_id : str, optional
            Repository to upload to; by default the folder's name.
        **hub
            Passed to :meth:`push_to_hub`.

        Returns
        -------
        Path

        Raises
        ------
        NotFittedMapError, OutputExistsError, StorageError
            If the map is not fitted; the folder exists and is not a saved map; or it cannot be written.
        MissingExtraError
            If the map is to be uploaded and the ``hub`` extra is not installed.
        """
        path = self.save(save_directory, force=True)
        if push_to_hub:
            self.push_to_hub(repo_id or path.name, **hub)
        return path

    def push_to_hub(
        self,
        repo_id: str,
        *,
        token: str | None = None,
        private: bool = False,
        commit_message: str = "Upload a congruence map",
    ) -> str:
        """Upload the map to the Hugging Face hub (extra ``hub``).

        Parameters
        ----------
        repo_id : str
            ``"owner/name"`` on the hub.
        token : str, optional
            Never written to disk or logged.
        private : bool, default=False
            Create the repository as a private one, if it does not exist.
        commit_message : str

        Returns
        -------
        str
            Address of the commit.

        Raises
        ------
        NotFittedMapError
            If the map is not fitted.
        MissingExtraError
            If the ``hub`` extra is not installed.
        """
        with tempfile.TemporaryDirectory() as folder:
            path = self.save(Path(folder) / "map")
            return persist.upload_folder(path, repo_id, token=token, private=private, message=commit_message)

    def _card_text(self) -> tuple[str, list[str]]:
        """Return the title of the model card, and what the map does and how to call it, in Markdown with escaped names."""
        return one_sided_text(self.source_space_, self.target_space_, self.facts_)

    def _card(self) -> str:
        """Write the model card."""
        title, text = self._card_text()
        return write_card(
            type(self).__name__,
            title,
            text,
            self._shown,
            {**self.facts_, **self.get_params(deep=False)},
            self.scores_,
            plain=f"{self.source_space_.model or 'source'} → {self.target_space_.model or 'target'}",
            tag=self.kind,
        )
