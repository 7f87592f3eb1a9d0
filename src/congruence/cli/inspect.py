"""``congruence inspect``: show what is stored in a saved map or bridge."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from congruence.cli._base import load_map, print_facts, print_json
from congruence.cli._options import Json, argument
from congruence.cli._scores import held_out_rows
from congruence.errors import CorruptFileError

if TYPE_CHECKING:
    from congruence.upgrade.bridge import Bridge


#: False-positive rates of the old model whose thresholds are shown.
_RATES = (0.1, 0.01, 0.001)


def command(
    map_path: str = argument(..., "Folder of a saved map or bridge.", metavar="MAP"), as_json: Json = False
) -> None:
    """Show which spaces a map connects, how it was fitted and how reliable it is; for a bridge, also its thresholds.

    Example: congruence inspect map
    """
    mapping, bridge = load_map(map_path)
    facts = mapping.describe()
    singular = getattr(mapping, "singular_values_", None)
    if as_json:
        if singular is not None:
            facts["singular_values"] = singular.tolist()
        print_json(facts if bridge is None else {**bridge.describe(), "map": facts})
        return
    if bridge is not None:
        print_facts("Bridge", _of_bridge(bridge))
    rows = [["source", str(mapping.source_space_)], ["target", str(mapping.target_space_)]]
    try:
        rows += [[key.replace("_", " "), _text(value)] for key, value in _flat(facts)]
        rows += held_out_rows(mapping.scores_)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        # The training record of a map has many forms, and none affects where vectors are mapped: loading does not check
        # it.
        raise CorruptFileError(
            f"Got facts or scores in {map_path} in an unknown format ({error!r}); expected the format that "
            "congruence writes.",
            "Pass --json to see them unchanged.",
        ) from error
    if singular is not None:
        picks = [0, len(singular) // 4, len(singular) // 2, 3 * len(singular) // 4, len(singular) - 1]
        rows.append(["singular values", "  ".join(f"{singular[k]:.2e}" for k in picks) + "  (quartiles)"])
    print_facts(type(mapping).__name__, rows)


def _of_bridge(bridge: Bridge) -> list[list[str]]:
    """Describe what a bridge adds to its map: the queries it accepts, and thresholds."""
    facts = bridge.describe()
    rows = [["queries", str(bridge.source)], ["index", str(bridge.target)]]
    rows.append(["bridged queries", "unit rows" if facts["unit_rows"] else "as mapped"])
    rows += [[name, _text(value)] for name, value in facts["parameters"].items()]
    fitted = bridge.thresholds
    if fitted is None:
        return [*rows, ["thresholds", "none; congruence bridge evaluate with --old-queries and --out fits them"]]
    counts = f"{fitted.n_queries:,} queries, {fitted.n_pairs:,} irrelevant and {fitted.n_relevant:,} relevant pairs"
    rows += [["thresholds", f"from {counts}"], ["known thresholds", f"{fitted.lowest:.4f} to {fitted.highest:.4f}"]]
    for rate, translation in fitted.at_rates(_RATES):
        becomes = f"{translation.threshold:.4f} becomes {translation.value:.4f}"
        rows.append([f"threshold of {rate:.1%} false positives", becomes])
    return rows


def _flat(facts: dict[str, Any]) -> list[tuple[str, object]]:
    """Return the facts of a map as pairs of name and value."""
    from congruence.maps.evidence import alignment_rows, choice_rows, refinement_rows

    rows = []
    for key, value in facts.items():
        if key in ("source", "target"):
            continue
        if key in ("parameters", "scores"):
            # held_out_rows prints held-out scores, each with its reference value.
            heldout = {n for n in value if n.startswith("held_out_")} if "held_out_pairs" in value else set()
            rows += [
                (f"{key[:-1]}: {name}", item)
                for name, item in value.items()
                if name not in heldout and not isinstance(item, dict)
            ]
        elif key == "history":
            rows += _history(value)
        elif key == "training":
            rows.append(("training", _changed_parameters(facts.get("method"), value)))
        elif isinstance(value, dict):
            rows += [(f"{key}: {name}", item) for name, item in value.items()]
        else:
            rows.append((key, value))
    for key, describe in (("choice", choice_rows), ("refinement", refinement_rows), ("alignment", alignment_rows)):
        if key in facts["scores"]:
            rows += [(name, value) for name, value in describe(facts["scores"][key])]
    pairing = facts["scores"].get("pairing")
    if pairing:
        rows += [
            ("anchors look paired", pairing.get("state", pairing["looks_paired"])),
            ("suspect pairs", len(pairing["suspects"])),
        ]
    return rows


def _history(history: dict[str, Any]) -> list[tuple[str, Any]]:
    """Describe the first and last value of each loss, and the range of the validation score."""
    rows = [
        (
            name if name == "loss" or name.endswith(("_error", "_teacher")) else f"loss: {name}",
            f"{curve[0]:.4g} → {curve[-1]:.4g}",
        )
        for name, curve in history["losses"].items()
        if name != "step"
    ]
    if history["validation"]:
        scores = dict(history["validation"])
        rows.append(
            (
                "validation",
                f"{min(scores.values()):.3f} to {max(scores.values()):.3f}, best after {history['best_step']} steps",
            )
        )
    return rows


def _changed_parameters(method: object, parameters: Mapping[str, object]) -> str:
    """Return the parameters that differ from the method's defaults, as text."""
    from congruence.train import METHODS

    defaults = METHODS[method]().get_params() if method in METHODS else {}
    defaults = {name: list(value) if isinstance(value, tuple) else value for name, value in defaults.items()}
    changed = [
        f"{name}={_text(value)}"
        for name, value in parameters.items()
        if name not in defaults or defaults[name] != value
    ]
    return ", ".join(changed) or "default parameters"


def _text(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, (list, tuple)):
        if len(value) > 12:
            return f"{len(value)} values"
        return ", ".join(map(str, value)) or "–"
    return "–" if value is None else str(value)
