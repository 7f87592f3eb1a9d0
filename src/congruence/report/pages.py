"""The HTML pages of a certificate, of a migration, and of the demo."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from congruence._version import __version__
from congruence.errors import MigrationError
from congruence.plotting import draw_progress
from congruence.report.rendering import fill, svg
from congruence.upgrade.certify import ACTIONS, Certificate, name_strategy
from congruence.upgrade.certify.verdict import UNDECIDED, name_measure
from congruence.upgrade.migrate.journal import SEEN, Journal, summarize
from congruence.upgrade.migrate.native import read_stages

#: The level of each verdict, and the next step.
_NEXT = {
    "map": (
        "passes",
        "map the store with the map that was measured (congruence migrate, or congruence transform for files), and "
        "query it with the new model.",
    ),
    "queries": (
        "passes",
        "leave the store as it is, and map each query of the new model with the map back that was measured: congruence "
        "bridge search with the folder back.",
    ),
    "leave": ("passes", "leave the store as it is, and search it with the new model's queries."),
    "progressive": (
        "passes",
        "run congruence migrate with the map that was measured, then reembed with --share {share}.",
    ),
    "re-embed": ("fails", "encode the store again with the new model."),
    "keep": ("", "leave store and queries as they are."),
    UNDECIDED: ("partial", "encode more items with both models, or decide by what the actions cost."),
}


#: The way back from each action.
_SWITCHED = (
    "the old vectors stay beside the new ones until congruence migrate URL drop-old; until then congruence migrate URL "
    "rollback restores them, bit for bit."
)
_ROLLBACK = {
    **dict.fromkeys(("map", "progressive", UNDECIDED), _SWITCHED),
    **dict.fromkeys(("queries", "leave", "keep"), "the store does not change."),
    "re-embed": "keep the old store until search in the new one has proved itself.",
}

#: What costs are told in, and how to get them.
_PAID = {"items to encode": "items", "minutes": "minutes", "price": "price"}
_ASKED = {"items": "--store (or --set rows=NUMBER)", "minutes": "--set encode_rate=ITEMS", "price": "--set price=MONEY"}


def render_certificate(certificate: Certificate, pictures: Mapping[str, str] | None = None) -> str:
    """Return a certificate as one page, of which the first part prints on one sheet; ``pictures``: data URIs of the
    stored items, by id.
    """
    verdict, task = certificate.verdict, certificate.task
    level, following = _NEXT[verdict.action]
    overlap = next((name for name in certificate.strategies if name.startswith("overlap@")), task)
    changed, others = ([one for one in certificate.examples if one["changed"] is kind] for kind in (True, False))
    last = certificate.costs[-1] if certificate.costs else dict.fromkeys(_PAID.values())
    return fill(
        "certificate.html",
        c=certificate,
        level=level,
        next=following.format(share=verdict.share),
        actions=ACTIONS,
        named=name_strategy,
        pictures=pictures or {},
        measure=name_measure(task),
        pairing=certificate.notes[-1] if certificate.pairing["state"] == "cannot tell" else "",
        rollback=_ROLLBACK[verdict.action],
        shown=[*changed[:1], *others, *changed[1:]][:3],
        paid_for={name: kind for name, kind in _PAID.items() if last[kind] is not None},
        missing=", ".join(words for kind, words in _ASKED.items() if last[kind] is None),
        plots={
            "strategies": {
                name: svg(certificate.plot, task=name, title=f"{name} of each strategy")
                for name in dict.fromkeys([task, overlap])
            },
            "curve": svg(certificate.plot_learning_curve, title=f"{task} by number of pairs"),
        },
    )


def read_migration(folder: str | Path) -> dict[str, Any]:
    """Return the summary of a migration, as ``congruence.Migration.summary``, from its journal's folder."""
    journal = Journal.read(Path(folder))
    if journal is None:
        problem = f"{folder} has no journal of a migration."
        raise MigrationError(problem, "Pass the folder that congruence migrate created.")
    return summarize(journal)


def read_reembedding(folder: str | Path) -> dict[str, Any] | None:
    """Return the quality at each stage of re-embedding, from a journal's folder; None if nothing was re-embedded."""
    return read_stages(Path(folder))


def render_migration(summary: Mapping[str, Any], *, reembedding: Mapping[str, Any] | None = None) -> str:
    """Return a migration, from ``congruence.Migration.summary`` or ``read_migration``, as one page.

    ``reembedding`` is from ``read_reembedding``.
    """
    picture = reembedding and reembedding["picture"]
    return fill(
        "migration.html",
        s=summary,
        seen=SEEN[summary["state"]],
        level="partial" if summary["state"] in ("filling", "filled", "rolled back") else "passes",
        reembedding=reembedding,
        picture=picture and svg(draw_progress, picture, title=f"{picture['metric']} by share re-embedded"),
    )


def render_story(story: Mapping[str, Any]) -> str:
    """Return the page of ``congruence demo``: a search of a photo library by the old model, mapped and re-embedded.

    ``story`` has ``query`` (the name searched for) and ``chosen`` (whether by the user); ``rows``, ``names`` and
    ``shown`` (counts of photos, names and first photos); ``places`` of the search, each with ``name``, ``note``,
    ``encoded`` (photos), ``right`` and ``same`` (of those shown: of the class, and those of the new model),
    ``precision`` and ``overlap`` (the same, of all names) and the photos ``found``, each with ``text``, ``picture``
    (data URI) and ``wanted``; ``certificate``: ``headline``, ``reason``, ``pairs``, ``measure`` and ``costs``;
    ``store`` (text) and its ``steps`` (precision by name), ``identical`` and ``same_lists``: whether the rollback
    restored vectors and results; ``models``, ``photos_of_each_model`` and ``licences``.
    """
    return fill("story.html", s={**story, "version": __version__})
