"""Choosing a method's parameters by retrieval on held-out pairs, the same way for every method."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sklearn.base import clone

from congruence.errors import ParameterError
from congruence.train._reading import read_validation
from congruence.train.retrieval import mean_recall

__all__ = ["Tuned", "grid_points", "search", "tune"]


@dataclass(frozen=True)
class Tuned:
    """Outcome of :func:`tune`.

    Attributes
    ----------
    map : TwoSidedMap
        The one with the best score.
    parameters : dict
        Those of the grid it was fitted with.
    score : float
        Its mean recall at 1 on the validation rows.
    trials : list of (dict, float)
        All that were tried.
    method : HeadTrainer, optional
        The one that was fitted to it.
    """

    map: Any
    parameters: dict[str, Any]
    score: float
    trials: list[tuple[dict[str, Any], float]]
    method: Any = None


def grid_points(grid: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Return every combination of the values.

    Raises
    ------
    ParameterError
        Something that is no list, or an empty one.
    """
    for name, values in grid.items():
        if isinstance(values, str) or not isinstance(values, Sequence) or not values:
            raise ParameterError(
                f"Got {name}={values!r} in a grid; expected a list of values. Write [{values!r}] for a single one."
            )
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def tune(
    method: Any,
    grid: Mapping[str, Sequence[Any]],
    X: Any,
    Y: Any,
    unpaired_source: Any = None,
    unpaired_target: Any = None,
    *,
    validation: tuple[Any, ...],
    checkpoint: str | Path | None = None,
    progress: bool = True,
    report: Callable[[dict[str, Any], float], None] | None = None,
) -> Tuned:
    """Fit a method with every combination of some parameters and keep the map that retrieves best on held-out rows.

    Parameters
    ----------
    method : HeadTrainer
        Of :data:`congruence.train.METHODS`; it is not changed.
    grid : mapping of str to sequence
        Values by parameter.
    X, Y, unpaired_source, unpaired_target, validation, progress
        As in :meth:`~congruence.train.HeadTrainer.fit`.
    checkpoint : path-like, optional
        Folder in which each combination keeps its checkpoint.
    report : callable, optional
        Called with the parameters and the score of each.

    Returns
    -------
    Tuned
        The first of equals.

    Raises
    ------
    ParameterError
        A parameter the method does not have.
    InputError, TrainingError
    """
    held: Any = None

    def fit(fitted: Any, place: Path | None) -> Any:
        return fitted.fit(
            X, Y, unpaired_source, unpaired_target, validation=validation, checkpoint=place, progress=progress
        )

    def score(mapping: Any) -> float:
        nonlocal held
        if held is None:
            held = read_validation(validation, mapping.n_features_in_, mapping.d_target)
        return mean_recall(mapping.transform(held[0]), mapping.transform_target(held[1]), *held[2:])

    return search(method, grid, fit, score, checkpoint=checkpoint, report=report)


def search(
    method: Any,
    grid: Mapping[str, Sequence[Any]],
    fit: Callable[[Any, Path | None], Any],
    score: Callable[[Any], float],
    *,
    checkpoint: str | Path | None = None,
    report: Callable[[dict[str, Any], float], None] | None = None,
) -> Tuned:
    """Fit a method with every combination of some parameters and keep the map with the highest score.

    Parameters
    ----------
    method : HeadTrainer, ClosedForm or JAM
        It is not changed.
    grid : mapping of str to sequence
        Values by parameter.
    fit : callable
        Takes a method and its folder for checkpoints, or None, and returns the map.
    score : callable
        Takes a map and returns what it is chosen by.
    checkpoint, report
        As in :func:`tune`.

    Returns
    -------
    Tuned
        The first of equals.

    Raises
    ------
    ParameterError
        A parameter the method does not have.
    """
    known = method.get_params(deep=False)
    unknown = [name for name in grid if name not in known]
    if unknown:
        raise ParameterError(
            f"Got {unknown[0]!r} in the grid of {type(method).__name__}; expected one of {', '.join(sorted(known))}. Use one of these names."
        )
    if checkpoint is not None:
        Path(checkpoint).mkdir(exist_ok=True)
    best: Tuned | None = None
    trials: list[tuple[dict[str, Any], float]] = []
    for number, point in enumerate(grid_points(grid)):
        fitted = clone(method, safe=False).set_params(**point)
        mapping = fit(fitted, None if checkpoint is None else Path(checkpoint) / f"{number:03d}")
        found = score(mapping)
        trials.append((point, found))
        if report is not None:
            report(point, found)
        if best is None or found > best.score:
            best = Tuned(mapping, point, found, trials, fitted)
    assert best is not None
    return best
