"""Fuzz targets: for each reader, how to create a valid input, and what must be true of any result."""

import contextlib
import io
import json
import random
import re
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from hostile import SPACE, TEXTS, WRITERS, names, numbers, write_data_set
from layouts import LAYOUTS, picture

from congruence import OrthogonalMap, datasets
from congruence.cli import main
from congruence.embed import open_items
from congruence.embeddings import Embeddings, Space
from congruence.encoders import SUFFIXES, open_image
from congruence.errors import CongruenceError
from congruence.evaluation.judgments import read_qrels
from congruence.io import contents, matrices, open_rows, open_sink, open_source, read_column, read_embeddings, suffixes
from congruence_papers import image_sets
from congruence_papers.image_sets.archives import extract

#: Suffixes of the formats that are written with or without ids.
WRITTEN = suffixes(lambda one: one.sink is not None and not one.sink.needs_ids)

LONGEST = 6000  # maximum length of a message, whatever the file contains
REFUSALS: list[CongruenceError] = []  # refusals by parts of the current read, e.g. of one column of a file.


@dataclass(frozen=True)
class Target:
    """A reader under test."""

    make: Callable[[random.Random, Path], Path]  # creates a valid input in an empty folder, and returns its path
    #: Reads an input, damaged or not. Raises CongruenceError for a refusal, and AssertionError for a value that no
    #: reader may return; any other exception is a failure of the reader.
    read: Callable[[Path], Any]
    #: Damages an input and updates its checksums, so that the code after their verification is reached. By default,
    #: bytes are damaged without updating checksums.
    damage: Callable[[random.Random, Path], None] | None = None


def check_message(error: CongruenceError) -> None:
    """Check the length of a refusal's message."""
    text = str(error)
    assert text, "an empty message"
    assert len(text) <= LONGEST, f"a message of {len(text)} characters: {text[:300]}"


@contextmanager
def refusing() -> Iterator[None]:
    """Record a refusal by a part of a read, so that the next part is read too."""
    try:
        yield
    except CongruenceError as error:
        check_message(error)
        REFUSALS.append(error)


def check_embeddings(found: Embeddings) -> None:
    assert found.vectors.ndim == 2
    assert found.vectors.dtype.kind == "f"
    assert found.vectors.shape[0] > 0
    assert found.vectors.shape[1] > 0
    assert np.isfinite(found.vectors).all(), "numbers that are not finite were read"
    ids = found.ids.tolist()
    assert len(ids) == len(set(ids)) == len(found.vectors)
    assert all(type(name) in (str, int) for name in ids)
    assert len({str(name) for name in ids}) == len(ids)


def read_vectors(path: Path) -> None:
    specs = [str(path)]
    with refusing():
        specs += list(matrices(path).values())[:2]
    for spec in specs:
        with refusing():
            check_embeddings(read_embeddings(spec, allow_zero_rows=True))
        with refusing():
            source = open_source(spec)
            blocks = list(source.scan(batch=5))
            rows = np.concatenate([block for _, block in blocks])
            assert rows.shape == (source.n, source.dim)
            assert rows.dtype == source.dtype
            assert all((ids is not None) == source.has_ids for ids, _ in blocks)
            taken = source.take([source.n - 1, 0])[1]
            np.testing.assert_array_equal(taken, rows[[-1, 0]])
            read = sum(len(block) for _, block, _ in source.scan_table(batch=5))
            assert read == source.n
            assert sum(n for _, n in source.parts) in (0, source.n, source.table_rows)
        with refusing():
            rows_ = open_rows(spec)
            assert np.isfinite(rows_.take([0])).all()


def write_vectors(suffix: str, rng: random.Random, folder: Path) -> Path:
    path = folder / f"v{suffix}"
    if suffix and (rng.random() < 0.5 or suffix not in WRITTEN):
        WRITERS[suffix](rng, path)
        return path
    n, has_ids = rng.choice((1, 7, 40)), rng.random() < 0.7
    dtype = rng.choice((np.float16, np.float32, np.float64))
    dtype = np.float32 if suffix == ".fvecs" else dtype  # the only type that it holds
    space = Space(**SPACE) if rng.random() < 0.6 else Space()
    parts = [("p0", 3), ("p1", n - 3)] if not suffix and n > 3 else None
    draw = np.random.default_rng(rng.randrange(2**32))
    with open_sink(path, n=n, dim=4, dtype=dtype, has_ids=has_ids, space=space, parts=parts) as sink:
        sink.write(pa.array([f"i{k}" for k in range(n)]) if has_ids else None, draw.standard_normal((n, 4)))
    if not suffix and rng.random() < 0.3:
        other = rng.choice((".npy", ".parquet"))
        WRITERS[other](rng, path / f"p2{other}")
    return path


def write_folder(rng: random.Random, folder: Path) -> Path:
    write_data_set(rng, folder / "data")
    return folder / "data"


def read_folder(path: Path) -> None:
    for spec in (path, f"{path}:train", f"{path}:a/i", f"{path}:a/j/v"):
        with refusing():
            contents(spec)
        read_vectors(spec)


@cache
def mapping(dim: int) -> Path:
    """Save a map to a folder of its own, and return its path."""
    rows = np.random.default_rng(0).standard_normal((40, dim))
    path = Path(tempfile.mkdtemp()) / "map"
    OrthogonalMap().fit(rows, rows[:, ::-1]).save(path)
    return path


def run_commands(path: Path) -> None:
    """Map and list a file by the commands: an output and exit 0, or one sentence, exit 2 and nothing left behind."""
    dim, spec = 4, str(path)
    for _ in range(4):
        try:
            dim = min(open_source(spec).dim, 50)
        except CongruenceError as error:  # of several contents the first is taken, as the refusal tells
            if found := re.search(r"contains (\S+) .* Write (.*)<\w+>\.", str(error)):
                spec = found[2] + found[1]
                continue
        break
    place = mapping(dim).parent
    options = ("-o", place / "out.npy", "--set", "check=false", "--set", "allow_zero_rows=true")
    for words in (("inspect", spec), ("transform", mapping(dim), spec, *options)):
        shown, sys.argv, code = io.StringIO(), ["congruence", *map(str, words)], 0
        try:
            with (
                warnings.catch_warnings(action="ignore"),
                contextlib.redirect_stdout(io.StringIO()),
                contextlib.redirect_stderr(shown),
            ):
                main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        left = {one.name for one in place.iterdir()} - {"map"}
        shutil.rmtree(place / "out.npy", ignore_errors=True)
        for name in left:
            (place / name).unlink(missing_ok=True)
        lines = [line for line in shown.getvalue().strip().splitlines() if not line.startswith("warning: ")]
        if code:
            assert code == 2, f"exit {code}: {lines}"
            assert not left, f"left behind: {left}"
            assert len(lines) == 1, f"more than one line: {lines}"
            assert lines[0].startswith("error: "), lines
            assert len(lines[0]) <= LONGEST, f"a message of {len(lines[0])} characters: {lines[0][:300]}"
            REFUSALS.append(CongruenceError(lines[0]))
        elif words[0] == "transform":
            assert "out.npy" in left, "exit 0 and no output"


def write_with_space(rng: random.Random, folder: Path) -> Path:
    """Write an ``.npy`` and the description of its space to a new folder."""
    place = folder / "with"
    place.mkdir()
    np.save(place / "v.npy", numbers(rng, (7, 4), "f4"))
    (place / "v.npy.space.json").write_text(json.dumps(SPACE))
    return place


def check_texts(found: Any) -> None:
    assert isinstance(found, np.ndarray)
    assert found.ndim == 1
    assert all(isinstance(text, str) for text in found.tolist())


def read_columns(path: Path) -> None:
    for key in ("", ":id", ":ids", ":v", ":x", ":text", ":a:b"):
        with refusing():
            check_texts(read_column(f"{path}{key}"))


def write_column(suffix: str, rng: random.Random, folder: Path) -> Path:
    path = folder / f"c{suffix}"
    found = names(rng, 7)
    if suffix == ".txt":
        path.write_text("\n".join(map(str, found)) + rng.choice(("", "\n")), encoding="utf-8")
    elif suffix == ".npy":
        np.save(path, np.array(found), allow_pickle=False)
    elif suffix == ".npz":
        np.savez(path, ids=np.array(found), x=numbers(rng, (7,)))
    elif not suffix:
        path.mkdir()
        for part in ("a", "b"):
            WRITERS[".parquet"](rng, path / f"{part}.parquet")
    else:
        WRITERS[suffix](rng, path)
    return path


def read_items(path: Path) -> None:
    for modality in (None, "text", "image"):
        with refusing():
            items = open_items(path, modality=modality)
            assert len(items) == len(set(items.ids.tolist())) > 0
            for row in range(min(len(items), 3)):
                with refusing():
                    item = items.fetch(row)
                    assert isinstance(item, (str, Path))
                    items.stamp(row)


def write_items(suffix: str, rng: random.Random, folder: Path) -> Path:
    path = folder / f"items{suffix}"
    texts = [rng.choice(TEXTS) or "x" for _ in range(7)]
    rows = [{"id": f"i{k}", "text": text, "path": f"{k}.png"} for k, text in enumerate(texts)]
    if suffix == ".txt":
        path.write_text("\n".join(texts))
    elif suffix == ".jsonl":
        path.write_text("\n".join(map(json.dumps, rows)))
    elif suffix == ".csv":
        path.write_text("id,text,path\n" + "".join(f"i{k},text {k},{k}.png\n" for k in range(7)))
    else:
        pq.write_table(pa.Table.from_pylist(rows), path)
    return path


def read_image(path: Path) -> None:
    image = open_image(path)
    assert image.mode == "RGB"
    if image.width * image.height < 2**24:  # a copy of a larger one may exceed the memory limit
        assert np.asarray(image).shape == (image.height, image.width, 3)
    assert open_image(path.read_bytes()).size == image.size


def write_image(suffix: str, rng: random.Random, folder: Path) -> Path:
    from PIL import Image

    path = folder / f"picture{suffix}"
    mode = rng.choice(("RGB", "L", "P", "RGBA", "1")) if suffix not in (".jpg", ".jpeg") else rng.choice(("RGB", "L"))
    draw = np.random.default_rng(rng.randrange(2**32))
    pixels = Image.fromarray(draw.integers(0, 256, (9, 7, 3), dtype=np.uint8))
    pixels.convert(mode if suffix != ".ppm" else "RGB").save(path)
    return path


def read_bundle(path: Path) -> None:
    found = datasets.read_bundle(path)
    for side in (found.source, found.target):
        for rows in side.values():
            check_embeddings(rows)


def write_bundle(rng: random.Random, folder: Path) -> Path:
    draw = np.random.default_rng(rng.randrange(2**32))
    ids = [f"i{k}" for k in range(7)]
    sides = [{kind: Embeddings(draw.standard_normal((7, 4)), ids) for kind in ("image", "text")} for _ in range(2)]
    classes = {"image": {i: f"c{k % 2}" for k, i in enumerate(ids)}}
    bundle = datasets.Bundle(
        *sides, classes, {"c0": "cat"}, {"text": {"i0": "a cat"}}, {}, {"i0": b"png"}, {"note": "x"}
    )
    datasets.write_bundle(folder / "b.parquet", bundle)
    return folder / "b.parquet"


def read_judgments(path: Path) -> None:
    found = read_qrels(path)
    assert found
    for query, grades in found.items():
        check_texts(np.array([query, *grades], dtype=object))
        assert all(type(grade) is int for grade in grades.values())


def write_judgments(rng: random.Random, folder: Path) -> Path:
    path = folder / "qrels.txt"
    lines = [f"q{k // 3} 0 d{k} {rng.choice((-1, 0, 1, 3))}" for k in range(9)]
    path.write_text(rng.choice(("\n", "\r\n")).join(lines))
    return path


def read_sugarcrepe(path: Path) -> None:
    found = datasets.load_sugarcrepe(path)
    for texts in (found.ids, found.categories, found.filenames, found.captions, found.negative_captions):
        check_texts(texts)
    read_items(path)


def write_sugarcrepe(rng: random.Random, folder: Path) -> Path:
    place = folder / "sugarcrepe"
    place.mkdir()
    for category in datasets.CATEGORIES:
        items = {str(k): {"filename": f"{k}.jpg", "caption": "a cat", "negative_caption": "a dog"} for k in range(3)}
        (place / f"{category}.json").write_text(json.dumps(items))
    return place


def read_dataset(name: str, path: Path) -> None:
    for split in ("train", "test", "val", "all"):
        with refusing():
            data = image_sets.open_dataset(name, path, split, complete=False)
            assert len(data.ids) == len(data.labels) == len(data) > 0
            assert max(data.labels) < len(data.classes)
            assert all(isinstance(text, str) for text in data.classes)
            with refusing():
                assert data.image(0).mode == "RGB"
                data.prompts()


def write_dataset(name: str, rng: random.Random, folder: Path) -> Path:
    if name in LAYOUTS:
        return LAYOUTS[name][0](folder / name)
    for label in ("cat", "dog"):
        picture(folder / name / label / "1.png", 3)
        if rng.random() < 0.5:
            picture(folder / name / "test" / label / "1.png", 3)
    return folder / name


def read_archive(path: Path) -> None:
    place = path.parent / f"unpacked-{path.name}"
    place.mkdir()
    try:
        extract(path, place, max_bytes=2**20, max_files=50)
        assert not any(file.is_symlink() for file in place.rglob("*"))
    finally:
        shutil.rmtree(place)


def write_archive(suffix: str, rng: random.Random, folder: Path) -> Path:
    place = folder / "content"
    for name in ("a/1.txt", "a/2.txt", "b.txt"):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(name * rng.choice((1, 99)))
    forms = {".zip": "zip", ".tar": "tar", ".tgz": "gztar"}
    made = shutil.make_archive(str(folder / "archive"), forms[suffix], place)
    return Path(made)


TARGETS: dict[str, Target] = {
    **{f"vectors{s or ' folder'}": Target(partial(write_vectors, s), read_vectors) for s in suffixes()},
    **{f"commands{s or ' folder'}": Target(partial(write_vectors, s), run_commands) for s in suffixes()},
    "commands, folders of other tools": Target(write_folder, run_commands),
    "folders of other tools": Target(write_folder, read_folder),
    "vectors with space.json": Target(write_with_space, lambda path: read_vectors(path / "v.npy")),
    **{
        f"column{s or ' folder'}": Target(partial(write_column, s), read_columns)
        for s in suffixes(lambda one: one.read_column is not None)
    },
    **{f"items{s}": Target(partial(write_items, s), read_items) for s in (".csv", ".jsonl", ".parquet", ".txt")},
    **{f"image{s}": Target(partial(write_image, s), read_image) for s in SUFFIXES["image"]},
    "bundle": Target(write_bundle, read_bundle),
    "qrels": Target(write_judgments, read_judgments),
    "sugarcrepe": Target(write_sugarcrepe, read_sugarcrepe),
    **{
        f"dataset {name}": Target(partial(write_dataset, name), partial(read_dataset, name))
        for name in image_sets.DATASETS
    },
    **{f"archive{s}": Target(partial(write_archive, s), read_archive) for s in (".zip", ".tar", ".tgz")},
}
