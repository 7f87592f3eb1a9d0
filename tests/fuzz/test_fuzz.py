"""Every kind of file has a fuzz target, and a few damaged inputs of each are read; ``run.py`` reads many more."""

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from congruence.encoders import SUFFIXES
from congruence.io import suffixes
from congruence.maps import MAPS
from congruence_papers.image_sets import DATASETS

pytestmark = pytest.mark.long

sys.path.insert(0, str(Path(__file__).resolve().parent))

from driver import Child  # noqa: E402
from own import OWN  # noqa: E402
from targets import TARGETS  # noqa: E402

#: Number of cases of slow targets: each read of HDF5 strings starts a process, each write of a cache syncs the disk.
SLOW = {
    "vectors.h5ad": 3,
    "column.h5ad": 2,
    "vectors.h5": 3,
    "vectors.hdf5": 2,
    "column.h5": 2,
    "column.hdf5": 1,
    **dict.fromkeys(("commands.h5", "commands.hdf5", "commands.h5ad"), 2),
    "parts of embed": 8,
    "cache of embed": 8,
}


def test_every_suffix_data_set_and_kind_of_map_has_a_target():
    assert {f"vectors{suffix or ' folder'}" for suffix in suffixes()} <= {*TARGETS}
    columns = suffixes(lambda one: one.read_column is not None)
    assert {f"column{suffix or ' folder'}" for suffix in columns} <= {*TARGETS}
    assert {f"image{suffix}" for suffix in SUFFIXES["image"]} <= {*TARGETS}
    assert {f"dataset {name}" for name in DATASETS} <= {*TARGETS}
    assert {f"map {kind}{more}" for kind in MAPS for more in ("", ", right checksums")} <= {*OWN}


@pytest.fixture(scope="module")
def child():
    child = Child()
    yield child
    child.close()


@pytest.mark.parametrize("target", [*TARGETS, *OWN])
def test_damage_is_refused_or_read_by_the_rules(target, child):
    if target.endswith(".zarr") and not find_spec("zarr"):
        pytest.skip("no zarr")
    count = SLOW.get(target, 10)
    outcomes = list(child.run(target, range(count)))
    assert len(outcomes) == count
    found = [result for _, what, result in outcomes if what == "finding"]
    assert not found, found[0]
