"""Compute the data of a report, as plain data, from a map and both models' embeddings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from congruence._utils.validation import check_seed
from congruence._version import __version__
from congruence.datasets import Bundle
from congruence.embeddings import Embeddings
from congruence.errors import InputError, ParameterError
from congruence.evaluation import Comparison, Score, Scores, evaluate
from congruence.maps import HeadsMap, Map, OrthogonalMap
from congruence.maps.evidence import choice_rows
from congruence.report import examples as report_examples
from congruence.report import plots
from congruence.report._base import held_out_ids, map_rows
from congruence.splits import Split

if TYPE_CHECKING:
    from congruence.embeddings import Space

__all__ = ["summarize"]

#: Smallest share of the model's own score that mapped vectors must reach for the levels "passes" and "partial".
PASSES, PARTLY_PASSES = 0.8, 0.4


def summarize(
    mapping: Map,
    bundle: Bundle,
    *,
    held_out: bool | None = None,
    scores: Scores | None = None,
    comparison: Comparison | None = None,
    random_state: int = 0,
    examples: int = 6,
    repeats: int = 5,
) -> dict[str, Any]:
    """Score a map, and return everything that a report shows, as plain data.

    Parameters
    ----------
    mapping : Map
        A fitted map.
    bundle : Bundle
        Embeddings of both models. Parts of the report whose data are missing are left out.
    held_out : bool, optional
        Measure only on items that the map was not fitted on. By default, if the map records them.
    scores : Scores, optional
        From :func:`congruence.evaluate`, if they have already been computed.
    comparison : Comparison, optional
        From :func:`congruence.compare_maps`, to show below the scores.
    random_state : int, default=0
        Determines the examples and the anchors that are drawn.
    examples : int, default=6
        Number of examples of the commuting diagram.
    repeats : int, default=5
        Number of draws of anchors for each point of the few-anchor curve.

    Returns
    -------
    dict
        JSON-able: numbers, text, lists, and thumbnails as data URIs.

    Raises
    ------
    ParameterError
        If the map is a joint-space map.
    InputError
        If ``held_out`` is set for a map fitted on all pairs, or nothing can be measured.
    SpaceMismatchError, IdError, ShapeError
        As in :func:`congruence.evaluate`.
    """
    check_seed(random_state)
    if isinstance(mapping, HeadsMap):
        raise ParameterError(
            f"Got a joint-space map ({mapping.kind}); expected a map into the target's space. "
            "Use summarize_training or evaluate for a joint-space map."
        )
    rule = mapping.scores_.get("holdout")
    if held_out and rule is None:
        raise InputError(
            "Got held_out=True for a map fitted on all pairs; expected held-out ones. Fit with holdout=0.2, for example."
        )
    unseen = bundle
    if rule is not None and held_out is not False:
        unseen = bundle.take(held_out_ids(bundle, Split.from_dict(rule), mapping.source_space_.modality))
    rng = np.random.default_rng(random_state)
    source, target = unseen.side("source"), unseen.side("target")
    if scores is None:
        scores = evaluate(mapping, source, target, labels=_classes(unseen, "image"), prompt_labels=None)
    aligned = {m: map_rows(mapping, m, rows) for m, rows in source.items()}
    return {
        "version": __version__,
        "title": f"{mapping.source_space_.model or 'source model'} → {mapping.target_space_.model or 'target model'}",
        "held_out": unseen is not bundle,
        "verdict": _verdict(scores, unseen is not bundle),
        "facts": _facts(mapping, source, target),
        "scores": [asdict(row) for row in scores.rows],
        "notes": list(scores.notes),
        "comparison": None if comparison is None else comparison.to_dict(),
        "covered": dict(scores.covered_share),
        "histograms": plots.histograms(mapping, source, target, aligned, rng),
        "spectrum": plots.spectrum(mapping),
        "clouds": plots.clouds(source, target, aligned, rng),
        "kernel": plots.kernel(unseen, source, target, rng),
        "few_anchors": plots.few_anchors(mapping, bundle, rule, rng, repeats),
        "commuting": report_examples.commuting(unseen, source, target, aligned, rng, examples),
        "edits": report_examples.edits(mapping, bundle),
        "info": _plain_info(bundle.info),
    }


def _classes(bundle: Bundle, kind: str) -> dict[str, str] | None:
    if kind not in bundle.classes:
        return None
    ids = {i for side in (bundle.source, bundle.target) if kind in side for i in side[kind].ids.tolist()}
    return {i: bundle.classes[kind].get(i, i) for i in ids}


#: What to do, and the beginning of the sentence, for each level of the verdict.
_ACTIONS = {
    "passes": "Mapped vectors can stand in for re-embedded ones in search. Run congruence certify for intervals before you switch.",
    "partial": "Add anchors (congruence anchors chooses them), or re-embed the items that matter most. Run congruence certify to see what more anchors would add.",
    "fails": "Do not search with this map. Check that its anchors are paired (congruence fit reports this), add anchors, or re-embed.",
    "unknown": "Pass images and texts, or the same items in both models, to measure retrieval.",
}
_OPENINGS = {
    "passes": "The map works",
    "partial": "The map works partly",
    "fails": "The map does not work",
    "unknown": "Retrieval could not be measured",
}


def _verdict(scores: Scores, held_out: bool) -> dict[str, object]:
    """Return the level, what to do, and a sentence with retrieval scores; without cosines, which say little without their controls."""
    by_key = {(row.metric, row.query, row.against): row for row in scores.rows}
    main = by_key.get(("zero_shot", "aligned image", "target text")) or by_key.get(
        ("zero_shot", "target image", "aligned text")
    )  # the score that the verdict is based on, if both modalities are given
    where = "held-out items" if held_out else "items, some of which the map may have been fitted on"
    parts = []
    reached, rule = None, ""
    own = None if main is None else (main.target or main.source)
    if main is not None and own:
        reached = main.after / own
        model = "target" if main.target else "source"
        rule = f"accuracy of mapped vectors relative to the {model} model's own"
        kind = "a mapped image finds its text" if main.query == "aligned image" else "an image finds its mapped text"
        parts.append(
            f"{kind} {main.after:.1%} of the time, against {own:.1%} in the {model} model itself{_in_parentheses(main)}"
        )
    retrieval = [row for row in scores.rows if row.metric == "retrieval"]
    if reached is None and retrieval:
        reached, rule = retrieval[0].after, "retrieval of each item's own counterpart"
        for row in retrieval:
            modality = row.query.split(" ")[1]
            parts.append(
                f"a mapped {modality} finds its own counterpart first {row.after:.1%} of the time{_in_parentheses(row)}"
            )
    if reached is None:
        level = "unknown"
    else:
        level = "passes" if reached >= PASSES else "partial" if reached >= PARTLY_PASSES else "fails"
    n = max(row.n for row in scores.rows)
    sentence = f"{_OPENINGS[level]}{': on' if parts else ' on'} {n:,} {where}{', ' if parts else ''}{'; '.join(parts)}."
    return {"level": level, "action": _ACTIONS[level], "sentence": sentence, "reached": reached, "rule": rule}


def _in_parentheses(row: Score) -> str:
    references = [
        f"{value:.1%} {name}"
        for value, name in ((row.before, "without the map"), (row.chance, "by chance"))
        if value is not None
    ]
    return f" ({', '.join(references)})" if references else ""


def _facts(mapping: Map, source: Mapping[str, Embeddings], target: Mapping[str, Embeddings]) -> list[list[str]]:
    def describe(side: Mapping[str, Embeddings], space: Space) -> str:
        dim = next((rows.dim for rows in side.values()), space.dim)
        return f"{space.model or 'unnamed'}, {dim}-d"

    facts = [
        ["Source", describe(source, mapping.source_space_)],
        ["Target", describe(target, mapping.target_space_)],
        ["Map", type(mapping).__name__],
    ]
    fitted = mapping.source_space_.modality
    anchors = mapping.scores_.get("n_pairs")
    if anchors:
        facts.append(["Fitted on", f"{anchors:,} pairs" + (f" of {fitted}s" if fitted else "")])
    if "choice" in mapping.scores_:
        evidence = [row for row in choice_rows(mapping.scores_["choice"]) if not row[0].startswith(" ")]
        facts += [[name.capitalize(), value] for name, value in evidence]
    if isinstance(mapping, OrthogonalMap):
        modalities = ", ".join(mapping.modality_means_) or fitted or "as fitted"
        facts += [["Means known for", modalities], ["Directions kept", f"{mapping.rank_} of {len(mapping.gains_)}"]]
    return facts


def _plain_info(info: Mapping[str, Any]) -> dict[str, object]:
    return {
        "title": str(info.get("title", "")),
        "licences": [str(line) for line in info.get("licences", [])],
    }
