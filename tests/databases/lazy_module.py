"""Modules that are imported when a test first needs them: every process that runs some tests collects all of them."""

from __future__ import annotations

from importlib import import_module
from typing import Any


class LazyModule:
    """Stands for a module by its name."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("_"):  # while it collects, pytest asks every name of a module what kind of test it is
            raise AttributeError(attribute)
        return getattr(import_module(self._name), attribute)
