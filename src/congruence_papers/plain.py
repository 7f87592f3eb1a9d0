"""Types of the plain data in ``results.json``, the results of a run of a paper's experiment."""

from __future__ import annotations

from typing import Literal, TypeAlias, TypedDict

from congruence.plotting.data import KernelPoints, LinesPanel

__all__ = [
    "AXES",
    "COLUMNS",
    "Axis",
    "Claim",
    "ClaimCheck",
    "Cloud",
    "Column",
    "ConfigFacts",
    "Example",
    "ExperimentResults",
    "Extra",
    "Item",
    "Kernel",
    "ListingEntry",
    "PaperCount",
    "ReplacedInputs",
    "Row",
    "Rule",
    "Verdict",
]

#: Columns that identify a value, besides the metric. The quantity is set in every row; the others may be None.
Axis: TypeAlias = Literal["data", "pair", "series", "part", "x", "quantity"]
AXES: tuple[Axis, ...] = ("data", "pair", "series", "part", "x", "quantity")

Column: TypeAlias = Literal["data", "pair", "series", "part", "x", "metric", "quantity"]
COLUMNS: tuple[Column, ...] = ("data", "pair", "series", "part", "x", "metric", "quantity")

Verdict: TypeAlias = Literal["yes", "partly", "no", "not checked"]


class Row(TypedDict):
    """One measured value: its mean over the draws, its standard deviation (None for one draw), and the value of each draw."""

    data: str | None
    pair: str | None
    series: str | None
    part: str | None
    x: float | None
    metric: str
    quantity: str
    mean: float
    sd: float | None
    n: int
    values: list[float]


class Rule(TypedDict):
    """The outcome of a claim's rule: in how many cases it held, and some of the cases in which it did not."""

    rule: str
    held: int
    of: int
    failed: list[dict[str, object]]


class ClaimCheck(TypedDict):
    """Whether a claim held for the measured values; ``why`` is the reason if it was not checked."""

    verdict: Verdict
    why: str | None
    rules: list[Rule]


class Claim(TypedDict, total=False):
    """A paper's statement about a figure: its claim, the numbers it reports, and the rules by which the claim is checked."""

    claim: str
    numbers: object
    rules: list[str] | None


class Cloud(TypedDict):
    """Points projected on two principal components, by side of the model and modality."""

    title: str
    points: dict[str, list[list[float]]]


class Kernel(KernelPoints):
    """Image–text similarities in both models of a pair, with a title."""

    title: str


class Item(TypedDict):
    """The id of an image and the name of its class."""

    id: str
    text: str


class Example(TypedDict):
    """An example query: an image, the text read from it, the text that this was edited or mapped to, and the images found by each path."""

    query: Item
    read: str
    mapped_to: str
    rows: dict[str, list[Item]]


class Extra(TypedDict, total=False):
    """Additional results of a kind of figure: data for plots, and records of tuning, training and tests."""

    axes: list[list[str | None]]
    clouds: list[Cloud]
    kernels: list[Kernel]
    curves: list[LinesPanel]
    examples: list[Example]
    templates: dict[str, list[str]]
    tuning: list[dict[str, object]]
    runs: list[dict[str, object]]
    order: list[dict[str, object]]
    item_tests: list[dict[str, object]]
    fronts: list[dict[str, object]]


class ReplacedInputs(TypedDict):
    """The models and data of the paper that were replaced by stand-ins."""

    models: list[str]
    data: list[str]


class ConfigFacts(TypedDict):
    """A configuration as plain data; see :class:`congruence_papers.Config`."""

    name: str
    title: str
    section: str
    kind: str
    models: list[str]
    data: list[str]
    sample_data: list[str]
    variant: str | None
    seeds: int
    metrics: list[str]
    parameters: dict[str, object]
    paper: Claim


class ExperimentResults(TypedDict):
    """All results of a run, as stored in ``results.json``."""

    format: int
    experiment: str
    title: str
    stand_in: str | None
    stands_for: ReplacedInputs | None
    claim: str
    held: ClaimCheck
    ran_on: str
    quick: bool
    seeds: list[int]
    resampled: str
    config: ConfigFacts
    data: list[dict[str, object]]
    notes: list[str]
    rows: list[Row]
    extra: Extra
    versions: dict[str, str]
    seconds: float


class ListingEntry(TypedDict):
    """A figure or table of a paper, with its sample data and requirements."""

    name: str
    paper: str
    title: str
    section: str
    kind: str
    runs_here: list[str]
    needs_weights: list[str]
    needs_data: list[str]
    same_experiment_here: list[str]
    published_weights_run: bool


class PaperCount(TypedDict):
    """Numbers of a paper's figures and tables, and of the distinct experiments that they are on sample data."""

    paper: str
    figures: int
    figure_experiments: int
    tables: int
    table_experiments: int
