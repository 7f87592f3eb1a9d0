"""Error and processor time of KLOT's gradient: ours, and plain kernel scaling with row maxima for 100 iterations.

Plain scaling is the best short alternative: twelve lines of torch. Float32, ε = 0.05 and 0.01, on Gaussian rows and on
real embeddings (``../shared/data``) with the affinities of a CCA teacher. Errors are relative, in L1 norm, to a
gradient in float64 whose promised error is 1e-6. Both arms run in turn in one process; times are processor times,
the smallest of ``--repeat`` runs.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from congruence.errors import ConvergenceWarning
from congruence.maps import CCAMap
from congruence.transport import klot
from machine_output import add_json, write_json

EPSILON, EPSILON_TEACHER, PLAIN = 0.05, 0.01, 100


def unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def gaussian(n: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X, Y, TX, TY = (unit(rng.standard_normal((n, 256))).astype(np.float32) for _ in range(4))
    return X @ Y.T, TX @ TY.T


def of_teacher(X: np.ndarray, Y: np.ndarray, n: int, pairs: int, ridge: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the affinities of random heads and of a CCA teacher for unpaired rows that it has not seen."""
    rng = np.random.default_rng(0)
    rows = rng.permutation(len(X))
    teacher = CCAMap(ridge=ridge).fit(X[rows[:pairs]], Y[rows[:pairs]])
    A, B = X[rows[pairs : pairs + n]], Y[rows[pairs : pairs + n]]
    sides = [unit((side - side.mean(0)) @ rng.standard_normal((side.shape[1], 256))) for side in (A, B)]
    taught = unit(teacher.transform(A)), unit(teacher.transform_target(B))
    return sides[0] @ sides[1].T, taught[0] @ taught[1].T


def near_teacher(X: np.ndarray, Y: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the affinities of a teacher and of a student close to it."""
    rng = np.random.default_rng(0)
    teacher = CCAMap(ridge=1.0).fit(X[:200], Y[:200])
    A, B = unit(teacher.transform(X[-n:])), unit(teacher.transform_target(Y[-n:]))
    student = [unit(side + 0.05 * rng.standard_normal(side.shape) / side.shape[1] ** 0.5) for side in (A, B)]
    return student[0] @ student[1].T, A @ B.T


def problems(folder: Path) -> dict[str, Callable[[], tuple[np.ndarray, np.ndarray]]]:
    def read(file: str, *keys: str) -> list[np.ndarray]:
        with np.load(folder / file, allow_pickle=False) as data:
            return [data[key].astype(np.float32) for key in keys]

    def photos(n: int) -> tuple[np.ndarray, np.ndarray]:
        return of_teacher(*read("caltech101_unimodal.npz", "image_effnet_lite0", "image_mobilenet_v2"), n, 300, 10.0)

    def clip() -> tuple[np.ndarray, np.ndarray]:
        image, text = read("lvis1203_clip.npz", "image_openai_vitb32_avg5", "text_openai_vitb32")
        return image[:1000] @ text[:1000].T, image[:1000] @ text[:1000].T

    return {
        "Gaussian rows, 1,000": lambda: gaussian(1000),
        "Gaussian rows, 4,000": lambda: gaussian(4000),
        "CLIP's image-text cosines, 1,000": clip,
        "photos, CCA teacher, 1,000": lambda: photos(1000),
        "photos, CCA teacher, 4,000": lambda: photos(4000),
        "photos and texts, CCA teacher, 800": lambda: of_teacher(
            *read("imagenet1000_unimodal.npz", "image_effnet_lite0", "text_mpnet"), 800, 200, 10.0
        ),
        "texts, student near the teacher, 1,000": lambda: near_teacher(
            *read("lvis1203_clip.npz", "text_openai_vitb32", "text_openai_vitb16"), 1000
        ),
    }


def scaled(A: torch.Tensor, epsilon: float) -> torch.Tensor:
    n, m = A.shape
    K = A / epsilon
    K.sub_(K.max(1, keepdim=True).values).exp_()
    b = torch.full((m,), 1 / m)
    for _ in range(PLAIN):
        a = (1 / n) / (K @ b)
        b = (1 / m) / (K.T @ a)
    return K.mul_(a[:, None]).mul_(b)


def plain(A: torch.Tensor, T: torch.Tensor) -> torch.Tensor:
    P, Q = scaled(A, EPSILON), scaled(T, EPSILON_TEACHER)
    (Q * (Q.clamp_min(1e-38).log() - P.clamp_min(1e-38).log())).sum()
    return (P - Q) / EPSILON


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path(__file__).parents[2] / "shared" / "data")
    parser.add_argument("--repeat", type=int, default=5)
    add_json(parser)
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", ConvergenceWarning)
    print("| problem | iterations | promised error | error | plain's error | time ÷ plain's | seconds |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    results = []
    for name, make in problems(options.data).items():
        A, T = (torch.as_tensor(side, dtype=torch.float32) for side in make())

        def ours(A: torch.Tensor = A, T: torch.Tensor = T):
            given = A.clone().requires_grad_()
            value, info = klot(given, T, EPSILON, EPSILON_TEACHER, return_info=True)
            value.backward()
            return given.grad, info

        times: list[list[float]] = [[], []]
        for _ in range(options.repeat):
            started = time.process_time()
            slope, info = ours()
            times[0].append(time.process_time() - started)
            started = time.process_time()
            rival = plain(A, T)
            times[1].append(time.process_time() - started)
        exact = A.double().requires_grad_()
        klot(exact, T.double(), EPSILON, EPSILON_TEACHER, max_iter=5000, tolerance=1e-6).backward()
        errors = [float((found.double() - exact.grad).abs().sum() / exact.grad.abs().sum()) for found in (slope, rival)]
        seconds, theirs = (min(side) for side in times)
        results.append(
            {
                "problem": name,
                "iterations": [info.student.n_iter, info.teacher.n_iter],
                "promised": info.gradient_error,
                "error": errors[0],
                "plain_error": errors[1],
                "seconds": seconds,
                "plain_seconds": theirs,
            }
        )
        print(
            f"| {name} | {info.student.n_iter} + {info.teacher.n_iter} | {info.gradient_error:.1e} | {errors[0]:.1e} "
            f"| {errors[1]:.1e} | {seconds / theirs:.2f} | {seconds:.3f} |",
            flush=True,
        )
    write_json(options, results)


if __name__ == "__main__":
    main()
