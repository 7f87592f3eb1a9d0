"""A training step of SOTAlign and where its time goes, compared with the same step written in plain torch.

Both see the same rows, weights, teacher and hyper-parameters, and their losses are printed side by side. *Plain* holds
all logits, lets autograd differentiate, solves for the plans by plain kernel scaling and uses KLOT's explicit gradient;
ours stops where the gradient is accurate to 0.001. They run alternately, each in a separate process; memory is the peak
of the steps minus that of data, teacher and weights before.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections import defaultdict
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from common import arguments, in_process, peak_mb, write_json
from klot import EPSILON, EPSILON_TEACHER, scaled

PARTS = {
    "draw": "drawing rows",
    "heads": "heads, forward",
    "teach": "teacher's heads",
    "pairs": "loss on pairs",
    "student": "KLOT: student's plan",
    "teacher": "KLOT: teacher's plan",
    "slope": "KLOT: value and gradient",
    "backward": "backward",
    "optimizer": "optimizer",
    "rest": "the rest",
}
RATE, DECAY, ALPHA = 1e-4, 1e-5, 1e-4


class Clock:
    """Sums seconds by part of a step."""

    def __init__(self, now):
        self.now, self.steps = now, []

    @contextmanager
    def step(self):
        self.steps.append(defaultdict(float))
        start = self.now()
        yield
        whole = self.now() - start
        self.steps[-1]["rest"] = whole - sum(self.steps[-1].values())

    @contextmanager
    def part(self, name):
        start = self.now()
        try:
            yield
        finally:
            if self.steps:
                self.steps[-1][name] += self.now() - start

    def timed(self, name, function):
        def call(*args, **options):
            with self.part(name() if callable(name) else name):
                return function(*args, **options)

        return call


def forget_peak() -> float:
    """Reset the peak memory, and return its new value in MB."""
    Path("/proc/self/clear_refs").write_text("5")
    return peak_mb()


def problem(options):
    """Return pairs and unpaired rows of two encoders with a 64-dimensional latent, twice as many as a step draws."""
    rng = np.random.default_rng(0)
    sides = []
    for d in options.widths:
        common = rng.standard_normal((64, d), dtype=np.float32)
        shared = np.random.default_rng(1).standard_normal((options.pairs, 64), dtype=np.float32)
        own = rng.standard_normal((2 * options.unpaired, 64), dtype=np.float32)
        sides.append([Z @ common + 4 * rng.standard_normal((len(Z), d), dtype=np.float32) for Z in (shared, own)])
    (X, U), (Y, V) = sides
    return X, Y, U, V


def trainer(options):
    from congruence.train import SOTAlign

    return SOTAlign(
        n_components=options.dim, batch_size=options.unpaired + options.pairs, pair_batch_size=options.pairs,
        max_steps=options.steps, teacher="cca", init="random", folds=None, patience=None,  # as the plain loop has them
        epsilon=EPSILON, epsilon_teacher=EPSILON_TEACHER, divergence_weight=ALPHA, learning_rate=RATE,
        weight_decay=DECAY, schedule="constant", device="cpu",
        log_every=1,
    )  # fmt: skip


def ours(options, clock):
    """Run the library's own training loop with timers around its parts."""
    import torch

    from congruence.train import _base, _layers, optim, rows
    from congruence.transport import _autograd, divergence

    solves = []

    def which():
        solves.append(None)
        return "student" if len(solves) % 2 else "teacher"

    rows.ArrayRows.batch = clock.timed("draw", rows.ArrayRows.batch)
    _layers.Head.forward = clock.timed(lambda: "heads" if torch.is_grad_enabled() else "teach", _layers.Head.forward)
    _base.siglip_loss = clock.timed("pairs", _base.siglip_loss)
    divergence.iterate = clock.timed(which, divergence.iterate)
    _autograd.KlotFeatures.apply = staticmethod(clock.timed("slope", _autograd.KlotFeatures.apply))
    torch.Tensor.backward = clock.timed("backward", torch.Tensor.backward)
    optim.Lion.step = clock.timed("optimizer", optim.Lion.step)
    draw, move, rest, opened = _base.HeadsObjective.batch, optim.Lion.step, [], []

    def first(task, step):
        if not rest:
            rest.append(forget_peak())
        opened.append(clock.step())
        opened[-1].__enter__()
        return draw(task, step)

    def last(optimizer):
        done = move(optimizer)
        opened.pop().__exit__(None, None, None)
        return done

    _base.HeadsObjective.batch, optim.Lion.step = first, last
    X, Y, U, V = problem(options)
    mapping = trainer(options).fit(X, Y, unpaired=(U, V), verbose=False)
    return mapping.facts_["history"]["losses"]["loss"], rest[0]


def plain(options, clock):
    """Run the same steps with torch alone; rows, initial weights and teacher come from the library."""
    import torch
    from torch.nn import functional as F

    from congruence.train import ArrayRows, _layers
    from congruence.train._base import first_layers

    X, Y, U, V = problem(options)
    teacher = [_layers.Head(layers).requires_grad_(False) for layers in trainer(options).fit_teacher(X, Y).layers()]
    means, heads, rng = [], [], np.random.default_rng([0, 1])
    for pairs, own in ((X, U), (Y, V)):
        means.append(torch.from_numpy(first_layers("center", pairs, ArrayRows(own))[1]["mean"]))
        layer = _layers.linear(pairs.shape[1], options.dim, rng)
        heads.append([torch.from_numpy(layer[name]).requires_grad_() for name in ("weight", "bias")])
    scale, bias = torch.tensor(float(np.log(20.0)), requires_grad=True), torch.tensor(-10.0, requires_grad=True)
    weights = [*(w for head in heads for w in head), scale, bias]
    momenta = [torch.zeros_like(w) for w in weights]
    X, Y = torch.from_numpy(X), torch.from_numpy(Y)
    U, V = ArrayRows(U), ArrayRows(V)
    signs = 2 * torch.eye(options.pairs) - 1

    def project(rows, side):
        weight, offset = heads[side]
        return F.normalize((F.normalize(rows) - means[side]) @ weight + offset)

    losses, rest = [], forget_peak()
    for step in range(options.steps):
        with clock.step():
            with clock.part("draw"):
                u, v = (
                    torch.from_numpy(r.batch(step, options.unpaired, 104_729 * (i + 1))) for i, r in enumerate((U, V))
                )
            with clock.part("heads"):
                x, y, A, B = project(X, 0), project(Y, 1), project(u, 0), project(v, 1)
            with clock.part("teach"):
                TA, TB = F.normalize(teacher[0](u)), F.normalize(teacher[1](v))
            with clock.part("pairs"):
                loss = -F.logsigmoid(signs * (scale.exp() * x @ y.T + bias)).mean()
            S = A @ B.T
            with torch.no_grad():
                with clock.part("student"):
                    P = scaled(S, EPSILON, options.iterations)
                with clock.part("teacher"):
                    Q = scaled(TA @ TB.T, EPSILON_TEACHER, options.iterations)
                with clock.part("slope"):
                    value = (Q * (Q.clamp_min(1e-38).log() - P.clamp_min(1e-38).log())).sum()
                    slope = (P - Q) / EPSILON
            with clock.part("backward"):
                (loss + ALPHA * (slope * S).sum()).backward()
            with clock.part("optimizer"), torch.no_grad():
                for w, m in zip(weights, momenta, strict=True):
                    if w.ndim > 1:
                        w.mul_(1 - RATE * DECAY)
                    w.sub_(RATE * torch.sign(0.9 * m + 0.1 * w.grad))
                    m.mul_(0.99).add_(w.grad, alpha=0.01)
                    w.grad = None
            losses.append(loss.item() + ALPHA * value.item())
    return losses, rest


WAYS = {"ours": ours, "plain": plain}


def child(options):
    import torch

    torch.set_num_threads(options.child_threads)
    clock = Clock(time.process_time if options.cpu else time.perf_counter)
    losses, rest = WAYS[options.child](options, clock)
    print(json.dumps({"losses": losses, "steps": clock.steps, "memory": peak_mb() - rest}))


def run(who, threads, options):
    given = ["--child", who, "--child-threads", threads, "--widths", *options.widths, *["--cpu"] * options.cpu]
    for name in ("unpaired", "pairs", "dim", "iterations", "steps"):
        given += [f"--{name}", getattr(options, name)]
    return in_process(__file__, *given, env={**os.environ, "OMP_NUM_THREADS": str(threads)})


def seconds(result, name):
    """Return the median over the steps, without the first if there are more, since it also allocates memory."""
    return float(np.median([step.get(name, 0.0) for step in result["steps"][1:] or result["steps"]]))


def report(threads, options):
    results = {who: run(who, threads, options) for who in options.ways}
    a, b = options.widths
    print(
        f"\n{options.unpaired:,} unpaired rows a side and {options.pairs:,} pairs, {a} and {b} wide, joint width "
        f"{options.dim}, {options.iterations} iterations, {options.steps} steps, threads: "
        f"{threads}{', processor time' * options.cpu}"
    )
    whole = {who: sum(seconds(result, name) for name in PARTS) for who, result in results.items()}
    for name, label in PARTS.items():
        cells = [f"{seconds(r, name):9.3f} s {seconds(r, name) / whole[who]:6.1%}" for who, r in results.items()]
        print(f"  {label:26s}" + "   ".join(cells))
    print(f"  {'a step':26s}" + "   ".join(f"{s:9.3f} s       " for s in whole.values()))
    print(f"  {'memory':26s}" + "   ".join(f"{r['memory']:9.0f} MB      " for r in results.values()))
    print(f"  {'last loss':26s}" + "   ".join(f"{r['losses'][-1]:11.7f}      " for r in results.values()))
    if len(results) == 2:
        print(
            f"  plain takes {whole['plain'] / whole['ours']:.1f} × the time and "
            f"{results['plain']['memory'] / results['ours']['memory']:.1f} × the memory",
            flush=True,
        )
    return {"threads": threads, "ways": results}


def main():
    parser = arguments(__doc__)
    parser.add_argument("--unpaired", type=int, default=8192)
    parser.add_argument("--pairs", type=int, default=1024)
    parser.add_argument("--widths", type=int, nargs=2, default=[768, 1024])
    parser.add_argument("--dim", type=int, default=1024)
    parser.add_argument("--iterations", type=int, default=100, help="of the plain form")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(WAYS))
    parser.add_argument("--cpu", action="store_true", help="processor time, for one thread on a busy machine")
    parser.add_argument("--child", choices=list(WAYS), help=argparse.SUPPRESS)
    parser.add_argument("--child-threads", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options)
        return
    write_json(options, [report(threads, options) for threads in options.threads])


if __name__ == "__main__":
    main()
