"""Pairs as people have them: files of pairs, dictionaries with several targets, captions, through each command."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from congruence import Embeddings, Pairs, errors, load
from congruence.io import read_embeddings, read_links

RNG = np.random.default_rng(9)
OLD = RNG.standard_normal((150, 8))
TURN = np.linalg.qr(RNG.standard_normal((8, 8)))[0]
NEW = OLD @ TURN + 0.02 * RNG.standard_normal((150, 8))
ORDER = RNG.permutation(150)
OURS, THEIRS = [f"a{k}" for k in range(150)], [f"b{k}" for k in range(150)]


@pytest.fixture
def sides(tmp_path):
    """Two files of the same items in other orders, with ids of their own."""
    np.savez(tmp_path / "old.npz", v=OLD, ids=np.array(OURS))
    np.savez(tmp_path / "new.npz", v=NEW[ORDER], ids=np.array(THEIRS)[ORDER])
    return str(tmp_path / "old.npz:v"), str(tmp_path / "new.npz:v")


def write_links(path, pairs, columns=("old_id", "new_id")):
    pairs = list(pairs)
    rows = [dict(zip(columns, pair, strict=True)) for pair in pairs]
    if path.suffix == ".txt":
        path.write_text("".join(f"{a} {b}\n" for a, b in pairs))
    elif path.suffix in (".csv", ".tsv"):
        mark = "\t" if path.suffix == ".tsv" else ","
        path.write_text("\n".join(mark.join(line) for line in (columns, *pairs)))
    elif path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif path.suffix == ".npz":
        np.savez(path, **{name: np.array([row[name] for row in rows]) for name in columns})
    else:
        path.write_text("\n".join(map(json.dumps, rows)))
    return path


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".txt", ".parquet", ".jsonl", ".npz"])
def test_a_file_of_pairs(suffix, tmp_path, sides):
    path = write_links(tmp_path / f"p{suffix}", zip(OURS, THEIRS, strict=True))
    pairs = Pairs.join(*map(read_embeddings, sides), links=read_links(path))
    assert pairs.ids.tolist() == OURS
    np.testing.assert_array_equal(pairs.source.vectors, OLD)
    np.testing.assert_array_equal(pairs.target.vectors, NEW)
    if suffix != ".txt":
        other = write_links(tmp_path / f"q{suffix}", zip(OURS, THEIRS, strict=True), ("x", "y"))
        assert [*read_links(f"{other}:x,y")[1]] == THEIRS
        with pytest.raises(errors.ParameterError, match="x, y"):
            read_links(other)


def test_an_item_in_several_pairs():
    old, new = Embeddings(OLD, ids=OURS), Embeddings(NEW, ids=THEIRS)
    links = ["a3", "a0", "a3", "a3", "none", "a5"], ["b1", "b2", "b7", "b1", "b2", "none"]
    pairs = Pairs.join(old, new, links=links)  # a dictionary: a pair twice, and words without a vector
    assert pairs.ids.tolist() == ["b1", "b2", "b7"]
    np.testing.assert_array_equal(pairs.source.vectors, OLD[[3, 0, 3]])
    np.testing.assert_array_equal(pairs.target.vectors, NEW[[1, 2, 7]])
    assert (len(pairs.only_source), len(pairs.only_target)) == (148, 147)
    both = Pairs.join(old, new, links=(["a0", "a0", "a1"], ["b0", "b1", "b0"]))
    assert both.ids.tolist() == ["a0 – b0", "a0 – b1", "a1 – b0"]
    numbers = Embeddings(OLD, ids=np.arange(150)), Embeddings(NEW, ids=np.arange(150) + 1000)
    assert len(Pairs.join(*numbers, links=(np.arange(5), np.arange(5) + 1000))) == 5
    assert len(Pairs.join(*numbers, links=(["0"], ["1000"]))) == 1
    for bad in ((["x"], ["y"]), ([], [])):
        with pytest.raises(errors.IdError, match="vectors lack"):
            Pairs.join(old, new, links=bad)
    with pytest.raises(errors.IdError, match="3 of 6 pairs|2 of 6 pairs"):
        Pairs.join(old, new, links=links, missing="error")
    with pytest.raises(errors.IdError, match="without ids on the new side"):
        Pairs.join(old, Embeddings(NEW), links=links)


def test_each_command_takes_the_same_file_of_pairs(tmp_path, sides, here):
    captions = [*zip(OURS, THEIRS, strict=True), *zip(OURS[:20], THEIRS[1:21], strict=True), ("a0", "nothing")]
    links = str(write_links(tmp_path / "pairs.csv", captions))
    done = here("fit", *sides, "--links", links, "-o", "map", "--json").ends(0)
    assert json.loads(done.out)["paired_by"] == links
    assert "170 of 171 pairs" in done.err
    mapping = load(tmp_path / "map")
    assert mapping.scores_["n_pairs"] == 170
    one = write_links(tmp_path / "one.txt", zip(OURS, THEIRS, strict=True))
    here("fit", *sides, "--links", str(one), "-o", "right").ends(0)
    assert np.abs(load(tmp_path / "right").rotation_ - TURN).max() < 0.05
    done = here("check", *sides, "--links", str(one), "-o", "checked", "--json").ends(0)
    assert json.loads(done.out)["pairing"]["state"] == "paired"
    files = ("--old-text", sides[0], "--new-text", sides[1])
    scores = json.loads(here("lab", "evaluate", "right", *files, "--links", str(one), "--json").ends(0).out)
    assert [row["after"] for row in scores["rows"] if row["metric"] == "retrieval"] == [1.0]
    here("lab", "evaluate", "right", *files, "--json").ends(2)  # without it, no id is in common
    pairs = ",".join(sides)
    here("train", "cca", "--pairs", pairs, "--links", links, "--set", "n_components=4", "-o", "heads", "-q").ends(0)
    assert "no id in common" in here("train", "cca", "--pairs", pairs, "-o", "other", "-q").ends(2).err


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("p.txt", "a b\nc\n", "1 words in line 2"),
        ("p.txt", "a b c\n", "3 words in line 1"),
        ("p.txt", "", "vectors lack"),
        ("p.txt", "b0 a0\n", "vectors lack"),
        ("p.csv", "old_id,new_id\na0,b0\na1\n", "1 cells in line 3"),
        ("p.csv", "old_id,new_id\na0,\n", "missing"),
        ("p.csv", "id,other\na0,b0\n", "id, other"),
        ("p.csv", "", "p.csv"),
        ("p.jsonl", '{"old_id": "a0"}', "p.jsonl"),
        ("p.parquet", "PAR1", "damaged"),
        ("none.csv", None, "No file at"),
    ],
)
def test_a_file_of_pairs_that_cannot_be(name, text, words, tmp_path, sides, here):
    if text is not None:
        (tmp_path / name).write_text(text)
    done = here("fit", *sides, "--links", name, "-o", "map").ends(2)
    assert words in done.err
    assert len(done.err.strip().splitlines()) == 1
    assert not (tmp_path / "map").exists()


def test_two_tables_joined_by_id_and_one_table_with_both(tmp_path, here):
    lists = [pa.FixedSizeListArray.from_arrays(rows.ravel(), 8) for rows in (OLD, NEW, NEW[ORDER])]
    pq.write_table(pa.table({"sku": OURS, "v": lists[0]}), tmp_path / "old.parquet")
    pq.write_table(pa.table({"key": np.array(OURS)[ORDER], "v": lists[2]}), tmp_path / "new.parquet")
    pq.write_table(pa.table({"id": OURS, "old": lists[0], "new": lists[1]}), tmp_path / "both.parquet")
    here("fit", "old.parquet", "new.parquet", "--ids", "sku,key", "-o", "one").ends(0)
    here("fit", "both.parquet:old", "both.parquet:new", "-o", "two").ends(0)
    np.testing.assert_allclose(load(tmp_path / "one").rotation_, load(tmp_path / "two").rotation_, atol=1e-6)
