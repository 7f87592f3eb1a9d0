"""The extension of Griffe by which mkdocstrings reads docstrings as the site writes them."""

from __future__ import annotations

from typing import Any

import griffe

from docsite.roles import in_markdown


class Roles(griffe.Extension):
    """Rewrites every docstring that mkdocstrings reads."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Rewrite that of an object; Griffe calls this for each."""
        if obj.docstring is not None:
            obj.docstring.value = in_markdown(obj.docstring.value)
