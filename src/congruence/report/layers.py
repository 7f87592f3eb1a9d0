"""Write plots of comparisons to files: the scores of two spaces, and the heat map of two models' layers."""

from __future__ import annotations

from pathlib import Path

from matplotlib.figure import Figure

from congruence.compare.layers import LayerComparison
from congruence.compare.spaces import Similarities
from congruence.plotting.layers import layer_notes
from congruence.plotting.look import words
from congruence.report.pictures import write_figure

__all__ = ["write_layers", "write_similarities"]


def write_layers(path: str | Path, comparison: LayerComparison, title: str, *, force: bool = False) -> None:
    """Write the heat map of a comparison to a file, atomically.

    Parameters
    ----------
    path : path-like
        ``.svg``, in which each cell has a tooltip with its score and the score by chance; ``.png``; or ``.pdf``.
    comparison : LayerComparison
    title : str
        Shown above the plot, and read by screen readers.
    force : bool, default=False
        Replace an existing file.
    """
    figure = comparison.plot(title=title).figure
    assert isinstance(figure, Figure)
    tips = [
        f"{words(name)} and {words(other)}: {comparison.values[i, j]:.3f}, by chance {comparison.null_mean[i, j]:.3f} ± {comparison.null_sd[i, j]:.3f}"
        for i, name in enumerate(comparison.x_layers)
        for j, other in enumerate(comparison.y_layers)
    ]
    notes = " ".join(layer_notes(comparison.to_dict()))
    write_figure(path, figure, words(title), description=notes, tips={"cells": tips}, force=force)


def write_similarities(path: str | Path, similarities: Similarities, title: str, *, force: bool = False) -> None:
    """Write the plot of scores and their null distribution to a file, atomically.

    Parameters
    ----------
    path : path-like
        ``.svg``, ``.png`` or ``.pdf``.
    similarities : Similarities
    title : str
        Read by screen readers, in SVG only.
    force : bool, default=False
        Replace an existing file.
    """
    figure = similarities.plot().figure
    assert isinstance(figure, Figure)
    scores = "; ".join(
        f"{row.metric} {row.value:.3f} ({row.low:.3f} to {row.high:.3f}), by chance {row.null_mean:.3f} ± {row.null_sd:.3f}"
        for row in similarities
    )
    write_figure(path, figure, words(title), description=scores, force=force)
