"""A recipe of a training run: its files, method and parameters, and the grid to search."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from congruence._utils.yaml import parse_yaml, read_yaml
from congruence.errors import CorruptFileError, ParameterError
from congruence.recipe._schema import Where, check_entries
from congruence.train import METHODS, make_method

#: Default shares of the pairs for validation and for the test, and those of methods whose papers use other shares, or
#: that choose by folds.
_SHARES = (0.1, 0.0)
_OTHER_SHARES = {"jam": (0.15, 0.15), "self_trained": (0.0, 0.0)}

#: Parameter of a method's ``fit`` that each entry of a recipe requires.
_FIT_PARAMETERS = {
    "unpaired_source": "unpaired",
    "unpaired_target": "unpaired",
    "keep_pairs": "unpaired",
    "overlap": "unpaired",
    "negatives": "negatives",
    "tasks": "negatives",
}


def takes(method: object, parameter: str) -> bool:
    """Return whether a method, or its class, learns from an argument of this name."""
    return parameter in inspect.signature(method.fit).parameters  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Recipe:
    """A training run of ``congruence train``.

    - ``method``: A key of ``congruence.train.METHODS``; "self_trained" by default.
    - ``pairs``: Files of the paired rows, source and target (``file`` or ``file:key``); paired by id if both have
      ids, otherwise by position.
    - ``unpaired_source``, ``unpaired_target``: Files of rows without a partner.
    - ``validation``: Pairs for validation: a share of all pairs (below 1) or a number of pairs to hold out, or files
      of other pairs; 0 for none. By default 0.1, for JAM 0.15, for ``self_trained``, which uses folds, 0.
    - ``test``: Pairs for the final test of the map, which are not used for any choice; given like ``validation``. By
      default 0, for JAM 0.15.
    - ``keep_pairs``: Train on this many of the remaining pairs; the others lose their partner and join the unpaired
      rows. Use it to find out how many pairs are needed.
    - ``overlap``: With ``keep_pairs``: share of the items in each pool of unpaired rows that are in the other pool
      too. By default 0: only one side of each pair that is not kept is used, as with data that were never paired; 1
      uses both sides of each.
    - ``parameters``: Parameters of the method.
    - ``grid``: Values of parameters to choose among, by retrieval on the validation pairs.
    - ``seed``: Random seed of the held-out pairs and of the training; 0 by default, for JAM the paper's 5.
    - ``groups``: Which pairs stay in the same part of the split, and count as hits for each other in retrieval:
      ``"identical"``, those with identical vectors on either side (``congruence.splits.duplicate_groups``);
      ``"none"``; or a file with one label, such as the image, per row of the target's file.
    - ``negatives``: JAM: file of wrong captions, one or several for each row of the target.
    - ``tasks``: JAM: file with the kind of each wrong caption, to report scores by kind.
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

    def __post_init__(self) -> None:
        check_entries(self.to_dict(), Where())
        shares = _OTHER_SHARES.get(self.method, _SHARES)
        defaults = {"validation": shares[0], "test": shares[1], "seed": self.default_parameters.get("random_state", 0)}
        for name, value in defaults.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)
        self._check_rows()
        if self.grid and self.validation == 0:
            raise ParameterError(
                "Got a grid without validation pairs to choose by.", "Pass `validation=0.1`, for example."
            )

    @property
    def default_parameters(self) -> dict[str, object]:
        """The method's parameters with their defaults."""
        return make_method(self.method).get_params()

    def _check_rows(self) -> None:
        """Refuse entries that the method does not use, or that require another entry."""
        for name, parameter in _FIT_PARAMETERS.items():
            if getattr(self, name) and not takes(METHODS[self.method], parameter):
                rows = {"unpaired": "unpaired rows", "negatives": "wrong captions, which are for jam"}[parameter]
                raise ParameterError(
                    f"Got {name} for {self.method}, which does not learn from {rows}.", f"Leave out `{name}=…`."
                )
        if self.overlap is not None and self.keep_pairs is None:
            raise ParameterError(
                f"Got `overlap={self.overlap!r}` without keep_pairs.", "Pass `keep_pairs=…`, or leave out overlap."
            )
        if self.tasks is not None and self.negatives is None:
            raise ParameterError("Got tasks without negatives; expected both.", "Pass `negatives=…`.")

    def to_dict(self) -> dict[str, object]:
        """Return the recipe as plain data, in the form that ``make_recipe`` accepts."""
        return {f.name: _plain(getattr(self, f.name)) for f in fields(self)}


def read_recipe(path: str | Path, **changes: object) -> Recipe:
    """Read a recipe from a YAML file; ``changes`` replace its entries, or are merged into ``parameters`` and ``grid``.

    Raises
    ------
    FileError, CorruptFileError, ParameterError
        If the file cannot be read or is not a YAML mapping, or an entry is unknown, missing or has an invalid value.
    """
    text = read_yaml(path, "a recipe")
    entries = parse_yaml(text, str(path))
    if not isinstance(entries, dict):
        raise CorruptFileError(
            f"Got {type(entries).__name__} in {path}, no mapping.", "Write lines such as 'method: sotalign'."
        )
    return _make(entries, changes, Where(str(path), text))


def make_recipe(entries: Mapping[str, object], **changes: object) -> Recipe:
    """Build a recipe from plain data; see ``read_recipe``."""
    return _make(entries, changes, Where())


def _make(entries: Mapping[str, Any], changes: Mapping[str, Any], where: Where) -> Recipe:
    """Build a recipe from entries and changes, which take precedence; ``where`` locates errors in a file."""
    replaced: set[tuple[str, ...]] = set()
    for name, value in changes.items():
        if value is not None:
            present = entries.get(name) or {}
            mergeable = name in ("parameters", "grid") and isinstance(present, Mapping)
            merged = {**present, **value} if mergeable else value
            entries = {**entries, name: merged}
            replaced |= {(name, key) for key in value} if mergeable else {(name,)}
    entries = {"method": "self_trained", **entries}
    if "pairs" not in entries:
        raise ParameterError("Got a recipe without 'pairs'.", "Add it to the recipe, or pass `pairs=…`.")
    plain: dict[str, Any] = {str(name): _plain(value) for name, value in entries.items()}
    for name in ("unpaired_source", "unpaired_target"):
        if isinstance(plain.get(name), str):
            plain[name] = [plain[name]]
    check_entries(plain, replace(where, replaced=frozenset(replaced)))
    plain = {name: tuple(value) if isinstance(value, list) else value for name, value in plain.items()}
    return Recipe(**plain)


def _plain(value: object) -> object:
    """Return a value as plain data: mappings, lists and numbers of Python."""
    if isinstance(value, Mapping):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(entry) for entry in value]
    return value.item() if isinstance(value, np.generic) else value
