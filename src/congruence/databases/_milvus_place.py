"""Find the old and the new collection in Milvus, from an alias or from the names that renames leave, and switch between them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
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
    made : str or None
        Collection with the new vectors, if there is one.
    new_name : str
        Name under which the new collection is created.
    switched : bool
        Whether readers see the new vectors, or a rollback by renames was interrupted.
    torn : bool
        Whether renames were interrupted, so that no collection has the name that readers use.
    mark : mapping
        Data stored with the new collection (:func:`mark_of`); empty if there is none.
    """

    table: str
    alias: bool
    old: str
    made: str | None
    new_name: str
    switched: bool
    torn: bool
    mark: Mapping[str, Any]


def mark_of(connection: Connection, collection: str) -> dict[str, Any]:
    """Return what a migration stored in a collection's properties; empty if no migration created the collection."""
    try:
        mark = json.loads(connection.ask("describe_collection", collection)["properties"].get(MARK_KEY, "null"))
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
    names, aliases = set(connection.ask("list_collections")), connection.aliases()
    place = _by_alias(connection, table, names, aliases) if table in aliases else _by_name(table, names)
    if place is None:
        there = ", ".join(map(repr, sorted({*names, *aliases})[:20])) or "none"
        raise ParameterError(
            f"Got no collection or alias {table!r} in {connection.address.shown}; expected one of {there}. Choose one with table=…."
        )
    readers = sorted(one for one, target in aliases.items() if target in (place.old, place.made))
    if readers and not place.alias:
        raise ParameterError(
            f"Got {table!r}, which is read by the alias {readers[0]!r}; expected the alias, since the switch moves what readers use. "
            f"Pass table={readers[0]!r}."
        )
    if place.made is None:
        return place
    mark = mark_of(connection, place.made)
    if not mark:
        raise DatabaseError(
            f"Got collections {table!r} and {place.made!r}, which is no migration's; expected this name to be free. "
            "Rename or delete that collection."
        )
    return Place(table, place.alias, place.old, place.made, place.new_name, place.switched, place.torn, mark)


def _by_alias(connection: Connection, table: str, names: set[str], aliases: Mapping[str, str]) -> Place | None:
    target = aliases[table]
    if target not in names:
        return None
    of = mark_of(connection, target).get("of") if _ROLE.search(target) else None
    if of in names and of != target:
        return Place(table, True, str(of), target, target, True, False, {})
    found = _ROLE.search(target)
    new_name = f"{target}__congruence_new"
    if found is not None:
        new_name = f"{target[: found.start()]}__congruence_new{int(found[1] or 1) + 1}"
    return Place(table, True, target, new_name if new_name in names else None, new_name, False, False, {})


def _by_name(table: str, names: set[str]) -> Place | None:
    aside, new_name, back = (f"{table}__congruence_{role}" for role in ("old", "new", "back"))
    shown = table in names
    old = aside if aside in names else table
    if old not in names:
        return None
    made = next((one for one in (new_name, back) if one in names), None)
    if old == aside and shown:
        made = table
    # Between the two renames of a rollback the new vectors are in "back", between those of a switch in "new".
    switched = old == aside and (shown or back in names)
    return Place(table, False, old, made, new_name, switched, not shown, {})


def only_table(connection: Connection) -> str:
    """Return the only alias, or the only collection without one; collections of a migration count as the one being migrated.

    Raises
    ------
    ParameterError
        If there are none or several.
    """
    aliases = connection.aliases()
    read = {_ROLE.sub("", target) for target in aliases.values()}
    plain = {_ROLE.sub("", name) for name in connection.ask("list_collections")} - read
    found = sorted([*aliases, *plain])
    if len(found) != 1:
        there = ", ".join(map(repr, found[:20])) or "none"
        raise ParameterError(
            f"Got {connection.address.shown} with {len(found)} aliases and collections ({there}); expected one to be chosen. Pass table=…."
        )
    return str(found[0])


def switch_names(connection: Connection, place: Place) -> None:
    """Make readers see the new collection: move the alias, or rename the old collection and then the new one."""
    if place.alias:
        connection.ask("alter_alias", collection_name=place.made, alias=place.table)
        return
    made = place.made
    if not place.torn:
        if made != place.new_name:  # left by an interrupted rollback
            connection.ask("rename_collection", made, place.new_name)
            made = place.new_name
        connection.ask("rename_collection", place.old, f"{place.table}__congruence_old")
    connection.ask("rename_collection", made, place.table)


def switch_names_back(connection: Connection, place: Place) -> None:
    """Make readers see the old collection again; complete interrupted renames."""
    if place.alias:
        if place.switched:
            connection.ask("alter_alias", collection_name=place.old, alias=place.table)
        return
    made = place.made
    if place.old != place.table:
        if not place.torn:
            made = f"{place.table}__congruence_back"
            connection.ask("rename_collection", place.table, made)
        connection.ask("rename_collection", place.old, place.table)
    if made is not None and made != place.new_name:
        connection.ask("rename_collection", made, place.new_name)


def refuse_readers(connection: Connection, collection: str) -> None:
    """Raise MigrationError if an alias points to a collection, since deleting the collection would delete the alias."""
    aliases = [one for one, target in connection.aliases().items() if target == collection]
    if aliases:
        raise MigrationError(
            f"Got the alias {aliases[0]!r} on {collection!r}, which is to be deleted; expected no reader of it. Move or delete that alias first."
        )
