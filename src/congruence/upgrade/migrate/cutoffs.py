"""Translate the score cut-offs of an application to scores after a migration."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from congruence._utils.ids import id_texts, is_in
from congruence._utils.typing import RowsLike
from congruence.databases import Database
from congruence.embeddings import Embeddings, Pairs, as_embeddings
from congruence.errors import ModalityError, ParameterError, ShapeError, TooFewAnchorsError
from congruence.evaluation.judgments import judge
from congruence.evaluation.thresholds import Thresholds, fit_thresholds
from congruence.upgrade.migrate._sample import read_sample
from congruence.upgrade.migrate.mapper import RowMapper
from congruence.upgrade.migrate.quantize import Quantizer

__all__ = ["fit_cutoffs"]


def fit_cutoffs(
    database: Database,
    mapper: RowMapper,
    sample: list[int | str],
    queries: RowsLike | None,
    queries_old: RowsLike | None,
    *,
    among: str | None,
    folds: int,
    random_state: int,
) -> Thresholds:
    """Fit the translation of cut-offs on a sample of the table's rows; see :meth:`congruence.Migration.fit_thresholds`."""
    old, new, place = read_sample(database, sample)
    kept = place >= 0
    if among is not None:
        if old.modalities is None:
            raise ModalityError(
                f"Got among={among!r} for a table opened without a column of modalities; expected one. Pass modality_column=…, or leave out among=…."
            )
        kept &= np.array([name == among for name in old.modalities.to_pylist()], bool)
    names = old.ids.filter(pa.array(kept))
    if len(names) < 2:
        raise TooFewAnchorsError(
            f"Got {len(names)} rows of the sample that have both vectors{'' if among is None else f' and are of {among}'}; expected at least 2. Finish the run, or pass another among=…."
        )
    before = mapper.old.decode(old.vectors[kept])
    after = mapper.new.decode(new.vectors[place[kept]])
    if queries is None and queries_old is None:
        order = np.random.default_rng(random_state).permutation(len(names))
        asked, searched = np.array_split(order, 2)  # disjoint halves, so that no row is compared with itself
        return fit_thresholds(
            (after[asked], after[searched]),
            (before[asked], before[searched]),
            None,
            folds=folds,
            random_state=random_state,
        )
    if queries is None or queries_old is None:
        missing, passed = ("queries", "queries_old") if queries is None else ("queries_old", "queries")
        raise ParameterError(
            f"Got {passed} without {missing}; expected the same queries in both models, or none in either. Pass {missing}=… too."
        )
    ours, theirs = as_embeddings(queries, "queries"), as_embeddings(queries_old, "queries_old")
    for side, rows, name in ((ours, after, "queries"), (theirs, before, "queries_old")):
        if side.dim != rows.shape[1]:
            raise ShapeError(
                f"Got {side.dim}-d {name}; expected {rows.shape[1]}-d, of the {'new' if name == 'queries' else 'old'} model. Pass {name}=… of that model."
            )
    pairs = Pairs.join(ours, theirs)
    known = Embeddings(after, ids=id_texts(names.to_pylist()), allow_zero_rows=True)
    judgments = None
    if pairs.source.has_ids and bool(is_in(pairs.source.ids, known.ids).any()):
        judgments = judge(pairs.source, known)
    return fit_thresholds(
        (_stored(mapper.new, pairs.source.vectors), after),
        (_stored(mapper.old, pairs.target.vectors), before),
        judgments,
        folds=folds,
        random_state=random_state,
    )


def _stored(side: Quantizer, queries: np.ndarray) -> np.ndarray:
    """Return queries quantized and decoded, as in a search of quantized vectors; for bits, a cosine is 1 − 2h / d for Hamming distance h."""
    rows = queries.astype(np.float32, copy=False)
    return side.decode(side.encode(rows)) if side.coded else rows
