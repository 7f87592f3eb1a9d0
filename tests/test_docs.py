"""What README and docs print is run as printed; what they link to exists."""

from __future__ import annotations

import doctest
import importlib.util
import pkgutil
import re
import subprocess
import tomllib
from pathlib import Path

import numpy as np
import pytest

import congruence

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
MODULES = [module.name for module in pkgutil.walk_packages(congruence.__path__, "congruence.")]
HEAVY = {
    f"congruence.integrations.{name}"
    for name in ("chroma", "lancedb", "langchain", "llama_index", "sentence_transformers")
}
COMMANDS = {path.stem for path in (ROOT / "src/congruence/cli").glob("[a-z]*.py")}
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]

#: What the site has more than the folder: pages made of the code, and reports (``tools/docsite``; their links are checked in ``tests/site``).
MADE = re.compile(r"(?:api/index|commands)\.md|gallery/[\w.]+")


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.S)


def run_as_printed(here, script):
    """Let bash read the lines, with a ``congruence`` that notes its arguments; then run each in this process. Return what was printed, and warnings."""
    noting = 'congruence() { printf "%s\\0" "$#" "$@"; }\n'
    words = subprocess.run(["bash", "-euc", noting + script], capture_output=True, text=True, check=True).stdout
    said, wrong = [], []
    words = iter(words.split("\0")[:-1])
    for count in words:
        command = [next(words) for _ in range(int(count))]
        result = here(*command)
        assert result.code == 0, (command, result.err)
        said.append(result.out)
        wrong += result.err.splitlines()
    return said, wrong


@pytest.mark.heavy
def test_the_readmes_commands_run_as_printed(here, tmp_path):
    pytest.importorskip("lancedb")
    lance = pytest.importorskip("lance")
    (script,) = blocks(README, "bash")
    said, wrong = run_as_printed(here, script)
    assert wrong == []
    assert (tmp_path / "certificate.html").exists()
    printed = "".join(said)
    assert "verified" in printed
    assert "10.0 % re-embedded" in printed
    assert "readers see the old vectors of 1,500 rows, bit for bit as before" in printed
    table = said[-1].splitlines()
    unmapped, bridge = (next(float(line.split()[1]) for line in table if way in line) for way in ("unmapped", "bridge"))
    assert unmapped < 0.05 < 0.9 < bridge
    assert {"embedding", "embedding__congruence_new"} <= set(
        lance.dataset(tmp_path / "library/photos.lance").schema.names
    )


def test_the_readmes_python_runs_as_printed(capsys):
    (code,) = blocks(README, "python")
    names: dict = {}
    exec(compile(code, "README.md", "exec"), names)
    assert "aligned image" in capsys.readouterr().out
    assert names["mapped"].space.model == "effnet-mpnet"


def test_readme_is_short_and_reads_no_file_that_is_not_shipped():
    text = README.read_text(encoding="utf-8")
    assert len(text.split()) < 900
    assert "shared/" not in text
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    (install,) = blocks(README, "sh")
    assert set(re.search(r"congruence\[(.*)\]", install)[1].split(",")) <= set(extras)
    named = set(re.findall(r"`([a-z]+)`", text[text.index("## Commands") : text.index("## Speed")]))
    assert named == COMMANDS


@pytest.mark.slow
def test_commands_on_real_clips_and_unimodal_encoders_run_as_printed(here, lvis_path, shared, tmp_path):
    training = [one for one in blocks(ROOT / "docs/training.md", "bash") if "few-heads" in one]
    script = "".join(blocks(ROOT / "docs/clips.md", "bash") + training)
    for path in (lvis_path, shared("imagenet1000_unimodal.npz")):
        script = script.replace(f"../shared/data/{path.name}", str(path))
    said, wrong = run_as_printed(here, script)
    # One of ImageNet's names is there twice, and the heads fall behind their teacher; nothing else is said.
    known = ("equal another row's", "worse than their linear teacher")
    assert all(any(part in line for part in known) for line in wrong), wrong
    assert any("worse than their linear teacher" in line for line in wrong), "the page says that this command warns"
    printed = "".join(said)
    assert "random rotation" in printed
    assert "zero_shot_centered" in printed
    assert (tmp_path / "mapped.parquet").exists()
    assert "best after" in printed


def test_the_first_lines_run_in_order(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    for code in blocks(ROOT / "docs/python.md", "python"):
        exec(compile(code, "python.md", "exec"), names)
    np.testing.assert_allclose(names["mapped"], names["by_label"].transform(names["A"]))
    assert names["scores"].to_dict() == names["same"].to_dict()
    assert names["queries"].grad.shape == (4, 16)
    np.testing.assert_allclose(names["again"].rotation_, names["mapping"].rotation_)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        if not target.startswith("http") and not MADE.fullmatch(target):
            assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_tables_have_at_most_seven_columns(page):
    """More do not fit on a screen, or in a reader's head."""
    rules = re.findall(r"^\|(?: *:?-+:? *\|)+$", page.read_text(encoding="utf-8"), flags=re.M)
    assert all(rule.count("|") - 1 <= 7 for rule in rules)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_python_on_the_pages_is_python(page):
    for code in blocks(page, "python"):
        compile(code, page.name, "exec")


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_names_on_the_pages_exist(page):
    text = page.read_text(encoding="utf-8")
    commands = set(re.findall(r"(?:`|^)congruence ([a-z]+)\b", text, flags=re.M))
    assert commands <= COMMANDS
    options = set(re.findall(r"(?<![\w-])(--[a-z][a-z-]+)", text)) - {
        *("--no-devices", "--version", "--install-completion", "--show-completion"),
        "--no-center",
        "--no-check",
        "--no-check-space",
        "--no-normalize",
    }
    known = set()
    for command in COMMANDS:
        source = (ROOT / f"src/congruence/cli/{command}.py").read_text()
        known |= {
            "--" + name.replace("_", "-").removeprefix("as-")
            for name in re.findall(r"^    (\w+): Annotated", source, flags=re.M)
        }
        known |= set(re.findall(r'typer\.Option\(\s*"(--[a-z-]+)"', source))
    known |= {
        "--fits",
        "--fresh",
        "--kind",
        "--part",
        "--suffix",
        "--splits",
        "--repeat",
        "--all",
        "--real",
        "--pairs",
        "--read",
        "--measure",
        "--only",
        "--minutes",
        "--replay",
        "--python",
        "--spinners",
        "--tables",
    }
    assert options <= known, options - known


def shows_examples(name: str) -> bool:
    return ">>>" in Path(importlib.util.find_spec(name).origin).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.heavy] if name in HEAVY else [])
        for name in MODULES
        if shows_examples(name)
    ],
    ids=lambda n: n.removeprefix("congruence."),
)
def test_examples_in_docstrings(name):
    failed, _ = doctest.testmod(importlib.import_module(name))
    assert failed == 0


@pytest.mark.heavy
def test_every_public_function_is_documented():
    for home in MODULES:
        module = importlib.import_module(home)
        for name, item in vars(module).items():
            if getattr(item, "__module__", None) == home and callable(item) and not name.startswith("_"):
                assert item.__doc__, f"{home}.{name}"
