"""Small ONNX graphs."""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from tiny_models import word_tokenizer

TABLE = np.random.default_rng(0).normal(size=(30, 7)).astype(np.float32)
WEIGHTS = np.random.default_rng(0).normal(size=(3 * 6 * 6, 5)).astype(np.float32)


def save(path, nodes, inputs, outputs, **constants):
    graph = helper.make_graph(
        nodes, "g", inputs, outputs, [numpy_helper.from_array(value, name) for name, value in constants.items()]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(model)
    onnx.save(model, path)
    return path


def value(name, shape, kind=TensorProto.FLOAT):
    return helper.make_tensor_value_info(name, kind, shape)


def text_graph(path):
    """A table of token vectors, as exported transformers have, and a tokenizer beside it."""
    word_tokenizer().save(str(path.parent / "tokenizer.json"))
    nodes = [helper.make_node("Gather", ["t", "input_ids"], ["last_hidden_state"])]
    ids, out = value("input_ids", ["n", "s"], TensorProto.INT64), value("last_hidden_state", ["n", "s", 7])
    return save(path, nodes, [ids], [out], t=TABLE)


def image_graph(path, batch="n", layout="NCHW"):
    """A linear layer on the pixels."""
    nodes = [helper.make_node("Flatten", ["pixels"], ["flat"]), helper.make_node("MatMul", ["flat", "w"], ["vector"])]
    shape = [batch, 3, 6, 6] if layout == "NCHW" else [batch, 6, 6, 3]
    return save(path, nodes, [value("pixels", shape)], [value("vector", [batch, 5])], w=WEIGHTS)
