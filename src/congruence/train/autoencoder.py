"""JAM's autoencoder of one model's vectors, as plain-data layers, and what it costs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

import numpy as np

from congruence._utils.optional import require
from congruence._utils.typing import Layer

__all__ = ["Cost", "autoencoder", "count", "in_units"]

Layers: TypeAlias = list[Layer]


@dataclass(frozen=True)
class Cost:
    """What layers hold and do.

    Attributes
    ----------
    parameters : int
        Trained numbers.
    flops : int
        Multiplications and additions of the matrix products a row takes, two to a weight; what is done to single entries is left out.
    """

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
    """Return an encoder and its decoder with initial weights.

    Parameters
    ----------
    d_input : int
        Width of the model's vectors.
    rng : numpy.random.Generator
    hidden : sequence of int, default=(512, 512, 512)
        Widths of the stages between, narrowing or not; none make both sides linear.
    latent : int, default=256
        Width of the joint space.
    dropout : float, default=0.1
        Share of entries left out while training.

    Returns
    -------
    encoder, decoder : list of dict
        Layers as :meth:`congruence.HeadsMap.from_layers` takes them, but for ``dropout``, which acts while training only.

    Raises
    ------
    MissingExtraError

    Notes
    -----
    A stage is a dense layer and a residual block of LayerNorm, SwiGLU, dropout and another dense layer, all of the stage's width. A last dense
    layer leads to the latent space. The decoder passes through the widths the other way.

    The paper names these parts and leaves open how they stand together. With LayerNorm and SwiGLU between the dense layers instead, every row would
    have to pass through three products of two small numbers, which at the start are nearly even functions: on real features such
    encoders learned less in the same steps, and reconstructed worse.

    References
    ----------
    Yoon, Yue and Kim (2025), "Escaping Plato's Cave: JAM", section 3 and appendix D.2; Shazeer (2020), "GLU variants improve transformer".
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
        block = [_norm(width), gated, *drop, linear(width, width, rng)]
        layers += [linear(d_in, width, rng), {"kind": "residual", "layers": block}]
    return [*layers, linear(widths[-1], d_out, rng)]


def _norm(width: int) -> Layer:
    return {
        "kind": "layernorm",
        "weight": np.ones(width, np.float32),
        "bias": np.zeros(width, np.float32),
        "eps": 1e-5,
    }


def count(layers: Iterable[Layer]) -> Cost:
    """Count the parameters of layers and the operations a row takes.

    Parameters
    ----------
    layers : sequence of dict
        As of :meth:`congruence.HeadsMap.layers`.

    Returns
    -------
    Cost

    Examples
    --------
    >>> import numpy as np
    >>> from congruence.train.autoencoder import count
    >>> count([{"kind": "linear", "weight": np.ones((3, 2)), "bias": np.ones(2)}])
    Cost(parameters=8, flops=12)
    """
    total = Cost(0, 0)
    for layer in layers:
        if layer["kind"] == "residual":
            total += count(layer["layers"])
        elif layer["kind"] != "center":  # a mean is not trained
            arrays = [value for value in layer.values() if isinstance(value, np.ndarray)]
            total += Cost(sum(a.size for a in arrays), sum(2 * a.size for a in arrays if a.ndim == 2))
    return total


def in_units(encoder: Layers, decoder: Layers, mean: np.ndarray, scale: float) -> tuple[Layers, Layers]:
    """Return layers for rows as they come, given layers trained on rows less ``mean``, divided by ``scale``.

    The first dense layer takes up the scale and a layer before it the mean; the decoder's last layer takes up both.
    """
    first, last = encoder[0], decoder[-1]
    divided = {"weight": first["weight"] / np.float32(scale)}
    multiplied = {
        "weight": last["weight"] * np.float32(scale),
        "bias": (last["bias"] * np.float64(scale) + mean).astype(np.float32),
    }
    center = {"kind": "center", "mean": mean.astype(np.float32)}
    return [center, {**first, **divided}, *encoder[1:]], [*decoder[:-1], {**last, **multiplied}]
