"""The folder of an exported sentence-transformers model: how it is marked, and what may be replaced."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from congruence import __version__
from congruence._utils.atomic import atomic_path, check_output, has_marker

__all__ = ["check_model_output", "model_folder"]

#: Names the kind of folder in :data:`MARKER`, which lists what is in it.
FORMAT, MARKER = "congruence-sentence-transformers", "congruence.json"


def check_model_output(path: str | Path, *, force: bool = False) -> None:
    """Refuse a path at which there is something that an exported model must not replace.

    Parameters
    ----------
    path : path-like
    force : bool, default=False
        Replace an exported model that is there.

    Raises
    ------
    OutputExistsError, FileError, StorageError
        If the output already exists; a file cannot be read; or the output cannot be written.
    """
    check_output(path, force=force, directory=True, foreign=_why_no_export)


@contextmanager
def model_folder(path: str | Path, *, force: bool = False) -> Iterator[Path]:
    """Yield a temporary folder to write a model to, and move it into place, marked as exported, on success.

    Parameters
    ----------
    path : path-like
    force : bool, default=False
        Replace an exported model that is there.

    Yields
    ------
    Path

    Raises
    ------
    OutputExistsError, FileError, StorageError
        If the output already exists; a file cannot be read; or the output cannot be written.
    """
    with atomic_path(path, force=force, directory=True, foreign=_why_no_export) as folder:
        try:
            yield folder
        except Exception as error:
            # Libraries in Rust, which write weights and tokenizers, tell of a full disk by errors of their own.
            number = re.search(r"\(os error (\d+)\)", str(error))
            if number is None or isinstance(error, OSError):
                raise
            raise OSError(int(number[1]), os.strerror(int(number[1])), str(folder)) from error
        facts = {
            "format": FORMAT,
            "format_version": 1,
            "congruence_version": __version__,
            "entries": sorted(entry.name for entry in folder.iterdir()),
        }
        (folder / MARKER).write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")


def _why_no_export(folder: Path) -> str | None:
    """Say why a folder is not, or not only, an exported model."""
    if not has_marker(folder / MARKER, FORMAT):
        return f"holds no {MARKER} that says that congruence exported it"
    entries = json.loads((folder / MARKER).read_bytes()).get("entries")
    known = {MARKER, *(entries if isinstance(entries, list) else ())}
    others = sorted(entry.name for entry in folder.iterdir() if entry.name not in known)
    return f"holds other things than the exported model ({', '.join(others[:3])})" if others else None
