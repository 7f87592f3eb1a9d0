"""What is bound to a column of a PostgreSQL table, and how it follows when another column takes the name.

The server writes all definitions itself: they are read while the columns have their old names, and run after the
columns were renamed, so that they refer to the new column.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from congruence.databases._base import MARK_KEY, NEW, json_in, own_metadata, quoted
from congruence.errors import MigrationError
from congruence.io import SPACE_KEY

_TREE = """
    WITH RECURSIVE tree AS (
        SELECT $1::oid AS oid, 0 AS depth
        UNION SELECT i.inhrelid, t.depth + 1 FROM pg_inherits i JOIN tree t ON i.inhparent = t.oid)
    SELECT c.oid, format('%I.%I', n.nspname, c.relname), c.relispartition
    FROM (SELECT oid, max(depth) AS depth FROM tree GROUP BY oid) t
    JOIN pg_class c ON c.oid = t.oid JOIN pg_namespace n ON n.oid = c.relnamespace ORDER BY t.depth, c.oid"""

_DEPENDENTS = """
    SELECT DISTINCT d.classid::regclass::text, d.objid, pg_describe_object(d.classid, d.objid, d.objsubid)
    FROM pg_depend d JOIN pg_attribute a ON a.attrelid = d.refobjid AND a.attnum = d.refobjsubid
    WHERE d.refclassid = 'pg_class'::regclass AND d.refobjid = ANY($1::oid[]) AND a.attname = $2
    ORDER BY 1, 2"""

#: For each catalog, a query for an object's statements that drop it, those that create it, and the reason why it cannot
#: follow. $1 is the object, $2 and $3 are the hidden names of the incoming and of the outgoing column. No row: it needs
#: no statement, because it follows its parent.
_DETAILS = {
    "pg_trigger": """
        SELECT ARRAY[format('DROP TRIGGER %I ON %s', t.tgname, t.tgrelid::regclass)],
            ARRAY[pg_get_triggerdef(t.oid),
                  format('ALTER TABLE %s %s TRIGGER %I', t.tgrelid::regclass,
                         CASE t.tgenabled WHEN 'O' THEN 'ENABLE' WHEN 'D' THEN 'DISABLE'
                              WHEN 'R' THEN 'ENABLE REPLICA' ELSE 'ENABLE ALWAYS' END, t.tgname),
                  format('COMMENT ON TRIGGER %I ON %s IS %L', t.tgname, t.tgrelid::regclass,
                         obj_description(t.oid, 'pg_trigger'))], ''
        FROM pg_trigger t WHERE t.oid = $1 AND NOT t.tgisinternal AND t.tgparentid = 0""",
    "pg_constraint": """
        SELECT ARRAY[format('ALTER TABLE %s DROP CONSTRAINT %I', c.conrelid::regclass, c.conname)],
            ARRAY[format('ALTER TABLE %s ADD CONSTRAINT %I %s%s', c.conrelid::regclass, c.conname,
                         pg_get_constraintdef(c.oid), CASE WHEN c.convalidated THEN ' NOT VALID' ELSE '' END),
                  format('COMMENT ON CONSTRAINT %I ON %s IS %L', c.conname, c.conrelid::regclass,
                         obj_description(c.oid, 'pg_constraint'))],
            CASE c.contype WHEN 'c' THEN '' WHEN 'p' THEN 'a primary key over the vectors (choose another key)'
                 WHEN 'f' THEN 'a foreign key over the vectors (drop it)'
                 ELSE 'an exclusion constraint over the vectors (drop it, and add it again after drop-old)' END
        FROM pg_constraint c WHERE c.oid = $1 AND c.conislocal AND c.contype NOT IN ('u', 'n')""",
    "pg_policy": """
        SELECT ARRAY[]::text[],
            ARRAY[format('ALTER POLICY %I ON %s%s%s', p.polname, p.polrelid::regclass,
                         coalesce(' USING (' || pg_get_expr(p.polqual, p.polrelid) || ')', ''),
                         coalesce(' WITH CHECK (' || pg_get_expr(p.polwithcheck, p.polrelid) || ')', ''))], ''
        FROM pg_policy p WHERE p.oid = $1""",
    "pg_publication_rel": """
        SELECT ARRAY[format('ALTER PUBLICATION %I DROP TABLE ONLY %s', b.pubname, r.prrelid::regclass)],
            ARRAY[format('ALTER PUBLICATION %I ADD TABLE ONLY %s%s%s', b.pubname, r.prrelid::regclass,
                  (SELECT ' (' || string_agg(quote_ident(a.name), ', ' ORDER BY a.attnum) || ')'
                   FROM (SELECT CASE attname WHEN $2 THEN $3 ELSE attname END AS name, attnum FROM pg_attribute
                         WHERE attrelid = r.prrelid AND attnum = ANY(r.prattrs)) AS a WHERE a.name IS NOT NULL),
                  coalesce(' WHERE (' || pg_get_expr(r.prqual, r.prrelid) || ')', ''))], ''
        FROM pg_publication_rel r JOIN pg_publication b ON b.oid = r.prpubid WHERE r.oid = $1""",
    "pg_statistic_ext": """
        SELECT ARRAY[format('DROP STATISTICS %I.%I', n.nspname, s.stxname)],
            ARRAY[pg_get_statisticsobjdef(s.oid),
                  format('ALTER STATISTICS %I.%I OWNER TO %I', n.nspname, s.stxname, pg_get_userbyid(s.stxowner)),
                  format('ALTER STATISTICS %I.%I SET STATISTICS %s', n.nspname, s.stxname,
                         coalesce(s.stxstattarget, -1)),
                  format('COMMENT ON STATISTICS %I.%I IS %L', n.nspname, s.stxname,
                         obj_description(s.oid, 'pg_statistic_ext'))], ''
        FROM pg_statistic_ext s JOIN pg_namespace n ON n.oid = s.stxnamespace WHERE s.oid = $1""",
    "pg_rewrite": """
        SELECT ARRAY[]::text[],
            ARRAY[format('CREATE OR REPLACE VIEW %s%s AS %s', c.oid::regclass,
                         coalesce(' WITH (' || array_to_string(c.reloptions, ', ') || ')', ''),
                         pg_get_viewdef(c.oid))],
            CASE WHEN c.relkind = 'v' AND r.rulename = '_RETURN' THEN ''
                 WHEN c.relkind = 'm' THEN 'it keeps the old vectors (drop it, and create it again after the switch)'
                 ELSE 'a rule over the vectors (drop it, and create it again after the switch)' END
        FROM pg_rewrite r JOIN pg_class c ON c.oid = r.ev_class WHERE r.oid = $1""",
    "pg_proc": "SELECT ARRAY[]::text[], ARRAY[pg_get_functiondef($1)], ''",
    "pg_attrdef": """
        SELECT ARRAY[format('ALTER TABLE %s ALTER COLUMN %I DROP DEFAULT', d.adrelid::regclass, a.attname)],
            ARRAY[]::text[],
            CASE WHEN a.attgenerated = '' AND pg_get_expr(d.adbin, d.adrelid) ~ '^NULL' THEN ''
                 WHEN a.attgenerated <> '' THEN 'a generated column (drop it, and add it again after drop-old)'
                 ELSE 'a default that is a vector of the old model (drop it: ALTER COLUMN … DROP DEFAULT)' END
        FROM pg_attrdef d JOIN pg_attribute a ON a.attrelid = d.adrelid AND a.attnum = d.adnum
        WHERE d.oid = $1""",
    "pg_class": """
        SELECT ARRAY[]::text[], ARRAY[]::text[],
            CASE c.relkind WHEN 'p' THEN 'a partition key over the vectors (choose another key)'
                 ELSE 'it belongs to the column of vectors (ALTER SEQUENCE … OWNED BY another column)' END
        FROM pg_class c WHERE c.oid = $1 AND c.relkind NOT IN ('i', 'I')""",
}

#: What the column's dependencies do not show.
_OTHER_OBSTACLES = """
    SELECT 'a partition key over the vectors (choose another key)' FROM pg_partitioned_table p
    JOIN pg_attribute a ON a.attrelid = p.partrelid AND a.attnum = ANY(p.partattrs)
    WHERE p.partrelid = ANY($1::oid[]) AND a.attname = $2
    UNION ALL SELECT format('the constraint %I over whole rows (name its columns)', conname) FROM pg_constraint
    WHERE conrelid = ANY($1::oid[]) AND contype = 'c' AND 0 = ANY(conkey)
    UNION ALL SELECT format('the unique constraint %I, which allows one row without a vector (drop it)', c.relname)
    FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
    JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY(i.indkey)
    WHERE i.indrelid = ANY($1::oid[]) AND a.attname = $2 AND i.indnullsnotdistinct
    UNION ALL SELECT format('the unique constraint %I over a partitioned table (drop it)', c.conname)
    FROM pg_constraint c JOIN pg_class t ON t.oid = c.conrelid AND t.relkind = 'p'
    JOIN pg_attribute a ON a.attrelid = c.conrelid AND a.attnum = ANY(c.conkey)
    WHERE c.conrelid = ANY($1::oid[]) AND c.contype = 'u' AND a.attname = $2
    UNION ALL SELECT format('the column %I of %s, which stores whole rows (store its fields)', a.attname,
        a.attrelid::regclass)
    FROM pg_class c JOIN pg_type t ON t.oid = c.reltype JOIN pg_attribute a ON a.atttypid IN (t.oid, t.typarray)
    JOIN pg_class k ON k.oid = a.attrelid AND k.relkind IN ('r', 'p', 'm') WHERE c.oid = ANY($1::oid[])
    UNION ALL SELECT 'a security label on the column (remove it)' FROM pg_seclabel l
    JOIN pg_attribute a ON a.attrelid = l.objoid AND a.attnum = l.objsubid
    WHERE l.classoid = 'pg_class'::regclass AND l.objoid = ANY($1::oid[]) AND a.attname = $2
    UNION ALL SELECT 'a subscription, which would go on writing vectors of the old model (migrate its publisher)'
    WHERE EXISTS (SELECT FROM pg_subscription_rel WHERE srrelid = ANY($1::oid[]))
    UNION ALL SELECT format('the trigger %I, which runs after all others (rename it to a name of letters)', tgname)
    FROM pg_trigger WHERE tgrelid = ANY($1::oid[]) AND NOT tgisinternal AND tgtype & 3 = 3
    AND tgname COLLATE "C" > $3 COLLATE "C" AND tgname NOT LIKE '~~~congruence%'
    UNION ALL SELECT format('the inherited column %I (migrate its parent)', a.attname) FROM pg_attribute a
    WHERE a.attrelid = ($1::oid[])[1] AND a.attname = $2 AND a.attinhcount > 0"""

_INVARIANT = """
    SELECT pg_describe_object(d.classid, d.objid, d.objsubid)
    FROM pg_depend d JOIN pg_attribute a ON a.attrelid = d.refobjid AND a.attnum = d.refobjsubid
    LEFT JOIN pg_class c ON d.classid = 'pg_class'::regclass AND c.oid = d.objid AND c.relkind IN ('i', 'I')
    LEFT JOIN pg_constraint u ON d.classid = 'pg_constraint'::regclass AND u.oid = d.objid AND u.contype = 'u'
    WHERE d.refclassid = 'pg_class'::regclass AND d.refobjid = ANY($1::oid[]) AND a.attname = $2
    AND c.oid IS NULL AND u.oid IS NULL AND d.classid <> 'pg_publication_rel'::regclass"""

_ATTRIBUTES = """
    SELECT a.attstorage::text, a.attstorage <> t.typstorage, a.attcompression::text, coalesce(a.attstattarget, -1),
           coalesce(a.attoptions, '{}'), col_description(a.attrelid, a.attnum)
    FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid WHERE a.attrelid = $1 AND a.attname = $2"""

_GRANTS = """
    SELECT g.privilege_type, g.is_grantable, CASE WHEN g.grantee = 0 THEN NULL ELSE pg_get_userbyid(g.grantee) END
    FROM pg_attribute a CROSS JOIN LATERAL aclexplode(a.attacl) g WHERE a.attrelid = $1 AND a.attname = $2"""

_STORAGE = {"p": "PLAIN", "e": "EXTERNAL", "m": "MAIN", "x": "EXTENDED"}

_INDEXES = """
    SELECT i.indexrelid, n.nspname, c.relname, c.relkind = 'I', i.indisunique, i.indrelid::regclass::text,
           pg_get_indexdef(i.indexrelid), pg_get_expr(i.indpred, i.indrelid),
           (SELECT spcname FROM pg_tablespace WHERE oid = c.reltablespace),
           (SELECT inhparent FROM pg_inherits WHERE inhrelid = i.indexrelid), i.indisvalid,
           (SELECT CASE WHEN NOT condeferrable THEN '' WHEN condeferred THEN ' DEFERRABLE INITIALLY DEFERRED'
                   ELSE ' DEFERRABLE' END FROM pg_constraint WHERE conindid = i.indexrelid AND contype = 'u'),
           obj_description(i.indexrelid, 'pg_class'),
           (SELECT obj_description(oid, 'pg_constraint') FROM pg_constraint WHERE conindid = i.indexrelid
            AND contype = 'u'), am.amname, o.opcname, split_part(o.opcname, '_', 1),
           split_part(o.opcname, '_', 2), coalesce(c.reloptions, '{}'), i.indexprs IS NOT NULL
    FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_namespace n ON n.oid = c.relnamespace
    JOIN pg_am am ON am.oid = c.relam JOIN pg_opclass o ON o.oid = i.indclass[0]
    JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attname = $2
    WHERE i.indrelid = ANY($1::oid[]) AND (a.attnum = ANY(i.indkey) OR EXISTS (
        SELECT FROM pg_depend d WHERE d.classid = 'pg_class'::regclass AND d.objid = i.indexrelid
        AND d.refclassid = 'pg_class'::regclass AND d.refobjid = i.indrelid AND d.refobjsubid = a.attnum))
    ORDER BY array_position($1::oid[], i.indrelid), c.relname"""

_REQUIRED = """
    SELECT format('%I.%I', n.nspname, c.relname), k.conname, coalesce(k.connoinherit, false)
    FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid JOIN pg_namespace n ON n.oid = c.relnamespace
    LEFT JOIN pg_constraint k ON k.conrelid = a.attrelid AND k.contype = 'n' AND k.conkey = ARRAY[a.attnum]
    WHERE a.attrelid = ANY($1::oid[]) AND a.attname = $2 AND a.attnotnull AND coalesce(k.conislocal, true)
    ORDER BY array_position($1::oid[], a.attrelid)"""


_UNVALIDATED = """
    SELECT format('%I.%I', n.nspname, t.relname), c.conname FROM pg_constraint c JOIN pg_class t ON t.oid = c.conrelid
    JOIN pg_namespace n ON n.oid = t.relnamespace
    WHERE c.conrelid = ANY($1::oid[]) AND c.contype = 'c' AND NOT c.convalidated AND c.conislocal"""


def hidden_name(name: str, suffix: str) -> str:
    """Return a name with a suffix, unique within 63 bytes, to which PostgreSQL truncates longer names."""
    whole = name + suffix
    if len(whole.encode()) <= 63:
        return whole
    digest = hashlib.sha256(name.encode()).hexdigest()[:12]
    room = 63 - len(suffix.encode()) - len(digest) - 1
    return f"{name.encode()[:room].decode(errors='ignore')}_{digest}{suffix}"


def literal(text: str | None) -> str:
    """Return a string as an SQL literal, for statements that do not support parameters; None as NULL."""
    if text is None:
        return "NULL"
    escaped = text.replace("\\", "\\\\").replace("'", "''")
    return f"E'{escaped}'" if "\\" in text else f"'{escaped}'"


class Relation(NamedTuple):
    """The user's table, a partition of it or a table that inherits from it."""

    oid: int
    name: str  # qualified and quoted
    partition: bool


def read_tree(cursor: Any, oid: int) -> list[Relation]:
    """Return a table and all its partitions and heirs, parents first."""
    return [Relation(*row) for row in cursor.execute(_TREE, [oid]).fetchall()]


class Bound(NamedTuple):
    """An object that is bound to the column."""

    what: str
    drop: list[str]
    create: list[str]
    refusal: str


class PgIndex(NamedTuple):
    """An index over a column, or over an expression of it, as a row of ``_INDEXES``."""

    oid: int
    schema: str
    name: str
    partitioned: bool
    unique: bool
    table: str
    definition: str
    predicate: str | None
    tablespace: str | None
    parent: int | None  # the partitioned index
    valid: bool
    constraint: str | None  # properties of the unique constraint that it belongs to; None without one
    comment: str | None
    constraint_comment: str | None
    method: str
    operators: str  # operator class, such as vector_cosine_ops
    kind: str  # its parts
    metric: str
    options: list[str]  # storage parameters, such as m=16
    cast: bool  # whether it is over an expression; a query uses an index over a cast only with the same cast

    @property
    def searches(self) -> bool:
        """Whether pgvector finds the nearest rows by it."""
        return self.valid and self.method in ("hnsw", "ivfflat")

    @property
    def distance(self) -> str | None:
        """Distance in the terms of ``congruence.databases.DatabaseInfo``; None if it has no such name."""
        return {"cosine": "cosine", "ip": "dot", "l2": "l2"}.get(self.metric)

    def __str__(self) -> str:
        cast = f", over a cast to {self.kind}: only queries with the same cast use it" if self.cast else ""
        return f"{self.method} ({', '.join([self.operators, *self.options])}){cast}"


def read_indexes(cursor: Any, oids: list[int], column: str) -> list[PgIndex]:
    """Return the indexes over a column of tables."""
    return [PgIndex(*row) for row in cursor.execute(_INDEXES, [oids, column]).fetchall()]


def oids_of(tree: Sequence[Relation]) -> list[int]:
    """Return the oids of tables."""
    return [relation.oid for relation in tree]


def read_bound(cursor: Any, tree: Sequence[Relation], column: str, incoming: str, outgoing: str | None) -> list[Bound]:
    """Return what is bound to a column, apart from indexes and NOT NULL."""
    bound = []
    for catalog, oid, what in cursor.execute(_DEPENDENTS, [oids_of(tree), column]).fetchall():
        if catalog not in _DETAILS:
            bound.append(Bound(what, [], [], f"it depends on the column in {catalog} (drop it)"))
            continue
        names = [incoming, outgoing] if catalog == "pg_publication_rel" else []
        for drop, create, refusal in cursor.execute(_DETAILS[catalog], [oid, *names]).fetchall():
            bound.append(Bound(what, drop, create, f"{what}: {refusal}" if refusal else ""))
    return bound


def obstacles(cursor: Any, tree: Sequence[Relation], column: str, guard: str) -> list[str]:
    """Return why the column cannot be replaced, each with the name of the object and what to do."""
    found = [bound.refusal for bound in read_bound(cursor, tree, column, "", "") if bound.refusal]
    rows = cursor.execute(_OTHER_OBSTACLES, [oids_of(tree), column, guard]).fetchall()
    return list(dict.fromkeys([*found, *(str(reason) for (reason,) in rows)]))


def kept_by(cursor: Any, tree: Sequence[Relation], column: str) -> list[str]:
    """Return what depends on a column, apart from indexes, unique constraints and publications."""
    return [what for (what,) in cursor.execute(_INVARIANT, [oids_of(tree), column]).fetchall()]


def copy_attributes(cursor: Any, relation: Relation, source: str, target: str, same_type: bool) -> None:
    """Give a column the grants, storage, compression, statistics target and options of another."""
    storage, own, compression, statistics, options, _ = cursor.execute(_ATTRIBUTES, [relation.oid, source]).fetchone()
    now = cursor.execute(_ATTRIBUTES, [relation.oid, target]).fetchone()
    changes = []
    if (own or same_type) and storage != now[0]:
        changes.append(f"SET STORAGE {_STORAGE[storage]}")
    if compression != now[2]:
        changes.append(f"SET COMPRESSION { {'p': 'pglz', 'l': 'lz4'}.get(compression, 'default') }")
    if statistics != now[3]:
        changes.append(f"SET STATISTICS {statistics}")
    if options != now[4]:
        changes.append("RESET (n_distinct, n_distinct_inherited)")
        changes += [f"SET ({option})" for option in options]
    column = quoted(target)
    for change in changes:
        cursor.execute(f"ALTER TABLE ONLY {relation.name} ALTER COLUMN {column} {change}")
    wanted, have = (set(cursor.execute(_GRANTS, [relation.oid, name]).fetchall()) for name in (source, target))
    for privilege, grantable, grantee in (*(have - wanted), *(wanted - have)):
        on, who = f"{privilege} ({column}) ON {relation.name}", quoted(grantee) if grantee else "PUBLIC"
        if (privilege, grantable, grantee) in have:  # revoked since the last copy
            cursor.execute(f"REVOKE {on} FROM {who} CASCADE")
        else:
            cursor.execute(f"GRANT {on} TO {who}{' WITH GRANT OPTION' if grantable else ''}")


def publish(cursor: Any, tree: Sequence[Relation], column: str, incoming: str, *, add: bool) -> None:
    """Add a column to the column lists of the publications that have another, or remove it."""
    query = """
        SELECT format('ALTER PUBLICATION %I DROP TABLE ONLY %s', b.pubname, r.prrelid::regclass),
            format('ALTER PUBLICATION %I ADD TABLE ONLY %s (%s)%s', b.pubname, r.prrelid::regclass,
                (SELECT string_agg(quote_ident(attname), ', ' ORDER BY attnum) FROM pg_attribute
                 WHERE attrelid = r.prrelid AND (attnum = ANY(r.prattrs) AND attname <> $3 OR $4 AND attname = $3)),
                coalesce(' WHERE (' || pg_get_expr(r.prqual, r.prrelid) || ')', ''))
        FROM pg_publication_rel r JOIN pg_publication b ON b.oid = r.prpubid
        JOIN pg_attribute a ON a.attrelid = r.prrelid AND a.attname = $2 AND a.attnum = ANY(r.prattrs)
        WHERE r.prrelid = ANY($1::oid[])"""
    for statements in cursor.execute(query, [oids_of(tree), column, incoming, add]).fetchall():
        for statement in statements:
            cursor.execute(statement)


@dataclass
class Mark:
    """What a migration notes in the comment on its trigger."""

    dim: int
    note: dict[str, str]
    #: Schema and name of each index over the column that readers use.
    indexes: list[list[str]] = field(default_factory=list)
    #: Table and name of each constraint that is still to be validated.
    unvalidated: list[list[str]] = field(default_factory=list)
    kind: str = ""  # type of the vectors that were there at the run


class ServerRefusal(MigrationError):
    """What the server refuses; ``reason`` is its message in one line."""

    reason = ""


@contextmanager
def refusing(what: str, fix: str) -> Iterator[None]:
    """Raise ServerRefusal for what the server refuses, unless it is worth another attempt."""
    import psycopg

    try:
        yield
    except psycopg.Error as error:
        if (error.sqlstate or "")[:2] in ("", "08", "40", "53", "55", "57"):
            raise
        reason = " ".join(str(error).split())
        if error.sqlstate == "42501":
            fix = "Connect as the table's owner, with the right to create in its schema."
        refusal = ServerRefusal(f"{what} ({reason}).", fix)
        refusal.reason = reason
        raise refusal from None


@contextmanager
def empty_search_path(cursor: Any) -> Iterator[None]:
    """Let the server write all names with their schemas."""
    (path,) = cursor.execute("SELECT current_setting('search_path')").fetchone()
    cursor.execute("SET LOCAL search_path = ''")
    yield  # after an error the transaction is over
    cursor.execute("SELECT set_config('search_path', $1, true)", [path])


def move(
    cursor: Any,
    tree: Sequence[Relation],
    column: str,
    shown: str,
    hidden: str,
    mark: Mark,
    extension: str,
    *,
    rehearsal: bool = False,
) -> None:
    """Rename both columns of the locked table, and let everything that is bound to the column follow.

    The column with the suffix ``shown`` gets the name, and the one that has it the suffix ``hidden``.
    ``rehearsal``: the new vectors are not yet filled in, so they are not required.
    """
    incoming, outgoing = hidden_name(column, shown), hidden_name(column, hidden)
    root = tree[0].name
    with empty_search_path(cursor):
        bound = read_bound(cursor, tree, column, incoming, outgoing)
        indexes = read_indexes(cursor, oids_of(tree), column)
    refused = [one.refusal for one in bound if one.refusal]
    if refused:
        raise MigrationError(
            f"The columns of {root} cannot change their names: {'; '.join(refused)}.", "Remove what is named here."
        )
    required = cursor.execute(_REQUIRED, [oids_of(tree), column]).fetchall()
    before = cursor.execute(_UNVALIDATED, [oids_of(tree)]).fetchall()
    for relation, _, _ in required:
        cursor.execute(f"ALTER TABLE {relation} ALTER COLUMN {quoted(column)} DROP NOT NULL")
    for one in bound:
        for statement in one.drop:
            cursor.execute(statement)
    for old, new in ((column, outgoing), (incoming, column)):
        cursor.execute(f"ALTER TABLE {root} RENAME COLUMN {quoted(old)} TO {quoted(new)}")
    with empty_search_path(cursor):
        coming = read_indexes(cursor, oids_of(tree), column)
        _move_indexes(cursor, coming, indexes, shown, hidden, mark, rehearsal)
    # A definition names everything with its schema, except the operators in IS DISTINCT FROM and the like.
    path = "concat_ws(', ', nullif(current_setting('search_path'), ''), quote_ident($1))"
    cursor.execute(f"SELECT set_config('search_path', {path}, true)", [extension])
    for one in bound:
        with refusing(
            f"The {one.what} cannot follow the new vectors", "Drop it, and create it again after the switch."
        ):
            for statement in one.create:
                cursor.execute(statement)
    for relation in tree:
        copy_attributes(cursor, relation, outgoing, column, False)
        _copy_comment(cursor, relation, outgoing, column, switching=shown == NEW)
    for relation, name, local in () if rehearsal else required:
        change = f"ALTER COLUMN {quoted(column)} SET NOT NULL"
        if name is not None:
            change = f"ADD CONSTRAINT {quoted(name)} NOT NULL {quoted(column)}{' NO INHERIT' if local else ''}"
        cursor.execute(f"ALTER TABLE {relation} {change}")
    after = cursor.execute(_UNVALIDATED, [oids_of(tree)]).fetchall()
    mark.unvalidated = [list(row) for row in after if row not in before or list(row) in mark.unvalidated]
    if left := kept_by(cursor, tree, outgoing):
        raise MigrationError(
            f"The columns of {root} cannot change their names, as the old one would keep {'; '.join(left)}.",
            "Drop this, and create it again after the switch.",
        )


def _copy_comment(cursor: Any, relation: Relation, source: str, target: str, *, switching: bool) -> None:
    """Give the column that readers use the comment of the other, without the old model's space."""
    old = cursor.execute(_ATTRIBUTES, [relation.oid, source]).fetchone()[5]
    new = cursor.execute(_ATTRIBUTES, [relation.oid, target]).fetchone()[5]
    if switching:
        old = without_space(old)
    elif old == without_space(new):  # unchanged since the switch
        return
    if old != new:
        cursor.execute(f"COMMENT ON COLUMN {relation.name}.{quoted(target)} IS {literal(old)}")


def without_space(comment: str | None) -> str | None:
    """Return a comment without the space of the old model."""
    facts = json_in(comment or "")
    if not {SPACE_KEY, MARK_KEY} & set(facts):
        return comment
    kept = own_metadata(facts)
    return json.dumps(kept) if kept else None


def _move_indexes(
    cursor: Any, incoming: list[PgIndex], outgoing: list[PgIndex], shown: str, hidden: str, mark: Mark, rehearsal: bool
) -> None:
    """Give the indexes over the incoming column the names of those over the outgoing one, and hide these."""
    coming = {(index.schema, index.name): index for index in incoming}
    going = {(index.schema, index.name): index for index in outgoing}
    every = list(dict.fromkeys([*(tuple(one) for one in mark.indexes), *going]))
    for schema, name in every:
        old, new = going.get((schema, name)), coming.get((schema, hidden_name(name, shown)))
        if old is not None:
            if old.constraint is not None and new is None and not rehearsal and shown == NEW:
                raise MigrationError(
                    f"The unique constraint {name} has no index over the new vectors.", "Build the index first."
                )
            away = quoted(hidden_name(name, hidden))
            cursor.execute(f"ALTER INDEX {quoted(schema, name)} RENAME TO {away}")
        if new is not None:
            cursor.execute(f"ALTER INDEX {quoted(schema, new.name)} RENAME TO {quoted(name)}")
        if old is not None and new is not None:
            if old.constraint is not None and new.constraint is None:
                added = f"ADD CONSTRAINT {quoted(name)} UNIQUE USING INDEX {quoted(name)}{old.constraint}"
                cursor.execute(f"ALTER TABLE {old.table} {added}")
            if old.constraint_comment != new.constraint_comment:
                comment = literal(old.constraint_comment)
                cursor.execute(f"COMMENT ON CONSTRAINT {quoted(name)} ON {old.table} IS {comment}")
            if old.comment != new.comment:
                cursor.execute(f"COMMENT ON INDEX {quoted(schema, name)} IS {literal(old.comment)}")
    matched = {(schema, hidden_name(name, shown)) for schema, name in every}
    for schema, name in coming.keys() - matched if shown == NEW else ():
        if name.endswith(NEW):  # others dropped the one it was built like
            cursor.execute(f"DROP INDEX {quoted(schema, name)}")
    mark.indexes = [list(one) for one in every]
