"""What others wrote is never replaced, and of two that write to one path one succeeds."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import congruence
from congruence import Space
from congruence.errors import OutputExistsError
from congruence.io import open_source
from congruence.upgrade.transform import transform_file

X = np.random.default_rng(0).standard_normal((60, 6)).astype(np.float32)


@pytest.fixture
def data(tmp_path):
    np.savez(tmp_path / "a.npz", v=X)
    congruence.OrthogonalMap().fit(X, X).save(tmp_path / "map")
    return tmp_path


@pytest.mark.parametrize("command", ["fit a.npz:v a.npz:v", "transform map a.npz:v", "bridge export map"])
def test_what_congruence_did_not_write_is_never_replaced(here, data, command):
    (data / "thesis").mkdir()
    (data / "thesis" / "chapter.txt").write_text("years of work")
    os.mkfifo(data / "pipe")
    (data / "link").symlink_to(data / "pipe")
    (data / "null.npy").symlink_to("/dev/null")
    before = {path: os.lstat(path).st_ino for path in data.rglob("*")}
    for out in ("thesis", "pipe", "link", "null.npy"):
        for more in ((), ("--force",)):
            assert here(*command.split(), "-o", out, *more).ends(2).err.startswith("error: Got ")
    assert {path: os.lstat(path).st_ino for path in data.rglob("*")} == before
    assert (data / "thesis" / "chapter.txt").read_text() == "years of work"


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".parquet", ".csv", ".jsonl", ".safetensors", ""])
def test_of_two_transforms_to_one_path_one_succeeds(data, suffix):
    first = congruence.fit(*(congruence.Embeddings(X, space=Space(name)) for name in "ab"), check=False)
    barrier, out = threading.Barrier(2), data / f"out{suffix}"

    def write(mapping):
        try:
            transform_file(
                mapping, open_source(data / "a.npz:v"), out, check=False, callback=lambda _: barrier.wait(10)
            )
        except OutputExistsError:
            return None
        return mapping.target_space_.model

    before = {path.name for path in data.iterdir()}
    with ThreadPoolExecutor(2) as pool:
        done = [model for model in pool.map(write, (first, first.inverse())) if model]
    assert done == [open_source(out).space.model]
    assert {path.name for path in data.iterdir()} - before <= {out.name, f"{out.name}.space.json"}
