"""An OpenAI-compatible server of vectors in an index's space (extra ``serve``)."""

from __future__ import annotations

from congruence.integrations.server.app import create_app
from congruence.integrations.server.run import check_host, listen, read_key, serve

__all__ = ["check_host", "create_app", "listen", "read_key", "serve"]
