"""Reader for the ``.npz`` files of features used as sample data by all papers."""

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

#: File name of each data set.
FILES = {
    "lvis": "lvis1203_clip.npz",
    "imagenet1000": "imagenet1000_unimodal.npz",
    "caltech101": "caltech101_unimodal.npz",
}

#: Array names of the unimodal encoders in ``imagenet1000`` and ``caltech101``, by encoder name.
IMAGE_ENCODERS = {"EfficientNet-Lite0": "image_effnet_lite0", "MobileNet-v2": "image_mobilenet_v2"}
TEXT_ENCODERS = {"MPNet": "text_mpnet", "MiniLM-L6": "text_minilm_l6"}


def open_npz(name: str, file: str | Path | None, build: Callable[[Mapping[str, np.ndarray]], T]) -> T:
    """Read a file of features and build a paper's data from its arrays.

    Parameters
    ----------
    name : str
        A key of :data:`FILES`.
    file : path-like or None
        The file, or the folder that contains it.
    build : callable
        Called with a mapping from name to array.

    Returns
    -------
    object
        The return value of ``build``.

    Raises
    ------
    ParameterError
        If ``file`` is None, or ``build`` raises it.
    FileError
        If the file does not exist.
    NotFiniteError, ZeroRowError
        If a row of features contains NaN or infinity, or is all zeros.
    CorruptFileError
        If the file is damaged or not an ``.npz`` file, or an array is missing or does not match the others.
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
            f"Got {path}, which cannot be used as {name} ({error}); expected {FILES[name]}. Pass file=… with the path of that file."
        ) from error
