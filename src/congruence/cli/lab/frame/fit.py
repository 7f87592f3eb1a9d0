"""``congruence lab frame fit``: fit one frame for many models."""

from __future__ import annotations

from congruence.cli._options import Force, Json, argument, option, with_groups
from congruence.cli.lab.frame._anchors import MODELS, AnchorOptions, read_anchors, report


@with_groups
def command(
    models: list[str] = argument(..., f"Anchors of two or more models: {MODELS}"),
    *,
    out: str = option(..., "Folder to write the frame to.", "--out", "-o"),
    anchors: AnchorOptions,
    center: bool = option(True, "Map means to means."),
    shrinkage: str = option(
        "auto", "How to shrink directions that the anchors determine poorly: auto, wiener, covered or full."
    ),
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Fit one coordinate frame for many models, whose anchors may overlap only partly."""
    from congruence.maps import CanonicalFrame
    from congruence.persist import check_map_output

    check_map_output(out, force=force)
    frame = CanonicalFrame(center=center, shrinkage=shrinkage).fit(read_anchors(models, anchors))
    frame.save(out, force=force)
    report(frame, out, as_json)
