"""``congruence export``: write a map in another library's format."""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = ["command"]

#: Formats, and the options that apply to each of them only.
FORMATS = {"faiss": ("index",), "onnx": ("side",), "sentence-transformers": ("model", "side")}


def command(
    map_path: Annotated[str, typer.Argument(metavar="MAP", help="Folder of a saved map or bridge.")],
    out: Annotated[
        str,
        typer.Option(
            "--out",
            "-o",
            help="File to write, or folder for sentence-transformers. For FAISS, .index or .faiss writes an index "
            "with map and normalization, another suffix the map alone.",
        ),
    ],
    to: Annotated[str, typer.Option(help="Format: faiss, onnx or sentence-transformers.")] = "faiss",
    index: Annotated[
        str | None,
        typer.Option(help="FAISS: file of an index to put the map in front of; its vectors are not changed."),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="sentence-transformers: name or folder of the model to append the map to.")
    ] = None,
    modality: Annotated[str | None, typer.Option(help="Modality whose means are used: image, text, etc.")] = None,
    side: Annotated[
        str | None, typer.Option(help="source or target: which head of a joint-space map to use; source by default.")
    ] = None,
    inverse: Annotated[bool, typer.Option("--inverse", help="Map from the map's target back to its source.")] = False,
    normalize: Annotated[
        str,
        typer.Option(
            metavar="auto|yes|no",
            help="Scale mapped rows to unit norm; auto: if the target's rows had unit norm at the fit.",
        ),
    ] = "auto",
    force: Annotated[bool, typer.Option("--force", help="Replace an existing output.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Report as JSON.")] = False,
) -> None:
    """Write a map for another library: FAISS, ONNX or sentence-transformers (each an extra).

    FAISS: a new or existing index with the map and normalization in front of it, or a LinearTransform alone. ONNX: a
    graph that maps vectors. sentence-transformers: a model whose encode method returns mapped vectors. PyTorch has no
    pickle-free format for modules: call congruence.load(MAP).to_torch() in Python instead.
    """
    import congruence
    from congruence._utils.atomic import check_output
    from congruence._utils.validation import check_choice
    from congruence.cli._base import print_json, say
    from congruence.cli.transform import NORMALIZE
    from congruence.errors import ParameterError
    from congruence.integrations import export_faiss, export_onnx
    from congruence.integrations.model_folder import check_model_output
    from congruence.maps import OrthogonalMap

    if to in ("torch", "pytorch"):
        raise ParameterError(
            f"Got --to {to}; expected {', '.join(FORMATS)}, since PyTorch has no file format for modules without "
            "pickle. Call congruence.load(MAP).to_torch() in Python; the map's own folder is its file."
        )
    check_choice(to, tuple(FORMATS), "--to")
    check_choice(normalize, tuple(NORMALIZE), "--normalize")
    for name, value in (("index", index), ("model", model), ("side", side)):
        if value is not None and name not in FORMATS[to]:
            formats = " or ".join(key for key, names in FORMATS.items() if name in names)
            raise ParameterError(f"Got --{name} with --to {to}; expected it for {formats} only. Leave out --{name}.")
    if to == "sentence-transformers":
        if model is None:
            raise ParameterError(
                "Got no --model; expected the sentence-transformers model that the map starts from. Pass "
                "--model with its name or folder."
            )
        check_model_output(out, force=force)
    else:
        check_output(out, force=force)
    mapping = congruence.load(map_path)
    if inverse:
        if not isinstance(mapping, OrthogonalMap):
            kind = "bridge" if isinstance(mapping, congruence.Bridge) else f"{mapping.kind} map"
            raise ParameterError(f"Got --inverse for a {kind}; expected an orthogonal map. Leave out --inverse.")
        mapping = mapping.inverse()
    unit = NORMALIZE[normalize]
    side = side or "source"
    report: dict[str, object] = {"output": out, "format": to}
    if to == "faiss":
        export_faiss(mapping, out, index=index, modality=modality, normalize=unit, force=force)
    elif to == "onnx":
        export_onnx(mapping, out, modality=modality, normalize=unit, side=side, force=force)
    else:
        from congruence.integrations.sentence_transformers import export_sentence_transformers

        assert model is not None
        export_sentence_transformers(mapping, model, out, modality=modality, normalize=unit, side=side, force=force)
    inner, default = (mapping.map, mapping.modality) if isinstance(mapping, congruence.Bridge) else (mapping, None)
    mapped = modality or default or ("text" if to == "sentence-transformers" else inner.source_space_.modality)
    report |= {"d_in": inner.d_target if side == "target" else inner.n_features_in_, "d_out": inner.d_out}
    if as_json:
        print_json({**report, "modality": mapped})
    else:
        say(f"written to {out}" + (f", for {mapped} vectors" if mapped else ""))
