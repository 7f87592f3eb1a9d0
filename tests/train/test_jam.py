"""JAM: what it learns, what it accepts, and that a run is the same run however it was stopped."""

from types import SimpleNamespace

import numpy as np
import pytest
from sklearn.base import clone

from arrays import unit
from congruence import Embeddings, Space, load
from congruence.datasets import SugarCrepe
from congruence.errors import InputError, NotFiniteError, ParameterError, ShapeError, TooFewAnchorsError, TrainingError
from congruence.metrics import recall_at_k
from congruence.train import JAM, split_by_group
from congruence.train.jam import read_captions

torch = pytest.importorskip("torch", reason="training needs torch")

QUICK = {"hidden": (32,), "latent": 12, "max_epochs": 30, "learning_rate": 3e-3, "dropout": 0.0}


def make_scenes(n=120, seed=0):
    """Images and captions of six properties; the wrong caption has one of them the other way round."""
    rng = np.random.default_rng(seed)
    A, B = (np.random.default_rng(9).normal(size=(6, width)) for width in (24, 18))
    z = rng.normal(size=(n, 6))
    wrong = z.copy()
    wrong[np.arange(n), rng.integers(6, size=n)] *= -1

    def view(latent, M):
        return (5 * np.tanh(latent @ M / 3) + 0.3 * rng.normal(size=(n, M.shape[1])) + 2).astype(np.float32)

    return SimpleNamespace(X=view(z, A), Y=view(z, B), N=view(wrong, B))


@pytest.fixture(scope="module")
def scenes():
    return make_scenes()


@pytest.fixture(scope="module")
def heldout():
    return make_scenes(60, seed=1)


def right_of_two(mapping, heldout):
    texts = map(mapping.transform_target, (heldout.Y, heldout.N))
    v, t, n = (unit(rows) for rows in (mapping.transform(heldout.X), *texts))
    return np.mean(np.sum(v * t, axis=1) > np.sum(v * n, axis=1))


@pytest.mark.long
@pytest.mark.parametrize("loss", ["spread", "negcon", "con"])
def test_every_loss_learns(scenes, heldout, loss):
    mapping = JAM(loss, **QUICK).fit(scenes.X, scenes.Y, negatives=scenes.N, verbose=False)
    recall = recall_at_k(mapping.transform(heldout.X), mapping.transform_target(heldout.Y), np.arange(60))
    assert recall > 10 / 60
    assert right_of_two(mapping, heldout) > 0.75
    assert mapping.facts_["reconstruction_error"]["source"] < 0.5
    losses = mapping.facts_["history"]["losses"]["alignment"]
    assert losses[-1] < 0.5 * losses[0]


def test_a_killed_run_goes_on_to_the_bit(scenes, heldout, tmp_path, kill):
    from congruence.train import jam

    options = {**QUICK, "max_epochs": 6, "dropout": 0.1, "checkpoint_every": 1}
    method = JAM(spread_mix=(0.0, 1.0), learn_temperature=True, **options)
    fit = {"validation": (heldout.X, heldout.Y, heldout.N), "verbose": False}
    whole = clone(method).fit(scenes.X, scenes.Y, negatives=scenes.N, **fit)
    fit["checkpoint"] = tmp_path / "c"
    kill(jam.AutoencoderObjective, 17, method.fit, scenes.X, scenes.Y, negatives=scenes.N, **fit)
    again = method.fit(scenes.X, scenes.Y, negatives=scenes.N, **fit)
    for side, rows in (("reconstruct", heldout.X), ("reconstruct_target", heldout.Y)):
        assert np.array_equal(getattr(again, side)(rows), getattr(whole, side)(rows))
    assert again.facts_["history"] == whole.facts_["history"]
    with pytest.raises(TrainingError, match=r"parameters\.loss"):
        JAM(**{**method.get_params(), "loss": "negcon"}).fit(scenes.X, scenes.Y, negatives=scenes.N, **fit)
    with pytest.raises(TrainingError, match="data"):
        method.fit(scenes.X, scenes.Y, negatives=scenes.N[::-1], **fit)
    with pytest.raises(TrainingError, match="validation"):
        method.fit(scenes.X, scenes.Y, negatives=scenes.N, **{**fit, "validation": (heldout.X, heldout.Y)})


def test_the_seed_decides(scenes):
    def rows(seed):
        quick = JAM(**{**QUICK, "max_epochs": 2}, random_state=seed)
        return quick.fit(scenes.X, scenes.Y, negatives=scenes.N, verbose=False).transform(scenes.X)

    assert np.array_equal(rows(5), rows(5))
    assert not np.array_equal(rows(5), rows(42))


def test_what_is_served_is_the_best_and_not_the_last(scenes, heldout, tmp_path):
    # A rate so high that validation goes up and down.
    often = {"validate_every": 1, "patience": None, "schedule": "constant", "learning_rate": 0.03, "max_epochs": 12}
    own = {"negatives": scenes.N, "validation": (heldout.X, heldout.Y, heldout.N), "verbose": False}
    mapping = JAM(**{**QUICK, **often}).fit(scenes.X, scenes.Y, **own)
    scores = dict(mapping.facts_["history"]["validation"])
    assert len(scores) == 13
    best, last = max(scores.values()), scores[mapping.facts_["steps"]]
    assert best > last
    again = load(mapping.save(tmp_path / "m"))
    texts = again.transform_target(np.concatenate([heldout.Y, heldout.N]))
    assert recall_at_k(again.transform(heldout.X), texts, np.arange(60)) == pytest.approx(best)
    assert mapping.scores_["validation_source_to_target_recall_at_1"] == best
    assert again.method_ == "jam"
    assert again.facts_["training"]["hidden"] == [32]
    np.testing.assert_array_equal(again.reconstruct(heldout.X), mapping.reconstruct(heldout.X))


def test_the_loss_is_its_terms_and_the_weight_falls_to_a_tenth(scenes):
    method = JAM(**{**QUICK, "max_epochs": 3}, log_every=1)
    losses = method.fit(scenes.X, scenes.Y, negatives=scenes.N, verbose=False).facts_["history"]["losses"]
    errors = np.array(losses["reconstruct_source"]) + losses["reconstruct_target"]
    weights = (np.array(losses["loss"]) - losses["alignment"]) / errors
    np.testing.assert_allclose(weights, np.linspace(1, 0.1, 12), rtol=1e-4)
    assert "temperature" not in losses


def test_a_learned_temperature_begins_where_told_and_moves(scenes):
    method = JAM(**{**QUICK, "max_epochs": 5}, learn_temperature=True, log_every=1)
    mapping = method.fit(scenes.X, scenes.Y, negatives=scenes.N, verbose=False)
    taus = mapping.facts_["history"]["losses"]["temperature"]
    assert taus[0] == pytest.approx(0.07)
    assert len(set(taus)) == len(taus)
    assert mapping.facts_["temperature"] == pytest.approx(taus[-1], rel=0.1)
    sharp = JAM(temperature=1e-4, learn_temperature=True, **{**QUICK, "max_epochs": 2}, log_every=1)
    losses = sharp.fit(scenes.X, scenes.Y, negatives=scenes.N, verbose=False).facts_["history"]["losses"]
    assert min(losses["temperature"]) == pytest.approx(0.01)
    assert max(losses["temperature"]) > 0.0101  # the bound is no trap


def test_a_curriculum_goes_from_one_end_to_the_other(scenes, heldout, monkeypatch):
    from congruence.train import jam

    seen, original = [], jam.spread_loss
    watched = lambda v, p, n, alpha, tau, **more: seen.append(alpha) or original(v, p, n, alpha, tau, **more)  # noqa: E731
    monkeypatch.setattr(jam, "spread_loss", watched)
    method = JAM(spread_mix=(1.0, 0.0), **{**QUICK, "max_epochs": 3}, validate_every=1)
    mapping = method.fit(scenes.X, scenes.Y, negatives=scenes.N, validation=(heldout.X, heldout.Y), verbose=False)
    np.testing.assert_allclose(seen, np.linspace(1, 0, 12), atol=1e-12)
    best = mapping.facts_["best_step"]
    assert mapping.facts_["spread_mix_at_best"] == pytest.approx(seen[best - 1] if best else 1.0)


@pytest.mark.parametrize("loss", ["con", "negcon", "spread"])
def test_rows_of_one_image_or_caption_are_masked_where_told(scenes, loss):
    """It changes the loss of the first step only where some are the same. Batches of 30 divide the rows evenly."""

    def first(X, Y, **options):
        method = JAM(loss, **{**QUICK, "max_epochs": 1}, batch_size=30, log_every=1, **options)
        fitted = method.fit(X, Y, negatives=scenes.N, verbose=False)
        return fitted.facts_["history"]["losses"]["alignment"]

    assert first(scenes.X, scenes.Y, mask_same=True) == first(scenes.X, scenes.Y)
    few = np.arange(len(scenes.X)) % 10
    for X, Y in ((scenes.X[few], scenes.Y), (scenes.X, scenes.Y[few])):
        assert first(X, Y, mask_same=True)[0] < first(X, Y)[0] - 0.1


def test_several_wrong_captions_and_how_rows_are_reconstructed(scenes):
    many = np.stack([scenes.N, scenes.N[::-1]], axis=1)
    mapping = JAM(**{**QUICK, "max_epochs": 2}).fit(scenes.X, scenes.Y, negatives=many, verbose=False)
    assert mapping.facts_["negatives_each"] == 2
    error = mapping.facts_["reconstruction_error"]
    assert error["rows"] == "training"
    X = scenes.X.astype(np.float64)
    spread = ((X - X.mean(0)) ** 2).sum()
    assert error["source"] == pytest.approx(((mapping.reconstruct(X) - X) ** 2).sum() / spread, rel=1e-4)


@pytest.mark.parametrize("images", [60, 37])  # 11 of 37 are left after the first division, and a half of 11 is rounded
def test_the_split_by_image_is_sugarcrepes(images):
    rng = np.random.default_rng(0)
    names = np.array([f"{i:012d}.jpg" for i in rng.integers(images, size=200)])
    blank = np.full(200, "x")
    data = SugarCrepe(np.arange(200).astype(str), blank, names, blank, blank)
    train, rest = data.split_by_image(0.7, random_state=42)
    validation, test = rest.split_by_image(0.5, random_state=42)
    ours = split_by_group(names, random_state=42)
    for rows, theirs in zip(ours, (train, validation, test), strict=True):
        assert rows.astype(str).tolist() == theirs.ids.tolist()
    assert sorted(np.concatenate(ours).tolist()) == list(range(200))


def test_fit_divides_by_image(scenes):
    images = np.arange(120) // 3
    method = JAM(**{**QUICK, "max_epochs": 2}, random_state=42)
    mapping = method.fit(scenes.X, scenes.Y, negatives=scenes.N, groups=images, verbose=False)
    train, validation, test = split_by_group(images, random_state=42)
    assert mapping.facts_["split"] == {"train": len(train), "validation": len(validation), "test": len(test)}
    heldout = tuple(rows[validation] for rows in (scenes.X, scenes.Y, scenes.N, images))
    own = {"negatives": scenes.N[train], "validation": heldout, "verbose": False}
    result = JAM(**{**QUICK, "max_epochs": 2}, random_state=42).fit(scenes.X[train], scenes.Y[train], **own)
    np.testing.assert_array_equal(mapping.transform(scenes.X[test]), result.transform(scenes.X[test]))


def test_wrong_captions_and_labels_follow_the_captions_ids(scenes):
    names = [f"item {i}" for i in range(120)]
    order = np.random.default_rng(0).permutation(120)
    X = Embeddings(scenes.X, ids=names, space=Space("vision", modality="image"))
    Y = Embeddings(scenes.Y[order], ids=[names[i] for i in order], space=Space("language", modality="text"))
    N = Embeddings(scenes.N[::-1], ids=names[::-1])
    for wrong in (scenes.N[order], N):
        found = read_captions(X, Y, wrong, order)
        np.testing.assert_array_equal(found.target, scenes.Y)
        np.testing.assert_array_equal(found.negatives[:, 0], scenes.N)
        assert found.groups.tolist() == list(range(120))
    mapping = JAM(**{**QUICK, "max_epochs": 1}).fit(X, Y, negatives=N, verbose=False)
    assert (mapping.source_space_.model, mapping.target_space_.modality) == ("vision", "text")


def test_rows_that_never_change_and_fewer_than_a_batch(scenes):
    same = np.full((7, 3), 0.1)  # its mean in float64 is not quite any of them
    mapping = JAM("con", **{**QUICK, "max_epochs": 1}).fit(same, scenes.Y[:7], verbose=False)
    assert np.isfinite(mapping.reconstruct(same)).all()


def test_what_is_refused(scenes):
    X, Y, N = scenes.X, scenes.Y, scenes.N
    wrongs = [("loss", "triplet"), ("spread_mix", 2.0), ("spread_mix", (0.0, 0.5, 1.0)), ("spread_mix", "half")]
    wrongs += [("reconstruction", (-1.0, 0.1)), ("temperature", 0.0), ("hidden", 512), ("hidden", (0,))]
    wrongs += [("dropout", 1.0), ("latent", 0), ("max_epochs", 1.5), ("learning_rate", 0.0), ("random_state", -1)]
    for name, value in wrongs:
        with pytest.raises(ParameterError, match=name):
            JAM(**{name: value}).fit(X, Y, negatives=N, verbose=False)
    method = JAM(**{**QUICK, "max_epochs": 1})
    for error, words, rows, options in (
        (InputError, 'loss="con"', (X, Y), {"negatives": None}),
        (ShapeError, None, (X, Y[:-1]), {}),
        (ShapeError, None, (X, Y), {"negatives": N[:-1]}),
        (ShapeError, None, (X, Y), {"negatives": N[:, :-1]}),
        (NotFiniteError, None, (X, Y), {"negatives": np.full_like(N, np.nan)}),
        (ShapeError, "groups", (X, Y), {"groups": [1, 2]}),
        (TooFewAnchorsError, "groups", (X, Y), {"groups": np.arange(120) // 60}),
        (ParameterError, "validation", (X, Y), {"validation": (X,)}),
        (ShapeError, None, (X, Y), {"validation": (X[:, :-1], Y)}),
        (TooFewAnchorsError, None, (X[:1], Y[:1]), {"negatives": N[:1]}),
    ):
        with pytest.raises(error, match=words):
            method.fit(*rows, verbose=False, **{"negatives": N, **options})
    with pytest.raises(ParameterError, match="shares"):
        split_by_group(range(20), shares=(0.9, 0.2))
