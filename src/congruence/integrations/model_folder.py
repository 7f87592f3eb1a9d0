"""The folder of an exported sentence-transformers model, with a marker so that only such folders are replaced."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from congruence import __version__
from congruence._utils.atomic import atomic_path, check_output, has_marker

#: Format name, and the marker file that contains it and lists the entries of the folder.
FORMAT, MARKER = "congruence-sentence-transformers", "congruence.json"


def check_model_output(path: str | Path, *, force: bool = False) -> None:
    """Raise an error if something at a path must not be replaced by an exported model."""
    check_output(path, force=force, directory=True, foreign=_why_no_export)


@contextmanager
def model_folder(path: str | Path, *, force: bool = False) -> Iterator[Path]:
    """Yield a temporary folder to write a model to, and move it into place, marked as exported, on success."""
    with atomic_path(path, force=force, directory=True, foreign=_why_no_export) as folder:
        try:
            yield folder
        except Exception as error:
            # The Rust libraries that write weights and tokenizers raise their own exceptions for a full disk.
            number = re.search(r"\(os error (\d+)\)", str(error))
            if number is None or isinstance(error, OSError):
                raise
            raise OSError(int(number[1]), os.strerror(int(number[1])), str(folder)) from error
        marker = {
            "format": FORMAT,
            "format_version": 1,
            "congruence_version": __version__,
            "entries": sorted(entry.name for entry in folder.iterdir()),
        }
        (folder / MARKER).write_text(json.dumps(marker, indent=2) + "\n", encoding="utf-8")


def _why_no_export(folder: Path) -> str | None:
    """Return why a folder is not, or not only, an exported model; None if it is."""
    if not has_marker(folder / MARKER, FORMAT):
        return f"contains no {MARKER} that identifies it as an exported model"
    entries = json.loads((folder / MARKER).read_bytes()).get("entries")
    known = {MARKER, *(entries if isinstance(entries, list) else ())}
    others = sorted(entry.name for entry in folder.iterdir() if entry.name not in known)
    return f"contains files that do not belong to the exported model ({', '.join(others[:3])})" if others else None
