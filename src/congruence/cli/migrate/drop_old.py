"""``congruence migrate URL drop-old``."""

from __future__ import annotations

from congruence.cli.migrate._remove import remover

command = remover("drop-old", "Remove the old vectors after the switch. This cannot be undone.")
