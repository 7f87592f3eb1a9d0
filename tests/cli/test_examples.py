"""The examples of all help texts run as printed, on the files that `congruence demo --files library` writes."""

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
LONG = ("demo", "check", "migrate", "lab reproduce", "lab exposure", "lab match")


def examples():
    groups = [((), app)]
    while groups:
        names, group = groups.pop()
        yield " ".join(names), group.help
        for name in group.list_commands(None):
            if hasattr(command := group.get_command(None, name), "list_commands"):
                groups.append(((*names, name), command))
    for names, command in walk():
        yield " ".join(names), command.help


EXAMPLES = {name: re.search(r"Example: (.*?)(?:\n\n|$)", text, re.S) for name, text in examples()}


class Letters(Encoder):
    def __init__(self):
        self.space = Space("effnet-mpnet", None, "text", 256, True)
        self.fingerprint, self.n_layers = "f" * 64, None

    def _embed(self, items):
        return np.random.default_rng(0).standard_normal((len(items), 256)).astype(np.float32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with what the examples of other commands have written."""
    import congruence
    from congruence.cli._demo_photos import write_files
    from congruence.datasets import load_sample

    path, photos = tmp_path_factory.mktemp("examples"), load_sample("photos")
    write_files(photos, path / "library")
    old, new = photos.source, photos.target
    mapping = congruence.fit(old["text"], new["text"], means={"image": (old["image"], None)})
    mapping.save(path / "map")
    congruence.fit(new["text"], old["text"]).save(path / "back")
    frame = congruence.CanonicalFrame().fit({"old": old["text"], "new": new["text"]})
    frame.save(path / "models.frame")
    (path / "titles.txt").write_text("one\ntwo\n")
    (path / "captions.csv").write_text("caption\na red car and a green tree\n")
    return path


def test_every_help_has_an_example():
    assert not [name for name, found in EXAMPLES.items() if found is None]


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.long] if name.startswith(LONG) or not name else []) for name in EXAMPLES],
)
def test_an_example_runs(folder, here, tmp_path, monkeypatch, name):
    for words, module in NEEDS.items():
        if name.startswith(words):
            pytest.importorskip(module)
    if name.startswith("migrate"):
        pytest.skip("its actions run one after the other, in test_a_migration_by_its_examples")
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    words = shlex.split(EXAMPLES[name][1])[1:]
    if "-o" in words:
        shutil.rmtree(tmp_path / words[words.index("-o") + 1], ignore_errors=True)
    monkeypatch.setattr(encoders, "load_encoder", lambda *_, **__: Letters())
    monkeypatch.setattr("congruence.integrations.process.serve", lambda *_, on_ready, **__: on_ready())
    here(*words).ends(0)


@pytest.mark.long
def test_a_migration_by_its_examples(folder, here, tmp_path):
    """Each action in a state that allows it."""
    pytest.importorskip("lance")
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    here("check photos --anchors 200 --store library/photos.lance").ends(0)
    first = ("plan", "run", "status", "verify", "discard", "run", "finish", "run", "switch", "reembed")
    for action in (*first, "rollback", "verify", "switch", "drop-old"):
        here(*shlex.split(EXAMPLES[f"migrate {action}"][1])[1:]).ends(0)
