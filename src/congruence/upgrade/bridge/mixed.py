"""Search an index of which one part holds the old model's vectors and the other the new model's."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from congruence._utils.arrays import blocks, normalize_rows
from congruence._utils.ids import id_texts, is_in
from congruence._utils.typing import RowsLike
from congruence._utils.validation import check_choice, check_positive, check_seed
from congruence.embeddings import Embeddings, Space, as_embeddings
from congruence.errors import InputError, ParameterError, ShapeError
from congruence.upgrade.bridge.bridge import Bridge
from congruence.upgrade.bridge.search import find, rows_of_index

MERGES = ("standardize", "none")  # how scores of the two parts are brought onto one scale

#: Maximum and minimum number of rows of each part by which a query's scores are standardized.
BACKGROUND, FEWEST = 1000, 20

_FIX = "Pass `background=…`, or `merge='none'`."


@dataclass(frozen=True, eq=False)
class MixedResult:
    """Result of a search of both parts, nearest first; without the axis of queries for one query."""

    scores: np.ndarray  # (m, k); standardized: deviations above the query's mean score in the part
    ids: np.ndarray  # (m, k), or row numbers if a part has no ids
    new: np.ndarray  # (m, k): whether the row is from the new model's part
    n_in_both: int = 0  # rows of the old part that were left out because the new part has their ids

    def __len__(self) -> int:
        return len(self.ids)


def search_mixed(
    bridge: Bridge,
    queries: RowsLike,
    old: object,
    new: object,
    k: int = 10,
    *,
    modality: str | None = None,
    merge: str = "standardize",
    background: tuple[RowsLike, RowsLike] | None = None,
    random_state: int = 0,
) -> MixedResult:
    """Search an index of which one part holds the old model's vectors and the other the new model's.

    Parameters
    ----------
    bridge : Bridge
        From the new model to the old one; the old part is searched with bridged queries.
    queries : Embeddings, array_like or tensor, shape (m, d_new) or (d_new,)
        Queries in the new model.
    old, new : Embeddings, array_like of shapes (n, d_old) and (n', d_new), FAISS index, or callable
        The two parts, as for ``Bridge.search``. If both have ids, an item that is in both counts as new.
    merge : {"standardize", "none"}, default="standardize"
        "standardize": subtract from a query's scores in a part their mean over some rows of that part, and divide by
        their standard deviation. "none": compare the cosines of the two models directly.
    background : tuple of array_like, shapes (b, d_old) and (b', d_new), optional
        Rows to standardize by; required for a part that searches by itself. By default up to 1,000 random rows of each
        part, which is right if both have similar content. If the migration is ordered by date or topic, pass the same
        items in both models.

    Examples
    --------
    >>> from congruence import Bridge, fit
    >>> from congruence.synthetic import rigid_problem
    >>> from congruence.upgrade.bridge import search_mixed
    >>> p = rigid_problem(n=200, d_source=16, random_state=0)
    >>> bridge = Bridge(fit(p.X[:100], p.Y[:100], check=False))
    >>> found = search_mixed(bridge, p.X[100:103], old=p.Y[100:150], new=p.X[150:], k=3)
    >>> found.ids[:, 0].tolist(), found.new[:, 0].tolist()
    ([0, 1, 2], [False, False, False])
    """
    check_positive(k, "k", integer=True)
    check_choice(merge, MERGES, "merge")
    check_seed(random_state)
    rows, bridged, single = bridge.prepare(queries, modality)
    old_part = _IndexPart(old, bridged, "old", bridge.target, bridge.source)
    new_part = _IndexPart(new, rows, "new", bridge.source, bridge.target)
    n_in_both = old_part.leave_out(new_part)
    rng = np.random.default_rng(random_state)
    found = []
    for part, reference in zip((new_part, old_part), (background or (None, None))[::-1], strict=True):
        if not part.empty:
            scores, ids = find(part.queries, part.index, k)
            if merge == "standardize":
                mean, sd = part.scale(reference, rng)
                scores = (scores - mean) / sd
            found.append((scores, ids, np.full(ids.shape, part is new_part)))
    if len({ids.dtype.kind for _, ids, _ in found}) > 1:
        # Ids of one part and row numbers of the other: as objects, numbers stay numbers.
        found = [(scores, ids.astype(object), is_new) for scores, ids, is_new in found]
    scores, ids, is_new = (np.hstack(side) for side in zip(*found, strict=True))
    order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    scores, ids, is_new = (np.take_along_axis(side, order, axis=1) for side in (scores, ids, is_new))
    if single:
        scores, ids, is_new = scores[0], ids[0], is_new[0]
    return MixedResult(scores, ids, is_new, n_in_both)


class _IndexPart:
    """One part of the index, and the queries in its space."""

    def __init__(self, index: Any, queries: np.ndarray, name: str, own: Space, other: Space) -> None:
        self.queries, self.name, self.index, self.empty = queries, name, index, False
        self.rows: Embeddings | None = None
        if callable(getattr(index, "search", None)) or callable(index):
            return
        self.index = self.rows = rows_of_index(index, replace(own, dim=queries.shape[1]), other, name)

    def leave_out(self, other: _IndexPart) -> int:
        """Leave out the rows whose ids are among the other part's, and return their number."""
        if self.rows is None or other.rows is None or not (self.rows.has_ids and other.rows.has_ids):
            return 0
        known = is_in(id_texts(self.rows.ids), id_texts(other.rows.ids))
        self.empty = bool(known.all())
        if known.any() and not self.empty:
            self.index = self.rows = self.rows.take(np.flatnonzero(~known))
        return int(known.sum())

    def scale(self, background: RowsLike | None, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Return mean and standard deviation of each query's cosines with rows of this part, shapes (m, 1)."""
        if background is not None:
            rows = as_embeddings(background, "background").vectors
            if rows.shape[1] != self.queries.shape[1]:
                problem = f"Got {rows.shape[1]}-d background rows for the {self.name} part"
                raise ShapeError(f"{problem}; expected {self.queries.shape[1]}-d.", "Pass `background=(old, new)`.")
        elif self.rows is not None:
            rows = self.rows.vectors
            if len(rows) > BACKGROUND:
                rows = rows[np.sort(rng.choice(len(rows), BACKGROUND, replace=False))]
        else:
            problem = f"The {self.name} part searches by itself, and has no background to standardize its scores by."
            raise ParameterError(problem, _FIX)
        if len(rows) < FEWEST:
            raise InputError(f"The {self.name} part has {len(rows)} rows to standardize by; {FEWEST} are needed.", _FIX)
        rows = normalize_rows(rows)
        mean, sd = np.empty((2, len(self.queries), 1))
        for part in blocks(len(self.queries), 8 * len(rows)):
            near = normalize_rows(self.queries[part]) @ rows.T
            mean[part, 0], sd[part, 0] = near.mean(axis=1), near.std(axis=1)
        if not sd.min() > 0:
            raise InputError(f"All rows of the {self.name} part have the same cosine with a query.", _FIX)
        return mean, sd
