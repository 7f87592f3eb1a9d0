"""Saved folders: arrays in ``model.safetensors``, the rest in ``config.json``, and a model card; written atomically,
read with checks.

Nothing read from a folder is ever executed. Digests show that a folder is unchanged since it was saved, not that it
holds what it should: whoever changes a file can compute them again. The functions at the end therefore check the
content.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np

from congruence._utils.atomic import atomic_path as atomic_path
from congruence._utils.atomic import check_output as check_output
from congruence._utils.atomic import find_copy
from congruence._utils.atomic import find_left_over as find_left_over
from congruence._utils.atomic import remove_folder as remove_folder
from congruence._utils.atomic import temporary_path as temporary_path
from congruence._utils.atomic import why_foreign as why_foreign
from congruence._utils.optional import require
from congruence._utils.plain import as_plain
from congruence._utils.refusals import describe_refusal
from congruence._version import __version__
from congruence.errors import CorruptFileError, FileError, VersionError

FORMAT = "congruence-map"
FORMAT_VERSION = 1
WEIGHTS = "model.safetensors"
CONFIG = "config.json"
CARD = "README.md"

#: Largest config.json that is read, in bytes: parsed JSON takes about ten times the memory of its text.
MAX_CONFIG_BYTES = 64 * 2**20

#: Entries of a space that are names. Users may correct them by hand, since they do not change how vectors are mapped.
_NAMES = ("model", "revision")

#: Tolerance of the checks of an isometry, per direction. When fitting, gains within 1e-5 of 1 count as 1.
TOLERANCE = 1e-4


def write_folder(
    path: str | Path, arrays: Mapping[str, np.ndarray], config: Mapping[str, object], card: str, *, force: bool = False
) -> Path:
    """Write arrays, configuration and model card as one folder, atomically; ``force`` replaces a map, nothing else."""
    import safetensors.numpy

    # safetensors.numpy writes the buffer of a transposed view in memory order, which silently scrambles the array.
    weights = safetensors.numpy.save({key: np.ascontiguousarray(value) for key, value in arrays.items()})
    content = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "congruence_version": __version__,
        **as_plain(config, strict=True),
        "weights_sha256": hashlib.sha256(weights).hexdigest(),
    }
    content["numbers_sha256"] = numbers_digest(content)
    path = Path(path)
    with atomic_path(path, force=force, directory=True, foreign=why_no_map) as folder:
        (folder / WEIGHTS).write_bytes(weights)
        text = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False)
        (folder / CONFIG).write_text(text + "\n", encoding="utf-8")
        (folder / CARD).write_text(card, encoding="utf-8")
    return path


def check_map_output(path: str | Path, *, force: bool = False) -> None:
    """Check, before any work is done, that ``write_folder`` would accept the path. Raises OutputExistsError."""
    check_output(path, force=force, directory=True, foreign=why_no_map)


def find_map(path: str | Path) -> Path:
    """Return the folder of a saved map, or its backup if a process was killed while replacing the map."""
    return find_copy(Path(path), why_no_map)


def why_no_map(folder: Path) -> str | None:
    """Return why a folder must not be replaced by a map; None if it is a map, of any version and in any state."""
    return why_foreign(folder, "a saved map", CONFIG, FORMAT, lambda name: name in (WEIGHTS, CONFIG, CARD))


def read_folder(path: str | Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Read the arrays and the configuration of a folder written by ``write_folder``, and check that it was not changed.
    Names of models and revisions may be edited; anything else that affects where vectors are mapped, or how good the
    map is reported to be, may not. While another process replaces the folder, this reads either the old or the new
    content, never a mixture. Raises FileError, CorruptFileError, VersionError.
    """
    failed: object = ()
    while True:
        folder = find_map(path)
        try:
            status = folder.stat()
            identity = status.st_dev, status.st_ino, status.st_mtime_ns  # inode numbers of removed folders are reused
        except OSError:
            identity = 0, 0, 0
        try:
            return _read_folder(folder)
        except FileError:
            if (folder, identity) == failed:  # otherwise another folder may have replaced it in the meantime
                raise
            failed = folder, identity


def _read_folder(folder: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    import safetensors.numpy

    if not folder.is_dir():
        what, fix = "no folder", "Check the path."
        if folder.exists():
            what, fix = "a file", "Pass the folder that was written for the map, not a file of vectors."
        raise FileError(f"Got {what} at {folder}; expected the folder of a saved map.", fix)
    raw = _read_file(folder / CONFIG, MAX_CONFIG_BYTES)
    try:
        if len(raw) > MAX_CONFIG_BYTES:
            raise ValueError(f"more than {MAX_CONFIG_BYTES // 2**20} MiB")
        config = json.loads(raw.decode("utf-8"))
        # A lone surrogate could be neither printed nor saved again.
        json.dumps(config, ensure_ascii=False).encode("utf-8")
    except (ValueError, RecursionError) as error:
        raise _corrupt(folder, CONFIG, f"is no readable JSON ({error})") from None
    if not isinstance(config, dict) or config.get("format") != FORMAT:
        raise _corrupt(folder, CONFIG, "does not describe a congruence map", "Check the path.")
    version = config.get("format_version")
    if type(version) is not int or version < 1:
        raise _corrupt(folder, CONFIG, f"has the format_version {version!r}, which is no positive integer")
    if version > FORMAT_VERSION:
        problem = f"Got a map of format version {version} in {folder}, above {FORMAT_VERSION}."
        raise VersionError(problem, "Upgrade congruence.")
    if config.pop("numbers_sha256", None) != numbers_digest(config):
        fix = "Edit only names of models and revisions, or save the map again."
        raise _corrupt(folder, CONFIG, "was edited by hand", fix)
    raw = _read_file(folder / WEIGHTS)
    if hashlib.sha256(raw).hexdigest() != config.get("weights_sha256"):
        raise _corrupt(folder, WEIGHTS, "is truncated or was edited")
    try:
        return safetensors.numpy.load(raw), config
    except Exception as error:  # safetensors raises a different exception type for each kind of damage
        raise _corrupt(folder, WEIGHTS, f"is no readable safetensors ({error})") from error


def _corrupt(folder: Path, name: str, why: str, fix: str = "Copy or fit the map again.") -> CorruptFileError:
    return CorruptFileError(f"Got a {name} in {folder} that {why}.", fix)


def _read_file(file: Path, most: int | None = None) -> bytes:
    """Return the content of a file; of one above ``most`` bytes the first ``most`` + 1."""
    try:
        with open(file, "rb") as stream:
            return stream.read() if most is None else stream.read(most + 1)
    except FileNotFoundError:
        inner = file.parent / "map"  # as ``congruence check`` writes it, beside the certificate
        fix = f"Pass {inner}." if (inner / file.name).is_file() else "Check the path, or copy the map again."
        raise CorruptFileError(f"Got no {file.name} in {file.parent}; expected a saved map.", fix) from None
    except OSError as error:
        raise FileError(describe_refusal(error, f"while reading {file}")) from error


def numbers_digest(config: Mapping[str, object]) -> str:
    """Return the SHA-256 of all of ``config.json`` that affects mapped vectors or the scores that are reported."""
    names = ("kind", "parameters", "facts", "scores", "role", "readout", "weights_sha256")
    content = {name: config.get(name) for name in names}
    for side in ("source_space", "target_space"):
        space = config.get(side)
        content[side] = {k: v for k, v in space.items() if k not in _NAMES} if isinstance(space, Mapping) else space
    text = json.dumps(content, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


# ---------------------------------------------------------------------- Hugging Face hub


def download_folder(repo_id: str, *, revision: str | None = None, token: str | None = None) -> Path:
    """Fetch a saved map ``"owner/name"`` from the Hugging Face hub; the token is never stored."""
    hub = require("huggingface_hub", extra="hub")
    files = [WEIGHTS, CONFIG, CARD]
    try:
        return Path(hub.snapshot_download(repo_id, revision=revision, token=token, allow_patterns=files))
    except Exception as error:  # the hub client raises different types for offline, missing and forbidden
        problem = f"Got no folder and no reachable hub repository {repo_id!r} ({type(error).__name__})."
        raise FileError(problem, "Check the name.") from error


def upload_folder(
    folder: str | Path, repo_id: str, *, token: str | None = None, private: bool = False, message: str
) -> str:
    """Upload a saved map to the Hugging Face hub, and return the address of the commit."""
    hub = require("huggingface_hub", extra="hub")
    api = hub.HfApi(token=token)
    api.create_repo(repo_id, private=private, exist_ok=True)
    patterns = [WEIGHTS, CONFIG, CARD]
    return str(
        api.upload_folder(repo_id=repo_id, folder_path=str(folder), commit_message=message, allow_patterns=patterns)
    )


# ---------------------------------------------------------------------- checks of what was read; ValueError or TypeErro


def check_parameters(kind: type, parameters: Mapping[str, object]) -> None:
    """Check that parameters are known, and each of the type of its default: a number, a string or a boolean."""
    signature = inspect.signature(kind).parameters
    if unknown := sorted(set(parameters) - set(signature)):
        raise ValueError(f"unknown parameters: {', '.join(unknown[:3])}")
    for name, value in parameters.items():
        default = signature[name].default
        if isinstance(default, bool):
            valid = isinstance(value, bool)
        elif isinstance(default, str):  # a string or a number, such as ridge="cv" or 0.1
            valid = isinstance(value, str) or is_number(value)
        else:
            valid = value is None or is_number(value)
        if not valid:
            raise TypeError(f"parameter {name} has type {type(value).__name__}")


def is_number(value: object) -> TypeGuard[float]:
    """Return whether a value is a finite number that fits a float."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return abs(value) <= sys.float_info.max


def number(facts: Mapping[str, Any], name: str) -> float:
    """Return a finite number from the facts."""
    if not is_number(facts.get(name)):
        raise TypeError(f"{name} is not a finite number")
    return float(facts[name])


def count(facts: Mapping[str, Any], name: str, *, missing: int | None = None, most: int = 2**63 - 1) -> int:
    """Return a whole number from 0 to ``most`` from the facts; ``missing`` if there is none."""
    value = facts.get(name)
    if value is None:
        value = missing
    if type(value) is not int:
        raise TypeError(f"{name} is not a whole number")
    if not 0 <= value <= most:
        raise ValueError(f"{name} is out of range")
    return value


def check_arrays(arrays: Mapping[str, np.ndarray], shapes: Mapping[str, str], *, free: tuple[str, ...] = ()) -> None:
    """Check that the arrays are those named in ``shapes``, float32 or float64, finite and not empty. A shape has a
    letter for each axis; the same letter stands for the same length everywhere. Arrays in ``free`` do not affect mapped
    rows: they may be empty or contain NaN.
    """
    if set(arrays) != set(shapes):
        odd = sorted(set(arrays) ^ set(shapes))
        raise ValueError(f"missing or unexpected arrays: {', '.join(odd[:3])}")
    lengths: dict[str, int] = {}
    for name, letters in shapes.items():
        array = arrays[name]
        if array.dtype not in (np.float32, np.float64):
            raise ValueError(f"{name} has dtype {array.dtype}")
        if array.ndim != len(letters) or (not array.size and name not in free):
            raise ValueError(f"{name} has shape {array.shape}, which is empty or does not have {len(letters)} axes")
        for letter, length in zip(letters, array.shape, strict=True):
            if lengths.setdefault(letter, length) != length:
                raise ValueError(f"{name} has shape {array.shape}, which does not fit the other arrays")
        if name not in free and not np.isfinite(array).all():
            raise ValueError(f"{name} contains NaN or infinity")


def check_orthonormal(frame: np.ndarray, name: str) -> None:
    """Check that a matrix has orthonormal columns, or rows if it has more columns than rows. Tested on random rows, at
    a cost proportional to the size of the matrix: for E = frameᵀ frame − I, the expected squared norm of its product
    with a standard normal row is its squared Frobenius norm (Freivalds' check, with a tolerance).
    """
    tall = frame if frame.shape[0] >= frame.shape[1] else frame.T
    rows = np.random.default_rng(0).standard_normal((8, tall.shape[1]))
    with np.errstate(over="ignore", invalid="ignore"):
        error = float(np.linalg.norm((rows @ tall.T) @ tall - rows)) / math.sqrt(rows.size)
    if not error <= TOLERANCE:
        raise ValueError(f"{name} is not orthonormal")
