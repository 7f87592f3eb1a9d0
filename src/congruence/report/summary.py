"""From a map and both models' embeddings to the plain data a report is drawn from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from congruence._version import __version__
from congruence.datasets import Bundle
from congruence.embeddings import Embeddings
from congruence.errors import InputError, ParameterError
from congruence.evaluation import Scores, evaluate
from congruence.maps import Map, OrthogonalMap, TwoSidedMap
from congruence.report import examples as pictures
from congruence.report import plots
from congruence.report._base import carry, held_out_ids
from congruence.splits import Split

#: A carried query reaches this share of what the target model reaches by itself.
CARRIES, PARTLY = 0.8, 0.4


def summarize(
    mapping: Map,
    bundle: Bundle,
    *,
    held_out: bool | None = None,
    scores: Scores | None = None,
    seed: int = 0,
    examples: int = 6,
    repeats: int = 5,
) -> dict[str, Any]:
    """Measure a map and gather everything a report shows, as plain data.

    Parameters
    ----------
    mapping : Map
        Fitted.
    bundle : Bundle
        Embeddings by both models; whatever is missing is left out of the report.
    held_out : bool, optional
        Measure only on classes the map was not fitted on. By default, if it knows them.
    scores : Scores, optional
        From :func:`congruence.evaluation`, if they were computed already.
    seed : int, default=0
        Chooses examples and anchors.
    examples : int, default=6
        Pictures shown in the commuting diagram.
    repeats : int, default=5
        Draws of anchors for each point of the few-anchor curve.

    Returns
    -------
    dict
        JSON-able: numbers, text, lists, and thumbnails as data URIs.

    Raises
    ------
    ParameterError
        The map is two-sided.
    InputError
        ``held_out`` for a map fitted on all pairs, or nothing can be measured.
    SpaceMismatchError, IdError, ShapeError
        As :func:`congruence.evaluation`.
    """
    if isinstance(mapping, TwoSidedMap):
        raise ParameterError(
            f"Got a two-sided map ({mapping.kind}); expected one that leads into the target's space, which is what a report "
            "draws. Use summarize_training, or evaluate, for such a map."
        )
    rule = mapping.scores_.get("holdout")
    if held_out and rule is None:
        raise InputError(
            "Got held_out=True for a map fitted on all pairs; expected held-out ones. Fit with holdout=0.2, for example."
        )
    unseen = bundle
    if rule is not None and held_out is not False:
        unseen = bundle.take(held_out_ids(bundle, Split.from_dict(rule), mapping.source_space_.modality))
    rng = np.random.default_rng(seed)
    source, target = unseen.side("source"), unseen.side("target")
    if scores is None:
        scores = evaluate(mapping, source, target, labels=_classes(unseen, "image"), prompt_labels=None)
    aligned = {m: carry(mapping, m, rows) for m, rows in source.items()}
    summary = {
        "version": __version__,
        "title": f"{mapping.source_space_.model or 'source model'} → {mapping.target_space_.model or 'target model'}",
        "held_out": unseen is not bundle,
        "verdict": _verdict(scores, unseen is not bundle),
        "facts": _facts(mapping, source, target),
        "scores": [asdict(row) for row in scores.rows],
        "notes": list(scores.notes),
        "probed": dict(scores.probed_energy),
        "histograms": plots.histograms(source, target, aligned, rng),
        "spectrum": plots.spectrum(mapping),
        "clouds": plots.clouds(source, target, aligned, rng),
        "kernel": plots.kernel(unseen, source, target, rng),
        "few_anchors": plots.few_anchors(mapping, bundle, rule, rng, repeats),
        "commuting": pictures.commuting(unseen, source, target, aligned, rng, examples),
        "edits": pictures.edits(mapping, bundle),
        "info": _plain_info(bundle.info),
    }
    return summary


def _classes(bundle: Bundle, kind: str) -> dict[str, str] | None:
    if kind not in bundle.classes:
        return None
    ids = {i for side in (bundle.source, bundle.target) if kind in side for i in side[kind].ids.tolist()}
    return {i: bundle.classes[kind].get(i, i) for i in ids}


def _verdict(scores: Scores, held_out: bool) -> dict[str, Any]:
    """Say in one sentence what the numbers say."""
    by_key = {(row.metric, row.query, row.against): row for row in scores.rows}
    main = by_key.get(("zero_shot", "aligned image", "target text")) or by_key.get(
        ("zero_shot", "target image", "aligned text")
    )
    cosines = [row for row in scores.rows if row.metric == "cosine"]
    where = "held-out items" if held_out else "items, some of which the map may have been fitted on"
    parts = []
    reached, rule = None, ""
    own = None if main is None else (main.target or main.source)
    if main is not None and own:
        reached = main.after / own
        model = "target" if main.target else "source"
        rule = f"accuracy of carried vectors relative to the {model} model's own"
        kind = "a carried image finds its text" if main.query == "aligned image" else "an image finds its carried text"
        unmapped = "" if main.before is None else f" and {main.before:.1%} without the map"
        parts.append(f"{kind} {main.after:.1%} of the time, against {own:.1%} in the {model} model itself{unmapped}")
    else:
        retrieval = [row for row in scores.rows if row.metric == "retrieval"]
        if retrieval:
            reached = retrieval[0].after
            rule = "retrieval of each item's own counterpart"
            parts.append(f"a carried vector finds its own counterpart first {retrieval[0].after:.1%} of the time")
    for row in cosines:
        modality = row.query.split(" ")[1]
        change = _cosine(row.after) if row.before is None else f"{_cosine(row.before)} → {_cosine(row.after)}"
        parts.append(f"{modality}–{modality} cosine {change}")
    if reached is None:
        level, opening = "unknown", "The vectors were carried"
    elif reached >= CARRIES:
        level, opening = "carries", "The map carries"
    elif reached >= PARTLY:
        level, opening = "partly", "The map carries part of the way"
    else:
        level, opening = "fails", "The map does not carry"
    n = max(row.n for row in scores.rows)
    sentence = f"{opening}: on {n:,} {where}, {'; '.join(parts)}."
    return {"level": level, "sentence": sentence, "reached": reached, "rule": rule}


def _cosine(value: float) -> str:
    return f"{round(value, 2) + 0.0:.2f}".replace("-", "−")  # adding zero turns −0.0 into 0.0


def _facts(mapping: Map, source: Mapping[str, Embeddings], target: Mapping[str, Embeddings]) -> list[list[str]]:
    def width(side: Mapping[str, Embeddings], space: Any) -> str:
        dim = next((rows.dim for rows in side.values()), space.dim)
        return f"{space.model or 'unnamed'}, {dim}-d"

    facts = [
        ["Source", width(source, mapping.source_space_)],
        ["Target", width(target, mapping.target_space_)],
        ["Map", type(mapping).__name__],
    ]
    fitted = mapping.source_space_.modality
    anchors = mapping.scores_.get("n_pairs")
    if anchors:
        facts.append(["Fitted on", f"{anchors:,} pairs" + (f" of {fitted}s" if fitted else "")])
    if isinstance(mapping, OrthogonalMap):
        carried = ", ".join(mapping.modality_means_) or fitted or "as fitted"
        facts += [["Means known for", carried], ["Directions kept", f"{mapping.rank_} of {len(mapping.gains_)}"]]
    return facts


def _plain_info(info: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "title": str(info.get("title", "")),
        "licences": [str(line) for line in info.get("licences", [])],
    }
