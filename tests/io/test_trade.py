"""Files as other tools of this trade write them: read right, listed, and refused in a sentence when damaged."""

import bz2
import gzip
import json
import os

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from written import write

from congruence import OrthogonalMap, Space, errors
from congruence.io import contents, open_source, read_column, read_embeddings
from congruence.io.nested import values_of
from congruence.upgrade.transform import transform_file

RNG = np.random.default_rng(3)
X = RNG.standard_normal((40, 6)).astype(np.float32)
IDS = [f"i{k}" for k in range(40)]


@pytest.fixture
def refused(here, tmp_path):
    """Return a function that checks that commands refuse a file in one line with certain words, and write nothing."""
    OrthogonalMap().fit(X, X[:, ::-1]).save(tmp_path / "map")

    def check(spec, words, commands=("inspect {}", "transform map {} -o out.npy")):
        for command in commands:
            done = here(*(str(spec) if word == "{}" else word for word in command.split())).ends(2)
            assert words in done.err
            assert len(done.err.strip().splitlines()) == 1
        assert not (tmp_path / "out.npy").exists()

    return check


# ------------------------------------------------------------------ .fvecs, .bvecs, .ivecs


def vecs(path, rows, kind):
    widths = np.full((len(rows), 1), rows.shape[1], "<i4")
    path.write_bytes(b"".join(w.tobytes() + row.tobytes() for w, row in zip(widths, rows.astype(kind), strict=True)))
    return path


@pytest.mark.parametrize(("suffix", "kind"), [(".fvecs", "<f4"), (".bvecs", "u1"), (".ivecs", "<i4")])
def test_vecs(suffix, kind, tmp_path, refused):
    rows = X if kind == "<f4" else RNG.integers(1, 255, (40, 6))
    path = vecs(tmp_path / f"v{suffix}", rows, kind)
    source = open_source(path)
    assert (source.n, source.dim) == (40, 6)
    np.testing.assert_array_equal(source.read().vectors, rows)
    np.testing.assert_array_equal(np.concatenate([b for _, b in source.scan(7, 5)]), rows[7:])
    np.testing.assert_array_equal(source.take([39, 3, 4])[1], rows[[39, 3, 4]])
    assert contents(path) == {"vectors": "40 × 6"}
    path.write_bytes(path.read_bytes()[:-1])
    refused(path, "first row has width 6")
    path.write_bytes(b"\xff\xff\xff\x7f")
    refused(path, "first row has width 2147483647")
    vecs(path, rows, kind)
    data = bytearray(path.read_bytes())
    data[len(data) // 40] = 5
    path.write_bytes(data)
    with pytest.raises(errors.CorruptFileError, match="rows of 6 and of 5 numbers"):
        read_embeddings(path)


# ------------------------------------------------------------------ word vectors

WORDS = [*(f"wort{k}ü" for k in range(37)), "</s>", "7", "\u00a0"]


def text_of(words, rows, head=True, end="\n"):
    lines = [f"{len(rows)} {rows.shape[1]}"] * head
    return end.join([*lines, *(f"{word} {' '.join(map(str, row))}" for word, row in zip(words, rows, strict=True)), ""])


@pytest.mark.parametrize("suffix", [".vec", ".txt"])
@pytest.mark.parametrize(("head", "end"), [(True, "\n"), (False, "\n"), (True, " \n"), (False, "\r\n")])
def test_text_of_word_vectors(suffix, head, end, tmp_path):
    path = tmp_path / f"w{suffix}"
    path.write_bytes(text_of(WORDS, X, head, end).encode())
    source = open_source(path)
    assert (source.n, source.dim, source.has_ids) == (40, 6, True)
    found = source.read()
    np.testing.assert_array_equal(found.vectors.astype(np.float32), X)
    assert found.ids.tolist() == WORDS
    ids, rows = source.take([39, 3])
    assert ids.to_pylist() == [WORDS[39], WORDS[3]]
    np.testing.assert_array_equal(rows.astype(np.float32), X[[39, 3]])
    assert np.concatenate([block for _, block in source.scan(7, 5)]).shape == (33, 6)
    assert contents(path) == {"vectors": "40 × 6"}
    assert not open_source(path, ids=False).has_ids


def test_words_of_several_parts_and_of_one_dimension(tmp_path):
    (tmp_path / "glove.txt").write_text("a 1 2\n. . . 3 4\n5 5 6\n")  # as in GloVe's 840B
    assert read_embeddings(tmp_path / "glove.txt").ids.tolist() == ["a", ". . .", "5"]
    (tmp_path / "one.vec").write_text("2 1\n7 3\nb 4\n")
    assert read_embeddings(tmp_path / "one.vec").vectors.tolist() == [[3], [4]]
    (tmp_path / "plus.vec").write_text("a +1 2e-3\n")
    assert read_embeddings(tmp_path / "plus.vec").vectors.tolist() == [[1, 0.002]]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "Got 0 rows"),
        ("names\nof items\n", "rows of 0 numbers"),
        ("a 1 2\nb 1\n", "Got 1 numbers in row 1"),
        ("a 1 2\nb 1 2 3\n", "Got 3 numbers in row 1"),
        ("a 1 2\nb 1 x\n", "Got 'x' as a number"),
        ("a 1 2\nb 1 1_0\n", "Got '1_0' as a number"),
        ("3 2\na 1 2\nb 1 2\n", "2 of 3 rows"),
        ("1 2\na 1 2\nb 1 2\n", "more than 1 rows"),
        ("9999999999999999999999 2\na 1 2\n", "bytes for"),
        ("a 1 nan\nb 1 2\n", "NaN"),
    ],
)
def test_text_of_word_vectors_that_cannot_be(text, words, tmp_path, refused):
    (tmp_path / "w.vec").write_text(text)
    with pytest.raises(errors.CongruenceError, match=words):
        read_embeddings(tmp_path / "w.vec")
    refused(tmp_path / "w.vec", "error: ", ["transform map {} -o out.npy"])


def test_damaged_words(tmp_path, refused):
    (tmp_path / "w.vec").write_bytes(b"\xff\xfe 1 2\nb 1 2\n")
    with pytest.raises(errors.CorruptFileError, match="UTF-8"):
        read_embeddings(tmp_path / "w.vec")
    (tmp_path / "w.vec").write_bytes(b"0" * 2**24)
    refused(tmp_path / "w.vec", "a line of more than")


def binary(words, rows, end=b"\n"):
    body = [f"{word} ".encode() + row.tobytes() + end for word, row in zip(words, rows, strict=True)]
    return f"{len(rows)} {rows.shape[1]}\n".encode() + b"".join(body)


@pytest.mark.parametrize("end", [b"\n", b""])
def test_binary_word_vectors(end, tmp_path, refused):
    path, raw = tmp_path / "w.bin", binary(WORDS, X, end)
    path.write_bytes(raw)
    found = read_embeddings(path)
    np.testing.assert_array_equal(found.vectors, X)
    assert found.vectors.dtype == np.float32
    assert found.ids.tolist() == WORDS
    np.testing.assert_array_equal(np.concatenate([b for _, b in open_source(path).scan(7, 5)]), X[7:])
    for keep in range(len(raw) - len(end) - 1):
        path.write_bytes(raw[:keep])
        with pytest.raises(errors.CorruptFileError):
            read_embeddings(path)
    path.write_bytes(raw + b"x")
    refused(path, "goes on after 40 rows", ["transform map {} -o out.npy"])
    path.write_bytes((793712314).to_bytes(4, "little") + bytes(99))
    refused(path, "it is a fastText model")
    path.write_bytes(b"1 6\n" + b"x" * 10**6)
    refused(path, "has no word, in row 0", ["transform map {} -o out.npy"])


@pytest.mark.parametrize("suffix", [".vec", ".bin"])
def test_word_vectors_are_written(suffix, tmp_path, refused):
    path = write(tmp_path / f"w{suffix}", X, WORDS, space=Space("a"))
    found = read_embeddings(path)
    np.testing.assert_array_equal(found.vectors.astype(np.float32), X)
    assert (found.ids.tolist(), found.space.model) == (WORDS, "a")
    with pytest.raises(errors.IdError, match="Got no ids"):
        write(path, X)
    for bad in ("a\nb", " a", " ", "photo 3"):
        with pytest.raises(errors.IdError, match="words have no"):
            write(tmp_path / f"x{suffix}", X[:1], [bad])
    assert not (tmp_path / f"x{suffix}").exists()


# ------------------------------------------------------------------ cells, and compressed text


def cells_of(delimiter, point):
    lines = [delimiter.join(["id", "note", *(f"v{j}" for j in range(6))])]
    lines += [
        delimiter.join([i, "a note", *(str(x).replace(".", point) for x in row)]) for i, row in zip(IDS, X, strict=True)
    ]
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("suffix", "delimiter", "point"), [(".tsv", "\t", "."), (".csv", ";", ","), (".csv", ";", "."), (".tsv", "\t", ",")]
)
def test_cells_between_other_marks(suffix, delimiter, point, tmp_path):
    path = tmp_path / f"v{suffix}"
    path.write_text(cells_of(delimiter, point))
    found = read_embeddings(f"{path}:v")
    np.testing.assert_array_equal(found.vectors.astype(np.float32), X)
    assert found.ids.tolist() == IDS
    assert set(contents(f"{path}:v")) == {"vectors", "id", "note"}
    assert read_column(f"{path}:note").tolist() == ["a note"] * 40
    OrthogonalMap().fit(X, X[:, ::-1]).save(tmp_path / "map")
    transform_file(
        OrthogonalMap().fit(X, X[:, ::-1]), open_source(f"{path}:v"), tmp_path / f"o{suffix}", normalize=False
    )
    back = read_embeddings(f"{tmp_path}/o{suffix}:v")
    np.testing.assert_allclose(back.vectors, X[:, ::-1], atol=1e-5)
    mark = "\t" if suffix == ".tsv" else ","
    assert (tmp_path / f"o{suffix}").read_text().splitlines()[0] == mark.join(
        ["id", "note", *(f"v{j}" for j in range(6))]
    )


def test_lists_in_cells(tmp_path, refused):
    path = tmp_path / "a.csv"
    lines = [f'{i},"{row.tolist()}","[1, 2]",3' for i, row in zip(IDS, X, strict=True)]
    path.write_text("\n".join(["id,embedding,embedding_small,size", *lines]))
    found = read_embeddings(f"{path}:embedding")  # the exact name, though another one begins with it
    np.testing.assert_array_equal(found.vectors.astype(np.float32), X)
    assert found.ids.tolist() == IDS
    assert open_source(f"{path}:embedding_small").dim == 2
    assert set(contents(path).values()) == {"text", "list", "number"}
    refused(path, "embedding_small", ["transform map {} -o out.npy"])
    path.write_text(
        "\n".join(["id,embedding,note", *(f'{i},"{row.tolist()}",a' for i, row in zip(IDS, X, strict=True))])
    )
    assert open_source(path).dim == 6
    for cell, words in (
        ("[1, 2]", "Got 2 numbers in line 3"),
        ("[1", "no list"),
        ('"[1, null]"', "no list"),
        ("x", "no list"),
    ):
        path.write_text(f'id,v\na,"[1, 2, 3]"\nb,{cell if cell[0] == chr(34) else chr(34) + cell + chr(34)}\n')
        refused(path, words, ["transform map {} -o out.npy"])


def test_arrays_in_cells_as_numpy_shows_them(tmp_path, refused):
    path = tmp_path / "a.csv"
    path.write_text("\n".join(["id,v", *(f'{i},"{row}"' for i, row in zip(IDS, X, strict=True))]))
    assert "\n" not in str(X[0])
    np.testing.assert_allclose(read_embeddings(path).vectors, X, rtol=1e-6, atol=1e-8)
    path.write_text('id,v\na,"[0.1 0.2 ... 0.3]"\nb,"[0.1 0.2 0.3]"\n')  # of which most was lost
    refused(f"{path}:v", "no list", ["transform map {} -o out.npy"])


PACK = {
    ".gz": lambda raw: gzip.compress(raw),
    ".bz2": bz2.compress,
    ".zst": lambda raw: pa.compress(raw, "zstd", asbytes=True),
}


@pytest.mark.parametrize("inner", [".csv", ".tsv", ".jsonl", ".ndjson", ".vec", ".txt"])
@pytest.mark.parametrize("outer", [*PACK])
def test_compressed_text(inner, outer, tmp_path, refused):
    plain = write(tmp_path / f"v{inner if inner != '.txt' else '.vec'}", X, IDS)
    path = tmp_path / f"v{inner}{outer}"
    packed = PACK[outer](plain.read_bytes())
    path.write_bytes(packed)
    found = read_embeddings(path)
    np.testing.assert_array_equal(found.vectors.astype(np.float32), X)
    assert found.ids.tolist() == IDS
    np.testing.assert_array_equal(
        np.concatenate([b for _, b in open_source(path).scan(7, 5)]).astype(np.float32), X[7:]
    )
    for bad in (packed[: len(packed) // 2], packed[:3], b"not compressed", packed[:20] + b"\xff" * 9 + packed[29:]):
        path.write_bytes(bad)
        refused(path, "error: ", ["transform map {} -o out.npy"])
    refused(plain, "nothing is compressed", [f"transform map {{}} -o out{inner}{outer}"])


def test_names_in_compressed_text(tmp_path):
    np.save(tmp_path / "v.npy", X)
    (tmp_path / "names.txt.gz").write_bytes(gzip.compress("\n".join(IDS).encode()))
    assert read_embeddings(tmp_path / "v.npy", ids=tmp_path / "names.txt.gz").ids.tolist() == IDS
    with pytest.raises(errors.ParameterError, match="expected one of"):
        open_source(tmp_path / "v.npy.gz")


def test_a_bomb_of_text_is_given_up(tmp_path, monkeypatch):
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(b"id,v\n" + b"a,1\n" * 2**19))
    monkeypatch.setattr("congruence.io.reading._PORTION", 2**20)
    monkeypatch.setattr("congruence._utils.memory._SMALL", 0)
    monkeypatch.setattr("congruence._utils.memory.free_memory", lambda: 2**20)
    with pytest.raises(errors.OutOfMemoryError, match="a.csv.gz"):
        open_source(tmp_path / "a.csv.gz")
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(b"id,v\n" + b"a" * 2**21))
    with pytest.raises(errors.CorruptFileError, match="a line of more"):
        open_source(tmp_path / "a.csv.gz")


# ------------------------------------------------------------------ JSON

LISTS = X.astype(float).tolist()
OPENAI = [
    {"id": f"r{i}", "custom_id": i, "response": {"body": {"data": [{"object": "embedding", "embedding": row}]}}}
    for i, row in zip(IDS, LISTS, strict=True)
]
ELASTIC = [{"_id": i, "_source": {"text": i, "vector": row}} for i, row in zip(IDS, LISTS, strict=True)]
PINECONE = [{"id": i, "values": row, "metadata": {"a": 1}} for i, row in zip(IDS, LISTS, strict=True)]
WEAVIATE = [
    {"class": "A", "id": i, "properties": {"title": i}, "vector": row, "vectorWeights": None}
    for i, row in zip(IDS, LISTS, strict=True)
]
NAMED = [{"uuid": i, "properties": {"title": i}, "vector": {"default": row}} for i, row in zip(IDS, LISTS, strict=True)]
DOTTED = [{"id": i, "a.b": row, "a": {"b": [0.0]}} for i, row in zip(IDS, LISTS, strict=True)]


@pytest.mark.parametrize(
    ("records", "key", "ids"),
    [
        (OPENAI, ":response.body.data[0].embedding", "custom_id"),
        (OPENAI, "", "response.body.data[0].object"),
        (ELASTIC, ":_source.vector", None),
        (ELASTIC, "", "_source.text"),
        (PINECONE, "", None),
        (NAMED, "", "uuid"),
        (NAMED, ":vector.default", "properties.title"),
        (DOTTED, ":a.b", None),
    ],
)
def test_vectors_inside_of_json_lines(records, key, ids, tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(map(json.dumps, records)))
    shared = ids is not None and ids.endswith("object")  # which is no id: the same in all rows
    found = read_embeddings(f"{path}{key}", ids=False if shared else ids)
    np.testing.assert_array_equal(found.vectors, X)
    assert shared or found.ids.tolist() == IDS
    if ids:
        assert read_column(f"{path}:{ids}").tolist() == (["embedding"] * 40 if shared else IDS)
    source = open_source(f"{path}{key}", ids=False if shared else ids)
    transform_file(OrthogonalMap().fit(X, X[:, ::-1]), source, tmp_path / "o.jsonl", normalize=False)
    np.testing.assert_allclose(read_embeddings(f"{tmp_path}/o.jsonl{key}").vectors, X[:, ::-1], atol=1e-5)
    before, after = (json.loads((tmp_path / name).read_text().splitlines()[0]) for name in ("a.jsonl", "o.jsonl"))
    assert values_of(before | ({"id": ""} if ids and "." in ids and not shared else {})) == values_of(
        after
    )  # ids are on top
    transform_file(OrthogonalMap().fit(X, X[:, ::-1]), source, tmp_path / "o.parquet", normalize=False)
    name = source.columns[0].vector
    np.testing.assert_allclose(read_embeddings(f"{tmp_path}/o.parquet:{name}").vectors, X[:, ::-1], atol=1e-5)
    if records is ELASTIC:  # the old vectors do not remain beside the new ones
        assert pq.read_table(tmp_path / "o.parquet")["_source"][0].as_py() == {"text": "i0", "vector": None}


@pytest.mark.parametrize(
    ("value", "key"),
    [
        (PINECONE, ""),
        (LISTS, ""),
        ({"ids": IDS, "embeddings": LISTS, "documents": IDS}, ""),
        ({"ids": IDS, "embeddings": LISTS, "documents": IDS}, ":embeddings"),
        ({"object": "list", "data": [{"index": k, "embedding": row} for k, row in enumerate(LISTS)]}, ""),
        (
            {"object": "list", "data": [{"index": k, "embedding": row} for k, row in enumerate(LISTS)]},
            ":data.embedding",
        ),
        (
            {"object": "list", "data": [{"index": k, "embedding": row} for k, row in enumerate(LISTS)]},
            ":data[*].embedding",
        ),
        ({"took": 1, "hits": {"total": {"value": 40}, "hits": ELASTIC}}, ":hits.hits._source.vector"),
        ({"took": 1, "hits": {"total": {"value": 40}, "hits": ELASTIC}}, ""),
        ({"vectors": {one["id"]: one for one in PINECONE}}, ":vectors.values"),
        ({"vectors": {one["id"]: one for one in PINECONE}, "namespace": "a", "usage": {"readUnits": 1}}, ""),
        ({"matches": [one | {"score": 0.1} for one in PINECONE], "namespace": ""}, ""),
        ({"objects": WEAVIATE, "totalResults": 40}, ""),
        ({"objects": [one | {"vectors": {"a": one["vector"], "b": [1.0]}} for one in WEAVIATE]}, ":objects.vectors.a"),
        (dict(zip(IDS, LISTS, strict=True)), ""),
    ],
)
def test_json(value, key, tmp_path):
    (tmp_path / "a.json").write_text(json.dumps(value))
    found = read_embeddings(f"{tmp_path}/a.json{key}")
    np.testing.assert_array_equal(found.vectors, X)
    assert found.ids.tolist() == (
        IDS if "ids" in value or ("data" not in value and value is not LISTS) else list(range(40))
    )
    assert contents(f"{tmp_path}/a.json{key}")["vectors"] == "40 × 6"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "damaged"),
        ("3", "no vectors"),
        ("[]", "no vectors"),
        ("[1, 2", "damaged"),
        ("[" * 100_000, "damaged"),
        ('[{"v": [1, 2]}, {"v": [1]}]', "Got 1 numbers in item 2"),
        ('[{"v": [1, 2]}, {"w": [1]}]', "w 1 numbers"),
        ('[{"v": [1, 2]}, 3]', "Item 2"),
        ('[{"v": [1, NaN]}]', "NaN"),
        ('[{"v": [1, 2], "w": [3]}]', "v 2 numbers, w 1 numbers"),
    ],
)
def test_json_that_cannot_be(text, words, tmp_path, refused):
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(errors.CongruenceError, match=words):
        read_embeddings(tmp_path / "a.json")
    refused(tmp_path / "a.json", "error: ", ["transform map {} -o out.npy"])


def test_a_mistaken_path_lists_the_candidates(tmp_path, here):
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, OPENAI)))
    done = here("inspect", f"{tmp_path}/a.jsonl:response.data").ends(2)
    assert "response.body.data[0].embedding 6 numbers" in done.err
    (tmp_path / "b.jsonl").write_text(json.dumps({"a": [1, 2], "b": {"c": [3, 4]}, "d": "text"}))
    assert contents(tmp_path / "b.jsonl") == {"a": "2 numbers", "b.c": "2 numbers", "d": "text"}
    (tmp_path / "c.csv").write_text("id,note,v0,v1\na,x,1,2\n")
    assert contents(tmp_path / "c.csv") == {"id": "text", "note": "text", "v0": "number", "v1": "number"}


# ------------------------------------------------------------------ .pt


@pytest.mark.parametrize("legacy", [False, True])
def test_tensors(legacy, tmp_path, refused):
    torch = pytest.importorskip("torch", reason="the lowest versions are tested without torch")
    tensor, deep = torch.tensor(X), torch.tensor(np.stack([X, 2 * X, 3 * X], 1))

    def save(value, name="a.pt"):
        torch.save(value, tmp_path / name, _use_new_zipfile_serialization=not legacy)
        return tmp_path / name

    np.testing.assert_array_equal(read_embeddings(save(tensor)).vectors, X)
    np.testing.assert_array_equal(read_embeddings(save(torch.nn.Parameter(tensor))).vectors, X)
    np.testing.assert_array_equal(
        read_embeddings(save(torch.tensor(X[:, ::-1].copy()).T.contiguous().T)).vectors, X[:, ::-1]
    )
    found = read_embeddings(save({"ids": IDS, "vectors": tensor, "step": 3, "mean": tensor[0]}))
    np.testing.assert_array_equal(found.vectors, X)
    assert found.ids.tolist() == IDS
    assert contents(tmp_path / "a.pt") == {"ids": "40", "vectors": "40 × 6", "mean": "6"}
    assert read_embeddings(f"{tmp_path}/a.pt:vectors", ids=False).vectors.dtype == np.float32
    half = read_embeddings(save(tensor.bfloat16(), "b.pth"))
    assert half.vectors.dtype == np.float32
    if not legacy:  # which has no such types
        small = read_embeddings(save(torch.ones(40, 6).to(torch.float8_e4m3fn)), ids=False)
        assert (small.vectors == 1).all()
    np.testing.assert_array_equal(half.vectors, tensor.bfloat16().float().numpy())
    path = save({"model": {"layers": [tensor, deep]}, "other": tensor})
    np.testing.assert_array_equal(read_embeddings(f"{path}:model/layers/1[2]").vectors, 3 * X)
    np.testing.assert_array_equal(np.concatenate([b for _, b in open_source(f"{path}:other").scan(7, 5)]), X[7:])
    np.testing.assert_array_equal(open_source(f"{path}:model/layers/1[1]").take([39, 3])[1], 2 * X[[39, 3]])
    refused(f"{path}:nothing", "model/layers/1[0] (40, 6)")
    refused(path, "other (40, 6)", ["transform map {} -o out.npy"])
    refused(f"{path}:model/layers/1", "(40, 3, 6)", ["transform map {} -o out.npy"])


def test_what_a_pt_must_not_do(tmp_path, refused):
    torch = pytest.importorskip("torch", reason="the lowest versions are tested without torch")

    class Runs:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "was_run"),)

    path = tmp_path / "a.pt"
    torch.save({"v": torch.tensor(X), "x": Runs()}, path)
    refused(path, "only tensors, lists and dictionaries are loaded")
    assert not (tmp_path / "was_run").exists()
    torch.save(torch.zeros(1).expand(10**7, 10**7), path)
    refused(path, "in 4 bytes")
    torch.save([1.5], path)
    refused(path, "contains none", ["transform map {} -o out.npy"])
    torch.save(torch.tensor(X), path)
    raw = path.read_bytes()
    torch.save({"vectors": torch.tensor(X), "ids": IDS}, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    old = (tmp_path / "old.pt").read_bytes()
    for data in (*(raw[:keep] for keep in (0, 1, 10, 100, 500, len(raw) - 1)), *(old[:k] for k in range(0, 400, 3))):
        path.write_bytes(data)
        with pytest.raises(errors.CongruenceError):
            contents(path)
    refused(path, "error: ")


# ------------------------------------------------------------------ .h5ad


def write_h5ad(path, index="_index", kind="csr_matrix"):
    """Write the layout of anndata: dense and sparse matrices, names of cells, a column and a categorical one."""
    sparse = np.where(np.abs(X) > 0.5, X, 0)
    rows, columns = np.nonzero(sparse)
    with h5py.File(path, "w") as file:
        file.create_group("obs").attrs["_index"] = index
        file.create_dataset(f"obs/{index}", data=IDS, dtype=h5py.string_dtype())
        file["obs/size"], file["obs/type/codes"] = np.arange(40), (np.arange(40) % 2).astype("i1")
        file.create_dataset("obs/type/categories", data=["b cell", "t cell"], dtype=h5py.string_dtype())
        file["obsm/X_pca"], file["obsm/X_umap"] = X, X[:, :2]
        group = file.create_group("X")
        group["data"], group["indices"] = sparse[rows, columns], columns.astype("i4")
        group["indptr"] = np.searchsorted(rows, np.arange(41)).astype("i4")
        group.attrs["shape"], group.attrs["encoding-type"] = sparse.shape, kind
        file["var/_index"], file["uns/other"] = np.arange(6), X
    return path, sparse


@pytest.mark.parametrize("index", ["_index", pytest.param("cell_id", marks=pytest.mark.long)])
def test_h5ad(index, tmp_path, refused):
    path, sparse = write_h5ad(tmp_path / "a.h5ad", index)
    for key, expected in (("obsm/X_pca", X), ("X", sparse), ("/obsm/X_umap", X[:, :2])):
        source = open_source(f"{path}:{key}")
        found = source.read(allow_zero_rows=True)
        np.testing.assert_array_equal(found.vectors, expected)
        assert found.ids.tolist() == IDS
        np.testing.assert_array_equal(np.concatenate([b for _, b in source.scan(7, 5)]), expected[7:])
        np.testing.assert_array_equal(source.take([39, 3])[1], expected[[39, 3]])
    held = {"obsm/X_pca": "40 × 6", "obsm/X_umap": "40 × 2", "X": "40 × 6", f"obs/{index}": "40", "obs/size": "40"}
    assert contents(path) == held | {"obs/type": "40"}
    assert [*contents(f"{path}:obsm")] == ["obsm/X_pca", "obsm/X_umap"]
    assert read_column(f"{path}:obs/type").tolist()[:3] == ["b cell", "t cell", "b cell"]
    with h5py.File(path, "a") as file:  # as pandas' texts are written
        del file[f"obs/{index}"]
        file.create_dataset(f"obs/{index}/values", data=IDS, dtype=h5py.string_dtype())
        file[f"obs/{index}/mask"] = np.zeros(40, bool)
    assert read_embeddings(f"{path}:obsm/X_pca").ids.tolist() == IDS
    assert open_source(f"{path}:obsm/X_pca", ids="obs/size").read().ids.tolist() == [*range(40)]
    refused(f"{path}:obsm/X_nothing", "obsm/X_pca (40, 6)")
    refused(path, "obsm/X_pca (40, 6)", ["transform map {} -o out.npy"])
    refused(f"{path}:obs/type", "Pass the key of a matrix", ["transform map {} -o out.npy"])


def test_h5ad_that_cannot_be(tmp_path, refused):
    path, _ = write_h5ad(tmp_path / "a.h5ad", kind="csc_matrix")
    refused(f"{path}:X", "by columns", ["transform map {} -o out.npy"])
    for part, value in (("indices", np.full(500, 6)), ("indptr", np.arange(41)[::-1]), ("indptr", np.arange(5))):
        path, _ = write_h5ad(tmp_path / "a.h5ad")
        with h5py.File(path, "a") as file:
            size = len(file["X/data"])
            del file[f"X/{part}"]
            file[f"X/{part}"] = value[:size]
        refused(f"{path}:X", "damaged", ["transform map {} -o out.npy"])
    with h5py.File(path, "a") as file:
        del file["obs"]
        file["obs"] = h5py.ExternalLink("/etc/hostname", "/")
    assert not open_source(f"{path}:obsm/X_umap").has_ids
    with h5py.File(path, "a") as file:
        del file["obsm/X_pca"]
        file["obsm/X_pca"] = h5py.ExternalLink("other.h5", "v")
    refused(f"{path}:obsm/X_pca", "expected one of those")


# ------------------------------------------------------------------ both sides in one file


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl", ".json", ".csv", ".npz", ".h5", ".pt"])
def test_pairs_in_one_file(suffix, tmp_path, here):
    old, new = RNG.standard_normal((2, 120, 6))
    ids = [f"i{k}" for k in range(120)]
    path, sides = tmp_path / f"pairs{suffix}", {"old": old.tolist(), "new": new.tolist()}
    rows = [{"id": i, "old": a, "new": b} for i, a, b in zip(ids, *sides.values(), strict=True)]
    if suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif suffix == ".jsonl":
        path.write_text("\n".join(map(json.dumps, rows)))
    elif suffix == ".json":
        path.write_text(json.dumps(rows))
    elif suffix == ".csv":
        path.write_text(
            "id,old,new\n" + "".join(f'{i},"{a}","{b}"\n' for i, a, b in zip(ids, *sides.values(), strict=True))
        )
    elif suffix == ".npz":
        np.savez(path, old=old, new=new, ids=np.array(ids))
    elif suffix == ".h5":
        with h5py.File(path, "w") as file:
            file["old"], file["new"], file["ids"] = old, new, np.array(ids, "S4")
    else:
        torch = pytest.importorskip("torch", reason="the lowest versions are tested without torch")
        torch.save({"ids": ids, "old": torch.tensor(old), "new": torch.tensor(new)}, path)
    facts = json.loads(here("fit", f"{path}:old", f"{path}:new", "-o", "map", "--json").ends(0).out)
    assert facts["paired_by"].startswith("id")
    assert here("fit", f"{path}:old", f"{path}:old", "-o", "other").ends(2)


# ------------------------------------------------------------------ indexes of FAISS


def test_the_exact_vectors_of_an_index_are_read_with_its_ids(tmp_path):
    faiss = pytest.importorskip("faiss")
    numbers = np.arange(40) * 3 + 5
    rows = X[np.argsort(RNG.random(40))]
    kinds = {"flat": "Flat", "hnsw": "HNSW8,Flat", "map": "IDMap,Flat", "ivf": "IVF4,Flat", "both": "IDMap2,IVF4,Flat"}
    mapping = OrthogonalMap().fit(X, X[:, ::-1])
    for name, kind in kinds.items():
        index = faiss.index_factory(6, kind)
        index.train(rows)
        index.add_with_ids(rows, numbers) if name in ("map", "ivf", "both") else index.add(rows)
        faiss.write_index(index, str(tmp_path / f"{name}.index"))
        source = open_source(tmp_path / f"{name}.index")
        assert (source.n, source.dim, source.has_ids) == (40, 6, name in ("map", "ivf", "both"))
        found = np.concatenate([vectors for _, vectors in source.scan(0, 7)])
        order = slice(None)
        if source.has_ids:
            ids = np.concatenate([names.to_numpy() for names, _ in source.scan(0, 7)])
            order = np.argsort(ids)
            np.testing.assert_array_equal(ids[order], numbers)
        np.testing.assert_array_equal(found[order], rows)
        np.testing.assert_array_equal(np.concatenate([v for _, v in source.scan(33)]), found[33:])
        transform_file(mapping, open_source(tmp_path / f"{name}.index"), tmp_path / f"{name}.npy")
        np.testing.assert_allclose(np.load(tmp_path / f"{name}.npy"), mapping.transform(found), atol=1e-6)


@pytest.mark.parametrize("kind", ["SQfp16", "IDMap,SQfp16", "L2norm,Flat"])
def test_indexes_of_half_precision_and_of_unit_vectors(kind, tmp_path):
    faiss = pytest.importorskip("faiss")
    index = faiss.index_factory(6, kind)
    index.train(X)
    index.add_with_ids(X, np.arange(40) + 5) if "IDMap" in kind else index.add(X)
    faiss.write_index(index, str(tmp_path / "x.faiss"))
    found = read_embeddings(tmp_path / "x.faiss")
    half = X.astype("f2").astype("f4")
    kept = half if "fp16" in kind else X / np.linalg.norm(X, axis=1, keepdims=True)
    np.testing.assert_allclose(found.vectors, kept, atol=0 if "fp16" in kind else 1e-6)
    assert found.ids.tolist() == [k + 5 * ("IDMap" in kind) for k in range(40)]


def test_lossy_and_damaged_indexes_are_refused(tmp_path, refused):
    faiss = pytest.importorskip("faiss")
    path = tmp_path / "x.faiss"
    lossy = faiss.index_factory(6, "SQ8")
    lossy.train(X)
    lossy.add(X)
    faiss.write_index(lossy, str(path))
    refused(path, "approximations")
    faiss.write_index(faiss.IndexFlatL2(6), str(path))
    refused(path, "empty")
    whole = faiss.IndexFlatL2(6)
    whole.add(X)
    faiss.write_index(whole, str(path))
    raw = path.read_bytes()
    path.write_bytes(raw[:4] + (0).to_bytes(4, "little") + raw[8:])  # no columns
    refused(path, "x.faiss")
    lists = faiss.index_factory(6, "IVF1,Flat")
    lists.train(X)
    lists.add(X)
    faiss.write_index(lists, str(path))
    own = path.read_bytes()
    for at, new in ((4, (600).to_bytes(4, "little")), (8, (2**40).to_bytes(8, "little"))):  # width, number of vectors
        path.write_bytes(own[:at] + new + own[at + len(new) :])
        refused(path, "x.faiss", ["transform map {} -o out.npy"])
    for cut in (0, 3, 20, len(raw) - 7):
        path.write_bytes(raw[:cut])
        refused(path, "x.faiss")
    named = faiss.index_factory(6, "IDMap,IVF1,Flat")
    named.train(X)
    named.add_with_ids(X, np.arange(40))
    faiss.rev_swig_ptr(faiss.downcast_index(named.index).invlists.get_ids(0), 40)[3] = 40  # no row of the id map
    faiss.write_index(named, str(path))
    refused(path, "x.faiss")
    half = faiss.index_factory(6, "SQfp16")
    half.add(X)
    half.is_trained = False
    faiss.write_index(half, str(path))
    refused(path, "x.faiss")
    path.write_bytes(raw)
    refused(f"{path}:vectors", "vectors")
    refused(tmp_path / "none.index", "none.index. Check the path.")


# ------------------------------------------------------------------ two widths in one file


@pytest.mark.parametrize("suffix", [".parquet", ".lance", ".arrow", ".jsonl", ".json", ".csv"])
def test_two_widths_are_named_with_their_counts_and_a_way_to_select(suffix, tmp_path, here):
    rows = [{"id": f"i{k}", "v": [1.0, float(k)] + [2.0] * (k % 5 == 3)} for k in range(50)]
    path, table = tmp_path / f"a{suffix}", pa.Table.from_pylist(rows)
    if suffix == ".parquet":
        pq.write_table(table, path)
    elif suffix == ".lance":
        pytest.importorskip("lance").write_dataset(table, path)
    elif suffix == ".arrow":
        with pa.ipc.new_file(str(path), table.schema) as file:
            file.write_table(table)
    elif suffix == ".csv":
        path.write_text("id,v\n" + "".join(f'{row["id"]},"{row["v"]}"\n' for row in rows))
    else:
        path.write_text(json.dumps(rows) if suffix == ".json" else "\n".join(map(json.dumps, rows)))
    OrthogonalMap().fit(X[:, :2], X[:, 1::-1]).save(tmp_path / "map")
    done = here("transform", "map", str(path), "-o", "out").ends(2)
    assert "Got 3 numbers in" in done.err
    assert "2 in 40 rows, 3 in 10 rows" in done.err
    assert not (tmp_path / "out").exists()
    if suffix in (".parquet", ".lance"):
        assert "--set bad_rows=others.parquet" in done.err
        here("transform", "map", str(path), "-o", "out", "--set", "bad_rows=others.parquet").ends(0)
        assert pq.read_table(tmp_path / "others.parquet")["id"].to_pylist() == [f"i{k}" for k in range(3, 50, 5)]
    else:
        assert "a file of their own" in done.err
