"""``congruence export``: a map in another library's format."""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = ["command"]


def command(
    map_path: Annotated[str, typer.Argument(metavar="MAP", help="Folder of a saved map.")],
    out: Annotated[
        str, typer.Option("--out", "-o", help="File to write: .index holds map and norm, any other name the map.")
    ],
    to: Annotated[str, typer.Option(help="faiss.")] = "faiss",
    modality: Annotated[str | None, typer.Option(help="Whose means to use: image, text, …")] = None,
    inverse: Annotated[bool, typer.Option("--inverse", help="From the map's target back to its source.")] = False,
    normalize: Annotated[
        str,
        typer.Option(
            metavar="auto|yes|no",
            help="Scale mapped rows to unit norm; auto: if the target's rows had unit norm at the fit. Needs a .index.",
        ),
    ] = "auto",
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Report as JSON.")] = False,
) -> None:
    """Write a map for FAISS: an index with the map and the norm in front, or a LinearTransform alone (extra faiss)."""
    import congruence
    from congruence._utils.atomic import check_output
    from congruence._utils.validation import check_choice
    from congruence.cli._base import print_json, say
    from congruence.cli.transform import NORMALIZE
    from congruence.errors import ParameterError
    from congruence.integrations import export_faiss
    from congruence.maps import OrthogonalMap

    check_choice(to, ("faiss",), "--to")
    check_choice(normalize, tuple(NORMALIZE), "--normalize")
    check_output(out, force=force)
    mapping = congruence.maps.load(map_path)
    if inverse:
        if not isinstance(mapping, OrthogonalMap):
            raise ParameterError(
                f"Got --inverse for a {mapping.kind} map; expected an orthogonal one. Leave out --inverse."
            )
        mapping = mapping.inverse()
    export_faiss(mapping.for_modality(modality), out, normalize=NORMALIZE[normalize], force=force)
    if as_json:
        print_json({"output": out, "format": to, "d_in": mapping.n_features_in_, "d_out": mapping.d_out})
    else:
        say(f"written to {out}")
