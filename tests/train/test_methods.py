"""All methods by name: one way to call them, what each returns, and those that are solved in closed form."""

import subprocess
import sys

import numpy as np
import pytest
from sklearn.base import clone

import congruence
from congruence import CCAMap, Embeddings, HeadsMap, Space
from congruence.errors import ParameterError, ShapeError, TooFewAnchorsError
from congruence.train import CCA, CSA, METHODS, SAIL, ClosedForm, Contrastive, Procrustes, make_method

pytest.importorskip("torch", reason="methods are trained with torch")

#: The fewest iterations and steps that run: whether KLOT's plans converge is the subject of tests/transport/test_klot.py.
pytestmark = pytest.mark.filterwarnings("ignore::congruence.errors.ConvergenceWarning")

NAMES = ["sotalign", "sail", "structure", "nnclr", "sclip", "sue", "csa", "contrastive", "cca", "procrustes"]
QUICK = {
    "dim": 6,
    "steps": 60,
    "learning_rate": 5e-3,
    "batch_size": 128,
    "validate_every": 30,
    "device": "cpu",
}
OWN = {
    "sotalign": {"max_iter": 5, "steps": 40},
    "nnclr": {"k": 1},
    "sclip": {"max_iter": 5, "steps": 20, "learning_rate": 1e-2},
    "contrastive": {"hidden": 32},
    "sue": {
        "spectral_dim": 12,
        "spectral_steps": 30,
        "spectral_learning_rate": 3e-3,
        "spectral_batch_size": 200,
        "steps": 5,
    },
}


def quick(name):
    closed = issubclass(METHODS[name], ClosedForm)
    return make_method(name, **({"dim": 6} if closed else {**QUICK, **OWN.get(name, {})}))


def test_the_table_names_each_method():
    assert list(METHODS) == NAMES
    for name, cls in METHODS.items():
        assert cls.method == name
        assert type(make_method(name)) is cls


def test_importing_the_methods_loads_no_torch():
    code = "import sys, congruence.train; print('torch' in sys.modules)"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
        == "False"
    )


@pytest.mark.parametrize("name", NAMES)
def test_parameters_are_scikit_learns(name):
    method = make_method(name)
    params = method.get_params()
    assert "dim" in params
    assert "parameters" not in params
    other = clone(method).set_params(dim=17)
    assert other.get_params() == {**params, "dim": 17}
    assert method.get_params() == params


@pytest.mark.parametrize("name", NAMES)
def test_every_method_is_fitted_alike_and_finds_partners(latent, retrieval, tmp_path, name):
    fitted = quick(name).fit(
        latent.X, latent.Y, latent.U, latent.V, validation=(latent.X_test, latent.Y_test), progress=False
    )
    score = fitted.scores_["validation_mean_recall_at_1"]
    assert score == pytest.approx(retrieval(fitted), abs=0.011)  # one item may tie differently
    assert score > 0.15  # by chance 0.01
    fitted.save(tmp_path / name)
    loaded = congruence.load(tmp_path / name)
    np.testing.assert_array_equal(loaded.transform(latent.X_test), fitted.transform(latent.X_test))


def test_contrastive_is_sail_with_other_defaults(latent):
    options = {"dim": 5, "steps": 3, "hidden": 8, "device": "cpu"}
    one = Contrastive(**options).fit(latent.X, latent.Y, progress=False)
    two = SAIL(supervised="infonce", head="mlp", **options).fit(latent.X, latent.Y, progress=False)
    np.testing.assert_array_equal(one.transform(latent.X_test), two.transform(latent.X_test))
    assert one.method_ == "contrastive"
    assert [layer["kind"] for layer in one.source_layers_][-3:] == ["linear", "gelu", "linear"]


def test_csa_weighs_directions_by_their_correlations(latent):
    fitted = CSA(dim=4, regularization=0.1).fit(latent.X, latent.Y)
    plain = CCAMap(dim=4, regularization=0.1).fit(latent.X, latent.Y)
    ours = fitted.transform(latent.X_test) @ fitted.transform_target(latent.Y_test).T
    u, v = plain.transform(latent.X_test), plain.transform_target(latent.Y_test)
    np.testing.assert_allclose(ours, (u * plain.singular_values_[:4]) @ v.T, rtol=1e-4, atol=1e-6)


def test_csa_as_published_finds_nothing_with_fewer_pairs_than_dimensions(latent, retrieval):
    few = slice(0, 12)  # of 20 and 16 dimensions
    fitted = CSA().fit(latent.X[few], latent.Y[few])
    np.testing.assert_allclose(fitted.singular_values_, 1, atol=1e-6)
    assert retrieval(fitted) < retrieval(CSA(regularization=1.0).fit(latent.X[few], latent.Y[few]))


def test_closed_forms_are_their_maps(latent):
    for method, expected in (
        (CCA(dim=3, regularization=0.2), CCAMap(dim=3, regularization=0.2)),
        (Procrustes(dim=3), congruence.ProcrustesHeads(dim=3)),
    ):
        expected.fit(latent.X, latent.Y)
        fitted = method.fit(latent.X, latent.Y, latent.U, latent.V, checkpoint="nowhere", resume=False, progress=False)
        np.testing.assert_array_equal(fitted.transform(latent.X_test), expected.transform(latent.X_test))


def test_closed_forms_pair_by_id_and_know_their_spaces(latent):
    ids = [f"{i}" for i in range(64)]
    X = Embeddings(latent.X, ids=ids, space=Space(model="eye"))
    Y = Embeddings(latent.Y[::-1].copy(), ids=ids[::-1], space=Space(model="tongue"))
    fitted = CCA(dim=3).fit(X, Y)
    assert (fitted.source_space_.model, fitted.target_space_.model) == ("eye", "tongue")
    np.testing.assert_allclose(
        fitted.transform(latent.X_test), CCA(dim=3).fit(latent.X, latent.Y).transform(latent.X_test), atol=1e-5
    )


def test_what_is_refused(latent):
    with pytest.raises(ParameterError, match="'sotalign', 'sail'"):
        make_method("clip")
    with pytest.raises(ParameterError, match="Got alpha, lr for sail; expected some of batch_size, "):
        make_method("sail", lr=1, alpha=2)
    with pytest.raises(ParameterError, match="dim=17; expected at most 16"):
        CSA(dim=17).fit(latent.X, latent.Y)
    with pytest.raises(TooFewAnchorsError):
        CCA().fit(latent.X[:1], latent.Y[:1])
    with pytest.raises(ShapeError):
        Procrustes().fit(latent.X, latent.Y, latent.V)


def test_trained_methods_return_heads(latent):
    assert isinstance(quick("sail").fit(latent.X, latent.Y, progress=False), HeadsMap)
