"""Check that an output does not overlap its source."""

from __future__ import annotations

from pathlib import Path

from congruence.errors import ParameterError
from congruence.stores._base import Source


def check_output_place(source: Source, output: str | Path) -> None:
    """Check that an output is not its source, not even through another path, a link or an enclosing folder.

    Parameters
    ----------
    source : Source
    output : str or path-like

    Raises
    ------
    ParameterError
        If the output is one of the source's files, lies in its folder, or is a folder that contains one of its files.
    """
    out = Path(output)
    place = out.resolve()
    for file in source.files:
        real = file.resolve()
        same = real == place or (out.exists() and file.exists() and out.samefile(file))
        if same or place.is_relative_to(real) or real.is_relative_to(place):
            what = "is" if same else "lies in" if place.is_relative_to(real) else "contains"
            raise ParameterError(
                f"Got output {output}, which {what} the source {file}; expected a path outside the source. Pass another path."
            )
