"""Functions from row ids to the new model's vectors: a command, a file of vectors, or an encoder of items."""

from __future__ import annotations

import shlex
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import numpy as np

from congruence._utils.ids import id_rows, id_texts
from congruence._utils.typing import RowsLike
from congruence.embed import Items
from congruence.embeddings import Embeddings
from congruence.encoders import Encoder
from congruence.errors import FileError, IdError, ParameterError

#: Function from row ids to the new model's vectors of these rows, array_like of shape (len(ids), d_new).
Encode: TypeAlias = Callable[[list[str]], RowsLike]

_TAIL = 400  # number of characters at the end of a command's output that an error message shows


def encode_by_command(command: str) -> Encode:
    """Return a function that encodes rows by running a command, without a shell, for each chunk of ids.

    ``{ids}`` is replaced by the path of a file with one id per line, ``{out}`` by the path of the ``.npy`` file that
    the command must write, with one row per id, in the same order.
    """
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise ParameterError(f"Got the command {command!r} ({error}).", "Close its quotation marks.") from None
    if missing := [name for name in ("{ids}", "{out}") if name not in command]:
        raise ParameterError(
            f"The command {command!r} has no {missing[0]}.", "Write for example: python encode.py {ids} {out}."
        )
    program = words[0]

    def encode(ids: list[str]) -> np.ndarray:
        if any("\n" in name or "\r" in name for name in ids):
            raise ParameterError("An id has a line break, which ends a line of {ids}.", "Pass a function in Python.")
        with tempfile.TemporaryDirectory(prefix="congruence-encode-") as folder:
            ids_path, out = Path(folder) / "ids.txt", Path(folder) / "vectors.npy"
            ids_path.write_text("".join(f"{name}\n" for name in ids), encoding="utf-8")
            filled = [word.replace("{ids}", str(ids_path)).replace("{out}", str(out)) for word in words]
            try:
                process = subprocess.run(filled, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            except OSError as error:
                raise FileError(f"{program} cannot be run ({error.strerror}).", "Check the path.") from error
            if status := process.returncode:
                said = process.stdout.decode("utf-8", "replace").strip()[-_TAIL:]
                raise FileError(f"{program} ended with exit status {status} ({said}).", "Make it succeed.")
            try:
                return np.asarray(np.load(out, allow_pickle=False))
            except (OSError, ValueError, EOFError) as error:
                raise FileError(f"{program} wrote no array to {{out}} ({error}).", "Write it by numpy.save.") from error

    return encode


def encode_from_file(vectors: Embeddings) -> Encode:
    """Return a function that looks rows up by id in vectors that are already encoded; IdError if one is missing."""
    if not vectors.has_ids:
        raise IdError("The vectors to take rows from have no ids.", "Pass a file with ids.")
    known = id_texts(vectors.ids)
    return lambda ids: np.asarray(vectors.vectors[_rows_of(known, ids, "the file of vectors")])


def encode_items(encoder: Encoder, items: Items, batch_size: int = 64) -> Encode:
    """Return a function that encodes the items, with the same ids, of rows; IdError if one is missing."""
    known = id_texts(items.ids)

    def encode(ids: list[str]) -> np.ndarray:
        rows = _rows_of(known, ids, items.name).tolist()
        return encoder.encode_all([items.fetch(row) for row in rows], batch_size)

    return encode


def _rows_of(known: np.ndarray, ids: list[str], where: str) -> np.ndarray:
    rows = id_rows(known, id_texts(ids))
    if missing := np.flatnonzero(rows < 0).tolist():
        raise IdError(
            f"{len(missing)} of {len(ids)} rows are missing from {where}, {str(ids[missing[0]])!r} for one.",
            "Add them, or restrict the rows.",
        )
    return rows
