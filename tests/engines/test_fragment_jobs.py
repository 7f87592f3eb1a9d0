import builtins
import json
import pickle

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from engine_data import FILES, MAP, OUT, ROWS, WIDTH, Dying, Killed, X, Y, read_parts, table, write_parts

from congruence import CCAMap, LinearMap, MLPMap, Space, errors
from congruence._utils.records import from_record, to_record
from congruence.databases import open_database
from congruence.engines import LocalEngine, MapBatch, open_dataset
from congruence.errors import FileError, NotFiniteError, OutputExistsError, ParameterError, StorageError
from congruence.io import FORMATS, open_source, read_embeddings
from congruence.io.jobs import FragmentJournal
from congruence.io.locations import Location
from congruence.upgrade.transform import BlockMap, transform_file

HERE = LocalEngine()


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    return write_parts(tmp_path_factory.mktemp("parts") / "in")


def test_a_batch_is_the_block_of_the_local_command_to_the_bit(tmp_path):
    pq.write_table(table(), tmp_path / "in.parquet")
    transform_file(MAP, open_source(tmp_path / "in.parquet"), tmp_path / "out.parquet")
    batch = pickle.loads(pickle.dumps(MapBatch(MAP, table().schema)))
    got = batch(table().combine_chunks())
    assert got.schema == batch.schema == pq.read_schema(tmp_path / "out.parquet")
    assert got.equals(pq.read_table(tmp_path / "out.parquet"))
    (one,) = batch.over(table().to_batches())
    assert one.equals(got.to_batches()[0])
    assert len(batch(table().slice(0, 0))) == 0


def test_a_batch_in_the_types_that_an_engine_chose_is_the_same():
    large = pa.large_list(pa.float32())
    other = table().set_column(1, "vector", table().column("vector").cast(large)).select(["title", "vector", "id"])
    batch = MapBatch(MAP, table().schema)
    assert batch(other).equals(batch(table()))
    assert pa.types.is_large_list(MapBatch(MAP, other.schema).schema.field("vector").type)


@pytest.mark.parametrize(
    "mapping", [LinearMap(), MLPMap(hidden=8, max_epochs=2), CCAMap()], ids=["linear", "mlp", "cca"]
)
def test_every_map_survives_the_way_to_a_worker(mapping):
    mapping.fit(X[:400].astype("f8"), Y[:400].astype("f8"))
    for side in ("source", "target") if isinstance(mapping, CCAMap) else ("source",):
        rows = table(0, 50, X if side == "source" else Y)
        batch = MapBatch(mapping, rows.schema, side=side, dtype="f8")
        got = pickle.loads(pickle.dumps(batch))(rows).column("vector").combine_chunks().flatten().to_numpy()
        head = mapping.transform if side == "source" else mapping.transform_target
        np.testing.assert_allclose(got.reshape(50, -1), head((X if side == "source" else Y)[:50]), atol=1e-5)


def test_products_on_a_device_are_those_of_numpy():
    space = Space(dim=WIDTH)
    for dtype, tolerance in (("f4", 1e-6), ("f8", 1e-14)):
        ours = BlockMap(MAP, space, dtype)(X.astype(dtype))
        device = pickle.loads(pickle.dumps(BlockMap(MAP, space, dtype, device="cpu")))(X.astype(dtype))
        assert device.dtype == ours.dtype
        np.testing.assert_allclose(device, ours, atol=tolerance * np.abs(ours).max())


def test_torch_is_imported_where_there_is_a_gpu(monkeypatch):
    """Without one, and where the engine hides it, "auto" does not even import torch."""
    imported, real = [], builtins.__import__
    monkeypatch.setattr(builtins, "__import__", lambda name, *a, **k: imported.append(name) or real(name, *a, **k))
    space = Space(dim=WIDTH)
    for devices, hidden in (((), None), ((__file__,), "")):
        monkeypatch.setattr("congruence.upgrade.transform._GPU_DEVICES", devices)
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        if hidden is not None:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
        assert np.array_equal(BlockMap(MAP, space, "f4", device="auto")(X), BlockMap(MAP, space, "f4")(X))
    assert "torch" not in imported


def test_a_batch_refuses_what_the_local_command_refuses():
    for value, error in ((np.nan, NotFiniteError), (0, errors.ZeroRowError)):
        bad = X[:10].copy()
        bad[3] = value
        with pytest.raises(error, match="'3'"):
            MapBatch(MAP, table().schema)(table(0, 10, bad))
    with pytest.raises(errors.DirectionError):
        MapBatch(MAP, table(0, 10, Y).schema)


def test_a_data_set_is_mapped_as_by_the_local_command_to_the_bit(parts, tmp_path):
    data = open_dataset(str(parts))
    assert [one.rows for one in data.fragments] == [ROWS] * FILES
    report = transform_file(MAP, data, tmp_path / "out")
    transform_file(MAP, open_source(parts), tmp_path / "reference")
    assert read_parts(tmp_path / "out").equals(read_parts(tmp_path / "reference"))
    assert (report.rows, report.dim, report.fragments, report.resumed) == (FILES * ROWS, OUT, FILES, 0)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out", "reference"]
    assert pq.read_table(tmp_path / "out").num_rows == FILES * ROWS  # readers of folders pass over the manifest
    assert len(read_embeddings(tmp_path / "out")) == FILES * ROWS


@pytest.mark.parametrize("option", [{"engine": HERE}, {"bad_rows": "bad.parquet"}], ids=["engine", "bad_rows"])
def test_a_file_has_no_fragments_for_an_engine(parts, tmp_path, option):
    with pytest.raises(ParameterError, match=f"{next(iter(option))}=.*open_dataset"):
        transform_file(MAP, open_source(parts), tmp_path / "out", **option)
    assert not any(tmp_path.iterdir())


def test_files_are_cut_between_row_groups_and_folders_mirrored(parts, tmp_path):
    (tmp_path / "in/day=1").mkdir(parents=True)
    (tmp_path / "in/day=1/a.parquet").write_bytes((parts / "part-0.parquet").read_bytes())
    data = open_dataset(f"{tmp_path / 'in'}:vector", fragment_bytes=1)
    assert [(one.name, one.rows, one.start) for one in data.fragments] == [
        (f"day=1/a-{k:05d}", 100, 100 * k) for k in range(3)
    ]
    transform_file(MAP, data, str(tmp_path / "out"), engine=HERE, column_out="new", dtype="f2")
    got = pa.concat_tables(pq.read_table(p, partitioning=None) for p in sorted((tmp_path / "out/day=1").iterdir()))
    assert got.select(["id", "vector", "title"]).equals(table(0, ROWS))
    assert got.schema.field("new").type == pa.list_(pa.float16(), OUT)


def test_other_files_of_a_folder_may_have_any_name(parts, tmp_path):
    where = write_parts(tmp_path / "in")
    (where / "gone.parquet").symlink_to("nowhere")
    for name in (b"\xff.txt", b"_\xff.parquet"):
        try:
            open(bytes(where) + b"/" + name, "wb").close()
        except OSError:
            pytest.skip("the file system takes no such names")
    for opened in (open_dataset(str(where)), open_database(where)):
        assert opened.n == FILES * ROWS


def test_opening_a_lance_data_set_again_reads_its_latest_version(parts, tmp_path):
    import lance

    lance.write_dataset(table(0, 10), tmp_path / "in.lance")
    planned = open_dataset(str(tmp_path / "in.lance"))
    lance.write_dataset(table(10, 15), tmp_path / "in.lance", mode="append")
    latest = open_dataset(str(tmp_path / "in.lance"))
    assert (planned.n, latest.n) == (10, 15)
    assert planned.table.version != latest.table.version
    assert sum(len(block) for _, block in planned.open(planned.fragments[0]).scan()) == 10


def test_reading_a_fragment_of_a_lance_data_set_opens_no_other_file(tmp_path):
    import lance

    made = lance.write_dataset(table(0, 10), tmp_path / "in.lance", max_rows_per_file=5)
    data = open_dataset(str(tmp_path / "in.lance"))
    (file,) = made.get_fragments()[1].data_files()
    (tmp_path / "in.lance/data" / file.path).unlink()
    first, second = map(data.open, data.fragments)
    assert [len(block) for _, block in first.scan(batch=3)] == [3, 2]
    with pytest.raises(errors.CorruptFileError, match="fragment 1"):
        list(second.scan())


def test_lance_in_and_out(parts, tmp_path):
    import lance

    whole = read_parts(parts)
    lance.write_dataset(whole, tmp_path / "in.lance", max_rows_per_file=500)
    data = open_dataset(str(tmp_path / "in.lance"))
    assert [one.rows for one in data.fragments] == [500, 500, 200]
    lance.dataset(tmp_path / "in.lance").delete("id = 7")  # a later version: not what was planned
    with pytest.raises(Killed):
        transform_file(MAP, data, str(tmp_path / "out.lance"), engine=Dying(1))
    assert not (tmp_path / "out.lance").exists()
    report = transform_file(MAP, data, str(tmp_path / "out.lance"), engine=HERE)
    assert report.resumed == 1
    got = lance.dataset(tmp_path / "out.lance")
    assert got.version == 1
    assert len(list((tmp_path / "out.lance/data").iterdir())) == 3  # what was not journaled is gone
    assert got.to_table().column("id").to_pylist() == list(range(FILES * ROWS))
    transform_file(MAP, open_dataset(str(parts)), str(tmp_path / "out"), engine=HERE)
    # Lance's fragments are other blocks than the files are, and their products may differ in the last digits.
    sides = [np.stack(one.column("vector").to_numpy()) for one in (read_parts(tmp_path / "out"), got.to_table())]
    np.testing.assert_allclose(*sides, rtol=0, atol=2e-6)


def test_columns_must_agree_and_places_be_apart(parts, tmp_path):
    write_parts(tmp_path / "in")
    pq.write_table(table(0, 9).drop(["title"]), tmp_path / "in/part-2.parquet")
    with pytest.raises(ParameterError, match=r"part-2\.parquet"):
        open_dataset(str(tmp_path / "in"))
    data = open_dataset(str(parts))
    for name in (parts, parts / "sub", parts.parent):
        with pytest.raises(ParameterError, match="one is inside the other"):
            transform_file(MAP, data, str(name), engine=HERE)
    for suffix in set(FORMATS) - {"", ".parquet", ".lance"}:
        with pytest.raises(ParameterError, match=f"folder of Parquet.*without \\{suffix}"):
            transform_file(MAP, data, tmp_path / f"out{suffix}")
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs/thesis.txt").touch()
    with pytest.raises(OutputExistsError, match="Got files at .* that congruence did not write"):
        transform_file(MAP, data, str(tmp_path / "theirs"), engine=HERE, force=True)
    assert (tmp_path / "theirs/thesis.txt").exists()


@pytest.mark.parametrize("after", [0, 2, FILES])
def test_a_killed_driver_resumes_and_no_row_is_there_twice(parts, tmp_path, after):
    data = open_dataset(str(parts))
    out = tmp_path / "out"
    seen = []
    if after < FILES:
        with pytest.raises(Killed) as stopped:
            transform_file(MAP, data, str(out), engine=Dying(after))
        kept = [f"{after} of {FILES} fragments are kept in {out}.partial; repeat the command to continue."]
        assert getattr(stopped.value, "__notes__", []) == (kept if after else [])
        assert not out.exists()
    report = transform_file(MAP, data, str(out), engine=HERE, callback=seen.append)
    assert report.resumed == (after if after < FILES else 0)
    assert sum(seen) == FILES * ROWS
    assert read_parts(out).column("id").to_pylist() == list(range(FILES * ROWS))
    assert not (tmp_path / "out.partial").exists()
    with pytest.raises(OutputExistsError):
        transform_file(MAP, data, str(out), engine=HERE)
    transform_file(MAP, data, str(out), engine=HERE, force=True, dtype="f8")
    assert pq.read_table(out).schema.field("vector").type.value_type == pa.float64()


def test_another_jobs_journal_is_not_taken_up(parts, tmp_path):
    data = open_dataset(str(parts))
    out = str(tmp_path / "out")
    with pytest.raises(Killed):
        transform_file(MAP, data, out, engine=Dying(2))
    for options in ({"dtype": "f8"}, {"normalize": True}, {"column_out": "new"}):
        with pytest.raises(OutputExistsError, match="another job"):
            transform_file(MAP, data, out, engine=HERE, **options)
    assert transform_file(MAP, data, out, engine=HERE, dtype="f8", force=True).resumed == 0


def test_a_receipt_counts_only_with_its_file_and_digest(parts, tmp_path):
    data = open_dataset(str(parts))
    out = tmp_path / "out"
    with pytest.raises(Killed):
        transform_file(MAP, data, str(out), engine=Dying(3))
    part = tmp_path / "out.partial/data/part-0.parquet"
    part.write_bytes(part.read_bytes()[:-1])
    (tmp_path / "out.partial/data/part-1.parquet").unlink()
    (tmp_path / "out.partial/data/.part-1.parquet.0123456789ab.tmp").write_bytes(b"half")
    assert transform_file(MAP, data, str(out), engine=HERE).resumed == 1
    assert read_parts(out).column("id").to_pylist() == list(range(FILES * ROWS))
    assert not list(out.glob(".*"))
    journal = FragmentJournal(Location.of(tmp_path / "j"), {}, data.fragments).open()
    plan = from_record(journal.place.child("plan.json").read())
    segment = {"format_version": 1, "job": plan["job"], "receipts": []}
    for number, raw in enumerate((json.dumps({**segment, "digest": "0"}).encode(), to_record({**segment, "job": "0"}))):
        journal.place.child(f"done-{number:06d}-00000000.json").write(raw)
    again = FragmentJournal(journal.place, {}, data.fragments).open()
    assert again.finished == {}
    journal.place.child("plan.json").write(to_record({**plan, "format_version": 2}))
    with pytest.raises(errors.VersionError, match=r"plan\.json of version 2; expected at most 1"):
        FragmentJournal(journal.place, {}, data.fragments).open()


class Meddling(LocalEngine):
    """Somebody removes a finished file, starts a second run, or the engine leaves a fragment out."""

    def __init__(self, act):
        self.act = act

    def run(self, work, fragments):
        for k, result in enumerate(super().run(work, fragments)):
            if k == 2 and self.act() == "leave out":
                continue
            yield result


def test_an_output_is_whole_or_not_there(parts, tmp_path):
    data = open_dataset(str(parts))
    remove = (tmp_path / "a.partial/data/part-0.parquet").unlink
    for out, act in (("a", remove), ("b", lambda: "leave out")):
        with pytest.raises(StorageError, match="3 of 4"):
            transform_file(MAP, data, str(tmp_path / out), engine=Meddling(act))
        assert not (tmp_path / out).exists()
        assert transform_file(MAP, data, str(tmp_path / out), engine=HERE).resumed == 3
    out = str(tmp_path / "out")

    def second():
        with pytest.raises(FileError, match="Another run"):
            transform_file(MAP, data, out, engine=HERE)

    assert transform_file(MAP, data, out, engine=Meddling(second)).rows == FILES * ROWS
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "b", "out"]


def test_a_bad_row_stops_the_job_or_goes_to_a_file(tmp_path):
    vectors = X.copy()
    vectors[ROWS + 5], vectors[ROWS + 7] = np.nan, 0
    data = open_dataset(str(write_parts(tmp_path / "spoiled", vectors)))
    with pytest.raises(NotFiniteError, match=r"'305'.*The fragment is part-1\."):
        transform_file(MAP, data, str(tmp_path / "out"), engine=HERE)
    assert not (tmp_path / "out").exists()
    aside = str(tmp_path / "bad.parquet")
    with pytest.raises(Killed):
        transform_file(MAP, data, str(tmp_path / "out2"), engine=Dying(3), bad_rows=aside)
    report = transform_file(MAP, data, str(tmp_path / "out2"), engine=HERE, bad_rows=aside)
    assert (report.rows, report.bad_rows, report.resumed) == (FILES * ROWS - 2, 2, 3)
    got = [tuple(one.values()) for one in pq.read_table(aside).select(["row", "reason", "id"]).to_pylist()]
    assert got == [(5, "NaN or infinity", ROWS + 5), (7, "all zeros", ROWS + 7)]
    kept = [k for k in range(FILES * ROWS) if k not in (ROWS + 5, ROWS + 7)]
    assert read_parts(tmp_path / "out2").column("id").to_pylist() == kept


def test_missing_and_ragged_vectors_are_put_aside_and_named(tmp_path):
    lists = [row.tolist() for row in X[:6]]
    lists[1], lists[2], lists[4] = None, [1.0], [None, *lists[4][1:]]
    rows = pa.table({"id": range(6), "vector": pa.array(lists, pa.list_(pa.float32()))})
    pq.write_table(rows, tmp_path / "in.parquet")
    data = open_dataset(str(tmp_path / "in.parquet"))
    with pytest.raises(errors.ShapeError, match="row 1"):
        transform_file(MAP, data, str(tmp_path / "out"), engine=HERE)
    aside = tmp_path / "bad.parquet"
    transform_file(MAP, data, str(tmp_path / "out2"), engine=HERE, bad_rows=str(aside))
    assert pq.read_table(aside).column("reason").to_pylist() == ["no vector", "another width", "missing numbers"]
    assert pq.read_table(tmp_path / "out2").column("id").to_pylist() == [0, 3, 5]


def url(server, key):
    return f"s3://bucket/{key}?scheme=http&endpoint_override=127.0.0.1:{server.server_port}"


def test_an_object_store_is_read_written_and_resumed(bucket, parts, tmp_path):
    for path in parts.iterdir():
        bucket.objects["bucket"][f"in/{path.name}"] = path.read_bytes()
    data = open_dataset(url(bucket, "in"))
    assert [one.name for one in data.fragments] == [f"part-{k}" for k in range(FILES)]
    with pytest.raises(Killed):
        transform_file(MAP, data, url(bucket, "out"), engine=Dying(2))
    assert "out/_manifest.json" not in bucket.objects["bucket"]
    report = transform_file(MAP, data, url(bucket, "out"), engine=HERE)
    assert (report.resumed, report.output) == (2, "s3://bucket/out")
    transform_file(MAP, open_dataset(str(parts)), str(tmp_path / "out"), engine=HERE)
    ours = {key.removeprefix("out/"): value for key, value in bucket.objects["bucket"].items() if key.startswith("out")}
    assert ours == {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    manifest = json.loads(ours["_manifest.json"])
    assert sum(one["rows"] for one in manifest["files"]) == manifest["rows"] == FILES * ROWS
    with pytest.raises(OutputExistsError):
        transform_file(MAP, data, url(bucket, "out"), engine=HERE)
    bucket.objects["bucket"]["theirs/x"] = b"x"
    with pytest.raises(OutputExistsError, match="Got files at .* that congruence did not write"):
        transform_file(MAP, data, url(bucket, "theirs"), engine=HERE, force=True)


def test_a_file_system_of_fsspec(parts):
    import fsspec

    memory = fsspec.filesystem("memory")
    for path in parts.iterdir():
        memory.pipe(f"/fragments/in/{path.name}", path.read_bytes())
    try:
        data = open_dataset("memory://fragments/in")
        assert transform_file(MAP, data, "memory://fragments/out", engine=HERE).rows == FILES * ROWS
        names = sorted(path.rsplit("/", 1)[1] for path in memory.ls("/fragments/out", detail=False))
        assert names == ["_manifest.json", *(f"part-{k}.parquet" for k in range(FILES))]
    finally:
        memory.rm("/fragments", recursive=True)
    with pytest.raises(ParameterError, match="'nowhere'"):
        open_dataset("nowhere://x")


def test_the_command_maps_urls_and_takes_the_endpoint_from_the_environment(bucket, parts, tmp_path, here, monkeypatch):
    MAP.save(tmp_path / "map")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", f"http://127.0.0.1:{bucket.server_port}")
    result = here("transform", "map", str(parts), "-o", "s3://bucket/out.lance", "--json")
    assert result.code == 0, result.err
    assert json.loads(result.out)["rows"] == FILES * ROWS
    back = here("transform", "map", "s3://bucket/out.lance", "-o", "back", "--inverse")
    assert back.code == 0, back.err
    got = np.stack(read_parts(tmp_path / "back").column("vector").to_numpy())
    np.testing.assert_allclose(got, X, atol=1e-4)


@pytest.mark.parametrize("option", [("--engine", "spark"), ("--set", "address=auto"), ("--set", "gpus=1")])
def test_options_that_do_not_fit_are_refused(here, tmp_path, option):
    MAP.save(tmp_path / "map")
    np.save(tmp_path / "in.npy", X[:9])
    result = here("transform", "map", "in.npy", "-o", "out.npy", *option)
    assert result.code == 2
    assert ("'local', 'ray'" if option[1] == "spark" else "--engine ray") in result.err
    assert not (tmp_path / "out.npy").exists()
