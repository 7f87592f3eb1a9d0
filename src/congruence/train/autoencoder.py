"""JAM's autoencoder for one model's vectors, as plain-data layers, and its cost."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

import numpy as np

from congruence._utils.optional import require
from congruence._utils.typing import Layer

Layers: TypeAlias = list[Layer]


@dataclass(frozen=True)
class Cost:
    """Number of parameters of layers, and of multiplications and additions of the matrix products per row."""

    parameters: int
    flops: int

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.parameters + other.parameters, self.flops + other.flops)


def autoencoder(
    d_input: int,
    rng: np.random.Generator,
    hidden: Sequence[int] = (512, 512, 512),
    latent: int = 256,
    dropout: float = 0.1,
) -> tuple[Layers, Layers]:
    """Return an encoder and its decoder with initial weights, as layers for ``congruence.HeadsMap.from_layers``, plus
    ``dropout``.

    A stage is a dense layer and a residual block of LayerNorm, SwiGLU, dropout and another dense layer, all of the
    stage's width in ``hidden``; a final dense layer leads to the latent space. The decoder uses the widths in reverse
    order. The paper names these parts but not their arrangement (docs/jam.md).

    Source: Yoon, Yue and Kim (2025), "Escaping Plato's Cave: JAM", section 3 and appendix D.2.
    """
    require("torch", extra="train")
    return (
        _funnel([d_input, *hidden], latent, rng, dropout),
        _funnel([latent, *reversed(hidden)], d_input, rng, dropout),
    )


def _funnel(widths: Sequence[int], d_out: int, rng: np.random.Generator, dropout: float) -> Layers:
    from congruence.train._layers import linear

    layers: Layers = []
    for d_in, width in pairwise(widths):
        value, gate = linear(width, width, rng), linear(width, width, rng)
        gated = {**value, "kind": "swiglu", "gate_weight": gate["weight"], "gate_bias": gate["bias"]}
        drop = [{"kind": "dropout", "p": dropout}] if dropout else []
        ones, zeros = np.ones(width, np.float32), np.zeros(width, np.float32)
        norm = {"kind": "layernorm", "weight": ones, "bias": zeros, "eps": 1e-5}
        block = [norm, gated, *drop, linear(width, width, rng)]
        layers += [linear(d_in, width, rng), {"kind": "residual", "layers": block}]
    return [*layers, linear(widths[-1], d_out, rng)]


def count(layers: Iterable[Layer]) -> Cost:
    """Count the parameters of layers, as of ``congruence.HeadsMap.layers``, and the operations per row."""
    total = Cost(0, 0)
    for layer in layers:
        if layer["kind"] == "residual":
            total += count(layer["layers"])
        elif layer["kind"] != "center":  # a mean is not trained
            arrays = [value for value in layer.values() if isinstance(value, np.ndarray)]
            total += Cost(sum(a.size for a in arrays), sum(2 * a.size for a in arrays if a.ndim == 2))
    return total


def in_units(encoder: Layers, decoder: Layers, mean: np.ndarray, scale: float) -> tuple[Layers, Layers]:
    """Return layers for rows in their original scale, given layers trained on (rows − ``mean``) / ``scale``."""
    first, last = encoder[0], decoder[-1]
    divided = {"weight": first["weight"] / np.float32(scale)}
    multiplied = {
        "weight": last["weight"] * np.float32(scale),
        "bias": (last["bias"] * np.float64(scale) + mean).astype(np.float32),
    }
    center = {"kind": "center", "mean": mean.astype(np.float32)}
    return [center, {**first, **divided}, *encoder[1:]], [*decoder[:-1], {**last, **multiplied}]
