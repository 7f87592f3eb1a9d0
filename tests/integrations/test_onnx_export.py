"""Every map as an ONNX graph, run by onnxruntime."""

import json
import sys

import numpy as np
import onnx
import onnxruntime
import pytest
from fitted_maps import MAPS, SIDES, P, X, expected, rows

import congruence
from congruence import OrthogonalMap, Space
from congruence.errors import MissingExtraError, ModalityError, OutputExistsError, ParameterError
from congruence.integrations import export_onnx, to_onnx


def unit(X):
    return X / np.linalg.norm(X, axis=1, keepdims=True)


def session(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


@pytest.mark.parametrize(("name", "side"), SIDES)
@pytest.mark.parametrize("normalize", ["auto", True])
def test_the_graph_gives_the_numbers_of_the_map(name, side, normalize):
    m, A = MAPS[name], rows(side)
    want = expected(m, A, side, normalize)
    runner = session(to_onnx(m, side=side, normalize=normalize))
    for part in (A, A[:1], A[:0]):
        (got,) = runner.run(["mapped"], {"vectors": part})
        assert got.dtype == np.float32
        assert got.shape == (len(part), m.d_out)
        np.testing.assert_allclose(got, want[: len(part)], atol=3e-6 * np.abs(want).max())


@pytest.mark.parametrize("queries", ["image", "text", "all"])
def test_stored_rows_and_queries_are_exported_apart(queries):
    images, texts = unit(P.X + 2), unit(P.X[:, ::-1] - 2)
    new = [unit(rows @ np.linalg.qr(P.X.T @ P.Y)[0].T @ P.Y[:6] + 3) for rows in (images, texts)]
    m = congruence.fit(images, new[0], modality="image", means={"text": (texts, new[1])}, queries=queries, check=False)
    A = np.concatenate([images[:9], images.mean(axis=0, keepdims=True)]).astype(np.float32)
    for role in ("query", "store", "plain"):
        model = to_onnx(m, modality="image", role=role)
        want = unit(m.transform(A, "image", role))
        np.testing.assert_allclose(session(model).run(None, {"vectors": A})[0], want, atol=1e-5)
        facts = {entry.key: entry.value for entry in model.metadata_props}
        assert (facts.get("role", "plain"), facts["unit_rows"]) == (role, "true")
    (got,) = session(to_onnx(m, modality="image")).run(None, {"vectors": A})
    np.testing.assert_allclose(got, m.transform(A, "image", "query"), atol=1e-5)


def test_the_file_says_what_it_is(tmp_path):
    m = congruence.fit(P.X, P.Y, "orthogonal")
    m.source_space_ = Space("old model", "3", "text", 6, False)
    m.target_space_ = Space("new model", None, "text", 9, False)
    path = export_onnx(m, tmp_path / "map.onnx")
    model = onnx.load(path)
    assert [(o.domain, o.version) for o in model.opset_import] == [("", 18)]
    assert (model.ir_version, model.producer_name) == (8, "congruence")
    (given,), (mapped,) = model.graph.input, model.graph.output
    for value, name, width in ((given, "vectors", 6), (mapped, "mapped", 9)):
        axes = value.type.tensor_type.shape.dim
        assert (value.name, axes[0].dim_param, axes[1].dim_value) == (name, "rows", width)
    facts = {entry.key: entry.value for entry in model.metadata_props}
    assert facts["congruence_version"] == congruence.__version__
    said = [facts[name] for name in ("kind", "side", "modality", "unit_rows")]
    assert said == ["orthogonal", "source", "text", "false"]
    assert json.loads(facts["source_space"])["model"] == "old model"
    target = {"model": "new model", "modality": "text", "dim": 9, "normalized": False}
    assert json.loads(facts["target_space"]) == target
    assert onnxruntime.InferenceSession(path).get_modelmeta().custom_metadata_map == facts
    before = path.read_bytes()
    with pytest.raises(OutputExistsError, match="force=True"):
        export_onnx(m, path)
    assert export_onnx(m, path, force=True).read_bytes() == before


def test_the_means_are_those_of_the_modality():
    means = P.X.mean(axis=0) + 1, P.Y.mean(axis=0) - 2
    m = OrthogonalMap().fit(P.X, P.Y, modality="image").recenter(*means, modality="text")
    for modality in ("image", "text"):
        (got,) = session(to_onnx(m, modality=modality)).run(None, {"vectors": X})
        np.testing.assert_allclose(got, m.transform_embeddings(X, modality=modality).vectors, atol=1e-5)
    with pytest.raises(ModalityError, match="image, text"):
        to_onnx(m, modality="audio")


def test_refusals(monkeypatch, tmp_path):
    with pytest.raises(ParameterError, match="Got str; expected a fitted map or a Bridge"):
        to_onnx("map")
    with pytest.raises(ParameterError, match="side='target'"):
        to_onnx(MAPS["linear"], side="target")
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(MissingExtraError, match=r"congruence\[onnx-export\]"):
        export_onnx(MAPS["linear"], tmp_path / "map.onnx")
    assert not list(tmp_path.iterdir())
