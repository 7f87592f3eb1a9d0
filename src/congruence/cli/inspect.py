"""``congruence inspect``: show what is stored in a saved map or bridge, or in a file of vectors."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from congruence.cli._input import load_map
from congruence.cli._options import Json, argument
from congruence.cli._output import NEW_OLD, by_side, print_facts, print_json, side_words, sides_of
from congruence.cli._scores import map_facts
from congruence.errors import CorruptFileError

if TYPE_CHECKING:
    from congruence.upgrade.bridge import Bridge

_RATES = (0.1, 0.01, 0.001)  # false-positive rates of the old model whose thresholds are shown

#: Facts that ``map_facts`` tells in other words.
_TOLD = ("n_pairs", "rank", "directions", "alignment", "steps", "best_step", "reconstruction_error", "negatives_each")


def inspect(
    map_path: str = argument(..., "Folder of a saved map or bridge; or a file of vectors.", metavar="MAP"),
    as_json: Json = False,
) -> None:
    """Show which spaces a map connects, how it was fitted and how reliable it is; for a bridge, also its thresholds.

    Of a file of vectors, show what it holds: each array or column with its shape.

    Example: congruence inspect map
    """
    if _is_file(map_path):
        from congruence.io import contents

        held = contents(map_path)
        print_json(held) if as_json else print_facts(map_path, held)
        return
    mapping, bridge = load_map(map_path)
    facts, words = mapping.describe(), sides_of(mapping) if bridge is None else NEW_OLD
    singular = getattr(mapping, "singular_values_", None)
    if as_json:
        if singular is not None:
            facts["singular_values"] = singular.tolist()
        print_json(by_side(facts if bridge is None else {**bridge.describe(), "map": facts}, words))
        return
    if bridge is not None:
        print_facts("Bridge", _of_bridge(bridge))
    spaces = zip(words.values(), (mapping.source_space_, mapping.target_space_), strict=True)
    shown: dict[str, object] = {f"{side} model": space for side, space in spaces}
    try:
        shown |= map_facts(mapping)
        shown |= {side_words(key, words).replace("_", " "): _text(value) for key, value in _flat(facts)}
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        # The training record of a map has many forms, and none affects where vectors are mapped: loading does not check
        # it.
        raise CorruptFileError(
            f"Got facts or scores in {map_path} in an unknown format ({error!r}); expected the format that "
            "congruence writes.",
            "Pass --json to see them unchanged.",
        ) from error
    if singular is not None:
        last = len(singular) - 1
        picks = [0, len(singular) // 4, len(singular) // 2, 3 * len(singular) // 4, last]
        shown["singular values"] = "  ".join(f"{singular[k]:.2e}" for k in picks) + "  (quartiles)"
    print_facts(type(mapping).__name__, shown)


def _is_file(spec: str) -> bool:
    """Return whether a path is that of a file or folder of vectors, there or missing, and not of a map."""
    from congruence.io import parse_spec
    from congruence.io.folder import holds_parts
    from congruence.io.formats import FORMATS, is_folder, suffix_of

    path = parse_spec(spec)[0]
    if is_folder(path):
        return holds_parts(Path(path))
    return os.path.exists(path) or suffix_of(path) in FORMATS.keys() - {""}


def _of_bridge(bridge: Bridge) -> dict[str, object]:
    """Describe what a bridge adds to its map: the queries it accepts, and thresholds."""
    shown: dict[str, object] = {**bridge.shown(), "modality": bridge.modality}
    if bridge.thresholds is None:
        return {**shown, "thresholds": "none; congruence bridge evaluate with --old-queries and --out fits them"}
    for rate, row in bridge.thresholds.at_rates(_RATES):
        shown[f"threshold of {rate:.1%} false positives"] = f"{row.threshold:.4f} becomes {row.value:.4f}"
    return shown


def _flat(facts: dict[str, Any]) -> Iterator[tuple[str, object]]:
    """Yield the facts of a map that ``map_facts`` does not tell."""
    from congruence.maps import MAPS
    from congruence.train import METHODS

    for key, value in facts.items():
        if key in ("source", "target", "scores", *_TOLD):
            continue
        if key == "history":
            yield from _history(value)
        elif key in ("parameters", "training"):
            method = METHODS.get(facts.get("method", "")) if key == "training" else MAPS.get(facts["kind"])
            yield key, _changed_parameters({} if method is None else method().get_params(), value)
        elif isinstance(value, dict):
            yield from ((f"{key}: {name}", one) for name, one in value.items())
        else:
            yield key, value


def _history(history: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the first and last value of each loss, and the range of the validation score."""
    for name, curve in history["losses"].items():
        if name != "step":
            own = name == "loss" or name.endswith(("_error", "_teacher"))
            yield name if own else f"loss: {name}", f"{curve[0]:.4g} → {curve[-1]:.4g}"
    if history["validation"]:
        scores = dict(history["validation"]).values()
        yield "validation", f"{min(scores):.3f} to {max(scores):.3f}, best after {history['best_step']} steps"


def _changed_parameters(defaults: Mapping[str, object], parameters: Mapping[str, object]) -> str:
    """Return the parameters that differ from their defaults, as text."""
    plain = {name: list(value) if isinstance(value, tuple) else value for name, value in defaults.items()}
    changed = {name: value for name, value in parameters.items() if name not in plain or plain[name] != value}
    return ", ".join(f"{name}={_text(value)}" for name, value in changed.items()) or "by default"


def _text(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, (list, tuple)):
        return f"{len(value)} values" if len(value) > 12 else ", ".join(map(str, value)) or "–"
    return "–" if value is None else str(value)
