import warnings

import numpy as np
import pytest

from congruence import fit
from congruence.compare import pairing
from congruence.compare.pairing import FEWEST, Agreement, check_pairing, find_wrong_pairs, warn_pairing
from congruence.errors import InputError, NotFiniteError, PairingWarning, ShapeError, UnpairedError
from congruence.synthetic import rigid_problem


def shuffled(Y, share, seed=0):
    rng = np.random.default_rng(seed)
    rows = rng.permutation(len(Y))[: round(share * len(Y))]
    out = Y.copy()
    out[rows] = Y[np.roll(rows, 1)]
    return out, set(rows.tolist())


def test_true_pairs_pass_and_shuffled_ones_fail():
    p = rigid_problem(300, 20, noise=0.5, random_state=0)
    good = check_pairing(p.X, p.Y)
    assert good.looks_paired
    assert good.p_value == pytest.approx(0.005)
    assert good.alignment > 20 * good.null_sd
    assert not good.suspects
    bad = check_pairing(p.X, shuffled(p.Y, 1.0)[0])
    assert not bad.looks_paired
    assert bad.share_wrong == 1
    assert "do not look paired" in bad.sentence


@pytest.mark.long
def test_false_alarms_are_as_rare_as_promised():
    """A test at level α rejects in at most a share α of the cases; Bonferroni makes it a little less."""
    rng = np.random.default_rng(0)
    values = [
        check_pairing(*rng.standard_normal((2, 40, 6)), permutations=19, random_state=k).p_value for k in range(60)
    ]
    for level in (0.05, 0.1, 0.2):
        sd = np.sqrt(level * (1 - level) / 60)
        assert np.mean(np.array(values) <= level) <= level + 2 * sd
    assert np.mean(np.array(values) <= 0.2) > 0.05  # and it is no constant either


def test_the_wrong_pairs_are_named():
    p = rigid_problem(400, 20, noise=0.3, random_state=1)
    Y, rows = shuffled(p.Y, 0.05)
    report = check_pairing(p.X, Y, ids=[f"item-{k}" for k in range(400)])
    assert {int(name[5:]) for name in report.suspects} == rows
    assert report.share_wrong == pytest.approx(0.05, abs=0.01)
    assert len(report.suspect_probability) == 20
    assert min(report.suspect_probability) > 0.5


@pytest.mark.parametrize("n", [400, 4100])
def test_half_of_the_pairs_wrong_do_not_look_paired(n):
    p = rigid_problem(n, 20, noise=0.3, random_state=1)
    Y, rows = shuffled(p.Y, 0.5)
    report = check_pairing(p.X, Y)
    found = {int(name) for name in report.suspects}
    assert report.state == "exchanged"
    assert len(found & rows) >= 0.8 * len(rows)
    assert len(found - rows) <= 0.02 * n


@pytest.mark.long
@pytest.mark.parametrize("target", ["text_eva02_b16", "text_openai_vitb16"])
def test_on_real_embeddings(lvis, target):
    X, Y = lvis["text_openai_vitb32"][:900], lvis[target][:900]
    clean = check_pairing(X, Y)
    assert clean.looks_paired
    assert len(clean.suspects) <= 5
    for share in (0.05, 0.3):
        mixed, rows = shuffled(Y, share)
        found = {int(name) for name in check_pairing(X, mixed).suspects}
        assert len(found & rows) >= 0.9 * len(rows)
        assert len(found - rows) <= 5
    assert not check_pairing(X, shuffled(Y, 1.0)[0]).looks_paired


def test_few_anchors_in_many_dimensions_are_told_apart(lvis):
    X, Y = lvis["text_openai_vitb32"], lvis["text_eva02_b16"]
    right = [check_pairing(X[k : k + 50], Y[k : k + 50]).looks_paired for k in range(0, 300, 50)]
    wrong = [check_pairing(X[k : k + 50], shuffled(Y[k : k + 50], 1.0)[0]).looks_paired for k in range(0, 300, 50)]
    assert all(right)
    assert sum(wrong) <= 1


def test_too_few_pairs_cannot_tell():
    p = rigid_problem(FEWEST - 1, 4, random_state=0)
    report = check_pairing(p.X, p.Y)
    assert not report.decided
    assert "too few" in report.sentence
    warn_pairing(report)
    with pytest.raises(UnpairedError):
        warn_pairing(report, strict=True)


def test_warnings_and_strictness():
    p = rigid_problem(200, 10, noise=0.2, random_state=0)
    warn_pairing(check_pairing(p.X, p.Y), strict=True)
    bad = check_pairing(p.X, shuffled(p.Y, 1.0)[0])
    with pytest.warns(PairingWarning, match="do not look paired"):
        warn_pairing(bad)
    with pytest.raises(UnpairedError, match="expected the same item in each"):
        warn_pairing(bad, strict=True)
    some = check_pairing(p.X, shuffled(p.Y, 0.05)[0])
    with pytest.warns(PairingWarning, match="10 of 200 pairs look wrong"):
        warn_pairing(some)
    assert some.to_dict()["suspects"] == list(some.suspects)


def test_bad_input():
    with pytest.raises(ShapeError):
        check_pairing(np.ones((30, 3)), np.ones((29, 3)))


@pytest.mark.long
def test_large_folds_are_sampled_and_still_name_the_wrong_pairs(monkeypatch):
    p = rigid_problem(1500, 10, noise=0.2, random_state=0)
    Y, rows = shuffled(p.Y, 0.05)
    whole = check_pairing(p.X, Y)
    monkeypatch.setattr(pairing, "_FOLD_ROWS", 50)
    sampled = check_pairing(p.X, Y)
    for report in (whole, sampled):
        found = {int(name) for name in report.suspects}
        assert len(found & rows) >= 0.85 * len(rows)  # in 10 dimensions chance makes some wrong pairs fit
        assert len(found - rows) <= 0.01 * 1500
    assert sampled.null_sd > whole.null_sd


def test_true_image_text_pairs_are_not_accused(lvis):
    """1 fit in 8 was before; at a rate of 1 %, at most 1 of 30 is likely."""
    X, Y = lvis["image_openai_vitb32_avg5"], lvis["text_openai_vitb32"]
    accused = 0
    for k in range(30):
        rows = np.random.default_rng(k).permutation(len(X))[:40]
        accused += bool(check_pairing(X[rows], Y[rows], permutations=199, level=0.05).suspects)
    assert accused <= 1


@pytest.mark.long
def test_drowned_pairs_are_no_reason_to_say_not_paired(lvis):
    X, Y = lvis["text_openai_vitb32"][:200], lvis["text_eva02_b16"][:200]
    noisy = Y + 2.0 * np.random.default_rng(0).standard_normal(Y.shape)
    report = check_pairing(X[:100], noisy[:100])
    assert report.state == "cannot tell"
    assert not report.decided
    assert not report.suspects
    assert "too weak to tell" in report.sentence
    with pytest.warns(PairingWarning, match="too weak to tell"):
        warn_pairing(report)
    assert check_pairing(X, shuffled(Y, 1.0)[0]).state == "not paired"


@pytest.mark.parametrize(("n", "wrong"), [(30, 3), (100, 5)])
def test_exchanged_partners_are_found_in_few_anchors(lvis, n, wrong):
    """3 of 30 were found in 5 of 40 fits before partners were looked for among the anchors."""
    X, Y = lvis["text_openai_vitb32"], lvis["text_eva02_b16"]
    found = accused = 0
    for k in range(8):
        drawn = np.random.default_rng(k).permutation(len(X))[:n]
        mixed, rows = shuffled(Y[drawn], wrong / n, seed=k)
        named = {int(name) for name in check_pairing(X[drawn], mixed).suspects}
        found, accused = found + bool(named & rows), accused + len(named - rows)
    assert found >= 7
    assert accused <= 2


def test_pairs_without_a_partner_are_found(lvis):
    X, Y = lvis["text_openai_vitb32"], lvis["text_eva02_b16"]
    found = rows = accused = 0
    for k in range(8):
        drawn = np.random.default_rng(k).permutation(len(X))[:110]
        Z = Y[drawn]
        Z[:10] = Z[100:]
        named = {int(name) for name in check_pairing(X[drawn[:100]], Z[:100]).suspects}
        found += bool(named)
        rows += len(named & set(range(10)))
        accused += len(named - set(range(10)))
    assert found >= 7
    assert rows >= 65
    assert accused <= 2


@pytest.mark.long
def test_few_shuffled_pairs_are_not_called_paired():
    """The folds' test alone calls about one set in a hundred paired, by its level."""
    found, passed = [], 0
    for seed in range(400):
        rng = np.random.default_rng(seed)
        report = check_pairing(rng.standard_normal((24, 16)), rng.standard_normal((24, 16)), permutations=200)
        found.append(report.state)
        passed += report.p_value <= 0.01
    assert passed > 0, "there is something to refuse"
    assert "paired" not in found


def test_the_agreement_of_all_pairs_is_an_exact_test():
    rng = np.random.default_rng(0)
    levels = []
    for _ in range(300):
        sides = [pairing._CenteredRows.of(rng.standard_normal((20, 6)), rng) for _ in range(2)]
        levels.append(pairing._agreement_p(*sides, 39, rng))
    # Of 40 equally likely places each p-value is one: 10 % of them are at most 0.1.
    assert abs(np.mean(np.array(levels) <= 0.1) - 0.1) < 4 * np.sqrt(0.09 / 300)
    X = rng.standard_normal((20, 6))
    turned = X @ np.linalg.qr(rng.standard_normal((6, 6)))[0]
    same = [pairing._CenteredRows.of(side, rng) for side in (X, turned)]
    assert pairing._agreement_p(*same, 39, rng) == 1 / 40


def test_the_agreement_is_that_of_items_shuffled_in_both_axes():
    """The definition written out; shuffling rows alone, or columns alone, gives other p-values."""
    rng = np.random.default_rng(1)
    X = rng.standard_normal((24, 6))
    sides = pairing._CenteredRows.of(X, rng), pairing._CenteredRows.of(0.25 * X + rng.standard_normal((24, 6)), rng)
    K, L = (pairing._centered_gram(side.directions.astype(np.float64)) for side in sides)
    draws = np.random.default_rng(7)
    shuffled = [(K * L[np.ix_(order, order)]).sum() for order in (draws.permutation(24) for _ in range(499))]
    expected = (1 + np.count_nonzero(np.array(shuffled) >= (K * L).sum())) / 500
    assert 0.02 < expected < 0.9
    assert pairing._agreement_p(*sides, 499, np.random.default_rng(7)) == expected


@pytest.mark.parametrize(
    "seed", [19, pytest.param(65, marks=pytest.mark.long), pytest.param(837, marks=pytest.mark.long), 1844]
)
def test_many_shuffled_pairs_are_not_called_paired(seed):
    """Of 2,000 sets twelve pass the folds' test, these best: none stands out from its null as pairs do."""
    rng = np.random.default_rng(seed)
    report = check_pairing(rng.standard_normal((201, 4)), rng.standard_normal((201, 4)))
    assert report.p_value <= 0.01, "there is something to refuse"
    assert report.state == "cannot tell"


@pytest.mark.parametrize("n", [201, pytest.param(900, marks=pytest.mark.long)])
def test_many_pairs_of_a_weak_link_stand_out(shared, n):
    """An image model and a text model trained apart, the weakest link of the real data."""
    with np.load(shared("imagenet1000_unimodal.npz"), allow_pickle=False) as data:
        rows = np.random.default_rng(0).permutation(1000)[:n]
        report = check_pairing(data["image_effnet_lite0"][rows], data["text_minilm_l6"][rows])
    assert report.state == "paired"
    assert report.alignment - report.null_mean > 12 * report.null_sd


def unit(n=24, d=8, noise=0.2, seed=0):
    p = rigid_problem(n, d, noise=noise, random_state=seed)
    return [Z / np.linalg.norm(Z, axis=1, keepdims=True) for Z in (p.X, p.Y)]


def whitened_gram(Z):
    """The definition: K (K + ridge)⁻¹ of the centered Gram matrix K."""
    Z = Z - Z.mean(axis=0)
    K = Z @ Z.T
    return K @ np.linalg.inv(K + 3 * np.trace(K) / min(len(Z) - 1, Z.shape[1]) * np.eye(len(Z)))


def test_agreement_is_the_correlation_of_gram_rows_without_the_two_pairs():
    X, Y = unit()
    n = len(X)
    K, L = whitened_gram(X), whitened_gram(Y)
    expected = np.empty((n, n))
    for i in range(n):
        for j in range(n):
            k = np.setdiff1d(np.arange(n), [i, j])
            a, b = K[i, k] - K[i, k].mean(), L[j, k] - L[j, k].mean()
            sizes = [np.std(np.delete(M[r], r)) * np.sqrt(n - 1) for M, r in ((K, i), (L, j))]
            expected[i, j] = a @ b / (sizes[0] * sizes[1])
    off = ~np.eye(n, dtype=bool)
    row = np.array([expected[i, off[i]].mean() for i in range(n)])
    column = np.array([expected[off[:, j], j].mean() for j in range(n)])
    contrast = expected - row[:, None] - column + expected[off].mean()
    row_sd = np.array([np.sqrt(np.mean(contrast[i, off[i]] ** 2)) for i in range(n)])
    column_sd = np.array([np.sqrt(np.mean(contrast[off[:, j], j] ** 2)) for j in range(n)])
    found = Agreement(X, Y, np.random.default_rng(0))
    np.testing.assert_allclose(
        found.among(np.arange(n)), contrast / np.sqrt(row_sd[:, None] * column_sd), rtol=1e-8, atol=1e-8
    )
    np.testing.assert_allclose(found.evidence, np.diag(found.among(np.arange(n))))


def test_agreement_does_not_see_the_pair_it_judges():
    """Random rows have no agreement on average, though each is part of the sums it is judged by."""
    rng = np.random.default_rng(0)
    drawn = [Agreement(*rng.standard_normal((2, 30, 12)), rng).evidence for _ in range(60)]
    assert abs(np.mean(drawn)) < 4 / np.sqrt(60 * 30)
    assert 0.8 < np.std(drawn) < 1.2


def test_exchanged_partners_are_named_without_their_neighbors():
    X, Y = unit(60, 8, 0.3)
    Y[[4, 9, 17]] = Y[[9, 17, 4]]
    Y[[30, 31]] = Y[[31, 30]]
    rows, probability = find_wrong_pairs(Agreement(X, Y, np.random.default_rng(0)))
    assert set(rows) == {4, 9, 17, 30, 31}
    assert probability.min() > 0.9
    assert np.all(np.diff(probability) <= 0)


def test_blocks_do_not_hide_an_exchange(monkeypatch):
    X, Y = unit(200, 8, 0.3)
    Y[[0, 150]] = Y[[150, 0]]
    monkeypatch.setattr(pairing, "_BLOCK", 40)
    assert set(find_wrong_pairs(Agreement(X, Y, np.random.default_rng(0)))[0]) == {0, 150}


@pytest.mark.parametrize("side", [0, 1])
def test_equal_items_are_not_called_exchanged(side):
    """Many pictures of one class share one text: exchanging them changes nothing."""
    pair = unit(60, 8, 0.3)
    pair[side][:] = pair[side][np.arange(60) // 3 * 3]
    assert not len(find_wrong_pairs(Agreement(*pair, np.random.default_rng(0)))[0])


@pytest.mark.parametrize("seed", range(5))
def test_unrelated_and_constant_rows_name_nobody(seed):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((40, 6))
    assert not len(find_wrong_pairs(Agreement(X, rng.standard_normal((40, 5)), rng))[0])
    assert not len(find_wrong_pairs(Agreement(X, np.ones((40, 5)), rng))[0])


@pytest.mark.parametrize("n", [25, 120, pytest.param(6000, marks=pytest.mark.long)])
def test_rows_without_variety_pass_no_warning_and_no_verdict(n):
    """Constant rows, two rows, one row among constants, one far outlier, rows of any size, and one coordinate."""
    p = rigid_problem(n, 12, noise=0.3, random_state=0)
    X, Y = p.X.astype(np.float32), p.Y.astype(np.float32)
    same, odd = np.tile(X[:1], (n, 1)), np.where(np.arange(n)[:, None] == 3, X[:1], X[1:2])
    far = X * np.where(np.arange(n)[:, None] == n - 1, np.float32(1e6), np.float32(1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for A, B in ((same, Y), (Y, same), (np.zeros_like(X), Y)):
            assert check_pairing(A, B).state == "too few"
        for A in (np.where(np.arange(n)[:, None] % 3 == 0, X[:1], X[1:2]), odd):
            assert check_pairing(A, Y).state in ("cannot tell", "too few")  # a sample may hold fewer
        check_pairing(far, Y)
        for scale in (1e-60, 1e-12, 1e12, 1e60):
            assert check_pairing(p.X * scale, p.Y).state == "paired"
        with pytest.raises(NotFiniteError, match="float32"):
            check_pairing(X * np.float32(1e-25), Y)
        fit(X[:, :1], Y[:, :1], check=False)
        with pytest.raises(InputError, match="old rows of"):
            fit(same, Y)


@pytest.mark.parametrize("order", [np.repeat, np.tile])
def test_copies_in_a_large_file_are_counted_wherever_they_stand(order):
    p = rigid_problem(600, 12, noise=0.3, random_state=0)
    rows = order(np.arange(600), 10)
    assert all(500 < count < 700 for count in check_pairing(p.X[rows], p.Y[rows]).distinct)


def test_a_step_in_a_large_file_is_found_to_a_few_rows():
    """Between the stretches that are compared, too: the pairing that is written would else have wrong pairs."""
    p = rigid_problem(30_000, 12, noise=0.3, random_state=0)
    report = check_pairing(p.X, np.concatenate([p.Y[:22_000], p.Y[22_001:], p.Y[22_000:22_001]]))
    assert report.lags[0][1] == -1
    assert abs(report.lags[0][0] - 22_000) < 20
    x, y = report.realigned().T
    assert np.count_nonzero(y != np.where(x < 22_000, x, x - 1)) < 20


@pytest.mark.parametrize("n", [800, *(pytest.param(n, marks=pytest.mark.long) for n in (3000, 20000))])
@pytest.mark.parametrize("wrong", ["reversed", "a lag around the end", "halves exchanged"])
def test_what_is_called_the_right_pairing_is_right(n, wrong):
    p = rigid_problem(n, 32, noise=0.3, random_state=1)
    own = np.arange(n)
    order = {"reversed": own[::-1], "a lag around the end": np.roll(own, 7), "halves exchanged": np.roll(own, n // 2)}[
        wrong
    ]
    report = check_pairing(p.X, p.Y[order])
    assert not report.looks_paired
    if report.steps:  # else no pairing is offered
        rows, partners = report.realigned().T
        assert len(rows) > 0.8 * n
        assert (rows == order[partners]).mean() > 0.9
