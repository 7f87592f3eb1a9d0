"""NNCLR: neighbors against all comparisons, its loss written out, and its limits."""

import numpy as np
import pytest

from congruence.errors import InputError, ParameterError
from congruence.train import NNCLR, ArrayRows, Sources

torch = pytest.importorskip("torch", reason="the losses need torch")

from congruence.train.nnclr import nearest_rows  # noqa: E402

QUICK = {"n_components": 6, "max_steps": 6, "batch_size": 64, "pair_batch_size": 24, "log_every": 1, "device": "cpu"}


class Drawn:
    """Rows that can be drawn and no more."""

    dim = 16

    def __len__(self):
        return 9

    def batch(self, step, size, seed):
        return np.ones((size, 16), np.float32)


class InBlocks(ArrayRows):
    def scan(self):
        for start in range(0, len(self), 7):
            yield start, self._rows[start : start + 7].astype(np.float32)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("k", [1, 5, 30])
@pytest.mark.parametrize("kind", [ArrayRows, InBlocks, lambda U: Sources([InBlocks(U[:11]), ArrayRows(U[11:])])])
def test_neighbors_are_those_of_all_comparisons(k, kind):
    rng = np.random.default_rng(0)
    Q, U = rng.normal(size=(13, 6)).astype(np.float32), rng.normal(size=(30, 6))
    for side in (Q, U):
        side.setflags(write=False)  # as of an array mapped from a file, of which torch would warn
    cosines = (Q / np.linalg.norm(Q, axis=1, keepdims=True)) @ (U / np.linalg.norm(U, axis=1, keepdims=True)).T
    np.testing.assert_array_equal(nearest_rows(Q, kind(U), k), np.argsort(-cosines, axis=1)[:, :k])


def test_rows_of_several_sources_are_read_by_number():
    U = np.random.default_rng(0).normal(size=(30, 4)).astype(np.float32)
    rows = Sources([ArrayRows(U[:3]), Sources([InBlocks(U[3:20]), ArrayRows(U[20:])])])
    at = np.array([29, 0, 2, 3, 19, 20, 3])
    np.testing.assert_array_equal(rows.take(at), U[at])
    starts, blocks = zip(*rows.scan(), strict=True)
    np.testing.assert_array_equal(np.concatenate(blocks), U)
    np.testing.assert_array_equal(starts, np.cumsum([0, *map(len, blocks[:-1])]))


def test_the_loss_is_the_sum_of_three(latent):
    """With k = 1 nothing is left to chance: the first step can be redone by hand."""
    from congruence.train.losses import siglip_loss

    options = {**QUICK, "max_steps": 1, "pair_batch_size": 64, "batch_size": 128, "learning_rate": 1e-12}
    method = NNCLR(n_neighbors=1, text_weight=10.0, image_weight=0.1, **options)
    fitted = method.fit(latent.X, latent.Y, unpaired=(latent.U, latent.V), verbose=False)

    def unit(rows):
        return torch.nn.functional.normalize(torch.from_numpy(rows), dim=1)

    near = {}
    for name, paired, rows in (("image", latent.X, latent.U), ("text", latent.Y, latent.V)):
        near[name] = rows[np.argmax(unit(paired).numpy() @ unit(rows).numpy().T, axis=1)]
    X, Y = unit(fitted.transform(latent.X)), unit(fitted.transform_target(latent.Y))
    images, texts = unit(fitted.transform(near["image"])), unit(fitted.transform_target(near["text"]))
    parts = [siglip_loss(X, Y), siglip_loss(X, texts), siglip_loss(Y, images)]
    expected = parts[0] + 10 * parts[1] + 0.1 * parts[2]
    assert fitted.facts_["history"]["losses"]["loss"][0] == pytest.approx(expected.item(), rel=1e-4)


def test_rows_of_a_file_serve_as_those_of_an_array(latent, tmp_path):
    from congruence.io import open_rows

    np.save(tmp_path / "texts.npy", latent.V)
    kept, mapped = (
        NNCLR(n_neighbors=1, image_weight=0.0, **QUICK).fit(latent.X, latent.Y, unpaired=(None, V), verbose=False)
        for V in (latent.V, open_rows(tmp_path / "texts.npy", memory=1))
    )
    np.testing.assert_array_equal(kept.transform(latent.X_test), mapped.transform(latent.X_test))


def test_neighbors_are_drawn_from_k_and_by_the_seed(latent):
    losses = {}
    for k, seed in ((1, 0), (5, 0), (5, 1)):
        options = {**QUICK, "pair_batch_size": 64, "batch_size": 128, "max_steps": 1, "random_state": seed}
        fitted = NNCLR(n_neighbors=k, **options).fit(latent.X, latent.Y, unpaired=(latent.U, latent.V), verbose=False)
        losses[k, seed] = fitted.facts_["history"]["losses"]["near_text"][0]
    assert len(set(losses.values())) == 3


def test_what_is_refused(latent):
    with pytest.raises(ParameterError, match="n_neighbors=5 and 4 unpaired rows"):
        NNCLR(**QUICK).fit(latent.X, latent.Y, unpaired=(latent.U, latent.V[:4]))
    with pytest.raises(InputError, match="type Drawn.*scan and take"):
        NNCLR(**QUICK).fit(latent.X, latent.Y, unpaired=(latent.U, Drawn()))
    for wrong in ({"n_neighbors": 0}, {"text_weight": -1.0}, {"image_weight": float("nan")}):
        with pytest.raises(ParameterError, match=next(iter(wrong))):
            NNCLR(**wrong).fit(latent.X, latent.Y, unpaired=(latent.U, latent.V))
