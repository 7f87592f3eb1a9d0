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
    "full matrices": "whole matrices",
    "certify": "`certify`",
}


def _seconds(runs: list[float]) -> str:
    middle = float(np.median(runs))
    return f"{middle:.2f} s" if middle < 10 else f"{middle:.1f} s"


def _ratio(runs: list[float], others: list[float], digits: int = 1) -> str:
    ratios = np.divide(runs, others)
    middle = f"{np.median(ratios):.{digits}f}"
    return middle if len(ratios) == 1 else f"{middle} ({ratios.min():.{digits}f} … {ratios.max():.{digits}f})"


def _machine(found: dict[str, Any]) -> str:
    beside = f"{found['spinners']} spinning beside it, " if found["spinners"] else ""
    return "idle" if found["idle"] else f"{beside}load {found['load']:.1f} to {found['load_at_the_end']:.1f}"


def threads(results: list[Any]) -> str:
    """Return times with one thread and with two, and the ratio, paired by round."""
    rows = []
    for one in results:
        found = one["results"]
        for part in found["tables"][1:]:
            for who in dict.fromkeys(key.rsplit(", ", 1)[0] for key in part["seconds"]):
                single, double = (part["seconds"][f"{who}, {n}"] for n in (1, 2))
                about = f"{_WORDS[who]}, {part['iterations']} iterations"
                rows.append([_machine(found), about, _seconds(single), _seconds(double), _ratio(double, single, 2)])
    return table(["machine", "2,500 × 2,500 float32", "one thread", "two", "two ÷ one"], rows)


def _beside(results: list[Any], names: tuple[str, ...]) -> tuple[list[str], list[list[str]]]:
    """Return the columns, one per number of threads, and the rows of these tables, with the seconds and the ratio of each method."""
    counts = sorted({n for one in results for n in one["arguments"]["threads"]})
    named = {1: "one thread", 2: "two threads"}
    rows = []
    for one in results:
        for part in one["results"]["tables"][1:]:
            if part["table"] not in names:
                continue
            size = f"{part['rows']:,} rows" + (f" of {part['dim']:,}" if "dim" in part else "")
            size += f", {part['iterations']} iterations" if "iterations" in part else ""
            for who in dict.fromkeys(key.rsplit(", ", 1)[0] for key in part["seconds"]):
                ours = who == part["first"]
                cells = []
                for n in counts:
                    runs = part["seconds"].get(f"{who}, {n}")
                    ratio = "1" if ours else _ratio(runs, part["seconds"][f"{part['first']}, {n}"]) if runs else ""
                    cells += [_seconds(runs) if runs else "", ratio if runs else ""]
                accuracy = [f"{part['values'][who]:.3f}"] if "maps" in names else []
                rows.append(
                    [_machine(one["results"]) if ours else "", size if ours else "", _WORDS[who], *cells, *accuracy]
                )
    return [head for n in counts for head in (named[n], "÷ the first")], rows


def plans(results: list[Any]) -> str:
    """Return the times of KLOT's value and gradients, and of single plans, compared with other solvers."""
    columns, rows = _beside(results, ("transport", "plans"))
    return table(["machine", "size", "way", *columns], rows)


def neighbors(results: list[Any]) -> str:
    """Return the times of mutual neighbors, compared with whole matrices, or of a certificate."""
    columns, rows = _beside(results, ("neighbors", "certify"))
    return table(["machine", "size", "way", *columns], rows)


def maps(results: list[Any]) -> str:
    """Return the times of fit and transform compared with other packages, with retrieval by held-out rows."""
    columns, rows = _beside(results, ("maps",))
    return table(["machine", "pairs", "map", *columns, "found first"], rows)


BLOCKS = {
    "performance-threads": Block(threads, JOBS["performance-threads"]),
    "performance-plans": Block(plans, JOBS["performance-plans"]),
    "performance-neighbors": Block(neighbors, JOBS["performance-neighbors"]),
    "performance-certify": Block(neighbors, JOBS["performance-certify"]),
    "performance-maps": Block(maps, JOBS["performance-maps"]),
}
