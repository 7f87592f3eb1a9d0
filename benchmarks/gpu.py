"""Transform, fit, KLOT, JAM and SOTAlign on a GPU: seconds, and the largest difference to the CPU's result.

Without a CUDA device one sentence is printed. ``--device cpu`` runs everything on the CPU twice, as a test.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from common import arguments, write_json
from congruence import OrthogonalMap
from congruence.train import JAM, SOTAlign
from congruence.transport import klot
from speed import spaces


def jobs() -> dict[str, tuple[Callable[[str], Any], float]]:
    """Return for each job a function of the device, and up to which difference results count as the same."""
    X, Y = spaces(20_000, 768, 768)
    mapping = OrthogonalMap().fit(X[:5000], Y[:5000])
    cosines = [torch.tensor(A[:2048] @ A[:2048].T) for A in (X, Y)]
    jam = {"hidden": (256,), "latent": 64, "dropout": 0.0, "max_epochs": 3, "precision": "float32"}

    def gradient(device: str) -> torch.Tensor:
        student, teacher = (A.to(device, copy=True) for A in cosines)
        klot(student.requires_grad_(), teacher).backward()
        assert student.grad is not None
        return student.grad

    def trained(trainer: Any, **given: Any) -> np.ndarray:
        fitted = trainer.fit(X[:1000], Y[:1000], verbose=False, **given)
        return np.asarray(fitted.transform(X[1000:1200]))

    return {
        "transform, 20,000 × 768": (lambda device: mapping.transform(torch.from_numpy(X).to(device)), 1e-5),
        "OrthogonalMap.fit, 20,000 × 768": (
            lambda device: OrthogonalMap().fit(*(torch.from_numpy(A).to(device) for A in (X, Y))).rotation_,
            1e-5,
        ),
        "klot with gradient, 2,048 × 2,048": (gradient, 1e-5),
        "JAM, 3 epochs of 1,000 pairs": (lambda device: trained(JAM("con", device=device, **jam)), 1e-2),  # type: ignore[arg-type]
        "SOTAlign, 10 steps of 1,024 unpaired rows": (
            lambda device: trained(
                SOTAlign(device=device, max_steps=10, teacher="procrustes", batch_size=1024, patience=None),
                unpaired=(X[2000:4000], Y[4000:6000]),
            ),
            1e-2,
        ),
    }


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    on_gpu = options.device == "cuda"
    if on_gpu and not torch.cuda.is_available():
        print("No CUDA device here, so nothing was measured.")
        return
    card = torch.cuda.get_device_name() if on_gpu else "CPU"
    print(f"| job | {card} | CPU | largest difference |\n| --- | --- | --- | --- |")
    results = []
    for name, (job, most) in jobs().items():
        seconds: dict[str, list[float]] = {options.device: [], "cpu": []}
        found = {}
        for device in seconds:
            for _ in range(options.rounds):
                if on_gpu:
                    torch.cuda.synchronize()
                started = time.perf_counter()
                out = job(device)
                if on_gpu:
                    torch.cuda.synchronize()
                seconds[device].append(time.perf_counter() - started)
                found[device] = out.detach().cpu().numpy() if isinstance(out, torch.Tensor) else out
        apart = float(np.abs(found[options.device] - found["cpu"]).max() / np.abs(found["cpu"]).max())
        best = [min(seconds[device]) for device in (options.device, "cpu")]
        verdict = f"{apart:.1e}" if apart <= most else f"{apart:.1e}, above {most:g}"
        print(f"| {name} | {best[0]:.4g} s | {best[1]:.4g} s | {verdict} |", flush=True)
        results.append({"job": name, "card": card, "seconds": seconds, "difference": apart, "most": most})
    write_json(options, results)


if __name__ == "__main__":
    main()
