"""Sliced Wasserstein on the sphere, compared with POT: the same rows, the same frames, both variants.

Both run alternately, each in a separate process, so that its peak memory can be measured; "at rest" is the memory of
the imports and the data alone.
"""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path

import numpy as np

from common import arguments, in_process, in_turn, print_measured, ratios, write_json

VARIANTS = ("circular", "linear")


def child(who: str, variant: str, folder: Path) -> None:
    X, Y, U = (np.load(folder / f"{name}.npy") for name in "XYU")
    if who == "ours":
        from congruence.transport import sliced_wasserstein_sphere

        def measure():
            return sliced_wasserstein_sphere(X, Y, variant=variant, projections=U)
    else:
        import ot

        fn = {"circular": ot.sliced_wasserstein_sphere, "linear": ot.linear_sliced_wasserstein_sphere}[variant]

        def measure():
            return float(fn(X, Y, n_projections=len(U), projections=U))

    print_measured(measure)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--rows", type=int, nargs=2, default=[20_000, 20_000], help="numbers of rows of the two sets")
    parser.add_argument("--dim", type=int, default=256)
    parser.add_argument("--projections", type=int, default=100)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--only", choices=["ours", "POT"], help="run only this implementation")
    parser.add_argument("--child", nargs=2)
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    if options.child:
        child(*options.child, options.folder)
        return
    with tempfile.TemporaryDirectory() as name:
        folder, rng = Path(name), np.random.default_rng(0)
        for side, n, lean in zip("XY", options.rows, (0.1, 0.0), strict=True):
            A = rng.standard_normal((n, options.dim), dtype=np.float32) + np.float32(lean)
            np.save(folder / f"{side}.npy", A / np.linalg.norm(A, axis=1, keepdims=True))
        frames = np.linalg.qr(rng.standard_normal((options.projections, options.dim, 2)))[0]
        np.save(folder / "U.npy", frames.astype(np.float32))
        n, m = options.rows
        print(
            f"{n:,} and {m:,} × {options.dim} float32, {options.projections} circles, {options.repeat} runs "
            "each, in turn"
        )
        found = {}
        for variant in VARIANTS:
            arms = {
                who: partial(in_process, __file__, "--child", who, variant, "--folder", folder)
                for who in ("POT", "ours")
                if options.only in (None, who)
            }
            results = in_turn(arms, options.repeat)
            found[variant] = results
            for who, runs in results.items():
                seconds = np.median([r["seconds"] for r in runs])
                peak, rest = (max(r[key] for r in runs) for key in ("peak_mb", "rest_mb"))
                print(
                    f"  {variant:9s} {who:4s}  {runs[0]['value']:.6f}   median {seconds:6.2f} s   "
                    f"peak memory {peak:6.0f} MB, at rest {rest:4.0f} MB"
                )
            if len(results) == 2:
                time_ratio, memory_ratio = (np.median(ratios(results, "POT", key)) for key in ("seconds", "peak_mb"))
                print(f"  {variant:9s} ours: time {time_ratio:.1f} times less, memory {memory_ratio:.1f} times less")
    write_json(options, found)


if __name__ == "__main__":
    main()
