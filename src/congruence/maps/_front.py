"""The front matter of a model card for the Hugging Face Hub: library, tags, and scores on held-out pairs as results.

Names and numbers are written as JSON, which is valid YAML, so that a value cannot add lines to the front matter.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import TypeGuard

from congruence._utils.display import visible

#: Name and display label, in the Hub's metadata, of each score of a fit.
_METRICS = {
    "held_out_retrieval_at_1": ("recall_at_1", "recall at 1", "held_out_retrieval_chance"),
    "held_out_recall_at_10": ("recall_at_10", "recall at 10", "held_out_recall_at_10_chance"),
    "held_out_cosine": ("cosine_similarity", "cosine", "held_out_cosine_constant"),
}

#: Meaning of the second number of each score.
_CONTROLS = {"held_out_cosine_constant": "every row at the target's mean"}


def front_matter(name: str, tags: tuple[str, ...], scores: Mapping[str, object] | None = None) -> list[str]:
    """Return the lines of the front matter.

    Parameters
    ----------
    name : str
        Name of the map: ``old → new``.
    tags : tuple of str
        Added to the tags that all maps have.
    scores : mapping, optional
        Scores of the fit. Scores on held-out pairs become results, each with its control; others are left out.

    Returns
    -------
    list of str
    """
    results = _results(scores or {})
    lines = ["---", "library_name: congruence", f"tags: {_json(['congruence', 'embeddings', 'alignment', *tags])}"]
    if results:
        lines += [
            f"metrics: {_json([result['type'] for result in results])}",
            "model-index:",
            f"- name: {_json(visible(name))}",
        ]
        pairs = scores.get("held_out_pairs") if scores else None
        count = f"{pairs:,} pairs" if isinstance(pairs, int) else "pairs"
        lines += [
            "  results:",
            '  - task: {"type": "feature-extraction", "name": "Find an item by its mapped vector"}',
            f"    dataset: {_json({'type': 'held-out-pairs', 'name': f'{count} that the fit did not see'})}",
            "    metrics:",
            *(f"    - {_json(result)}" for result in results),
        ]
    return [*lines, "---"]


def _results(scores: Mapping[str, object]) -> list[dict[str, object]]:
    """Return the scores on held-out pairs; those that are not finite numbers are left out."""
    results: list[dict[str, object]] = []
    for key, (kind, label, control) in _METRICS.items():
        value, reference = scores.get(key), scores.get(control)
        if _is_number(value):
            suffix = f" ({_CONTROLS.get(control, 'chance')}: {reference:.3f})" if _is_number(reference) else ""
            results.append({"type": kind, "value": round(float(value), 4), "name": f"{label}{suffix}"})
    return results


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
