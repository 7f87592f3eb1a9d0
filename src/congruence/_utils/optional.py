"""Imports of optional dependencies, with a clear message if one is missing."""

from __future__ import annotations

import importlib
from types import ModuleType

from congruence.errors import MissingExtraError, ParameterError


def require(module: str, *, extra: str) -> ModuleType:
    """Import an optional dependency, or raise an error that names the extra of this package that installs it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != module.split(".")[0]:
            raise
        problem = f"Got no module {module!r}; expected it for this operation."
        raise MissingExtraError(problem, f"Run pip install 'congruence[{extra}]'.") from error


def choose_device(torch: ModuleType, device: str) -> str:
    """Return the device to run on; ``"auto"`` selects the first available of cuda, mps and cpu."""
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if device == "auto":
        return next(name for name, present in available.items() if present)
    kind, _, number = device.partition(":")
    if not available.get(kind) or (number and not number.isdecimal()):
        names = ", ".join(repr(name) for name, present in available.items() if present)
        raise ParameterError(
            argument="device", got=device, expected=f"one of 'auto', {names}", fix="Choose one of these."
        )
    return device
