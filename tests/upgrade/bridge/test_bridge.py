"""Bridged queries: where they go, what is refused, and what is saved."""

import json

import numpy as np
import pytest
from bridge_data import unit

import congruence
from congruence import Bridge, CCAMap, Embeddings, LinearMap, MLPMap, OrthogonalMap, Space, errors
from congruence.errors import CorruptFileError, DirectionError, ModalityError, ParameterError, SpaceMismatchError
from congruence.persist import numbers_digest
from congruence.synthetic import rigid_problem

P = rigid_problem(300, 8, 12, noise=0.05, random_state=0)


NEW, OLD = unit(P.X), unit(P.Y)


@pytest.fixture(scope="module")
def mapping():
    spaces = (Space(name, modality="image") for name in ("new", "old"))
    return congruence.fit(*(Embeddings(rows, space=space) for rows, space in zip((NEW, OLD), spaces, strict=True)))


@pytest.fixture(scope="module")
def two():
    """A map with means of images and of texts."""
    return OrthogonalMap().fit(NEW, OLD, modality="image").recenter(NEW[:9] + 0.1, OLD[:9], modality="text")


@pytest.mark.parametrize("rows", [1, 5, 300])
def test_queries_go_where_the_map_sends_them_scaled_as_the_index_is(mapping, rows):
    bridge = Bridge(mapping)
    out = bridge.transform(NEW[:rows])
    assert out.dtype == np.float32
    np.testing.assert_allclose(out, mapping.transform(NEW[:rows], role="query"), atol=2e-6)
    np.testing.assert_allclose(bridge.transform(NEW[:rows].astype(np.float64)), out, atol=2e-6)
    assert bridge.transform(NEW[:rows].astype(np.float64)).dtype == np.float64


def test_one_vector_gives_one_vector(mapping):
    bridge = Bridge(mapping)
    for query in (NEW[0], NEW[0].tolist(), NEW[0].astype(np.float16)):
        assert bridge.transform(query).shape == (12,)
        np.testing.assert_allclose(bridge.transform(query), bridge.transform(NEW[:1])[0], atol=1e-3)


def test_raw_output_and_raw_indexes_keep_the_norms_of_the_map():
    raw = OrthogonalMap().fit(P.X, P.Y)
    X = P.X.astype(np.float32)
    np.testing.assert_allclose(Bridge(raw).transform(X), raw.transform(X), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(Bridge(raw, normalize=True).transform(X), axis=1), 1, atol=1e-5)
    mapping = OrthogonalMap().fit(NEW, OLD)
    as_mapped = Bridge(mapping, normalize=False).transform(NEW[:2])
    np.testing.assert_allclose(as_mapped, mapping.transform(NEW[:2]), atol=2e-6)
    mapping = MLPMap(max_epochs=2, hidden=4).fit(NEW, OLD)
    np.testing.assert_allclose(Bridge(mapping).transform(NEW[:3]), unit(mapping.transform(NEW[:3])), atol=1e-6)


def test_each_modality_has_its_own_means(two):
    bridge = Bridge(two)
    for name in ("image", "text"):
        expected = unit(two.for_modality(name).transform(NEW[:4]))
        np.testing.assert_allclose(bridge.transform(NEW[:4], name), expected, atol=2e-6)
        np.testing.assert_allclose(Bridge(two, modality=name).transform(NEW[:4]), expected, atol=2e-6)
        said = Embeddings(NEW[:4], ids=list("abcd"), space=Space(modality=name))
        np.testing.assert_allclose(bridge.transform(said).vectors, expected, atol=2e-6)
    assert not np.allclose(bridge.transform(NEW[:4], "image"), bridge.transform(NEW[:4], "text"), atol=1e-3)


def test_embeddings_keep_their_ids_and_say_where_they_are(mapping):
    out = Bridge(mapping).transform(Embeddings(NEW[:2], ids=["a", "b"], space=Space("new", modality="image")))
    assert out.ids.tolist() == ["a", "b"]
    assert (out.space.model, out.space.dim, out.space.normalized, out.space.modality) == ("old", 12, True, "image")


def test_tensors_stay_tensors_with_their_graph(mapping):
    torch = pytest.importorskip("torch")
    queries = torch.tensor(NEW[:3], requires_grad=True)
    out = Bridge(mapping).transform(queries)
    np.testing.assert_allclose(out.detach().numpy(), Bridge(mapping).transform(NEW[:3]), atol=2e-6)
    out.sum().backward()
    assert queries.grad.shape == (3, 8)
    assert Bridge(mapping).transform(queries[0]).shape == (12,)


def test_a_map_that_takes_in_more_anchors_is_seen():
    mapping = OrthogonalMap().fit(NEW[:100], OLD[:100])
    bridge = Bridge(mapping)
    before = bridge.transform(NEW[:5])
    mapping.partial_fit(NEW[100:], -OLD[100:])
    np.testing.assert_allclose(bridge.transform(NEW[:5]), unit(mapping.transform(NEW[:5])), atol=2e-6)
    assert not np.allclose(before, bridge.transform(NEW[:5]), atol=1e-2)


def test_the_inverse_of_a_map_bridges_the_other_direction(mapping):
    bridge = Bridge(mapping.inverse())
    assert (bridge.source.model, bridge.target.model) == ("old", "new")
    assert bridge.transform(OLD[0]).shape == (8,)


@pytest.mark.parametrize(
    ("queries", "error", "says"),
    [
        (OLD[:2], DirectionError, r"index's model.*in the other direction"),
        (np.ones((2, 5), np.float32), errors.ShapeError, "5-d queries; expected 8-d"),
        (NEW[:3] * 2, SpaceMismatchError, "Divide each query by its norm"),
        (np.vstack([NEW[:2], 3 * NEW[:1]]), SpaceMismatchError, r"1 of 3 queries.*rows 2"),
        (np.zeros(8, np.float32), errors.ZeroRowError, "Encode them again"),
        (np.vstack([NEW[:2], np.zeros((1, 8), np.float32)]), errors.ZeroRowError, "rows 2"),
        (np.full((1, 8), np.nan, np.float32), errors.NotFiniteError, "NaN"),
        (np.vstack([NEW[:2], np.full((1, 8), np.inf, np.float32)]), errors.NotFiniteError, "rows 2"),
        (np.ones((2, 2, 8), np.float32), errors.ShapeError, "3 axes"),
        (["a cat"], errors.DtypeError, "text"),
    ],
)
def test_what_is_no_query_is_refused_with_what_to_do(mapping, queries, error, says):
    with pytest.raises(error, match=f"(?s){says}"):
        Bridge(mapping).transform(queries)
    if isinstance(queries, np.ndarray):
        with pytest.raises(error):
            Bridge(mapping).transform(queries.astype(np.float64))


def test_modalities_that_the_map_does_not_know_are_refused(two, mapping):
    for queries, modality, error, says in (
        (NEW[:2], None, ModalityError, r"means of image, text.*modality='text'"),
        (NEW[:2], "audio", ModalityError, "audio"),
        (NEW[:2], "smell", ParameterError, "'smell'"),
        (Embeddings(NEW[:2], space=Space(modality="image")), "text", ModalityError, "agree"),
    ):
        with pytest.raises(error, match=says):
            Bridge(two).transform(queries, modality)
    with pytest.raises(ModalityError, match="audio"):
        Bridge(two, modality="audio")
    linear = congruence.fit(NEW, OLD, "linear", modality="image")
    with pytest.raises(ModalityError, match=r"text queries; expected image.*rotation"):
        Bridge(linear).transform(NEW[:2], "text")


def test_embeddings_of_another_model_are_refused(mapping):
    with pytest.raises(SpaceMismatchError, match="before normalization"):  # unit queries of a model with raw rows
        Bridge(OrthogonalMap().fit(P.X, P.Y)).transform(unit(P.X[:4]))
    with pytest.raises(DirectionError, match=r"index's side.*in the other direction"):
        Bridge(mapping).transform(Embeddings(NEW[:2], space=Space("old")))
    with pytest.raises(SpaceMismatchError, match="'third'"):
        Bridge(mapping).transform(Embeddings(NEW[:2], space=Space("third")))


def test_no_bridge_is_made_of_a_joint_space_or_of_no_map():
    with pytest.raises(ParameterError, match=r"joint space, not.*congruence bridge export"):
        Bridge(CCAMap(n_components=4).fit(NEW, OLD))
    with pytest.raises(ParameterError, match=r"Bridge\.load"):
        Bridge("path")
    with pytest.raises(errors.CongruenceError, match="unfitted"):
        Bridge(OrthogonalMap())


@pytest.mark.parametrize("kind", ["orthogonal", "linear", "two"])
def test_a_saved_bridge_maps_the_same_queries_to_the_same_bits(tmp_path, two, kind):
    mapping = two if kind == "two" else {"orthogonal": OrthogonalMap, "linear": LinearMap}[kind]().fit(NEW, OLD)
    bridge = Bridge(mapping, normalize=False, modality="text" if kind == "two" else None)
    path = bridge.save(tmp_path / "bridge")
    for found in (Bridge.load(path), congruence.load(path)):
        assert isinstance(found, Bridge)
        assert (found.normalize, found.modality) == (bridge.normalize, bridge.modality)
        assert (found.source, found.target) == (bridge.source, bridge.target)
        assert np.array_equal(found.transform(NEW), bridge.transform(NEW))
    with pytest.raises(ParameterError, match=r"Bridge\.load"):
        congruence.maps.load(path)
    path = mapping.save(tmp_path / "map")  # a map opens as a bridge, and stays a map
    assert np.array_equal(*(one.transform(NEW, bridge.modality) for one in (Bridge.load(path), Bridge(mapping))))
    assert isinstance(congruence.load(path), type(mapping))


@pytest.mark.parametrize(
    "change",
    [
        lambda c: c["parameters"].update(normalize="often"),
        lambda c: c["parameters"].update(modality="smell"),
        lambda c: c["parameters"].update(modality=["text"]),
        lambda c: c["parameters"].update(more=1),
        lambda c: c["facts"].update(more=1),
        lambda c: c["facts"].pop("map"),
        lambda c: c.update(facts=3),
        lambda c: c["facts"]["map"].update(kind="cca"),
        lambda c: c["facts"]["map"]["facts"].update(rank="x"),
    ],
)
def test_a_damaged_bridge_is_one_error(tmp_path, mapping, change):
    path = Bridge(mapping).save(tmp_path / "bridge")
    config = json.loads((path / "config.json").read_text())
    change(config)
    config["numbers_sha256"] = numbers_digest(config)  # as somebody would who computes it again
    (path / "config.json").write_text(json.dumps(config))
    with pytest.raises(CorruptFileError):
        Bridge.load(path)


def test_numbers_of_the_map_inside_that_were_edited_by_hand_are_refused(tmp_path, mapping):
    path = Bridge(mapping).save(tmp_path / "bridge")
    config = json.loads((path / "config.json").read_text())
    config["facts"]["map"]["facts"]["n_pairs"] += 1
    (path / "config.json").write_text(json.dumps(config))
    with pytest.raises(CorruptFileError, match="edited by hand"):
        Bridge.load(path)
