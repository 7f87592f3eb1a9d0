"""Save and read a folder: arrays in ``model.safetensors``, everything else in ``config.json``, and a model card.

This module knows the file format only, and nothing about maps; :mod:`congruence.maps` builds objects from what is read here.
Nothing read from a folder is ever executed.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from congruence._utils.atomic import atomic_path, check_output, find_copy, why_foreign
from congruence._utils.optional import require
from congruence._utils.owner import find_left_over, temporary_path
from congruence._utils.refusals import describe_refusal
from congruence._version import __version__
from congruence.errors import CorruptFileError, FileError, VersionError

__all__ = [
    "atomic_path",
    "check_map_output",
    "check_output",
    "download_folder",
    "find_left_over",
    "find_map",
    "numbers_digest",
    "read_folder",
    "temporary_path",
    "upload_folder",
    "why_foreign",
    "write_folder",
]

FORMAT = "congruence-map"
#: Version 1 had one digest of the whole config.json; such folders are still read and checked by that digest.
FORMAT_VERSION = 2
WEIGHTS = "model.safetensors"
CONFIG = "config.json"
CARD = "README.md"

#: Largest config.json that is read, in bytes: parsed JSON takes about ten times the memory of its text.
MAX_CONFIG_BYTES = 64 * 2**20

#: Entries of a space that are names. Users may correct them by hand, since they do not change how vectors are mapped.
_NAMES = ("model", "revision")


def write_folder(
    path: str | Path, arrays: Mapping[str, np.ndarray], config: Mapping[str, object], card: str, *, force: bool = False
) -> Path:
    """Write arrays, configuration and model card as one folder, atomically.

    Parameters
    ----------
    path : path-like
        The folder to create.
    arrays : mapping of str to ndarray
    config : mapping
        Plain data (anything JSON can hold).
    card : str
        Markdown text of ``README.md``.
    force : bool, default=False
        Replace an existing map at this path. Nothing other than a map is ever replaced.

    Returns
    -------
    Path

    Raises
    ------
    OutputExistsError
        If the path exists, and is not a map or ``force`` is False.
    StorageError
        If the folder cannot be written.
    """
    import safetensors.numpy

    # safetensors.numpy writes the buffer of a transposed view in memory order, which silently scrambles the array.
    weights = safetensors.numpy.save({key: np.ascontiguousarray(value) for key, value in arrays.items()})
    content = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "congruence_version": __version__,
        **{str(key): _plain(value) for key, value in config.items()},
        "weights_sha256": hashlib.sha256(weights).hexdigest(),
    }
    content["numbers_sha256"] = numbers_digest(content)
    path = Path(path)
    with atomic_path(path, force=force, directory=True, foreign=_why_no_map) as folder:
        (folder / WEIGHTS).write_bytes(weights)
        (folder / CONFIG).write_text(
            json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8"
        )
        (folder / CARD).write_text(card, encoding="utf-8")
    return path


def check_map_output(path: str | Path, *, force: bool = False) -> None:
    """Check, before any work is done, that :func:`write_folder` would accept the path. Raises OutputExistsError."""
    check_output(path, force=force, directory=True, foreign=_why_no_map)


def find_map(path: str | Path) -> Path:
    """Return the folder of a saved map, or its backup if a process was killed while replacing the map."""
    return find_copy(Path(path), _why_no_map)


def _why_no_map(folder: Path) -> str | None:
    """Return why a folder must not be replaced by a map; None if it is a map, of any version and in any state."""
    return why_foreign(
        folder,
        "a saved map",
        CONFIG,
        FORMAT,
        lambda name: name in (WEIGHTS, CONFIG, CARD),
    )


def read_folder(path: str | Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Read a folder written by :func:`write_folder`, and check that it was not changed.

    While another process replaces the folder, this reads either the old or the new content, never a mixture.

    Parameters
    ----------
    path : path-like

    Returns
    -------
    arrays : dict of str to ndarray
    config : dict

    Raises
    ------
    FileError
        If the folder does not exist or cannot be read.
    CorruptFileError
        If a file is missing or truncated, or if anything was edited that affects where vectors are mapped or how good the map is
        reported to be. Names of models and revisions may be edited.
    VersionError
        If the folder was written in a newer format.
    """
    failed = None
    while True:
        folder = find_map(path)
        read = folder, _identity(folder)
        try:
            return _read_folder(folder)
        except FileError:
            if read == failed:  # otherwise another folder may have replaced it in the meantime
                raise
            failed = read


def _identity(folder: Path) -> tuple[int, ...] | None:
    try:
        status = folder.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_mtime_ns  # inode numbers of removed folders are reused


def _read_folder(folder: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    import safetensors.numpy

    if not folder.is_dir():
        what = "a file" if folder.exists() else "no folder"
        raise FileError(f"Got {what} at {folder}; expected the folder of a saved map. Check the path.")
    config = _read_config(folder)
    try:
        raw = (folder / WEIGHTS).read_bytes()
    except FileNotFoundError:
        raise CorruptFileError(
            f"Got no {WEIGHTS} in {folder}; expected the map's arrays. Save or copy the map again."
        ) from None
    except OSError as error:
        raise FileError(describe_refusal(error, f"while reading {folder / WEIGHTS}")) from error
    if hashlib.sha256(raw).hexdigest() != config.get("weights_sha256"):
        raise CorruptFileError(
            f"Got a {WEIGHTS} in {folder} that is truncated or was edited; expected the bytes it was saved with. "
            "Copy or fit the map again."
        )
    try:
        return safetensors.numpy.load(raw), config
    except Exception as error:  # safetensors raises a different exception type for each kind of damage
        raise CorruptFileError(
            f"Got an unreadable {WEIGHTS} in {folder} ({error}); expected safetensors. Fit the map again."
        ) from error


def _read_config(folder: Path) -> dict[str, object]:
    try:
        with open(folder / CONFIG, "rb") as stream:
            raw = stream.read(MAX_CONFIG_BYTES + 1)
        if len(raw) > MAX_CONFIG_BYTES:
            raise ValueError(f"more than {MAX_CONFIG_BYTES // 2**20} MiB")
        config = json.loads(raw.decode("utf-8"))
        json.dumps(config, ensure_ascii=False).encode(
            "utf-8"
        )  # a lone surrogate could be neither printed nor saved again
    except FileNotFoundError:
        raise CorruptFileError(f"Got no {CONFIG} in {folder}; expected a saved map. Check the path.") from None
    except OSError as error:
        raise FileError(describe_refusal(error, f"while reading {folder / CONFIG}")) from error
    except (ValueError, RecursionError) as error:
        raise CorruptFileError(
            f"Got an unreadable {CONFIG} in {folder} ({error}); expected JSON. Copy or fit the map again."
        ) from None
    if not isinstance(config, dict) or config.get("format") != FORMAT:
        raise CorruptFileError(
            f"Got a {CONFIG} in {folder} that does not describe a congruence map; expected format {FORMAT!r}. Check the path."
        )
    version = config.get("format_version")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise CorruptFileError(
            f"Got format_version {version!r} in {folder}; expected a positive integer. Fit the map again."
        )
    if version > FORMAT_VERSION:
        raise VersionError(
            f"Got a map of format version {version} in {folder}, written by congruence "
            f"{config.get('congruence_version', '?')}; expected version {FORMAT_VERSION} or older. Upgrade congruence."
        )
    if version == 1:
        good = config.pop("config_sha256", None) == _digest(config)
    else:
        good = config.pop("numbers_sha256", None) == numbers_digest(config)
    if not good:
        names = "" if version == 1 else ", except for the names of models and revisions"
        raise CorruptFileError(
            f"Got a {CONFIG} in {folder} that was edited by hand; expected the text it was saved with{names}. "
            "Change the map through the library and save it again."
        )
    return config


def _plain(value: object) -> object:
    """Return plain data that strict JSON can hold: NumPy scalars become numbers, NaN and infinity become null."""
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def numbers_digest(config: Mapping[str, object]) -> str:
    """Return a digest of everything that affects where a map sends vectors and how good it is reported to be; names are excluded.

    Parameters
    ----------
    config : mapping
        As in ``config.json``.

    Returns
    -------
    str
        SHA-256 of the kind, parameters, facts, scores, the digest of the arrays, and all entries of both spaces that are not names.
    """
    content = {key: config.get(key) for key in ("kind", "parameters", "facts", "scores", "weights_sha256")}
    for side in ("source_space", "target_space"):
        space = config.get(side)
        content[side] = {k: v for k, v in space.items() if k not in _NAMES} if isinstance(space, Mapping) else space
    return _digest(content)


def _digest(config: Mapping[str, object]) -> str:
    text = json.dumps(config, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def download_folder(repo_id: str, *, revision: str | None = None, token: str | None = None) -> Path:
    """Fetch a saved map from the Hugging Face hub and return the local folder.

    Parameters
    ----------
    repo_id : str
        ``"owner/name"``.
    revision : str, optional
        Branch, tag or commit.
    token : str, optional
        Access token for private repositories; never stored.

    Returns
    -------
    Path

    Raises
    ------
    MissingExtraError
        If the ``hub`` extra is not installed.
    FileError
        If the repository cannot be reached.
    """
    hub = require("huggingface_hub", extra="hub")
    try:
        return Path(
            hub.snapshot_download(repo_id, revision=revision, token=token, allow_patterns=[WEIGHTS, CONFIG, CARD])
        )
    except Exception as error:  # the hub client raises different types for offline, missing and forbidden
        raise FileError(
            f"Got no folder and no reachable hub repository {repo_id!r} ({type(error).__name__}); "
            "expected one of the two. Check the name, or copy the folder here by hand."
        ) from error


def upload_folder(
    folder: str | Path, repo_id: str, *, token: str | None = None, private: bool = False, message: str
) -> str:
    """Upload a saved map to the Hugging Face hub.

    Parameters
    ----------
    folder : path-like
    repo_id : str
    token : str, optional
    private : bool, default=False
    message : str
        Commit message.

    Returns
    -------
    str
        Address of the commit.

    Raises
    ------
    MissingExtraError
        If the ``hub`` extra is not installed.
    """
    hub = require("huggingface_hub", extra="hub")
    api = hub.HfApi(token=token)
    api.create_repo(repo_id, private=private, exist_ok=True)
    return str(
        api.upload_folder(
            repo_id=repo_id,
            folder_path=str(folder),
            commit_message=message,
            allow_patterns=[WEIGHTS, CONFIG, CARD],
        )
    )
