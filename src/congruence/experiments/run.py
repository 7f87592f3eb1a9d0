"""Run an experiment on what is at hand, and list what there is."""

from __future__ import annotations

import importlib.metadata
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from congruence._check import check_positive
from congruence._version import __version__
from congruence.errors import InputError, ParameterError
from congruence.experiments.alignment import UnimodalData
from congruence.experiments.config import (
    ALIGNMENT_STAND_INS,
    JOINT_STAND_INS,
    STAND_INS,
    Config,
    all_configs,
    load_config,
    place,
)
from congruence.experiments.data import Collection
from congruence.experiments.encoding import open_models
from congruence.experiments.joint import JointData, paper_seeds
from congruence.experiments.joint_data import open_joint
from congruence.experiments.joint_files import open_features
from congruence.experiments.kinds import KINDS, QUICK_DRAWS, Job
from congruence.experiments.stand_ins import open_stand_in
from congruence.experiments.unimodal import open_unimodal

#: Version of the form of ``results.json``.
FORMAT = 1

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


@dataclass(frozen=True)
class Outcome:
    """What a run gave.

    Attributes
    ----------
    results : dict
        Plain data: every number with its mean, standard deviation and values, what was resampled, seeds, versions,
        wall time, the configuration and the data.
    pictures : dict of str to bytes
        Thumbnails of the examples, by id.
    """

    results: dict[str, Any]
    pictures: dict[str, bytes] = field(default_factory=dict)


def run(
    experiment: str | Config,
    *,
    models: str | None = None,
    data: Sequence[str] | None = None,
    file: str | Path | None = None,
    root: str | Path | None = None,
    cache: str | Path | None = None,
    seeds: int | None = None,
    quick: bool = False,
    collections: Sequence[Collection | UnimodalData | JointData] | None = None,
    advance: Callable[[int], None] | None = None,
    log: Callable[[str], None] | None = None,
    **encoder_options: Any,
) -> Outcome:
    """Run one figure or table of a paper.

    Parameters
    ----------
    experiment : str or Config
        ``"fig5"``, the path of a configuration of your own, or a configuration.
    models : str, optional
        ``"sample"``, ``"lvis"`` or ``"caltech101"`` (see :func:`open_stand_in`), for semi-supervised alignment ``"synthetic"``, ``"imagenet1000"`` or
        ``"caltech101"`` (see :func:`open_unimodal`), for JAM these and ``"sugarcrepe"`` (see :func:`open_joint`), by default the configuration's
        first; ``"paper"`` for the models of the configuration; or models by name (see :func:`congruence.experiments.resolve_models`; for JAM an
        image and a text encoder by their folders, joined by ``/``, see :func:`open_features`).
    data : sequence of str, optional
        Data sets for models by name; by default the configuration's.
    file : path-like, optional
        For ``"lvis"``, ``"caltech101"``, ``"imagenet1000"`` and ``"sugarcrepe"``; for JAM's models the folder of their embeddings.
    root : path-like, optional
        Folder of the data sets, for models by name; for JAM the folder of SugarCrepe's JSON files.
    cache : path-like, optional
        Folder for embeddings, for models by name, ``root/embeddings`` by default; and for ``"sugarcrepe"``, by default none.
    seeds : int, optional
        Number of draws; by default the configuration's.
    quick : bool, default=False
        Fewer draws, anchors and steps: to see that everything works.
    collections : sequence of Collection, UnimodalData or JointData, optional
        Embeddings of your own, in place of ``models``.
    advance : callable, optional
        Called with 1 after each draw.
    log : callable, optional
        Told what is being embedded.
    **encoder_options
        ``device``, ``dtype``, ``batch_size`` and others of :func:`open_models`; for JAM's features the ``device`` to train on.

    Returns
    -------
    Outcome

    Raises
    ------
    ParameterError, InputError, FileError, MissingExtraError

    Examples
    --------
    >>> results = run("fig4", quick=True).results
    >>> row = next(r for r in results["rows"] if r["metric"] == "text_cosine" and r["quantity"] == "after")
    >>> row["mean"] > 0.5
    True
    """
    config = experiment if isinstance(experiment, Config) else load_config(experiment)
    models = models or next(iter(config.stand_ins), "sample")
    started = time.perf_counter()
    draws = check_positive(config.seeds if seeds is None else seeds, "seeds", integer=True)
    if quick:
        draws = min(draws, QUICK_DRAWS)
    opened = (
        list(collections)
        if collections is not None
        else _open(config, models, data, file=file, root=root, cache=cache, log=log, **encoder_options)
    )
    if not opened:
        raise InputError("Got no data; expected at least one collection. Pass models=…, or collections=….")
    seen = paper_seeds(draws) if config.family == "joint" else list(range(draws))
    job = Job(config, [], seen, quick, advance=advance)
    _hand_over(job, opened)
    function, resampled = KINDS[config.kind]
    function(job)
    pictures = _pictures(job)
    stand_ins = " and ".join(dict.fromkeys(data.stand_in for data in job.joint if data.stand_in))
    results = {
        "format": FORMAT,
        "experiment": config.name,
        "title": f"{config.title} [{stand_ins}]" if stand_ins else config.title,
        "ran_on": models if collections is None else "collections",
        "quick": quick,
        "seeds": job.seeds,
        "resampled": resampled.format(share=config.parameters.get("share", 1.0)),
        "config": config.to_dict(),
        "data": [collection.facts() for collection in opened],
        "notes": job.notes,
        "rows": job.ledger.rows(),
        "extra": job.extra,
        "versions": versions(),
        "seconds": round(time.perf_counter() - started, 3),
    }
    return Outcome(results, pictures)


def _open(
    config: Config,
    models: str,
    data: Sequence[str] | None,
    *,
    file: str | Path | None,
    root: str | Path | None,
    cache: str | Path | None,
    **options: Any,
) -> list[Any]:
    stand_ins = {"dual": STAND_INS, "alignment": ALIGNMENT_STAND_INS, "joint": JOINT_STAND_INS}[config.family]
    if config.family == "alignment" and models not in stand_ins:
        raise ParameterError(
            f"Got {models} for {config.name}; expected one of {', '.join(config.stand_ins)}: the paper's encoders and collections are not fetched "
            "from here. Embed them yourself, and pass collections=[UnimodalData(…)]."
        )
    if models in stand_ins:
        if data:
            raise ParameterError(
                f"Got data {', '.join(data)} for {models}, which brings its own; expected none. Leave out data=…."
            )
        if models not in config.stand_ins:
            raise ParameterError(
                f"Got {models} for {config.name}; expected one of {', '.join(config.stand_ins) or 'none'}, or the paper's models. Pass one of these as models=…."
            )
        if config.family == "joint":
            return [open_joint(models, file, config.variant, cache=cache, log=options.get("log"))]
        opened = open_unimodal if config.family == "alignment" else open_stand_in
        return [opened(models, file, config.variant)]
    named = config.models if models == "paper" else [models]
    if config.family == "joint":
        baselines = config.parameters.get("baselines", [])
        device = options.get("device", "auto")
        return [open_features(named, file, root, config.variant, baselines=baselines, device=device)]
    sets = list(data or config.data)
    if not named or not sets:
        raise ParameterError(
            f"Got {config.name} without models or data of its own; expected both. Pass models=… and data=…."
        )
    if root is None:
        raise ParameterError(
            f"Got no folder of data sets for {', '.join(sets)}; expected one. Pass root=… (or models='sample')."
        )
    place = Path(root).expanduser() / "embeddings" if cache is None else cache
    return [open_models(spec, name, root=root, cache=place, **options) for spec in named for name in sets]


def _hand_over(job: Job, opened: Sequence[Any]) -> None:
    """Give a job its data, and refuse what its kind has no use for."""
    by_family: dict[str, tuple[type, list[Any]]] = {
        "dual": (Collection, job.collections),
        "alignment": (UnimodalData, job.unimodal),
        "joint": (JointData, job.joint),
    }
    wanted, mine = by_family[job.config.family]
    if not all(isinstance(data, wanted) for data in opened):
        raise InputError(
            f"Got data of other encoders than {job.config.name} is about; expected {wanted.__name__}. Pass collections=… of this type."
        )
    mine.extend(opened)


def _pictures(job: Job) -> dict[str, bytes]:
    ids = []
    for example in job.extra.get("examples", []):
        ids += [example["query"]["id"], *(item["id"] for row in example["rows"].values() for item in row)]
    found = {}
    for i in dict.fromkeys(ids):
        for collection in job.collections:
            if collection.picture is not None and i in collection.captions:
                picture = collection.picture(i)
                if picture:
                    found[i] = picture
                    break
    return found


def versions() -> dict[str, str]:
    """Return the versions that numbers may depend on."""
    out = {"congruence": __version__, "python": platform.python_version()}
    for package in ("numpy", "scipy", "scikit-learn", "torch", "open_clip_torch", "transformers"):
        try:
            out[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return out


def listing() -> list[dict[str, Any]]:
    """Return every figure and table of the papers with what it runs on and what its own models need.

    Returns
    -------
    list of dict
        ``name``, ``title``, ``section``, ``kind``, ``runs_here`` (stand-ins), ``needs_weights``, ``needs_data``.
    """
    out: list[dict[str, Any]] = []
    for config in all_configs():
        weights = dict.fromkeys(name for spec in config.models for name in spec.split("/"))
        out.append(
            {
                "name": config.name,
                "title": config.title,
                "section": config.section,
                "kind": config.kind,
                "runs_here": config.stand_ins,
                "needs_weights": list(weights),
                "needs_data": config.data,
            }
        )
    for name, (why, section) in NOTHING_TO_RUN.items():
        entry = {"name": name, "title": why, "section": section, "kind": "nothing to run", "runs_here": []}
        out.append({**entry, "needs_weights": [], "needs_data": []})
    return sorted(out, key=lambda row: place(row["name"]))
