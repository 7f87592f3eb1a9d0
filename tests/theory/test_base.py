"""A bound says what it promises, what is there, and when it promises nothing."""

from __future__ import annotations

import json

import numpy as np
import pytest

from congruence.errors import InputError, NotFiniteError, ShapeError
from congruence.theory import Bound
from congruence.theory._base import paired_models, unit_rows


def bound(value, measured=0.1):
    return Bound("Thm C.21", "‖f̃ − Af‖", value, measured, 2.0, {"epsilon": 0.01})


def test_vacuous_is_said_in_words():
    assert not bound(0.5).vacuous
    assert "vacuous" not in bound(0.5).in_words()
    assert bound(2.0).vacuous
    assert "vacuous" in bound(3.0).in_words()
    assert "does not apply" in bound(float("inf")).in_words()
    assert bound(0.5).looseness == pytest.approx(5)
    assert bound(0.0, 0.0).looseness == 1
    assert bound(0.5, 0.0).looseness == float("inf")
    assert json.loads(json.dumps(bound(0.5).to_dict()))["vacuous"] is False


def test_rows_must_lie_on_the_sphere():
    X = np.eye(3, dtype=np.float16)
    assert unit_rows(X, "F").dtype == np.float64
    np.testing.assert_allclose(unit_rows(np.array([[0.6, 0.8005], [0.9995, 0]]), "F") ** 2 @ [1, 1], 1, rtol=1e-15)
    with pytest.raises(InputError, match=r"norm 2 in F \(row 1\)"):
        unit_rows(np.diag([1.0, 2, 1]), "F")
    with pytest.raises(NotFiniteError):
        unit_rows(np.array([[np.nan, 1]]), "F")
    with pytest.raises(ShapeError, match="3 rows of F and 2 rows of F_target"):
        paired_models(np.eye(3), np.eye(2), ("F", "F_target"))
