"""The training record stored in a joint-space map: facts, losses, and the score by which weights were selected."""

from __future__ import annotations

from collections.abc import Mapping

from congruence.maps import TwoSidedMap
from congruence.maps.history import History
from congruence.plotting.data import LossCurves, TrainingRecord, ValidationCurve
from congruence.plotting.training import loss_curves, validation_curve

__all__ = ["curves", "facts", "source", "teacher", "validation"]

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
    """Return names and values of the relevant facts, as text."""
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


def curves(mapping: TwoSidedMap) -> list[LossCurves]:
    """Return the terms of the loss by step; see :func:`congruence.plotting.training.loss_curves`."""
    return loss_curves(_history(mapping))


def validation(mapping: TwoSidedMap) -> ValidationCurve | None:
    """Return the score on validation rows by step; see :func:`congruence.plotting.training.validation_curve`."""
    return validation_curve(_history(mapping), mapping.scores_.get("teacher_validation_mean_recall_at_1"))


def teacher(mapping: TwoSidedMap) -> dict[int, dict[str, float]]:
    """Return the recalls of the linear teacher on the test rows of the training, by k; empty if there was no teacher."""
    scores, ways = mapping.scores_, ("source_to_target", "target_to_source")
    return {
        k: {way: float(scores[f"teacher_test_{way}@{k}"]) for way in ways}
        for k in (1, 5, 10)
        if all(f"teacher_test_{way}@{k}" in scores for way in ways)
    }


def source(mapping: TwoSidedMap) -> str | None:
    """Return the name of the paper of the method that trained a map."""
    return _SOURCES.get(str(getattr(mapping, "facts_", {}).get("method")))


def _history(mapping: TwoSidedMap) -> TrainingRecord:
    found = getattr(mapping, "facts_", {}).get("history")
    return History.from_dict(found).to_dict() if isinstance(found, Mapping) else {}


def _list(value: object) -> list[object]:
    if value is None:
        return []
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _text(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
