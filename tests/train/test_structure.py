"""STRUCTURE: its divergence written out, and what it becomes at its limits."""

import math

import numpy as np
import pytest

from congruence.errors import InputError, ParameterError, ShapeError
from congruence.train import STRUCTURE
from congruence.train.structure import structure_loss

torch = pytest.importorskip("torch", reason="the losses need torch")
F = torch.nn.functional

QUICK = {"n_components": 6, "max_steps": 3, "batch_size": 64, "pair_batch_size": 24, "device": "cpu"}


def rows(n, d, seed):
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def plain(Z, T, temperature, levels, direction, decay):
    matrices = []
    for side in (T, Z):
        side = side / side.norm(dim=1, keepdim=True)
        side = side - side.mean(0)
        matrices.append(torch.softmax(side @ side.T / temperature, 1))
    total = 0
    for level in range(1, levels + 1):
        p, q = (torch.linalg.matrix_power(M, level) for M in matrices)
        m = (p + q) / 2
        if direction == "js":
            parts = F.kl_div(m.log(), p, reduction="batchmean"), F.kl_div(m.log(), q, reduction="batchmean")
        else:
            parts = F.kl_div(p.log(), m, reduction="batchmean"), F.kl_div(q.log(), m, reduction="batchmean")
        total = total + (parts[0] + parts[1]) / 2 / (level if decay else 1)
    return total / levels


@pytest.mark.parametrize("direction", ["js", "published"])
@pytest.mark.parametrize(("levels", "decay"), [(1, True), (3, True), (3, False)])
def test_the_divergence_is_the_formula(strip, direction, levels, decay):
    Z, T = rows(50, 5, 0).requires_grad_(), rows(50, 8, 1)
    ours = structure_loss(Z, T, 0.3, levels, direction=direction, decay=decay)
    expected = plain(Z, T, 0.3, levels, direction, decay)
    torch.testing.assert_close(ours, expected, rtol=1e-12, atol=1e-14)
    (one,), (two,) = (torch.autograd.grad(1.7 * value, Z) for value in (ours, expected))
    torch.testing.assert_close(one, two, rtol=1e-9, atol=1e-14)


def test_the_published_direction_is_another_divergence():
    """Two tight clusters that the other space splits across: the one is bounded by log 2, the other is not."""
    sign = torch.tensor([1.0, 1.0, -1.0, -1.0], dtype=torch.float64)
    Z, T = sign[:, None].repeat(1, 2), sign[[0, 2, 1, 3], None]
    js, published = (structure_loss(Z, T, 0.05, direction=direction).item() for direction in ("js", "published"))
    assert js == pytest.approx(math.log(2) / 2, rel=1e-6)  # half of the neighbors are common
    # m is (1/2, 1/4, 1/4, 0); p and q are 1/2 where they are not exp(−2/0.05)/2.
    expected = 2 * 0.25 * (math.log(0.25) - 0.5 * (2 * math.log(0.5) - 2 / 0.05))
    assert published == pytest.approx(expected, rel=1e-6)
    assert published > 9 > js


def test_no_divergence_between_equal_geometries():
    T = rows(30, 4, 0)
    turned = torch.linalg.qr(rows(4, 4, 1))[0]
    for direction in ("js", "published"):
        assert abs(structure_loss(3 * T @ turned, T, levels=2, direction=direction).item()) < 1e-12


def test_a_cold_softmax_stays_finite():
    Z, T = rows(30, 4, 0).float().requires_grad_(), rows(30, 4, 1).float()
    for direction in ("js", "published"):
        value = structure_loss(Z, T, 1e-3, 2, direction=direction)
        (slope,) = torch.autograd.grad(value, Z)
        assert torch.isfinite(value)
        assert torch.isfinite(slope).all()


def test_the_weight_rises_over_the_warmup(latent):
    history = []
    for warmup in (0, 4):
        method = STRUCTURE(weight=2.0, structure_warmup=warmup, log_every=1, **QUICK)
        history.append(method.fit(latent.X, latent.Y, verbose=False).facts_["history"]["losses"])
    for losses, shares in zip(history, ([1, 1, 1], [0.25, 0.5, 0.75]), strict=True):
        weights = (np.array(losses["loss"]) - losses["supervised"]) / losses["structure"]
        np.testing.assert_allclose(weights, 2 * np.array(shares), rtol=1e-4)


@pytest.mark.long
@pytest.mark.parametrize("unpaired", [False, True])
def test_it_learns_and_keeps_the_geometry(latent, retrieval, unpaired):
    options = {"n_components": 16, "max_steps": 60, "learning_rate": 5e-3, "batch_size": 256, "device": "cpu"}
    drifts = []
    for weight in (0.0, 0.3):
        method = STRUCTURE(weight=weight, unpaired=unpaired, **options)
        fitted = method.fit(latent.X, latent.Y, unpaired=(latent.U, latent.V), verbose=False)
        assert retrieval(fitted) > 0.6
        moved = fitted.transform(latent.X_test), fitted.transform_target(latent.Y_test)
        sides = zip(moved, (latent.X_test, latent.Y_test), strict=True)
        drifts.append(sum(structure_loss(*map(torch.from_numpy, side)).item() for side in sides))
    assert drifts[1] < 0.5 * drifts[0]


def test_what_is_refused(latent):
    with pytest.raises(InputError, match="unpaired=True without unpaired rows"):
        STRUCTURE(unpaired=True, **QUICK).fit(latent.X, latent.Y)
    wrongs = {"weight": -1.0, "levels": 0, "structure_temperature": 0.0, "structure_warmup": -1, "direction": "kl"}
    for name, value in wrongs.items():
        with pytest.raises(ParameterError, match=name):
            STRUCTURE(**{name: value}).fit(latent.X, latent.Y)
    for wrong in (rows(4, 2, 0), rows(3, 2, 0)[0]):
        with pytest.raises(ShapeError):
            structure_loss(wrong, rows(3, 2, 0))
    with pytest.raises(ParameterError, match="levels"):
        structure_loss(rows(3, 2, 0), rows(3, 2, 0), levels=1.5)
