"""Alarms come where an encoder changed, soon, and elsewhere as rarely as promised."""

import copy
import json

import numpy as np
import pytest

from congruence import Embeddings
from congruence.compare import drift
from congruence.compare.drift import DriftMonitor, _p_value, compare_canaries
from congruence.embeddings import normalize_rows
from congruence.errors import IdError, InputError, ParameterError, ShapeError, ZeroRowError


def rows(n=400, d=16, seed=0):
    draw = np.random.default_rng(seed)
    return normalize_rows(draw.standard_normal((n, d)) * np.linspace(1, 0.2, d) + 0.5)


def turn(d=16, seed=1):
    return np.linalg.qr(np.random.default_rng(seed).standard_normal((d, d)))[0]


@pytest.mark.parametrize(
    ("change", "kind", "moved"),
    [
        (lambda X: X, "none", 0),
        (lambda X: X.astype(np.float16), "none", 0),
        (lambda X: 2 * X, "norms", 1),
        (lambda X: X @ turn(), "rotation", 1),
        (lambda X: 3 * X @ turn(), "rotation", 1),
        (lambda X: rows(30, seed=5), "model", 1),
        (lambda X: X[:, :8], "model", 1),
        (lambda X: np.vstack([X[:15], rows(15, seed=5)]), "model", 0.5),
        (lambda X: X + 0.03 * rows(30, seed=5), "model", 1),
    ],
)
def test_canaries_say_what_changed(change, kind, moved):
    found = compare_canaries(rows(30), change(rows(30)))
    assert (found.kind, found.changed, found.moved) == (kind, kind != "none", moved)


def test_canaries_go_by_id_and_by_the_tolerance_asked_for():
    X = rows(30)
    old, new = Embeddings(X, range(30)), Embeddings(X[::-1], range(29, -1, -1))
    assert compare_canaries(old, new).largest == 0
    assert compare_canaries(X, 1.005 * X).kind == "none"
    assert compare_canaries(X, 1.005 * X, tolerance=0.001).kind == "norms"
    assert np.isnan(compare_canaries(X[:1], X[:1]).angles)
    with pytest.raises(IdError, match="no id in common"):
        compare_canaries(old, Embeddings(X, range(100, 130)))
    with pytest.raises(ParameterError, match="tolerance"):
        compare_canaries(X, X, tolerance=0)


def test_p_values_are_independent_and_uniform_with_ties():
    draw = np.random.default_rng(0)
    seen = sorted(draw.integers(0, 5, 100).tolist())
    found = np.array(
        [_p_value(seen, one, u) for one, u in zip(draw.integers(0, 5, 4000), draw.random(4000), strict=True)]
    )
    assert seen == sorted(seen)
    np.testing.assert_allclose(np.histogram(found, 10, (0, 1))[0] / 4000, 0.1, atol=0.02)
    assert abs(np.corrcoef(found[1:], found[:-1])[0, 1]) < 0.05


def test_the_evidence_is_a_martingale(monkeypatch):
    """Whatever came before: over a uniform next p-value its expectation is what it is now, so that Ville's inequality
    holds.
    """
    monitor = DriftMonitor().fit(rows(60, 3))
    now = np.exp(monitor.update(rows(12, 3, 8) @ turn(3)).evidence)
    assert now > 2
    expected, points = 0.0, (np.arange(60) + 0.5) / 60
    for v in points:  # p = v⁵ / 2 on each half: the bets' poles become constants
        for p in (v**5 / 2, 1 - v**5 / 2):
            monkeypatch.setattr(drift, "_p_value", lambda *_, p=p: p)
            after = copy.deepcopy(monitor).update(rows(1, 3, 9)).evidence
            expected += np.exp(after) * 2.5 * v**4 / len(points)
    assert expected == pytest.approx(now, rel=1e-3)


@pytest.mark.parametrize("before", [0, 150])
@pytest.mark.parametrize(
    ("change", "most", "score"),
    [
        (lambda X: 2 * X, 9, "norm"),
        (lambda X: X @ turn(), 20, "mean"),
        (lambda X: normalize_rows(rows(200, seed=9) - 0.8), 15, "mean"),
        (lambda X: normalize_rows(X + 0.15 * np.random.default_rng(2).standard_normal(X.shape)), 120, "spread"),
    ],
)
def test_a_change_is_noticed_soon_also_after_a_quiet_time(change, most, score, before):
    X = rows(750)
    monitor = DriftMonitor().fit(X[:400])
    quiet = monitor.update(X[400 : 400 + before]) if before else None
    assert quiet is None or not quiet.alarm
    report = monitor.update(change(X[550:]))
    assert report.alarm
    assert report.alarm_at - before <= most + (before > 0) * most
    assert max(report.by_score, key=report.by_score.get) == score or report.by_score[score] > report.threshold


def test_rounding_is_no_change_and_batches_do_not_matter():
    X = rows(700)
    one = DriftMonitor().fit(X[:400].astype(np.float16)).update(X[400:])
    assert not one.alarm
    whole = DriftMonitor(random_state=3).fit(X[:400]).update(X[400:])
    parts = DriftMonitor(random_state=3).fit(X[:400])
    for k in range(400, 700, 7):
        last = parts.update(X[k : k + 7])
    assert last == whole


def test_an_alarm_stays_and_a_new_reference_begins_anew():
    X = rows(700)
    monitor = DriftMonitor().fit(X[:400])
    assert monitor.update(2 * X[400:420]).alarm
    assert monitor.update(X[420:]).alarm
    again = monitor.fit(X[:400]).update(X[400:])
    assert (again.n, again.alarm, again.alarm_at) == (300, False, None)


def test_what_cannot_be_watched_is_refused():
    X = rows(100)
    with pytest.raises(ParameterError, match=r"Call fit"):
        DriftMonitor().update(X)
    with pytest.raises(InputError, match="39 reference rows"):
        DriftMonitor().fit(X[:39])
    for alpha in (0, 1, 2, "a"):
        with pytest.raises(ParameterError, match="alpha"):
            DriftMonitor(alpha=alpha).fit(X)
    with pytest.raises(ShapeError, match="DriftMonitor"):
        DriftMonitor().fit(X).update(X[:, :9])
    with pytest.raises(ZeroRowError):
        DriftMonitor().fit(X).update(0 * X)


def test_the_command_watches_and_compares(here, tmp_path):
    X = rows(600)
    for name, part in {"old": X[:400], "next": X[400:500], "turned": X[500:] @ turn(), "now": X[:400] @ turn()}.items():
        np.save(tmp_path / f"{name}.npy", part)
    result = json.loads(here("lab drift", "old.npy", "next.npy", "turned.npy", "--json").out)
    own = DriftMonitor().fit(X[:400])
    own.update(X[400:500])
    assert result["alarm_at"] == own.update(X[500:] @ turn()).alarm_at
    assert here("lab drift", "old.npy", "next.npy", "--exit-code").code == 0
    alarm = here("lab drift", "old.npy", "next.npy", "turned.npy", "--exit-code")
    assert (alarm.code, f"at vector {result['alarm_at']}" in alarm.out) == (1, True)
    turned = here("lab drift", "old.npy", "now.npy", "--canaries", "--exit-code")
    assert (turned.code, "the same cosines" in turned.out) == (1, True)
    assert json.loads(here("lab drift", "old.npy", "old.npy", "--canaries", "--json").out)["kind"] == "none"
    assert here("lab drift", "old.npy", "next.npy", "now.npy", "--canaries").code == 2
