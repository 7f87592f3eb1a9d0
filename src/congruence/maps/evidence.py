"""Describe in words how a map was found, from its ``scores_``: the choice among maps, the refinement, the search for pairs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["alignment_rows", "choice_rows", "choice_sentence", "refinement_rows", "refinement_sentence"]


def choice_rows(choice: Mapping[str, Any]) -> list[list[str]]:
    """Return the chosen map, the evidence, the margin and the alternatives tried, as rows of a table.

    Parameters
    ----------
    choice : mapping
        :meth:`congruence.upgrade.choose.Choice.to_dict`, as a fitted map keeps it in ``scores_["choice"]``.

    Returns
    -------
    list of [str, str]
    """
    rows = [["chosen", choice["name"]]]
    if not choice["tried"]:
        return [*rows, ["chosen because", choice["evidence"]]]
    first = choice["tried"][0]["name"]
    lead = ""
    if choice["name"] != first:
        lead = f"; {choice['lead']:+.3f} ± {choice['lead_error']:.3f} against {first}"
    rows.append(["chosen by", f"{_compared(choice, str(choice['n_pairs']))}{lead}"])
    for one in choice["tried"]:
        other = "".join(f", {name} {value:.3f}" for name, value in one["other"].items())
        behind = f", {one['behind']:.3f} ± {one['error']:.3f} behind the best" if one["behind"] > 0 else ""
        at = f"mean reciprocal rank {one['score']:.3f} (at 1 {one['retrieval_at_1']:.3f}){other}{behind}"
        rows.append([f"  {one['name']}", at])
    if choice["not_tried"]:
        rows.append(["not tried", choice["not_tried"]])
    return rows


def choice_sentence(choice: Mapping[str, Any]) -> str:
    """Return sentences that state which map was chosen, from which candidates, on what evidence, and by what margin.

    Parameters
    ----------
    choice : mapping
        As for :func:`choice_rows`.

    Returns
    -------
    str
    """
    tried = choice["tried"]
    if not tried:
        return f"Chosen: {choice['name']}, without a comparison: {choice['evidence']}."
    by = _compared(choice, f"{choice['n_pairs']:,}")
    said = [f"Chosen: {choice['name']}, among {len(tried)} maps, by {by}."]
    score = "mean reciprocal rank" + (", averaged over the modalities," if tried[0]["other"] else "")
    chosen = {one["name"]: one for one in tried}[choice["name"]]
    best, *after = sorted(tried, key=lambda one: one["behind"])
    if chosen["behind"] > 0:
        said.append(
            f"Its {score} is {chosen['behind']:.3f} ± {chosen['error']:.3f} behind the best, {best['name']}: "
            "of maps within one standard error, or 0.005, of the best the first in the order below is taken."
        )
    elif after:
        said.append(
            f"Its {score} is the best; {after[0]['name']} is next, {after[0]['behind']:.3f} ± {after[0]['error']:.3f} behind."
        )
    if choice["name"] != tried[0]["name"]:
        said.append(f"Against {tried[0]['name']} it is {choice['lead']:+.3f} ± {choice['lead_error']:.3f}.")
    if choice["not_tried"]:
        said.append(f"Not tried: {choice['not_tried']}.")
    if choice["method"] != "orthogonal" and not tried[0]["other"]:
        said.append("Only rows of the modality it was fitted on were compared: do not map another one with it.")
    return " ".join(said)


def _compared(choice: Mapping[str, Any], n_pairs: str) -> str:
    times = f", {choice['repeats']} times" if choice["repeats"] > 1 else ""
    return f"cross-validated retrieval of {n_pairs} {choice['evidence']} ({choice['folds']} folds{times})"


def refinement_rows(found: Mapping[str, object]) -> list[list[str]]:
    """Return the effect of unpaired rows, measured on left-out pairs, as rows of a table.

    Parameters
    ----------
    found : mapping
        :meth:`congruence.maps.refinement.Refinement.to_dict`, as a map keeps it in ``scores_["refinement"]``.

    Returns
    -------
    list of [str, str]
    """
    return [
        ["matches of unpaired rows among the pairs", str(found["matches"] if found["improves"] else 0)],
        [
            f"left-out anchors found first of {found['gallery']}, before and after",
            f"{found['recall_before']:.3f} → {found['recall_after']:.3f}",
        ],
        ["p that unpaired rows improve nothing", f"{found['p_value']:.2g}"],
    ]


def refinement_sentence(found: Mapping[str, object]) -> str:
    """Return a sentence stating whether unpaired rows improved the map, and on what evidence.

    Parameters
    ----------
    found : mapping
        As for :func:`refinement_rows`.

    Returns
    -------
    str
    """
    said = (
        f"of {found['n_pairs']} left-out pairs {found['recall_after']:.0%} are found first among {found['gallery']} with the pools and "
        f"{found['recall_before']:.0%} without (median rank {found['median_rank_after']:g} and {found['median_rank_before']:g}, p = {found['p_value']:.2g})"
    )
    return f"Unpaired rows improve the map: {said}." if found["improves"] else f"Unpaired rows do not help: {said}."


def alignment_rows(found: Mapping[str, object]) -> list[list[str]]:
    """Return how well restarts without any known pair agree, as rows of a table.

    Parameters
    ----------
    found : mapping
        :meth:`congruence.maps.unpaired.Alignment.to_dict`, as a map keeps it in ``scores_["alignment"]``.

    Returns
    -------
    list of [str, str]
    """
    return [
        ["pairs found", str(found["matches"])],
        ["aligned", "yes" if found["found"] else "NO: do not use this map"],
        [
            "left-out rows sent to one target by two restarts",
            f"{found['agreement']:.0%} of {found['left_out']}",
        ],
        ["restarts", str(found["n_restarts"])],
    ]
