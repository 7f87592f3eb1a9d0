"""Doors to services and libraries, through stand-ins of the same interface where there is no network."""

import shutil
import sys
import types
from pathlib import Path

import numpy as np
import pytest

from congruence import Embeddings, LinearMap, MLPMap, OrthogonalMap, from_pretrained, load
from congruence.errors import FileError, MissingExtraError, NormWarning, ParameterError
from congruence.integrations import export_faiss, to_faiss
from congruence.synthetic import rigid_problem

P = rigid_problem(100, 6, 9, noise=0.1, random_state=0)
TOKEN = "hf_secret"


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """A folder that plays the hub, behind the calls of huggingface_hub that are used."""
    store = tmp_path / "hub"
    store.mkdir()

    class HfApi:
        def __init__(self, token=None):
            assert token == TOKEN

        def create_repo(self, repo_id, *, private, exist_ok):
            (store / repo_id).mkdir(parents=True, exist_ok=exist_ok)
            (store / repo_id / "private").write_text(str(private))

        def upload_folder(self, *, repo_id, folder_path, commit_message, allow_patterns):
            for name in allow_patterns:
                shutil.copy(Path(folder_path) / name, store / repo_id / name)
            return f"hub:{repo_id}:{commit_message}"

    def snapshot_download(repo_id, *, revision, token, allow_patterns):
        if not (store / repo_id).is_dir():
            raise ConnectionError("offline")
        return str(store / repo_id)

    module = types.SimpleNamespace(HfApi=HfApi, snapshot_download=snapshot_download)
    monkeypatch.setitem(sys.modules, "huggingface_hub", module)
    return store


def test_a_map_goes_to_the_hub_and_comes_back(hub, tmp_path):
    m = OrthogonalMap().fit(P.X, P.Y)
    assert m.push_to_hub("me/map", token=TOKEN, private=True).startswith("hub:me/map")
    again = from_pretrained("me/map", token=TOKEN)
    assert np.array_equal(again.transform(P.X), m.transform(P.X))
    m.save_pretrained(tmp_path / "other", push_to_hub=True, repo_id="me/other", token=TOKEN)
    assert np.array_equal(from_pretrained("me/other").rotation_, m.rotation_)
    for file in hub.rglob("*"):
        assert not file.is_file() or TOKEN.encode() not in file.read_bytes()


def test_an_unreachable_hub_says_what_to_do(hub):
    with pytest.raises(FileError, match="no reachable hub repository 'me/none'"):
        from_pretrained("me/none")


def test_the_real_hub_client_has_the_calls_we_use():
    import inspect

    real = pytest.importorskip("huggingface_hub")
    for function, names in (
        (real.snapshot_download, {"repo_id", "revision", "token", "allow_patterns"}),
        (real.HfApi.upload_folder, {"repo_id", "folder_path", "commit_message", "allow_patterns"}),
        (real.HfApi.create_repo, {"repo_id", "private", "exist_ok"}),
    ):
        assert names <= set(inspect.signature(function).parameters)


def test_without_the_extra_the_hub_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(MissingExtraError, match=r"congruence\[hub\]"):
        from_pretrained("me/map")


@pytest.mark.parametrize(
    "kind", [OrthogonalMap(), OrthogonalMap(shrinkage="full"), LinearMap(), OrthogonalMap(center=False)]
)
def test_faiss_applies_the_same_map(kind):
    pytest.importorskip("faiss")
    m = kind.fit(P.X, P.Y)
    X = P.X.astype(np.float32)
    np.testing.assert_allclose(to_faiss(m).apply(X), m.transform(X), atol=1e-5)


def test_faiss_knows_a_rotation_when_it_gets_one():
    pytest.importorskip("faiss")
    Q = rigid_problem(50, 5, random_state=0)
    transform = to_faiss(OrthogonalMap(shrinkage="full").fit(Q.X, Q.Y))
    assert transform.is_orthonormal
    X = Q.X.astype(np.float32)
    np.testing.assert_allclose(transform.reverse_transform(transform.apply(X)), X, atol=1e-4)


def test_an_index_of_faiss_maps_to_unit_rows(tmp_path):
    faiss = pytest.importorskip("faiss")
    Y = P.Y / np.linalg.norm(P.Y, axis=1, keepdims=True)
    m = OrthogonalMap().fit(P.X, Y)
    X = P.X.astype(np.float32)
    for normalize in ("auto", False):
        expected = m.transform_embeddings(Embeddings(P.X), normalize=normalize).vectors
        path = export_faiss(m, tmp_path / f"{normalize}.index", normalize=normalize)
        empty = faiss.read_index(str(path))
        assert (empty.ntotal, empty.d) == (0, 6)
        empty.add(X)
        behind = faiss.downcast_index(faiss.downcast_index(empty).index)
        np.testing.assert_allclose(behind.reconstruct_n(0, 100), expected, atol=1e-5)


def test_a_vector_transform_of_faiss_says_that_the_norm_is_missing(tmp_path):
    faiss = pytest.importorskip("faiss")
    m = OrthogonalMap().fit(P.X, P.Y / np.linalg.norm(P.Y, axis=1, keepdims=True))
    with pytest.warns(NormWarning, match=r"add faiss.NormalizationTransform\(9\)"):
        export_faiss(m, tmp_path / "map.vt")
    X = P.X.astype(np.float32)
    rows = faiss.NormalizationTransform(9).apply(faiss.read_VectorTransform(str(tmp_path / "map.vt")).apply(X))
    np.testing.assert_allclose(rows, m.transform_embeddings(Embeddings(X)).vectors, atol=1e-5)
    with pytest.raises(ParameterError, match=r"\.index"):
        export_faiss(m, tmp_path / "yes.vt", normalize=True)
    export_faiss(m, tmp_path / "no.vt", normalize=False)  # raw output is what such a file can hold: no warning


def test_faiss_has_no_perceptrons():
    with pytest.raises(ParameterError, match="affine"):
        to_faiss(MLPMap(hidden=4, max_epochs=1).fit(P.X, P.Y))


def test_loading_needs_only_the_folder(tmp_path, monkeypatch):
    path = MLPMap(hidden=4, max_epochs=1).fit(P.X, P.Y).save(tmp_path / "m")
    monkeypatch.setitem(sys.modules, "torch", None)  # serving a perceptron needs no torch
    assert load(path).transform(P.X).shape == P.Y.shape
