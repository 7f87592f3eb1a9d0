"""Modules that are imported on first use, because every process collects all tests even if it runs only some."""

from importlib import import_module
from typing import Any


class LazyModule:
    """A placeholder that imports the module of its name on first use."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("_"):  # during collection, pytest looks up attributes of every name in a test module
            raise AttributeError(attribute)
        return getattr(import_module(self._name), attribute)
