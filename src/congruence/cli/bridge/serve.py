"""``congruence bridge serve``: serve a new model through OpenAI's embeddings API in an old index's space."""

from __future__ import annotations

from typing import Any

from congruence._utils.optional import require
from congruence.cli._base import print_json, say
from congruence.cli._options import MODEL, Json, argument, option, settable, with_groups

#: Spaces of the served vectors, as Python names them.
SPACES = {"index": "target", "encoder": "source"}

#: What a server accepts.
LIMITS = {"max_batch": 256, "max_body": 2 * 2**20, "max_chars": 32768, "max_waiting": 256, "timeout": 30.0}


@with_groups
def command(
    map_path: str = argument(..., "Folder of a saved bridge or map.", metavar="MAP"),
    *,
    encoder: str = option(..., "Encoder of texts, as for embed: sentence-transformers:…, hf:…, open_clip:… or onnx:…."),
    modality: str = option("text", "Modality whose means the map uses for texts."),
    space: str = option("index", "Space of the served vectors: index, or encoder (as the encoder gives them)."),
    host: str = option("127.0.0.1", "Address to listen on. Addresses other than loopback require a key."),
    port: int = option(8000, "Port to listen on; 0 for any free port."),
    api_key_env: str | None = option(None, "Environment variable with the key that clients must send."),
    api_key_file: str | None = option(None, "File with the key that clients must send."),
    model_name: list[str] | None = option(
        None, "Model name that clients send; may be repeated. By default the model of the space served."
    ),
    device: str = option("auto", "Device of the encoder: auto, cuda, cuda:1, mps or cpu."),
    settings: dict[str, Any] = settable(**LIMITS, batch_size=32, check=True, **MODEL),
    as_json: Json = False,
) -> None:
    """Serve a new model's vectors in the space of an old index, as OpenAI's embeddings API, until Ctrl-C or SIGTERM.

    Example: congruence bridge serve back --encoder sentence-transformers:all-MiniLM-L6-v2
    """
    from congruence._utils.validation import check_choice
    from congruence.encoders import load_encoder
    from congruence.integrations.process import check_host, listen, read_key, serve
    from congruence.integrations.server import LOOPBACK, Limits, create_app
    from congruence.upgrade.bridge import Bridge

    api_key = read_key(api_key_env, api_key_file)
    check_host(host, api_key)
    for module in ("fastapi", "uvicorn", "prometheus_client"):  # checked before a model is loaded
        require(module, extra="serve")
    bridge = Bridge.load(map_path)
    with listen(host, port) as socket:
        limits = Limits(**{name: settings.pop(name) for name in LIMITS if name in settings})
        loading = {name: settings.pop(name) for name in MODEL if name in settings}
        model = load_encoder(encoder, "text", device=device, **loading)
        app = create_app(
            bridge,
            model,
            modality=modality,
            space=SPACES[check_choice(space, tuple(SPACES), "space")],
            names=model_name or None,
            api_key=api_key,
            allowed_hosts=LOOPBACK if api_key is None else None,
            limits=limits,
            **settings,
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

        serve(app, socket, timeout=limits.timeout, on_ready=ready)
