"""The house itself: what importing costs, the error tree, the public names."""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import pkgutil
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import congruence
from congruence import errors

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ROOT / "src" / "congruence"


def modules_after(code: str) -> set[str]:
    script = f"{code}\nimport sys\nprint('\\n'.join(sys.modules))"
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    return set(out.split())


def test_importing_the_package_loads_nothing_heavy():
    assert not modules_after("import congruence") & {
        "torch",
        "sklearn",
        "scipy",
        "pyarrow",
        "numpy",
        "rich",
        "pydantic",
    }


def test_fitting_and_carrying_never_load_torch():
    code = "import congruence; congruence.OrthogonalMap; congruence.load; congruence.fit; congruence.read_embeddings"
    assert not modules_after(code) & {"torch", "faiss", "h5py", "huggingface_hub", "matplotlib", "yaml", "pydantic"}


def test_collecting_tests_imports_none_of_the_largest_libraries(request, collected):
    """Every process that runs some tests collects all of them; those that need such a library follow each other in one process."""
    large = r"transformers|sentence_transformers|openai|langchain_core|llama_index|chromadb|lancedb"
    ours = r"congruence\.integrations\.(?:chroma|lancedb|langchain|llama_index|sentence_transformers)"
    for path in Path(__file__).parent.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        found = re.search(rf"^(?:import|from) (?:{large}|{ours})\b|^\w.*importorskip\(\"(?:{large})", text, flags=re.M)
        assert not found, (path.name, found)
    assert not collected & set(
        large.split("|")
    )  # a stand-in for a module imports it when pytest looks at its attributes
    order = [[item.get_closest_marker(name) is None for name in ("slow", "heavy")] for item in request.session.items]
    assert order == sorted(order)


def test_help_loads_no_numerics():
    code = "import sys; sys.argv=['congruence','--help']\nfrom congruence.cli import main\ntry:\n  main()\nexcept SystemExit: pass"
    assert not modules_after(code) & {"torch", "sklearn", "scipy", "pyarrow", "numpy"}


def test_every_public_name_exists():
    for name in congruence.__all__:
        assert getattr(congruence, name) is not None
    assert set(congruence.__all__) <= set(dir(congruence))
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = congruence.nonsense


@pytest.mark.heavy
def test_no_module_takes_the_place_of_a_function():
    for module in pkgutil.walk_packages(congruence.__path__, "congruence."):
        importlib.import_module(module.name)
    for name in ("fit", "evaluate", "certify", "compare_spaces", "compare_layers", "check_pairing"):
        assert inspect.isfunction(getattr(congruence, name)), name
    # Whatever was imported, dir() names what is public: __all__, and modules without an underscore.
    extra = set(dir(congruence)) - set(congruence.__all__)
    assert all(inspect.ismodule(getattr(congruence, name)) and not name.startswith("_") for name in extra)
    assert not {"annotations", "importlib", "Any", "TYPE_CHECKING", "_arrays"} & set(dir(congruence))


@pytest.mark.heavy
def test_every_public_module_says_what_is_public():
    found = [module.name for module in pkgutil.walk_packages(congruence.__path__, "congruence.")]
    public = [name for name in found if not re.search(r"\._", name)]
    assert len(public) > 200
    for name in public:
        module = importlib.import_module(name)
        for item in module.__all__:
            assert hasattr(module, item) or importlib.import_module(f"{name}.{item}"), (name, item)
        own = {
            key
            for key, item in vars(module).items()
            if getattr(item, "__module__", None) == name and callable(item) and not key.startswith("_")
        }
        assert own <= set(module.__all__), name


#: Public functions that return what no type describes, each with the reason.
RETURNS_ANYTHING = {
    "Job.__getitem__": "a parameter of a YAML file: each figure declares its own, and checks them when it loads",
    "Job.size": "the same, by the data it is for",
    "OrthogonalMap.__getattr__": "any fitted attribute, after partial_fit",
    "size": "Job.size, in the SOTAlign paper's own defaults",
}


def annotations(name: str, item: object) -> Iterator[tuple[str, object]]:
    """Yield what a public function returns, or what the methods of a public class return and its attributes hold."""
    if inspect.isfunction(item):
        yield name, item.__annotations__.get("return")
    elif inspect.isclass(item) and item.__module__.startswith("congruence."):
        for key, member in vars(item).items():
            call = getattr(member, "__func__", None) or getattr(member, "fget", None) or getattr(member, "func", member)
            if inspect.isfunction(call) and (not key.startswith("_") or key.endswith("__")):
                yield f"{name}.{key}", call.__annotations__.get("return")
        for key, kind in vars(item).get("__annotations__", {}).items():
            if not key.startswith("_"):
                yield f"{name}.{key}", kind


@pytest.mark.heavy
def test_public_functions_say_what_they_return():
    found = set()
    for module in pkgutil.walk_packages(congruence.__path__, "congruence."):
        if not re.search(r"\._", module.name):
            home = importlib.import_module(module.name)
            for name in home.__all__:
                item = getattr(home, name, None)
                found |= {label for label, kind in annotations(name, item) if kind in ("Any", Any, "Any | None")}
    assert found == set(RETURNS_ANYTHING)
    assert all(RETURNS_ANYTHING.values())


def documented() -> Iterator[tuple[str, Any, str]]:
    """Yield the public functions, classes and methods of all public modules, with their docstrings."""
    for module in pkgutil.walk_packages(congruence.__path__, "congruence."):
        if re.search(r"\._", module.name):
            continue
        home = importlib.import_module(module.name)
        for name in home.__all__:
            item = getattr(home, name, None)
            if not (inspect.isfunction(item) or inspect.isclass(item)) or item.__module__ != module.name:
                continue
            yield f"{module.name}.{name}", item, inspect.cleandoc(item.__doc__ or "")
            for key, member in vars(item).items() if inspect.isclass(item) else ():
                call = getattr(member, "__func__", member)
                if inspect.isfunction(call) and not key.startswith("_"):
                    yield f"{module.name}.{name}.{key}", call, inspect.cleandoc(call.__doc__ or "")


def entries(text: str, section: str) -> list[tuple[str, str]]:
    """Return the entries of a section of a numpydoc docstring: each line without indent, and the line below it."""
    found = re.search(rf"(?:^|\n){section}\n-+\n(.*?)(?=\n\n[A-Z][A-Za-z ]+\n---|\Z)", text, flags=re.S)
    lines = (found[1] if found else "").split("\n")
    return [(line, below) for line, below in pairwise([*lines, ""]) if line and not line.startswith(" ")]


@pytest.mark.heavy
def test_docstrings_name_the_parameters_shapes_and_conditions():
    """Parameters are those of the function, arrays have a shape, and each error has its condition."""
    n_errors = 0
    for name, item, text in documented():
        if inspect.isfunction(item) and (listed := entries(text, "Parameters")):
            words = {word for line, _ in listed for word in re.findall(r"\w+", line.partition(" : ")[0])}
            taken = [key for key in inspect.signature(item).parameters if key not in ("self", "cls")]
            assert words == set(taken), name
        for section in ("Parameters", "Attributes", "Returns"):
            for line, below in entries(text, section):
                arrays = re.match(r"\(?(?:ndarray|array_like|Tensor)\b", line.partition(" : ")[2] or line)
                alias = "Alternative name" in below
                assert not arrays or "shape" in line or alias, (name, line)
        for section in ("Raises", "Warns"):
            for line, below in entries(text, section):
                n_errors += 1
                assert below.startswith("    "), (name, line)
    assert n_errors > 800


def test_a_file_holds_one_idea():
    """Past 400 lines there is a second one, which has a file of its own."""
    long = {
        str(path.relative_to(SOURCES)): len(path.read_text(encoding="utf-8").splitlines())
        for path in SOURCES.rglob("*.py")
    }
    assert {name: lines for name, lines in long.items() if lines > 400} == {}


def test_every_package_is_shown_to_contributors():
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    house = page.partition("## Packages")[2].partition("\n## ")[0]
    shown = set(re.findall(r"^\|[^|]*\| `(\w+)(?:/|\.py)` \|", house, flags=re.M))
    there = {path.stem for path in SOURCES.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()}
    assert shown == there - {"__init__", "_version"}


@cache
def imports(path: Path) -> list[ast.Import | ast.ImportFrom]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]


def imported(path: Path) -> set[str]:
    names = set()
    for node in imports(path):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        else:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name for name in names if name.startswith("congruence.")}


def test_private_names_stay_in_their_package():
    wrong = []
    for path in sorted(SOURCES.rglob("*.py")):
        package = path.relative_to(SOURCES).parts[0]
        for name in sorted(imported(path)):
            _, home, *inside = name.split(".")
            private = any(part.startswith("_") and not part.startswith("__") for part in inside)
            if private and home != package:
                wrong.append(f"{path.relative_to(SOURCES)} imports {name}")
    assert not wrong


def test_no_module_has_the_name_of_what_its_package_exports():
    """Otherwise ``package.name`` is the function, and the module can be reached only by its imports."""
    shadowed = []
    for path in SOURCES.rglob("__init__.py"):
        modules = {one.stem if one.is_file() else one.name for one in path.parent.iterdir() if one != path}
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ImportFrom):
                # `from package import module` brings in the module itself.
                inside = SOURCES.parent.joinpath(*(node.module or "").split("."))
                names = {one.asname or one.name for one in node.names if not inside.joinpath(f"{one.name}.py").exists()}
                shadowed += [f"{path.relative_to(SOURCES)}: {name}" for name in sorted(names & modules)]
    assert not shadowed


def test_no_modules_import_each_other_for_types_alone():
    """lint-imports looks at imports that run; a circle of names is as hard to read. Packages stand above their modules, and are left out."""
    modules = {
        "congruence." + ".".join(path.relative_to(SOURCES).with_suffix("").parts): path
        for path in SOURCES.rglob("*.py")
    }
    modules = {name: path for name, path in modules.items() if not name.endswith("__init__")}
    needs = {
        name: {
            found
            for node in imports(path)
            if isinstance(node, ast.ImportFrom) and node.module
            for found in {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)} & modules.keys()
        }
        for name, path in modules.items()
    }
    while leaves := {name for name, needed in needs.items() if not needed & needs.keys()}:
        needs = {name: needed for name, needed in needs.items() if name not in leaves}
    assert not needs, sorted(needs)  # what is left is in a circle, or imports one that is


def test_imports_are_absolute():
    # So that the tests of imports see them all.
    for path in SOURCES.rglob("*.py"):
        assert not [node.lineno for node in imports(path) if isinstance(node, ast.ImportFrom) and node.level], path


def test_the_error_tree_is_drawn_as_it_is():
    drawn = set(re.findall(r"(\w+(?:Error|Warning))\b(?=\s|\s*\()", errors.__doc__)) - {
        "ValueError",
        "TypeError",
        "OSError",
        "ImportError",
        "MemoryError",
    }
    real = {
        name
        for name, item in vars(errors).items()
        if inspect.isclass(item) and issubclass(item, (errors.CongruenceError, errors.CongruenceWarning))
    }
    assert drawn == real


def test_a_missing_extra_says_which_one():
    from congruence._utils.optional import require

    with pytest.raises(errors.MissingExtraError, match=r"Got no module 'no_such_module'.*congruence\[train\]"):
        require("no_such_module", extra="train")


def test_a_broken_extra_tells_its_own_story(tmp_path, monkeypatch):
    from congruence._utils.optional import require

    (tmp_path / "broken_extra.py").write_text("import another_missing_thing\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="another_missing_thing") as caught:
        require("broken_extra", extra="train")
    assert not isinstance(caught.value, errors.CongruenceError)


def test_mlp_without_torch_names_the_extra(monkeypatch):
    import numpy as np

    monkeypatch.setitem(sys.modules, "torch", None)
    rng = np.random.default_rng(0)
    with pytest.raises(errors.MissingExtraError, match=r"congruence\[train\]"):
        congruence.MLPMap().fit(rng.normal(size=(9, 3)), rng.normal(size=(9, 2)))


def test_the_lowest_versions_that_are_tested_are_those_that_are_promised():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = [*project["dependencies"]]
    for extra in ("faiss", "hdf5", "lance", "images", "pandas"):
        asked += project["optional-dependencies"][extra]
    lines = (ROOT / "constraints-lowest.txt").read_text().splitlines()
    assert sorted(line.replace("==", ">=") for line in lines if line[0] != "#") == sorted(asked)
    tested = re.search(r"^LOWEST := (.+)$", (ROOT / "Makefile").read_text(), flags=re.M)
    assert tested
    assert all((ROOT / name).is_file() for name in tested[1].split())


def test_only_ci_installs_system_packages():
    recipes = (ROOT / "Makefile").read_text().split("\n\n")
    installing = [recipe for recipe in recipes if "apt-get" in recipe]
    assert len(installing) == 1
    assert re.search(r"^browser:\n", installing[0], flags=re.M)
    assert not re.search(r"^(?!\.PHONY)[\w$().-]+:.*\bbrowser\b", (ROOT / "Makefile").read_text(), flags=re.M)
    commands = [line for line in (ROOT / ".ci/run").read_text().splitlines() if line.startswith("make ")]
    assert commands[:2] == ["make browser", "make test"]


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
@pytest.mark.parametrize("fails", ["", "ruff", "lint-imports", "python"])
def test_make_test_lints_beside_and_fails_with_either(fails, tmp_path):
    """With tools that only say their names, of which one may fail."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    for name in ("pyproject.toml", "constraints.txt"):
        (tmp_path / name).touch()
    bin_ = tmp_path / ".venv" / "bin"
    bin_.mkdir(parents=True)
    for tool in ("ruff", "mypy", "lint-imports", "python"):
        (bin_ / tool).write_text(f"#!/bin/sh\necho {tool} $1\n" + "exit 1\n" * (tool == fails))
        (bin_ / tool).chmod(0o755)
    for stamp in (".core", ".test"):
        (tmp_path / ".venv" / stamp).touch()
    alone = {
        name: value for name, value in os.environ.items() if not name.startswith("MAKE")
    }  # not part of the make that runs the tests
    done = subprocess.run(["make", "test"], cwd=tmp_path, env=alone, capture_output=True, text=True, check=False)
    assert (done.returncode != 0) == bool(fails), done.stderr
    said = [line.split()[0] for line in done.stdout.splitlines()]
    linted = ["ruff", "ruff", "mypy", "lint-imports"]
    assert said == ["python", *(linted[:1] if fails == "ruff" else linted)]  # lint is shown whole, after the tests
