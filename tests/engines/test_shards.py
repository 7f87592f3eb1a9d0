"""The array of tasks in ``examples/cluster``: its script, Slurm if it runs here, and the manifest of a Job."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from congruence import OrthogonalMap

CLUSTER = Path(__file__).parents[2] / "examples" / "cluster"


@pytest.fixture
def made(tmp_path, monkeypatch):
    """Write five files and a map, and put the command on the path."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 8)).astype(np.float32)
    OrthogonalMap().fit(X, X @ np.linalg.qr(rng.normal(size=(8, 8)))[0]).save(tmp_path / "map")
    (tmp_path / "in").mkdir()
    for k in range(5):
        vectors = pa.FixedSizeListArray.from_arrays(pa.array(rng.normal(size=800).astype(np.float32)), 8)
        pq.write_table(pa.table({"id": np.arange(100) + 100 * k, "vector": vectors}), tmp_path / f"in/part-{k}.parquet")
    command = tmp_path / "bin" / "congruence"
    command.parent.mkdir()
    command.write_text(f'#!/bin/bash\necho "$3" >> {tmp_path}/calls\nexec {sys.executable} -m congruence "$@"\n')
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{command.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("SHARD", str(CLUSTER / "shard.sh"))
    return tmp_path


def words(folder):
    return [str(folder / name) for name in ("in", "out", "map")]


def task(folder, index, shards):
    """Run one task as an Indexed Job does."""
    own = {"JOB_COMPLETION_INDEX": str(index), "SHARDS": str(shards)}
    subprocess.run([CLUSTER / "shard.sh", *words(folder)], env={**os.environ, **own}, check=True)


def check(folder):
    """Check every output against the library, and return which files were mapped since the last call."""
    from congruence import load

    mapping = load(folder / "map")
    for path in sorted((folder / "in").iterdir()):
        old, new = (pq.read_table(folder / side / path.name) for side in ("in", "out"))
        assert new["id"].equals(old["id"])
        rows = np.stack(old["vector"].to_numpy())
        np.testing.assert_allclose(np.stack(new["vector"].to_numpy()), mapping.transform(rows), atol=1e-5)
    calls = (folder / "calls").read_text().split() if (folder / "calls").exists() else []
    (folder / "calls").unlink(missing_ok=True)
    return sorted(Path(one).name[5:6] for one in calls)


@pytest.mark.long
@pytest.mark.heavy
def test_tasks_divide_the_files_and_only_what_is_missing_or_old_is_made_again(made):
    for index in range(3):
        task(made, index, 3)
    assert check(made) == ["0", "1", "2", "3", "4"]
    (made / "out/part-2.parquet").unlink()  # as after a kill: an output appears when it is complete
    for index in range(2):
        task(made, index, 2)
    assert check(made) == ["2"]
    os.utime(made / "in/part-4.parquet")
    task(made, 0, 1)
    assert check(made) == ["4"]
    time.sleep(0.02)
    X = np.random.default_rng(5).normal(size=(200, 8)).astype(np.float32)
    OrthogonalMap().fit(X, X @ np.linalg.qr(np.random.default_rng(6).normal(size=(8, 8)))[0]).save(
        made / "map", force=True
    )
    task(made, 0, 1)
    assert check(made) == ["0", "1", "2", "3", "4"]


def slurm_answers():
    if shutil.which("sbatch") is None:
        return False
    nodes = subprocess.run(["sinfo", "-h", "-t", "idle,mix,alloc"], capture_output=True, text=True, timeout=20)
    return bool(nodes.stdout.strip())


@pytest.mark.long
def test_an_array_of_slurm_is_cancelled_and_submitted_again(made):
    if not slurm_answers():  # asked here, because it takes seconds and every process collects all tests
        pytest.skip("needs a Slurm cluster whose nodes see this folder")
    command = ["sbatch", "--parsable", "--array=0-1", "--cpus-per-task=1", "--mem=500", f"--output={made}/log"]
    job = [*command, str(CLUSTER / "slurm.sh"), *words(made)]
    number = subprocess.run(job, check=True, capture_output=True, text=True, cwd=made).stdout.strip()
    for _ in range(600):
        if list((made / "out").glob("*.parquet")):
            break
        time.sleep(0.1)
    subprocess.run(["scancel", number], check=True)
    first = [path.name for path in (made / "out").glob("*.parquet")]
    assert first
    subprocess.run([job[0], "--wait", *job[1:]], check=True, capture_output=True, cwd=made)
    check(made)


def test_the_manifest_of_a_job():
    """Its fields are those of batch/v1; it was checked against the schema of Kubernetes 1.37 and run on no cluster."""
    yaml = pytest.importorskip("yaml")
    job = yaml.safe_load((CLUSTER / "job.yaml").read_text())
    spec, pod = job["spec"], job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    own = {one["name"]: one["value"] for one in container["env"]}
    assert (job["apiVersion"], job["kind"], spec["completionMode"]) == ("batch/v1", "Job", "Indexed")
    assert own["SHARDS"] == str(spec["completions"])
    assert pod["restartPolicy"] in ("Never", "OnFailure")
    assert {one["name"] for one in container["volumeMounts"]} == {one["name"] for one in pod["volumes"]}
    assert container["command"][1] == "/scripts/shard.sh"
    assert len(container["command"]) == 5
