"""Choosing a method's parameters by its score on held-out pairs, the same way for every method."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sklearn.base import clone

from congruence._utils.typing import RowsLike
from congruence.errors import ParameterError
from congruence.train._trainer import Method

__all__ = ["Tuned", "grid_points", "tune"]


@dataclass(frozen=True)
class Tuned:
    """Outcome of :func:`tune`.

    Attributes
    ----------
    map : Method
        The one with the best score.
    parameters : dict
        Those of the grid it was fitted with.
    score : float
        Its score on the validation rows.
    trials : list of (dict, float)
        All that were tried.
    """

    map: Method
    parameters: dict[str, Any]
    score: float
    trials: list[tuple[dict[str, object], float]]


def grid_points(grid: Mapping[str, Sequence[object]]) -> list[dict[str, object]]:
    """Return every combination of the values, the last parameter changing fastest.

    Parameters
    ----------
    grid : mapping of str to sequence

    Returns
    -------
    list of dict

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
    # scikit-learn's ParameterGrid sorts the parameters by name. Here they keep the order they were written in: the first of equals wins,
    # checkpoints go by the number of the point, and the recorded tables of the papers were chosen so.
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def tune(
    method: Method,
    grid: Mapping[str, Sequence[object]],
    X: RowsLike,
    Y: RowsLike,
    *,
    validation: tuple[object, ...],
    checkpoint: str | Path | None = None,
    verbose: bool = True,
    callback: Callable[[dict[str, object], float], None] | None = None,
    **fit_params: object,
) -> Tuned:
    """Fit a method with every combination of some parameters and keep the map with the best score on held-out rows.

    Parameters
    ----------
    method : Method
        Of :data:`congruence.train.METHODS`; it is not changed.
    grid : mapping of str to sequence
        Values by parameter.
    X, Y, validation, verbose
        As in the method's ``fit``; ``validation`` is what its ``score`` takes.
    checkpoint : path-like, optional
        Folder in which each combination keeps its checkpoint.
    callback : callable, optional
        Called with the parameters and the score of each.
    **fit_params
        Further rows for ``fit``: ``unpaired``, or JAM's ``negatives`` and ``groups``.

    Returns
    -------
    Tuned
        The first of equals.

    Raises
    ------
    ParameterError
        A parameter the method does not have.
    InputError, TrainingError
        As from ``fit``.
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
    trials: list[tuple[dict[str, object], float]] = []
    for number, point in enumerate(grid_points(grid)):
        fitted = clone(method).set_params(**point)
        place = None if checkpoint is None else Path(checkpoint) / f"{number:03d}"
        fitted.fit(X, Y, validation=validation, checkpoint=place, verbose=verbose, **fit_params)
        found = fitted.score(*validation)
        trials.append((point, found))
        if callback is not None:
            callback(point, found)
        if best is None or found > best.score:
            best = Tuned(fitted, point, found, trials)
    assert best is not None
    return best
