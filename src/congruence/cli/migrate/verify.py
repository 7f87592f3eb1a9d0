"""``congruence migrate URL verify``: check the new vectors, and translate score thresholds."""

from __future__ import annotations

from typing import Any

import typer

from congruence.cli._base import Bars
from congruence.cli._options import Json, option, settable, with_groups
from congruence.cli._scores import print_thresholds
from congruence.cli.migrate._step import Journal, opened
from congruence.cli.migrate._verify import print_verification, verify


@with_groups
def command(
    ctx: typer.Context,
    heldout: str | None = option(None, "Rows in the new model, with their ids, that the map was not fitted on."),
    threshold: list[float] | None = option(
        None, "Score threshold of the old model to translate to the new one; may be repeated."
    ),
    settings: dict[str, Any] = settable(least_recall=0.9, queries=str, queries_old=str, among=str),
    journal: Journal = None,
    as_json: Json = False,
) -> None:
    """Check counts, a sample read back, and the new index against exact search.

    Example: congruence migrate library/photos.lance verify

    For a threshold, queries and queries_old are the same queries in both models, and among is the modality of the rows
    that are searched; without queries, rows are compared with each other.
    """
    with opened(ctx, journal) as step:
        with Bars(as_json) as bars:
            verification = verify(step.migration, bars, heldout=heldout, least_recall=settings.pop("least_recall", 0.9))
        result: dict[str, Any] = verification.to_dict()
        if not as_json:
            print_verification(verification, step.migration)
        if threshold and verification.passed:
            result["thresholds"] = _translate(step.migration, threshold, as_json, **settings)
        step.report("verify", result, [], as_json)
        if not verification.passed:
            raise typer.Exit(1)


def _translate(
    migration: Any,
    values: list[float],
    as_json: bool,
    queries: str | None = None,
    queries_old: str | None = None,
    among: str | None = None,
) -> dict[str, Any]:
    """Translate score thresholds of the old model, print them, and return them as plain data."""
    from congruence.io import read_embeddings

    new, old = (None if spec is None else read_embeddings(spec) for spec in (queries, queries_old))
    fitted = migration.fit_thresholds(new, old, among=among)
    translated = [fitted.translate(value) for value in values]
    if not as_json:
        print_thresholds(translated)
    return {**fitted.describe(), "values": [row.to_dict() for row in translated]}
