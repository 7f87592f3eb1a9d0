"""A training run as written down: which files, which method, which parameters, and what to choose among."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from congruence._check import check_choice, check_positive
from congruence.embeddings import Embeddings, Pairs, Space
from congruence.errors import CorruptFileError, FileError, InputError, ParameterError
from congruence.splits import Split
from congruence.stores import open_rows, open_source, read_embeddings
from congruence.train import METHODS, make_method
from congruence.train.retrieval import recalls
from congruence.train.tuning import Tuned, tune

#: Bytes of a file of unpaired rows above which it is not read into memory but streamed.
MEMORY = 2**30


@dataclass(frozen=True)
class Recipe:
    """What ``congruence train`` does.

    Attributes
    ----------
    method : str
        A key of :data:`congruence.train.METHODS`.
    pairs : tuple of two str
        Files of the paired rows, source and target (``file`` or ``file:key``); by id where both have ids, else by position.
    unpaired_source, unpaired_target : tuple of str
        Files of rows without a partner.
    validation : float, int or tuple of two str
        Share (below 1) or number of pairs to hold out and choose by, or files of other pairs; 0 for none.
    test : float, int or tuple of two str
        The same for pairs that nothing is chosen by, on which the map is measured in the end.
    keep_pairs : int, optional
        Train on so many of the pairs that are left; the others lose their partner and join the unpaired rows. To find out how many are
        needed.
    parameters : mapping
        Of the method.
    grid : mapping of str to list
        Values to choose among by retrieval on the validation pairs.
    seed : int
        Of the held-out pairs and of the training.
    """

    method: str
    pairs: tuple[str, str]
    unpaired_source: tuple[str, ...] = ()
    unpaired_target: tuple[str, ...] = ()
    validation: float | int | tuple[str, str] = 0.1
    test: float | int | tuple[str, str] = 0
    keep_pairs: int | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    grid: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    seed: int = 0

    def __post_init__(self) -> None:
        check_choice(self.method, METHODS, "method")
        for name in ("pairs", "validation", "test"):
            value = getattr(self, name)
            if name != "pairs" and isinstance(value, (int, float)):
                continue
            if isinstance(value, str) or len(value) != 2 or not all(isinstance(part, str) and part for part in value):
                raise ParameterError(f"Got {name}={value!r}; expected two files, source and target. Pass both.")
        if self.grid and self.validation == 0:
            raise ParameterError(
                "Got a grid and no validation pairs to choose by; expected some. Pass validation=0.1, for example."
            )
        if self.keep_pairs is not None:
            check_positive(self.keep_pairs, "keep_pairs", integer=True)
        make_method(self.method, **{**self.parameters, **{name: values[0] for name, values in self.grid.items()}})

    def to_dict(self) -> dict[str, Any]:
        """Return the recipe as plain data, as :func:`read_recipe` takes it."""
        return {f.name: _plain(getattr(self, f.name)) for f in fields(self)}


def read_recipe(path: str | Path, **changes: Any) -> Recipe:
    """Read a recipe from a YAML file.

    Parameters
    ----------
    path : path-like
    **changes
        Entries that stand in for those of the file; ``parameters`` and ``grid`` are merged with it. None leaves an entry as it is.

    Returns
    -------
    Recipe

    Raises
    ------
    FileError, CorruptFileError
        No such file, or not YAML.
    ParameterError
        An entry that is unknown or missing, or has a value it cannot have.
    """
    import yaml

    try:
        given = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FileError(f"Got no file at {path}; expected a recipe in YAML. Check the path.") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise CorruptFileError(
            f"Got an unreadable recipe at {path} ({error}); expected YAML. Correct the line that the parser names."
        ) from None
    if not isinstance(given, dict):
        raise CorruptFileError(
            f"Got {type(given).__name__} in {path}; expected a mapping of entries. Write lines such as 'method: sotalign'."
        )
    return make_recipe({**given}, **changes)


def make_recipe(entries: Mapping[str, Any], **changes: Any) -> Recipe:
    """Make a recipe from plain data; see :func:`read_recipe`.

    Raises
    ------
    ParameterError
    """
    known = [f.name for f in fields(Recipe)]
    for name, value in changes.items():
        if value is not None:
            merged = {**(entries.get(name) or {}), **value} if name in ("parameters", "grid") else value
            entries = {**entries, name: merged}
    for name in entries:
        check_choice(name, known, "entry of the recipe")
    missing = [name for name in ("method", "pairs") if name not in entries]
    if missing:
        raise ParameterError(
            f"Got a recipe without {missing[0]!r}; expected this entry. Add it to the recipe, or pass {missing[0]}=…."
        )
    chosen = dict(entries)
    for name in ("pairs", "validation", "test", "unpaired_source", "unpaired_target"):
        if isinstance(chosen.get(name), (list, tuple)):
            chosen[name] = tuple(chosen[name])
        elif isinstance(chosen.get(name), str) and name.startswith("unpaired"):
            chosen[name] = (chosen[name],)
    return Recipe(**chosen)


def run_recipe(
    recipe: Recipe,
    *,
    spaces: tuple[Space, Space] = (Space(), Space()),
    checkpoint: str | Path | None = None,
    progress: bool = True,
    report: Callable[[dict[str, Any], float], None] | None = None,
) -> Tuned:
    """Read the files, hold out pairs, and train.

    Parameters
    ----------
    recipe : Recipe
    spaces : tuple of two Space, optional
        What is known of the models; the files' own word where this says nothing.
    checkpoint : path-like, optional
        Folder for the checkpoints, one for each point of the grid; made if need be. A run that was stopped goes on from them.
    progress : bool, default=True
    report : callable, optional
        Called with the parameters and the validation score of each point of the grid.

    Returns
    -------
    Tuned
        ``score`` is NaN without validation pairs. The map's ``scores_`` hold the trials.

    Raises
    ------
    FileError, CorruptFileError, InputError, ParameterError, TrainingError
    """
    pairs = _paired(recipe.pairs, spaces)
    unpaired = [_rows(files) for files in (recipe.unpaired_source, recipe.unpaired_target)]
    held, test = None, None
    if recipe.test:
        test, pairs = _held_out(recipe.test, pairs, recipe.seed + 1)
    if recipe.validation:
        held, pairs = _held_out(recipe.validation, pairs, recipe.seed)
    if recipe.keep_pairs is not None:
        pairs, unpaired = _part(pairs, recipe.keep_pairs, unpaired, recipe.seed)
    validation = None if held is None else (held.source, held.target)
    parameters = dict(recipe.parameters)
    if "seed" in METHODS[recipe.method]().get_params(deep=False):
        parameters.setdefault("seed", recipe.seed)
    method = make_method(recipe.method, **parameters)
    if validation is None:
        mapping = method.fit(
            pairs.source, pairs.target, *unpaired, checkpoint=_checkpoint(checkpoint), progress=progress
        )
        done = Tuned(mapping, {}, float("nan"), [])
    else:
        done = tune(
            method,
            recipe.grid,
            pairs.source,
            pairs.target,
            *unpaired,
            validation=validation,
            checkpoint=checkpoint,
            progress=progress,
            report=report,
        )
        done.map.scores_["validation_pairs"] = len(validation[0])
        done.map.scores_["validation_mean_recall_at_1"] = done.score
    if test is not None:
        sides = done.map.transform(test.source.vectors), done.map.transform_target(test.target.vectors)
        done.map.scores_["test_pairs"] = len(test)
        done.map.scores_ |= {f"test_{name}": score for name, score in recalls(*sides).items()}
    done.map.scores_["trials"] = [{**point, "mean_recall_at_1": score} for point, score in done.trials]
    done.map.scores_["recipe"] = recipe.to_dict()
    return done


def _checkpoint(folder: str | Path | None) -> Path | None:
    if folder is None:
        return None
    Path(folder).mkdir(exist_ok=True)
    return Path(folder) / "000"


def _paired(files: tuple[str, str], spaces: tuple[Space, Space]) -> Pairs:
    sides = [read_embeddings(file, space=space) for file, space in zip(files, spaces, strict=True)]
    if all(side.has_ids for side in sides):
        return Pairs.join(*sides)
    if len(sides[0]) != len(sides[1]):
        raise InputError(
            f"Got {len(sides[0])} rows in {files[0]} and {len(sides[1])} in {files[1]}; expected as many, or ids in both. Give both files a column id."
        )
    # Without ids on both sides position says what belongs together, and gives the names that a split needs.
    names = [str(i) for i in range(len(sides[0]))]
    return Pairs.join(*(Embeddings(side.vectors, ids=names, space=side.space) for side in sides))


def _held_out(what: float | int | tuple[str, str], pairs: Pairs, seed: int) -> tuple[Pairs, Pairs]:
    """Return pairs held out, from other files or of the given ones, and what is left of these."""
    if isinstance(what, tuple):
        return _paired(what, (Space(), Space())), pairs
    outside = Split.choose(pairs.ids, what, seed).held_out(pairs.ids)
    return pairs.take(outside), pairs.take(~outside)


def _part(pairs: Pairs, keep: int, unpaired: list[Any], seed: int) -> tuple[Pairs, list[Any]]:
    """Keep some pairs, and let the others stand without their partners, each side in an order of its own."""
    if keep > len(pairs):
        raise ParameterError(
            f"Got keep_pairs={keep} of {len(pairs)} pairs left to train on; expected fewer. Pass keep_pairs={len(pairs) // 2}, for example."
        )
    rng = np.random.default_rng([seed, 2])
    order = rng.permutation(len(pairs))
    loose = [side.take(rng.permutation(order[keep:])) for side in (pairs.source, pairs.target)]
    more = [[*(rows or []), part] if len(part) else rows for rows, part in zip(unpaired, loose, strict=True)]
    return pairs.take(np.sort(order[:keep])), more


def _rows(files: Sequence[str]) -> Any:
    """Open unpaired rows: with their ids where they fit in memory, so that pairs among them are noticed."""
    opened: list[Any] = []
    for file in files:
        source = open_source(file)
        small = source.n * source.dim * source.dtype.itemsize <= MEMORY
        opened.append(source.read() if small else open_rows(file, memory=MEMORY))
    return opened or None


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(entry) for entry in value]
    return value.item() if isinstance(value, np.generic) else value
