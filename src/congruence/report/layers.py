"""The heat map of layers against layers as a file."""

from __future__ import annotations

from pathlib import Path

from matplotlib.figure import Figure

from congruence.compare.layers import LayerComparison
from congruence.plotting.layers import layer_notes
from congruence.plotting.look import words
from congruence.report.pictures import write_figure

__all__ = ["write_layers"]


def write_layers(path: str | Path, found: LayerComparison, title: str, *, force: bool = False) -> None:
    """Write the heat map of a comparison to a file, atomically.

    Parameters
    ----------
    path : path-like
        ``.svg``, in which a cell that is pointed at says its value and chance; ``.png``; or ``.pdf``.
    found : LayerComparison
    title : str
        Shown above, and read by screen readers.
    force : bool, default=False
        Replace an existing file.

    Raises
    ------
    ParameterError
        Another suffix.
    OutputExistsError, FileError, StorageError
    """
    figure = found.plot(title=title).figure
    assert isinstance(figure, Figure)
    tips = [
        f"{words(name)} and {words(other)}: {found.values[i, j]:.3f}, by chance {found.null_mean[i, j]:.3f} ± {found.null_sd[i, j]:.3f}"
        for i, name in enumerate(found.x_layers)
        for j, other in enumerate(found.y_layers)
    ]
    notes = " ".join(layer_notes(found.to_dict()))
    write_figure(path, figure, words(title), description=notes, tips={"cells": tips}, force=force)
