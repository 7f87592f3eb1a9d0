"""Folders that other tools write: which of their files hold the rows, and what is known of these.

* Hugging Face: what ``save_to_disk`` writes, the cache of ``datasets`` and that of the hub, each with its splits.
* VDF, which vector-io exports from databases: ``VDF_META.json`` names the indexes with their files, columns and models.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from congruence.errors import CongruenceError, ParameterError
from congruence.io.reading import damaged, missing_key, natural, reading

#: Suffixes of parts, in the order in which they are looked for.
PARTS = (".npy", ".parquet", ".arrow")

#: The file that describes a VDF folder.
VDF = "VDF_META.json"

#: The end of the name of one of several files of a split.
_SHARD = re.compile(r"-\d{5}-of-\d{5}$")


@dataclass(frozen=True)
class Layout:
    """The parts of a folder: their files in order, and the column of vectors, that of ids and the model, if known."""

    parts: list[Path]
    home: Path
    column: str | None = None
    ids: str | None = None
    model: str | None = None
    facts: dict[str, Any] | None = None  # of VDF: those of the folder, with the one index only


def list_parts(folder: Path, suffixes: tuple[str, ...] = PARTS) -> list[Path]:
    """Return the parts in a folder in natural order, of the first of these suffixes that there are.

    ``datasets`` writes the results of its own operations, ``cache-….arrow``, beside the rows.
    """
    for suffix in suffixes:
        found = [part for part in folder.glob(f"*{suffix}") if not part.name.startswith((".", "cache-"))]
        if found:
            return sorted(found, key=lambda part: natural(part.name))
    return []


def find_layout(folder: Path, key: str | None) -> Layout:
    """Return the parts of a folder, or of its subfolder, split or index that a key begins with; none if there are none.

    The rest of the key is the column of vectors.
    """
    if (folder / VDF).is_file():
        return _vdf(folder, key)
    if (folder / "snapshots").is_dir():
        folder = _snapshot(folder)
    steps, home = key.split("/") if key else [], folder
    while True:
        while steps and steps[0] and (home / steps[0]).is_dir():
            home /= steps.pop(0)
        parts, inner = list_parts(home), _subfolders(home)
        if parts or len(inner) != 1:
            break
        home /= inner[0]
    splits = _splits(home, parts) if parts else {name: found for name in inner if (found := list_parts(home / name))}
    if steps and steps[0] in splits:
        parts = splits[steps.pop(0)]
    elif len(splits) > 1 or (splits and not parts):
        counts = {name: f"({len(found)} parts)" for name, found in splits.items()}
        raise missing_key(steps[0] if steps else None, home, counts, "split" if parts else "subfolder")
    return Layout(parts, home, "/".join(steps) or None)


def holds_parts(folder: Path) -> bool:
    """Return whether a folder, which may be one of several kinds, holds parts."""
    try:
        return bool(find_layout(folder, None).parts)
    except CongruenceError:  # which of several, or damaged ones
        return True


def _subfolders(folder: Path) -> list[str]:
    """Return the names of a folder's subfolders that may hold parts."""
    return sorted(one.name for one in folder.iterdir() if one.is_dir() and not one.name.startswith("."))


def _splits(home: Path, parts: list[Path]) -> dict[str, list[Path]]:
    """Return the parts by split, as ``train-00000-of-00002`` is of ``train``; nothing where names tell of none."""
    stems = [_SHARD.sub("", part.stem) for part in parts]
    named = all(_SHARD.search(part.stem) for part in parts) or (home / "dataset_info.json").is_file()
    if not named:
        return {}
    found: dict[str, list[Path]] = {}
    for stem, part in zip(stems, parts, strict=True):  # in the cache, the name of the data set comes first
        found.setdefault(stem.rpartition("-")[2], []).append(part)
    return found


def _snapshot(folder: Path) -> Path:
    """Return the folder of the revision of a cached repository that was asked for last."""
    found = _subfolders(folder / "snapshots")
    main = folder / "refs" / "main"
    name = main.read_text(encoding="utf-8", errors="replace").strip()[:100] if main.is_file() else ""
    if name in found or len(found) == 1:
        return folder / "snapshots" / (name if name in found else found[0])
    raise ParameterError(f"Got {len(found)} revisions in {folder / 'snapshots'}.", "Pass the folder of one of them.")


def _vdf(folder: Path, key: str | None) -> Layout:
    """Return the parts of an index, or of one of its namespaces: ``index``, ``index/namespace``."""
    with reading(folder / VDF, AttributeError, KeyError, TypeError, ValueError, RecursionError):
        facts = json.loads((folder / VDF).read_bytes())
        every = [(name, one) for name, spaces in facts["indexes"].items() for one in spaces]
        indexes = {"/".join(filter(None, (name, one.get("namespace")))): (name, one) for name, one in every}
        shapes = {name: (one["exported_vector_count"], one["dimensions"]) for name, (_, one) in indexes.items()}
        columns = {name: [str(column) for column in one["vector_columns"]] for name, (_, one) in indexes.items()}
        places = {name: Path(str(one["data_path"])) for name, (_, one) in indexes.items()}
        models = {name: str(one["model_name"]) for name, (_, one) in indexes.items()}
    named = [name for name in indexes if key is None or key == name or key.startswith(f"{name}/")]
    if not named and len(indexes) == 1:  # then the key is a column
        named, key = [*indexes], f"{next(iter(indexes))}/{key}"
    if not named or (key is None and len(named) > 1):
        raise missing_key(key, folder, shapes, "index")
    name = max(named, key=len)
    column = key[len(name) + 1 :] if key and key != name else columns[name][0] if len(columns[name]) == 1 else None
    for path in (places[name], Path(*places[name].parts[1:])):  # older: the folder's name first
        place = folder / path
        if place.exists() and not place.resolve().is_relative_to(folder.resolve()):
            raise damaged(folder / VDF, f"its data path {str(path)[:200]!r} leads out of the folder")
        if parts := [place] if place.is_file() else list_parts(place) if place.is_dir() else []:
            model = None if models[name] in ("", "None", "NOT_PROVIDED", "PLEASE_FILL_IN") else models[name]
            ids = facts.get("id_column")
            kept = facts | {"indexes": {indexes[name][0]: [indexes[name][1]]}}
            return Layout(parts, place, column, ids if isinstance(ids, str) else None, model, kept)
    raise damaged(folder / VDF, f"no parts are at its data path {str(places[name])[:200]!r}")
