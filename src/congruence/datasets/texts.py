"""Texts for anchors: a map between image–text models can be fitted on the text encoders' vectors of these."""

from __future__ import annotations

from pathlib import Path

from congruence._utils.validation import check_positive
from congruence.errors import FileError, ParameterError

__all__ = ["TEXTS_PATH", "anchor_texts"]

#: Where the texts lie in an installed package.
TEXTS_PATH = Path(__file__).parent / "data" / "anchor_texts.txt"


def anchor_texts(n: int | None = None) -> list[str]:
    """Return short texts about everyday things, ordered such that the first ones cover the most.

    To move an index of images to another dual encoder no image need be encoded twice: fit a map on these texts by both models' text towers,
    and take the means of the images (docs/anchors.md).

    Parameters
    ----------
    n : int, optional
        How many; all by default.

    Returns
    -------
    list of str
        Each different, in English, of one line.

    Raises
    ------
    ParameterError
        ``n`` is below 1 or above the number of texts.
    FileError
        The installation is incomplete.

    Notes
    -----
    Made for this library by ``examples/anchor_texts`` and dedicated to the public domain (CC0 1.0). The order is greedy
    (:func:`congruence.linalg.selection.greedy_variance`) in the embedding of all-MiniLM-L6-v2, no CLIP model's.

    Examples
    --------
    >>> from congruence.datasets import anchor_texts
    >>> len(anchor_texts()), len(set(anchor_texts(1000)))
    (4000, 1000)
    """
    if n is not None:
        check_positive(n, "n", integer=True)
    try:
        lines = TEXTS_PATH.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        raise FileError(
            f"Got no texts at {TEXTS_PATH}; expected them in the installed package. Install congruence again."
        ) from None
    if n is not None and n > len(lines):
        raise ParameterError(
            f"Got n={n:,}; expected at most {len(lines)}, the texts that there are. Pass n={len(lines)} or less."
        )
    return lines[:n]
