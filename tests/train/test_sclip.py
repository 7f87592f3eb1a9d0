"""S-CLIP: its loss written out, plans against POT, and its limits."""

import numpy as np
import ot
import pytest

from congruence.errors import ParameterError, ShapeError
from congruence.train import SCLIP
from congruence.train.sclip import pseudo_label_loss, published_loss

torch = pytest.importorskip("torch", reason="the losses need torch")
F = torch.nn.functional

QUICK = {"n_components": 6, "max_steps": 3, "batch_size": 64, "pair_batch_size": 24, "log_every": 1, "device": "cpu"}


def unit(n, d, seed):
    rows = torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return F.normalize(rows, dim=1)


def targets(similar, paired, assignment, temperature):
    """The three assignments with tools of others."""
    S = F.normalize(similar, dim=1) @ F.normalize(paired, dim=1).T
    if assignment == "hard":
        return F.one_hot(S.argmax(1), len(paired)).to(S.dtype)
    if assignment == "soft":
        return torch.softmax(S / temperature, 1)
    weights = [np.full(n, 1 / n) for n in S.shape]
    P = torch.from_numpy(ot.sinkhorn(*weights, -S.numpy(), temperature, method="sinkhorn_log", stopThr=1e-13))
    return P / P.sum(1, keepdim=True)


@pytest.mark.parametrize("assignment", ["hard", "soft", "ot"])
def test_the_loss_is_the_cross_entropy_with_the_assignment(strip, assignment):
    U, Y = unit(40, 5, 0).requires_grad_(), unit(25, 5, 1).requires_grad_()
    similar, paired = 3 * unit(40, 7, 2), unit(25, 7, 3)
    scale = torch.tensor(12.0, dtype=torch.float64, requires_grad=True)
    ours = pseudo_label_loss(U, Y, similar, paired, scale, assignment=assignment, temperature=0.2, max_iter=2000)
    expected = F.cross_entropy(scale * U @ Y.T, targets(similar, paired, assignment, 0.2))
    torch.testing.assert_close(ours, expected, rtol=1e-7, atol=0)  # the plan's own tolerance
    for one, two in zip(*(torch.autograd.grad(1.7 * v, (U, Y, scale)) for v in (ours, expected)), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-6, atol=1e-7)


def test_limits_of_the_assignments():
    U, Y, similar, paired = unit(30, 5, 0), unit(20, 5, 1), unit(30, 7, 2), unit(20, 7, 3)
    hard, cold, warm = (
        pseudo_label_loss(U, Y, similar, paired, assignment=name, temperature=temperature)
        for name, temperature in (("hard", 1.0), ("soft", 1e-5), ("soft", 1e6))
    )
    torch.testing.assert_close(cold, hard)
    torch.testing.assert_close(warm, -F.log_softmax(20 * U @ Y.T, 1).mean())
    # Over one caption there is nothing to tell apart; as many rows as captions that are each other's only kin are told
    # apart by transport.
    for name in ("hard", "soft", "ot"):
        assert pseudo_label_loss(U, Y[:1], similar, paired[:1], assignment=name).item() == pytest.approx(0, abs=1e-12)
    matched = pseudo_label_loss(U[:20], Y, paired, paired, assignment="ot", temperature=0.01)
    torch.testing.assert_close(matched, F.cross_entropy(20 * U[:20] @ Y.T, torch.arange(20)), rtol=1e-6, atol=0)


@pytest.mark.parametrize("pair_loss", ["siglip", "infonce"])
@pytest.mark.parametrize("space", ["unimodal", "joint"])
def test_a_step_is_the_weighted_sum(latent, pair_loss, space):
    """A step that moves nothing is redone by hand from the map it returns."""
    from congruence.train.losses import infonce_loss, siglip_loss

    options = {**QUICK, "max_steps": 1, "pair_batch_size": 64, "batch_size": 10_000, "learning_rate": 1e-12}
    trainer = SCLIP(assignment="soft", space=space, image_weight=10.0, text_weight=0.1, pair_loss=pair_loss, **options)
    fitted = trainer.fit(latent.X, latent.Y, unpaired=(latent.U, latent.V), verbose=False)
    X, U = (F.normalize(torch.from_numpy(fitted.transform(rows)), dim=1) for rows in (latent.X, latent.U))
    Y, V = (F.normalize(torch.from_numpy(fitted.transform_target(rows)), dim=1) for rows in (latent.Y, latent.V))
    own = [(U, X), (V, Y)]
    if space == "unimodal":
        own = [tuple(map(torch.from_numpy, side)) for side in ((latent.U, latent.X), (latent.V, latent.Y))]
    scale = 20.0 if pair_loss == "siglip" else 1 / 0.07
    parts = [siglip_loss(X, Y) if pair_loss == "siglip" else infonce_loss(X, Y)]
    for joint, partners, (rows, paired) in ((U, Y, own[0]), (V, X, own[1])):
        parts.append(F.cross_entropy(scale * joint @ partners.T, targets(rows, paired, "soft", 0.05)))
    expected = parts[0] + 10 * parts[1] + 0.1 * parts[2]
    assert fitted.facts_["history"]["losses"]["loss"][0] == pytest.approx(expected.item(), rel=1e-4)


@pytest.mark.long
@pytest.mark.parametrize(("assignment", "space"), [("hard", "unimodal"), ("ot", "unimodal"), ("soft", "joint")])
def test_it_learns(latent, retrieval, assignment, space):
    options = {"n_components": 16, "max_steps": 60, "learning_rate": 5e-3, "device": "cpu", "max_iter": 20}
    method = SCLIP(assignment=assignment, space=space, image_weight=0.1, text_weight=0.1, **options)
    fitted = method.fit(latent.X, latent.Y, unpaired=(latent.U, latent.V), verbose=False)
    assert retrieval(fitted) > 0.3


@pytest.mark.parametrize("assignment", ["hard", "soft", "ot"])
def test_the_published_form(latent, assignment):
    X, Y, U = unit(6, 4, 0), unit(6, 4, 1), unit(5, 4, 2)
    scale = torch.tensor(7.0)
    supervised, pseudo = published_loss(X, Y, U, scale, assignment)
    near = 7 * U @ X.T
    if assignment == "ot":  # rows of a plan whose columns have equal mass after enough iterations
        plan = near.exp()
        for _ in range(10):
            plan = plan / plan.sum(1, keepdim=True)
            plan = plan / plan.sum(0, keepdim=True)
        target = plan / plan.sum(1, keepdim=True)
    else:
        target = F.one_hot(near.argmax(1), 6).to(near) if assignment == "hard" else near.softmax(1)
    expected = -(target * (7 * U @ Y.T).log_softmax(1)).sum(1).mean()
    assert pseudo.item() == pytest.approx(expected.item(), rel=1e-4)
    candidates = (7 * Y @ torch.cat([X, U]).T).log_softmax(1)[range(6), range(6)]
    images = (7 * X @ Y.T).log_softmax(1)[range(6), range(6)]
    assert supervised.item() == pytest.approx(-(candidates.mean() + images.mean()).item() / 2, rel=1e-4)
    fitted = SCLIP(published=True, pair_loss="infonce", assignment=assignment, **QUICK)
    fitted.fit(latent.X, latent.Y, unpaired=(latent.U, None), verbose=False)
    assert set(fitted.facts_["history"]["losses"]) == {"step", "loss", "supervised", "pseudo_image"}
    with pytest.raises(ParameterError, match="infonce"):
        SCLIP(published=True).fit(latent.X, latent.Y, unpaired=(latent.U, None))


def test_what_is_refused(latent):
    # A side of no weight is not asked for.
    SCLIP(text_weight=0.0, **QUICK).fit(latent.X, latent.Y, unpaired=(latent.U, None), verbose=False)
    wrongs = {"assignment": "knn", "space": "target", "assignment_temperature": 0.0, "max_iter": 0}
    for name, value in (wrongs | {"image_weight": -1.0, "text_weight": -1.0}).items():
        with pytest.raises(ParameterError, match=name):
            SCLIP(**{name: value}).fit(latent.X, latent.Y, unpaired=(latent.U, latent.V))
    with pytest.raises(ShapeError):
        pseudo_label_loss(unit(4, 3, 0), unit(5, 3, 0), unit(4, 2, 0), unit(4, 2, 0))
