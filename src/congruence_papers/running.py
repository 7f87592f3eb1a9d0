"""Run and list the figures and tables of the papers."""

from __future__ import annotations

import importlib.metadata
import json
import platform
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import congruence
from congruence.errors import InputError, ParameterError
from congruence_papers import canonical, jam, sotalign
from congruence_papers.core import (
    QUICK_DRAWS,
    Data,
    Experiment,
    ExperimentJob,
    Paper,
    check_choice,
    check_number,
    judge,
    told,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: The papers by name, in listing order.
PAPERS: dict[str, Paper] = {paper.name: paper for paper in (canonical.PAPER, jam.PAPER, sotalign.PAPER)}

#: Every figure and table that can be run, by name.
EXPERIMENTS: dict[str, Experiment] = {one.name: one for paper in PAPERS.values() for one in paper.experiments}

#: Printed with every listing.
WHAT_RAN = (
    "Of published dual encoders, OpenAI's CLIP RN50 and ViT-B/32 were run, on photos of Caltech-101 (clip). The "
    "papers' own pairs of models and data sets were not: all other runs here use stand-ins."
)


@dataclass(frozen=True)
class Outcome:
    """What a run measured: ``results`` as plain data, and thumbnails of the examples by id, ``pictures``."""

    results: dict[str, Any]
    pictures: dict[str, bytes] = field(default_factory=dict)

    def plot(self, ax: Axes | None = None, *, panel: int = 0, annotate: bool = True) -> Axes:
        """Draw one panel of the figure, 0 for (a), on ``ax`` or new axes; ``annotate`` adds title and legend."""
        from congruence_papers.figure import draw_panel, panels

        shown = panels(self.results)
        check_choice(panel, range(len(shown)), "panel")
        return draw_panel(shown[panel], ax, annotate=annotate)


def find(experiment: str | Experiment) -> tuple[Paper, Experiment]:
    """Return an experiment by name, or one made in Python, with its paper."""
    if not isinstance(experiment, Experiment):
        experiment = EXPERIMENTS[check_choice(experiment, EXPERIMENTS, "experiment")]
    kind = check_choice(experiment.kind, (kind for paper in PAPERS.values() for kind in paper.kinds), "kind")
    return next(paper for paper in PAPERS.values() if kind in paper.kinds), experiment


def run(
    experiment: str | Experiment,
    *,
    models: str | None = None,
    data: Sequence[str] | None = None,
    file: str | Path | None = None,
    root: str | Path | None = None,
    cache: str | Path | None = None,
    seeds: int | None = None,
    quick: bool = False,
    parameters: Mapping[str, Any] | None = None,
    collections: Sequence[Data] | None = None,
    callback: Callable[[int], None] | None = None,
    log: Callable[[str], None] | None = None,
    **options: Any,
) -> Outcome:
    """Run one figure or table of a paper.

    Parameters
    ----------
    experiment : str or Experiment
        ``"fig5"``, or an experiment made with ``dataclasses.replace`` from one of ``EXPERIMENTS``.
    models : str, optional
        Sample data of the experiment, by default the first: ``"sample"``, ``"lvis"``, ``"caltech101"`` or ``"clip"``;
        for SOTAlign ``"synthetic"``, ``"imagenet1000"`` or ``"caltech101"``; for JAM these and ``"sugarcrepe"``.
        Otherwise ``"paper"`` for the paper's models, or names: ``"openai-b32/flava"``, or for SOTAlign and JAM the
        folders of an image and a text encoder joined by ``/``.
    data : sequence of str, optional
        Data sets for models by name; by default the experiment's.
    file, root, cache : path-like, optional
        File or folder of the sample data, or for models by name the folder of their embeddings (``needs_files`` of
        ``listing`` says what it holds); folder of the data sets, for models that embed them, and of SugarCrepe's files;
        folder in which embeddings are cached, by default ``root/embeddings``.
    seeds, quick : optional
        Number of draws; fewer draws, anchors and steps, for a quick test.
    parameters : dict, optional
        Parameters of the experiment to change: ``{"methods": ["orthogonal", "mlp"]}``, or for figure 55 ``captions``, a
        file, and ``edits``.
    collections : sequence of Data, optional
        Your own embeddings, instead of ``models``: ``Collection``, ``SOTAlignData`` or ``JAMData``, by paper.
    callback, log : callable, optional
        Called with 1 after each draw; called with a description of what is being embedded.
    **options
        ``device``, ``dtype``, ``batch_size`` of the encoders; for features the ``device`` to train on.

    Examples
    --------
    >>> results = run("fig4", quick=True).results
    >>> row = next(r for r in results["rows"] if r["metric"] == "text_cosine" and r["quantity"] == "after")
    >>> row["mean"] > 0.5
    True
    """
    paper, experiment = find(experiment)
    changed = dict(parameters or {})
    metrics = tuple(check_choice(name, paper.metrics, "metric") for name in changed.pop("metrics", experiment.metrics))
    experiment = replace(experiment, metrics=metrics, parameters=paper.parameters(experiment, changed))
    models = models or next(iter(experiment.sample_data), "sample")
    started = time.perf_counter()
    draws = check_number(experiment.seeds if seeds is None else seeds, "seeds", integer=True)
    draws = min(draws, QUICK_DRAWS) if quick else draws
    if collections is not None:
        opened = list(collections)
    elif models in paper.sample_data:
        _check_sample(experiment, models, data)
        opened = [paper.open_sample(models, file, experiment.variant, cache=cache, log=log)]
    else:
        source = {"data": data, "file": file, "root": root, "cache": cache, "log": log, **options}
        opened = list(paper.open_models(experiment, models, **source))
    if not opened:
        raise InputError("Got no data to run on.", "Pass `models=…`, or `collections=…`.")
    if not all(isinstance(each, paper.data_type) for each in opened):
        raise InputError(f"{experiment.name} needs collections of {paper.data_type.__name__}.", "Pass these.")
    if "evaluation_templates" in experiment.parameters:
        measured = {"evaluation_templates": experiment.parameters["evaluation_templates"]}
        opened = [replace(each, **measured) for each in opened]
    job = ExperimentJob(experiment, opened, paper.seeds(draws), experiment.parameters, quick, callback=callback)
    kind = paper.kinds[experiment.kind]
    kind.measure(job)
    rows = job.rows()
    names = ", ".join(dict.fromkeys(each.title or each.name for each in opened))
    stand_ins = " and ".join(dict.fromkeys(each.stand_in for each in opened if each.stand_in))
    results = {
        "format": 1,
        "experiment": experiment.name,
        "title": f"{experiment.title}, on {names}" + (f" [{stand_ins}]" if stand_ins else ""),
        "embeddings": "stand-in" if stand_ins else "real" if collections is None else "given",
        "stand_in": stand_ins or None,
        "stands_for": {"models": list(experiment.models), "data": list(experiment.data)} if stand_ins else None,
        "claim": experiment.claim,
        "held": judge(experiment.claims, rows, job.unchecked),
        "ran_on": models if collections is None else "collections",
        "quick": quick,
        "seeds": job.seeds,
        "resampled": job.resampled or kind.resampled.format(share=experiment.parameters.get("share", 1.0)),
        "config": experiment.facts(),
        "data": [{**each.facts(), "count": paper.count(each.facts())} for each in opened],
        "notes": job.notes,
        "rows": rows,
        "words": {metric: paper.metrics[metric] for row in rows if (metric := row["metric"]) in paper.metrics},
        "extra": job.extra,
        "versions": _versions(),
        "seconds": round(time.perf_counter() - started, 3),
    }
    return Outcome(results, _pictures(job))


def _check_sample(experiment: Experiment, name: str, data: Sequence[str] | None) -> None:
    if experiment.parameters.get("captions"):
        raise ParameterError(f"{name} has no encoders for captions.", "Pass `models=…` by name, or no captions.")
    if data:
        raise ParameterError(f"{name} contains its own data, not {', '.join(data)}.", "Leave out `data=…`.")
    if name not in experiment.sample_data:
        among = ", ".join(experiment.sample_data) or "none"
        raise ParameterError(f"{experiment.name} runs on {among}, not {name}.", "Pass one of these as `models=…`.")


def _pictures(job: ExperimentJob[Any]) -> dict[str, bytes]:
    examples = job.extra.get("examples", [])
    items = [item for one in examples for row in ([one["query"]], *one["rows"].values()) for item in row]
    found = {item["id"]: next(filter(None, (data.thumbnail(item["id"]) for data in job.data)), None) for item in items}
    return {i: picture for i, picture in found.items() if picture}


def _versions() -> dict[str, str]:
    out = {"congruence": congruence.__version__, "python": platform.python_version()}
    for package in ("numpy", "scipy", "scikit-learn", "torch", "open_clip_torch", "transformers"):
        try:
            out[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return out


def _sort_key(name: str) -> tuple[str, str, int]:
    """Return the prefix, figure or table, and number of an experiment's name."""
    prefix, kind, number = re.match(r"(?:([a-z]+)-)?([a-z]+)(\d*)", name).groups()  # type: ignore[union-attr]
    return prefix or "", kind, int(number or 0)


def listing() -> list[dict[str, Any]]:
    """Return every figure and table of the papers as plain data."""
    out = []
    for paper in PAPERS.values():
        same: dict[str, list[str]] = {}
        for one in sorted(paper.experiments, key=lambda one: _sort_key(one.name)):
            same.setdefault(experiment_of(paper, one), []).append(one.name)
        rows = [
            {
                **_entry(paper, one.name, one.title, one.section, one.kind),
                "runs_here": list(one.sample_data),
                "needs_weights": list(dict.fromkeys(name for spec in one.models for name in spec.split("/"))),
                "needs_data": list(one.data),
                "needs_files": list(
                    dict.fromkeys(name for spec in one.models for name in paper.files(spec.split("/"), one.data))
                ),
                "published_at": _published(paper, one),
                "same_experiment_here": same[experiment_of(paper, one)],
                "parameters": paper.parameters(one, {}),
            }
            for one in paper.experiments
        ]
        rows += [_entry(paper, name, why, section, "nothing to run") for name, (why, section) in paper.drawings.items()]
        out += sorted(rows, key=lambda row: _sort_key(row["name"]))
    return out


def _published(paper: Paper, experiment: Experiment) -> dict[str, str]:
    """Return where the public finds the weights and the data of an experiment, by name."""
    known = told(paper.name)["published"]
    weights = {name: known["weights"][name] for spec in experiment.models for name in spec.split("/")}
    return weights | {name: known["data"][name] for name in experiment.data}


def experiment_of(paper: Paper, experiment: Experiment) -> str:
    """Return a key of what runs on sample data, shared by figures that differ in the paper's models and data only."""
    return json.dumps([experiment.kind, paper.parameters(experiment, {}), experiment.variant], sort_keys=True)


def _entry(paper: Paper, name: str, title: str, section: str, kind: str) -> dict[str, Any]:
    named = {"name": name, "paper": paper.name, "title": title, "section": section, "kind": kind, "parameters": {}}
    keys = ("runs_here", "needs_weights", "needs_data", "needs_files", "same_experiment_here")
    return {**named, **{key: list[str]() for key in keys}, "published_at": {}}
