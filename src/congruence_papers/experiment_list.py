"""List of all figures and tables of the papers, with their sample data, required weights and data, and duplicates on sample data."""

from __future__ import annotations

import json
from collections.abc import Iterable

from congruence_papers.config import config_names, load_config, sort_key
from congruence_papers.data import DataT
from congruence_papers.job import Config
from congruence_papers.plain import ListingEntry, PaperCount
from congruence_papers.registry import STUDIES
from congruence_papers.study import Study

__all__ = ["NOT_RUN", "count_experiments", "experiment_of", "listing"]

#: Disclaimer printed with every listing of sample data.
NOT_RUN = "The paper's published weights and data sets have not been run: these runs use stand-ins."


def experiment_of(config: Config) -> str:
    """Return a key that identifies the experiment of a configuration on sample data: its kind, parameters and variant.

    Figures that differ only in the paper's models and data, or in the metrics shown, have the same key.

    Parameters
    ----------
    config : Config

    Returns
    -------
    str
    """
    return json.dumps([config.kind, config.parameters, config.variant], sort_keys=True)


def listing() -> list[ListingEntry]:
    """Return every figure and table of the papers, with its sample data and the weights and data that the paper used.

    Returns
    -------
    list of dict
        ``name``, ``paper`` (a key of :data:`congruence_papers.STUDIES`), ``title``, ``section``, ``kind``, ``runs_here`` (sample data), ``needs_weights``,
        ``needs_data``, ``same_experiment_here`` (the names of all figures and tables that are the same experiment on sample data, including its own;
        empty if there is nothing to run), ``published_weights_run`` (whether this project's numbers were obtained with the paper's weights).
    """
    return [row for study in STUDIES.values() for row in _rows(study)]


def _rows(study: Study[DataT]) -> list[ListingEntry]:
    """Return the entries of one paper, in the order of :func:`congruence_papers.config.sort_key`."""
    configs = [load_config(name) for name in config_names(study.name)]
    shared: dict[str, list[str]] = {}
    for config in configs:
        shared.setdefault(experiment_of(config), []).append(config.name)
    out: list[ListingEntry] = []
    for config in configs:
        weights = dict.fromkeys(name for spec in config.models for name in spec.split("/"))
        out.append(
            {
                **_entry(study, config.name, config.title, config.section, config.kind),
                "runs_here": config.sample_data,
                "needs_weights": list(weights),
                "needs_data": config.data,
                "same_experiment_here": shared[experiment_of(config)],
            }
        )
    out += [_entry(study, name, why, section, "nothing to run") for name, (why, section) in study.drawings.items()]
    return sorted(out, key=lambda row: sort_key(row["name"]))


def _entry(study: Study[DataT], name: str, title: str, section: str, kind: str) -> ListingEntry:
    """Return an entry without sample data and requirements."""
    return {
        "name": name,
        "paper": study.name,
        "title": title,
        "section": section,
        "kind": kind,
        "runs_here": [],
        "needs_weights": [],
        "needs_data": [],
        "same_experiment_here": [],
        "published_weights_run": False,
    }


def count_experiments(rows: Iterable[ListingEntry]) -> list[PaperCount]:
    """Count the figures and tables of each paper that run on sample data, and the distinct experiments among them.

    Parameters
    ----------
    rows : iterable of dict
        Entries of :func:`listing`.

    Returns
    -------
    list of dict
        ``paper``, ``figures``, ``figure_experiments``, ``tables``, ``table_experiments``; an experiment that is both a figure and a table is counted in both.
    """
    rows = [row for row in rows if row["runs_here"]]
    out: list[PaperCount] = []
    for paper in dict.fromkeys(row["paper"] for row in rows):
        figures, tables = (
            [row for row in rows if row["paper"] == paper and sort_key(row["name"])[1] == kind]
            for kind in ("fig", "table")
        )
        out.append(
            {
                "paper": paper,
                "figures": len(figures),
                "figure_experiments": _distinct(figures),
                "tables": len(tables),
                "table_experiments": _distinct(tables),
            }
        )
    return out


def _distinct(rows: Iterable[ListingEntry]) -> int:
    """Return the number of distinct experiments on sample data."""
    return len({row["same_experiment_here"][0] for row in rows})
