"""Downloads against a server in this process: resumed, verified, refused. Nothing outside is reached."""

import hashlib
import io
import json
import shutil
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

pytest.importorskip("PIL.Image")

from layouts import LAYOUTS, caltech101, pets

from congruence.errors import CorruptFileError, FileError, StorageError
from congruence_papers.image_sets import DATASETS, download, download_dataset, open_dataset
from congruence_papers.image_sets.download import Resource, check_recorded, fetch, install

BODY = bytes(range(256)) * 4000  # a megabyte, more than a block
SHA = hashlib.sha256(BODY).hexdigest()
MD5 = hashlib.md5(BODY).hexdigest()


class Server:
    """Files by path, and how to misbehave."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {"/f": BODY}
        self.redirects: dict[str, str] = {}
        self.cut: int | None = None  # bytes of the body that are sent before the connection breaks
        self.ranges = True
        self.lengths = True
        self.asked: list[tuple[str, str | None]] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.asked.append((self.path, self.headers.get("Range")))
                if self.path in server.redirects:
                    self.send_response(302)
                    self.send_header("Location", server.redirects[self.path])
                    self.end_headers()
                    return
                if self.path not in server.files:
                    self.send_error(404)
                    return
                body = server.files[self.path]
                wanted = self.headers.get("Range") if server.ranges else None
                begin = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted else 0
                if wanted and begin >= len(body):
                    self.send_error(416)
                    return
                self.send_response(206 if wanted else 200)
                if wanted:
                    self.send_header("Content-Range", f"bytes {begin}-{len(body) - 1}/{len(body)}")
                if server.lengths:
                    self.send_header("Content-Length", str(len(body) - begin))
                self.end_headers()
                end = len(body) if server.cut is None else begin + server.cut
                with suppress(ConnectionError):  # who is refused by a length hangs up
                    self.wfile.write(body[begin:end])

            def log_message(self, *_: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}"
        threading.Thread(target=self.http.serve_forever, args=(0.02,), daemon=True).start()


@pytest.fixture
def server(monkeypatch) -> Iterator[Server]:
    monkeypatch.setattr(download, "SCHEMES", ("http",))  # a certificate would be needed for more
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    server = Server()
    yield server
    server.http.shutdown()
    server.http.server_close()


def resource(server: Server, path: str = "/f", **facts) -> Resource:
    known = {"path": "f", "creates": "f", "size": len(BODY), "sha256": SHA}
    return Resource(**{"url": server.url + path, **known, **facts})


def test_a_download_is_the_file(server, tmp_path):
    seen: list[int] = []
    fetch(resource(server, md5=MD5), tmp_path / "f", seen.append)
    assert (tmp_path / "f").read_bytes() == BODY
    assert sum(seen) == len(BODY)
    assert len(seen) > 2
    assert [p.name for p in tmp_path.iterdir()] == ["f"]


def test_a_file_that_is_there_is_verified_and_not_fetched(server, tmp_path):
    (tmp_path / "f").write_bytes(BODY)
    fetch(resource(server), tmp_path / "f")
    (tmp_path / "f").write_bytes(BODY[:-1] + b"?")
    with pytest.raises(CorruptFileError, match=r"sha256 .*expected " + SHA):
        fetch(resource(server), tmp_path / "f")
    assert (tmp_path / "f").exists()  # the user's file is not ours to delete
    assert server.asked == []


@pytest.mark.parametrize("lengths", [True, False])
def test_an_interrupted_download_goes_on_where_it_stopped(lengths, server, tmp_path):
    server.cut, server.lengths = 300_000, lengths
    with pytest.raises(FileError, match=r"300000 of 1024000 bytes .*where it stopped"):
        fetch(resource(server), tmp_path / "f")
    assert not (tmp_path / "f").exists()
    server.cut = None
    seen: list[int] = []
    fetch(resource(server), tmp_path / "f", seen.append)
    assert (tmp_path / "f").read_bytes() == BODY
    assert server.asked == [("/f", None), ("/f", "bytes=300000-")]
    assert seen[0] == 300_000
    assert sum(seen) == len(BODY)


@pytest.mark.parametrize(
    ("part", "facts", "asked"),
    [
        (b"?" * 1000, {}, [("/f", "bytes=1000-"), ("/f", None)]),  # of another file: given up once
        (BODY, {}, []),  # whole
        *((b"?" * length, {"size": None}, None) for length in (len(BODY), len(BODY) + 5)),  # long enough already
        (BODY[:1000], None, None),  # and a server without ranges, which begins again
    ],
)
def test_what_was_downloaded_before_is_used_if_it_can_be(part, facts, asked, server, tmp_path):
    (tmp_path / "f.part").write_bytes(part)
    server.ranges = facts is not None
    fetch(resource(server, **(facts or {})), tmp_path / "f")
    assert (tmp_path / "f").read_bytes() == BODY
    assert asked is None or server.asked == asked


@pytest.mark.parametrize("wrong", [{"sha256": "0" * 64}, {"sha256": None, "md5": "0" * 32}])
def test_a_wrong_checksum_leaves_nothing(wrong, server, tmp_path):
    for _ in range(2):
        with pytest.raises(CorruptFileError, match="expected 0000"):
            fetch(resource(server, **wrong), tmp_path / "f")
        assert list(tmp_path.iterdir()) == []
        (tmp_path / "f.part").write_bytes(BODY[:10])


@pytest.mark.parametrize("size", [len(BODY) - 1, len(BODY) + 1])
def test_a_wrong_size_is_refused_before_it_is_fetched(size, server, tmp_path):
    with pytest.raises(CorruptFileError, match=f"file of {len(BODY)} bytes .*expected {size}"):
        fetch(resource(server, size=size), tmp_path / "f")
    server.lengths = False
    with pytest.raises(FileError, match=f"{len(BODY)} of {size}|more than {size}"):
        fetch(resource(server, size=size), tmp_path / "f")
    assert not (tmp_path / "f").exists()


def test_a_flood_is_stopped(server, tmp_path, monkeypatch):
    monkeypatch.setattr(download, "SMALL", 500_000)
    for server.lengths in (True, False):
        with pytest.raises(CorruptFileError, match="500000"):
            fetch(resource(server, size=None), tmp_path / "f")
        assert list(tmp_path.iterdir()) == []


def test_what_is_not_there_is_said_with_what_to_do(server, tmp_path):
    wanted = rf"{server.url}/none \({len(BODY)} bytes, sha256 {SHA}\)"
    with pytest.raises(FileError, match=f"404 .*fetch {wanted}.*{tmp_path}"):
        fetch(resource(server, "/none"), tmp_path / "f")


def test_offline_it_is_said_what_to_put_where(server, tmp_path):
    server.http.shutdown()
    server.http.server_close()
    with pytest.raises(FileError, match=rf"no answer .*where it stopped.*put it at {tmp_path / 'f'} and run this"):
        fetch(resource(server), tmp_path / "f")


@pytest.mark.parametrize(
    ("elsewhere", "words"),
    [
        ("https://127.0.0.1/f", "expected http. "),
        ("ftp://127.0.0.1/f", "expected http. "),
        ("file:///etc/passwd", "HTTP status 302"),  # which urllib refuses by itself
    ],
)
def test_redirects_keep_their_scheme(elsewhere, words, server, tmp_path):
    server.redirects["/away"] = elsewhere
    with pytest.raises(FileError, match=words):
        fetch(resource(server, "/away"), tmp_path / "f")
    assert list(tmp_path.iterdir()) == []


def test_redirects_within_the_scheme_are_followed_and_resume(server, tmp_path):
    server.redirects["/away"] = server.url + "/f"
    (tmp_path / "f.part").write_bytes(BODY[:10])
    fetch(resource(server, "/away"), tmp_path / "f")
    assert (tmp_path / "f").read_bytes() == BODY
    assert server.asked[-1] == ("/f", "bytes=10-")


@pytest.mark.parametrize("url", ["http://127.0.0.1/f", "file:///etc/passwd", "ftp://127.0.0.1/f", "/etc/passwd"])
def test_only_https_unless_a_test_says_otherwise(url, tmp_path):
    with pytest.raises(FileError, match="expected https"):
        fetch(Resource(url=url, path="f", creates="f", sha256=SHA), tmp_path / "f")


def test_without_a_published_checksum_the_first_is_kept(server, tmp_path):
    """Trust on first use: a later change is noticed, the first file is only checked for its form."""
    seen: list[Path] = []
    plain = resource(server, size=None, sha256=None, check=seen.append)
    fetch(plain, tmp_path / "f")
    assert seen == [tmp_path / "f.part"]
    assert (tmp_path / "f.sha256").read_text() == f"{SHA}  f\n"
    check_recorded(tmp_path / "f")
    (tmp_path / "f").write_bytes(b"another")
    with pytest.raises(CorruptFileError, match=r"f\.sha256"):
        check_recorded(tmp_path / "f")
    (tmp_path / "f.sha256").write_bytes(b"")
    with pytest.raises(CorruptFileError, match=r"f\.sha256"):
        check_recorded(tmp_path / "f")
    (tmp_path / "f.sha256").unlink()
    check_recorded(tmp_path / "f")


def test_a_full_disk_is_no_matter_of_the_network(server, tmp_path, monkeypatch):
    (tmp_path / "f.part").mkdir()
    with pytest.raises(StorageError, match="error from the disk"):
        download._write(io.BytesIO(BODY), tmp_path / "f.part", 0, len(BODY), "u", None)
    with pytest.raises(StorageError):
        install(resource(server, path="x/f", creates="y"), Path("/proc/nowhere"))


def packed(folder: Path, names: list[str], prefix: str = "") -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for name in names:
            archive.add(folder / name, arcname=prefix + name)
    return out.getvalue()


def facts(content: bytes) -> dict:
    return {"size": len(content)} | {kind: hashlib.new(kind, content).hexdigest() for kind in ("md5", "sha256")}


def served(server: Server, monkeypatch, name: str, contents: dict[str, bytes]) -> None:
    """Let a data set come from the test's server, under the archive's own name, with its own checksums."""

    def here(old: Resource) -> Resource:
        file = Path(old.path).name
        if file not in contents:
            return old
        server.files[f"/{file}"] = contents[file]
        known = facts(contents[file]) if old.checksums else {}
        inner = None if old.inner is None else replace(old.inner, **facts(contents[Path(old.inner.path).name]))
        return replace(old, url=f"{server.url}/{file}", inner=inner, **known)

    entry = DATASETS[name]
    monkeypatch.setitem(DATASETS, name, replace(entry, resources=tuple(here(r) for r in entry.resources)))


def contents(name: str, home: Path) -> dict[str, bytes]:
    """Pack a small data set as its official archives are packed."""
    everything = sorted(p.name for p in home.iterdir() if p.suffix != ".json")
    split = {p.name: p.read_bytes() for p in home.glob("*.json")}
    if name == "pets":
        return {f"{part}.tar.gz": packed(home, [part]) for part in ("images", "annotations")} | split
    if name == "caltech101":
        inner = packed(home, ["101_ObjectCategories"])
        outer = io.BytesIO()
        with zipfile.ZipFile(outer, "w") as archive:
            archive.writestr("caltech-101/101_ObjectCategories.tar.gz", inner)
            archive.writestr("caltech-101/show_annotation.m", b"%")
            archive.writestr("__MACOSX/caltech-101/._Annotations.tar", b"?")
        return {"caltech-101.zip": outer.getvalue(), "101_ObjectCategories.tar.gz": inner} | split
    archive = Path(DATASETS[name].resources[0].path).name
    return {archive: packed(home, everything, f"{home.name}/")} | split


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_data_set_from_its_archives(name, server, tmp_path, monkeypatch):
    build, folder = LAYOUTS[name]
    home = build(tmp_path / "made" / folder)
    if name == "stl10":
        (home / "unlabeled_X.bin").write_bytes(b"\0" * 27648)
    served(server, monkeypatch, name, contents(name, home))
    root = tmp_path / "root"
    data = open_dataset(name, root, download=True, complete=False)
    expected = open_dataset(name, tmp_path / "made", complete=False)
    assert data.ids.tolist() == expected.ids.tolist()
    assert data.labels.tolist() == expected.labels.tolist()
    assert data.image(0).tobytes() == expected.image(0).tobytes()
    assert not list(root.rglob("unlabeled_X.bin"))
    assert not list(root.rglob(".unpacking-*"))
    assert not list(root.rglob("__MACOSX"))
    asked = len(server.asked)
    assert download_dataset(name, root) == []
    assert len(server.asked) == asked


def test_archives_put_there_by_hand_need_no_network(server, tmp_path, monkeypatch):
    packs = contents("caltech101", caltech101(tmp_path / "made"))
    served(server, monkeypatch, "caltech101", packs)
    root = tmp_path / "root"
    (root / "caltech-101").mkdir(parents=True)
    # as it was distributed before the zip
    (root / "caltech-101" / "101_ObjectCategories.tar.gz").write_bytes(packs["101_ObjectCategories.tar.gz"])
    (root / "caltech-101" / "split_zhou_Caltech101.json").write_bytes(packs["split_zhou_Caltech101.json"])
    assert download_dataset("caltech101", root) == [str(root / "caltech-101" / "101_ObjectCategories")]
    assert server.asked == []
    assert len(open_dataset("caltech101", root, complete=False)) == 3


def test_what_lies_elsewhere_is_completed_there(server, tmp_path, monkeypatch):
    """torchvision's layout, a relative root, and only the split file missing."""
    home = pets(tmp_path / "made")
    served(server, monkeypatch, "pets", contents("pets", home))
    shutil.copytree(home, tmp_path / "root" / "oxford-iiit-pet")
    (tmp_path / "root" / "oxford-iiit-pet" / "split_zhou_OxfordPets.json").unlink()
    monkeypatch.chdir(tmp_path)
    (made,) = download_dataset("pets", "root")
    assert Path(made) == tmp_path / "root" / "oxford-iiit-pet" / "split_zhou_OxfordPets.json"
    assert server.asked == [("/split_zhou_OxfordPets.json", None)]
    assert len(open_dataset("pets", "root", "train", complete=False)) == 6


def test_a_split_changed_after_its_download_is_noticed(server, tmp_path, monkeypatch):
    served(server, monkeypatch, "pets", contents("pets", pets(tmp_path / "made")))
    download_dataset("pets", tmp_path)
    split = tmp_path / "oxford_pets" / "split_zhou_OxfordPets.json"
    split.write_bytes(split.read_bytes().replace(b"maine_coon", b"maine_coin"))
    with pytest.raises(CorruptFileError, match="which has changed since it was downloaded"):
        open_dataset("pets", tmp_path, complete=False)


def test_a_sign_in_page_is_no_split(server, tmp_path, monkeypatch):
    packs = contents("pets", pets(tmp_path / "made"))
    packs["split_zhou_OxfordPets.json"] = b"<!DOCTYPE html><html>Google Drive can't scan this file</html>"
    served(server, monkeypatch, "pets", packs)
    with pytest.raises(CorruptFileError, match="split file of CoOp"):
        download_dataset("pets", tmp_path / "root")
    assert not (tmp_path / "root" / "oxford_pets" / "split_zhou_OxfordPets.json").exists()


def test_an_archive_with_something_else_in_it(server, tmp_path, monkeypatch):
    (tmp_path / "other").mkdir()
    served(server, monkeypatch, "cifar100", {"cifar-100-binary.tar.gz": packed(tmp_path, ["other"])})
    with pytest.raises(CorruptFileError, match=r"without cifar-100-binary"):
        download_dataset("cifar100", tmp_path / "root")


def test_the_command_lists_what_is_known_and_found(here, tmp_path):
    build, folder = LAYOUTS["dtd"]
    build(tmp_path / "data" / folder)
    out = json.loads(here("lab datasets", "--json").out)["datasets"]
    assert [row["name"] for row in out] == list(DATASETS)
    assert {row["name"]: row["found"] for row in out if row["found"]} == {"dtd": "data/dtd"}
    table = here("lab datasets").out
    for words in ("train 2,820, val 1,128, test 1,692", "data/dtd", "811 MB", "Caltech-101"):
        assert words in table


def test_the_command_downloads(here, server, tmp_path, monkeypatch):
    served(server, monkeypatch, "pets", contents("pets", pets(tmp_path / "made")))
    report = json.loads(here("lab datasets", "pets", "--root", "there", "--download", "--json").out)
    assert report["made"] == [f"there/oxford_pets/{n}" for n in ("images", "annotations", "split_zhou_OxfordPets.json")]
    assert report["found"] == "there/oxford_pets"
    described = here("lab datasets", "pets", "--root", "there", "--download").out
    assert "the checksum of the first download is recorded" in described
    assert "written" not in described


def test_the_command_refuses_in_one_sentence(here):
    for arguments, words in (
        (("imagenet",), "'imagenet'; expected one of 'pets'"),
        (("--download",), "without a data set"),
        (("folder", "--download"), "nothing to download"),
    ):
        here("lab datasets", *arguments).refused(words)
