"""Folders for the checkpoints of a run: one next to the output, which is removed on success, or one that the user
names.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

from congruence._utils.atomic import atomic_path, has_marker
from congruence._utils.lock import locked
from congruence._utils.refusals import describe_refusal
from congruence.errors import OutputExistsError, StorageError
from congruence.train.checkpoint import why_no_checkpoint

MARKER = "checkpoints.json"
FORMAT, FORMAT_VERSION = "congruence-checkpoints", 1

#: Names of checkpoints, the number of their combination, and of temporary folders that a killed process left behind.
_NUMBERED = re.compile(r"\d{3,}")
_LEFT_OVER = re.compile(r"\.\d{3,}\.([0-9a-f]{8}-\d+-[0-9a-f]{8}\.tmp|old)")


@contextmanager
def own_folder(place: Path) -> Iterator[Path]:
    """Yield a folder for checkpoints that is removed on success; a folder left by an interrupted run is reused.

    If the block fails, the checkpoints it wrote are kept, to resume from; a folder without checkpoints is removed.
    """
    with suppress(OutputExistsError), atomic_path(place, directory=True) as folder:
        _mark(folder, made=True)
    if place.is_symlink() or not place.is_dir() or not (_is_marked(place) or not any(place.iterdir())):
        raise OutputExistsError(
            f"Got something at {place} that this library did not write; expected a free path for the "
            "checkpoints of this run.",
            "Pass another `checkpoint=…`, or move what is there.",
        )
    with _locked(place):
        if not _is_marked(place):  # an empty folder that the user created, which is not removed at the end
            _mark(place, made=False)
        try:
            yield place
        except BaseException:
            with suppress(OSError):
                if not any(_NUMBERED.fullmatch(name) for name in os.listdir(place)):
                    _clear(place)
            raise
        _clear(place)


@contextmanager
def named_folder(place: Path) -> Iterator[Path]:
    """Yield a folder for checkpoints that is kept.

    It is created if necessary, and removed again if the block fails before it writes anything.
    """
    made = not place.exists()
    try:
        place.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise OutputExistsError(
            f"Got a file at {place} for checkpoints; expected a folder.", "Pass another `checkpoint=…`."
        ) from None
    except OSError as error:
        raise StorageError(describe_refusal(error, f"from the disk for the checkpoints at {place}")) from error
    with _locked(place):
        try:
            yield place
        except BaseException:
            if made:
                with suppress(OSError):  # not empty
                    place.rmdir()
            raise


def _mark(folder: Path, *, made: bool) -> None:
    """Write the marker file; ``made`` says whether the folder was created for the checkpoints."""
    facts = {"format": FORMAT, "format_version": FORMAT_VERSION, "made_folder": made}
    with atomic_path(folder / MARKER) as temporary:
        temporary.write_text(json.dumps(facts) + "\n", encoding="utf-8")


def _is_marked(folder: Path) -> bool:
    return has_marker(folder / MARKER, FORMAT)


def _clear(place: Path) -> None:
    """Remove the checkpoints, and the folder too if it was created for them and contains nothing else."""
    made = json.loads((place / MARKER).read_bytes()).get("made_folder") is True
    for entry in place.iterdir():
        if entry.is_symlink() or not entry.is_dir():
            continue
        if _LEFT_OVER.fullmatch(entry.name) or (_NUMBERED.fullmatch(entry.name) and why_no_checkpoint(entry) is None):
            shutil.rmtree(entry, ignore_errors=True)
    if os.listdir(place) == [MARKER]:
        (place / MARKER).unlink()
        if made:
            with suppress(OSError):  # another process has just written to it
                place.rmdir()


def _locked(place: Path) -> AbstractContextManager[None]:
    return locked(
        place,
        f"Got checkpoints at {place} that another run is using; expected one run. Wait for it, or pass another "
        "checkpoint=….",
    )
