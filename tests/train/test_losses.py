"""Losses against the same losses of torch's own operations, value and gradients, and against closed forms."""

import math

import pytest

from congruence.errors import ParameterError, ShapeError
from congruence.train.losses import cka_divergence, generalized_infonce, infonce_loss, siglip_loss

torch = pytest.importorskip("torch", reason="the losses need torch")
F = torch.nn.functional


def unit(n, d, seed, dtype=torch.float64):
    rows = torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return F.normalize(rows, dim=1).to(dtype).requires_grad_()


def slopes(value, *inputs):
    return value.detach(), torch.autograd.grad(2.5 * value, inputs)


def agree(ours, plain, **tolerance):
    torch.testing.assert_close(ours[0], plain[0], **tolerance)
    for one, two in zip(ours[1], plain[1], strict=True):
        torch.testing.assert_close(one, two, **tolerance)


def plain_siglip(X, Y, scale, bias):
    signs = -torch.ones(len(X), len(Y), dtype=X.dtype)
    signs.fill_diagonal_(1)
    return -F.logsigmoid(signs * (scale * X @ Y.T + bias))


@pytest.mark.parametrize("more", [0, 7])
@pytest.mark.parametrize("reduction", ["logits", "rows"])
def test_siglip_is_the_equation(strip, more, reduction):
    X, Y = unit(40, 6, 0), unit(40 + more, 6, 1)
    scale, bias = (torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in (20.0, -10.0))
    parts = plain_siglip(X, Y, scale, bias)
    expected = parts.mean() if reduction == "logits" else parts.sum() / len(X)
    value = siglip_loss(X, Y, scale, bias, reduction=reduction)
    agree(slopes(value, X, Y, scale, bias), slopes(expected, X, Y, scale, bias))


def test_infonce_is_the_cross_entropy_of_rows_and_columns(strip):
    X, Y = unit(50, 6, 0), unit(50, 6, 1)
    tau = torch.tensor(0.07, dtype=torch.float64, requires_grad=True)
    logits, target = X @ Y.T / tau, torch.arange(50)
    expected = (F.cross_entropy(logits, target) + F.cross_entropy(logits.T, target)) / 2
    agree(slopes(infonce_loss(X, Y, tau), X, Y, tau), slopes(expected, X, Y, tau))


@pytest.mark.parametrize("symmetric", [False, True])
def test_generalised_infonce_is_the_divergence_of_softmaxes(strip, symmetric):
    X, Y, TX, TY = unit(30, 6, 0), unit(45, 6, 1), unit(30, 4, 2), unit(45, 4, 3)

    def rows(A, T):
        return F.kl_div((A / 0.05).log_softmax(1), (T / 0.02).log_softmax(1), log_target=True, reduction="batchmean")

    A, T = X @ Y.T, TX @ TY.T
    expected = (rows(A, T) + rows(A.T, T.T)) / 2 if symmetric else rows(A, T)
    agree(slopes(generalized_infonce(X, Y, TX, TY, 0.05, 0.02, symmetric=symmetric), X, Y), slopes(expected, X, Y))


def test_cka_is_the_cosine_of_the_centered_kernels():
    X, Y, TX, TY = unit(30, 6, 0), unit(45, 6, 1), unit(30, 4, 2), unit(45, 4, 3)

    def centered(K):
        return K - K.mean(0) - K.mean(1, keepdim=True) + K.mean()

    A, T = centered(X @ Y.T), centered(TX @ TY.T)
    expected = 1 - (A * T).sum() / (A.norm() * T.norm())
    agree(slopes(cka_divergence(X, Y, TX, TY), X, Y), slopes(expected, X, Y))


def test_far_logits_neither_overflow_nor_lose_the_loss():
    X = torch.eye(3, dtype=torch.float32).requires_grad_()
    value = siglip_loss(X, -X, 1e4, 0.0)  # every pair is called a non-pair by 10,000
    (slope,) = torch.autograd.grad(value, X)
    assert value.item() == pytest.approx((3 * 1e4 + 6 * math.log(2)) / 9, rel=1e-6)
    assert torch.isfinite(slope).all()
    assert torch.isfinite(infonce_loss(X, -X, 1e-4))


def test_single_precision_is_near_double():
    X, Y = unit(300, 16, 0), unit(300, 16, 1)
    for loss in (siglip_loss, infonce_loss):
        assert loss(X.float(), Y.float()).item() == pytest.approx(loss(X, Y).item(), rel=1e-5)


def test_what_is_refused():
    X = unit(4, 3, 0)
    for error, words, loss, given in (
        (ShapeError, "at least as many of Y", siglip_loss, (X, X[:3])),
        (ShapeError, "one space", infonce_loss, (X, X[:, :2])),
        (ShapeError, None, infonce_loss, (X, X[:3])),
        (ParameterError, "temperature", infonce_loss, (X, X, 0.0)),
        (ShapeError, None, generalized_infonce, (X, X, X[:2], X)),
        (ParameterError, "epsilon_teacher", generalized_infonce, (X, X, X, X, 0.1, 0.0)),
        (ShapeError, "at least one", siglip_loss, (X[:0], X)),
    ):
        with pytest.raises(error, match=words):
            loss(*given)
    with pytest.raises(ParameterError, match="reduction"):
        siglip_loss(X, X, reduction="mean")
