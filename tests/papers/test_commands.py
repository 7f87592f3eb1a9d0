"""Any package can add a command to ``congruence``, as the papers do: by an entry point."""

import os
import subprocess
import sys

import pytest


@pytest.mark.long
def test_a_command_of_another_package_is_listed_and_runs(tmp_path):
    shout = 'def shout(word: str) -> None:\n    """Say it loudly."""\n    print(word.upper())\n'
    (tmp_path / "shout.py").write_text(shout)
    info = tmp_path / "shout-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: shout\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[congruence.commands]\nshout = shout:shout\n")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path]), "COLUMNS": "120"}

    def program(*arguments):
        command = [sys.executable, "-c", "from congruence.cli import main; main()", *arguments]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout

    listed = program("lab", "--help")
    assert all(words in listed for words in ("shout", "Say it loudly.", "doctor"))
    assert program("lab", "shout", "hello") == "HELLO\n"
