"""``congruence lab frame fit``: fit one frame for many models."""

from __future__ import annotations

from typing import Any

from congruence.cli._options import Force, Json, argument, option, settable, with_groups
from congruence.cli.lab.frame._anchors import MODELS, AnchorOptions, read_anchors, report


@with_groups
def command(
    models: list[str] = argument(..., f"Anchors of two or more models: {MODELS}"),
    *,
    out: str = option(..., "Folder to write the frame to.", "--out", "-o"),
    anchors: AnchorOptions,
    settings: dict[str, Any] = settable(center=True, shrinkage="auto", allow_zero_rows=False),
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Fit one coordinate frame for many models, whose anchors may overlap only partly.

    Example: congruence lab frame fit old=library/old-texts.parquet new=library/new-texts.parquet -o models.frame
    """
    from congruence.maps import CanonicalFrame
    from congruence.persist import check_map_output

    check_map_output(out, force=force)
    rows = read_anchors(models, anchors, settings.pop("allow_zero_rows", False))
    frame = CanonicalFrame(**settings).fit(rows)
    frame.save(out, force=force)
    report(frame, out, as_json)
