"""Files of features, read by one reader for all papers."""

import numpy as np
import pytest

from congruence.errors import CorruptFileError, FileError, NotFiniteError, ParameterError, ZeroRowError
from congruence_papers import canonical, jam, sotalign
from congruence_papers.features import FILES

CALTECH = [study.open_sample for study in (canonical, sotalign, jam)]
IMAGENET = [sotalign.open_sample, jam.open_sample]


def write(folder, name, **changed):
    rng = np.random.default_rng(0)
    texts = (4, 2, 5) if name == "caltech101" else (12, 5)
    arrays = {key: rng.normal(size=(12, 6)) for key in ("image_effnet_lite0", "image_mobilenet_v2")}
    arrays |= {key: rng.normal(size=texts) for key in ("text_mpnet", "text_minilm_l6")}
    arrays |= {"label": np.arange(12) % 4, "templates": np.array(["a {}", "the {}"])}
    names = {"classes": "class {}", "names": "name {}", "image_file": "{}.jpg"}
    arrays |= {key: np.array([form.format(k) for k in range(12)]) for key, form in names.items()}
    arrays |= {"classes": arrays["classes"][:4], **changed}
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
    texts = (4, 2, 5) if name == "caltech101" else (12, 5)
    rows = np.random.default_rng(1).normal(size=(12, 6) if key.startswith("image") else texts)
    rows[(3, 1) if rows.ndim == 3 else 7] = value
    path = write(tmp_path, name, **{key: rows})
    found = {outcome(opened, name, path) for opened in openers}
    assert len(found) == 1
    ((kind, words),) = found
    assert kind is error
    assert f"1 of {rows.size // rows.shape[-1]} rows of {key} in {path}" in words
    assert "(rows 7)" in words


OPENERS = [*(("caltech101", opened) for opened in CALTECH), *(("imagenet1000", opened) for opened in IMAGENET)]


@pytest.mark.parametrize(("name", "opened"), OPENERS)
def test_damaged_files_are_the_same_error_in_every_paper(name, opened, tmp_path):
    whole = write(tmp_path, name).read_bytes()
    path = tmp_path / FILES[name]
    for damage in (whole[: len(whole) // 2], b"", b"words", b"PK\x03\x04 nothing"):
        path.write_bytes(damage)
        assert outcome(opened, name, path)[0] is CorruptFileError
    bad = [{"label": None}, {"classes": np.array(3)}, {"label": np.array(["a"] * 12)}] if name == "caltech101" else []
    for changed in (*bad, {"text_mpnet": None}):
        write(tmp_path, name, **changed)
        kind, words = outcome(opened, name, tmp_path)
        assert kind is CorruptFileError
        assert f"cannot be used as {name}" in words
    assert outcome(opened, name, tmp_path / "none.npz")[0] is FileError
    assert outcome(opened, name, None)[0] is ParameterError
