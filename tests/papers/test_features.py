"""Files of features, read by one reader for all papers."""

from __future__ import annotations

import numpy as np
import pytest

from congruence.errors import CorruptFileError, FileError, NotFiniteError, ParameterError, ZeroRowError
from congruence_papers import canonical, jam, sotalign
from congruence_papers.features import FILES

CALTECH = [study.open_sample for study in (canonical, sotalign, jam)]
IMAGENET = [sotalign.open_sample, jam.open_sample]


def write(folder, name, **changed):
    """Write a file of features of twelve items, with some arrays replaced, or left out where None."""
    rng = np.random.default_rng(0)
    classes = np.array([f"class {k}" for k in range(4)])
    arrays = {
        "image_effnet_lite0": rng.normal(size=(12, 6)),
        "image_mobilenet_v2": rng.normal(size=(12, 6)),
        "label": np.arange(12) % 4,
        "classes": classes,
        "names": np.array([f"name {k}" for k in range(12)]),
        "templates": np.array(["a {}", "the {}"]),
        "image_file": np.array([f"{k}.jpg" for k in range(12)]),
        "text_mpnet": rng.normal(size=(4, 2, 5) if name == "caltech101" else (12, 5)),
        "text_minilm_l6": rng.normal(size=(4, 2, 5) if name == "caltech101" else (12, 5)),
    } | changed
    path = folder / FILES[name]
    np.savez(path, **{key: array for key, array in arrays.items() if array is not None})
    return path


def outcome(opened, name, path) -> tuple[type[Exception], str]:
    with pytest.raises(Exception) as found:
        opened(name, path)
    return found.type, str(found.value)


@pytest.mark.parametrize(("name", "openers"), [("caltech101", CALTECH), ("imagenet1000", IMAGENET)])
@pytest.mark.parametrize("key", ["image_effnet_lite0", "text_mpnet"])
@pytest.mark.parametrize(("value", "error"), [(np.nan, NotFiniteError), (np.inf, NotFiniteError), (0.0, ZeroRowError)])
def test_the_same_bad_row_is_the_same_error_in_every_paper(tmp_path, name, openers, key, value, error):
    rows = np.random.default_rng(1).normal(size=(12, 6) if key.startswith("image") else (4, 2, 5))
    if key == "text_mpnet" and name == "imagenet1000":
        rows = np.random.default_rng(1).normal(size=(12, 5))
    rows[(3, 1) if rows.ndim == 3 else 7] = value
    path = write(tmp_path, name, **{key: rows})
    found = {outcome(opened, name, path) for opened in openers}
    assert len(found) == 1
    ((kind, words),) = found
    assert kind is error
    assert f"1 of {rows.size // rows.shape[-1]} rows of {key} in {path}" in words
    assert "(rows 7)" in words


@pytest.mark.parametrize("opened", CALTECH)
def test_damaged_files_are_the_same_error_in_every_paper(opened, tmp_path):
    whole = write(tmp_path, "caltech101").read_bytes()
    path = tmp_path / FILES["caltech101"]
    for damage in (whole[: len(whole) // 2], b"", b"words"):
        path.write_bytes(damage)
        assert outcome(opened, "caltech101", path)[0] is CorruptFileError
    for changed in ({"label": None}, {"text_mpnet": None}, {"classes": np.array(3)}, {"label": np.array(["a"] * 12)}):
        write(tmp_path, "caltech101", **changed)
        kind, words = outcome(opened, "caltech101", tmp_path)
        assert kind is CorruptFileError
        assert "cannot be used as caltech101" in words
    assert outcome(opened, "caltech101", tmp_path / "none.npz")[0] is FileError
    assert outcome(opened, "caltech101", None)[0] is ParameterError
