"""Choosing anchors: what is chosen, from what, and what becomes of bad input; the command beside the function."""

import json

import numpy as np
import pyarrow.parquet as pq
import pytest

import congruence
from congruence import Embeddings, Space
from congruence.datasets import anchor_texts
from congruence.errors import IdError, NotFiniteError, ParameterError, ShapeError, TooFewAnchorsError
from congruence.io import open_source
from congruence.synthetic import rigid_problem
from congruence.upgrade.anchors import METHODS, choose_anchors


@pytest.fixture(scope="module")
def store():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((200, 8)).astype(np.float32) * np.linspace(3, 0.2, 8, dtype=np.float32) + 5
    return Embeddings(X, ids=[f"item {k}" for k in range(200)], space=Space("old", modality="image"))


def options(method, n=200):
    return {"labels": np.arange(n) % 7} if method == "balanced" else {}


@pytest.mark.parametrize("method", METHODS)
def test_an_order_of_different_rows_whose_beginning_does_not_depend_on_its_length(store, method):
    found = choose_anchors(store, 40, method, **options(method))
    again = choose_anchors(store, 40, method, **options(method))
    assert found.rows.tolist() == again.rows.tolist()
    assert len(set(found.rows.tolist())) == 40
    assert found.ids.tolist() == [f"item {k}" for k in found.rows]
    np.testing.assert_array_equal(found.embeddings.vectors, store.vectors[found.rows])
    assert found.embeddings.space == store.space
    assert (np.diff(found.covered) >= 0).all()
    assert found.covered[-1] == pytest.approx(1)
    assert choose_anchors(store, 15, method, **options(method)).rows.tolist() == found.rows[:15].tolist()
    assert sorted(choose_anchors(store, 200, method, **options(method)).rows.tolist()) == list(range(200))


@pytest.mark.parametrize("method", ["variance", "volume"])
def test_what_is_chosen_covers_more_than_what_is_drawn(store, method):
    found = choose_anchors(store, 5, method)
    assert found.covered[-1] > found.covered_by_random[-1] + 0.05


@pytest.mark.parametrize("method", METHODS)
def test_ofequal_rows_one_is_chosen_and_of_zeros_none(store, method):
    X = np.repeat(store.vectors[:20], 3, axis=0)
    X[30:36] = 0  # all of two of the twenty
    found = choose_anchors(X, 18, method, **options(method, 60))
    assert len({row.tobytes() for row in found.embeddings.vectors}) == 18
    assert found.embeddings.vectors.any(axis=1).all()
    assert (found.n_rows, found.n_candidates, found.n_identical, found.n_zero) == (60, 18, 36, 6)
    with pytest.raises(TooFewAnchorsError, match=r"Got 18 different rows .* expected 19\. Pass n=18 or less\."):
        choose_anchors(X, 19, method, **options(method, 60))


def test_classes_come_in_turn_rare_ones_too(store):
    labels = np.array(["common"] * 190 + ["rare"] * 8 + ["single"] * 2)
    found = choose_anchors(store, 30, "balanced", labels=labels, max_rows=35)
    counts = dict(zip(*np.unique(labels[found.rows], return_counts=True), strict=True))
    assert counts == {"common": 20, "rare": 8, "single": 2}
    assert all(len(set(labels[found.rows[3 * k : 3 * k + 3]])) == 3 for k in range(2))


def test_of_a_large_store_only_the_rows_drawn_are_read(store, tmp_path, monkeypatch):
    np.savez(tmp_path / "s.npz", v=store.vectors, ids=np.arange(1000, 1200))
    source = open_source(tmp_path / "s.npz:v")
    taken = []
    take = type(source).take
    monkeypatch.setattr(type(source), "take", lambda self, rows: (taken.append(len(rows)), take(self, rows))[1])
    found = choose_anchors(source, 10, max_rows=50)
    assert taken == [50]
    assert (found.n_rows, found.n_candidates) == (200, 50)
    assert found.ids.dtype == np.int64
    assert found.ids.tolist() == (found.rows + 1000).tolist()
    np.testing.assert_array_equal(found.embeddings.vectors, store.vectors[found.rows])
    assert choose_anchors(source, 40, max_rows=50).n_candidates == 80
    with pytest.raises(TooFewAnchorsError, match=r"of the 4 drawn from 200; .*Or pass max_rows=200\."):
        choose_anchors(np.repeat(store.vectors[:1], 200, axis=0), 2, max_rows=3)


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        ({"n": 0}, ParameterError, "Got n=0"),
        ({"n": 201}, ParameterError, "Got n=201 for 200 rows; expected no more than there are. Pass n=200 or less."),
        ({"method": "balanced"}, ParameterError, "Pass labels="),
        ({"labels": np.zeros(200)}, ParameterError, "Pass method='balanced'"),
        ({"method": "balanced", "labels": np.zeros((200, 2))}, ShapeError, "Pass labels=… with 200 entries"),
        ({"method": "balanced", "labels": [0, 1]}, ShapeError, "Got 200 rows of X and 2 rows of labels"),
    ],
)
def test_bad_arguments_are_named(store, arguments, error, said):
    with pytest.raises(error, match=said.replace(".", r"\.")):
        choose_anchors(store, **{"n": 5, **arguments})


def test_bad_rows_are_named(store, tmp_path):
    X = store.vectors.copy()
    X[77, 3] = np.nan
    with pytest.raises(NotFiniteError, match="rows 77"):
        choose_anchors(X, 5)
    np.save(tmp_path / "x.npy", X)
    with pytest.raises(NotFiniteError, match="row 77"):
        choose_anchors(open_source(tmp_path / "x.npy"), 5)
    with pytest.raises(ShapeError):
        choose_anchors(np.empty((0, 4)), 1)


def test_saved_anchors_are_the_source_side_of_a_fit(store, tmp_path):
    problem = rigid_problem(300, 8, noise=0.05, random_state=0)
    ids = np.arange(300) * 10
    found = choose_anchors(Embeddings(problem.X, ids), 40)
    found.save(tmp_path / "anchors.parquet")
    source = congruence.read_embeddings(tmp_path / "anchors.parquet")
    assert pq.read_schema(tmp_path / "anchors.parquet").field("id").type == "int64"
    target = Embeddings(problem.Y[found.rows][::-1], found.ids[::-1])  # encoded in another order
    mapping = congruence.fit(source, target)
    np.testing.assert_allclose(mapping.rotation_, problem.rotation, atol=0.1)
    found.save(tmp_path / "anchors.txt")
    assert (tmp_path / "anchors.txt").read_text().split() == [str(k) for k in found.ids]
    odd = choose_anchors(Embeddings(np.eye(2), ["a\nb", "c"]), 2)
    with pytest.raises(IdError, match=r"line break.*Pass a path=… that ends in \.parquet"):
        odd.save(tmp_path / "odd.txt")
    with pytest.raises(ParameterError, match="cannot hold ids"):
        odd.save(tmp_path / "odd.npy")
    assert not list(tmp_path.glob("odd*"))


@pytest.fixture
def files(store, tmp_path):
    np.savez(tmp_path / "s.npz", v=store.vectors, name=np.array(store.ids.tolist()), kind=np.arange(200) % 7)
    return tmp_path


def test_the_command_writes_what_the_function_chooses(files, store, here):
    done = here("lab anchors", "s.npz:v", "--ids", "name", "-n", 12, "-o", "a.txt", "--plot", "a.svg", "--json")
    assert done.code == 0, done.err
    found = choose_anchors(store, 12)
    assert (files / "a.txt").read_text().splitlines() == found.ids.tolist()
    report = json.loads(done.out)
    assert report["ids"] == found.ids.tolist()
    assert report["covered"] == pytest.approx(found.covered.tolist())
    assert report["next"] == "congruence fit s.npz:v NEW --ids name,id -o map"
    assert "</svg>" in (files / "a.svg").read_text()
    done = here("lab anchors", "s.npz:v", "-n", 12, "-o", "b.parquet", "--method", "balanced", "--labels", "s.npz:kind")
    assert "congruence fit b.parquet NEW -o map" in done.out
    assert "12, the most informative first" in done.out
    assert "to certify the map" not in done.out
    assert "To certify the map" in here("lab anchors", "s.npz:v", "-n", 3, "-o", "c.txt").out
    drawn = here("lab anchors", "s.npz:v", "-n", 3, "-o", "d.txt", "--method", "random").out
    assert "3, in random order" in drawn
    rows = choose_anchors(store, 12, "balanced", labels=np.arange(200) % 7).rows
    assert pq.read_table(files / "b.parquet")["id"].to_pylist() == rows.tolist()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("s.npz:v", "-n", 5, "-o", "a.npy"), "cannot hold ids"),
        (
            ("s.npz:v", "-n", 5, "-o", "a.txt", "--labels", "s.npz:kind"),
            "Pass --method balanced, or leave",
        ),
        (("s.npz:v", "-n", 5, "-o", "s.npz"), "Pass --force"),
        (("s.npz:v", "-n", 5, "-o", "s.npz", "--force"), "is the source"),
        (("-n", 5, "-o", "a.txt"), "Pass the store's file, or --texts."),
        (
            ("--texts", "-n", 99_999, "-o", "a.txt"),
            "Got --count 99,999; there are 4000 texts. Pass --count 4000 or less.",
        ),
        (("--texts", "-n", 5, "-o", "a.txt", "--method", "random"), "Got --method with --texts"),
    ],
)
def test_the_command_names_its_own_flags_and_writes_nothing(files, here, arguments, said):
    before = {path.name for path in files.iterdir()}
    done = here("lab anchors", *arguments)
    assert done.code == 2
    assert said in done.err
    assert {path.name for path in files.iterdir()} == before


def test_texts_come_in_their_order_and_the_next_commands_name_the_means(here, tmp_path):
    done = here("lab anchors", "--texts", "-n", 30, "-o", "t.txt")
    assert done.code == 0, done.err
    assert (tmp_path / "t.txt").read_text().splitlines() == anchor_texts(30)
    assert "congruence fit old.parquet new.parquet --modality text --means image=STORE -o map" in done.out
    report = json.loads(here("lab anchors", "--texts", "-n", 10, "-o", "u.txt", "--json").out)
    assert (report["texts"], len(report["next"])) == (10, 3)


def test_the_command_that_is_printed_next_runs(files, store, here):
    turn = np.linalg.qr(np.random.default_rng(1).standard_normal((8, 8)))[0].astype(np.float32)
    np.savez(files / "NEW.npz", v=store.vectors @ turn, id=np.array(store.ids.tolist()))
    done = here("lab anchors", "s.npz:v", "--ids", "name", "-n", 50, "-o", "a.parquet", "--json")
    words = json.loads(done.out)["next"].replace("NEW", "NEW.npz:v").split()
    done = here(*words[1:])
    assert done.code == 0, done.err
    np.testing.assert_allclose(congruence.load(files / "map").rotation_, turn, atol=1e-4)
