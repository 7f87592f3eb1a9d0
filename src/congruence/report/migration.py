"""The HTML page of a migration: its state, the verification, the events, and searches before and after."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from congruence.errors import MigrationError
from congruence.plotting import draw_progress
from congruence.report.rendering import fill, svg
from congruence.upgrade.migrate.journal import SEEN, Journal, summarize
from congruence.upgrade.migrate.native import read_stages

_LEVELS = {"filling": "partial", "filled": "partial", "rolled back": "partial"}


def read_migration(folder: str | Path) -> dict[str, Any]:
    """Return the summary of a migration, as ``congruence.Migration.summary``, from its journal's folder."""
    journal = Journal.read(Path(folder))
    if journal is None:
        raise MigrationError(
            f"{folder} has no journal of a migration.", "Pass the folder that congruence migrate created."
        )
    return summarize(journal)


def read_reembedding(folder: str | Path) -> dict[str, Any] | None:
    """Return the quality at each stage of re-embedding, from a journal's folder; None if nothing was re-embedded."""
    return read_stages(Path(folder))


def render_migration(
    summary: Mapping[str, Any],
    searches: Mapping[str, Any] | None = None,
    *,
    reembedding: Mapping[str, Any] | None = None,
    licenses: Sequence[str] = (),
) -> str:
    """Return a migration as one page.

    Parameters
    ----------
    summary : mapping
        From ``congruence.Migration.summary`` or ``read_migration``.
    searches : mapping, optional
        ``n`` (queries), ``gallery`` (rows searched), ``measures`` (names), ``steps``: for each step its ``name``,
        ``note``
        and ``scores`` by measure; and ``examples``: ``text`` of a query, and for each step its ``found`` rows
        (``text``,
        ``picture`` as data URI or None, ``wanted``).
    reembedding : mapping, optional
        From ``read_reembedding``.
    licenses : sequence of str
        Sentences for the page's footer.
    """
    picture = reembedding and reembedding["picture"]
    return fill(
        "migration.html",
        s=summary,
        seen=SEEN[summary["state"]],
        level=_LEVELS.get(summary["state"], "passes"),
        searches=searches,
        reembedding=reembedding,
        picture=picture and svg(draw_progress, picture, title=f"{picture['metric']} by share re-embedded"),
        licenses=licenses,
    )
