"""Files of a saved plan that are written once and named by their digest; only the small state is rewritten by each save."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from congruence._utils.atomic import atomic_path, find_left_over, why_foreign
from congruence._utils.refusals import describe_refusal
from congruence.errors import CorruptFileError, FileError
from congruence.persist import CARD, CONFIG, FORMAT, WEIGHTS

__all__ = ["STATE", "check_piece", "read_piece", "sweep", "why_no_plan", "write_piece"]

#: Subfolder of a plan that contains its state.
STATE = "state"

#: Names of these files: the first 40 hexadecimal digits of the SHA-256 of their content.
_NAME = re.compile(r"[0-9a-f]{40}\.(npy|safetensors|json)")


def write_piece(folder: Path, raw: bytes, suffix: str) -> str:
    """Write a file atomically, unless it exists; return its name. Raises StorageError, FileError."""
    name = hashlib.sha256(raw).hexdigest()[:40] + suffix
    if not (folder / name).exists():
        with atomic_path(folder / name, force=True) as temporary:
            temporary.write_bytes(raw)
    return name


def check_piece(folder: Path, name: str) -> None:
    """Check that a file exists and has the content it was saved with.

    Raises
    ------
    CorruptFileError
        If the file is missing or damaged.
    FileError
        If it cannot be read.
    """
    _read(folder, name, keep=False)


def read_piece(folder: Path, name: str) -> bytes:
    """Return the content of a file, checked as by :func:`check_piece`."""
    return _read(folder, name, keep=True)


def _read(folder: Path, name: str, *, keep: bool) -> bytes:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise CorruptFileError(
            f"Got a state in {folder} that refers to a file {name!r}; expected a digest as its name. Restore the folder of the plan from a backup."
        )
    path, digest, blocks = folder / name, hashlib.sha256(), []
    try:
        with open(path, "rb") as stream:
            while block := stream.read(2**22):
                digest.update(block)
                if keep:
                    blocks.append(block)
    except FileNotFoundError:
        raise CorruptFileError(
            f"Got no {name} in {folder}; expected all files of the plan. Restore the folder of the plan from a backup."
        ) from None
    except OSError as error:
        raise FileError(describe_refusal(error, f"while reading {path}")) from error
    if digest.hexdigest()[:40] != Path(name).stem:
        raise CorruptFileError(
            f"Got {path}, which is truncated or was edited; expected the bytes it was saved with. Restore the folder of the plan from a backup."
        )
    return b"".join(blocks)


def sweep(folder: Path, kept: Iterable[str]) -> None:
    """Remove files that the state no longer refers to, and temporary files of killed writers."""
    keep = set(kept)
    unused = [path for path in folder.iterdir() if _NAME.fullmatch(path.name) and path.name not in keep]
    for path in folder.glob(".*.tmp"):  # left by a writer that was killed
        unused += find_left_over(folder / path.name.removeprefix(".").rsplit(".", 2)[0])
    for path in unused:
        with suppress(OSError):
            path.unlink()


def why_no_plan(folder: Path) -> str | None:
    """Return why a folder must not be replaced by a plan; None if it is a plan, even one whose first save was interrupted."""
    for entry in folder.iterdir():
        if entry.name == STATE and entry.is_dir():
            if why_foreign(entry, "the state of a plan", CONFIG, FORMAT, lambda name: name in (WEIGHTS, CONFIG, CARD)):
                return f"contains a folder named {STATE!r} that is not the state of a plan"
        elif not (entry.is_file() and (_NAME.fullmatch(entry.name) or entry.name.startswith("."))):
            return f"contains files that do not belong to a plan ({entry.name})"
    return None
