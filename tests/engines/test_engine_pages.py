"""The examples of docs/clusters.md for Spark, Daft and Dask, run as printed."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from engine_data import FILES, MAP, OUT, ROWS, WIDTH, X, write_parts

from congruence import Space
from congruence.upgrade.transform import BlockMap

pytestmark = [pytest.mark.heavy, pytest.mark.filterwarnings("ignore"), pytest.mark.long]

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Run the Python of a section beside ``vectors`` and ``map``, and return what it wrote to ``mapped``, by id."""
    write_parts(tmp_path / "vectors")
    MAP.save(tmp_path / "map")
    monkeypatch.chdir(tmp_path)

    def section(name):
        text = (DOCS / "clusters.md").read_text(encoding="utf-8")
        (code,) = re.findall(rf"^## {name}\n\n```python\n(.*?)```", text, flags=re.S | re.M)
        exec(compile(code, name, "exec"), {})
        files = sorted(Path("mapped").rglob("*.parquet"))
        rows = pa.concat_tables([pq.read_table(file, partitioning=None) for file in files])
        return rows.take(np.argsort(rows.column("id").to_numpy()))

    return section


def check(rows, atol=0.0):
    """Compare with the local command's rows, to the bit where each file is a block."""
    assert rows.column("id").to_pylist() == list(range(FILES * ROWS))
    assert rows.column("title").to_pylist()[7] == "row 7"
    got = np.stack(rows.column("vector").to_numpy())
    files = (X[k * ROWS : (k + 1) * ROWS] for k in range(FILES))
    expected = np.concatenate([BlockMap(MAP, Space(dim=WIDTH), "f4")(file) for file in files])
    assert got.shape == (FILES * ROWS, OUT)
    np.testing.assert_allclose(got, expected, rtol=0, atol=atol)


def test_dask(run):
    rows = run("Dask")
    check(rows)
    assert rows.schema.field("vector").type == pa.list_(pa.field("element", pa.float32()), OUT)


def test_daft(run):
    check(run("Daft"), atol=2e-6)  # its batches are its own


def has_java() -> bool:
    """Say whether there is a Java that Spark can start with."""
    java = shutil.which("java")
    if java is None:
        return False
    return "jdk.incubator.vector" in subprocess.run([java, "--list-modules"], capture_output=True, text=True).stdout


@pytest.mark.skipif(not has_java(), reason="no Java 17 with the module that Spark 4 needs")
def test_spark(run, monkeypatch):
    from pyspark.sql import SparkSession

    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    options = {
        "spark.ui.enabled": "false",
        "spark.driver.memory": "512m",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:CICompilerCount=1",
    }
    builder = SparkSession.builder.master("local[1]")
    for name, value in options.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    try:
        rows = run("Spark")
    finally:
        spark.stop()
    check(rows)
