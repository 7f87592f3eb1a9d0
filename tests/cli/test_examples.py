"""The examples of all help texts run, on the files that `congruence demo --files library` writes.

With `--json`, standard output is one JSON document and nothing else.
"""

import json
import os
import re
import shlex
import shutil

import numpy as np
import pytest

from congruence import Space, encoders
from congruence.cli import app
from congruence.encoders import Encoder
from tree import walk

#: Extra that an example needs, by the first word that tells it.
NEEDS = {"bridge export": "faiss", "bridge serve": "fastapi", "migrate": "lance", "check": "lance"}

#: What takes long, and has its own tests of the whole run.
LONG = ("demo", "check", "lab reproduce", "lab exposure", "lab match", "lab plan", "lab shift", "train", "report")

#: What is said to make a long example short.
QUICKLY = {"lab similarity": ["--permutations", "2", "--set", "halves=2"]}


def helps():
    """Yield the words and the help of every command and group."""
    groups = [((), app)]
    while groups:
        names, group = groups.pop()
        yield " ".join(names), group.help
        for name in group.list_commands(None):
            if hasattr(command := group.get_command(None, name), "list_commands"):
                groups.append(((*names, name), command))
    for names, command in walk():
        yield " ".join(names), command.help


EXAMPLES = {name: re.search(r"Example: (.*?)(?:\n\n|$)", text, re.S) for name, text in helps()}
COMMANDS = {" ".join(names): command for names, command in walk()}
REPORTING = [name for name, command in COMMANDS.items() if any("--json" in one.opts for one in command.params)]


class Letters(Encoder):
    def __init__(self):
        self.space = Space("effnet-mpnet", None, "text", 256, True)
        self.fingerprint, self.n_layers = "f" * 64, None

    def _embed(self, items):
        return np.random.default_rng(0).standard_normal((len(items), 256)).astype(np.float32)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """A folder with what the examples of other commands have written."""
    import congruence
    from congruence.cli._demo_photos import write_files
    from congruence.datasets import load_sample

    path, photos = tmp_path_factory.mktemp("examples"), load_sample("photos")
    write_files(photos, path / "library")
    old, new = photos.source, photos.target
    congruence.fit(old["text"], new["text"], means={"image": (old["image"], None)}).save(path / "map")
    congruence.fit(new["text"], old["text"]).save(path / "back")
    congruence.CanonicalFrame().fit({"old": old["text"], "new": new["text"]}).save(path / "models.frame")
    (path / "titles.txt").write_text("one\ntwo\n")
    (path / "captions.csv").write_text("caption\na red car and a green tree\n")
    return path


@pytest.fixture
def example(prepared, here, tmp_path, monkeypatch):
    """Return a function that runs the example of a command in such a folder."""

    def run(name, *more):
        for words, module in NEEDS.items():
            if name.startswith(words):
                pytest.importorskip(module)
        link = shutil.copy2 if name.startswith("migrate") else os.link  # a table is changed where it is
        if not (tmp_path / "library").exists():
            shutil.copytree(prepared, tmp_path, dirs_exist_ok=True, copy_function=link)
        words = [*shlex.split(EXAMPLES[name][1])[1:], *more]
        if "-o" in words:
            shutil.rmtree(tmp_path / words[words.index("-o") + 1], ignore_errors=True)
        monkeypatch.setattr(encoders, "load_encoder", lambda *_, **__: Letters())
        monkeypatch.setattr("congruence.integrations.process.serve", lambda *_, on_ready, **__: on_ready())
        return here(*words).ends(0)

    return run


def some_long(names):
    return [pytest.param(name, marks=[pytest.mark.long] if name.startswith(LONG) else []) for name in names]


def test_every_help_has_an_example():
    assert not [name for name, found in EXAMPLES.items() if found is None]


@pytest.mark.parametrize("name", some_long([name for name in REPORTING if not name.startswith("migrate")]))
def test_an_example_reports_one_json_document(example, name):
    assert json.loads(example(name, "--json", *QUICKLY.get(name, ())).out)


@pytest.mark.parametrize("name", REPORTING)
def test_a_refusal_reports_nothing(here, name):
    words = name.replace("migrate", "migrate URL").split()
    here(*words, "--json", "--nonsense").refused("Type: ")


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in EXAMPLES if not name.startswith("migrate")])
def test_an_example_runs_as_printed(example, name):
    example(name)


@pytest.mark.long
def test_a_migration_by_its_examples(example):
    """Each action in a state that allows it."""
    pytest.importorskip("lance")
    example("check")
    first = ("plan", "run", "status", "verify", "discard", "run", "finish", "run", "switch", "reembed")
    for action in (*first, "rollback", "verify", "switch", "drop-old"):
        assert json.loads(example(f"migrate {action}", "--json").out)
