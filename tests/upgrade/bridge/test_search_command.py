"""``congruence search``: the hits of a bridge, of an old or half-old index, and what is refused."""

import csv
import json

import numpy as np
import pyarrow.parquet as pq
import pytest
from bridge_data import two_models

from congruence import Bridge, OrthogonalMap, Space
from congruence.embeddings import Embeddings
from congruence.io import open_sink
from congruence.upgrade.bridge import search_mixed

NEW, OLD = two_models(160, 8, 8, noise=0.1, random_state=4)
IDS = [f"i{k}" for k in range(160)]
QUERIES, IN_OLD, IN_NEW, PAIRED = (np.arange(*span) for span in ((40, 50), (0, 90), (70, 160), (100, 130)))
BRIDGE = Bridge(OrthogonalMap().fit(NEW, OLD, modality="text"))


def embeddings(rows, which, model=None):
    return Embeddings(rows[which], ids=[IDS[i] for i in which], space=Space(model))


@pytest.fixture
def files(tmp_path):
    BRIDGE.save(tmp_path / "bridge")
    parts = {"q": (NEW, QUERIES), "old": (OLD, IN_OLD), "new": (NEW, IN_NEW)}
    parts |= {"p_old": (OLD, PAIRED), "p_new": (NEW, PAIRED)}
    for name, (rows, which) in parts.items():
        np.savez(tmp_path / f"{name}.npz", v=rows[which], ids=np.array(IDS)[which])
    return tmp_path


SEARCH = ("search", "bridge", "--queries", "q.npz", "--old", "old.npz")
BOTH = (*SEARCH, "--new", "new.npz")


def lines(found, new):
    """Return what the command should list of a result, hit by hit."""
    return [
        (IDS[query], rank + 1, found.ids[row, rank], "new" if new[row, rank] else "old", found.scores[row, rank])
        for row, query in enumerate(QUERIES)
        for rank in range(found.ids.shape[1])
    ]


def same(listed, expected):
    assert [tuple(one.values())[:4] for one in listed] == [one[:4] for one in expected]
    np.testing.assert_allclose([float(one["score"]) for one in listed], [one[4] for one in expected], rtol=1e-6)


BACKGROUND = ("--background", "p_old.npz,p_new.npz")


@pytest.mark.parametrize(
    ("flags", "options"),
    [
        ((), {}),
        (("--set", "merge=none", "-k", "3"), {"merge": "none", "k": 3}),
        (BACKGROUND, {"background": (OLD[PAIRED], NEW[PAIRED])}),
    ],
    ids=["standardized", "as they are", "by paired items"],
)
def test_hits_of_both_parts_are_those_of_the_library(here, files, flags, options):
    done = here(*BOTH, *flags, "--json")
    assert done.code == 0, done.err
    report = json.loads(done.out)
    sides = embeddings(NEW, QUERIES), embeddings(OLD, IN_OLD), embeddings(NEW, IN_NEW)
    expected = search_mixed(BRIDGE, *sides, **options)
    same(report["hits"], lines(expected, expected.new))
    assert (report["n_queries"], report["n_old"], report["n_new"], report["n_in_both"]) == (10, 90, 90, 20)
    assert report["share_new"] == expected.new.mean()


def test_hits_of_an_old_index_are_those_of_a_bridge(here, files):
    done = here("bridge search", "bridge", "--queries", "q.npz", "--index", "old.npz", "-k", 4, "--json")
    assert done.code == 0, done.err
    expected = BRIDGE.search(embeddings(NEW, QUERIES), embeddings(OLD, IN_OLD), 4)
    report = json.loads(done.out)
    same(report["hits"], lines(expected, np.zeros((10, 4), bool)))


def test_hits_are_written_as_tables(here, files):
    expected = json.loads(here(*BOTH, "--json").out)["hits"]
    for name in ("hits.csv", "hits.parquet"):
        done = here(*BOTH, "-o", name, "--json")
        assert done.code == 0, done.err
        assert json.loads(done.out)["hits"] is None
        assert here(*BOTH, "-o", name).code == 2
        assert here(*BOTH, "-o", name, "--force").code == 0
    assert pq.read_table(files / "hits.parquet").to_pylist() == expected
    with open(files / "hits.csv", newline="") as stream:
        found = list(csv.DictReader(stream))
    same([{**one, "rank": int(one["rank"])} for one in found], [tuple(one.values()) for one in expected])


def test_row_numbers_stay_numbers_until_they_meet_ids(here, files):
    assert {type(hit["id"]) for hit in json.loads(here(*BOTH, "--ids", "none", "--json").out)["hits"]} == {int}
    np.savez(files / "plain.npz", v=OLD[IN_OLD])
    mixed = json.loads(here(*SEARCH[:-1], "plain.npz", "--new", "new.npz", "--json").out)
    assert {hit["id"][0] == "i" for hit in mixed["hits"]} == {True, False}
    assert all((hit["id"][0] == "i") == (hit["model"] == "new") for hit in mixed["hits"])
    assert mixed["n_in_both"] == 0


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--old", "nan.npz"), "of nan.npz:v"),
        (("--new", "wide.npz"), "new part has width 9; expected 8. Pass the new model's."),
        (("--queries", "twice.npz"), "Got 30 duplicate ids"),
        (("--new", "few.npz"), "20 are needed. Pass --background, or --set merge=none"),
        (("--background", "p_new.npz,wide.npz"), "9-d background rows for the new part"),
        (("-o", "hits.txt"), "Got --out hits.txt; expected a .csv or .parquet file"),
        (("--new", "parted.parquet", "-o", "parted.parquet", "--force"), "parted.parquet"),
    ],
)
def test_what_cannot_be_searched_is_refused_in_one_sentence(here, files, flags, said):
    np.savez(files / "nan.npz", v=np.full((30, 8), np.nan, np.float32))
    np.savez(files / "wide.npz", v=np.eye(30, 9, dtype=np.float32) + 0.1)
    np.savez(files / "twice.npz", v=NEW[:60], ids=np.array(IDS[:30] * 2))
    np.savez(files / "few.npz", v=NEW[:5], ids=np.array(IDS[:5]))
    with open_sink(files / "parted.parquet", n=160, dim=8, space=Space(None)) as sink:
        sink.write(None, NEW)
    given = [*BOTH]
    for flag, value in zip(flags[::2], flags[1::2], strict=False):
        if flag in given:
            given[given.index(flag) + 1] = value
        else:
            given += [flag, value]
    here(*given, *(["--force"] if "--force" in flags else [])).refused(said)
    assert not (files / "hits.txt").exists()
    assert pq.read_table(files / "parted.parquet").num_rows == 160
