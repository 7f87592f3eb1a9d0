"""What the data of every paper have in common."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any, TypeVar


@dataclass(frozen=True)
class Data:
    """What the data of every paper have in common.

    Attributes
    ----------
    name : str
        Of the data, in every row of the results.
    notes : tuple of str
        What a reader of the numbers must know.
    title : str
        What the data are, as it stands in titles; the name by default.
    stand_in : str, optional
        What stands for the paper's models and data. It is part of every title.
    """

    name: str
    _: KW_ONLY
    notes: tuple[str, ...] = ()
    title: str = ""
    stand_in: str | None = None

    def facts(self) -> dict[str, Any]:
        """Return what the data hold, as plain data."""
        return {"name": self.name, "title": self.title or self.name, "stand_in": self.stand_in}

    def thumbnail(self, item: str) -> bytes | None:
        """Return a small PNG, JPEG or WebP of an item, or None where there is none."""
        return None


DataT = TypeVar("DataT", bound=Data)
