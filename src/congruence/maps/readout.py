"""Read-outs: what is left of a mapped row's mean when it stands in an index, or is a query.

A cosine of a query with a mapped row contains ⟨mean of the queries, row⟩. From few pairs this part is badly estimated,
and outweighs what tells rows apart. A read-out removes it, or keeps as much of it as the pairs support. It is folded
into one matrix and one vector, so that no role costs more than the product.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple, Self

import numpy as np

from congruence._utils.arrays import blocks, cast_like, namespace, normalize_rows, to_numpy
from congruence._utils.typing import Array
from congruence._utils.validation import check_choice
from congruence.embeddings import MODALITIES
from congruence.errors import ParameterError

#: What mapped rows are for: rows that stand in an index, queries, or neither (the fitted map itself).
ROLES = ("plain", "store", "query")

#: Forms of stored rows; ``Readout`` has their formulas.
FORMS = ("plain", "cone", "back")


class RowMeans(NamedTuple):
    """Old mean of rows (d_source,), their new mean (d_target,) and whether it is only a guess, and all known means."""

    source: np.ndarray
    target: np.ndarray
    guessed: bool
    sources: Mapping[str, np.ndarray]
    targets: Mapping[str, np.ndarray]


class Measured(NamedTuple):
    """Mean cosine between mapped rows and the new model's own, without their means; the ratio of their lengths; and the
    sums whose ratio is the slope of the own rows' part along the new mean on that of the mapped ones.
    """

    cosine: float
    length: float
    both_along: float
    mapped_along: float

    @classmethod
    def of(cls, mapped: np.ndarray, own: np.ndarray, mean: np.ndarray) -> Measured:
        """Measure rows (n, d)."""
        dots = np.einsum("ij,ij->i", mapped, own)
        sizes = [np.linalg.norm(rows, axis=1) for rows in (mapped, own)]
        scale = sizes[0] * sizes[1]
        cosine = np.divide(dots, scale, out=np.zeros_like(dots), where=scale > 0).mean()
        length = np.sqrt(np.square(sizes[0]).sum() / max(float(np.square(sizes[1]).sum()), 1e-300))
        along = mapped @ mean
        return cls(float(cosine), float(length), float(along @ (own @ mean)), float(along @ along))

    @property
    def slope(self) -> float:
        """Slope of the parts along the mean, from 0 to 1."""
        return float(np.clip(self.both_along / self.mapped_along, 0, 1)) if self.mapped_along > 0 else 1.0

    @property
    def height(self) -> float:
        """How much of its part along the mean a stored row keeps."""
        return max(self.cosine, 0.0) * self.slope

    @property
    def share(self) -> float:
        """How much of their mean queries keep."""
        return query_share(self.cosine, self.length)


def query_share(cosine: float, length: float) -> float:
    """Return how much of their mean queries keep, from ``Measured``. Whole lists need more of it than what finds the
    row of a query: the power is between the two.
    """
    return min(1.0, min(max(cosine, 0.0), 1.0) ** _POWER * length)


class Ends(NamedTuple):
    """Base and axis as rows (2, d) of one type, zeros for what is missing, and what does not depend on mapped rows."""

    rows: np.ndarray
    square: float  # of the base's length
    shared: float  # base along the axis
    short: float  # largest squared length of a mapped row that is nothing but rounding


@dataclass(frozen=True, eq=False)
class Folded:
    """``z @ matrix + offset``, then a move along the result from a base to the unit sphere (``to_sphere``)."""

    matrix: np.ndarray
    offset: np.ndarray
    base: np.ndarray | None = None
    axis: np.ndarray | None = None
    height: float = 0.0
    #: What a row without any direction becomes, of unit norm.
    mean: np.ndarray | None = None
    _ends: dict[np.dtype, Ends] = field(default_factory=dict, init=False, repr=False)

    def ends_in(self, dtype: np.dtype) -> Ends:
        """Return base and axis as rows of a type, made once."""
        if (found := self._ends.get(dtype)) is None:
            none = np.zeros_like(self.offset if self.base is None else self.base)
            rows = np.stack([none if end is None else end for end in (self.base, self.axis)]).astype(dtype)
            square, shared = (rows[0] @ rows.T).tolist()
            tiny = shortest_row(float(np.finfo(dtype).eps), len(none), float(np.linalg.norm(self.offset)))
            found = self._ends[dtype] = Ends(rows, square, shared, tiny * tiny)
        return found


@dataclass(frozen=True)
class Readout:
    """How rows of a map are read as stored rows and as queries.

    With R the map's matrix, μ and ν the old and the new mean of the row's modality m, ``r = (z − μ) R``, B an
    orthonormal basis of the new means of the queries' other modalities, and u the direction of ν off B:

    - ``plain``: the map itself, ``r + ν``.
    - ``cone``: ``t + √(1 − ‖t‖²) unit(p)`` with ``p = r − r BᵀB − ⟨u, r⟩ u`` and ``t = ν + (δ ‖ν‖² / ⟨u, ν⟩ + k a) u``;
      k is ``height[m]`` and δ ``lift[m]`` (``find_lift``), or 0 if no queries of m's kind search. a is ``⟨u, r⟩`` or,
      with α = ``slope[m]``, ``α ⟨unit(μ), z − μ⟩``: of a modality without pairs, that tells more.
      Means of less than a tenth of the squared norm are no directions. If ν is unknown, ``unit(p)``, and u is the
      direction of the map's guess of ν. If the new mean of no query is known, the map itself.
    - ``back``, of an inverse: from ν along ``z R``, without the directions of the old means, to the unit sphere.

    A query is ``r + s ν`` with ``s = share[m]``. All of this is for new rows of unit norm, and gives unit rows; a row
    that equals its mean becomes the mean. ``queries`` are the modalities of the queries, empty for all whose new mean
    is known; ``height`` (k), ``share`` (s) and ``back`` (s in the other direction) are by modality, 1 if not given;
    ``lift`` is 0 if not given or negative. ``slope`` (α) is given for modalities of which both means come from rows.
    """

    queries: tuple[str, ...] = ()
    store: str = "plain"
    height: Mapping[str, float] = field(default_factory=dict)
    share: Mapping[str, float] = field(default_factory=dict)
    back: Mapping[str, float] = field(default_factory=dict)
    lift: Mapping[str, float] = field(default_factory=dict)
    slope: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_choice(self.store, FORMS, "store")
        for name in (*self.queries, *filter(None, (name for table in _TABLES for name in getattr(self, table)))):
            check_choice(name, MODALITIES, "queries")

    def fold(self, role: str, modality: str, plain: Folded, means: RowMeans) -> Folded:
        """Return a role as one product, from the map itself and the means of its rows."""
        matrix = plain.matrix
        if role == "query":
            share = self.share.get(modality, 1.0)
            if share == 1:
                return plain
            return Folded(matrix, share * means.target - means.source @ matrix)
        if self.store == "plain":
            return plain
        if self.store == "back":
            matrix = _without(matrix.T, basis(means.sources.values())).T
            return Folded(matrix, np.zeros_like(means.target), inside(means.target))
        asked = self.queries or tuple(means.targets)
        if not any(name in means.targets for name in asked):
            return plain  # there is no known mean to read rows by
        others = basis(means.targets[name] for name in asked if name != modality and is_cone(means.targets.get(name)))
        searched = not self.queries or modality in self.queries  # by queries of its own kind
        # A guess from few pairs is short; whether there is a cone shows in the old model.
        removed = (is_cone(means.source) and searched) if means.guessed else is_cone(means.target)
        own = basis([_without(means.target, others)] if removed else ())
        matrix, base, height = _without(matrix, others), None if means.guessed else means.target, 0.0
        if own is not None and base is not None and modality in asked:
            if own[0] @ base < 0:
                own = -own
            height, slope = self.height.get(modality, 1.0), self.slope.get(modality)
            if height and slope is not None:
                length = max(float(np.linalg.norm(means.source)), 1e-12)
                matrix = _without(matrix, own) + np.outer(slope / length * means.source, own[0])
            # Other queries see nothing of what is added here: it is off their means.
            size, along = float(base @ base), float(own[0] @ base)
            base = base + max(self.lift.get(modality, 0.0), 0.0) * size / max(along, size**0.5 / 4) * own[0]
        if not height:
            matrix = _without(matrix, own)
        base = None if base is None else inside(base)
        return Folded(matrix, -means.source @ matrix, base, own[0] if height and own is not None else None, height)

    def rows(self) -> list[list[str]]:
        """Return how stored rows and queries are read, and on what evidence, as rows of a table."""
        queries = " and ".join(self.queries) or "any known"
        form = {
            "plain": "as the map gives them",
            "cone": f"as a cone, for {queries} queries",
            "back": "mapped back to unit rows",
        }[self.store]
        lift = {name: value for name, value in self.lift.items() if value >= 0.005 and self.store == "cone"}
        out = [["stored rows", form]]
        for title, table in (
            ("how much of its part along the mean a row keeps", self.height),
            ("slope of that part on the old one's, of rows without pairs", self.slope),
            ("share of their mean that queries keep", self.share),
            ("their mean is longer by, beside re-embedded rows", lift),
        ):
            if table:
                out.append([title, ", ".join(f"{value:.2f} {name}".strip() for name, value in table.items())])
        return out

    def inverse(self) -> Readout:
        """Return the read-out of the map from the new model to the old one, whose stored rows are mapped back."""
        store = {"plain": "plain", "cone": "back", "back": "cone"}[self.store]
        return replace(self, store=store, share=self.back, back=self.share)

    def then(self, other: Readout) -> Readout:
        """Return the read-out of this map followed by another: what two maps get right is their product, and rows are
        lifted as by the worse of them.
        """

        def both(name: str) -> dict[str, float]:
            mine, theirs = getattr(self, name), getattr(other, name)
            return {key: mine.get(key, 1.0) * theirs.get(key, 1.0) for key in {**mine, **theirs}}

        names = {**self.lift, **other.lift}
        lift = {name: max(self.lift.get(name, 0.0), other.lift.get(name, 0.0)) for name in names}
        slope = {name: value * other.slope[name] for name, value in self.slope.items() if name in other.slope}
        return Readout(other.queries, other.store, both("height"), both("share"), both("back"), lift, slope)

    def merge(self, other: Readout, share: float) -> Readout:
        """Return the read-out of a map of both maps' pairs, of which the other's are this share."""
        if (self.queries, self.store) != (other.queries, other.store):
            raise ParameterError("Got maps whose rows are read in two ways.", "Fit both with the same `queries=…`.")

        def both(name: str) -> dict[str, float]:
            mine, theirs = getattr(self, name), getattr(other, name)
            return {
                key: (1 - share) * mine.get(key, theirs.get(key)) + share * theirs.get(key, mine.get(key))
                for key in {**mine, **theirs}
            }

        return Readout(self.queries, self.store, *map(both, _TABLES))

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain data."""
        return {**asdict(self), "queries": list(self.queries)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Build from ``to_dict``; a ValueError or TypeError if it is malformed."""
        saved = {"lift": {}, "slope": {}, **data}  # which earlier versions did not measure
        tables = {key: {name: float(value) for name, value in dict(saved[key]).items()} for key in _TABLES}
        for key, table in tables.items():
            low, high = {"lift": (-1, 1), "slope": (0, 1e9)}.get(key, (0, 1))
            if not all(low <= value <= high for value in table.values()):
                raise ValueError(f"a {key} of the read-out that is not between its ends")
        return cls(tuple(data["queries"]), data["store"], **tables)


def find_lift(mapped: np.ndarray, own: np.ndarray, mean: np.ndarray, height: float) -> float | None:
    """Return the share by which to lengthen the mean of stored rows, so that they can stand beside native ones: half of
    what their highest 3 % of scores lack, relative to a score of the mean. From −1 to 1; None if there are too few rows
    to say, or no mean to speak of.

    ``mapped`` (m, d) and ``own`` (n, d) are rows without their mean, of items that the map was not fitted on; if they
    are pairs, row i of both is one item.
    """
    if min(len(mapped), len(own)) < _FEWEST or not is_cone(mean):
        return None
    mapped, own = (rows[:: -(-len(rows) // _MOST_SCORED)] for rows in (mapped, own))
    native, axis = own + mean, mean / np.linalg.norm(mean)
    stored = to_sphere(mapped, Folded(np.eye(0), np.zeros(1), inside(mean), axis, height))
    scores = [native @ rows.T for rows in (native, stored)]
    high = [np.quantile(each[np.eye(*each.shape) == 0], 0.97) for each in scores]
    return float(np.clip((high[0] - high[1]) / (2 * float(mean @ mean)), -1, 1))


def is_cone(mean: np.ndarray | None) -> bool:
    """Return whether a mean of unit rows (d,) holds enough of them to outweigh what tells them apart."""
    return mean is not None and float(mean @ mean) >= _CONE


def basis(vectors: Iterable[np.ndarray]) -> np.ndarray | None:
    """Return an orthonormal basis (k, d) of vectors (d,); None if there are none but zeros."""
    rows = [vector for vector in vectors if vector.any()]
    if not rows:
        return None
    _, lengths, directions = np.linalg.svd(np.stack(rows), full_matrices=False)
    return np.asarray(directions[lengths > 1e-6 * lengths[0]])


def _without(rows: np.ndarray, directions: np.ndarray | None) -> np.ndarray:
    """Return rows (…, d) without their parts along orthonormal directions (k, d)."""
    return rows if directions is None else rows - (rows @ directions.T) @ directions


def inside(mean: np.ndarray) -> np.ndarray:
    """Return a mean of unit rows, or shortened to lie inside the unit sphere."""
    return mean * min(1.0, LONGEST / max(float(np.linalg.norm(mean)), 1e-12))


_CONE = (
    0.1  # share of the squared norm; models trained on the web have .4 to .85, heads trained on few pairs .01 to .08
)
_POWER = 0.75  # of the cosine; benchmarks/readouts.py
_FEWEST, _MOST_SCORED = 4, 500  # rows from which a lift is found
_TABLES = ("height", "share", "back", "lift", "slope")
LONGEST = 0.99  # length of the longest base, so that something of each row remains


def shortest_row(eps: float, width: int, offset: float) -> float:
    """Return the length up to which a mapped row is nothing but rounding, from the norm of the offset added to it."""
    return 4 * eps * width**0.5 * offset


def to_sphere(rows: Array, folded: Folded) -> Array:
    """Move from the base along rows (n, d) to the unit sphere; without a base, scale them to unit norm. The part of a
    row along the axis is not moved along: ``height`` times it is added to the base. Rows no longer than the rounding of
    the product have no direction, and become the mean.
    """
    if not isinstance(rows, np.ndarray):
        eps = float(namespace(rows).finfo(rows.dtype).eps)
        tiny = shortest_row(eps, rows.shape[1], float(np.linalg.norm(folded.offset)))
        return _block_to_sphere(rows, folded, tiny * tiny)
    ends = folded.ends_in(rows.dtype)
    if len(rows) == 1 and (found := _row_to_sphere(rows[0], folded, ends)) is not None:
        return found[None]
    out = np.empty_like(rows)
    for part in blocks(len(rows), rows.shape[1] * 8, budget=4 * 2**20):
        short = _ordinary_to_sphere(rows[part], folded, ends, out[part])
        if short is not None:
            out[part][short] = _block_to_sphere(rows[part][short], folded, ends.short)
    return out


def _steps(squares: Any, along: Any, above: Any, folded: Folded, ends: Ends, larger: Callable[..., Any]) -> list[Any]:
    """Return how often to add each row, the base and the axis, from squared lengths and parts along base and axis."""
    k = folded.height
    square = ends.square + k * above * (2 * ends.shared + k * above)
    scale = LONGEST / larger(square, LONGEST**2) ** 0.5
    size = (squares - above * above) ** 0.5
    inner = (along - above * ends.shared) * scale / size
    far = ((inner * inner + 1 - square * scale * scale) ** 0.5 - inner) / size
    return [far, scale, k * scale * above - far * above]


def _row_to_sphere(row: np.ndarray, folded: Folded, ends: Ends) -> np.ndarray | None:
    """Return ``to_sphere`` of one row without the microseconds that reductions take; None if it is too short or long
    for that.
    """
    squares, base, axis = float(row.dot(row)), *ends.rows
    above = 0.0 if folded.axis is None else float(row.dot(axis))
    rest = squares - above * above
    if not (rest > max(ends.short, 1e-20) and rest > 1e-2 * squares and squares < 1e20):
        return None
    if folded.base is None:
        return np.asarray(row / squares**0.5)
    far, scale, more = _steps(squares, float(row.dot(base)), above, folded, ends, max)
    out: np.ndarray = row * far
    out += scale * base
    if more:
        out += more * axis
    return out


def _ordinary_to_sphere(rows: np.ndarray, folded: Folded, ends: Ends, out: np.ndarray) -> np.ndarray | None:
    """Write ``to_sphere``, a combination of each row, the base and the axis, in two passes over the rows; return which
    rows are too short or too long for that, None if there are none.
    """
    squares, least = np.einsum("ij,ij->i", rows, rows), max(ends.short, 1e-20)
    with np.errstate(all="ignore"):
        if folded.base is None:
            good = (squares > least) & (squares < 1e20)
            np.multiply(rows, (1 / np.sqrt(squares))[:, None], out=out)
        else:
            along, above = (rows @ ends.rows.T).T
            rest = squares - above * above
            good = (rest > least) & (rest > 1e-2 * squares) & (squares < 1e20)
            far, scale, more = _steps(squares, along, above, folded, ends, np.maximum)
            np.multiply(rows, far[:, None], out=out)
            out += np.stack([scale, more], 1) @ ends.rows
    return None if good.all() else ~good


def _block_to_sphere(rows: Array, folded: Folded, least: float) -> Array:
    xp = namespace(rows)
    base: Any = None if folded.base is None else cast_like(folded.base, rows)
    if folded.axis is not None:
        axis = cast_like(folded.axis, rows)
        above = (rows @ axis)[:, None]
        rows = rows - above * axis
        base = base + folded.height * above * axis
        length = xp.linalg.vector_norm(base, axis=1, keepdims=True)
        base = base * xp.clip(LONGEST / length, max=1.0)
    with np.errstate(over="ignore", under="ignore"):
        squares = xp.sum(rows * rows, axis=1)
    usual = isinstance(rows, np.ndarray) and bool(((squares > 1e-20) & (squares < 1e20)).all())
    out = rows / np.sqrt(to_numpy(squares))[:, None] if usual else normalize_rows(rows)
    if base is not None:
        along = xp.sum(out * base, axis=1, keepdims=True)
        out = out * (xp.sqrt(along * along + (1 - xp.sum(base * base, axis=-1, keepdims=True))) - along) + base
    if folded.mean is not None and bool(xp.any(short := squares <= least)):
        out = xp.where(short[:, None], cast_like(folded.mean, out), out)
    return out
