"""Word vectors, streamed: the text of word2vec, GloVe and fastText (``.vec``, ``.txt``), and word2vec's ``.bin``."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from congruence._utils.display import short
from congruence._utils.ids import MAX_ID_BYTES
from congruence.errors import CorruptFileError, DtypeError, IdError, ShapeError
from congruence.io._base import Sink, Source
from congruence.io.ids import clean_ids
from congruence.io.reading import (
    CODECS,
    TEXT_DAMAGE,
    check_all_rows,
    damaged,
    open_stream,
    read_lines,
    reading,
    refuse_key,
)
from congruence.io.text import NUMBER

if TYPE_CHECKING:
    from congruence.io._base import Block
    from congruence.io.columns import TableRows

#: Bytes of a line, which a file without line breaks would exceed.
_MAX_LINE = 4 * 2**20

#: What a model of fastText begins with.
_FASTTEXT = (793712314).to_bytes(4, "little")


class WordsSink(Sink):
    """Writer of ``.vec`` and ``.bin``: a line with the numbers of rows and columns, and each row after its word."""

    sidecar = needs_ids = True

    def _open(self, temporary: Path, stack: ExitStack) -> None:
        self._file = stack.enter_context(open(temporary, "wb"))
        self._file.write(f"{self.n} {self.dim}\n".encode())

    def _write(self, ids: pa.Array | None, vectors: np.ndarray, rows: TableRows | None = None) -> None:
        assert ids is not None
        for name, vector in zip(ids.to_pylist(), vectors, strict=True):
            self._file.write(self._word(str(name)).encode() + b" " + self._numbers(vector) + b"\n")

    def _word(self, name: str) -> str:
        raw = name.encode()
        if b"\n" in raw or raw != raw.strip() or _ends_in_number(raw):
            what = "words have no line breaks or outer spaces, and none but the first part is a number"
            raise IdError(f"Got the id {short(name)!r} for {self.path}, whose {what}.", "Choose .parquet.")
        return name

    def _numbers(self, vector: np.ndarray) -> bytes:
        return " ".join(map(str, vector)).encode()  # str gives the shortest text that reads back as the same number


class BinarySink(WordsSink):
    """Writer of a ``.bin``, float32."""

    widest = np.float32

    def _word(self, name: str) -> str:
        if " " in name:
            raise IdError(f"Got the id {short(name)!r} for {self.path}, whose words have no spaces.", "Choose .vec.")
        return super()._word(name)

    def _numbers(self, vector: np.ndarray) -> bytes:
        return vector.astype("<f4").tobytes()


class TxtSource(Source):
    """Rows of a text: a word and its numbers on each line, after a line with both counts if there is one.

    The words are the ids. A column is read from any ``.txt``: its lines.
    """

    dtype: np.dtype = np.dtype(np.float64)
    _head = 0  # lines before the first row

    def __init__(self, path: str | Path, key: str | None = None, ids: pa.Array | bool | None = None) -> None:
        self._set_file(path, key, ids)
        self._id_column = "word" if ids is None else None
        compressed = Path(path).suffix.lower() in CODECS
        with reading(path, *TEXT_DAMAGE), open_stream(path) as stream:
            self._read_head(stream, sys.maxsize if compressed else os.path.getsize(path))
        if self.n < 1 or self.dim < 1:
            raise ShapeError(f"Got {self.n} rows of {max(self.dim, 0)} numbers in {path}.", "Pass a file with vectors.")

    def _counts(self, counts: list[bytes], size: int, least: int) -> None:
        """Set the counts that a file begins with, if it has so many numbers of at least so many bytes."""
        self.n, self.dim = (int(count[:18]) for count in counts)
        self._head = 1
        if self.n * (self.dim * least + 1) > size:
            raise damaged(self.path, f"it has {size} bytes for {self.n} rows of {self.dim} numbers")

    def _scan(self, after: int, batch: int, *, table: bool) -> Iterator[Block]:
        with reading(self.path, *TEXT_DAMAGE), open_stream(self.path) as stream:
            for _ in range(self._head):
                stream.readline()
            every = self._rows(stream)
            rows = islice(every, after, self.n)
            while found := list(islice(rows, min(batch, self.n - after))):
                words, numbers = zip(*found, strict=True)
                ids = self._slice_ids(after, len(found))
                if self._id_column:
                    ids = clean_ids(pa.array(words, pa.binary()), f"words of {self.path}", after)
                yield ids, self._matrix([*numbers]), None
                after += len(found)
            check_all_rows(after, self.n, self.path)
            if next(every, None) is not None:
                raise damaged(self.path, f"it has more than {self.n} rows")

    def _lines(self, stream: IO[bytes]) -> Iterator[bytes]:
        while line := stream.readline(_MAX_LINE):
            if len(line) == _MAX_LINE:
                raise damaged(self.path, f"a line of more than {_MAX_LINE:,} bytes")
            if line.strip():
                yield line.strip()

    def _read_head(self, stream: IO[bytes], size: int) -> None:
        """Set the number of rows, ``dim``, and the lines before the first row."""
        lines = self._lines(stream)
        first, second = next(lines, b"").split(), next(lines, b"").split()
        if len(first) == 2 and all(map(bytes.isdigit, first)) and (len(second) > 2 or first[1] == b"1"):
            self._counts(first, size, 2)
            return
        numbers = (k for k, field in enumerate(reversed(first)) if not _is_number(field))
        self.dim = min(next(numbers, len(first)), len(first) - 1)
        self.n = (len(first) > 0) + (len(second) > 0) + sum(1 for _ in lines)

    def _rows(self, stream: IO[bytes]) -> Iterator[tuple[bytes, Any]]:
        """Yield each word with its row, as it is stored."""
        for row, line in enumerate(self._lines(stream)):
            word, *numbers = line.rsplit(None, self.dim)
            if len(numbers) < self.dim or _ends_in_number(word):
                problem = f"Got {len(line.split()) - 1} numbers in row {row} of {self.path}; expected {self.dim}."
                raise ShapeError(problem, "Correct this line, a word and its numbers.")
            yield word, numbers

    def _matrix(self, rows: list[Any]) -> np.ndarray:
        fields = [field for row in rows for field in row]
        try:
            numbers = pa.array(fields, pa.binary()).cast(pa.string()).cast(pa.float64()).to_numpy()
        except pa.ArrowInvalid:
            bad = next((field for field in fields if not _is_number(field)), None)
            if bad is not None:
                problem = f"Got {short(bad.decode(errors='replace'))!r} as a number in {self.path}."
                raise DtypeError(problem, "Correct this line.") from None
            numbers = np.array([float(field) for field in fields])
        return np.array(numbers).reshape(len(rows), self.dim)

    @classmethod
    def read_column(cls, path: str | Path, key: str | None) -> np.ndarray:
        """Read the lines as an object array of str."""
        refuse_key(key, path)
        text = "".join(read_lines(path)).replace("\r\n", "\n").replace("\r", "\n")
        # Not splitlines(), which would also break at form feeds and Unicode's separators.
        return np.array(text.removesuffix("\n").split("\n") if text else [], dtype=object)


def _is_number(field: bytes) -> bool:
    return NUMBER.fullmatch(field.decode(errors="replace")) is not None


def _ends_in_number(word: bytes) -> bool:
    """Return whether a word of several parts ends in a number, which may be a number too many of its row."""
    return len(parts := word.split()) > 1 and _is_number(parts[-1])


class VecSource(TxtSource):
    """Rows of a ``.vec``, which is written too."""

    sink, read_column = WordsSink, None  # type: ignore[assignment]


class BinSource(VecSource):
    """Rows of word2vec's ``.bin``: both counts, and each row of float32 after its word and a space."""

    sink, dtype = BinarySink, np.dtype(np.float32)

    def _read_head(self, stream: IO[bytes], size: int) -> None:
        head = stream.readline(64)
        if len(head.split()) != 2 or not all(map(bytes.isdigit, head.split())):
            what = "it is a fastText model" if head[:4] == _FASTTEXT else "it has no counts of rows and columns"
            fix = "Save the word vectors as .vec, or in word2vec's binary format."
            raise CorruptFileError(f"The file {self.path} does not hold word vectors ({what}).", fix)
        self._counts(head.split(), size, 4)

    def _rows(self, stream: IO[bytes]) -> Iterator[tuple[bytes, bytes]]:
        held, at, size = b"", 0, 4 * self.dim
        for row in range(self.n):
            while (end := held.find(b" ", at)) < 0 or len(held) <= end + size:
                more = stream.read(2**20 + size)
                if not more or (end < 0 and len(held) - at > MAX_ID_BYTES):
                    raise damaged(self.path, f"it ends, or has no word, in row {row} of {self.n}")
                held, at = held[at:] + more, 0
            yield held[at:end].lstrip(b"\n"), held[end + 1 : end + 1 + size]
            at = end + 1 + size
        if (held[at:] + stream.read(1)).strip():
            raise damaged(self.path, f"it goes on after {self.n} rows")

    def _matrix(self, rows: list[Any]) -> np.ndarray:
        return np.frombuffer(b"".join(rows), "<f4").reshape(len(rows), self.dim).astype(self.dtype)
