"""Any package can add a command to ``congruence``, as the papers do: by an entry point."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


@pytest.fixture
def program(tmp_path):
    """Run ``congruence`` beside an installed package that adds the command ``shout``."""
    (tmp_path / "shout.py").write_text(
        'def shout(word: str) -> None:\n    """Say it loudly."""\n    print(word.upper())\n'
    )
    info = tmp_path / "shout-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: shout\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[congruence.commands]\nshout = shout:shout\n")
    path = os.pathsep.join([str(tmp_path), *sys.path])

    def run(*arguments: str) -> str:
        command = [sys.executable, "-c", "from congruence.cli import main; main()", *arguments]
        environment = {**os.environ, "PYTHONPATH": path, "COLUMNS": "120"}
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout

    return run


def test_a_command_of_another_package_is_listed_and_runs(program):
    listed = program("--help")
    assert "shout" in listed
    assert "Say it loudly." in listed
    assert "certify" in listed
    assert program("shout", "hello") == "HELLO\n"
