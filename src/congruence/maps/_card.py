"""The model card of a saved map: what it maps, how to call it, on what evidence it was made, and its facts with their meaning."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from congruence._space import MODALITIES, Space
from congruence._utils.display import as_markdown
from congruence.maps._front import front_matter
from congruence.maps.evidence import alignment_rows, choice_sentence, refinement_sentence

#: What a fact or score says, where its name does not.
_MEANING = {
    "n_pairs": "pairs in the fit",
    "rank": "directions that the pairs cover",
    "directions": "directions there are: the width of the narrower model",
    "mean_directions": "directions added because the means of both models correspond",
    "mean_gain": "how much of a direction is kept, mean over all directions; 1 is all",
    "is_isometry": "distances stay as they are",
    "is_projection": "the target is narrower, so directions are lost",
    "alignment": "Procrustes correlation of the pairs the map was fitted on",
    "cross_validated_alignment": "mean cosine of known pairs left out, both sides centered, by maps of the others",
    "modality": "of vectors for which none is named",
    "center": "each model's mean is sent to the other's",
    "shrinkage_used": "how directions with weak evidence are faded",
    "ridge_used": "penalty added to the sums of squares",
    "random_state": "seed",
    "unpaired_source": "ids only among the source's rows, left out",
    "unpaired_target": "ids only among the target's rows, left out",
    "zero_rows_left_out": "pairs with a row of zeros",
    "identical_rows": "pairs with a vector that another pair has too: of such all or none are held out",
    "identical_groups": "groups of these",
}

#: A name in which nothing marks up or links, such as ``test_mean@1``.
_PLAIN = re.compile("[A-Za-z](?:[A-Za-z0-9_@]*[A-Za-z0-9])?")

#: Raised where a record of a fit is not of the form that congruence writes: loading does not check it, since it decides no vector.
_MALFORMED = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)

_UNREADABLE = "The record of this is not of the form that congruence writes."


def one_sided_text(source: Space, target: Space, facts: Mapping[str, object]) -> tuple[str, list[str]]:
    """Return the title of the card of a map into its target's space, and what the map does and how to call it.

    Parameters
    ----------
    source, target : Space
    facts : mapping

    Returns
    -------
    title : str
    lines : list of str
    """
    title = as_markdown(f"{source.model or 'source'} → {target.model or 'target'}")
    unit = "  # unit rows, as the target's are" if target.normalized else ""
    known, fitted = facts.get("modalities"), facts.get("modality")
    means = [name for name in MODALITIES if isinstance(known, list) and name in known]
    text = [
        f"Maps vectors of *{as_markdown(str(source))}* into the space of *{as_markdown(str(target))}*.",
        "",
        "```python",
        "import congruence",
        "",
        'mapping = congruence.load("path/to/this/folder")',
        f"mapped = mapping.apply(vectors).vectors{unit}",
        *(f'mapped = mapping.apply({n}_vectors, modality="{n}").vectors' for n in means if n != fitted),
        "```",
    ]
    return title, text


def write_card(
    kind: str,
    title: str,
    text: list[str],
    shown: Callable[[], Mapping[str, str]],
    facts: Mapping[str, object],
    scores: Mapping[str, object],
    *,
    plain: str,
    tag: str,
) -> str:
    """Write the card as Markdown; whatever comes from a file is escaped.

    Parameters
    ----------
    kind : str
        Name of the class.
    title : str
        In Markdown.
    text : list of str
        What the map does and how to call it, in Markdown.
    shown : callable
        Returns the map's own display.
    facts, scores : mapping
    plain : str
        The title without markup, for the front matter.
    tag : str
        The map's name in ``MAPS``.

    Returns
    -------
    str
    """
    refined, aligned = scores.get("refinement"), scores.get("alignment")
    if isinstance(refined, Mapping) and refined.get("improves") is True:
        kind = f"{kind} refined with unpaired rows"
    elif isinstance(aligned, Mapping):
        kind = f"{kind} of rows without known pairs"
    lines = [
        *front_matter(plain, (tag,), scores),
        f"# {kind}: {title}",
        "",
        *text,
        *_section(_display, shown),
    ]
    for name, write in (
        ("means", _means),
        ("pairing", _pairing),
        ("choice", _choice),
        ("refinement", _refinement),
        ("alignment", _alignment),
    ):
        lines += _section(write, facts if name == "means" else scores.get(name))
    return "\n".join([*lines, *_facts(facts), *_scores(scores)]) + "\n"


def _section(write: Callable[[Any], list[str]], record: object) -> list[str]:
    """Write what a record of the fit says; nothing where there is none."""
    if record is None:
        return []
    try:
        lines = write(record)
    except _MALFORMED:
        lines = [_UNREADABLE]
    return ["", *lines] if lines else []


def _display(shown: Callable[[], Mapping[str, str]]) -> list[str]:
    """Say what the map was fitted on, and how it does on pairs held out."""
    said = shown()
    return [f"Fitted on: {as_markdown(said['fitted on'])}.  ", f"Held out: {as_markdown(said['held out'])}."]


def _means(facts: Mapping[str, Any]) -> list[str]:
    """Say which modalities a rotation has means for, and where these are from."""
    fitted, known = facts.get("modality"), facts.get("modalities")
    if not known:
        return []
    given = facts.get("mean_rows", {})
    words = []
    for name in known:
        count, target = given.get(name, (None, None))
        of = "from the pairs" if name not in given else f"of {count:,} source rows" if count else "given"
        if target == 0:
            of += ", the target's estimated from the source's"
        words.append(f"{name} ({of})")
    more = (
        ""
        if len(known) > 1 or not facts.get("center", True)
        else " Vectors of another one need theirs first: see recenter."
    )
    active = f" Without a modality {fitted} is meant." if len(known) > 1 and fitted else ""
    return [as_markdown(f"Modalities with means: {', '.join(words)}.{active}{more}")]


def _pairing(report: Mapping[str, Any]) -> list[str]:
    """Say whether the pairs look paired, beside what pairs drawn at random give."""
    if report["state"] == "too few":
        return ["Pairing: too few pairs to tell whether they belong together."]
    said = {"paired": "the pairs belong together", "not paired": "THE PAIRS DO NOT LOOK PAIRED"}.get(
        report["state"], "cannot tell whether the pairs belong together"
    )
    beside = (
        f"mean cosine of pairs left out {report['alignment']:.3f}, of pairs drawn at random {report['null_mean']:.3f}"
    )
    suspects = f"; {len(report['suspects'])} single pairs look wrong" if report["suspects"] else ""
    return [as_markdown(f"Pairing: {said} ({beside}, p = {report['p_value']:.2g}){suspects}.")]


def _choice(choice: Mapping[str, Any]) -> list[str]:
    """Say what was chosen and by how much, above the scores of all that was tried."""
    lines = ["## Choice of the map", "", as_markdown(choice_sentence(choice))]
    tried = choice["tried"]
    if not tried:
        return lines
    others = list(tried[0]["other"])
    own = "mean reciprocal rank" + (" of the pairs" if others else "")
    rows = [["map", own, "at 1", *(f"of {name} rows" for name in others), "behind the best (± standard error)"]]
    for one in tried:
        behind = f"{one['behind']:.3f} ± {one['error']:.3f}" if one["behind"] > 0 else "best"
        other = [f"{one['other'][name]:.3f}" if name in one["other"] else "–" for name in others]
        rows.append(
            [
                f"{one['name']}{' (chosen)' * (one['name'] == choice['name'])}",
                f"{one['score']:.3f}",
                f"{one['retrieval_at_1']:.3f}",
                *other,
                behind,
            ]
        )
    return [*lines, "", *_table(rows)]


def _refinement(found: Mapping[str, Any]) -> list[str]:
    """Say whether unpaired rows are part of the map, and by what evidence."""
    sizes = " and ".join(f"{size:,}" for size in found["pool_sizes"])
    used = (
        f"The map is fitted on {found['n_pairs']:,} pairs and {found['matches']:,} matches found between pools of {sizes} unpaired rows."
        if found["improves"]
        else f"The map is that of the {found['n_pairs']:,} pairs alone: pools of {sizes} unpaired rows were tried."
    )
    return ["## Refinement", "", as_markdown(f"{refinement_sentence(found)} {used}")]


def _alignment(found: Mapping[str, object]) -> list[str]:
    """Say how far restarts without a known pair agree."""
    return ["## Alignment without known pairs", "", *_table([["evidence", "value"], *alignment_rows(found)])]


def _facts(facts: Mapping[str, object]) -> list[str]:
    rows = [["fact or parameter", "value", "meaning"]]
    for key, value in facts.items():
        if isinstance(value, (bool, int, str)) or value is None:
            rows.append([key, str(value), _MEANING.get(key, "")])  # lists and tables are in config.json
        elif isinstance(value, float):
            rows.append([key, f"{value:.4g}", _MEANING.get(key, "")])
    return ["", "## Facts", "", *_table(rows)]


def _scores(scores: Mapping[str, object]) -> list[str]:
    flat = {key: value for key, value in scores.items() if isinstance(value, (int, float)) and key != "n_pairs"}
    if not flat:
        return []
    rows = [[key, f"{value:.4g}", _MEANING.get(key, "")] for key, value in flat.items()]
    lines = ["", *_table([["score at fit", "value", "meaning"], *rows])]
    if "held_out_cosine_constant" in flat:
        lines += [
            "",
            "Read the cosine beside its controls: `constant` puts every mapped row at the target's mean, `random_rotation` is a "
            "random rotation about the right means. Only what is above both is the map's doing.",
        ]
    return lines


def _table(rows: list[list[str]]) -> list[str]:
    """Write a table whose first row is the header; what could mark up a cell is escaped, names of facts stay as they are."""
    cells = ([cell if _PLAIN.fullmatch(cell) else as_markdown(cell) for cell in row] for row in rows)
    lines = [f"|{''.join(f' {cell} |' if cell else ' |' for cell in row)}" for row in cells]
    return [lines[0], f"|{' --- |' * len(rows[0])}", *lines[1:]]
