"""What commands may replace or remove, and what happens when two of them write to one path."""

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import congruence
import congruence._utils.atomic as atomic
from congruence import Space
from congruence.errors import OutputExistsError
from congruence.io import open_source
from congruence.upgrade.transform import transform_file

RNG = np.random.default_rng(0)
X = RNG.standard_normal((60, 6)).astype(np.float32)


@pytest.fixture
def data(tmp_path):
    np.savez(tmp_path / "a.npz", v=X)
    np.savez(tmp_path / "b.npz", v=X @ np.linalg.qr(RNG.standard_normal((6, 6)))[0].astype(np.float32))
    congruence.OrthogonalMap().fit(X, X).save(tmp_path / "map")
    return tmp_path


def test_a_map_replaces_a_map(here, data):
    for _ in range(2):
        assert here("fit", "a.npz:v", "b.npz:v", "-o", "map", "--force").code == 0
    (data / "map" / "notes.txt").write_text("mine")
    here("fit", "a.npz:v", "b.npz:v", "-o", "map", "--force").refused("notes.txt")
    assert (data / "map" / "notes.txt").read_text() == "mine"


def test_a_folder_of_ones_own_parts_is_not_replaced(here, data):
    (data / "mine").mkdir()
    np.save(data / "mine" / "part_0.npy", X)
    here("transform", "map", "a.npz:v", "-o", "mine", "--force").ends(2)
    assert (np.load(data / "mine" / "part_0.npy") == X).all()
    for more in ((), ("--force",)):
        assert here("transform", "map", "a.npz:v", "-o", "parts", *more).code == 0
    assert len(open_source(data / "parts").parts) == 1


def test_a_file_beside_the_output_is_not_replaced_or_removed(here, data):
    (data / "out.npy.space.json").write_text('{"years": "of work"}')
    for model in ((), ("--set", "model=m")):
        here("transform", "map", "a.npz:v", "-o", "out.npy", "--set", "check=false", *model).refused(
            "out.npy.space.json"
        )
    assert (data / "out.npy.space.json").read_text() == '{"years": "of work"}'
    assert not (data / "out.npy").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_a_command_with_nothing_half_written(here, data, number, monkeypatch):
    before = {path.name for path in data.iterdir()}
    publish = atomic._publish

    def signaled(*arguments):
        os.kill(os.getpid(), number)
        publish(*arguments)

    monkeypatch.setattr(atomic, "_publish", signaled)
    done = here("transform", "map", "a.npz:v", "-o", "out.npy")
    assert done.code == 128 + number
    assert "stopped" in done.err
    assert {path.name for path in data.iterdir()} == before
    assert signal.getsignal(number) is signal.SIG_DFL


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
