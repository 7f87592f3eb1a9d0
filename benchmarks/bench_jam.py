"""JAM at the paper's setting: 1,000 items, widths 768 and 2,304 (DINOv2 ViT-B, Gemma2 2B), batches of 32, 100 epochs;
and where a step's time goes.

Vectors are random with a shared latent part; times do not depend on their contents. The 700 training items of a
70–15–15 split make 22 steps per epoch. Early stopping is off, so that all epochs are run.
"""

from __future__ import annotations

import os
import time

import numpy as np

from common import arguments


def made(n, widths, seed=0):
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(n, 64))
    wrong = z + 0.5 * rng.normal(size=z.shape)
    mixes = [rng.normal(size=(64, width)) for width in widths]
    views = [z @ mixes[0], z @ mixes[1], wrong @ mixes[1]]
    return [(view + rng.normal(size=view.shape)).astype(np.float32) for view in views]


def parts_of_a_step(jam, X, Y, N, steps):
    """Return the median milliseconds of the forward pass, the backward pass, the gradient norm, and the optimizer step,
    which clips by that norm.
    """
    from congruence.train.jam import AutoencoderObjective, read_captions
    from congruence.train.loop import Schedule, clip_gradient
    from congruence.train.optim import make_optimizer

    task = AutoencoderObjective(jam, read_captions(X, Y, N), None, Schedule(optimizer="adamw", device=jam.device))
    optimizer = make_optimizer("adamw", task.module, jam.learning_rate, jam.weight_decay)
    parameters = list(task.module.parameters())
    times = []
    for step in range(steps):
        marks = [time.perf_counter()]
        optimizer.zero_grad(set_to_none=True)
        loss = task.training_step(task.batch(step))["loss"]
        marks.append(time.perf_counter())
        loss.backward()
        marks.append(time.perf_counter())
        clip_gradient(parameters, 1.0, optimizer)
        marks.append(time.perf_counter())
        optimizer.step()
        marks.append(time.perf_counter())
        times.append(np.diff(marks))
    return 1e3 * np.median(times[steps // 5 :], axis=0)


def product_rates(rows, repeat=200):
    """Return GFLOP/s of batches times a 512 × 512 weight that is not in the cache, and of two square matrices."""
    import torch

    weights = [torch.randn(512, 512) for _ in range(64)]
    rates = []
    for n in rows:
        x, times = torch.randn(n, 512), []
        for k in range(repeat):
            start = time.perf_counter()
            x @ weights[k % len(weights)]
            times.append(time.perf_counter() - start)
        rates.append(2e-9 * n * 512**2 / np.median(times))
    square, times = torch.randn(1024, 1024), []
    for _ in range(20):
        start = time.perf_counter()
        square @ square
        times.append(time.perf_counter() - start)
    return [*rates, 2e-9 * 1024**3 / np.median(times)]


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--items", type=int, default=1000)
    parser.add_argument("--widths", type=int, nargs=2, default=[768, 2304])
    parser.add_argument("--hidden", type=int, nargs="+", default=[512, 512, 512])
    parser.add_argument("--latent", type=int, default=256)
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--threads", type=int, nargs="+", default=[os.cpu_count() or 1])
    parser.add_argument("--precision", nargs="+", default=["float32"])
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()

    import torch

    from congruence.train import JAM, split_by_group
    from congruence.train.jam import autoencoder, count

    X, Y, N = made(given.items, given.widths)
    train = split_by_group(np.arange(given.items))[0]
    rng = np.random.default_rng(0)
    costs = [
        count(one) + count(two)
        for one, two in (autoencoder(width, rng, given.hidden, given.latent) for width in given.widths)
    ]
    # The backward pass takes twice as many operations as the forward pass; there are as many wrong captions as
    # captions.
    flops = 3 * 32 * (costs[0].flops + 2 * costs[1].flops)
    print(
        f"{sum(cost.parameters for cost in costs) / 1e6:.1f} M parameters, {flops / 1e9:.2f} GFLOP in the "
        "products of a step"
    )
    for threads in given.threads:
        torch.set_num_threads(threads)
        rates = ", ".join(f"{rate:.0f}" for rate in product_rates((32, 64)))
        print(f"{threads} threads: GFLOP/s of products with 32 and 64 rows, and of 1,024 × 1,024: {rates}")
        for precision in given.precision:
            shape = {"hidden": given.hidden, "latent": given.latent}
            jam = JAM(max_epochs=given.epochs, patience=None, device=given.device, precision=precision, **shape)
            parts = parts_of_a_step(jam, X[train], Y[train], N[train], 30)
            named = ", ".join(
                f"{name} {ms:.0f}" for name, ms in zip(("forward", "back", "norm", "AdamW"), parts, strict=True)
            )
            print(f"{threads} threads, {precision}: ms a step: {named}; together {parts.sum():.0f}", flush=True)
            start = time.perf_counter()
            mapping = jam.fit(X, Y, negatives=N, groups=np.arange(given.items), verbose=False)
            seconds = time.perf_counter() - start
            print(
                f"  {given.epochs} epochs, {mapping.facts_['steps']} steps: {seconds:.0f} s "
                f"({os.getloadavg()[0]:.1f} load)",
                flush=True,
            )


if __name__ == "__main__":
    main()
