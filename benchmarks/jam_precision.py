"""JAM in float32 and in bfloat16: recall on SugarCrepe's items, and the cost of a step at the paper's setting.

Recall is measured for both precisions on the same splits, with the same initial weights and batches. Blocks of steps of
the two precisions alternate in one run, so that other load on the machine affects both alike; ratios are taken within
each round, of processor time and of wall-clock time.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import numpy as np

from bench_jam import made
from machine_output import add_json, write_json

PRECISIONS = ("float32", "bfloat16")
EPOCHS, BATCH = 100, 32


def recalls(
    root: Path, cache: Path, tasks: list[str], losses: list[str], seeds: list[int], training: dict[str, object]
) -> list[dict[str, object]]:
    """Train in both precisions by task, loss and seed, and measure recall."""
    from congruence_papers.jam import fit_method, open_sample

    data = open_sample("sugarcrepe", root, cache=cache)
    lines: list[dict[str, object]] = []
    for task in tasks:
        for seed in seeds:
            parts = data.split(task, seed, most={"train": 256, "validation": 200})
            for loss in losses:
                for precision in PRECISIONS:
                    fitted = fit_method(loss, parts, {**training, "device": "cpu", "precision": precision}, seed)
                    found = fitted.measure(parts.items, parts.test, seed)[task]
                    error = fitted.mapping.facts_["reconstruction_error"]
                    what = {"task": task, "seed": seed, "loss": loss, "precision": precision, "n": len(parts.items)}
                    lines.append({**what, **found, "image_error": error["source"], "text_error": error["target"]})
                    print(lines[-1], flush=True)
    return lines


def step_costs(widths: list[int], items: int, rounds: int, steps: int) -> dict[str, object]:
    """Return the wall-clock and processor seconds per step by precision and round, after a warm-up round."""
    from congruence.train import JAM
    from congruence.train.captions import read_captions
    from congruence.train.jam import AutoencoderObjective
    from congruence.train.loop import Schedule, clip_gradient
    from congruence.train.optim import make_optimizer

    X, Y, N = made(items, widths)
    runs = {}
    for precision in PRECISIONS:
        jam = JAM(device="cpu", precision=precision)
        schedule = Schedule(optimizer="adamw", device="cpu", precision=precision)
        task = AutoencoderObjective(jam, read_captions(X, Y, N), None, schedule)
        runs[precision] = task, make_optimizer("adamw", task.module, jam.learning_rate, jam.weight_decay)
    clock: dict[str, list[float]] = {precision: [] for precision in PRECISIONS}
    processor: dict[str, list[float]] = {precision: [] for precision in PRECISIONS}
    at = 0
    for turn in range(rounds + 1):
        for precision, (task, optimizer) in runs.items():
            parameters = list(task.module.parameters())
            started = time.perf_counter(), time.process_time()
            for step in range(at, at + steps):
                optimizer.zero_grad(set_to_none=True)
                task.training_step(task.batch(step))["loss"].backward()
                clip_gradient(parameters, 1.0, optimizer)
                optimizer.step()
            if turn:
                clock[precision].append((time.perf_counter() - started[0]) / steps)
                processor[precision].append((time.process_time() - started[1]) / steps)
        at += steps
    return {"clock": clock, "processor": processor, "steps_of_paper": EPOCHS * -(-items // BATCH)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", type=Path, help="the folder of SugarCrepe's JSON files")
    parser.add_argument("--cache", type=Path, required=True, help="folder for vectors of captions")
    parser.add_argument("--tasks", nargs="+", default=["replace", "add", "swap"])
    parser.add_argument("--losses", nargs="+", default=["con", "negcon", "spread"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[5, 42, 55])
    parser.add_argument("--hidden", type=int, nargs="+", default=[256, 256])
    parser.add_argument("--latent", type=int, default=128)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--widths", type=int, nargs=2, default=[768, 2304])
    parser.add_argument("--items", type=int, default=700, help="number of training items at the paper's setting")
    parser.add_argument("--steps-only", action="store_true", help="measure only the cost of a step")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--steps", type=int, default=5, help="steps of each precision per round")
    parser.add_argument("--threads", type=int, default=2)
    add_json(parser)
    given = parser.parse_args()

    import torch

    torch.set_num_threads(given.threads)
    training = {"hidden": given.hidden, "latent": given.latent, "max_epochs": given.epochs, "validate_every": 2}
    load = os.getloadavg()[0]
    cost = step_costs(given.widths, given.items, given.rounds, given.steps)
    for precision in PRECISIONS:
        median = np.median(cost["clock"][precision])
        print(
            f"{precision}: {1e3 * median:.0f} ms a step, {cost['steps_of_paper'] * median:.0f} s for the paper's",
            flush=True,
        )
    found = (
        [] if given.steps_only else recalls(given.root, given.cache, given.tasks, given.losses, given.seeds, training)
    )
    machine = {"cpu_capability": torch.backends.cpu.get_cpu_capability(), "load_before": load}
    write_json(given, {"machine": machine, "steps": cost, "recalls": found})


if __name__ == "__main__":
    main()
