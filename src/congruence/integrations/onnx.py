"""ONNX (extra ``onnx-export``): any map as a graph that every ONNX runtime can run."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from congruence import __version__
from congruence._utils.atomic import atomic_path
from congruence._utils.optional import require
from congruence._utils.typing import Layer
from congruence.integrations._maps import as_map, check_suffix
from congruence.maps import Map
from congruence.maps.readout import LONGEST, shortest_row

if TYPE_CHECKING:
    import onnx

    from congruence.upgrade.bridge import Bridge


#: Version of the operators, and of the file format that came with it: onnxruntime 1.14 (2023) and later read them.
OPSET = 18
IR_VERSION = 8


def to_onnx(
    mapping: Map | Bridge,
    *,
    modality: str | None = None,
    normalize: bool | str = "auto",
    side: str = "source",
    role: str = "query",
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
    role : {"query", "store", "plain"}, default="query"
        What the rows are for (``Map.transform``).
    """
    mapping, normalize = as_map(mapping, modality, normalize, role)
    layers = mapping.as_layers(None, normalize, side=side)
    onnx = require("onnx", extra="onnx-export")
    d_in = mapping.d_target if side == "target" else mapping.n_features_in_
    made = _Graph()
    made.add_layers(layers, "vectors")
    made.nodes[-1].output[:] = ["mapped"]
    vector = onnx.TensorProto.FLOAT
    ends = (
        [onnx.helper.make_tensor_value_info(name, vector, ["rows", width])]
        for name, width in (("vectors", d_in), ("mapped", mapping.d_out))
    )
    constants = [onnx.numpy_helper.from_array(value, name) for name, value in made.constants.items()]
    graph = onnx.helper.make_graph(made.nodes, "congruence map", *ends, constants)
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
        **({"role": mapping.read_as} if mapping.read_as else {}),
        "unit_rows": json.dumps(bool(layers) and layers[-1]["kind"] in ("normalize", "sphere")),
        "source_space": json.dumps(source.to_dict(), sort_keys=True),
        "target_space": json.dumps(target.to_dict(), sort_keys=True),
    }
    onnx.helper.set_model_props(model, properties if modality is None else {**properties, "modality": modality})
    onnx.checker.check_model(model, full_check=True)
    return model


def export_onnx(mapping: Map | Bridge, path: str | Path, *, force: bool = False, **options: Any) -> Path:
    """Write the map as an ONNX file, and return its path; parameters as for ``to_onnx``."""
    check_suffix(path, ".onnx")
    content = to_onnx(mapping, **options).SerializeToString(deterministic=True)
    with atomic_path(path, force=force) as temporary:
        temporary.write_bytes(content)
    return Path(path)


_COLUMNS = np.array([1], np.int64)  # the axis of rows' sums


class _Graph:
    """Collects the nodes and constants of a graph while layers are added."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, np.ndarray] = {}

    def add(self, operator: str, *inputs: str | float | np.ndarray, **attributes: object) -> str:
        """Add a node, with inputs that are names or values, and return the name of its output."""
        helper = require("onnx.helper", extra="onnx-export")
        names = []
        for value in inputs:
            names.append(value if isinstance(value, str) else f"constant_{len(self.constants)}")
            if not isinstance(value, str):
                kind = np.int64 if value is _COLUMNS else np.float32
                self.constants[names[-1]] = np.ascontiguousarray(value, dtype=kind).reshape(np.shape(value))
        output = f"{operator.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, names, [output], **attributes))
        return output

    def add_layers(self, layers: Sequence[Layer], x: str) -> str:
        """Add layers one after another, and return the name of the last output."""
        for layer in layers:
            x = _OPERATORS[layer["kind"]](self, layer, x)
        return x

    def product(self, x: str, weight: np.ndarray, bias: np.ndarray | None) -> str:
        """Add ``x @ weight + bias`` as one operator."""
        return self.add("Gemm", x, weight) if bias is None else self.add("Gemm", x, weight, bias)


def _scaled(g: _Graph, x: str) -> tuple[str, str]:
    """Add rows scaled to unit norm, and their norms; zero rows stay zero."""
    norm = g.add("ReduceL2", x, _COLUMNS, keepdims=1)
    return g.add("Div", x, g.add("Where", g.add("Greater", norm, 0.0), norm, 1.0)), norm


def _complete(g: _Graph, layer: Layer, x: str) -> str:
    square = g.add("ReduceSum", g.add("Mul", x, x), _COLUMNS, keepdims=1)
    rest = g.add("Relu", g.add("Sub", 1.0, square))
    return g.add("Add", x, g.add("Mul", g.add("Sqrt", rest), layer["column"]))


def _sphere(g: _Graph, layer: Layer, x: str) -> str:
    """Add ``congruence.maps.readout.to_sphere``."""
    above = g.add("MatMul", x, layer["axis"][:, None])
    rest = g.add("Sub", x, g.add("Mul", above, layer["axis"]))
    base = g.add("Add", g.add("Mul", g.add("Mul", above, layer["height"]), layer["axis"]), layer["base"])
    longest = g.add("Div", LONGEST, g.add("ReduceL2", base, _COLUMNS, keepdims=1))
    base = g.add("Mul", base, g.add("Min", longest, 1.0))
    along_unit, norm = _scaled(g, rest)
    along = g.add("ReduceSum", g.add("Mul", along_unit, base), _COLUMNS, keepdims=1)
    room = g.add("Sub", 1.0, g.add("ReduceSum", g.add("Mul", base, base), _COLUMNS, keepdims=1))
    far = g.add("Sub", g.add("Sqrt", g.add("Add", g.add("Mul", along, along), room)), along)
    out = g.add("Add", g.add("Mul", along_unit, far), base)
    if "mean" not in layer:
        return out
    shortest = shortest_row(float(np.finfo(np.float32).eps), len(layer["base"]), layer["offset"])
    return g.add("Where", g.add("Greater", norm, shortest), out, layer["mean"])


def _gelu(g: _Graph, layer: Layer, x: str) -> str:
    # The operator Gelu exists only since opset 20.
    erf = g.add("Erf", g.add("Mul", x, math.sqrt(0.5)))
    return g.add("Mul", g.add("Mul", x, 0.5), g.add("Add", erf, 1.0))


def _silu(g: _Graph, layer: Layer, x: str) -> str:
    return g.add("Mul", x, g.add("Sigmoid", x))


def _layernorm(g: _Graph, layer: Layer, x: str) -> str:
    centered = g.add("Sub", x, g.add("ReduceMean", x, _COLUMNS, keepdims=1))
    variance = g.add("ReduceMean", g.add("Mul", centered, centered), _COLUMNS, keepdims=1)
    out = g.add("Div", centered, g.add("Sqrt", g.add("Add", variance, layer["eps"])))
    if "weight" in layer:
        out = g.add("Mul", out, layer["weight"])
    return g.add("Add", out, layer["bias"]) if "bias" in layer else out


def _swiglu(g: _Graph, layer: Layer, x: str) -> str:
    gate = g.product(x, layer["gate_weight"], layer.get("gate_bias"))
    return g.add("Mul", _silu(g, layer, gate), g.product(x, layer["weight"], layer.get("bias")))


#: Function that adds each kind of layer. ``tests/integrations/test_onnx_export.py`` compares the keys with the table of
#: layers.
_OPERATORS: dict[str, Callable[[_Graph, Layer, str], str]] = {
    "normalize": lambda g, layer, x: _scaled(g, x)[0],
    "center": lambda g, layer, x: g.add("Sub", x, layer["mean"]),
    "linear": lambda g, layer, x: g.product(x, layer["weight"], layer.get("bias")),
    "complete": _complete,
    "sphere": _sphere,
    "gelu": _gelu,
    "relu": lambda g, layer, x: g.add("Relu", x),
    "silu": _silu,
    "layernorm": _layernorm,
    "swiglu": _swiglu,
    "residual": lambda g, layer, x: g.add("Add", x, g.add_layers(layer["layers"], x)),
    "sum": lambda g, layer, x: g.add("Sum", *[g.add_layers(branch, x) for branch in layer["branches"]]),
}
