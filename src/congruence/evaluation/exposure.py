"""Measure how many stored vectors an outsider can match to their texts, with a few known pairs and another model."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from congruence._utils.arrays import blocks
from congruence._utils.ids import id_rows, id_texts, text_keys
from congruence._utils.plain import PlainData
from congruence._utils.validation import check_positive, check_seed, check_width
from congruence.embeddings import Embeddings, as_embeddings, normalize_rows
from congruence.errors import CongruenceWarning, IdError, ParameterError, ShapeError, TooFewAnchorsError
from congruence.evaluation.paired_tests import wilson
from congruence.linalg.csls import ScaledSimilarity
from congruence.maps import OrthogonalMap, UnpairedMap
from congruence.metrics.search import neighbor_overlap
from congruence.synthetic import random_rotation

if TYPE_CHECKING:
    from congruence._utils.typing import RowsLike

#: Largest number of queries for measuring the loss in search quality.
_QUERIES = 1000

#: Number of bootstrap resamples for an interval.
_RESAMPLES = 1000


@dataclass(frozen=True)
class Exposure(PlainData):
    """Share of a store that can be matched under one protection with one number of known pairs.

    - ``by_pairs``, ``found``: Share of the vectors of unknown texts whose nearest candidate is their own, with a map of
      the pairs alone, and after refitting on mutual nearest neighbors; ``low``, ``high``: 95 % interval of ``found``,
      ``values``: its value in each draw, ``chance``: by chance.
    - ``found_at_k``: Share whose own text is among the k nearest candidates.
    - ``candidates``, ``n``: Texts, and vectors searched for, averaged over draws.
    - ``search``: Share of the true nearest stored vectors that the owner's search still finds.
    """

    protection: str
    pairs: int
    by_pairs: float
    found: float
    low: float
    high: float
    found_at_k: float
    chance: float
    candidates: int
    n: int
    search: float
    values: tuple[float, ...] = field(default_factory=tuple)


def measure_exposure(
    store: RowsLike,
    texts: RowsLike,
    *,
    pairs: Sequence[int] = (10, 100),
    labels: Mapping[str, str] | None = None,
    queries: RowsLike | None = None,
    protections: Sequence[str] = ("none",),
    rounds: int = 4,
    k: int = 10,
    draws: int = 5,
    random_state: int = 0,
    callback: Callable[[int], None] | None = None,
) -> list[Exposure]:
    """Measure how many stored vectors an outsider could match to their texts (``link``), by protection and pairs.

    It is a lower bound: an outsider may know more, have a more similar model, or use a better method. The interval
    resamples draws and vectors (Owen 2007) and is never narrower than Wilson's for one draw.

    Parameters
    ----------
    store, texts : Embeddings or array_like, shapes (n, d) and (m, e)
        Stored vectors, and candidate texts in the outsider's model, matched by id or, without ids, by position.
    labels : mapping of str to str, optional
        Id of the text of each vector, by id, if they differ.
    queries : Embeddings or array_like, shape (q, d), optional
        Queries by which the owner searches; by default stored vectors.
    pairs : sequence of int
        Numbers of vectors whose texts are known; with 0, a map is searched without any.
    protections : sequence of str
        See ``protect``.
    draws, rounds : int
        Number of random choices of the pairs, and most rounds of refining the map.

    Examples
    --------
    >>> from congruence.synthetic import rigid_problem
    >>> problem = rigid_problem(n=200, d_source=16, noise=0.05, random_state=0)
    >>> line, coarse = measure_exposure(problem.X, problem.Y, pairs=[30], protections=["none", "noise=4"], draws=2)
    >>> bool(line.found > 0.9 > 0.5 > coarse.found)
    True
    """
    check_seed(random_state)
    check_positive(k, "k", integer=True)
    check_positive(draws, "draws", integer=True)
    check_positive(rounds, "rounds", integer=True, zero=True)
    rows, candidates = as_embeddings(store, "store"), as_embeddings(texts, "texts")
    own = _own_text(rows, candidates, None if labels is None else text_keys(labels))
    X, Y = (_unit_float32(side.vectors) for side in (rows, candidates))
    for p in pairs:
        if check_positive(p, "pairs", integer=True, zero=True) == 1:
            raise ParameterError(f"Got `pairs={p}`; expected 0, or at least 2.", "Pass `pairs=10`, for example.")
        if p >= len(X):
            raise TooFewAnchorsError(f"Got `pairs={p}` of {len(X)} vectors; none remain.", "Pass a smaller `pairs=…`.")
    if len(X) < k + 2:
        raise TooFewAnchorsError(f"Got {len(X)} vectors for `k={k}`.", f"Pass `k={max(len(X) - 2, 1)}` or less.")
    for spec in protections:
        check_protection(spec, X.shape[1])
    asked = None if queries is None else _unit_float32(as_embeddings(queries, "queries").vectors)
    if asked is not None:
        check_width(asked.shape[1], X.shape[1], "the owner's search")
    lines = []
    for spec in protections:
        recalls = []
        found: dict[int, list[tuple[np.ndarray, list[np.ndarray]]]] = {p: [] for p in pairs}
        for draw in range(draws):
            # The pairs are the same under every protection; noise and rotations use their own random stream.
            order = np.random.default_rng([random_state, draw]).permutation(len(X))
            rng = np.random.default_rng([random_state, draw, 1])
            protected = protect(X, spec, rng)
            recalls.append(_search_kept(X, protected.rows, protected.query, asked, k, rng))
            for p in pairs:
                known = order[:p]
                # Leave out vectors whose text is among the pairs: these can be matched by comparison with the pairs.
                others = np.flatnonzero(~np.isin(own, own[known]))
                if not len(others):
                    raise TooFewAnchorsError(
                        f"Got `pairs={p}` that include the texts of all {len(X)} vectors.", "Pass a smaller `pairs=…`."
                    )
                from_pairs, refined = link(protected.rows, Y, own, known, rounds, random_state + draw)
                hits = [from_pairs.hits(1), refined.hits(1), refined.hits(k)]
                found[p].append((others, [hit[others] for hit in hits]))
            if callback:
                callback(1)
        for p in pairs:
            shares = np.array([[hit.mean() for hit in hits] for _, hits in found[p]])
            low, high = _interval(len(X), [(others, hits[1]) for others, hits in found[p]], random_state)
            by_pairs, best, at_k = map(float, shares.mean(axis=0))
            values = tuple(map(float, shares[:, 1]))
            n, search = round(np.mean([len(others) for others, _ in found[p]])), float(np.mean(recalls))
            lines.append(Exposure(spec, p, by_pairs, best, low, high, at_k, 1 / len(Y), len(Y), n, search, values))
    return lines


def _unit_float32(vectors: np.ndarray) -> np.ndarray:
    """Return unit rows in float32, the usual precision of stores."""
    return normalize_rows(np.asarray(vectors, dtype=np.float64)).astype(np.float32)


def _own_text(store: Embeddings, texts: Embeddings, labels: Mapping[str, str] | None) -> np.ndarray:
    """Return the row in ``texts`` of each stored vector's text."""
    if labels is None and not (store.has_ids and texts.has_ids):
        if len(store) != len(texts):
            found = f"Got {len(store)} vectors and {len(texts)} texts without ids."
            raise ShapeError(found, "Pass `ids=…` for both, or `labels=…`.")
        return np.arange(len(store))
    names = id_texts(store.ids)
    if labels is not None:
        missing = [name for name in names.tolist() if name not in labels]
        if missing:
            raise IdError(f"{len(missing)} vectors have no label ({missing[0]!r}, …).", "Add their ids to `labels=…`.")
        names = id_texts([labels[name] for name in names.tolist()])
    own = id_rows(id_texts(texts.ids), names)
    if (own < 0).any():
        raise IdError(
            f"{np.count_nonzero(own < 0)} vectors ({names[own < 0][0]!r}, …) are without a text.",
            "Add them to `texts=…`.",
        )
    return own


def _search_kept(
    X: np.ndarray,
    protected: np.ndarray,
    query: Callable[[np.ndarray], np.ndarray],
    asked: np.ndarray | None,
    k: int,
    rng: np.random.Generator,
) -> float:
    """Return the share of the true nearest stored vectors that the owner's search still finds."""
    left_out = None
    if asked is None:
        left_out = rng.choice(len(X), min(_QUERIES, len(X)), replace=False)
        asked = X[left_out]
    elif len(asked) > _QUERIES:
        asked = asked[rng.choice(len(asked), _QUERIES, replace=False)]
    return float(neighbor_overlap((asked, X), (query(asked), protected), k, left_out=left_out).mean())


def _interval(n: int, draws: list[tuple[np.ndarray, np.ndarray]], random_state: int) -> tuple[float, float]:
    """Return the 95 % confidence interval of a share measured on the same vectors in several draws."""
    hits, searched = np.zeros((len(draws), n)), np.zeros((len(draws), n))
    for place, (others, found) in enumerate(draws):
        hits[place, others], searched[place, others] = found, 1.0
    rng = np.random.default_rng([random_state, 2])
    parts = []
    for part in blocks(_RESAMPLES, 16 * n):
        size = part.stop - part.start
        times = rng.multinomial(len(draws), np.full(len(draws), 1 / len(draws)), size=size)
        weights = rng.multinomial(n, np.full(n, 1 / n), size=size).astype(float)
        parts.append((times * (weights @ hits.T)).sum(axis=1) / (times * (weights @ searched.T)).sum(axis=1))
    shares = np.concatenate(parts)
    low, high = np.quantile(shares, [0.025, 0.975])
    least, most = wilson(hits.sum() / searched.sum(), searched.sum() / len(draws), 0.95)
    return float(min(low, least)), float(max(high, most))


#: Number of neighbors whose mean similarity corrects for hubs.
_NEAR = 10


@dataclass(frozen=True)
class Linkage:
    """Numbers of candidates (n,) that score higher than each vector's own text, and as high, including it."""

    above: np.ndarray
    tied: np.ndarray

    def hits(self, k: int) -> np.ndarray:
        """Return the probability that the text is among the first k, ties broken at random, shape (n,)."""
        return np.asarray(np.clip((k - self.above) / self.tied, 0.0, 1.0))


def link(
    store: np.ndarray, texts: np.ndarray, own: np.ndarray, known: np.ndarray, rounds: int, random_state: int = 0
) -> tuple[Linkage, Linkage]:
    """Map a store (n, d) into the space of texts (m, e) with known pairs, or by ``UnpairedMap``, and rank each
    row's own text there: with this map, and after up to ``rounds`` of refitting on mutual neighbors by CSLS, as in
    Conneau et al. (2018), "Word translation without parallel data". The means of the store and of all candidates, which
    are known without any pair, are subtracted first.
    """
    X, Y = (normalize_rows(rows) for rows in (store, texts))
    X, Y = (rows - rows.mean(axis=0, dtype=np.float64).astype(rows.dtype) for rows in (X, Y))
    candidates = normalize_rows(Y)
    fitted = np.stack([known, own[known]])
    linkages: list[Linkage] = []
    for number in range(rounds + 1):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CongruenceWarning)  # few pairs and narrower targets are expected here
            if len(fitted[0]):
                mapping = OrthogonalMap(center=False).fit(X[fitted[0]], Y[fitted[1]])
            else:  # in random order, since the order of the texts would reveal the pairs
                order = np.random.default_rng(random_state).permutation(len(Y))
                mapping = UnpairedMap(random_state=random_state).fit(X, Y[order])
        Z = normalize_rows(mapping.transform(X).astype(X.dtype, copy=False))
        scaled = ScaledSimilarity(Z, candidates, _NEAR)
        linkages = [*linkages[:1], _rank(scaled, own, tie=8 * float(np.finfo(Z.dtype).eps) * np.sqrt(Z.shape[1]))]
        mutual = np.stack(scaled.mutual()[:2])
        mutual = mutual[:, ~np.isin(mutual[0], known) & ~np.isin(mutual[1], own[known])]
        pairs = np.concatenate([[known, own[known]], mutual], axis=1)
        if number and np.array_equal(pairs, fitted):
            break  # the next round would fit the same map
        fitted = pairs
    return linkages[0], linkages[-1]


def _rank(scaled: ScaledSimilarity, own: np.ndarray, tie: float) -> Linkage:
    """Rank each row's own text; scores that differ by less than ``tie`` are the same."""
    above, tied = np.empty((2, len(own)), dtype=np.int64)
    for part, near in scaled.blocks():
        correct = near[np.arange(len(near)), own[part]][:, None]
        above[part] = (near > correct + tie).sum(axis=1)
        tied[part] = (np.abs(near - correct) <= tie).sum(axis=1)
    return Linkage(above, tied)


#: Protections by name, and whether each takes a number.
PROTECTIONS = {"none": False, "rotation": False, "noise": True, "pca": True, "int8": False, "binary": False}

_Transform = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Protected:
    """The rows (n, k) as stored, which an outsider may obtain, and the owner's transformation of queries (m, d)."""

    rows: np.ndarray
    query: _Transform


def check_protection(spec: str, width: int) -> list[tuple[str, float]]:
    """Return the steps (name, number) of a protection, written as in ``protect``, for vectors of this width."""
    steps = []
    for part in spec.split("+"):
        name, equals, text = part.strip().partition("=")
        if name not in PROTECTIONS:
            raise ParameterError(
                f"Got protection {part!r}.", f"Name one of these: {', '.join(PROTECTIONS)}, such as noise=0.5."
            )
        try:
            value = float(text) if equals else np.nan
        except ValueError:
            value = np.nan
        if PROTECTIONS[name] != bool(equals) or (equals and not (np.isfinite(value) and value > 0)):
            raise ParameterError(
                f"Got protection {part!r}.", f"Write {name}{'=0.5' if name == 'noise' else '=64' * PROTECTIONS[name]}."
            )
        if name == "pca" and not (value == int(value) and value <= width):
            raise ParameterError(f"Got protection {part!r} for width {width}.", f"Write `pca={max(width // 4, 1)}`.")
        steps.append((name, value))
    return steps


def protect(rows: np.ndarray, spec: str, rng: np.random.Generator) -> Protected:
    """Apply a protection to a store: steps of ``check_protection`` joined by ``+``.

    - ``none``
    - ``rotation``: a random rotation known only to the owner.
    - ``noise=s``: independent Gaussian noise, with an average length of s times that of the row.
    - ``pca=k``: the k directions with most of the rows' variance.
    - ``int8``: 255 levels per dimension, scaled to its largest absolute value.
    - ``binary``: the sign of each dimension.
    """
    out, matrices = rows, []
    for name, value in check_protection(spec, rows.shape[1]):
        if name == "rotation":
            Q = random_rotation(out.shape[1], random_state=int(rng.integers(2**31))).astype(out.dtype)
            out = out @ Q
            matrices.append(Q)
        elif name == "noise":
            lengths = np.linalg.norm(out, axis=1, keepdims=True)
            noise = rng.standard_normal(out.shape, dtype=np.float32) / np.sqrt(out.shape[1])
            out = out + (value * lengths * noise).astype(out.dtype)
        elif name == "pca":
            if value > out.shape[1]:
                raise ParameterError(
                    f"Got `pca={value:g}` after a step that leaves {out.shape[1]} directions.",
                    "Use the smaller `pca=…`.",
                )
            gram = out.T.astype(np.float64) @ out
            V = np.linalg.eigh(gram)[1][:, ::-1][:, : int(value)].astype(out.dtype)
            out = out @ V
            matrices.append(V)
        elif name == "int8":
            step = np.maximum(np.abs(out).max(axis=0), np.finfo(out.dtype).tiny) / 127
            out = np.round(out / step) * step
        elif name == "binary":
            out = np.where(out > 0, 1, -1).astype(out.dtype)

    def query(queries: np.ndarray) -> np.ndarray:
        for matrix in matrices:
            queries = queries @ matrix
        return queries

    return Protected(normalize_rows(out), query)
