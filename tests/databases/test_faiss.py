"""FAISS index files: the contract on each kind of index that stores its vectors exactly, and special cases."""

from pathlib import Path

import numpy as np
import pytest
from database_contract import NASTY, DatabaseContract, UserRow, make_rows
from failing_files import FailingFiles
from lazy_module import LazyModule

from congruence import OrthogonalMap, read_embeddings
from congruence.databases import open_database
from congruence.embeddings import normalize_rows
from congruence.errors import DatabaseError, MigrationError, ParameterError, ShapeError
from congruence.upgrade.migrate import Migration

faiss = LazyModule("faiss")


class TestFaiss(FailingFiles, DatabaseContract):
    kind = "faiss"
    id_types = ("int",)
    rows_without = False
    has_modalities = False
    needed = (".photos.faiss.congruence-begun",)
    factory = "IDMap2,Flat"

    def make(self, folder, ids, vectors, others, **names):
        where = str(folder / "photos.faiss")
        index = faiss.index_factory(vectors.shape[1], self.factory, faiss.METRIC_INNER_PRODUCT)
        index.train(vectors)
        index.add_with_ids(vectors, np.array(ids, np.int64))
        faiss.write_index(index, where)
        return where

    def open(self, where, *, table=None, column=None, ids=None, **options):
        if table == NASTY:
            table = column = ids = None
        return super().open(where, table=table, column=column, ids=ids, **options)

    def user_rows(self, where, **names):
        index = faiss.read_index(where)
        if self.factory.startswith("IVF"):
            index.set_direct_map_type(faiss.DirectMap.Hashtable)
            held = index.invlists
            parts = [faiss.rev_swig_ptr(held.get_ids(k), held.list_size(k)).copy() for k in range(index.nlist)]
            ids = np.concatenate(parts)
        else:
            ids = faiss.vector_to_array(index.id_map)
        return {one: UserRow(index.reconstruct(one).tobytes(), {}) for one in ids.tolist()}

    def said(self, where):
        index = faiss.read_index(where)
        return type(index), type(faiss.downcast_index(getattr(index, "index", index))), index.metric_type, index.ntotal

    def user_add(self, where, one, vector, others, **names):
        index = faiss.read_index(where)
        index.remove_ids(np.array([one], np.int64))
        index.add_with_ids(vector[None], np.array([one], np.int64))
        faiss.write_index(index, where)

    def empty(self, where):
        index = faiss.read_index(where)
        index.reset()
        faiss.write_index(index, where)

    def user_delete(self, where, one, **names):
        index = faiss.read_index(where)
        index.remove_ids(np.array([one], np.int64))
        faiss.write_index(index, where)


class TestInvertedFile(TestFaiss):
    slow = True
    factory = "IVF4,Flat"


X = np.random.default_rng(0).normal(size=(300, 8)).astype(np.float32)


def built(folder, words, metric, ids=None):
    index = faiss.index_factory(8, words, metric)
    index.train(X)
    index.add(X) if ids is None else index.add_with_ids(X, ids)
    return index, str(folder / "a.index")


@pytest.mark.parametrize(
    ("words", "numbered"), [("Flat", False), ("HNSW8", False), ("IDMap,HNSW8", True), ("IDMap2,IVF5,Flat", True)]
)
def test_a_new_index_is_of_the_same_kind_metric_and_parameters(tmp_path, words, numbered):
    ids = np.arange(300)[::-1].copy() * 7 if numbered else None
    index, where = built(tmp_path, words, faiss.METRIC_L2, ids)
    inner = faiss.downcast_index(index.index) if numbered else index
    if "HNSW" in words:
        inner.hnsw.efSearch, inner.hnsw.efConstruction = 77, 55
    if "IVF" in words:
        inner.nprobe = 3
    faiss.write_index(index, where)
    kind = type(faiss.read_index(where))
    with open_database(where) as database:
        info = database.info()
        assert info.distance == "l2"
        assert database.repeated_ids() == []
        database.prepare(5)
        for block in database.scan(batch=64):
            np.testing.assert_array_equal(block.vectors, X[299 - block.ids.to_numpy() // 7 if numbered else block.ids])
            database.write(block.ids, np.ascontiguousarray(block.vectors[:, :5]))
        with pytest.raises(MigrationError, match="no new index"):
            database.search(X[:1, :5], 1)
        assert database.build_index() == info.index
        database.switch()
        assert [one.to_pylist() for one in database.search(X[:2, :5], 1)] == (
            [[2093], [2086]] if numbered else [[0], [1]]
        )
    new = faiss.read_index(where)
    assert (type(new), new.d, new.ntotal, new.metric_type) == (kind, 5, 300, faiss.METRIC_L2)
    made = faiss.downcast_index(new.index) if numbered else new
    if "HNSW" in words:
        assert (made.hnsw.efSearch, made.hnsw.efConstruction, made.hnsw.nb_neighbors(1)) == (77, 55, 8)
    if "IVF" in words:
        assert (made.nprobe, made.nlist) == (3, 5)


def parts_of(index):
    """Return the classes of an index from the outside."""
    one = faiss.downcast_index(index)
    names = [type(one).__name__]
    while hasattr(one, "index"):
        one = faiss.downcast_index(one.index)
        names.append(type(one).__name__)
    return names


@pytest.mark.parametrize(
    "words",
    ["SQfp16", "IDMap2,SQfp16", "L2norm,Flat", "IDMap,L2norm,SQfp16", "L2norm,IDMap2,HNSW8", "L2norm,IVF5,Flat"],
)
def test_indexes_of_half_precision_and_of_unit_vectors_are_migrated_in_kind(tmp_path, words):
    ids = np.arange(300)[::-1].copy() * 7 if {"IDMap", "IDMap2", "IVF5"} & {*words.split(",")} else None
    index, where = built(tmp_path, words, faiss.METRIC_INNER_PRODUCT, ids)
    faiss.write_index(index, where)
    before, kinds = Path(where).read_bytes(), parts_of(faiss.read_index(where))
    rows = normalize_rows(X) if "L2norm" in words else X
    mapping = OrthogonalMap(center=False).fit(rows, 3 * rows[:, ::-1])  # whose rows are not of unit length
    with Migration(open_database(where), mapping, journal=tmp_path / "journal") as migration:
        plan = migration.plan()
        assert (plan.old_type, plan.element_type) == ("float16" if "fp16" in words else "float32",) * 2
        migration.run()
        assert migration.verify().passed
        migration.switch()
        assert migration.verify().passed
        new = faiss.read_index(where)
        assert parts_of(new) == kinds
        wanted = mapping.transform(rows)
        wanted = normalize_rows(wanted) if "L2norm" in words else wanted
        found = read_embeddings(where)
        numbers = np.asarray(found.ids)
        order = 299 - numbers // 7 if ids is not None else numbers
        np.testing.assert_allclose(found.vectors, wanted[order], atol=2e-3 if "fp16" in words else 1e-6)
        near = new.search(wanted[:50], 1)[1][:, 0] if "L2norm" in words else []
        np.testing.assert_array_equal(near, (ids if ids is not None else np.arange(300))[: len(near)])
        migration.rollback()
        assert Path(where).read_bytes() == before


@pytest.mark.parametrize("words", ["SQ8", "PQ4x4", "PCA4,Flat", "L2norm,SQ8", "PCA4,SQfp16"])
def test_indexes_that_keep_their_vectors_approximately_are_refused(tmp_path, words):
    index, where = built(tmp_path, words, faiss.METRIC_L2)
    faiss.write_index(index, where)
    with pytest.raises(DatabaseError, match="Index.* approximations .*Take the vectors it was built from"):
        open_database(where)


def test_repeated_ids_empty_indexes_and_options_without_use(tmp_path):
    index, where = built(tmp_path, "IDMap2,Flat", faiss.METRIC_INNER_PRODUCT, np.arange(300) // 2)
    faiss.write_index(index, where)
    (tmp_path / "kinds.txt").write_text("\n".join(["image", "text"] * 150))
    with open_database(f"faiss://{where}", modality_column=str(tmp_path / "kinds.txt")) as database:
        assert len(database.repeated_ids()) == 10
        assert next(iter(database.scan(batch=2))).modalities.to_pylist() == ["image", "text"]
    with pytest.raises(ParameterError, match="ids='id'"):
        open_database(where, ids="id")
    with pytest.raises(ParameterError, match="300 rows"):
        (tmp_path / "kinds.txt").write_text("image")
        open_database(where, modality_column=str(tmp_path / "kinds.txt"))
    faiss.write_index(faiss.IndexFlatL2(4), where)
    with pytest.raises(ShapeError, match="is empty"):
        open_database(where)


@pytest.mark.parametrize("factory", ["IVF4,Flat", "IDMap2,IVF4,Flat", "IVF16,Flat"])
def test_an_inverted_file_of_few_rows_is_verified(tmp_path, factory):
    vectors = make_rows("int")[1]
    index = faiss.index_factory(vectors.shape[1], factory)
    index.train(vectors)
    index.add_with_ids(vectors[:5], np.arange(5))
    faiss.write_index(index, str(tmp_path / "few.faiss"))
    mapping, _ = DatabaseContract().rotated(vectors)
    where, options = open_database(tmp_path / "few.faiss"), {"journal": tmp_path / "journal", "modality": "image"}
    with Migration(where, mapping, **options) as migration:
        migration.run()
        assert migration.verify().index_recall == 1
        migration.switch()
