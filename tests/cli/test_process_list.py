"""A password typed in a URL does not stay in the system's list of processes."""

import subprocess
import sys

import pytest

from congruence._utils.process import hide_arguments

URL = "postgresql://anna:s3cret-word@127.0.0.1:1/shop?sslpassword=an0ther"

#: What runs in a process of its own: the command, with a look at the list of processes where it opens the database.
SCRIPT = """
import sys
from pathlib import Path
import congruence.databases
from congruence.errors import DatabaseUnavailableError

def look(where, **names):
    print(where == sys.argv[2], Path("/proc/self/cmdline").read_bytes().replace(bytes(1), b" ").decode())
    raise DatabaseUnavailableError("Got no answer; expected one. Start it.")

congruence.databases.open_database = look
from congruence.cli import main
sys.argv[0] = "congruence"
main()
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux lets a process overwrite its arguments")
def test_the_command_overwrites_a_password_before_it_does_anything():
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, "migrate", URL, "status"], capture_output=True, text=True, check=False
    )
    known, _, shown = done.stdout.partition(" ")
    assert known == "True", done.stderr  # the command itself has it still
    assert "s3cret-word" not in shown
    assert "an0ther" not in shown
    assert f"postgresql://anna:{'*' * 11}@127.0.0.1:1/shop?sslpassword={'*' * 7} status" in shown
    assert "s3cret-word" not in done.stderr


def test_nothing_to_hide_is_hidden_and_other_systems_are_left_alone(monkeypatch):
    assert hide_arguments([])
    assert hide_arguments(["", "a word that no argument holds"]) is sys.platform.startswith("linux")
    monkeypatch.setattr(sys, "platform", "darwin")
    assert not hide_arguments(["secret"])
