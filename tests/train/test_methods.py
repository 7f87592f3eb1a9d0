"""All methods by name: one way to call them, what each returns, and those that are solved in closed form."""

import json
import warnings
from dataclasses import dataclass

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Normalizer
from sklearn.utils.estimator_checks import check_estimator
from sklearn.utils.validation import check_is_fitted

import congruence
from congruence import CCAMap, Embeddings, HeadsMap, Space, errors
from congruence.train import (
    CCA,
    CSA,
    METHODS,
    SAIL,
    Contrastive,
    HeadsObjective,
    HeadTrainer,
    Procrustes,
    WeightedCCA,
    make_method,
)

pytest.importorskip("torch", reason="methods are trained with torch")

#: The fewest iterations and steps that run: whether KLOT's plans converge is the subject of
#: tests/transport/test_klot.py.
pytestmark = [
    pytest.mark.filterwarnings(f"ignore::congruence.errors.{name}Warning") for name in ("Convergence", "Alignment")
]

NAMES = list(METHODS)
QUICK = {"n_components": 6, "max_steps": 60, "learning_rate": 5e-3, "batch_size": 128, "validate_every": 30}
QUICK["device"] = "cpu"
JAM_QUICK = {"hidden": (32,), "latent": 12, "max_epochs": 15, "learning_rate": 5e-3, "dropout": 0.0, "device": "cpu"}
OWN = {
    "sotalign": {"max_iter": 5, "max_steps": 40},
    "nnclr": {"n_neighbors": 1},
    "sclip": {"max_iter": 5, "max_steps": 20, "learning_rate": 1e-2},
    "contrastive": {"hidden": 32},
    "sue": {"n_spectral_components": 12, "spectral_steps": 30, "spectral_learning_rate": 3e-3, "max_steps": 5},
}
OWN["sue"]["spectral_batch_size"] = 200


def quick(name):
    if name == "jam":
        return make_method("jam", **JAM_QUICK)
    closed = "max_steps" not in METHODS[name]().get_params()
    return make_method(name, **({"n_components": 6} if closed else {**QUICK, **OWN.get(name, {})}))


def beside_the_pairs(name, latent):
    """Return the rows a method learns from beside the pairs, as ``fit`` takes them."""
    return {"negatives": latent.Y[::-1]} if name == "jam" else {"unpaired": (latent.U, latent.V)}


@pytest.fixture(scope="module")
def fits(latent):
    done = {}

    def fitted(name):
        if name not in done:
            method = quick(name)
            heldout = {"validation": (latent.X_test, latent.Y_test), "verbose": False}
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", errors.CongruenceWarning)
                done[name] = method, method.fit(latent.X, latent.Y, **beside_the_pairs(name, latent), **heldout)
        return done[name]

    return fitted


@pytest.mark.parametrize("name", NAMES)
def test_fit_returns_the_method_itself_which_is_then_a_map(latent, retrieval, fits, tmp_path, name):
    with pytest.raises(NotFittedError):
        check_is_fitted(quick(name))
    with pytest.raises(NotFittedError):
        quick(name).transform(latent.X)
    method, returned = fits(name)
    assert returned is method
    assert isinstance(method, HeadsMap)
    check_is_fitted(method)
    with pytest.raises(NotFittedError):
        check_is_fitted(clone(method))
    assert retrieval(method) > 0.15  # by chance 0.01
    # Trained methods are validated in torch and scored in NumPy: one item may tie differently.
    score = method.score(latent.X_test, latent.Y_test)
    assert method.scores_[f"validation_{method.criterion}"] == pytest.approx(score, abs=0.011)
    assert repr(method).startswith(f"{type(method).__name__}(")
    assert "64 pairs" in repr(method)
    loaded = congruence.load(method.save(tmp_path / name))
    np.testing.assert_array_equal(loaded.transform(latent.X_test), method.transform(latent.X_test))
    np.testing.assert_array_equal(loaded.transform_target(latent.Y_test), method.transform_target(latent.Y_test))
    assert loaded.joint_space() == method.joint_space()
    assert json.dumps(loaded.describe()) == json.dumps(method.describe())


@pytest.mark.parametrize("name", [name for name in NAMES if "max_steps" in METHODS[name]().get_params()])
def test_a_trained_method_keeps_its_history_also_when_saved(fits, tmp_path, name):
    assert not hasattr(quick(name), "history_")
    method, _ = fits(name)
    loaded = congruence.load(method.save(tmp_path / name))
    for one in (method, loaded):
        assert one.history_.steps == method.facts_["steps"]
        assert one.history_.losses == method.facts_["history"]["losses"]
        assert one.history_.best_score == pytest.approx(method.scores_[f"validation_{method.criterion}"])
    assert loaded.history_ == method.history_
    assert "history_" not in vars(method)  # it is read from facts_, and stored there only
    (curve,) = (line for line in loaded.history_.plot().lines if line.get_label() == "heads")
    assert curve.get_xydata().tolist() == [list(pair) for pair in method.history_.validation]


def test_heads_trained_elsewhere_have_no_history(tmp_path):
    layers = [{"kind": "linear", "weight": np.eye(3)}]
    assert not hasattr(HeadsMap.from_layers(layers, layers), "history_")
    damaged = HeadsMap.from_layers(layers, layers, facts={"history": {"steps": -1}})
    with pytest.raises(errors.CorruptFileError, match=r"cannot be read \(steps \[-1\] that are not counts\)"):
        _ = damaged.history_


def test_a_score_of_one_side_asks_for_the_other(latent, fits):
    method, _ = fits("cca")
    with pytest.raises(errors.InputError, match=r"Got rows of the source alone.* Pass y="):
        method.score(latent.X_test)


@pytest.mark.parametrize("name", ["sail", "cca", "jam"])
def test_a_method_fits_into_a_pipeline(latent, name):
    short = {"sail": {"max_steps": 2}, "jam": {"loss": "con", "max_epochs": 1}}
    method = quick(name).set_params(**short.get(name, {}))
    pipeline = make_pipeline(Normalizer(), method).fit(latent.X, latent.Y)
    assert pipeline[-1] is method
    rows = Normalizer().transform(latent.X_test)
    np.testing.assert_array_equal(pipeline.transform(latent.X_test), method.transform(rows))
    assert pipeline.score(latent.X_test, latent.Y_test) == method.score(rows, latent.Y_test)


@pytest.mark.long
@pytest.mark.parametrize("name", ["sail", "procrustes", "jam"])
@pytest.mark.filterwarnings("ignore::congruence.errors.ProjectionWarning")
def test_scikit_learns_own_contract(name):
    tiny = {
        "sail": {"n_components": 2, "max_steps": 2, "device": "cpu"},
        "procrustes": {},
        "jam": {"loss": "con", "hidden": (4,), "latent": 2, "max_epochs": 1, "dropout": 0.0, "device": "cpu"},
    }
    refused = {"check_estimators_dtypes": "a row of zeros is refused"} if name == "jam" else {}
    method = make_method(name, **tiny[name])
    results = check_estimator(method, on_fail=None, expected_failed_checks=refused)
    failed = {r["check_name"]: repr(r["exception"]) for r in results if r["status"] == "failed"}
    assert not failed
    assert len(results) > 40


def test_what_jam_saves_can_be_decoded(latent, fits, tmp_path):
    method, _ = fits("jam")
    loaded = congruence.load(method.save(tmp_path / "jam"))
    assert type(loaded) is HeadsMap
    np.testing.assert_array_equal(loaded.reconstruct(latent.X_test), method.reconstruct(latent.X_test))


def test_a_second_fit_replaces_the_first(latent):
    method = SAIL(n_components=4, max_steps=2, device="cpu").fit(latent.X, latent.Y, verbose=False)
    before = method.transform(latent.X_test)
    method.fit(latent.Y, latent.X, verbose=False)
    assert (method.n_features_in_, method.d_target) == (16, 20)
    method.fit(latent.X, latent.Y, verbose=False)
    np.testing.assert_array_equal(method.transform(latent.X_test), before)


@pytest.mark.parametrize("name", ["sail", "structure", "nnclr", "sclip", "sue"])
def test_a_stopped_run_resumes_to_the_bit(latent, tmp_path, kill, name):
    trainer = quick(name).set_params(max_steps=6, checkpoint_every=2)
    rows = {"unpaired": (latent.U, latent.V), "verbose": False}
    whole = clone(trainer).fit(latent.X, latent.Y, **rows)
    rows["checkpoint"] = tmp_path / "c"
    kill(METHODS[name].objective, 4, trainer.fit, latent.X, latent.Y, **rows)
    resumed = trainer.fit(latent.X, latent.Y, **rows)
    np.testing.assert_array_equal(resumed.transform(latent.X_test), whole.transform(latent.X_test))
    assert resumed.facts_["history"] == whole.facts_["history"]


PAPER = {"divergence_weight": 0.0, "init": "random", "teacher": "cca", "folds": None, "patience": None}
NO_WEIGHT = {"structure": {"weight": 0.0}, "sotalign": {**PAPER, "validate_every": 100}}
NO_WEIGHT |= {name: {"image_weight": 0.0, "text_weight": 0.0} for name in ("nnclr", "sclip")}


@pytest.mark.parametrize("name", NO_WEIGHT)
def test_without_weights_a_method_is_sail(latent, name):
    weights = NO_WEIGHT[name]
    options = {"n_components": 6, "max_steps": 3, "batch_size": 64, "pair_batch_size": 24, "device": "cpu"}
    rows = {"unpaired": (latent.U, latent.V), "verbose": False}
    one = make_method(name, **weights, **options).fit(latent.X, latent.Y, **rows)
    two = SAIL(**options).fit(latent.X, latent.Y, **rows)
    np.testing.assert_array_equal(one.transform(latent.X_test), two.transform(latent.X_test))
    np.testing.assert_array_equal(one.transform_target(latent.Y_test), two.transform_target(latent.Y_test))
    assert set(one.facts_["history"]["losses"]) == {"step", "loss", "supervised"}


def test_contrastive_is_sail_with_other_defaults(latent):
    options = {"n_components": 5, "max_steps": 3, "hidden": 8, "device": "cpu"}
    one = Contrastive(**options).fit(latent.X, latent.Y, verbose=False)
    two = SAIL(pair_loss="infonce", head="mlp", **options).fit(latent.X, latent.Y, verbose=False)
    np.testing.assert_array_equal(one.transform(latent.X_test), two.transform(latent.X_test))
    assert one.method_ == "contrastive"
    assert [layer["kind"] for layer in one.source_layers_][-3:] == ["linear", "gelu", "linear"]


def test_csa_is_the_published_score_as_a_cosine(latent, tmp_path):
    fitted = CSA(n_components=4, ridge=0.1).fit(latent.X, latent.Y)
    plain = CCAMap(n_components=4, ridge=0.1).fit(latent.X, latent.Y)
    u, v = plain.transform(latent.X_test), plain.transform_target(latent.Y_test)
    norms = np.linalg.norm(u, axis=1)[:, None] * np.linalg.norm(v, axis=1)
    published = (u * plain.singular_values_[:4]) @ v.T / norms
    for mapping in (fitted, congruence.load(fitted.save(tmp_path / "csa"))):
        ours = mapping.transform(latent.X_test), mapping.transform_target(latent.Y_test)
        np.testing.assert_allclose(ours[0] @ ours[1].T, published, atol=1e-5)
        np.testing.assert_allclose([np.linalg.norm(side, axis=1) for side in ours], 1, atol=1e-5)
    weighted = WeightedCCA(n_components=4, ridge=0.1).fit(latent.X, latent.Y)
    ours = weighted.transform(latent.X_test) @ weighted.transform_target(latent.Y_test).T
    np.testing.assert_allclose(ours, (u * plain.singular_values_[:4]) @ v.T, rtol=1e-4, atol=1e-6)


def test_csa_as_published_finds_nothing_with_fewer_pairs_than_dimensions(latent, retrieval):
    few = slice(0, 12)  # of 20 and 16 dimensions
    fitted = CSA().fit(latent.X[few], latent.Y[few])
    assert retrieval(fitted) < retrieval(CSA(ridge=1.0).fit(latent.X[few], latent.Y[few]))


def test_a_loss_of_ones_own(latent, retrieval):
    class Cosines(HeadsObjective):
        def training_step(self, batch):
            X, Y = self.heads(batch.source, 0), self.heads(batch.target, 1)
            spread = self.heads(batch.unpaired_source, 0).mean(dim=0).square().sum()
            return {"loss": self.pair_loss(X, Y) + self.trainer.weight * spread, "spread": spread}

    @dataclass(eq=False, repr=False)
    class Spread(HeadTrainer):
        method = "spread"
        objective = Cosines
        weight: float = 0.1

    fitted = Spread(**QUICK).fit(latent.X, latent.Y, unpaired=(latent.U, latent.V), verbose=False)
    assert set(fitted.history_.losses) == {"step", "loss", "spread"}
    assert fitted.facts_["training"]["weight"] == 0.1
    assert retrieval(fitted) > 0.15


def test_closed_forms_are_their_maps(latent):
    for method, expected in (
        (CCA(n_components=3, ridge=0.2), CCAMap(n_components=3, ridge=0.2)),
        (Procrustes(n_components=3), congruence.ProcrustesHeads(n_components=3)),
    ):
        expected.fit(latent.X, latent.Y)
        unused = {"unpaired": (latent.U, latent.V), "checkpoint": "nowhere", "resume": False, "verbose": False}
        fitted = method.fit(latent.X, latent.Y, **unused)
        np.testing.assert_array_equal(fitted.transform(latent.X_test), expected.transform(latent.X_test))


@pytest.mark.parametrize("method", [CCA(n_components=3), SAIL(n_components=3, max_steps=60)], ids=["cca", "sail"])
def test_rows_pair_by_id_and_know_their_spaces(latent, method):
    ids = [f"{i}" for i in range(64)]
    X = Embeddings(latent.X, ids=ids, space=Space(model="eye"))
    Y = Embeddings(latent.Y[::-1].copy(), ids=ids[::-1], space=Space(model="tongue"))
    fitted = clone(method).fit(X, Y, verbose=False)
    assert (fitted.source_space_.model, fitted.target_space_.model) == ("eye", "tongue")
    plain = clone(method).fit(latent.X, latent.Y, verbose=False)
    np.testing.assert_allclose(fitted.transform(latent.X_test), plain.transform(latent.X_test), atol=1e-4)


def test_what_is_refused(latent):
    with pytest.raises(errors.ParameterError, match="'self_trained', 'sotalign'"):
        make_method("clip")
    with pytest.raises(errors.ParameterError, match="Got alpha, lr for sail; expected some of batch_size, "):
        make_method("sail", lr=1, alpha=2)
    with pytest.raises(errors.ParameterError, match="n_components=17; expected at most 16"):
        CSA(n_components=17).fit(latent.X, latent.Y)
    with pytest.raises(errors.TooFewAnchorsError):
        CCA().fit(latent.X[:1], latent.Y[:1])
    with pytest.raises(errors.ShapeError):
        Procrustes().fit(latent.X, latent.Y, unpaired=(latent.V, None))
    with pytest.raises(errors.ParameterError, match=r"Pass unpaired=\(U, V\)"):
        SAIL(n_components=4, max_steps=1).fit(latent.X, latent.Y, unpaired=latent.U)
    for name in ("nnclr", "sclip"):
        for side, unpaired in (("source", (None, latent.V)), ("target", (latent.U, None))):
            weight = {"source": "image", "target": "text"}[side]
            with pytest.raises(errors.InputError, match=f"no unpaired {side} rows.*{weight}_weight=0"):
                make_method(name).fit(latent.X, latent.Y, unpaired=unpaired)
    with pytest.raises(errors.InputError, match="target y is None"):
        SAIL(n_components=4, max_steps=1).fit(latent.X)
