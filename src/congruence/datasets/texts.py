"""Texts to use as anchors: a map between two image–text models can be fitted on their text encoders' vectors of these
texts.
"""

from __future__ import annotations

from pathlib import Path

from congruence._utils.validation import check_positive
from congruence.errors import FileError, ParameterError

#: Path of the texts in the installed package.
TEXTS_PATH = Path(__file__).parent / "data" / "anchor_texts.txt"


def anchor_texts(n: int | None = None) -> list[str]:
    """Return short texts about everyday things, ordered such that the first n cover as much variance as possible.

    They make it possible to move an index of images to another dual encoder without encoding any image twice: fit a map
    on the vectors of both models' text towers for these texts, and take the means from the images (docs/anchors.md).

    Parameters
    ----------
    n : int, optional
        Number of texts; all by default.

    Returns
    -------
    list of str
        Distinct English texts, each of one line.

    Notes
    -----
    Generated for this library by ``examples/anchor_texts`` and dedicated to the public domain (CC0 1.0). The order is
    that of a greedy selection (``congruence.linalg.selection.greedy_variance``) on embeddings by all-MiniLM-L6-v2,
    which is not a CLIP model.

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
        raise FileError(f"No texts at {TEXTS_PATH} in the package.", "Install congruence again.") from None
    if n is not None and n > len(lines):
        raise ParameterError(f"Got `n={n:,}`; there are {len(lines)} texts.", f"Pass `n={len(lines)}` or less.")
    return lines[:n]
