"""Interface of a study: the data, metrics, baselines and kinds of figures of one paper."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from congruence.errors import ParameterError
from congruence_papers.data import DataT
from congruence_papers.job import Config, Job

__all__ = ["Kind", "Request", "Study"]


@dataclass(frozen=True)
class Kind:
    """One kind of figure or table: the function that runs it, and its parameters.

    Attributes
    ----------
    run : callable
        Takes a :class:`Job` and adds scores to its results.
    resampled : str
        Description of what is resampled in each draw; ``{share}`` is replaced by the parameter of that name.
    parameters : dict
        Parameters and their defaults; a value must have the type of its default.
    """

    run: Callable[[Job[Any]], None]
    resampled: str
    parameters: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class Request:
    """Where to read the data of a run, from the arguments of :func:`congruence_papers.run`.

    Attributes
    ----------
    data : sequence of str, optional
        Names of data sets.
    file, root, cache : path-like, optional
    log : callable, optional
        Called with a description of what is being embedded.
    options : dict
        Options of the encoders.
    """

    data: Sequence[str] | None = None
    file: str | Path | None = None
    root: str | Path | None = None
    cache: str | Path | None = None
    log: Callable[[str], None] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


class Study(Protocol[DataT]):
    """The data, metrics, baselines and figures of one paper. A subclass sets the attributes and implements the methods that open data.

    Attributes
    ----------
    name : str
        Key of :data:`congruence_papers.STUDIES`.
    title : str
        Name of the paper for use in a sentence: ``"the Canonical paper"``.
    configs : Path
        Folder of its configurations, one YAML file per figure or table.
    data_type : type
        Type of the data that it opens, a subclass of :class:`Data`.
    sample_data : tuple of str
        Names of the data on which it runs without the paper's models.
    metrics : dict of str to str
        All metrics, with their axis labels.
    baselines : mapping
        The paper's method and the methods it is compared with, by their names in the ``methods`` of a configuration.
    kinds : dict of str to Kind
        Kinds of figures and tables. Each kind belongs to one study.
    choices : dict of str to tuple of str
        Allowed values of parameters that are strings.
    types : dict of str to type
        Pydantic types of parameters, if they differ from the types of the defaults; descriptions and examples appear in error messages.
    meanings : dict of str to str
        Descriptions of the parameters, for ``congruence reproduce --schema``.
    drawings : dict of str to (str, str)
        Figures and tables without numbers: the reason, and the section.
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
        """Return a hash by identity, so that functions of a study can be cached."""
        return object.__hash__(self)

    def open_sample(self, name: str, variant: str | None, request: Request) -> DataT:
        """Open data on which the paper's experiments run without the paper's models.

        Parameters
        ----------
        name : str
            One of :attr:`sample_data`.
        variant : str or None
            Variant that the configuration requests.
        request : Request

        Returns
        -------
        Data
        """
        ...

    def open_models(self, config: Config, models: str, request: Request) -> list[DataT]:
        """Open embeddings by the paper's models, or by others.

        Parameters
        ----------
        config : Config
        models : str
            ``"paper"`` for the models of the configuration, or names; see :meth:`Config.models_named`.
        request : Request

        Returns
        -------
        list of Data

        Raises
        ------
        ParameterError
            Always, unless a study overrides this method: by default only sample data can be opened by name.
        """
        raise ParameterError(
            f"Got {models} for {config.name}; expected one of {', '.join(config.sample_data)}, since the paper's encoders and "
            f"collections cannot be downloaded here. Embed the collections yourself, and pass file=… with their folder, or collections=[{self.data_type.__name__}(…)]."
        )

    def configure(self, config: Config, data: DataT) -> DataT:
        """Return the data adapted to a configuration; by default unchanged."""
        return data

    def seeds(self, draws: int) -> list[int]:
        """Return the seeds of a number of draws: 0, 1, 2, … by default."""
        return list(range(draws))

    def count(self, facts: Mapping[str, object]) -> str:
        """Return a description of the numbers of rows and of the split.

        Parameters
        ----------
        facts : mapping
            Result of :meth:`Data.facts`.

        Returns
        -------
        str
        """
        ...
