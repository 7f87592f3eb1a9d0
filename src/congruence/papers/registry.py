"""The papers that can be reproduced: a folder and a line each."""

from __future__ import annotations

from typing import Any

from congruence.papers import canonical, jam, sotalign
from congruence.papers.study import Study

__all__ = ["STUDIES", "kinds"]

#: Every paper by name, in the order in which they are listed.
STUDIES: dict[str, Study[Any]] = {
    "canonical": canonical.STUDY,
    "jam": jam.STUDY,
    "sotalign": sotalign.STUDY,
}


def kinds() -> dict[str, Study[Any]]:
    """Return the study that each kind of figure belongs to."""
    return {kind: study for study in STUDIES.values() for kind in study.kinds}
