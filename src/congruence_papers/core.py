"""What the papers share: experiments, their claims and data, and a run that collects what they measure."""

from __future__ import annotations

import ast
import json
import operator
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any, Generic, TypeAlias, TypeVar

import numpy as np

from congruence.errors import NotFiniteError, ParameterError, ShapeError, ZeroRowError

#: Columns that identify a measured value; the metric and the quantity are set in every row, the others may be None.
COLUMNS = ("data", "pair", "series", "part", "x", "metric", "quantity")

#: Maximum number of draws in a quick run.
QUICK_DRAWS = 2

#: A measured value: its columns, its mean over the draws, their standard deviation (None for one draw) and values.
Row = dict[str, Any]

_T = TypeVar("_T")


def check_choice(value: _T, choices: Iterable[_T], name: str) -> _T:
    """Return a value that is one of the choices."""
    listed = list(choices)
    if value not in listed:
        among = ", ".join(map(repr, listed)) or "none"
        raise ParameterError(f"Got {name} {value!r}; expected one of {among}.", "Pass one of these.")
    return value


def check_number(value: _T, name: str, *, zero: bool = False, integer: bool = False) -> _T:
    """Return a finite number that is positive, or with ``zero`` not negative."""
    number: Any = value
    numeric = isinstance(value, int | np.integer if integer else int | float | np.number)
    if isinstance(value, bool) or not numeric or not 0 <= number < np.inf or (number == 0 and not zero):
        expected = f"{'a whole' if integer else 'a finite'} number {'≥' if zero else '>'} 0"
        raise ParameterError(argument=name, got=value, expected=expected, fix=f"Pass `{name}=10`, for example.")
    return value


def check_same_rows(n_source: int, n_target: int, source: str, target: str) -> None:
    """Refuse two numbers of rows that differ."""
    if n_source != n_target:
        raise ShapeError(f"Got {n_source} {source} and {n_target} {target}; expected as many.", "Pass one for each.")


def check_embedded(rows: np.ndarray, what: str, count: int | None = None) -> None:
    """Refuse rows, shape (n, d), that are not finite, all zeros, or not ``count`` many."""
    for bad, kind, words in (
        (np.flatnonzero(~np.isfinite(rows).all(axis=1)), NotFiniteError, "NaN or infinity"),
        (np.flatnonzero(~np.asarray(rows).any(axis=1)), ZeroRowError, "nothing but zeros"),
    ):
        if len(bad):
            listed = ", ".join(map(str, bad[:5])) + ("" if len(bad) <= 5 else ", …")
            raise kind(f"{len(bad)} of {len(rows)} rows of {what} hold {words} (rows {listed}).", "Embed them again.")
    if count is not None and len(rows) != count:
        raise ShapeError(f"Got {len(rows)} {what}; expected {count}.", "Embed all of them with this encoder.")


@dataclass(frozen=True)
class Data:
    """Embeddings on which a paper's experiments run; each paper has a subclass with its arrays and its split.

    ``name``: in the rows of the results; ``sizes``: parameters of the experiments that fit these data better than the
    paper's values; ``notes``: what a reader needs to know to interpret the numbers; ``title``: in titles, by default
    the name; ``stand_in``: what replaces the paper's models and data, part of every title.
    """

    name: str
    _: KW_ONLY
    sizes: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    title: str = ""
    stand_in: str | None = None

    def contents(self) -> dict[str, object]:
        """Return shapes and counts, as plain data."""
        return {}

    def facts(self) -> dict[str, Any]:
        """Return a description of the data and their contents, as plain data."""
        named = {"name": self.name, "title": self.title or self.name, "stand_in": self.stand_in}
        return {**named, **self.contents(), "notes": list(self.notes)}

    def thumbnail(self, item: str) -> bytes | None:
        """Return a small PNG, JPEG or WebP of an item, or None if there is none."""
        return None


DataT = TypeVar("DataT", bound=Data)


class Values:
    """The measured means of one case, by metric; without rows it returns 1 and records what a claim asks for."""

    def __init__(self, rows: Sequence[Row] | None, case: Mapping[str, object]) -> None:
        self._rows, self._case = rows, case
        self.metrics: set[str] = set()
        self.selected: set[str] = set()
        #: Whether a row of exactly this case was asked for; scores of a model alone, which have no part and no x, do
        #: not suffice.
        self.complete = False

    def __call__(self, metric: str, quantity: str | None = None, **keys: object) -> float:
        """Return the mean of a metric after mapping, or of another ``quantity``."""
        self.metrics.add(metric)
        self.selected |= {*keys}
        if self._rows is None:
            return 1.0
        quantities = ("after", "value", "count") if quantity is None else (quantity,)
        rows = [row for row in self._rows if row["metric"] == metric and row["quantity"] in quantities]
        self.complete |= any(all(row[key] == own for key, own in self._case.items()) for row in rows)
        pairs = {row["pair"] for row in rows}
        if quantity == "before":  # rows of unlike widths cannot be compared unmapped: a random rotation in their place
            turned = (row for row in self._rows if (row["metric"], row["quantity"]) == (metric, "random_rotation"))
            rows += [row for row in turned if row["pair"] not in pairs]
        for key in ("data", "pair", "part", "series"):
            if keys.get(key) == "*":
                continue
            if key in keys:
                rows = [row for row in rows if row[key] == keys[key]]
            elif key in self._case:  # scores of a model alone are recorded once for all parts, with None as the part
                rows = [row for row in rows if row[key] in (self._case[key], None)]
        if "series" not in keys and rows:
            rows = [row for row in rows if row["series"] == rows[0]["series"]]
        x = keys.get("x", self._case.get("x"))
        if x in ("min", "max"):
            x = (min if x == "min" else max)((row["x"] for row in rows if row["x"] is not None), default=None)
        if x is not None:
            rows = [row for row in rows if row["x"] in (x, None)]
        if not rows or (len(rows) > 1 and "*" not in keys.values()):
            raise LookupError(metric)
        return float(np.mean([row["mean"] for row in rows]))


Number: TypeAlias = "Term | float"


@dataclass(frozen=True)
class Term:
    """A number that claims speak of: a mean of the case at hand (``mean``), or arithmetic with such numbers.

    A comparison of terms is a claim, and its own words.
    """

    words: str
    value: Callable[[Values], float]

    def __add__(self, other: Number) -> Term:
        other = _term(other)
        return Term(f"{self.words} + {other.words}", lambda v: self.value(v) + other.value(v))

    def __sub__(self, other: Number) -> Term:
        other = _term(other)
        return Term(f"{self.words} − {other.words}", lambda v: self.value(v) - other.value(v))

    def __rmul__(self, factor: float) -> Term:
        return Term(f"{factor} × {self.words}", lambda v: factor * self.value(v))

    def __abs__(self) -> Term:
        return Term(f"|{self.words}|", lambda v: abs(self.value(v)))

    def __gt__(self, bound: Number) -> Claim:
        return Claim(self, "above", _term(bound))

    def __ge__(self, bound: Number) -> Claim:
        return Claim(self, "at least", _term(bound))

    def __lt__(self, bound: Number) -> Claim:
        return Claim(self, "below", _term(bound))

    def __le__(self, bound: Number) -> Claim:
        return Claim(self, "at most", _term(bound))


def _term(value: Number) -> Term:
    return value if isinstance(value, Term) else Term(f"{value}", lambda _: value)


def mean(metric: str, quantity: str | None = None, **keys: object) -> Term:
    """Return the mean of a metric after mapping, or of another ``quantity``, where columns have the given values."""
    place = ", ".join(f"{key} {value}" if key == "x" else str(value) for key, value in keys.items() if value != "*")
    words = f"{metric}{f' {quantity}' if quantity else ''}{f' ({place})' if place else ''}"
    return Term(words, lambda v: v(metric, quantity, **keys))


def extreme(choose: Callable[[Iterable[float]], float], *terms: Term) -> Term:
    """Return the highest or the lowest of some numbers, as ``choose`` is max or min."""
    return Term(f"each of {', '.join(term.words for term in terms)}", lambda v: choose(term.value(v) for term in terms))


_RELATIONS = {"above": operator.gt, "at least": operator.ge, "below": operator.lt, "at most": operator.le}


@dataclass(frozen=True)
class Claim:
    """A statement of a paper about a figure: how two terms compare, in every case that was measured."""

    term: Term
    relation: str
    bound: Term

    @property
    def words(self) -> str:
        """The comparison as a sentence."""
        return f"{self.term.words} is {self.relation} {self.bound.words}"

    def judge(self, rows: Sequence[Row]) -> dict[str, Any]:
        """Return in how many cases the claim was checked (``of``) and ``held``, and up to four that ``failed``."""
        asked = Values(None, {})
        for term in (self.term, self.bound):
            term.value(asked)
        free = [key for key in ("data", "pair", "part", "x") if key not in asked.selected]
        held, checked = 0, 0
        failed: list[dict[str, Any]] = []
        for own in dict.fromkeys(tuple(row[key] for key in free) for row in rows if row["metric"] in asked.metrics):
            case = dict(zip(free, own, strict=True))
            values = Values(rows, case)
            try:
                value, bound = self.term.value(values), self.bound.value(values)
            except LookupError:  # not measured in this case
                continue
            if not values.complete:
                continue
            checked += 1
            holds = _RELATIONS[self.relation](value, bound)
            held += bool(holds)
            if not holds and len(failed) < 4:
                shown = {key: value for key, value in case.items() if value is not None}
                failed.append({**shown, "value": round(value, 4), "bound": round(bound, 4)})
        return {"claim": self.words, "held": held, "of": checked, "failed": failed}


#: Operators of a claim's text, and functions of terms; other names are metrics, called like ``mean``.
_OPERATORS: dict[type, Callable[..., Any]] = {
    **{ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul},
    **{ast.Gt: operator.gt, ast.GtE: operator.ge, ast.Lt: operator.lt, ast.LtE: operator.le},
}
_FUNCTIONS: dict[str, Any] = {"highest": partial(extreme, max), "lowest": partial(extreme, min), "abs": abs}


def read_claim(text: str) -> Claim:
    """Return the claim of a comparison in the syntax of Python.

    >>> read_claim("text_cosine(x='max') >= 0.95 * text_cosine('oracle')").words
    'text_cosine (x max) is at least 0.95 × text_cosine oracle'
    """

    def read(node: Any) -> Any:
        match node:
            case ast.Constant():
                return node.value
            case ast.Name():
                return mean(node.id)
            case ast.Call(func=ast.Name(id=name)):
                options = {str(word.arg): read(word.value) for word in node.keywords}
                return _FUNCTIONS.get(name, partial(mean, name))(*map(read, node.args), **options)
            case ast.BinOp():
                return _OPERATORS[type(node.op)](read(node.left), read(node.right))
            case ast.Compare(ops=[relation], comparators=[bound]):
                return _OPERATORS[type(relation)](read(node.left), read(bound))
        raise ValueError(f"{ast.unparse(node)} in a claim")

    claim: Claim = read(ast.parse(text, mode="eval").body)
    return claim


def judge(claims: Sequence[Claim], rows: Sequence[Row], unchecked: str | None = None) -> dict[str, Any]:
    """Check the claims of an experiment, unless the reason ``unchecked`` says why they do not apply to this run.

    The ``verdict`` is "yes" if all held in every case, "no" if none in any, "partly", or "not checked" (``why``).
    """
    found = [] if unchecked else [claim.judge(rows) for claim in claims]
    held, checked = sum(one["held"] for one in found), sum(one["of"] for one in found)
    verdict, why = "partly" if held else "no", None
    if not checked:
        missing = "the numbers that it needs were not measured" if found else "it has no statement about numbers"
        verdict, why = "not checked", unchecked or missing
    elif held == checked and all(one["of"] for one in found):
        verdict = "yes"
    return {"verdict": verdict, "why": why, "claims": found}


@dataclass(frozen=True)
class Study:
    """How experiments of one kind are measured; each draw resamples ``resampled``."""

    measure: Callable[[ExperimentJob[Any]], None]
    resampled: str
    parameters: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Experiment:
    """One figure or table of a paper.

    ``name``: ``"fig5"`` for the Canonical paper; for other papers with their name as a prefix, such as ``"jam-
    table2"``; ``kind``: a key of ``Paper.kinds``; ``claim``: the paper's statement about the figure; ``claims``:
    the parts of it that are checked; ``models``: the paper's models, joined by ``/``: two are a pair, three a chain;
    ``data``: its data sets; ``sample_data``: data to run on without the paper's weights, the first by default;
    ``variant``: variant of the sample data that it needs; ``seeds``: number of draws; ``metrics``: keys of
    ``Paper.metrics``, in the order of the panels; ``parameters``: those of the kind, where they differ from its
    defaults; ``numbers``: those that the paper prints.
    """

    name: str
    title: str
    section: str
    kind: str
    claim: str
    claims: tuple[Claim, ...] = ()
    _: KW_ONLY
    models: tuple[str, ...] = ()
    data: tuple[str, ...] = ()
    sample_data: tuple[str, ...] = ()
    variant: str | None = None
    seeds: int = 3
    metrics: tuple[str, ...] = ()
    parameters: Mapping[str, Any] = field(default_factory=dict)
    numbers: Mapping[str, Any] | None = None

    def facts(self) -> dict[str, Any]:
        """Return the description as plain data."""
        facts = {name: value for name, value in vars(self).items() if name != "claims"}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in facts.items()}


@cache
def told(paper: str) -> dict[str, Any]:
    """Return what ``experiments.json`` says of a paper."""
    facts: dict[str, Any] = json.loads(Path(__file__).with_name("experiments.json").read_bytes())[paper]
    return facts


def told_of_sample(paper: str, name: str, **numbers: object) -> dict[str, Any]:
    """Return title, stand-in, sizes and notes of data that replace a paper's; the notes mention the numbers."""
    facts: dict[str, Any] = told(paper)["samples"][name]
    return facts | {key: tuple(note.format(**numbers) for note in facts[key]) for key in ("notes",) if key in facts}


def described(
    paper: str, studies: Iterable[Callable[[ExperimentJob[Any]], None]]
) -> tuple[tuple[Experiment, ...], dict[str, Study], dict[str, str], dict[str, tuple[str, str]]]:
    """Return a paper's experiments, kinds, metrics and drawings as ``experiments.json`` describes them.

    A kind is measured by the study of its name. An entry describes several figures, with what differs between them.
    """
    facts = told(paper)
    by_name = {study.__name__: study for study in studies}
    kinds = {kind: Study(by_name[kind.removeprefix(f"{paper}_")], **own) for kind, own in facts["kinds"].items()}
    experiments = []
    for entry in facts["experiments"]:
        for name, own in entry["figures"].items():
            values = {"claims": [], **facts["defaults"], **entry, **own}
            del values["figures"]
            values["claims"] = list(map(read_claim, values["claims"]))
            values |= {key: tuple(value) for key, value in values.items() if isinstance(value, list)}
            experiments.append(Experiment(name, **values))
    drawings = {name: (why, section) for name, (why, section) in facts["drawings"].items()}
    return tuple(experiments), kinds, facts["metrics"], drawings


@dataclass(frozen=True)
class Paper:
    """A paper: its experiments, and how its data are opened.

    ``experiments`` to ``drawings`` are what ``described`` returns: ``metrics`` are axis labels, ``drawings`` figures
    and tables without numbers, with the reason and the section; ``data_type``: type of its data, of ``Data``;
    ``open_sample``: ``open_sample(name, file, variant, cache=…, log=…)`` opens data that replace the paper's;
    ``open_models``: ``open_models(experiment, models, data=…, file=…, root=…, cache=…, log=…, **options)`` opens
    embeddings by models; ``count``: words for the numbers of rows in ``Data.facts``; ``choices``: allowed values of
    parameters that are names; ``ranges``: allowed values of other parameters, in words and as a condition; ``seeds``:
    seeds of a number of draws; ``files``: what a folder of embeddings holds for one of ``Experiment.models`` and its
    data.
    """

    name: str
    title: str
    experiments: tuple[Experiment, ...]
    kinds: Mapping[str, Study]
    metrics: Mapping[str, str]
    drawings: Mapping[str, tuple[str, str]]
    data_type: type[Data]
    sample_data: tuple[str, ...]
    open_sample: Callable[..., Data]
    open_models: Callable[..., Sequence[Data]]
    count: Callable[[Mapping[str, Any]], str]
    choices: Mapping[str, Collection[str]] = field(default_factory=dict)
    ranges: Mapping[str, tuple[str, Callable[[Any], bool]]] = field(default_factory=dict)
    seeds: Callable[[int], list[int]] = lambda draws: list(range(draws))
    files: Callable[[Sequence[str], Sequence[str]], list[str]] = lambda models, data: [
        f"{model}/{one}" for model in models for one in data
    ]

    def parameters(self, experiment: Experiment, changed: Mapping[str, Any]) -> dict[str, Any]:
        """Return the parameters of an experiment with some changed, after checking these."""
        defaults = self.kinds[experiment.kind].parameters
        for name, value in changed.items():
            if name not in defaults:
                among = ", ".join(defaults) or "none"
                raise ParameterError(f"{experiment.name} has no parameter {name}, but {among}.", "Pass one of these.")
            words, right = self._check(name, value, defaults[name])
            if not right:
                raise ParameterError(f"Got {name} {value!r}; expected {words}.", "Pass such a value.")
        return {**defaults, **experiment.parameters, **changed}

    def _check(self, name: str, value: Any, default: Any) -> tuple[str, bool]:
        """Return what is allowed, and whether a value is: a choice, in range, or of the same type as the default."""
        if name in self.ranges:
            words, allowed = self.ranges[name]
            try:
                return words, allowed(value)
            except TypeError:
                return words, False
        several = isinstance(default, list)
        if several and not isinstance(value, list | tuple):
            return "a list", False
        values = value if several else [value]
        if name in self.choices:
            words = f"{'some' if several else 'one'} of {', '.join(self.choices[name])}"
            return words, all(one in self.choices[name] for one in values)
        if name == "dual_encoders":
            return "a list of names", all(isinstance(one, str) for one in values)
        if several or type(default) is int:
            least = 2 if several else 1
            words = "a list of whole numbers from 2" if several else "a whole number of at least 1"
            return words, all(type(one) is int and one >= least for one in values)
        return {bool: "true or false", str: "text", dict: "a mapping"}[type(default)], type(value) is type(default)


@dataclass
class ExperimentJob(Generic[DataT]):
    """One run of an experiment: what it runs on, and what it measured.

    ``extra`` is plain data for plots and records of tuning and training; ``notes`` are what a reader needs to know;
    ``resampled`` is what the draws resample, if not what the kind says; ``unchecked`` why the claim does not apply.

    >>> job = ExperimentJob(None, [], [0, 1], {})
    >>> job.add({"data": "sample", "metric": "text_cosine", "quantity": "after"}, 0.5)
    >>> job.add({"data": "sample", "metric": "text_cosine", "quantity": "after"}, 0.7)
    >>> row = job.rows()[0]
    >>> round(row["mean"], 3), round(row["sd"], 3), row["n"]
    (0.6, 0.141, 2)
    """

    experiment: Experiment
    data: list[DataT]
    seeds: list[int]
    parameters: Mapping[str, Any]
    quick: bool = False
    extra: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    callback: Callable[[int], None] | None = None
    resampled: str = ""
    unchecked: str | None = None
    _values: dict[tuple[Any, ...], list[float]] = field(default_factory=dict)

    def __getitem__(self, parameter: str) -> Any:
        return self.parameters[parameter]

    @property
    def metrics(self) -> tuple[str, ...]:
        """The metrics to measure."""
        return self.experiment.metrics

    def size(self, data: DataT, key: str, default: object = None) -> Any:
        """Return a parameter unless it is 0, empty or missing, else the one of the data, else the default."""
        return self.parameters.get(key) or data.sizes.get(key, default)

    def tick(self) -> None:
        """Report that a draw is done."""
        if self.callback:
            self.callback(1)

    def add(self, what: Mapping[str, Any], value: float) -> None:
        """Add one value, identified by ``COLUMNS``."""
        self._values.setdefault(tuple(what.get(column) for column in COLUMNS), []).append(float(value))

    def add_all(self, what: Mapping[str, Any], values: Mapping[str, float], quantity: str = "after") -> None:
        """Add one value per metric."""
        for metric, value in values.items():
            self.add({**what, "metric": metric, "quantity": quantity}, value)

    def add_listed(self, what: Mapping[str, Any], values: Mapping[str, float], quantity: str = "after") -> None:
        """Add the values of those metrics that the experiment lists, in its order."""
        self.add_all(what, {metric: values[metric] for metric in self.metrics if metric in values}, quantity)

    def add_note(self, note: str) -> None:
        """Add a note, unless it is already there."""
        if note not in self.notes:
            self.notes.append(note)

    def rows(self) -> list[Row]:
        """Return one row per group of values; the standard deviation has n − 1, and is None for one value."""
        return [
            {
                **dict(zip(COLUMNS, columns, strict=True)),
                "mean": float(np.mean(values)),
                "sd": float(np.std(values, ddof=1)) if len(values) > 1 else None,
                "n": len(values),
                "values": values,
            }
            for columns, values in self._values.items()
        ]
