"""A bound says what it promises, what is there, and when it promises nothing."""

import json

import pytest

from congruence.theory import Bound


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
