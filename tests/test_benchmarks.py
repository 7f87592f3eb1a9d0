"""Benchmarks compare like with like: within rounds, on rows that no side has seen, with other packages kept apart."""

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))
import bench_migrate
import bench_serve
import dual_encoders
import migrate_copies
import peers


def test_other_packages_are_not_imported_here_and_named_where_they_are_missing():
    rows = np.eye(4)
    found = peers.run_peers(Path(sys.executable), rows, rows, {"4": (np.arange(4), rows)})
    assert len(found) == len(peers.PEERS)
    assert set(found.values()) == {"not installed"}
    assert not {package.replace("-", "_") for _, package, _ in peers.PEERS} & set(sys.modules)


def test_servers_are_compared_within_rounds():
    """A machine four times as slow in the second round changes both servers alike."""

    def rounds(*seconds):
        return [{"seconds": [one] * 4, "errors": 0, "whole": one, "cpu": one} for one in seconds]

    bridge, plain = bench_serve.summary(rounds(1.5, 4.0)), bench_serve.summary(rounds(1.0, 4.0))
    assert bench_serve.ratios(bridge, plain) == {"p50": [1, 1.25, 1.5], "p99": [1, 1.25, 1.5], "cpu": [1, 1.25, 1.5]}


def test_migrations_are_compared_with_the_copy_of_their_round():
    rounds = [{way: {"seconds": t * k, "cpu": t * k} for way, t in (("copy", 1), ("fill", 2))} for k in (1, 4)]
    assert bench_migrate.ratios(rounds)["fill"] == {"seconds": [0.5, 0.5, 0.5], "cpu": [0.5, 0.5, 0.5]}


def test_the_mapped_copy_of_postgresql_changes_vectors_and_nothing_else():
    pa = pytest.importorskip("pyarrow")
    from congruence.databases.pgvector import copy_stream

    vectors, ids = np.random.default_rng(0).normal(size=(9000, 3)).astype(np.float32), pa.array(range(9000))
    stream = copy_stream(ids, vectors, "int8", "vector")
    pieces = [stream[k : k + 1000] for k in range(0, len(stream), 1000)]
    made = b"".join(migrate_copies.PgVector.mapped(pieces, 3, lambda X: X[:, ::-1]))
    assert made == copy_stream(ids, vectors[:, ::-1], "int8", "vector")


def test_dual_encoders_and_their_index_share_no_photo_and_no_wording_is_asked_that_was_learned():
    old, new, index = dual_encoders.parts(8242, seed=0)
    assert (len(old), len(new), len(index)) == (2500, 2500, 3242)
    assert len(set(old) | set(new) | set(index)) == 8242
    pair = dual_encoders.Pair(None, None, np.array([3, 1, 3]), ["a.jpg", "b.jpg", "c.jpg"], list("pqrstu"))
    learned, asked = dual_encoders.anchors_and_asked(pair, seed=0, known=False)
    assert sorted([*learned, *asked]) == list(range(6))
    every = [list(range(6))] * 2
    assert [list(classes) for classes in dual_encoders.anchors_and_asked(pair, seed=0, known=True)] == every
    texts = np.arange(6 * 4, dtype=float).reshape(6, 4, 1)
    rows = dual_encoders.anchor_rows(texts, learned)
    assert len(rows) == 3 * 3
    assert not set(rows.ravel()) & set(texts[:, dual_encoders.ASKED].ravel())
    assert pair.judgments(np.array([1, 3])) == {"q": {"b.jpg": 1}, "s": {"a.jpg": 1, "c.jpg": 1}}
