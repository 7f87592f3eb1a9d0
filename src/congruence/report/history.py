"""What a two-sided map remembers of its training: facts, losses, and the score it was chosen by."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from congruence.maps import TwoSidedMap

__all__ = ["MARKS", "curves", "facts", "source", "teacher", "thin", "validation"]

#: Most marks of a curve; a picture needs no more.
MARKS = 300

#: A curve that spans more than this factor is drawn on a logarithmic axis.
_WIDE = 30

#: What terms of losses are called on a page; others go by their names.
_TERMS = {
    "loss": "total loss",
    "reconstruct": "reconstruction error",
    "klot": "KLOT",
    "cka": "CKA",
    "infonce": "InfoNCE",
    "marginal_error": "Marginal error of the heads' plan",
    "marginal_error_teacher": "Marginal error of the teacher's plan",
    "gradient_error": "Marginal errors over ‖P − P*‖₁",
}

#: Settings of a training that are shown where a map has them, and what they are called.
_SETTINGS = {
    "divergence_weight": "α",
    "spread_mix": "α",
    "temperature": "τ",
    "teacher": "Teacher",
    "divergence": "Divergence",
    "pair_loss": "Loss on pairs",
    "learning_rate": "Learning rate",
    "random_state": "Seed",
}


#: Where methods come from.
_SOURCES = {
    "jam": "JAM after Yoon, Yue and Kim (2025), “Escaping Plato’s Cave”.",
    "sotalign": "SOTAlign after Roschmann et al. (2026), “SOTAlign”.",
}


def facts(mapping: TwoSidedMap) -> list[list[str]]:
    """Return names and values of what is worth telling, as text."""
    known = getattr(mapping, "facts_", {})
    settings = known.get("training", {})
    out = [
        [name, f"{space.model or 'unnamed'}, {width}-d"]
        for name, space, width in (
            ("Source", mapping.source_space_, mapping.n_features_in_),
            ("Target", mapping.target_space_, mapping.d_target),
        )
    ]
    method = str(known.get("method", mapping.kind))
    out.append(["Method", f"{method}, loss {settings['loss']}" if "loss" in settings else method])
    widths = [str(width) for width in [*_list(settings.get("hidden")), mapping.d_out]]
    out.append(["Widths, to the joint space", " → ".join(widths)])
    size = known.get("size", {})
    for side in ("source", "target"):
        if f"{side}_parameters" in size:
            parameters, flops = size[f"{side}_parameters"] / 1e6, size[f"{side}_flops_per_row"] / 1e6
            out.append(
                [f"{side.capitalize()} side, round trip", f"{parameters:.3g} M parameters, {flops:.3g} MFLOP a row"]
            )
    if "split" in known:
        counts = ", ".join(f"{known['split'][part]:,}" for part in ("train", "validation", "test"))
        out.append(["Rows to train on, choose by, test on", counts])
    elif getattr(mapping, "n_pairs_", 0):
        unpaired = [
            f"{known[key]:,} unpaired {key.removeprefix('n_unpaired_')} rows"
            for key in known
            if key.startswith("n_unpaired_")
        ]
        out.append(["Trained on", ", ".join([f"{mapping.n_pairs_:,} pairs", *unpaired])])
    if "steps" in known:
        best = known.get("best_step")
        out.append(["Steps", f"{known['steps']:,}" + ("" if best is None else f", weights of step {best:,} kept")])
    for key, name in _SETTINGS.items():
        unused = key == "temperature" and settings.get("pair_loss") == "siglip"
        if settings.get(key) is not None and not unused:
            out.append([name, " → ".join(_text(value) for value in _list(settings[key]))])
    if "alpha_at_best" in known:
        out.append(["α at the best step", _text(known["alpha_at_best"])])
    if "temperature" in known:
        out.append(["τ learned", _text(known["temperature"])])
    if error := known.get("reconstruction_error"):
        shares = ", ".join(f"{side} {error[side]:.1%}" for side in ("source", "target"))
        out.append([f"Variance not reconstructed, {error['rows']} rows", shares])
    return out


def curves(mapping: TwoSidedMap) -> list[dict[str, Any]]:
    """Return the terms of the loss by step; terms of both sides share a plot.

    Returns
    -------
    list of dict
        ``name``, ``log`` (is a logarithmic axis called for), ``best_step``, ``steps`` and ``lines``: list of dict with ``name``, ``step``, ``value``.
        Of more than :data:`MARKS` records, means of so many runs of them.
    """
    record = _history(mapping)
    losses = record.get("losses", {})
    steps = losses.get("step", [])
    plots: dict[str, list[dict[str, Any]]] = {}
    for term, values in losses.items():
        if term != "step" and len(values) == len(steps) > 0:
            stem, _, side = term.rpartition("_")
            name, line = (stem, side) if side in ("source", "target") else (term, "")
            step, value = thin(steps, values)
            plots.setdefault(name, []).append({"name": line, "step": step, "value": value})
    out = []
    for name, lines in plots.items():
        values = [value for line in lines for value in line["value"]]
        out.append(
            {
                "name": _TERMS.get(name, name.replace("_", " ")),
                "log": min(values) > 0 and max(values) > _WIDE * min(values),
                "best_step": record.get("best_step"),
                "steps": record.get("steps") or max(steps),
                "lines": lines,
            }
        )
    return out


def validation(mapping: TwoSidedMap) -> dict[str, Any] | None:
    """Return the score on validation rows by step, and where it was best; None where there was none."""
    record = _history(mapping)
    scores = record.get("validation", [])
    if not scores:
        return None
    step, value = thin([step for step, _ in scores], [score for _, score in scores])
    best = max(score for _, score in scores)
    teacher = mapping.scores_.get("teacher_validation_mean_recall_at_1")
    return {
        "step": step,
        "value": value,
        "best_step": record.get("best_step"),
        "best": float(best),
        "teacher": None if teacher is None else float(teacher),
        "steps": record.get("steps") or step[-1],
    }


def thin(steps: Any, values: Any) -> tuple[list[float], list[float]]:
    """Return means of runs of records, :data:`MARKS` at most."""
    parts = min(len(steps), MARKS)
    return tuple(
        [float(np.mean(part)) for part in np.array_split(np.asarray(column, dtype=float), parts)]
        for column in (steps, values)
    )  # type: ignore[return-value]


def teacher(mapping: TwoSidedMap) -> dict[int, dict[str, float]]:
    """Return the recalls of the linear teacher on the test rows of the training, by k; empty where there was none."""
    scores, ways = mapping.scores_, ("source_to_target", "target_to_source")
    return {
        k: {way: float(scores[f"teacher_test_{way}@{k}"]) for way in ways}
        for k in (1, 5, 10)
        if all(f"teacher_test_{way}@{k}" in scores for way in ways)
    }


def source(mapping: TwoSidedMap) -> str | None:
    """Name the paper of the method a map was trained by."""
    return _SOURCES.get(str(getattr(mapping, "facts_", {}).get("method")))


def _history(mapping: TwoSidedMap) -> Mapping[str, Any]:
    found = getattr(mapping, "facts_", {}).get("history")
    return found if isinstance(found, Mapping) else {}


def _list(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
