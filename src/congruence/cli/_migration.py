"""Print a migration's plan, verification and state as tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from congruence.upgrade.migrate import Migration, Plan, Verification

__all__ = ["print_plan", "print_quantization", "print_status", "print_verification"]


def print_quantization(migration: Migration) -> None:
    """Print how queries must be quantized to search the new vectors, if these are quantized."""
    from congruence.cli._base import say

    if rule := migration.mapper.new.describe():
        say(f"Quantize queries in the same way: {rule}")
        if migration.mapper.new.ranges is not None:
            say(
                "The ranges, in the form that quantize_embeddings of sentence-transformers expects: "
                f"{migration.folder / 'ranges.npy'}"
            )


def print_plan(plan: Plan) -> None:
    """Print what a run would do and cost, and the results of the checks."""
    from congruence._utils.memory import say_size
    from congruence.cli._base import number, print_table, say

    if plan.verdict:
        say(f"{plan.verdict['headline']}: {plan.verdict['reason']}")
    facts = [
        ["rows", f"{plan.rows:,}" + (f" ({plan.rows_without:,} more without a vector)" if plan.rows_without else "")],
        [
            "vectors",
            f"{plan.dim_old} to {plan.dim_new} components, "
            + (plan.element_type if plan.element_type == plan.old_type else f"{plan.old_type} to {plan.element_type}"),
        ],
        [
            "written",
            f"to a separate {plan.container}; the switch takes {'one step' if plan.atomic_switch else 'several steps'}",
        ],
        [
            "size",
            say_size(plan.bytes_new) + (f", and {say_size(plan.free_bytes)} free" if plan.free_bytes else ""),
        ],
        ["index", plan.index or "none"],
        ["to read and map", f"{plan.rows_per_second:,.0f} rows/s, on a sample"],
        [
            "to write",
            "not measured: this database has no scratch table"
            if plan.written_per_second is None
            else f"{plan.written_per_second:,.0f} rows/s, a sample to a scratch table",
        ],
        [
            "time",
            f"{number(plan.minutes, 2)} min "
            + (
                "to read and map, without writing and the index"
                if plan.written_per_second is None
                else "for both, which overlap, without the index"
            ),
        ],
    ]
    if plan.stored_as:
        facts.append(["stored as", plan.stored_as])
    if plan.element_type != "float32":
        facts.append([f"recall as {plan.element_type}", _stored_recall(plan.stored_recall, "on a sample")])
    if plan.old_type in ("int8", "binary"):
        facts.append(
            [
                "recall already lost",
                f"unknown, since the vectors before their quantization to {plan.old_type} are not available",
            ]
        )
    if plan.encode_minutes is not None:
        facts.append(["time to re-embed instead", f"{number(plan.encode_minutes, 1)} min"])
    if plan.encode_cost is not None:
        facts.append(["price of re-embedding", f"{plan.encode_cost:,.2f}"])
    print_table(f"{plan.place} ({plan.kind})", ["", ""], facts)
    marks = {"good": "ok", "bad": "NO", "unknown": "?"}
    print_table(
        "Checks", ["", "", ""], [[line["check"], marks[line["outcome"]], line["detail"]] for line in plan.checks]
    )


def _stored_recall(recall: float | None, where: str) -> str:
    """Describe how much search quality remains when vectors are stored in fewer bits."""
    if recall is None:
        return "not measured: too few rows"
    return f"{recall:.3f} of the 10 nearest rows in float32 are among the 10 nearest as stored, {where}"


def print_verification(verification: Verification) -> None:
    """Print the result of a verification."""
    from congruence.cli._base import number, print_table, say

    facts = [
        ["rows", f"{verification.rows_old:,} old, {verification.rows_new:,} new"],
        [
            "read back",
            f"{verification.read_back:,}, {verification.wrong} wrong; largest difference "
            f"{verification.largest_difference:.1e}",
        ],
        [
            "recall of the index against exact search",
            f"{number(verification.index_recall)} (old: {number(verification.index_recall_old)}), "
            f"{verification.k} nearest",
        ],
    ]
    if verification.stored_recall is not None:
        facts.append(["recall as stored", _stored_recall(verification.stored_recall, "on the sample read back")])
    if verification.clipped:
        facts.append(["outside the ranges", f"{100 * verification.clipped:.2g} % of components, which were clipped"])
    if scores := verification.heldout:
        facts.append(
            [
                "held-out vectors",
                f"recall@1 {number(scores['recall@1'])}, @10 {number(scores['recall@10'])} (chance "
                f"{number(scores['chance@10'], 4)})",
            ]
        )
    print_table("verified" if verification.passed else "NOT verified", ["", ""], facts)
    for problem in verification.problems:
        say(problem)


def print_status(status: dict[str, Any]) -> None:
    """Print the state of a migration, and its events."""
    from congruence.cli._base import print_table, say

    facts = [["database", status["stage"]], ["journal", status.get("state", "none")]]
    if "rows" in status:
        facts.append(["rows", f"{status['rows_mapped']:,} of {status['rows']:,} mapped"])
    if "reembedded" in status:
        facts.append(["re-embedded", f"{status['reembedded']:,} rows"])
    print_table(status["place"], ["", ""], facts)
    for event in status.get("events", []):
        say(f"{event['at'].replace('T', ' ')}  {event['what']}")
