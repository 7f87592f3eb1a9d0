"""What the data of every paper have in common."""

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
    """Embeddings on which a paper's experiments run. A paper extends this by its arrays and how they are split.

    Attributes
    ----------
    name : str
        Of the data, in every row of the results.
    sizes : dict
        Parameters of the experiments that suit these data better than the paper's; see :meth:`congruence.papers.Job.size`.
    notes : tuple of str
        What a reader of the numbers must know.
    title : str
        What the data are, as it stands in titles; the name by default.
    stand_in : str, optional
        What stands for the paper's models and data. It is part of every title.
    """

    name: str
    _: KW_ONLY
    sizes: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    title: str = ""
    stand_in: str | None = None

    def contents(self) -> dict[str, object]:
        """Return numbers of rows and the like, as plain data."""
        return {}

    def facts(self) -> dict[str, object]:
        """Return what the data are and hold, as plain data."""
        named = {"name": self.name, "title": self.title or self.name, "stand_in": self.stand_in}
        return {**named, **self.contents(), "notes": list(self.notes)}

    def thumbnail(self, item: str) -> bytes | None:
        """Return a small PNG, JPEG or WebP of an item, or None where there is none."""
        return None


DataT = TypeVar("DataT", bound=Data)


def check_embedded(rows: np.ndarray, count: int, what: str) -> None:
    """Refuse vectors that are no finite matrix, or not one for each item.

    Parameters
    ----------
    rows : ndarray, shape (n, d)
    count : int
    what : str
        For messages: "images of CLIP".

    Raises
    ------
    ShapeError
        There are more or fewer than ``count``.
    NotFiniteError, ZeroRowError, DtypeError
        See :func:`congruence._utils.validation.as_matrix`.
    """
    as_matrix(rows, what)
    if len(rows) != count:
        raise ShapeError(f"Got {len(rows)} {what}; expected {count}. Embed all of them with this encoder.")
