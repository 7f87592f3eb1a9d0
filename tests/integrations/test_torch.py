"""Every map as a torch.nn.Module: the numbers of transform_embeddings, and what PyTorch users expect of a module."""

import copy
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from fitted_maps import MAPS, SIDES, P, X, expected, rows

from congruence import Bridge, CCAMap, HeadsMap, LinearMap, OrthogonalMap
from congruence.errors import MissingExtraError, ModalityError, NormWarning, ParameterError, ShapeError
from congruence.maps import NotFittedMapError


@pytest.mark.parametrize(("name", "side"), SIDES)
@pytest.mark.parametrize("normalize", ["auto", False, True])
def test_the_module_gives_the_numbers_of_the_map(name, side, normalize):
    m, A = MAPS[name], rows(side)
    want = expected(m, A, side, normalize)
    got = m.to_torch(normalize=normalize, side=side)(torch.as_tensor(A))
    assert got.dtype == torch.float32
    np.testing.assert_allclose(got, want, atol=2e-6 * np.abs(want).max())
    exact = m.to_torch(normalize=normalize, side=side, dtype=torch.float64)(torch.as_tensor(A).double())
    want = expected(m, A.astype(np.float64), side, normalize)
    np.testing.assert_allclose(exact, want, atol=1e-13 * np.abs(want).max())


@pytest.mark.parametrize(("name", "side"), SIDES)
def test_gradients_pass_and_are_right(name, side):
    module = MAPS[name].to_torch(side=side, dtype=torch.float64)
    assert not any(p.requires_grad for p in module.parameters())
    A = torch.as_tensor(rows(side)[:3].astype(np.float64)).requires_grad_()
    assert torch.autograd.gradcheck(module, (A,))
    trainable = MAPS[name].to_torch(side=side, dtype=torch.float64, trainable=True)
    trainable(A.detach()).square().sum().backward()
    gradients = [p.grad for p in trainable.parameters()]
    assert gradients
    assert all(g is not None and torch.isfinite(g).all() for g in gradients)


def test_a_zero_row_has_a_finite_gradient():
    module = CCAMap().fit(P.X, P.Y).to_torch()  # which normalizes what comes in
    A = torch.zeros(2, 6, requires_grad=True)
    module(A).sum().backward()
    assert A.grad.abs().max() < 1e3


@pytest.mark.long
@pytest.mark.parametrize(("name", "side"), [("mlp", "source"), ("heads", "source"), ("heads", "target")])
def test_torch_compiles_it_into_one_graph(name, side):
    torch.compiler.reset()
    module = MAPS[name].to_torch(side=side)
    whole = torch.compile(module, backend="eager", fullgraph=True, dynamic=True)
    for count in (20, 7, 1):
        A = torch.as_tensor(rows(side)[:count])
        np.testing.assert_allclose(whole(A), module(A), atol=1e-6)


def test_a_state_travels_between_modules():
    m = MAPS["heads"]
    trained, served = m.to_torch(trainable=True), m.to_torch()
    with torch.no_grad():
        for p in trained.parameters():
            p.add_(0.1)
    A = torch.as_tensor(X)
    assert not torch.allclose(trained(A), served(A))
    assert served.load_state_dict(trained.state_dict()).missing_keys == []
    assert torch.equal(trained(A), served(A))
    assert torch.equal(copy.deepcopy(served)(A), served(A))
    served.eval()
    assert torch.equal(trained(A), served(A))


def test_dtypes_and_devices_move():
    module = MAPS["orthogonal"].to_torch()
    A = torch.as_tensor(X)
    for dtype, atol in ((torch.float16, 4e-3), (torch.bfloat16, 3e-2), (torch.float64, 1e-6)):
        got = copy.deepcopy(module).to(dtype)(A.to(dtype))
        assert got.dtype == dtype
        torch.testing.assert_close(got.float(), module(A), atol=atol, rtol=0)
    assert module.to("meta")(A.to("meta")).shape == (20, 9)
    large = MAPS["cca"].to_torch(normalize=True).half()(torch.full((1, 6), 300.0).half())
    assert torch.isfinite(large).all()  # 300² is more than float16 holds


def test_a_module_has_the_means_of_one_modality():
    means = P.X.mean(axis=0) + 1, P.Y.mean(axis=0) - 2
    m = OrthogonalMap().fit(P.X, P.Y, modality="image").recenter(*means, modality="text").for_modality("image")
    A = torch.as_tensor(X)
    for modality in (None, "image", "text"):
        want = m.transform_embeddings(X, modality=modality).vectors
        np.testing.assert_allclose(m.to_torch(modality)(A), want, atol=1e-5)
    assert "6 → 9, image" in repr(m.to_torch())
    assert "6 → 9, text" in repr(m.to_torch("text"))
    with pytest.raises(ModalityError, match="Got audio rows"):
        m.to_torch("audio")


def test_the_callers_random_numbers_and_the_map_stay_as_they_are():
    torch.manual_seed(0)
    before, state = torch.get_rng_state(), MAPS["heads"].state()
    kept = {key: value.copy() for key, value in state.items()}
    module = MAPS["heads"].to_torch(trainable=True)
    assert torch.equal(torch.get_rng_state(), before)
    with torch.no_grad():
        for p in module.parameters():
            p.zero_()
    assert all(np.array_equal(state[key], kept[key]) for key in kept)


def test_refusals(monkeypatch):
    m = MAPS["orthogonal"]
    with pytest.raises(ShapeError, match="width 9; expected 6"):
        m.to_torch()(torch.zeros(2, 9))
    for name, value in (("side", "target"), ("side", "left"), ("normalize", "no")):
        with pytest.raises(ParameterError, match=f"{name}='{value}'"):
            m.to_torch(**{name: value})
    for unfitted in (OrthogonalMap(), HeadsMap()):
        with pytest.raises(NotFittedMapError):
            unfitted.to_torch()
    unknown = LinearMap().fit(P.X, P.Y)
    unknown.target_space_ = replace(unknown.target_space_, normalized=None)
    with pytest.warns(NormWarning, match="no record of whether"):
        unknown.to_torch()
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingExtraError, match=r"congruence\[train\]"):
        m.to_torch()


def test_a_bridge_is_a_module_too():
    means = P.X.mean(axis=0) + 1, P.Y.mean(axis=0) - 2
    m = OrthogonalMap().fit(P.X, P.Y, modality="image").recenter(*means, modality="text")
    bridge = Bridge(m, normalize=True, modality="image")
    A = torch.as_tensor(X)
    for modality in (None, "image", "text"):
        np.testing.assert_allclose(bridge.to_torch(modality)(A), bridge.transform(X, modality), atol=1e-6)
    with pytest.raises(ModalityError, match="image, text"):
        Bridge(m).to_torch()


def test_rows_may_have_more_axes():
    module = MAPS["heads"].to_torch()
    A = torch.as_tensor(X)
    torch.testing.assert_close(module(A.reshape(4, 5, 6)), module(A).reshape(4, 5, 4))
    torch.testing.assert_close(module(A[0]), module(A)[0])
