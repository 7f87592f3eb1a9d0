"""Folders that other tools write: their parts are found, right, and damaged ones are refused in a sentence."""

import json
import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from congruence import OrthogonalMap, errors
from congruence.io import contents, open_source, read_column, read_embeddings
from congruence.upgrade.transform import transform_file

RNG = np.random.default_rng(4)
X = RNG.standard_normal((40, 6)).astype(np.float32)
IDS = [f"i{k}" for k in range(40)]
TABLE = pa.table({"id": IDS, "note": IDS, "emb": pa.FixedSizeListArray.from_arrays(X.ravel(), 6)})


def write_stream(path, table):
    """Write rows as the ``datasets`` library does: a stream, in a file named ``.arrow``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with pa.ipc.new_stream(str(path), table.schema) as stream:
        stream.write_table(table, max_chunksize=7)


def write_parquet(path, table):
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path)


def saved(folder, table=TABLE):
    """Write the layout of ``save_to_disk``, with results of operations beside the rows."""
    half = len(table) // 2
    for k in range(2):
        write_stream(folder / f"data-{k:05}-of-00002.arrow", table.slice(k * half, half))
    write_stream(folder / "cache-9a7f.arrow", table)
    (folder / "dataset_info.json").write_text("{}")
    (folder / "state.json").write_text("{}")
    return folder


def check_rows(spec, rows=X, ids=IDS):
    source = open_source(spec)
    found = source.read()
    np.testing.assert_array_equal(found.vectors, rows)
    assert found.ids.tolist() == ids
    np.testing.assert_array_equal(np.concatenate([block for _, block in source.scan(3, 5)]), rows[3:])
    return source


def test_a_data_set_saved_to_disk(tmp_path, here):
    source = check_rows(saved(tmp_path / "one"))
    check_rows(f"{tmp_path}/one:emb")
    mapping = OrthogonalMap().fit(X, X[:, ::-1])
    transform_file(mapping, source, tmp_path / "out", normalize=False)
    np.testing.assert_allclose(read_embeddings(tmp_path / "out").vectors, X[:, ::-1], atol=1e-5)
    assert pq.read_table(tmp_path / "out" / "data-00001-of-00002.parquet")["note"].to_pylist() == IDS[20:]
    assert "40 × 6" in here("inspect", str(tmp_path / "one")).ends(0).out
    saved(tmp_path / "both" / "train")
    saved(tmp_path / "both" / "test", TABLE.slice(0, 10))
    check_rows(f"{tmp_path}/both:train")
    check_rows(f"{tmp_path}/both:test/emb", X[:10], IDS[:10])
    for key in ("", ":nothing"):
        done = here("inspect", f"{tmp_path}/both{key}").ends(2)
        assert "test (2 parts), train (2 parts)" in done.err


def test_what_datasets_writes_itself(tmp_path):
    datasets = pytest.importorskip("datasets")
    rows = {"id": IDS, "emb": X.tolist(), "layers": np.stack([X, 2 * X], 1).tolist()}
    features = datasets.Features(
        {
            "id": datasets.Value("string"),
            "emb": datasets.Sequence(datasets.Value("float32"), length=6),
            "layers": datasets.Array2D((2, 6), "float32"),
        }
    )
    data = datasets.Dataset.from_dict(rows, features=features)
    data.save_to_disk(tmp_path / "one", num_shards=3)
    datasets.load_from_disk(tmp_path / "one").map(lambda row: {"more": 1})  # its result is written beside the rows
    assert open_source(f"{tmp_path}/one:emb").n == 40
    check_rows(f"{tmp_path}/one:emb")
    datasets.DatasetDict({"train": data, "test": data.select(range(9))}).save_to_disk(tmp_path / "both")
    check_rows(f"{tmp_path}/both:train/emb")
    check_rows(f"{tmp_path}/both:test/emb", X[:9], IDS[:9])


def test_the_caches_of_data_sets(tmp_path):
    cache = tmp_path / "wiki" / "default" / "0.0.0" / "5d3c"  # of load_dataset
    for split, table in (("train", TABLE), ("validation", TABLE.slice(0, 9))):
        write_stream(cache / f"wiki-{split}.arrow", table)
    (cache / "dataset_info.json").write_text("{}")
    check_rows(f"{cache}:train")
    check_rows(f"{cache}:validation/emb", X[:9], IDS[:9])
    check_rows(f"{tmp_path}/wiki:train")
    with pytest.raises(errors.ParameterError, match=r"train \(1 parts\), validation \(1 parts\)"):
        open_source(cache)
    hub = tmp_path / "datasets--me--wiki"  # files of the hub are links to its blobs
    for revision, table in (("0a1b", TABLE), ("ffff", TABLE.slice(0, 3))):
        write_parquet(hub / "blobs" / revision, table)
        (hub / "snapshots" / revision / "data").mkdir(parents=True)
        os.symlink(f"../../../blobs/{revision}", hub / "snapshots" / revision / "data" / "train-00000-of-00001.parquet")
    with pytest.raises(errors.ParameterError, match="2 revisions"):
        open_source(hub)
    (hub / "refs").mkdir()
    (hub / "refs" / "main").write_text("0a1b")
    check_rows(hub)
    check_rows(f"{hub}:train/emb")
    write_parquet(hub / "snapshots" / "0a1b" / "data" / "test-00000-of-00001.parquet", TABLE.slice(0, 5))
    check_rows(f"{hub}:test", X[:5], IDS[:5])


# ------------------------------------------------------------------ VDF


def write_vdf(folder, indexes, **facts):
    """Write the layout of vector-io; ``indexes``: a list of facts about each namespace by the name of its index."""
    for every in indexes.values():
        for k, one in enumerate(every):
            one.update({"exported_vector_count": 40, "dimensions": 6, "metric": "Cosine"} | one)
            path = folder / one["data_path"]
            write_parquet(path if path.suffix else path / "1.parquet", TABLE if not k else TABLE.slice(0, 9))
    (folder / "VDF_META.json").write_text(json.dumps({"version": "0.1", "indexes": indexes, **facts}))
    return folder


def test_an_index_in_the_format_of_vector_io(tmp_path, here):
    one = {"namespace": "", "model_name": "clip", "vector_columns": ["emb"], "data_path": "a/i1.parquet"}
    folder = write_vdf(tmp_path / "one", {"shop": [one]}, id_column="note")
    for key in ("", ":shop", ":shop/emb", ":emb"):
        source = check_rows(f"{folder}{key}")
        assert source.space.model == "clip"
        assert source.columns[0].id == "note"
    assert contents(folder)["vectors"] == "40 × 6"
    mapping = OrthogonalMap().fit(X, X[:, ::-1])
    transform_file(mapping, open_source(folder), tmp_path / "out.parquet", normalize=False, check=False)
    assert pq.read_table(tmp_path / "out.parquet")["note"].to_pylist() == IDS
    facts = {"model_name": "NOT_PROVIDED", "vector_columns": ["emb", "other"]}
    spaces = [{"namespace": name, "data_path": f"vdf_1/shop/{name}", **facts} for name in ("books", "music")]
    folder = write_vdf(tmp_path / "several", {"shop": spaces, "small": [one | {"data_path": "vdf_1/small"}]})
    for place in (folder / "vdf_1").iterdir():  # older versions begin each path with the name of the folder
        place.rename(folder / place.name)
    check_rows(f"{folder}:shop/books/emb")
    check_rows(f"{folder}:shop/music", X[:9], IDS[:9])
    assert open_source(f"{folder}:shop/music").space.model is None
    check_rows(f"{folder}:small")
    for key in ("", ":nothing"):
        assert "shop/books (40, 6), shop/music (40, 6), small (40, 6)" in here("inspect", f"{folder}{key}").ends(2).err


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "damaged"),
        ("[]", "damaged"),
        ("[" * 10**5, "damaged"),
        ('{"indexes": {"a": [3]}}', "damaged"),
        ('{"indexes": {}}', "contains none"),
        (
            '{"indexes": {"a": [{"vector_columns": [{}], "exported_vector_count": 1, "dimensions": 6, '
            '"data_path": "i", "model_name": "a"}]}}',
            "Got column '{}'",
        ),
        ("out", "leads out of the folder"),
        ("none", "no parts are at"),
    ],
)
def test_a_damaged_index_of_vector_io(text, words, tmp_path, here):
    (tmp_path / "other").mkdir()
    write_parquet(tmp_path / "other" / "1.parquet", TABLE)
    one = {"model_name": "a", "vector_columns": ["emb"], "data_path": "i", "exported_vector_count": 1, "dimensions": 6}
    folder = write_vdf(tmp_path / "vdf", {"a": [one]})
    if text in ("out", "none"):
        text = json.dumps({"indexes": {"a": [one | {"data_path": "../other" if text == "out" else "missing"}]}})
    (folder / "VDF_META.json").write_text(text)
    OrthogonalMap().fit(X, X[:, ::-1]).save(tmp_path / "map")
    for command in (("inspect", folder), ("transform", tmp_path / "map", folder, "-o", tmp_path / "out")):
        done = here(*map(str, command)).ends(2)
        assert words in done.err
        assert len(done.err.strip().splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_an_index_of_vector_io_is_written_with_what_is_known_of_it(tmp_path, here):
    one = {"namespace": "books", "model_name": "clip", "vector_columns": ["emb"], "data_path": "a", "metric": "Dot"}
    folder = write_vdf(tmp_path / "old", {"shop": [one], "other": [one]}, id_column="note", exported_from="pinecone")
    OrthogonalMap().fit(X, np.c_[X, X[:, :1]]).save(tmp_path / "map")
    run = ("transform", "map", f"{folder}:shop/books", "-o", "new.vdf", "--normalize", "no", "--set", "check=false")
    here(*run).ends(0)
    facts = json.loads((tmp_path / "new.vdf/VDF_META.json").read_text())
    assert (facts["exported_from"], facts["id_column"]) == ("pinecone", "note")
    ((name, (index,)),) = facts["indexes"].items()
    assert (name, index["namespace"], index["metric"], index["dimensions"]) == ("shop", "books", "Dot", 7)
    assert all((tmp_path / "new.vdf" / file).is_file() for file in facts["file_structure"])
    source = open_source(f"{tmp_path}/new.vdf:shop/books/emb")
    assert (source.n, source.dim, source.read().ids.tolist()) == (40, 7, IDS)
    assert "Pass --force" in here(*run).ends(2).err
    here(*run, "--force").ends(0)
    (tmp_path / "new.vdf/mine.txt").write_text("")
    assert "something else" in here(*run, "--force").ends(2).err


@pytest.mark.parametrize("out", ["out", "out.parquet", "out.vdf"])
def test_ids_that_are_numbers_in_one_part_and_texts_in_another_are_texts_in_all(tmp_path, out):
    numbers = TABLE.slice(0, 20).set_column(0, "id", pa.array(range(20), pa.int32()))
    for k, part in enumerate((numbers, TABLE.slice(20))):
        write_parquet(tmp_path / "in" / f"part_{k}.parquet", part)
    mapping = OrthogonalMap().fit(X, X[:, ::-1])
    transform_file(mapping, open_source(tmp_path / "in"), tmp_path / out, normalize=False)
    parts = [tmp_path / out] if out.endswith("t") and "." in out else sorted((tmp_path / out).rglob("*.parquet"))
    read = [pq.read_table(part) for part in parts]
    assert {one.schema.field("id").type for one in read} == {pa.string()}
    assert [one for part in read for one in part["id"].to_pylist()] == [*map(str, range(20)), *IDS[20:]]
    assert [one for part in read for one in part["note"].to_pylist()] == IDS


def test_a_column_of_a_folder_is_that_of_all_its_parts(tmp_path):
    for k in range(2):
        write_parquet(tmp_path / f"train-0000{k}-of-00002.parquet", TABLE.slice(20 * k, 20))
    write_parquet(tmp_path / "test-00000-of-00001.parquet", TABLE.slice(0, 3))
    assert read_column(f"{tmp_path}:train/note").tolist() == IDS
    with pytest.raises(errors.ParameterError, match="'other'"):
        read_column(f"{tmp_path}:train/other")
