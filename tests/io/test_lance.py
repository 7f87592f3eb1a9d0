"""Lance data sets written by others, and ours read by Lance; tests of all formats are in other files."""

import numpy as np
import pyarrow as pa
import pytest
from written import write

from congruence import Space, errors
from congruence.io import StreamedRows, open_source, read_column, read_embeddings
from fresh import run_fresh

lance = pytest.importorskip("lance")

RNG = np.random.default_rng(0)
X = RNG.standard_normal((60, 4)).astype(np.float32)


def lists(X, kind=pa.list_):
    return pa.array([row.tolist() for row in X], kind(pa.float32()))


def test_lance_opens_what_we_write(tmp_path):
    ids = [f"i{k}" for k in range(60)]
    data = lance.dataset(write(tmp_path / "a.lance", X, ids, space=Space("m")))
    assert len(data.versions()) == 1
    table = data.to_table()
    assert table.schema.field("vector").type == pa.list_(pa.float32(), 4)
    assert np.array_equal(table["vector"].combine_chunks().flatten().to_numpy().reshape(-1, 4), X)
    assert table["id"].to_pylist() == ids


def test_a_large_one_has_several_fragments(tmp_path, monkeypatch):
    monkeypatch.setattr("congruence.io.tables._GROUP_BYTES", 1)  # the least is 1,024 rows
    Z = RNG.standard_normal((5000, 3)).astype(np.float32)
    path = write(tmp_path / "a.lance", Z)
    assert len(lance.dataset(path).get_fragments()) == 5
    source = open_source(path)
    assert np.array_equal(np.concatenate([block for _, block in source.scan(1500, 700)]), Z[1500:])
    wanted = RNG.integers(0, 5000, 300)
    assert np.array_equal(source.take(wanted)[1], Z[wanted])


@pytest.mark.parametrize("kind", [pa.list_, pa.large_list])
def test_lists_of_variable_size_appended_and_deleted_rows(kind, tmp_path):
    names = [f"n{k}" for k in range(60)]
    table = pa.table({"name": names, "v": lists(X, kind), "k": list(range(60))})
    path = tmp_path / "a.lance"
    data = lance.write_dataset(table.slice(0, 20), path)
    lance.write_dataset(table.slice(20), path, mode="append")
    data = lance.dataset(path)
    data.delete("k >= 10 AND k < 30")
    left = np.r_[0:10, 30:60]
    source = open_source(path, ids="name")
    assert (source.n, source.dim) == (40, 4)
    for after in (0, 5, 12, 39):
        blocks = list(source.scan(after, 6))
        assert np.array_equal(np.concatenate([block for _, block in blocks]), X[left[after:]])
        assert [name for ids, _ in blocks for name in ids.to_pylist()] == [names[k] for k in left[after:]]
    ids, rows = source.take([39, 9, 10, 9])
    assert np.array_equal(rows, X[left[[39, 9, 10, 9]]])
    assert ids.to_pylist() == [names[k] for k in left[[39, 9, 10, 9]]]
    assert read_column(f"{path}:k").tolist() == [str(k) for k in left]
    np.save(tmp_path / "b.npy", X[left])
    assert read_embeddings(tmp_path / "b.npy", ids=f"{path}:name").ids.tolist() == [names[k] for k in left]
    (tmp_path / "names.txt").write_text("\n".join(f"other {k}" for k in left))
    ids, _ = open_source(path, ids=tmp_path / "names.txt").take([39, 9])
    assert ids.to_pylist() == ["other 59", "other 9"]


def test_what_is_no_data_set(tmp_path):
    lance.write_dataset(pa.table({"v": lists(X)}).slice(0, 0), tmp_path / "e.lance")
    with pytest.raises(errors.ShapeError, match="no rows"):
        open_source(tmp_path / "e.lance")
    (tmp_path / "f.lance").write_text("words")
    (tmp_path / "d.lance").mkdir()
    (tmp_path / "d.lance" / "thesis.txt").write_text("years of work")
    with pytest.raises(errors.FileError, match="a file"):
        open_source(tmp_path / "f.lance")
    with pytest.raises(errors.CorruptFileError):
        open_source(tmp_path / "d.lance")
    with pytest.raises(errors.OutputExistsError, match="other files than those of a Lance data set"):
        write(tmp_path / "d.lance", X, force=True)
    assert (tmp_path / "d.lance" / "thesis.txt").exists()


def test_what_is_open_stays_as_it_was(tmp_path):
    path = write(tmp_path / "a.lance", X, [f"i{k}" for k in range(60)])
    rows = StreamedRows(open_source(path), 25)
    before = rows.batch(0, 60, 0)
    lance.dataset(path).delete("id > 'i3'")
    rows.close()
    assert np.array_equal(rows.batch(0, 60, 0), before)
    assert np.array_equal(rows.take([59]), X[59:])
    assert open_source(path).n < 60
    rows.close()


def test_a_damaged_header_is_an_error_and_does_not_end_the_process(tmp_path):
    """Lance quotes the damaged bytes, and a null byte in an error of Arrow's stream aborts the process."""
    lance.write_dataset(pa.table({"v": lists(X), "k": list(range(60))}), tmp_path / "a.lance")
    (file,) = (tmp_path / "a.lance" / "data").iterdir()
    whole = file.read_bytes()
    assert b"PageLayout" in whole
    file.write_bytes(whole.replace(b"PageLayout", b"\0ageLayout"))
    code = (
        "import sys\n"
        "from congruence import read_embeddings\n"
        "from congruence.errors import CorruptFileError\n"
        "from congruence.io import read_column\n"
        "for read, key in ((read_embeddings, 'v'), (read_column, 'k')):\n"
        "    try:\n"
        "        read(f'{sys.argv[1]}:{key}')\n"
        "    except CorruptFileError:\n"
        "        print('refused')\n"
    )
    done = run_fresh(code, tmp_path / "a.lance")
    assert (done.returncode, done.stdout) == (0, "refused\nrefused\n"), done.stderr[-500:]


def test_parts_that_a_damaged_file_claims_are_not_allocated(tmp_path):
    (file,) = (write(tmp_path / "a.lance", X) / "data").iterdir()
    raw = bytearray(file.read_bytes())
    for table in (int.from_bytes(raw[k : k + 8], "little") for k in (-32, -24)):  # of columns, of buffers
        damaged = raw.copy()
        damaged[table + 8 : table + 16] = (2**35).to_bytes(8, "little")
        file.write_bytes(damaged)
        with pytest.raises(errors.CorruptFileError, match=f"parts outside of its {len(raw)} bytes"):
            read_embeddings(tmp_path / "a.lance")
