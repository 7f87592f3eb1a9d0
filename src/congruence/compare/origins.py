"""Determine which known model the rows of a store come from, and find rows that fit none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from congruence._utils.arrays import UNIT_TOLERANCE, blocks, normalize_rows, squared_norms, to_numpy
from congruence._utils.ids import id_texts
from congruence._utils.typing import RowsLike
from congruence._utils.validation import check_positive, check_seed
from congruence.embeddings import Embeddings, as_embeddings
from congruence.errors import DirectionError, InputError, ModalityError, ParameterError, SpaceMismatchError
from congruence.linalg.distribution import FEWEST, Kinds, directions, distinct, kind_name, names_of

if TYPE_CHECKING:
    import pyarrow as pa

    from congruence.io import Source
    from congruence.maps import Map

#: Largest number of rows of a store that are judged before it is mapped.
JUDGED = 2048

#: Share of the distinct rows judged, and their number, from which rows of another kind count.
_SHARE, _COUNT = 0.02, 3

#: The share where it is not sure that they are of the other kind.
_UNSURE = 0.1


class OriginDetector:
    """Determine which of several known models made the rows of a store, and which rows were made by none of them.

    ``fdr`` is the largest expected share of rows of known models among those reported to belong to none.

    Notes
    -----
    A model is described by the mean and the leading directions of its rows, and by how far rows are from this
    description that were left out of it (``congruence.linalg.distribution``). A row belongs to no known model if it is
    about as far from each as an unrelated model's rows are, and if the largest of its p-values, the rank of its
    distance among those left out, is rejected by Benjamini and Hochberg's procedure at ``fdr``; otherwise it is
    assigned to the most likely model (docs/reference/monitoring.md).

    A model's texts do not represent its images, and of a store with other content some rows belong to no known model
    although the model is the right one (their ``distance`` is then near 1).

    Examples
    --------
    >>> import numpy as np
    >>> from congruence.compare.origins import OriginDetector
    >>> rng = np.random.default_rng(0)
    >>> old, new = rng.standard_normal((2, 200, 8)) + np.array([[[3.0]], [[-3.0]]])
    >>> report = OriginDetector().fit({"old": old[:100], "new": new[:100]}).examine(np.vstack([old[100:], new[150:]]))
    >>> report.counts
    [100, 50]
    """

    names_: list[str]

    def __init__(self, fdr: float = 0.01, random_state: int = 0) -> None:
        self.fdr = fdr
        self.random_state = random_state

    def fit(self, known: Mapping[str, RowsLike] | None = None, maps: Mapping[str, Map] | None = None) -> Self:
        """Fit on rows of each known model, of the store's modality, at least 40 different ones and preferably a few
        hundred; maps from ``congruence.fit`` keep a description of their models' rows and of mapped ones.
        """
        if not check_positive(self.fdr, "fdr") < 1:
            raise ParameterError(f"Got `fdr={self.fdr}`; expected a share below 1.", "Pass `fdr=0.01`, for example.")
        check_seed(self.random_state)
        rows = {name: as_embeddings(X, name).vectors for name, X in (known or {}).items()}
        rng = np.random.default_rng(self.random_state)
        self.kinds_ = Kinds.of({name: X[rng.permutation(len(X))] for name, X in rows.items()}, small=False)
        for name, X in rows.items():
            if name not in self.kinds_:
                raise InputError(
                    f"Got {len(distinct(X))} different rows of {name}; expected at least {FEWEST}.",
                    "Pass more of its rows.",
                )
        for name, mapping in (maps or {}).items():
            if mapping.origins_ is None:
                raise InputError(
                    f"The map {name} keeps no description of its models' rows.",
                    "Fit it again with 40 pairs or more, or pass rows of its models.",
                )
            for kind, found in mapping.origins_.items():
                self.kinds_[_label(kind, name, mapping, self.kinds_)] = found
        self.names_ = list(self.kinds_)
        return self

    def examine(self, rows: RowsLike | Source) -> OriginReport:
        """Examine the rows of a store, an array or a source (``congruence.io.open_source``), which is read once,
        in blocks. Rows with NaN and rows of zeros are reported, not refused.
        """
        if not hasattr(self, "kinds_"):
            raise ParameterError("Got an OriginDetector that is not fitted.", "Call fit(known) first.")
        return _examine(rows, self.kinds_, self.fdr)


def _label(kind: str, name: str, mapping: Map, taken: Mapping[str, object]) -> str:
    """Return the name of a map's kind of rows: by the model that made them, or by the map."""
    side, _, modality = kind.partition(".")
    space = {"old": mapping.source_space_, "new": mapping.target_space_}.get(side)
    model = f"mapped by {name}" if space is None else space.model or f"{side} of {name}"
    label = f"{model}, {modality}" if modality else model
    return f"{kind} of {name}" if label in taken else label


#: What is kept of each examined row: its origin, its p-value, its distance, and whether it fits no kind.
_ROW = np.dtype([("origin", np.int16), ("p", np.float32), ("distance", np.float32), ("strange", bool)])


def _examine(rows: RowsLike | Source, kinds: Kinds, fdr: float, expected: Sequence[str] = ()) -> OriginReport:
    """Examine rows; one that may be of an ``expected`` kind is, unless it is clearly of another."""
    n = width = unit = used = 0
    not_finite, zero, parts, names = list[int](), list[int](), list[np.ndarray](), list[str]()
    id_of: dict[int, str] = {}
    for ids, block in _scan(rows):
        width = block.shape[1]
        names = [name for name, kind in kinds.items() if kind.width == width]
        X = block.astype(np.float64)
        finite = np.isfinite(X).all(axis=1)
        use = finite & X.any(axis=1)
        not_finite += (np.flatnonzero(~finite) + n).tolist()
        zero += (np.flatnonzero(finite & ~use) + n).tolist()
        found = np.full(len(X), np.array((-1, np.nan, np.nan, False), _ROW))
        if use.any():
            units, logs = directions(X[use])
            used += len(units)
            unit += int(np.count_nonzero(np.abs(np.expm1(logs)) < UNIT_TOLERANCE))
            if names:
                assigned = _assign(units, logs, kinds, names, fdr, expected)
                for part, values in zip(("origin", "p", "distance", "strange"), assigned, strict=True):
                    found[part][use] = values
                if ids is not None:
                    odd = np.flatnonzero(found["strange"])
                    some = ids.take(odd) if hasattr(ids, "type") else ids[odd]  # Arrow takes no array as an index
                    id_of |= dict(zip((odd + n).tolist(), id_texts(some).tolist(), strict=True))
        parts.append(found)
        n += len(X)
    if not n:
        raise InputError("No rows.", "Pass a store with rows.")
    examined = np.concatenate(parts)
    origin, p, distance = (np.ascontiguousarray(examined[name]) for name in ("origin", "p", "distance"))
    sure = all(kinds[name].tells_unrelated for name in names)
    odd = np.flatnonzero(examined["strange"] & ((p <= _cut(p, fdr)) | sure))
    odd = odd[np.lexsort((odd, -distance[odd], p[odd]))]
    listed: list[dict[str, Any]] = [
        {"row": k, "id": id_of.get(k), "nearest": names[origin[k]], "p": float(p[k]), "distance": float(distance[k])}
        for k in odd.tolist()
    ]
    origin[odd] = -1
    counts = [int(np.count_nonzero(origin == k)) for k in range(len(names))]
    return OriginReport(
        n=n,
        width=width,
        names=names,
        counts=counts,
        recognized=[float(kinds[name].recognized[0]) for name in names],
        other_width={name: kind.width for name, kind in kinds.items() if kind.width != width},
        not_finite=not_finite,
        zero=zero,
        unit=unit / max(used, 1),
        odd=listed,
        fdr=fdr,
        looks_like=next((name for name, count in zip(names, counts, strict=True) if 2 * count > n), None),
        origin=origin,
        p_value=p,
    )


def _assign(
    unit: np.ndarray, logs: np.ndarray, kinds: Kinds, names: list[str], fdr: float, expected: Sequence[str]
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return each row's most likely kind, p-value, distance (1 is usual), and whether it fits no kind."""
    known = [kinds[name] for name in names]
    distance = np.array([kind.distance(unit, logs) for kind in known])
    each = list(zip(known, distance, strict=True))
    p = np.array([kind.p_value(D) for kind, D in each])
    fits = np.array([kind.fits(D, fdr) for kind, D in each])
    likely = np.array([kind.log_likelihood(D) for kind, D in each])
    strange = np.asarray(~fits.any(axis=0))
    nearest = np.where(fits | strange, likely, -np.inf).argmax(axis=0)
    for name in expected:
        if name in names:
            k = names.index(name)
            others = [names[i] not in expected for i in nearest]
            margin = np.array([kinds.margins.get((names[i], name), 0.0) for i in nearest])
            more = likely[nearest, np.arange(len(unit))] - likely[k]
            nearest = np.where(others & fits[k] & (more <= margin), k, nearest)
    typical = np.array([kind.median for kind in known])
    far = distance[nearest, np.arange(len(unit))] / typical[nearest]
    return nearest, np.maximum(p.max(axis=0), 1e-30), far, strange


def _cut(p: np.ndarray, fdr: float) -> float:
    """Return the largest p-value that Benjamini and Hochberg's procedure rejects, or −1."""
    ordered = np.sort(p[p <= fdr]).astype(np.float64)
    tested = np.count_nonzero(~np.isnan(p))
    below = np.flatnonzero(ordered <= fdr * np.arange(1, len(ordered) + 1) / max(int(tested), 1))
    return float(ordered[below[-1]]) if len(below) else -1.0


def _scan(rows: RowsLike | Source) -> Iterator[tuple[pa.Array | np.ndarray | None, np.ndarray]]:
    """Yield blocks of rows with their ids, unchecked."""
    if hasattr(rows, "scan"):
        yield from rows.scan()
        return
    ids = rows.ids if isinstance(rows, Embeddings) and rows.has_ids else None
    X = to_numpy(getattr(rows, "vectors", rows))
    if X.ndim != 2 or X.dtype.kind not in "fiu":
        X = as_embeddings(rows, "rows", allow_zero_rows=True).vectors
    for part in blocks(len(X), 32 * X.shape[1]):
        yield None if ids is None else ids[part], X[part]


@dataclass(frozen=True)
class OriginReport:
    """Result of examining the rows of a store.

    - ``n``, ``width``: Number of rows and their dimensions.
    - ``names``: Known models whose rows have this width, in the order given.
    - ``counts``: Number of rows that look like each of them.
    - ``recognized``: Share of each model's own known rows (left out of its description) that are most likely under it.
    - ``other_width``: Known models with another width, and that width; the rows cannot be theirs.
    - ``not_finite``, ``zero``: Numbers of rows with NaN or infinity, and of rows of zeros, which belong to no model.
    - ``unit``: Share of the other rows that have unit norm.
    - ``odd``: Rows that belong to no known model, the least likely first: ``row``, ``id`` (None without ids),
      ``nearest`` (a known model), ``p`` and ``distance`` (squared; 1 is the median of that model's own rows).
    - ``fdr``: Bound on the expected share of rows of known models among ``odd``.
    - ``looks_like``: The known model that more than half of the rows look like, if any.
    - ``origin``, shape (n,): Position in ``names`` of the model that each row looks like; −1 for none.
    - ``p_value``, shape (n,): Largest p-value of each row over the known models; NaN for rows with NaN or infinity,
      for zero rows, and without known rows.
    """

    n: int
    width: int
    names: list[str]
    counts: list[int]
    recognized: list[float]
    other_width: dict[str, int]
    not_finite: list[int]
    zero: list[int]
    unit: float
    odd: list[dict[str, Any]]
    fdr: float
    looks_like: str | None
    origin: np.ndarray = field(repr=False)
    p_value: np.ndarray = field(repr=False)

    def to_dict(self) -> dict[str, object]:
        """Return everything except the results for individual rows as plain data."""
        return {key: value for key, value in asdict(self).items() if key not in ("origin", "p_value")}

    def summary(self) -> list[str]:
        """Return the conclusions as sentences."""
        damaged = (self.not_finite, "NaN or infinity"), (self.zero, "only zeros, as after a failed encoding")
        sentences = [
            f"{_rows(len(rows))} with {content}, the first is row {rows[0]:,}: re-encode or remove."
            for rows, content in damaged
            if rows
        ]
        if 0 < self.unit < 1:
            sentences.append(
                f"{self.unit:.1%} of the rows have unit norm, the others do not: they were written in two "
                "ways, or by two models."
            )
        if self.other_width:
            widths = ", ".join(f"{name} ({width}-d)" for name, width in self.other_width.items())
            sentences.append(f"The rows are {self.width}-d, so they cannot be of {widths}.")
        shares = [(count / self.n, name) for name, count in zip(self.names, self.counts, strict=True) if count]
        if len(shares) > 1:
            parts = ", ".join(f"{share:.1%} {name}" for share, name in sorted(shares, reverse=True))
            sentences.append(f"Rows of several models: {parts}. Scores of one query against them are not comparable.")
        elif self.looks_like:
            sentences.append(f"The rows look like those of {self.looks_like}.")
        elif self.names:
            sentences.append("The rows do not look like those of any known model.")
        if self.odd:
            sentences.append(
                f"{_rows(len(self.odd))} of {self.n:,} fit no known model; the least likely is row "
                f"{self.odd[0]['row']:,}."
            )
        if not (self.names or self.other_width):
            sentences.append("There is nothing to compare the rows with: pass rows of a known model, or a map.")
        return sentences


def remember_rows(mapping: Map, old: Mapping[str | None, np.ndarray], new: Mapping[str | None, np.ndarray]) -> None:
    """Keep in a map what is needed to recognize rows of its two models, by modality, and rows that it mapped."""
    mapping.origins_ = None  # a map without it is judged by nobody, also while it maps rows here
    rows = {kind_name("old", modality): X for modality, X in old.items()}
    rows |= {kind_name("new", modality): X for modality, X in new.items()}
    for modality, X in old.items():
        # The plain form also describes stored rows; these alone would look too much like the old model's.
        out = to_numpy(mapping.for_modality(modality).transform(distinct(X), role="plain"))
        mapping_unit = mapping.target_space_.normalized
        rows[kind_name("mapped", modality)] = normalize_rows(out) if mapping_unit else out
    usable = {
        name: X if squared_norms(X)[3] else X[np.isfinite(X).all(axis=1) & X.any(axis=1)] for name, X in rows.items()
    }
    mapping.origins_ = Kinds.of(usable)


@dataclass(frozen=True)
class Judgement:
    """Which rows a map would be applied to.

    - ``outcome``: "good", "bad" (other rows than the map is for), "unrelated" (some are of no model that the map
      knows), "unlike" (some are like those of another model, or of none, but may have new content), "ask" (the modality
      is unclear), or "unknown" (it cannot be told).
    - ``shares``: Share of the distinct rows of each kind, in words.
    - ``modality``: The one that was given, or that the rows clearly are of.
    - ``strange``: The distinct rows, shape (n, d), that are like those of no model.
    """

    outcome: str
    shares: dict[str, float]
    modality: str | None
    detail: str
    fix: str = ""
    strange: np.ndarray | None = None

    def refuse(self, place: str, fix: str = "") -> None:
        """Raise ModalityError or SpaceMismatchError if the map must not be applied to the rows of ``place``."""
        if self.outcome in ("good", "unlike", "unknown"):
            return
        kind = ModalityError if self.outcome == "ask" else DirectionError if self.fix == _BACK else SpaceMismatchError
        raise kind(f"The rows of {place} do not all fit the map: {self.detail}.", f"{self.fix} {fix}".strip())


def judge(mapping: Map, rows: np.ndarray, modality: str | None = None, side: str = "old") -> Judgement:
    """Judge one by one whether rows (n, d), spread over a store, are those of a side of a map, in a given modality."""
    rows = distinct(rows[np.isfinite(rows).all(axis=1) & rows.any(axis=1)], JUDGED)
    kinds = mapping.origins_
    own = names_of(kinds or (), side)
    if not own or not len(rows):
        words = "the map keeps no description of the rows it was fitted on, so which model made these cannot be told"
        return Judgement("unknown", {}, modality, words, "Fit the map again with congruence fit.")
    assert kinds is not None
    if len(kinds[next(iter(own.values()))].mean) != rows.shape[1]:  # what checks the width says it better
        return Judgement("unknown", {}, modality, f"the rows are {rows.shape[1]}-d, and not as wide as the map's")
    expected = [own[name] for name in ({modality, None} if modality else own) if name in own]
    report = _examine(rows, kinds, 0.01, expected)
    counts = {name: count for name, count in zip(report.names, report.counts, strict=True) if count}
    right = {name: counts.pop(name) for name in expected if name in counts}
    odd = rows[report.origin < 0]
    shares = {_in_words(name): n / len(rows) for name, n in (right | counts).items()}
    if len(odd):
        shares["unknown"] = len(odd) / len(rows)
    listed = ", ".join(f"{share:.1%} {name}" for name, share in sorted(shares.items(), key=lambda item: -item[1]))
    found = f"of {len(rows):,} different rows: {listed}"

    def counted(n: int) -> bool:
        return n >= max(_COUNT, _SHARE * len(rows))

    wrong, total = sum(counts.values()), sum(right.values())
    if counted(wrong) and wrong >= len(odd):
        most = max(counts, key=lambda name: counts[name])
        sure = all(kinds[name].tells_unrelated for name in (most, *expected))
        theirs = rows[report.origin == report.names.index(most)]
        # Rows of new content may be more likely under a similar model, but they are unusual there.
        usual = 2 * kinds[most].unusual(theirs) <= len(theirs)
        if usual and (sure or wrong >= 0.9 * len(rows)):
            if modality and modality not in own and most in own.values():  # of this model, in what it is not known by
                words = f"{found}; the map keeps no description of {modality} rows of this model"
                return Judgement("unknown", shares, modality, words)
            return Judgement("bad", shares, modality, found, _fix(most, bool(right), modality))
    chosen = max(right, key=lambda name: right[name], default=expected[0] if expected else "")
    clear = 2 * total >= len(rows) and not counted(total - right.get(chosen, 0)) and not counted(wrong)
    said = modality or (chosen.partition(".")[2] or None if clear else None)
    if chosen and counted(len(odd)):
        if kinds[chosen].excludes(odd):
            return Judgement("unrelated", shares, said, found, _OTHERS, odd)
        clear = False
    # Rows that are all unlike the only modality that a map knows may be of another one.
    options = " or ".join(f"`modality={name!r}`" for name in own if name)
    if modality is None and options and not clear and (len(own) > 1 or len(odd) >= 0.9 * len(rows)):
        return Judgement("ask", shares, None, found, f"Pass {options}.")
    good = clear and kinds[chosen].tells_unrelated and not counted(kinds[chosen].unusual(rows))
    good &= len(rows) >= _COUNT and wrong + len(odd) <= _SHARE * len(rows)  # one of few rows is a large share
    if counted(len(odd)) or wrong >= max(_COUNT, _UNSURE * len(rows)):
        return Judgement("unlike", shares, said, found, _OTHERS, odd)
    return Judgement("good" if good else "unknown", shares, said, found, strange=odd)


def check_means(modality: str, rows: Sequence[np.ndarray | None], pairs: Sequence[np.ndarray]) -> None:
    """Refuse rows of another modality, old and new, that are not of the two models of the pairs.

    A model's rows of two modalities vary along the same directions, or at least their means are related. Nothing is
    refused where half of the pairs does not vary along the directions of the other half.
    """
    for side, known, other in zip(("old", "new"), map(distinct, pairs), rows, strict=True):
        half = Kinds.of({"half": known[::2]}).get("half")
        if other is None or half is None or not half.related(known[1::2]):
            continue
        other = distinct(other)
        if not (half.related(other) or half.near_mean(other)):
            raise SpaceMismatchError(
                f"The {modality} rows passed as means are not of the {side} model of the pairs: neither their mean nor "
                "the directions along which they vary are related to those of its rows.",
                f"Pass rows of the {side} model, or `check=False`.",
            )


def _in_words(name: str) -> str:
    side, _, modality = name.partition(".")
    words = {"old": "old model", "new": "new model", "mapped": "mapped already"}[side]
    return f"{words} ({modality})" if modality else words


#: What to do about rows of the new model, which rows that were mapped resemble.
_BACK = "They need no map to the new model; the inverse map leads back."

#: What to do about rows of a model that is not known.
_OTHERS = "Select the other rows, or use a map of their model and modality."


def _fix(kind: str, mixed: bool, modality: str | None) -> str:
    """Return what to do about rows of another kind."""
    side, _, other = kind.partition(".")
    if mixed:
        return "Map only the rows that the map is for."
    if side == "old":
        return f"Pass `modality={other!r}`." if modality != other else "Use a map for these rows."
    return _BACK


def _rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count:,} rows"
