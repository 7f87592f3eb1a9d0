"""Run scripts in fresh processes, forked from one that has only imported what they need.

A new interpreter takes a third of a second or more to import NumPy, PyArrow and a store, which is most of the time of
many tests of memory, full disks and kills. One interpreter per test process imports them and forks for each script, so
that nothing of one script is left for the next.
"""

import atexit
import json
import os
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

#: Modules that are imported before the fork, but not used: libraries start threads on first use, and threads do not
#: survive a fork.
MODULES = ("numpy", "pyarrow.parquet", "h5py", "lance", "safetensors.numpy", "congruence.io")

#: Time limit of a script in seconds, after which SIGALRM ends it.
SECONDS = 300

SERVER = """
import importlib, json, os, signal, sys, warnings
for name in sys.argv[2:]:
    importlib.import_module(name)
warnings.filterwarnings("ignore", "lance is not fork-safe")  # it is not in use yet
for line in sys.stdin:
    code, arguments, folder, cwd = json.loads(line)
    child = os.fork()
    if not child:
        for number, name in ((0, os.devnull), (1, folder + "/out"), (2, folder + "/err")):
            os.dup2(os.open(name, os.O_RDWR | os.O_CREAT, 0o600), number)
        signal.alarm(int(sys.argv[1]))
        os.chdir(cwd)
        sys.argv = ["-c", *arguments]
        status = 1
        try:
            exec(compile(code, "<script>", "exec"), {"__name__": "__main__"})
            status = 0
        except SystemExit as stop:
            status = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        except BaseException:
            import traceback
            traceback.print_exc()
        finally:
            try:
                sys.stdout.flush()
                sys.stderr.flush()
            finally:
                os._exit(status)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@cache
def _server() -> subprocess.Popen[str]:
    command = [sys.executable, "-c", SERVER, str(SECONDS), *MODULES]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    atexit.register(process.communicate)  # end of input ends the process
    return process


def run_fresh(code: str, *arguments: Any, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run a script like ``python -c code arguments``, but with modules imported already; return its exit code and
    output.

    It starts with the memory of a process that has imported :data:`MODULES`, so a script must measure its own use
    relative to that.
    """
    server = _server()
    assert server.stdin is not None
    assert server.stdout is not None
    with tempfile.TemporaryDirectory() as folder:
        asked = [code, [os.fspath(one) for one in arguments], folder, os.fspath(cwd or Path.cwd())]
        server.stdin.write(json.dumps(asked) + "\n")
        server.stdin.flush()
        status = int(server.stdout.readline())
        out, err = (Path(folder, name).read_text() for name in ("out", "err"))
    return subprocess.CompletedProcess(["-c", *arguments], status, out, err)
