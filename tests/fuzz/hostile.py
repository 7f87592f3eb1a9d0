"""Valid files with unusual contents: types, shapes and values that a stranger's file may hold."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq

SPACE = {"model": "a", "revision": None, "modality": "image", "dim": 4, "normalized": True}
TEXTS = (
    *("a", "b", "", " ", "a", "None", "nan", "=1+1", "[/bold]", "\x1b[31m"),
    *("\x00", "é", "a\nb", "x" * 3000, "1", "1.0"),
)


def numbers(rng: random.Random, shape: tuple[int, ...], kind: str = "") -> np.ndarray:
    """Return an array of mostly plain numbers, with some at the borders of what the type holds."""
    kind = kind or rng.choice(("f2", "f4", "f4", "f8", ">f4", "i4", "u8", "?", "c8"))
    draw = np.random.default_rng(rng.randrange(2**32))
    with np.errstate(all="ignore"):
        values = np.asarray(draw.standard_normal(shape) * rng.choice((1, 1, 1, 0, 1e30, 1e154, 1e-300))).astype(kind)
    if values.size and rng.random() < 0.4:
        border = rng.choice((0, 1, -1, 1e38, 1e308, np.nan, np.inf, -np.inf, 1e-45))
        with np.errstate(all="ignore"):
            values.flat[rng.randrange(values.size)] = np.array(border).astype(kind)
    return values


def vectors(rng: random.Random, n: int) -> np.ndarray:
    """Return what may stand where a matrix of n rows is expected."""
    if rng.random() < 0.5:
        return numbers(rng, (n, rng.choice((1, 4, 4, 4))), rng.choice(("f2", "f4", "f8")))
    return numbers(rng, rng.choice(((n, 4), (n,), (n, 0), (0, 4), (n, 2, 2), (), (1, 4), (n + 1, 4))))


def names(rng: random.Random, n: int) -> list[Any]:
    """Return ids, right or wrong ones."""
    which = rng.random()
    if which < 0.5:
        return [f"i{k}" for k in range(n)]
    if which < 0.6:
        return list(range(n))
    return [rng.choice(TEXTS) for _ in range(n)]


def column(rng: random.Random, n: int) -> pa.Array:
    """Return a column of any type."""
    texts = [rng.choice((*TEXTS, None)) for _ in range(n)]
    whole = [rng.choice((0, 1, -1, 2**31, None)) for _ in range(n)]
    floats = numbers(rng, (n, 4), "f4")
    lists = [None if rng.random() < 0.05 else row.tolist()[: rng.choice((4, 4, 4, 4, 3, 0))] for row in floats]
    makers = (
        lambda: pa.FixedSizeListArray.from_arrays(pa.array(floats.ravel()), 4),
        lambda: pa.FixedSizeListArray.from_arrays(pa.array(floats.ravel().astype("f8")), 4),
        lambda: pa.FixedSizeListArray.from_arrays(pa.array(floats.ravel().astype("f2")), 4),
        lambda: pa.FixedSizeListArray.from_arrays(pa.array(np.arange(4 * n)), 4),
        lambda: pa.FixedSizeListArray.from_arrays(pa.array(floats.ravel()), 4).slice(1),
        lambda: pa.array(floats.tolist(), pa.list_(pa.float32())),
        lambda: pa.array(lists, pa.list_(pa.float32())),
        lambda: pa.array(lists, pa.large_list(pa.float64())),
        lambda: pa.array([[row] for row in lists], pa.list_(pa.list_(pa.float32()))),
        lambda: pa.array([{"v": row} for row in lists], pa.struct([("v", pa.list_(pa.float32()))])),
        lambda: pa.array([[str(v) for v in row] for row in floats]),
        lambda: pa.array(names(rng, n)),
        lambda: pa.array(texts),
        lambda: pa.array(texts, pa.large_string()),
        lambda: pa.array(texts, pa.string()).dictionary_encode(),
        lambda: pa.array([None if text is None else text.encode("latin-1", "replace") for text in texts], pa.binary()),
        lambda: pa.array(whole, pa.int64()),
        lambda: pa.array(range(n), pa.uint64()),
        lambda: pa.array(floats[:, 0]),
        lambda: pa.array(whole, pa.timestamp("ns")),
        lambda: pa.array([None if v is None else v % 2 == 0 for v in whole]),
        lambda: pa.nulls(n),
        lambda: pa.array([[("k", 1.0)]] * n, pa.map_(pa.string(), pa.float32())),
    )
    return rng.choice(makers)()


def table(rng: random.Random) -> pa.Table:
    """Return a table of one to four columns whose names are mostly those that readers look for."""
    n = rng.choice((0, 1, 7, 7, 7, 40))
    columns, found = [], []
    if rng.random() < 0.7:
        columns.append(pa.FixedSizeListArray.from_arrays(pa.array(numbers(rng, (4 * n,), "f4")), 4))
        found.append(rng.choice(("vector", "v", "embedding")))
    for _ in range(rng.choice((1, 1, 2, 3))):
        made = column(rng, n)
        if len(made) == n:
            columns.append(made)
            found.append(rng.choice(("id", "id", "ids", "v", "x", "", "a:b", "text", "é\n")))
    if not columns:
        columns, found = [pa.array(range(n))], ["id"]
    metadata = {"congruence.space": json.dumps(rng.choice((SPACE, {**SPACE, "dim": 5}, [], {"dim": "x"}, 3)))}
    if len(columns) > 1 and rng.random() < 0.1:
        found[-1] = found[0]
    return pa.Table.from_arrays(columns, schema=pa.schema(zip(found, (c.type for c in columns), strict=True), metadata))


def write_parquet(rng: random.Random, path: Path) -> None:
    made, codec = table(rng), rng.choice(("none", "snappy", "zstd"))
    pq.write_table(made, path, compression=codec, row_group_size=rng.choice((3, 99)))


def write_arrow(rng: random.Random, path: Path) -> None:
    made = table(rng)
    opener = rng.choice((pa.ipc.new_file, pa.ipc.new_file, pa.ipc.new_stream))
    codec = rng.choice((None, "lz4", "zstd"))
    with opener(path, made.schema, options=pa.ipc.IpcWriteOptions(compression=codec)) as writer:
        writer.write_table(made, max_chunksize=rng.choice((3, 99)))


def write_lance(rng: random.Random, path: Path) -> None:
    import lance

    try:
        lance.write_dataset(table(rng), path)
    except Exception:  # lance does not take every table
        made = pa.table({"id": ["a", "b"], "vector": pa.FixedSizeListArray.from_arrays(pa.array(np.ones(8, "f4")), 4)})
        lance.write_dataset(made, path, mode="overwrite")


def write_npy(rng: random.Random, path: Path) -> None:
    values: Any = vectors(rng, 7)
    if rng.random() < 0.3:
        odd = [np.array(names(rng, 7), dtype=object), np.array(["a"] * 7), np.zeros(7, [("v", "f4", 4)])]
        odd += [np.zeros((7, 4), "M8[s]"), np.asfortranarray(values), np.zeros((7, 4), "V0"), np.zeros((7, 4), "f4,f4")]
        values = rng.choice(odd)
    np.save(path, values, allow_pickle=True)


def write_npz(rng: random.Random, path: Path) -> None:
    arrays: dict[str, Any] = {"vectors": vectors(rng, 7), "ids": np.array(names(rng, 7))}
    if rng.random() < 0.5:
        arrays[rng.choice(("x", "", "a:b", "ids", "space"))] = vectors(rng, 7)
    np.savez(path, **arrays)


def write_safetensors(rng: random.Random, path: Path) -> None:
    import safetensors.numpy

    arrays = {"v": vectors(rng, 7), rng.choice(("v", "w", "")): vectors(rng, 7)}
    plain = {k: a.astype(a.dtype.newbyteorder("=")) for k, a in arrays.items() if a.dtype.kind != "c"}
    good = {k: np.ascontiguousarray(a) for k, a in plain.items()} or {"v": np.ones((7, 4), "f4")}
    safetensors.numpy.save_file(good, path, {"congruence.space": rng.choice(("[]", "{", "3"))})


def write_hdf5(rng: random.Random, path: Path) -> None:
    import h5py

    with h5py.File(path, "w") as file:
        file["vectors"] = vectors(rng, 7)
        kind = rng.choice((h5py.string_dtype(), "S5", None))
        found = names(rng, 7)
        encoding = "ascii" if kind == "S5" else "utf-8"
        texts = [str(name).replace("\x00", "").encode(encoding, "replace") for name in found]
        file.create_dataset("ids", data=texts if kind else np.zeros(7, "i4,f4"), dtype=kind)
        for extra in rng.sample(range(6), 2):
            if extra == 0:
                file["a/b"] = numbers(rng, (7, 4))
            elif extra == 1:
                file["soft"] = h5py.SoftLink("/nothing")
            elif extra == 2:
                file["outside"] = h5py.ExternalLink("/etc/hostname", "/")
            elif extra == 3:
                file.create_dataset("zipped", data=np.ones((70, 4), "f4"), chunks=(7, 4), compression="gzip")
            elif extra == 4:
                file["vectors"].attrs["congruence.space"] = rng.choice(("{", "[]", 3, json.dumps(SPACE)))
            else:
                file.create_dataset("empty", dtype="f4", shape=None)


def write_csv(rng: random.Random, path: Path) -> None:
    head = rng.choice(("id,a,b", "id,v_0,v_1", "a,b,c", "id,id,a", ",a,b", "id", "id,a,a", "\ufeffid,a,b"))
    mark = rng.choice("\t\t,;") if path.suffix == ".tsv" else rng.choice(",,,;")
    head = head.replace(",", mark)
    cells = (
        "[1, 2]",
        "[1",
        "[1,null]",
        "1,5",
        "1",
        "2.5",
        "-0",
        "1e5",
        "nan",
        "inf",
        "",
        "x",
        '"a\nb"',
        "1e999",
        "=1",
        "１",
        "1_0",
        " 1",
        "True",
    )
    lines = [head] + [
        mark.join([f"i{k}", *(rng.choice(cells) for _ in range(2))]) for k in range(rng.choice((0, 1, 7)))
    ]
    path.write_text(rng.choice(("\n", "\r\n", "\r")).join(lines), encoding=rng.choice(("utf-8", "utf-8", "utf-16")))


def write_jsonl(rng: random.Random, path: Path) -> None:
    values = ([1, 2.5], [1], [], [[1]], "1", None, {"a": 1}, [1e999], [True, 1], [None, 1], [10**400, 1], ["1", "2"])
    rows = [
        {"id": rng.choice((f"i{k}", k, None, 1.5, [], "\ud800")), "vector": rng.choice((values[0], rng.choice(values)))}
        for k in range(rng.choice((0, 1, 7)))
    ]
    path.write_text("\n".join(map(json.dumps, rows)) + rng.choice(("", "\n", "\n\n", "\n[]\n", "\n3\n")))


def write_vecs(rng: random.Random, path: Path) -> None:
    """Write rows with their widths, which are wrong at times."""
    kind = {"f": "<f4", "b": "u1", "i": "<i4"}[path.suffix[1]]
    rows = []
    for _ in range(rng.choice((0, 1, 7))):
        width = np.array(rng.choice((4, 4, 4, 4, 4, 4, 3, 0, -1, 2**31 - 1)), "<i4")
        rows.append(width.tobytes() + numbers(rng, (4,), "f4").astype(kind).tobytes())
    path.write_bytes(b"".join(rows))


def write_words(rng: random.Random, path: Path) -> None:
    """Write words and their numbers, of which some are wrong."""
    n, binary = rng.choice((0, 1, 7)), path.suffix == ".bin"
    lines = [rng.choice((f"{n} 4", f"{n} 4", f"{n + 1} 4", f"{n} 5", "9" * 30 + " 4", "4", ""))] if binary else []
    lines += [f"{n} 4"] if not binary and rng.random() < 0.5 else []
    data = "".join(f"{line}\n" for line in lines).encode()
    for name in names(rng, n):
        row = numbers(rng, (4,), "f4")
        cells = [str(x) for x in row] + rng.choice(([], [], [], [], ["1"], ["x"], ["1_0"], ["+1"]))
        data += (
            f"{name} ".encode() + (row.tobytes() if binary else " ".join(cells).encode()) + rng.choice((b"\n", b" \n"))
        )
    path.write_bytes(data)


def write_json(rng: random.Random, path: Path) -> None:
    write_jsonl(rng, path)
    records = []
    for line in path.read_text().splitlines():
        records += [json.loads(line)] if line else []
    cells = {"ids": names(rng, 7), "embeddings": numbers(rng, (7, 4), "f4").tolist()}
    other = {"data": records, "n": 1}, {"a": {"b": records}}, cells, {"vectors": {"x": {"values": [1, 2]}}}, [[1, 2]], 3
    path.write_text(json.dumps(rng.choice((records, records, records, *other))))


def write_pt(rng: random.Random, path: Path) -> None:
    import torch

    rows = torch.tensor(numbers(rng, (7, 4), rng.choice(("f2", "f4", "f8", "i4", "?", "c8"))))
    other = rows.bfloat16(), torch.zeros(1).expand(10**6, 10**6), rows.to_sparse(), {"a": [rows, {"b": rows}]}, rows[0]
    odd = {"ids": names(rng, 7), "vectors": rows}, {"v": torch.ones(7, 3, 4)}, [1.5], None, rows.requires_grad_(False)
    made = rng.choice((rows, {"ids": names(rng, 7), "vectors": rows}, *other, *odd))
    torch.save(made, path, _use_new_zipfile_serialization=rng.random() < 0.8)


def write_h5ad(rng: random.Random, path: Path) -> None:
    import h5py

    with h5py.File(path, "w") as file:
        file["obs/_index"] = np.array([f"i{k}" for k in range(rng.choice((7, 7, 7, 6)))], "S3")
        file["obsm/X_pca"] = vectors(rng, 7)
        file["obs/kind/codes"] = np.array([0, 1, -1, rng.choice((0, 0, 9)), 0, 0, 0], "i1")
        file["obs/kind/categories"] = np.array([b"a", b"b"])
        file["X/data"], file["X/indices"] = numbers(rng, (7,), "f4"), rng.choice((np.arange(7) % 4, np.arange(7)))
        file["X/indptr"] = rng.choice((np.arange(8), np.arange(8)[::-1], np.arange(7), np.arange(8) * 10**6))
        file["X"].attrs["shape"] = rng.choice(([7, 4], [7, 4], [7, 0], [7, 2**40], [-1, 4]))
        file["X"].attrs["encoding-type"] = np.bytes_(rng.choice(("csr_matrix", "csc_matrix")))


def write_faiss(rng: random.Random, path: Path) -> None:
    import faiss

    rows = np.random.default_rng(rng.randrange(100)).random((7, 4), np.float32)
    kinds = ["Flat", "IDMap,Flat", "IVF1,Flat", "HNSW4,Flat", "SQ8", "SQfp16", "L2norm,Flat", "IDMap,L2norm,IVF1,Flat"]
    index = faiss.index_factory(4, rng.choice(kinds))
    index.train(rows)
    index.add_with_ids(rows, np.arange(7)) if isinstance(index, faiss.IndexIDMap) else index.add(rows)
    faiss.write_index(index, str(path))


def write_zarr(rng: random.Random, path: Path) -> None:
    import zarr

    group = zarr.open_group(str(path), mode="w", zarr_format=rng.choice((2, 3)))
    group.create_array("a/v", data=numbers(rng, (7, 4), rng.choice(("f2", "f4", "f8", "i4"))), chunks=(3, 4))
    texts = group.create_array("ids", shape=(7,), dtype=rng.choice((str, "i8")), chunks=(4,))
    texts[:] = np.arange(7) if texts.dtype.kind == "i" else np.array([f"ü{k}" for k in range(7)], object)


def write_data_set(rng: random.Random, path: Path) -> None:
    """Write the folder of a data set of Hugging Face, with its splits, or that of an index of vector-io."""
    names = [f"{split}/data-{k:05}-of-00002.arrow" for split in ("train", "test") for k in range(2)]
    kind = "vdf" if path.suffix else rng.choice(("saved", "cache", "vdf"))
    if kind == "cache":
        names = ["0/wiki-train.arrow", "0/wiki-test.arrow", "0/cache-1.arrow", "0/dataset_info.json"]
    if kind == "vdf":
        names = ["i/1.parquet", "j/1.parquet"]
        one = {"model_name": "a", "vector_columns": ["v"], "exported_vector_count": 7, "dimensions": 4}
        spaces = [one | {"namespace": name, "data_path": f"{name}"} for name in "ij"]
        path.mkdir()
        (path / "VDF_META.json").write_text(json.dumps({"indexes": {"a": spaces}, "id_column": "id"}))
    for name in names:
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        if name.endswith(".json"):
            (path / name).write_text("{}")
        else:
            (write_parquet if name.endswith(".parquet") else write_arrow)(rng, path / name)


#: Writers by the suffix of what they write; the folder of parts is written in ``targets.py``.
WRITERS = {
    **{".npy": write_npy, ".npz": write_npz, ".safetensors": write_safetensors, ".parquet": write_parquet},
    **{".arrow": write_arrow, ".feather": write_arrow, ".csv": write_csv, ".jsonl": write_jsonl},
    **{".tsv": write_csv, ".ndjson": write_jsonl, ".json": write_json},
    **dict.fromkeys((".pt", ".pth"), write_pt),
    **dict.fromkeys((".fvecs", ".bvecs", ".ivecs"), write_vecs),
    **dict.fromkeys((".vec", ".txt", ".bin"), write_words),
    **dict.fromkeys((".faiss", ".index"), write_faiss),
    **{".h5ad": write_h5ad, ".h5": write_hdf5, ".hdf5": write_hdf5, ".lance": write_lance, ".zarr": write_zarr},
    ".vdf": write_data_set,
}
