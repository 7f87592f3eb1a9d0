"""``congruence migrate URL verify``: check the new vectors, and translate score thresholds."""

from __future__ import annotations

from typing import Any

import typer

from congruence.cli._base import Bars
from congruence.cli._options import Json, option
from congruence.cli._scores import print_thresholds
from congruence.cli.migrate._step import Journal, opened, settings
from congruence.cli.migrate._verify import print_verification, verify


def command(
    ctx: typer.Context,
    heldout: str | None = option(None, "Rows in the new model, with their ids, that the map was not fitted on."),
    threshold: list[float] | None = option(
        None, "Score threshold of the old model to translate to the new one; may be repeated."
    ),
    entries: list[str] | None = option(
        None,
        "NAME=VALUE, may be repeated: least_recall (of the index, .9). For thresholds: queries and queries_old (the "
        "same queries in both models; without them rows are compared with each other), among (a modality).",
        "--set",
    ),
    journal: Journal = None,
    as_json: Json = False,
) -> None:
    """Check counts, a sample read back, and the new index against exact search.

    Example: congruence migrate library/photos.lance verify
    """
    given = settings(entries, {"least_recall": float, "queries": str, "queries_old": str, "among": str})
    with opened(ctx, journal) as step:
        with Bars(as_json) as bars:
            verification = verify(step.migration, bars, heldout=heldout, least_recall=given.pop("least_recall", None))
        result: dict[str, Any] = verification.to_dict()
        if not as_json:
            print_verification(verification, step.migration)
        if threshold and verification.passed:
            result["thresholds"] = _translate(step.migration, threshold, as_json, **given)
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
