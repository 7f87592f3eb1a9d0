"""Read-outs: what is left of a mapped row's mean when it stands in an index, or is a query.

A cosine of a query with a mapped row contains ⟨mean of the queries, row⟩. From few pairs this part is badly estimated,
and outweighs what tells rows apart. A read-out removes it, or keeps a share of it. It is folded into one matrix and one
vector, so that no role costs more than the product.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple, Self

import numpy as np

from congruence._utils.arrays import blocks, cast_like, namespace, normalize_rows
from congruence._utils.typing import Array
from congruence._utils.validation import check_choice
from congruence.embeddings import MODALITIES

#: What mapped rows are for: rows that stand in an index, queries, or neither (the fitted map itself).
ROLES = ("plain", "store", "query")

#: Forms of stored rows; ``Readout`` has their formulas.
FORMS = ("plain", "share", "dir", "dir2", "cone", "back")


class RowMeans(NamedTuple):
    """Old mean of rows (d_source,), their new mean (d_target,) if it is known, and all known means by modality."""

    source: np.ndarray
    target: np.ndarray | None
    sources: Mapping[str, np.ndarray]
    targets: Mapping[str, np.ndarray]


class Folded(NamedTuple):
    """``z @ matrix + offset``, then a move from ``base`` (None: the origin) along the result to the unit sphere."""

    matrix: np.ndarray
    offset: np.ndarray
    base: np.ndarray | None = None


@dataclass(frozen=True)
class Readout:
    """How rows of a map are read as stored rows and as queries.

    With R the map's matrix, μ and ν the old and the new mean of the row's modality, and H an orthonormal basis:

    - ``plain``: ``(z − μ) R + ν``, the map itself.
    - ``share``: ``(z − μ) R + s ν``.
    - ``dir``: ``(z − μ) R (I − HHᵀ)`` with the new means of the queries' modalities in H.
    - ``dir2``: the same with all known new means in H.
    - ``cone``: ``ν + √(1 − ‖ν‖²) unit(r)``, r the row of ``dir2``. √(1 − ‖ν‖²) is the typical length of a unit row's
      part off the mean, so mapped rows and the new model's own can stand side by side.
    - ``back``, of an inverse: from ν along ``z (I − HHᵀ) R`` to the unit sphere, with the old means in H. It maps rows
      in any of the forms above back, and the model's own.

    A query is ``(z − μ) R + s ν``. Rows of unit norm in the new model become unit rows, and a row equal to its mean
    becomes the mean.

    Parameters
    ----------
    queries : tuple of str
        Modalities of the queries; empty if any may search.
    store : str
        A form.
    share : mapping of str to float
        s, by modality; 1 for others.
    guess : float
        Share of μ that is subtracted from rows whose ν is unknown, by ``dir`` and ``dir2``.
    """

    queries: tuple[str, ...] = ()
    store: str = "plain"
    share: Mapping[str, float] = field(default_factory=dict)
    guess: float = 0.5

    def __post_init__(self) -> None:
        check_choice(self.store, FORMS, "store")
        for name in (*self.queries, *filter(None, self.share)):
            check_choice(name, MODALITIES, "queries")

    def fold(self, role: str, modality: str | None, plain: Folded, means: RowMeans) -> Folded:
        """Return a role as one product, from the map itself and the means of its rows."""
        share = self.share.get(modality or "", 1.0)
        if role == "query" or self.store == "share":
            if share == 1 or means.target is None:
                return plain
            return Folded(plain.matrix, share * means.target - means.source @ plain.matrix)
        known = means.sources if self.store == "back" else means.targets
        asked = self.queries if self.store == "dir" and self.queries else known
        directions = basis([known[name] for name in asked if name in known])
        if self.store == "plain" or directions is None:
            return plain
        if self.store == "back":
            matrix = plain.matrix - directions.T @ (directions @ plain.matrix)
            return Folded(matrix, np.zeros(matrix.shape[1]), means.target)
        matrix = plain.matrix - (plain.matrix @ directions.T) @ directions
        guess = 1.0 if means.target is not None else self.guess
        inside = means.target is not None and float(means.target @ means.target) < 1
        return Folded(
            matrix, -guess * (means.source @ matrix), means.target if self.store == "cone" and inside else None
        )

    def inverse(self) -> Readout:
        """Return the read-out of the map from the new model to the old one, whose stored rows are mapped back."""
        return Readout(self.queries, "plain" if self.store == "plain" else "back")

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain data."""
        return {**asdict(self), "queries": list(self.queries)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Build from ``to_dict``; a ValueError or TypeError if it is malformed."""
        shares = {name: float(value) for name, value in dict(data["share"]).items()}
        if not all(0 <= value <= 1 for value in (data["guess"], *shares.values())):
            raise ValueError("a share of the mean that is not between 0 and 1")
        return cls(tuple(data["queries"]), data["store"], shares, float(data["guess"]))


def basis(vectors: list[np.ndarray]) -> np.ndarray | None:
    """Return an orthonormal basis (k, d) of vectors (d,); None if all are zero."""
    if not vectors:
        return None
    _, lengths, directions = np.linalg.svd(np.stack(vectors), full_matrices=False)
    kept = directions[lengths > 1e-6 * max(1.0, float(lengths[0]))]
    return kept if len(kept) else None


def to_sphere(rows: Array, base: np.ndarray | None, mean: np.ndarray | None, tiny: float) -> Array:
    """Move from ``base``, inside the unit sphere, along each row to the sphere; without a base, scale to unit norm.

    Rows shorter than ``tiny`` have no direction, and become the mean, scaled to unit norm.
    """
    if not isinstance(rows, np.ndarray):
        return _block_to_sphere(rows, base, mean, tiny)
    out = np.empty_like(rows)
    for part in blocks(len(rows), rows.shape[1] * 8, budget=4 * 2**20):
        out[part] = _block_to_sphere(rows[part], base, mean, tiny)
    return out


def _block_to_sphere(rows: Array, base: np.ndarray | None, mean: np.ndarray | None, tiny: float) -> Array:
    xp = namespace(rows)
    with np.errstate(over="ignore", under="ignore"):
        squares = xp.sum(rows * rows, axis=1)
    usual = isinstance(rows, np.ndarray) and bool(((squares > 1e-20) & (squares < 1e20)).all())
    out = rows / np.sqrt(squares)[:, None] if usual else normalize_rows(rows)
    if base is not None:
        start = cast_like(base, out)
        along = out @ start
        out = out * (xp.sqrt(along * along + (1 - float(base @ base))) - along)[:, None] + start
    if mean is not None and bool(xp.any(short := squares <= tiny * tiny)):
        out = xp.where(short[:, None], cast_like(mean / np.linalg.norm(mean), out), out)
    return out
