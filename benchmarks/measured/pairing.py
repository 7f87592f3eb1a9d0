"""The tables of docs/pairing.md: false alarms, power and time of the pairing check."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.stats import beta

from measured.blocks import Block, table
from measured.jobs import JOBS


def _alarms(runs: list[dict[str, int]]) -> tuple[int, int, float, str]:
    """Sum over runs: accused fits, all fits, the one-sided 95 % upper bound of their share in percent, and how many were called not paired."""
    accused, total, denied = (sum(run[key] for run in runs) for key in ("accused", "fits", "not_paired"))
    return accused, total, 100 * float(beta.ppf(0.95, accused + 1, total - accused)), str(denied or "none")


def _states(found: dict[str, int], *order: str) -> str:
    total, (first, *rest) = sum(found.values()), order
    parts = [
        f'{found.get(first, 0)} of {total} "{first}"',
        *(f'{found[state]} "{state}"' for state in rest if found.get(state)),
    ]
    return ", ".join(parts)


def checks(results: list[Any]) -> str:
    found = [result["results"] for result in results]
    real, noisy = (_alarms([one[part] for one in found if part in one]) for part in ("real", "noisy"))
    (weak,), (power,), (shuffled,), (time,) = (
        [one[p] for one in found if p in one] for p in ("weak", "power", "shuffled", "time")
    )
    few, hundred, *many = power
    each, size = weak["noise 2.0 on each coordinate"], weak["noise 2.0, of the signal's size"]
    fit, check = (float(np.median(time[name])) for name in ("fit", "check"))
    rows_found, wrong = sum(m["rows"] for m in many), sum(m["wrong"] * m["fits"] for m in many)
    counts = " and ".join(dict.fromkeys(f"{m['found']} of {m['fits']}" for m in many))
    rows = [
        ["true pairs (`real`)", f'{real[0]} of {real[1]:,} fits accuse one (95 % upper bound {real[2]:.1f} %), {real[3]} is called "not paired"'],
        ["true pairs with noise (`noisy`)", f"{noisy[0]} of {noisy[1]:,} ({noisy[2]:.1f} %), {noisy[3]}"],
        ["all shuffled (`shuffled`)", _states(shuffled, "paired", "not paired", "cannot tell")],
        ["noise 2.0 on each coordinate (`weak`)", _states(each, "cannot tell", "not paired", "paired")],
        ["noise 2.0 times the rows' size (`weak`)", _states(size, "paired", "cannot tell", "not paired")],
        ["3 of 30 wrong (`power`)", f"found in {few['found']} of {few['fits']} fits"],
        ["5 of 100 wrong", f"found in {hundred['found']} of {hundred['fits']} fits; {hundred['rows']} of {hundred['wrong'] * hundred['fits']} rows, "
         f"{hundred['right_accused']} correct row{'s' * (hundred['right_accused'] != 1)} accused"],
        ["15 of 300, 45 of 900 wrong", f"found in {counts} fits each; {100 * rows_found / wrong:.0f} % of the rows, {sum(m['right_accused'] for m in many)} correct rows accused"],
        ["5,000 pairs, 768 → 1024 (`time`)", f"check {check:.2f} s, fit {fit:.2f} s of CPU time, one thread"],
    ]  # fmt: skip
    return table(["case (`benchmarks/bench_pairing.py --part …`)", "result"], rows)


def _part(results: list[Any], name: str) -> Any:
    return next(result["results"][name] for result in results if name in result["results"])


def kinds(results: list[Any]) -> str:
    """Return the fits in which wrong pairs are found, by kind of pairs and of error."""
    found: dict[tuple[int, int], list[str]] = {}
    for one in _part(results, "kinds"):  # by kind, then case, then exchanged before without partner
        found.setdefault((one["wrong"], one["n"]), []).append(str(one["found"]))
    header = [
        "wrong pairs",
        *(f"{kind}, {how}" for kind in ("text–text", "image–text") for how in ("exchanged", "without partner")),
    ]
    return table(header, [[f"{wrong} of {n}", *cells] for (wrong, n), cells in found.items()])


def unseen(results: list[Any]) -> str:
    """Return the same on data on which nothing was chosen."""
    part = _part(results, "unseen")
    header = [
        "pairs",
        'true pairs accused / shuffled "paired"',
        "3 of 30 exchanged",
        "5 of 100 exchanged",
        "10 of 100 exchanged",
        "5 of 100 without partner",
        "10 of 100 without partner",
    ]
    rows = []
    for kind, real in part["real"].items():
        cells = {
            (one["wrong"], one["n"], one["exchanged"]): one["found"] for one in part["wrong"] if one["kind"] == kind
        }
        cases = ((3, 30, True), (5, 100, True), (10, 100, True), (5, 100, False), (10, 100, False))
        rows.append(
            [
                kind.replace("-", "–").replace("Caltech–", "Caltech-"),
                f"{real['accused']} / {part['shuffled'][kind].get('paired', 0)}",
                *(str(cells[case]) for case in cases),
            ]
        )
    return table(header, rows)


BLOCKS = {
    "pairing": Block(checks, JOBS["pairing"]),
    "pairing-kinds": Block(kinds, JOBS["pairing"]),
    "pairing-unseen": Block(unseen, JOBS["pairing"]),
}
