"""Train from files: ``run_recipe`` reads, splits, trains and scores what a recipe names."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from congruence._utils.display import short
from congruence._utils.ids import id_rows
from congruence._utils.plain import as_plain
from congruence._utils.validation import check_same_rows
from congruence._utils.yaml import find_line, parse_yaml, read_yaml
from congruence.embeddings import Embeddings, Pairs, Space
from congruence.errors import CorruptFileError, InputError, ParameterError, TeacherWarning
from congruence.evaluation.compositional import recall_by_task
from congruence.io import open_rows, open_source, read_column, read_embeddings, read_links
from congruence.maps import HeadsMap
from congruence.splits import Split, duplicate_groups, unpaired_pools, warn_duplicates
from congruence.train import METHODS, make_method
from congruence.train.jam import Captions, read_captions
from congruence.train.retrieval import recalls, unique_pairs
from congruence.train.rows import Rows
from congruence.train.tuning import Tuned, tune

#: Default shares of the pairs for validation and for the test, and those of a method whose paper uses other shares.
_SHARES = (0.0, 0.0)
_OTHER_SHARES = {"jam": (0.15, 0.15)}

#: Parameter of a method's ``fit`` that each entry of a recipe requires.
_FIT_PARAMETERS = {
    "unpaired_source": "unpaired",
    "unpaired_target": "unpaired",
    "keep_pairs": "unpaired",
    "overlap": "unpaired",
    "negatives": "negatives",
    "tasks": "negatives",
}

MEMORY = 2**30  # size in bytes above which a file of unpaired rows is streamed instead of read into memory
OPTIONS = 5  # number of captions to choose from if each pair has one wrong caption: the paper's 5-way task

#: Unpaired rows of one side, one entry per file.
Unpaired: TypeAlias = list[Embeddings | Rows] | None


def _takes(method: object, parameter: str) -> bool:
    """Return whether a method, or its class, learns from an argument of this name."""
    return parameter in inspect.signature(method.fit).parameters  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Recipe:
    """A training run of ``congruence train``.

    - ``method``: A key of ``congruence.train.METHODS``; "self_trained" by default.
    - ``pairs``: Files of the paired rows, source and target (``file`` or ``file:key``); paired by id if both have
      ids, otherwise by position.
    - ``links``: A file of pairs of ids (``congruence.io.read_links``), for items that have others on the other side.
    - ``unpaired_source``, ``unpaired_target``: Files of rows without a partner.
    - ``validation``, ``test``: Pairs to choose by, and for a final test that no choice sees: a share of all pairs
      (below 1), a number of pairs, or files of other pairs. By default 0 of both; for JAM 0.15 each. Pairs that
      validate are trained on after the choice, except in files and for JAM. Without, a grid is chosen from by folds.
    - ``keep_pairs``: Train on this many of the remaining pairs; the others become unpaired rows.
    - ``overlap``: With ``keep_pairs``: share of the items in each pool of unpaired rows that are in the other pool
      too. By default 0: one side of each pair that is not kept is used, as with data that were never paired.
    - ``parameters``, ``grid``: Parameters of the method, and values to choose among by retrieval of left-out pairs.
    - ``seed``: Random seed of the held-out pairs and of the training; 0 by default, for JAM the paper's 5.
    - ``groups``: Which pairs stay in the same part of the split, and count as hits for each other in retrieval:
      ``"identical"``, those with identical vectors on either side (``congruence.splits.duplicate_groups``);
      ``"none"``; or a file with one label, such as the image, per row of the target's file.
    - ``negatives``, ``tasks``: JAM: files of wrong captions, one or several for each row of the target, and of the kind
      of each wrong caption, to report scores by kind.
    """

    method: str
    pairs: tuple[str, str]
    unpaired_source: tuple[str, ...] = ()
    unpaired_target: tuple[str, ...] = ()
    validation: float | int | tuple[str, str] | None = None
    test: float | int | tuple[str, str] | None = None
    keep_pairs: int | None = None
    overlap: float | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    grid: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    seed: int | None = None
    groups: str = "identical"
    negatives: str | None = None
    tasks: str | None = None
    links: str | None = None

    def __post_init__(self) -> None:
        _check_entries(self.to_dict())
        validation, test = _OTHER_SHARES.get(self.method, _SHARES)
        seed = self.default_parameters.get("random_state", 0)
        for name, value in {"validation": validation, "test": test, "seed": seed}.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)
        for name, parameter in _FIT_PARAMETERS.items():
            if getattr(self, name) and not _takes(METHODS[self.method], parameter):
                rows = {"unpaired": "unpaired rows", "negatives": "wrong captions, which are for jam"}[parameter]
                problem = f"Got {name} for {self.method}, which does not learn from {rows}."
                raise ParameterError(problem, f"Leave out `{name}=…`.")
        if self.overlap is not None and self.keep_pairs is None:
            fix = "Pass `keep_pairs=…`, or leave out overlap."
            raise ParameterError(f"Got `overlap={self.overlap!r}` without keep_pairs.", fix)
        if self.tasks is not None and self.negatives is None:
            raise ParameterError("Got tasks without negatives; expected both.", "Pass `negatives=…`.")
        by_row = [name for name in ("negatives", "tasks") if getattr(self, name)]
        by_row += ["groups"] * (self.groups not in ("identical", "none"))
        if self.links is not None and by_row:
            problem = f"Got links with {by_row[0]}, which are in the order of rows that links repeat."
            raise ParameterError(problem, f"Leave out `{by_row[0]}=…`.")
        if self.grid and self.validation == 0 and not self.by_folds:
            fix = "Pass `validation=0.1`, for example."
            raise ParameterError("Got a grid without validation pairs to choose by.", fix)

    @property
    def by_folds(self) -> bool:
        """Whether the method leaves pairs out by itself and uses them in the end; JAM takes held-out rows."""
        return not (isinstance(self.validation, tuple) or _takes(METHODS[self.method], "negatives"))

    @property
    def criterion(self) -> str:
        """Name of the score by which points of the grid are compared."""
        return "reciprocal_rank" if self.by_folds else METHODS[self.method].criterion

    @property
    def default_parameters(self) -> dict[str, object]:
        """The method's parameters with their defaults."""
        return make_method(self.method).get_params()

    def to_dict(self) -> dict[str, object]:
        """Return the recipe as plain data, in the form that ``make_recipe`` accepts."""
        return {f.name: as_plain(getattr(self, f.name)) for f in fields(self)}


def read_recipe(path: str | Path, **changes: Any) -> Recipe:
    """Read a recipe from a YAML file; ``changes`` replace entries, or are merged into ``parameters`` and ``grid``."""
    text = read_yaml(path, "a recipe")
    entries = parse_yaml(text, str(path))
    if not isinstance(entries, dict):
        problem = f"Got {type(entries).__name__} in {path}, no mapping."
        raise CorruptFileError(problem, "Write lines such as 'method: sotalign'.")

    def locate(*keys: str) -> str:
        line = find_line(text, keys)
        return str(path) if line is None else f"{path}, line {line}"

    return _make(entries, changes, locate)


def make_recipe(entries: Mapping[str, Any], **changes: Any) -> Recipe:
    """Build a recipe from plain data; see ``read_recipe``."""
    return _make(entries, changes, lambda *keys: "")


def _make(entries: Mapping[str, Any], changes: Mapping[str, Any], locate: Callable[..., str]) -> Recipe:
    """Build a recipe; ``locate`` returns the place of an entry."""
    replaced: set[tuple[str, ...]] = set()
    for name, value in changes.items():
        if value is not None:
            present = entries.get(name) or {}
            merged = isinstance(value, Mapping) and isinstance(present, Mapping)
            entries = {**entries, name: {**present, **value} if merged else value}
            replaced |= {(name, key) for key in value} if merged else {(name,)}
    entries = {"method": "self_trained", **entries}
    if "pairs" not in entries:
        raise ParameterError("Got a recipe without 'pairs'.", "Add it to the recipe, or pass `pairs=…`.")
    plain: dict[str, Any] = as_plain(entries)
    for name in ("unpaired_source", "unpaired_target"):
        if isinstance(plain.get(name), str):
            plain[name] = [plain[name]]
    _check_entries(plain, lambda *keys: "" if {keys[:1], keys[:2]} & replaced else locate(*keys))
    plain = {name: tuple(value) if isinstance(value, list) else value for name, value in plain.items()}
    return Recipe(**plain)


# ------------------------------------------------------------------ what entries may be: YAML has yes, 1, 1.0 and "1"


class _Expected(NamedTuple):
    """What an entry may be: its check, in words, an example, and whether it may be None."""

    fits: Callable[[Any], bool]
    words: str
    example: object
    optional: bool = False


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 2**63


def _is_whole(value: object, least: int = 0) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value < 2**63


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value)


def _is_list(fits: Callable[[Any], bool], value: object) -> bool:
    return isinstance(value, list) and all(map(fits, value))


_is_files, _is_numbers = partial(_is_list, _is_text), partial(_is_list, _is_number)


def _is_pair(value: object) -> bool:
    return _is_files(value) and len(value) == 2  # type: ignore[arg-type]


def _is_held_out(value: object) -> bool:
    return (isinstance(value, float) and 0 <= value < 1) or _is_whole(value) or _is_pair(value)


def _is_grid(value: object) -> bool:
    return isinstance(value, Mapping) and all(isinstance(one, list) and one for one in value.values())


_HELD_OUT = _Expected(_is_held_out, "a share below 1, a number of pairs, or two files", 0.1, True)

_ENTRIES = {
    "method": _Expected(METHODS.__contains__, f"one of {', '.join(METHODS)}", "sail"),
    "pairs": _Expected(_is_pair, "two files", ["images.npz", "texts.npz"]),
    "unpaired_source": _Expected(_is_files, "a list of files", ["images.npz"]),
    "unpaired_target": _Expected(_is_files, "a list of files", ["texts.npz"]),
    "validation": _HELD_OUT,
    "test": _HELD_OUT,
    "keep_pairs": _Expected(partial(_is_whole, least=1), "a whole number > 0", 100, True),
    "overlap": _Expected(lambda value: _is_number(value) and 0 <= value <= 1, "a share from 0 to 1", 0.0, True),
    "parameters": _Expected(
        lambda value: isinstance(value, Mapping), "a mapping of names to values", {"max_steps": 99}
    ),
    "grid": _Expected(_is_grid, "a mapping of names to lists of values", {"divergence_weight": [0.1, 1.0]}),
    "seed": _Expected(_is_whole, "a whole number from 0 to 2^63 − 1", 0, True),
    "groups": _Expected(_is_text, "'identical', 'none' or a file", "identical"),
    "negatives": _Expected(_is_text, "a file", "negatives.npz", True),
    "tasks": _Expected(_is_text, "a file", "tasks.csv", True),
    "links": _Expected(_is_text, "a file", "pairs.csv", True),
}


def _parameter(default: Any) -> _Expected:
    """Return what a parameter of a method may be, by its default; numbers are valid too where it is a string."""
    if isinstance(default, bool):
        return _Expected(lambda value: isinstance(value, bool), "true or false", default)
    if isinstance(default, int):
        return _Expected(_is_whole, "a whole number ≥ 0", default, True)
    if isinstance(default, float) or default is None:
        return _Expected(lambda value: _is_number(value) or _is_numbers(value), "a number", default, True)
    if isinstance(default, tuple):
        return _Expected(_is_numbers, "a list of numbers", list(default))
    return _Expected(lambda value: isinstance(value, str) or _is_number(value), "a name", default, True)


def _check_entries(entries: Mapping[str, Any], locate: Callable[..., str] = lambda *keys: "") -> None:
    """Refuse entries that are unknown or of the wrong type; ``locate`` returns the file and line of an entry."""
    _check(entries, _ENTRIES, locate)
    method = entries["method"]
    known = {name: _parameter(value) for name, value in make_method(method).get_params().items()}
    _check(entries.get("parameters", {}), known, partial(locate, "parameters"), f" in parameters of {method}")
    for name, values in entries.get("grid", {}).items():
        for value in values:
            _check({name: value}, known, partial(locate, "grid"), f" in grid of {method}")


def _check(
    entries: Mapping[Any, Any], known: Mapping[str, _Expected], locate: Callable[..., str], group: str = ""
) -> None:
    """Refuse unknown entries first, since a missing one may be one that is misspelled, then those of the wrong type."""
    for name in entries:
        if name not in known:
            place = f" in {at}" if (at := locate(str(name))) else ""
            problem = f"Got {short(repr(str(name)))}{group}{place}; expected one of {', '.join(known) or 'none'}."
            meant = get_close_matches(str(name), known, 1)
            raise ParameterError(problem, f"Write {meant[0]} instead." if meant else "Leave it out.")
    for name, value in entries.items():
        expected = known[name]
        if (value is None and expected.optional) or (value is not None and expected.fits(value)):
            continue
        near = get_close_matches(str(value), METHODS, 1) if name == "method" else ()
        shown, place, example = short(repr(value)), locate(name), (*near, expected.example)[0]
        if place:
            problem, fix = f"{name} {shown} in {place}", f"Write {name}: {example}, for example."
        else:
            problem, fix = f"`{name}={shown}`", f"Pass `{name}={example!r}`, for example."
        raise ParameterError(f"Got {problem}; expected {expected.words}.", fix)


# ------------------------------------------------------------------ the items, split so that each group is in one part


@dataclass(frozen=True)
class LabeledPairs:
    """Pairs with their groups (n,), which splits keep together and retrieval counts as hits, wrong captions and tasks.

    ``by_id``: paired by the ids of both files, not by position.
    """

    pairs: Pairs
    groups: np.ndarray
    negatives: np.ndarray | None = None
    tasks: np.ndarray | None = None
    by_id: bool = True

    def __len__(self) -> int:
        return len(self.pairs)

    def take(self, which: np.ndarray) -> LabeledPairs:
        """Return some of the items, selected by a mask or by row numbers."""
        negatives, tasks = (None if part is None else part[which] for part in (self.negatives, self.tasks))
        return LabeledPairs(self.pairs.take(which), self.groups[which], negatives, tasks, self.by_id)

    def sides(self) -> tuple[Embeddings, Embeddings]:
        """Return both sides, without ids if the rows were paired by position."""
        if self.by_id:
            return self.pairs.source, self.pairs.target
        source, target = (Embeddings(side.vectors, space=side.space) for side in (self.pairs.source, self.pairs.target))
        return source, target

    def captions(self) -> Captions:
        """Return the vectors as float32, without ids."""
        X, Y = (np.asarray(side, np.float32) for side in self.pairs)
        return Captions(X, Y, self.negatives, self.groups)


def _read_items(recipe: Recipe, spaces: tuple[Space, Space]) -> LabeledPairs:
    """Read the pairs of a recipe, their groups, tasks and wrong captions."""
    sides, by_id = _read_sides(recipe.pairs, spaces)
    if recipe.links is not None and not by_id:
        problem = f"Got links for {' and '.join(recipe.pairs)}, of which one has no ids."
        raise InputError(problem, "Add a column named id to both files.")
    pairs = Pairs.join(*sides, links=None if recipe.links is None else read_links(recipe.links))
    order = id_rows(sides[1].ids, pairs.target.ids)

    def column(name: str) -> np.ndarray | None:
        spec = getattr(recipe, name)
        if spec in (None, "identical", "none"):
            return None
        values = read_column(spec)
        check_same_rows(len(sides[1]), len(values), f"the captions ({recipe.pairs[1]})", name)
        return np.asarray(values[order])

    negatives, groups = None, column("groups")
    if recipe.negatives is not None:
        wrong = read_embeddings(recipe.negatives)
        negatives = read_captions(sides[0], sides[1], wrong if by_id else wrong.vectors).negatives
    return LabeledPairs(pairs, _group(recipe, pairs) if groups is None else groups, negatives, column("tasks"), by_id)


def _group(recipe: Recipe, pairs: Pairs) -> np.ndarray:
    """Return a label for each pair, the same for pairs with identical vectors unless ``groups="none"``."""
    return np.arange(len(pairs)) if recipe.groups == "none" else duplicate_groups(pairs.source, pairs.target)


def _hold_out(
    recipe: Recipe, name: str, items: LabeledPairs, total: int, seed: int
) -> tuple[LabeledPairs | None, LabeledPairs, Split | None]:
    """Return the items held out for validation or test, the others, and the split, None if the recipe names files."""
    amount = getattr(recipe, name)
    if isinstance(amount, tuple):
        pairs = Pairs.join(*_read_sides(amount, (items.pairs.source.space, items.pairs.target.space))[0])
        return LabeledPairs(pairs, _group(recipe, pairs)), items, None
    count = round(amount * total) if amount < 1 else amount
    if not count:
        return None, items, None
    split = Split.choose(items.pairs.ids, count, seed, items.groups)
    held_out = split.held_out(items.pairs.ids)
    return items.take(held_out), items.take(~held_out), split


def _keep_some(
    items: LabeledPairs, keep: int, unpaired: list[Unpaired], seed: int, overlap: float = 0.0
) -> tuple[LabeledPairs, list[Unpaired]]:
    """Keep some pairs, and make the others unpaired; ``overlap`` is the share of a pool's items in the other, too."""
    if keep > len(items):
        problem = f"Got `keep_pairs={keep}` with {len(items)} pairs left to train on."
        raise ParameterError(problem, f"Pass `keep_pairs={len(items) // 2}`.")
    rng = np.random.default_rng([seed, 2])
    order = rng.permutation(len(items))
    left = order[keep:]
    pools = [left, left]
    if overlap < 1 and len(left):
        # Split by group, because every caption of an image is its partner.
        groups = items.groups[left]
        pools = [left[pool] for pool in unpaired_pools(groups, groups, overlap, random_state=[seed, 3])]
    sides = items.pairs.source, items.pairs.target
    added = [side.take(rng.permutation(pool)) for side, pool in zip(sides, pools, strict=True)]
    extended = [[*(rows or []), part] if len(part) else rows for rows, part in zip(unpaired, added, strict=True)]
    return items.take(np.sort(order[:keep])), extended


def _read_unpaired(files: Sequence[str]) -> Unpaired:
    """Open files of unpaired rows, or None; those that fit in memory are read with ids, to detect pairs among them."""
    opened: list[Embeddings | Rows] = []
    for file in files:
        source = open_source(file)
        small = source.n * source.dim * source.dtype.itemsize <= MEMORY
        opened.append(source.read() if small else open_rows(file, memory=MEMORY))
    return opened or None


def _read_sides(files: tuple[str, str], spaces: tuple[Space, Space]) -> tuple[list[Embeddings], bool]:
    """Return both sides with ids, and whether the ids come from the files."""
    sides = [read_embeddings(file, space=space) for file, space in zip(files, spaces, strict=True)]
    if all(side.has_ids for side in sides):
        return sides, True
    if len(sides[0]) != len(sides[1]):
        problem = f"Got {len(sides[0])} rows in {files[0]} and {len(sides[1])} in {files[1]}, without ids."
        raise InputError(problem, "Add a column named id to both files.")
    # Without ids on both sides, rows are paired by position, which also provides the ids that a split needs.
    names = [str(i) for i in range(len(sides[0]))]
    return [Embeddings(side.vectors, ids=names, space=side.space) for side in sides], False


# ------------------------------------------------------------------ the run


@dataclass(frozen=True)
class Run(Tuned):
    """Result of ``run_recipe``: the best map, how it was chosen, and all pairs; ``score`` may be NaN."""

    items: LabeledPairs


def run_recipe(
    recipe: Recipe,
    *,
    spaces: tuple[Space, Space] = (Space(), Space()),
    checkpoint: str | Path | None = None,
    verbose: bool = True,
    callback: Callable[[dict[str, object], float], None] | None = None,
) -> Run:
    """Read the files, hold out pairs, train, and score on pairs that were not used for choosing.

    ``spaces`` are what is known about the models, completed by the files; ``checkpoint`` is a folder from which an
    interrupted run resumes; ``callback`` is called with the parameters and the validation score of each point of the
    grid. The map's ``scores_`` hold the trials, the test scores (``test_…``) and those of a linear teacher on the same
    rows (``teacher_…``). Warns with DuplicateWarning if pairs have identical vectors, and with TeacherWarning if the
    heads retrieve worse than their teacher.
    """
    all_items = items = _read_items(recipe, spaces)
    unpaired = [_read_unpaired(files) for files in (recipe.unpaired_source, recipe.unpaired_target)]
    divided = any(amount and not isinstance(amount, tuple) for amount in (recipe.test, recipe.validation, recipe.grid))
    identical = warn_duplicates(items.groups) if divided and recipe.groups == "identical" else None
    assert recipe.seed is not None
    test, items, split = _hold_out(recipe, "test", items, len(all_items), recipe.seed + 1)
    heldout = None
    if not recipe.by_folds:
        heldout, items, _ = _hold_out(recipe, "validation", items, len(all_items), recipe.seed)
    if recipe.keep_pairs is not None:
        items, unpaired = _keep_some(items, recipe.keep_pairs, unpaired, recipe.seed, recipe.overlap or 0.0)
    parameters = dict(recipe.parameters)
    if "random_state" in recipe.default_parameters:
        parameters.setdefault("random_state", recipe.seed)
    method = make_method(recipe.method, **parameters)
    tuned = _fit(method, recipe, items, unpaired, heldout, checkpoint, verbose, callback)
    mapping = tuned.map
    if identical:
        mapping.scores_ |= {f"identical_{name}": identical[name] for name in ("rows", "groups")}
    mapping.scores_ |= _scores(tuned, heldout, test)
    if split is not None and test is not None:
        mapping.scores_["holdout"] = split.to_dict()
        parts = {"train": len(items), "validation": 0 if heldout is None else len(heldout), "test": len(test)}
        mapping.facts_["split"] = parts
    mapping.scores_["trials"] = [{**point, recipe.criterion: score} for point, score in tuned.trials]
    mapping.scores_["recipe"] = recipe.to_dict()
    return Run(mapping, tuned.parameters, tuned.score, tuned.trials, all_items)


def _fit(
    method: HeadsMap,
    recipe: Recipe,
    items: LabeledPairs,
    unpaired: list[Unpaired],
    heldout: LabeledPairs | None,
    checkpoint: str | Path | None,
    verbose: bool,
    callback: Callable[[dict[str, object], float], None] | None,
) -> Tuned:
    """Fit the method to the pairs and the other rows it learns from, and choose among the points of the grid."""
    arguments: dict[str, Any] = {"verbose": verbose}
    if not _takes(method, "negatives"):
        arguments |= {"unpaired": tuple(unpaired), "groups": items.groups}
    else:
        arguments["negatives"] = items.negatives
        if heldout is not None:  # without, JAM would split the pairs again by the groups
            arguments["groups"] = items.groups
    sides = items.pairs.source, items.pairs.target
    rows = (recipe.validation or None) if heldout is None else _validation(method, heldout)
    if rows is not None or recipe.grid:
        arguments |= {"validation": rows, "checkpoint": checkpoint, "callback": callback}
        return tune(method, recipe.grid, *sides, **arguments)
    if checkpoint is not None:  # where a search would store its first point
        Path(checkpoint).mkdir(exist_ok=True)
        arguments["checkpoint"] = Path(checkpoint) / "000"
    return Tuned(method.fit(*sides, **arguments), {}, float("nan"), [])


def _validation(method: HeadsMap, heldout: LabeledPairs) -> tuple[Any, ...]:
    """Return held-out pairs in the form that a method's ``score`` expects."""
    if _takes(method, "negatives"):
        rows = heldout.captions()
        return rows.source, rows.target, rows.negatives, rows.groups
    if len(np.unique(heldout.groups)) < len(heldout):  # retrieving an identical row is not an error
        return unique_pairs(heldout.pairs.source.vectors, heldout.pairs.target.vectors, heldout.groups)
    return heldout.pairs.source, heldout.pairs.target


def _scores(tuned: Tuned, heldout: LabeledPairs | None, test: LabeledPairs | None) -> dict[str, Any]:
    """Score the chosen map and its teacher, if it has one; warn if the heads retrieve worse than this teacher."""
    mapping, rows = tuned.map, ""
    teacher = getattr(mapping, "teacher_", None)
    scores: dict[str, Any] = {}
    if heldout is not None:
        scores |= {"validation_pairs": len(heldout), f"validation_{mapping.criterion}": tuned.score}
        if teacher is not None:
            rows, own = f"{len(heldout):,} validation pairs", tuned.score
            its = mapping.scores_["teacher_validation_mean_recall_at_1"]
    if test is not None:
        scores["test_pairs"] = len(test)
        scores |= {f"test_{name}": score for name, score in _retrieval(mapping, test).items()}
        if test.negatives is not None:
            scores |= _choices(mapping, test)
        if teacher is not None:
            scores |= {f"teacher_test_{name}": score for name, score in _retrieval(teacher, test).items()}
            rows, own, its = f"{len(test):,} test pairs", scores["test_mean@1"], scores["teacher_test_mean@1"]
    if rows and own < its:
        warning = TeacherWarning(
            "Got trained heads that retrieve worse than their linear teacher on the same "
            f"{rows} (mean recall at 1 {own:.3f} against {its:.3f}); expected better retrieval.",
            "Use the teacher alone (procrustes or cca), start from it with `init='teacher'`, or add unpaired rows.",
        )
        warnings.warn(warning, stacklevel=3)
        scores["notes"] = [str(warning)]
    return scores


def _retrieval(mapping: HeadsMap, test: LabeledPairs) -> dict[str, float]:
    """Return recall in both directions as a search finds it, with identical rows of a group counted once."""
    sides = test.pairs.source.vectors, test.pairs.target.vectors
    X, Y, x_labels, y_labels = unique_pairs(sides[0], sides[1], test.groups)
    sides = mapping.transform(X), mapping.transform_target(Y)
    return recalls(*sides, x_labels, y_labels, banks=mapping.search_banks)


def _choices(mapping: HeadsMap, test: LabeledPairs) -> dict[str, object]:
    """Return how often an image is nearer to its caption than to the wrong ones, and those of other images."""
    data = test.captions()
    assert data.negatives is not None
    n, k, width = data.negatives.shape
    wrong = mapping.transform_target(data.negatives.reshape(n * k, width)).reshape(n, k, -1)
    sides = mapping.transform(data.source), mapping.transform_target(data.target)
    rows, note = recall_by_task(*sides, wrong, test.groups, test.tasks, texts=data.texts(), options=OPTIONS)
    scores: dict[str, object] = {"test_binary_recall": rows[-1]["binary"]}
    if note is None:
        scores |= {"test_choice_recall": rows[-1]["choice"], "test_choice_options": OPTIONS + k - 1}
    else:
        scores["test_choice_note"] = note
    by_task = {row["task"]: {name: value for name, value in row.items() if name != "task"} for row in rows}
    return {**scores, "test_tasks": by_task}
