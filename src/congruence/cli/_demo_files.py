"""The photo sample as an application would store it: a table of photo vectors, and files of vectors from both
models.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from congruence.cli._demo_steps import has_lancedb

if TYPE_CHECKING:
    import lancedb
    import pyarrow as pa

    from congruence.datasets import Bundle
    from congruence.embeddings import Embeddings

__all__ = ["library_name", "why_not_replaced", "write_files", "write_library"]

#: Name and content of the file that marks a folder written by :func:`write_files`.
MARKER, FORMAT = "sample.json", "congruence-photo-sample"

_NAMES = {
    MARKER,
    "photos.lance",
    "photos.parquet",
    *(f"{model}-{items}.parquet" for model in ("old", "new") for items in ("photos", "texts")),
}


def library_name() -> str:
    """Return the name of the library: a LanceDB table or, without the extra ``lancedb``, a Parquet file."""
    return "photos.lance" if has_lancedb() else "photos.parquet"


def write_library(sample: Bundle, path: Path) -> lancedb.table.Table | None:
    """Write the photos with the old model's vectors as a table, as an application would.

    Parameters
    ----------
    sample : Bundle
    path : Path
        In an existing folder; its name is :func:`library_name`.

    Returns
    -------
    lancedb.Table or None
        None if a Parquet file was written.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = _table(sample, sample.source["image"], "image")
    pictures = [sample.thumbnails[name] for name in rows["id"].to_pylist()]
    rows = rows.append_column("picture", pa.array(pictures, pa.binary()))
    if path.suffix == ".parquet":
        pq.write_table(rows, path)
        return None
    from congruence._utils.optional import require

    return require("lancedb", extra="lancedb").connect(str(path.parent)).create_table(path.stem, rows)


def why_not_replaced(folder: Path) -> str | None:
    """Return why a folder was not written by :func:`write_files`; None if it was."""
    from congruence._utils.atomic import has_marker

    others = sorted(path.name for path in folder.iterdir() if path.name not in _NAMES)
    if others:
        return f"contains other files than the sample ({', '.join(others[:3])})"
    return None if has_marker(folder / MARKER, FORMAT) else f"contains no {MARKER} that marks it as the sample"


def write_files(sample: Bundle, folder: str | Path) -> list[str]:
    """Write the sample as a folder: the library, and Parquet files of both models' vectors of photos and class names.

    A folder that an earlier call has written is replaced.

    Parameters
    ----------
    sample : Bundle
    folder : path-like

    Returns
    -------
    list of str
        Names of the files.

    Raises
    ------
    OutputExistsError, FileError, StorageError
        If the folder contains other files, its parent does not exist, or it cannot be written.
    """
    import json

    import pyarrow.parquet as pq

    from congruence._utils.atomic import atomic_path

    with atomic_path(folder, force=True, directory=True, foreign=why_not_replaced) as temporary:
        (temporary / MARKER).write_text(json.dumps({"format": FORMAT, "format_version": 1}) + "\n", encoding="utf-8")
        write_library(sample, temporary / library_name())
        for model, side in (("old", sample.source), ("new", sample.target)):
            for modality, items in (("image", "photos"), ("text", "texts")):
                pq.write_table(_table(sample, side[modality], modality), temporary / f"{model}-{items}.parquet")
        names = sorted(path.name for path in temporary.iterdir() if path.name != MARKER)
    return names


def _table(sample: Bundle, rows: Embeddings, modality: str) -> pa.Table:
    """Return rows with their ids, classes and vectors; the metadata contain their space."""
    import json

    import numpy as np
    import pyarrow as pa

    vectors = rows.vectors.astype(np.float32)  # as in most stores; the sample has float16
    table = pa.table(
        {
            "id": rows.ids.tolist(),
            "class": sample.class_of(modality, rows.ids).tolist(),
            "embedding": pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), vectors.shape[1]),
        }
    )
    return table.replace_schema_metadata({"congruence.space": json.dumps(rows.space.to_dict())})
