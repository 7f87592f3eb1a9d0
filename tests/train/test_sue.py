"""SUE: graph, spectral loss and discrepancy against scikit-learn and SciPy, and the three stages together."""

import numpy as np
import pytest
import scipy.linalg
import scipy.spatial
from sklearn.metrics.pairwise import rbf_kernel
from sklearn.neighbors import NearestNeighbors

from congruence.errors import InputError, ParameterError
from congruence.train import SUE

torch = pytest.importorskip("torch", reason="the losses need torch")

from congruence.train.sue import (  # noqa: E402
    affinities,
    mmd,
    spectral_loss,
)

SPECTRAL = {"n_spectral_components": 12, "spectral_steps": 30, "spectral_learning_rate": 3e-3}
QUICK = {**SPECTRAL, "spectral_batch_size": 200, "n_components": 6, "max_steps": 5, "batch_size": 128, "log_every": 1}
QUICK["device"] = "cpu"


def rows(n, d, seed):
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_the_graph_is_that_of_nearest_neighbors():
    X = rows(40, 3, 0)
    W = affinities(X, 7, 4).numpy()
    distance, index = NearestNeighbors(n_neighbors=7).fit(X.numpy()).kneighbors()  # without the row itself
    sigma = np.sort(distance[:, 3])[(40 - 1) // 2]  # torch's median is the lower of the two middle ones
    expected = np.zeros((40, 40))
    for i in range(40):
        expected[i, index[i]] = np.exp(-((distance[i] / sigma) ** 2))
    np.testing.assert_allclose(W, (expected + expected.T) / 2, atol=1e-12)
    assert torch.count_nonzero(affinities(X, 99, 4)) == 40 * 39  # all others, where there are fewer than asked for


def test_the_spectral_loss_is_least_at_the_eigenvectors():
    W = affinities(rows(60, 3, 0), 8, 4)
    L = torch.diag(W.sum(1)) - W
    values, vectors = scipy.linalg.eigh(L.numpy())
    best = spectral_loss(torch.from_numpy(vectors[:, 1:5]), W).item()
    assert best == pytest.approx(values[1:5].mean() / W.sum(1).mean().item(), rel=1e-4)
    for seed in range(5):
        assert spectral_loss(rows(60, 4, seed), W).item() > best
    # Descending from noise arrives there too.
    Z = rows(60, 4, 9).requires_grad_()
    optimizer = torch.optim.LBFGS([Z], max_iter=100, line_search_fn="strong_wolfe")

    def closure():
        optimizer.zero_grad()
        loss = spectral_loss(Z, W)
        loss.backward()
        return loss

    optimizer.step(closure)
    assert closure().item() == pytest.approx(best, rel=1e-3)


def test_the_spectral_loss_depends_on_the_span_alone():
    W, Z, A = affinities(rows(60, 3, 0), 8, 4), rows(60, 4, 1), rows(4, 4, 2)
    assert spectral_loss(Z @ A + 3, W).item() == pytest.approx(spectral_loss(Z, W).item(), rel=1e-4)
    # As the sum over edges of orthonormal outputs writes it.
    Y = torch.linalg.qr(Z - Z.mean(0))[0]
    edges = (W * torch.cdist(Y, Y).square()).sum() / 2
    assert spectral_loss(Z, W).item() == pytest.approx(edges.item() / (4 * W.sum(1).mean().item()), rel=1e-4)
    torch.autograd.gradcheck(lambda z: spectral_loss(z, W), Z.requires_grad_(), fast_mode=True)


@pytest.mark.parametrize("scales", [1, 3, 4])
def test_the_discrepancy_is_that_of_its_kernels(scales):
    X, Y = rows(20, 3, 0), rows(30, 3, 1) + 0.5
    both = torch.cat([X, Y]).numpy()
    scale = scipy.spatial.distance.pdist(both, "sqeuclidean").mean()
    expected = 0
    for e in range(scales):
        gamma = 1 / (scale * 2.0 ** (e - scales // 2))
        xx, yy, xy = (rbf_kernel(a, b, gamma=gamma) for a, b in ((X, X), (Y, Y), (X, Y)))
        expected += xx.mean() + yy.mean() - 2 * xy.mean()
    assert mmd(X, Y, scales).item() == pytest.approx(expected, rel=1e-9)
    assert abs(mmd(X, X, scales).item()) < 1e-12
    (slope,) = torch.autograd.grad(mmd(X.requires_grad_(), torch.cat([X.detach(), Y]), scales), X)
    assert torch.isfinite(slope).all()  # rows at no distance from each other too


def test_it_learns(latent, retrieval):
    fitted = SUE(**QUICK).fit(latent.X, latent.Y, unpaired=(latent.U, latent.V), verbose=False)
    assert retrieval(fitted) > 0.4
    assert fitted.method_ == "sue"
    assert [layer["kind"] for layer in fitted.source_layers_][-2:] == ["linear", "residual"]


@pytest.mark.long
def test_the_last_stage_moves_the_source_towards_the_target(latent):
    U = latent.U[latent.U[:, 0] > np.median(latent.U[:, 0])]  # half of the images have no kin among the texts
    few, many = (
        SUE(**{**QUICK, "max_steps": steps, "learning_rate": 1e-2, "batch_size": 256, "pair_batch_size": 8}).fit(
            latent.X, latent.Y, unpaired=(U, latent.V), verbose=False
        )
        for steps in (1, 40)
    )
    np.testing.assert_array_equal(few.transform_target(latent.V), many.transform_target(latent.V))
    moved = [(torch.from_numpy(m.transform(U)), torch.from_numpy(m.transform_target(latent.V))) for m in (few, many)]
    distances = [mmd(*sides, 3).item() for sides in moved]
    assert distances[1] < 0.6 * distances[0]


def test_what_is_refused(latent):
    for unpaired in (None, (None, latent.V), (latent.U, None)):
        with pytest.raises(InputError, match="no unpaired rows of one side"):
            SUE(**QUICK).fit(latent.X, latent.Y, unpaired=unpaired)
    with pytest.raises(ParameterError, match="n_components=13 and n_spectral_components=12"):
        SUE(**{**QUICK, "n_components": 13}).fit(latent.X, latent.Y, unpaired=(latent.U, latent.V))
    with pytest.raises(ParameterError, match="graphs of 13 source rows"):
        SUE(**{**QUICK, "spectral_batch_size": 13}).fit(latent.X, latent.Y, unpaired=(latent.U, latent.V))
    with pytest.raises(ParameterError, match="n_components=6; expected at most"):  # of three pairs
        SUE(**{**QUICK, "spectral_steps": 1}).fit(latent.X[:3], latent.Y[:3], unpaired=(latent.U, latent.V))
    wrongs = {"n_neighbors": 0, "spectral_steps": 0, "ridge": -1.0, "scales": 0, "spectral_learning_rate": 0.0}
    for name, value in wrongs.items():
        with pytest.raises(ParameterError, match=name):
            SUE(**{**QUICK, name: value}).fit(latent.X, latent.Y, unpaired=(latent.U, latent.V))
