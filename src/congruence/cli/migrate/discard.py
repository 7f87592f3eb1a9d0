"""``congruence migrate URL discard``."""

from __future__ import annotations

from congruence.cli.migrate._remove import remover

command = remover("discard", "Remove the new vectors, as long as readers do not see them.")
