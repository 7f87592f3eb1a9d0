"""Every figure and table of the papers: what it runs on here, what its own models need, and which of them are one experiment here."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from congruence.experiments.config import Config, all_configs, place

#: Figures and tables without numbers.
NOTHING_TO_RUN = {
    "fig8": ("a drawing of how the theorems follow from each other", "C"),
    "jam-fig2": ("a drawing of the method", "3"),
    "jam-fig3": ("a drawing of the Spread loss", "3.1"),
    "jam-table1": ("a glossary", "3.1"),
    "jam-table4": ("properties of the statistical measures, in words", "B.1"),
    "jam-table5": ("a glossary", "B.2"),
    "jam-table9": ("notation of two Spread losses", "C.3"),
    "jam-table10": ("terms of the Spread loss, in words", "C.3"),
    "jam-table11": ("sizes of the backbones, which are those of jam-table12", "D.1"),
    "sotalign-fig1": ("a drawing of the task", "1"),
    "sotalign-fig2": ("a drawing of the method", "3"),
    "sotalign-fig3": ("memory of the gradient of KLOT: benchmarks/bench_klot.py", "5"),
    "sotalign-fig6": ("memory and time of the gradient of KLOT: benchmarks/bench_klot.py", "B.1"),
}


#: Said wherever the stand-ins are: what has not been done.
NOT_RUN = "The paper's published weights and data sets have not been run: what runs here are stand-ins."


def experiment_of(config: Config) -> str:
    """Return what makes a run on a stand-in the same as another: its kind, its parameters and its variant.

    Figures that differ in the paper's models and data only, or in which measures they show, share it.

    Parameters
    ----------
    config : Config

    Returns
    -------
    str
    """
    return json.dumps([config.kind, config.parameters, config.variant], sort_keys=True)


def listing() -> list[dict[str, Any]]:
    """Return every figure and table of the papers with what it runs on and what its own models need.

    Returns
    -------
    list of dict
        ``name``, ``paper`` (``"canonical"``, ``"jam"``, ``"sotalign"``), ``title``, ``section``, ``kind``, ``runs_here`` (stand-ins), ``needs_weights``,
        ``needs_data``, ``same_experiment_here`` (the names that are one experiment on the stand-ins, itself among them; empty where nothing runs),
        ``published_weights_run`` (whether the numbers of this project are of the paper's own weights).
    """
    configs = list(all_configs())
    shared: dict[tuple[str, str], list[str]] = {}
    for config in configs:
        shared.setdefault((place(config.name)[0], experiment_of(config)), []).append(config.name)
    out: list[dict[str, Any]] = []
    for config in configs:
        weights = dict.fromkeys(name for spec in config.models for name in spec.split("/"))
        out.append(
            _entry(config.name, config.title, config.section, config.kind)
            | {
                "runs_here": config.stand_ins,
                "needs_weights": list(weights),
                "needs_data": config.data,
                "same_experiment_here": shared[place(config.name)[0], experiment_of(config)],
            }
        )
    out += [_entry(name, why, section, "nothing to run") for name, (why, section) in NOTHING_TO_RUN.items()]
    return sorted(out, key=lambda row: place(row["name"]))


def _entry(name: str, title: str, section: str, kind: str) -> dict[str, Any]:
    return {
        "name": name,
        "paper": place(name)[0] or "canonical",
        "title": title,
        "section": section,
        "kind": kind,
        "runs_here": [],
        "needs_weights": [],
        "needs_data": [],
        "same_experiment_here": [],
        "published_weights_run": False,
    }


def count_experiments(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Count figures and tables, and the experiments they are on the stand-ins.

    Parameters
    ----------
    rows : iterable of dict
        Of :func:`listing`.

    Returns
    -------
    list of dict
        ``paper``, ``figures``, ``figure_experiments``, ``tables``, ``table_experiments``; an experiment that is a figure and a table counts for both.
    """
    rows = [row for row in rows if row["runs_here"]]
    out = []
    for paper in dict.fromkeys(row["paper"] for row in rows):
        line: dict[str, Any] = {"paper": paper}
        for kind, words in (("fig", "figure"), ("table", "table")):
            mine = [row for row in rows if row["paper"] == paper and place(row["name"])[1] == kind]
            line[f"{words}s"] = len(mine)
            line[f"{words}_experiments"] = len({row["same_experiment_here"][0] for row in mine})
        out.append(line)
    return out
