"""On a local cluster of Ray with two workers, started once."""

from __future__ import annotations

import json
import os
import signal
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from engine_data import FILES, ROWS, X, Y, make_map, read_parts, table, write_parts

from congruence import load
from congruence.engines import MapBatch, RayEngine, open_dataset, transform_dataset
from congruence.errors import NotFiniteError
from congruence.stores import open_source
from congruence.upgrade.transform import transform_file

pytestmark = [pytest.mark.heavy, pytest.mark.xdist_group("ray"), pytest.mark.filterwarnings("ignore")]

MAP = make_map()


@pytest.fixture(scope="module")
def cluster():
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    import ray

    before = signal.getsignal(signal.SIGTERM)
    ray.init(
        address="local",
        num_cpus=2,
        include_dashboard=False,
        object_store_memory=100 * 2**20,
        log_to_driver=False,
        logging_level="ERROR",
    )
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
    """Ends its process on the first attempt at each of some fragments, after the output is written: kill -9 at the worst time."""

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
        report = transform_dataset(MAP, open_dataset(str(parts)), str(tmp_path / out), engine=engine)
        assert len(list((tmp_path / "marks").iterdir())) == 1
        assert report.rows == FILES * ROWS
        ids = open_source(tmp_path / out).read().ids
        assert ids.tolist() == list(range(FILES * ROWS))
    assert len(list((tmp_path / "out.lance/data").iterdir())) == FILES


def test_an_error_of_a_worker_is_ours_and_what_is_finished_stays(cluster, tmp_path):
    vectors = X.copy()
    vectors[-1] = np.nan
    data = open_dataset(str(write_parts(tmp_path / "in", vectors)))
    with pytest.raises(NotFiniteError, match=r"'1199'.*The fragment is part-3\."):
        transform_dataset(MAP, data, str(tmp_path / "out"), engine=RayEngine(workers=1))
    report = transform_dataset(
        MAP, data, str(tmp_path / "out"), engine=RayEngine(), bad_rows=str(tmp_path / "bad"), force=True
    )
    assert (report.rows, report.bad_rows) == (FILES * ROWS - 1, 1)


def test_a_fit_on_a_cluster_is_the_same_to_the_bit_in_every_run(cluster, here, tmp_path):
    two = table().append_column("new", pa.FixedSizeListArray.from_arrays(Y.ravel(), Y.shape[1]))
    (tmp_path / "both").mkdir()
    for k in range(18):  # two levels of merges
        pq.write_table(two.slice(k * 60, 60), tmp_path / f"both/{k}.parquet")
    for out in ("a", "b"):
        result = here(
            "fit", "both:vector", "both:new", "-o", out, "--engine", "ray", "--method", "orthogonal", "--json"
        )
        assert result.code == 0, result.err
    assert (
        here("fit", "file://" + str(tmp_path / "both:vector"), "file://" + str(tmp_path / "both:new"), "-o", "c").code
        == 0
    )
    a, b, c = (load(tmp_path / name).rotation_ for name in "abc")
    assert np.array_equal(a, b)
    np.testing.assert_allclose(a, c, atol=1e-13)


def test_the_batch_callable_in_a_pipeline_of_ray(cluster, parts):
    import ray.data

    batch = MapBatch(MAP, pq.read_schema(parts / "part-0.parquet"))
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
