"""Extension of Griffe that converts docstrings to Markdown for mkdocstrings."""

from __future__ import annotations

from typing import Any

import griffe

from docsite.roles import in_markdown


class Roles(griffe.Extension):
    """Converts every docstring that mkdocstrings reads."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Convert the docstring of an object; called by Griffe for each object."""
        if obj.docstring is not None:
            obj.docstring.value = in_markdown(obj.docstring.value)
