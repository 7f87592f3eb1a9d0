"""What every map in the table promises."""

import json
import pickle

import numpy as np
import pandas as pd
import pytest
from sklearn import config_context
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Normalizer, StandardScaler
from sklearn.utils.estimator_checks import check_estimator

import congruence
from arrays import spoiled
from congruence import MAPS, Embeddings, LinearMap, OrthogonalMap, Space, embeddings, errors
from congruence.maps import METHODS, NotFittedMapError, make_map
from congruence.synthetic import rigid_problem
from fresh import run_fresh

QUICK = {"mlp": {"max_epochs": 5, "hidden": 16}}
NAMES = list(METHODS)
TWO_SIDED = ("procrustes", "cca")
ONE_SIDED = [name for name in NAMES if name not in TWO_SIDED]


def make(name: str):
    return make_map(name, **QUICK.get(name, {}))


@pytest.fixture(params=NAMES)
def name(request):
    return request.param


@pytest.fixture
def problem():
    return rigid_problem(120, 6, 8, noise=0.1, random_state=3)


@pytest.fixture
def fitted(name, problem):
    return make(name).fit(problem.X, problem.Y)


class SmallYOrthogonal(OrthogonalMap):
    """With scikit-learn's name of the target: one of its checks passes ``y=``, all others by position."""

    __init__ = OrthogonalMap.__init__

    def fit(self, X, y, sample_weight=None):
        return super().fit(X, y, sample_weight)


class SmallYLinear(LinearMap):
    __init__ = LinearMap.__init__

    def fit(self, X, y, sample_weight=None):
        return super().fit(X, y, sample_weight)


@pytest.mark.filterwarnings("ignore::congruence.errors.ProjectionWarning")
@pytest.mark.filterwarnings("ignore:Estimator .* does not inherit")
def test_scikit_learns_own_contract(name):
    cls = {"orthogonal": SmallYOrthogonal, "linear": SmallYLinear}.get(name, type(make(name)))
    results = check_estimator(cls(**QUICK.get(name, {})), on_fail=None)
    failed = {r["check_name"]: repr(r["exception"]) for r in results if r["status"] == "failed"}
    assert not failed
    # The one check that may be skipped needs an opt-in of array-api-compat that we do not ask of users.
    assert {r["check_name"] for r in results if r["status"] == "skipped"} <= {"check_array_api_input"}
    assert len(results) > 40


def test_a_map_fits_into_a_pipeline(name, problem):
    out = make_pipeline(Normalizer(), make(name)).fit(problem.X, problem.Y).transform(problem.X)
    assert out.shape == (120, 6 if name in TWO_SIDED else 8)


def minus_error(estimator, X, Y):
    return -float(np.mean((np.asarray(estimator.transform(X)) - Y) ** 2))


def test_parameters_are_searched_and_outputs_named_by_scikit_learns_tools(problem):
    frame = pd.DataFrame(problem.X, columns=list("abcdef"))
    scores = cross_val_score(LinearMap(), problem.X, problem.Y, scoring=minus_error)
    assert (scores > -0.1).all()
    steps = make_pipeline(StandardScaler(), OrthogonalMap())
    grid = {"orthogonalmap__shrinkage": ["full", "covered"], "orthogonalmap__center": [True, False]}
    found = GridSearchCV(steps, grid, scoring=minus_error).fit(problem.X, problem.Y)
    assert found.best_params_["orthogonalmap__center"] in (True, False)
    mapping = LinearMap().fit(frame, problem.Y).set_output(transform="pandas")
    assert mapping.feature_names_in_.tolist() == list("abcdef")
    mixed = LinearMap().fit(frame.rename(columns={"a": 0}), problem.Y)  # not all names are text: as an array's
    assert not hasattr(mixed, "feature_names_in_")
    assert mapping.transform(frame).columns.tolist() == mapping.get_feature_names_out().tolist()
    assert clone(mapping).fit(frame, problem.Y).transform(frame).columns[0] == "linearmap0"
    assert isinstance(mapping.transform_embeddings(problem.X), Embeddings)
    with config_context(transform_output="pandas"):
        assert isinstance(LinearMap().fit_transform(frame, problem.Y), pd.DataFrame)
    with pytest.raises(errors.InputError, match="same order"):
        mapping.transform(frame[list("fedcba")])
    with pytest.raises(NotFittedError) as caught:
        LinearMap().transform(problem.X)
    assert isinstance(pickle.loads(pickle.dumps(caught.value)), NotFittedMapError)


def test_no_map_imports_scikit_learn():
    run = run_fresh(
        "import sys, numpy as np, congruence\n"
        "X = np.random.default_rng(0).standard_normal((60, 4))\n"
        "mapping = congruence.fit(X, X, 'orthogonal')\n"
        "repr(mapping), mapping.get_params(), mapping.transform(X), mapping.inverse()\n"
        "print([name for name in ('sklearn', 'torch', 'scipy.stats') if name in sys.modules])"
    )
    assert run.stdout == "[]\n", run.stderr[-2000:]


@pytest.mark.parametrize(("given", "got"), [("f2", "f4"), ("f4", "f4"), ("f8", "f8"), ("i8", "f8")])
def test_results_keep_their_precision(fitted, problem, given, got):
    X = (problem.X * 10).astype(given)
    out = fitted.transform(X)
    assert out.dtype == got
    assert out.flags.c_contiguous
    exact = fitted.transform(X.astype("f8"))
    np.testing.assert_allclose(out, exact, atol={"f4": 2e-5, "f8": 1e-12}[got] * np.abs(exact).max())


def test_nothing_of_the_callers_is_changed(name, problem):
    X, Y = problem.X.copy(), problem.Y.copy()
    X.flags.writeable = Y.flags.writeable = False
    fitted = make(name).fit(X, Y)
    fitted.transform(X)
    fitted.transform_target(Y)


@pytest.mark.parametrize("name", ONE_SIDED)
def test_the_target_side_is_the_identity(name, problem):
    fitted = make(name).fit(problem.X, problem.Y)
    assert fitted.transform_target(problem.Y) is problem.Y
    with pytest.raises(errors.ShapeError):
        fitted.transform_target(problem.X)


def test_a_saved_map_is_the_same_map(fitted, problem, tmp_path):
    fitted.source_space_ = Space("a", "1", "image", 6, False)
    fitted.target_space_ = Space("b", None, "image", 8, False)
    fitted.scores_ = {"held_out_cosine": 0.5}
    path = fitted.save(tmp_path / "map")
    again = congruence.load(path)
    assert type(again) is type(fitted)
    assert again.get_params() == fitted.get_params()
    assert again.describe() == json.loads(json.dumps(fitted.describe()))
    assert np.array_equal(again.transform(problem.X), fitted.transform(problem.X))
    assert sorted(p.name for p in path.iterdir()) == ["README.md", "config.json", "model.safetensors"]
    assert "a" in (path / "README.md").read_text()
    assert again.d_target == 8
    assert again.n_features_in_ == 6
    assert clone(again).get_params() == fitted.get_params()


def test_numpy_numbers_and_nans_are_saved_as_strict_json(problem, tmp_path):
    fitted = MAPS["orthogonal"](shrinkage_strength=np.float32(0.25), center=np.bool_(True)).fit(problem.X, problem.Y)
    fitted.scores_ = {"n": np.int64(3), "nothing": float("nan"), "list": [np.float32(0.5)]}
    path = fitted.save(tmp_path / "map")

    def refuse(token):
        raise AssertionError(f"{token} is no JSON")

    json.loads((path / "config.json").read_text(), parse_constant=refuse)
    again = congruence.load(path)
    assert again.scores_ == {"n": 3, "nothing": None, "list": [0.5]}
    assert again.shrinkage_strength == 0.25


def test_saving_twice_needs_force_and_loses_nothing(fitted, tmp_path):
    path = fitted.save(tmp_path / "map")
    with pytest.raises(errors.OutputExistsError, match="force=True"):
        fitted.save(path)
    fitted.save(path, force=True)
    congruence.load(path)
    assert [p.name for p in tmp_path.iterdir()] == ["map"]


FULL_DISK = """
import resource, signal, sys
import numpy as np
from congruence import OrthogonalMap
from congruence.errors import StorageError
X = np.random.default_rng(0).standard_normal((300, 200))
m = OrthogonalMap().fit(X, X)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
try:
    m.save(sys.argv[1], force=True)
except StorageError as error:
    print("refused:", error)
"""


def test_a_full_disk_keeps_the_map_that_was_there(problem, tmp_path):
    fitted = MAPS["orthogonal"]().fit(problem.X, problem.Y)  # every map is written by the same function
    path = fitted.save(tmp_path / "map")
    run = run_fresh(FULL_DISK, path)
    assert "refused: Got an error from the disk" in run.stdout, run.stderr[-2000:]
    assert [p.name for p in tmp_path.iterdir()] == ["map"]
    assert np.array_equal(congruence.load(path).transform(problem.X), fitted.transform(problem.X))


@pytest.mark.parametrize("file", ["model.safetensors", "config.json"])
@pytest.mark.parametrize("harm", ["truncate", "edit", "remove", "empty"])
def test_a_harmed_folder_is_refused(fitted, tmp_path, file, harm):
    path = fitted.save(tmp_path / "map") / file
    raw = path.read_bytes()
    if harm == "truncate":
        path.write_bytes(raw[: len(raw) // 2])
    elif harm == "edit":
        other = raw.replace(b'"n_pairs": 120', b'"n_pairs": 999')
        path.write_bytes(other if file == "config.json" else raw[:-1] + bytes([raw[-1] ^ 1]))
    elif harm == "remove":
        path.unlink()
    else:
        path.write_bytes(b"")
    with pytest.raises(errors.CorruptFileError, match="Got"):
        congruence.load(path.parent)


def test_newer_and_foreign_folders_are_refused(fitted, tmp_path):
    path = fitted.save(tmp_path / "map") / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, "format_version": 3}))
    with pytest.raises(errors.VersionError, match="Upgrade congruence"):
        congruence.load(path.parent)
    path.write_text(json.dumps({**config, "format": "other"}))
    with pytest.raises(errors.CorruptFileError, match="does not describe a congruence map"):
        congruence.load(path.parent)
    with pytest.raises(errors.FileError, match="[Nn]o folder"):
        congruence.load(tmp_path / "nowhere")


BAD_PAIRS = {
    "nan": (lambda X, Y: (spoiled(X, 3, np.nan), Y), errors.NotFiniteError),
    "inf": (lambda X, Y: (X, spoiled(Y, 3, np.inf)), errors.NotFiniteError),
    "zero row": (lambda X, Y: (spoiled(X, 3, 0), Y), errors.ZeroRowError),
    "empty": (lambda X, Y: (X[:0], Y[:0]), errors.ShapeError),
    "no columns": (lambda X, Y: (X[:, :0], Y), errors.ShapeError),
    "1-D source": (lambda X, Y: (X[:, 0], Y), errors.ShapeError),
    "1-D target": (lambda X, Y: (X, Y[:, 0]), errors.ShapeError),
    "3-D": (lambda X, Y: (X[None], Y), errors.ShapeError),
    "rows differ": (lambda X, Y: (X[:-1], Y), errors.ShapeError),
    "one pair": (lambda X, Y: (X[:1], Y[:1]), errors.TooFewAnchorsError),
    "objects": (lambda X, Y: (np.array([[{}]] * len(X), dtype=object), Y), errors.DtypeError),
    "text": (lambda X, Y: (X.astype(str), Y), errors.DtypeError),
    "complex": (lambda X, Y: (X * 1j, Y), errors.DtypeError),
    "no target": (lambda X, Y: (X, None), errors.InputError),
}


@pytest.mark.parametrize("case", BAD_PAIRS)
def test_bad_pairs_are_refused(name, problem, case):
    spoil, error = BAD_PAIRS[case]
    with pytest.raises(error, match="[Ee]xpected") as caught:
        make(name).fit(*spoil(problem.X, problem.Y))
    assert isinstance(caught.value, (errors.CongruenceError, ValueError))


def test_bad_rows_are_not_transformed_as_arrays_nor_as_tensors(fitted, problem):
    import torch

    for rows in (problem.X, torch.tensor(problem.X)):
        with pytest.raises(errors.NotFiniteError):
            fitted.transform(rows * np.nan)
        for bad in (rows[:, :4], rows[0], rows[:0]):
            with pytest.raises(errors.ShapeError):
                fitted.transform(bad)
        with pytest.raises(errors.DtypeError):
            fitted.transform(rows * 1j)
    with pytest.raises(errors.DtypeError):
        fitted.transform(rows.to_sparse())
    with pytest.raises(errors.ShapeError, match=fitted.wrong_side[1:]):
        fitted.transform(problem.Y)


def test_tensors_with_a_graph_are_mapped_as_embeddings_are(name, problem):
    import torch

    fitted = make(name).fit(problem.X, problem.Y)
    for rows, side in ((problem.X, "source"), (problem.Y, "target"))[: 1 + (name in TWO_SIDED)]:
        tensor = torch.tensor(rows, dtype=torch.float32, requires_grad=True)
        out = fitted.transform_embeddings(tensor, normalize=True)  # the widths, 6 and 8, tell the sides apart
        assert out.requires_grad
        assert out.dtype == torch.float32
        expected = fitted.transform_embeddings(rows, side=side, normalize=True)
        assert expected.space.normalized
        np.testing.assert_allclose(out.detach(), expected, atol=1e-5)


@pytest.mark.parametrize("name", ONE_SIDED)
def test_apply_carries_ids_and_checks_the_space(name, problem):
    fitted = make(name).fit(problem.X, problem.Y)
    fitted.source_space_ = Space("a", modality="image", dim=6, normalized=False)
    fitted.target_space_ = Space("b", modality="image", dim=8, normalized=False)
    ids = [f"i{k}" for k in range(120)]
    out = fitted.transform_embeddings(Embeddings(problem.X, ids=ids, space=Space("a")), normalize=True)
    assert out.ids.tolist() == ids
    assert (out.space.model, out.space.dim, out.space.normalized) == ("b", 8, True)
    np.testing.assert_allclose(out.vectors, embeddings.normalize_rows(fitted.transform(problem.X)))
    with pytest.raises(errors.DirectionError, match="inverse"):
        fitted.transform_embeddings(Embeddings(problem.Y, space=Space("b")))
    with pytest.raises(errors.SpaceMismatchError):
        fitted.transform_embeddings(Embeddings(problem.X, space=Space("c")))
    with pytest.raises(errors.SpaceMismatchError, match="raw rows"):
        fitted.transform_embeddings(Embeddings(problem.X).normalize())


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16", "int64"])
def test_tensors_come_back_as_tensors(name, problem, dtype):
    import torch

    X, Y = (torch.tensor(side * 10).to(getattr(torch, dtype)) for side in (problem.X, problem.Y))
    fitted = make(name).fit(X, Y)
    wide = [side.double() for side in (X, Y)]
    exact = make(name).fit(*wide)
    tolerance = {"float64": 1e-9, "float32": 1e-4, "float16": 2e-2, "bfloat16": 1e-1, "int64": 1e-9}[dtype]
    calls = ["transform", "transform_target"]
    for call in calls:
        side = 0 if call == "transform" else 1
        out = getattr(fitted, call)((X, Y)[side])
        assert torch.is_tensor(out), call
        assert out.device == X.device
        assert out.dtype == (torch.float64 if dtype == "int64" else X.dtype), call
        if name != "mlp" or call != "transform":  # training in other precisions takes other steps
            expected = getattr(exact, call)(wide[side].numpy())
            assert np.abs(out.double().numpy() - expected).max() <= tolerance * np.abs(expected).max(), call
        same = getattr(fitted, call)((X, Y)[side].double().numpy())
        assert np.abs(out.double().numpy() - same).max() <= tolerance * np.abs(same).max(), call


def test_gradients_flow_through_every_map(name, problem):
    import torch

    fitted = make(name).fit(problem.X, problem.Y)
    X = torch.tensor(problem.X[:3], requires_grad=True)
    assert torch.autograd.gradcheck(fitted.transform, (X,))
    Y = torch.tensor(problem.Y[:3], requires_grad=True)
    assert torch.autograd.gradcheck(fitted.transform_target, (Y,))
    if hasattr(fitted, "inverse_transform"):
        assert torch.autograd.gradcheck(fitted.inverse_transform, (Y,))
    half = torch.tensor(problem.X, dtype=torch.bfloat16, requires_grad=True)
    fitted.transform(half).sum().backward()
    assert half.grad.dtype == torch.bfloat16


def test_a_fitted_map_shows_its_models_and_scores(name, problem):
    a, b = Space("model <a>", modality="image"), Space("model b", modality="image")
    quick = QUICK.get(name, {})
    fitted = congruence.fit(Embeddings(problem.X, space=a), Embeddings(problem.Y, space=b), name, holdout=0.25, **quick)
    assert all(words in repr(fitted) for words in ("model <a>, image", "90 pairs", "30 pairs: retrieval@1 "))
    assert "model &lt;a&gt;" in fitted._repr_html_()
    assert "<a>" not in fitted._repr_html_()
    assert type(fitted).__name__ in make_pipeline(Normalizer(), clone(fitted))._repr_html_()


def test_a_display_never_starts_the_solve_after_partial_fit(problem):
    begun = MAPS["orthogonal"]().partial_fit(problem.X[:1], problem.Y[:1])
    assert repr(begun) == "OrthogonalMap()"
    assert "rotation_" not in vars(begun)


def test_a_class_loads_maps_of_its_own_kind(fitted, problem, tmp_path):
    fitted.save_pretrained(tmp_path / "map")
    path = fitted.save_pretrained(tmp_path / "map")
    for cls in (type(fitted), congruence.maps.Map):
        again = cls.from_pretrained(path)
        assert type(again) is type(fitted)
        assert np.array_equal(again.transform(problem.X), fitted.transform(problem.X))
    other = MAPS["linear" if fitted.kind != "linear" else "orthogonal"]
    with pytest.raises(errors.ParameterError, match=f"kind '{fitted.kind}'"):
        other.from_pretrained(path)
