"""``congruence bridge serve``: what it refuses before it listens, and how it stops."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import httpx
import pytest
from toy_models import new_model

from congruence.errors import FileError, ParameterError
from congruence.integrations.process import check_host, is_loopback, listen, read_key

KEY = "a-key-that-is-long-enough"

#: The command in a process of its own, with the stand-in model under the name of an adapter.
SCRIPT = """
import sys
sys.path.insert(0, sys.argv.pop(1))
from congruence.encoders import ADAPTERS
ADAPTERS["toy"] = ("toy_models", "Toy")
from congruence.cli import main
main()
"""


def start(folder: Path, *options: str, **env: str) -> subprocess.Popen:
    words = ["bridge", "serve", str(folder), "--encoder", "toy:new"]
    command = [sys.executable, "-c", SCRIPT, str(Path(__file__).parent), *words]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([*command, "--port", "0", "--json", *options], env={**os.environ, **env}, **streams)


def result(process: subprocess.Popen) -> dict:
    lines = [process.stdout.readline()]
    while lines[-1] not in ("}\n", ""):
        lines.append(process.stdout.readline())
    return json.loads("".join(lines))


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_requests_in_flight_end(folder, bridge, number):
    process = start(folder, "--api-key-env", "MY_KEY", MY_KEY=KEY, TOY_PAUSE="0.7")
    try:
        facts = result(process)
        assert facts["models"] == ["old-model"]
        assert (facts["dim"], facts["key"]) == (24, True)
        headers, answers = {"authorization": f"Bearer {KEY}"}, []

        def ask() -> None:
            body = {"model": "old-model", "input": "a slow text"}
            with httpx.Client(verify=False, headers=headers, timeout=20) as client:
                answers.append(client.post(f"{facts['url']}/embeddings", json=body))

        asking = threading.Thread(target=ask)
        asking.start()
        # A client that keeps its connection, which ends no less.
        with httpx.Client(verify=False, headers=headers, timeout=20) as client:
            while "congruence_active_requests 1.0" not in client.get(facts["url"].replace("/v1", "/metrics")).text:
                pass
            process.send_signal(number)
            asking.join()
            out, err = process.communicate(timeout=20)
        assert answers[0].status_code == 200
        want = bridge.transform(new_model(["a slow text"])[0], "text")
        assert answers[0].json()["data"][0]["embedding"] == pytest.approx(want.tolist(), abs=1e-5)
        assert (process.returncode, out, err) == (0, "", "")
        with pytest.raises(httpx.ConnectError):
            httpx.get(facts["url"])
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def secret(tmp_path):
    path = tmp_path / "key"
    path.write_text(KEY + "\n")
    return path


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--host", "0.0.0.0"], "Got --host 0.0.0.0 without a key"),
        (["--host", "::"], "Pass --api-key-env or --api-key-file, or --host 127.0.0.1."),
        (["--api-key-env", "NOT_SET_ANYWHERE"], "Got --api-key-env NOT_SET_ANYWHERE, which is not set"),
        (["--api-key-env", "SHORT_KEY"], "Got a key of 5 characters in the variable SHORT_KEY; expected at least 16"),
        (["--port", "70000"], "Got --port 70000; expected 0 to 65535"),
        (["--set", "max_batch=0"], "--set max_batch"),
        (["--encoder", "toy"], "Pass a name with one of these prefixes"),
        (["--index", "old.npz"], "Got one of --index and --encode; expected both, or none."),
    ],
)
def test_what_is_refused_before_anything_is_served(here, folder, toy, monkeypatch, options, said):
    monkeypatch.setenv("SHORT_KEY", "short")
    here("bridge serve", folder, "--encoder", toy, "--port", "0", *options).refused(said)


def test_a_key_is_no_option(here, folder, toy):
    result = here("bridge serve", folder, "--encoder", toy, "--api-key", KEY)
    assert result.code == 2  # everyone on the machine could read it in the list of processes
    assert "No such option" in result.err


def test_an_address_in_use_is_told_before_the_model_is_loaded(here, folder):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        result = here("bridge serve", folder, "--encoder", "toy:is-not-registered", "--port", port).ends(2)
    assert f"--port {port}, which cannot be taken" in result.err


def test_keys_come_from_the_environment_or_a_file(secret, monkeypatch):
    monkeypatch.setenv("MY_KEY", f" {KEY}\n")
    assert read_key("MY_KEY") == read_key(None, secret) == KEY
    assert read_key() is None
    with pytest.raises(ParameterError, match="expected at most one of them"):
        read_key("MY_KEY", secret)
    for bad in ("", "ключ" * 8, "two words of a key", "tab\tin the middle of it"):
        secret.write_text(bad)
        with pytest.raises(ParameterError, match="printable ASCII") as caught:
            read_key(None, secret)
        assert not bad or bad not in str(caught.value)
    secret.write_bytes(b"\xff" * 20)
    with pytest.raises(FileError):
        read_key(None, secret)


def test_loopback_is_told_from_the_rest():
    assert all(map(is_loopback, ["127.0.0.1", "127.8.8.8", "::1", "[::1]", "localhost", "LOCALHOST"]))
    assert not any(map(is_loopback, ["0.0.0.0", "::", "", "192.168.0.1", "localhost.example.org", "10.0.0.1"]))
    check_host("0.0.0.0", KEY)
    with pytest.raises(ParameterError, match="0.0.0.0"):
        check_host("0.0.0.0", None)


def test_addresses_of_both_families_can_be_taken():
    with listen("127.0.0.1", 0) as four:
        assert four.getsockname()[1] > 0
        with pytest.raises(ParameterError, match="port=0 for a free one"):
            listen("127.0.0.1", four.getsockname()[1])
    with pytest.raises(ParameterError, match="cannot be taken"):
        listen("no-such-name.invalid", 0)
