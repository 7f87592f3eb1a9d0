"""Error and processor time of KLOT's gradient: ours, plain kernel scaling, and other packages.

Plain scaling with row maxima is the best short alternative: twelve lines of torch. It runs for 100 iterations, as in
the SOTAlign paper, and stopped by an oracle at the first iterations whose gradient is as accurate as ours. Float32,
ε = 0.05 and 0.01, on Gaussian rows and on real embeddings (``--data``) with the affinities of a CCA teacher. Errors are
relative, in L1 norm, to a gradient in float64 whose promised error is 3e-5. All arms run in turn in one process; times
are processor times of all threads, the smallest of ``--repeat`` rounds (two from 4,000 rows). The log-domain solvers of
other packages run for 100 iterations, in two rounds, with up to ``--peers`` rows. ``--record klot`` writes the record.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from threadpoolctl import threadpool_limits

from common import arguments, write_json
from congruence.errors import ConvergenceWarning
from congruence.maps import CCAMap
from congruence.transport import klot, sinkhorn

EPSILON, EPSILON_TEACHER, PLAIN, MOST, REFERENCE = 0.05, 0.01, 100, 3000, 3e-5
#: From this many rows, this many rounds.
LARGE, FEW = 4000, 2
#: X, Y, TX, TY: vectors of the student and of the teacher.
Sides = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def unit(rows: np.ndarray) -> np.ndarray:
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def gaussian(n: int) -> Sides:
    rng = np.random.default_rng(0)
    X, Y, TX, TY = (unit(rng.standard_normal((n, 256))) for _ in range(4))
    return X, Y, TX, TY


def of_teacher(X: np.ndarray, Y: np.ndarray, n: int, pairs: int) -> Sides:
    """Return vectors of random heads and of a CCA teacher for unpaired rows that it has not seen."""
    rng = np.random.default_rng(0)
    rows = rng.permutation(len(X))
    teacher = CCAMap(ridge=10.0).fit(X[rows[:pairs]], Y[rows[:pairs]])
    A, B = X[rows[pairs : pairs + n]], Y[rows[pairs : pairs + n]]
    heads = [unit((side - side.mean(0)) @ rng.standard_normal((side.shape[1], 256))) for side in (A, B)]
    return heads[0], heads[1], unit(teacher.transform(A)), unit(teacher.transform_target(B))


def near_teacher(X: np.ndarray, Y: np.ndarray, n: int) -> Sides:
    """Return vectors of a teacher and of a student close to it."""
    rng = np.random.default_rng(0)
    teacher = CCAMap(ridge=1.0).fit(X[:200], Y[:200])
    A, B = unit(teacher.transform(X[-n:])), unit(teacher.transform_target(Y[-n:]))
    student = [unit(side + 0.05 * rng.standard_normal(side.shape) / side.shape[1] ** 0.5) for side in (A, B)]
    return student[0], student[1], A, B


def problems(folder: Path) -> dict[str, Callable[[], Sides]]:
    def read(file: str, *keys: str) -> list[np.ndarray]:
        with np.load(folder / file, allow_pickle=False) as data:
            return [data[key].astype(np.float32) for key in keys]

    def photos(n: int) -> Sides:
        return of_teacher(*read("caltech101_unimodal.npz", "image_effnet_lite0", "image_mobilenet_v2"), n, 300)

    def clip() -> Sides:
        image, text = read("lvis1203_clip.npz", "image_openai_vitb32_avg5", "text_openai_vitb32")
        return image[:1000], text[:1000], image[:1000], text[:1000]

    return {
        "photos and texts, CCA teacher, 800": lambda: of_teacher(
            *read("imagenet1000_unimodal.npz", "image_effnet_lite0", "text_mpnet"), 800, 200
        ),
        "Gaussian rows, 1,000": lambda: gaussian(1000),
        "CLIP's image-text cosines, 1,000": clip,
        "photos, CCA teacher, 1,000": lambda: photos(1000),
        "texts, student near the teacher, 1,000": lambda: near_teacher(
            *read("lvis1203_clip.npz", "text_openai_vitb32", "text_openai_vitb16"), 1000
        ),
        "Gaussian rows, 4,000": lambda: gaussian(4000),
        "photos, CCA teacher, 4,000": lambda: photos(4000),
        "Gaussian rows, 10,000": lambda: gaussian(10_000),
        "photos, CCA teacher, 8,000": lambda: photos(8000),
    }


def scaled(A: torch.Tensor, epsilon: float, iterations: int) -> torch.Tensor:
    """Return the plan after plain iterations."""
    n, m = A.shape
    K = A / epsilon
    K.sub_(K.max(1, keepdim=True).values).exp_()
    b = torch.full((m,), 1 / m, dtype=A.dtype)
    for _ in range(iterations):
        a = (1 / n) / (K @ b)
        b = (1 / m) / (K.T @ a)
    return K.mul_(a[:, None]).mul_(b)


def plain(A: torch.Tensor, T: torch.Tensor, student: int = PLAIN, teacher: int = PLAIN) -> torch.Tensor:
    P, Q = scaled(A, EPSILON, student), scaled(T, EPSILON_TEACHER, teacher)
    (Q * (Q.clamp_min(1e-38).log() - P.clamp_min(1e-38).log())).sum()
    return (P - Q) / EPSILON


def log_plan(A, epsilon, max_iter):
    """Log-domain Sinkhorn with a log-sum-exp in each half step, as published."""
    n, m = A.shape
    M = A / epsilon
    u, v = M.new_zeros(n), M.new_zeros(m)
    for _ in range(max_iter):
        u = -np.log(n) - torch.logsumexp(M + v[None, :], dim=1)
        v = -np.log(m) - torch.logsumexp(M + u[:, None], dim=0)
    return M + u[:, None] + v[None, :]


def explicit(log_p, log_q):
    """Return the value and the gradient (P − P*)/ε with respect to the student's affinities."""
    P, Q = log_p.exp(), log_q.exp()
    return (Q * (log_q - log_p)).sum(), (P - Q) / EPSILON


def oracle(A: torch.Tensor, epsilon: float, exact: torch.Tensor, error: float) -> int:
    """Return the number of plain iterations after which a plan is as close to the exact one as ``error``, L1."""
    n, m = A.shape
    K = A / epsilon
    K.sub_(K.max(1, keepdim=True).values).exp_()
    b = torch.full((m,), 1 / m, dtype=A.dtype)
    for k in range(1, MOST):
        a = (1 / n) / (K @ b)
        b = (1 / m) / (K.T @ a)
        # The marginal error is never above the plan's: look at the whole plan only where it may be close enough.
        near = float((a * (K @ b) - 1 / n).abs().sum()) <= error and (k < 20 or k % 5 == 0)
        if near and float((K * a[:, None] * b - exact).abs().sum()) <= error:
            return k
    return MOST


def pot(A, epsilon):
    import ot

    w = A.new_full((len(A),), 1 / len(A))
    _, log = ot.bregman.sinkhorn_log(w, w, -A, epsilon, numItermax=PLAIN, stopThr=0, warn=False, log=True)
    return A / epsilon + log["log_u"][:, None] + log["log_v"]


def ott(A, epsilon):
    from ott.geometry.geometry import Geometry
    from ott.problems.linear.linear_problem import LinearProblem
    from ott.solvers.linear.sinkhorn import Sinkhorn

    found = Sinkhorn(threshold=0.0, min_iterations=PLAIN, max_iterations=PLAIN)(
        LinearProblem(Geometry(cost_matrix=-A.numpy(), epsilon=epsilon))
    )
    return torch.from_numpy(np.log(np.array(found.matrix)))


def geomloss(X, Y, epsilon):
    """For unit vectors geomloss's cost ‖x − y‖²/2 is 1 − ⟨x, y⟩, and blur² is ε; ε falls to it in 100 iterations."""
    from geomloss import SamplesLoss

    steps = (epsilon**0.5 / 2) ** (1 / (PLAIN - 2))
    options = {"blur": epsilon**0.5, "diameter": 2.0, "scaling": steps, "debias": False, "potentials": True}
    solver = SamplesLoss("sinkhorn", p=2, backend="tensorized", **options)
    f, g = (potential.ravel() for potential in solver(X, Y))
    return (X @ Y.T + (f[:, None] - 1) + g) / epsilon - np.log(len(X)) - np.log(len(Y))


def peers(sides: list[torch.Tensor]) -> dict[str, Callable[[], torch.Tensor]]:
    X, Y, TX, TY = sides
    A, T = X @ Y.T, TX @ TY.T
    return {
        "log-sum-exp": lambda: explicit(log_plan(A, EPSILON, PLAIN), log_plan(T, EPSILON_TEACHER, PLAIN))[1],
        "POT": lambda: explicit(pot(A, EPSILON), pot(T, EPSILON_TEACHER))[1],
        "ott-jax": lambda: explicit(ott(A, EPSILON), ott(T, EPSILON_TEACHER))[1],
        "geomloss": lambda: explicit(geomloss(X, Y, EPSILON), geomloss(TX, TY, EPSILON_TEACHER))[1],
    }


def measure(name: str, arrays: Sides, options: argparse.Namespace) -> list[dict]:
    """Return the rows of the table of one problem."""
    sides = [torch.as_tensor(np.ascontiguousarray(side)) for side in arrays]
    X, Y, TX, TY = sides
    A, T = X @ Y.T, TX @ TY.T
    exact = A.double().requires_grad_()
    value, known = klot(
        exact, T.double(), EPSILON, EPSILON_TEACHER, max_iter=5000, tolerance=REFERENCE, return_info=True
    )
    value.backward()
    size = exact.grad.abs().sum()
    info = {}

    def ours() -> torch.Tensor:
        given = A.detach().requires_grad_()
        value, info["klot"] = klot(given, T, EPSILON, EPSILON_TEACHER, return_info=True)
        value.backward()
        return given.grad

    def error(found: torch.Tensor) -> float:
        return float((found - exact.grad).abs_().sum() / size)

    room = error(ours()) * float(size) * EPSILON  # of the plans, L1; a tenth is the student's
    counts = []
    for M, epsilon, at, share in ((A, EPSILON, known.student, 0.1), (T, EPSILON_TEACHER, known.teacher, 0.9)):
        plan = (M.double().div_(epsilon).add_(at.u[:, None]).add_(at.v)).exp_().float()
        counts.append(oracle(M, epsilon, plan, share * room))
        del plan
    usual, stopped = f"plain, {PLAIN} iterations", "plain, oracle"
    arms = {"klot": ours, usual: lambda: plain(A, T), stopped: lambda: plain(A, T, *counts)}
    rows = []
    for threads in options.threads:
        torch.set_num_threads(threads)
        with threadpool_limits(threads, "blas"):
            others = peers(sides) if len(A) <= options.peers and threads == options.threads[0] else {}
            times: dict[str, list[float]] = {}
            errors: dict[str, float] = {}
            for turn in range(options.repeat if len(A) < LARGE else FEW):
                for arm, run in (arms | ({} if turn > 1 else others)).items():
                    if turn and arm == stopped and len(A) >= LARGE:
                        continue  # minutes
                    try:
                        started = time.process_time()
                        slope = run()
                        times.setdefault(arm, []).append(time.process_time() - started)
                    except ImportError as missing:
                        print(f"{arm} is left out: {missing}", flush=True)
                        continue
                    errors[arm] = error(slope)
                    del slope
        for arm, seconds in times.items():
            row = {"problem": name, "threads": threads, "arm": arm, "seconds": min(seconds), "error": errors[arm]}
            if arm == "klot":
                row["promised"] = info["klot"].gradient_error
                row["iterations"] = [info["klot"].student.n_iter, info["klot"].teacher.n_iter]
            elif arm == stopped:
                row["iterations"] = counts
            row["relative"] = [min(seconds) / min(times[other]) for other in (usual, stopped)]
            rows.append(row)
            print(
                f"| {name} | {threads} | {arm} | {' + '.join(map(str, row.get('iterations', [])))} "
                f"| {row.get('promised', 0):.1e} | {errors[arm]:.1e} | {min(seconds):.3f} "
                f"| {row['relative'][0]:.2f} | {row['relative'][1]:.2f} |",
                flush=True,
            )
    torch.set_num_threads(1)
    return rows


def draw(folder: Path, file: Path) -> list[dict]:
    """Draw the error of the teacher's plan against the number of passes over its kernel."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "klot"
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6.4, 3.6), layout="constrained")
    curves = []
    names = ("Gaussian rows, 1,000", "photos, CCA teacher, 1,000")
    for color, name in zip(("tab:blue", "tab:orange"), names, strict=True):
        T = (lambda X, Y, TX, TY: TX @ TY.T)(*problems(folder)[name]()).astype(np.float64)
        exact = sinkhorn(T, EPSILON_TEACHER, 5000, 1e-5).plan()
        passes = np.unique(np.geomspace(3, 200, 20).astype(int))
        M = torch.from_numpy(T)
        for style, label, solve in (
            ("-", "accelerated", lambda k, T=T: sinkhorn(T, EPSILON_TEACHER, k, 1e-9).plan()),
            ("--", "plain", lambda k, M=M: scaled(M, EPSILON_TEACHER, k).numpy()),
        ):
            errors = [float(np.abs(solve(int(k)) - exact).sum()) for k in passes]
            axes.loglog(passes, errors, style, color=color, label=f"{name}: {label}")
            curves.append({"problem": name, "form": label, "passes": passes, "errors": errors})
    axes.axhline(2e-3, color="gray", linewidth=0.8)
    axes.set_ylim(5e-5, 2)
    axes.set_xlabel("passes over the kernel")
    axes.set_ylabel("L1 error of the teacher's plan")
    axes.legend(fontsize=8)
    figure.savefig(file, metadata={"Date": None})
    return curves


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--data", type=Path, default=Path(__file__).parents[2] / "shared" / "data")
    parser.add_argument("--repeat", type=int, default=5, help="rounds")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--most", type=int, default=10_000, help="largest number of rows")
    parser.add_argument("--peers", type=int, default=800, help="largest number of rows for other packages")
    parser.add_argument("--figure", type=Path, help="only draw the error against the passes into this file")
    options = parser.parse_args()
    warnings.simplefilter("ignore", ConvergenceWarning)
    torch.set_num_threads(1)
    if options.figure:
        write_json(options, draw(options.data, options.figure))
        return
    results = []
    print("| problem | threads | method | iterations | promised error | error | seconds | ÷ plain, 100 | ÷ oracle |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    with threadpool_limits(1, "blas"):
        for name, make in problems(options.data).items():
            sides = make()
            if len(sides[0]) <= options.most:
                results += measure(name, sides, options)
                write_json(options, results)  # so far
    write_json(options, results)


if __name__ == "__main__":
    main()
