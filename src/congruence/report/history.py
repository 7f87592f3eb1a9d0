"""The training record stored in a joint-space map: facts, losses, and the score by which weights were selected."""

from __future__ import annotations

from collections.abc import Mapping

from congruence.maps import HeadsMap
from congruence.maps.history import History
from congruence.plotting.data import LossCurves, TrainingRecord, ValidationCurve
from congruence.plotting.training import loss_curves, validation_curve

__all__ = ["curves", "facts", "source", "teacher", "validation"]

#: Names of the training parameters that the page shows if a map has them.
_PARAMETERS = {
    "divergence_weight": "α",
    "spread_mix": "α",
    "temperature": "τ",
    "teacher": "Teacher",
    "divergence": "Divergence",
    "pair_loss": "Loss on pairs",
    "learning_rate": "Learning rate",
    "random_state": "Seed",
}

#: Paper of each method.
_SOURCES = {
    "jam": "JAM after Yoon, Yue and Kim (2025), “Escaping Plato’s Cave”.",
    "sotalign": "SOTAlign after Roschmann et al. (2026), “SOTAlign”.",
}


def facts(mapping: HeadsMap) -> list[list[str]]:
    """Return names and values of the relevant facts, as text."""
    recorded = getattr(mapping, "facts_", {})
    parameters = recorded.get("training", {})
    out = [
        [name, f"{space.model or 'unnamed'}, {width}-d"]
        for name, space, width in (
            ("Source", mapping.source_space_, mapping.n_features_in_),
            ("Target", mapping.target_space_, mapping.d_target),
        )
    ]
    method = str(recorded.get("method", mapping.kind))
    out.append(["Method", f"{method}, loss {parameters['loss']}" if "loss" in parameters else method])
    widths = [str(width) for width in [*_list(parameters.get("hidden")), mapping.d_out]]
    out.append(["Widths, to the joint space", " → ".join(widths)])
    size = recorded.get("size", {})
    for side in ("source", "target"):
        if f"{side}_parameters" in size:
            weights, flops = size[f"{side}_parameters"] / 1e6, size[f"{side}_flops_per_row"] / 1e6
            out.append([f"{side.capitalize()} autoencoder", f"{weights:.3g} M parameters, {flops:.3g} MFLOP per row"])
    if "split" in recorded:
        counts = ", ".join(f"{recorded['split'][part]:,}" for part in ("train", "validation", "test"))
        out.append(["Training, validation and test rows", counts])
    elif getattr(mapping, "n_pairs_", 0):
        unpaired = [
            f"{recorded[key]:,} unpaired {key.removeprefix('n_unpaired_')} rows"
            for key in recorded
            if key.startswith("n_unpaired_")
        ]
        out.append(["Trained on", ", ".join([f"{mapping.n_pairs_:,} pairs", *unpaired])])
    if "steps" in recorded:
        best = recorded.get("best_step")
        out.append(["Steps", f"{recorded['steps']:,}" + ("" if best is None else f", weights of step {best:,} kept")])
    for key, name in _PARAMETERS.items():
        unused = key == "temperature" and parameters.get("pair_loss") == "siglip"
        if parameters.get(key) is not None and not unused:
            out.append([name, " → ".join(_text(value) for value in _list(parameters[key]))])
    if "alpha_at_best" in recorded:
        out.append(["α at the best step", _text(recorded["alpha_at_best"])])
    if "temperature" in recorded:
        out.append(["τ learned", _text(recorded["temperature"])])
    if error := recorded.get("reconstruction_error"):
        shares = ", ".join(f"{side} {error[side]:.1%}" for side in ("source", "target"))
        out.append([f"Variance not reconstructed, {error['rows']} rows", shares])
    return out


def curves(mapping: HeadsMap) -> list[LossCurves]:
    """Return the terms of the loss by step; see :func:`congruence.plotting.training.loss_curves`."""
    return loss_curves(_history(mapping))


def validation(mapping: HeadsMap) -> ValidationCurve | None:
    """Return the score on validation rows by step; see :func:`congruence.plotting.training.validation_curve`."""
    return validation_curve(_history(mapping), mapping.scores_.get("teacher_validation_mean_recall_at_1"))


def teacher(mapping: HeadsMap) -> dict[int, dict[str, float]]:
    """Return the recalls of the linear teacher on the test rows of the training, by k; empty if there was no teacher."""
    scores, ways = mapping.scores_, ("source_to_target", "target_to_source")
    return {
        k: {way: float(scores[f"teacher_test_{way}@{k}"]) for way in ways}
        for k in (1, 5, 10)
        if all(f"teacher_test_{way}@{k}" in scores for way in ways)
    }


def source(mapping: HeadsMap) -> str | None:
    """Return the citation of the method that trained a map; None if it is unknown."""
    return _SOURCES.get(str(getattr(mapping, "facts_", {}).get("method")))


def _history(mapping: HeadsMap) -> TrainingRecord:
    record = getattr(mapping, "facts_", {}).get("history")
    return History.from_dict(record).to_dict() if isinstance(record, Mapping) else {}


def _list(value: object) -> list[object]:
    if value is None:
        return []
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _text(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
