"""Figures as PNG, for where SVG is not taken."""

from __future__ import annotations

from congruence._utils.optional import require
from congruence._utils.validation import check_positive

__all__ = ["svg_to_png"]


def svg_to_png(svg: str, *, zoom: float = 2.0) -> bytes:
    """Return a figure as PNG on white.

    Parameters
    ----------
    svg : str
        A whole SVG document. Nothing it might point to on disk or on the web is read but fonts of the system.
    zoom : float, default=2.0
        Pixels for a unit of the drawing.

    Returns
    -------
    bytes

    Raises
    ------
    MissingExtraError
        Without resvg (extra ``png``).
    ParameterError

    Examples
    --------
    >>> from congruence.report import svg_to_png
    >>> svg_to_png('<svg xmlns="http://www.w3.org/2000/svg" width="4" height="3"/>')[1:4]
    b'PNG'
    """
    check_positive(zoom, "zoom")
    resvg = require("resvg_py", extra="png")
    return bytes(resvg.svg_to_bytes(svg_string=svg, background="#ffffff", zoom=zoom))
