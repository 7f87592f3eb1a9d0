"""Parquet and Arrow data sets: the contract on files as pyarrow writes them, and their own traps."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from database_contract import NASTY, DatabaseContract, UserRow


def as_table(ids, vectors, others, column, id_column, missing=()):
    kind = pa.int64() if isinstance(ids[0], int) else pa.large_string()
    lists = [None if k in missing else row for k, row in enumerate(vectors.tolist())]
    names = pa.array(ids, kind)
    if kind != pa.int64() and len(ids[0]) == 36:
        names = pa.array([UUID(one).bytes for one in ids], pa.uuid())
    return pa.table(
        {
            id_column: names,
            "kind": pa.array(others["kind"]).dictionary_encode(),
            column: pa.array(lists, pa.list_(pa.float32(), vectors.shape[1])),
            "title": others["title"],
        }
    )


class TestParquet(DatabaseContract):
    id_types = ("int", "text", "uuid")

    def make(self, folder, ids, vectors, others, *, table="items", column="embedding", id_column="id"):
        where = folder / "photos.parquet"
        pq.write_table(as_table(ids, vectors, others, column, id_column), where, row_group_size=60)
        return str(where)

    def open(self, where, *, table=None, **options):
        return super().open(where, table=None if table == NASTY else table, **options)

    def read(self, where):
        return pq.read_table(where)

    def user_rows(self, where, *, table="items", column="embedding", id_column="id"):
        found = self.read(where).to_pylist()
        return {
            row[id_column] if isinstance(row[id_column], int | str) else str(row[id_column]): UserRow(
                None if row[column] is None else np.array(row[column], np.float32).tobytes(),
                {"kind": row["kind"], "title": row["title"]},
            )
            for row in found
        }

    def user_add(self, where, one, vector, others, *, table="items", column="embedding", id_column="id"):
        rows = self.user_rows(where)
        ids = [*rows, one]
        width = max(len(row.vector) // 4 for row in rows.values())
        vectors = np.zeros((len(ids), width), np.float32)
        for k, row in enumerate(rows.values()):
            vectors[k] = np.frombuffer(row.vector, np.float32)
        columns = {key: [*(row.others[key] for row in rows.values()), value] for key, value in others.items()}
        added = as_table(ids, vectors, columns, column, id_column, missing=[len(ids) - 1])
        self.write(added, Path(where))

    def write(self, table, where):
        pq.write_table(table, where)


class TestArrowFolder(TestParquet):
    """Two files, the second a stream, and files that are no data."""

    id_types = ("text",)

    def make(self, folder, ids, vectors, others, *, table="items", column="embedding", id_column="id"):
        rows = as_table(ids, vectors, others, column, id_column)
        where = folder / "photos"
        (where / "sub").mkdir(parents=True)
        (where / "README").write_text("mine")
        half = len(rows) // 2
        with pa.ipc.new_file(where / "part-9.arrow", rows.schema) as writer:
            writer.write_table(rows.slice(0, half), 30)
        with pa.ipc.new_stream(where / "sub" / "part-10.arrow", rows.schema) as writer:
            writer.write_table(rows.slice(half), 40)
        return str(where)

    def read(self, where):
        with (
            pa.ipc.open_file(f"{where}/part-9.arrow") as first,
            pa.ipc.open_stream(f"{where}/sub/part-10.arrow") as second,
        ):
            assert Path(where, "README").read_text() == "mine"
            return pa.concat_tables([first.read_all(), second.read_all()], promote_options="permissive")

    def write(self, table, where):
        (where / "sub" / "part-10.arrow").unlink()
        with pa.ipc.new_file(where / "part-9.arrow", table.schema) as writer:
            writer.write_table(table)
        with pa.ipc.new_stream(where / "sub" / "part-10.arrow", table.schema):
            pass
