from __future__ import annotations

import pytest

from congruence.databases.pgvector import one_row
from congruence.errors import DatabaseError


class Cursor:
    """A cursor whose query returns these rows."""

    def __init__(self, *rows):
        self.rows = list(rows)

    def execute(self, query, values=None):
        return self

    def fetchone(self):
        return self.rows.pop(0) if self.rows else None


def test_a_table_that_is_gone_from_the_catalog_is_said():
    assert one_row(Cursor((1, "a")), "SELECT …", [7]) == (1, "a")
    with pytest.raises(DatabaseError, match="no longer exists"):
        one_row(Cursor(), "SELECT …", [7])
