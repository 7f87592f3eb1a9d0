"""A script that reads variable-length strings from an HDF5 file, in a process that its caller can kill.

On a damaged string heap, libhdf5 may loop forever inside a call that cannot be interrupted from its own process. The script imports
nothing from congruence, so that the process starts quickly.
"""

from __future__ import annotations

import json
import sys


def main(path: str, wanted: list[list[str]]) -> None:
    """Print a JSON list with an entry per item of ``wanted``: an attribute for ``[dataset, attribute]``, a dataset's strings for ``[dataset]``."""
    import h5py

    found: list[object] = []
    with h5py.File(path, "r") as file:
        for name, *attribute in wanted:
            if attribute:
                value = file[name].attrs[attribute[0]]
                found.append(value.decode() if isinstance(value, bytes) else str(value))
            else:
                found.append(file[name].asstr()[:].tolist())
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    try:
        main(sys.argv[1], json.loads(sys.argv[2]))
    except (OSError, RuntimeError, KeyError, ValueError, TypeError, MemoryError) as error:
        sys.exit(f"{type(error).__name__}: {error}"[:500])
