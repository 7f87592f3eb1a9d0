"""Problems shared by the tests of transport plans: points, marginals, and the ways to pass them to a solver."""

import numpy as np
import torch


def clouds(n, m, d=8, seed=0, dtype=np.float64):
    rng = np.random.default_rng(seed)
    return [
        (Z / np.linalg.norm(Z, axis=1, keepdims=True)).astype(dtype) for Z in map(rng.standard_normal, [(n, d), (m, d)])
    ]


def drawn_marginals(n, m, seed=0):
    rng = np.random.default_rng(seed)
    return tuple(w / w.sum() for w in (rng.random(n) + 0.05, rng.random(m) + 0.05))


WAYS = {
    "dense": lambda X, Y: {"affinity": X @ Y.T},
    "dense, by column": lambda X, Y: {"affinity": np.asfortranarray(X @ Y.T)},
    "dense, torch": lambda X, Y: {"affinity": torch.tensor(X @ Y.T)},
    "strips": lambda X, Y: {"X": X, "Y": Y, "memory": 0},
    "strips, torch": lambda X, Y: {"X": torch.tensor(X), "Y": torch.tensor(Y), "memory": 0},
    "half held": lambda X, Y: {"X": X, "Y": Y, "memory": len(X) // 2 * len(Y) * 8},
    "all held": lambda X, Y: {"X": X, "Y": Y},
}
