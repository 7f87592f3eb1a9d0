"""Tables of docs/theory.md and docs/transport.md."""

from __future__ import annotations

from typing import Any

import numpy as np

from measured.blocks import Block, minus, table
from measured.jobs import JOBS

_KERNELS = {
    "sample, image–text, as they are": "sample, image–text",
    "sample, image–image, as they are": "sample, image–image",
    "sample, text–text, as they are": "sample, text–text",
    "LVIS, text–text, ViT-B/32 and eva02_b16": "LVIS texts, OpenAI ViT-B/32 and EVA-02 B/16",
    "LVIS, text–text, ViT-B/32 and openai_vitb16": "LVIS texts, OpenAI ViT-B/32 and ViT-B/16",
}


#: Number of finite worlds over which the tables take the median.
_WORLDS = 10


def kernels(results: list[Any]) -> str:
    """Return the agreement of kernels; for kernels within one modality of the sample, only the plain one."""
    rows = []
    for one in results[0]["results"]["kernels"]:
        words, relation = _KERNELS.get(one["kernel"]), one["relation"]
        if words is None or (relation != "raw" and words in ("sample, image–image", "sample, text–text")):
            continue
        slope, constant = one["line"]
        line = {"raw": "K̃", "constant": f"K̃ {constant:+.2f}", "affine": f"{slope:.2f} K̃ {constant:+.2f}"}[relation]
        line = minus(line).replace("+", "+ ")
        scores = [f"{one['epsilon']:.3f}", line, f"{one['rmse']:.3f}", f"{one['median']:.3f} / {one['most']:.3f}"]
        first = relation == "raw"
        rows.append([words * first, f"`{relation}`", *scores, f"{one['correlation']:.3f}" * first])
    return table(["kernel", "relation", "ε", "line", "rmse", "median / 99 % quantile", "correlation"], rows)


def curations() -> str:
    """Return the best scores of data sets chosen from worlds of four topics, and the loss of a critic of the world on them."""
    from congruence.theory import (  # fmt: skip
        critic_gap,
        curate,
        independent_weights,
        kernel_agreement,
        latent_joint,
        pmi,
        realize_critic,
    )

    found: dict[str, list[list[float]]] = {}
    for seed in range(_WORLDS):
        P = latent_joint(12, 10, 4, concentration=0.3, random_state=seed)
        rng = np.random.default_rng(seed)
        one = np.ones(12), np.ones(10)
        topic = P[0] / P.sum(axis=0)
        ways = {
            "independent (C.10), weights 0.1 to 1.9": independent_weights(P, strength=0.9, random_state=seed),
            "random weights of texts, 0.1 to 1.9": (one[0], rng.uniform(0.1, 1.9, 10)),
            "texts weighted by p(one image given the text)": (one[0], topic / topic.mean()),
        }
        world = realize_critic(pmi(P), random_state=seed)
        for words, weights in ways.items():
            chosen = curate(P, *weights)
            own = realize_critic(pmi(chosen.joint), random_state=seed + 1)
            agreed = kernel_agreement(world.images, world.texts, own.images, own.texts, "affine")
            gap = critic_gap(pmi(P), chosen.joint)
            apart = np.abs(chosen.joint - P).sum() / 2
            found.setdefault(words, []).append([apart, chosen.departure, gap.spread / 2, agreed.epsilon, gap.excess])
    rows = []
    for words, values in found.items():
        middle = [value if value > 1e-9 else 0.0 for value in np.median(values, axis=0)]
        rows.append([words, *(f"{value:.3f}" if value else "0" for value in middle[:4]), f"{middle[4]:.4f}" if middle[4] else "0"])  # fmt: skip
    header = [
        "curation",
        "total variation",
        "departure, C.9 (nats)",
        "departure, measured (nats)",
        "ε of cosines",
        "excess loss (nats)",
    ]
    return table(header, rows)


def ranks() -> str:
    """Return how closely dual encoders of d dimensions approximate the pointwise mutual information of a world, and the best possible approximation."""
    from congruence.theory import critic_rank, latent_joint, pmi, realize_critic

    dims, columns = (3, 4, 6, 8, 12, 16, 20), {}
    for topics in (3, 10):
        least, reached = [], []
        for seed in range(_WORLDS):
            K = pmi(latent_joint(24, 20, topics, concentration=0.3, random_state=seed))
            found = critic_rank(K)
            scale = K.std()
            least.append([found.rms_error(d) / scale for d in dims])
            reached.append([np.sqrt(np.mean((realize_critic(K, dim=d).scores - K) ** 2)) / scale for d in dims])
        columns[f"{topics} topics: lower bound"] = np.median(least, axis=0)
        columns[f"{topics} topics: `realize_critic`"] = np.median(reached, axis=0)
    rows = zip(*columns.values(), strict=True)
    return table(["d", *columns], [[str(d), *(f"{value:.3f}" for value in row)] for d, row in zip(dims, rows, strict=True)])  # fmt: skip


def maps(results: list[Any]) -> str:
    rows = [
        [one["map"], f"{one['images']:.2f}", f"{one['texts']:.2f}"]
        for one in results[0]["results"]["maps"]
        if one["rows"] == "as they are"
    ]
    return table(["map M", "images: ‖f̃ − M f‖", "texts: ‖g − Mᵀ g̃‖"], rows)


def digits(value: float) -> str:
    """Format with two digits, or three from 10 on."""
    return f"{value:.2g}" if value < 10 else f"{value:.3g}"


def bounds(results: list[Any]) -> str:
    """Return the bounds on the sample, with the rotation fitted on the images."""
    found = results[0]["results"]
    _, polar, texts, first = (b for b in found["bounds"] if b["rows"] == "as they are")
    (ranks,) = (r for r in found["ranks"] if r["rows"] == "as they are")
    rows = [
        ["C.23, Q from A, images", f"{polar['measured']:.2f}", "∞", digits(polar["sharp"]),
         f"1,595 images cannot span Sym(64); ‖A − Q‖ = {polar['conditions']['polar_distance']:.2g}"],
        ["C.25, texts", f"{texts['measured']:.2f}", digits(texts["promised"]), digits(texts["sharp"]),
         f"ε′ = {texts['conditions']['epsilon']:.2f}, δ_f = {texts['conditions']['delta_f']:.2f}, σ_min(F) = {texts['conditions']['sigma_min']:.2f}"],
        ["C.28, r = 1", f"{first['measured']:.2f}", digits(first["promised"]), digits(first["sharp"]), f"σ₁(F) = {first['conditions']['sigma_min']:.1f}"],
    ]  # fmt: skip
    for r in ("4", "16"):
        measured, bound, _ = ranks[r]
        rows.append([f"C.28, r = {r}", f"{measured:.2f}", f"{bound:.1f}", "", ""])
    return table(["theorem", "measured error", "bound", "`sharp`", "conditions"], rows)


def looseness(results: list[Any]) -> str:
    found = results[0]["results"]["random"]["lines"]
    rows = [[str(one["d"]), one["disturbance"], *(cell.replace("%", " %") for cell in one["cells"])] for one in found]
    header = ["C.21: A on images", "C.23: Q on images", "C.25: Q on texts", "C.28: Q on texts, half the rank"]
    return table(["d", "perturbation", *header], rows)


def power(value: float) -> str:
    """Format an error: two digits and an exponent if it is far above rounding errors, one digit otherwise."""
    text = f"{value:.0e}" if value < 1e-9 else f"{value:.1e}"
    mantissa, exponent = text.split("e")
    return f"{mantissa}e{int(exponent)}"


def sinkhorn(results: list[Any]) -> str:
    rows = [[f"{one['epsilon']:g}", power(one["error"]), f"{one['iterations']:,}"] for one in results[0]]
    return table(["ε", "marginal error after 100 iterations", "iterations to an error of 1e-6"], rows)


SHOWN = {(4, 0.7): "student far from teacher: 4 dimensions, noise 0.7", (32, 0.7): "close: 32 dimensions, noise 0.7", (256, 1.0): "closest: 256 dimensions, noise 1"}  # fmt: skip


def convergence(results: list[Any]) -> str:
    """Return the error of KLOT's gradient for three of the six problems."""

    def short(value: float) -> str:
        mantissa, exponent = f"{value:.0e}".split("e")
        return "0" if value == 0 else f"{mantissa}e{int(exponent)}"

    rows = []
    for one in results[0]["results"]:
        words = SHOWN.get((one["dimensions"], one["noise"]))
        if words is None:
            continue
        errors = [
            short(one["marginal_error"]),
            short(one["marginal_error_teacher"]),
            f"{one['difference']:#.2g}".rstrip("."),
        ]
        off = [f"{100 * one[key]:.2f} %" for key in ("gradient_error", "off")]
        rows.append([words * (one["iterations"] == 50), f"{one['iterations']:,}", *errors, *off])
    header = [
        "problem",
        "iterations",
        "marginal error, student",
        "marginal error, teacher",
        "‖P − P*‖₁",
        "gradient error, reported",
        "gradient error, actual",
    ]
    return table(header, rows)


SOLVERS = {
    "plain": "plain, explicit gradient",
    "unrolled": "plain, autograd through the solver",
    "implicit": "plain, implicit gradient",
    "pot": "POT `sinkhorn_log`, explicit gradient",
    "geomloss": "geomloss, explicit gradient",
    "dense": "`klot`",
    "features": "`klot_features`, kernel in memory",
    "streamed": "`klot_features`, `memory=0`",
}


def cost(which: int = 0) -> Any:
    """Return time and memory of KLOT and its gradients compared with other solvers, for runs with the given number of rows."""

    def ratio(value: float) -> str:
        return f"{value:.0f}" if value >= 10 else f"{value:.1f}" if value >= 0.1 else f"{value:.2f}"

    def write(results: list[Any]) -> str:
        solvers = results[0]["results"][which]["ways"]
        plain = solvers["plain"]
        exact = any("gradient_error" in run for runs in solvers.values() for run in runs)
        over = {who: max(r["peak_mb"] - r["rest_mb"] for r in runs) for who, runs in solvers.items()}
        rows = []
        for who, runs in solvers.items():
            seconds = float(np.median([r["seconds"] for r in runs]))
            faster = float(np.median([p["seconds"] / r["seconds"] for p, r in zip(plain, runs, strict=True)]))
            ratios = ["1", "1"] if who == "plain" else [ratio(faster), ratio(over["plain"] / over[who])]
            time = f"{seconds:.2f}" if seconds < 1 else f"{seconds:.1f}" if seconds < 100 else f"{seconds:.0f}"
            cells = [time, ratios[0], f"{over[who]:,.0f}", ratios[1]]
            rows.append([SOLVERS[who], *cells, *([power(runs[-1]["gradient_error"])] if exact else [])])
        header = [
            "method",
            "CPU time (s)",
            "time, plain / method",
            "peak memory (MB)",
            "memory, plain / method",
            *["gradient error"] * exact,
        ]
        return table(header, rows)

    return write


BLOCKS = {
    "theory-curations": Block(curations),
    "theory-ranks": Block(ranks),
    "theory-kernels": Block(kernels, JOBS["theory"]),
    "theory-maps": Block(maps, JOBS["theory"]),
    "theory-bounds": Block(bounds, JOBS["theory"]),
    "theory-looseness": Block(looseness, JOBS["theory-random"]),
    "sinkhorn": Block(sinkhorn, JOBS["sinkhorn"]),
    "klot-convergence": Block(convergence, JOBS["klot-convergence"]),
    "klot-2000": Block(cost(), JOBS["klot-2000"]),
}
