"""ONNX (extra ``onnx-export``): any map as a graph that every ONNX runtime can run."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from congruence import __version__
from congruence._utils.atomic import atomic_path
from congruence._utils.optional import require
from congruence._utils.typing import Layer
from congruence.integrations._maps import as_map
from congruence.maps import Map, RoleMap

if TYPE_CHECKING:
    import onnx

    from congruence.upgrade.bridge import Bridge


#: Version of the operators, and of the file format that came with it: onnxruntime 1.14 (2023) and later read them.
OPSET = 18
IR_VERSION = 8


def to_onnx(
    mapping: Map | Bridge, *, modality: str | None = None, normalize: bool | str = "auto", side: str = "source"
) -> onnx.ModelProto:
    """Return a map of any kind as an ONNX model, with one input, ``vectors``, and one output, ``mapped``, in float32.

    It returns what ``transform_embeddings`` does, up to rounding; ``metadata_props`` describe the map and both spaces.

    Parameters
    ----------
    modality : str, optional
        Modality whose means are used; by default that of the bridge, or that the map was fitted on.
    normalize : {"auto", True, False}, default="auto"
        Scale the mapped rows to unit norm; "auto" does so if the target's rows had unit norm at the fit.
    side : {"source", "target"}, default="source"
        Which head to use; for joint-space maps only.
    """
    mapping, normalize = as_map(mapping, modality, normalize)
    layers = mapping.as_layers(None, normalize, side=side)
    onnx = require("onnx", extra="onnx-export")
    d_in = mapping.d_target if side == "target" else mapping.n_features_in_
    writer = _Writer()
    writer.layers(layers, "vectors")
    writer.nodes[-1].output[:] = ["mapped"]
    vector = onnx.TensorProto.FLOAT
    graph = onnx.helper.make_graph(
        writer.nodes,
        "congruence map",
        [onnx.helper.make_tensor_value_info("vectors", vector, ["rows", d_in])],
        [onnx.helper.make_tensor_value_info("mapped", vector, ["rows", mapping.d_out])],
        [onnx.numpy_helper.from_array(value, name) for name, value in writer.constants.items()],
    )
    model = onnx.helper.make_model(
        graph,
        opset_imports=[onnx.helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
        producer_name="congruence",
        producer_version=__version__,
    )
    source, target = mapping.source_space_, mapping.target_space_
    modality = modality or (target if side == "target" else source).modality
    properties = {
        "congruence_version": __version__,
        "kind": mapping.kind,
        "side": side,
        **({"role": mapping.role_} if isinstance(mapping, RoleMap) else {}),
        "unit_rows": json.dumps(bool(layers) and layers[-1]["kind"] == "normalize"),
        "source_space": json.dumps(source.to_dict(), sort_keys=True),
        "target_space": json.dumps(target.to_dict(), sort_keys=True),
    }
    onnx.helper.set_model_props(model, properties if modality is None else {**properties, "modality": modality})
    onnx.checker.check_model(model, full_check=True)
    return model


def export_onnx(
    mapping: Map | Bridge,
    path: str | Path,
    *,
    modality: str | None = None,
    normalize: bool | str = "auto",
    side: str = "source",
    force: bool = False,
) -> Path:
    """Write the map as an ONNX file, and return its path; parameters as for ``to_onnx``."""
    content = to_onnx(mapping, modality=modality, normalize=normalize, side=side).SerializeToString(deterministic=True)
    with atomic_path(path, force=force) as temporary:
        temporary.write_bytes(content)
    return Path(path)


class _Writer:
    """Collects the nodes and constants of a graph while layers are added."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, np.ndarray] = {}

    def node(self, operator: str, inputs: Sequence[str], **attributes: object) -> str:
        """Add a node, and return the name of its output."""
        name = f"{operator.lower()}_{len(self.nodes)}"
        helper = require("onnx.helper", extra="onnx-export")
        self.nodes.append(helper.make_node(operator, list(inputs), [name], **attributes))
        return name

    def constant(self, value: np.ndarray | float, dtype: type = np.float32) -> str:
        """Add a constant, and return its name."""
        name = f"constant_{len(self.constants)}"
        self.constants[name] = np.ascontiguousarray(value, dtype=dtype).reshape(np.shape(value))
        return name

    def layers(self, layers: Sequence[Layer], x: str) -> str:
        """Add layers one after another, and return the name of the last output."""
        for layer in layers:
            x = _OPERATORS[layer["kind"]](self, layer, x)
        return x

    def product(self, x: str, weight: np.ndarray, bias: np.ndarray | None) -> str:
        """Add ``x @ weight + bias`` as one operator."""
        inputs = [x, self.constant(weight), *([] if bias is None else [self.constant(bias)])]
        return self.node("Gemm", inputs)


def _normalize(w: _Writer, layer: Layer, x: str) -> str:
    norm = w.node("ReduceL2", [x, w.constant(np.array([1]), np.int64)], keepdims=1)
    positive = w.node("Greater", [norm, w.constant(0.0)])
    return w.node("Div", [x, w.node("Where", [positive, norm, w.constant(1.0)])])  # zero rows stay zero


def _complete(w: _Writer, layer: Layer, x: str) -> str:
    square = w.node("ReduceSum", [w.node("Mul", [x, x]), w.constant(np.array([1]), np.int64)], keepdims=1)
    rest = w.node("Relu", [w.node("Sub", [w.constant(1.0), square])])
    return w.node("Add", [x, w.node("Mul", [w.node("Sqrt", [rest]), w.constant(layer["column"])])])


def _gelu(w: _Writer, layer: Layer, x: str) -> str:
    # The operator Gelu exists only since opset 20.
    erf = w.node("Erf", [w.node("Mul", [x, w.constant(math.sqrt(0.5))])])
    return w.node("Mul", [w.node("Mul", [x, w.constant(0.5)]), w.node("Add", [erf, w.constant(1.0)])])


def _silu(w: _Writer, x: str) -> str:
    return w.node("Mul", [x, w.node("Sigmoid", [x])])


def _layernorm(w: _Writer, layer: Layer, x: str) -> str:
    mean = w.node("ReduceMean", [x, w.constant(np.array([1]), np.int64)], keepdims=1)
    centered = w.node("Sub", [x, mean])
    square = w.node("Mul", [centered, centered])
    variance = w.node("ReduceMean", [square, w.constant(np.array([1]), np.int64)], keepdims=1)
    out = w.node("Div", [centered, w.node("Sqrt", [w.node("Add", [variance, w.constant(layer["eps"])])])])
    if "weight" in layer:
        out = w.node("Mul", [out, w.constant(layer["weight"])])
    return w.node("Add", [out, w.constant(layer["bias"])]) if "bias" in layer else out


def _swiglu(w: _Writer, layer: Layer, x: str) -> str:
    gate = w.product(x, layer["gate_weight"], layer.get("gate_bias"))
    return w.node("Mul", [_silu(w, gate), w.product(x, layer["weight"], layer.get("bias"))])


def _sum(w: _Writer, layer: Layer, x: str) -> str:
    return w.node("Sum", [w.layers(branch, x) for branch in layer["branches"]])


#: Function that adds each kind of layer. ``tests/integrations/test_onnx_export.py`` compares the keys with the table of
#: layers.
_OPERATORS: dict[str, Callable[[_Writer, Layer, str], str]] = {
    "normalize": _normalize,
    "center": lambda w, layer, x: w.node("Sub", [x, w.constant(layer["mean"])]),
    "linear": lambda w, layer, x: w.product(x, layer["weight"], layer.get("bias")),
    "complete": _complete,
    "gelu": _gelu,
    "relu": lambda w, layer, x: w.node("Relu", [x]),
    "silu": lambda w, layer, x: _silu(w, x),
    "layernorm": _layernorm,
    "swiglu": _swiglu,
    "residual": lambda w, layer, x: w.node("Add", [x, w.layers(layer["layers"], x)]),
    "sum": _sum,
}
