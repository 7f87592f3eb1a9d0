"""The configuration of an experiment, and one run of it: data, seeds and results."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, Generic

from congruence_papers.data import DataT
from congruence_papers.plain import Claim, ConfigFacts, Extra
from congruence_papers.results import Results

__all__ = ["QUICK_DRAWS", "Config", "Job"]

#: Maximum number of draws in a quick run.
QUICK_DRAWS = 2


@dataclass(frozen=True)
class Config:
    """One figure or table of a paper.

    Attributes
    ----------
    name : str
        ``"fig5"`` or ``"table1"`` for the Canonical paper; for other papers with the paper's name as a prefix, such as ``"jam-table2"``.
    title : str
        Title of the figure. Each run appends the data and models it used.
    section : str
        Section of the paper.
    kind : str
        Kind of experiment, a key of the :attr:`Study.kinds` of one study.
    models : list of str
        The paper's models, joined by ``/``: two are a pair, three a chain.
    data : list of str
        The paper's data sets.
    sample_data : list of str
        Data on which it can be run without the paper's weights, from the :attr:`Study.sample_data` of its study.
    variant : str or None
        Variant of the sample data that the experiment requires; see the ``open_sample`` of its study.
    seeds : int
        Number of draws.
    metrics : list of str
        Keys of the :attr:`Study.metrics` of its study, in the order of the figure's panels.
    parameters : dict
        Parameters of the kind.
    paper : dict
        ``claim``: the paper's statement about the figure. ``numbers``: numbers that the paper prints, or null if they can only be read off a plot.
        ``rules``: rules that decide whether the claim holds, see :mod:`congruence_papers.claims`.
    """

    name: str
    title: str
    section: str
    kind: str
    models: list[str] = field(default_factory=list)
    data: list[str] = field(default_factory=list)
    sample_data: list[str] = field(default_factory=list)
    variant: str | None = None
    seeds: int = 3
    metrics: list[str] = field(default_factory=list)
    parameters: dict[str, Any] = field(default_factory=dict)
    paper: Claim = field(default_factory=Claim)

    def models_named(self, models: str) -> list[str]:
        """Return the groups of models to run: those of the configuration for ``"paper"``, otherwise the group that ``models`` names."""
        return self.models if models == "paper" else [models]

    def to_dict(self) -> ConfigFacts:
        """Return all fields as plain data."""
        return {
            "name": self.name,
            "title": self.title,
            "section": self.section,
            "kind": self.kind,
            "models": [*self.models],
            "data": [*self.data],
            "sample_data": [*self.sample_data],
            "variant": self.variant,
            "seeds": self.seeds,
            "metrics": [*self.metrics],
            "parameters": deepcopy(self.parameters),
            "paper": deepcopy(self.paper),
        }


@dataclass
class Job(Generic[DataT]):
    """One run of an experiment.

    Attributes
    ----------
    config : Config
    data : list of Data
        Data of the study's type.
    seeds : list of int
        Seeds of the draws.
    quick : bool
        Use fewer draws, anchors and steps.
    results : Results
        The measured values; a kind adds to them.
    extra : dict
        Plain data for plots (clouds, kernels, examples) and records of tuning and training; a kind adds to them.
    notes : list of str
        Notes that a reader needs to interpret the results; a kind adds to them.
    callback : callable, optional
        Called with 1 after each draw.
    resampled : str
        Description of what the draws resample, if it differs from that of the kind.
    unchecked : str, optional
        Reason why the paper's claim does not apply to this run.
    """

    config: Config
    data: list[DataT]
    seeds: list[int]
    quick: bool = False
    results: Results = field(default_factory=Results)
    extra: Extra = field(default_factory=Extra)
    notes: list[str] = field(default_factory=list)
    callback: Callable[[int], None] | None = None
    resampled: str = ""
    unchecked: str | None = None

    def __getitem__(self, parameter: str) -> Any:
        return self.config.parameters[parameter]

    def size(self, data: DataT, key: str, default: object = None) -> Any:
        """Return a parameter from the configuration unless it is 0, empty or missing there, else from the data, else the default."""
        return self.config.parameters.get(key) or data.sizes.get(key, default)

    def tick(self) -> None:
        """Report that a draw is done."""
        if self.callback:
            self.callback(1)

    def add_scores(self, what: Mapping[str, object], scores: Mapping[str, float], quantity: str = "after") -> None:
        """Add those of the scores to the results that the configuration lists among its metrics."""
        listed = {metric: score for metric, score in scores.items() if metric in self.config.metrics}
        self.results.add_all(what, listed, quantity)

    def add_note(self, note: str) -> None:
        """Add a note, unless it is already there."""
        if note not in self.notes:
            self.notes.append(note)
