"""Losses against the same losses of torch's own operations, value and gradients; Con, NegCon and Spread against their
equations, and against the printed forms they must not be.
"""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from congruence.errors import ParameterError, ShapeError
from congruence.train.losses import (
    cka_divergence,
    con_loss,
    generalized_infonce,
    infonce_loss,
    negcon_loss,
    siglip_loss,
    spread_loss,
)

torch = pytest.importorskip("torch", reason="the losses need torch")
F = torch.nn.functional


def unit(shape, seed, dtype=torch.float64):
    rows = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return F.normalize(rows, dim=-1).to(dtype)


def leaf(shape, seed):
    return unit(shape, seed).requires_grad_()


def agree(ours, plain, *inputs):
    torch.testing.assert_close(ours, plain)
    for one, two in zip(torch.autograd.grad(2.5 * ours, inputs), torch.autograd.grad(2.5 * plain, inputs), strict=True):
        torch.testing.assert_close(one, two)


def plain_siglip(X, Y, scale, bias):
    signs = -torch.ones(len(X), len(Y), dtype=X.dtype)
    signs.fill_diagonal_(1)
    return -F.logsigmoid(signs * (scale * X @ Y.T + bias))


@pytest.mark.parametrize("more", [0, 7])
@pytest.mark.parametrize("reduction", ["logits", "rows"])
def test_siglip_is_the_equation(strip, more, reduction):
    X, Y = leaf((40, 6), 0), leaf((40 + more, 6), 1)
    scale, bias = (torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in (20.0, -10.0))
    parts = plain_siglip(X, Y, scale, bias)
    expected = parts.mean() if reduction == "logits" else parts.sum() / len(X)
    value = siglip_loss(X, Y, scale, bias, reduction=reduction)
    agree(value, expected, X, Y, scale, bias)


def test_infonce_is_the_cross_entropy_of_rows_and_columns(strip):
    X, Y = leaf((50, 6), 0), leaf((50, 6), 1)
    tau = torch.tensor(0.07, dtype=torch.float64, requires_grad=True)
    logits, target = X @ Y.T / tau, torch.arange(50)
    expected = (F.cross_entropy(logits, target) + F.cross_entropy(logits.T, target)) / 2
    agree(infonce_loss(X, Y, tau), expected, X, Y, tau)


@pytest.mark.parametrize("symmetric", [False, True])
def test_generalised_infonce_is_the_divergence_of_softmaxes(strip, symmetric):
    X, Y, TX, TY = leaf((30, 6), 0), leaf((45, 6), 1), leaf((30, 4), 2), leaf((45, 4), 3)

    def rows(A, T):
        return F.kl_div((A / 0.05).log_softmax(1), (T / 0.02).log_softmax(1), log_target=True, reduction="batchmean")

    A, T = X @ Y.T, TX @ TY.T
    expected = (rows(A, T) + rows(A.T, T.T)) / 2 if symmetric else rows(A, T)
    agree(generalized_infonce(X, Y, TX, TY, 0.05, 0.02, symmetric=symmetric), expected, X, Y)


def test_cka_is_the_cosine_of_the_centered_kernels():
    X, Y, TX, TY = leaf((30, 6), 0), leaf((45, 6), 1), leaf((30, 4), 2), leaf((45, 4), 3)

    def centered(K):
        return K - K.mean(0) - K.mean(1, keepdim=True) + K.mean()

    A, T = centered(X @ Y.T), centered(TX @ TY.T)
    expected = 1 - (A * T).sum() / (A.norm() * T.norm())
    agree(cka_divergence(X, Y, TX, TY), expected, X, Y)


def test_finite_differences_of_scale_bias_and_temperature():
    X, Y = leaf((12, 4), 0).detach(), leaf((12, 4), 1).detach()
    scale, bias, tau = (torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in (20.0, -10.0, 0.07))
    assert torch.autograd.gradcheck(lambda s, b: siglip_loss(X, Y, s, b), (scale, bias))
    assert torch.autograd.gradcheck(lambda t: infonce_loss(X, Y, t), (tau,))


def test_far_logits_neither_overflow_nor_lose_the_loss():
    X = torch.eye(3, dtype=torch.float32).requires_grad_()
    value = siglip_loss(X, -X, 1e4, 0.0)  # every pair is called a non-pair by 10,000
    (slope,) = torch.autograd.grad(value, X)
    assert value.item() == pytest.approx((3 * 1e4 + 6 * math.log(2)) / 9, rel=1e-6)
    assert torch.isfinite(slope).all()
    assert torch.isfinite(infonce_loss(X, -X, 1e-4))


def test_single_precision_is_near_double():
    X, Y = leaf((300, 16), 0), leaf((300, 16), 1)
    for loss in (siglip_loss, infonce_loss):
        assert loss(X.float(), Y.float()).item() == pytest.approx(loss(X, Y).item(), rel=1e-5)


def test_what_is_refused():
    X = leaf((4, 3), 0)
    for error, words, loss, rows in (
        (ShapeError, "at least as many of Y", siglip_loss, (X, X[:3])),
        (ShapeError, "one space", infonce_loss, (X, X[:, :2])),
        (ShapeError, None, infonce_loss, (X, X[:3])),
        (ParameterError, "temperature", infonce_loss, (X, X, 0.0)),
        (ShapeError, None, generalized_infonce, (X, X, X[:2], X)),
        (ParameterError, "epsilon_teacher", generalized_infonce, (X, X, X, X, 0.1, 0.0)),
        (ShapeError, "at least one", siglip_loss, (X[:0], X)),
    ):
        with pytest.raises(error, match=words):
            loss(*rows)
    with pytest.raises(ParameterError, match="reduction"):
        siglip_loss(X, X, reduction="mean")


def sigma(a, b, tau):
    return torch.exp(a @ b / tau)


def equation_1(v, pos, tau, with_pair=True):
    """L_VL; with images and captions exchanged, L_LV."""
    n, total = len(v), 0.0
    for i in range(n):
        denominator = sum(sigma(v[i], pos[j], tau) for j in range(n) if with_pair or j != i)
        total = total - torch.log(sigma(v[i], pos[i], tau) / denominator)
    return total / n


def con(v, pos, tau):
    return (equation_1(v, pos, tau) + equation_1(pos, v, tau)) / 2


def equation_2(v, pos, neg, tau):
    n, texts, total = len(v), [*pos, *neg.reshape(-1, neg.shape[-1])], 0.0
    for i in range(n):
        total = total - torch.log(sigma(v[i], pos[i], tau) / sum(sigma(v[i], text, tau) for text in texts))
    return total / n


def negcon(v, pos, neg, tau):
    return (equation_2(v, pos, neg, tau) + equation_1(pos, v, tau)) / 2


def contexts(pos, neg):
    return [[pos[i], *neg[i]] for i in range(len(pos))]


def equation_18(v, pos, neg, tau, one_denominator=False):
    n, sets, total = len(v), contexts(pos, neg), 0.0
    for i in range(n):
        outside = sum((sigma(v[i], text, tau) for j in range(n) if j != i for text in sets[j]), start=torch.zeros(()))
        inside = sum(sigma(v[i], text, tau) for text in sets[i])
        for text in sets[i]:
            own = sigma(v[i], text, tau)
            denominator = (inside if one_denominator else own) + outside
            total = total - torch.log(own / denominator) / len(sets[i])
    return total / n


def equation_19(v, pos, neg, tau):
    sets, total = contexts(pos, neg), 0.0
    for i in range(len(v)):
        total = total - torch.log(sigma(v[i], pos[i], tau) / sum(sigma(v[i], text, tau) for text in sets[i]))
    return total / len(v)


def spread(v, pos, neg, alpha, tau, **form):
    forth = (1 - alpha) * equation_18(v, pos, neg, tau, **form) + alpha * equation_19(v, pos, neg, tau)
    return (forth + equation_1(pos, v, tau)) / 2


@pytest.fixture(params=[1, 3], ids=["one wrong caption", "three"])
def batch(request):
    v, pos, neg = unit((9, 5), 0), unit((9, 5), 1), unit((9, request.param, 5), 2)
    tau = torch.tensor(0.07, dtype=torch.float64)
    return [tensor.requires_grad_() for tensor in (v, pos, neg, tau)]


def test_con_and_negcon_are_the_equations(strip, batch):
    v, pos, neg, tau = batch
    agree(con_loss(v, pos, tau), con(v, pos, tau), v, pos, tau)
    agree(negcon_loss(v, pos, neg, tau), negcon(v, pos, neg, tau), v, pos, neg, tau)


@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.5, 1.0])
def test_spread_is_the_equation(strip, batch, alpha):
    v, pos, neg, tau = batch
    agree(spread_loss(v, pos, neg, alpha, tau), spread(v, pos, neg, alpha, tau), v, pos, neg, tau)


#: Of nine rows 0, 3 and 7 have one image, 3 and 4 one caption.
LABELS = torch.tensor([[0, 10], [1, 11], [2, 12], [0, 13], [4, 13], [5, 15], [6, 16], [0, 17], [8, 18]])


def others(k):
    """Return the rows that are compared with row k, by the labels."""
    return [j for j in range(9) if not (LABELS[k] == LABELS[j]).any()]


def test_rows_with_a_label_in_common_are_not_compared(strip, batch):
    """Row by row, the loss is that of a batch of this row and those that it has no label in common with."""
    v, pos, neg, tau = batch

    for name, loss in (
        ("con", con_loss(v, pos, tau, labels=LABELS)),
        ("negcon", negcon_loss(v, pos, neg, tau, labels=LABELS)),
        ("spread", spread_loss(v, pos, neg, 0.3, tau, labels=LABELS)),
    ):
        total = 0
        texts = torch.cat([pos[:, None], neg], 1)
        for k in range(9):
            far = others(k)
            back = torch.logsumexp(torch.cat([(pos[k] @ v[k])[None], v[far] @ pos[k]]) / tau, 0) - pos[k] @ v[k] / tau
            right, own = v[k] @ pos[k] / tau, texts[k] @ v[k] / tau
            away = (texts[far].reshape(-1, 5) if name != "con" else pos[far]) @ v[k] / tau
            if name == "con":
                forth = torch.logsumexp(torch.cat([right[None], away]), 0) - right
            elif name == "negcon":
                forth = torch.logsumexp(torch.cat([own, away]), 0) - right
            else:
                context = torch.stack([torch.logsumexp(torch.cat([o[None], away]), 0) - o for o in own]).mean()
                forth = 0.7 * context + 0.3 * (torch.logsumexp(own, 0) - right)
            total = total + (forth + back) / 2
        agree(loss, total / 9, *batch[: 2 + (name != "con")], tau)


def test_a_row_that_shares_something_with_every_other(strip):
    v, pos, neg = unit((4, 5), 0).requires_grad_(), unit((4, 5), 1).requires_grad_(), unit((4, 2, 5), 2)
    labels = torch.zeros(4, dtype=torch.int64)
    assert con_loss(v, pos, 0.07, labels=labels).item() == 0
    for value in (negcon_loss(v, pos, neg, 0.07, labels=labels), spread_loss(v, pos, neg, 0.5, 0.07, labels=labels)):
        slopes = torch.autograd.grad(value, (v, pos), allow_unused=True)
        assert all(slope is None or torch.isfinite(slope).all() for slope in slopes)
    distinct = torch.arange(4)
    torch.testing.assert_close(negcon_loss(v, pos, neg, 0.07, labels=distinct), negcon_loss(v, pos, neg, 0.07))
    with pytest.raises(ShapeError, match=r"labels of shape \(3,\) for 4 images"):
        con_loss(v, pos, labels=distinct[:3])


def test_gradients_are_finite_differences(batch):
    v, pos, neg, _ = batch
    tau = torch.tensor(0.4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(con_loss, (v, pos, tau), fast_mode=True)
    assert torch.autograd.gradcheck(negcon_loss, (v, pos, neg, tau), fast_mode=True)
    for labels in (None, LABELS):
        loss = lambda *rows, labels=labels: spread_loss(*rows[:3], 0.3, rows[3], labels=labels)  # noqa: E731
        assert torch.autograd.gradcheck(loss, (v, pos, neg, tau), fast_mode=True)


def test_the_printed_forms_are_other_losses(batch):
    v, pos, neg, tau = batch
    ours = con_loss(v, pos, tau)
    printed = (equation_1(v, pos, tau, with_pair=False) + equation_1(pos, v, tau, with_pair=False)) / 2
    assert abs(ours - printed) > 0.01
    # What is wrong with it: matching pairs bring it down without end, where a cross-entropy ends at 0.
    rows = torch.eye(4, dtype=torch.float64)
    assert equation_1(rows, rows, 0.01, with_pair=False) < -90
    assert con_loss(rows, rows, 0.01) == pytest.approx(0, abs=1e-12)
    halved = (equation_2(v, pos, neg, tau) / 2 + equation_1(pos, v, tau)) / 2  # 1/2N with the pair in the denominator
    assert abs(negcon_loss(v, pos, neg, tau) - halved) > 0.1
    # Where every image has found its texts, one denominator for all of them leaves log 2 that no training can take
    # away.
    assert equation_18(rows, rows, rows[:, None], 0.01, one_denominator=True) == pytest.approx(math.log(2))
    assert spread_loss(rows, rows, rows, 0.0, 0.01) == pytest.approx(0, abs=1e-12)


def test_one_wrong_caption_may_be_given_without_its_axis(batch):
    v, pos, neg, tau = batch
    flat = neg[:, 0]
    assert torch.equal(spread_loss(v, pos, flat, 0.5, tau), spread_loss(v, pos, neg[:, :1], 0.5, tau))
    assert torch.equal(negcon_loss(v, pos, flat, tau), negcon_loss(v, pos, neg[:, :1], tau))


def test_a_batch_of_one(batch):
    v, pos, neg, tau = (tensor if tensor.ndim == 0 else tensor[:1] for tensor in batch)
    inputs = batch[0], batch[1], batch[3]
    assert con_loss(v, pos, tau).item() == 0
    assert negcon_loss(v, pos, neg, tau).item() == pytest.approx(equation_19(v, pos, neg, tau).item() / 2)
    assert spread_loss(v, pos, neg, 0.0, tau).item() == 0
    for value in (con_loss(v, pos, tau), spread_loss(v, pos, neg, 0.5, tau)):
        for slope in torch.autograd.grad(value, inputs):
            assert torch.isfinite(slope).all()


@given(st.integers(2, 6), st.integers(1, 3), st.floats(0, 1), st.integers(0, 99))
def test_spread_is_linear_in_alpha_and_never_negative(n, k, alpha, seed):
    v, pos, neg = unit((n, 4), seed), unit((n, 4), seed + 1), unit((n, k, 4), seed + 2)
    ends = [spread_loss(v, pos, neg, end) for end in (0.0, 1.0)]
    value = spread_loss(v, pos, neg, alpha)
    torch.testing.assert_close(value, (1 - alpha) * ends[0] + alpha * ends[1])
    assert value >= 0
    assert negcon_loss(v, pos, neg) >= con_loss(v, pos)


def test_far_logits_of_joint_losses_neither_overflow_nor_lose_them():
    rows = torch.eye(3, dtype=torch.float32).requires_grad_()
    wrong = negcon_loss(rows, -rows, rows, 1e-4), spread_loss(rows, -rows, rows, 0.5, 1e-4)
    for value in (con_loss(rows, -rows, 1e-4), *wrong):
        (slope,) = torch.autograd.grad(value, rows)
        assert 1e3 < value < 1e5
        assert torch.isfinite(slope).all()


def test_what_joint_losses_refuse():
    v, neg = unit((4, 3), 0), unit((4, 2, 3), 1)
    with pytest.raises(ShapeError, match="v.*pos"):
        con_loss(v, v[:3])
    with pytest.raises(ShapeError, match="v with 3 columns and pos with 2"):
        con_loss(v, v[:, :2])
    for wrong in (neg[:3], neg[..., :2], neg[:, :0], v[0]):
        with pytest.raises(ShapeError, match="wrong captions"):
            negcon_loss(v, v, wrong)
    for tau in (0.0, -1.0, float("nan"), torch.ones(2)):
        with pytest.raises(ParameterError, match="temperature"):
            spread_loss(v, v, neg, 0.5, tau)
    for alpha in (-0.1, 1.1, True, "half", float("nan")):
        with pytest.raises(ParameterError, match="alpha"):
            spread_loss(v, v, neg, alpha)
