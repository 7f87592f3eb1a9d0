"""One reader for the ``.npz`` files of features that the papers' sample data are made of, with one set of errors."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import numpy as np

from congruence._utils.validation import check_rows
from congruence.errors import CorruptFileError, FileError, InputError, ParameterError

__all__ = ["FILES", "IMAGE_ENCODERS", "TEXT_ENCODERS", "open_npz"]

T = TypeVar("T")

#: Files by the name of the data.
FILES = {
    "lvis": "lvis1203_clip.npz",
    "imagenet1000": "imagenet1000_unimodal.npz",
    "caltech101": "caltech101_unimodal.npz",
}

#: Arrays of the unimodal encoders in the last two, by the encoder's name.
IMAGE_ENCODERS = {"EfficientNet-Lite0": "image_effnet_lite0", "MobileNet-v2": "image_mobilenet_v2"}
TEXT_ENCODERS = {"MPNet": "text_mpnet", "MiniLM-L6": "text_minilm_l6"}


def open_npz(name: str, file: str | Path | None, build: Callable[[Mapping[str, np.ndarray]], T]) -> T:
    """Read a file of features and build a paper's data of its arrays.

    Parameters
    ----------
    name : str
        A key of :data:`FILES`.
    file : path-like or None
        The file, or the folder it lies in.
    build : callable
        Takes the arrays by name.

    Returns
    -------
    object
        What ``build`` returned.

    Raises
    ------
    ParameterError
        No file is given, or ``build`` refuses what was asked for.
    FileError
        There is no such file.
    NotFiniteError, ZeroRowError
        A row of features holds NaN or infinity, or nothing but zeros.
    CorruptFileError
        The file is damaged, is no ``.npz``, lacks an array, or its arrays do not fit each other.
    """
    if file is None:
        raise ParameterError(f"Got no file for {name}; expected the path of {FILES[name]}. Pass file=….")
    path = Path(file).expanduser()
    path = path / FILES[name] if path.is_dir() else path
    if not path.is_file():
        raise FileError(f"Got no file at {path}; expected {FILES[name]}. Check the path.")
    try:
        with np.load(path, allow_pickle=False) as data:
            arrays = {key: data[key] for key in data.files}
        for key, rows in arrays.items():
            if rows.dtype.kind == "f" and rows.ndim > 1:
                check_rows(rows.reshape(-1, rows.shape[-1]), f"{key} in {path}")
        return build(arrays)
    except (InputError, ParameterError):
        raise
    except (ValueError, OSError, LookupError, TypeError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise CorruptFileError(
            f"Got {path}, which cannot be used as {name} ({error}); expected {FILES[name]}. Pass file=… with the path of that."
        ) from error
