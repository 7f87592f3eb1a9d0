"""Write figures as SVG, PNG or PDF, depending on the suffix; equal figures give equal bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure

from congruence._utils.atomic import atomic_path
from congruence.errors import ParameterError
from congruence.plotting.look import style
from congruence.report.svg import to_document

__all__ = ["check_suffix", "save_figure", "write_figure"]

#: Metadata to leave out of each format: the program and the date.
_METADATA: dict[str, dict[str, None]] = {
    ".png": {"Software": None},
    ".pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}


def check_suffix(path: str | Path) -> str:
    """Return the suffix of a figure's path in lower case; ``.svg`` if it has none.

    Parameters
    ----------
    path : path-like
    """
    suffix = Path(path).suffix.lower() or ".svg"
    if suffix not in (".svg", *_METADATA):
        raise ParameterError(
            f"Got the path {Path(path).name} for a picture; expected one that ends in .svg, .png or .pdf. Choose one of these suffixes."
        )
    return suffix


def write_figure(
    path: str | Path,
    figure: Figure,
    title: str,
    *,
    description: str = "",
    tips: Mapping[str, Sequence[str]] | None = None,
    force: bool = False,
) -> None:
    """Write a figure in the palette's colors, atomically.

    Parameters
    ----------
    path : path-like
        The suffix determines the format.
    figure : matplotlib.figure.Figure
    title, description, tips
        Used in SVG only, as for :func:`congruence.report.svg.to_document`.
    force : bool, default=False
        Replace an existing file.
    """
    suffix = check_suffix(path)
    with atomic_path(path, force=force) as temporary:
        save_figure(temporary, figure, title, suffix=suffix, description=description, tips=tips)


def save_figure(
    path: Path,
    figure: Figure,
    title: str,
    *,
    suffix: str | None = None,
    description: str = "",
    tips: Mapping[str, Sequence[str]] | None = None,
    pictures: Mapping[str, str] | None = None,
) -> None:
    """Save a figure in place, without an atomic write; parameters as for :func:`write_figure` and :func:`congruence.report.svg.to_document`."""
    suffix = suffix or check_suffix(path)
    if suffix == ".svg":
        text = to_document(figure, title, description=description, tips=tips, pictures=pictures)
        path.write_text(text, encoding="utf-8")
        return
    with style():
        figure.savefig(path, format=suffix[1:], metadata=_METADATA[suffix])
