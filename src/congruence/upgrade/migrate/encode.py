"""Functions from row ids to the new model's vectors: a command, a file of vectors, or an encoder of items."""

from __future__ import annotations

import shlex
import subprocess
import tempfile
from pathlib import Path

import numpy as np

from congruence._utils.ids import id_rows, id_texts
from congruence.embed import Items
from congruence.embeddings import Embeddings
from congruence.encoders import Encoder
from congruence.errors import FileError, IdError, ParameterError

_TAIL = 400  # number of characters at the end of a command's output that an error message shows


class CommandEncoder:
    """Encode rows by running a command, without a shell, for each chunk of ids.

    ``{ids}`` is replaced by the path of a file with one id per line, ``{out}`` by the path of the ``.npy`` file that
    the command must write, with one row per id, in the same order.
    """

    def __init__(self, command: str) -> None:
        try:
            self.words = shlex.split(command)
        except ValueError as error:
            raise ParameterError(f"Got the command {command!r} ({error}).", "Close its quotation marks.") from None
        for name in ("{ids}", "{out}"):
            if name not in command:
                raise ParameterError(
                    f"The command {command!r} has no {name}.", "Write for example: python encode.py {ids} {out}."
                )

    def __call__(self, ids: list[str]) -> np.ndarray:
        """Encode rows."""
        if any("\n" in name or "\r" in name for name in ids):
            raise ParameterError("An id has a line break, which ends a line of {ids}.", "Pass a function in Python.")
        program = self.words[0]
        with tempfile.TemporaryDirectory(prefix="congruence-encode-") as folder:
            ids_path, out = Path(folder) / "ids.txt", Path(folder) / "vectors.npy"
            ids_path.write_text("".join(f"{name}\n" for name in ids), encoding="utf-8")
            words = [word.replace("{ids}", str(ids_path)).replace("{out}", str(out)) for word in self.words]
            try:
                process = subprocess.run(words, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            except OSError as error:
                raise FileError(f"{program} cannot be run ({error.strerror}).", "Check the path.") from error
            if status := process.returncode:
                said = process.stdout.decode("utf-8", "replace").strip()[-_TAIL:]
                raise FileError(f"{program} ended with exit status {status} ({said}).", "Make it succeed.")
            try:
                return np.asarray(np.load(out, allow_pickle=False))
            except (OSError, ValueError, EOFError) as error:
                raise FileError(f"{program} wrote no array to {{out}} ({error}).", "Write it by numpy.save.") from error


class FileEncoder:
    """Look up the vectors of rows by id, in vectors that are already encoded. Raises IdError if one is missing."""

    def __init__(self, vectors: Embeddings) -> None:
        if not vectors.has_ids:
            raise IdError("The vectors to take rows from have no ids.", "Pass a file with ids.")
        self.vectors, self._ids = vectors, id_texts(vectors.ids)

    def __call__(self, ids: list[str]) -> np.ndarray:
        """Return the vectors of these rows."""
        return np.asarray(self.vectors.vectors[_rows_of(self._ids, ids, "the file of vectors")])


class ItemsEncoder:
    """Encode the items of rows, given as a table or folder of items with the same ids; IdError if one is missing."""

    def __init__(self, encoder: Encoder, items: Items, batch_size: int = 64) -> None:
        self.encoder, self.items, self.batch_size = encoder, items, batch_size
        self._ids = id_texts(items.ids)

    def __call__(self, ids: list[str]) -> np.ndarray:
        """Encode the items of these rows."""
        rows = _rows_of(self._ids, ids, self.items.name).tolist()
        return self.encoder.encode_all([self.items.fetch(row) for row in rows], self.batch_size)


def _rows_of(known: np.ndarray, ids: list[str], where: str) -> np.ndarray:
    rows = id_rows(known, id_texts(ids))
    if missing := np.flatnonzero(rows < 0).tolist():
        raise IdError(
            f"{len(missing)} of {len(ids)} rows are missing from {where}, {ids[missing[0]]!r} for one.",
            "Add them, or restrict the rows.",
        )
    return rows
