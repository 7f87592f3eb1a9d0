"""KLOT's value and its gradient with respect to the vectors: ours compared with a log-domain solver, three ways to
differentiate it, POT and geomloss.

All start from the vectors of both sides, do the same number of iterations in float32, and run in turn, each in its own
process so that its peak memory can be measured; "at rest" is the memory of the imports and the vectors alone. Up to
``--exact`` rows, gradients are compared with one computed in float64 to a marginal error of 1e-8 (or 2,000 iterations):
the difference is mostly due to incomplete convergence after the given number of iterations. Times are processor times
of all threads together, which other work on the machine affects least. geomloss iterates differently: ε is annealed to
its value over the same number of iterations, and both potentials are updated at once.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from machine_output import add_json, write_json
from process_memory import peak_mb

EPSILON, EPSILON_TEACHER = 0.05, 0.01


def log_plan(A, epsilon, max_iter):
    """Log-domain Sinkhorn with a log-sum-exp in each half step, as published."""
    import torch

    n, m = A.shape
    M = A / epsilon
    u, v = M.new_zeros(n), M.new_zeros(m)
    for _ in range(max_iter):
        u = -math.log(n) - torch.logsumexp(M + v[None, :], dim=1)
        v = -math.log(m) - torch.logsumexp(M + u[:, None], dim=0)
    return M + u[:, None] + v[None, :]


def explicit(log_p, log_q):
    """Return the value and the gradient (P − P*)/ε with respect to the student's affinities."""
    P, Q = log_p.exp(), log_q.exp()
    return (Q * (log_q - log_p)).sum(), (P - Q) / EPSILON


def plain(X, Y, TX, TY, max_iter):
    value, slope = explicit(log_plan(X @ Y.T, EPSILON, max_iter), log_plan(TX @ TY.T, EPSILON_TEACHER, max_iter))
    return value, slope @ Y, slope.T @ X


def unrolled(X, Y, TX, TY, max_iter):
    import torch

    X, Y = X.requires_grad_(), Y.requires_grad_()
    with torch.no_grad():
        log_q = log_plan(TX @ TY.T, EPSILON_TEACHER, max_iter)
    value = (log_q.exp() * (log_q - log_plan(X @ Y.T, EPSILON, max_iter))).sum()
    return value, *torch.autograd.grad(value, (X, Y))


def implicit(X, Y, TX, TY, max_iter):
    """Differentiate the solution implicitly: the adjoint of its marginal conditions, solved by conjugate gradients
    (Eisenberger et al. 2022).
    """
    import torch

    class Plan(torch.autograd.Function):
        @staticmethod
        def forward(ctx, A):
            log_p = log_plan(A, EPSILON, max_iter)
            ctx.save_for_backward(log_p)
            return log_p

        @staticmethod
        def backward(ctx, upstream):
            P = ctx.saved_tensors[0].exp()
            alpha, beta = adjoint(P, upstream.sum(1), upstream.sum(0))
            return (upstream - P * (alpha[:, None] + beta)) / EPSILON

    X, Y = X.requires_grad_(), Y.requires_grad_()
    log_q = log_plan(TX @ TY.T, EPSILON_TEACHER, max_iter)
    value = (log_q.exp() * (log_q - Plan.apply(X @ Y.T))).sum()
    return value, *torch.autograd.grad(value, (X, Y))


def adjoint(P, right, below):
    """Solve [diag(P1) P; Pᵀ diag(Pᵀ1)] (α, β) = (right, below) by conjugate gradients preconditioned with the
    diagonal.
    """
    import torch

    n, diagonal = len(P), torch.cat((P.sum(1), P.sum(0)))
    residual = torch.cat((right, below))
    enough = 1e-6 * residual.norm()
    found, direction, before = torch.zeros_like(residual), 0.0, 1.0
    for _ in range(100):
        conditioned = residual / diagonal
        now = residual @ conditioned
        direction = conditioned + now / before * direction
        image = diagonal * direction + torch.cat((P @ direction[n:], direction[:n] @ P))
        step = now / (direction @ image)
        found, residual, before = found + step * direction, residual - step * image, now
        if residual.norm() <= enough:
            break
    return found[:n], found[n:]


def pot(X, Y, TX, TY, max_iter):
    import ot

    def plan(A, epsilon):
        w = A.new_full((len(A),), 1 / len(A))
        _, log = ot.bregman.sinkhorn_log(w, w, -A, epsilon, numItermax=max_iter, stopThr=0, warn=False, log=True)
        return A / epsilon + log["log_u"][:, None] + log["log_v"]

    value, slope = explicit(plan(X @ Y.T, EPSILON), plan(TX @ TY.T, EPSILON_TEACHER))
    return value, slope @ Y, slope.T @ X


def geomloss(X, Y, TX, TY, max_iter):
    """Solve with geomloss: for unit vectors its cost ‖x − y‖²/2 is 1 − ⟨x, y⟩, and blur² is ε, so the plan, from the
    potentials it returns, is the same.
    """
    from geomloss import SamplesLoss

    def plan(X, Y, epsilon):
        solver = SamplesLoss(
            "sinkhorn",
            p=2,
            blur=epsilon**0.5,
            diameter=2.0,
            scaling=(epsilon**0.5 / 2) ** (1 / max(max_iter - 2, 1)),
            debias=False,
            potentials=True,
            backend="tensorized",
        )
        f, g = (potential.ravel() for potential in solver(X, Y))
        return (X @ Y.T + (f[:, None] - 1) + g) / epsilon - math.log(len(X)) - math.log(len(Y))

    value, slope = explicit(plan(X, Y, EPSILON), plan(TX, TY, EPSILON_TEACHER))
    return value, slope @ Y, slope.T @ X


def dense(X, Y, TX, TY, max_iter):
    import torch

    from congruence.transport import klot

    X, Y = X.requires_grad_(), Y.requires_grad_()
    value = klot(X @ Y.T, TX @ TY.T, EPSILON, EPSILON_TEACHER, max_iter)
    return value, *torch.autograd.grad(value, (X, Y))


def features(X, Y, TX, TY, max_iter, memory=2**30, tolerance=1e-3):
    import torch

    from congruence.transport import klot_features

    X, Y = X.requires_grad_(), Y.requires_grad_()
    value = klot_features(X, Y, TX, TY, EPSILON, EPSILON_TEACHER, max_iter, tolerance, memory=memory)
    return value, *torch.autograd.grad(value, (X, Y))


def streamed(X, Y, TX, TY, max_iter):
    return features(X, Y, TX, TY, max_iter, memory=0)


def exact(X, Y, TX, TY, max_iter):
    return features(*(side.double() for side in (X, Y, TX, TY)), 2000, tolerance=1e-8)


WAYS = {f.__name__: f for f in (plain, unrolled, implicit, pot, geomloss, dense, features, streamed, exact)}
#: Modules that some of the implementations import.
MODULES = {"pot": "ot", "geomloss": "geomloss"}
LABELS = {
    "plain": "log-sum-exp, explicit gradient",
    "unrolled": "log-sum-exp, autograd through it",
    "implicit": "log-sum-exp, implicit gradient",
    "pot": "POT sinkhorn_log, explicit gradient",
    "geomloss": "geomloss, explicit gradient",
    "dense": "klot",
    "features": "klot_features, kernel held",
    "streamed": "klot_features, memory=0",
}


def child(who: str, max_iter: int, folder: Path) -> None:
    import torch

    sides = [torch.from_numpy(np.load(folder / f"{name}.npy")) for name in ("X", "Y", "TX", "TY")]
    import congruence.transport  # noqa: F401

    if who in MODULES:
        importlib.import_module(MODULES[who])
    rest = peak_mb()
    start = time.process_time()
    value, *slopes = WAYS[who](*sides, max_iter)
    seconds = time.process_time() - start
    peak = peak_mb()
    np.save(folder / f"{who}.npy", np.concatenate([slope.detach().numpy() for slope in slopes]))
    print(json.dumps({"value": value.item(), "seconds": seconds, "peak_mb": peak, "rest_mb": rest}))


def write_problem(folder: Path, n: int, d: int) -> None:
    """Write vectors of items with a 32-dimensional latent by two encoders; the student has more noise than the
    teacher.
    """
    rng = np.random.default_rng(0)
    latent = rng.standard_normal((n, 32), dtype=np.float32)
    for prefix, noise in (("", 1.0), ("T", 0.5)):
        common = rng.standard_normal((32, d), dtype=np.float32)
        for side in "XY":
            Z = latent @ common
            Z += np.float32(noise * 32**0.5) * rng.standard_normal((n, d), dtype=np.float32)
            Z /= np.linalg.norm(Z, axis=1, keepdims=True)
            np.save(folder / f"{prefix}{side}.npy", Z)


def run(who: str, max_iter: int, folder: Path) -> dict:
    command = [sys.executable, __file__, "--child", who, "--iterations", str(max_iter), "--folder", str(folder)]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def report(n: int, options: argparse.Namespace) -> dict:
    max_iter, left_out = options.iterations, []
    ways = [who for who in LABELS if who in options.ways]  # plain, which the others are compared with, comes first
    unrolled_bytes = 2 * max_iter * n * n * 4
    if "unrolled" in ways and unrolled_bytes > options.room * 1e9:
        ways.remove("unrolled")
        left_out.append(
            f"{LABELS['unrolled']}: would keep at least {unrolled_bytes / 1e9:.0f} GB, 2 n² numbers an iteration"
        )
    for who, module in MODULES.items():
        if who in ways and importlib.util.find_spec(module) is None:
            ways.remove(who)
            left_out.append(f"{LABELS[who]}: {module} is not installed")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_problem(folder, n, options.dim)
        threads = os.environ.get("OMP_NUM_THREADS", "all")
        print(
            f"\n{n:,} × {options.dim} float32, {max_iter} iterations, {options.repeat} runs each, in turn, "
            f"threads: {threads}"
        )
        for reason in left_out:
            print(f"  left out: {reason}")
        converged = None
        if n <= options.exact:
            value = run("exact", max_iter, folder)["value"]
            converged = np.load(folder / "exact.npy")
            print(f"  converged, float64: {value:.6f}", flush=True)
        results: dict[str, list[dict]] = {who: [] for who in ways}
        for turn in range(1, options.repeat + 1):
            for who, runs in results.items():
                runs.append(run(who, max_iter, folder))
                if converged is not None:
                    runs[-1]["gradient_error"] = error_of(who, folder, converged)
                if turn == options.repeat:
                    print(line(who, results), flush=True)
    return {"rows": n, "ways": results, "left_out": left_out}


def error_of(who: str, folder: Path, converged: np.ndarray) -> float:
    found = np.load(folder / f"{who}.npy")
    return float(np.linalg.norm(found - converged) / np.linalg.norm(converged))


def line(who: str, results: dict[str, list[dict]]) -> str:
    runs = results[who]
    seconds = np.median([r["seconds"] for r in runs])
    peak, rest = (max(r[key] for r in runs) for key in ("peak_mb", "rest_mb"))
    text = (
        f"  {LABELS[who]:36s} {runs[0]['value']:.6f}   {seconds:7.2f} s   peak {peak:6.0f} MB, at rest {rest:4.0f} MB"
    )
    if "plain" in results and who != "plain":
        turns = zip(results["plain"], runs, strict=True)
        time_ratio = np.median([plain["seconds"] / other["seconds"] for plain, other in turns])
        memory_ratio = max(p["peak_mb"] - p["rest_mb"] for p in results["plain"]) / (peak - rest)
        text += f"   plain takes {time_ratio:5.1f} × the time, {memory_ratio:5.1f} × the memory over rest"
    if "gradient_error" in runs[-1]:
        text += f"   gradient off by {runs[-1]['gradient_error']:.1e}"
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[2000, 5000, 10_000])
    parser.add_argument("--dim", type=int, default=256)
    parser.add_argument("--iterations", type=int, default=100)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument(
        "--exact", type=int, default=10_000, help="largest number of rows for which the converged gradient is computed"
    )
    parser.add_argument("--room", type=float, default=4.0, help="GB that autograd through the solver may keep")
    parser.add_argument("--ways", nargs="+", choices=list(LABELS), default=[who for who in LABELS if who != "streamed"])
    parser.add_argument("--child")
    parser.add_argument("--folder", type=Path)
    add_json(parser)
    options = parser.parse_args()
    if options.child:
        child(options.child, options.iterations, options.folder)
        return
    write_json(options, [report(n, options) for n in options.rows])


if __name__ == "__main__":
    main()
