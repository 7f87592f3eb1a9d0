"""Base of every trained method: a joint-space map that learns its own layers, of which only the layers are saved."""

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


class Method(TwoSidedMap):
    """Base of everything in :data:`congruence.train.METHODS`: a joint-space map with a name and a validation score."""

    method: ClassVar[str]
    #: Name of the score that :meth:`score` returns, as stored in the record of a run.
    criterion: ClassVar[str] = "mean_recall_at_1"

    @abstractmethod
    def fit(self, *args: Any, **kwargs: Any) -> Self:
        """Learn from pairs, and from other rows if the method uses them; see each method's own ``fit``."""

    def score(
        self,
        X: RowsLike,
        Y: RowsLike | None = None,
        x_labels: Labels | None = None,
        y_labels: Labels | None = None,
        *,
        y: RowsLike | None = None,
    ) -> float:
        """Return the mean of recall at 1 in both directions, by which parameters and steps are selected.

        Parameters
        ----------
        X : array_like, shape (n, d_source)
        Y : array_like, shape (m, d_target)
        x_labels, y_labels : sequence, shape (n,) and (m,), optional
            Rows with equal labels match, and any matching row counts as a hit. Without labels, rows match by position.
        y : array_like, optional
            Alternative name for ``Y``, as used by scikit-learn's tools.

        Returns
        -------
        float

        Raises
        ------
        ShapeError
            If the sides have different lengths and there are no labels.
        InputError
            If there are no target rows, or the label of a row does not occur on the other side.
        NotFittedMapError
            If the map is not fitted.
        """
        target = y if Y is None else Y
        if target is None:
            raise InputError(
                "Got rows of the source alone; expected those of the target too, in which they are searched.",
                "Pass Y=….",
            )
        mapped = self.transform(_vectors(X)), self.transform_target(_vectors(target))
        return mean_recall(to_numpy(mapped[0]), to_numpy(mapped[1]), x_labels, y_labels)


class Trainer(LayeredMap, Method):
    """Base of the methods that are trained step by step.

    A fitted trainer is an ordinary joint-space map, and does not need torch to be applied. :meth:`save` writes its
    heads (:meth:`to_heads`): :func:`congruence.load` returns a :class:`~congruence.HeadsMap` that gives identical
    results, with the training parameters in its ``facts_["training"]``.
    """

    def to_heads(self) -> HeadsMap:
        """Return the fitted heads as a map without the training parameters.

        Returns
        -------
        HeadsMap
            Gives the same results as this map, and shares its scores.

        Raises
        ------
        NotFittedMapError
            If the map is not fitted.
        """
        self.check_fitted()
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
        return self.to_heads().save(path, force=force)

    def describe(self) -> dict[str, object]:
        """Return what is known about the fitted map as plain data; the training parameters are under ``"training"``."""
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
        """Train; ``data`` identifies the rows of this run, to distinguish it from other runs."""
        identity = {"method": self.method, "parameters": self._plain_params(), **data}
        return run(objective, schedule, checkpoint=checkpoint, resume=resume, identity=identity, verbose=verbose)

    def _take(
        self,
        layers: Mapping[str, object],
        history: History,
        facts: Mapping[str, object],
        spaces: tuple[Space, Space],
    ) -> None:
        """Store the trained layers and the facts about the training, which makes this object a fitted map."""
        training_facts = {
            "steps": history.steps,
            "best_step": history.best_step,
            "history": history.to_dict(),
            "training": self._plain_params(),
        }
        self._set(layers, self.method, {**facts, **training_facts})
        self.source_space_ = replace(spaces[0], dim=self.n_features_in_)
        self.target_space_ = replace(spaces[1], dim=self.d_target)
        self.scores_ = {} if history.best_score is None else {f"validation_{self.criterion}": history.best_score}

    def _plain_params(self) -> dict[str, object]:
        """Return the parameters as plain data; objects are represented by their ``repr``."""
        return {name: _plain(value) for name, value in self.get_params(deep=False).items()}


def _vectors(rows: RowsLike) -> RowsLike:
    return rows.vectors if isinstance(rows, Embeddings) else rows


def _plain(value: object) -> object:
    if isinstance(value, (tuple, list)):
        return [_plain(entry) for entry in value]
    return value if isinstance(value, (str, int, float, bool, type(None))) else repr(value)
