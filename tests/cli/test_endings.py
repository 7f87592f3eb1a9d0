"""How commands end that do not end well: one sentence, a documented exit code, and what was written before."""

import errno
import importlib
import io
import json
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path

import faiss
import numpy as np
import pytest

import congruence
from congruence import errors
from congruence._utils.atomic import atomic_path
from congruence.cli import _ending, main
from congruence.cli.migrate import _step
from fresh import run_fresh

RNG = np.random.default_rng(0)
X = RNG.standard_normal((60, 6)).astype(np.float32)
Q = np.linalg.qr(RNG.standard_normal((6, 6)))[0].astype(np.float32)
LONG = "n" * 300


@pytest.fixture
def data(tmp_path):
    np.savez(tmp_path / "a.npz", v=X)
    np.savez(tmp_path / "b.npz", v=X @ Q)
    (tmp_path / "names.txt").write_text("\n".join(f"i{k}" for k in range(60)))
    index = faiss.IndexFlatIP(6)
    index.add(X @ Q)
    faiss.write_index(index, str(tmp_path / "old.index"))
    (tmp_path / "captions.txt").write_text("a red cat sits on a mat\ntwo dogs run in the park\n")
    congruence.OrthogonalMap().fit(X, X @ Q).save(tmp_path / "map")
    return tmp_path


def one_sentence(done, code=2):
    assert done.code == code, done.err
    assert done.err.startswith("error: ")
    assert done.err.count("\n") == 1
    assert "Traceback" not in done.err
    return done.err


# ------------------------------------------------------------------ outputs

#: Every command that writes, up to its output.
WRITERS = {
    "fit": ("fit", "a.npz", "b.npz", "-o"),
    "transform": ("transform", "map", "a.npz", "-o"),
    "export": ("bridge export", "map", "-o"),
    "export --index": ("bridge export", "map", "--index", "old.index", "-o"),
    "export onnx": ("bridge export", "map", "--to", "onnx", "-o"),
    "bridge": ("bridge evaluate", "map", "--queries", "a.npz", "--index", "b.npz", "--ids", "names.txt", "-o"),
    "search": ("bridge search", "map", "--queries", "a.npz", "--index", "b.npz", "-o"),
    "train": ("train", "procrustes", "--pairs", "a.npz,b.npz", "-o"),
    "train --report": ("train", "procrustes", "--pairs", "a.npz,b.npz", "-o", "new", "--report"),
    "report": ("report", "map", "sample", "-o"),
    "evaluate": ("lab evaluate", "map", "--old-image", "a.npz", "--new-image", "b.npz", "--report"),
    "check": ("check", "sample", "-o"),
    "similarity": ("lab similarity", "a.npz", "b.npz", "--layers", "--permutations", "2", "--plot"),
    "negatives": ("lab negatives", "captions.txt", "-o"),
    "reproduce": ("lab reproduce", "fig5", "--quick", "-o"),
    "demo": ("demo", "-o"),
    "demo --files": ("demo", "--files"),
    "demo --sample emoji": ("demo", "--sample", "emoji", "-o"),
    "demo --save-map": ("demo", "--no-report", "--save-map"),
}


@pytest.mark.parametrize("writer", WRITERS)
def test_an_output_that_cannot_be_is_refused_before_the_work(here, data, writer, monkeypatch):
    suffix = {"transform": ".npy", "negatives": ".csv", "search": ".csv"}.get(writer, ".html")
    link, pipe = f"link{suffix}", f"pipe{suffix}"
    (data / link).symlink_to("/dev/null")
    os.mkfifo(data / pipe)
    (data / "thesis").mkdir()
    (data / "thesis" / "chapter.txt").write_text("years of work")
    for name in ("congruence.embed", "congruence_papers.running", "congruence.recipe", "congruence.report"):
        importlib.import_module(name)  # or what these import now would stay patched
    for name in ("read_embeddings", "read_column"):  # nothing is read before
        monkeypatch.setattr(f"congruence.io.{name}", None)
    monkeypatch.setattr("congruence.datasets.load_sample", None)
    monkeypatch.setattr("congruence.datasets.open_bundle", None)
    monkeypatch.setattr("congruence_papers.running.run", None)
    if writer != "transform":  # which has to know what it reads: the output must not be it
        monkeypatch.setattr("congruence.load", None)

    def state():
        return {path: (os.lstat(path).st_ino, os.lstat(path).st_mtime_ns) for path in data.rglob("*")}

    before = state()
    for out in (".", "..", "", link, f"missing/x{suffix}", f"{LONG}{suffix}"):
        one_sentence(here(*WRITERS[writer], out))
    if not writer.startswith("demo"):  # which has no --force
        for out in (link, pipe, "thesis"):
            one_sentence(here(*WRITERS[writer], out, "--force"))
    assert state() == before


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("fit a.npz b.npz -o map --method linear --set center=maybe", "Got --set center=maybe"),
        ("fit a.npz b.npz -o map --set ridge=1", "no such option"),
        ("fit a.npz b.npz -o map --means text", "MODALITY=OLD"),
        ("train sail --pairs a.npz,b.npz -o map --set max_step=3", "max_steps"),
        ("train --pairs a.npz -o map", "Pass --pairs FIRST,SECOND"),
        ("report map sample --negatives a.npz -o names.txt", "Got --negatives for a map into"),
        ("check a.npz b.npz -o map --also a.npz --also b.npz", "Got --also twice"),
        ("bridge export map --to onnx --index old.index -o names.txt", "Leave out --index"),
        ("lab evaluate map --set groups=none --report names.txt", "without --against"),
        ("lab similarity a.npz b.npz --layers --set halves=2 --plot names.txt", "with --layers"),
    ],
)
def test_a_mistaken_argument_is_told_before_an_output_that_is_taken(here, data, typed, said):
    here(typed).refused(said)


MAKERS = {"fit", "transform", "search", "export", "export --index", "export onnx"}
MAKERS |= {"similarity", "negatives", "train"}
REFUSALS = [errno.ENOSPC, errno.EACCES, errno.EROFS, errno.EMFILE, errno.EIO]


@pytest.mark.parametrize(
    ("writer", "number"),
    [
        pytest.param(writer, number, marks=[pytest.mark.long] if k and writer != "fit" else [])
        for writer in sorted(MAKERS)
        for k, number in enumerate(REFUSALS)
    ],
)
def test_a_refusal_of_the_disk_is_one_sentence_and_leaves_nothing(here, data, writer, number, monkeypatch):
    """The first step that makes something on the disk fails."""
    real_open, real_mkdir = io.open, os.mkdir

    def refuse(path):
        if isinstance(path, (str, os.PathLike)) and str(path).endswith(".tmp"):
            raise OSError(number, os.strerror(number), str(path))

    def opened(path, *args, **kwargs):
        refuse(path)
        return real_open(path, *args, **kwargs)

    def made(path, *args, **kwargs):
        refuse(path)
        return real_mkdir(path, *args, **kwargs)

    monkeypatch.setattr(io, "open", opened)
    monkeypatch.setattr("builtins.open", opened)
    monkeypatch.setattr(os, "mkdir", made)
    before = set(data.iterdir())
    out = {"transform": "x.npy", "negatives": "x.csv", "search": "x.csv"}.get(writer, "x")
    said = one_sentence(here(*WRITERS[writer], out))
    assert os.strerror(number) in said
    assert out in said
    assert set(data.iterdir()) == before


@pytest.mark.parametrize("length", [244, pytest.param(251, marks=pytest.mark.long), 255])
def test_a_name_up_to_255_bytes_is_written_or_refused(here, data, length):
    for command, name in (("fit", "f"), ("export", "e"), ("similarity", "s"), ("train", "t"), ("transform", "p")):
        name = name * length if command != "transform" else f"{name * (length - 8)}.parquet"
        for force in ((), ("--force",)):
            done = here(*WRITERS[command], name, *force)
            if command == "train" and length > 244:  # its checkpoints lie beside it
                assert "bytes" in one_sentence(done)
            else:
                assert done.code == 0, done.err
                assert (data / name).exists()


def test_a_folder_that_cannot_be_written_to_is_refused_before_the_work(here, data, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert "cannot be written to" in one_sentence(here("fit", "a.npz", "b.npz", "-o", "x"))


def test_a_report_that_fails_after_the_map_says_that_the_map_is_there(here, data, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device", "r.html")

    monkeypatch.setattr("congruence.report.write_page", full)
    said = one_sentence(here(*WRITERS["train"], "heads", "--report", "r.html"))
    assert said.endswith("Before that heads was written.\n")
    assert congruence.load(data / "heads")


# ------------------------------------------------------------------ inputs


def test_python_names_arguments_and_warnings_of_commands_name_flags(here, data):
    with pytest.raises(errors.TooFewAnchorsError, match="smaller `?holdout"):
        congruence.fit(X, X @ Q, holdout=59)
    with pytest.raises(errors.ShapeError, match=r"60 rows.*59.*`?ids="):
        congruence.fit(X, X[:59])
    (data / "taken").mkdir()
    with pytest.raises(errors.OutputExistsError, match="force=True"):
        congruence.fit(X, X @ Q).save(data / "taken")
    np.savez(data / "turned.npz", v=np.roll(X @ Q, 7, axis=0))
    assert "--ids" in here("fit", "a.npz", "turned.npz", "-o", "m").ends(0).err


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"\x93NUMPY", b"[1"])
def test_ranges_and_certificates_of_a_migration_that_are_none(tmp_path, content):
    (tmp_path / "x").write_bytes(content)
    for read in (_step.read_ranges, _step.read_certificate):
        with pytest.raises(errors.CorruptFileError, match="x is not a"):
            read(tmp_path / "x")


def test_a_file_that_may_not_be_read_is_not_called_damaged(here, data, monkeypatch):
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"v": pa.FixedSizeListArray.from_arrays(X.ravel(), 6)}), data / "a.parquet")

    def refuse(*_, **__):
        raise PermissionError(errno.EACCES, "Permission denied", "a.parquet")

    monkeypatch.setattr(pq, "ParquetFile", refuse)
    said = one_sentence(here("transform", "map", "a.parquet", "-o", "x.npy"))
    assert "Permission denied" in said
    assert "damaged" not in said


@pytest.mark.parametrize("seed", [-1, 2**63])
@pytest.mark.parametrize(
    "command",
    [
        "fit a.npz b.npz -o x", "fit a.npz b.npz -o x --method mlp", "lab similarity a.npz b.npz",
        "lab similarity a.npz b.npz --layers", "lab match a.npz b.npz",
        "lab shift a.npz b.npz --normalize", "check sample", "check sample --anchors 50", "demo",
        "train csa --pairs a.npz,b.npz -o x", "report map sample",
    ],
)  # fmt: skip
def test_seeds_are_numbers_that_random_generators_take(here, data, command, seed):
    assert f"Got --seed {seed}; expected a" in one_sentence(here(*command.split(), "--seed", seed))


# ------------------------------------------------------------------ memory


class TorchOutOfMemoryError(RuntimeError):
    pass


TorchOutOfMemoryError.__name__ = "OutOfMemoryError"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (MemoryError(), "size unknown"),
        (
            TorchOutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0"),
            "Tried to allocate 20.00 GiB",
        ),
        (RuntimeError("DefaultCPUAllocator: you tried to allocate 4096 bytes."), "tried to allocate 4096 bytes"),
    ],
)
def test_memory_that_is_not_there_is_one_sentence(here, data, monkeypatch, error, said):
    def ask(*_, **__):
        raise error

    monkeypatch.setattr("congruence.io.read_embeddings", ask)
    assert said in one_sentence(here("fit", "a.npz", "b.npz", "-o", "x"))


@pytest.mark.parametrize("library", ["numpy", "pyarrow"])
def test_what_libraries_say_of_the_size_is_shown(here, data, monkeypatch, library):
    def ask(*_, **__):
        if library == "numpy":
            np.empty((2**40, 2**16), np.float64)
        import pyarrow as pa

        pa.allocate_buffer(2**62)

    monkeypatch.setattr("congruence.io.read_embeddings", ask)
    said = one_sentence(here("fit", "a.npz", "b.npz", "-o", "x"))
    assert ("512. PiB" if library == "numpy" else f"malloc of size {2**62}") in said


LIMITED = """
import resource, sys
from congruence.cli import main
import congruence, numpy, pyarrow, sklearn, scipy.linalg, congruence.io, congruence.maps, congruence.upgrade.fit
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 400 * 2**20,) * 2)
main()
"""


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux's limit of address space")
def test_an_honest_file_larger_than_memory_says_how_large_it_is(data):
    header = np.lib.format.header_data_from_array_1_0(X) | {"shape": (2_000_000, 512)}
    with open(data / "large.npy", "wb") as stream:  # a sparse file: whole, and of zeros
        np.lib.format.write_array_header_1_0(stream, header)
        stream.truncate(stream.tell() + 2_000_000 * 512 * 4)
    done = run_fresh(LIMITED, "fit", "large.npy", "b.npz", "-o", "x", cwd=data)
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("error: Got 2,000,000 × 512 float32 in large.npy, which needs 3.8 GiB, but only ")
    assert "congruence transform" in done.stderr


# ------------------------------------------------------------------ bugs


@pytest.fixture
def broken(monkeypatch, tmp_path):
    (tmp_path / "place").mkdir()
    monkeypatch.setattr(_ending.tempfile, "tempdir", str(tmp_path / "place"))

    def fail(error):
        def wrong(*_, **__):
            raise error

        monkeypatch.setattr("congruence.io.read_embeddings", wrong)

    return fail


@pytest.mark.parametrize(
    "error", [KeyError("x"), RecursionError("deep"), EOFError("end"), AssertionError(), IndexError("\x1b[2J")]
)
def test_whatever_is_left_says_that_it_is_a_bug_and_what_to_send(here, data, broken, error):
    broken(error)
    done = here("fit", "a.npz", "b.npz", "-o", "x", "--set", "old_model=hf_abcdefghijk")
    said = one_sentence(done, 70)
    assert said.startswith(f"error: This is a bug in congruence ({type(error).__name__}")
    place = Path(re.search(r"Send the file (\S+) to the project's issue tracker", said)[1])
    text = place.read_text()
    assert "Traceback (most recent call last)" in text
    assert sys.version.split()[0] in text
    assert np.__version__ in text
    assert "'fit' 'a.npz' 'b.npz'" in text
    assert "hf_abcdefghijk" not in text
    assert os.stat(place).st_mode & 0o077 == 0


def test_a_bug_without_a_place_for_the_file_prints_what_to_send(here, data, broken, monkeypatch):
    def full(**_):
        raise OSError(errno.ENOSPC, "full")

    broken(KeyError("x"))
    monkeypatch.setattr(_ending.tempfile, "mkstemp", full)
    done = here("fit", "a.npz", "b.npz", "-o", "x").ends(70)
    assert "Traceback" in done.err
    assert "Send the text above to" in done.err.splitlines()[-1]


def test_errors_outside_a_command_are_caught_too(here, data, broken, monkeypatch):
    def wrong(self, ctx, args):
        raise ZeroDivisionError

    monkeypatch.setattr("congruence.cli._Command.parse_args", wrong)
    assert "ZeroDivisionError" in one_sentence(here("fit"), 70)


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("https://me:secret@host/x", "https://***@host/x"),
        ("'--token' 'abc' 'fit'", "'--token' '***' 'fit'"),
        ("--api-key=abc fit", "--api-key=*** fit"),
        ('HF_TOKEN="abc"', 'HF_TOKEN="***"'),
        ("the tokenizer of a model", "the tokenizer of a model"),
        ("hf:openai/clip-vit-base-patch32", "hf:openai/clip-vit-base-patch32"),
    ],
)
def test_secrets_are_not_to_be_sent(text, kept):
    assert _ending.redact(text) == kept


@pytest.mark.parametrize("written", [False, True])
def test_ctrl_c_says_what_was_written(here, data, monkeypatch, written):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("congruence.cli.fit._report" if written else "congruence.io.read_embeddings", interrupt)
    said = one_sentence(here("fit", "a.npz", "b.npz", "-o", "x"), 130)
    assert said.endswith("Before that x was written.\n" if written else "nothing was written.\n")


def test_ctrl_c_tells_of_files_that_no_option_names(here, data, monkeypatch):
    def interrupt(path, *_, **__):
        with atomic_path(Path(path).with_name("first.npy"), force=True) as temporary:
            temporary.touch()
        raise KeyboardInterrupt

    monkeypatch.setattr("congruence.io.read_embeddings", interrupt)
    said = one_sentence(here("fit", "a.npz", "b.npz", "-o", "x"), 130)
    assert said.endswith("Before that first.npy was written.\n")


# ------------------------------------------------------------------ standard output and error

RUN = [sys.executable, "-c", "from congruence.cli import main; main()"]


def started(data, *arguments, **streams):
    return subprocess.run(
        [*RUN, *arguments], cwd=data, check=False, stderr=streams.pop("stderr", subprocess.PIPE), **streams
    )


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_output_says_what_was_written(data):
    with open("/dev/full", "w") as full:
        done = started(data, "fit", "a.npz", "b.npz", "-o", "x", stdout=full)
    assert done.returncode == 74
    said = done.stderr.decode()
    assert said.startswith("error: Got a standard output that cannot be written (No space left on device)")
    assert said.endswith("Before that x was written.\n")
    assert congruence.load(data / "x")


@pytest.mark.parametrize("kind", ["closed", "full", "pipe"])
@pytest.mark.parametrize(
    "command",
    [("inspect", "map"), ("inspect", "map", "--json"), ("--help",), ("fit", "--help"), ("--version",)],
    ids=" ".join,
)
def test_an_output_that_nobody_can_read_is_no_success(data, monkeypatch, capsys, command, kind):
    """In this process; the system's own streams are tried around this test."""

    class Failing(io.StringIO):
        def write(self, text):
            raise OSError({"closed": errno.EBADF, "full": errno.ENOSPC, "pipe": errno.EPIPE}[kind], kind)

    monkeypatch.setattr(sys, "stdout", Failing())
    monkeypatch.setattr(sys, "argv", ["congruence", *command])
    monkeypatch.chdir(data)
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == (141 if kind == "pipe" else 74)
    said = capsys.readouterr().err
    assert said == "" if kind == "pipe" else said.startswith("error: Got a standard output that cannot be written")


def test_closed_streams_stay_out_of_the_files_that_are_written(data):
    """The first file opened would take the number of a closed stream, and what others print would go into it."""
    done = started(
        data, "fit", "a.npz", "b.npz", "-o", "x", stderr=None, preexec_fn=lambda: [os.close(k) for k in range(3)]
    )
    assert done.returncode == 74
    assert congruence.load(data / "x")


def test_warnings_do_not_go_to_the_report_when_standard_error_is_closed(data, monkeypatch, capsys):
    np.savez(data / "rolled.npz", v=np.roll(X, 7, axis=0))
    monkeypatch.setattr(sys, "stderr", None)  # what Python makes of 2>&-
    monkeypatch.setattr(sys, "argv", ["congruence", "fit", "a.npz", "rolled.npz", "-o", "x", "--json"])
    monkeypatch.chdir(data)
    warnings.simplefilter("always", congruence.errors.CongruenceWarning)
    with pytest.raises(SystemExit) as end:
        main()
    assert not end.value.code
    assert json.loads(capsys.readouterr().out)["output"] == "x"


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
@pytest.mark.parametrize(
    "command",
    ["inspect map", "inspect map --json", "fit --help", "lab similarity a.npz b.npz --permutations 3 --set halves=2"],
)
def test_a_terminal_with_few_characters(data, monkeypatch, encoding, command):
    mapping = congruence.OrthogonalMap().fit(X, X @ Q)
    mapping.source_space_ = congruence.Space("modèle-日本", dim=6)
    mapping.save(data / "map", force=True)
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding=encoding)
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setattr(sys, "argv", ["congruence", *command.split()])
    monkeypatch.chdir(data)
    with pytest.raises(SystemExit) as end:
        main()
    assert not end.value.code
    assert stream.errors == "strict"  # as it was
    stream.flush()
    text = raw.getvalue().decode(encoding)
    if command.endswith("--json"):
        assert json.loads(text)["old"]["model"] == "modèle-日本"
    elif command == "inspect map":
        assert (r"mod\xe8le-\u65e5\u672c" if encoding == "ascii" else r"modèle-\u65e5\u672c") in text
    elif command.startswith("similarity"):
        assert "+-" in text or "±" in text
        assert "\\u2013" not in text


def test_every_error_of_the_tree_exits_with_2():
    def leaves(kind):
        return [kind, *(leaf for one in kind.__subclasses__() for leaf in leaves(one))]

    for kind in leaves(errors.CongruenceError):
        assert _ending.explain(kind("Got x."), []) == ("Got x.", 2)
