"""Time of a fit on 5,000 pairs, compared with the same computation in established libraries; medians of interleaved
runs.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import scipy.linalg
from sklearn.linear_model import Ridge

from common import arguments, in_turn, seconds_of, write_json
from congruence import LinearMap, OrthogonalMap
from congruence.compare.pairing import check_pairing


def textbook(X, Y):
    """Center in float64, compute the cross-covariance and its SVD, as a careful user would by hand."""
    X, Y = X.astype(np.float64), Y.astype(np.float64)
    U, _, Vt = np.linalg.svd((X - X.mean(0)).T @ (Y - Y.mean(0)), full_matrices=False)
    return U @ Vt


def scipys(X, Y):
    X, Y = X.astype(np.float64), Y.astype(np.float64)
    X = np.hstack([X, np.zeros((len(X), Y.shape[1] - X.shape[1]))])  # it requires equal dimensions
    return scipy.linalg.orthogonal_procrustes(X - X.mean(0), Y - Y.mean(0))[0]


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--repeat", type=int, default=7)
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    X = rng.standard_normal((5000, 768)).astype(np.float32) * np.arange(1, 769, dtype=np.float32) ** -0.5
    Y = (X @ rng.standard_normal((768, 1024)) / 28 + 0.1 * rng.standard_normal((5000, 1024))).astype(np.float32)
    jobs = {
        "OrthogonalMap().fit": lambda: OrthogonalMap().fit(X, Y),
        "NumPy by hand": lambda: textbook(X, Y),
        "scipy orthogonal_procrustes, padded": lambda: scipys(X, Y),
        "LinearMap(ridge='cv').fit": lambda: LinearMap().fit(X, Y),
        "sklearn Ridge (one alpha)": lambda: Ridge(1.0).fit(X, Y),
        "check_pairing": lambda: check_pairing(X, Y),
    }
    seconds = in_turn({name: partial(seconds_of, job) for name, job in jobs.items()}, options.repeat)
    base = np.median(seconds["NumPy by hand"])
    print(f"5,000 pairs, 768 → 1024, float32; medians of {options.repeat} interleaved runs")
    for name, values in seconds.items():
        print(f"  {name:38s} {np.median(values):6.2f} s   {np.median(values) / base:5.2f} × NumPy by hand")
    write_json(options, seconds)


if __name__ == "__main__":
    main()
