"""``congruence bridge export`` into every format, and what it refuses."""

import json
import resource

import numpy as np
import pytest
from fitted_maps import MAPS, P, X, expected
from tiny_sentence_models import TEXTS, tiny, wide

from congruence import Bridge, OrthogonalMap

faiss = pytest.importorskip("faiss")
onnxruntime = pytest.importorskip("onnxruntime")


@pytest.fixture
def data(tmp_path):
    for name in ("orthogonal", "mlp", "heads"):
        MAPS[name].save(tmp_path / name)
    Bridge(OrthogonalMap().fit(P.X, P.Y, modality="text"), modality="text").save(tmp_path / "bridge")
    index = faiss.IndexFlatIP(9)
    index.add(P.Y.astype(np.float32))
    faiss.write_index(index, str(tmp_path / "old.faiss"))
    return tmp_path


def test_faiss_around_an_index(here, data):
    done = here("bridge export", "bridge", "--index", "old.faiss", "-o", "new.faiss", "--json").ends(0)
    assert json.loads(done.out) == {"output": "new.faiss", "format": "faiss", "d_in": 6, "d_out": 9, "modality": "text"}
    _, found = faiss.read_index(str(data / "new.faiss")).search(X, 1)
    old = faiss.read_index(str(data / "old.faiss"))
    np.testing.assert_array_equal(found, old.search(Bridge.load(data / "bridge").transform(X), 1)[1])
    assert (
        "of width 9; expected 6"
        in here("bridge export", "orthogonal", "--inverse", "--index", "old.faiss", "-o", "x").err
    )
    kept = (data / "old.faiss").read_bytes()
    assert "old.faiss is the source" in here("bridge export bridge --index old.faiss -o old.faiss --force").ends(2).err
    assert (data / "old.faiss").read_bytes() == kept


@pytest.mark.parametrize(
    ("name", "arguments", "side", "normalize"),
    [
        ("orthogonal", (), "source", "auto"),
        ("orthogonal", ("--normalize", "no"), "source", False),
        ("mlp", ("--normalize", "yes"), "source", True),
        ("heads", ("--side", "second"), "target", "auto"),
    ],
)
def test_onnx(here, data, name, arguments, side, normalize):
    done = here("bridge export", name, "--to", "onnx", "-o", "map.onnx", *arguments)
    assert (done.code, done.out) == (0, "written to map.onnx\n"), done.err
    A = (P.X if side == "source" else P.Y).astype(np.float32)
    (got,) = onnxruntime.InferenceSession(data / "map.onnx").run(["mapped"], {"vectors": A})
    np.testing.assert_allclose(got, expected(MAPS[name], A, side, normalize), atol=2e-5)


@pytest.mark.long
@pytest.mark.heavy
def test_sentence_transformers(here, data):
    library = pytest.importorskip("sentence_transformers")
    raw = tiny()
    raw.save_pretrained(str(data / "encoder"), create_model_card=False)
    arguments = ("bridge export", "mlp", "--to", "sentence-transformers", "--model", "encoder", "-o", "mapped")
    for more in ((), ("--force",)):
        done = here(*arguments, *more).ends(0)
        assert done.out == "written to mapped, for text vectors\n"
    got = library.SentenceTransformer(str(data / "mapped"), device="cpu").encode(TEXTS)
    np.testing.assert_allclose(got, MAPS["mlp"].transform(raw.encode(TEXTS)), atol=1e-5)
    assert "Pass --force" in here(*arguments).err
    assert "expected a model of sentence-transformers" in here(*arguments[:5], "mlp", "-o", "x").err


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("to", "bytes_"),
    [("sentence-transformers", 300), ("sentence-transformers", 30_000), ("onnx", 30_000), ("faiss", 30_000)],
)
def test_a_full_disk_is_one_sentence_and_keeps_what_was_there(here, tmp_path, to, bytes_):
    """The system refuses the tokenizer (300 bytes) or the weights: what is written before them is smaller."""
    pytest.importorskip("sentence_transformers")
    draw = np.random.default_rng(0)
    rows = draw.standard_normal((150, 120)).astype(np.float32)
    OrthogonalMap().fit(rows, rows @ np.linalg.qr(draw.standard_normal((120, 120)))[0]).save(tmp_path / "map")
    wide(120).save_pretrained(str(tmp_path / "encoder"), create_model_card=False)
    more = ("--model", "encoder") if to == "sentence-transformers" else ()
    out = {"onnx": "out.onnx", "faiss": "out.index"}.get(to, "out")
    arguments = ("bridge export", "map", "--to", to, *more, "-o", out)
    assert here(*arguments).code == 0
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_, hard))  # Python ignores the signal, and is told by an error
    try:
        done = here(*arguments, "--force")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert done.code == 2, done.err
    assert done.err.startswith(f"error: Got an error from the disk while writing {out} (")
    assert done.err.endswith("Nothing was left behind.\n")
    assert done.err.count("\n") == 1
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("bridge --to torch -o x", "Call congruence.load(MAP).to_torch() in Python"),
        ("bridge --to onnx --index old.faiss -o x", "Leave out --index"),
        ("bridge --side second -o x", "Leave out --side"),
        ("bridge --to sentence-transformers -o x", "Got no --model"),
        ("bridge --inverse -o x", "Got --inverse for a bridge"),
        ("mlp -o x", "expected an affine map"),
        ("orthogonal --to onnx --side second -o x", "Leave out --side"),
        ("bridge --index bridge/config.json -o x", "which FAISS cannot read"),
        ("cut --to onnx -o x", "error: Got"),
        ("bridge -o x.zzz", "ends in .index or .faiss or .vt"),
        ("bridge --index old.faiss -o x.zzz", "ends in .index or .faiss or .vt"),
        ("bridge --to onnx -o x.index", "ends in .onnx"),
    ],
)
def test_refusals(here, data, arguments, said):
    (data / "cut").mkdir()
    for name in ("config.json", "model.safetensors"):
        content = (data / "orthogonal" / name).read_bytes()
        (data / "cut" / name).write_bytes(content if name == "config.json" else content[:-9])
    here("bridge export", *arguments.split()).refused(said)
    assert not list(data.glob("x*"))
