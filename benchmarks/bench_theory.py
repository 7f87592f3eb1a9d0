"""Do the bounds of the theorems hold, and how loose are they? Thousands of random models, then the bundled sample and
real CLIP models.

Each random model is a dual encoder and a disturbed copy: noise of a given length on every target row, or a shear of the
target. κ of Theorem C.23 is replaced by an upper bound, √n over the least singular value of M ↦ (uᵀMu), so its line is
looser than the theorem. On real data, every "max" is taken over the given images and texts.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from common import arguments, unit, write_json
from congruence.datasets import load_sample
from congruence.linalg.procrustes import procrustes
from congruence.synthetic import dual_problem
from congruence.theory import (
    anchor_map,
    gram_agreement,
    kernel_agreement,
    linear_bound,
    linear_text_error,
    orthogonal_bound,
    polar_rotation,
    projected_text_bound,
    rank_trade_off,
    text_bound,
)

THEOREMS = ("C.21: A on images", "C.23: Q on images", "C.25: Q on texts", "C.28: Q on texts, half the rank")


def kappa_above(F: np.ndarray) -> float:
    d = F.shape[1]
    i, j = np.triu_indices(d)
    least = np.linalg.svd(F[:, i] * F[:, j] * np.where(i == j, 1, np.sqrt(2)), compute_uv=False)
    return np.sqrt(len(F)) / least[-1] if len(least) == len(i) and least[-1] > 1e-9 else float("inf")


def bounds_of(F, G, F_target, G_target, kappa):
    A = anchor_map(G, G_target)
    Q = polar_rotation(A.matrix).rotation
    return (
        linear_bound(F, G, F_target, G_target),
        orthogonal_bound(F, F_target, A.matrix, kappa),
        text_bound(F, G, F_target, G_target, Q),
        projected_text_bound(F, G, F_target, G_target, Q, max(1, F.shape[1] // 2)),
    )


def random_models(per_case: int) -> dict:
    print(
        "Looseness: median (90 % quantile); share of vacuous bounds; in brackets the median before the "
        "proof's last step.\n"
    )
    print("| d | disturbance | " + " | ".join(THEOREMS) + " |")
    print("| --- | --- |" + " --- |" * len(THEOREMS))
    held = drawn = 0
    lines = []
    for d in (2, 8, 32):
        for what, level in (("noise", 1e-3), ("noise", 1e-2), ("noise", 0.1), ("shear", 1e-2), ("shear", 0.1)):
            found = []
            for _ in range(per_case):
                n = 2 * d * (d + 1)  # four times the dimension of Sym(d)
                p = dual_problem(n, 4 * d, d, **{what: level}, random_state=drawn)
                found.append(bounds_of(p.F, p.G, p.F_target, p.G_target, kappa_above(p.F)))
                drawn += 1
            cells = []
            for bounds in zip(*found, strict=True):
                held += sum(b.measured <= b.value for b in bounds)
                middle, most = np.quantile([b.looseness for b in bounds], (0.5, 0.9))
                sharp = np.median([b.conditions["sharp"] / b.measured for b in bounds])
                vacuous = np.mean([b.vacuous for b in bounds])
                cells.append(f"{middle:.1f} ({most:.1f}); {vacuous:.0%}; [{sharp:.1f}]")
            print(f"| {d} | {what} {level:g} | " + " | ".join(cells) + " |", flush=True)
            lines.append({"d": d, "disturbance": f"{what} {level:g}", "cells": cells})
    print(f"\nheld: {held:,} of {drawn * len(THEOREMS):,}")
    return {"lines": lines, "held": held, "of": drawn * len(THEOREMS)}


def agreement_lines(title: str, compare) -> list[dict]:
    found = []
    for relation in ("raw", "constant", "affine"):
        a = compare(relation)
        line = f"{a.minimax.slope:.2f} K̃ {a.minimax.intercept:+.2f}"
        q = a.quantiles
        print(
            f"| {title} | {relation} | {a.epsilon:.3f} | {line} | {a.least_squares.slope:.2f} K̃ "
            f"{a.least_squares.intercept:+.2f} | {a.rmse:.3f} | {q[0.5]:.3f} | {q[0.99]:.3f} | {a.correlation:.3f} "
            "|"
        )
        least = a.least_squares
        line = {"kernel": title, "relation": relation, "epsilon": a.epsilon, "line": [least.slope, least.intercept]}
        found.append(line | {"rmse": a.rmse, "median": q[0.5], "most": q[0.99], "correlation": a.correlation})
    return found


def sample_models(centered: bool):
    sample = load_sample("emoji")
    sides = []
    for side in (sample.source, sample.target):
        for kind in ("image", "text"):
            X = side[kind].vectors.astype(np.float64)
            sides.append(unit(X - X.mean(axis=0)) if centered else unit(X))
    F, G, F_target, G_target = sides
    return F, G, F_target, G_target


def real_data(data: Path) -> dict:
    out: dict = {"kernels": [], "bounds": [], "ranks": [], "text_half": [], "maps": []}
    print("\n| kernel | relation | ε | minimax line | least squares | rmse | median | 99 % | correlation |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for centered in (False, True):
        models = sample_models(centered)
        state = "centered" if centered else "as they are"
        out["kernels"] += agreement_lines(f"sample, image–text, {state}", lambda r, m=models: kernel_agreement(*m, r))
        out["kernels"] += agreement_lines(
            f"sample, image–image, {state}", lambda r, m=models: gram_agreement(m[0], m[2], r)
        )
        out["kernels"] += agreement_lines(
            f"sample, text–text, {state}", lambda r, m=models: gram_agreement(m[1], m[3], r)
        )
    if data.is_file():
        with np.load(data, allow_pickle=False) as arrays:
            source = unit(arrays["text_openai_vitb32"].astype(np.float64))
            for name in ("text_eva02_b16", "text_openai_vitb16"):
                target = unit(arrays[name].astype(np.float64))
                out["kernels"] += agreement_lines(
                    f"LVIS, text–text, ViT-B/32 and {name[5:]}", lambda r, t=target: gram_agreement(source, t, r)
                )
    else:
        print(f"(no {data}: LVIS left out)")

    print("\n| sample | theorem | measured | promised | before the last step | conditions |")
    print("| --- | --- | --- | --- | --- | --- |")
    for centered in (False, True):
        state = "centered" if centered else "as they are"
        F, G, F_target, G_target = sample_models(centered)
        A = anchor_map(G, G_target)
        Q = procrustes(F, F_target)
        for bound in (
            linear_bound(F, G, F_target, G_target),
            orthogonal_bound(F, F_target, A.matrix, float("inf")),
            text_bound(F, G, F_target, G_target, Q),
            projected_text_bound(F, G, F_target, G_target, Q, 1),
        ):
            sharp = bound.conditions.pop("sharp")
            conditions = ", ".join(f"{key} {value:.3g}" for key, value in bound.conditions.items())
            print(
                f"| {state} | {bound.theorem} | {bound.measured:.2f} | {bound.value:.3g} | {sharp:.3g} | {conditions} |"
            )
            line = {"rows": state, "theorem": bound.theorem, "measured": bound.measured, "promised": bound.value}
            out["bounds"].append(line | {"sharp": sharp, "conditions": dict(bound.conditions)})
        trade = rank_trade_off(F, G, F_target, G_target, Q)
        cells = ", ".join(
            f"r={r}: ρ {trade.rho[r - 1]:.3g}, measured {trade.measured[r - 1]:.2f}" for r in (1, 4, 16, 64)
        )
        out["ranks"].append(
            {"rows": state, "best": trade.best, "whole": trade.whole[trade.best - 1]}
            | {str(r): [trade.measured[r - 1], trade.rho[r - 1], trade.sharp[r - 1]] for r in (1, 4, 16, 64)}
        )
        print(f"{state}: {cells}; best r for the whole text {trade.best}, bound {trade.whole[trade.best - 1]:.2f}")
        error = linear_text_error(G, G_target, A.matrix)
        print(
            f"{state}: text half of 5.3: median {error.quantiles[0.5]:.2f}, largest {error.largest:.2f}; "
            f"σ(A) from {error.sigma_min:.2g} to {error.sigma_max:.2f}"
        )
        out["text_half"].append(
            {"rows": state, "median": error.quantiles[0.5], "sigma": [error.sigma_min, error.sigma_max]}
        )
        for name, M in (
            ("A, from texts", A.matrix),
            ("least squares on images", np.linalg.lstsq(F, F_target)[0]),
            ("polar factor of A", polar_rotation(A.matrix).rotation),
            ("rotation fitted on images", Q),
        ):
            images, texts = np.linalg.norm(F_target - F @ M, axis=1), np.linalg.norm(G - G_target @ M.T, axis=1)
            print(f"{state}: {name}: mean ‖f̃ − M f‖ {images.mean():.2f}, mean ‖g − Mᵀ g̃‖ {texts.mean():.2f}")
            out["maps"].append({"rows": state, "map": name, "images": images.mean(), "texts": texts.mean()})
    return out


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--data", type=Path, default=Path("../shared/data/lvis1203_clip.npz"))
    parser.add_argument("--models", type=int, default=200, help="random models per case (15 cases)")
    parser.add_argument("--part", choices=("random", "real"), help="run only random models or only real data")
    options = parser.parse_args()
    found = {}
    if options.part in (None, "random"):
        found["random"] = random_models(options.models)
    if options.part in (None, "real"):
        found |= real_data(options.data)
    write_json(options, found)


if __name__ == "__main__":
    main()
