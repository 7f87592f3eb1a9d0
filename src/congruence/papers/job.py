"""One run of an experiment: the configuration, the data, and what takes the numbers."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, Generic

from congruence.papers.data import DataT
from congruence.papers.plain import Claim, ConfigFacts, Extra
from congruence.papers.results import Results

__all__ = ["QUICK_DRAWS", "Config", "Job"]

#: Most draws in a quick run.
QUICK_DRAWS = 2


@dataclass(frozen=True)
class Config:
    """One figure or table of a paper.

    Attributes
    ----------
    name : str
        ``"fig5"``, ``"table1"``; those of other papers than the Canonical one begin with its name, ``"jam-table2"``.
    title : str
        What is shown. The data and models it is shown on are put behind it by each run.
    section : str
        Of the paper.
    kind : str
        A key of the :attr:`Study.kinds` of one study.
    models : list of str
        The paper's models, joined by ``/``: two make a pair, three a chain.
    data : list of str
        The paper's data sets.
    sample_data : list of str
        What it can be run on without the paper's weights, among the :attr:`Study.sample_data` of its study.
    variant : str or None
        What sample data must be like, see the ``open_sample`` of its study.
    seeds : int
        Number of draws of anchors or classes.
    metrics : list of str
        Keys of the :attr:`Study.metrics` of its study, in the order of the figure's panels.
    parameters : dict
        Of the kind.
    paper : dict
        ``claim``: what the paper says of the figure. ``numbers``: numbers its text gives; null where they can only
        be read off a plot. ``rules``: when the claim holds, see :mod:`congruence.papers.claims`.
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
        """Return the models that a caller named: its own for ``"paper"``, else the single group of names."""
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
        Of the type that the study opens.
    seeds : list of int
    quick : bool
        Fewer draws, anchors and steps.
    results : Results
        Takes the numbers.
    extra : dict
        Takes plain data for pictures: clouds, kernels, examples.
    notes : list of str
        Takes what a reader must know.
    callback : callable, optional
        Called with 1 after each draw.
    resampled : str
        What the draws resample, where it is not what the kind resamples otherwise.
    unchecked : str, optional
        Why the paper's claim does not apply to this run.
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
        """Return a parameter: what the configuration says, else what suits the data, else a default. 0 and nothing say nothing."""
        return self.config.parameters.get(key) or data.sizes.get(key, default)

    def tick(self) -> None:
        """Say that a draw is done."""
        if self.callback:
            self.callback(1)

    def add_note(self, note: str) -> None:
        """Add a note once."""
        if note not in self.notes:
            self.notes.append(note)
