"""Data that does not fit into memory is refused before it is read."""

import os
import re

import numpy as np
import pytest

import congruence._utils.memory as memory
from congruence.errors import OutOfMemoryError
from congruence.io import open_source
from congruence.io.reading import reading

MIB = 2**20


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Files that describe a machine: its free memory, and the control groups of this process."""
    proc, groups = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    groups.mkdir()
    monkeypatch.setattr(memory, "_PROC", proc)
    monkeypatch.setattr(memory, "_GROUPS", groups)

    def make(free=None, swap=0, cgroup="", **files):
        if free is not None:
            (proc / "meminfo").write_text(
                f"MemTotal: 9 kB\nMemAvailable:  {free // 1024} kB\nSwapFree: {swap // 1024} kB\n"
            )
        (proc / "self" / "cgroup").write_text(cgroup)
        for name, text in files.items():
            place = groups / name.replace("__", "/").replace("_dot_", ".")
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(str(text))
        return memory.free_memory()

    return make


def test_what_is_free(machine):
    assert machine() is None  # no Linux
    assert machine(300 * MIB) == 300 * MIB
    assert machine(300 * MIB, swap=50 * MIB) == 350 * MIB
    assert machine(900 * MIB, cgroup="0::/\n", memory_dot_max="max", memory_dot_current=5) == 900 * MIB  # no limit


@pytest.mark.parametrize("where", ["job__", ""])
def test_the_limit_of_a_container_counts_and_its_cached_files_do_not(machine, where):
    """Control groups of version 2, at their own path or, in a container, at the root."""
    files = {
        "memory_dot_max": 200 * MIB,
        "memory_dot_current": 150 * MIB,
        "memory_dot_stat": f"anon 9\nfile {60 * MIB}\nfile_mapped 1\n",
    }
    assert machine(900 * MIB, cgroup="0::/job\n", **{where + name: text for name, text in files.items()}) == 110 * MIB


def test_a_matrix_larger_than_memory_is_refused_before_it_is_read(tmp_path, monkeypatch):
    header = np.lib.format.header_data_from_array_1_0(np.zeros((1, 2), np.float32)) | {"shape": (20_000_000, 2)}
    with open(tmp_path / "x.npy", "wb") as stream:  # sparse
        np.lib.format.write_array_header_1_0(stream, header)
        stream.truncate(stream.tell() + 160_000_000)
    monkeypatch.setattr(memory, "free_memory", lambda: 100 * MIB)
    source = open_source(tmp_path / "x.npy")
    monkeypatch.setattr(type(source), "scan", None)
    sentence = "Got 20,000,000 × 2 float32 in {}, which needs 152.6 MiB, but only 100.0 MiB of memory are free"
    for read in (source.read, lambda: source.take(np.arange(source.n))):
        with pytest.raises(OutOfMemoryError, match=re.escape(sentence.format(source.path))):
            read()


@pytest.mark.parametrize("damage", [(), (ValueError,)])
def test_memory_that_ends_while_a_file_is_read(damage):
    import pyarrow as pa

    for ask in (lambda: np.empty(2**56), lambda: pa.allocate_buffer(2**62)):
        with (
            pytest.raises(
                OutOfMemoryError, match=r"x\.arrow holds more than fits into memory \(.*(PiB|malloc of size)"
            ),
            reading("x.arrow", *damage, pa.ArrowException),
        ):
            ask()


@pytest.mark.skipif(not os.path.exists("/proc/meminfo"), reason="needs Linux")
def test_this_machine_has_memory():
    assert memory.free_memory() > MIB
