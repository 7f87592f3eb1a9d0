"""What every trained method is: a joint-space map that learns its own layers, and is saved as these alone."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Self

from congruence._utils.arrays import to_numpy
from congruence._utils.typing import Labels, RowsLike
from congruence.embeddings import Embeddings, Space
from congruence.errors import InputError
from congruence.maps import HeadsMap, LayeredMap
from congruence.maps.history import History
from congruence.maps.two_sided import TwoSidedMap
from congruence.train.loop import BatchT, Objective, Schedule, run
from congruence.train.retrieval import mean_recall

__all__ = ["Method", "Trainer"]


class Method(TwoSidedMap):
    """Base of everything in :data:`congruence.train.METHODS`: a joint-space map with a name and a score to be chosen by."""

    method: ClassVar[str]
    #: What :meth:`score` returns, for the records of a run.
    criterion: ClassVar[str] = "mean_recall_at_1"

    @abstractmethod
    def fit(self, *args: Any, **kwargs: Any) -> Self:
        """Learn from pairs, and from the rows beside them that the method takes: see each method's own ``fit``."""

    def score(
        self,
        X: RowsLike,
        Y: RowsLike | None = None,
        x_labels: Labels | None = None,
        y_labels: Labels | None = None,
        *,
        y: RowsLike | None = None,
    ) -> float:
        """Return the mean of the recalls at 1 in both directions, what parameters and steps are chosen by.

        Parameters
        ----------
        X : array_like, shape (n, d_source)
        Y : array_like, shape (m, d_target)
        x_labels, y_labels : sequence, shape (n,) and (m,), optional
            Equal labels belong together, and any of them is a hit; by position if left out.
        y : array_like, optional
            Another name for ``Y``, as scikit-learn's tools pass it.

        Returns
        -------
        float

        Raises
        ------
        ShapeError
            Sides of different lengths, and no labels.
        InputError
            No rows of the target, or a row whose label the other side does not have.
        NotFittedMapError
        """
        target = y if Y is None else Y
        if target is None:
            raise InputError(
                "Got rows of the source alone; expected those of the target too, in which they are searched. Pass Y=…."
            )
        mapped = self.transform(_vectors(X)), self.transform_target(_vectors(target))
        return mean_recall(to_numpy(mapped[0]), to_numpy(mapped[1]), x_labels, y_labels)


class Trainer(LayeredMap, Method):
    """Base of the methods that are trained, step by step.

    A fitted trainer is a joint-space map like any other, and needs no torch to be used. What :meth:`save` writes is its heads
    (:meth:`to_heads`): :func:`congruence.load` returns a :class:`~congruence.HeadsMap` that maps identically, with the parameters of the
    training in its ``facts_["training"]``.
    """

    def to_heads(self) -> HeadsMap:
        """Return the fitted heads as a map without a trainer's parameters.

        Returns
        -------
        HeadsMap
            Maps as this one does, and shares its record of scores.

        Raises
        ------
        NotFittedMapError
        """
        self._check_fitted()
        facts = {name: value for name, value in self.facts_.items() if name not in ("method", "layers")}
        heads = HeadsMap.from_layers(
            self.source_layers_,
            self.target_layers_,
            decode_source=self.decode_source_layers_,
            decode_target=self.decode_target_layers_,
            facts=facts,
            method=self.method_,
            source_space=self.source_space_,
            target_space=self.target_space_,
        )
        heads.scores_ = self.scores_
        return heads

    def save(self, path: str | Path, *, force: bool = False) -> Path:
        """Write the heads as a folder that :func:`congruence.load` reads as a :class:`~congruence.HeadsMap`.

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
        return self.to_heads().save(path, force=force)

    def describe(self) -> dict[str, object]:
        """Return what is known about the fitted map as plain data; the parameters of the training are under ``"training"``."""
        return self.to_heads().describe()

    # ------------------------------------------------------------------ for subclasses

    def _run(
        self,
        objective: Objective[BatchT],
        schedule: Schedule,
        data: Mapping[str, object],
        *,
        checkpoint: str | Path | None,
        resume: bool,
        verbose: bool,
    ) -> History:
        """Train; ``data`` tells the rows of this run from others."""
        identity = {"method": self.method, "parameters": self._plain_params(), **data}
        return run(objective, schedule, checkpoint=checkpoint, resume=resume, identity=identity, verbose=verbose)

    def _take(
        self,
        parts: Mapping[str, object],
        history: History,
        facts: Mapping[str, object],
        spaces: tuple[Space, Space],
    ) -> None:
        """Become the map of these layers."""
        done = {
            "steps": history.steps,
            "best_step": history.best_step,
            "history": history.to_dict(),
            "training": self._plain_params(),
        }
        self._set(parts, self.method, {**facts, **done})
        self.source_space_ = replace(spaces[0], dim=self.n_features_in_)
        self.target_space_ = replace(spaces[1], dim=self.d_target)
        self.scores_ = {} if history.best_score is None else {f"validation_{self.criterion}": history.best_score}

    def _plain_params(self) -> dict[str, object]:
        """Return the parameters as plain data; an object among them goes by its kind."""
        return {name: _plain(value) for name, value in self.get_params(deep=False).items()}


def _vectors(rows: RowsLike) -> RowsLike:
    return rows.vectors if isinstance(rows, Embeddings) else rows


def _plain(value: object) -> object:
    if isinstance(value, (tuple, list)):
        return [_plain(entry) for entry in value]
    return value if isinstance(value, (str, int, float, bool, type(None))) else repr(value)
