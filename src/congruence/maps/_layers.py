"""The layers that a head may have: the table of their kinds, their checks, and their pass in NumPy or torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from congruence._utils.arrays import blocks, cast_like, is_tensor, namespace, normalize_rows, to_numpy
from congruence._utils.typing import Array, Layer
from congruence.errors import InputError, NotFiniteError, ParameterError, ShapeError

#: Maximum depth of nested layers, so that a saved file cannot exhaust the stack.
MAX_DEPTH = 8


class LayerKind(NamedTuple):
    """A kind of layer: its function of a layer and rows, its arrays, which entries may be absent or are not arrays.
    Shapes of arrays are in letters: "d" is the width of rows on both sides, "i" and "o" the widths of input and output.
    """

    forward: Callable[[Layer, Array], Array]
    arrays: Mapping[str, str] = {}
    optional: tuple[str, ...] = ()
    others: tuple[str, ...] = ()


def _torch() -> Any:
    import torch  # loaded already where there is a tensor

    return torch.nn.functional


def _linear(layer: Layer, x: Array) -> Array:
    if is_tensor(x):
        return _torch().linear(x, layer["weight"].T, layer.get("bias"))
    out = x @ layer["weight"]
    return out + layer["bias"] if "bias" in layer else out


def gelu(x: Array) -> Array:
    """Return x Φ(x), exactly, of an array or a tensor."""
    if is_tensor(x):
        return _torch().gelu(x)
    from scipy.special import erf

    A = to_numpy(x)
    return A * A.dtype.type(0.5) * (1 + erf(A * A.dtype.type(1 / math.sqrt(2))))


def _silu(layer: Layer, x: Array) -> Array:
    if is_tensor(x):
        return _torch().silu(x)
    from scipy.special import expit

    return x * expit(x)


def _layernorm(layer: Layer, x: Array) -> Array:
    if is_tensor(x):
        return _torch().layer_norm(x, x.shape[-1:], layer.get("weight"), layer.get("bias"), layer["eps"])
    centered = x - x.mean(axis=1, keepdims=True)
    out = centered / np.sqrt((centered**2).mean(axis=1, keepdims=True) + layer["eps"])
    out = out * layer["weight"] if "weight" in layer else out
    return out + layer["bias"] if "bias" in layer else out


def _swiglu(layer: Layer, x: Array) -> Array:
    gate = {name: layer[f"gate_{name}"] for name in ("weight", "bias") if f"gate_{name}" in layer}
    return _silu(layer, _linear(gate, x)) * _linear(layer, x)


def _complete(layer: Layer, x: Array) -> Array:
    return x + (1 - (x * x).sum(axis=-1, keepdims=True)).clip(min=0) ** 0.5 * layer["column"]


#: Every kind of layer, by the name that layers and saved maps use.
LAYERS: dict[str, LayerKind] = {
    "normalize": LayerKind(lambda layer, x: normalize_rows(x)),
    "center": LayerKind(lambda layer, x: x - layer["mean"], {"mean": "d"}),
    "linear": LayerKind(_linear, {"weight": "io", "bias": "o"}, ("bias",)),
    "complete": LayerKind(_complete, {"column": "d"}),
    "gelu": LayerKind(lambda layer, x: gelu(x)),
    "relu": LayerKind(lambda layer, x: x.clip(min=0)),
    "silu": LayerKind(_silu),
    "layernorm": LayerKind(_layernorm, {"weight": "d", "bias": "d"}, ("weight", "bias", "eps"), ("eps",)),
    "swiglu": LayerKind(
        _swiglu, {"weight": "io", "bias": "o", "gate_weight": "io", "gate_bias": "o"}, ("bias", "gate_bias")
    ),
    "residual": LayerKind(lambda layer, x: x + forward(layer["layers"], x), others=("layers",)),
}


def forward(layers: Iterable[Layer], x: Array) -> Array:
    """Apply checked layers to rows; the layers' arrays must have the rows' library, device and dtype."""
    for layer in layers:
        x = LAYERS[layer["kind"]].forward(layer, x)
    return x


def run(layers: list[Layer], rows: Array, width: int) -> Array:
    """Apply checked layers to rows (m, d), one block at a time, in the rows' own precision and library: (m, width)."""
    # The largest number of values of a row in any layer determines the size of blocks.
    widest = max([width, rows.shape[1], *(sum(array.shape) for array in flatten(layers, "")[1].values())])
    layers = cast(layers, rows)
    return in_blocks(lambda part: forward(layers, part), rows, width, 4 * widest)


def in_blocks(function: Callable[[Array], Array], rows: Array, width: int, values: int) -> Array:
    """Apply a function to rows, one block at a time, given the number of values that a row takes: (m, width)."""
    parts = blocks(len(rows), values * rows.itemsize)
    if not isinstance(rows, np.ndarray):
        return namespace(rows).concat([function(rows[part]) for part in parts])
    out = np.empty((len(rows), width), dtype=rows.dtype)
    for part in parts:
        out[part] = function(rows[part])
    return out


def cast(layers: Iterable[Layer], rows: Array) -> list[Layer]:
    """Return the layers with their arrays in the library, on the device and in the dtype of rows."""

    def convert(value: object) -> object:
        if isinstance(value, list):
            return cast(value, rows)
        return cast_like(value, rows) if isinstance(value, np.ndarray) else value

    return [{key: convert(value) for key, value in layer.items()} for layer in layers]


def check_layers(layers: object, name: str, depth: int = 0) -> list[Layer]:
    """Return layers as plain dictionaries of the kinds in ``LAYERS``, with copies of their arrays or tensors."""
    if isinstance(layers, (str, bytes, Mapping)) or not isinstance(layers, Iterable):
        raise ParameterError(f"Got {name} of type {type(layers).__name__}.", "Pass a list of layers.")
    if depth > MAX_DEPTH:
        raise ParameterError(f"Got {name} nested over {MAX_DEPTH} deep.", "Put the inner layers in the outer list.")
    return [_check_layer(layer, f"{name}[{k}]", depth) for k, layer in enumerate(layers)]


def _check_layer(layer: object, name: str, depth: int) -> Layer:
    kind = layer.get("kind") if isinstance(layer, Mapping) else None
    if not isinstance(layer, Mapping) or not isinstance(kind, str) or kind not in LAYERS:
        raise ParameterError(f"Got {name} of kind {kind!r}.", f"Pass a layer of kind {', '.join(LAYERS)}.")
    entry = LAYERS[kind]
    known = [*entry.arrays, *entry.others]
    present = {key for key, value in layer.items() if value is not None} - {"kind"}
    missing, unknown = set(known) - set(entry.optional) - present, present - set(known)
    if missing or unknown:
        keys = ("without " if missing else "with ") + ", ".join(sorted(map(str, missing or unknown)))
        raise ParameterError(f"Got {name}, a {kind} layer {keys}.", f"Pass {', '.join(known) or 'no entries'}.")
    out: Layer = {"kind": kind}
    widths: dict[str, int] = {}
    for key, letters in entry.arrays.items():
        if layer.get(key) is None:
            continue
        array = _check_array(layer[key], f"{name}.{key}", len(letters))
        for letter, size in zip(letters, array.shape, strict=True):
            if widths.setdefault(letter, size) != size:
                problem = f"Got {name}.{key} of shape {array.shape}, with {widths[letter]} in its other arrays."
                raise ShapeError(problem, "Transpose a weight of torch.nn.Linear.")
        out[key] = array
    if kind == "layernorm":
        eps = 1e-5 if layer.get("eps") is None else layer["eps"]
        if isinstance(eps, bool) or not isinstance(eps, (int, float, np.number)) or not 0 < eps <= 1:
            raise ParameterError(f"Got {name}.eps={eps!r}.", "Pass a number from 0 to 1, such as torch's 1e-5.")
        out["eps"] = float(eps)
    if kind == "residual":
        out["layers"] = check_layers(layer["layers"], f"{name}.layers", depth + 1)
    return out


def _check_array(value: object, name: str, axes: int) -> np.ndarray:
    array = to_numpy(value)
    if array.dtype.kind not in "fiu":
        raise InputError(f"Got {name} of dtype {array.dtype}; expected real numbers.", "Convert it to float32.")
    if array.ndim != axes or not array.size:
        raise ShapeError(f"Got {name} of shape {array.shape}; expected {axes} axes, none empty.", "Reshape it.")
    # A copy: a head must not change when the trainer continues to update its weights.
    array = np.array(array, dtype=np.float32 if array.dtype in (np.float16, np.float32) else np.float64, order="C")
    if not np.isfinite(array).all():
        raise NotFiniteError(f"Got NaN or inf in {name}; expected finite numbers.", "Train again with a smaller step.")
    return array


def widths(layers: Iterable[Layer], name: str, width: int | None = None) -> tuple[int | None, int | None]:
    """Return the widths of the input and output rows of checked layers; None if the layers do not determine them."""
    first, last = width, width
    for k, layer in enumerate(layers):
        place = f"{name}[{k}]"
        if layer["kind"] == "residual":
            d_in, d_out = widths(layer["layers"], f"{place}.layers", last)
            if d_in != d_out:
                problem = f"Got {place}, a residual block from {d_in} to {d_out} dimensions."
                raise ShapeError(problem, f"Let its last layer return {d_in}.")
        else:
            shapes = {
                letter: size
                for key, letters in LAYERS[layer["kind"]].arrays.items()
                if key in layer
                for letter, size in zip(letters, layer[key].shape, strict=True)
            }
            d_in, d_out = shapes.get("i", shapes.get("d")), shapes.get("o", shapes.get("d"))
        if d_in is None:
            continue
        if last is not None and d_in != last:
            problem = f"Got {place}, a {layer['kind']} layer for {d_in} dimensions, after {last}."
            raise ShapeError(problem, "Change the order of the layers.")
        first = d_in if first is None else first
        last = d_out
    return first, last


def flatten(layers: Iterable[Layer], prefix: str) -> tuple[list[Layer], dict[str, np.ndarray]]:
    """Split layers into what JSON holds and their arrays by name, such as ``source.2.weight``."""
    structure: list[Layer] = []
    arrays: dict[str, np.ndarray] = {}
    for k, layer in enumerate(layers):
        arrays |= {f"{prefix}.{k}.{key}": value for key, value in layer.items() if isinstance(value, np.ndarray)}
        entry = {key: value for key, value in layer.items() if not isinstance(value, np.ndarray)}
        if "layers" in entry:
            entry["layers"], inner = flatten(entry["layers"], f"{prefix}.{k}")
            arrays |= inner
        structure.append(entry)
    return structure, arrays


def unflatten(structure: object, arrays: dict[str, np.ndarray], prefix: str, depth: int = 0) -> list[Layer]:
    """Combine structure and arrays, which are removed from ``arrays``; the result must still be checked."""
    if not isinstance(structure, list) or depth > MAX_DEPTH:
        raise ValueError(f"layers of {prefix} that are not a list, or are nested too deep")
    layers = []
    for k, entry in enumerate(structure):
        if not isinstance(entry, dict) or set(entry) - {"kind", "eps", "layers"}:
            raise ValueError(f"layer {prefix}.{k} with unknown entries")
        names = {name: f"{prefix}.{k}.{name}" for name in LAYERS[entry["kind"]].arrays}
        layer = {**entry, **{name: arrays.pop(key) for name, key in names.items() if key in arrays}}
        if "layers" in entry:
            layer["layers"] = unflatten(entry["layers"], arrays, f"{prefix}.{k}", depth + 1)
        layers.append(layer)
    return layers
