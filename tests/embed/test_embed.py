"""From items to a file, with an encoder whose vectors can be told by hand."""

import csv
import json
import multiprocessing
import os
import shutil
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from congruence import Space, errors, read_embeddings
from congruence.embed import VectorCache, embed, open_items
from congruence.encoders import Encoder
from congruence.io import matrices
from fresh import run_fresh

COLOURS = [(7 * k % 256, 11 * k % 256, 13 * k % 256) for k in range(1, 12)]


class Colours(Encoder):
    """The mean colour of a picture, or the first letters of a text; counts what it sees."""

    def __init__(self, modality="image", fingerprint="f" * 64, n_layers=None, stop_after=None):
        dim = 3 * (n_layers or 1)
        self.space = Space(f"colours{'#layer=all' if n_layers else ''}", "1", modality, dim, False, "a ")
        self.fingerprint, self.n_layers, self.seen, self.stop_after = fingerprint, n_layers, 0, stop_after

    def _embed(self, items):
        if self.stop_after is not None and self.seen >= self.stop_after:
            raise KeyboardInterrupt
        self.seen += len(items)
        if self.space.modality == "image":
            one = np.array([np.asarray(item).reshape(-1, 3).mean(0) for item in items])
        else:
            one = np.array([[ord(letter) for letter in f"{item}   "[:3]] for item in items], dtype=float)
            one[np.array(items) == "bad"] = np.nan
        return np.hstack([one * (k + 1) for k in range(self.n_layers or 1)])


@pytest.fixture
def pictures(tmp_path):
    folder = tmp_path / "pictures"
    for k, colour in enumerate(COLOURS):
        place = folder / ("odd" if k % 2 else "even")
        place.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 5), colour).save(place / f"{k:02}.png")
    (folder / "notes.txt").write_text("no picture")
    (folder / ".hidden.png").write_text("no picture")
    return folder


def order(pictures):
    names = sorted(p.relative_to(pictures).as_posix() for p in pictures.rglob("[0-9]*.png"))
    return names, np.array([COLOURS[int(name[-6:-4])] for name in names], dtype=np.float32)


def interrupt(pictures, out, **options):
    with pytest.raises(KeyboardInterrupt):
        embed(Colours(stop_after=8), open_items(pictures), out, **options)


@pytest.mark.parametrize("suffix", [".parquet", ".npz", ".csv", ".jsonl", ".h5", ""])
def test_a_folder_of_images_keeps_its_paths_as_ids(pictures, tmp_path, suffix):
    out = tmp_path / f"out{suffix}"
    report = embed(Colours(), open_items(pictures), out, batch_size=3)
    names, want = order(pictures)
    got = read_embeddings(out)
    assert got.ids.tolist() == names
    np.testing.assert_array_equal(got.vectors, want)
    assert got.space == Space("colours", "1", "image", 3, False, "a ")
    assert report.to_dict().items() >= {"rows": 11, "dim": 3, "encoded": 11, "cached": 0, "failures": []}.items()
    left = {p.name for p in tmp_path.iterdir()} - {"pictures", out.name, f"{out.name}.space.json"}
    assert not left


@pytest.mark.parametrize("suffix", [".npy", ".safetensors"])
def test_formats_without_ids_get_a_file_of_them(pictures, tmp_path, suffix):
    report = embed(Colours(), open_items(pictures), tmp_path / f"out{suffix}")
    got = read_embeddings(report.output, ids=report.ids)
    assert got.ids.tolist() == order(pictures)[0]
    np.testing.assert_array_equal(got.vectors, order(pictures)[1])


def test_shards_are_the_parts_of_the_output_folder(pictures, tmp_path):
    embed(Colours(), open_items(pictures), tmp_path / "out", shard_size=4)
    assert [pq.read_metadata(p).num_rows for p in sorted((tmp_path / "out").glob("*.parquet"))] == [4, 4, 3]
    assert read_embeddings(tmp_path / "out").ids.tolist() == order(pictures)[0]


def test_every_layer_becomes_a_file_of_its_own(pictures, tmp_path):
    report = embed(Colours(n_layers=11), open_items(pictures), tmp_path / "out", batch_size=4)
    assert (report.layers, report.dim) == (11, 3)
    layers = matrices(tmp_path / "out")
    assert list(layers) == [f"layer_{k}" for k in range(11)]
    for k, spec in enumerate(layers.values()):
        got = read_embeddings(spec)
        np.testing.assert_array_equal(got.vectors, order(pictures)[1] * (k + 1))
        assert got.space.model == f"colours#layer={k}"
        assert got.ids.tolist() == order(pictures)[0]
    with pytest.raises(errors.ParameterError, match="an encoder of all layers and the single output file"):
        embed(Colours(n_layers=2), open_items(pictures), tmp_path / "x.parquet")


def test_a_run_that_stops_goes_on_after_its_last_part(pictures, tmp_path):
    out = tmp_path / "out"
    interrupt(pictures, out, batch_size=2, shard_size=4)
    assert not out.exists()
    encoder, seen = Colours(), []
    report = embed(encoder, open_items(pictures), out, batch_size=2, shard_size=4, callback=seen.append)
    assert (report.resumed, report.encoded, encoder.seen) == (8, 3, 3)
    assert seen == [4, 4, 2, 1]
    np.testing.assert_array_equal(read_embeddings(out).vectors, order(pictures)[1])
    assert not (tmp_path / ".out.parts").exists()


def test_only_vectors_of_the_same_items_and_encoder_are_taken_over(pictures, tmp_path):
    out = tmp_path / "out"

    interrupt(pictures, out, batch_size=4, shard_size=4)
    names, want = order(pictures)
    Image.new("RGB", (4, 5), (200, 100, 50)).save(pictures / names[5])  # in the second part
    want[5] = 200, 100, 50
    report = embed(Colours(), open_items(pictures), out, batch_size=4, shard_size=4)
    assert (report.resumed, report.encoded) == (7, 4)
    np.testing.assert_array_equal(read_embeddings(out).vectors, want)
    other = tmp_path / "other"
    interrupt(pictures, other, batch_size=4, shard_size=4)
    report = embed(Colours(fingerprint="0" * 64), open_items(pictures), other, batch_size=4, shard_size=4)
    assert (report.resumed, report.encoded) == (0, 11)


def test_a_killed_process_loses_nothing_finished(pictures, tmp_path):
    script = f"""
import os, sys
sys.path[:0] = [{os.path.dirname(__file__)!r}, {os.path.dirname(os.path.dirname(__file__))!r}]
from test_embed import Colours, embed, open_items
class Killed(Colours):
    def _embed(self, items):
        if self.seen >= 6:
            os.kill(os.getpid(), 9)
        return super()._embed(items)
embed(Killed(), open_items({str(pictures)!r}), {str(tmp_path / "out")!r}, batch_size=3, shard_size=3)
"""
    assert run_fresh(script).returncode == -9
    report = embed(Colours(), open_items(pictures), tmp_path / "out", batch_size=3, shard_size=3)
    assert (report.resumed, report.encoded) == (6, 5)
    np.testing.assert_array_equal(read_embeddings(tmp_path / "out").vectors, order(pictures)[1])


def test_the_same_item_is_encoded_once_for_each_encoder(pictures, tmp_path):
    names, want = order(pictures)
    cache = tmp_path / "deep" / "cache"
    first = embed(Colours(), open_items(pictures), tmp_path / "a.npz", cache=cache)
    assert (first.encoded, first.cached) == (11, 0)
    moved = tmp_path / "moved"
    pictures.rename(moved)
    Image.new("RGB", (4, 5), (1, 2, 3)).save(moved / "new.png")
    encoder = Colours()
    again = embed(encoder, open_items(moved), tmp_path / "b.npz", batch_size=5, cache=cache)
    assert (again.encoded, again.cached, encoder.seen) == (1, 11, 1)
    np.testing.assert_array_equal(read_embeddings(tmp_path / "b.npz").take(names).vectors, want)
    other = embed(Colours(fingerprint="0" * 64), open_items(moved), tmp_path / "c.npz", cache=cache)
    assert (other.encoded, other.cached) == (12, 0)
    assert len(list(cache.glob("*.sqlite"))) == 2


def test_equal_items_of_one_batch_are_encoded_once(tmp_path):
    (tmp_path / "t.csv").write_text("text\n" + "cat\ndog\ncat\nbad\nbad\ncat\n")
    encoder = Colours("text")
    report = embed(encoder, open_items(tmp_path / "t.csv"), tmp_path / "o.npz", cache=tmp_path / "c", on_error="skip")
    assert (report.rows, report.encoded, report.cached) == (4, 2, 2)
    assert [failure["id"] for failure in report.failures] == ["3", "4"]
    got = read_embeddings(tmp_path / "o.npz")
    assert got.ids.tolist() == ["0", "1", "2", "5"]
    np.testing.assert_array_equal(got.vectors[:, 0], [99, 100, 99, 99])


def test_a_cache_survives_what_it_finds(tmp_path):
    cache = VectorCache(tmp_path, "abc", 3)
    digests = [f"{k:064}" for k in range(1200)]
    rows = np.random.default_rng(0).normal(size=(1200, 3)).astype(np.float32)
    cache.put(dict(zip(digests, rows, strict=True)))
    got = cache.get(["nothing", *digests])
    assert list(got) != []
    np.testing.assert_array_equal([got[digest] for digest in digests], rows)
    assert VectorCache(tmp_path, "abc", 4).get(digests) == {}  # of another width: as if it were not there
    # SQLite's record headers: a text of 64 bytes (0x81 0x0d) becomes bytes (0x81 0x0c), while the index still finds it.
    damaged = VectorCache(tmp_path / "damaged", "abc", 3)
    damaged.put({digests[0]: rows[0]})
    whole = damaged.path.read_bytes()
    assert whole.count(b"\x04\x81\x0d\x34") == 1
    damaged.path.write_bytes(whole.replace(b"\x04\x81\x0d\x34", b"\x04\x81\x0c\x34"))
    assert damaged.get(digests[:1]) == {}
    with sqlite3.connect(cache.path) as base:
        base.execute("DROP TABLE vectors")
    with pytest.raises(errors.StorageError, match="error from the cache"):
        cache.get(digests)
    cache.path.write_bytes(b"no database" * 100)
    with pytest.raises(errors.CorruptFileError, match="damaged cache"):
        VectorCache(tmp_path, "abc", 3)
    (tmp_path / "file").write_text("")
    with pytest.raises(errors.FileError, match="no cache folder"):
        VectorCache(tmp_path / "file", "abc", 3)


def break_one(pictures):
    names, _ = order(pictures)
    whole = (pictures / names[4]).read_bytes()
    (pictures / names[4]).write_bytes(whole[:50])
    return names[4]


@pytest.mark.parametrize("cache", [None, "cache"])
def test_corrupt_images_are_listed_and_left_out(pictures, tmp_path, cache):
    bad = break_one(pictures)
    out = tmp_path / "out"
    place = None if cache is None else tmp_path / cache
    report = embed(Colours(), open_items(pictures), out, batch_size=2, on_error="skip", shard_size=3, cache=place)
    assert [failure["id"] for failure in report.failures] == [bad]
    with open(report.failures_file, newline="") as stream:
        (row,) = csv.DictReader(stream)
    assert row["id"] == bad
    assert "cannot be decoded" in row["error"]
    names, want = order(pictures)
    keep = [k for k, name in enumerate(names) if name != bad]
    got = read_embeddings(out)
    assert got.ids.tolist() == [names[k] for k in keep]
    np.testing.assert_array_equal(got.vectors, want[keep])
    Image.new("RGB", (4, 5), (5, 5, 5)).save(pictures / bad)
    again = embed(Colours(), open_items(pictures), out, force=True)
    assert again.rows == 11
    assert again.failures_file is None
    assert not (tmp_path / "out.failures.csv").exists()


def test_failures_of_an_interrupted_run_are_remembered(pictures, tmp_path):
    bad = break_one(pictures)
    out = tmp_path / "out"
    interrupt(pictures, out, batch_size=1, on_error="skip", shard_size=3)
    with pytest.raises(errors.CorruptFileError, match="on_error='skip'"):  # but whoever wants to fail, fails
        embed(Colours(), open_items(pictures), out, batch_size=1, shard_size=3)
    report = embed(Colours(), open_items(pictures), out, batch_size=1, on_error="skip", shard_size=3)
    assert [failure["id"] for failure in report.failures] == [bad]
    assert report.rows == 10
    assert report.resumed >= 3


def test_a_corrupt_image_stops_a_run_that_should_fail(pictures, tmp_path):
    bad = break_one(pictures)
    with pytest.raises(errors.CorruptFileError, match=f"{bad}.*on_error='skip'"):
        embed(Colours(), open_items(pictures), tmp_path / "out", shard_size=2)
    assert not (tmp_path / "out").exists()
    Image.new("RGB", (4, 5), (5, 5, 5)).save(pictures / bad)
    report = embed(Colours(), open_items(pictures), tmp_path / "out", shard_size=2)
    assert (report.resumed, report.rows) == (5, 11)


def test_missing_images_are_failures_too(tmp_path):
    Image.new("RGB", (2, 2), (1, 2, 3)).save(tmp_path / "a.png")
    (tmp_path / "t.csv").write_text("path\na.png\ngone.png\n")
    with pytest.raises(errors.FileError, match=r"gone\.png"):
        embed(Colours(), open_items(tmp_path / "t.csv"), tmp_path / "o.npz")
    assert embed(Colours(), open_items(tmp_path / "t.csv"), tmp_path / "o.npz", on_error="skip").rows == 1


def test_what_the_model_refuses_is_found_in_its_batch(tmp_path):
    (tmp_path / "t.csv").write_text("id,text\na,cat\nb,bad\nc,dog\n")
    items = open_items(tmp_path / "t.csv")
    with pytest.raises(errors.NotFiniteError, match="'b'"):
        embed(Colours("text"), items, tmp_path / "o.npz")
    report = embed(Colours("text"), items, tmp_path / "o.npz", on_error="skip")
    assert [failure["id"] for failure in report.failures] == ["b"]
    assert read_embeddings(tmp_path / "o.npz").ids.tolist() == ["a", "c"]


def test_nothing_usable_is_an_error(tmp_path):
    (tmp_path / "t.csv").write_text("text\nbad\n")
    with pytest.raises(errors.CorruptFileError, match="None of the"):
        embed(Colours("text"), open_items(tmp_path / "t.csv"), tmp_path / "o.npz", on_error="skip")


def test_outputs_and_options_are_checked_before_any_work(pictures, tmp_path):
    items, encoder = open_items(pictures), Colours()
    (tmp_path / "taken.npz").write_text("")
    home = tmp_path / "home"
    home.mkdir()
    (home / "letter.doc").write_text("dear")
    cases = [
        ({"output": "taken.npz"}, errors.OutputExistsError, "taken.npz"),
        ({"output": "home", "force": True}, errors.OutputExistsError, "letter.doc"),
        ({"output": "out.xls"}, errors.ParameterError, "out.xls"),
        ({"output": "no/out.npz"}, errors.FileError, "No folder"),
        ({"output": "out.npz", "shard_size": 3}, errors.ParameterError, "a shard size and the single output file"),
        ({"output": "out", "shard_size": 0}, errors.ParameterError, "shard_size=0"),
        ({"output": "out", "batch_size": 0}, errors.ParameterError, "batch_size=0"),
        ({"output": "out", "on_error": "ignore"}, errors.ParameterError, "on_error='ignore'"),
    ]
    for options, error, message in cases:
        with pytest.raises(error, match=message):
            embed(encoder, items, tmp_path / options.pop("output"), **options)
    with pytest.raises(errors.ModalityError, match="image items.*encoder of text"):
        embed(Colours("text"), items, tmp_path / "out")
    assert encoder.seen == 0
    assert not list(tmp_path.glob(".*parts"))


def test_ids_with_line_breaks_do_not_fit_a_file_of_lines(tmp_path):
    (tmp_path / "t.jsonl").write_text(json.dumps({"id": "a\nb", "text": "cat"}) + "\n")
    with pytest.raises(errors.IdError, match="line break"):
        embed(Colours("text"), open_items(tmp_path / "t.jsonl"), tmp_path / "o.npy")


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_tables_of_texts_and_of_paths(pictures, tmp_path, kind):
    names, want = order(pictures)
    frame = pd.DataFrame({"key": [f"k{k}" for k in range(11)], "image": names, "caption": ["cat", "dog"] * 5 + ["owl"]})
    path = pictures / f"t.{kind}"
    {
        "csv": lambda: frame.to_csv(path, index=False),
        "jsonl": lambda: frame.to_json(path, orient="records", lines=True),
        "parquet": lambda: frame.to_parquet(path),
    }[kind]()
    images = open_items(path, modality="image")
    embed(Colours(), images, tmp_path / "i.parquet")
    got = read_embeddings(tmp_path / "i.parquet")
    assert got.ids.tolist() == names  # paths are ids, unless a column is named
    np.testing.assert_array_equal(got.vectors, want)
    texts = open_items(path, column="caption", id_column="key")
    assert (texts.modality, texts.ids[3], texts.fetch(10)) == ("text", "k3", "owl")
    assert open_items(path, modality="text").ids[3] == "3"
    other = open_items(path, modality="text", column="key")
    assert other.fetch(2) == "k2"
    with pytest.raises(errors.ParameterError, match="2 of which have a default name"):
        open_items(path)
    with pytest.raises(errors.ParameterError, match="'text' is not there|column='text'.*key, image, caption"):
        open_items(path, column="text")
    with pytest.raises(errors.ParameterError, match="'key'.*modality="):
        open_items(path, column="key")


def test_a_text_file_has_a_text_a_line(tmp_path):
    (tmp_path / "t.txt").write_text("cat\ndog\n")
    items = open_items(tmp_path / "t.txt")
    assert [items.fetch(row) for row in range(len(items))] == ["cat", "dog"]
    with pytest.raises(errors.ParameterError, match="texts only"):
        open_items(tmp_path / "t.txt", column="text")


def test_ids_that_repeat_are_refused(pictures, tmp_path):
    (tmp_path / "t.csv").write_text("id,text\na,cat\na,dog\n")
    with pytest.raises(errors.IdError, match="1 duplicate ids"):
        open_items(tmp_path / "t.csv")
    (tmp_path / "u.csv").write_text("path\nx.png\nx.png\n")
    with pytest.raises(errors.IdError, match="x.png"):
        open_items(tmp_path / "u.csv")


def test_inputs_that_cannot_be_read_say_why(pictures, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty.csv").write_text("text\n")
    (tmp_path / "plain.csv").write_text("a,b\n1,2\n")
    (tmp_path / "broken.jsonl").write_text("{\n")
    (tmp_path / "broken.parquet").write_text("PAR1")
    (tmp_path / "photo.jpg").write_text("")
    pq.write_table(pa.table({"text": ["cat", None]}), tmp_path / "gap.parquet")
    cases = [
        ("empty", {}, errors.FileError, "no image in"),
        ("pictures", {"modality": "text"}, errors.ParameterError, "images, audio or videos only"),
        ("pictures", {"modality": "smell"}, errors.ParameterError, "modality='smell'"),
        ("pictures", {"modality": "audio"}, errors.FileError, "no audio in"),
        ("empty.csv", {}, errors.ShapeError, "No rows"),
        ("plain.csv", {}, errors.ParameterError, "columns a, b, none of which"),
        ("broken.jsonl", {}, errors.CorruptFileError, "broken.jsonl"),
        ("broken.parquet", {}, errors.CorruptFileError, "broken.parquet"),
        ("gap.parquet", {}, errors.IdError, "missing entries"),
        ("photo.jpg", {}, errors.ParameterError, "folder of images"),
        ("nowhere.csv", {}, errors.FileError, "nothing at"),
        ("no/folder", {}, errors.FileError, "nothing at"),
    ]
    for name, options, error, message in cases:
        with pytest.raises(error, match=message):
            open_items(tmp_path / name, **options)


def test_data_sets_by_name(tmp_path, monkeypatch):
    class Data:
        ids = np.array(["x/1.jpg", "x/2.jpg"])

        def image(self, row):
            return Image.new("RGB", (2, 2), (row, row, 9))

        def prompts(self):
            return [(0, 0, "cat"), (0, 1, "a cat"), (1, 0, "dog"), (1, 1, "a dog")]

    asked = []

    def open_dataset(name, root, split="test", download=False):
        asked.append((name, str(root), split, download))
        return Data()

    monkeypatch.setattr("congruence_papers.image_sets.open_dataset", open_dataset)
    embed(Colours(), open_items("pets", root=tmp_path, split="train"), tmp_path / "i.npz")
    got = read_embeddings(tmp_path / "i.npz")
    assert asked == [("pets", str(tmp_path), "train", False)]
    assert got.ids.tolist() == ["x/1.jpg", "x/2.jpg"]
    np.testing.assert_array_equal(got.vectors, [[0, 0, 9], [1, 1, 9]])
    prompts = open_items("pets", root=tmp_path, modality="text")
    assert prompts.ids.tolist() == ["0:0", "0:1", "1:0", "1:1"]
    assert prompts.fetch(3) == "a dog"
    with pytest.raises(errors.ParameterError, match="Pass root="):
        open_items("pets")
    with pytest.raises(errors.FileError, match=r"No folder, table or data set dogs.*cifar100"):
        open_items("dogs", root=tmp_path)


def test_of_two_runs_to_one_output_one_succeeds(pictures, tmp_path):
    out = tmp_path / "out"
    barrier = threading.Barrier(2)

    def write(_):
        barrier.wait(10)
        try:
            return embed(Colours(), open_items(pictures), out, batch_size=2, shard_size=3)
        except errors.FileError:
            return None

    for _ in range(5):
        with ThreadPoolExecutor(2) as pool:
            assert len([report for report in pool.map(write, range(2)) if report]) == 1
        names, want = order(pictures)
        got = read_embeddings(out)
        assert got.ids.tolist() == names
        np.testing.assert_array_equal(got.vectors, want)
        assert {path.name for path in tmp_path.iterdir()} == {"pictures", "out"}
        shutil.rmtree(out)


@pytest.mark.parametrize(("damage", "resumed"), [("flipped", 7), ("cut", 0), ("lost", 0), ("other", 0)])
def test_damaged_vectors_of_an_earlier_run_are_encoded_again(pictures, tmp_path, damage, resumed):
    out = tmp_path / "out"
    interrupt(pictures, out, batch_size=1, shard_size=3)
    file = next((tmp_path / ".out.parts").iterdir())
    raw = file.read_bytes()
    if damage == "flipped":
        place = raw.index(order(pictures)[1][0].tobytes())
        file.write_bytes(raw[:place] + bytes([raw[place] ^ 1]) + raw[place + 1 :])
    elif damage == "lost":
        file.unlink()
    else:
        file.write_bytes(raw[:-4000] if damage == "cut" else b"no database" * 100)
    report = embed(Colours(), open_items(pictures), out, batch_size=1, shard_size=3)
    assert report.resumed == resumed
    np.testing.assert_array_equal(read_embeddings(out).vectors, order(pictures)[1])


def test_a_file_where_failures_would_be_listed_stays(pictures, tmp_path):
    (tmp_path / "out.failures.csv").write_text("years,of\nwork,\n")
    with pytest.raises(errors.OutputExistsError, match=r"failures\.csv"):
        embed(Colours(), open_items(pictures), tmp_path / "out")
    assert (tmp_path / "out.failures.csv").read_text() == "years,of\nwork,\n"
    assert {path.name for path in tmp_path.iterdir()} == {"pictures", "out.failures.csv"}


def test_vectors_from_the_cache_are_finite_and_of_their_item(tmp_path):
    cache = VectorCache(tmp_path, "encoder", 3)
    cache.put({"nan": np.array([1, np.nan, 1]), "inf": np.array([1, 1, np.inf]), "a": np.ones(3), "b": np.zeros(3)})
    assert set(cache.get(["nan", "inf", "a", "b"])) == {"a", "b"}
    with sqlite3.connect(cache.path) as base:
        base.execute("UPDATE vectors SET vector = (SELECT vector FROM vectors WHERE item = 'b') WHERE item = 'a'")
    assert set(cache.get(["a", "b"])) == {"b"}


def _fill(folder, number, barrier):
    barrier.wait(60)
    cache = VectorCache(folder, "encoder", 2)
    for k in range(25):
        cache.put({f"{k}-{j}": np.array([k, j]) for j in range(number, number + 4)})  # neighbors write the same items
        got = cache.get([f"{k}-{j}" for j in range(8)])
        assert all(np.array_equal(vector, [k, int(name.split("-")[1])]) for name, vector in got.items())


@pytest.mark.long
def test_four_processes_share_one_cache(tmp_path):
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(4)
    processes = [context.Process(target=_fill, args=(tmp_path, number, barrier)) for number in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0] * 4
    names = [f"{k}-{j}" for k in range(25) for j in range(7)]
    got = VectorCache(tmp_path, "encoder", 2).get(names)
    assert all(np.array_equal(got[name], [int(part) for part in name.split("-")]) for name in names)
