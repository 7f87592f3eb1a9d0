"""What a paper's folder and the runner agree on: a configuration, data, a run, and the study that brings them together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, asdict, dataclass, field
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from congruence.errors import ParameterError
from congruence.papers.results import Results

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
    paper: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain data."""
        return asdict(self)


@dataclass(frozen=True)
class Data:
    """What the data of every paper have in common.

    Attributes
    ----------
    name : str
        Of the data, in every row of the results.
    notes : tuple of str
        What a reader of the numbers must know.
    title : str
        What the data are, as it stands in titles; the name by default.
    stand_in : str, optional
        What stands for the paper's models and data. It is part of every title.
    """

    name: str
    _: KW_ONLY
    notes: tuple[str, ...] = ()
    title: str = ""
    stand_in: str | None = None

    def facts(self) -> dict[str, Any]:
        """Return what the data hold, as plain data."""
        return {"name": self.name, "title": self.title or self.name, "stand_in": self.stand_in}

    def thumbnail(self, item: str) -> bytes | None:
        """Return a small PNG, JPEG or WebP of an item, or None where there is none."""
        return None


DataT = TypeVar("DataT", bound=Data)


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
    advance : callable, optional
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
    extra: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    advance: Callable[[int], None] | None = None
    resampled: str = ""
    unchecked: str | None = None

    def __getitem__(self, parameter: str) -> Any:
        return self.config.parameters[parameter]

    def tick(self) -> None:
        """Say that a draw is done."""
        if self.advance:
            self.advance(1)

    def remark(self, note: str) -> None:
        """Add a note once."""
        if note not in self.notes:
            self.notes.append(note)


@dataclass(frozen=True)
class Kind:
    """One kind of figure or table: what runs it, and what a configuration may say of it.

    Attributes
    ----------
    run : callable
        Takes a :class:`Job` and adds numbers to its results.
    resampled : str
        What its draws resample; ``{share}`` is replaced by the parameter of that name.
    parameters : dict
        The parameters it has, with the value of each where a configuration leaves it out; the value's type is the type it must have.
    """

    run: Callable[[Job[Any]], None]
    resampled: str
    parameters: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Request:
    """Where a run is to take its data from, as the caller of :func:`congruence.papers.run` said.

    Attributes
    ----------
    data : sequence of str, optional
        Names of data sets.
    file, root, cache : path-like, optional
    log : callable, optional
        Told what is being embedded.
    options : dict
        Of the encoders.
    """

    data: Sequence[str] | None = None
    file: str | Path | None = None
    root: str | Path | None = None
    cache: str | Path | None = None
    log: Callable[[str], None] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


class Study(Protocol[DataT]):
    """One paper: its data, metrics, baselines and figures. A subclass sets the attributes and opens data.

    Attributes
    ----------
    name : str
        Key of :data:`congruence.papers.STUDIES`.
    title : str
        The paper within a sentence: ``"the Canonical paper"``.
    configs : Path
        Folder of its configurations, one YAML file a figure or table.
    data_type : type
        What it opens, a subclass of :class:`Data`.
    sample_data : tuple of str
        Names of the data it runs on without the paper's own models.
    metrics : dict of str to str
        Every metric, with the words of a figure's axis.
    baselines : mapping
        The paper's method and what it is compared with, by the names that ``methods`` of a configuration uses.
    kinds : dict of str to Kind
        Kinds of figures and tables. A kind belongs to one study.
    choices : dict of str to tuple of str
        Values that parameters may take, where these are words.
    checks : dict of str to callable
        By parameter, a function of the file's name and the value that raises :class:`ParameterError`, where the type alone does not decide.
    drawings : dict of str to (str, str)
        Figures and tables without numbers: why, and the section.
    """

    name: str
    title: str
    configs: Path
    data_type: type[DataT]
    sample_data: tuple[str, ...]
    metrics: Mapping[str, str]
    baselines: Mapping[str, Any]
    kinds: Mapping[str, Kind]
    choices: Mapping[str, tuple[str, ...]] = {}
    checks: Mapping[str, Callable[[str, Any], None]] = {}
    drawings: Mapping[str, tuple[str, str]] = {}

    def open_sample(self, name: str, variant: str | None, request: Request) -> DataT:
        """Open data on which the paper's experiments run without its own models.

        Parameters
        ----------
        name : str
            Among :attr:`sample_data`.
        variant : str or None
            Of the configuration.
        request : Request

        Returns
        -------
        Data
        """
        ...

    def open_models(self, config: Config, models: Sequence[str], request: Request) -> list[DataT]:
        """Open embeddings by the paper's own models, or by others.

        Parameters
        ----------
        config : Config
        models : sequence of str
            As in :attr:`Config.models`.
        request : Request

        Returns
        -------
        list of Data

        Raises
        ------
        ParameterError
            Always, unless a study replaces this: nothing but its sample data can be opened by name.
        """
        raise ParameterError(
            f"Got {' and '.join(models) or 'no models'} for {config.name}; expected one of {', '.join(config.sample_data)}: the paper's encoders and "
            f"collections are not fetched from here. Embed them yourself, and pass collections=[{self.data_type.__name__}(…)]."
        )

    def configure(self, config: Config, data: DataT) -> DataT:
        """Return data as a configuration wants them; they are left as they are by default."""
        return data

    def seeds(self, draws: int) -> list[int]:
        """Return the seeds of a number of draws: 0, 1, 2, … by default."""
        return list(range(draws))

    def count(self, facts: Mapping[str, Any]) -> str:
        """Return numbers of rows, and the split, in words.

        Parameters
        ----------
        facts : mapping
            What :meth:`Data.facts` returned.

        Returns
        -------
        str
        """
        ...
