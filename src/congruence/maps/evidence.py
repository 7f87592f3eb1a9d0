"""How a map was obtained, in words, from its ``scores_``: the choice among maps, the refinement, the search for
pairs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def choice_rows(choice: Mapping[str, Any]) -> list[list[str]]:
    """Return the chosen map, the evidence, the margin and the alternatives tried, as rows of a table. ``choice``:
    ``congruence.upgrade.choose.Choice.to_dict``, as a fitted map keeps it in ``scores_["choice"]``.
    """
    rows = [["chosen", choice["name"]]]
    if not choice["tried"]:
        return [*rows, ["chosen because", choice["evidence"]]]
    first = choice["tried"][0]["name"]
    lead = ""
    if choice["name"] != first:
        lead = f"; {choice['lead']:+.3f} ± {choice['lead_error']:.3f} against {first}"
    rows.append(["chosen by", f"{_compared(choice, str(choice['n_pairs']))}{lead}"])
    for candidate in choice["tried"]:
        behind = ""
        if candidate["behind"] > 0:
            behind = f", {candidate['behind']:.3f} ± {candidate['error']:.3f} behind the best"
        rows.append([f"  {candidate['name']}", f"{choice['measure']} {candidate['score']:.3f}{behind}"])
    if choice["not_tried"]:
        rows.append(["not tried", choice["not_tried"]])
    if choice["method"] != "orthogonal":
        rows.append(["not for", "rows of another modality: only those of the pairs' modality were compared"])
    return rows


def choice_line(choice: Mapping[str, Any]) -> str:
    """Return in a few words which map was chosen, and why."""
    tried = choice["tried"]
    if not tried:
        return f"{choice['name']}: {choice['evidence']}"
    score = {candidate["name"]: candidate["score"] for candidate in tried}
    best, *others = sorted(tried, key=lambda candidate: candidate["behind"])
    left_out = f"{choice['measure']} {score[choice['name']]:.3f} on {choice['n_pairs']:,} left-out {choice['evidence']}"
    if choice["name"] == best["name"]:
        return f"{choice['name']}, best of {len(tried)}: {left_out}" + "".join(
            f", next {other['score']:.3f}" for other in others[:1]
        )
    return f"{choice['name']}, as good as the best of {len(tried)} ({best['score']:.3f}): {left_out}"


def _compared(choice: Mapping[str, Any], n_pairs: str) -> str:
    times = f", {choice['repeats']} times" if choice["repeats"] > 1 else ""
    return f"{choice['measure']}, cross-validated on {n_pairs} {choice['evidence']} ({choice['folds']} folds{times})"


def refinement_rows(record: Mapping[str, object]) -> list[list[str]]:
    """Return the effect of unpaired rows, measured on left-out pairs, as rows of a table."""
    return [
        [
            "matches of unpaired rows among the pairs",
            f"{record['matches']}, {record.get('kind', 'hard')}" if record["improves"] else "0",
        ],
        [
            f"left-out anchors ranked first of {record['gallery']}, before and after",
            f"{record['recall_before']:.3f} → {record['recall_after']:.3f}",
        ],
        ["p-value of the improvement", f"{record['p_value']:.2g}"],
    ]


def refinement_sentence(record: Mapping[str, object]) -> str:
    """Return a sentence stating whether unpaired rows improved the map, and on what evidence."""
    evidence = (
        f"of {record['n_pairs']} left-out pairs {record['recall_after']:.0%} are ranked first of "
        f"{record['gallery']} with the pools and {record['recall_before']:.0%} without (median rank "
        f"{record['median_rank_after']:g} and {record['median_rank_before']:g}, p = {record['p_value']:.2g})"
    )
    return (
        f"Unpaired rows improve the map: {evidence}."
        if record["improves"]
        else f"Unpaired rows do not help: {evidence}."
    )


def alignment_rows(record: Mapping[str, object]) -> list[list[str]]:
    """Return how well restarts without any known pair agree, as rows of a table."""
    return [
        ["pairs found", str(record["matches"])],
        ["aligned", "yes" if record["found"] else "NO: do not use this map"],
        [
            "left-out rows that two restarts map to the same target",
            f"{record['agreement']:.0%} of {record['left_out']}",
        ],
        ["restarts", str(record["n_restarts"])],
    ]
