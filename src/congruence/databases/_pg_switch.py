"""The switch in PostgreSQL: in one transaction, the table is renamed, and a view over it and the side table takes its name.

The rows of the table are not rewritten. It keeps its indexes, constraints, foreign keys from and to it, triggers, sequences and grants under its
new name. The application's SELECT, INSERT, UPDATE, DELETE and COPY … FROM work on the view as on the table: SELECT uses
the side table's index, the others a trigger. INSERT … ON CONFLICT, TRUNCATE, new foreign keys and new indexes require a table, and are
refused by the server until :func:`restore_table` has replaced the view by the table again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from congruence._utils.optional import require
from congruence.databases._pg_catalog import Table
from congruence.databases._pg_client import one_row

if TYPE_CHECKING:
    from psycopg.sql import Composed

    from congruence.databases._client_types import Cursor

__all__ = ["make_table", "make_view", "obstacles", "restore_table"]

_VIEWS = """
    SELECT DISTINCT r.ev_class::regclass::text FROM pg_depend d JOIN pg_rewrite r ON r.oid = d.objid
    WHERE d.classid = 'pg_rewrite'::regclass AND d.refclassid = 'pg_class'::regclass AND d.refobjid = $1 AND d.refobjsubid = $2"""

_SECURITY = """
    SELECT c.relrowsecurity, EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attacl IS NOT NULL),
           EXISTS (SELECT FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]
                   WHERE i.indrelid = c.oid AND i.indisunique AND i.indisvalid AND i.indpred IS NULL AND i.indnkeyatts = 1 AND a.attname = $2)
    FROM pg_class c WHERE c.oid = $1"""

_DETAILS = """
    SELECT a.attname, a.attnotnull, a.attidentity::text, a.attgenerated::text, pg_get_expr(d.adbin, d.adrelid),
           CASE WHEN a.attidentity <> '' THEN pg_get_serial_sequence($2, a.attname) END
    FROM pg_attribute a LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
    WHERE a.attrelid = $1 AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum"""

_GRANTS = """
    SELECT privilege_type, is_grantable, CASE WHEN grantee = 0 THEN NULL ELSE pg_get_userbyid(grantee) END
    FROM pg_class c CROSS JOIN LATERAL aclexplode(c.relacl)
    WHERE c.oid = $1 AND grantee <> c.relowner AND privilege_type IN ('SELECT', 'INSERT', 'UPDATE', 'DELETE')"""

_WRITER = """
BEGIN
    IF TG_OP = 'DELETE' THEN
        DELETE FROM {rows} WHERE {ids} = OLD.{ids};
        IF NOT FOUND THEN RETURN NULL; END IF;
        DELETE FROM {side} WHERE id = OLD.{ids};
        RETURN OLD;
    END IF;
    IF TG_OP = 'INSERT' THEN
        INSERT INTO {rows} ({inserted}) OVERRIDING SYSTEM VALUE VALUES ({inserted_new}) RETURNING {all} INTO {all_new};
        IF NOT FOUND THEN RETURN NULL; END IF;
        INSERT INTO {side} (id, vector, own) VALUES (NEW.{ids}, NEW.{column}, true)
            ON CONFLICT (id) DO UPDATE SET vector = EXCLUDED.vector, own = true;
        RETURN NEW;
    END IF;
    -- The view's row was read without a lock: what another transaction has changed since must not be overwritten.
    PERFORM FROM {rows} t WHERE {ids} = OLD.{ids} AND ROW({all_rows})::record *= ROW({all_old})::record FOR UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'could not update: another transaction has changed the row' USING ERRCODE = 'serialization_failure';
    END IF;
    {update}
    IF NEW.{column} IS DISTINCT FROM OLD.{column} THEN
        UPDATE {side} SET vector = NEW.{column}, own = true WHERE id = OLD.{ids};
    END IF;
    UPDATE {side} SET id = NEW.{ids} WHERE id = OLD.{ids} AND id <> NEW.{ids};
    RETURN NEW;
END"""


@dataclass(frozen=True)
class _Column:
    name: str
    required: bool
    identity: str
    generated: str
    default: str | None
    sequence: str | None


def obstacles(cursor: Cursor, table: Table) -> list[str]:
    """Return the reasons why a view would show readers something other than the new vectors, or more than they may see; each is a phrase."""
    reasons = []
    views = sorted(name for (name,) in cursor.execute(_VIEWS, [table.oid, table.attnum]).fetchall() if name is not None)
    if views:
        reasons.append(
            f"views that would still show the old vectors: {', '.join(views)} (drop them, and create them again after the switch)"
        )
    row_security, column_grants, unique = one_row(cursor, _SECURITY, [table.oid, table.ids])
    if row_security:
        reasons.append("row-level security, which a view bypasses")
    if column_grants:
        reasons.append("grants of single columns, which a view would not keep")
    if not unique:
        reasons.append(f"no unique index on {table.ids!r}")
    return reasons


def _columns(cursor: Cursor, table: Table, rows: str) -> list[_Column]:
    details = cursor.execute(_DETAILS, [table.oid, table.identifier(rows).as_string()]).fetchall()
    return [_Column(*row) for row in details]


def make_view(cursor: Cursor, table: Table) -> bool:
    """Rename the table, and create a view under its name with all its columns and the new vectors; the table must be locked.

    Returns
    -------
    bool
        Whether the column of old vectors was NOT NULL. The constraint is dropped, since rows added after the switch have no old vector.
    """
    sql = require("psycopg.sql", extra="pgvector")
    name = sql.Identifier
    columns = _columns(cursor, table, table.name)
    rows, side, view = (table.identifier(target) for target in (table.renamed, table.side, table.name))
    owner, user = one_row(
        cursor, "SELECT pg_get_userbyid(relowner), current_user FROM pg_class WHERE oid = $1", [table.oid]
    )
    grants = cursor.execute(_GRANTS, [table.oid]).fetchall()
    # The view joins both tables, so a row without a row in the side table would not be visible.
    cursor.execute(
        sql.SQL("INSERT INTO {} (id, own) SELECT {}, true FROM {} ON CONFLICT (id) DO NOTHING").format(
            side, name(table.ids), view
        )
    )
    required = next(column.required for column in columns if column.name == table.column)
    if required:
        cursor.execute(sql.SQL("ALTER TABLE {} ALTER COLUMN {} DROP NOT NULL").format(view, name(table.column)))
    cursor.execute(sql.SQL("ALTER TABLE {} RENAME TO {}").format(view, name(table.renamed)))
    shown = sql.SQL(", ").join(
        sql.SQL("s.vector AS {}").format(name(column.name))
        if column.name == table.column
        else sql.SQL("t.{}").format(name(column.name))
        for column in columns
    )
    cursor.execute(
        sql.SQL("CREATE VIEW {} AS SELECT {} FROM {} t JOIN {} s ON s.id = t.{}").format(
            view, shown, rows, side, name(table.ids)
        )
    )
    for column in columns:
        default = sql.SQL(column.default) if column.default and not column.generated else None
        if column.sequence:
            default = sql.SQL("nextval({}::regclass)").format(sql.Literal(column.sequence))
        if default is not None:
            cursor.execute(
                sql.SQL("ALTER VIEW {} ALTER COLUMN {} SET DEFAULT {}").format(view, name(column.name), default)
            )
    writer = table.identifier(table.writer)
    cursor.execute(
        sql.SQL("CREATE FUNCTION {}() RETURNS trigger LANGUAGE plpgsql AS {}").format(
            writer, sql.Literal(_writer_body(table, columns).as_string())
        )
    )
    cursor.execute(
        sql.SQL(
            "CREATE TRIGGER congruence_write INSTEAD OF INSERT OR UPDATE OR DELETE ON {} FOR EACH ROW EXECUTE FUNCTION {}()"
        ).format(view, writer)
    )
    cursor.execute(
        sql.SQL("COMMENT ON VIEW {} IS {}").format(
            view, sql.Literal(f"{table.renamed} with the new vectors of {table.side}, until the old ones are dropped")
        )
    )
    for privilege, grantable, grantee in grants:
        cursor.execute(
            sql.SQL("GRANT {} ON {}, {} TO {}{}").format(
                sql.SQL(privilege),
                view,
                side,
                name(grantee) if grantee else sql.SQL("PUBLIC"),
                sql.SQL(" WITH GRANT OPTION") if grantable else sql.SQL(""),
            )
        )
    if owner != user:
        for kind, target in (("VIEW", view), ("TABLE", side), ("FUNCTION", sql.SQL("{}()").format(writer))):
            cursor.execute(sql.SQL("ALTER {} {} OWNER TO {}").format(sql.SQL(kind), target, name(owner)))
    return required


def _writer_body(table: Table, columns: list[_Column]) -> Composed:
    sql = require("psycopg.sql", extra="pgvector")

    def each(pattern: str, which: list[_Column]) -> Composed:
        return sql.SQL(", ").join(sql.SQL(pattern).format(sql.Identifier(column.name)) for column in which)

    kept = [column for column in columns if column.name != table.column]
    inserted = [column for column in kept if not column.generated]
    updated = [column for column in inserted if column.identity != "a"]
    rows = table.identifier(table.renamed)
    update = sql.SQL("")
    if updated:
        update = sql.SQL("UPDATE {} SET {} WHERE {} = OLD.{} RETURNING {} INTO {};").format(
            rows,
            sql.SQL(", ").join(sql.SQL("{0} = NEW.{0}").format(sql.Identifier(column.name)) for column in updated),
            sql.Identifier(table.ids),
            sql.Identifier(table.ids),
            each("{}", kept),
            each("NEW.{}", kept),
        )
    return sql.SQL(_WRITER).format(
        rows=rows,
        side=table.identifier(table.side),
        ids=sql.Identifier(table.ids),
        column=sql.Identifier(table.column),
        inserted=each("{}", inserted),
        inserted_new=each("NEW.{}", inserted),
        all=each("{}", kept),
        all_new=each("NEW.{}", kept),
        all_rows=each("t.{}", kept),
        all_old=each("OLD.{}", kept),
        update=update,
    )


def restore_table(cursor: Cursor, table: Table, *, required: bool) -> None:
    """Drop the view, and give the table its original name.

    Parameters
    ----------
    required : bool
        Whether the column of vectors was NOT NULL before the switch. The constraint is restored unless rows added after the switch have no old vector.
    """
    sql = require("psycopg.sql", extra="pgvector")
    view, rows = table.identifier(table.name), table.identifier(table.renamed)
    cursor.execute(sql.SQL("DROP VIEW {}").format(view))
    cursor.execute(sql.SQL("DROP FUNCTION {}()").format(table.identifier(table.writer)))
    cursor.execute(sql.SQL("ALTER TABLE {} RENAME TO {}").format(rows, sql.Identifier(table.name)))
    if required:
        _require(cursor, table)


def _require(cursor: Cursor, table: Table) -> None:
    """Make the column of vectors NOT NULL again, unless it contains NULL."""
    sql = require("psycopg.sql", extra="pgvector")
    rows, column = table.identifier(table.name), sql.Identifier(table.column)
    if not one_row(cursor, sql.SQL("SELECT EXISTS (SELECT FROM {} WHERE {} IS NULL)").format(rows, column))[0]:
        cursor.execute(sql.SQL("ALTER TABLE {} ALTER COLUMN {} SET NOT NULL").format(rows, column))


def make_table(cursor: Cursor, table: Table, kind: str, dim: int, *, required: bool) -> None:
    """Replace the old vectors in the table by the new ones, by rewriting the column; the indexes over it must have been dropped.

    A rewrite fires no trigger, leaves no dead rows, and keeps the column's position, grants and constraints. If ``required``, the column
    becomes NOT NULL again unless it contains NULL.
    """
    sql = require("psycopg.sql", extra="pgvector")
    type_ = table.vector_type(kind, dim)
    id_type = one_row(
        cursor,
        "SELECT format_type(atttypid, NULL) FROM pg_attribute WHERE attrelid = $1 AND attname = $2",
        [table.oid, table.ids],
    )[0]
    finder = table.identifier(table.finder)
    body = sql.SQL("SELECT vector FROM {} WHERE id = $1").format(table.identifier(table.side))
    cursor.execute(
        sql.SQL("CREATE FUNCTION {}({}) RETURNS {} LANGUAGE sql STABLE AS {}").format(
            finder, sql.SQL(id_type), type_, sql.Literal(body.as_string())
        )
    )
    cursor.execute(
        sql.SQL("ALTER TABLE {} ALTER COLUMN {} TYPE {} USING {}({})").format(
            table.identifier(table.name), sql.Identifier(table.column), type_, finder, sql.Identifier(table.ids)
        )
    )
    cursor.execute(sql.SQL("DROP FUNCTION {}({})").format(finder, sql.SQL(id_type)))
    if required:
        _require(cursor, table)
