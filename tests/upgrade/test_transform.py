import threading
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from congruence import CCAMap, Embeddings, LinearMap, MLPMap, OrthogonalMap, Space, errors, fit, load
from congruence.embeddings import normalize_rows as unit
from congruence.errors import DirectionError, ModalityError, NormWarning, SpaceMismatchError
from congruence.io import open_sink, open_source, read_embeddings
from congruence.synthetic import rigid_problem
from congruence.upgrade.transform import transform_file
from fresh import run_fresh

P = rigid_problem(20_000, 24, 32, noise=0.1, random_state=0)


@pytest.fixture(scope="module")
def mapping():
    m = OrthogonalMap().fit(P.X[:500], P.Y[:500], modality="image")
    m.source_space_, m.target_space_ = Space("a", None, "image", 24, False), Space("b", None, "image", 32, False)
    return m


def store(path, X, ids=None, space=None):
    with open_sink(path, n=len(X), dim=X.shape[1], dtype=X.dtype, has_ids=ids is not None, space=space) as sink:
        sink.write(None if ids is None else pa.array(ids), X)
    return open_source(path)


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".parquet", ".safetensors", ".h5", ""])
@pytest.mark.parametrize(("dtype", "tolerance"), [("f2", 2e-2), ("f4", 1e-5), ("f8", 1e-12)])
def test_a_streamed_store_equals_a_transformed_array(mapping, suffix, dtype, tolerance, tmp_path):
    X = P.X.astype(dtype)
    seen = []
    report = transform_file(mapping, store(tmp_path / "in.npy", X), tmp_path / f"out{suffix}", callback=seen.append)
    assert (report.rows, report.dim, report.dtype) == (20_000, 32, np.dtype(dtype).name)
    assert sum(seen) == 20_000
    out = open_source(tmp_path / f"out{suffix}")
    assert (out.space.model, out.space.dim) == ("b", 32)
    np.testing.assert_allclose(out.read().vectors, mapping.transform(X.astype("f8")), atol=tolerance)


def test_ids_order_dtype_and_norms(mapping, tmp_path):
    ids = [f"i{k}" for k in range(20_000)]
    source = store(tmp_path / "in.parquet", P.X, ids)
    transform_file(mapping, source, tmp_path / "out.parquet", normalize=True, dtype="f4")
    out = read_embeddings(tmp_path / "out.parquet")
    assert out.ids.tolist() == ids
    assert out.vectors.dtype == np.float32
    assert out.space.normalized
    np.testing.assert_allclose(np.linalg.norm(out.vectors, axis=1), 1, atol=1e-5)


def test_parts_stay_parts(mapping, tmp_path):
    (tmp_path / "in").mkdir()
    np.save(tmp_path / "in/img_0.npy", P.X[:300])
    np.save(tmp_path / "in/img_1.npy", P.X[300:500])
    transform_file(mapping, open_source(tmp_path / "in"), tmp_path / "out")
    assert np.load(tmp_path / "out/img_1.npy").shape == (200, 32)


def bad(row, value):
    X = P.X.copy()
    X[row] = value
    return X


def test_spaces_are_checked_before_anything_is_written(mapping, tmp_path):
    cases = [
        (store(tmp_path / "1.npy", P.X, space=Space("c")), SpaceMismatchError),
        (store(tmp_path / "2.npy", P.Y, space=Space("b")), DirectionError),
        (store(tmp_path / "3.npy", P.Y), DirectionError),
        (store(tmp_path / "4.npy", P.X[:, :9].copy()), SpaceMismatchError),
        (store(tmp_path / "5.npy", P.X, space=Space(modality="text")), ModalityError),
        (store(tmp_path / "6.npy", P.X / np.linalg.norm(P.X, axis=1, keepdims=True)), SpaceMismatchError),
    ]
    for source, error in cases:
        with pytest.raises(error):
            transform_file(mapping, source, tmp_path / "out.npy")
        assert not (tmp_path / "out.npy").exists()
    transform_file(mapping, cases[0][0], tmp_path / "out.npy", check=False)
    with pytest.raises(SpaceMismatchError):  # a width that cannot be multiplied is no matter of opinion
        transform_file(mapping, cases[3][0], tmp_path / "no.npy", check=False)


@pytest.mark.parametrize(("value", "error"), [(np.nan, errors.NotFiniteError), (0.0, errors.ZeroRowError)])
def test_bad_rows_are_named_and_nothing_is_written(mapping, value, error, tmp_path):
    ids, before = [f"i{k}" for k in range(20_000)], threading.active_count()
    for source, name in (
        (store(tmp_path / "a.parquet", bad(15_000, value), ids), "i15000"),
        (store(tmp_path / "a.npy", bad(15_000, value)), "row 15000"),
    ):
        with pytest.raises(error, match=name):
            transform_file(mapping, source, tmp_path / "out.npz")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.npy", "a.parquet"]
    assert threading.active_count() == before
    transform_file(mapping, store(tmp_path / "z.npy", bad(3, 0.0)), tmp_path / "out.npy", allow_zero_rows=True)


def test_a_round_trip_and_an_existing_output_needs_force(mapping, tmp_path):
    source = store(tmp_path / "in.npy", P.X)
    transform_file(mapping, source, tmp_path / "out.npy")
    transform_file(mapping.inverse(), open_source(tmp_path / "out.npy"), tmp_path / "back.npy")
    np.testing.assert_allclose(np.load(tmp_path / "back.npy"), P.X, atol=0.05)
    with pytest.raises(errors.OutputExistsError):
        transform_file(mapping, source, tmp_path / "out.npy")
    transform_file(mapping, source, tmp_path / "out.npy", force=True)


MEMORY = """
import re, sys
import congruence
from congruence.upgrade.transform import transform_file
from congruence.io import open_source
mapping = congruence.load(sys.argv[1])
transform_file(mapping, open_source(sys.argv[2]), sys.argv[3])
# Not ru_maxrss: that of a child starts at its parent's.
print(int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) // 1024)
"""


@pytest.mark.long
def test_memory_does_not_grow_with_the_store(tmp_path):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((200, 256)).astype(np.float32)
    OrthogonalMap().fit(X, X[:, ::-1]).save(tmp_path / "map")
    peaks = []
    block = rng.standard_normal((4096, 256)).astype(np.float32)
    for k, n in enumerate((4096, 4096 * 50)):  # 4 MB and 210 MB
        with open_sink(tmp_path / f"in{k}.npy", n=n, dim=256) as sink:
            for _ in range(n // 4096):
                sink.write(None, block)
        peaks.append(int(run_fresh(MEMORY, tmp_path / "map", tmp_path / f"in{k}.npy", tmp_path / f"out{k}.npy").stdout))
    assert peaks[1] < 600
    assert peaks[1] - peaks[0] < 150


def norms(X):
    return np.linalg.norm(X, axis=1)


@pytest.mark.parametrize(
    "kind", [OrthogonalMap(), LinearMap(), MLPMap(hidden=8, max_epochs=2), CCAMap(n_components=5)], ids=lambda m: m.kind
)
def test_unit_rows_stay_unit_rows(kind, tmp_path):
    X, to_unit_rows = P.X[:300], kind.fit(P.X[:200], unit(P.Y[:200]))
    raw = to_unit_rows.transform(X)
    assert np.ptp(norms(raw)) > 0.01  # the map itself does not scale
    source = store(tmp_path / "in.npy", X)
    side = {"side": "source"} if to_unit_rows.kind == "cca" else {}
    for place, normalize, expected in (("auto", "auto", unit(raw)), ("yes", True, unit(raw)), ("no", False, raw)):
        report = transform_file(to_unit_rows, source, tmp_path / f"{place}.npy", normalize=normalize, **side)
        assert report.normalized == (normalize is not False)
        np.testing.assert_allclose(np.load(tmp_path / f"{place}.npy"), expected, atol=1e-12)
    assert open_source(tmp_path / "auto.npy").space.normalized
    assert open_source(tmp_path / "no.npy").space.normalized is None
    default = transform_file(to_unit_rows, source, tmp_path / "default.npy", **side)
    assert default.normalized


def test_raw_rows_stay_raw(tmp_path):
    raw = OrthogonalMap().fit(unit(P.X[:200]), P.Y[:200])
    X = unit(P.X[:300])
    assert not transform_file(raw, store(tmp_path / "in.npy", X), tmp_path / "out.npy").normalized
    np.testing.assert_allclose(np.load(tmp_path / "out.npy"), raw.transform(X), atol=1e-12)
    # The other way round the source's rows are the target's.
    back = raw.inverse().transform_embeddings(Embeddings(P.Y[:300])).vectors
    np.testing.assert_allclose(back, unit(raw.inverse().transform(P.Y[:300], role="plain")), atol=1e-12)


def test_a_fit_on_embeddings_knows_the_norms_and_so_do_its_relatives():
    ids = [str(k) for k in range(200)]
    rows = unit(P.Y[:200])
    m = fit(Embeddings(P.X[:200], ids=ids), Embeddings(rows, ids=ids), modality="image", check=False)
    assert m.gives_unit_rows()
    moved = m.recenter(P.X[200:].mean(0), rows.mean(0), modality="text")
    assert moved.for_modality("text").gives_unit_rows()
    first = OrthogonalMap().partial_fit(P.X[:100], rows[:100])
    assert first.gives_unit_rows()
    assert first.merge(OrthogonalMap().fit(P.X[100:200], rows[100:])).gives_unit_rows()
    assert not first.merge(OrthogonalMap().fit(P.X[100:200], P.Y[100:200])).gives_unit_rows()
    assert not first.partial_fit(P.X[100:200], P.Y[100:200]).gives_unit_rows()


def test_a_map_that_does_not_know_leaves_rows_raw_and_says_so(tmp_path):
    m = OrthogonalMap().fit(P.X[:200], unit(P.Y[:200]))
    m.target_space_ = replace(m.target_space_, normalized=None)  # as maps of earlier versions, fitted on plain arrays
    old = load(m.save(tmp_path / "map"))
    with pytest.warns(NormWarning, match="no record .* Pass normalize=True"):
        out = old.transform_embeddings(Embeddings(P.X))
    np.testing.assert_allclose(out.vectors, m.transform(P.X), atol=1e-12)
    with pytest.warns(NormWarning):
        transform_file(old, store(tmp_path / "in.npy", P.X), tmp_path / "out.npy")
    assert old.transform_embeddings(Embeddings(P.X), normalize=True).space.normalized


def test_zero_rows_stay_zero(tmp_path):
    m = OrthogonalMap(center=False).fit(P.X[:200], unit(P.Y[:200]))
    X = P.X[:9].copy()
    X[4] = 0
    transform_file(m, store(tmp_path / "in.npy", X), tmp_path / "out.npy", allow_zero_rows=True)
    np.testing.assert_allclose(norms(np.load(tmp_path / "out.npy")), [1] * 4 + [0] + [1] * 4, atol=1e-12)


def test_tensors_too_leave_as_unit_rows():
    torch = pytest.importorskip("torch")
    X = torch.tensor(P.X[:9], requires_grad=True)
    for m, side in ((OrthogonalMap(), {}), (CCAMap(n_components=5), {"side": "source"})):
        out = m.fit(P.X[:200], unit(P.Y[:200])).transform_embeddings(X, **side)
        np.testing.assert_allclose(norms(out.detach().numpy()), 1, atol=1e-12)
        out[:, 0].sum().backward()  # through the norm as well
        as_mapped = m.transform_embeddings(X, normalize=False, **side).detach().numpy()
        np.testing.assert_allclose(as_mapped, m.transform(P.X[:9]), atol=1e-12)


def test_rows_that_record_another_modality_are_refused_unless_nothing_is_checked(tmp_path):
    X = np.random.default_rng(0).standard_normal((40, 6))
    mapping = OrthogonalMap().fit(X, X[:, ::-1], modality="text").recenter(X + 1, X, modality="image", use=False)
    np.save(tmp_path / "images.npy", X)
    images, out = open_source(str(tmp_path / "images.npy"), space=Space(modality="image")), tmp_path / "out.npy"
    with pytest.raises(ModalityError, match="record image"):
        transform_file(mapping, images, out, modality="text")
    assert not out.exists()
    transform_file(mapping, images, out, modality="text", check=False)
    transform_file(mapping, images, tmp_path / "again.npy")
    assert (np.load(out) != np.load(tmp_path / "again.npy")).any()
