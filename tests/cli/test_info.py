"""``congruence lab info``, ``--version`` and the completion of shells."""

import importlib.metadata
import json
import re
import subprocess
import sys

import pytest

import congruence
from congruence import system


@pytest.fixture
def installed(monkeypatch):
    """Give this package metadata of its own, and choose which packages are there."""
    needs = ["numpy>=2.1", "scipy>=1.14", "nothing-like-it>=1", "never>=1; sys_platform == 'other'"]
    needs += ['faiss-cpu>=1.9; extra == "faiss"', 'other>=3; extra == "faiss"', 'numpy>=2.1; extra == "pandas"']
    needs += ['pytest>=8; extra == "test"']
    there = {"numpy": "2.4.0", "scipy": "1.2", "faiss-cpu": "1.9.0"}

    def version(name):
        if name not in there:
            raise importlib.metadata.PackageNotFoundError(name)
        return there[name]

    monkeypatch.setattr(importlib.metadata, "requires", lambda name: needs)
    monkeypatch.setattr(importlib.metadata, "version", version)
    return there


def test_it_says_what_is_missing_outdated_and_complete(installed):
    facts = congruence.system_info(devices=False)
    assert facts.version == congruence.__version__
    assert facts.packages == {"numpy": "2.4.0", "scipy": "1.2", "nothing-like-it": None}
    assert facts.outdated == {"scipy": "scipy 1.2 (expected >=1.14)"}
    assert facts.extras == {"faiss": ["other>=3"], "pandas": []}
    assert re.search(r"^nothing-like-it +MISSING$", str(facts), flags=re.M)
    assert facts.devices == []


def test_sources_that_are_not_installed_still_report(monkeypatch):
    def requires(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "requires", requires)
    facts = congruence.system_info(devices=False)
    assert facts.packages == {} == facts.extras
    assert str(facts)


def test_the_command_prints_the_same_as_text_and_as_json(here, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("QDRANT_API_KEY", "s3cret")
    result = json.loads(here("lab info", "--json", "--no-devices").out)
    assert result["version"] == congruence.__version__
    assert result["variables"]["OMP_NUM_THREADS"] == "1"
    assert result["threads"]["cpus"] >= 1
    assert result["python"].split()[1] == ".".join(map(str, sys.version_info[:3]))
    shown = here("lab info", "--no-devices").out
    assert congruence.__version__ in shown
    if system._version("torch") is not None:
        assert "no torch" not in shown
    assert "s3cret" not in shown + json.dumps(result)


def test_devices_are_named_and_a_broken_torch_is_a_line_of_the_report(monkeypatch, capsys):
    class Cuda:
        def device_count(self):
            return 1

        def get_device_properties(self, number):
            return type("Facts", (), {"name": "NVIDIA H200", "total_memory": 140 * 2**30})

    class Torch:
        cuda = Cuda()
        version = type("Version", (), {"cuda": "12.8"})
        backends = type("Backends", (), {"mps": type("Mps", (), {"is_available": staticmethod(lambda: False)})})

    monkeypatch.setattr(system, "_version", lambda name: "2.9")
    monkeypatch.setitem(sys.modules, "torch", Torch())
    assert system._devices() == ["cpu", "cuda:0 NVIDIA H200, 140.0 GiB, CUDA 12.8"]
    monkeypatch.setitem(sys.modules, "torch", object())
    assert system._devices() == ["torch fails: AttributeError"]
    assert "torch could not list its devices" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("congruence che", "check"),
        ("congruence check --anch", "--anchors"),
        ("congruence lab frame ta", None),
        ("congruence lab frame ma", "map"),
    ],
)
def test_a_shell_completes_commands_and_options(here, monkeypatch, words, expected):
    monkeypatch.setenv("_CONGRUENCE_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(words.count(" ")))
    assert here().out.split() == ([expected] if expected else [])


def test_bash_loads_the_script(here, monkeypatch, tmp_path):
    monkeypatch.setenv("_CONGRUENCE_COMPLETE", "source_bash")
    script = here().out
    (tmp_path / "congruence.sh").write_text(script)
    command = ["bash", "-ec", f"source {tmp_path / 'congruence.sh'}; complete -p congruence"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "_congruence_completion congruence" in done.stdout
