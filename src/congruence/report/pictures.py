"""Write figures as SVG, PNG or PDF, depending on the suffix; equal figures give equal bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from congruence._utils.atomic import atomic_path
from congruence.compare.layers import LayerComparison
from congruence.compare.spaces import Similarities
from congruence.errors import ParameterError
from congruence.plotting import layer_notes
from congruence.plotting.look import style, words
from congruence.report.svg import to_document

#: Metadata to leave out of each format: the program and the date.
_METADATA: dict[str, dict[str, None]] = {
    ".png": {"Software": None},
    ".pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}


def check_suffix(path: str | Path) -> str:
    """Return the suffix of a figure's path, ``.svg`` by default, ``.png`` or ``.pdf``, in lower case; refuse others."""
    suffix = Path(path).suffix.lower() or ".svg"
    if suffix not in (".svg", *_METADATA):
        raise ParameterError(
            f"Got a picture named {Path(path).name}; expected one that ends in .svg, .png or .pdf.",
            "Choose one of these suffixes.",
        )
    return suffix


def write_figure(
    path: str | Path,
    drawn: Axes | Figure,
    title: str,
    *,
    description: str = "",
    tips: Mapping[str, Sequence[str]] | None = None,
    force: bool = False,
) -> None:
    """Write a figure, or that of axes, in the palette's colors, atomically; the suffix determines the format.

    ``title``, ``description`` and ``tips`` are used in SVG only, as for ``congruence.report.svg.to_document``.
    """
    suffix = check_suffix(path)
    figure = drawn if isinstance(drawn, Figure) else drawn.get_figure(root=True)
    assert figure is not None
    with atomic_path(path, force=force) as temporary:
        if suffix == ".svg":
            temporary.write_text(to_document(figure, title, description=description, tips=tips), encoding="utf-8")
            return
        with style():
            figure.savefig(temporary, format=suffix[1:], metadata=_METADATA[suffix])


def write_layers(path: str | Path, comparison: LayerComparison, title: str, *, force: bool = False) -> None:
    """Write the heat map of a comparison to ``.svg``, with a tooltip for each cell, ``.png`` or ``.pdf``.

    ``title`` is shown above the plot, and read by screen readers.
    """
    tips = [
        f"{words(name)} and {words(other)}: {comparison.values[i, j]:.3f}, by chance "
        f"{comparison.null_mean[i, j]:.3f} ± {comparison.null_sd[i, j]:.3f}"
        for i, name in enumerate(comparison.x_layers)
        for j, other in enumerate(comparison.y_layers)
    ]
    notes = " ".join(layer_notes(comparison.to_dict()))
    plot = comparison.plot(title=title)
    write_figure(path, plot, words(title), description=notes, tips={"cells": tips}, force=force)


def write_similarities(path: str | Path, similarities: Similarities, title: str, *, force: bool = False) -> None:
    """Write the plot of scores and their null distribution; ``title`` is read by screen readers, in SVG only."""
    scores = "; ".join(
        f"{row.metric} {row.value:.3f} ({row.low:.3f} to {row.high:.3f}), by chance {row.null_mean:.3f} ± "
        f"{row.null_sd:.3f}"
        for row in similarities
    )
    write_figure(path, similarities.plot(), words(title), description=scores, force=force)
