"""Print scores: retrieval first, and every cosine with its controls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from congruence.cli._base import number, print_table, say

if TYPE_CHECKING:
    from collections.abc import Sequence

    from congruence.evaluation import Score, Scores
    from congruence.evaluation.comparison import Comparison
    from congruence.evaluation.thresholds import Translation


#: Note printed below every table of cosines.
CONTROLS = (
    "constant: every mapped row at the target's mean; random rotation: about the correct means. Only the part of a "
    "cosine above both controls is evidence for the map."
)

#: Note printed below a comparison.
COMPARED = (
    "p: exact McNemar test for hits, sign-flip test for other metrics. p, Holm: corrected for all lines. The "
    "result holds for these two maps and similar items, not for maps fitted on other draws of anchors."
)

#: First columns of tables of scores.
_COMPARED = ("metric", "query", "against")


def print_scores(scores: Scores, title: str) -> None:
    """Print an evaluation: ranking scores with chance, then cosines and distances with their controls."""
    ranked = [row for row in scores.rows if row.metric not in ("cosine", "distance")]
    distances = [row for row in scores.rows if row.metric in ("cosine", "distance")]
    if ranked:
        rows = [_line(row, row.before, row.after, row.chance, row.source, row.target) for row in ranked]
        print_table(title, [*_COMPARED, "unmapped", "mapped", "chance", "source alone", "target alone", "items"], rows)
    if distances:
        rows = [
            _line(row, row.before, row.after, row.control_constant, row.control_random_rotation) for row in distances
        ]
        columns = [*_COMPARED, "unmapped", "mapped", "constant", "random rotation", "items"]
        print_table("mapped rows and those of the target", columns, rows)
        print(CONTROLS)
    for modality, share in scores.covered_share.items():
        print(f"{modality}: {share:.1%} of the source vectors' variance lies in directions that the anchors cover.")
    for note in scores.notes:
        say(note)


def _line(row: Score, *values: float | None) -> list[str]:
    return [row.metric, row.query, row.against, *map(number, values), str(row.n)]


def print_comparison(comparison: Comparison) -> None:
    """Print paired differences between maps, one table for each map that the first is compared with."""
    for second in dict.fromkeys(row.second_name for row in comparison.rows):
        rows = [row for row in comparison.rows if row.second_name == second]
        print_table(
            f"{rows[0].first_name} against {second}, query by query; {comparison.level:.0%} intervals",
            [*_COMPARED, "first", "second", "difference", "better / worse", "p", "p, Holm", "items"],
            [
                [
                    *(row.metric, row.query, row.against),
                    *map(number, (row.first, row.second)),
                    f"{row.difference:+.3f} ({row.low:+.3f} … {row.high:+.3f})",
                    f"{row.wins} / {row.losses}",
                    *(f"{p:.3f}" if p >= 0.001 else "< 0.001" for p in (row.p_value, row.adjusted_p_value)),
                    str(row.n),
                ]
                for row in rows
            ],
        )
    print(COMPARED)
    for note in comparison.notes:
        say(note)


def held_out_rows(scores: dict[str, Any]) -> list[list[str]]:
    """Return the held-out scores of a fit as rows of a table, each with its reference value."""
    if "held_out_pairs" not in scores:
        return []
    names = {
        "held-out retrieval at 1": ("retrieval_at_1", "retrieval_chance"),
        "held-out retrieval at 1, back": ("retrieval_back_at_1", "retrieval_chance"),
        "held-out recall at 10": ("recall_at_10", "recall_at_10_chance"),
    }
    rows = [["held-out pairs", str(scores["held_out_pairs"])]]
    for name, (key, chance) in names.items():
        if f"held_out_{key}" in scores:
            reference = _in_parentheses(scores, {"chance": f"held_out_{chance}"})
            rows.append([name, number(scores[f"held_out_{key}"]) + reference])
    controls = {
        name: f"held_out_cosine_{name.replace(' ', '_')}" for name in ("constant", "random rotation", "unmapped")
    }
    rows.append(["held-out cosine", number(scores["held_out_cosine"]) + _in_parentheses(scores, controls)])
    return rows


def _in_parentheses(scores: dict[str, Any], keys: dict[str, str]) -> str:
    """Return the known scores as `` (name value, …)``; ``keys`` are their keys by name."""
    known = [f"{name} {number(scores[key])}" for name, key in keys.items() if key in scores]
    return f" ({', '.join(known)})" if known else ""


def print_thresholds(translated: Sequence[Translation]) -> None:
    """Print translated thresholds with their rates before and after; print nothing if there are none."""
    if not translated:
        return
    rows = [
        [
            number(row.threshold, 4),
            number(row.value, 4),
            *(f"{rate:.2e}" for rate in (row.fpr_old, row.fpr_unchanged, row.fpr)),
            f"{row.fpr_interval[0]:.2e} … {row.fpr_interval[1]:.2e}",
            *map(number, (row.recall_old, row.recall_unchanged, row.recall)),
        ]
        for row in translated
    ]
    rates = ["FPR, old", "FPR, unchanged", "FPR", "95 %", "recall, old", "recall, unchanged", "recall"]
    print_table("thresholds, cross-validated over queries", ["threshold", "becomes", *rates], rows)
