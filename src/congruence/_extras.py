"""Optional dependencies: one door, one clear message."""

from __future__ import annotations

import importlib
from types import ModuleType

from congruence.errors import MissingExtraError


def require(module: str, *, extra: str) -> ModuleType:
    """Import an optional dependency, or say which extra brings it.

    Parameters
    ----------
    module : str
        Dotted name of the module.
    extra : str
        Name of the extra of this package that installs it.

    Returns
    -------
    ModuleType

    Raises
    ------
    MissingExtraError
        If the module is not installed. A module that is installed but broken raises its own error.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != module.split(".")[0]:
            raise
        raise MissingExtraError(
            f"Got no module {module!r}; expected it for this operation; do pip install 'congruence[{extra}]'."
        ) from error
