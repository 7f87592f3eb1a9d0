"""Tables in docs/performance.md: one thread and two, and comparisons with other packages. Wall-clock times are compared with their records only."""

from __future__ import annotations

from typing import Any

import numpy as np

from measured.blocks import Block, table
from measured.jobs import JOBS

_WORDS = {
    "forward": "`klot`, value",
    "plain": "log-sum-exp",
    "dense": "`klot`",
    "features": "`klot_features`",
    "pot": "POT `sinkhorn_log`",
    "geomloss": "geomloss",
    "ott": "ott-jax",
    "sinkhorn": "`sinkhorn`, NumPy",
    "pot_numpy": "POT `sinkhorn_log`, NumPy",
    "isotrieve.mapping.linear:RidgeMapping": "isotrieve, ridge",
    "isotrieve.mapping.linear:OrthogonalProcrustesMapping": "isotrieve, Procrustes",
    "isotrieve.mapping.linear:ProcrustesDiagMapping": "isotrieve, Procrustes and scales",
    "drift.adapter:DriftAdapter": "drift-spark, Procrustes",
    "OrthogonalMap": "`OrthogonalMap`",
    "LinearMap": "`LinearMap`",
    "mutual_knn": "`mutual_knn`, k = 10",
    "full matrices": "full similarity matrices",
    "certify": "`certify`",
}


def _seconds(runs: list[float]) -> str:
    middle = float(np.median(runs))
    return f"{middle:.2f}" if middle < 10 else f"{middle:.1f}"


def _ratio(runs: list[float], others: list[float], digits: int = 1) -> str:
    ratios = np.divide(runs, others)
    middle = f"{np.median(ratios):.{digits}f}"
    return middle if len(ratios) == 1 else f"{middle} ({ratios.min():.{digits}f} … {ratios.max():.{digits}f})"


def _machine(results: dict[str, Any]) -> str:
    busy = f"{results['spinners']} busy process, " if results["spinners"] else ""
    return "idle" if results["idle"] else f"{busy}load {results['load']:.1f} to {results['load_at_the_end']:.1f}"


def threads(results: list[Any]) -> str:
    """Return times with one thread and with two, and the ratio, paired by round."""
    rows = []
    for run in results:
        for part in run["results"]["tables"][1:]:
            for name in dict.fromkeys(key.rsplit(", ", 1)[0] for key in part["seconds"]):
                single, double = (part["seconds"][f"{name}, {n}"] for n in (1, 2))
                method = f"{_WORDS[name]}, {part['iterations']} iterations"
                cells = [_seconds(single), _seconds(double), _ratio(double, single, 2)]
                rows.append([_machine(run["results"]), method, *cells])
    return table(["machine", "method, 2,500 × 2,500 float32", "1 thread (s)", "2 threads (s)", "2 threads / 1 thread"], rows)  # fmt: skip


def _compared(results: list[Any], names: tuple[str, ...]) -> tuple[list[str], list[list[str]]]:
    """Return the columns, two per number of threads, and the rows of these tables, with the seconds and the relative time of each method."""
    counts = sorted({n for run in results for n in run["arguments"]["threads"]})
    rows = []
    for run in results:
        for part in run["results"]["tables"][1:]:
            if part["table"] not in names:
                continue
            size = f"{part['rows']:,} rows" + (f" of {part['dim']:,} dimensions" if "dim" in part else "")
            size += f", {part['iterations']} iterations" if "iterations" in part else ""
            for name in dict.fromkeys(key.rsplit(", ", 1)[0] for key in part["seconds"]):
                first = name == part["first"]
                cells = []
                for n in counts:
                    runs = part["seconds"].get(f"{name}, {n}")
                    ratio = "1" if first else _ratio(runs, part["seconds"][f"{part['first']}, {n}"]) if runs else ""
                    cells += [_seconds(runs) if runs else "", ratio if runs else ""]
                accuracy = [f"{part['values'][name]:.3f}"] if "maps" in names else []
                place = [_machine(run["results"]), size] if first else ["", ""]
                rows.append([*place, _WORDS[name], *cells, *accuracy])
    threads = [f"{n} thread{'s' * (n > 1)}" for n in counts]
    return [head for words in threads for head in (f"{words} (s)", f"{words}, relative")], rows


def plans(results: list[Any]) -> str:
    """Return the times of KLOT's value and gradients, and of single plans, compared with other solvers."""
    columns, rows = _compared(results, ("transport", "plans"))
    return table(["machine", "problem", "method", *columns], rows)


def neighbors(results: list[Any]) -> str:
    """Return the times of mutual neighbors, compared with full similarity matrices."""
    columns, rows = _compared(results, ("neighbors",))
    return table(["machine", "problem", "method", *columns], rows)


def certificate(results: list[Any]) -> str:
    """Return the times of a certificate, without relative times, because there is nothing to compare with."""
    columns, rows = _compared(results, ("certify",))
    return table(["machine", "problem", "method", *columns[::2]], [[*row[:3], *row[3::2]] for row in rows])


def maps(results: list[Any]) -> str:
    """Return the times of fit and transform compared with other packages, with retrieval by held-out rows."""
    columns, rows = _compared(results, ("maps",))
    merged = [[f"{size}; {machine}" if size else "", *cells] for machine, size, *cells in rows]
    return table(["pairs; machine", "map", *columns, "recall@1"], merged)


BLOCKS = {
    "performance-threads": Block(threads, JOBS["performance-threads"]),
    "performance-plans": Block(plans, JOBS["performance-plans"]),
    "performance-neighbors": Block(neighbors, JOBS["performance-neighbors"]),
    "performance-certify": Block(certificate, JOBS["performance-certify"]),
    "performance-maps": Block(maps, JOBS["performance-maps"]),
}
