"""Read the rows whose ids the journal keeps, on both sides of the database."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from congruence._utils.ids import id_rows, id_texts
from congruence.databases import Block, Database
from congruence.errors import CorruptFileError, ShapeError

__all__ = ["read_sample"]


def read_sample(database: Database, sample: list[int | str]) -> tuple[Block, Block, np.ndarray]:
    """Return the sampled rows with their old and with their new vectors.

    Parameters
    ----------
    database : Database
    sample : list of int or str
        Ids from the journal.

    Returns
    -------
    old, new : Block
        Rows that are no longer in the table are missing, and ``new`` may have fewer rows than ``old``.
    place : ndarray of int, shape (len(old.ids),)
        Position in ``new`` of each row of ``old``, −1 for rows without a new vector.

    Raises
    ------
    ShapeError
        If no row of the table has an old vector.
    CorruptFileError
        If the ids are not of the table's type.
    """
    first = next(iter(database.scan("old", batch=1)), None)
    if first is None:
        raise ShapeError("Got a table without rows; expected at least one. Check the table and the condition.")
    try:
        ids = pa.array(sample, first.ids.type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise CorruptFileError(
            f"Got a journal whose sample has other ids than the table, whose ids are {first.ids.type}; expected ids of the table. Restore the journal, or "
            "remove the new vectors (discard) and run the migration again with another journal folder."
        ) from error
    old, new = database.fetch(ids, "old"), database.fetch(ids, "new")
    return old, new, id_rows(id_texts(new.ids.to_pylist()), id_texts(old.ids.to_pylist()))
