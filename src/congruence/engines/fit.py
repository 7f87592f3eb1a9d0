"""Fit a map on any number of rows, from the moments of fragments merged in a tree."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import safetensors.numpy

from congruence._utils.engine import Engine
from congruence._utils.validation import RowNames, check_rows
from congruence.compare.origins import remember_rows
from congruence.compare.pairing import check_pairing, warn_pairing
from congruence.embeddings import Space, has_unit_rows
from congruence.errors import IdError, ParameterError, ShapeError
from congruence.io.dataset import FRAGMENT_BYTES, DataSet, Fragment, open_dataset, split_spec
from congruence.linalg.moments import CrossMoments
from congruence.maps import AffineMap, LinearMap, Map, OrthogonalMap
from congruence.upgrade.choose import FEWEST
from congruence.upgrade.readouts import read_as_store, read_queries

_CHECKED = 2000  # maximum number of pairs, all from the first fragment, on which the pairing is checked
METHODS = ("auto", "orthogonal", "linear")  # methods that can be fitted from moments


_BLOCK_BYTES = 8 * 2**20  # bytes of source vectors in a block of pairs


@dataclass(frozen=True)
class PairedData:
    """Source and target vectors, row by row."""

    source: DataSet
    target: DataSet
    partner: dict[str, Fragment]  # the target's fragment by the name of the source's
    allow_zero_rows: bool = False

    def blocks(self, fragment: Fragment) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield blocks of a fragment's source vectors, shape (b, d_source), and of the paired target vectors."""
        sides = (self.source, fragment), (self.target, self.partner[fragment.name])
        rows = max(256, _BLOCK_BYTES // (4 * max(self.source.dim, self.target.dim)))
        names = [data.table.path_of(part) for data, part in sides]
        readers = [data.open(part).scan(batch=rows) for data, part in sides]
        row = fragment.start
        # A block may end early at a row group; the rest of the longer block is paired with the other side's next block.
        pending: list[tuple[pa.Array | None, np.ndarray] | None] = [None, None]
        while True:
            first, second = pending = [
                held or next(reader, None) for held, reader in zip(pending, readers, strict=True)
            ]
            if first is None or second is None:
                if first is not second:
                    problem = f"Got more vectors in {names[first is None]} than in {names[second is None]}."
                    raise ShapeError(problem, "Pass the same items, with as many vectors each.")
                return
            n = min(len(first[1]), len(second[1]))
            a, b = (None if ids is None else ids[:n] for ids, _ in (first, second))
            if a is not None and b is not None and not a.equals(b.cast(a.type)):
                at = next(k for k in range(n) if str(a[k]) != str(b[k]))
                problem = f"Got id {str(a[at])!r} in row {row + at} of {names[0]} and {str(b[at])!r} in {names[1]}."
                raise IdError(problem, "Join both models' vectors into one table by id, and pass its two columns.")
            for (ids, block), name in zip((first, second), names, strict=True):
                check_rows(block[:n], name, ids=RowNames(ids, row), allow_zero_rows=self.allow_zero_rows)
            yield first[1][:n], second[1][:n]
            row += n
            pending = [
                None if len(block) == n else (None if ids is None else ids[n:], block[n:])
                for ids, block in (first, second)
            ]


def open_pairs(
    source: str,
    target: str,
    *,
    ids: str | bool | None = None,
    target_ids: str | bool | None = None,
    spaces: tuple[Space, Space] = (Space(), Space()),
    allow_zero_rows: bool = False,
) -> PairedData:
    """Open two columns of one data set, or two data sets whose files have the same numbers of rows.

    The arguments are those of ``open_dataset``, for both sides. If both have ids, they are compared row by row.
    """
    together = split_spec(source)[0] == split_spec(target)[0]
    # Whole files, since row groups of two data sets may differ.
    fragment_bytes = FRAGMENT_BYTES if together else 2**62
    target_ids = target_ids if target_ids is not None else ids
    first = open_dataset(source, ids=ids, space=spaces[0], fragment_bytes=fragment_bytes)
    second = open_dataset(target, ids=target_ids, space=spaces[1], fragment_bytes=fragment_bytes)
    sizes = [[fragment.rows for fragment in data.fragments] for data in (first, second)]
    if sizes[0] != sizes[1]:
        raise ParameterError(
            f"Got {first.table.n} rows in {len(sizes[0])} fragments of {first.table.name} and {second.table.n} in "
            f"{len(sizes[1])} of {second.table.name}; expected the same numbers of rows in each, in the same order.",
            "Join both models' vectors into one table by id, and pass its two columns.",
        )
    partner = {a.name: b for a, b in zip(first.fragments, second.fragments, strict=True)}
    return PairedData(first, second, partner, allow_zero_rows)


def fit_dataset(
    pairs: PairedData,
    method: str = "auto",
    *,
    engine: Engine,
    modality: str | None = None,
    queries: str | Sequence[str] | None = None,
    check: bool = True,
    strict: bool = False,
    **parameters: Any,
) -> Map:
    """Fit a map in one pass over two data sets.

    Each task sums the moments of a fragment in float64. The sums are merged in a tree whose shape depends only on the
    number of fragments, so that a second run gives the same numbers. Rounding makes them differ from those of one fit
    on all rows: by at most about n · 1.1e-16 relative to the sums of absolute products, in practice by 1e-13
    (tests/engines).

    Parameters
    ----------
    method : {"auto", "orthogonal", "linear"}, default="auto"
        "auto" fits a rotation about the means, since the choice that ``congruence.fit`` makes needs the rows.
    modality, queries
        As for ``congruence.fit``; the read-out is measured on pairs of the first fragment.
    check, strict : bool
        Compare the alignment of up to 2,000 pairs of the first fragment with random re-pairing; if it is no better,
        warn with a PairingWarning, or raise UnpairedError.
    **parameters
        Parameters of the map.
    """
    if method not in METHODS:
        fix = "Pass one that can be fitted from moments, or fit on a sample without `engine=…`."
        raise ParameterError(f"Got `method={method!r}` for an engine; expected one of {', '.join(METHODS)}.", fix)
    scores: dict[str, object] = {"n_pairs": pairs.source.table.n}
    blocks: list[tuple[np.ndarray, np.ndarray]] = []
    for block in pairs.blocks(pairs.source.fragments[0]):
        blocks.append(block)
        if sum(len(x) for x, _ in blocks) >= _CHECKED:
            break
    X, Y = (np.concatenate(side)[:_CHECKED] for side in zip(*blocks, strict=True))
    if check:
        report = check_pairing(X, Y)
        warn_pairing(report, strict=strict)
        scores["pairing"] = report.to_dict()
    linear = method == "linear"
    sent = replace(pairs, source=pairs.source.without_fragments(), target=pairs.target.without_fragments())
    work = functools.partial(_moments, sent, linear)
    state = safetensors.numpy.load(engine.reduce(work, _merge_moments, pairs.source.fragments))
    unit = bool(state["unit"][0]), bool(state["unit"][1])
    moments = CrossMoments.from_state(state)
    model: AffineMap
    if linear:
        model = LinearMap.from_moments(moments, normalized=unit, **parameters)
    else:
        model = OrthogonalMap.from_moments({modality or "": moments}, normalized=unit, **parameters)
    source, target = pairs.source, pairs.target
    model.source_space_ = replace(source.space, dim=source.dim, normalized=unit[0], modality=modality)
    model.target_space_ = replace(target.space, dim=target.dim, normalized=unit[1], modality=modality)
    model.scores_ = scores
    method = "linear" if linear else "orthogonal"
    asked = read_queries(queries, model, modality)
    if len(X) >= FEWEST:  # else the first fragment shows nothing, and rows stay as the map gives them
        read_as_store(model, (X, Y), method, asked)
    remember_rows(model, {modality: X}, {modality: Y})
    return model


def _moments(pairs: PairedData, gram: bool, fragment: Fragment) -> bytes:
    """Return the moments of a fragment, and whether source and target rows have unit norm; runs on a worker."""
    moments = CrossMoments(pairs.source.dim, pairs.target.dim, gram=gram)
    unit = np.ones(2)
    for x, y in pairs.blocks(fragment):
        kept = x.any(axis=1) & y.any(axis=1)  # rows of zeros get here only if they are allowed
        x, y = (x, y) if kept.all() else (x[kept], y[kept])
        if len(x):
            moments.update(x, y)
            unit *= [has_unit_rows(x), has_unit_rows(y)]
    return _pack({**moments.state(), "unit": unit})


def _merge_moments(states: Sequence[bytes]) -> bytes:
    loaded = [safetensors.numpy.load(state) for state in states]
    moments = functools.reduce(CrossMoments.merge, map(CrossMoments.from_state, loaded))
    return _pack({**moments.state(), "unit": np.prod([state["unit"] for state in loaded], axis=0)})


def _pack(arrays: dict[str, np.ndarray]) -> bytes:
    packed: bytes = safetensors.numpy.save({name: np.ascontiguousarray(array) for name, array in arrays.items()})
    return packed
