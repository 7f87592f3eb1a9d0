"""Data sets of texts and images, encoded by fragments: the local command's vectors, once each, whatever happens."""

import io
import json
import pickle

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from engine_data import Dying, Killed, read_parts
from PIL import Image

import congruence.engines.embed as module
from congruence import Space, errors, read_embeddings
from congruence.embed import embed, open_items
from congruence.encoders import Encoder, EncoderOptions
from congruence.engines import LocalEngine, embed_dataset, open_itemset
from congruence.errors import CorruptFileError, FileError, OutputExistsError, ParameterError

HERE = LocalEngine()
FILES, ROWS = 3, 50
TEXTS = [f"{'ab' * (k % 7)} text {k}" for k in range(FILES * ROWS)]


class Small(Encoder):
    """Counts letters, or averages the colors of an image."""

    def __init__(self, modality="text", fingerprint="f" * 64):
        self.space = Space("small", "1", modality, 4, modality == "image")
        self.fingerprint = fingerprint
        self.seen = 0

    def _embed(self, items):
        self.seen += len(items)
        if self.space.modality == "text":
            return np.array([[len(t), t.count("a"), sum(t.encode()) % 97, 1] for t in items], "f4")
        return np.array([[*np.asarray(image).mean(axis=(0, 1)), 1] for image in items], "f4")


@pytest.fixture
def opened(monkeypatch):
    """The encoders that were opened."""
    found = []

    def load_encoder(name, modality, **_):
        found.append(Small(modality))
        return found[-1]

    monkeypatch.setattr(module, "load_encoder", load_encoder)
    module._open.cache_clear()
    yield found
    module._open.cache_clear()


def write_texts(folder, texts=TEXTS, **more):
    folder.mkdir()
    for k in range(FILES):
        rows = slice(k * ROWS, (k + 1) * ROWS)
        part = {"id": np.arange(rows.start, rows.stop), "text": pa.array(texts[rows], pa.string())}
        part |= {name: column[rows] for name, column in more.items()}
        pq.write_table(pa.table(part), folder / f"p{k}.parquet")
    return str(folder)


TEXT, IMAGE = (EncoderOptions("small", modality) for modality in ("text", "image"))


def test_a_data_set_is_encoded_as_by_the_local_command(opened, tmp_path):
    source = write_texts(tmp_path / "in", label=np.arange(FILES * ROWS))
    seen = []
    options = {"engine": HERE, "batch_size": 8, "callback": seen.append}
    report = embed_dataset(TEXT, open_itemset(source), str(tmp_path / "out"), **options)
    assert (report.rows, report.dim, report.fragments, sum(seen)) == (FILES * ROWS, 4, FILES, FILES * ROWS)
    assert len(opened) == 1  # not once a fragment, nor once more for its facts
    pq.write_table(read_parts(tmp_path / "in"), tmp_path / "one.parquet")
    embed(Small(), open_items(tmp_path / "one.parquet"), tmp_path / "reference.parquet")
    got, wanted = read_embeddings(tmp_path / "out"), read_embeddings(tmp_path / "reference.parquet")
    assert np.array_equal(got.vectors, wanted.vectors)
    assert got.ids.tolist() == wanted.ids.tolist()
    assert got.space == wanted.space
    assert read_parts(tmp_path / "out").column_names == ["id", "vector"]
    assert pickle.loads(pickle.dumps(TEXT)) == TEXT


@pytest.mark.parametrize("out", ["out", "out.lance"])
def test_a_killed_driver_resumes_and_no_item_is_encoded_again(opened, tmp_path, out):
    data = open_itemset(write_texts(tmp_path / "in"))
    with pytest.raises(Killed):
        embed_dataset(TEXT, data, str(tmp_path / out), engine=Dying(2), batch_size=8)
    before = opened[0].seen
    report = embed_dataset(TEXT, data, str(tmp_path / out), engine=HERE, batch_size=8)
    assert (report.rows, report.resumed) == (FILES * ROWS, 2)
    assert opened[0].seen - before == ROWS
    assert read_embeddings(tmp_path / out).ids.tolist() == list(range(FILES * ROWS))
    with pytest.raises(OutputExistsError):
        embed_dataset(TEXT, data, str(tmp_path / out), engine=HERE)


def test_rows_that_cannot_be_encoded_stop_the_job_or_go_to_a_file(opened, tmp_path):
    texts = list(TEXTS)
    texts[ROWS + 3] = None
    data = open_itemset(write_texts(tmp_path / "in", texts))
    with pytest.raises(CorruptFileError, match=r"item '53'.*no item in column 'text'.*bad_rows=.*The fragment is p1\."):
        embed_dataset(TEXT, data, str(tmp_path / "out"), engine=HERE, batch_size=8)
    aside = str(tmp_path / "bad.parquet")
    report = embed_dataset(TEXT, data, str(tmp_path / "out"), engine=HERE, batch_size=8, bad_rows=aside, force=True)
    assert (report.rows, report.bad_rows, report.bad_rows_file) == (FILES * ROWS - 1, 1, aside)
    (bad,) = pq.read_table(aside).to_pylist()
    assert (bad["id"], bad["text"], bad["row"]) == (53, None, 3)
    assert bad["fragment"].endswith("in/p1.parquet")
    assert "no item" in bad["reason"]
    assert 53 not in read_embeddings(tmp_path / "out").ids
    every = open_itemset(write_texts(tmp_path / "none", [None] * len(TEXTS)))
    with pytest.raises(CorruptFileError, match="None of the 150 items"):
        embed_dataset(TEXT, every, str(tmp_path / "o2"), engine=HERE, bad_rows=str(tmp_path / "all.parquet"))


def test_images_are_bytes_paths_or_what_the_datasets_library_writes(opened, tmp_path):
    rng = np.random.default_rng(0)
    raw = []
    (tmp_path / "in/day").mkdir(parents=True)
    for k in range(6):
        file = io.BytesIO()
        Image.fromarray(rng.integers(0, 255, (4, 4, 3), "u1")).save(file, "PNG")
        raw.append(file.getvalue())
        (tmp_path / f"in/day/{k}.png").write_bytes(raw[-1])
    paths = [f"{k}.png" if k % 2 else str(tmp_path / f"in/day/{k}.png") for k in range(6)]
    wraps = [{"bytes": None if k == 2 else one, "path": paths[k]} for k, one in enumerate(raw)]
    reference = Small("image").encode_all(raw)
    for name, column, ids in (
        ("bytes", pa.array(raw, pa.binary()), [str(k) for k in range(6)]),
        ("paths", pa.array(paths).dictionary_encode(), paths),
        ("wraps", pa.array(wraps), [str(k) for k in range(6)]),
    ):
        pq.write_table(pa.table({"image": column}), tmp_path / "in/day/t.parquet")
        data = open_itemset(str(tmp_path / "in"))
        embed_dataset(IMAGE, data, str(tmp_path / name), engine=HERE, batch_size=4)
        got = read_embeddings(tmp_path / name / "day")
        assert np.array_equal(got.vectors, reference)
        assert got.ids.tolist() == ids
        assert got.space.modality == "image"
    (tmp_path / "in/day/3.png").unlink()
    pq.write_table(pa.table({"image": paths}), tmp_path / "in/day/t.parquet")
    with pytest.raises(FileError, match=r"No image at .*3\.png"):
        embed_dataset(IMAGE, open_itemset(str(tmp_path / "in")), str(tmp_path / "x"), engine=HERE)


def test_rows_without_ids_are_counted_through_all_files(opened, tmp_path):
    (tmp_path / "in").mkdir()
    for k, texts in enumerate((["a", "b"], [], ["c"], ["d", "e"])):
        pq.write_table(pa.table({"text": pa.array(texts, pa.string())}), tmp_path / f"in/{k}.parquet")
    embed_dataset(TEXT, open_itemset(str(tmp_path / "in")), str(tmp_path / "out"), engine=HERE)
    assert read_embeddings(tmp_path / "out").ids.tolist() == list("01234")


def test_a_lance_data_set_of_texts(opened, tmp_path):
    lance = pytest.importorskip("lance")
    table = pa.table({"key": [f"k{k}" for k in range(30)], "caption": TEXTS[:30]})
    lance.write_dataset(table, tmp_path / "in.lance", max_rows_per_file=10)
    data = open_itemset(f"{tmp_path / 'in.lance'}", id_column="key")
    assert [one.rows for one in data.fragments] == [10, 10, 10]
    embed_dataset(TEXT, data, str(tmp_path / "out.lance"), engine=HERE)
    got = read_embeddings(tmp_path / "out.lance")
    assert np.array_equal(got.vectors, Small().encode_all(TEXTS[:30]))
    assert got.ids.tolist() == table["key"].to_pylist()


def test_a_worker_with_other_weights_is_refused(opened, tmp_path, monkeypatch):
    data = open_itemset(write_texts(tmp_path / "in"))

    class Another(LocalEngine):
        def run(self, work, fragments):
            if len(fragments) > 1:  # the work itself, on a machine of its own
                module._open.cache_clear()
                monkeypatch.setattr(module, "load_encoder", lambda *_, **__: Small(fingerprint="0" * 64))
            return super().run(work, fragments)

    with pytest.raises(errors.SpaceMismatchError, match="fingerprint 0{12} on a worker; expected f{12}"):
        embed_dataset(TEXT, data, str(tmp_path / "out"), engine=Another())


def test_what_cannot_be_encoded_is_refused_before_the_work(opened, tmp_path):
    source = write_texts(tmp_path / "in", number=np.arange(FILES * ROWS))
    with pytest.raises(errors.DtypeError, match="int64 in column 'number'"):
        open_itemset(source, column="number", modality="text")
    with pytest.raises(ParameterError, match="column='nope'"):
        open_itemset(f"{source}:nope")
    with pytest.raises(ParameterError, match="id_column='nope'"):
        open_itemset(source, id_column="nope")
    with pytest.raises(errors.ModalityError):
        embed_dataset(IMAGE, open_itemset(source), str(tmp_path / "out"), engine=HERE)
    with pytest.raises(ParameterError, match="layer='all'"):
        embed_dataset(EncoderOptions("small", layer="all"), open_itemset(source), str(tmp_path / "out"), engine=HERE)
    assert not (tmp_path / "out").exists()
    with pytest.raises(ParameterError, match="one is inside the other"):
        embed_dataset(TEXT, open_itemset(source), str(tmp_path / "in/out"), engine=HERE)
    pq.write_table(pa.table({"text": ["a"], "id": [1]}), tmp_path / "in/p9.parquet")
    with pytest.raises(ParameterError, match="in p9"):
        open_itemset(source)
    pq.write_table(pa.table({"id": [1, 1], "text": ["a", "b"]}), tmp_path / "twice.parquet")
    with pytest.raises(errors.IdError, match=r"twice\.parquet:id"):
        embed_dataset(TEXT, open_itemset(str(tmp_path / "twice.parquet")), str(tmp_path / "out"), engine=HERE)
    pq.write_table(pa.table({"text": pa.array([], pa.string())}), tmp_path / "none.parquet")
    with pytest.raises(FileError, match="no rows"):
        open_itemset(str(tmp_path / "none.parquet"))


def test_the_command_encodes_urls_by_fragments(opened, here, tmp_path):
    source = "file://" + write_texts(tmp_path / "in")
    done = here("embed", "small", source, "-o", "out", "--batch-size", 8, "--json")
    assert done.code == 0, done.err
    facts = json.loads(done.out)
    assert (facts["rows"], facts["space"]["model"], facts["fingerprint"]) == (FILES * ROWS, "small", "f" * 64)
    result = here("embed", "small", source, "-o", "out", "--force")
    assert "embedded" in result.out
    for flag, value in (("--cache", "c"), ("--set", "on_error=skip"), ("--set", "shard_size=9"), ("--layer", "all")):
        refused = here("embed", "small", source, "-o", "o2", flag, value)
        assert refused.code == 2, flag
        assert flag in refused.err
    assert "--engine ray" in here("embed", "small", "in", "-o", "o2", "--set", "workers=2").err
