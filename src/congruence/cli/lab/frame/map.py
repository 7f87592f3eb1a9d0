"""``congruence lab frame map``: write the map from one model of a frame to another."""

from __future__ import annotations

from congruence.cli._base import print_facts, print_json
from congruence.cli._options import Force, Json, argument, option


def command(
    frame_path: str = argument(..., "Folder of a saved frame.", metavar="FRAME"),
    old: str = argument(..., "Name of the model to map from."),
    new: str = argument(..., "Name of the model to map to."),
    out: str = option(..., "Folder to write the map to.", "--out", "-o"),
    modality: str | None = option(None, "Modality whose means the map uses by default."),
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Write the map from one model of a frame to another.

    Example: congruence lab frame map models.frame old new -o old-to-new
    """
    from congruence.maps import CanonicalFrame
    from congruence.persist import check_map_output

    check_map_output(out, force=force)
    mapping = CanonicalFrame.load(frame_path).map(old, new, modality=modality)
    mapping.save(out, force=force)
    if as_json:
        print_json({"output": out, **mapping.describe()})
        return
    facts = mapping.facts_
    rows = [
        ["old model", str(mapping.source_space_)],
        ["new model", str(mapping.target_space_)],
        ["modalities", ", ".join(facts["modalities"]) or "not specified"],
        ["directions that the anchors cover", f"{facts['rank']} of {facts['directions']}"],
        ["written to", out],
    ]
    print_facts("Map through a frame", rows)
