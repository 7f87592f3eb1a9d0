"""pgvector's indexes: read those over the old vectors, and build the same over the new ones."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from congruence._utils.optional import require
from congruence.databases._pg_catalog import Table

if TYPE_CHECKING:
    from types import ModuleType

    from psycopg.sql import Composable, Composed

    from congruence.databases._client_types import Cursor

__all__ = ["VectorIndex", "order_by", "read_indexes"]

#: Maximum width that an index supports, by type. A wider vector is indexed as halfvec, a wider halfvec not at all.
WIDEST = {"vector": 2000, "halfvec": 4000, "bit": 64_000}

DISTANCES = {"cosine": "cosine", "ip": "dot", "l2": "l2"}
OPERATORS = {"cosine": "<=>", "dot": "<#>", "l2": "<->", "hamming": "<~>"}

_INDEXES = """
    SELECT c.relname, am.amname, o.opcname, coalesce(c.reloptions, '{}'), pg_get_expr(i.indexprs, i.indrelid), i.indpred IS NOT NULL
    FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_am am ON am.oid = c.relam
    JOIN pg_opclass o ON o.oid = i.indclass[0]
    WHERE i.indrelid = $1 AND i.indisvalid AND am.amname IN ('hnsw', 'ivfflat') AND (i.indkey[0] = $2 OR EXISTS (
        SELECT FROM pg_depend d WHERE d.classid = 'pg_class'::regclass AND d.objid = i.indexrelid AND d.refobjid = i.indrelid
        AND d.refobjsubid = $2))
    ORDER BY c.relname"""


@dataclass(frozen=True)
class VectorIndex:
    """An index over a column of vectors.

    Attributes
    ----------
    name : str
    method : str
        hnsw or ivfflat.
    kind : str
        Type of the indexed values: vector, halfvec or bit.
    metric : str
        Metric as in the operator class: cosine, ip, l2, l1, …
    options : tuple of str
        Storage parameters, such as ``m=16``.
    cast : bool
        Whether the index is over the vectors cast to ``kind``; a query uses it only with the same cast.
    partial : bool
        Whether the index has a condition. The index over the side table has none, since that table lacks the other columns.
    """

    name: str
    method: str
    kind: str
    metric: str
    options: tuple[str, ...]
    cast: bool
    partial: bool

    @property
    def distance(self) -> str | None:
        """Distance in the terms of :class:`congruence.databases.DatabaseInfo`; None if it has no such name."""
        return DISTANCES.get(self.metric)

    def __str__(self) -> str:
        parameters = [f"{self.kind}_{self.metric}_ops", *self.options]
        cast = f", over a cast to {self.kind}: only queries with the same cast use it" if self.cast else ""
        return f"{self.method} ({', '.join(parameters)}){cast}"

    def like(self, kind: str, dim: int) -> VectorIndex | None:
        """Return the same index for vectors of another type and width; None if pgvector does not support it."""
        # A bit index with a cast is over bits computed from the vectors.
        if self.kind not in WIDEST or (self.kind == "bit" and self.cast):
            return None
        if "bit" in (kind, self.kind):
            if dim > WIDEST[kind]:
                return None
            metric = self.metric if kind == self.kind else "hamming" if kind == "bit" else "cosine"
            return VectorIndex(self.name, self.method, kind, metric, self.options, False, False)
        target = "halfvec" if "halfvec" in (kind, self.kind) or dim > WIDEST["vector"] else "vector"
        if dim > WIDEST[target]:
            return None
        return VectorIndex(self.name, self.method, target, self.metric, self.options, target != kind, False)

    def create(self, cursor: Cursor, table: Table, on: str, column: str, dim: int, name: str | None = None) -> None:
        """Create the index over a column of the table ``on``."""
        sql = require("psycopg.sql", extra="pgvector")
        expression = sql.Identifier(column)
        if self.cast:
            expression = sql.SQL("({}::{})").format(expression, table.vector_type(self.kind, dim))
        options = sql.SQL(", ").join(
            sql.SQL("{} = {}").format(sql.Identifier(key), sql.Literal(value))
            for key, _, value in (option.partition("=") for option in self.options)
        )
        cursor.execute(
            sql.SQL("CREATE INDEX {} ON {} USING {} ({} {}){}").format(
                sql.Identifier(name) if name else sql.SQL(""),
                table.identifier(on),
                sql.Identifier(self.method),
                expression,
                sql.Identifier(table.extension, f"{self.kind}_{self.metric}_ops"),
                sql.SQL(" WITH ({})").format(options) if self.options else sql.SQL(""),
            )
        )


def order_by(
    table: Table, column: Composable, type_: Composable, distance: str, cast: bool, sql: ModuleType
) -> Composed:
    """Return the ORDER BY expression ``column <=> $1``, with the operator of a distance; ``cast`` as in :class:`VectorIndex`."""
    expression = sql.SQL("({}::{})").format(column, type_) if cast else column
    operator = sql.SQL("OPERATOR({}.{})").format(sql.Identifier(table.extension), sql.SQL(OPERATORS[distance]))
    return sql.SQL("{} {} $1::{}").format(expression, operator, type_)


def read_indexes(cursor: Cursor, oid: int, attnum: int) -> list[VectorIndex]:
    """Return the valid pgvector indexes over a column, or over an expression of it."""
    indexes = []
    for name, method, operators, options, expression, partial in cursor.execute(_INDEXES, [oid, attnum]).fetchall():
        kind, _, metric = re.sub(r"_ops$", "", operators).partition("_")
        indexes.append(VectorIndex(name, method, kind, metric, tuple(options), expression is not None, partial))
    return indexes
