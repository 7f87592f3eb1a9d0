"""The last step of embedding: combine the parts into one file or folder, and write the accompanying files."""

from __future__ import annotations

import csv
import hashlib
import json
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from congruence._utils.atomic import atomic_path
from congruence._utils.display import is_formula
from congruence.embeddings import Space
from congruence.encoders import Encoder
from congruence.errors import IdError
from congruence.stores import find_format, open_sink, open_source
from congruence.stores.folder import mark_parts, why_no_parts


def read_mark(mark: Path, file: Path, key: str, count: int) -> dict[str, Any] | None:
    """Return an earlier run's record of a part, if its items and encoder are unchanged and the part is complete and undamaged; else None."""
    try:
        done = json.loads(mark.read_text(encoding="utf-8"))
        same = done["key"] == key and done["sha256"] == (checksum_of(file) if done["rows"] else None)
        valid = [str] * 2 * len(done["failures"]) == [
            type(failure[k]) for failure in done["failures"] for k in ("id", "error")
        ]
        # Every item of a part is a row or a failure.
        complete = type(done["rows"]) is int and 0 <= done["rows"] == count - len(done["failures"])
        return done if same and valid and complete else None
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None


def checksum_of(file: Path) -> str:
    """Return the SHA-256 digest of a file."""
    with open(file, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def read_parts(work: Path, counts: list[int]) -> Iterator[tuple[pa.Array | None, np.ndarray]]:
    """Yield the ids and vectors of all parts, in order."""
    for number, rows in enumerate(counts):
        if rows:
            yield from open_source(work / f"part_{number}.parquet").scan()


def assemble(encoder: Encoder, work: Path, counts: list[int], output: Path, force: bool, *, named: bool) -> None:
    """Stream the parts into the output."""
    n, dim = sum(counts), encoder.space.dim or 0
    kind = next(open_source(work / f"part_{number}.parquet").id_type for number, rows in enumerate(counts) if rows)
    if encoder.n_layers is None:
        parts = [(f"part_{number}", rows) for number, rows in enumerate(counts) if rows] if named else None
        space = encoder.space
        with open_sink(output, n=n, dim=dim, has_ids=True, id_type=kind, space=space, force=force, parts=parts) as sink:
            for ids, block in read_parts(work, counts):
                sink.write(ids, block)
        return
    width = dim // encoder.n_layers
    with atomic_path(output, force=force, directory=True, foreign=why_no_parts) as folder, ExitStack() as stack:
        mark_parts(folder, Space())
        sinks = [
            stack.enter_context(
                open_sink(
                    folder / f"layer_{k}.parquet",
                    n=n,
                    dim=width,
                    has_ids=True,
                    id_type=kind,
                    space=encoder.layer_space(k),
                )
            )
            for k in range(encoder.n_layers)
        ]
        for ids, block in read_parts(work, counts):
            for k, sink in enumerate(sinks):
                sink.write(ids, block[:, k * width : (k + 1) * width])


def write_ids(work: Path, counts: list[int], output: Path) -> str | None:
    """Write the ids to a text file next to an output that cannot store them, and return its path; else None. Raises IdError."""
    if find_format(output, "output").keeps_ids:
        return None
    ids_file = output.with_name(f"{output.name}.ids.txt")
    for ids, _ in read_parts(work, counts):
        check_lines(ids.to_pylist() if ids is not None else [], output)
    with atomic_path(ids_file, force=True) as temporary, open(temporary, "w", encoding="utf-8") as stream:
        for ids, _ in read_parts(work, counts):
            stream.writelines(f"{name}\n" for name in (ids.to_pylist() if ids is not None else []))
    return str(ids_file)


def check_lines(ids: Iterable[object], output: Path) -> None:
    """Raise IdError for an id with a line break, if the ids are written to a file with one id per line."""
    if find_format(output, "output").keeps_ids:
        return
    broken = next((str(name) for name in ids if "\n" in str(name) or "\r" in str(name)), None)
    if broken is not None:
        raise IdError(
            f"Got the id {broken!r} with a line break for {output}, whose ids are written to a file, one per line; expected ids without line breaks. "
            "Pass an output in a format that stores ids, .parquet for example."
        )


def is_failures(file: Path) -> bool:
    """Return whether a file is a list written by :func:`write_failures`."""
    if file.is_symlink() or not file.is_file():
        return False
    with open(file, "rb") as stream:
        return stream.readline(20).strip() == b"id,error"


def write_failures(failures: list[dict[str, str]], output: Path) -> str | None:
    """Write the list of the items that were left out, and return its path; if there are none, remove the list of an earlier run.

    A cell that a spreadsheet would evaluate as a formula is prefixed with an apostrophe.
    """
    file = output.with_name(f"{output.name}.failures.csv")
    if not failures:
        if is_failures(file):
            file.unlink()
        return None
    with atomic_path(file, force=True) as temporary, open(temporary, "w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, ["id", "error"])
        writer.writeheader()
        for row in failures:
            writer.writerow({name: f"'{cell}" if is_formula(cell) else cell for name, cell in row.items()})
    return str(file)
