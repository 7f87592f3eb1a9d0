"""What a run of a paper's experiment gives, as types of the plain data that ``results.json`` holds."""

from __future__ import annotations

from typing import Literal, TypeAlias, TypedDict

from congruence.plotting.data import KernelPoints, LinesPanel

__all__ = [
    "AXES",
    "COLUMNS",
    "Axis",
    "Claim",
    "Cloud",
    "Column",
    "ConfigFacts",
    "Example",
    "ExperimentResults",
    "Extra",
    "Held",
    "Item",
    "Kernel",
    "Listed",
    "PaperCount",
    "Row",
    "Rule",
    "StandsFor",
    "Verdict",
]

#: Columns of a row that say what its number is of; a metric and a quantity stand in every row.
Axis: TypeAlias = Literal["data", "pair", "series", "part", "x", "quantity"]
AXES: tuple[Axis, ...] = ("data", "pair", "series", "part", "x", "quantity")

Column: TypeAlias = Literal["data", "pair", "series", "part", "x", "metric", "quantity"]
COLUMNS: tuple[Column, ...] = ("data", "pair", "series", "part", "x", "metric", "quantity")

Verdict: TypeAlias = Literal["yes", "partly", "no", "not checked"]


class Row(TypedDict):
    """One thing measured: its mean over the draws, its standard deviation (None for one draw), and the values themselves."""

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
    """A rule of a claim: in how many cases it held, and some of those in which it did not."""

    rule: str
    held: int
    of: int
    failed: list[dict[str, object]]


class Held(TypedDict):
    """Whether a claim held on the numbers measured; ``why`` says why it was not checked."""

    verdict: Verdict
    why: str | None
    rules: list[Rule]


class Claim(TypedDict, total=False):
    """What a paper says of its figure: its claim, numbers that it prints, and rules that say when the claim holds."""

    claim: str
    numbers: object
    rules: list[str] | None


class Cloud(TypedDict):
    """Points in two principal directions, by the model's side and modality."""

    title: str
    points: dict[str, list[list[float]]]


class Kernel(KernelPoints):
    """Image–text similarities in both models of a pair."""

    title: str


class Item(TypedDict):
    """An image by its id, and its class in words."""

    id: str
    text: str


class Example(TypedDict):
    """An image, the words read from it, what these were mapped to, and the images found, by way."""

    query: Item
    read: str
    mapped_to: str
    rows: dict[str, list[Item]]


class Extra(TypedDict, total=False):
    """What a kind of figure gives beside its numbers: for pictures, and what was chosen or trained on the way."""

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


class StandsFor(TypedDict):
    """The models and data of a paper that something stood in for."""

    models: list[str]
    data: list[str]


class ConfigFacts(TypedDict):
    """A configuration as plain data; see :class:`congruence.papers.Config`."""

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
    """Everything a run gave, as ``results.json`` holds it."""

    format: int
    experiment: str
    title: str
    stand_in: str | None
    stands_for: StandsFor | None
    claim: str
    held: Held
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


class Listed(TypedDict):
    """A figure or table of a paper, and what it runs on."""

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
    """Figures and tables of a paper, and how many experiments they are on sample data."""

    paper: str
    figures: int
    figure_experiments: int
    tables: int
    table_experiments: int
