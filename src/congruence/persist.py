"""A folder on disk: arrays in ``model.safetensors``, everything else in ``config.json``, and a model card.

This file knows the format and nothing about maps, so it stands below them; ``congruence.maps`` turns what is read
here back into objects through its written table. Nothing read from a folder is ever executed.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from congruence._atomic import atomic_path, check_output, find_copy, why_foreign
from congruence._extras import require
from congruence._version import __version__
from congruence.errors import CorruptFileError, FileError, VersionError

FORMAT = "congruence-map"
FORMAT_VERSION = 1
WEIGHTS = "model.safetensors"
CONFIG = "config.json"
CARD = "README.md"


def write_folder(
    path: str | Path, arrays: Mapping[str, np.ndarray], config: Mapping[str, Any], card: str, *, force: bool = False
) -> Path:
    """Write arrays, configuration and card as one folder, or nothing at all.

    Parameters
    ----------
    path : path-like
        The folder to make.
    arrays : mapping of str to ndarray
    config : mapping
        Plain data (what JSON can hold).
    card : str
        Markdown for ``README.md``.
    force : bool, default=False
        Replace a map that is there; nothing else is replaced.

    Returns
    -------
    Path

    Raises
    ------
    OutputExistsError, StorageError
    """
    import safetensors.numpy

    # safetensors.numpy writes the buffer of a transposed view as it lies and silently scrambles it.
    weights = safetensors.numpy.save({key: np.ascontiguousarray(value) for key, value in arrays.items()})
    whole = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "congruence_version": __version__,
        **_plain(config),
        "weights_sha256": hashlib.sha256(weights).hexdigest(),
    }
    whole["config_sha256"] = _digest(whole)
    path = Path(path)
    with atomic_path(path, force=force, directory=True, foreign=_why_no_map) as folder:
        (folder / WEIGHTS).write_bytes(weights)
        (folder / CONFIG).write_text(
            json.dumps(whole, indent=2, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8"
        )
        (folder / CARD).write_text(card, encoding="utf-8")
    return path


def check_map_output(path: str | Path, *, force: bool = False) -> None:
    """Refuse, before the work, a path that :func:`write_folder` would refuse. Raises OutputExistsError."""
    check_output(path, force=force, directory=True, foreign=_why_no_map)


def find_map(path: str | Path) -> Path:
    """Return the folder of a saved map; its backup, if a writer was killed while it replaced the map."""
    return find_copy(Path(path), _why_no_map)


def _why_no_map(folder: Path) -> str | None:
    """Say why a folder must not be replaced by a map, or None for a map, of whatever version and in whatever state."""
    return why_foreign(
        folder,
        "a saved map",
        CONFIG,
        FORMAT,
        lambda name: name in (WEIGHTS, CONFIG, CARD),
    )


def read_folder(path: str | Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Read a folder written by :func:`write_folder`, and check that nobody changed it.

    While a writer replaces the folder, this reads the old copy or the new one, never a mixture.

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
        No such folder.
    CorruptFileError
        A file is missing, truncated or edited.
    VersionError
        Written by a newer format.
    """
    failed = None
    while True:
        folder = find_map(path)
        read = folder, _identity(folder)
        try:
            return _read_folder(folder)
        except FileError:
            if read == failed:  # else another folder may have taken its place meanwhile
                raise
            failed = read


def _identity(folder: Path) -> tuple[int, ...] | None:
    try:
        facts = folder.stat()
    except OSError:
        return None
    return facts.st_dev, facts.st_ino, facts.st_mtime_ns  # numbers of removed folders are given again


def _read_folder(folder: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    import safetensors.numpy

    if not folder.is_dir():
        raise FileError(f"Got no folder at {folder}; expected a saved map there. Check the path.")
    config = _read_config(folder)
    try:
        raw = (folder / WEIGHTS).read_bytes()
    except FileNotFoundError:
        raise CorruptFileError(
            f"Got no {WEIGHTS} in {folder}; expected the map's arrays. Save or copy the map again."
        ) from None
    if hashlib.sha256(raw).hexdigest() != config.get("weights_sha256"):
        raise CorruptFileError(
            f"Got a {WEIGHTS} in {folder} that is truncated or was edited; expected the bytes it was saved with. "
            "Copy or fit the map again."
        )
    try:
        return safetensors.numpy.load(raw), config
    except Exception as error:  # the reader has its own exception types for each kind of damage
        raise CorruptFileError(
            f"Got an unreadable {WEIGHTS} in {folder} ({error}); expected safetensors. Fit the map again."
        ) from error


def _read_config(folder: Path) -> dict[str, Any]:
    try:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CorruptFileError(f"Got no {CONFIG} in {folder}; expected a saved map. Check the path.") from None
    except (ValueError, RecursionError) as error:
        raise CorruptFileError(
            f"Got an unreadable {CONFIG} in {folder} ({error}); expected JSON. Copy or fit the map again."
        ) from None
    if not isinstance(config, dict) or config.get("format") != FORMAT:
        raise CorruptFileError(
            f"Got a {CONFIG} in {folder} that is not of a congruence map; expected format {FORMAT!r}. Check the path."
        )
    version = config.get("format_version")
    if not isinstance(version, int) or version < 1:
        raise CorruptFileError(
            f"Got format_version {version!r} in {folder}; expected a positive integer. Fit the map again."
        )
    if version > FORMAT_VERSION:
        raise VersionError(
            f"Got a map of format version {version} in {folder}, written by congruence "
            f"{config.get('congruence_version', '?')}; expected version {FORMAT_VERSION} or older. Upgrade congruence."
        )
    digest = config.pop("config_sha256", None)
    if digest != _digest(config):
        raise CorruptFileError(
            f"Got a {CONFIG} in {folder} that was edited by hand; expected the text it was saved with. "
            "Change the map through the library and save it again."
        )
    return config


def _plain(value: Any) -> Any:
    """Return plain data that strict JSON holds: NumPy scalars become numbers, NaN and infinity become null."""
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _digest(config: Mapping[str, Any]) -> str:
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
        Without the ``hub`` extra.
    FileError
        The repository cannot be reached.
    """
    hub = require("huggingface_hub", extra="hub")
    try:
        return Path(
            hub.snapshot_download(repo_id, revision=revision, token=token, allow_patterns=[WEIGHTS, CONFIG, CARD])
        )
    except Exception as error:  # the hub client raises many kinds for offline, missing and forbidden
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
        Without the ``hub`` extra.
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
