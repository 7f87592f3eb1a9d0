"""A command starts fast: its process imports what it needs, none of it heavy."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import typer
import typer.main

from congruence._utils import process
from congruence.cli import app, fit
from congruence.cli._options import with_groups
from congruence.synthetic import rigid_problem

#: What takes long to import, and fitting, inspecting and applying a rotation does without.
HEAVY = ("sklearn", "scipy", "pandas", "torch", "matplotlib", "jinja2", "yaml", "h5py", "lance", "faiss")
HEAVY += ("pyarrow.parquet", "pyarrow.compute")

#: What fitting without held-out pairs does without as well.
NEEDLESS = ("pydantic", "congruence.evaluation", "congruence.metrics")
NEEDLESS += tuple(f"congruence.cli.{name}" for name in ("check", "transform", "train", "lab"))

#: Runs commands one after another in a process of their own, and lists the modules that it has after the first and
#: after all.
SCRIPT = """
import json, sys
from congruence.cli import main
first = None
for arguments in json.loads(sys.argv[1]):
    sys.argv = ["congruence", *arguments]
    try:
        main()
    except SystemExit as end:
        assert not end.code, end.code
    first = first or sorted(sys.modules)
print(json.dumps({"first": first, "modules": sorted(sys.modules)}))
"""


#: ``fit`` as typer itself reads its options.
as_typer_reads = typer.Typer()
as_typer_reads.command("fit")(with_groups(fit.fit))
as_typer_reads.command("other")(lambda: None)


@pytest.fixture(scope="module")
def problem():
    return rigid_problem(300, 16, 16, noise=0.2, random_state=0)


@pytest.fixture(scope="module")
def ran(problem, tmp_path_factory):
    folder = tmp_path_factory.mktemp("start")
    np.save(folder / "a.npy", problem.X)
    np.save(folder / "b.npy", problem.Y)
    commands = ["fit a.npy b.npy -o first --modality image", "fit a.npy b.npy -o map --holdout 50"]
    commands += ["inspect map --json", "transform map a.npy -o mapped.npy"]
    process = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps([one.split() for one in commands])],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    return folder, json.loads(process.stdout.splitlines()[-1])


def test_fit_inspect_and_transform_import_nothing_heavy(ran):
    # These commands were 2.4 s of CPU on 1,000 x 512 anchors, 1.4 s of them for importing scikit-learn. Time itself is
    # not tested.
    modules = ran[1]["modules"]
    assert "congruence.maps.orthogonal" in modules
    assert not [name for name in modules if name.startswith(tuple(f"{heavy}." for heavy in HEAVY)) or name in HEAVY]


def test_fit_without_held_out_pairs_imports_neither_pydantic_nor_scores_nor_other_commands(ran):
    # typer converts every option with pydantic, 0.1 s: 0.2 of the 1.2 s that `fit` took, with these scores.
    first = ran[1]["first"]
    assert "congruence.upgrade.choose" in first
    assert not [name for name in first if name.startswith(tuple(f"{one}." for one in NEEDLESS)) or name in NEEDLESS]


@pytest.mark.parametrize("arguments", [("--holdout", "0.2", "--seed", "3"), ("--holdout", "30"), ()], ids=str)
def test_values_that_typer_need_not_convert_are_those_it_converts(arguments):
    given = ["a.npy", "b.npy", "-o", "map", "--set", "shrinkage_strength=2", "--means", "text=t.npz", *arguments]
    programs = app, typer.main.get_command(as_typer_reads)
    seen = [program.get_command(None, "fit").make_context("fit", list(given)).params for program in programs]
    assert seen[0] == seen[1]
    types = [{name: type(value) for name, value in one.items()} for one in seen]
    assert types[0] == types[1]


@pytest.mark.parametrize("flags", [("--holdout", "many"), ("--seed", "1.5"), ("--unknown", "1")], ids=str)
def test_a_value_of_the_wrong_kind_is_still_refused(here, flags):
    result = here("fit", "a.npy", "b.npy", "-o", "map", *flags).ends(2)
    assert flags[0] in result.err


def test_a_command_writes_the_same_map_as_a_process_with_scikit_learn(ran, here, tmp_path):
    import sklearn.base  # noqa: F401

    folder, _ = ran
    assert here("fit", folder / "a.npy", folder / "b.npy", "-o", "map", "--holdout", "50").code == 0
    for name in ("model.safetensors", "config.json", "README.md"):
        assert (tmp_path / "map" / name).read_bytes() == (folder / "map" / name).read_bytes()
    assert here("transform", "map", folder / "a.npy", "-o", "mapped.npy").code == 0
    assert (tmp_path / "mapped.npy").read_bytes() == (folder / "mapped.npy").read_bytes()


def test_idle_threads_of_a_command_sleep_soon_unless_the_user_says_otherwise(monkeypatch):
    # Else OpenBLAS would have read the variable already
    script = "import sys, congruence.cli; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
    for given, then in ((None, "20"), ("26", "26")):
        monkeypatch.delenv("OPENBLAS_THREAD_TIMEOUT", raising=False)
        if given:
            monkeypatch.setenv("OPENBLAS_THREAD_TIMEOUT", given)
        process.start_command()
        assert os.environ["OPENBLAS_THREAD_TIMEOUT"] == then
