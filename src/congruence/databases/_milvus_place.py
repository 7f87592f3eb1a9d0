"""Find the old and the new collection in Milvus, from an alias or from the names that renames leave, and switch between them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from congruence.databases._metadata import MARK_KEY
from congruence.databases._milvus_client import Connection
from congruence.errors import DatabaseError, MigrationError, ParameterError

__all__ = ["Place", "find_place", "mark_of", "only_table", "refuse_readers", "switch_names", "switch_names_back"]

#: Suffix of the collections of a migration; a second migration behind the same alias writes ``…_new2``, and so on.
_ROLE = re.compile(r"__congruence_(?:old|back|new(\d*))$")


@dataclass(frozen=True)
class Place:
    """The collections of a migration.

    Attributes
    ----------
    table : str
        Name that readers use.
    alias : bool
        Whether this name is an alias, not a collection's own name.
    old : str
        Collection with the old vectors.
    new : str or None
        Collection with the new vectors, if there is one.
    new_name : str
        Name under which the new collection is created.
    switched : bool
        Whether readers see the new vectors, or a rollback by renames was interrupted.
    interrupted : bool
        Whether renames were interrupted, so that no collection has the name that readers use.
    mark : mapping
        Data stored with the new collection (:func:`mark_of`); empty if there is none.
    """

    table: str
    alias: bool
    old: str
    new: str | None
    new_name: str
    switched: bool
    interrupted: bool
    mark: Mapping[str, Any]


def mark_of(connection: Connection, collection: str) -> dict[str, Any]:
    """Return the data that a migration stored in a collection's properties; empty if no migration created the collection."""
    try:
        mark = json.loads(connection.call("describe_collection", collection)["properties"].get(MARK_KEY, "null"))
    except ValueError:
        return {}
    return mark if isinstance(mark, dict) and isinstance(mark.get("note"), dict) else {}


def find_place(connection: Connection, table: str) -> Place:
    """Find the collections of a migration by the name that readers use.

    Raises
    ------
    ParameterError
        If there is no such collection or alias, or the name is a collection that readers access through an alias.
    DatabaseError
        If a collection with a name reserved for the migration was not created by one.
    """
    names, aliases = set(connection.call("list_collections")), connection.aliases()
    place = _by_alias(connection, table, names, aliases) if table in aliases else _by_name(table, names)
    if place is None:
        known = ", ".join(map(repr, sorted({*names, *aliases})[:20])) or "none"
        raise ParameterError(
            f"Got no collection or alias {table!r} in {connection.address.shown}; expected one of {known}. Choose one with table=…."
        )
    readers = sorted(alias for alias, target in aliases.items() if target in (place.old, place.new))
    if readers and not place.alias:
        raise ParameterError(
            f"Got {table!r}, which is read by the alias {readers[0]!r}; expected the alias, since the switch moves what readers use. "
            f"Pass table={readers[0]!r}."
        )
    if place.new is None:
        return place
    mark = mark_of(connection, place.new)
    if not mark:
        raise DatabaseError(
            f"Got a collection {place.new!r} that was not created by a migration; expected this name to be free. "
            "Rename or delete that collection."
        )
    return replace(place, mark=mark)


def _by_alias(connection: Connection, table: str, names: set[str], aliases: Mapping[str, str]) -> Place | None:
    target = aliases[table]
    if target not in names:
        return None
    suffix = _ROLE.search(target)
    new_name = f"{target}__congruence_new"
    if suffix is not None:
        old = mark_of(connection, target).get("of")
        if old in names and old != target:
            return Place(table, True, str(old), target, target, True, False, {})
        new_name = f"{target[: suffix.start()]}__congruence_new{int(suffix[1] or 1) + 1}"
    return Place(table, True, target, new_name if new_name in names else None, new_name, False, False, {})


def _by_name(table: str, names: set[str]) -> Place | None:
    renamed, new_name, back = (f"{table}__congruence_{role}" for role in ("old", "new", "back"))
    exists = table in names
    old = renamed if renamed in names else table
    if old not in names:
        return None
    new = next((name for name in (new_name, back) if name in names), None)
    if old == renamed and exists:
        new = table
    # Between the two renames of a rollback the new vectors are in ``back``, between those of a switch in ``new_name``.
    switched = old == renamed and (exists or back in names)
    return Place(table, False, old, new, new_name, switched, not exists, {})


def only_table(connection: Connection) -> str:
    """Return the only alias, or the only collection without one; collections of a migration count as the one being migrated.

    Raises
    ------
    ParameterError
        If there are none or several.
    """
    aliases = connection.aliases()
    aliased = {_ROLE.sub("", target) for target in aliases.values()}
    others = {_ROLE.sub("", name) for name in connection.call("list_collections")} - aliased
    tables = sorted([*aliases, *others])
    if len(tables) != 1:
        names = ", ".join(map(repr, tables[:20])) or "none"
        raise ParameterError(
            f"Got {connection.address.shown} with {len(tables)} aliases and collections ({names}); expected exactly one, or the name of one. Pass table=…."
        )
    return str(tables[0])


def switch_names(connection: Connection, place: Place) -> None:
    """Make readers see the new collection: move the alias, or rename the old collection and then the new one."""
    if place.alias:
        connection.call("alter_alias", collection_name=place.new, alias=place.table)
        return
    new = place.new
    if not place.interrupted:
        if new != place.new_name:  # left by an interrupted rollback
            connection.call("rename_collection", new, place.new_name)
            new = place.new_name
        connection.call("rename_collection", place.old, f"{place.table}__congruence_old")
    connection.call("rename_collection", new, place.table)


def switch_names_back(connection: Connection, place: Place) -> None:
    """Make readers see the old collection again; complete interrupted renames."""
    if place.alias:
        if place.switched:
            connection.call("alter_alias", collection_name=place.old, alias=place.table)
        return
    new = place.new
    if place.old != place.table:
        if not place.interrupted:
            new = f"{place.table}__congruence_back"
            connection.call("rename_collection", place.table, new)
        connection.call("rename_collection", place.old, place.table)
    if new is not None and new != place.new_name:
        connection.call("rename_collection", new, place.new_name)


def refuse_readers(connection: Connection, collection: str) -> None:
    """Raise MigrationError if an alias points to a collection, since deleting the collection would delete the alias."""
    aliases = [alias for alias, target in connection.aliases().items() if target == collection]
    if aliases:
        raise MigrationError(
            f"Got the alias {aliases[0]!r} on {collection!r}, which is to be deleted; expected no alias on it. Move or delete that alias first."
        )
