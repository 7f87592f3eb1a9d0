"""Verify the new vectors, and print the result."""

from __future__ import annotations

from typing import TYPE_CHECKING

from congruence.cli._base import Bars, number, print_facts, say
from congruence.cli.migrate._begin import stored_recall

if TYPE_CHECKING:
    from congruence.upgrade.migrate import Migration, Verification


def verify(migration: Migration, bars: Bars, *, heldout: str | None = None, least_recall: float = 0.9) -> Verification:
    """Verify the new vectors."""
    from congruence.io import read_embeddings

    vectors = None if heldout is None else read_embeddings(heldout)
    bars.begin("verifying", migration.info.rows)
    return migration.verify(heldout=vectors, least_recall=least_recall, callback=bars.advance)


def print_verification(verification: Verification, migration: Migration) -> None:
    """Print the result of a verification, and how queries must be quantized if the new vectors are."""
    recalls = f"{number(verification.index_recall)} (old: {number(verification.index_recall_old)})"
    wrong = f"{verification.wrong} wrong; largest difference {verification.largest_difference:.1e}"
    facts = [
        ["rows", f"{verification.rows_old:,} old, {verification.rows_new:,} new"],
        ["read back", f"{verification.read_back:,}, {wrong}"],
        ["recall of the index against exact search", f"{recalls}, {verification.k} nearest"],
    ]
    if verification.stored_recall is not None:
        facts.append(["recall as stored", stored_recall(verification.stored_recall, "on the sample read back")])
    if verification.clipped:
        facts.append(["outside the ranges", f"{100 * verification.clipped:.2g} % of components, which were clipped"])
    if scores := verification.heldout:
        first, tenth, chance = (
            number(scores[key], k) for key, k in (("recall@1", 3), ("recall@10", 3), ("chance@10", 4))
        )
        facts.append(["held-out vectors", f"recall@1 {first}, @10 {tenth} (chance {chance})"])
    print_facts("verified" if verification.passed else "NOT verified", facts)
    for problem in verification.problems:
        say(problem)
    if rule := migration.mapper.new.describe():
        say(f"Quantize queries in the same way: {rule}")
        if migration.mapper.new.ranges is not None:
            path = migration.folder / "ranges.npy"
            say(f"The ranges, in the form that quantize_embeddings of sentence-transformers expects: {path}")
