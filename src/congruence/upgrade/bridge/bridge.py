"""The bridge: search an old model's index with queries of a new model, without changing the index."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast

import numpy as np

from congruence import persist
from congruence._utils.arrays import UNIT_TOLERANCE, is_plain, is_tensor, namespace, squared_norms, to_numpy, widen
from congruence._utils.columns import to_rows
from congruence._utils.display import as_html, as_markdown, as_text
from congruence._utils.ids import id_rows, is_in
from congruence._utils.plain import PlainData
from congruence._utils.typing import Array, Labels, RowsLike, Tensor
from congruence._utils.validation import (
    as_matrix,
    as_native,
    check_choice,
    check_positive,
    check_same_rows,
    check_width,
    name_rows,
)
from congruence.embeddings import MODALITIES, Embeddings, Pairs, Space, as_embeddings, as_pair, check_space
from congruence.errors import (
    CorruptFileError,
    DirectionError,
    IdError,
    InputError,
    ModalityError,
    ParameterError,
    ShapeError,
    SpaceMismatchError,
    ZeroRowError,
)
from congruence.evaluation.judgments import expected_scores, judge, ranked_scores
from congruence.evaluation.thresholds import Thresholds, Translation, fit_thresholds
from congruence.maps import AffineMap, HeadsMap, Map, OrthogonalMap, restore_map
from congruence.metrics.hubness import Hubness, as_hubness
from congruence.upgrade.bridge.search import Lookup, SearchResult, as_rows, find, rerank_rows, rows_of_index

if TYPE_CHECKING:
    import torch

    from congruence.maps.torch_module import TorchMap


CANDIDATES = 100  # number of rows that the first stage of a two-stage search returns, or ten times k if that is more
NDCG_AT = 10  # cutoff of nDCG
KIND = "bridge"  # ``kind`` of a bridge in ``config.json``; that of a map is its method
TABLE = "bridge.thresholds"  # name of the array of thresholds

#: Entries of a map's configuration that are stored among a bridge's facts, so that the digest of the facts covers them.
_OF_MAP = ("kind", "parameters", "facts")


@dataclass(frozen=True)
class SystemScores:
    """Scores of one way to search, and their standard errors over queries, which chance does not have."""

    system: str  # "old model", "bridge", "two-stage", "re-embedded", "unmapped" or "chance"
    scores: dict[str, float]  # "recall@1", …, "ndcg@10": means over queries
    errors: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class BridgeScores(PlainData):
    """Result of ``congruence.Bridge.evaluate``: plain data."""

    systems: list[SystemScores]  # all measured on the same queries
    n_queries: int  # that have a relevant row
    n_rows: int
    candidates: int | None  # rows that the first stage of two-stage search returned
    mode: str
    notes: list[str] = field(default_factory=list)  # what was left out, and where a correction came from
    hubness: str | None = None

    def __getitem__(self, system: str) -> dict[str, float]:
        return {line.system: line.scores for line in self.systems}[system]

    def __str__(self) -> str:
        two_stage = "" if self.candidates is None else f"; two-stage: {self.candidates} candidates"
        title = f"{self.n_queries:,} queries over {self.n_rows:,} rows{two_stage}"
        rows = [["", *self.systems[0].scores]]
        for line in self.systems:
            errors = {name: f" ± {error:.3f}" for name, error in line.errors.items()}
            rows.append([line.system, *(f"{value:.3f}{errors.get(n, '')}" for n, value in line.scores.items())])
        lines = ["  " + f"{row[0]:<12}" + "".join(f"{cell:>15}" for cell in row[1:]) for row in rows]
        hubness = f"; hubness: {self.hubness}" if self.hubness else ""
        return "\n".join([f"{title}{hubness}", *lines, "±: standard error over queries."])


class Bridge:
    """Search an index of an old model's vectors with a new model's queries; the index is not rewritten.

    Parameters
    ----------
    mapping : Map
        Fitted **from the queries' model to the index's model**: ``congruence.fit(new, old)``, or the ``inverse()`` of a
        rotation fitted the other way.
    normalize : {"auto", True, False}, default="auto"
        Scale bridged queries to unit norm; "auto" does so if the index's rows had unit norm at the fit, with a
        NormWarning if the map does not record this.
    modality : str, optional
        Modality of queries that do not declare one. Required for such queries if the map has means for several
        modalities.

    Examples
    --------
    >>> from congruence import Bridge, fit
    >>> from congruence.synthetic import rigid_problem
    >>> anchors = rigid_problem(n=200, d_source=8, d_target=12, random_state=0)
    >>> bridge = Bridge(fit(anchors.X, anchors.Y))
    >>> bridge.transform(anchors.X[0]).shape
    (12,)
    """

    def __init__(self, mapping: Map, *, normalize: bool | str = "auto", modality: str | None = None) -> None:
        if not isinstance(mapping, Map):
            problem = f"Got {type(mapping).__name__} for mapping; expected a fitted map."
            raise ParameterError(problem, "Pass `congruence.fit(new, old)`, or use `congruence.Bridge.load(path)`.")
        if isinstance(mapping, HeadsMap):
            problem = f"A map of kind {mapping.kind} leads both models into a joint space, not into the index's."
            fix = "Search the joint space in the index that congruence bridge export writes"
            raise ParameterError(problem, f"{fix}, or fit a rotation or a linear map of the new rows to the old ones.")
        self._unit = mapping.gives_unit_rows(normalize)
        self.map, self.normalize, self.modality = mapping, normalize, modality
        self.thresholds: Thresholds | None = None
        if modality is not None:
            check_choice(modality, MODALITIES, "modality")
            self.for_modality(modality)

    @property
    def source(self) -> Space:
        """Space of the queries."""
        return replace(self.map.source_space_, dim=self.map.n_features_in_)

    @property
    def target(self) -> Space:
        """Space of the index and of bridged queries."""
        return replace(self.map.target_space_, dim=self.map.d_out)

    def transform(self, queries: RowsLike, modality: str | None = None, role: str = "query") -> Array:
        """Map queries (m, d_source) or (d_source,) of the new model into the index's space.

        Embeddings keep their ids; a tensor stays on its device and in its autograd graph; float16 gives float32.
        ``modality`` is by default that of the embeddings, else the bridge's; ``role`` is as for
        ``congruence.maps.Map.transform``: "query", "plain", or "store" for new items that are added to the index.

        Raises
        ------
        SpaceMismatchError
            If the vectors belong to another model or, as DirectionError, to the index's; if they are raw although the
            map was fitted on unit rows, or the reverse; or, as ModalityError, if their modality is not known.
        """
        if is_plain(queries) or not isinstance(queries, Embeddings):
            rows, single = as_rows(queries)
            out: Array = self._mapped(check_queries(rows, self.map), modality or self.modality, role)
            return out[0] if single else out
        declared = queries.space.modality
        if None not in (modality, declared) and modality != declared:
            problem = f"Got {declared} queries with `modality={modality!r}`; expected them to agree."
            raise ModalityError(problem, "Leave modality out.")
        wanted = modality or declared or self.modality
        try:
            # Norms are compared row by row below, and each modality has means of its own.
            check_space(replace(queries.space, normalized=None), self.source, self.target, modality=False)
        except DirectionError:
            raise wrong_direction(f"vectors of {queries.space}, the index's side of the map", self.map) from None
        mapped = np.asarray(self._mapped(check_queries(queries.vectors, self.map), wanted, role))
        space = replace(self.target, modality=wanted, normalized=True if self._unit else None, role=role)
        return Embeddings(mapped, ids=queries.ids if queries.has_ids else None, space=space, allow_zero_rows=True)

    def _mapped(self, rows: np.ndarray | Tensor, modality: str | None, role: str) -> Array:
        """Map checked queries, and scale them to unit norm if required."""
        if role == "query" and isinstance(rows, np.ndarray) and isinstance(self.map, AffineMap):
            mapped: AffineMap = self.map.once(
                ("queries", modality), lambda: self.map.in_use(self._known(modality), "query")
            )
            if (quick := mapped.quick(rows, self._unit)) is not None:
                return quick
        out = self.for_modality(modality, role).transform_embeddings(rows, normalize=self._unit)
        if not isinstance(out, Embeddings):
            return out
        if self._unit and not out.vectors.any(axis=1).all():
            fix = "Pass `normalize=False`, or fit with more pairs."
            raise ZeroRowError("The map maps some queries to zero.", fix)
        return out.vectors

    def for_modality(self, modality: str | None = None, role: str = "query") -> Map:
        """Return the map of queries of a modality, by default the bridge's, which exports write."""
        return self.map.for_modality(self._known(modality)).for_role(role)

    def _known(self, modality: str | None) -> str | None:
        """Return the modality of queries, by default the bridge's, after checking that the map knows it."""
        modality = modality or self.modality
        known = sorted(self.map.modality_means_) if isinstance(self.map, OrthogonalMap) else []
        if modality is None and len(known) > 1:
            raise ModalityError(
                f"The map has means of {', '.join(known)}, and the queries declare no modality.",
                (f"Pass `modality={known[-1]!r}`.", "If all queries have one, pass it to `congruence.Bridge`."),
            )
        fitted = self.map.source_space_.modality
        if not isinstance(self.map, OrthogonalMap) and None not in (modality, fitted) and modality != fitted:
            problem = f"Got {modality} queries; expected {fitted}, the one modality of this {self.map.kind} map."
            fix = f"Fit a rotation, which modalities share, with `means={{{modality!r}: (…, …)}}`."
            raise ModalityError(problem, fix)
        return modality

    def to_torch(
        self, modality: str | None = None, *, trainable: bool = False, dtype: torch.dtype | None = None
    ) -> TorchMap:
        """Return a module for queries of one modality, without checks; ``congruence.maps.Map.to_torch``."""
        return self.for_modality(modality).to_torch(normalize=self._unit, trainable=trainable, dtype=dtype)

    def prepare(self, queries: RowsLike, modality: str | None) -> tuple[np.ndarray, np.ndarray, bool]:
        """Return queries as rows (m, d_source), bridged, (m, d_target), and whether a single vector was passed."""
        if isinstance(queries, Embeddings):
            return queries.vectors, self.transform(queries, modality).vectors, False
        matrix, single = as_rows(queries)
        rows = to_rows(matrix, "queries")
        return rows, np.asarray(self.transform(rows, modality)), single

    def search(
        self,
        queries: RowsLike,
        index: object,
        k: int = 10,
        *,
        modality: str | None = None,
        candidates: int | None = None,
        rerank: RowsLike | Lookup | None = None,
        metric: str = "cosine",
        hubness: str | Hubness | None = None,
        bank: RowsLike | None = None,
    ) -> SearchResult:
        """Search the unchanged index with queries of the new model.

        Parameters
        ----------
        queries : Embeddings, array_like or tensor, shape (m, d_source) or (d_source,)
        index : Embeddings, array_like of shape (n, d_target), FAISS index, or callable
            The old model's vectors, searched block by block; an object with FAISS's ``search(vectors, n)``; or a
            function of ``(vectors, n)`` that returns ``(scores, ids)``, each of shape (m, n), nearest first.
        candidates : int, optional
            With ``rerank``: number of rows that the first stage returns; by default 100, or 10 k if that is more.
        rerank : array_like, shape (n, d_source), Embeddings, or callable, optional
            Vectors of the index's items in the new model, by which candidates are ranked again: by row, by id, or as a
            function of an array of ids. Items without a vector (a row of NaN, None, or no such id) come last.
        metric, hubness, bank
            Of the first stage, as for ``congruence.metrics.class_retrieval``, for an index given as vectors; ``metric``
            may be "inner" or "euclidean", and ``bank`` holds queries of the new model.
        """
        check_positive(k, "k", integer=True)
        if candidates is not None:
            check_positive(candidates, "candidates", integer=True)
            if rerank is None or candidates < k:
                why = "without rerank" if rerank is None else f"for k={k}"
                fix = "Pass `rerank=…` and a larger `candidates=…`, or leave candidates out."
                raise ParameterError(f"Got `candidates={candidates}` {why}; expected k or more.", fix)
        rows, vectors, single = self.prepare(queries, modality)
        scores, ids = find(
            vectors,
            index,
            k if rerank is None else candidates or max(CANDIDATES, 10 * k),
            metric=metric,
            hubness=hubness,
            bank=None if bank is None else np.asarray(self.transform(bank, modality)),
            own=self.target,
            other=self.source,
        )
        result = SearchResult(scores, ids, np.zeros(ids.shape, bool))
        if rerank is not None:
            result = rerank_rows(rows, scores, ids, rerank, k)
        return result.one() if single else result

    def evaluate(
        self,
        queries: RowsLike,
        index: RowsLike,
        *,
        queries_old: RowsLike | None = None,
        index_new: RowsLike | None = None,
        qrels: Mapping[str, Mapping[str, float]] | None = None,
        labels: tuple[Labels, Labels] | None = None,
        at: Sequence[int] = (1, 10),
        mode: str = "any",
        candidates: int = CANDIDATES,
        modality: str | None = None,
        hubness: str | Hubness | None = None,
        bank: RowsLike | None = None,
    ) -> BridgeScores:
        """Measure retrieval by the bridge, the old model, two-stage search, the re-embedded index and chance.

        Parameters
        ----------
        queries, index : Embeddings or array_like, shapes (m, d_source) and (n, d_target)
            Queries in the new model, none that the map was fitted on, and rows of the index in the old one.
        queries_old : Embeddings or array_like, shape (m, d_target), optional
            The same queries in the old model, for the old model's line; paired by id, or by position.
        index_new : Embeddings or array_like, shape (n, d_source), optional
            The index's items in the new model, for two-stage search, which may lack some, and the re-embedded index.
        qrels, labels : optional
            Relevance grade by query id and document id (``congruence.evaluation.judgments.read_qrels``), or classes of
            the queries and of the rows of the index. Without either, the row with the query's id is relevant.
        at, mode
            Cutoffs k for recall: with ``mode="any"`` the share of queries with a relevant row among the k, with
            "share" the share of relevant rows found.
        modality, candidates, hubness, bank
            As for ``search``. Each line is corrected with its own queries and rows, the old model's with its own
            queries as ``bank``, and two-stage search in the first stage only.
        """
        check_positive(candidates, "candidates", integer=True)
        for k in at:
            check_positive(k, "at", integer=True)
        if not at:
            raise ParameterError("No cutoff in `at=…`.", "Pass `at=(1, 10)`.")
        asked, rows = as_embeddings(queries, "queries"), rows_of_index(index, self.target, self.source)
        judgments = judge(asked, rows, qrels=qrels, labels=labels)
        notes, kept = list(judgments.notes), np.flatnonzero(judgments.judged)
        old = new = None
        if queries_old is not None:
            old, matched = _matched_rows(asked, queries_old, "queries_old")
            check_width(old.shape[1], rows.dim, "the index")
            if not matched.all():
                missing = int((~matched).sum())
                notes.append(f"{missing} queries are not among those of the old model; they were left out.")
                kept = kept[matched[kept]]
            if not len(kept):
                fix = "Pass `queries_old=…` with queries that are judged."
                raise InputError("No query of queries_old has a relevant row.", fix)
        judgments = judgments.take(kept)
        if index_new is not None:
            new, matched = _matched_rows(rows, index_new, "index_new")
            if not matched.all():
                notes.append(
                    f"{int((~matched).sum())} of {len(rows)} rows have no vector of the new model: two-stage "
                    "search ranks them after those that have one, and there is no line for a re-embedded index."
                )
                new[~matched] = np.nan
        depth = min(max(*at, NDCG_AT), len(rows))
        first_stage = max(candidates, depth)
        cutoffs: dict[str, Any] = {"at": sorted(set(at)), "ndcg_at": NDCG_AT, "mode": mode}

        def scored(system: str, found: np.ndarray) -> SystemScores:
            by_query = ranked_scores(order[found], judgments, **cutoffs)
            errors = {k: float(v.std(ddof=1) / np.sqrt(len(v))) if len(v) > 1 else 0.0 for k, v in by_query.items()}
            return SystemScores(system, {k: float(v.mean()) for k, v in by_query.items()}, errors)

        vectors, correction = asked.vectors[kept], as_hubness(hubness)
        own: dict[str, Any] = {"hubness": correction}
        theirs = {**own, "bank": None if bank is None else as_embeddings(bank, "bank").vectors}
        ours = {**own, "bank": bank, "modality": modality or asked.space.modality}
        # Equal rows are found in random order: their place in the index says nothing of them. Without ids, so that
        # results are row numbers.
        order = np.random.default_rng(0).permutation(len(rows))
        unnamed, new, systems = rows.vectors[order], None if new is None else new[order], []
        if old is not None:
            systems.append(scored("old model", find(old[kept], unnamed, depth, **own)[1]))
        systems.append(scored("bridge", self.search(vectors, unnamed, depth, **ours).ids))
        if new is not None:
            two_stage = self.search(vectors, unnamed, depth, candidates=first_stage, rerank=new, **ours)
            systems.append(scored("two-stage", two_stage.ids))
            if np.isfinite(new).all():
                systems.append(scored("re-embedded", find(vectors, new, depth, **theirs)[1]))
        if asked.dim == rows.dim:
            systems.append(scored("unmapped", find(vectors, unnamed, depth, **theirs)[1]))
        systems.append(SystemScores("chance", expected_scores(judgments, len(rows), **cutoffs)))
        if correction and bank is None:
            notes.append(
                "The correction for hubs uses the evaluated queries as the bank: the scores are those of "
                "queries that arrive together (transductive). Pass a bank of earlier queries for others."
            )
        elif correction and old is not None:
            notes.append("The bank is of the new model; the old model's line uses its own evaluated queries instead.")
        n_candidates = min(first_stage, len(rows)) if new is not None else None
        return BridgeScores(
            systems, len(kept), len(rows), n_candidates, mode, notes, correction.name if correction else None
        )

    def fit_thresholds(
        self,
        queries: RowsLike,
        queries_old: RowsLike,
        index: RowsLike,
        *,
        qrels: Mapping[str, Mapping[str, float]] | None = None,
        labels: tuple[Labels, Labels] | None = None,
        modality: str | None = None,
        folds: int = 5,
        random_state: int = 0,
    ) -> Self:
        """Learn how to translate score thresholds of the old model into thresholds for bridged queries.

        Scores are cosines with rows of the index. A threshold is translated to the score above which the share of
        irrelevant pairs is the same. A regression of one score on the other would shrink toward the mean and change
        this false-positive rate (docs/bridge.md). Where the widths agree, the same is done for unmapped queries.

        Parameters
        ----------
        queries, queries_old : Embeddings or array_like, shapes (m, d_source) and (m, d_target)
            The same queries in both models, paired by id, or by position; preferably none that the map was fitted on.
        index : Embeddings or array_like, shape (n, d_target)
            Rows of the index, or a sample of them.
        qrels, labels : optional
            As for ``evaluate``; by default the row with the query's id is relevant, and none if there are no ids.
        folds, random_state
            Cross-validation folds, over queries; the seed also draws the sample of more than 2,000 queries or 4 million
            pairs.
        """
        ours, theirs = as_pair(queries, queries_old, ("queries", "queries_old"))
        named = ours.has_ids and theirs.has_ids
        if not named:
            check_same_rows(len(ours), len(theirs), "queries", "queries_old")
        rows = rows_of_index(index, self.target, self.source)
        for side, name in ((theirs, "queries_old"), (rows, "index")):
            check_width(side.dim, self.map.d_out, f"the map's output, as compared with {name},")
        if labels is not None and named:
            labels = np.asarray(labels[0])[is_in(ours.ids, theirs.ids)], labels[1]
        pairs = Pairs.join(ours, theirs)
        asked, old = pairs.source, pairs.target
        by_id = asked.has_ids and rows.has_ids and bool(is_in(asked.ids, rows.ids).any())
        judgments = None
        if qrels is not None or labels is not None or by_id:
            judgments = judge(asked, rows, qrels=qrels, labels=labels)
        sides = [self.transform(asked.vectors, modality or ours.space.modality)]
        sides += [asked.vectors] if asked.dim == rows.dim else []  # as they are
        before, how = (old.vectors, rows.vectors), {"folds": folds, "random_state": random_state}
        mapped, *left = (fit_thresholds((side, rows.vectors), before, judgments, **how) for side in sides)
        self.thresholds = replace(mapped, table=np.concatenate([one.table for one in (mapped, *left)]))
        return self

    def translate(self, threshold: float) -> Translation:
        """Return the old model's cosine threshold as one for bridged queries, with the rates before and after."""
        if self.thresholds is None:
            fix = "Call bridge.fit_thresholds(queries, queries_old, index) first."
            raise ParameterError("This bridge has no thresholds.", fix)
        return self.thresholds.translate(threshold)

    def save(self, path: str | Path, *, force: bool = False) -> Path:
        """Write the bridge as a folder in the format of maps: ``model.safetensors``, ``config.json``, ``README.md``."""
        config, arrays = self.map.config(), self.map.state()
        facts: dict[str, Any] = {"map": {key: config[key] for key in _OF_MAP}}
        if self.thresholds is not None:
            facts["thresholds"] = self.thresholds.facts()
            arrays = {**arrays, TABLE: self.thresholds.table}
        parameters = {"normalize": self.normalize, "modality": self.modality}
        saved = {**config, "kind": KIND, "parameters": parameters, "facts": facts}
        return persist.write_folder(path, arrays, saved, self._card(), force=force)

    @classmethod
    def load(cls, path: str | Path) -> Bridge:
        """Load a bridge, or a saved map as a bridge with default parameters. Nothing in the folder is executed."""
        found = load(path)
        return cls(found) if isinstance(found, Map) else found

    def _card(self) -> str:
        new, old = (as_markdown(str(space)) for space in (self.source, self.target))
        names = [as_markdown(space.model or "") for space in (self.source, self.target)]
        return f"""---
library_name: congruence
tags: [congruence, embeddings, alignment, procrustes]
---
# Bridge: queries of {names[0] or "the new model"} over an index of {names[1] or "the old model"}

Maps queries of *{new}* into the space of *{old}*, whose vectors do not change.

```python
import congruence

bridge = congruence.load("path/to/this/folder")
queries = bridge.transform(vectors)  # search the old index with these
```
"""

    def describe(self) -> dict[str, Any]:
        """Return parameters, spaces, map and thresholds as plain data."""
        return {
            "kind": KIND,
            "parameters": {"normalize": self.normalize, "modality": self.modality},
            "unit_rows": self._unit,
            "source": self.source.to_dict(),
            "target": self.target.to_dict(),
            "map": self.map.describe(),
            "thresholds": None if self.thresholds is None else self.thresholds.describe(),
        }

    def shown(self) -> dict[str, str]:
        """Return what the bridge's display says."""
        facts = {"queries": str(self.source), "index": str(self.target)}
        facts["map"] = f"{self.map.kind}, fitted on {self.map.n_pairs_:,} pairs"
        if self.thresholds is not None:
            fitted = self.thresholds
            counts = (
                f"{fitted.n_queries:,} queries, {fitted.n_pairs:,} irrelevant and {fitted.n_relevant:,} relevant pairs"
            )
            facts["thresholds"] = f"from {counts}, {fitted.table[0, 0]:.4f} to {fitted.table[0, -1]:.4f}"
        facts["bridged queries"] = "unit rows" if self._unit else "as the map leaves them"
        return facts

    def __repr__(self) -> str:
        return as_text("Bridge", self.shown())

    def _repr_html_(self) -> str:
        return as_html("Bridge", self.shown())


def load(path: str | Path) -> Map | Bridge:
    """Load a map or bridge that was saved with its ``save``. Nothing in the folder is executed."""
    arrays, config = persist.read_folder(path)
    if config.get("kind") != KIND:
        return restore_map(arrays, config, path)
    try:
        facts, thresholds = dict(config["facts"]), None
        saved = facts.pop("map")
        if "thresholds" in facts:
            thresholds = Thresholds.restore(arrays.pop(TABLE), facts.pop("thresholds"))
        if facts or set(saved) != set(_OF_MAP):
            raise ValueError("unknown or missing entries")
        bridge = Bridge(restore_map(arrays, {**config, **saved}, path), **config["parameters"])
    except CorruptFileError:
        raise
    except (AttributeError, LookupError, TypeError, ValueError) as error:  # also for maps that a bridge refuses
        problem = f"The bridge in {path} is damaged ({error!r})."
        raise CorruptFileError(problem, "Create it again from its map.") from error
    bridge.thresholds = thresholds
    return bridge


def check_queries(queries: RowsLike, mapping: Map) -> np.ndarray | Tensor:
    """Return rows to map, (m, d), as float32 or float64, compared with the rows the map was fitted on."""
    source, target, width = mapping.source_space_, mapping.target_space_, mapping.n_features_in_
    if is_plain(queries) and queries.shape[1:] == (width,) and len(queries):
        _, low, high, ordinary = squared_norms(queries)  # what is wrong with others is said below
        unit = low > (1 - UNIT_TOLERANCE) ** 2 and high < (1 + UNIT_TOLERANCE) ** 2
        if ordinary and source.normalized in (None, bool(unit)):
            return queries
    A: np.ndarray | Tensor
    if is_tensor(queries):
        A = cast("Tensor", widen(as_native(queries, "queries")))
    else:
        A = as_matrix(queries, "queries", allow_zero_rows=True)
    if A.shape[1] != width:
        if A.shape[1] == mapping.d_target:
            raise wrong_direction(f"{A.shape[1]}-d queries, the width of the index's model ({target})", mapping)
        problem = f"Got {A.shape[1]}-d queries; expected {width}-d ones of {source}."
        raise ShapeError(problem, "Encode the queries with that model.")
    if isinstance(A, np.ndarray):
        with np.errstate(over="ignore"):
            norms = np.linalg.norm(A.astype(np.float64, copy=False), axis=1)
    else:
        norms = to_numpy(namespace(A).linalg.vector_norm(A.detach(), axis=1)).astype(np.float64)
    n, zero, odd = len(norms), np.flatnonzero(norms == 0), np.flatnonzero(np.abs(norms - 1) >= UNIT_TOLERANCE)
    if len(zero):
        raise ZeroRowError(f"{len(zero)} of {n} queries are all zeros (rows {name_rows(zero)}).", "Encode them again.")
    if source.normalized and len(odd):
        problem = f"{len(odd)} of {n} queries are not unit rows (rows {name_rows(odd)}; norm {norms[odd[0]]:.3g})."
        raise SpaceMismatchError(problem, "Divide each query by its norm first: the map was fitted on unit rows.")
    if source.normalized is False and not len(odd):
        problem = f"All {n} queries are unit rows; the map was fitted on raw rows of {source}."
        raise SpaceMismatchError(problem, "Pass them before normalization.")
    return A


def wrong_direction(got: str, mapping: Map) -> DirectionError:
    """Return the error for vectors of the index's model passed as queries."""
    return DirectionError(
        f"Got {got}; expected {mapping.n_features_in_}-d queries of {mapping.source_space_}.",
        "Encode them with the new model, or fit the map in the other direction, from the new model to the old one.",
    )


def _matched_rows(items: Embeddings, other: RowsLike, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return another model's rows of the same items, with zeros for missing rows, and a mask of those present."""
    known = "queries" if name == "queries_old" else "index"
    ours, theirs = as_pair(items, other, (known, name))
    out = np.zeros((len(ours), theirs.dim), dtype=np.result_type(theirs.vectors, np.float32))
    if not (ours.has_ids and theirs.has_ids):
        check_same_rows(len(ours), len(theirs), known, name)
        out[:] = theirs.vectors
        return out, np.ones(len(ours), bool)
    place = id_rows(theirs.ids, ours.ids)
    matched = place >= 0
    if not matched.any():
        raise IdError(f"No item of {name} is in the {known}.", f"Pass `{name}=…` of it.")
    out[matched] = theirs.vectors[place[matched]]
    return out, matched
