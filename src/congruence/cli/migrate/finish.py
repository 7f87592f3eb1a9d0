"""``congruence migrate URL finish``."""

from __future__ import annotations

from congruence.cli.migrate._remove import remover

command = remover(
    "finish",
    "Remove the vectors that readers do not see: after a switch the old ones (drop-old), else the new ones (discard).",
)
