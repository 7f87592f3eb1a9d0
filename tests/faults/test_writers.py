"""Every command that writes is killed at every step of it, and meets another writer just before it publishes."""

import shutil
from pathlib import Path

import pytest
from commands import CASES, READERS, RESUMED, write_inputs
from process import CONTEXT, finish, run, said, start

from tree import walk

pytestmark = pytest.mark.long


def test_every_command_is_known_as_a_writer_or_a_reader():
    commands = {" ".join(names) for names, _ in walk()}
    writers = {name for name in commands for case in CASES.values() if f"{case.line} ".startswith(f"{name} ")}
    assert commands == writers | READERS | {name for name in commands if name.split()[0] in RESUMED}
    assert not writers & (READERS | set(RESUMED))
    root = Path(__file__).parents[2]
    assert all((root / page).is_file() for page in RESUMED.values())


@pytest.fixture(scope="session")
def inputs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inputs")
    write_inputs(folder)
    return folder


@pytest.fixture
def folder(inputs, tmp_path):
    return shutil.copytree(inputs, tmp_path / "work")


def hidden(folder):
    return {path for path in folder.rglob(".*") if not path.name.endswith(".sha256")}


def check(case, folder, inputs, present):
    """Check that every output is whole or absent, never gone again, and that there is nothing else but hidden names."""
    names = {path.name for path in folder.iterdir() if path.name[0] != "."}
    own = {path.name for path in inputs.iterdir()}
    other = names - own - set(case.outputs)
    assert all(name.endswith(".checkpoint") for name in other), other
    for name, is_whole in case.outputs.items():
        if name in names and (name not in own or present):
            is_whole(folder / name)
    assert present <= names, "an output that was whole is gone"
    return {name for name in names if name in case.outputs and name not in own}


@pytest.mark.parametrize("name", CASES)
def test_killed_at_every_step(name, folder, inputs):
    case = CASES[name]
    more = ("--force",) if case.force else ()
    present, kills = set(), 0
    for round_ in ("to a free path", "over an older output"):
        for step in range(0, 60, case.every):
            code = run(name, folder, *more, dies=step)
            if code != -9:
                assert code == 0, (round_, step, said(folder))
                break
            kills += 1
            if name != "datasets":
                present = check(case, folder, inputs, present)
            if round_ == "to a free path" and set(case.outputs) <= present:
                break
    assert kills >= 2
    check(case, folder, inputs, set(case.outputs))
    assert not hidden(folder), "what killed runs left is still there"
    assert {path.name for path in folder.iterdir()} == {path.name for path in inputs.iterdir()} | set(case.outputs)


@pytest.mark.parametrize("name", CASES)
def test_of_two_writers_one_succeeds(name, folder, inputs):
    case = CASES[name]
    for more in [()] if case.lock or not case.force else [(), ("--force",)]:
        barrier = CONTEXT.Barrier(2)
        processes = [start(name, folder, *more, barrier=barrier) for _ in range(2)]
        codes = sorted(finish(process) for process in processes)
        if case.force and (not more or case.lock):
            assert codes == [0, 2], said(folder)
        else:
            assert set(codes) <= {0, 2}, said(folder)
            assert 0 in codes
        check(case, folder, inputs, set(case.outputs))
        assert not hidden(folder)
        assert {path.name for path in folder.iterdir()} == {path.name for path in inputs.iterdir()} | set(case.outputs)
