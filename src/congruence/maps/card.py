"""What is shown of a fitted map: how it was obtained, its display, and the model card that is saved with it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, ClassVar, Protocol

from congruence._utils.display import as_markdown, svg_bars, visible
from congruence.embeddings import Space
from congruence.persist import is_number

#: First lines of the example on a card.
LOADING = ("", "```python", "import congruence", "", 'mapping = congruence.load("path/to/this/folder")')

#: Meanings of facts and scores whose names do not explain themselves.
_MEANING = {
    "n_pairs": "pairs in the fit",
    "rank": "directions that the pairs span",
    "directions": "number of directions: the width of the narrower model",
    "mean_directions": "directions added because the means of both models correspond",
    "mean_gain": "average length kept over all directions; 1 if none is shrunk",
    "is_isometry": "distances are preserved",
    "is_projection": "the new space is narrower, so directions are lost",
    "alignment": "Procrustes correlation of the pairs the map was fitted on",
    "cross_validated_alignment": "mean cosine of held-out pairs, both sides centered, by maps of the other pairs",
    "modality": "modality of vectors if none is given",
    "center": "the means of both models are mapped to each other",
    "shrinkage_used": "how directions with weak evidence are shrunk",
    "ridge_used": "penalty added to the sums of squares",
    "random_state": "seed",
    "unpaired_source": "ids that only the old model has, left out",
    "unpaired_target": "ids that only the new model has, left out",
    "zero_rows_left_out": "pairs with a row of zeros, left out",
    "identical_rows": "pairs that share a vector with another pair; they are held out together or not at all",
    "identical_groups": "groups of these pairs",
}

#: A name without Markdown markup or links, such as ``test_mean@1``.
_PLAIN = re.compile("[A-Za-z](?:[A-Za-z0-9_@]*[A-Za-z0-9])?")

#: Errors of a malformed record of a fit. Loading does not check records, since they do not affect mapped vectors.
_MALFORMED = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


class _Fitted(Protocol):
    """What is shown of a fitted map."""

    kind: ClassVar[str]
    sides: ClassVar[tuple[str, ...]]
    source_space_: Space
    target_space_: Space
    facts_: dict[str, Any]
    scores_: dict[str, Any]

    @property
    def n_pairs_(self) -> int: ...
    @property
    def d_out(self) -> int: ...
    def get_params(self, deep: bool = True) -> dict[str, Any]: ...


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
    times = f", {choice['repeats']} times" if choice["repeats"] > 1 else ""
    folds = f"{choice['n_pairs']} {choice['evidence']} ({choice['folds']} folds{times})"
    rows.append(["chosen by", f"{choice['measure']}, cross-validated on {folds}{lead}"])
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
    name, tried = choice["name"], choice["tried"]
    if not tried:
        return f"{name}: {choice['evidence']}"
    score = {candidate["name"]: candidate["score"] for candidate in tried}
    best, *others = sorted(tried, key=lambda candidate: candidate["behind"])
    left_out = f"{choice['measure']} {score[name]:.3f} on {choice['n_pairs']:,} left-out {choice['evidence']}"
    if name != best["name"]:
        return f"{name}, as good as the best of {len(tried)} ({best['score']:.3f}): {left_out}"
    return f"{name}, best of {len(tried)}: {left_out}" + (f", next {others[0]['score']:.3f}" if others else "")


def refinement_rows(record: Mapping[str, object]) -> list[list[str]]:
    """Return the effect of unpaired rows, measured on left-out pairs, as rows of a table."""
    change = f"{record['recall_before']:.3f} → {record['recall_after']:.3f}"
    used = f"{record['matches']}, {record.get('kind', 'hard')}" if record["improves"] else "0"
    return [
        ["matches of unpaired rows among the pairs", used],
        [f"left-out pairs ranked first of {record['gallery']}, before and after", change],
        ["p-value of the improvement", f"{record['p_value']:.2g}"],
    ]


def refinement_sentence(record: Mapping[str, object]) -> str:
    """Return a sentence stating whether unpaired rows improved the map, and on what evidence."""
    effect = "improve the map" if record["improves"] else "do not help"
    return (
        f"Unpaired rows {effect}: of {record['n_pairs']} left-out pairs {record['recall_after']:.0%} are ranked first "
        f"of {record['gallery']} with the pools and {record['recall_before']:.0%} without (median rank "
        f"{record['median_rank_after']:g} and {record['median_rank_before']:g}, p = {record['p_value']:.2g})."
    )


def alignment_rows(record: Mapping[str, object]) -> list[list[str]]:
    """Return how well restarts without any known pair agree, as rows of a table."""
    return [
        ["pairs found", str(record["matches"])],
        ["aligned", "yes" if record["found"] else "NO: do not use this map"],
        ["left-out rows that two restarts map to the same row", f"{record['agreement']:.0%} of {record['left_out']}"],
        ["restarts", str(record["n_restarts"])],
    ]


def shown(mapping: _Fitted) -> dict[str, str]:
    """Return the entries of a fitted map's display: its models, its pairs and its held-out scores."""
    facts, scores, n_pairs = mapping.facts_, mapping.scores_, mapping.n_pairs_
    # Not old and new: a bridge's map leads from the new model to the old one.
    names = ("from", "to") if mapping.sides == ("source",) else ("first model", "second model")
    entries = dict(zip(names, map(str, (mapping.source_space_, mapping.target_space_)), strict=True))
    if isinstance(choice := scores.get("choice"), Mapping):
        entries["chosen"] = choice_line(choice)
    pairs = f"{n_pairs:,} pairs" if n_pairs else "an unknown number of pairs"
    if "paired_by" in scores:
        pairs += f" by {scores['paired_by']}"
    if "distinct" in scores:
        pairs += f", which vary in about {scores['distinct']:,.0f} directions"
    for name in ("refinement", "alignment"):
        record = scores.get(name)
        if isinstance(record, dict):
            matches, known = record.get("matches"), record.get("n_pairs", 0)
            # Later pairs are no matches, so the record is of this fit only if the numbers agree.
            if isinstance(matches, int) and isinstance(known, int) and n_pairs == known + matches:
                pairs += f", {matches:,} of them matches of unpaired rows"
    if "is_isometry" in facts:
        form = "isometry" if facts["is_isometry"] else f"average length kept {facts['mean_gain']:.2f}"
        form += ", a projection" if facts["is_projection"] else ""
        pairs += f", {facts['rank']} of {facts['directions']} directions spanned, {form}"
    entries["fitted on"] = pairs
    if (readout := getattr(mapping, "readout_", None)) is not None:
        entries |= dict(readout.rows())
        if readout.store == "back" and "mean_gain" in facts:
            whole = facts["mean_gain"] > 1 - 1e-9
            lost = mapping.d_out - (facts["directions"] if whole else facts["rank"] + facts["mean_directions"])
            entries["lost"] = f"{lost} of {mapping.d_out} directions, and the part along the means"
    # No cosine: it means little without its controls, which are in ``scores_``.
    labels = {
        "held_out_retrieval_at_1": "retrieval@1",
        "held_out_retrieval_back_at_1": "second to first @1",
        "held_out_recall_at_10": "recall@10",
    }
    heldout = [f"{label} {scores[key]:.3f}" for key, label in labels.items() if scores.get(key) is not None]
    entries["held out"] = "nothing measured: congruence.fit(…, holdout=0.1) holds pairs out and scores them"
    if heldout:
        known = scores.get("held_out_pairs")
        entries["held out"] = ("" if known is None else f"{known:,} pairs: ") + ", ".join(heldout)
    return entries


def picture(mapping: _Fitted) -> str:
    """Return the scores of the maps among which this one was chosen, or the share of directions covered, as SVG."""
    with suppress(AttributeError, KeyError, TypeError, ValueError):  # no choice, or another program's record
        choice = mapping.scores_["choice"]
        if tried := {candidate["name"]: float(candidate["score"]) for candidate in choice["tried"]}:
            return svg_bars(f"Left-out pairs by map: {choice['measure']}", tried, choice["name"])
    facts, covered = mapping.facts_, "directions spanned by the pairs"
    if "directions" not in facts:
        return ""
    return svg_bars("Share of directions", {covered: facts["rank"] / facts["directions"]}, covered)


def write_card(mapping: _Fitted, title: str, text: list[str]) -> str:
    """Return a map's card in Markdown, everything from files escaped; ``text`` says what it does."""
    facts, scores = {**mapping.facts_, **mapping.get_params(deep=False)}, mapping.scores_
    refined, aligned, kind = scores.get("refinement"), scores.get("alignment"), type(mapping).__name__
    if isinstance(refined, Mapping) and refined.get("improves") is True:
        kind = f"{kind} refined with unpaired rows"
    elif isinstance(aligned, Mapping):
        kind = f"{kind} of rows without known pairs"
    name = f"{mapping.source_space_.model or 'old model'} → {mapping.target_space_.model or 'new model'}"
    lines = [*front_matter(name, (mapping.kind,), scores), f"# {kind}: {title}", "", *text]
    sections: list[tuple[Callable[[Any], list[str]], Any]] = [
        (_display, mapping),
        (_means, facts),
        (_pairing, scores.get("pairing")),
        (lambda one: ["## Choice of the map", "", *card_table([["", ""], *choice_rows(one)])], scores.get("choice")),
        (_refinement, refined),
        (lambda one: ["## Alignment without known pairs", "", *card_table([["", ""], *alignment_rows(one)])], aligned),
    ]
    for write, record in sections:
        if record is not None:
            try:
                lines += ["", *write(record)]
            except _MALFORMED:
                lines += ["", "This record is not of the form that congruence writes."]
    # Lists and tables are in config.json.
    told = {name: value for name, value in facts.items() if value is None or isinstance(value, (bool, int, float, str))}
    lines += ["", "## Facts", "", *_meanings(["fact or parameter", "value", "meaning"], told)]
    numbers = {key: value for key, value in scores.items() if isinstance(value, (int, float)) and key != "n_pairs"}
    if numbers:
        lines += ["", *_meanings(["score at fit", "value", "meaning"], numbers)]
    if "held_out_cosine_constant" in numbers:
        lines += [
            "",
            "Compare the cosine with its controls: `constant` puts every mapped row at the new model's mean, "
            "`random_rotation` is a random rotation about the right means. Only the part above both is due to the "
            "map.",
        ]
    return "\n".join(lines) + "\n"


def _meanings(header: list[str], values: Mapping[str, object]) -> list[str]:
    """Return the lines of a table of values and their meanings."""
    texts = {key: f"{value:.4g}" if isinstance(value, float) else str(value) for key, value in values.items()}
    return card_table([header, *([key, text, _MEANING.get(key, "")] for key, text in texts.items())])


def _display(mapping: _Fitted) -> list[str]:
    """Return lines on the pairs that the map was fitted on, and on its held-out scores."""
    entries = shown(mapping)
    return [f"Fitted on: {as_markdown(entries['fitted on'])}.  ", f"Held out: {as_markdown(entries['held out'])}."]


def _means(facts: Mapping[str, Any]) -> list[str]:
    """Return a line on the modalities for which a rotation has means, and on the origin of these means."""
    known, mean_rows, described = facts.get("modalities") or (), facts.get("mean_rows", {}), []
    for name in known:
        count, target = mean_rows.get(name, (None, None))
        origin = "from the pairs" if name not in mean_rows else f"of {count:,} old rows" if count else "given"
        guessed = ", the new one estimated from the old one" if target == 0 else ""
        described.append(f"{name} ({origin}{guessed})")
    line = f"Modalities with means: {', '.join(described)}."
    if len(known) > 1 and facts.get("modality"):
        line += f" The default modality is {facts['modality']}."
    elif facts.get("center", True):
        line += " Vectors of another modality need their own means first: see recenter."
    return [as_markdown(line)] if known else []


def _pairing(report: Mapping[str, Any]) -> list[str]:
    """Return a line on whether the pairs look paired, with the result for random pairs as a control."""
    verdict = {
        "paired": "the pairs belong together",
        "not paired": "THE PAIRS DO NOT LOOK PAIRED",
        "shifted": "THE TWO SIDES ARE OUT OF STEP",
        "exchanged": "MANY PARTNERS ARE EXCHANGED",
        "too few": "too few pairs to tell whether they belong together",
    }.get(report["state"], "cannot tell whether the pairs belong together")
    if report["state"] != "too few":
        cosines = f"{report['alignment']:.3f}, of pairs drawn at random {report['null_mean']:.3f}"
        verdict += f" (mean cosine of pairs left out {cosines}, p = {report['p_value']:.2g})"
        verdict += f"; {len(report['suspects'])} single pairs look wrong" if report["suspects"] else ""
    return [as_markdown(f"Pairing: {verdict}.")]


def _refinement(record: Mapping[str, Any]) -> list[str]:
    """Return a section on whether unpaired rows are part of the map, with the evidence."""
    sizes = " and ".join(f"{size:,}" for size in record["pool_sizes"])
    used = f"and {record['matches']:,} matches" if record["improves"] else "alone"
    fitted = f"The map is fitted on {record['n_pairs']:,} pairs {used}, with pools of {sizes} unpaired rows."
    return ["## Refinement", "", as_markdown(f"{refinement_sentence(record)} {fitted}")]


def card_table(rows: list[list[str]]) -> list[str]:
    """Return the lines of a table whose first row is the header; cells are escaped, except plain names."""
    cells = ([cell if _PLAIN.fullmatch(cell) else as_markdown(cell) for cell in row] for row in rows)
    lines = [f"|{''.join(f' {cell} |' if cell else ' |' for cell in row)}" for row in cells]
    return [lines[0], f"|{' --- |' * len(rows[0])}", *lines[1:]]


#: Of each score of a fit: its name and its label in the Hub's metadata, the score to compare it with, and its meaning.
_METRICS = {
    "held_out_retrieval_at_1": ("recall_at_1", "recall at 1", "held_out_retrieval_chance", "chance"),
    "held_out_recall_at_10": ("recall_at_10", "recall at 10", "held_out_recall_at_10_chance", "chance"),
    "held_out_cosine": ("cosine_similarity", "cosine", "held_out_cosine_constant", "every row at the new model's mean"),
}


def front_matter(name: str, tags: tuple[str, ...], scores: Mapping[str, object] | None = None) -> list[str]:
    """Return the lines of the front matter: the map's name, tags, and each score on held-out pairs with its control.
    Names and numbers are written as JSON, which is valid YAML, so that a value cannot add lines.
    """
    scores = scores or {}
    lines = ["---", "library_name: congruence", f"tags: {_json(['congruence', 'embeddings', 'alignment', *tags])}"]
    results = []
    for key, (kind, label, control, meaning) in _METRICS.items():
        value, reference = scores.get(key), scores.get(control)
        if is_number(value):
            suffix = f" ({meaning}: {reference:.3f})" if is_number(reference) else ""
            results.append({"type": kind, "value": round(float(value), 4), "name": f"{label}{suffix}"})
    if results:
        pairs = scores.get("held_out_pairs")
        count = f"{pairs:,} pairs" if isinstance(pairs, int) else "pairs"
        lines += [
            f"metrics: {_json([result['type'] for result in results])}",
            "model-index:",
            f"- name: {_json(visible(name))}",
            "  results:",
            '  - task: {"type": "feature-extraction", "name": "Find an item by its mapped vector"}',
            f"    dataset: {_json({'type': 'held-out-pairs', 'name': f'{count} that the fit did not see'})}",
            "    metrics:",
            *(f"    - {_json(result)}" for result in results),
        ]
    return [*lines, "---"]


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
