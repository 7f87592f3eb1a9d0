"""Unit rows as models give them."""

import numpy as np

from congruence.synthetic import rigid_problem


def unit(X):
    return (X / np.linalg.norm(X, axis=1, keepdims=True)).astype(np.float32)


def two_models(n, new, old, **options):
    """Return paired unit rows of the queries' model and of the index's."""
    p = rigid_problem(n, new, old, **options)
    return unit(p.X), unit(p.Y)
