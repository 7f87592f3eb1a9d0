"""``congruence embed``: encode texts, images, audio or videos into a file of vectors."""

from __future__ import annotations

from typing import Any

from congruence.cli._engines import JOB, Engine, EngineOptions, print_job
from congruence.cli._input import refuse_options
from congruence.cli._options import MODEL, Force, Json, argument, option, settable
from congruence.cli._output import progress, say_error
from congruence.cli._sides import exchanged
from congruence.errors import ParameterError


def embed(
    encoder: str = argument(..., "Model: hf:…, open_clip:…, sentence-transformers:…, timm:…, onnx:…, openai:…, …"),
    inputs: str = argument(..., "Folder of files, .csv, .jsonl, .parquet, .txt, or a data set.", metavar="INPUT"),
    *,
    out: str = option(..., "File to write; the suffix determines the format.", "--out", "-o"),
    modality: str | None = option(None, "image, text, audio or video, if INPUT does not determine it."),
    column: str | None = option(None, "Column of texts, or of paths."),
    ids: str | None = option(None, "Column of the ids."),
    split: str = option("test", "Split of a data set; for SugarCrepe: captions or negatives."),
    root: str | None = option(None, "Folder that contains the data set."),
    batch_size: int = option(64, "Number of items per batch."),
    device: str = option("auto", "Device of the encoder: auto, cuda, cuda:1, mps or cpu."),
    layer: str | None = option(None, "Number of the hidden layer to pool, or all."),
    cache: str | None = option(None, "Folder that caches vectors by encoder and content."),
    engine: Engine = "local",
    settings: dict[str, Any] = settable(on_error="fail", shard_size=int, price=float, **MODEL, **JOB),
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Encode texts, images, audio or videos; after an interruption, run the same command again to resume.

    Example: congruence embed sentence-transformers:all-MiniLM-L6-v2 titles.txt -o titles.parquet

    With --engine ray, or for URLs, Parquet and Lance data sets are encoded fragment by fragment, and each worker loads
    the encoder once.
    """
    from congruence.embed import embed, open_items
    from congruence.encoders import ADAPTERS, load_encoder

    chosen = int(layer) if layer and layer.lstrip("-").isdecimal() else layer
    if encoder.partition(":")[0] not in ADAPTERS and inputs.partition(":")[0] in ADAPTERS:
        raise ParameterError(f"{inputs} is the encoder, which comes first.", exchanged(encoder, inputs))
    runner = EngineOptions.of(engine, settings)
    model_options = {"device": device, **{name: settings.pop(name) for name in MODEL if name in settings}}
    if runner.by_fragments(inputs, out):
        from congruence.encoders import EncoderOptions
        from congruence.engines import embed_dataset, open_itemset

        local = {"--split": split != "test", "--cache": cache, "--layer": chosen == "all", "--root": root}
        local |= {f"--set {name}": value for name, value in settings.items()}
        instead = "Leave it out, or embed local files with --engine local."
        refuse_options(local, "for a data set that is encoded by fragments", instead)
        data = open_itemset(inputs, column=column, id_column=ids, modality=modality)
        with progress("embedding", data.n, as_json) as callback:
            encoding = EncoderOptions(encoder, data.modality, layer=chosen, **model_options)
            shared: dict[str, Any] = {
                "batch_size": batch_size,
                "bad_rows": runner.bad_rows,
                "force": force,
                "callback": callback,
            }
            job = embed_dataset(encoding, data, out, engine=runner.open(), **shared)
        print_job("embedded", job, as_json=as_json)
        return
    items = open_items(inputs, modality=modality, column=column, id_column=ids, split=split, root=root)
    if (price := settings.pop("price", None)) is not None:
        if items.modality != "text":
            raise ParameterError(f"Got --set price={price} for {items.modality} items.", "Leave it out.")
        size = sum(len(f"{items.fetch(k)}".encode()) for k in range(len(items)))
        tokens = size / 4 + len(items) * len(model_options.get("prompt") or "") / 4
        say_error(f"about {tokens:,.0f} tokens (4 bytes each), {tokens * price / 1e6:,.2f} at {price} per million")
    model = load_encoder(encoder, items.modality, layer=chosen, **model_options)
    with progress("embedding", len(items), as_json) as callback:
        options = {"batch_size": batch_size, "cache": cache, "force": force, "callback": callback, **settings}
        report = embed(model, items, out, **options)
    if report.failures:
        say_error(f"warning: {len(report.failures)} items left out, see {report.failures_file}")
    print_job("embedded", report, as_json=as_json, space=model.space.to_dict())
