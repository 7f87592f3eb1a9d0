"""JAM's autoencoder: shapes, what is served without torch, and its size."""

import numpy as np
import pytest

from congruence import HeadsMap
from congruence.train.jam import autoencoder, count, in_units

torch = pytest.importorskip("torch", reason="training needs torch")


def heads(d, **shape):
    from congruence.train._layers import Head

    return [Head(layers).eval() for layers in autoencoder(d, np.random.default_rng(0), **shape)]


@pytest.mark.parametrize("hidden", [(), (12,), (16, 12, 10)])
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_what_is_served_is_what_is_trained_in_the_rows_own_units(hidden, dropout):
    rng = np.random.default_rng(1)
    rows = (7 * rng.normal(size=(30, 20)) + 3).astype(np.float32)
    mean, scale = rows.mean(0, dtype=np.float64), 7.5
    encode, decode = heads(20, hidden=hidden, latent=8, dropout=dropout)
    with torch.no_grad():
        latent = encode(torch.from_numpy(((rows - mean) / scale).astype(np.float32)))
        again = decode(latent).numpy() * scale + mean
    source, back = in_units(encode.plain(), decode.plain(), mean, scale)
    served = HeadsMap.from_layers(source, source, decode_source=back)
    np.testing.assert_allclose(served.transform(rows), latent.numpy(), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(served.reconstruct(rows), again, rtol=1e-4, atol=1e-4)


def test_dropout_acts_while_training_only():
    encode, _ = heads(20, hidden=(16,), latent=8)
    rows = torch.ones(4, 20)
    assert torch.equal(encode(rows), encode(rows))
    encode.train()
    assert not torch.equal(encode(rows), encode(rows))


@pytest.mark.parametrize("p", [0.1, 0.5])
@pytest.mark.parametrize("shape", [(300, 333), (1, 1), (7, 3)])
def test_dropout_leaves_out_its_share_and_keeps_the_mean(p, shape):
    drop = heads(4, hidden=(4,), dropout=p)[0].layers[1].inner.layers[2]
    assert drop.kind == "dropout"
    rows = torch.ones(shape, requires_grad=True)
    out = drop.train()(rows)
    out.sum().backward()
    assert torch.equal(rows.grad, out)  # the same entries, by the same factor
    values = out.detach()
    torch.testing.assert_close(values[values > 0], torch.full_like(values[values > 0], 1 / (1 - p)), rtol=1e-4, atol=0)
    if values.numel() > 1000:
        share = (values == 0).double().mean().item()
        assert abs(share - p) < 5 * (p * (1 - p) / values.numel()) ** 0.5
        flat = (values == 0).double().flatten() - share  # neighbors share a random word, and must not show it
        for lag in (1, 2, 3, 4):
            assert abs((flat[lag:] * flat[:-lag]).mean() / (share * (1 - share))) < 5 / flat.numel() ** 0.5


@pytest.mark.parametrize("d", [768, 2304])
def test_the_count_is_that_of_torch_and_of_the_closed_form(d):
    parts = heads(d)
    total = count(parts[0].plain()) + count(parts[1].plain())
    assert total.parameters == sum(p.numel() for part in parts for p in part.parameters())
    h, z = 512, 256
    matrices = 2 * (d * h + 2 * h * h + h * z + 3 * 3 * h * h)
    assert total.flops == 2 * matrices
    # A stage's vectors: LayerNorm's gain and shift, two biases of the gated layer, those of two dense layers.
    assert total.parameters == matrices + 6 * 6 * h + z + d
