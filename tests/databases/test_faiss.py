"""FAISS index files: the contract on indexes of each kind that keeps its vectors, and their own traps."""

from __future__ import annotations

import numpy as np
from database_contract import NASTY, DatabaseContract, UserRow
from lazy_module import LazyModule

faiss = LazyModule("faiss")


class TestFaiss(DatabaseContract):
    id_types = ("int",)
    rows_without = False
    has_columns = False
    has_modalities = False
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
            ids = np.concatenate(
                [
                    faiss.rev_swig_ptr(index.invlists.get_ids(k), index.invlists.list_size(k)).copy()
                    for k in range(index.nlist)
                ]
            )
        else:
            ids = faiss.vector_to_array(index.id_map)
        return {one: UserRow(index.reconstruct(one).tobytes(), {}) for one in ids.tolist()}


class TestInvertedFile(TestFaiss):
    factory = "IVF4,Flat"
