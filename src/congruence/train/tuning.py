"""Choose a method's parameters by its score on held-out pairs, in the same way for every method."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Any

from congruence._utils.atomic import check_output
from congruence._utils.typing import RowsLike
from congruence.errors import ParameterError
from congruence.maps import HeadsMap
from congruence.train._base import HeadTrainer

#: Number of folds without validation rows.
FOLDS = 5


@dataclass(frozen=True)
class Tuned:
    """The fitted ``map`` with the best ``score`` (the method's own on validation rows, or the mean reciprocal rank of
    pairs left out), its ``parameters`` from the grid, and all trials.
    """

    map: HeadsMap
    parameters: dict[str, Any]
    score: float
    trials: list[tuple[dict[str, object], float]]


def grid_points(grid: Mapping[str, Sequence[object]]) -> list[dict[str, object]]:
    """Return all combinations of the values; the last parameter changes fastest."""
    for name, values in grid.items():
        if isinstance(values, str) or not isinstance(values, Sequence) or not values:
            raise ParameterError(
                f"Got {name}={values!r} in a grid; expected a list of values.", f"Write [{values!r}] for a single one."
            )
    # scikit-learn's ParameterGrid sorts the parameters by name. Here they keep their order, which matters: the first of
    # equal scores wins, checkpoints are named by the number of the point, and the papers' recorded tables were computed
    # in this order.
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def tune(
    method: HeadsMap,
    grid: Mapping[str, Sequence[object]],
    X: RowsLike,
    Y: RowsLike,
    *,
    validation: Sequence[object] | float | None = None,
    checkpoint: str | Path | None = None,
    verbose: bool = True,
    callback: Callable[[dict[str, object], float], None] | None = None,
    **fit_params: object,
) -> Tuned:
    """Fit a method with every combination of some parameters, and return the best, the first in case of ties.

    Each is fitted to all pairs, after a measurement of how well pairs are found that five folds leave out, or a share
    or number of the pairs (``validation``). With rows of the form that the method's ``score`` expects, that score is
    compared. JAM needs such rows.

    ``grid`` holds the values to try, by parameter;
    ``checkpoint`` is a folder with one checkpoint for each combination; ``callback`` is called with the parameters and
    the score of each; ``fit_params`` are further arguments of ``fit``.
    """
    known = method.get_params(deep=False)
    unknown = [name for name in grid if name not in known]
    if unknown:
        raise ParameterError(
            f"Got {unknown[0]!r} in the grid of {method.method}.", f"Use one of {', '.join(sorted(known))}."
        )
    folder = None if checkpoint is None else Path(checkpoint)
    if folder is not None:
        check_output(folder, force=True, directory=True, foreign=lambda _: None)  # any folder may be used
        folder.mkdir(exist_ok=True)
    heldout: Any = validation
    best: Tuned | None = None
    trials: list[tuple[dict[str, object], float]] = []
    for number, point in enumerate(grid_points(grid)):
        fitted = type(method)(**{**method.get_params(), **point})
        path = None if folder is None else folder / f"{number:03d}"
        if heldout is not None and not isinstance(heldout, Real):
            fitted.fit(X, Y, validation=heldout, checkpoint=path, verbose=verbose, **fit_params)
            score = fitted.score(*heldout)
        else:
            share: Any = heldout
            if share is None and isinstance(fitted, HeadTrainer):
                fitted.folds = fitted.folds or FOLDS
            elif share is None:
                share = 1 / FOLDS
            fitted.fit(X, Y, validation=share, checkpoint=path, verbose=verbose, **fit_params)
            score = fitted.scores_["folds"]["score"]
        trials.append((point, score))
        if callback is not None:
            callback(point, score)
        if best is None or score > best.score:
            best = Tuned(fitted, point, score, trials)
    assert best is not None
    return best
