"""Vectors that know where they come from: spaces, embeddings with ids, pairs joined by id."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from congruence._arrays import blocks
from congruence._check import as_matrix, check_choice, check_same_rows, name_rows
from congruence.errors import DirectionError, IdError, ModalityError, SpaceMismatchError

#: Modalities a space may have. ``None`` means "not said".
MODALITIES = ("image", "text", "audio", "video", "other")

#: Rows whose norms differ from 1 by less than this count as unit rows (float16 rounds at about 5e-4).
UNIT_TOLERANCE = 5e-3


@dataclass(frozen=True)
class Space:
    """Identity of an embedding space: which model made the vectors, and how.

    Parameters
    ----------
    model : str, optional
        Name of the model, for example ``"open_clip:ViT-B-32/openai"``. ``None`` when unknown.
    revision : str, optional
        Version of the weights.
    modality : str, optional
        One of :data:`MODALITIES`.
    dim : int, optional
        Width of the vectors.
    normalized : bool, optional
        Whether rows have unit norm.

    Raises
    ------
    ParameterError
        If the modality is unknown.
    """

    model: str | None = None
    revision: str | None = None
    modality: str | None = None
    dim: int | None = None
    normalized: bool | None = None

    def __post_init__(self) -> None:
        if self.modality is not None:
            check_choice(self.modality, MODALITIES, "modality")

    def to_dict(self) -> dict[str, Any]:
        """Return the known facts as a plain dictionary (unknown ones are left out)."""
        return {key: value for key, value in self.__dict__.items() if value is not None}

    @classmethod
    def from_dict(cls, facts: Mapping[str, Any] | None) -> Space:
        """Build a space from :meth:`to_dict`'s output; keys of later versions are ignored."""
        known = {f: facts[f] for f in cls.__dataclass_fields__ if f in facts} if facts else {}
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
        return ", ".join(parts)


def check_space(data: Space, expected: Space, other: Space, *, modality: bool = True) -> None:
    """Refuse vectors of another space than the one a map was fitted on.

    Only facts known on both sides are compared. Revisions count only when the model names agree.

    Parameters
    ----------
    data : Space
        Space of the vectors at hand.
    expected, other : Space
        The side of the map the vectors should come from, and its far side.
    modality : bool, default=True
        Compare modalities as well.

    Raises
    ------
    DirectionError
        The vectors come from the far side: the map is held the wrong way round.
    SpaceMismatchError
        Another model, revision, width or normalisation.
    ModalityError
        Another modality.
    """
    if data.model and expected.model and data.model != expected.model:
        if data.model == other.model:
            raise DirectionError(
                f"Got vectors of {data.model!r}, which is where this map leads; expected vectors of "
                f"{expected.model!r}. Use the inverse map."
            )
        raise SpaceMismatchError(
            f"Got vectors of {data.model!r}; expected vectors of {expected.model!r}. Use a map fitted on this model."
        )
    if data.model and data.revision and expected.revision and data.revision != expected.revision:
        raise SpaceMismatchError(
            f"Got vectors of {data.model!r} at revision {data.revision!r}; expected revision "
            f"{expected.revision!r}. Fit a map for this revision."
        )
    if data.dim and expected.dim and data.dim != expected.dim:
        if data.dim == other.dim:
            raise DirectionError(
                f"Got {data.dim}-d vectors, the width this map leads to; expected {expected.dim}-d. "
                "Use the inverse map."
            )
        raise SpaceMismatchError(
            f"Got {data.dim}-d vectors; expected {expected.dim}-d. Use a map fitted on this model."
        )
    if None not in (data.normalized, expected.normalized) and data.normalized != expected.normalized:
        got, want = ("unit", "raw") if data.normalized else ("raw", "unit")
        raise SpaceMismatchError(
            f"Got {got} rows; expected {want} rows, as the map was fitted on. "
            + ("Normalize them first." if want == "unit" else "Pass the vectors as they were before normalization.")
        )
    if modality and data.modality and expected.modality and data.modality != expected.modality:
        raise ModalityError(
            f"Got {data.modality} vectors; expected {expected.modality}. "
            f"Pass modality={data.modality!r} to use the map's {data.modality} means, or add them with recenter."
        )


def has_unit_rows(X: np.ndarray, sample: int = 4096) -> bool:
    """Whether rows have unit norm, judged on at most ``sample`` evenly spaced rows.

    Parameters
    ----------
    X : ndarray, shape (n, d)
    sample : int, default=4096

    Returns
    -------
    bool
    """
    rows = X[:: max(1, -(-len(X) // sample))].astype(np.float64, copy=False)
    with np.errstate(over="ignore"):  # a huge row is no unit row, whatever its norm
        return bool(np.all(np.abs(np.linalg.norm(rows, axis=1) - 1) < UNIT_TOLERANCE))


def normalize_rows(X: np.ndarray) -> np.ndarray:
    """Return the rows of ``X`` scaled to unit norm, in a new array of the same dtype.

    Zero rows stay zero: a direction cannot be invented.

    Parameters
    ----------
    X : ndarray, shape (n, d)

    Returns
    -------
    ndarray, shape (n, d)
    """
    out = np.empty_like(X, order="C")
    for part in blocks(len(X), X.shape[1] * 8, budget=4 * 2**20):
        block = X[part].astype(np.float64)
        norms = np.linalg.norm(block, axis=1, keepdims=True)
        out[part] = block / np.where(norms > 0, norms, 1)
    return out


def as_ids(ids: Any, n: int | None = None, name: str = "ids") -> np.ndarray:
    """Return ids as a string array, each different from the others.

    Parameters
    ----------
    ids : sequence of str or int
    n : int, optional
        How many there must be.
    name : str
        For messages.

    Returns
    -------
    ndarray of str, shape (n,)

    Raises
    ------
    IdError
        Wrong number, empty or repeated ids.
    """
    array = np.asarray(ids)
    if array.ndim != 1:
        raise IdError(f"Got {name} with shape {array.shape}; expected one id a row. Pass a flat list.")
    if array.dtype.kind == "S":
        array = np.char.decode(array, "utf-8")
    array = array.astype(str)
    if n is not None and len(array) != n:
        raise IdError(f"Got {len(array)} {name} for {n} rows; expected one id a row. Pass as many ids as rows.")
    unique, counts = np.unique(array, return_counts=True)
    if len(unique) < len(array):
        repeated = unique[counts > 1]
        raise IdError(
            f"Got {len(repeated)} duplicate {name} ({name_rows(np.arange(len(repeated)), repeated)}); "
            "expected each id once. Drop the repeats or give each row its own id."
        )
    return array


@dataclass(frozen=True, eq=False)
class Embeddings:
    """A matrix of vectors whose ids and origin travel with it.

    Parameters
    ----------
    vectors : array_like, shape (n, d)
        float16, float32 or float64; integers widen to float64. Never modified.
    ids : sequence of str or int, optional
        One a row, each different. Without ids, rows are named by their number and pair by position.
    space : Space, optional
        Origin. Width and normalisation are filled in from the data when not said.
    allow_zero_rows : bool, default=False
        Accept rows of zeros.

    Raises
    ------
    ShapeError, DtypeError, NotFiniteError, ZeroRowError, IdError, SpaceMismatchError

    Examples
    --------
    >>> import numpy as np
    >>> from congruence import Embeddings, Space
    >>> cats = Embeddings(np.eye(3), ids=["a", "b", "c"], space=Space("my-model", modality="image"))
    >>> cats.take(["c", "a"]).vectors[0]
    array([0., 0., 1.])
    """

    vectors: np.ndarray
    ids: Any = None
    space: Space = field(default_factory=Space)
    allow_zero_rows: bool = False
    has_ids: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        given = self.ids is not None
        ids = as_ids(self.ids) if given else None
        X = as_matrix(self.vectors, "vectors", ids=ids, allow_zero_rows=self.allow_zero_rows, copy_half=False)
        if ids is None:
            ids = np.arange(len(X)).astype(str)
        elif len(ids) != len(X):
            raise IdError(f"Got {len(ids)} ids for {len(X)} rows; expected one id a row. Pass as many ids as rows.")
        space = self.space
        if space.dim is not None and space.dim != X.shape[1]:
            raise SpaceMismatchError(
                f"Got {X.shape[1]}-d vectors for a space said to be {space.dim}-d ({space}); "
                f"expected the same width. Pass space=Space(…, dim={X.shape[1]}), or leave out dim."
            )
        normalized = has_unit_rows(X) if space.normalized is None else space.normalized
        object.__setattr__(self, "vectors", X)
        object.__setattr__(self, "ids", ids)
        object.__setattr__(self, "has_ids", given)
        object.__setattr__(self, "space", replace(space, dim=X.shape[1], normalized=normalized))

    def __len__(self) -> int:
        return len(self.vectors)

    @property
    def dim(self) -> int:
        """Width of the vectors."""
        return self.vectors.shape[1]

    @property
    def mean(self) -> np.ndarray:
        """Mean vector in float64, shape (d,)."""
        return self.vectors.mean(axis=0, dtype=np.float64)

    def take(self, which: Sequence[str] | np.ndarray) -> Embeddings:
        """Return the rows with these ids, in this order.

        Parameters
        ----------
        which : sequence of str, or boolean or integer array
            Ids; or a mask or row numbers as NumPy would take them.

        Returns
        -------
        Embeddings

        Raises
        ------
        IdError
            If an id is not here.
        """
        array = np.asarray(which)
        if array.dtype.kind in "US":
            position = {name: row for row, name in enumerate(self.ids.tolist())}
            missing = [name for name in array.tolist() if name not in position]
            if missing:
                raise IdError(
                    f"Got {len(missing)} ids that are not here ({name_rows(np.arange(len(missing)), missing)}); "
                    "expected ids of these embeddings. Pass some of .ids."
                )
            array = np.array([position[name] for name in array.tolist()], dtype=int)
        return self._with(self.vectors[array], self.ids[array])

    def normalize(self) -> Embeddings:
        """Return the same items with unit rows (a new array)."""
        out = self._with(normalize_rows(self.vectors), self.ids)
        object.__setattr__(out, "space", replace(self.space, normalized=True))
        return out

    def _with(self, vectors: np.ndarray, ids: np.ndarray) -> Embeddings:
        return Embeddings._trusted(vectors, ids, self.space, self.has_ids)

    @classmethod
    def _trusted(cls, vectors: np.ndarray, ids: np.ndarray, space: Space, has_ids: bool) -> Embeddings:
        """Build without checking again what was checked before."""
        new = object.__new__(cls)
        for key, value in {
            "vectors": vectors,
            "ids": ids,
            "space": replace(space, dim=vectors.shape[1]),
            "allow_zero_rows": True,
            "has_ids": has_ids,
        }.items():
            object.__setattr__(new, key, value)
        return new


@dataclass(frozen=True, eq=False)
class Pairs:
    """Two embeddings of the same items, row by row.

    Build it with :meth:`join`, which pairs by id; the constructor trusts its arguments' order.

    Parameters
    ----------
    source, target : Embeddings
        Equal length; row *i* of one is the same item as row *i* of the other.
    only_source, only_target : ndarray of str
        Ids that had no partner and were left out.

    Raises
    ------
    ShapeError
        If the lengths differ.
    """

    source: Embeddings
    target: Embeddings
    only_source: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=str))
    only_target: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=str))

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
    def join(cls, source: Embeddings, target: Embeddings, *, missing: str = "drop") -> Pairs:
        """Pair two embeddings by id, in the source's order.

        When either side has no ids the rows must be equally many and pair by position.

        Parameters
        ----------
        source, target : Embeddings
        missing : {"drop", "error"}, default="drop"
            What to do with ids found on one side only. Dropped ids are kept in ``only_source`` and
            ``only_target``.

        Returns
        -------
        Pairs

        Raises
        ------
        IdError
            No id in common, or a lone id under ``missing="error"``.
        ShapeError
            Row counts differ and there are no ids to pair by.
        """
        check_choice(missing, ("drop", "error"), "missing")
        if not (source.has_ids and target.has_ids):
            return cls(source, target)
        if np.array_equal(source.ids, target.ids):
            return cls(source, target)
        common, rows_s, rows_t = np.intersect1d(source.ids, target.ids, assume_unique=True, return_indices=True)
        if not len(common):
            raise IdError(
                f"Got no id in common (source has {name_rows(np.arange(min(2, len(source))), source.ids)} …, "
                f"target {name_rows(np.arange(min(2, len(target))), target.ids)} …); expected the same items "
                "on both sides. Pass ids=… that name the same items alike on both sides."
            )
        order = np.argsort(rows_s, kind="stable")
        rows_s, rows_t = rows_s[order], rows_t[order]
        only_source = np.delete(source.ids, rows_s)
        only_target = np.delete(target.ids, rows_t)
        if missing == "error" and (len(only_source) or len(only_target)):
            lone = only_source if len(only_source) else only_target
            side = "source" if len(only_source) else "target"
            raise IdError(
                f"Got {len(only_source)} ids only in the source and {len(only_target)} only in the target "
                f"(in the {side}: {name_rows(np.arange(len(lone)), lone)}); expected the same ids on both sides. "
                'Pass missing="drop" to leave them out.'
            )
        return cls(
            source._with(source.vectors[rows_s], source.ids[rows_s]),
            target._with(target.vectors[rows_t], target.ids[rows_t]),
            only_source,
            only_target,
        )

    def take(self, which: np.ndarray) -> Pairs:
        """Return the pairs selected by a boolean mask or row numbers."""
        which = np.asarray(which)
        return Pairs(
            self.source._with(self.source.vectors[which], self.source.ids[which]),
            self.target._with(self.target.vectors[which], self.target.ids[which]),
        )
