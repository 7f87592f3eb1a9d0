"""What results draw of themselves: each number read off the artists."""

import json
from shlex import split

import numpy as np
import pytest
from matplotlib.collections import LineCollection
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from arrays import unit
from congruence import Embeddings, OrthogonalMap, check_pairing, compare_spaces, evaluate
from congruence.compare.matching import match_test
from congruence.errors import TooFewAnchorsError
from congruence.evaluation import Score, Scores
from congruence.metrics import fit_cca
from congruence.plotting.look import COLOR
from congruence.theory import class_margins, covered_subspace, rank_trade_off, sym_spanning
from congruence.transport import distribution_shift

_rng = np.random.default_rng(0)
X = _rng.standard_normal((60, 8))
Y = X @ _rng.standard_normal((8, 6)) + 0.3 * _rng.standard_normal((60, 6))


def axes():
    return Figure().subplots()


def marks(ax):
    return {line.get_label(): list(line.get_xdata()) for line in ax.lines}


def spans(ax):
    found = (segment for c in ax.collections if isinstance(c, LineCollection) for segment in c.get_segments())
    return {(round(float(a[0]), 9), round(float(b[0]), 9)) for a, b in found}


def ends(low, high):
    return round(float(low), 9), round(float(high), 9)


def names(ax):
    return [text.get_text() for text in ax.texts]


def test_similarities_stand_beside_their_null():
    found = compare_spaces(X, Y, ["cca", "procrustes_distance"], permutations=20, halves=4)
    ax = axes()
    assert found.plot(ax) is ax
    assert marks(ax) == {"score, 95 %": [one.value for one in found], "held out": [found[0].held_out]}
    null = {ends(one.null_mean - 1.96 * one.null_sd, one.null_mean + 1.96 * one.null_sd) for one in found}
    assert spans(ax) == {ends(one.low, one.high) for one in found} | null
    assert names(ax) == ["cca", "procrustes_distance, smaller is closer"]
    assert ax.get_ylim()[0] > ax.get_ylim()[1]  # the first line is above


def test_a_command_writes_the_picture_of_similarities(here, tmp_path):
    np.savez(tmp_path / "a.npz", X)
    np.savez(tmp_path / "b.npz", Y)
    command = split("lab similarity a.npz b.npz --permutations 5 --set halves=2 --metric linear_cka --plot")
    done = here(*command, "s.svg", "--json").ends(0)
    score = json.loads(done.out)["scores"][0]["value"]
    page = (tmp_path / "s.svg").read_text(encoding="utf-8")
    assert f"linear_cka {score:.3f} (" in page
    assert "a.npz and b.npz" in page
    assert "prefers-color-scheme" in page
    assert here(*command, "s.svg").code == 2  # it is there
    assert "--force" in here(*command, "s.svg").err
    assert here(*command, "s.jpg").code == 2


def test_scores_stand_beside_the_target_and_the_controls():
    rng = np.random.default_rng(1)
    m = OrthogonalMap().fit(X[:40], X[:40] @ np.linalg.qr(rng.standard_normal((8, 8)))[0])
    sides = [Embeddings(rows, ids=[str(i) for i in range(20)]) for rows in (X[40:], m.transform(X[40:]))]
    scores = evaluate(m, {"image": sides[0]}, {"image": sides[1]})
    shown = [row for row in scores.rows if row.metric != "distance"]
    assert len(shown) < len(scores.rows)
    ax = scores.plot(axes())
    assert marks(ax)["mapped"] == [row.after for row in shown]
    assert marks(ax)["unmapped"] == [row.before for row in shown if row.before is not None]
    assert marks(ax)["random rotation"] == [shown[-1].control_random_rotation]
    assert marks(ax)["chance, or a constant"] == [*(row.chance for row in shown[:-1]), shown[-1].control_constant]
    assert names(ax)[-1] == "cosine, mapped image → target image"
    assert {ends(row.before, row.after) for row in shown} == spans(ax)
    few = Scores([Score("recall_at_1", "aligned source image", "aligned target text", 0.5, chance=0.1, target=0.7)])
    assert marks(few.plot(axes())) == {"chance, or a constant": [0.1], "new model alone": [0.7], "mapped": [0.5]}


def test_matches_stand_beside_non_matches():
    options = {"definition": "congruence", "draws": 4, "permutations": 5, "components": None}
    found = match_test(X, Y, "nearest", metrics=["linear_cka"], **options)
    ax = found.plot(axes())
    drawn = marks(ax)
    assert list(drawn) == ["noise", "re-paired texts", "hard non-matches", "matching pairs"]
    assert drawn["matching pairs"] == pytest.approx([np.mean(found[0].match_scores)])
    for one, label in zip(found, list(drawn)[:3], strict=True):
        mean, sd = np.mean(one.other_scores), np.std(one.other_scores)
        assert drawn[label] == pytest.approx([mean])
        assert ends(mean - sd, mean + sd) in spans(ax)
    assert len({line.get_ydata()[0] for line in ax.lines}) == 4  # none hides another
    both = match_test(X, Y, metrics=["linear_cka"], draws=2, permutations=2, components=None)
    assert names(both.plot(axes())) == ["linear_cka, biased", "linear_cka, debiased"]


def test_the_pairing_stands_beside_random_pairing():
    report = check_pairing(X, Y, permutations=49)
    ax = report.plot(axes())
    assert marks(ax) == {"as paired": [report.alignment]}
    half = 1.96 * report.null_sd
    assert spans(ax) == {ends(report.null_mean - half, report.null_mean + half)}
    assert names(ax) == [f"60 pairs: {report.state}"]
    with pytest.raises(TooFewAnchorsError, match="Got 10 pairs"):
        check_pairing(X[:10], Y[:10]).plot()


def test_shifts_stand_beside_their_floor():
    found = distribution_shift(X + 1, X[:50], Y, Y[:40], normalize=True, repeats=2, n_projections=20)
    ax = found.plot(axes())
    lines = (found.image, found.text, found.total)
    drawn = {"samples of one collection": [one.floor for one in lines], "distance, ± sd": [one.value for one in lines]}
    assert marks(ax) == drawn
    assert spans(ax) == {ends(one.value - one.sd, one.value + one.sd) for one in lines}
    assert names(ax) == ["images", "texts", "total"]
    alone = distribution_shift(X + 1, X[:50], normalize=True, repeats=2, n_projections=20).plot(axes())
    assert names(alone) == ["vectors"]


@pytest.mark.parametrize("n", [30, 6])
def test_spanning_draws_its_singular_values(n):
    found = sym_spanning(X[:n, :4])
    weights = np.sqrt(2) - (np.sqrt(2) - 1) * np.eye(4)
    squares = np.array([(np.outer(x, x) * weights)[np.triu_indices(4)] for x in X[:n, :4]])
    ax = found.plot(axes())
    (values,) = (line for line in ax.lines if line.get_label() == "singular values")
    np.testing.assert_allclose(values.get_ydata(), np.linalg.svd(squares, compute_uv=False), rtol=1e-6)
    assert marks(ax)[f"rank {found.rank}"] == [found.rank] * 2
    assert [line.get_ydata()[0] for line in ax.lines if line.get_label() == "tolerance"] == [found.tolerance]
    assert ax.get_yscale() == "log"
    assert found.to_dict()["singular_values"] == found.singular_values.tolist()


def test_spanning_that_was_estimated_draws_both_ends(monkeypatch):
    monkeypatch.setattr("congruence.theory.spanning.DENSE", 5)
    found = sym_spanning(X[:30, :4])
    assert found.singular_values is None
    (values,) = (line for line in found.plot(axes()).lines if line.get_label() == "singular values")
    assert values.get_xydata().tolist() == [[1, found.sigma_max], [10, found.sigma_min]]


def test_a_subspace_and_canonical_correlations_draw_their_spectra():
    covered = covered_subspace(X[:5])
    (values,) = (line for line in covered.plot(axes()).lines if line.get_label() == "singular values")
    np.testing.assert_allclose(values.get_ydata(), covered.singular_values)
    fit = fit_cca(X, Y)
    (line,) = fit.plot(axes()).lines
    assert line.get_xydata().tolist() == [[k, value] for k, value in enumerate(fit.correlations.tolist(), start=1)]


def test_bounds_and_margins_are_drawn():
    rng = np.random.default_rng(1)
    Q = np.linalg.qr(rng.standard_normal((8, 8)))[0]
    F, G = unit(X[:30]), unit(X[30:50])
    theirs = [unit(side @ Q + 0.1 * rng.standard_normal(side.shape)) for side in (F, G)]
    trade = rank_trade_off(F, G, *theirs, Q)
    ax = trade.plot(axes())
    columns = {"bound": trade.whole, "bound outside": trade.outside, "measured within": trade.measured}
    for label, column in columns.items():
        (line,) = (line for line in ax.lines if line.get_label() == label)
        np.testing.assert_array_equal(line.get_xydata(), np.column_stack([trade.ranks, column]))
    assert trade.best in [line.get_xdata()[0] for line in ax.lines if not line.get_label().startswith(("bound", "m"))]
    margins = class_margins(F[:6], G, unit(theirs[1] + 0.6 * rng.standard_normal(G.shape)), Q)
    ax = margins.plot(axes())
    drawn = {line.get_label(): line for line in ax.lines}
    wrong = ~margins.right
    assert 0 < wrong.sum() < 20
    needed = 2 * (margins.residuals + margins.errors)
    for kind, label, color in ((~wrong, "retrieved", "after"), (wrong, "another class retrieved", "source")):
        np.testing.assert_array_equal(drawn[label].get_xydata(), np.column_stack([needed, margins.margins])[kind])
        assert to_hex(drawn[label].get_color()) == COLOR[color]
