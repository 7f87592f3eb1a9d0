"""Texts to use as anchors of a map between two image–text models."""

from __future__ import annotations

from pathlib import Path

from congruence._utils.validation import check_positive
from congruence.errors import FileError, ParameterError

TEXTS_PATH = Path(__file__).parent / "data" / "anchor_texts.txt"  # path of the texts in the installed package


def anchor_texts(n: int | None = None) -> list[str]:
    """Return the first n of 4,000 short English texts about everyday things, whose beginnings cover much variance.

    A map between two dual encoders can be fitted on their text towers' vectors of these (docs/anchors.md). Made by
    ``examples/anchor_texts``, in the public domain (CC0 1.0); ordered by
    ``congruence.linalg.selection.greedy_variance`` on embeddings by all-MiniLM-L6-v2, which is not a CLIP model.

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
