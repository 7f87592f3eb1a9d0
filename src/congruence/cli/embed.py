"""``congruence embed``: encode images or texts into a file of vectors."""

from __future__ import annotations

import sys

import typer

from congruence.cli._base import check_not_input, number, print_json, print_table, progress, refuse_options
from congruence.cli._engines import make_engine, print_data_set, runs_by_fragments
from congruence.cli._options import BadRows, Engine, Force, Gpus, Json, RayAddress, Workers, argument, option
from congruence.errors import ParameterError


def command(
    encoder: str = argument(..., "Model name or path: hf:…, open_clip:…, sentence-transformers:…, timm:… or onnx:…."),
    inputs: str = argument(
        ..., "Folder of images, .csv, .jsonl, .parquet or .txt file, or a data set.", metavar="INPUT"
    ),
    out: str = option(..., "File to write; the suffix determines the format.", "--out", "-o"),
    modality: str | None = option(None, "image or text, if INPUT does not determine it."),
    column: str | None = option(None, "Column of texts, or of image paths."),
    id_column: str | None = option(None, "Column of the ids."),
    split: str = option("test", "Split of a data set; for SugarCrepe: captions or negatives."),
    root: str | None = option(None, "Folder that contains the data set."),
    batch_size: int = option(64, "Number of items per batch."),
    device: str = option("auto", "Device of the encoder: auto, cuda, cuda:1, mps or cpu."),
    dtype: str = option("auto", "Data type of the encoder: auto, float32, float16 or bfloat16."),
    revision: str | None = option(None, "Branch, tag or commit of the model on the Hugging Face Hub."),
    layer: str | None = option(None, "Number of the hidden layer to pool, or all."),
    pooling: str | None = option(None, "Pooling over tokens: cls, mean, cls_mean or last."),
    normalize: bool | None = option(None, "Scale rows to unit norm, or not; by default as the model does."),
    torch_weights: bool = option(False, "Accept weights that are not in safetensors.", "--torch-weights"),
    on_error: str = option("fail", "What to do with items that cannot be encoded: fail or skip."),
    cache: str | None = option(None, "Folder that caches vectors by encoder and content."),
    shard_size: int | None = option(None, "Number of items per part of an output folder."),
    engine: Engine = "local",
    address: RayAddress = None,
    workers: Workers = None,
    gpus: Gpus = 0,
    bad_rows: BadRows = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Encode images or texts; after an interruption, run the same command again to resume.

    With --engine ray, or for URLs, Parquet and Lance data sets are encoded fragment by fragment, and each worker loads
    the encoder once.
    """
    from congruence.embed import embed, open_items
    from congruence.encoders import load_encoder

    chosen: int | str | None = layer
    if layer is not None and layer != "all":
        try:
            chosen = int(layer)
        except ValueError:
            raise ParameterError(
                f"Got --layer {layer}; expected a whole number or all.",
                "Pass --layer -1 for the last layer, or --layer all.",
            ) from None
    if runs_by_fragments(
        engine, inputs, out, {"--address": address, "--workers": workers, "--gpus": gpus, "--bad-rows": bad_rows}
    ):
        from dataclasses import replace

        from congruence.encoders import EncoderOptions
        from congruence.engines import embed_dataset, open_itemset

        local = {
            "--split": split != "test",
            "--root": root,
            "--cache": cache,
            "--shard-size": shard_size,
            "--layer": chosen == "all",
            "--on-error": on_error != "fail",
        }
        instead = "Leave it out, or embed local files with --engine local."
        refuse_options(local, "for a data set that is encoded by fragments", instead)
        options = EncoderOptions(
            encoder, modality, device, dtype, revision, chosen, pooling, normalize, not torch_weights
        )
        data = open_itemset(inputs, column=column, id_column=id_column, modality=modality)
        with progress("embedding", data.rows, as_json) as callback:
            job = embed_dataset(
                replace(options, modality=data.modality),
                data,
                out,
                engine=make_engine(engine, address, workers, gpus),
                batch_size=batch_size,
                bad_rows=bad_rows,
                force=force,
                callback=callback,
            )
        print_data_set("embedded", job, as_json=as_json)
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
