"""What importing loads, which names it gives, and what a missing extra says."""

import ast
import importlib
import inspect
import pkgutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import congruence
from congruence import errors

SOURCES = Path(congruence.__file__).parent
HELP = """import sys; sys.argv = ["congruence", "--help"]
from congruence.cli import main
try:
    main()
except SystemExit:
    pass"""


@pytest.mark.parametrize(
    ("code", "heavy"),
    [
        ("import congruence", "torch sklearn scipy pyarrow numpy rich pydantic"),
        (
            "import congruence; congruence.OrthogonalMap; congruence.load; congruence.fit; congruence.read_embeddings",
            "torch faiss h5py huggingface_hub matplotlib yaml pydantic",
        ),
        ("import congruence.train", "torch"),
        (HELP, "torch sklearn scipy pyarrow numpy"),
    ],
    ids=["import", "names", "train", "help"],
)
def test_importing_loads_nothing_heavy(code, heavy):
    script = f"{code}\nimport sys\nprint('modules:', *sys.modules)"
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert not set(out.rpartition("modules:")[2].split()) & set(heavy.split())


def test_every_public_name_exists():
    assert all(getattr(congruence, name) is not None for name in congruence.__all__)
    assert set(congruence.__all__) <= set(dir(congruence))
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = congruence.nonsense


@pytest.mark.heavy
def test_no_module_takes_the_place_of_a_function():
    """Otherwise ``package.name`` is the function or the module, depending on what was imported first."""
    names = [module.name for module in pkgutil.walk_packages(congruence.__path__, "congruence.")]
    for name in names:
        importlib.import_module(name)
    for name in names:
        home, _, last = name.rpartition(".")
        assert inspect.ismodule(getattr(sys.modules[home], last)), name
    assert not {name.removeprefix("congruence.") for name in names} & set(congruence.__all__)
    assert all(inspect.isfunction(getattr(congruence, name)) for name in ("fit", "evaluate", "certify"))


def test_private_names_stay_in_their_package():
    """The part of the import contract that import-linter cannot state."""
    wrong = []
    for path in SOURCES.rglob("*.py"):
        package = path.relative_to(SOURCES).parts[0].removesuffix(".py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("congruence."):
                _, home, *inside = [*node.module.split("."), *(alias.name for alias in node.names)]
                if home != package and any(part[0] == "_" != part[1:2] for part in inside):
                    wrong.append(f"{path.relative_to(SOURCES)}:{node.lineno} {node.module}")
    assert not wrong


def test_a_missing_extra_is_named_and_a_broken_one_tells_its_own_story(tmp_path, monkeypatch):
    from congruence._utils.optional import require

    with pytest.raises(errors.MissingExtraError, match=r"no_such_module.*congruence\[train\]"):
        require("no_such_module", extra="train")
    (tmp_path / "broken_extra.py").write_text("import another_missing_thing\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="another_missing_thing") as caught:
        require("broken_extra", extra="train")
    assert not isinstance(caught.value, errors.CongruenceError)
    monkeypatch.setitem(sys.modules, "torch", None)
    rows = np.random.default_rng(0).normal(size=(9, 3))
    with pytest.raises(errors.MissingExtraError, match=r"congruence\[train\]"):
        congruence.MLPMap().fit(rows, rows[:, :2])
