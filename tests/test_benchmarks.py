"""Benchmarks compare like with like: within rounds, on rows that no side has seen, with other packages kept apart."""

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))
import dual_encoders


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
