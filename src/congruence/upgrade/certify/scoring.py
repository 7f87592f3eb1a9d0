"""The certified map, and the scores of the strategies with it: hits of queries, overlap of result lists, and controls.

A gallery is a sample, as the queries are. Removing item i from it removes its query, and also a distractor or a
relevant item of other queries: its jackknife pseudo-value is h_i − p_i, where h_i is its hit and p_i the number of hits
among the *other* queries that its removal would add.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, TypeAlias

import numpy as np
import scipy.linalg

from congruence._utils.top_k import top_k
from congruence.embeddings import normalize_rows
from congruence.errors import ModalityError, ParameterError
from congruence.evaluation import Ranking
from congruence.evaluation.controls import cosine_controls
from congruence.maps import METHODS, AffineMap, LinearMap, OrthogonalMap
from congruence.metrics import Hubness, nearest
from congruence.metrics.hubness import HubnessCorrection
from congruence.synthetic import random_rotation
from congruence.upgrade.certify.design import EvaluationSet, ListSearch, PairedTables
from congruence.upgrade.choose import OFFSET, Choice, Other, choose_map


class TwoWay:
    """A fitted map and its reverse: the inverse or, if there is none, the same method fitted the other way.

    ``backward`` fits that map on first use; ``anchors`` returns the source rows, for ``covered_share``.
    """

    def __init__(
        self,
        forward: OrthogonalMap | LinearMap,
        backward: Callable[[], LinearMap] | None = None,
        anchors: Callable[[], np.ndarray] | None = None,
    ) -> None:
        self.forward = forward
        self._backward, self._anchors = backward, anchors
        self._fitted_backward: LinearMap | None = None
        self._inverses: dict[str | None, AffineMap] = {}

    def to_target(self, modality: str | None) -> AffineMap:
        """Return the map for stored vectors of a modality."""
        found = self.forward.for_modality(modality)
        assert isinstance(found, AffineMap)
        return found

    def to_source(self, modality: str | None) -> AffineMap:
        """Return the map for the target model's queries of a modality."""
        if isinstance(self.forward, OrthogonalMap):
            if modality not in self._inverses:
                self._inverses[modality] = self.forward.for_modality(modality).inverse()
            return self._inverses[modality]
        if self._fitted_backward is None:
            assert self._backward is not None
            self._fitted_backward = self._backward()
        return self._fitted_backward

    def recentered(self, source: np.ndarray, target: np.ndarray, modality: str) -> TwoWay:
        """Return the map with the means of a further modality; the same map if it keeps no means."""
        if isinstance(self.forward, OrthogonalMap):
            return TwoWay(self.forward.recenter(source.mean(axis=0), target.mean(axis=0), modality=modality))
        return self

    def covered_share(self, modality: str | None, rows: np.ndarray) -> np.ndarray:
        """Return the share of each row's variance (norm²) in directions the anchors cover, shape (m,)."""
        if isinstance(self.forward, OrthogonalMap):
            return self.forward.for_modality(modality).covered_share(rows)
        assert self._anchors is not None
        anchors = self._anchors() - self.forward.source_mean_
        _, s, basis = np.linalg.svd(anchors, full_matrices=False)
        centered = rows - self.forward.source_mean_
        inside = np.square(centered @ basis[s > 1e-8 * s[0]].T).sum(axis=1)
        total = np.einsum("ij,ij->i", centered, centered)
        return np.asarray(np.minimum(np.divide(inside, total, out=np.ones(len(rows)), where=total > 0), 1.0))


#: Methods that can be certified: maps of one model's vectors into the other's space, of which there is one for queries
#: too.
CERTIFIED = ("auto", "orthogonal", "linear")


@dataclass(frozen=True)
class MapRecipe:
    """How a map is chosen and fitted on anchors."""

    fitted: Sequence[str]  # modalities
    method: str = "auto"
    parameters: Mapping[str, Any] = field(default_factory=dict)
    single_modality: bool = False  # linear maps may be chosen
    random_state: int = 0

    def check(self, tables: PairedTables) -> None:
        """Refuse methods and modalities that cannot be fitted or certified."""
        if self.method not in CERTIFIED:
            known = "a one-sided linear method" if self.method in METHODS else "a method"
            raise ParameterError(
                argument="method",
                got=self.method,
                expected=f"{known} out of {', '.join(CERTIFIED)}",
                fix="Pass `method='auto'`, or compare other maps on held-out pairs with congruence.evaluate.",
            )
        if self.single_modality and (self.method != "auto" or tables.store_modality != tables.query_modality):
            got = (
                f"method={self.method!r}"
                if self.method != "auto"
                else f"{tables.store_modality} and {tables.query_modality} rows"
            )
            raise ModalityError(f"Got `single_modality=True` and {got}; expected one modality.", "Leave it out.")
        if self.method == "linear" and len(self.fitted) > 1:
            raise ModalityError(
                f"A linear map takes one modality: {' and '.join(self.fitted)}.", f"Pass `fitted={self.fitted[0]!r}`."
            )

    def choose(self, tables: PairedTables, train: np.ndarray) -> Choice:
        """Choose the map from the given rows (t,) of the fitted modality only, as ``congruence.fit`` would.

        The other modality's rows of the same items are its ``means``. Several modalities together are fitted by a
        rotation; it is chosen on the pairs of the first, with the others' rows as further evidence.
        """
        if self.method != "auto":
            given = ", ".join(f"{name}={value!r}" for name, value in self.parameters.items())
            kind, default = {
                "orthogonal": ("rotation", " about the means"),
                "linear": ("linear map", ", ridge regression"),
            }[self.method]
            name = kind + (f" with {given}" if given else default)
            evidence = f"method={self.method!r} was given, so nothing was compared"
            return Choice(name, self.method, dict(self.parameters), evidence)
        first = self.fitted[0]
        others = []
        for name in tables.source if not tables.by_class else ():
            if name != first:
                known = tables.target.get(name)
                mean = None if known is None else known[train].mean(axis=0, dtype=np.float64)
                others.append(Other(name, np.arange(len(train)), tables.source[name][train], mean))
        return choose_map(
            tables.source[first][train],
            tables.target[first][train],
            others=others,
            fixed=self.parameters,
            single_modality=self.single_modality,
            rotations_only=len(self.fitted) > 1,
            random_state=self.random_state,
        )

    def fit(self, tables: PairedTables, train: np.ndarray, choice: Choice | None = None) -> TwoWay:
        """Fit on the given rows. A rotation also gets the means of the other modality, of the same items."""
        choice = self.choose(tables, train) if choice is None else choice
        if choice.method == "linear":
            first = self.fitted[0]
            source, target = tables.source[first], tables.target[first]
            return TwoWay(
                LinearMap(**choice.parameters).fit(source[train], target[train]),
                lambda: LinearMap(**choice.parameters).fit(target[train], source[train]),
                lambda: source[train],
            )
        model = OrthogonalMap(**choice.parameters)
        X = np.concatenate([tables.source[name][train] for name in self.fitted])
        Y = np.concatenate([tables.target[name][train] for name in self.fitted])
        several = len(self.fitted) > 1
        model.fit(X, Y, modality=np.repeat(list(self.fitted), len(train)) if several else self.fitted[0])
        offset = OFFSET if self.method == "auto" else 1.0
        for name, rows in tables.source.items():
            if name not in self.fitted:
                seen = slice(None) if tables.by_class else train
                known = tables.target.get(name)
                mean = None if known is None else known[seen].mean(axis=0)
                model = model.recenter(rows[seen].mean(axis=0), mean, modality=name, offset=offset)
        return TwoWay(model)

    def in_words(self, tables: PairedTables, choice: Choice) -> str:
        """Return how to fit this map: a command, or a Python call if no command can."""
        given = ", ".join(f"{name}={value!r}" for name, value in choice.parameters.items())
        if len(self.fitted) > 1:
            return (
                f"OrthogonalMap({given}).fit(X, Y, modality=[…]) in Python, on {' and '.join(self.fitted)} rows "
                "together"
            )
        words = "congruence fit" + ("" if self.method == "auto" else f" --method {self.method}")
        words += " --single-modality" if self.single_modality else ""
        words += f" on the {self.fitted[0]} anchors"
        words += f", with {given}" if self.parameters else ""
        other = next((name for name in tables.source if name != self.fitted[0]), None)
        if other is not None and self.method != "linear":
            words += f", with --means {other}=…"
        return words + (", and for queries with source and target exchanged" if choice.method == "linear" else "")

    def about_means(self, tables: PairedTables, train: np.ndarray, certified: TwoWay) -> OrthogonalMap:
        """Return the certified map if it is a rotation about the means, else such a rotation of the same rows."""
        if isinstance(certified.forward, OrthogonalMap) and certified.forward.center:
            return certified.forward
        found = MapRecipe(self.fitted, "orthogonal").fit(tables, train).forward
        assert isinstance(found, OrthogonalMap)
        return found


#: The vectors that a strategy compares: the queries, shape (m, d), and the store, shape (n, d).
Vectors: TypeAlias = tuple[np.ndarray, np.ndarray]


def rows_to_rank(rows: np.ndarray, ranking: Ranking, mean: np.ndarray | None = None) -> np.ndarray:
    """Return rows of unit norm, minus a mean (by default their own) if the ranking is centered."""
    if ranking.center:
        rows = rows - (rows.mean(axis=0) if mean is None else mean)
    return np.asarray(normalize_rows(rows))


@dataclass(frozen=True, eq=False)
class ComparedSide:
    """The queries or the store as a strategy compares them: rows (n, d), and the map that is applied to them."""

    rows: np.ndarray
    map: AffineMap | None = None

    def unit(self, ranking: Ranking, some: np.ndarray | None = None) -> np.ndarray:
        """Return all rows, or some, mapped and scaled to unit norm; a centered ranking subtracts the mean of all."""
        rows = self.rows if some is None else self.rows[some]
        mapped = rows if self.map is None else self.map.transform(rows)
        if some is None or not ranking.center:
            return rows_to_rank(mapped, ranking)
        mean = self.rows.mean(axis=0, keepdims=True)
        return rows_to_rank(
            mapped, ranking, mean if self.map is None else self.map.transform(mean)
        )  # the map is affine


def strategies_of(tables: PairedTables) -> list[str]:
    """Return the strategies that the available vectors allow."""
    return ["keep", "stored", "queries"] + (["re-embed"] if tables.store_modality in tables.target else [])


def sides(
    strategy: str, model: TwoWay, tables: PairedTables, search: ListSearch | None = None
) -> tuple[ComparedSide, ComparedSide]:
    """Return what a strategy compares: queries and store; by default the queries' modality searches the store."""
    store_modality, query_modality = tables.store_modality, tables.query_modality
    if search is not None:
        query_modality, ours, theirs = search.modality, search.source, search.target
    else:
        ours, theirs = tables.source[query_modality], tables.target[query_modality]
    if strategy == "re-embed":
        return ComparedSide(theirs), ComparedSide(tables.target[store_modality])
    if strategy == "stored":
        return ComparedSide(theirs), ComparedSide(tables.source[store_modality], model.to_target(store_modality))
    if strategy == "queries":
        return ComparedSide(theirs, model.to_source(query_modality)), ComparedSide(tables.source[store_modality])
    assert ours is not None  # else the search does not allow "keep"
    return ComparedSide(ours), ComparedSide(tables.source[store_modality])


def vectors_of(model: TwoWay, items: EvaluationSet, only: Collection[str] | None = None) -> dict[str, Vectors]:
    """Return by strategy the queries (m, d) and store (n, d) that it compares."""
    out = {}
    for strategy in strategies_of(items.tables):
        if only is None or strategy in only:
            queries, store = sides(strategy, model, items.tables)
            out[strategy] = queries.unit(items.ranking), store.unit(items.ranking)
    return out


def similarities(
    strategy: str, model: TwoWay, items: EvaluationSet, search: ListSearch, rows: np.ndarray | None = None
) -> np.ndarray:
    """Return the similarities (queries, rows) by which a strategy ranks stored rows for a search; hubs come later."""
    rows = items.compared if rows is None else rows
    queries, store = sides(strategy, model, items.tables, search)
    return np.asarray(queries.unit(items.ranking, search.queries_of(rows)) @ store.unit(items.ranking, rows).T)


def part_seen(model: TwoWay, items: EvaluationSet, rows: np.ndarray) -> np.ndarray:
    """Return the component (r, d_source) of stored rows, scaled to unit norm, that mapped queries can match.

    A mapped query is q B + b, so its product with x depends only on the projection of x on the rows of B and on b.
    Anchors lie entirely in this subspace, other rows do not; each row is therefore scored by a map fitted without it.
    """
    tables, ranking = items.tables, items.ranking
    whole = tables.source[tables.store_modality]
    store = rows_to_rank(whole[rows], ranking, whole.mean(axis=0) if ranking.center else None)
    back = model.to_source(tables.query_modality)
    met = back.matrix.T if ranking.center else np.column_stack([back.matrix.T, back.offset])
    # Pivoted QR determines the rank as well as a singular value decomposition, in a tenth of the time.
    basis, remains, _ = scipy.linalg.qr(met, mode="economic", pivoting=True, check_finite=False)
    size = np.abs(np.diagonal(remains))
    basis = basis[:, : len(size)][:, size > 1e-8 * size[0]]
    return np.asarray((store @ basis) @ basis.T)


def cosines(model: TwoWay, tables: PairedTables, modality: str, rows: np.ndarray) -> np.ndarray:
    """Return the cosine of each mapped row and the target's own row."""
    mapped = normalize_rows(model.to_target(modality).transform(tables.source[modality][rows]))
    own = normalize_rows(tables.target[modality][rows])
    return np.asarray(np.einsum("ij,ij->i", mapped, own, dtype=np.float64))


#: Share of an item's pull that enters its influence. Jackknife pseudo-values (share 1) count the interplay of two items
#: twice (Efron and Stein 1981), bare hits (share 0) not at all; ``benchmarks/certify_calibration.py`` puts the truth
#: between.
PULL = 0.6


@dataclass(frozen=True)
class Hits:
    """Scores (m,) of the queries of one strategy; ``pull`` (n,) is what removing each gallery item adds to others."""

    score: np.ndarray
    pull: np.ndarray | None = None

    @property
    def influence(self) -> np.ndarray:
        """The pseudo-value of each item, of a gallery whose items are the queries' own."""
        return self.score if self.pull is None else self.score - PULL * self.pull


def recall(
    queries: np.ndarray,
    gallery: np.ndarray,
    query_class: np.ndarray,
    gallery_class: np.ndarray,
    k: int,
    *,
    own: np.ndarray | None = None,
    find_own: bool = True,
    correction: HubnessCorrection | None = None,
) -> Hits:
    """Return for each query (m, d) whether one of its k nearest gallery rows (n, d) is of its class.

    ``own`` (m,): gallery row that is the same item, and is removed with it; without it the gallery is not a sample, and
    there is no ``pull``. The effect of removing an item on the correction is not included.
    """
    n = len(gallery)
    depth = min(k + 1, n - (not find_own))
    left_out = None if find_own else own
    if correction is not None:
        queries, gallery = correction.as_inner_products(queries, gallery, left_out=left_out)
    near = nearest(queries, depth, gallery, left_out=left_out)
    right = gallery_class[near] == query_class[:, None]
    hit = right[:, :k].any(axis=1)
    if own is None:
        return Hits(hit.astype(np.float64))
    pull = np.zeros(n)
    among = right.sum(axis=1)
    for place in range(min(k, depth)):
        # With this row gone the next one moves up into the first k.
        change = ((among - right[:, place]) > 0).astype(float) - hit
        change[near[:, place] == own] = 0.0
        np.add.at(pull, near[:, place], change)
    return Hits(hit.astype(np.float64), pull)


def correction(items: EvaluationSet, queries: np.ndarray, store: np.ndarray) -> HubnessCorrection | None:
    """Return the correction for hubs by these queries, or by the stored items if they search for their class."""
    hubness, tables = items.ranking.hubness, items.tables
    if hubness is None:
        return None
    if tables.by_class:
        return hubness.of(store, queries)
    return hubness.of(queries, store, exclude_self=tables.classes is not None)


def hits_of(
    vectors: Vectors, items: EvaluationSet, test: np.ndarray, depth: int, correction: HubnessCorrection | None = None
) -> Hits:
    """Return for each test row of the store whether it is assigned to its class, or found by its query."""
    queries, store = vectors
    tables = items.tables
    if tables.by_class:
        assert tables.classes is not None
        codes = np.arange(len(queries))
        return recall(
            store[test], queries, tables.classes[test], codes, min(depth, len(queries) - 1), correction=correction
        )
    same = np.arange(tables.n) if tables.classes is None else tables.classes
    return recall(
        queries[test],
        store,
        same[test],
        same,
        min(depth, tables.n - 1),
        own=test,
        find_own=tables.classes is None,
        correction=correction,
    )


def score(
    vectors: Mapping[str, Vectors],
    items: EvaluationSet,
    test: np.ndarray,
    tasks: Mapping[str, int] | None = None,
    corrections: Mapping[str, HubnessCorrection] | None = None,
) -> dict[str, Hits]:
    """Score test rows of the store (or, by row, their queries), by ``"<task>/<strategy>"``.

    Of one modality without labels an item looks for itself in the other model's vectors, so strategies that use one
    model alone have no score.
    """
    tables = items.tables
    finds_itself = tables.store_modality == tables.query_modality and tables.classes is None
    out = {}
    for strategy, (queries, store) in vectors.items():
        if finds_itself and strategy in ("keep", "re-embed"):
            continue
        if corrections is not None:
            of_hubs: HubnessCorrection | None = corrections[strategy]
        else:
            of_hubs = correction(items, queries, store[test] if tables.by_class else store)
        for task, depth in (items.tasks if tasks is None else tasks).items():
            out[f"{task}/{strategy}"] = hits_of((queries, store), items, test, depth, of_hubs)
    return out


def compare_lists(
    near: np.ndarray, judge: np.ndarray, k: int, role: str, hubness: Hubness | None = None
) -> dict[str, Hits]:
    """Compare each query's k nearest rows of a store (m, n) with those of the re-embedded store (m, n), the judge.

    ``"overlap"`` is the share of the results that are among the k nearest of the re-embedded store;
    ``"graded_overlap"`` gives others partial credit, from 0 for a random row to 1 for the last of these k, by their
    target similarity. Exact ties count as found. The pull of row j is what removing it from both stores adds to the
    scores of all queries: the next row moves up in every list that contained it.
    """
    m, n = near.shape
    own = np.arange(m)
    leave_out_own, paired = role == "items", role in ("items", "captions")
    near, judge = (ranked(table, leave_out_own, hubness) for table in (near, judge))
    mean = judge.mean(axis=1, where=judge > -np.inf)
    found, right = (top_k(table, k + 1) for table in (near, judge))
    worth, best = (np.take_along_axis(judge, rows, axis=1) for rows in (found, right))

    def graded(worth: np.ndarray, last: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        hit = worth >= last[:, None]
        scale = np.maximum(last - mean, 1e-12)[:, None]
        return hit.mean(axis=1), np.where(hit, 1.0, np.minimum((worth - mean[:, None]) / scale, 1.0)).mean(axis=1)

    scores = graded(worth[:, :k], best[:, k - 1])
    pulls = np.zeros((2, n))
    place = np.arange(k)
    for at in range(k):
        gone = found[:, at]
        kept = np.take_along_axis(worth, np.where(place < at, place, place + 1)[None].repeat(m, 0), axis=1)
        listed = (right[:, :k] == gone[:, None]).any(axis=1)
        after = graded(kept, np.where(listed, best[:, k], best[:, k - 1]))
        # A row that is in the right list alone: the list under test stays, unless the row is the next in line.
        missed = right[:, at]
        alone = ~(found[:, :k] == missed[:, None]).any(axis=1)
        easier = graded(worth[:, :k], best[:, k])
        for which in (0, 1):
            for row, change, here in (
                (gone, after[which] - scores[which], slice(None)),
                (missed, easier[which] - scores[which], alone),
            ):
                if paired:
                    change = np.where(row == own, 0.0, change)
                np.add.at(pulls[which], row[here], change[here])
    return {name: Hits(scores[i], pulls[i]) for i, name in enumerate(("overlap", "graded_overlap"))}


def ranked(table: np.ndarray, leave_out_own: bool, hubness: Hubness | None) -> np.ndarray:
    """Return the values by which lists are ranked, in float64: −inf for an excluded item, corrected for hubs."""
    table = table.astype(np.float64)
    if leave_out_own:
        np.fill_diagonal(table, -np.inf)
    return table if hubness is None else hubness.of_matrix(table).correct(table)


def list_hits(
    search: ListSearch, near: np.ndarray, judge: np.ndarray, k: int, hubness: Hubness | None = None
) -> dict[str, Hits]:
    """Compare the lists of a search by measure, such as ``"overlap@10"`` or ``"graded_text_overlap@10"``."""
    found = compare_lists(near, judge, k, search.role, hubness)
    return {f"{name.replace('overlap', search.name)}@{k}": hits for name, hits in found.items()}


def influence_of(hits: Hits, search: ListSearch) -> np.ndarray:
    """Return the pseudo-value of each query, which includes the uncertainty due to the rows it may find."""
    if search.paired or hits.pull is None:
        return hits.influence
    # Queries and rows are two samples: scale the queries' deviations so that their variance includes that of the rows.
    m, n = len(hits.score), len(hits.pull)
    of_queries = float(np.var(hits.score, ddof=1)) / m if m > 1 else 0.0
    of_rows = float(np.var(PULL * hits.pull, ddof=1)) * n / m**2
    scale = np.sqrt(1 + of_rows / of_queries) if of_queries > 0 else 1.0
    return np.asarray(hits.score.mean() + scale * (hits.score - hits.score.mean()))


def overlap_of(model: TwoWay, items: EvaluationSet, measure: str, rows: np.ndarray) -> float:
    """Return one measure of mapped stored vectors, with some rows as items and store; NaN if they are too few."""
    k = items.list_length(len(rows))
    if k <= 0:
        return float("nan")
    search = items.search_of(measure)
    near, judge = (similarities(strategy, model, items, search, rows) for strategy in ("stored", "re-embed"))
    hits = list_hits(search, near, judge, k, items.ranking.hubness)
    return float(hits[f"{measure.split('@')[0]}@{k}"].score.mean())


def with_texts(model: TwoWay, items: EvaluationSet) -> TwoWay:
    """Return the map with the means of texts that are not anchors."""
    for search in items.searches:
        if search.role == "apart" and search.source is not None:
            model = model.recentered(search.source, search.target, search.modality)
    return model


def measure_controls(model: TwoWay, rotation: OrthogonalMap, items: EvaluationSet) -> dict[str, dict[str, float]]:
    """Return the scores of chance, of a constant and of a random rotation about the correct means, by measure."""
    tables, rows, ranking = items.tables, items.compared, items.ranking
    k = items.list_length(len(rows))
    out: dict[str, dict[str, float]] = {}
    for search in items.searches if k > 0 else ():
        own = search.role == "items"
        there = rotation.for_modality(tables.store_modality)
        d_source, d_target = rotation.rotation_.shape
        turn = random_rotation(d_source, d_target, random_state=items.random_state)
        store = (tables.source[tables.store_modality][rows] - there.source_mean_) @ turn + there.target_mean_
        judge = similarities("re-embed", model, items, search)
        near = ComparedSide(search.target).unit(ranking, search.queries_of(rows)) @ rows_to_rank(store, ranking).T
        chance = k / (len(rows) - own), _graded_chance(ranked(judge, own, ranking.hubness), k, own)
        found = list_hits(search, near, judge, k, ranking.hubness)
        for (measure, hits), by_chance in zip(found.items(), chance, strict=True):
            out[measure] = {"chance": float(by_chance), "random_rotation": float(hits.score.mean())}
    for name, target in tables.target.items():
        known = cosine_controls(model.to_target(name), tables.source[name], target, random_state=items.random_state)
        out[f"cosine/{name}"] = {key: value for key, value in asdict(known).items() if value is not None}
    return out


def _graded_chance(judge: np.ndarray, k: int, own: bool) -> float:
    """Return the expected graded overlap of a list of random rows."""
    n = judge.shape[1]
    mean = judge.mean(axis=1, where=judge > -np.inf)
    last = np.partition(judge, -k, axis=1)[:, -k]
    worth = np.minimum((judge - mean[:, None]) / np.maximum(last - mean, 1e-12)[:, None], 1.0)
    if own:
        np.fill_diagonal(worth, 0.0)
    return float(worth.sum() / (n - own) / len(judge))
