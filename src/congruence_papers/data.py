"""Base class of the data that the papers' experiments run on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, TypeVar

import numpy as np

from congruence._utils.validation import as_matrix
from congruence.errors import ShapeError

__all__ = ["Data", "DataT", "check_embedded"]


@dataclass(frozen=True)
class Data:
    """Embeddings on which a paper's experiments run. Each paper has a subclass with its arrays and its split.

    Attributes
    ----------
    name : str
        Name of the data in the rows of the results.
    sizes : dict
        Parameters of the experiments that fit these data better than the paper's values; see :meth:`congruence_papers.Job.size`.
    notes : tuple of str
        Notes a reader needs to interpret the numbers.
    title : str
        Description of the data in titles; by default the name.
    stand_in : str, optional
        Description of what replaces the paper's models and data; included in every title.
    """

    name: str
    _: KW_ONLY
    sizes: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    title: str = ""
    stand_in: str | None = None

    def contents(self) -> dict[str, object]:
        """Return shapes and counts, as plain data."""
        return {}

    def facts(self) -> dict[str, object]:
        """Return a description of the data and their contents, as plain data."""
        named = {"name": self.name, "title": self.title or self.name, "stand_in": self.stand_in}
        return {**named, **self.contents(), "notes": list(self.notes)}

    def thumbnail(self, item: str) -> bytes | None:
        """Return a small PNG, JPEG or WebP of an item, or None if there is none."""
        return None


DataT = TypeVar("DataT", bound=Data)


def check_embedded(rows: np.ndarray, count: int, what: str) -> None:
    """Check that vectors form a finite matrix with one row per item.

    Parameters
    ----------
    rows : ndarray, shape (n, d)
    count : int
        Number of items.
    what : str
        Description of the rows for error messages, such as "images of CLIP".

    Raises
    ------
    ShapeError
        If there are more or fewer rows than ``count``.
    NotFiniteError, ZeroRowError, DtypeError
        If the rows are invalid; see :func:`congruence._utils.validation.as_matrix`.
    """
    as_matrix(rows, what)
    if len(rows) != count:
        raise ShapeError(f"Got {len(rows)} {what}; expected {count}. Embed all of them with this encoder.")
