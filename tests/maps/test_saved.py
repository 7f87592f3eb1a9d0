"""What may be in a saved map: digests apart from names, and contents that their checksums do not vouch for."""

import copy
import functools
import hashlib
import json
import shutil
import warnings

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st

import congruence
from congruence import HeadsMap, OrthogonalMap, ProcrustesHeads, Space
from congruence.errors import CongruenceError, CorruptFileError
from congruence.maps import METHODS, make_map
from congruence.persist import numbers_digest
from congruence.synthetic import rigid_problem

P = rigid_problem(60, 5, 6, noise=0.1, random_state=3)


def heads():
    rng = np.random.default_rng(0)
    inner = [{"kind": "layernorm", "weight": np.ones(4)}, {"kind": "linear", "weight": rng.standard_normal((4, 4))}]
    source = [
        {"kind": "center", "mean": np.ones(5)},
        {"kind": "linear", "weight": rng.standard_normal((5, 4)), "bias": np.zeros(4)},
        {"kind": "residual", "layers": inner},
        {"kind": "gelu"},
    ]
    target = [{"kind": "linear", "weight": rng.standard_normal((6, 4))}, {"kind": "normalize"}]
    return HeadsMap.from_layers(source, target, facts={"n_pairs": 9, "training": {"n_components": 4}})


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """One saved map of every kind, with names, scores and, where the kind has them, means of two modalities."""
    home = tmp_path_factory.mktemp("maps")
    for name in [*METHODS, "heads"]:
        if name == "heads":
            mapping = heads()
        else:
            quick = {"mlp": {"max_epochs": 2, "hidden": 4}}.get(name, {})
            mapping = make_map(name, **quick).fit(P.X, P.Y)
        if name == "orthogonal":
            mapping = OrthogonalMap().fit(P.X, P.Y, modality="image").recenter(P.X[:9], modality="text")
        mapping.source_space_ = Space("a", "1", "image", 5, False)
        mapping.scores_ = {"held_out_pairs": 6, "held_out_retrieval_at_1": 0.5, "pairing": None}
        mapping.save(home / name)
    return home


def write(folder, config, arrays):
    """Write a changed map as somebody would who computes its checksums again."""
    weights = safetensors.numpy.save(arrays)
    (folder / "model.safetensors").write_bytes(weights)
    config["weights_sha256"] = hashlib.sha256(weights).hexdigest()
    config["numbers_sha256"] = numbers_digest(config)
    (folder / "config.json").write_text(json.dumps(config))


def read(folder):
    return json.loads((folder / "config.json").read_text()), safetensors.numpy.load_file(folder / "model.safetensors")


# ------------------------------------------------------------------ digests


def test_a_name_edited_by_hand_is_no_damage(folders, tmp_path):
    path = shutil.copytree(folders / "linear", tmp_path / "map")
    config = json.loads((path / "config.json").read_text())
    config["source_space"] |= {"model": "openai/clip-b32", "revision": "main"}
    config["note"] = "fitted by me"
    (path / "config.json").write_text(json.dumps(config))
    mapping = congruence.load(path)
    assert (mapping.source_space_.model, mapping.source_space_.revision) == ("openai/clip-b32", "main")


@pytest.mark.parametrize(
    ("where", "value"),
    [
        ("facts.n_pairs", 61), ("scores.held_out_retrieval_at_1", 0.99), ("parameters.center", False), ("kind", "cca"),
        ("target_space.normalized", True), ("source_space.modality", "text"), ("weights_sha256", "0" * 64),
    ],
)  # fmt: skip
def test_numbers_edited_by_hand_are_refused(folders, tmp_path, where, value):
    path = shutil.copytree(folders / "linear", tmp_path / "map")
    config = json.loads((path / "config.json").read_text())
    *way, last = where.split(".")
    functools.reduce(dict.__getitem__, way, config)[last] = value
    (path / "config.json").write_text(json.dumps(config))
    with pytest.raises(CorruptFileError, match=r"edited.*expected"):
        congruence.load(path)


@pytest.mark.parametrize("text", ['{"format": "\\ud800"}', "[" * 100_000, '{"a":' * 900 + "1" + "}" * 900, "1" * 9999])
def test_odd_json_is_one_error(folders, tmp_path, text):
    path = shutil.copytree(folders / "linear", tmp_path / "map")
    (path / "config.json").write_text(text)
    with pytest.raises(CorruptFileError):
        congruence.load(path)


# ------------------------------------------------------------------ contents


def orthogonal_with(**changed):
    return lambda config, arrays: arrays.update({k: v(arrays[k]) for k, v in changed.items()})


CLAIMS = {
    "rotation scaled": orthogonal_with(rotation=lambda R: 1.01 * R),
    "rotation sheared": orthogonal_with(rotation=lambda R: R @ np.diag([1.2, 0.8, 1, 1, 1, 1])),
    "gains above 1": orthogonal_with(gains=lambda g: g + 0.5),
    "isometry": lambda config, arrays: config["facts"].update(is_isometry=not config["facts"]["is_isometry"]),
    "mean gain": lambda config, arrays: config["facts"].update(mean_gain=0.5),
    "rank": lambda config, arrays: config["facts"].update(rank=7),
    "modality": lambda _, arrays: arrays.update({"means.smell.source": np.ones(5), "means.smell.target": np.ones(6)}),
    "half a modality": lambda config, arrays: arrays.pop("means.text.target"),
    "moments": orthogonal_with(**{"moments.image.totals": lambda t: -t}),
}


@pytest.mark.parametrize("case", CLAIMS)
def test_a_rigid_map_that_is_not_what_it_claims_is_refused(tmp_path, case):
    mapping = OrthogonalMap(shrinkage="full").fit(P.X, P.Y, modality="image").recenter(P.X[:9], modality="text")
    path = mapping.save(tmp_path / "map")
    congruence.load(path)
    config, arrays = read(path)
    CLAIMS[case](config, arrays)
    write(path, config, arrays)
    with pytest.raises(CorruptFileError, match="Got a saved map"):
        congruence.load(path)


def test_frames_that_are_not_orthonormal_are_refused(tmp_path):
    path = ProcrustesHeads().fit(P.X, P.Y).save(tmp_path / "map")
    config, arrays = read(path)
    name = next(name for name in arrays if name.startswith("source.") and name.endswith(".weight"))
    write(path, config, {**arrays, name: arrays[name] * [1, 1, 1, 1, 1.001]})
    with pytest.raises(CorruptFileError, match="orthonormal"):
        congruence.load(path)


@pytest.mark.filterwarnings("ignore::congruence.errors.CongruenceWarning")
@pytest.mark.parametrize("shrinkage", ["full", "covered", "wiener", "soft", "cv"])
@pytest.mark.parametrize(("n", "center"), [(10, True), (60, True), (60, False)])
def test_every_rigid_map_of_ours_is_what_it_claims(tmp_path, shrinkage, n, center):
    """Few anchors, projections, inverses and chains: what is refused is never a map that was fitted here."""
    wide = rigid_problem(60, 12, 14, noise=0.1, random_state=3)
    fitted = OrthogonalMap(shrinkage=shrinkage, center=center).fit(wide.X[:n] + 3, wide.Y[:n] + 2)
    back = fitted.inverse()
    for k, mapping in enumerate((fitted, back, fitted.then(back), back.then(fitted), fitted.recenter(wide.X[:5]))):
        rows = np.random.default_rng(k).standard_normal((5, mapping.n_features_in_))
        again = congruence.load(mapping.save(tmp_path / str(k)))
        np.testing.assert_array_equal(again.transform(rows), mapping.transform(rows))


ODD = [None, True, -1, 0, 1.5, 10**400, float("nan"), float("inf"), "x", "", [], {}, [[]], {"a": 1}]


def places(value, at=()):
    """Yield the way to every entry of nested plain data."""
    if at:
        yield at
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in pairs:
        yield from places(inner, (*at, key))


def harm_config(data, config):
    *way, last = data.draw(st.sampled_from(sorted(places(config), key=str)))
    place = config
    for key in way:
        place = place[key]
    if data.draw(st.booleans()):
        place[last] = copy.deepcopy(data.draw(st.sampled_from(ODD)))
    else:
        del place[last]


def harm_arrays(data, arrays):
    name = data.draw(st.sampled_from(sorted(arrays)))
    array = arrays[name].copy()
    how = data.draw(st.sampled_from(["value", "scale", "shape", "drop", "dtype", "swap", "empty", "add"]))
    if how == "value" and array.size and array.dtype.kind == "f":
        odd = st.sampled_from([np.nan, np.inf, -np.inf, 1e308, -1.0, 1e39])
        array.flat[data.draw(st.integers(0, array.size - 1))] = data.draw(odd)
    elif how == "scale":
        array = array * data.draw(st.sampled_from([0.0, -1.0, 1e20, 1e160, 1e300]))
    elif how == "shape":
        array = data.draw(st.sampled_from([array.T, array.ravel(), array[:-1], array[None], array[..., :1]]))
    elif how == "dtype":
        array = array.astype(data.draw(st.sampled_from(["f2", "f4", "i8", "?", "u1"])))
    elif how == "swap":
        array = arrays[data.draw(st.sampled_from(sorted(arrays)))]
    elif how == "empty":
        array = array[:0]
    elif how == "add":
        names = ["extra", "moments..cross", "means.image.source", "moments", "source.9.weight"]
        name = data.draw(st.sampled_from(names))
    if how == "drop":
        del arrays[name]
    else:
        arrays[name] = np.ascontiguousarray(array)


@pytest.mark.long
@pytest.mark.parametrize("kind", [*METHODS, "heads"])
@settings(max_examples=60)
@given(data=st.data())
def test_a_hostile_map_is_refused_or_sends_finite_rows_to_finite_rows(folders, kind, data, tmp_path_factory):
    config, arrays = read(folders / kind)
    for _ in range(data.draw(st.integers(1, 2))):
        if data.draw(st.booleans()):
            harm_config(data, config)
        elif arrays:
            with np.errstate(all="ignore"):
                harm_arrays(data, arrays)
    path = tmp_path_factory.getbasetemp() / f"hostile-{kind}"
    path.mkdir(exist_ok=True)
    write(path, config, arrays)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            mapping = congruence.load(path)
        except CongruenceError:
            return
        rows = np.random.default_rng(1).standard_normal((7, 6))
        for dtype in (np.float64, np.float32):
            assert np.isfinite(mapping.transform(rows[:, : mapping.n_features_in_].astype(dtype))).all()
            assert np.isfinite(mapping.transform_target(rows[:, : mapping.d_target].astype(dtype))).all()
        repr(mapping)
        mapping.describe()
