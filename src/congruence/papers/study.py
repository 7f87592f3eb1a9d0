"""What a paper's folder brings: one study, with its data, metrics, baselines and kinds of figure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from congruence.errors import ParameterError
from congruence.papers.data import DataT
from congruence.papers.job import Config, Job

__all__ = ["Kind", "Request", "Study"]


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
    parameters: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class Request:
    """Where a run is to take its data from, as the caller of :func:`congruence.papers.run` said.

    Attributes
    ----------
    data : sequence of str, optional
        Names of data sets.
    file, root, cache : path-like, optional
    log : callable, optional
        Called with a description of what is being embedded.
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
    types : dict of str to type
        Types of parameters as pydantic takes them, where they are not those of their defaults; a description and an example are for messages.
    meanings : dict of str to str
        What each parameter says, in words: for ``congruence reproduce --schema``.
    drawings : dict of str to (str, str)
        Figures and tables without numbers: why, and the section.
    """

    name: str
    title: str
    configs: Path
    data_type: type[DataT]
    sample_data: tuple[str, ...]
    metrics: Mapping[str, str]
    baselines: Mapping[str, object]
    kinds: Mapping[str, Kind]
    choices: Mapping[str, tuple[str, ...]] = {}
    types: Mapping[str, object] = {}
    meanings: Mapping[str, str] = {}
    drawings: Mapping[str, tuple[str, str]] = {}

    def __hash__(self) -> int:
        """Return a number of this object: a study is the same for as long as it is registered."""
        return object.__hash__(self)

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

    def open_models(self, config: Config, models: str, request: Request) -> list[DataT]:
        """Open embeddings by the paper's own models, or by others.

        Parameters
        ----------
        config : Config
        models : str
            ``"paper"`` for those of the configuration, or names; see :meth:`Config.models_named`.
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
            f"Got {models} for {config.name}; expected one of {', '.join(config.sample_data)}: the paper's encoders and "
            f"collections are not fetched from here. Embed them yourself, and pass file=…, their folder, or collections=[{self.data_type.__name__}(…)]."
        )

    def configure(self, config: Config, data: DataT) -> DataT:
        """Return data as a configuration wants them; they are left as they are by default."""
        return data

    def seeds(self, draws: int) -> list[int]:
        """Return the seeds of a number of draws: 0, 1, 2, … by default."""
        return list(range(draws))

    def count(self, facts: Mapping[str, object]) -> str:
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
