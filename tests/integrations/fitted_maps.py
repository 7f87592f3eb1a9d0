"""A fitted map of every kind, shared by the tests of all exports."""

import numpy as np
import torch

from congruence import CanonicalFrame, CCAMap, HeadsMap, LinearMap, MLPMap, OrthogonalMap, ProcrustesHeads
from congruence.maps import Map
from congruence.synthetic import rigid_problem

P = rigid_problem(80, 6, 9, noise=0.1, random_state=0)
Y = P.Y / np.linalg.norm(P.Y, axis=1, keepdims=True)
X = P.X[:20].astype(np.float32)


def heads() -> HeadsMap:
    """Return heads that together contain every kind of layer, with and without its optional parts."""
    rng = np.random.default_rng(0)

    def w(*shape):
        return rng.standard_normal(shape) / 3

    swiglu = {"kind": "swiglu", "weight": w(7, 7), "bias": w(7), "gate_weight": w(7, 7)}
    norm, inner = (
        {"kind": "layernorm", "weight": w(7), "bias": w(7)},
        {"kind": "residual", "layers": [{"kind": "relu"}]},
    )
    block = [norm, swiglu, inner]
    source = [
        {"kind": "normalize"},
        {"kind": "center", "mean": w(6)},
        {"kind": "linear", "weight": w(6, 7)},
        {"kind": "gelu"},
        {"kind": "residual", "layers": block},
        {"kind": "layernorm", "eps": 1e-3},
        {"kind": "linear", "weight": w(7, 4), "bias": w(4)},
        {"kind": "center", "mean": w(4)},
    ]
    target = [
        {"kind": "linear", "weight": w(9, 5), "bias": w(5)},
        {"kind": "silu"},
        {"kind": "layernorm", "bias": w(5)},
        {"kind": "layernorm", "weight": w(5), "eps": 1e-4},
        {"kind": "center", "mean": w(5)},
        {"kind": "linear", "weight": w(5, 4), "bias": w(4)},
        {"kind": "relu"},
    ]
    return HeadsMap.from_layers(source, target)


def frame_member() -> OrthogonalMap:
    Q = np.linalg.qr(np.random.default_rng(1).standard_normal((6, 6)))[0]
    return CanonicalFrame().fit({"a": P.X, "b": P.X @ Q, "c": P.X @ Q.T}).map("a", "b")


MAPS = {
    "orthogonal": OrthogonalMap().fit(P.X, Y),
    "projection": OrthogonalMap(center=False, shrinkage="full").fit(P.X, Y[:, :6]),
    "linear": LinearMap().fit(P.X, P.Y),
    "mlp": MLPMap(hidden=5, max_epochs=4, learning_rate=0.1).fit(P.X, P.Y),
    "procrustes": ProcrustesHeads().fit(P.X, P.Y),
    "cca": CCAMap(normalize=False, power=1.0).fit(P.X, P.Y),
    "heads": heads(),
    "frame": frame_member(),
}
SIDES = [(name, side) for name, m in MAPS.items() for side in m.sides]


def rows(side: str) -> np.ndarray:
    out = (P.X if side == "source" else P.Y)[:20].astype(np.float32)
    out[3] = 0
    return out


def expected(m: Map, A: np.ndarray, side: str, normalize: bool | str = "auto") -> np.ndarray:
    if len(m.sides) == 2:
        return m.transform_embeddings(torch.as_tensor(A), side=side, normalize=normalize).numpy()
    return m.transform_embeddings(torch.as_tensor(A), normalize=normalize).numpy()
