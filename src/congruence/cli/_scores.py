"""Print scores: retrieval first, and every cosine with its controls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from congruence.cli._output import OLD_NEW, number, print_table, say, side_words

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from congruence.evaluation import Score, Scores
    from congruence.evaluation.comparison import Comparison
    from congruence.evaluation.thresholds import Translation


#: Note printed below every table of cosines.
CONTROLS = (
    "constant: every mapped row at the new model's mean; random rotation: about the correct means. Only the part of a "
    "cosine above both controls is evidence for the map."
)

#: Note printed below a comparison.
COMPARED = (
    "p: exact McNemar test for hits, sign-flip test for other metrics. p, Holm: corrected for all lines. The "
    "result holds for these two maps and similar items, not for maps fitted on other draws of anchors."
)

#: First columns of tables of scores.
_COMPARED = ("metric", "query", "against")


def print_scores(scores: Scores, title: str, words: Mapping[str, str] = OLD_NEW) -> None:
    """Print an evaluation: ranking scores with chance, then cosines and distances with their controls."""
    ranked = [row for row in scores.rows if row.metric not in ("cosine", "distance")]
    distances = [row for row in scores.rows if row.metric in ("cosine", "distance")]
    if ranked:
        rows = [_line(row, words, row.before, row.after, row.chance, row.source, row.target) for row in ranked]
        alone = [f"{side} alone" for side in words.values()]
        print_table(title, [*_COMPARED, "unmapped", "mapped", "chance", *alone, "items"], rows)
    if distances:
        columns = [*_COMPARED, "unmapped", "mapped", "constant", "random rotation", "items"]
        controls = [(row.before, row.after, row.control_constant, row.control_random_rotation) for row in distances]
        rows = [_line(row, words, *values) for row, values in zip(distances, controls, strict=True)]
        print_table("mapped rows and those of the new model", columns, rows)
        print(CONTROLS)
    for modality, share in scores.covered_share.items():
        print(f"{modality}: {share:.1%} of the old vectors' variance lies in directions that the anchors cover.")
    for note in scores.notes:
        say(note)


def _line(row: Score, words: Mapping[str, str], *values: float | None) -> list[str]:
    compared = (side_words(name, words) for name in (row.query, row.against))
    return [row.metric, *compared, *map(number, values), str(row.n)]


def print_comparison(comparison: Comparison, words: Mapping[str, str] = OLD_NEW) -> None:
    """Print paired differences between maps, one table for each map that the first is compared with."""
    for second in dict.fromkeys(row.second_name for row in comparison.rows):
        rows = [row for row in comparison.rows if row.second_name == second]
        print_table(
            f"{rows[0].first_name} against {second}, query by query; {comparison.level:.0%} intervals",
            [*_COMPARED, "first", "second", "difference", "better / worse", "p", "p, Holm", "items"],
            [
                [
                    *(row.metric, *(side_words(name, words) for name in (row.query, row.against))),
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


def held_out_facts(scores: dict[str, Any]) -> dict[str, str]:
    """Return the held-out scores of a fit, each with its reference value."""
    if "held_out_pairs" not in scores:
        return {}

    def with_references(key: str, **references: str) -> str:
        known = [f"{name.replace('_', ' ')} {number(scores[of])}" for name, of in references.items() if of in scores]
        return number(scores[key]) + (f" ({', '.join(known)})" if known else "")

    facts = {"held-out pairs": str(scores["held_out_pairs"])}
    for name, key, chance in (
        ("held-out retrieval at 1", "held_out_retrieval_at_1", "held_out_retrieval_chance"),
        ("held-out retrieval at 1, back", "held_out_retrieval_back_at_1", "held_out_retrieval_chance"),
        ("held-out recall at 10", "held_out_recall_at_10", "held_out_recall_at_10_chance"),
    ):
        if key in scores:
            facts[name] = with_references(key, chance=chance)
    controls = {name: f"held_out_cosine_{name}" for name in ("constant", "random_rotation", "unmapped")}
    return {**facts, "held-out cosine": with_references("held_out_cosine", **controls)}


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
