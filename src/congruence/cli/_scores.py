"""What is told of a map and of scores: retrieval first, and every cosine with its controls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from congruence.cli._output import FIRST_SECOND, OLD_NEW, number, print_table, say, side_words

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from congruence.evaluation import Score, Scores
    from congruence.evaluation.comparison import Comparison
    from congruence.evaluation.thresholds import Translation
    from congruence.maps import Map


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

_COMPARED = ("metric", "query", "against")  # first columns of tables of scores


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
        print(f"{modality}: {share:.1%} of the old vectors' variance lies in directions that the pairs span.")
    say(*scores.notes)


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
    say(*comparison.notes)


#: What the pairing check says.
_PAIRED = {
    "paired": "yes",
    "not paired": "NO",
    "shifted": "NO, they are out of step",
    "exchanged": "NO, partners are exchanged",
    "cannot tell": "cannot tell",
    "too few": "too few pairs to tell",
}


def map_facts(mapping: Map) -> dict[str, object]:
    """Return what is told of a map when it is fitted, trained and inspected; None for what it does not record."""
    from congruence.maps import HeadsMap
    from congruence.maps.card import alignment_rows, choice_rows, refinement_rows
    from congruence.upgrade.stored import PrefixChoice

    facts, scores, readout = getattr(mapping, "facts_", {}), mapping.scores_, getattr(mapping, "readout_", None)
    alone = [scores.get(f"unpaired_{side}") for side in ("source", "target")]
    pools = [facts.get(f"n_unpaired_{side}") for side in ("source", "target")]
    best = "" if facts.get("best_step") is None else f", best after {facts['best_step']}"
    lost = {side: error for side, error in facts.get("reconstruction_error", {}).items() if side != "rows"}
    pairing, first_of = scores.get("pairing"), f"caption first of {scores.get('test_choice_options', 5)}"
    told = {
        "pairs": facts.get("n_pairs"),
        "paired by": scores.get("paired_by"),
        "directions in which they vary": f"about {scores['distinct']:.0f}" if "distinct" in scores else None,
        **dict(readout.rows() if readout else ()),
        **dict(choice_rows(scores["choice"]) if "choice" in scores else ()),
        "width of the joint space": mapping.d_out if isinstance(mapping, HeadsMap) else None,
        "mapped to": PrefixChoice(**scores["prefix"]).describe() if "prefix" in scores else None,
        "left out": None if None in alone else "{} only in the old model, {} only in the new one".format(*alone),
        "unpaired": None if None in pools else "{} of the first, {} of the second".format(*pools),
        **dict(refinement_rows(scores["refinement"]) if "refinement" in scores else ()),
        **dict(alignment_rows(scores["alignment"]) if "alignment" in scores else ()),
        "wrong captions per pair": facts.get("negatives_each") or None,
        "pairs identical to another": f"{scores['identical_rows']} (groups: {scores['identical_groups']})"
        if "identical_groups" in scores
        else None,
        "directions that the pairs span": f"{facts['rank']} of {facts['directions']}"
        if facts.keys() >= {"rank", "directions"}
        else None,
        "alignment of the pairs": facts.get("alignment"),
        "steps": f"{facts['steps']}{best}" if "steps" in facts else None,
        "note": scores.get("note"),
        **{f"{FIRST_SECOND[side]} variance not reconstructed": number(error) for side, error in lost.items()},
        **_held_out_facts(scores),
        "chosen by folds": scores.get("self_training", {}).get("sentence"),
        "validation pairs": scores.get("validation_pairs"),
        "validation: its teacher's": scores.get("teacher_validation_mean_recall_at_1"),
        "test pairs": scores.get("test_pairs"),
        **_recalls(scores),
        "caption before its wrong ones": scores.get("test_binary_recall"),
        first_of: scores.get("test_choice_recall"),
        "rows look paired": None if pairing is None else _PAIRED.get(pairing["state"]),
        "suspect pairs": None if pairing is None else len(pairing["suspects"]) or None,
    }
    if "test_choice_note" in scores:
        told["caption first of 5"] = f"not measured: {scores['test_choice_note']}"
    return told


def _held_out_facts(scores: dict[str, Any]) -> dict[str, str]:
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


def _recalls(scores: dict[str, Any]) -> dict[str, str]:
    """Return the recalls on the test pairs, in both directions."""
    shown = {}
    for k in (1, 5, 10):
        titles = {"": f"recall at {k}, first → second, and back", "teacher_": f"its teacher's recall at {k}"}
        for prefix, title in titles.items():
            found = [scores.get(f"{prefix}test_{way}@{k}") for way in ("source_to_target", "target_to_source")]
            if None not in found:
                shown[title] = ", ".join(map(number, found))
    return shown


def print_thresholds(translated: Sequence[Translation]) -> None:
    """Print translated thresholds with their rates before and after; print nothing if there are none."""
    if not translated:
        return
    rows = [
        [
            "  unmapped" if row is one.unmapped else number(row.threshold, 4),
            number(row.value, 4),
            *(f"{rate:.2e}" for rate in (row.fpr_old, row.fpr_unchanged, row.fpr)),
            f"{row.fpr_interval[0]:.2e} … {row.fpr_interval[1]:.2e}",
            *map(number, (row.recall_old, row.recall_unchanged, row.recall)),
        ]
        for one in translated
        for row in (one, one.unmapped)
        if row is not None
    ]
    rates = ["FPR, old", "FPR, unchanged", "FPR", "95 %", "recall, old", "recall, unchanged", "recall"]
    print_table("thresholds, cross-validated over queries", ["threshold", "becomes", *rates], rows)
    for one in translated:
        if one.leave:
            say(f"At {number(one.threshold, 4)} unmapped queries find more, at as many false positives: leave them.")
