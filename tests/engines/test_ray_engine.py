"""On a local cluster of Ray with two workers, started once."""

import io
import json
import os
import signal
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from engine_data import FILES, MAP, ROWS, X, Y, read_parts, table, write_parts
from PIL import Image

from congruence import engines, load, read_embeddings
from congruence.databases import open_database
from congruence.encoders import EncoderOptions, load_encoder
from congruence.engines import RayEngine, embed_dataset, open_dataset, open_itemset
from congruence.errors import NotFiniteError
from congruence.io import open_source
from congruence.upgrade.migrate import Migration
from congruence.upgrade.transform import transform_file

pytestmark = [pytest.mark.heavy, pytest.mark.xdist_group("ray"), pytest.mark.filterwarnings("ignore"), pytest.mark.long]


@pytest.fixture(scope="module")
def cluster():
    """A worker imports for two seconds: the cluster keeps those that it has, and starts none without work for it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_idle_worker_killing_time_threshold_ms", "3600000")
        patch.setenv("RAY_enable_worker_prestart", "0")
        import ray

        before = signal.getsignal(signal.SIGTERM)
        quiet = {"include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR"}
        # No GPU is used: tasks that ask for one are told apart by Ray.
        ray.init(address="local", num_cpus=2, num_gpus=1, object_store_memory=100 * 2**20, **quiet)
        signal.signal(signal.SIGTERM, before)  # which ray.init overwrites, for all tests of this process
        ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import tests
        yield ray
        ray.shutdown()


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    return write_parts(tmp_path_factory.mktemp("ray") / "in")


def test_the_command_on_a_cluster_writes_what_the_local_one_writes(cluster, parts, here, tmp_path):
    MAP.save(tmp_path / "map")
    result = here("transform", "map", parts, "-o", "out", "--engine", "ray", "--json")
    assert result.code == 0, result.err
    assert json.loads(result.out)["rows"] == FILES * ROWS
    transform_file(MAP, open_source(parts), tmp_path / "reference")
    assert read_parts(tmp_path / "out").equals(read_parts(tmp_path / "reference"))


class Dies:
    """Ends its process on the first attempt at each of some fragments, after the output is written."""

    def __init__(self, work, marks, names):
        self.work, self.marks, self.names = work, marks, names

    def __call__(self, fragment):
        result = self.work(fragment)
        mark = os.path.join(self.marks, fragment.name)
        if fragment.name in self.names and not os.path.exists(mark):
            open(mark, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        return result


class Dangerous(RayEngine):
    def __init__(self, marks, names):
        super().__init__()
        self.marks, self.names = str(marks), names

    def run(self, work, fragments):
        return super().run(Dies(work, self.marks, self.names), fragments)


def test_dead_workers_are_replaced_and_no_row_is_there_twice(cluster, parts, tmp_path):
    (tmp_path / "marks").mkdir()
    engine = Dangerous(tmp_path / "marks", ("part-1",))
    for out in ("out", "out.lance"):
        for mark in (tmp_path / "marks").iterdir():
            mark.unlink()
        report = transform_file(MAP, open_dataset(str(parts)), str(tmp_path / out), engine=engine)
        assert len(list((tmp_path / "marks").iterdir())) == 1
        assert report.rows == FILES * ROWS
        ids = open_source(tmp_path / out).read().ids
        assert ids.tolist() == list(range(FILES * ROWS))
    assert len(list((tmp_path / "out.lance/data").iterdir())) == FILES


def test_a_migration_on_a_cluster_with_dying_workers(cluster, here, tmp_path):
    """After a stretch is written, before it is told, and after a new file is; then the command switches."""
    where = write_parts(tmp_path / "photos")
    MAP.save(tmp_path / "map")
    (tmp_path / "marks").mkdir()
    engine = Dangerous(tmp_path / "marks", ("rows 300 to 599", "file-000002"))
    with Migration(open_database(str(where)), MAP, journal=tmp_path / "journal", engine=engine) as migration:
        migration.run()
        assert migration.journal.rows == FILES * ROWS
        assert migration.verify().passed
    assert sorted(mark.name for mark in (tmp_path / "marks").iterdir()) == ["file-000002", "rows 300 to 599"]
    old = read_parts(where)
    for action in ("switch", "rollback", "verify", "switch"):
        engine = () if action == "verify" else ("--set", "engine=ray")
        ended = here("migrate", where, action, "--journal", "journal", *engine)
        assert ended.code == 0, ended.err
        if action == "rollback":
            assert "bit for bit as before" in ended.out
            assert read_parts(where).equals(old)
    assert sorted(path.name for path in where.iterdir()) == [f"part-{k}.parquet" for k in range(FILES)]
    found = read_parts(where)
    assert found.drop(["vector"]).equals(old.drop(["vector"]))
    np.testing.assert_allclose(np.stack(found["vector"].to_numpy()), MAP.transform(X), rtol=0, atol=2e-6)


def test_a_lancedb_table_on_a_cluster_with_a_dying_worker(cluster, here, tmp_path):
    """A worker dies after a fragment's file is written, before it is told: another writes it again."""
    lance = pytest.importorskip("lance")
    where = tmp_path / "photos.lance"
    lance.write_dataset(table(), str(where), max_rows_per_file=ROWS)
    MAP.save(tmp_path / "map")
    (tmp_path / "marks").mkdir()
    engine = Dangerous(tmp_path / "marks", ("fragments 2 to 2",))
    with Migration(
        open_database(str(where)), MAP, journal=tmp_path / "journal", engine=engine, range_bytes=1
    ) as migration:
        migration.run()
        assert migration.verify().passed
    assert [mark.name for mark in (tmp_path / "marks").iterdir()] == ["fragments 2 to 2"]
    ended = here("migrate", where, "switch", "--journal", "journal", "--set", "engine=ray")
    assert ended.code == 0, ended.err
    found = lance.dataset(str(where)).to_table(columns=["id", "title", "vector"])
    assert found.drop(["vector"]).equals(table().drop(["vector"]))
    np.testing.assert_allclose(np.stack(found["vector"].to_numpy()), MAP.transform(X), rtol=0, atol=2e-6)


def test_an_error_of_a_worker_is_ours_and_what_is_finished_stays(cluster, tmp_path):
    vectors = X.copy()
    vectors[-1] = np.nan
    data = open_dataset(str(write_parts(tmp_path / "in", vectors)))
    with pytest.raises(NotFiniteError, match=r"'1199'.*The fragment is part-3\."):
        transform_file(MAP, data, str(tmp_path / "out"), engine=RayEngine(workers=1))
    aside = str(tmp_path / "bad")
    report = transform_file(MAP, data, str(tmp_path / "out"), engine=RayEngine(), bad_rows=aside, force=True)
    assert (report.rows, report.bad_rows) == (FILES * ROWS - 1, 1)


def test_a_fit_on_a_cluster_is_the_same_to_the_bit_in_every_run(cluster, here, tmp_path):
    two = table().append_column("new", pa.FixedSizeListArray.from_arrays(Y.ravel(), Y.shape[1]))
    (tmp_path / "both").mkdir()
    for k in range(18):  # two levels of merges
        pq.write_table(two.slice(k * 60, 60), tmp_path / f"both/{k}.parquet")
    for out in ("a", "b"):
        result = here("fit", "both:vector", "both:new", "-o", out, "--engine", "ray", "--method", "orthogonal")
        assert result.code == 0, result.err
    assert here("fit", *(f"file://{tmp_path / 'both'}:{name}" for name in ("vector", "new")), "-o", "c").code == 0
    a, b, c = (load(tmp_path / name).rotation_ for name in "abc")
    assert np.array_equal(a, b)
    np.testing.assert_allclose(a, c, atol=1e-13)


def test_the_batch_callable_in_a_pipeline_of_ray(cluster, parts):
    import ray.data

    batch = engines.MapBatch(MAP, pq.read_schema(parts / "part-0.parquet"))
    got = ray.data.read_parquet(str(parts)).map_batches(batch, batch_format="pyarrow", batch_size=None).take_all()
    assert sorted(row["id"] for row in got) == list(range(FILES * ROWS))
    row = next(row for row in got if row["id"] == 17)
    np.testing.assert_allclose(row["vector"], MAP.transform(X[17:18])[0], atol=1e-5)
    assert row["title"] == "row 17"


def test_a_command_keeps_what_a_signal_does_to_it(monkeypatch):
    import ray

    def replaces(**_):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", replaces)
    before = signal.getsignal(signal.SIGTERM)
    try:
        RayEngine()._connect()
        assert signal.getsignal(signal.SIGTERM) is before
    finally:
        signal.signal(signal.SIGTERM, before)


def test_scores_of_a_cluster_are_those_of_the_local_commands(cluster, parts, here, tmp_path):
    MAP.save(tmp_path / "map")
    new = write_parts(tmp_path / "new", Y)
    ray = ("--engine", "ray", "--json")
    sides = ("--old-image", parts, "--new-image", new)
    scores = [here("lab evaluate", "map", *sides, *how) for how in (ray, ("--json",))]
    assert scores[0].code == 0, scores[0].err
    assert json.loads(scores[0].out) == json.loads(scores[1].out)
    said = [here("check", parts, new, "-o", f"checked{k}", *how) for k, how in enumerate((ray, ("--json",)))]
    assert said[0].out, said[0].err
    assert json.loads(said[0].out)["verdict"] == json.loads(said[1].out)["verdict"]


@pytest.fixture(scope="module")
def eyes(tmp_path_factory):
    """A linear layer on the pixels, in a folder with pictures in eight files."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    home, rng = tmp_path_factory.mktemp("eyes"), np.random.default_rng(0)
    weights = numpy_helper.from_array(rng.normal(size=(3 * 6 * 6, 5)).astype("f4"), "w")
    nodes = [helper.make_node("Flatten", ["pixels"], ["flat"]), helper.make_node("MatMul", ["flat", "w"], ["vector"])]
    ends = [("pixels", ["n", 3, 6, 6]), ("vector", ["n", 5])]
    inputs, outputs = ([helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)] for name, shape in ends)
    graph = helper.make_graph(nodes, "g", inputs, outputs, [weights])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), home / "eyes.onnx")
    (home / "eyes.json").write_text(json.dumps({"modality": "image", "size": 6}))
    (home / "in").mkdir()
    for k in range(8):
        files = [io.BytesIO() for _ in range(5)]
        for file in files:
            Image.fromarray(rng.integers(0, 255, (6, 6, 3), "u1")).save(file, "PNG")
        rows = {"id": [f"{k}-{j}" for j in range(5)], "image": [file.getvalue() for file in files]}
        pq.write_table(pa.table(rows), home / f"in/part-{k}.parquet")
    return home


def expected(eyes):
    rows = read_parts(eyes / "in")
    vectors = load_encoder(f"onnx:{eyes / 'eyes.onnx'}").encode_all(rows["image"].to_pylist())
    return rows["id"].to_pylist(), vectors


def test_embed_on_a_cluster_gives_the_vectors_of_the_encoder(cluster, eyes, here, tmp_path):
    flags = ("--engine", "ray", "--batch-size", 4, "--json")
    done = here("embed", f"onnx:{eyes / 'eyes.onnx'}", eyes / "in", "-o", "out", *flags)
    assert done.code == 0, done.err
    assert json.loads(done.out)["rows"] == 40
    ids, vectors = expected(eyes)
    got = read_embeddings(tmp_path / "out")
    assert got.ids.tolist() == ids
    np.testing.assert_allclose(got.vectors, vectors, rtol=1e-5)
    assert got.space.model == f"onnx:{eyes / 'eyes.onnx'}"


class Counts:
    """Notes which process encoded a fragment, and how often it had opened an encoder by then."""

    def __init__(self, work, marks):
        self.work, self.marks = work, marks

    def __call__(self, fragment):
        result = self.work(fragment)
        from congruence.engines.embed import _open

        with open(os.path.join(self.marks, fragment.name), "w") as file:
            file.write(f"{os.getpid()} {_open.cache_info().misses}")
        return result


class Counting(RayEngine):
    def __init__(self, marks):
        super().__init__(workers=1, gpus=0.5)
        self.marks = str(marks)

    def run(self, work, fragments):
        return super().run(Counts(work, self.marks) if len(fragments) > 1 else work, fragments)


def test_a_worker_opens_the_encoder_once_on_a_gpu_too(cluster, eyes, tmp_path):
    (tmp_path / "marks").mkdir()
    spec = EncoderOptions(f"onnx:{eyes / 'eyes.onnx'}", device="cpu")
    data = open_itemset(str(eyes / "in"))
    embed_dataset(spec, data, str(tmp_path / "out"), engine=Counting(tmp_path / "marks"))
    notes = [mark.read_text().split() for mark in (tmp_path / "marks").iterdir()]
    assert len(notes) == 8
    assert {misses for _, misses in notes} == {"1"}
    assert len({process for process, _ in notes}) <= 2  # by itself Ray takes a new process for each task with a GPU
