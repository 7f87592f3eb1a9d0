"""Vectors as stores hold them: quantized, padded with zeros, cut to a prefix; the loss is measured."""

import json

import numpy as np
import pytest

from congruence import Embeddings, OrthogonalMap, Pairs, Space, errors, fit
from congruence.io import read_embeddings
from congruence.upgrade.stored import choose_prefix, dequantize, neighbors_kept, quantize, without_padding
from congruence.upgrade.transform import transform_file

RNG = np.random.default_rng(11)
CENTERS = RNG.standard_normal((40, 64))
X = CENTERS[RNG.integers(0, 40, 1500)] + 0.7 * RNG.standard_normal((1500, 64))
X = (X / np.linalg.norm(X, axis=1, keepdims=True)).astype(np.float32)
TURN = np.linalg.qr(RNG.standard_normal((64, 64)))[0].astype(np.float32)
MAP = OrthogonalMap(center=False).fit(X, X @ TURN)


def cosines(A, B):
    return (A * B).sum(axis=1) / np.linalg.norm(A, axis=1) / np.linalg.norm(B, axis=1)


@pytest.mark.parametrize("kind", ["int8", "uint8", "binary", "ubinary"])
@pytest.mark.parametrize("with_ranges", [False, True])
def test_codes_stand_for_vectors(kind, with_ranges):
    ranges = np.stack([X.min(axis=0), X.max(axis=0)]) if with_ranges else None
    codes = quantize(X, kind, ranges)
    assert codes.dtype == (np.uint8 if kind[0] == "u" else np.int8)
    back = dequantize(codes, kind, ranges)
    assert back.shape == X.shape
    if kind.endswith("binary"):
        np.testing.assert_array_equal(back > 0, X > 0)
        np.testing.assert_allclose(np.linalg.norm(back, axis=1), 1, rtol=1e-6)
        signs = np.packbits(X > 0, axis=1)  # as sentence-transformers writes them
        np.testing.assert_array_equal(codes.astype(int) + (128 if kind == "binary" else 0), signs)
    elif with_ranges:
        assert np.abs(back - X).max() <= np.ptp(X, axis=0).max() / 255
    else:
        assert cosines(back, X).min() > 0.9995
    np.testing.assert_array_equal(quantize(back, kind, ranges), codes)


def test_what_are_no_codes():
    for bad, kind in ((X, "float"), (X * 1000, "int8"), (np.full((2, 8), -1), "ubinary"), (np.array([["a"]]), "int8")):
        with pytest.raises(errors.CongruenceError):
            dequantize(bad, kind)
    with pytest.raises(errors.ShapeError, match="eight"):
        quantize(X[:, :9], "ubinary")
    for ranges in (np.zeros((2, 3)), np.stack([np.ones(64), np.zeros(64)]), np.full((2, 64), np.nan)):
        with pytest.raises(errors.ShapeError, match="ranges"):
            quantize(X, "int8", ranges)


@pytest.mark.parametrize("suffix", [".npy", ".parquet", ".npz", ".arrow", ".h5"])
@pytest.mark.parametrize("kind", ["int8", "ubinary"])
def test_a_store_of_codes_is_mapped_to_codes(kind, suffix, tmp_path):
    np.save(tmp_path / "codes.npy", quantize(X, kind))
    report = transform_file(MAP, tmp_path / "codes.npy", tmp_path / f"out{suffix}", quantized=kind, check=False)
    back = read_embeddings(tmp_path / f"out{suffix}").vectors
    assert (report.dtype, report.dim) == ("int8" if kind == "int8" else "uint8", 64 if kind == "int8" else 8)
    np.testing.assert_array_equal(back, np.round(back))
    new, right = dequantize(back, kind), X @ TURN
    direct = dequantize(quantize(right, kind), kind)  # the loss of the codes themselves
    assert cosines(new, right).mean() > (0.999 if kind == "int8" else 0.5)
    exact = MAP.transform(dequantize(np.load(tmp_path / "codes.npy"), kind))
    assert report.kept == pytest.approx(neighbors_kept(exact[:1000], new[:1000]), abs=0.02)
    assert report.kept > (0.93 if kind == "int8" else 0.3)
    assert neighbors_kept(right, new) <= neighbors_kept(right, direct) + 0.02
    for wrong in (".csv", ".fvecs", ".safetensors"):
        with pytest.raises(errors.DtypeError, match="holds floats"):
            transform_file(MAP, tmp_path / "codes.npy", tmp_path / f"no{wrong}", quantized=kind, check=False)
        assert not (tmp_path / f"no{wrong}").exists()


def test_codes_with_ranges_get_ranges_of_their_own(tmp_path, here):
    ranges = np.stack([X.min(axis=0), X.max(axis=0)]).astype(float)
    np.save(tmp_path / "ranges.npy", ranges)
    np.save(tmp_path / "codes.npy", quantize(X, "uint8", ranges))
    MAP.save(tmp_path / "map")
    words = ("--set", "quantized=uint8", "--set", "ranges=ranges.npy", "--set", "check=false")
    facts = json.loads(here("transform", "map", "codes.npy", "-o", "out.npy", *words, "--json").ends(0).out)
    new = dequantize(np.load(tmp_path / "out.npy"), "uint8", np.load(tmp_path / "out.npy.ranges.npy"))
    assert cosines(new, X @ TURN).min() > 0.99
    assert facts["kept"] > 0.95
    assert (
        "nearest rows that the stored form keeps"
        in here("transform", "map", "codes.npy", "-o", "other.npy", *words).ends(0).out
    )


@pytest.mark.parametrize("width", [70, 128])
def test_padding_stays_zero_and_is_said(width, tmp_path, here):
    padded = np.pad(X, ((0, 0), (0, width - 64)))
    np.save(tmp_path / "padded.npy", padded)
    MAP.save(tmp_path / "map")
    done = here("transform", "map", "padded.npy", "-o", "out.npy").ends(0)
    assert "columns of zeros after them, which stay" in done.out
    out = np.load(tmp_path / "out.npy")
    assert out.shape == padded.shape
    assert not out[:, 64:].any()
    np.testing.assert_allclose(out[:, :64], X @ TURN, atol=1e-5)
    report = json.loads(here("transform", "map", "padded.npy", "-o", "b.npy", "--json").ends(0).out)
    assert report["padding"] == width - 64
    padded[777, -1] = 0.1  # between the rows that are looked at first, or not
    np.save(tmp_path / "padded.npy", padded)
    here("transform", "map", "padded.npy", "-o", "c.npy").ends(2)
    assert not (tmp_path / "c.npy").exists()


def test_a_prefix_of_the_new_model(tmp_path, here):
    np.save(tmp_path / "old.npy", X)
    MAP.save(tmp_path / "map")
    report = transform_file(MAP, tmp_path / "old.npy", tmp_path / "out.parquet", prefix=16, normalize=True)
    right = (X @ TURN)[:, :16]
    out = read_embeddings(tmp_path / "out.parquet").vectors
    np.testing.assert_allclose(out, right / np.linalg.norm(right, axis=1, keepdims=True), atol=1e-5)
    assert report.kept == pytest.approx(neighbors_kept((X @ TURN)[:1000], right[:1000]), abs=0.01)
    kept = [
        json.loads(
            here("transform", "map", "old.npy", "-o", f"p{k}.npy", "--set", f"prefix={k}", "--json").ends(0).out
        )["kept"]
        for k in (8, 32, 64)
    ]
    assert kept[0] < kept[1] < kept[2] == 1
    for bad in (0, 65):
        assert "prefix" in here("transform", "map", "old.npy", "-o", "x.npy", "--set", f"prefix={bad}").ends(2).err
    assert not (tmp_path / "x.npy").exists()


def test_a_prefix_is_chosen_by_left_out_pairs(tmp_path, here):
    """The first 16 columns of this new model say nearly all, and the rest is noise; of another one, all 64 matter."""
    own = RNG.standard_normal((400, 16))
    old = own @ np.linalg.qr(RNG.standard_normal((16, 16)))[0] + 0.02 * RNG.standard_normal((400, 16))
    nested = np.c_[own, 0.05 * RNG.standard_normal((400, 48))]
    nested /= np.linalg.norm(nested, axis=1, keepdims=True)
    choice = choose_prefix(Pairs(Embeddings(old), Embeddings(nested)))
    assert (choice.prefix, choice.dim) == (16, 64)
    assert choice.found >= choice.found_whole - choice.error
    noisy = X[:400] + 0.2 * RNG.standard_normal((400, 64))
    assert choose_prefix(Pairs(Embeddings(noisy), Embeddings(X[:400] @ TURN))).prefix == 64
    # Strangers find nothing, which tells nothing of a prefix.
    assert choose_prefix(Pairs(Embeddings(old), Embeddings(RNG.standard_normal((400, 64))))).prefix == 64
    np.save(tmp_path / "old.npy", old)
    np.save(tmp_path / "new.npy", nested)
    done = here("fit", "old.npy", "new.npy", "-o", "map", "--set", "prefix=auto").ends(0)
    assert "the first 16 of 64 columns" in done.out
    here("transform", "map", "old.npy", "-o", "out.npy").ends(0)
    mapped = np.load(tmp_path / "out.npy")
    assert mapped.shape == (400, 16)
    assert cosines(mapped, nested[:, :16]).min() > 0.95
    facts = json.loads(
        here("fit", "old.npy", "new.npy", "-o", "m8", "--set", "prefix=8", "--holdout", "40", "--json").ends(0).out
    )
    assert facts["scores"]["prefix"]["prefix"] == 8
    for bad in ("0", "65", "x", "-3"):
        here("fit", "old.npy", "new.npy", "-o", "none", "--set", f"prefix={bad}").ends(2)
    with pytest.raises(errors.ParameterError, match="distinct pairs"):
        choose_prefix(Pairs(Embeddings(old[:9]), Embeddings(nested[:9])))


@pytest.mark.filterwarnings("ignore::congruence.errors.ProjectionWarning", "ignore::congruence.errors.AlignmentWarning")
def test_a_prefix_with_means_and_unpaired_rows():
    new = Embeddings(X @ TURN, space=Space(modality="text"))
    old = Embeddings(X, space=Space(modality="text"))
    other = Embeddings(X[:50] + 0.3, space=Space(modality="image"))
    fitted = fit(old.take(range(300)), new.take(range(300)), prefix=32, means={"image": (other, X[:50] @ TURN + 0.2)})
    assert (fitted.d_out, fitted.for_modality("image").d_out) == (32, 32)
    pools = X[300:700], (X @ TURN)[350:750]
    refined = fit(X[:300], (X @ TURN)[:300], "orthogonal", prefix=32, unpaired=pools)
    assert refined.d_out == 32


@pytest.mark.parametrize("sides", [(70, 64), (64, 80), (72, 80)])
def test_fit_leaves_padding_out(sides, tmp_path, here):
    old, new = (np.pad(rows, ((0, 0), (0, width - 64))) for rows, width in zip((X, X @ TURN), sides, strict=True))
    np.save(tmp_path / "old.npy", old)
    np.save(tmp_path / "new.npy", new)
    np.savez(tmp_path / "more.npz", a=old[:99] + np.r_[np.full(64, 0.3), np.zeros(sides[0] - 64)].astype("f4"))
    run = ("fit", "old.npy", "new.npy", "--modality", "text", "--means", "image=more.npz", "-o", "map")
    done = here(*run).ends(0)
    for name, width in zip(("old", "new"), sides, strict=True):
        assert (f"The last {width - 64} columns of {name}.npy are zeros" in done.err) == (width > 64)
    here("transform", "map", "old.npy", "-o", "out.npy", "--modality", "text").ends(0)
    out = np.load(tmp_path / "out.npy")
    assert out.shape == (1500, max(64, sides[0]))
    assert cosines(out[:, :64], X @ TURN).min() > 0.99
    counts = RNG.poisson(0.5, (30, 6)) * np.array([1, 1, 1, 1, 1, 0])
    counts[:, 0] += 1
    rows = Embeddings(counts)
    assert without_padding(rows) is rows  # an empty column of counts is no padding
