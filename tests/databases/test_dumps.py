"""Stores without a backend: the commands of the page on dumps in their formats. No server ran but Redis's."""

import json
import re
import shutil
import socket
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
from test_framework_tables import OLD, rotation, unit

PAGE = Path(__file__).parents[2] / "docs/reference/databases.md"
N = 6


def old():
    return [list(map(float, row)) for row in unit(N, OLD, 3)]


def dumps():
    """Return what each tool writes, and where its vectors are."""
    rows = list(enumerate(old()))
    return {
        "weaviate": [{"class": "A", "id": f"0{k}", "properties": {"t": "é"}, "vectors": {"title": v}} for k, v in rows],
        "pinecone": [{"id": f"p{k}", "values": v, "metadata": {"genre": "x", "n": k}} for k, v in rows],
        "mongo": [{"_id": {"$oid": f"{k:024x}"}, "v": v, "n": {"$numberLong": "5"}} for k, v in rows],
        "vespa": [{"id": f"id:n:doc::{k}", "fields": {"v": {"type": "tensor(x[8])", "values": v}}} for k, v in rows],
    }


def at(record, path):
    for name in path.split("."):
        record = record[name]
    return record


def test_the_commands_of_the_page(here, tmp_path):
    rotation().save(tmp_path / "map")
    section = PAGE.read_text(encoding="utf-8").split("## Stores without a backend")[1].split("\n## ")[0]
    commands = re.findall(r"congruence transform map (\w+)\.jsonl:([\w.]+) ([^\n]*)", section)
    written = dumps()
    assert {name for name, _, _ in commands} == written.keys()
    for name, path, rest in commands:
        text = "".join(json.dumps(one, ensure_ascii=False) + "\n" for one in written[name])
        (tmp_path / f"{name}.jsonl").write_text(text, encoding="utf-8")
        here(f"transform map {name}.jsonl:{path} {rest}").ends(0)
        made = [json.loads(line) for line in (tmp_path / "new.jsonl").read_text(encoding="utf-8").splitlines()]
        (tmp_path / "new.jsonl").unlink()
        vectors = np.array([at(one, path) for one in made], np.float32)
        np.testing.assert_allclose(vectors, rotation().transform(unit(N, OLD, 3)), atol=1e-6)
        for before, after in zip(written[name], made, strict=True):  # all else is as before
            parent, _, last = path.rpartition(".")
            for one in (before, after):
                (at(one, parent) if parent else one).pop(last)
            after = after if "id" in before else {key: value for key, value in after.items() if key != "id"}
            assert after == before


class Redis:
    """The part of the redis package that the page uses, over a socket."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.file = self.socket.makefile("rb")

    def call(self, *words):
        parts = [word if isinstance(word, bytes) else str(word).encode() for word in words]
        self.socket.sendall(b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(one), one) for one in parts))
        return self.answer()

    def answer(self):
        kind, rest = (line := self.file.readline().rstrip())[:1], line[1:]
        if kind == b"$":
            return None if rest == b"-1" else self.file.read(int(rest) + 2)[:-2]
        return [self.answer() for _ in range(int(rest))] if kind == b"*" else rest

    def scan_iter(self, match):
        return self.call("KEYS", match)

    def hget(self, key, field):
        return self.call("HGET", key, field)

    def hset(self, key, field, value):
        return self.call("HSET", key, field, value)


@pytest.mark.skipif(shutil.which("redis-server") is None, reason="needs redis-server")
def test_hashes_of_a_redis_server(here, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen(["redis-server", "--port", str(port), "--save", ""], stdout=subprocess.DEVNULL)
    try:
        for _ in range(200):
            try:
                client = Redis(port)
                break
            except OSError:
                time.sleep(0.05)
        for k, vector in enumerate(unit(N, OLD, 3)):
            client.hset(f"doc:{k}", "title", f"t{k}")
            client.hset(f"doc:{k}", "embedding", vector.tobytes())
        section = PAGE.read_text(encoding="utf-8").split("## Stores without a backend")[1].split("\n## ")[0]
        (code,) = re.findall(r"```python\n(.*?)```", section, flags=re.S)
        export, load = re.sub(r"^client = .*$|^import redis$", "", code, flags=re.M).split("# congruence")
        rotation().save(tmp_path / "map")
        names = {"client": client}
        exec(export, names)
        here(load.splitlines()[0].strip()).ends(0)
        exec("\n".join(load.splitlines()[1:]), names)
        for k, vector in enumerate(rotation().transform(unit(N, OLD, 3))):
            found = np.frombuffer(client.hget(f"doc:{k}", "embedding_new"), np.float32)
            np.testing.assert_allclose(found, vector, atol=1e-6)
            assert client.hget(f"doc:{k}", "embedding") == unit(N, OLD, 3)[k].tobytes()
    finally:
        server.terminate()
        server.wait(30)
