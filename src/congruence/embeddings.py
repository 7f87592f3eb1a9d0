"""Embeddings with ids and a known origin, the identity of their space, and pairs matched by id."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from numpy.typing import DTypeLike

from congruence._utils.arrays import as_dtype
from congruence._utils.arrays import has_unit_rows as has_unit_rows
from congruence._utils.arrays import normalize_rows as normalize_rows
from congruence._utils.columns import index_ids, read_once, split_ids
from congruence._utils.display import as_html, as_text, short, visible
from congruence._utils.ids import as_ids, id_rows, id_texts, same_ids, to_ids
from congruence._utils.optional import require
from congruence._utils.typing import Ids, RowsLike
from congruence._utils.validation import as_matrix, check_choice, check_same_rows, name_rows
from congruence.errors import DirectionError, IdError, InputError, ModalityError, ParameterError, SpaceMismatchError

if TYPE_CHECKING:
    import pandas


#: Modalities a space may have. ``None`` means "not stated".
MODALITIES = ("image", "text", "audio", "video", "other")


@dataclass(frozen=True)
class Space:
    """Identity of an embedding space: its model and version, and its vectors' modality, width, norm and prompt.
    ``model`` is a name such as ``"open_clip:ViT-B-32/openai"``, ``revision`` the version of the weights, ``modality``
    one of ``MODALITIES``, ``dim`` the width, ``normalized`` whether all rows have unit norm, ``prompt`` the text that
    the encoder puts before each text, ``role`` what mapped rows were mapped for, "store" or "query". None is unknown.
    """

    model: str | None = None
    revision: str | None = None
    modality: str | None = None
    dim: int | None = None
    normalized: bool | None = None
    prompt: str | None = None
    role: str | None = None

    def __post_init__(self) -> None:
        if self.modality is not None:
            check_choice(self.modality, MODALITIES, "modality")

    def to_dict(self) -> dict[str, Any]:
        """Return the known facts as a plain dictionary (unknown facts are left out)."""
        return {key: value for key, value in self.__dict__.items() if value is not None}

    @classmethod
    def from_dict(cls, facts: Mapping[str, Any] | None) -> Space:
        """Build a space from the output of ``to_dict``; unknown keys are ignored, wrong types are a TypeError."""
        known = {f: facts[f] for f in cls.__dataclass_fields__ if f in facts} if facts else {}
        kinds = {"dim": int, "normalized": bool}
        wrong = [f for f, value in known.items() if value is not None and type(value) is not kinds.get(f, str)]
        if wrong:
            raise TypeError(f"{wrong[0]} of type {type(known[wrong[0]]).__name__}")
        return cls(**known)

    def __str__(self) -> str:
        parts = [self.model or "unnamed model"]
        if self.revision:
            parts[0] += f"@{self.revision}"
        if self.modality:
            parts.append(self.modality)
        if self.dim:
            parts.append(f"{self.dim}-d")
        if self.normalized is not None:
            parts.append("unit rows" if self.normalized else "raw rows")
        if self.role:
            parts.append(f"mapped as {self.role}")
        return visible(", ".join(parts))


def check_space(data: Space, expected: Space, other: Space, *, modality: bool = True) -> None:
    """Refuse vectors of another space than the ``expected`` one of a map; ``other`` is the space at its other end. Only
    facts known for both spaces are compared. Revisions are compared only when the model names are equal.
    """
    for fact, shown in (("model", "vectors of {!r}"), ("dim", "{}-d vectors")):
        known, wanted, at_other_end = (getattr(space, fact) for space in (data, expected, other))
        if known and wanted and known != wanted:
            got, want = shown.format(known), shown.format(wanted)
            if known == at_other_end:
                raise DirectionError(f"Got {got}, to which this map leads; expected {want}.", "Use the inverse map.")
            raise SpaceMismatchError(f"Got {got}; expected {want}.", "Use a map fitted on this model.")
    if data.model and data.revision and expected.revision and data.revision != expected.revision:
        problem = f"Got {data.model!r} at revision {data.revision!r}, not {expected.revision!r}."
        raise SpaceMismatchError(problem, "Fit a map for this revision.")
    if None not in (data.normalized, expected.normalized) and data.normalized != expected.normalized:
        got, want = ("unit", "raw") if data.normalized else ("raw", "unit")
        raise SpaceMismatchError(
            f"Got {got} rows; expected {want} rows, as the map was fitted on. "
            + ("Normalize them first." if want == "unit" else "Pass the vectors as they were before normalization.")
        )
    if modality and data.modality and expected.modality and data.modality != expected.modality:
        raise ModalityError(
            f"Got {data.modality} vectors; expected {expected.modality}.",
            (f"Pass `modality={data.modality!r}`.", f"Fit the map with the means of {data.modality} too."),
        )


@dataclass(frozen=True, eq=False, repr=False)
class Embeddings:
    """A matrix of vectors together with the ids of its rows and the space the vectors belong to.

    Indexing selects rows. ``e["cat"]`` and ``e[3]`` return the vector of one item; a slice, a mask, row numbers or a
    list of ids return ``Embeddings``. An integer is always a row number and a string is always an id. ``np.asarray(e)``
    returns the vectors.

    Parameters
    ----------
    vectors : array_like, shape (n, d)
        float16, float32 or float64; integers become float64, bfloat16 tensors float32. Also lists of arrays or tensors,
        a pandas, polars or Arrow column of lists, and tables of numeric columns; a column of ids beside the vectors
        gives the ids. Never modified.
    ids : sequence of str or int, optional
        One unique id per row, at most 65,536 bytes long in UTF-8. Two ids are equal when their text is equal: 7 equals
        ``"7"`` but not ``"07"``. The index of a pandas object is used, unless it is the default 0, 1, 2, …. Without
        ids, rows are identified by their row number and paired by position.
    space : Space, optional
        The model and modality the vectors come from; width and normalization are read from the data.
    allow_zero_rows : bool, default=False
        Accept rows that consist of zeros.

    Examples
    --------
    >>> import numpy as np
    >>> from congruence import Embeddings, Space
    >>> cats = Embeddings(np.eye(3), ids=["a", "b", "c"], space=Space("my-model", modality="image"))
    >>> cats.take(["c", "a"]).vectors[0]
    array([0., 0., 1.])
    """

    vectors: np.ndarray
    ids: np.ndarray = None  # type: ignore[assignment]  # after __post_init__ always an array
    space: Space = field(default_factory=Space)
    allow_zero_rows: bool = False
    has_ids: bool = field(init=False, default=False)

    if TYPE_CHECKING:

        def __init__(
            self, vectors: RowsLike, ids: Ids | None = None, space: Space = ..., allow_zero_rows: bool = False
        ) -> None: ...

    def __post_init__(self) -> None:
        vectors, column = split_ids(self.vectors)
        raw_ids: Ids | None = column if self.ids is None else self.ids
        raw_ids = index_ids(vectors) if raw_ids is None else raw_ids
        has_ids = raw_ids is not None
        ids = None if raw_ids is None else as_ids(raw_ids)
        X = as_matrix(vectors, "vectors", ids=ids, allow_zero_rows=self.allow_zero_rows, copy_half=False)
        if ids is None:
            ids = np.arange(len(X))
        elif len(ids) != len(X):
            problem = f"Got {len(ids)} ids for {len(X)} rows; expected one id per row."
            raise IdError(problem, "Pass as many ids as rows.")
        space = self.space
        if space.dim is not None and space.dim != X.shape[1]:
            problem = f"Got {X.shape[1]}-d vectors for a space with dim={space.dim} ({space})."
            raise SpaceMismatchError(problem, "Leave out `dim=…`.")
        normalized = has_unit_rows(X) if space.normalized is None else space.normalized
        space = replace(space, dim=X.shape[1], normalized=normalized)
        vars(self).update(vectors=X, ids=ids, has_ids=has_ids, space=space)

    # ------------------------------------------------------------------ as an array

    def __len__(self) -> int:
        return len(self.vectors)

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of ``vectors``: number of rows and width."""
        n, d = self.vectors.shape
        return n, d

    @property
    def ndim(self) -> int:
        """Number of axes: 2."""
        return 2

    @property
    def dtype(self) -> np.dtype:
        """Data type of the vectors."""
        return self.vectors.dtype

    @property
    def dim(self) -> int:
        """Width of the vectors."""
        return self.vectors.shape[1]

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> np.ndarray:
        if copy:
            return np.array(self.vectors, dtype=dtype)
        if copy is False and dtype is not None and as_dtype(dtype) != self.vectors.dtype:
            raise ValueError(
                f"Got copy=False for {self.vectors.dtype} vectors as {as_dtype(dtype)}; that needs a copy."
            )
        return np.asarray(self.vectors, dtype=dtype)

    def __iter__(self) -> Iterator[np.ndarray]:
        """Iterate over the vectors, row by row."""
        return iter(self.vectors)

    def __contains__(self, name: object) -> bool:
        """Return whether an item with this id is present."""
        known = isinstance(name, (str, int, np.integer)) and not isinstance(name, bool)
        return known and bool(id_rows(self.ids, id_texts([name]))[0] >= 0)

    @overload
    def __getitem__(self, which: str | int | np.integer) -> np.ndarray: ...  # type: ignore[overload-overlap]
    @overload
    def __getitem__(self, which: slice | Sequence[str] | Sequence[int] | np.ndarray) -> Embeddings: ...
    def __getitem__(
        self, which: str | int | np.integer | slice | Sequence[str] | Sequence[int] | np.ndarray
    ) -> np.ndarray | Embeddings:
        if isinstance(which, tuple):
            problem = f"Got {len(which)} indices; expected one, of rows."
            raise ParameterError(problem, "Index the matrix: vectors[…, …].")
        if isinstance(which, slice):
            return self._with(self.vectors[which], self.ids[which])
        if isinstance(which, str):
            return self.take([which]).vectors[0]
        if isinstance(which, (int, np.integer)) and not isinstance(which, bool):
            return self.vectors[which]
        return self.take(np.asarray(which) if isinstance(which, bool) else which)

    def to_pandas(self) -> pandas.DataFrame:
        """Return a copy of the vectors as a DataFrame (extra ``pandas``), whose index ``id`` holds the ids."""
        pd = require("pandas", extra="pandas")
        index = pd.Index(self.ids, name="id", dtype=self.ids.dtype) if self.has_ids else None
        return pd.DataFrame(self.vectors.copy(), index=index)

    def __repr__(self) -> str:
        return as_text(*self._shown())

    def _repr_html_(self) -> str:
        return as_html(*self._shown())

    def _shown(self) -> tuple[str, dict[str, str]]:
        n, d = self.shape
        first = ", ".join(short(repr(name)) for name in self.ids[:4].tolist()) + (", …" if n > 4 else "")
        facts = {"space": str(self.space), "ids": first if self.has_ids else "none: rows pair by position"}
        return f"Embeddings: {n:,} × {d:,} {self.dtype}", facts

    # ------------------------------------------------------------------ as items

    @property
    def mean(self) -> np.ndarray:
        """Mean vector in float64, shape (d,)."""
        return self.vectors.mean(axis=0, dtype=np.float64)

    def take(self, which: Sequence[str] | Sequence[int] | np.ndarray) -> Embeddings:
        """Return rows in the order given: ids as strings, a mask, or row numbers. Raises IdError."""
        values = which  # a list of strings must not become a NumPy string array, which would turn "a\0" into "a"
        if not isinstance(which, (list, tuple)):
            array = np.asarray(which)
            values = array.tolist() if array.dtype.kind in "OTUS" else ()
        if any(isinstance(value, (str, bytes)) for value in values):
            names = to_ids(values)
            array = id_rows(self.ids, names)
            missing = names[array < 0]
            if len(missing):
                problem = f"{len(missing)} ids are not present ({name_rows(np.arange(len(missing)), missing)})."
                raise IdError(problem, "Pass some of .ids.")
        else:
            array = np.asarray(which)
            if array.size == 0:  # NumPy makes an empty list float64
                array = array.astype(int)
        return self._with(self.vectors[array], self.ids[array])

    def normalize(self) -> Embeddings:
        """Return the same items with rows scaled to unit norm (a new array)."""
        space = replace(self.space, normalized=True)
        return Embeddings._trusted(normalize_rows(self.vectors), self.ids, space, self.has_ids)

    def by_text(self) -> Embeddings:
        """Return the same rows with their ids as strings, for lookups in tables whose keys are strings."""
        return self if self.ids.dtype == object else self._with(self.vectors, id_texts(self.ids))

    def _with(self, vectors: np.ndarray, ids: np.ndarray) -> Embeddings:
        return Embeddings._trusted(vectors, ids, self.space, self.has_ids)

    @classmethod
    def _trusted(cls, vectors: np.ndarray, ids: np.ndarray, space: Space, has_ids: bool) -> Embeddings:
        """Build from values that were already checked, without checking them again."""
        new, space = object.__new__(cls), replace(space, dim=vectors.shape[1])
        vars(new).update(vectors=vectors, ids=ids, space=space, allow_zero_rows=True, has_ids=has_ids)
        return new


@dataclass(frozen=True, eq=False)
class Pairs:
    """Two embeddings of the same items, row by row. Build it with ``join``, which pairs by id; the constructor ignores
    the ids and pairs row *i* with row *i*. ``only_source`` and ``only_target`` are ids without a partner, which were
    left out.
    """

    source: Embeddings
    target: Embeddings
    only_source: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=object))
    only_target: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=object))

    def __post_init__(self) -> None:
        check_same_rows(len(self.source), len(self.target))

    def __len__(self) -> int:
        return len(self.source)

    def __iter__(self) -> Iterator[np.ndarray]:
        """Unpack as ``X, Y = pairs``."""
        return iter((self.source.vectors, self.target.vectors))

    @property
    def ids(self) -> np.ndarray:
        """Ids of the pairs, shape (n,)."""
        return self.source.ids if self.source.has_ids else self.target.ids

    @classmethod
    def join(
        cls,
        source: Embeddings,
        target: Embeddings,
        *,
        missing: str = "drop",
        links: tuple[Ids, Ids] | None = None,
    ) -> Pairs:
        """Pair two embeddings by id, in the order of the source; ids are equal when their text is equal. If either has
        no ids, both must have the same number of rows, which are paired by position. Ids found in only one of the two
        are left out and recorded in ``only_source`` and ``only_target``, or with ``missing="error"`` refused. Raises
        IdError or ShapeError.

        ``links`` pairs items that have other ids on the other side: two columns of ids, the source's and the target's
        (``congruence.io.read_links``). An item may be in several pairs, as an image with its captions or a word with
        its translations; the pairs then get ids of their own.
        """
        check_choice(missing, ("drop", "error"), "missing")
        if links is not None:
            return cls._linked(source, target, links, missing)
        if not (source.has_ids and target.has_ids):
            return cls(source, target)
        if same_ids(source.ids, target.ids):
            return cls(source, target)
        partners = id_rows(target.ids, source.ids)
        rows_s = np.flatnonzero(partners >= 0)
        rows_t = partners[rows_s]
        if not len(rows_s):
            raise IdError(
                f"Got no id in common (the old side has {name_rows(np.arange(min(2, len(source))), source.ids)} …, "
                f"the new one {name_rows(np.arange(min(2, len(target))), target.ids)} …); expected the same items "
                "on both sides.",
                ("Pass `ids=…` that give an item the same id on both sides.", "Give each item one id in both files."),
            )
        unpaired = np.ones(len(target), bool)
        unpaired[rows_t] = False
        only_source, only_target = source.ids[partners < 0], target.ids[unpaired]
        if missing == "error" and (len(only_source) or len(only_target)):
            unmatched = only_source if len(only_source) else only_target
            side = "old" if len(only_source) else "new"
            raise IdError(
                f"Got {len(only_source)} ids only on the old side and {len(only_target)} only on the new one (on "
                f"the {side} side: {name_rows(np.arange(len(unmatched)), unmatched)}); expected the same ids on "
                "both sides.",
                'Pass `missing="drop"` to leave them out.',
            )
        return cls(source[rows_s], target[rows_t], only_source, only_target)

    @classmethod
    def _linked(cls, source: Embeddings, target: Embeddings, links: tuple[Ids, Ids], missing: str) -> Pairs:
        if not (source.has_ids and target.has_ids):
            side = "old" if not source.has_ids else "new"
            raise IdError(f"Got pairs of ids for rows without ids on the {side} side.", "Pass `ids=…` for both sides.")
        texts = [id_texts(to_ids(ids, "ids of pairs")) for ids in links]
        check_same_rows(len(texts[0]), len(texts[1]), "the old ids of the pairs", "the new ones")
        rows, found = (id_rows(id_texts(side.ids), ids) for side, ids in zip((source, target), texts, strict=True))
        known = (rows >= 0) & (found >= 0)
        unknown = np.flatnonzero(~known)
        if not known.any() or (missing == "error" and len(unknown)):
            first = [f"{a} and {b}" for a, b in zip(*(ids[unknown[:2]] for ids in texts), strict=True)]
            problem = f"Got {len(unknown)} of {len(known)} pairs with an id that the vectors lack ({', '.join(first)})."
            raise IdError(problem, "Pass pairs of the old ids, then the new ones, and `ids=…` with both sides' ids.")
        _, first_of = np.unique(np.stack([rows, found])[:, known], axis=1, return_index=True)
        kept = np.flatnonzero(known)[np.sort(first_of)]
        rows, found = rows[kept], found[kept]
        both = [ids[kept] for ids in texts]
        unique = next((ids for ids in both if len({*ids.tolist()}) == len(ids)), None)
        names = unique if unique is not None else as_ids([f"{a} – {b}" for a, b in zip(*both, strict=True)])
        old, new = source._with(source.vectors[rows], names), target._with(target.vectors[found], names)
        return cls(old, new, np.delete(source.ids, rows), np.delete(target.ids, found))

    def take(self, which: np.ndarray) -> Pairs:
        """Return the pairs selected by a boolean mask or row numbers."""
        return Pairs(self.source.take(np.asarray(which)), self.target.take(np.asarray(which)))


# ------------------------------------------------------------------ what callers pass


#: Modality name for rows whose modality is unknown, where a table needs a name for them.
UNNAMED = "other"


def as_embeddings(
    data: RowsLike, name: str, *, allow_zero_rows: bool = False, labels: np.ndarray | None = None
) -> Embeddings:
    """Return rows (n, d) as ``Embeddings``; ``name`` is what the caller calls them. The ids are a table's column of
    them, else ``labels``, by default the index of a pandas object, unless it is the default one. Without ids rows are
    paired by position.
    """
    if isinstance(data, Embeddings):
        return data
    if isinstance(data, Mapping):
        raise InputError(f"Got {name} by modality ({', '.join(map(str, data))}).", "Pass one of its values.")
    rows, column = split_ids(data)
    labels = index_ids(data) if labels is None else labels
    names, called = (labels, "ids") if column is None else (column, f"ids of {name}")
    ids = None if names is None else as_ids(names, name=called)
    X = as_matrix(rows, name, ids=ids, allow_zero_rows=allow_zero_rows, copy_half=False)
    space = Space(dim=X.shape[1], normalized=has_unit_rows(X))
    return Embeddings._trusted(X, np.arange(len(X)) if ids is None else ids, space, ids is not None)


def as_pair(
    source: RowsLike, target: RowsLike, names: tuple[str, str] = ("source", "target"), *, allow_zero_rows: bool = False
) -> tuple[Embeddings, Embeddings]:
    """Return both as embeddings, ready for ``join``; pandas objects are paired by an index that is not the default."""
    first, second = index_ids(source), index_ids(target)
    if (first is None) != (second is None):
        # One frame is shuffled and the other has the default index 0, 1, 2, …: pairing by position would be wrong.
        labels = index_ids(source, default=True), index_ids(target, default=True)
        if labels[0] is not None and labels[1] is not None:
            first, second = labels
    sides = (source, names[0], first), (target, names[1], second)
    old, new = (as_embeddings(one, name, allow_zero_rows=allow_zero_rows, labels=labels) for one, name, labels in sides)
    return old, new


def by_modality(
    source: RowsLike | Mapping[str, RowsLike],
    target: RowsLike | Mapping[str, RowsLike],
    modality: str | None = None,
    *,
    spaces: tuple[Space, Space] = (Space(), Space()),
    names: tuple[str, str] = ("source", "target"),
) -> tuple[dict[str, Embeddings], dict[str, Embeddings]]:
    """Return source and target as embeddings by modality, passed as mappings or as rows of one modality. The modality
    of rows that are not in a mapping is ``modality``, else what the embeddings declare, else that of the other
    argument, else that of ``spaces`` (to which source and target should belong), else ``UNNAMED``.
    """
    if modality is not None:
        check_choice(modality, MODALITIES, "modality")
    if isinstance(source, Mapping) and isinstance(target, Mapping):
        if modality is not None:
            raise ModalityError(f"Got `modality={modality!r}` beside embeddings by modality.", "Leave modality out.")
        sides: tuple[dict[str, Embeddings], dict[str, Embeddings]] = ({}, {})
        for name in dict.fromkeys([*source, *target]):
            called = f"{names[0]}[{name!r}]", f"{names[1]}[{name!r}]"
            if name in source and name in target:
                sides[0][name], sides[1][name] = as_pair(source[name], target[name], called)
            elif name in source:
                sides[0][name] = as_embeddings(source[name], called[0])
            else:
                sides[1][name] = as_embeddings(target[name], called[1])
        return sides
    if isinstance(source, Mapping) or isinstance(target, Mapping):
        side = names[0] if isinstance(source, Mapping) else names[1]
        raise InputError(f"Got only the {side} by modality.", "Pass two mappings, or two tables of vectors.")
    pair = as_pair(source, target, names)
    declared = [items.space.modality for items in pair]
    for kind in declared:
        if modality is not None and kind not in (None, modality):
            problem = f"Got {kind} vectors with `modality={modality!r}`; expected them to agree."
            raise ModalityError(problem, "Leave modality out.")
    expected = [space.modality for space in spaces]
    joint = expected[0] != expected[1]  # a map that joins two modalities: neither side tells the modality of the other
    keys = [
        modality or declared[k] or (expected[k] if joint else None) or declared[1 - k] or expected[k] or UNNAMED
        for k in (0, 1)
    ]
    return {keys[0]: pair[0]}, {keys[1]: pair[1]}


def in_order(X: Any, Y: Any) -> tuple[Any, Any]:
    """Return both sides, with tables read once; refuse rows paired by position whose ids are in another order."""
    X, Y = read_once(X), read_once(Y)
    ours, theirs = (
        (one.ids if one.has_ids else None) if isinstance(one, Embeddings) else split_ids(one)[1] for one in (X, Y)
    )
    if ours is not None and theirs is not None and not same_ids(as_ids(ours), as_ids(theirs)):
        raise IdError(
            "Got rows paired by position whose ids are in another order.",
            "Use `congruence.fit` or `congruence.Pairs.join`, which pair by id.",
        )
    return X, Y
