"""Error of KLOT's gradient after a number of iterations, compared with the reported marginal errors: the table in
docs/transport.md.

Unit rows of the student and the teacher are drawn in the same way; a target row is its source row plus noise of the
given length, normalized. Float64, 300 rows, ε = 0.05 and 0.01. The gradient is compared in L1 norm with that of 20,000
iterations.
"""

from __future__ import annotations

import argparse

import torch
from torch.nn.functional import normalize

from congruence.transport import klot
from machine_output import add_json, write_json

PROBLEMS = [(4, 0.7), (16, 0.7), (32, 0.7), (64, 0.7), (64, 2.0), (256, 1.0)]
ITERATIONS = [50, 100, 200, 500, 1000]


def problem(d: int, noise: float, n: int = 300) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the student's and the teacher's affinities."""
    generator = torch.Generator().manual_seed(0)
    X, Y, TX, TY = (normalize(torch.randn(n, d, generator=generator, dtype=torch.float64)) for _ in range(4))
    return X @ normalize(X + noise * Y).T, TX @ normalize(TX + noise * TY).T


def solve(A: torch.Tensor, T: torch.Tensor, max_iter: int):
    """Return the gradient and the reported convergence."""
    A = A.clone().requires_grad_()
    value, info = klot(A, T, max_iter=max_iter, return_info=True)
    return torch.autograd.grad(value, A)[0], info


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add_json(parser)
    options = parser.parse_args()
    results = []
    print(
        "| dimensions, noise | iterations | marginal error, student | teacher | ‖P − P*‖₁ | reported | "
        "gradient off by | warned |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for d, noise in PROBLEMS:
        A, T = problem(d, noise)
        exact, _ = solve(A, T, 20_000)
        for max_iter in ITERATIONS:
            slope, info = solve(A, T, max_iter)
            off = float((slope - exact).abs().sum() / exact.abs().sum())
            errors = f"{info.student.marginal_error:.0e} | {info.teacher.marginal_error:.0e} | {info.difference:.2g}"
            warned = "" if info.converged else "yes"
            print(f"| {d}, {noise} | {max_iter} | {errors} | {info.gradient_error:.2%} | {off:.2%} | {warned} |")
            results.append(
                {
                    "dimensions": d,
                    "noise": noise,
                    "iterations": max_iter,
                    "marginal_error": info.student.marginal_error,
                    "marginal_error_teacher": info.teacher.marginal_error,
                    "difference": info.difference,
                    "gradient_error": info.gradient_error,
                    "off": off,
                }
            )
    write_json(options, results)


if __name__ == "__main__":
    main()
