"""Files behind a URL: read like local ones over a bad network, refused in a sentence, and no secret is shown."""

import http.server
import io
import json
import logging
import re
import threading
from base64 import b64encode
from pathlib import Path

import fsspec
import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from congruence import OrthogonalMap, errors
from congruence.io import contents, locations, matrices, open_source, parse_spec, read_column, read_embeddings
from congruence.upgrade.transform import transform_file

RNG = np.random.default_rng(6)
X = RNG.standard_normal((3000, 64)).astype(np.float32)
IDS = [f"i{k}" for k in range(3000)]

pytest.importorskip("aiohttp", reason="the lowest versions are tested without it")


class Server(http.server.ThreadingHTTPServer):
    """Serves files by ranges, and can cut connections, fail, and ask for a password."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files, self.asked, self.sent = {}, [], 0
        self.cuts, self.answers, self.password, self.ranges = 0, [], None, True

    def handle_error(self, *_):
        """Clients go away when a test ends."""

    def url(self, name):
        return f"http://127.0.0.1:{self.server_port}/{name}"


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self.do_GET()

    def answer(self, status, **headers):
        self.send_response(status)
        for name, value in ({"Content_Length": 0} | headers).items():
            self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()

    def do_GET(self):
        server, content = self.server, self.server.files.get(self.path.split("?")[0][1:])
        server.asked.append(self.path)
        if content is None:
            self.answer(404)
        elif server.password and self.headers.get("Authorization") != server.password:
            self.answer(401)
        elif server.answers and self.command == "GET":
            self.answer(server.answers.pop())
        else:
            wanted = re.match(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")) if server.ranges else None
            first, last = (int(wanted[1]), int(wanted[2] or len(content))) if wanted else (0, len(content))
            part = content[first : last + 1]
            facts = {"Content-Range": f"bytes {first}-{first + len(part) - 1}/{len(content)}"} if wanted else {}
            facts |= {"Accept_Ranges": "bytes"} if server.ranges else {}
            self.answer(206 if wanted else 200, Content_Length=len(part), **facts)
            if self.command == "GET":
                cut = server.cuts > 0
                server.cuts -= cut
                part = part[: len(part) // 2] if cut else part
                server.sent += len(part)
                self.wfile.write(part)
                self.close_connection = cut


def files():
    """Return one store in several formats."""
    out = {}
    for name in ("a.parquet", "a.npy", "a.npz", "a.csv.gz", "a.h5"):
        stream = io.BytesIO()
        if name == "a.parquet":
            pq.write_table(pa.table({"id": IDS, "v": list(X)}), stream, row_group_size=500)
        elif name == "a.npy":
            np.save(stream, X)
        elif name == "a.npz":
            np.savez(stream, v=X, ids=np.array(IDS))
        elif name == "a.h5":
            with h5py.File(stream, "w") as file:
                file["v"], file["ids"] = X, np.array(IDS, "S8")
        else:
            lines = [",".join([i, *map(str, row)]) for i, row in zip(IDS, X, strict=True)]
            header = ",".join(["id", *(f"v{j}" for j in range(64))])
            stream = io.BytesIO(pa.compress("\n".join([header, *lines]).encode(), "gzip", asbytes=True))
        out[name] = stream.getvalue()
    return out


FILES = files()


@pytest.fixture
def server(monkeypatch):
    """A server of these files; waits between attempts are short."""
    monkeypatch.setattr(locations, "_WAITS", (0.01, 0.01, 0.01, 0.01))
    locations._copied.cache_clear()
    locations._connect.cache_clear()
    with Server() as one:
        one.files = dict(FILES)
        thread = threading.Thread(target=one.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        yield one
        one.shutdown()
    locations._copied.cache_clear()


@pytest.mark.parametrize("name", [*FILES])
def test_a_file_behind_a_url_is_read_over_a_bad_network(name, server):
    server.cuts, server.answers = 2, [503, 429]
    found = read_embeddings(server.url(name))
    np.testing.assert_array_equal(found.vectors.astype(np.float32), X)
    assert name == "a.npy" or found.ids.tolist() == IDS
    assert server.cuts == 0
    assert server.answers == []


def test_a_key_a_column_and_the_contents_of_a_url(server):
    assert open_source(server.url("a.parquet:v")).n == 3000
    assert [*matrices(server.url("a.npz"))] == ["v"]
    assert contents(server.url("a.parquet"))["id"] == "3000"
    assert contents(server.url("a.npz:v")) == {"v": "3000 × 64"}
    assert read_column(server.url("a.parquet:id"))[-1] == "i2999"
    assert read_embeddings(server.url("a.npy"), ids=server.url("a.parquet:id")).ids[0] == "i0"
    with pytest.raises(errors.ParameterError, match="Got column 'w'"):
        open_source(server.url("a.parquet:w"))
    ids, rows = open_source(server.url("a.parquet")).take([2999, 3])
    assert ids.to_pylist() == ["i2999", "i3"]
    np.testing.assert_array_equal(rows, X[[2999, 3]])


def test_a_cut_connection_is_resumed_where_it_stopped(server, monkeypatch):
    monkeypatch.setattr(locations, "_PIECE", 2**20)
    server.files["large.npy"] = server.files["a.npy"][:128] + RNG.bytes(2**25)
    local = Path(parse_spec(server.url("large.npy"))[0])
    alone = server.sent
    locations._copied.cache_clear()
    server.sent, server.cuts = 0, 3
    assert local.name == "large.npy"
    assert Path(parse_spec(server.url("large.npy"))[0]).read_bytes() == server.files["large.npy"]
    assert server.sent < alone * 1.7  # three times half of a block of five megabytes more, not of the file


def test_a_url_is_mapped_and_paired_by_commands(server, tmp_path, here):
    OrthogonalMap().fit(X, X[:, ::-1]).save(tmp_path / "map")
    for name in ("a.parquet", "a.npz:v"):
        report = json.loads(here("transform", "map", server.url(name), "-o", f"out.{name[2:5]}", "--json").ends(0).out)
        assert report["rows"] == 3000
    np.testing.assert_allclose(read_embeddings(tmp_path / "out.npz").vectors[:, ::-1], X, atol=1e-4)
    np.savez(tmp_path / "new.npz", v=X[:, ::-1], ids=np.array(IDS))
    assert "id" in here("fit", server.url("a.npz:v"), "new.npz:v", "-o", "other").ends(0).out
    assert "3000 × 64" in here("inspect", server.url("a.npz")).ends(0).out


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("missing", "No file at"),
        ("cut", "not completed"),
        ("password", "the server answers 401"),
        ("no ranges", "range requests"),
        ("damaged", "damaged"),
        ("nobody", "Cannot connect"),
    ],
)
@pytest.mark.parametrize("name", ["a.parquet", "a.npz"])
def test_what_a_url_cannot_give_is_refused_in_a_sentence(how, words, name, server, tmp_path, here):
    OrthogonalMap().fit(X, X[:, ::-1]).save(tmp_path / "map")
    url = server.url(f"{name}?X-Amz-Signature=s3cr3t")
    server.cuts, server.password, server.ranges = 10**9 * (how == "cut"), "x" * (how == "password"), how != "no ranges"
    if how == "missing":
        del server.files[name]
    if how == "damaged":
        server.files[name] = server.files[name][:5000]
    if how == "nobody":
        url = url.replace(str(server.server_port), "1")
    if how == "no ranges" and name == "a.npz":  # it is read from front to back
        assert here("inspect", url).ends(0)
        return
    words = "not completed" if how == "cut" else words
    for command in (("inspect", url), ("transform", "map", url, "-o", "out")):
        done = here(*command).ends(2)
        assert words in done.err
        assert "s3cr3t" not in done.err + done.out
        assert len(done.err.strip().splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_a_password_comes_from_its_usual_place_alone(server, tmp_path, monkeypatch, here):
    server.password = "Basic " + b64encode(b"me:s3cr3t").decode()
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login me password s3cr3t\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    url, log = server.url("a.parquet?sig=t0k3n"), io.StringIO()
    handler = logging.StreamHandler(log)
    logging.getLogger().addHandler(handler)
    source = open_source(url)
    assert source.read().vectors.shape == X.shape
    assert "t0k3n" not in source.path
    assert "t0k3n" not in parse_spec(url)[0]
    report = transform_file(OrthogonalMap().fit(X, X[:, ::-1]), source, tmp_path / "out.parquet")
    assert report.rows == 3000
    written = "".join(
        path.read_text(errors="replace") for path in tmp_path.rglob("*") if path.is_file() and path != netrc
    )
    done = here("inspect", url).ends(0)
    logging.getLogger().removeHandler(handler)
    for secret in ("t0k3n", "s3cr3t"):
        assert secret not in done.out + done.err + log.getvalue() + written
    done = here("inspect", server.url("a.parquet").replace("//", "//me:s3cr3t@")).ends(2)
    assert ".netrc" in done.err
    assert "s3cr3t" not in done.err


def test_other_schemes_are_those_of_fsspec(here):
    class Hub(fsspec.get_filesystem_class("memory")):
        """Stands for the Hub."""

        protocol, store, pseudo_dirs = "hf", {}, [""]

    fsspec.register_implementation("hf", Hub, clobber=True)
    locations._connect.cache_clear()
    for scheme in ("hf", "memory"):
        files = fsspec.filesystem(scheme)
        for name in ("a.parquet", "a.npz"):
            files.pipe(f"/datasets/me/shop/{name}", FILES[name])
            found = read_embeddings(f"{scheme}://datasets/me/shop/{name}")
            np.testing.assert_array_equal(found.vectors, X)
        assert (
            f"No file at {scheme}://datasets/me/b.npz" in here("inspect", f"{scheme}://datasets/me/b.npz").ends(2).err
        )
        files.pipe(f"/datasets/folder.npz/{name}", b"")
        assert "is a folder" in here("inspect", f"{scheme}://datasets/folder.npz").ends(2).err
        files.store.clear()
    locations._connect.cache_clear()


def test_a_missing_client_is_named_with_what_installs_it(monkeypatch):
    locations._connect.cache_clear()

    def missing(*_, **__):
        raise ImportError("Please install s3fs")

    monkeypatch.setattr(fsspec, "filesystem", missing)
    with pytest.raises(errors.MissingExtraError, match=r"pip install 'congruence\[remote\]'"):
        read_embeddings("https://127.0.0.1:1/a.parquet")
    locations._connect.cache_clear()


@pytest.fixture
def bucket(monkeypatch):
    """Serve a bucket on this machine; its credentials are in the environment, where AWS's clients look for them."""
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "engines")
    from s3_server import s3_server

    with s3_server() as server:
        names = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "us-east-1"}
        names["AWS_EC2_METADATA_DISABLED"] = "true"
        for name, value in {**names, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.server_port}"}.items():
            monkeypatch.setenv(name, value)
        yield server


@pytest.mark.parametrize("name", ["a.parquet", "a.npy", "a.npz", "a.csv.gz", "a.h5"])
def test_a_file_in_a_bucket_is_read_listed_and_mapped(name, bucket, tmp_path, here):
    bucket.objects["bucket"][f"some/{name}"] = FILES[name]
    url = f"s3://bucket/some/{name}"
    found = read_embeddings(url)
    np.testing.assert_allclose(found.vectors, X, atol=1e-6)
    assert contents(url)
    OrthogonalMap().fit(X, X[:, ::-1]).save(tmp_path / "map")
    here("transform", "map", url, "-o", "out.parquet", "--normalize", "no", "--set", "check=false").ends(0)
    np.testing.assert_allclose(read_embeddings(tmp_path / "out.parquet").vectors, X[:, ::-1], atol=1e-4)
    missing = here("transform", "map", f"s3://bucket/none/{name}", "-o", "no.parquet").ends(2)
    assert "secret" not in missing.err
    assert not (tmp_path / "no.parquet").exists()
