"""A map in front of an existing FAISS index: its bytes stay, its answers are those to mapped queries."""

import numpy as np
import pytest
from fitted_maps import MAPS

from congruence import Bridge, Embeddings, OrthogonalMap, errors
from congruence.integrations import export_faiss, to_faiss, to_faiss_index
from congruence.synthetic import rigid_problem

faiss = pytest.importorskip("faiss")

D = 8
P = rigid_problem(200, 6, D, noise=0.01, random_state=0)
NEW, OLD = (A / np.linalg.norm(A, axis=1, keepdims=True) for A in (P.X, P.Y))
QUERIES = NEW[:10].astype(np.float32)
MAPPING = OrthogonalMap().fit(NEW, OLD)
BOTH = {"inner product": faiss.METRIC_INNER_PRODUCT, "L2": faiss.METRIC_L2}


def make(kind: str, metric: int, rows: np.ndarray = OLD) -> faiss.Index:
    index = faiss.index_factory(D, kind, metric)
    rows = rows.astype(np.float32)
    index.train(rows)
    if "IDMap" in kind:
        index.add_with_ids(rows, np.arange(len(rows)) + 1000)
    else:
        index.add(rows)
    return index


def file_of(index: faiss.Index, path) -> bytes:
    faiss.write_index(index, str(path))
    return path.read_bytes()


@pytest.mark.parametrize("metric", BOTH)
@pytest.mark.parametrize("kind", ["Flat", "IVF4,Flat", "HNSW8", "IDMap,Flat", "IDMap2,HNSW8", "PCA6,IVF4,Flat", "SQ8"])
def test_an_index_stays_and_answers_mapped_queries(kind, metric, tmp_path):
    old = make(kind, BOTH[metric])
    before = file_of(old, tmp_path / "old.faiss")
    path = export_faiss(MAPPING, tmp_path / "bridged.faiss", index=tmp_path / "old.faiss")
    assert (tmp_path / "old.faiss").read_bytes() == before
    assert path.read_bytes().endswith(before)  # not one vector rewritten
    assert len(path.read_bytes()) - len(before) < 4 * (7 * D) + 200
    bridged = faiss.read_index(str(path))
    assert (bridged.d, bridged.ntotal, bridged.metric_type) == (6, 200, BOTH[metric])
    want = old.search(MAPPING.transform_embeddings(Embeddings(QUERIES)).vectors.astype(np.float32), 5)
    for index in (bridged, to_faiss_index(MAPPING, old)):
        scores, ids = index.search(QUERIES, 5)
        np.testing.assert_array_equal(ids, want[1])
        np.testing.assert_allclose(scores, want[0], atol=1e-5)


def test_what_is_added_afterwards_is_of_the_new_model():
    old = make("Flat", faiss.METRIC_INNER_PRODUCT)
    bridged = to_faiss_index(MAPPING, old)
    bridged.add(QUERIES)
    assert old.ntotal == 210
    mapped = MAPPING.transform_embeddings(Embeddings(QUERIES)).vectors
    np.testing.assert_allclose(old.reconstruct_n(200, 10), mapped, atol=1e-6)
    np.testing.assert_array_equal(old.reconstruct_n(0, 200), OLD.astype(np.float32))


@pytest.mark.parametrize("kind", ["Flat", "IVF4,Flat", "HNSW8", "IDMap,Flat"])
def test_unit_queries_over_raw_rows_are_told_under_l2(kind):
    raw = make(kind, faiss.METRIC_L2, 3 * OLD)
    with pytest.warns(errors.NormWarning, match="norms of 3 to 3, and a map to unit-norm rows"):
        to_faiss_index(MAPPING, raw)
    to_faiss_index(MAPPING, raw, normalize=False)
    to_faiss_index(MAPPING, make(kind, faiss.METRIC_INNER_PRODUCT, 3 * OLD))  # where a query's norm changes no order
    to_faiss_index(OrthogonalMap().fit(NEW, 3 * OLD), raw)
    to_faiss_index(MAPPING, faiss.index_factory(D, kind, faiss.METRIC_L2))  # empty


def test_a_bridge_says_modality_and_norm(tmp_path):
    means = NEW.mean(axis=0) + 1, OLD.mean(axis=0) - 2
    m = OrthogonalMap().fit(NEW, OLD, modality="image").recenter(*means, modality="text").for_modality("image")
    for given, arguments, modality, normalize in (
        (Bridge(m, modality="text"), {}, "text", "auto"),
        (Bridge(m, modality="text"), {"modality": "image"}, "image", "auto"),
        (Bridge(m, modality="text", normalize=False), {}, "text", False),
        (m, {"modality": "text"}, "text", "auto"),
        (m, {}, "image", "auto"),
    ):
        index = to_faiss_index(given, **arguments)
        index.add(QUERIES)
        got = faiss.downcast_index(index.index).reconstruct_n(0, 10)
        want = m.transform_embeddings(Embeddings(QUERIES), modality=modality, normalize=normalize).vectors
        np.testing.assert_allclose(got, want, atol=1e-5)
    with pytest.raises(errors.ModalityError, match="image, text"):
        to_faiss(Bridge(m))
    with pytest.raises(errors.ModalityError, match="image, text"):
        export_faiss(m, tmp_path / "x.index", modality="audio")
    assert not list(tmp_path.iterdir())


def test_refusals(tmp_path):
    index = tmp_path / "old.faiss"
    before = file_of(make("Flat", faiss.METRIC_L2), index)
    with pytest.raises(errors.ShapeError, match="width 6; expected 8.*inverse map"):
        to_faiss_index(MAPPING, faiss.IndexFlatIP(6))
    with pytest.raises(errors.ShapeError, match=r"width 5; expected 8, the map's output\. Use the target's index\.$"):
        to_faiss_index(MAPPING, faiss.IndexFlatIP(5))
    with pytest.raises(errors.FileError, match="No FAISS index at"):
        export_faiss(MAPPING, tmp_path / "x.faiss", index=tmp_path / "none.faiss")
    for name, content in (("cut", before[:-7]), ("empty", b""), ("other", b"PAR1" * 30)):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(errors.CorruptFileError, match=f"{name}, which FAISS cannot read"):
            export_faiss(MAPPING, tmp_path / "x.faiss", index=tmp_path / name)
    faiss.write_index_binary(faiss.IndexBinaryFlat(64), str(tmp_path / "binary"))
    with pytest.raises(errors.CorruptFileError, match="index of float vectors"):
        export_faiss(MAPPING, tmp_path / "x.faiss", index=tmp_path / "binary")
    with pytest.raises(errors.OutputExistsError):
        export_faiss(MAPPING, index, index=index)
    with pytest.raises(errors.OutputExistsError, match="is also the index to read"):
        export_faiss(MAPPING, index, index=index, force=True)
    (tmp_path / "again").hardlink_to(index)
    with pytest.raises(errors.OutputExistsError, match="is also the index to read"):
        export_faiss(MAPPING, tmp_path / "again", index=index, force=True)
    assert index.read_bytes() == before
    assert not (tmp_path / "x.faiss").exists()
    with pytest.raises(errors.ParameterError, match="affine"):
        to_faiss_index(MAPS["mlp"], faiss.IndexFlatIP(9))


def test_a_name_without_suffix_holds_an_index_if_one_was_given(tmp_path):
    file_of(make("Flat", faiss.METRIC_L2), tmp_path / "old")
    export_faiss(MAPPING, tmp_path / "new", index=tmp_path / "old")
    assert faiss.read_index(str(tmp_path / "new")).ntotal == 200
