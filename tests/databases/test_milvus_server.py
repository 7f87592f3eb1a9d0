"""A real Milvus server: the last release on PyPI that contains one is 2.3.5 (Linux, x86-64, Python up to 3.11).

python -m venv venv && venv/bin/pip install milvus && venv/bin/milvus-server --proxy-port 19531
CONGRUENCE_MILVUS=http://127.0.0.1:19531 pytest tests/databases/test_milvus_server.py      # all its collections go
"""

import os

import numpy as np
import pytest
from lazy_module import LazyModule

from congruence import LazySearch, Migration, OrthogonalMap
from congruence.databases import open_database

ADDRESS = os.environ.get("CONGRUENCE_MILVUS", "")
pytestmark = pytest.mark.skipif(not ADDRESS, reason="needs the address of a Milvus server in CONGRUENCE_MILVUS")

pymilvus = LazyModule("pymilvus")
N, OLD, NEW = 600, 8, 10


def unit(n, dim, seed):
    drawn = np.random.default_rng(seed).normal(size=(n, dim)).astype(np.float32)
    return drawn / np.linalg.norm(drawn, axis=1, keepdims=True)


@pytest.fixture
def client():
    client = pymilvus.MilvusClient(ADDRESS)
    for name in client.list_collections():
        for alias in client.list_aliases(name)["aliases"]:
            client.drop_alias(alias)
        client.drop_collection(name)
    return client


def rows(client, name):
    client.load_collection(name)
    found = client.query(name, filter="id >= 0", output_fields=["*"], consistency_level="Strong")
    return {one["id"]: {**one, "embedding": np.asarray(one["embedding"], np.float32).tobytes()} for one in found}


def same_as_native(client, name, native):
    """Return how many rows have the new model's own vector."""
    seen = np.array([np.frombuffer(one["embedding"], np.float32) for _, one in sorted(rows(client, name).items())])
    return int((np.abs(seen - native).max(axis=1) < 1e-6).sum())


def find_journal(folder):
    return next(folder.rglob("journal.json")).parent


@pytest.mark.parametrize("alias", [True, False])
def test_a_migration_from_plan_to_finish(client, here, tmp_path, alias):
    kinds, old = pymilvus.DataType, unit(N, OLD, 0)
    schema = client.create_schema(enable_dynamic_field=True)
    schema.add_field("id", kinds.INT64, is_primary=True)
    schema.add_field("embedding", kinds.FLOAT_VECTOR, dim=OLD)
    schema.add_field("kind", kinds.VARCHAR, max_length=9)
    index = client.prepare_index_params()
    options = {"M": 12, "efConstruction": 90}
    index.add_index("embedding", index_type="HNSW", metric_type="COSINE", params=options)
    client.create_collection("photos_v1", schema=schema, index_params=index)
    row = [{"id": k, "embedding": old[k].tolist(), "kind": "image", "title": f"t{k}"} for k in range(N)]
    client.insert("photos_v1", row)
    if alias:
        client.create_alias("photos_v1", "photos")
    name = "photos" if alias else "photos_v1"
    turn = np.linalg.qr(np.random.default_rng(1).normal(size=(NEW, NEW)))[0][:OLD].astype(np.float32)
    mapping = OrthogonalMap(center=False).fit(unit(60, OLD, 9), unit(60, OLD, 9) @ turn)
    mapping.save(tmp_path / "map")
    native = unit(N, NEW, 5)
    np.savez(tmp_path / "new.npz", vectors=native, ids=np.arange(N))
    url, before = f"milvus+{ADDRESS}", rows(client, name)
    here("migrate", url, "run", "--map", "map", "--modality", "image", "--table", name, "--yes").ends(0)
    assert rows(client, name) == before
    client.insert(name, [{"id": N, "embedding": old[7].tolist(), "kind": "image", "title": "meanwhile"}])
    here("migrate", url, "switch").ends(0)
    now = rows(client, name)
    assert now.keys() == {*range(N + 1)}
    for k, one in now.items():
        wanted = mapping.transform(old[7 if k == N else k][None], role="store")[0]
        np.testing.assert_allclose(np.frombuffer(one["embedding"], np.float32), wanted, atol=1e-6)
    client.delete(name, ids=[N])
    asked: list[int] = []

    def encode(ids):
        asked.extend(map(int, ids))
        return native[[int(one) for one in ids]]

    with Migration(open_database(url, table=name), journal=find_journal(tmp_path)) as migration:
        search = LazySearch(migration, None, encode, budget=10, check=False)
        hits = search.search(native[:3], k=5)
        assert hits.reembedded.all()
        np.testing.assert_allclose(hits.scores[0], native[[int(one) for one in hits.ids[0]]] @ native[0], atol=1e-5)
        search.write()
    lazily = len({*asked})
    assert 10 <= lazily <= 30
    assert same_as_native(client, name, native) == lazily
    here("migrate", url, "reembed", "--share", ".1", "--encode", "new.npz").ends(0)
    assert same_as_native(client, name, native) == N // 10
    here("migrate", url, "rollback", "--new-rows", "map-back").ends(0)
    assert rows(client, name) == before
    here("migrate", url, "finish", "--yes").ends(0)
    assert client.list_collections() == ["photos_v1"]
    assert rows(client, name) == before
