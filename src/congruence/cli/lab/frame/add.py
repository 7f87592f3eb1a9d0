"""``congruence lab frame add``: add models to a frame."""

from __future__ import annotations

from typing import Any

from congruence.cli._options import Force, Json, argument, option, settable, with_groups
from congruence.cli.lab.frame._anchors import MODELS, AnchorOptions, read_anchors, report


@with_groups
def command(
    frame_path: str = argument(..., "Folder of a saved frame.", metavar="FRAME"),
    models: list[str] = argument(..., f"Anchors of one or more models: {MODELS}"),
    *,
    out: str = option(..., "Folder to write the larger frame to.", "--out", "-o"),
    anchors: AnchorOptions,
    settings: dict[str, Any] = settable(allow_zero_rows=False),
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Add models to a frame; maps between models already in it do not change.

    Example: congruence lab frame add models.frame next=library/new-texts.parquet -o larger.frame
    """
    from congruence.maps import CanonicalFrame
    from congruence.persist import check_map_output

    check_map_output(out, force=force)
    frame = CanonicalFrame.load(frame_path)
    for name, rows in read_anchors(models, anchors, settings.get("allow_zero_rows", False)).items():
        frame.add(name, rows)
    frame.save(out, force=force)
    report(frame, out, as_json)
