"""``congruence serve``: serve a new model through OpenAI's embeddings API, with vectors in an old index's space."""

from __future__ import annotations

from typing import Annotated

import typer


def command(
    map_path: Annotated[str, typer.Argument(metavar="MAP", help="Folder of a saved bridge or map.")],
    encoder: Annotated[
        str, typer.Option(help="Encoder of texts, as for embed: sentence-transformers:…, hf:…, open_clip:… or onnx:….")
    ],
    modality: Annotated[str, typer.Option(help="Modality whose means the map uses for texts.")] = "text",
    space: Annotated[
        str, typer.Option(help="Space of the served vectors: target (the index's) or source (the encoder's own).")
    ] = "target",
    host: Annotated[
        str, typer.Option(help="Address to listen on. Addresses other than loopback require a key.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 for any free port.")] = 8000,
    api_key_env: Annotated[
        str | None, typer.Option(help="Environment variable with the key that clients must send.")
    ] = None,
    api_key_file: Annotated[str | None, typer.Option(help="File with the key that clients must send.")] = None,
    model_name: Annotated[
        list[str] | None,
        typer.Option(help="Model name that clients send; may be repeated. By default the model of the space served."),
    ] = None,
    max_batch: Annotated[
        int, typer.Option(help="Largest number of texts per request, and per call of the encoder.")
    ] = 256,
    max_body: Annotated[int, typer.Option(help="Largest size of a request, in bytes.")] = 2 * 2**20,
    max_chars: Annotated[int, typer.Option(help="Largest number of characters per text.")] = 32768,
    max_waiting: Annotated[
        int, typer.Option(help="Largest number of requests at a time; further ones get a 503.")
    ] = 256,
    timeout: Annotated[float, typer.Option(help="Seconds after which a request is answered with a 504.")] = 30.0,
    batch_size: Annotated[int, typer.Option(help="Number of texts that the encoder processes at a time.")] = 32,
    device: Annotated[str, typer.Option(help="Device of the encoder: auto, cuda, cuda:1, mps or cpu.")] = "auto",
    dtype: Annotated[str, typer.Option(help="Data type of the encoder: auto, float32, float16 or bfloat16.")] = "auto",
    revision: Annotated[
        str | None, typer.Option(help="Branch, tag or commit of the model on the Hugging Face Hub.")
    ] = None,
    pooling: Annotated[str | None, typer.Option(help="Pooling over tokens: cls, mean, cls_mean or last.")] = None,
    normalize: Annotated[
        bool | None, typer.Option(help="Scale the encoder's rows to unit norm, or not; by default as the model does.")
    ] = None,
    torch_weights: Annotated[
        bool, typer.Option("--torch-weights", help="Accept weights that are not in safetensors.")
    ] = False,
    check_space: Annotated[
        bool, typer.Option(help="Refuse an encoder whose name differs from the map's source model.")
    ] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Report as JSON.")] = False,
) -> None:
    """Serve a new model's vectors in the space of an old index, as OpenAI's embeddings API, until Ctrl-C or SIGTERM."""
    from congruence._utils.optional import require
    from congruence.cli._base import print_json, say
    from congruence.encoders import load_encoder
    from congruence.integrations.server import LOOPBACK, Limits, check_host, create_app, listen, read_key, serve
    from congruence.upgrade.bridge import Bridge

    api_key = read_key(api_key_env, api_key_file)
    check_host(host, api_key)
    for module in ("fastapi", "uvicorn", "prometheus_client"):  # checked before a model is loaded
        require(module, extra="serve")
    bridge = Bridge.load(map_path)
    with listen(host, port) as socket:
        model = load_encoder(
            encoder,
            "text",
            device=device,
            dtype=dtype,
            revision=revision,
            pooling=pooling,
            normalize=normalize,
            safetensors_only=not torch_weights,
        )
        app = create_app(
            bridge,
            model,
            modality=modality,
            space=space,
            names=model_name or None,
            api_key=api_key,
            allowed_hosts=LOOPBACK if api_key is None else None,
            limits=Limits(max_batch, max_body, max_chars, max_waiting, timeout),
            batch_size=batch_size,
            check=check_space,
        )
        service = app.state.service
        url_host = f"[{host}]" if ":" in host and not host.startswith("[") else host
        url = f"http://{url_host}:{socket.getsockname()[1]}/v1"

        def ready() -> None:
            if as_json:
                facts = {
                    "url": url,
                    "models": list(service.names),
                    "dim": service.vectors.dim,
                    "key": api_key is not None,
                }
                print_json({**facts, "space": service.vectors.space.to_dict()})
            else:
                say(f"serving {service.names[0]} ({service.vectors.dim}-d) at {url}; Ctrl-C stops it.")

        serve(app, socket, timeout=timeout, on_ready=ready)
