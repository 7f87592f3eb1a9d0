"""Folders of user-supplied embeddings, one per encoder, as ``congruence embed`` writes them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from congruence.errors import ParameterError
from congruence.stores import suffixes

__all__ = ["encoder_pairs", "find_embeddings"]


def encoder_pairs(models: Sequence[str]) -> list[tuple[str, str]]:
    """Return pairs of encoder names from names joined by a slash.

    Parameters
    ----------
    models : sequence of str
        An image encoder and a text encoder each, such as ``"dinov2/minilm"``.

    Returns
    -------
    list of (str, str)

    Raises
    ------
    ParameterError
        If an entry is not a pair of names.
    """
    pairs = []
    for spec in models:
        names = spec.split("/")
        if len(names) != 2 or not all(names):
            raise ParameterError(
                f"Got {spec!r}; expected an image and a text encoder joined by /. Pass models='dinov2/minilm', for example."
            )
        pairs.append((names[0], names[1]))
    return pairs


def find_embeddings(folder: Path, name: str) -> Path | None:
    """Return the path of the embeddings called ``name``: a folder, or a file with any supported suffix; None if there are none.

    Parameters
    ----------
    folder : Path
        The folder of an encoder.
    name : str
        For example ``"images"``.

    Returns
    -------
    Path or None
    """
    paths = [folder / f"{name}{suffix}" for suffix in ("", *(s for s in suffixes() if s))]
    return next((path for path in paths if path.exists()), None)
