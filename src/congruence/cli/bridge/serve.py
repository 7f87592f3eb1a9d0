"""``congruence bridge serve``: serve a new model through OpenAI's embeddings API in an old index's space."""

from __future__ import annotations

from congruence._utils.optional import require
from congruence.cli._base import print_json, say
from congruence.cli._options import Json, ModelOptions, argument, option, with_groups


@with_groups
def command(
    map_path: str = argument(..., "Folder of a saved bridge or map.", metavar="MAP"),
    *,
    encoder: str = option(..., "Encoder of texts, as for embed: sentence-transformers:…, hf:…, open_clip:… or onnx:…."),
    modality: str = option("text", "Modality whose means the map uses for texts."),
    space: str = option("target", "Space of the served vectors: target (the index's) or source (the encoder's own)."),
    host: str = option("127.0.0.1", "Address to listen on. Addresses other than loopback require a key."),
    port: int = option(8000, "Port to listen on; 0 for any free port."),
    api_key_env: str | None = option(None, "Environment variable with the key that clients must send."),
    api_key_file: str | None = option(None, "File with the key that clients must send."),
    model_name: list[str] | None = option(
        None, "Model name that clients send; may be repeated. By default the model of the space served."
    ),
    max_batch: int = option(256, "Largest number of texts per request, and per call of the encoder."),
    max_body: int = option(2 * 2**20, "Largest size of a request, in bytes."),
    max_chars: int = option(32768, "Largest number of characters per text."),
    max_waiting: int = option(256, "Largest number of requests at a time; further ones get a 503."),
    timeout: float = option(30.0, "Seconds after which a request is answered with a 504."),
    batch_size: int = option(32, "Number of texts that the encoder processes at a time."),
    model_options: ModelOptions,
    check_space: bool = option(True, "Refuse an encoder whose name differs from the map's source model."),
    as_json: Json = False,
) -> None:
    """Serve a new model's vectors in the space of an old index, as OpenAI's embeddings API, until Ctrl-C or SIGTERM."""
    from congruence.integrations.process import check_host, listen, read_key, serve
    from congruence.integrations.server import LOOPBACK, Limits, create_app
    from congruence.upgrade.bridge import Bridge

    api_key = read_key(api_key_env, api_key_file)
    check_host(host, api_key)
    for module in ("fastapi", "uvicorn", "prometheus_client"):  # checked before a model is loaded
        require(module, extra="serve")
    bridge = Bridge.load(map_path)
    with listen(host, port) as socket:
        model = model_options.load(encoder, "text")
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
                facts = {"url": url, "models": list(service.names), "dim": service.vectors.dim}
                print_json({**facts, "key": api_key is not None, "space": service.vectors.space.to_dict()})
            else:
                say(f"serving {service.names[0]} ({service.vectors.dim}-d) at {url}; Ctrl-C stops it.")

        serve(app, socket, timeout=timeout, on_ready=ready)
