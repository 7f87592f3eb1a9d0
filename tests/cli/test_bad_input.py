"""Bad input ends a command with exit code 2 and one line that names its own flags, and nothing is written."""

import numpy as np
import pytest

import congruence
from congruence import errors


@pytest.fixture
def files(tmp_path):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 4))
    np.savez(tmp_path / "a.npz", v=X)
    np.savez(tmp_path / "b.npz", v=X @ np.linalg.qr(rng.normal(size=(4, 4)))[0])
    return tmp_path


@pytest.mark.parametrize(
    ("command", "named"),
    [
        ("fit a.npz b.npz -o m --method pca", "--method pca"),
        ("fit a.npz b.npz -o m --method cca --n-components 0", "--n-components 0"),
        ("similarity a.npz b.npz --permutations -1", "--permutations -1"),
        ("similarity a.npz b.npz --metric nonsense", "--metric nonsense"),
        ("match a.npz b.npz --rows 900", "--rows 900"),
        ("train csa --pairs a.npz,b.npz -o m --set n_components=0", "--set n_components=0"),
        ("train nonsense --pairs a.npz,b.npz -o m", "nonsense"),
        ("embed hf:x caltech101 -o m", "--root"),
    ],
)
def test_a_command_names_what_to_type(here, files, command, named):
    here(*command.split()).refuses(named)
    assert {path.name for path in files.iterdir()} == {"a.npz", "b.npz"}


def test_python_names_arguments(files):
    with np.load(files / "a.npz") as a:
        X = congruence.Embeddings(a["v"])
    with pytest.raises(errors.TooFewAnchorsError, match="smaller `?holdout"):
        congruence.fit(X, X, holdout=39)
    with pytest.raises(errors.ShapeError, match=r"40 rows.*39.*`?ids="):
        congruence.fit(X, X.take(np.arange(39)))
    (files / "taken").mkdir()
    with pytest.raises(errors.OutputExistsError, match="force=True"):
        congruence.fit(X, X).save(files / "taken")


def test_warnings_name_flags_too(here, files):
    with np.load(files / "b.npz") as b:
        np.savez(files / "turned.npz", v=np.roll(b["v"], 7, axis=0))
    result = here("fit", "a.npz", "turned.npz", "-o", "m").ends(0)
    assert "--ids" in result.err
