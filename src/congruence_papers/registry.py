"""Registry of the papers that can be reproduced. Each has a folder, and one entry here."""

from __future__ import annotations

from typing import Any

from congruence_papers import canonical, jam, sotalign
from congruence_papers.study import Study

__all__ = ["STUDIES", "kinds"]

#: Studies by name, in listing order.
STUDIES: dict[str, Study[Any]] = {
    "canonical": canonical.STUDY,
    "jam": jam.STUDY,
    "sotalign": sotalign.STUDY,
}


def kinds() -> dict[str, Study[Any]]:
    """Return a mapping from each kind of figure to its study."""
    return {kind: study for study in STUDIES.values() for kind in study.kinds}
