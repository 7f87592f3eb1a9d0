"""Every command that writes, for the tests of kills and concurrent writers: inputs, outputs, and their checks."""

import csv
import hashlib
import json
import sys
import tarfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import congruence
import congruence.datasets as datasets
import congruence.embed.run as run
import congruence.encoders as encoders
import congruence.report.summary as summary
from congruence import CanonicalFrame, OrthogonalMap, ProcrustesHeads, Space
from congruence.embed import VectorCache
from congruence.embeddings import Embeddings
from congruence.encoders import Encoder
from congruence.io import open_sink, read_embeddings
from congruence_papers.image_sets import DATASETS
from congruence_papers.image_sets.download import Resource

#: Commands that write no file, whatever their options.
READERS = {"inspect", *(f"lab {name}" for name in ("drift", "exposure", "info", "match", "plan", "shift"))}
READERS |= {"bridge serve"}

RESUMED = {"migrate": "tests/databases/test_kill.py"}  # commands that resume after a kill, with the tests of that

N, D = 40, 6


@dataclass(frozen=True)
class Case:
    line: str  # without ``--force``
    #: Every name that it leaves in its folder, with a check that raises if the file or folder is incomplete.
    outputs: dict[str, Callable[[Path], Any]]
    force: bool = True  # whether the command has, and needs, ``--force`` to replace what is there
    #: Called in the command's process before the command, to skip slow steps that write nothing, or to supply a model.
    patch: Callable[[], None] | None = None
    #: Whether a run locks its output from the beginning, so that concurrent runs are refused before they publish.
    lock: bool = False
    every: int = 1  # kill only at every n-th step, if runs are slow and their steps alike

    @property
    def arguments(self) -> list[str]:
        return self.line.split()


def holds(path: Path, *names: str) -> None:
    assert sorted(p.name for p in path.iterdir()) == [*names]


def is_map(path: Path) -> None:
    congruence.load(path)
    holds(path, "README.md", "config.json", "model.safetensors")


def is_check(path: Path) -> None:
    holds(path, "certificate.html", "certificate.json", "map")
    is_map(path / "map")
    is_page(path / "certificate.html")


def is_bridge(path: Path) -> None:
    assert congruence.Bridge.load(path).thresholds is not None
    holds(path, "README.md", "config.json", "model.safetensors")


def is_frame(path: Path) -> None:
    CanonicalFrame.load(path)
    holds(path, "README.md", "config.json", "model.safetensors")


def is_vectors(path: Path) -> None:
    assert read_embeddings(path).vectors.shape == (N, D)


def is_letters(path: Path) -> None:
    np.testing.assert_array_equal(read_embeddings(path).vectors, letters(WORDS))


def is_library(path: Path) -> None:
    names = {"photos": 60, "old-photos": 60, "new-photos": 60, "old-texts": 100, "new-texts": 100}
    assert {one.stem: pq.read_table(one).num_rows for one in path.glob("*.parquet")} == names
    assert len(list(path.iterdir())) == len(names) + 1  # the file that marks the folder as replaceable


def ends_with(end: str) -> Callable[[Path], None]:
    def check(path: Path) -> None:
        assert path.read_text(encoding="utf-8").rstrip().endswith(end)

    return check


is_page, is_drawing = ends_with("</html>"), ends_with("</svg>")


def is_verdicts(path: Path) -> None:
    rows = list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))
    assert [row["row"] for row in rows] == [str(k) for k in range(N)]


def is_index(path: Path, rows: int = 0) -> None:
    import faiss

    index = faiss.read_index(str(path))
    assert (index.d, index.ntotal) == (D, rows)


def is_graph(path: Path) -> None:
    import onnx

    onnx.checker.check_model(onnx.load(path), full_check=True)


def is_model(path: Path) -> None:
    is_map(path / "map")
    assert json.loads((path / "congruence.json").read_text())["entries"] == ["README.md", "map"]
    holds(path, "README.md", "congruence.json", "map")


def is_hits(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) == 1 + 3 * N
    is_table(path)


def is_json(path: Path) -> None:
    json.loads(path.read_text(encoding="utf-8"))


def is_ids(path: Path) -> None:
    assert path.read_text().splitlines() == [str(k) for k in range(len(WORDS))]


def is_choice(path: Path) -> None:
    assert len(set(path.read_text().splitlines())) == 9


def is_table(path: Path) -> None:
    with open(path, newline="", encoding="utf-8") as stream:
        rows = list(csv.reader(stream))
    assert len(rows) > 1
    assert {len(row) for row in rows} == {len(rows[0])}


def is_experiment(path: Path) -> None:
    is_json(path / "results.json")
    is_table(path / "results.csv")
    is_drawing(path / "figure.svg")


def is_cache(path: Path) -> None:
    (file,) = path.glob("*.sqlite")
    VectorCache(path, file.stem, D)


def is_dataset(path: Path) -> None:
    assert sorted(p.name for p in path.iterdir() if p.name[0] != ".") == ["archive.tar.gz", "cifar-100-binary"]
    holds(path / "cifar-100-binary", "fine_label_names.txt", "train.bin")


WORDS = [f"{chr(97 + k)} word" for k in range(9)]


def letters(items: Any) -> np.ndarray:
    return np.array([[ord(letter) for letter in f"{item}      "[:D]] for item in items], dtype=np.float32)


def write_inputs(folder: Path) -> None:
    import faiss

    draw = np.random.default_rng(0)
    A = draw.standard_normal((N, D)).astype(np.float32)
    B = (A @ np.linalg.qr(draw.standard_normal((D, D)))[0] + 0.1 * draw.standard_normal((N, D))).astype(np.float32)
    ids = np.array([f"i{k}" for k in range(N)])
    for name, rows in (("a", A), ("b", B), ("wrong", np.roll(B, 1, 0))):
        np.savez(folder / f"{name}.npz", v=rows, ids=ids)
    for name in ("more_a", "more_b"):
        np.savez(folder / f"{name}.npz", v=draw.standard_normal((N, D)).astype(np.float32))
    mapping = OrthogonalMap().fit(Embeddings(A, ids), Embeddings(B, ids))
    mapping.target_space_ = Space("new", "1", None, D, False)
    mapping.save(folder / "rotation")
    CanonicalFrame().fit({"a": Embeddings(A, ids), "b": Embeddings(B, ids)}).save(folder / "frame")
    ProcrustesHeads(n_components=3).fit(A, B).save(folder / "heads")
    index = faiss.IndexFlatIP(D)
    index.add(B)
    faiss.write_index(index, str(folder / "old.index"))
    (folder / "captions.csv").write_text("id,caption\n1,a black cat sits on a red mat\n2,two dogs run in the park\n")
    (folder / "words.txt").write_text("\n".join(WORDS))
    with open_sink(folder / "parts", n=N, dim=D, has_ids=True, parts=[("p0", 25), ("p1", 15)]) as sink:
        sink.write(pa.array(ids.tolist()), A)
    (folder / "root").mkdir()
    content = folder / "cifar-100-binary"
    content.mkdir()
    (content / "fine_label_names.txt").write_text("apple\n")
    (content / "train.bin").write_bytes(bytes(3074))
    with tarfile.open(folder / "archive.tar.gz", "w:gz") as archive:
        archive.add(content, content.name)
    for path in content.iterdir():
        path.unlink()
    content.rmdir()


def small_sample() -> None:
    sample, real = datasets.load_sample("emoji"), summary._few_anchors
    few = sample.take({kind: rows.ids[:60] for kind, rows in sample.source.items()})
    datasets.load_sample = lambda name: few
    summary._few_anchors = lambda *arguments: real(*arguments[:-1], 1)


def small_library() -> None:
    import congruence.cli._demo_photos as files

    photos = datasets.load_sample("photos")
    few = photos.take({"image": photos.source["image"].ids[:60]})
    datasets.load_sample = lambda name: few
    files.has_lancedb = lambda: False


def letters_encoder() -> None:
    class Letters(Encoder):
        def __init__(self) -> None:
            self.space = Space("letters", "1", "text", D, False)
            self.fingerprint, self.n_layers = "f" * 64, None

        def _embed(self, items: Any) -> np.ndarray:
            return letters(items)

    encoders.load_encoder = lambda *_, **__: Letters()

    run.PART_ITEMS = 4


def without_the_library() -> None:
    """Avoid the import of sentence-transformers, which takes 6 s: nothing of the model folder depends on it."""
    from congruence.integrations.model_folder import model_folder

    def export(mapping: Any, model: str, path: str, *, force: bool, **_: Any) -> None:
        with model_folder(path, force=force) as folder:
            mapping.save(folder / "map")
            (folder / "README.md").write_text("a model")

    name = "congruence.integrations.sentence_transformers"
    sys.modules[name] = SimpleNamespace(export_sentence_transformers=export)  # type: ignore[assignment]


def local_archive() -> None:
    raw = Path("archive.tar.gz").read_bytes()
    target = Path("root/archive.tar.gz")
    target.exists() or target.write_bytes(raw)
    digest = hashlib.sha256(raw).hexdigest()
    resource = Resource(None, "archive.tar.gz", "cifar-100-binary", ".", size=len(raw), sha256=digest)
    DATASETS["cifar100"] = replace(DATASETS["cifar100"], resources=(resource,))


_PAIRS = "--pairs a.npz,b.npz -q -o out"
_EMBED = "embed letters words.txt --batch-size 3 -o"

CASES: dict[str, Case] = {
    "fit": Case("fit a.npz b.npz -o out --set check=false", {"out": is_map}),
    "lab frame fit": Case("lab frame fit a=a.npz b=b.npz -o out", {"out": is_frame}),
    "lab frame add": Case("lab frame add frame c=wrong.npz -o out", {"out": is_frame}),
    "lab frame map": Case("lab frame map frame a b -o out", {"out": is_map}),
    "transform .npy": Case(
        "transform rotation a.npz -o out.npy", {"out.npy": is_vectors, "out.npy.space.json": is_json}
    ),
    "transform .lance": Case("transform rotation a.npz -o out.lance", {"out.lance": is_vectors}),
    "transform folder": Case("transform rotation parts -o out", {"out": is_vectors}),
    "bridge": Case(
        "bridge evaluate rotation --queries a.npz --index b.npz --old-queries b.npz -o out", {"out": is_bridge}
    ),
    "evaluate": Case(
        "lab evaluate rotation --old-image a.npz --new-image b.npz --report out.html", {"out.html": is_page}
    ),
    "check": Case("check a.npz b.npz --method orthogonal -o out", {"out": is_check}),  # choosing a map takes longer
    "search": Case(
        "search rotation --queries a.npz --old b.npz --new more_a.npz -k 3 -o out.csv", {"out.csv": is_hits}
    ),
    "bridge search": Case("bridge search rotation --queries a.npz --index b.npz -k 3 -o out.csv", {"out.csv": is_hits}),
    "export": Case("bridge export rotation -o out.index", {"out.index": is_index}),
    "bridge export --index": Case(
        "bridge export rotation --index old.index -o out.index", {"out.index": partial(is_index, rows=N)}
    ),
    "bridge export onnx": Case("bridge export rotation --to onnx -o out.onnx", {"out.onnx": is_graph}),
    "bridge export sentence-transformers": Case(
        "bridge export rotation --to sentence-transformers --model encoder -o out",
        {"out": is_model},
        patch=without_the_library,
    ),
    "similarity": Case("lab similarity a.npz b.npz --layers --permutations 2 --plot out.svg", {"out.svg": is_drawing}),
    "anchors": Case(
        "lab anchors a.npz:v -n 9 -o out.txt --plot out.svg", {"out.txt": is_choice, "out.svg": is_drawing}
    ),
    "lab anchors --texts": Case("lab anchors --texts -n 9 -o out.txt", {"out.txt": is_choice}),
    "doctor": Case("lab doctor a.npz --known old=b.npz --out out.csv", {"out.csv": is_verdicts}),
    "negatives": Case("lab negatives captions.csv --column caption --id-column id -o out.csv", {"out.csv": is_table}),
    "embed": Case(f"{_EMBED} out.parquet", {"out.parquet": is_letters}, patch=letters_encoder, lock=True),
    "embed with ids and cache": Case(
        f"{_EMBED} out.npy --cache kept",
        {"out.npy": is_letters, "out.npy.ids.txt": is_ids, "out.npy.space.json": is_json, "kept": is_cache},
        patch=letters_encoder,
        lock=True,
    ),
    "train procrustes": Case(f"train procrustes {_PAIRS}", {"out": is_map}, lock=True),
    "train sotalign": Case(
        f"train sotalign {_PAIRS} --unpaired more_a.npz,more_b.npz --set max_steps=2 --set n_components=4",
        {"out": is_map},
        lock=True,
    ),
    "train jam": Case(
        f"train jam {_PAIRS} --negatives wrong.npz --report out.html "
        "--set max_epochs=1 --set hidden=[8] --set latent=4",
        {"out": is_map, "out.html": is_page},
        lock=True,
        every=5,
    ),
    "report": Case("report heads --pairs a.npz,b.npz -o out.html", {"out.html": is_page}),
    "reproduce": Case("lab reproduce table2 --models sample --quick -o out", {"out": is_experiment}),
    "datasets": Case(
        "lab datasets cifar100 --root root --download", {"root": is_dataset}, force=False, patch=local_archive
    ),
    "demo --files": Case("demo --files out", {"out": is_library}, force=False, patch=small_library),
    "demo": Case(
        "demo --sample emoji --classes 30 -o out.html", {"out.html": is_page}, force=False, patch=small_sample
    ),
}
