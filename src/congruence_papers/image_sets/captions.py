"""Read captions of images or of classes from a file."""

from __future__ import annotations

import csv
import json
from pathlib import Path

from congruence.errors import CorruptFileError, FileError, InputError


def read_captions(path: str | Path) -> list[tuple[str, str]]:
    """Return the captions in a file, each with the id of its image or the name of its class."""
    path = Path(path).expanduser()
    if not path.is_file():
        raise FileError(f"Got no file at {path}; expected captions (.csv, .tsv or .json).", "Check the path.")
    readers = {".csv": _table, ".tsv": _table, ".json": _mapping}
    if path.suffix.lower() not in readers:
        raise FileError(f"Got {path.name}; expected captions as .csv, .tsv or .json.", "Save them as one of these.")
    try:
        captions = readers[path.suffix.lower()](path)
    # ValueError: not UTF-8, invalid JSON, or an integer too long to parse.
    except (ValueError, RecursionError, csv.Error) as error:
        raise CorruptFileError(
            f"Got {path}, which cannot be read ({error}); expected captions in UTF-8.", "Check the file."
        ) from error
    captions = [(i.strip(), caption.strip()) for i, caption in captions]
    if not captions:
        raise InputError(f"No caption in {path}.", "Check the file.")
    for i, caption in captions:
        if not i or not caption:
            raise InputError(
                f"Got an empty {'caption' if i else 'id'} in {path} (next to {(i or caption)[:80]!r}); expected both.",
                "Fill it in.",
            )
    return captions


def _table(path: Path) -> list[tuple[str, str]]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file, delimiter="\t" if path.suffix.lower() == ".tsv" else ",")
        columns = reader.fieldnames or []
        if not {"id", "caption"} <= set(columns):
            raise CorruptFileError(
                f"Got {path} with the columns {', '.join(columns)[:80] or 'none'}; expected id and caption.",
                "Rename them.",
            )
        return [(row["id"] or "", row["caption"] or "") for row in reader]


def _mapping(path: Path) -> list[tuple[str, str]]:
    data: object = json.loads(path.read_text(encoding="utf-8-sig"))
    lists = {i: [own] if isinstance(own, str) else own for i, own in data.items()} if isinstance(data, dict) else None
    if lists is None or not all(
        isinstance(own, list) and all(isinstance(caption, str) for caption in own) for own in lists.values()
    ):
        raise CorruptFileError(
            f"Got {path}, which does not map ids to captions; expected {{id: caption}} or {{id: [captions]}}.",
            "Write the file in one of these forms.",
        )
    return [(i, caption) for i, own in lists.items() for caption in own]
