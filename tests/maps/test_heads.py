"""Trained heads: every layer against torch's own, and what a folder may say."""

import hashlib
import json

import numpy as np
import pytest
import safetensors.numpy
import torch
from sklearn.base import clone
from torch.nn import functional

import congruence
from congruence import MAPS, CCAMap, Embeddings, HeadsMap, ProcrustesHeads, Space
from congruence.errors import CorruptFileError, InputError, NotFiniteError, ParameterError, ShapeError
from congruence.maps import METHODS, _layers
from congruence.persist import numbers_digest
from congruence.upgrade.transform import map_digest

RNG = np.random.default_rng(0)
X = RNG.standard_normal((50, 6))
X[7] = 0


def linear(i, o, bias=True, seed=0):
    rng = np.random.default_rng(seed)
    layer = {"kind": "linear", "weight": rng.standard_normal((i, o))}
    return {**layer, "bias": rng.standard_normal(o)} if bias else layer


def swiglu(i, o, seed=0):
    rng = np.random.default_rng(seed)
    weight, gate = rng.standard_normal((2, i, o))
    bias, gate_bias = rng.standard_normal((2, o))
    return {"kind": "swiglu", "weight": weight, "gate_weight": gate, "bias": bias, "gate_bias": gate_bias}


def single(*layers, width=6):
    unit = {"kind": "linear", "weight": np.eye(width)}
    return HeadsMap.from_layers(source=[*layers, unit], target=[unit])


def torch_linear(layer, key="weight", bias="bias"):
    module = torch.nn.Linear(*layer[key].shape, bias=bias in layer, dtype=torch.float64)
    with torch.no_grad():
        module.weight.copy_(torch.tensor(layer[key].T))
        if bias in layer:
            module.bias.copy_(torch.tensor(layer[bias]))
    return module


def torch_layernorm(layer, width):
    affine = "weight" in layer
    module = torch.nn.LayerNorm(width, eps=layer.get("eps", 1e-5), elementwise_affine=affine, dtype=torch.float64)
    with torch.no_grad():
        if affine:
            module.weight.copy_(torch.tensor(layer["weight"]))
            module.bias.copy_(torch.tensor(layer.get("bias", np.zeros(width))))
    return module


MEAN = RNG.standard_normal(6)
NORM = {"kind": "layernorm", "weight": RNG.standard_normal(6), "bias": RNG.standard_normal(6), "eps": 1e-3}
GATED = swiglu(6, 5)
SQUARE = linear(6, 6, seed=3)
AGAINST_TORCH = {
    "normalize": ({"kind": "normalize"}, lambda x: functional.normalize(x, dim=1), 6),
    "center": ({"kind": "center", "mean": MEAN}, lambda x: x - torch.tensor(MEAN), 6),
    "linear": (linear(6, 4), torch_linear(linear(6, 4)), 4),
    "linear without bias": (linear(6, 4, bias=False), torch_linear(linear(6, 4, bias=False)), 4),
    "gelu": ({"kind": "gelu"}, torch.nn.GELU(), 6),
    "relu": ({"kind": "relu"}, torch.nn.ReLU(), 6),
    "silu": ({"kind": "silu"}, torch.nn.SiLU(), 6),
    "layernorm": (NORM, torch_layernorm(NORM, 6), 6),
    "layernorm plain": ({"kind": "layernorm"}, torch_layernorm({}, 6), 6),
    "swiglu": (
        GATED,
        lambda x: torch.nn.SiLU()(torch_linear(GATED, "gate_weight", "gate_bias")(x)) * torch_linear(GATED)(x),
        5,
    ),
    "residual": (
        {"kind": "residual", "layers": [NORM, SQUARE, {"kind": "gelu"}]},
        lambda x: x + torch.nn.Sequential(torch_layernorm(NORM, 6), torch_linear(SQUARE), torch.nn.GELU())(x),
        6,
    ),
}


@pytest.mark.parametrize("name", AGAINST_TORCH)
def test_every_layer_is_torchs(name):
    layer, module, width = AGAINST_TORCH[name]
    with torch.no_grad():
        expected = module(torch.tensor(X)).numpy()
    m = single(layer, width=width)
    np.testing.assert_allclose(m.transform(X), expected, atol=1e-12)
    half = m.transform(X.astype("f4"))
    assert half.dtype == np.float32
    np.testing.assert_allclose(half, expected, atol=2e-5)


def test_huge_activations_do_not_overflow():
    with np.errstate(all="raise"):
        out = single({"kind": "silu"}).transform(np.full((2, 6), -1e4))
        assert np.array_equal(out, np.zeros((2, 6)))
        single({"kind": "gelu"}).transform(np.full((2, 6), 1e4))


def two_heads(seed=0, **more):
    source = [
        {"kind": "normalize"},
        {"kind": "center", "mean": RNG.standard_normal(6)},
        linear(6, 8, seed=seed),
        {"kind": "residual", "layers": [{"kind": "layernorm", "weight": np.ones(8)}, swiglu(8, 8, seed)]},
        linear(8, 3, seed=seed),
    ]
    target = [linear(5, 3, bias=False, seed=seed + 1)]
    return HeadsMap.from_layers(source=source, target=target, **more)


DECODERS = {"decode_source": [linear(3, 6, seed=5)], "decode_target": [{"kind": "gelu"}, linear(3, 5, seed=6)]}


def test_widths_are_read_off_the_layers():
    m = two_heads()
    assert (m.n_features_in_, m.d_target, m.d_out) == (6, 5, 3)
    assert (m.source_space_.dim, m.target_space_.dim, m.n_pairs_) == (6, 5, 0)
    assert m.transform_target(np.ones((4, 5))).shape == (4, 3)
    assert m.get_feature_names_out().tolist() == ["headsmap0", "headsmap1", "headsmap2"]
    with pytest.raises(ShapeError, match="transform_target"):
        m.transform(np.ones((4, 5)))


def test_tensors_pass_every_layer_as_arrays_do(monkeypatch):
    rng = np.random.default_rng(0)
    W, b, d = rng.standard_normal((4, 4)), rng.standard_normal(4), rng.standard_normal(4)
    head = [
        {"kind": "normalize"},
        {"kind": "center", "mean": d},
        {"kind": "linear", "weight": W, "bias": b},
        {"kind": "gelu"},
        {"kind": "layernorm", "weight": d, "bias": b},
        {"kind": "silu"},
        {"kind": "swiglu", "weight": W, "gate_weight": W + 1, "bias": b, "gate_bias": d},
        {"kind": "residual", "layers": [{"kind": "linear", "weight": W}, {"kind": "relu"}]},
    ]
    m = HeadsMap.from_layers(head, head, decode_source=head, decode_target=head)
    rows = rng.standard_normal((20, 4))
    rows[3] = 0  # stays zero, and has a gradient
    tensor = torch.tensor(rows, requires_grad=True)
    for call in (m.transform, m.transform_target, m.reconstruct, m.reconstruct_target):
        out = call(tensor)
        np.testing.assert_allclose(out.detach(), call(rows), atol=1e-10)
        (gradient,) = torch.autograd.grad(out.sum(), tensor)
        assert torch.isfinite(gradient).all()
        assert call(tensor.half()).dtype == torch.float16
    assert torch.autograd.gradcheck(m.transform, (tensor[:2].detach().requires_grad_(),))
    whole = m.transform(tensor)
    monkeypatch.setattr(_layers, "blocks", lambda n, row: (slice(k, min(k + 7, n)) for k in range(0, n, 7)))
    torch.testing.assert_close(m.transform(tensor), whole)
    np.testing.assert_allclose(m.transform(rows), whole.detach(), atol=1e-12)


def test_reconstruction_goes_there_and_back():
    m = two_heads(**DECODERS)
    z = torch.tensor(m.transform(X))
    np.testing.assert_allclose(m.reconstruct(X), torch_linear(DECODERS["decode_source"][0])(z).detach(), atol=1e-12)
    Y = np.random.default_rng(1).standard_normal((9, 5))
    z = torch.nn.GELU()(torch.tensor(m.transform_target(Y)))
    expected = torch_linear(DECODERS["decode_target"][1])(z).detach()
    np.testing.assert_allclose(m.reconstruct_target(Y), expected, atol=1e-12)


@pytest.mark.parametrize("decoders", [{}, DECODERS])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_a_saved_map_is_the_same_map(tmp_path, decoders, dtype):
    spaces = {"source_space": Space("dino", modality="image"), "target_space": Space("minilm", modality="text")}
    m = two_heads(facts={"n_pairs": 40, "losses": [1.0, 0.5]}, method="sotalign", **spaces, **decoders)
    m.scores_ = {"recall": 0.5}
    path = m.save(tmp_path / "map")
    again = congruence.load(path)
    assert again.joint_space() == m.joint_space()
    assert again.transform(X.astype(dtype)).tobytes() == m.transform(X.astype(dtype)).tobytes()
    assert again.describe() == json.loads(json.dumps(m.describe()))
    assert again.describe()["layers"]["source"].startswith("normalize → center 6 → linear 6×8 → residual(layernorm 8 →")
    assert (again.method_, again.n_pairs_, again.facts_["losses"]) == ("sotalign", 40, [1.0, 0.5])
    assert again.source_space_ == Space("dino", modality="image")
    assert set(again.state()) == set(m.state())
    assert "sotalign" in (path / "README.md").read_text()
    if decoders:
        assert np.array_equal(again.reconstruct(X), m.reconstruct(X))


def test_transposed_and_torch_weights_are_copied_as_they_are(tmp_path):
    module = torch.nn.Linear(6, 3)
    m = HeadsMap.from_layers(
        source=[{"kind": "linear", "weight": module.weight.T, "bias": module.bias}],
        target=[{"kind": "linear", "weight": np.asfortranarray(np.arange(15.0).reshape(5, 3))}],
    )
    expected = module(torch.tensor(X).float()).detach().numpy()
    with torch.no_grad():
        module.weight.zero_()
    again = congruence.load(m.save(tmp_path / "map"))
    np.testing.assert_allclose(again.transform(X.astype("f4")), expected, atol=1e-6)
    np.testing.assert_array_equal(again.transform_target(np.eye(5)), np.arange(15.0).reshape(5, 3))
    assert again.source_layers_[0]["weight"].dtype == np.float32


@pytest.mark.parametrize("options", [{"normalize": a, "center": b} for a in (True, False) for b in (True, False)])
def test_layers_of_a_two_sided_map_make_the_same_map(options):
    rng = np.random.default_rng(0)
    X, Y = rng.normal(1, 1, (40, 6)), rng.normal(-1, 1, (40, 5))
    for m in (CCAMap(power=0.5, **options).fit(X, Y), ProcrustesHeads(n_components=3, **options).fit(X, Y)):
        heads = HeadsMap.from_layers(*m.layers())
        again = HeadsMap.from_layers(*heads.layers())
        for same in (heads, again):
            np.testing.assert_allclose(same.transform(X), m.transform(X), atol=1e-12)
            np.testing.assert_allclose(same.transform_target(Y), m.transform_target(Y), atol=1e-12)
        for layer in m.layers()[0] + heads.layers()[0]:  # copies: writing into them changes no map
            for array in layer.values():
                if isinstance(array, np.ndarray):
                    array[:] = 0
        np.testing.assert_array_equal(heads.transform(X), again.transform(X))
        np.testing.assert_allclose(m.transform(X), again.transform(X), atol=1e-12)


def test_heads_are_trained_and_never_fitted():
    assert "heads" in MAPS
    assert "heads" not in METHODS
    m = two_heads()
    assert clone(m) is m


def test_embeddings_pass_through_the_head_of_their_side():
    m = two_heads(source_space=Space("dino"), target_space=Space("minilm"))
    out = m.transform_embeddings(Embeddings(X[:5], space=Space("dino")))
    np.testing.assert_array_equal(out.vectors, m.transform(X[:5]))
    other = single({"kind": "relu"}), single({"kind": "gelu"}), single({"kind": "relu"})
    revisions = [heads.joint_space().revision for heads in other]
    assert revisions[0] == revisions[2] != revisions[1]  # equal arrays in other layers are another space
    digests = [map_digest(heads) for heads in other]
    assert digests[0] == digests[2] != digests[1]


UNIT = {"kind": "linear", "weight": np.eye(6)}
DEEP = {"kind": "gelu"}
for _ in range(12):
    DEEP = {"kind": "residual", "layers": [DEEP]}
BAD_LAYERS = {
    "unknown kind": ([{"kind": "tanh"}], ParameterError),
    "no kind": ([{"weight": np.eye(6)}], ParameterError),
    "odd kind": ([{"kind": ["linear"]}], ParameterError),
    "no layer": (["linear"], ParameterError),
    "not a list": ({"kind": "gelu"}, ParameterError),
    "text": ("gelu", ParameterError),
    "foreign entry": ([{"kind": "relu", "slope": 0.1}], ParameterError),
    "missing array": ([{"kind": "center"}], ParameterError),
    "missing layers": ([{"kind": "residual"}], ParameterError),
    "too deep": ([DEEP, UNIT], ParameterError),
    "axes": ([{"kind": "linear", "weight": np.ones(6)}], ShapeError),
    "empty": ([{"kind": "linear", "weight": np.ones((6, 0))}], ShapeError),
    "bias": ([{"kind": "linear", "weight": np.eye(6), "bias": np.ones(4)}], ShapeError),
    "gate": ([{**swiglu(6, 6), "gate_weight": np.ones((6, 4))}], ShapeError),
    "order": ([linear(6, 4), linear(5, 6)], ShapeError),
    "residual width": ([{"kind": "residual", "layers": [linear(6, 4)]}, UNIT], ShapeError),
    "nan": ([{"kind": "center", "mean": np.full(6, np.nan)}, UNIT], NotFiniteError),
    "dtype": ([{"kind": "center", "mean": np.array(list("abcdef"))}, UNIT], InputError),
    "eps": ([{"kind": "layernorm", "eps": -1.0}, UNIT], ParameterError),
    "eps flag": ([{"kind": "layernorm", "eps": True}, UNIT], ParameterError),
    "no width": ([{"kind": "normalize"}], ShapeError),
    "none": ([], ShapeError),
    "joint width": ([linear(6, 4)], ShapeError),
}


@pytest.mark.parametrize("case", BAD_LAYERS)
def test_odd_layers_are_refused(case):
    layers, error = BAD_LAYERS[case]
    with pytest.raises(error, match=r"source|target"):  # the head and the layer are named
        HeadsMap.from_layers(source=layers, target=[UNIT])


def rewrite(path, change, arrays=None):
    config = json.loads((path / "config.json").read_text())
    if arrays is not None:
        weights = safetensors.numpy.save(arrays)
        (path / "model.safetensors").write_bytes(weights)
        config["weights_sha256"] = hashlib.sha256(weights).hexdigest()
    change(config)
    config["numbers_sha256"] = numbers_digest(config)
    (path / "config.json").write_text(json.dumps(config))


def nest(config):
    layer = {"kind": "gelu"}
    for _ in range(200):
        layer = {"kind": "residual", "layers": [layer]}
    config["facts"]["layers"]["source"].append(layer)


def edit(*keys, value):
    def change(config):
        for key in keys[:-1]:
            config = config[key]
        config[keys[-1]] = value

    return change


L = ("facts", "layers")
HOSTILE = {
    "no layers": lambda c: c["facts"].pop("layers"),
    "no method": lambda c: c["facts"].pop("method"),
    "method": edit("facts", "method", value=["x"]),
    "facts": edit("facts", value=[1, 2]),
    "facts text": edit("facts", value="layers"),
    "n_pairs": edit("facts", "n_pairs", value={"a": 1}),
    "n_pairs infinite": edit("facts", "n_pairs", value=float("inf")),
    "layers list": edit(*L, value=[]),
    "no target": lambda c: c["facts"]["layers"].pop("target"),
    "foreign part": edit(*L, "decode", value=[]),
    "part": edit(*L, "source", value={"kind": "gelu"}),
    "kind": edit(*L, "source", 0, "kind", value="__import__"),
    "kind list": edit(*L, "source", 0, "kind", value=["linear"]),
    "entry": edit(*L, "source", 0, "code", value="1"),
    "layer": edit(*L, "source", 0, value=3),
    "wrong order": lambda c: c["facts"]["layers"]["source"].reverse(),
    "eps text": edit(*L, "source", 3, "layers", 0, "eps", value="1e-5"),
    "eps huge": edit(*L, "source", 3, "layers", 0, "eps", value=10**400),
    "deep": nest,
    "parameters": edit("parameters", value={"hidden": 3}),
    "map kind": edit("kind", value=["heads"]),
    "other map": edit("kind", value="cca"),
}


ARRAYS = {
    "left over": lambda a: {**a, "source.9.weight": np.ones(2)},
    "nan": lambda a: {**a, "target.0.weight": np.full((5, 3), np.nan)},
    "shape": lambda a: {**a, "target.0.weight": np.ones((3, 5))},
    "axes": lambda a: {**a, "target.0.weight": np.ones(15)},
    "width": lambda a: {**a, "source.1.mean": np.ones(5)},
    "flags": lambda a: {**a, "source.1.mean": np.ones(6, dtype=bool)},
    "missing": lambda a: {k: v for k, v in a.items() if k != "source.1.mean"},
}


@pytest.mark.parametrize(
    ("change", "arrays"),
    [*((change, None) for change in HOSTILE.values()), *((lambda config: None, arrays) for arrays in ARRAYS.values())],
    ids=[*HOSTILE, *(f"array {name}" for name in ARRAYS)],
)
def test_a_folder_that_lies_is_refused(tmp_path, change, arrays):
    m = two_heads(facts={"n_pairs": 3})
    path = m.save(tmp_path / "map")
    rewrite(path, change, arrays and arrays(m.state()))
    with pytest.raises(CorruptFileError):
        congruence.load(path)


@pytest.mark.parametrize(("n", "power"), [(30, 0.0), (200, 0.5)])
def test_ridges_fitted_together_are_those_fitted_one_by_one(n, power):
    rng = np.random.default_rng(3)
    X = Embeddings(rng.normal(size=(n, 40)), np.arange(n).astype(str))
    Y = Embeddings(X.vectors[:, :25] + rng.normal(size=(n, 25)), X.ids)
    ridges = (0.0, 1.0, 30.0)
    together = CCAMap(n_components=5, power=power).fit_ridges(X, Y, ridges)
    for ridge, one in zip(ridges, together, strict=True):
        alone = CCAMap(n_components=5, power=power, ridge=ridge).fit(X, Y)
        assert one.get_params() == alone.get_params()
        assert one.facts_ == alone.facts_
        for name, array in alone.state().items():
            np.testing.assert_array_equal(one.state()[name], array)
