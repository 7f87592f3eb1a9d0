"""Run an experiment on what is at hand, and list what there is."""

from __future__ import annotations

import importlib.metadata
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from congruence._check import check_positive
from congruence._version import __version__
from congruence.datasets import DATASETS
from congruence.errors import InputError, ParameterError
from congruence.experiments.alignment import UnimodalData
from congruence.experiments.captions import no_captions
from congruence.experiments.claims import check_claim
from congruence.experiments.config import (
    ALIGNMENT_STAND_INS,
    JOINT_STAND_INS,
    STAND_INS,
    Config,
    load_config,
    with_parameters,
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


@dataclass(frozen=True)
class Outcome:
    """What a run gave.

    Attributes
    ----------
    results : dict
        Plain data: every number with its mean, standard deviation and values, what was resampled, seeds, versions,
        wall time, the configuration and the data; ``title``, with the data that were run on and what stands for the paper's models; the paper's
        ``claim`` and whether it ``held``.
    pictures : dict of str to bytes
        Thumbnails of the examples, by id.
    """

    results: dict[str, Any]
    pictures: dict[str, bytes] = field(default_factory=dict)

    @property
    def claim(self) -> str:
        """What the paper says of its figure."""
        return str(self.results["claim"])

    @property
    def held(self) -> dict[str, Any]:
        """Whether that held on the numbers measured, see :func:`congruence.experiments.check_claim`."""
        return dict(self.results["held"])


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
    captions: str | Path | None = None,
    edits: Mapping[str, str] | None = None,
    evaluation_templates: str | None = None,
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
    captions : path-like, optional
        For figures 55 and 56 with models by name: captions of images or classes, see :func:`congruence.datasets.read_captions`; by default the
        configuration's ``captions``.
    edits : mapping of str to str, optional
        Classes to be replaced in the captions (``{"Birman": "Russian Blue"}``); by default the configuration's ``edits``.
    evaluation_templates : {"all", "single"}, optional
        Measure texts by the mean of all templates of a class, or by the first; by default the configuration's.
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
    given = {"captions": None if captions is None else str(captions), "edits": None if edits is None else dict(edits)}
    config = with_parameters(config, **given, evaluation_templates=evaluation_templates)
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
    opened = [
        replace(data, evaluation_templates=config.parameters.get("evaluation_templates", "all"))
        if isinstance(data, Collection)
        else data
        for data in opened
    ]
    seen = paper_seeds(draws) if config.family == "joint" else list(range(draws))
    job = Job(config, [], seen, quick, advance=advance)
    _hand_over(job, opened)
    function, resampled = KINDS[config.kind]
    function(job)
    pictures = _pictures(job)
    rows = job.ledger.rows()
    stand_ins = list(dict.fromkeys(data.stand_in for data in opened if data.stand_in))
    results = {
        "format": FORMAT,
        "experiment": config.name,
        "title": title_of(config, opened),
        "stand_in": " and ".join(stand_ins) or None,
        "stands_for": {"models": config.models, "data": config.data} if stand_ins else None,
        "claim": config.paper["claim"],
        "held": check_claim(config.paper, rows, job.unchecked),
        "ran_on": models if collections is None else "collections",
        "quick": quick,
        "seeds": job.seeds,
        "resampled": job.resampled or resampled.format(share=config.parameters.get("share", 1.0)),
        "config": config.to_dict(),
        "data": [collection.facts() for collection in opened],
        "notes": job.notes,
        "rows": rows,
        "extra": job.extra,
        "versions": versions(),
        "seconds": round(time.perf_counter() - started, 3),
    }
    return Outcome(results, pictures)


def title_of(config: Config, data: Sequence[Collection | UnimodalData | JointData]) -> str:
    """Return what was shown, on which data, and what stands for the paper's models.

    Parameters
    ----------
    config : Config
    data : sequence of Collection, UnimodalData or JointData

    Returns
    -------
    str
        ``"Few classes are enough, on emoji [stand-in: two small models of emoji]"``.
    """
    names = ", ".join(dict.fromkeys(own.title or own.name for own in data))
    stand_ins = " and ".join(dict.fromkeys(own.stand_in for own in data if own.stand_in))
    return f"{config.title}, on {names}" + (f" [{stand_ins}]" if stand_ins else "")


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
    captions = config.parameters.get("captions")
    if models in stand_ins:
        if captions:
            raise ParameterError(
                f"Got captions for {models}, whose encoders are not here to embed them; expected models by name. Pass models=… by name, or leave out captions=…."
            )
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
    if captions:
        options |= {"captions": captions, "edits": config.parameters["edits"]}
    elif config.kind == "edits":
        for name in sets:  # said before hours of embedding, not after
            if name in DATASETS and len(DATASETS[name].templates) == 1:
                raise no_captions(name, config.name)
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
