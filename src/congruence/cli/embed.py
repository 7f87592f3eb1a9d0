"""``congruence embed``: encode images or texts into a file of vectors."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from congruence.cli._engines import ADDRESS_HELP, ENGINE_HELP, GPUS_HELP, WORKERS_HELP, runs_by_fragments

__all__ = ["command"]


def command(
    encoder: Annotated[
        str,
        typer.Argument(
            help="Model name or path with a prefix: hf:…, open_clip:…, sentence-transformers:…, timm:… or onnx:…."
        ),
    ],
    inputs: Annotated[
        str,
        typer.Argument(
            metavar="INPUT",
            help="A folder of images, a .csv, .jsonl, .parquet or .txt file, or the name of a data set.",
        ),
    ],
    out: Annotated[str, typer.Option("--out", "-o", help="File to write; the suffix determines the format.")],
    modality: Annotated[str | None, typer.Option(help="image or text, if INPUT does not determine it.")] = None,
    column: Annotated[str | None, typer.Option(help="Column of texts, or of image paths.")] = None,
    id_column: Annotated[str | None, typer.Option(help="Column of the ids.")] = None,
    split: Annotated[str, typer.Option(help="Split of a data set; for SugarCrepe: captions or negatives.")] = "test",
    root: Annotated[str | None, typer.Option(help="Folder that contains the data set.")] = None,
    batch_size: Annotated[int, typer.Option(help="Number of items per batch.")] = 64,
    device: Annotated[str, typer.Option(help="Device of the encoder: auto, cuda, cuda:1, mps or cpu.")] = "auto",
    dtype: Annotated[str, typer.Option(help="Data type of the encoder: auto, float32, float16 or bfloat16.")] = "auto",
    revision: Annotated[
        str | None, typer.Option(help="Branch, tag or commit of the model on the Hugging Face Hub.")
    ] = None,
    layer: Annotated[str | None, typer.Option(help="Number of the hidden layer to pool, or all.")] = None,
    pooling: Annotated[str | None, typer.Option(help="Pooling over tokens: cls, mean, cls_mean or last.")] = None,
    normalize: Annotated[
        bool | None, typer.Option(help="Scale rows to unit norm, or not; by default as the model does.")
    ] = None,
    torch_weights: Annotated[
        bool, typer.Option("--torch-weights", help="Accept weights that are not in safetensors.")
    ] = False,
    on_error: Annotated[str, typer.Option(help="What to do with items that cannot be encoded: fail or skip.")] = "fail",
    cache: Annotated[str | None, typer.Option(help="Folder that caches vectors by encoder and content.")] = None,
    shard_size: Annotated[int | None, typer.Option(help="Number of items per part of an output folder.")] = None,
    engine: Annotated[str, typer.Option(help=ENGINE_HELP)] = "local",
    address: Annotated[str | None, typer.Option(help=ADDRESS_HELP)] = None,
    workers: Annotated[int | None, typer.Option(help=WORKERS_HELP)] = None,
    gpus: Annotated[float, typer.Option(help=GPUS_HELP)] = 0,
    bad_rows: Annotated[
        str | None,
        typer.Option(
            help="Parquet file to write rows that cannot be encoded to; they are left out of the output. Only for "
            "data sets processed by fragments."
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing output.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Report as JSON.")] = False,
) -> None:
    """Encode images or texts; after an interruption, run the same command again to resume.

    With --engine ray, or for URLs, Parquet and Lance data sets are encoded fragment by fragment, and each worker loads
    the encoder once.
    """
    from congruence.cli._base import check_not_input, number, print_json, print_table, progress
    from congruence.embed import embed, open_items
    from congruence.encoders import load_encoder
    from congruence.errors import ParameterError

    chosen: int | str | None = layer
    if layer is not None and layer != "all":
        try:
            chosen = int(layer)
        except ValueError:
            raise ParameterError(
                f"Got --layer {layer}; expected a whole number or all. Pass --layer -1 for the last layer, or "
                "--layer all."
            ) from None
    if runs_by_fragments(
        engine, inputs, out, {"--address": address, "--workers": workers, "--gpus": gpus, "--bad-rows": bad_rows}
    ):
        from congruence.cli._engines import embed_by_fragments, make_engine
        from congruence.engines import EncoderSpec

        local = {
            "--split": split != "test",
            "--root": root,
            "--cache": cache,
            "--shard-size": shard_size,
            "--layer": chosen == "all",
            "--on-error": on_error != "fail",
        }
        embed_by_fragments(
            EncoderSpec(encoder, modality, device, dtype, revision, chosen, pooling, normalize, not torch_weights),
            inputs,
            out,
            column=column,
            id_column=id_column,
            engine=make_engine(engine, address, workers, gpus),
            batch_size=batch_size,
            bad_rows=bad_rows,
            force=force,
            local_only=[flag for flag, value in local.items() if value],
            as_json=as_json,
        )
        return
    check_not_input(out, inputs)
    items = open_items(inputs, modality=modality, column=column, id_column=id_column, split=split, root=root)
    model = load_encoder(
        encoder,
        items.modality,
        device=device,
        dtype=dtype,
        revision=revision,
        layer=chosen,
        pooling=pooling,
        normalize=normalize,
        safetensors_only=not torch_weights,
    )
    try:
        with progress("embedding", len(items), as_json) as callback:
            report = embed(
                model,
                items,
                out,
                batch_size=batch_size,
                on_error=on_error,
                cache=cache,
                shard_size=shard_size,
                force=force,
                callback=callback,
            )
    except KeyboardInterrupt:
        print("error: interrupted. Run the same command again to resume after the last finished part.", file=sys.stderr)
        raise typer.Exit(130) from None
    if report.failures:
        print(f"warning: {len(report.failures)} items left out, see {report.failures_file}", file=sys.stderr)
    if as_json:
        print_json({**report.to_dict(), "space": model.space.to_dict()})
        return
    rows = [
        ["encoder", report.encoder],
        ["rows", str(report.rows)],
        ["width", str(report.dim)],
        ["encoded", str(report.encoded)],
        ["from the cache", str(report.cached)],
        ["from an earlier run", str(report.resumed)],
        ["left out", str(len(report.failures))],
        ["seconds", number(report.seconds, 1)],
        ["written to", report.output],
    ]
    if report.layers > 1:
        rows.insert(2, ["layers", str(report.layers)])
    if report.ids:
        rows.append(["ids", report.ids])
    print_table("embedded", ["", ""], rows)
