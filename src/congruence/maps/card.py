"""The model card of a saved map: what it maps, how to call it, the evidence for it, and what its facts mean."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from congruence._utils.display import as_markdown, visible
from congruence.maps.evidence import alignment_rows, choice_rows, refinement_sentence
from congruence.persist import is_number

#: First lines of the example on a card.
LOADING = ("", "```python", "import congruence", "", 'mapping = congruence.load("path/to/this/folder")')

#: Meanings of facts and scores whose names do not explain themselves.
_MEANING = {
    "n_pairs": "pairs in the fit",
    "rank": "directions that the pairs cover",
    "directions": "number of directions: the width of the narrower model",
    "mean_directions": "directions added because the means of both models correspond",
    "mean_gain": "mean gain over all directions; 1 if none is damped",
    "is_isometry": "distances are preserved",
    "is_projection": "the target is narrower, so directions are lost",
    "alignment": "Procrustes correlation of the pairs the map was fitted on",
    "cross_validated_alignment": "mean cosine of held-out pairs, both sides centered, by maps of the other pairs",
    "modality": "modality of vectors if none is given",
    "center": "the means of both models are mapped to each other",
    "shrinkage_used": "how directions with weak evidence are damped",
    "ridge_used": "penalty added to the sums of squares",
    "random_state": "seed",
    "unpaired_source": "ids that only the source has, left out",
    "unpaired_target": "ids that only the target has, left out",
    "zero_rows_left_out": "pairs with a row of zeros, left out",
    "identical_rows": "pairs that share a vector with another pair; they are held out together or not at all",
    "identical_groups": "groups of these pairs",
}

#: A name without Markdown markup or links, such as ``test_mean@1``.
_PLAIN = re.compile("[A-Za-z](?:[A-Za-z0-9_@]*[A-Za-z0-9])?")

#: Exceptions raised for a malformed record of a fit. Loading does not check records, since they do not affect mapped
#: vectors.
_MALFORMED = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


def write_card(
    title: str,
    text: list[str],
    *,
    kind: str,
    tag: str,
    models: tuple[str | None, str | None],
    facts: Mapping[str, Any],
    scores: Mapping[str, Any],
    shown: Callable[[], Mapping[str, str]],
) -> str:
    """Return a map's card in Markdown, with all values from files escaped; ``text`` says what it does and how to call
    it, ``kind`` names its class, ``tag`` its method, and ``shown`` returns the entries of its display.
    """
    refined, aligned = scores.get("refinement"), scores.get("alignment")
    if isinstance(refined, Mapping) and refined.get("improves") is True:
        kind = f"{kind} refined with unpaired rows"
    elif isinstance(aligned, Mapping):
        kind = f"{kind} of rows without known pairs"
    name = f"{models[0] or 'source'} → {models[1] or 'target'}"
    lines = [*front_matter(name, (tag,), scores), f"# {kind}: {title}", "", *text]
    sections: list[tuple[Callable[[Any], list[str]], Any]] = [
        (_display, shown),
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
    table = [["fact or parameter", "value", "meaning"]]
    table += [
        [key, text_of, _MEANING.get(key, "")] for key, value in facts.items() if (text_of := _value(value)) is not None
    ]
    lines += ["", "## Facts", "", *card_table(table)]
    numbers = {key: value for key, value in scores.items() if isinstance(value, (int, float)) and key != "n_pairs"}
    if numbers:
        rows = [[key, f"{value:.4g}", _MEANING.get(key, "")] for key, value in numbers.items()]
        lines += ["", *card_table([["score at fit", "value", "meaning"], *rows])]
    if "held_out_cosine_constant" in numbers:
        lines += [
            "",
            "Compare the cosine with its controls: `constant` puts every mapped row at the target's mean, "
            "`random_rotation` is a random rotation about the right means. Only the part above both is due to the "
            "map.",
        ]
    return "\n".join(lines) + "\n"


def _value(value: object) -> str | None:
    """Return a fact as text; None for lists and tables, which are in config.json."""
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value) if value is None or isinstance(value, (bool, int, str)) else None


def _display(shown: Callable[[], Mapping[str, str]]) -> list[str]:
    """Return lines on the pairs that the map was fitted on, and on its held-out scores."""
    entries = shown()
    return [f"Fitted on: {as_markdown(entries['fitted on'])}.  ", f"Held out: {as_markdown(entries['held out'])}."]


def _means(facts: Mapping[str, Any]) -> list[str]:
    """Return a line on the modalities for which a rotation has means, and on the origin of these means."""
    known, mean_rows, described = facts.get("modalities") or (), facts.get("mean_rows", {}), []
    for name in known:
        count, target = mean_rows.get(name, (None, None))
        origin = "from the pairs" if name not in mean_rows else f"of {count:,} source rows" if count else "given"
        guessed = ", the target's estimated from the source's" if target == 0 else ""
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
        "shifted": "ONE SIDE IS SHIFTED",
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
    used = (
        f"The map is fitted on {record['n_pairs']:,} pairs and {record['matches']:,} matches found between "
        f"pools of {sizes} unpaired rows."
        if record["improves"]
        else f"The map is fitted on the {record['n_pairs']:,} pairs alone; pools of {sizes} unpaired rows were tried."
    )
    return ["## Refinement", "", as_markdown(f"{refinement_sentence(record)} {used}")]


def card_table(rows: list[list[str]]) -> list[str]:
    """Return the lines of a table whose first row is the header; cells are escaped, except plain names."""
    cells = ([cell if _PLAIN.fullmatch(cell) else as_markdown(cell) for cell in row] for row in rows)
    lines = [f"|{''.join(f' {cell} |' if cell else ' |' for cell in row)}" for row in cells]
    return [lines[0], f"|{' --- |' * len(rows[0])}", *lines[1:]]


#: Of each score of a fit: its name and its label in the Hub's metadata, the score to compare it with, and its meaning.
_METRICS = {
    "held_out_retrieval_at_1": ("recall_at_1", "recall at 1", "held_out_retrieval_chance", "chance"),
    "held_out_recall_at_10": ("recall_at_10", "recall at 10", "held_out_recall_at_10_chance", "chance"),
    "held_out_cosine": ("cosine_similarity", "cosine", "held_out_cosine_constant", "every row at the target's mean"),
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
