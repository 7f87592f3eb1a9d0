"""Where an output may go: never over, into or around what is read."""

from __future__ import annotations

from pathlib import Path

from congruence.errors import ParameterError
from congruence.stores._base import Source


def check_output_place(source: Source, output: str | Path) -> None:
    """Refuse an output that is what is read, whatever it is called: by another path, a link, or a folder around it.

    Parameters
    ----------
    source : Source
    output : str or path-like

    Raises
    ------
    ParameterError
        The output is one of the source's files, lies in its folder, or is a folder in which one of them lies.
    """
    out = Path(output)
    place = out.resolve()
    for file in source.files:
        real = file.resolve()
        same = real == place or (out.exists() and file.exists() and out.samefile(file))
        if same or place.is_relative_to(real) or real.is_relative_to(place):
            what = "is" if same else "lies in" if place.is_relative_to(real) else "contains"
            raise ParameterError(
                f"Got an output that {what} what is read: {output} and {file}; expected another place. Choose another name."
            )
