"""The end of a disk: every call by which Python opens, renames, links or removes files below a folder fails."""

import errno
import sys
from contextlib import contextmanager
from pathlib import Path

NUMBERS = {"lost connection": errno.EIO, "full disk": errno.ENOSPC}

_reach = None


def _heard(event, arguments):
    if _reach is not None and (event == "open" or event.startswith("os.")):
        _reach(arguments)


sys.addaudithook(_heard)  # once, because a hook cannot be removed


class FailingFiles:
    """For the contract of files: lets the calls fail that concern the file, its folder or what is beside it."""

    def traces(self, where):
        """Return the files by name, their rights, and what is said of the vectors."""
        files = sorted(Path(where).parent.rglob("*"))
        return [(one.name, one.stat().st_mode, one.stat().st_nlink) for one in files], self.said(where)

    @contextmanager
    def failing(self, where, database, fault, after):
        global _reach
        folder, calls = str(Path(where).parent), []

        def reach(arguments):
            names = [str(name) for name in arguments if isinstance(name, str | Path)]
            if any(name.startswith(folder) and "journal" not in name for name in names):
                calls.append(names)
                if len(calls) > after:
                    raise OSError(NUMBERS[fault], "the disk is gone", names[0])

        _reach = reach
        try:
            yield
        finally:
            _reach = None
