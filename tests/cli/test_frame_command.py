"""``congruence lab frame``: from files of many models to maps between any two."""

import json

import numpy as np
import pytest

import congruence
from congruence import CanonicalFrame, Embeddings
from congruence.errors import ZeroRowError


@pytest.fixture
def files(tmp_path):
    draw = np.random.default_rng(0)
    truth = draw.standard_normal((60, 6))
    rows = {name: truth @ np.linalg.qr(draw.standard_normal((6, 6)))[0] for name in "abc"}
    for name, which in {"a": range(40), "b": range(20, 60), "c": range(30, 60)}.items():
        np.savez(tmp_path / f"{name}.npz", v=rows[name][list(which)], ids=np.array([f"i{k}" for k in which]))
    return rows


def test_a_frame_is_fitted_added_to_and_gives_maps(here, files, tmp_path):
    fitted = here("lab frame fit", "one=a.npz:v", "b.npz", "-o", "two", "--modality", "text").ends(0)
    assert "Frame of 2 models, alignment 1.000" in fitted.out
    added = here("lab frame add", "two", "new:text=c.npz", "-o", "three", "--json").ends(0)
    result = json.loads(added.out)
    assert list(result["models"]) == ["one", "b", "new"]
    assert result["models"]["one"]["space"]["model"] == "one"
    assert result["items"] == {"text": 60}
    here("lab frame map", "three", "one", "new", "-o", "map").ends(0)
    mapping = congruence.load(tmp_path / "map")
    np.testing.assert_allclose(mapping.transform(files["a"]), files["c"], atol=1e-5)
    assert here("transform", "map", "a.npz:v", "-o", "mapped.npy").code == 0


def test_the_frame_is_the_one_of_the_library(here, files, tmp_path):
    assert here("lab frame fit", "a=a.npz", "b=b.npz", "c=c.npz", "-o", "frame", "--set", "shrinkage=covered").code == 0
    ids = [f"i{k}" for k in range(60)]
    have = {"a": slice(40), "b": slice(20, 60), "c": slice(30, 60)}
    own = CanonicalFrame(shrinkage="covered").fit({k: Embeddings(files[k][s], ids[s]) for k, s in have.items()})
    np.testing.assert_array_equal(
        CanonicalFrame.load(tmp_path / "frame").map("a", "c").rotation_, own.map("a", "c").rotation_
    )


def test_a_row_of_zeros_is_refused_or_left_out_when_that_is_asked_for(here, files, tmp_path):
    rows = files["a"][:40].copy()
    rows[7] = 0
    np.savez(tmp_path / "failed.npz", v=rows, ids=np.array([f"i{k}" for k in range(40)]))
    for arguments in (("fit", "b.npz", "failed.npz", "-o", "f"), ("fit", "failed.npz", "b.npz", "-o", "f")):
        here("lab frame", *arguments).refused("all zeros in 1 of 40 rows", "--set allow_zero_rows=true")
    assert here("lab frame fit", "b.npz", "failed.npz", "-o", "f", "--set", "allow_zero_rows=true").code == 0
    with pytest.raises(ZeroRowError):
        CanonicalFrame().fit({"a": rows, "b": files["b"][:40]})
