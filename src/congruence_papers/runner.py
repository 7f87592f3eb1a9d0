"""Run a figure or table of a paper on available data."""

from __future__ import annotations

import importlib.metadata
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from congruence._utils.validation import check_positive
from congruence._version import __version__
from congruence.errors import InputError, ParameterError
from congruence_papers.claims import check_claim
from congruence_papers.config import load_config, with_parameters
from congruence_papers.data import Data, DataT
from congruence_papers.job import QUICK_DRAWS, Config, Job
from congruence_papers.panel_data import panels
from congruence_papers.plain import ClaimCheck, ExperimentResults
from congruence_papers.registry import kinds
from congruence_papers.study import Request, Study

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Outcome", "run", "title_of", "versions"]

#: Version of the format of ``results.json``.
FORMAT = 1


@dataclass(frozen=True)
class Outcome:
    """Result of :func:`run`.

    Attributes
    ----------
    results : dict
        Plain data: the mean, standard deviation and values of every quantity, what was resampled, seeds, versions, wall time, the configuration and
        the data; the ``title``, which includes the data and the stand-ins for the paper's models; the paper's ``claim`` and whether it ``held``.
    pictures : dict of str to bytes
        Thumbnails of the examples, by id.
    """

    results: ExperimentResults
    pictures: dict[str, bytes] = field(default_factory=dict)

    @property
    def claim(self) -> str:
        """The paper's claim about the figure."""
        return str(self.results["claim"])

    @property
    def held(self) -> ClaimCheck:
        """Whether the claim holds for the measured numbers; see :func:`congruence_papers.check_claim`."""
        return {**self.results["held"]}

    def plot(self, ax: Axes | None = None, *, panel: int = 0, annotate: bool = True) -> Axes:
        """Draw one panel of the figure; :func:`congruence.report.draw_experiment` draws all of them.

        Parameters
        ----------
        ax : matplotlib.axes.Axes, optional
            Axes to draw on; by default those of a new figure, which a notebook displays and which is not registered with pyplot.
        panel : int, default=0
            Index of the panel in :func:`congruence_papers.drawing`: 0 is (a).
        annotate : bool, default=True
            Add the title and labels that identify what is drawn.

        Returns
        -------
        matplotlib.axes.Axes

        Raises
        ------
        ParameterError
            If the figure has no such panel.
        """
        from congruence_papers.drawing import draw_panel

        shown = panels(self.results)
        if not 0 <= panel < len(shown):
            raise ParameterError(
                f"Got panel={panel}; expected 0 to {len(shown) - 1}. Pass the index of one of the {len(shown)} panels."
            )
        return draw_panel(shown[panel], ax, annotate=annotate)


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
    collections: Sequence[Data] | None = None,
    callback: Callable[[int], None] | None = None,
    log: Callable[[str], None] | None = None,
    **encoder_options: object,
) -> Outcome:
    """Run one figure or table of a paper.

    Parameters
    ----------
    experiment : str or Config
        ``"fig5"``, the path of a configuration of your own, or a configuration.
    models : str, optional
        Sample data of the configuration, by default its first: ``"sample"``, ``"lvis"`` or ``"caltech101"``
        (:func:`congruence_papers.canonical.open_sample`), ``"synthetic"``, ``"imagenet1000"`` or ``"caltech101"``
        (:func:`congruence_papers.sotalign.open_sample`), for JAM these and ``"sugarcrepe"`` (:func:`congruence_papers.jam.open_sample`).
        Otherwise ``"paper"`` for the models of the configuration, or models by name (:func:`congruence_papers.canonical.resolve_models`; for JAM an image and
        a text encoder, given as their folders joined by ``/``, :func:`congruence_papers.jam.open_features`).
    data : sequence of str, optional
        Data sets for models by name; by default the configuration's.
    file : path-like, optional
        File or folder of ``"lvis"``, ``"caltech101"``, ``"imagenet1000"`` or ``"sugarcrepe"``; for JAM's models the folder of their embeddings.
    root : path-like, optional
        Folder of the data sets, for models by name; for JAM the folder of SugarCrepe's JSON files.
    cache : path-like, optional
        Folder in which embeddings are cached: for models by name, by default ``root/embeddings``; for ``"sugarcrepe"``, by default none.
    seeds : int, optional
        Number of draws; by default the configuration's.
    quick : bool, default=False
        Use fewer draws, anchors and steps, for a quick test.
    captions : path-like, optional
        For figures 55 and 56 with models by name: captions of images or classes, see :func:`congruence.datasets.read_captions`; by default the
        configuration's ``captions``.
    edits : mapping of str to str, optional
        Classes to be replaced in the captions (``{"Birman": "Russian Blue"}``); by default the configuration's ``edits``.
    evaluation_templates : {"all", "single"}, optional
        Represent a class by the mean of all its templates, or by the first; by default the configuration's.
    collections : sequence of Data, optional
        Your own embeddings, instead of ``models``: ``Collection``, ``SOTAlignData`` or ``JAMData``, depending on the paper.
    callback : callable, optional
        Called with 1 after each draw.
    log : callable, optional
        Called with a description of what is being embedded.
    **encoder_options
        ``device``, ``dtype``, ``batch_size`` and others of :func:`congruence_papers.canonical.open_models`; for JAM's features the ``device`` to train on.

    Returns
    -------
    Outcome

    Raises
    ------
    ParameterError
        If the experiment is unknown, cannot run on these models, or its kind does not have an option.
    InputError
        If there are no data, they belong to another paper, or none of the metrics can be measured on them.
    FileError, CorruptFileError
        If a file is missing or damaged.
    MissingExtraError
        If an encoder or method needs a package that is not installed.

    Examples
    --------
    >>> results = run("fig4", quick=True).results
    >>> row = next(r for r in results["rows"] if r["metric"] == "text_cosine" and r["quantity"] == "after")
    >>> row["mean"] > 0.5
    True
    """
    config = experiment if isinstance(experiment, Config) else load_config(experiment)
    config = with_parameters(
        config,
        captions=None if captions is None else str(captions),
        edits=None if edits is None else dict(edits),
        evaluation_templates=evaluation_templates,
    )
    study = kinds()[config.kind]
    models = models or next(iter(config.sample_data), "sample")
    started = time.perf_counter()
    draws = check_positive(config.seeds if seeds is None else seeds, "seeds", integer=True)
    if quick:
        draws = min(draws, QUICK_DRAWS)
    request = Request(data=data, file=file, root=root, cache=cache, log=log, options=encoder_options)
    opened = list(collections) if collections is not None else _open(study, config, models, request)
    if not opened:
        raise InputError("Got no data; expected at least one collection. Pass models=…, or collections=….")
    if not all(isinstance(each, study.data_type) for each in opened):
        raise InputError(
            f"Got collections of another type for {config.name}; expected {study.data_type.__name__}. Pass collections=… of this type."
        )
    opened = [study.configure(config, each) for each in opened]
    job = Job(config, opened, study.seeds(draws), quick, callback=callback)
    kind = study.kinds[config.kind]
    kind.run(job)
    pictures = _pictures(job)
    rows = job.results.rows()
    stand_ins = _stand_ins(opened)
    results: ExperimentResults = {
        "format": FORMAT,
        "experiment": config.name,
        "title": title_of(config, opened),
        "stand_in": stand_ins or None,
        "stands_for": {"models": config.models, "data": config.data} if stand_ins else None,
        "claim": config.paper.get("claim", "none"),
        "held": check_claim(config.paper, rows, job.unchecked),
        "ran_on": models if collections is None else "collections",
        "quick": quick,
        "seeds": job.seeds,
        "resampled": job.resampled or kind.resampled.format(share=config.parameters.get("share", 1.0)),
        "config": config.to_dict(),
        "data": [each.facts() for each in opened],
        "notes": job.notes,
        "rows": rows,
        "extra": job.extra,
        "versions": versions(),
        "seconds": round(time.perf_counter() - started, 3),
    }
    return Outcome(results, pictures)


def title_of(config: Config, data: Sequence[Data]) -> str:
    """Return a title with the experiment, the data, and the stand-ins for the paper's models.

    Parameters
    ----------
    config : Config
    data : sequence of Data

    Returns
    -------
    str
        ``"Few classes are enough, on emoji [stand-in: two small models of emoji]"``.
    """
    names = ", ".join(dict.fromkeys(each.title or each.name for each in data))
    stand_ins = _stand_ins(data)
    return f"{config.title}, on {names}" + (f" [{stand_ins}]" if stand_ins else "")


def _stand_ins(data: Sequence[Data]) -> str:
    """Return the descriptions of all stand-ins; empty if there are none."""
    return " and ".join(dict.fromkeys(each.stand_in for each in data if each.stand_in))


def _open(study: Study[DataT], config: Config, models: str, request: Request) -> list[DataT]:
    """Open sample data or models by name. Raises ParameterError if an option does not apply to them."""
    if models not in study.sample_data:
        return study.open_models(config, models, request)
    if config.parameters.get("captions"):
        raise ParameterError(
            f"Got captions for {models}, whose encoders are not available to embed them; expected models by name. Pass models=… by name, or leave out captions=…."
        )
    if request.data:
        raise ParameterError(
            f"Got data {', '.join(request.data)} for {models}, which contains its own data; expected none. Leave out data=…."
        )
    if models not in config.sample_data:
        raise ParameterError(
            f"Got {models} for {config.name}; expected one of {', '.join(config.sample_data) or 'none'}, or the paper's models. Pass one of these as models=…."
        )
    return [study.open_sample(models, config.variant, request)]


def _pictures(job: Job[DataT]) -> dict[str, bytes]:
    """Return the thumbnails of the examples' images, by id."""
    ids = []
    for example in job.extra.get("examples", []):
        ids += [example["query"]["id"], *(item["id"] for row in example["rows"].values() for item in row)]
    pictures = {}
    for i in dict.fromkeys(ids):
        picture = next((thumbnail for data in job.data if (thumbnail := data.thumbnail(i))), None)
        if picture:
            pictures[i] = picture
    return pictures


def versions() -> dict[str, str]:
    """Return the versions of the packages that results may depend on."""
    return {**_installed()}


@cache  # cached, since each lookup searches the folders of all packages
def _installed() -> dict[str, str]:
    out = {"congruence": __version__, "python": platform.python_version()}
    for package in ("numpy", "scipy", "scikit-learn", "torch", "open_clip_torch", "transformers"):
        try:
            out[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return out
