"""Every kind of file has a fuzz target, and a few damaged inputs of each target are read; ``run.py`` reads many
more.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.heavy  # a child process that takes seconds to start, which one worker then starts for all

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "image_sets")]

from driver import Child, run_cases  # noqa: E402
from own import OWN  # noqa: E402
from targets import TARGETS  # noqa: E402

#: Number of cases of slow targets: each read of HDF5 strings starts a process, each write of a cache syncs the disk.
SLOW = {"vectors.h5": 3, "vectors.hdf5": 2, "column.h5": 2, "column.hdf5": 1, "parts of embed": 8, "cache of embed": 8}

#: Source files that read files which others wrote, and the targets that reach them.
READERS = {
    "_utils/atomic.py": ["marker"],
    "cli/migrate.py": ["certificate"],
    "databases/_files.py": ["file beside"],
    "databases/npy.py": ["file beside"],
    "_utils/yaml.py": ["recipe", "experiment"],
    "datasets/_base.py": ["dataset pets", "dataset folder"],
    "datasets/archives.py": ["archive.zip", "archive.tar", "archive.tgz"],
    "datasets/bundle.py": ["bundle"],
    "datasets/captions.py": ["captions.csv", "captions.tsv", "captions.json"],
    "datasets/cifar100.py": ["dataset cifar100"],
    "datasets/coop.py": ["dataset pets", "dataset dtd", "dataset caltech101"],
    "datasets/stl10.py": ["dataset stl10"],
    "datasets/sugarcrepe.py": ["sugarcrepe"],
    "embed/cache.py": ["cache of embed"],
    "embed/inputs.py": ["items.csv", "items.jsonl", "items.parquet", "items.txt", "sugarcrepe"],
    "embed/output.py": ["parts of embed"],
    "encoders/_base.py": ["image.png"],
    "evaluation/judgments.py": ["qrels"],
    "persist.py": ["map orthogonal", "map heads, right checksums", "bridge, right checksums", "frame, right checksums"],
    "stores/_space_file.py": ["vectors with space.json"],
    "stores/arrow.py": ["vectors.arrow", "column.feather"],
    "stores/hdf5.py": ["vectors.h5", "column.hdf5"],
    "stores/lance.py": ["vectors.lance", "column.lance"],
    "stores/npy.py": ["vectors.npy", "vectors.npz", "column.npy", "column.npz"],
    "stores/parquet.py": ["vectors.parquet", "column.parquet"],
    "stores/rows.py": ["vectors.npy"],
    "stores/safetensors_file.py": ["vectors.safetensors", "column.safetensors"],
    "stores/text.py": ["vectors.csv", "vectors.jsonl", "column.txt"],
    "upgrade/migrate/journal.py": ["journal", "journal, right digest"],
    "engines/dataset.py": ["data set"],
    "engines/items.py": ["item set"],
    "engines/journal.py": ["fragments journal", "fragments journal, right digest"],
    "stores/fragments.py": ["data set"],
    "upgrade/migrate/native.py": ["progressive"],
    "upgrade/progressive/progressive.py": ["progressive", "plan"],
    "upgrade/progressive/refit.py": ["progressive", "plan"],
    "upgrade/progressive/state.py": ["progressive", "plan"],
    "train/checkpoint.py": ["checkpoint", "checkpoint, right checksums"],
}

#: Source files that read only what this library wrote, or what another library parses, and so have no target.
NO_READERS = {
    "_utils/rename.py": "renames",
    "_utils/owner.py": "reads the kernel's files",
    "_utils/lock.py": "opens folders to lock them",
    "databases/lancedb.py": "data sets of LanceDB, read by Lance's library as in stores/lance.py, and its own staged vectors",
    "_utils/arguments.py": "numbers of the system",
    "databases/faiss.py": "an index, read by FAISS",
    "databases/parquet.py": "Parquet and Arrow, read by pyarrow as in stores/parquet.py and stores/arrow.py",
    "report/experiment.py": "figures that the run has just written itself",
    "cli/_demo_story.py": "a table that it has just written itself",
    "upgrade/migrate/stages.py": "old vectors that it has just written itself",
    "upgrade/migrate/encode.py": "an array that a command of the user's has just written",
    "datasets/download.py": "verifies digests of bytes, and reads nothing from them",
    "datasets/texts.py": "the list of texts that the package ships",
    "datasets/sample.py": "the bundled sample, checked by its digest; read by datasets/bundle.py",
    "engines/embed.py": "opens an encoder; reads through engines/items.py",
    "engines/fit.py": "moments in memory, of its own workers",
    "engines/jobs.py": "reads the quarantine that it wrote itself",
    "engines/outputs.py": "reads its own manifest by the reader of places, for its format only",
    "engines/pairs.py": "reads through engines/dataset.py",
    "engines/places.py": "opens files for engines/dataset.py and engines/journal.py",
    "engines/planning.py": "reads what it has just written",
    "engines/sample.py": "reads through engines/dataset.py",
    "engines/transform.py": "reads through engines/dataset.py",
    "embed/batches.py": "reads images as bytes, for encoders/_base.py",
    "encoders/onnx.py": "models, read by onnxruntime",
    "integrations/faiss.py": "an index, read by FAISS",
    "integrations/model_folder.py": "the list of files that it wrote itself",
    "integrations/server.py": "a key, of which every character is checked",
    "negatives/lexicon.py": "part of the package",
    "papers/cache.py": "vectors that it wrote itself, in a cache of reproduce",
    "papers/npz.py": "arrays that a user names for reproduce: not fuzzed",
    "report/sheet.py": "thumbnails in memory, PNG, JPEG and WebP as in encoders/_base.py; what is broken is named instead",
    "train/checkpoint_folders.py": "its marker is read by _utils/atomic.py",
    "_utils/memory.py": "numbers of the system",
    "cli/_ending.py": "writes",
    "cli/_tables.py": "writes",
    "cli/_streams.py": "standard output and the null device",
    "datasets/__init__.py": "reads through its data sets",
    "negatives/output.py": "writes",
    "stores/text_sinks.py": "writes",
    "stores/id_columns.py": "reads through the readers of columns",
    "stores/_hdf5_strings.py": "the process of stores/hdf5.py",
}

_OPENS = re.compile(
    r"(?<![\w.])open\((?!self)|\.open\(|read_bytes\(|read_text\(|np\.load\(|np\.memmap\(|fromfile\(|ParquetFile\(|read_table\(|read_schema\("
    r"|h5py\.File\(|safetensors\.(?:numpy|torch)\.load|safe_open\(|sqlite3\.connect\(|tarfile\.open\(|ZipFile\(|lance\.dataset\(|read_index\(|open_file\("
)


def test_every_file_that_reads_files_has_a_target():
    targets = {*TARGETS, *OWN}
    found = {str(path.relative_to(SOURCE)) for path in SOURCE.rglob("*.py") if _OPENS.search(path.read_text())}
    assert found <= {*READERS, *NO_READERS}, found - {*READERS, *NO_READERS}
    assert {target for names in READERS.values() for target in names} <= targets


def test_every_suffix_data_set_and_kind_of_map_has_a_target():
    from congruence.embed.inputs import IMAGE_SUFFIXES
    from congruence.maps import MAPS
    from congruence.stores import suffixes
    from congruence_papers.image_sets import DATASETS

    assert {f"vectors{suffix or ' folder'}" for suffix in suffixes()} <= {*TARGETS}
    assert {f"column{suffix}" for suffix in suffixes(lambda one: one.read_column is not None)} <= {*TARGETS}
    assert {f"image{suffix}" for suffix in IMAGE_SUFFIXES} <= {*TARGETS}
    assert {f"dataset {name}" for name in DATASETS} <= {*TARGETS}
    assert {f"map {kind}{more}" for kind in MAPS for more in ("", ", right checksums")} <= {*OWN}


@pytest.fixture(scope="module")
def child():
    child = Child()
    yield child
    child.close()


@pytest.mark.parametrize("target", [*TARGETS, *OWN])
def test_damage_is_refused_or_read_by_the_rules(target, child):
    count = SLOW.get(target, 10)
    done = run_cases(target, 0, count, child=child)
    assert sum(done.counts.values()) == count
    found = [one["what"] for one in done.findings]
    assert not found, found[0]
