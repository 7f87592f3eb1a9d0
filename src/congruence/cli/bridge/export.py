"""``congruence bridge export``: write a map in another library's format."""

from __future__ import annotations

from congruence._utils.atomic import check_output
from congruence.cli._base import in_python, inverse_of, print_json, say, unit_rows
from congruence.cli._options import Force, Json, argument, option
from congruence.errors import ParameterError

#: Formats, and the options that apply to each of them only.
FORMATS = {"faiss": ("index",), "onnx": ("side",), "sentence-transformers": ("model", "side")}


def command(
    map_path: str = argument(..., "Folder of a saved map or bridge.", metavar="MAP"),
    out: str = option(
        ...,
        "File, or folder for sentence-transformers. FAISS: .index or .faiss also holds the normalization.",
        "--out",
        "-o",
    ),
    to: str = option("faiss", "Format: faiss, onnx or sentence-transformers."),
    index: str | None = option(None, "FAISS: file of an index to put the map in front of; it is not changed."),
    model: str | None = option(None, "sentence-transformers: model to append the map to."),
    modality: str | None = option(None, "Modality whose means are used: image, text, etc."),
    side: str | None = option(None, "first or second: which head of a joint-space map; first by default."),
    inverse: bool = option(False, "Map vectors of the new model back to the old one.", "--inverse"),
    normalize: str = option(
        "auto", "Scale mapped rows to unit norm; auto: as the new model's at the fit.", metavar="auto|yes|no"
    ),
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Write a map for another library: FAISS, ONNX or sentence-transformers (each an extra).

    Example: congruence bridge export map --modality image -o map.index

    FAISS: a new or existing index with the map and normalization in front of it, or a LinearTransform alone. ONNX: a
    graph that maps vectors. sentence-transformers: a model whose encode method returns mapped vectors. PyTorch has no
    pickle-free format for modules: call congruence.load(MAP).to_torch() in Python instead.
    """
    import congruence
    from congruence._utils.validation import check_choice
    from congruence.integrations import export_faiss, export_onnx
    from congruence.integrations.model_folder import check_model_output

    if to in ("torch", "pytorch"):
        raise ParameterError(
            "PyTorch has no file format for modules without pickle.",
            "Call congruence.load(MAP).to_torch() in Python; the map's own folder is its file.",
        )
    check_choice(to, tuple(FORMATS), "to")
    unit = unit_rows(normalize)
    for name, value in (("index", index), ("model", model), ("side", side)):
        if value is not None and name not in FORMATS[to]:
            formats = " or ".join(key for key, names in FORMATS.items() if name in names)
            raise ParameterError(
                f"Got --{name} with --to {to}; expected it for {formats} only.", f"Leave out --{name}."
            )
    if to == "sentence-transformers":
        if model is None:
            raise ParameterError("Got no --model.", "Pass the name or folder of the model whose vectors are mapped.")
        check_model_output(out, force=force)
    else:
        check_output(out, force=force)
    mapping = congruence.load(map_path)
    if inverse:
        mapping = inverse_of(mapping)
    head = in_python(side) or "source"
    report: dict[str, object] = {"output": out, "format": to}
    if to == "faiss":
        export_faiss(mapping, out, index=index, modality=modality, normalize=unit, force=force)
    elif to == "onnx":
        export_onnx(mapping, out, modality=modality, normalize=unit, side=head, force=force)
    else:
        from congruence.integrations.sentence_transformers import export_sentence_transformers

        assert model is not None
        export_sentence_transformers(mapping, model, out, modality=modality, normalize=unit, side=head, force=force)
    inner, default = (mapping.map, mapping.modality) if isinstance(mapping, congruence.Bridge) else (mapping, None)
    mapped = modality or default or ("text" if to == "sentence-transformers" else inner.source_space_.modality)
    report |= {"d_in": inner.d_target if head == "target" else inner.n_features_in_, "d_out": inner.d_out}
    if as_json:
        print_json({**report, "modality": mapped})
    else:
        say(f"written to {out}" + (f", for {mapped} vectors" if mapped else ""))
