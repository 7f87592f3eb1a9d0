"""Read variable-length strings of an HDF5 file: run as a script, in a process that its caller can end.

libhdf5 follows a damaged string heap for ever, inside a call that nothing in its own process can interrupt. Imports
nothing of congruence, so that the process starts quickly.
"""

from __future__ import annotations

import json
import sys


def main(path: str, wanted: list[list[str]]) -> None:
    """Print the strings as a JSON list: of an attribute for ``[dataset, attribute]``, of a dataset for ``[dataset]``."""
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
