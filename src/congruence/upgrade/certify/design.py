"""What is measured: paired rows of both models, the items that are fitted on and scored, and how these are searched."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from typing import Any, cast

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from congruence._utils.ids import as_ids, id_rows, id_texts, is_in, text_keys
from congruence._utils.typing import Ids, RowsLike
from congruence._utils.validation import check_choice, check_seed, name_rows
from congruence.embeddings import UNNAMED, Embeddings, Pairs, as_embeddings, as_pair, by_modality, normalize_rows
from congruence.errors import (
    IdError,
    InputError,
    ModalityError,
    ParameterError,
    TooFewAnchorsError,
)
from congruence.metrics import Hubness, nearest
from congruence.splits import Split
from congruence.upgrade.choose import in_span

_FEWEST_QUERIES = 3  # fewest held-out items whose scores have a variance, and that search other items than themselves

FEWEST = 10  # fewest anchors that a certificate is made of

QUERY_FOLDS = 4  # parts of texts that search: each is scored by maps whose means have not seen it


@dataclass(frozen=True)
class PairedTables:
    """Vectors of the items of one collection in two models."""

    ids: dict[str, np.ndarray]  # of each modality's rows; without labels the same for both
    source: dict[str, np.ndarray]  # rows by modality
    target: dict[str, np.ndarray]  # a modality may be missing here
    store_modality: str
    query_modality: str  # the same as the store's if there is only one
    classes: np.ndarray | None  # (n,): row of the other modality, or any code
    dropped: tuple[int, int]  # rows without a partner, of all rows

    @property
    def n(self) -> int:
        """Number of rows in the store."""
        return len(self.source[self.store_modality])

    @property
    def by_class(self) -> bool:
        """Whether stored rows are assigned to classes described by rows of the other modality."""
        return self.classes is not None and self.store_modality != self.query_modality

    def take(self, rows: np.ndarray) -> PairedTables:
        """Return some items: of both modalities, unless the other one describes classes."""
        names = [self.store_modality] if self.by_class else list(self.source)
        ids, source, target = (
            {name: table[rows] if name in names else table for name, table in side.items()}
            for side in (self.ids, self.source, self.target)
        )
        classes = None if self.classes is None else self.classes[rows]
        return replace(self, ids=ids, source=source, target=target, classes=classes)


Sides = tuple[dict[str, Embeddings], dict[str, Embeddings]]


def make_tables(
    source: Mapping[str, Embeddings],
    target: Mapping[str, Embeddings],
    labels: Mapping[str, str] | None,
    *,
    what: str = "anchors",
) -> PairedTables:
    """Pair rows by id, across models and, without labels, across modalities."""
    _check_sides(source, target, what)
    stored = stored_modality(source)
    query = next((name for name in (*source, *target) if name != stored), stored)
    ids: dict[str, np.ndarray] = {}
    left: dict[str, np.ndarray] = {}
    right: dict[str, np.ndarray] = {}
    for modality in dict.fromkeys((*source, *target)):
        for side, out in ((source, left), (target, right)):
            if modality in side:
                ids[modality], out[modality] = id_texts(side[modality].ids), _widened(side[modality].vectors)
        if modality in source and modality in target:
            pairs = Pairs.join(source[modality], target[modality])
            ids[modality], left[modality], right[modality] = id_texts(pairs.ids), *map(_widened, pairs)
    classes = None
    if labels is not None:
        classes = _classes(text_keys(labels), ids, stored, query)
    elif stored != query:
        place = id_rows(ids[query], ids[stored])
        rows_of = {stored: np.flatnonzero(place >= 0), query: place[place >= 0]}
        if not len(rows_of[stored]):
            raise IdError(
                f"{stored} and {query} rows have no common id.",
                f"Pass the same items, or `labels=…` that say which {query} describes each {stored}.",
            )
        for table in (ids, left, right):
            table |= {modality: table[modality][rows] for modality, rows in rows_of.items() if modality in table}
    by_class = classes is not None and stored != query
    both = [name for name in right if name in left and (not by_class or name != query or stored not in right)]
    fewest = min(len(right[name]) for name in both)
    if what == "anchors" and fewest < FEWEST:
        raise TooFewAnchorsError(
            f"Too few: both models have {fewest} pairs, and a certificate needs {FEWEST}.",
            "Encode more items with both models.",
        )
    given, kept = (sum(map(len, (*old.values(), *new.values()))) for old, new in ((source, target), (left, right)))
    return PairedTables(ids, left, right, stored, query, classes, (given - kept, given))


def _widened(rows: np.ndarray) -> np.ndarray:
    """Return half precision converted to single precision, which processors multiply hundreds of times faster."""
    return rows.astype(np.float32) if rows.dtype == np.float16 else rows


def _check_sides(source: Mapping[str, Embeddings], target: Mapping[str, Embeddings], what: str) -> None:
    """Refuse modalities that do not match."""
    if not set(source) & set(target):
        raise InputError(
            f"Got {what} of {', '.join(source) or 'no modality'} in the old model and "
            f"{', '.join(target) or 'none'} in the new one.",
            "Pass the same items encoded by both models.",
        )
    if len({*source, *target}) > 2:
        raise ModalityError(
            f"Got {what} of {', '.join(dict.fromkeys((*source, *target)))}; expected those that are stored and those "
            "that search.",
            "Remove the other modalities.",
        )
    for side in (source, target):
        for modality, items in side.items():
            if items.space.modality not in (None, modality):
                raise ModalityError(
                    f"Got {items.space.modality} vectors as {modality}.", f"Pass them as {items.space.modality}."
                )


def _classes(labels: Mapping[str, str], ids: Mapping[str, np.ndarray], stored: str, query: str) -> np.ndarray:
    """Return the class of each stored row: a row of the other modality, or any code if there is none."""
    missing = [i for i in ids[stored] if i not in labels]
    if missing:
        raise IdError(
            f"{len(missing)} of {len(ids[stored])} items have no label (first {name_rows(np.arange(1), missing)}).",
            "Add these ids to `labels=…`, or drop the items.",
        )
    of_item = id_texts([str(labels[i]) for i in ids[stored]])
    if stored == query:
        codes = np.unique(of_item, return_inverse=True)[1]
        if len(codes) > 1 and np.bincount(codes).max() < 2:
            raise ParameterError("No two items have the same label, so none can find another.", "Leave out `labels=…`.")
        return np.asarray(codes)
    rows = id_rows(ids[query], of_item)
    if (rows < 0).any():
        raise IdError(
            f"No {query} has the id of these labels: {', '.join(map(repr, sorted(set(of_item[rows < 0]))[:5]))}.",
            f"Name classes in `labels=…` as the {query} rows' ids do.",
        )
    return rows


#: Largest number of stored rows that search each other: every one of them is compared with all others.
MOST_COMPARED = 2000

MOST_ASSIGNED = 10_000_000  # largest number of similarities of classes and rows

_MOST_TEXTS = 2000  # largest number of text queries that are used


@dataclass(frozen=True, eq=False)
class Search:
    """Queries in both models that search stored rows."""

    name: str  # prefix of the measures of its lists: "overlap" or "text_overlap"
    modality: str
    source: np.ndarray | None  # (m, d_source), if available
    target: np.ndarray  # (m, d_target)
    role: str  # "items" (not in their own lists), "captions", "classes", or "apart": texts of other items
    rows: np.ndarray  # numbers of the stored rows that are searched

    @property
    def paired(self) -> bool:
        """Whether query i and stored row i are the same item, so that both leave a sample together."""
        return self.role in ("items", "captions")

    @property
    def queries(self) -> np.ndarray:
        """The numbers of the queries: those of the rows that are searched, if they are the same items."""
        return self.rows if self.paired else np.arange(len(self.target))

    @property
    def strategies(self) -> tuple[str, ...]:
        """Strategies that the available queries allow, without re-embedding."""
        return ("leave", "stored") if self.source is None else ("keep", "leave", "stored", "queries")


@dataclass(frozen=True, eq=False)
class EvaluationSet:
    """Items with vectors in both models, and how they are scored."""

    tables: PairedTables
    #: Of other items, (m, d_source) if available, and (m, d_target).
    texts: tuple[np.ndarray | None, np.ndarray] | None = None
    groups: np.ndarray | None = None  # (n,): rows whose errors depend on each other
    n_neighbors: int = 10  # length of the lists that are compared
    hubness: Hubness | None = None  # correction in the search of all strategies
    #: The stored rows that are compared with each other, and those that are assigned to classes; by default all.
    samples: tuple[np.ndarray, np.ndarray] | None = None
    relevant: np.ndarray | None = None  # (m, n): which stored rows each of the texts should find, if that was judged
    #: (m,), of descriptions of classes or texts of other items: the fold whose means have not seen each, −1 if none of
    #: the means have; None if they count as seen.
    query_fold: np.ndarray | None = None
    names: np.ndarray | None = None  # (m,), of texts of other items
    seen: bool = False  # whether the map and the plan may know the queries, as they know a fixed list of classes

    @cached_property
    def tasks(self) -> dict[str, int]:
        """The hits that can be measured, the decisive one first, with the number of results that each considers."""
        if self.tables.by_class:
            return {"zero_shot": 1, "zero_shot@5": 5, "recall@1": 1, "recall@10": 10}
        if self.tables.store_modality != self.tables.query_modality or self.relevant is not None:
            return {"recall@1": 1, "recall@10": 10}
        return {"own@1": 1} if self.tables.classes is None else {"same_class@1": 1}

    @property
    def finds_itself(self) -> bool:
        """Whether an item can only look for itself: one modality without labels."""
        return "own@1" in self.tasks

    @property
    def judged(self) -> bool:
        """Whether the store can be re-embedded, so that result lists can be compared with its lists."""
        return self.tables.store_modality in self.tables.target

    @property
    def same_width(self) -> bool:
        """Whether the new model's queries can search the old model's vectors as they are."""
        stored, query = self.tables.source[self.tables.store_modality], self.tables.target[self.tables.query_modality]
        return stored.shape[1] == query.shape[1]

    @cached_property
    def searches(self) -> list[Search]:
        """Everything that searches the store; an item searches only a store that can be re-embedded."""
        source, target = self.tables.source, self.tables.target
        stored, query = self.tables.store_modality, self.tables.query_modality
        found = []
        if self.judged:
            found = [Search("overlap", stored, source[stored], target[stored], "items", self.compared)]
        if query != stored:
            role, rows = ("classes", self.assigned) if self.tables.by_class else ("captions", self.compared)
            found.append(Search("text_overlap", query, source.get(query), target[query], role, rows))
        elif self.texts is not None:
            ours, theirs = self.texts
            assert theirs is not None
            found.append(Search("text_overlap", "text", ours, theirs, "apart", self.compared))
        return found

    @cached_property
    def task(self) -> str:
        """The measure that determines the verdict: without captions and labels, the overlap of result lists."""
        k = self.list_length(len(self.compared))
        return f"graded_{self.searches[-1].name}@{k}" if self.finds_itself else next(iter(self.tasks))

    @property
    def curved(self) -> tuple[str, str]:
        """The scores whose learning curves are measured: the mapped store's, and a cosine, of the store if it can be
        re-embedded.
        """
        modality = self.tables.store_modality if self.judged else self.tables.query_modality
        return f"{self.task}/stored", f"cosine/{modality}"

    @property
    def compared(self) -> np.ndarray:
        """The stored rows that are compared with each other."""
        return np.arange(self.tables.n) if self.samples is None else self.samples[0]

    @property
    def assigned(self) -> np.ndarray:
        """The stored rows that are assigned to classes."""
        return np.arange(self.tables.n) if self.samples is None else self.samples[1]

    def list_length(self, n: int) -> int:
        """Return how many results are compared in a store of n rows: longer lists would have most of a small store."""
        return max(1, min(self.n_neighbors, (n - 1) // 4))

    def groups_of(self, fitted: Sequence[str]) -> np.ndarray | None:
        """Return the groups of the rows of the fitted modalities; descriptions of classes have none."""
        return None if self.tables.by_class and self.tables.store_modality not in fitted else self.groups

    def take(self, rows: np.ndarray) -> EvaluationSet:
        """Return some of the stored items."""
        groups = None if self.groups is None else self.groups[rows]
        relevant = None if self.relevant is None else self.relevant[:, rows]
        return replace(self, tables=self.tables.take(rows), groups=groups, relevant=relevant, samples=None)

    def in_span(self, others: Others | None) -> tuple[EvaluationSet, Others | None]:
        """Return the items, and texts whose means a map knows, with the rows of a model in coordinates of their span;
        products of rows of different models are lost.
        """
        moved: list[Any] = []
        means = (None, None) if others is None else (others.source, others.target)
        for side, *more in zip(
            (self.tables.source, self.tables.target), self.texts or (None, None), means, strict=True
        ):
            span = iter(in_span(*side.values(), *(rows for rows in more if rows is not None)))
            moved.append(
                [{name: next(span) for name in side}, *(None if rows is None else next(span) for rows in more)]
            )
        (old, *old_rows), (new, *new_rows) = moved
        texts = None if self.texts is None else (old_rows[0], new_rows[0])
        items = replace(self, tables=replace(self.tables, source=old, target=new), texts=texts)
        return items, None if others is None else replace(others, source=old_rows[1], target=new_rows[1])


def draw_samples(tables: PairedTables, random_state: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the stored rows to compare with each other, and those to assign to classes: all, or random ones."""
    n, names = tables.n, len(tables.ids[tables.query_modality])

    def draw(most: int) -> np.ndarray:
        return np.sort(np.random.default_rng(random_state).choice(n, min(n, most), replace=False))

    return draw(MOST_COMPARED), draw(max(MOST_COMPARED, MOST_ASSIGNED // names))


_SCALE = 10  # the neighbor whose distance sets the scale: groups up to this size are found

#: Near-duplicates are nearer than the first share of that distance, as the first of ten neighbors is not in four
#: dimensions or more (10^(−1/4) = .56); and than the second share of it where rows are dense, its 5 % quantile, since
#: members of a small, tight cluster are far from all other rows as well.
_NEAR, _DENSE, _QUANTILE = 0.5, 0.7, 0.05

#: Rows whose tenth neighbor is nearer than this share of the median are copies of one row, and no measure of density.
_COPIES = 0.1

_LARGEST = 0.25  # A group larger than this share of the rows says that the scale is wrong, not that the rows are copies


def near_duplicates(tables: PairedTables) -> np.ndarray:
    """Return the group of each stored row, (n,), of near-duplicates in either model."""
    n, stored = tables.n, tables.store_modality
    k, own = min(_SCALE, n - 2), np.arange(n)
    links = []
    for side in (tables.source, tables.target):
        if stored in side and k >= 2:
            rows = normalize_rows(side[stored])
            near = nearest(rows, k, rows, left_out=own)
            apart = np.stack([np.linalg.norm(rows[column] - rows, axis=1) for column in near.T], axis=1)
            tenth = apart[:, -1]
            dense = np.quantile(tenth[tenth >= _COPIES * np.median(tenth)], _QUANTILE)
            who, place = np.nonzero(apart < np.minimum(_NEAR * tenth, _DENSE * dense)[:, None])
            links.append((who, near[who, place]))
    if not links:
        return own
    a, b = (np.concatenate(ends) for ends in zip(*links, strict=True))
    group = connected_components(coo_array((np.ones(len(a)), (a, b)), shape=(n, n)), directed=False)[1]
    return own if np.bincount(group).max() > max(_LARGEST * n, 4) else group


def deal(groups: np.ndarray, parts: int, rng: np.random.Generator) -> np.ndarray:
    """Split items into parts of nearly equal size, without splitting a group; return the part of each, (n,)."""
    names, group, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    shuffled = rng.permutation(len(names))
    load, part = np.zeros(parts, dtype=int), np.empty(len(names), dtype=int)
    # The largest first, so that the small ones even out.
    for one in shuffled[np.argsort(-sizes[shuffled], kind="stable")]:
        part[one] = load.argmin()
        load[part[one]] += sizes[one]
    return part[group]


def split_anchors(
    source: RowsLike | Mapping[str, RowsLike],
    target: RowsLike | Mapping[str, RowsLike],
    anchors: int | Ids,
    *,
    by_class: bool = False,
    random_state: int = 0,
    name: str = "anchors=",
) -> tuple[Sides, Sides]:
    """Split the items that both models have, paired by id, into anchors and held-out queries.

    Returns source and target of the anchors, and those of the queries.

    Parameters
    ----------
    source, target : Embeddings or array_like, or mapping of str to those
        As for ``congruence.certify``.
    anchors : int or sequence of str or int
        Number of items to choose at random, or the ids of those to use, e.g. from
        ``congruence.upgrade.anchors.choose_anchors``. The others are the queries.
    by_class : bool, default=False
        The second modality describes classes, and belongs to both parts, as texts that share no id with the images do.
    name : str, default="anchors="
        Name of the anchors in error messages.
    """
    check_seed(random_state)
    source, target = by_modality(source, target)
    apart = by_class or _are_apart(source)
    stored = stored_modality(source)
    sides, names = (dict(source), dict(target)), {}
    for kind in [stored] if apart and stored in source else source:
        if kind in target:
            pairs = Pairs.join(source[kind], target[kind])
            sides[0][kind], sides[1][kind] = pairs.source, pairs.target
        names[kind] = id_texts(sides[0][kind].ids)
    common = names.get(stored, np.empty(0, dtype=object))
    for other in names.values():
        common = common[is_in(common, other)]
    if len(common) < 2:
        raise ParameterError(
            f"Both models have {len(common)} items; two are needed.", "Pass the same items on both sides."
        )
    if not isinstance(anchors, (int, np.integer)):
        listed = is_in(common, id_texts(as_ids(anchors, name="anchors")))
        if not listed.any():
            raise IdError(
                f"None of {len(anchors)} anchors is among the {len(common)} common items (first {common[0]!r}).",
                f"Pass {name}… with ids of these items.",
            )
        if listed.all():
            raise ParameterError(
                f"Got {name}… with all {len(common)} common items, and none left to score.",
                f"Encode some at random, or leave out {name}… to score the pairs among each other.",
            )
        heldout = common[~listed]
    elif not 0 < anchors < len(common):
        raise ParameterError(
            f"Got {name}{anchors} of {len(common)} common items; expected at least 1, and some left to score.",
            f"Pass {name}{len(common) // 2}, for example.",
        )
    else:
        heldout = common[Split.choose(common, len(common) - int(anchors), random_state).held_out(common)]

    def part(ids: np.ndarray) -> Sides:
        take = {kind: is_in(own, ids) for kind, own in names.items()}
        old, new = ({k: rows.take(take[k]) if k in take else rows for k, rows in side.items()} for side in sides)
        return old, new

    return part(common[~is_in(common, heldout)]), part(heldout)


def split_texts(
    source: Mapping[str, Embeddings], target: Mapping[str, Embeddings]
) -> tuple[Mapping[str, Embeddings], Mapping[str, Embeddings], tuple[Embeddings | None, Embeddings] | None]:
    """Separate texts that describe none of the stored items from the anchors; they can still be used as queries."""
    stored = stored_modality(target)
    if stored == "text" or "text" not in target or stored not in source or not _are_apart({**target, **source}):
        return source, target, None
    return {stored: source[stored]}, {stored: target[stored]}, (source.get("text"), target["text"])


def stored_modality(sides: Iterable[str]) -> str:
    """Return the modality that is stored rather than searched with: images, or else the first other than texts."""
    return min(sides, key=lambda name: (name != "image", name == "text"), default="image")


def _are_apart(side: Mapping[str, Embeddings]) -> bool:
    """Return whether stored items and texts cannot be paired: no common id, or no ids and different lengths."""
    if len(side) < 2 or "text" not in side:
        return False
    images, texts = side[stored_modality(side)], side["text"]
    if not images.has_ids and not texts.has_ids:
        return len(images) != len(texts)
    return not is_in(texts.ids, images.ids).any()


@dataclass(frozen=True)
class Design:
    """What the given data allow to measure: the anchors, the items that are scored, and the modalities to fit on."""

    anchors: PairedTables
    items: EvaluationSet  # those held out, or else the anchors
    fitted: list[str]
    others: Others | None = None  # texts whose means the map knows beside those of the anchors

    @classmethod
    def of(
        cls,
        source: Mapping[str, Embeddings],
        target: Mapping[str, Embeddings],
        queries: tuple[Mapping[str, Embeddings], Mapping[str, Embeddings]] | None,
        text_queries: tuple[RowsLike | None, RowsLike] | None,
        labels: Mapping[str, str] | None,
        qrels: Mapping[str, Mapping[str, float]] | None,
        fitted: str | None,
        method: str,
        n_neighbors: int,
        hubness: Hubness | None,
        random_state: int,
        *,
        seen: bool = False,
    ) -> Design:
        """Pair the rows, and determine what can be measured."""
        if labels is None and text_queries is None:
            source, target, text_queries = split_texts(source, target)
            if queries is not None and text_queries is not None:
                queries = split_texts(*queries)[:2]
        anchors = scored = make_tables(source, target, labels)
        if queries is not None:
            scored = make_tables(*queries, labels, what="queries")
            _check_queries(anchors, scored)
        if scored.query_modality not in scored.target:
            raise InputError(
                f"The new model has no {scored.query_modality} rows to search by.", "Encode some for `target=…`."
            )
        if qrels is not None and text_queries is None:
            raise InputError("Got relevance judgments without queries.", "Pass `text_queries=…` with the judged ids.")
        copies = near_duplicates(scored)
        groups = copies if len(np.unique(copies)) < len(copies) else None
        texts, relevant, names = (None,) * 3
        if text_queries is not None:
            *texts, names = _join_texts(text_queries, anchors)
            kept = np.arange(len(names))
            if qrels is not None:
                relevant = _relevant(text_keys(qrels), names, scored.ids[scored.store_modality])
                kept = np.flatnonzero(relevant.any(axis=1))
                relevant = relevant[kept[:_MOST_TEXTS]]
            kept = kept[:_MOST_TEXTS]
            texts, names = [None if side is None else side[kept] for side in texts], names[kept]
            if len(names) < _FEWEST_QUERIES:
                raise InputError(
                    f"Too few: got {len(names)} text queries{'' if qrels is None else ' with a relevant item'}, and "
                    f"{_FEWEST_QUERIES} are needed.",
                    "Pass more.",
                )
        own = _choose_fitted(anchors, fitted, together=method != "linear")
        others = _others(anchors, own, texts, names, random_state)
        fold = None
        if others is not None and not seen:
            fold = others.fold
            if scored is not anchors and texts is None:
                place = id_rows(others.ids, scored.ids[scored.query_modality])
                fold = np.where(place < 0, -1, others.fold[place])
        pair = None if texts is None else (texts[0], cast("np.ndarray", texts[1]))
        items = EvaluationSet(
            scored,
            pair,
            groups,
            n_neighbors,
            hubness,
            draw_samples(scored, random_state),
            relevant=relevant,
            query_fold=fold,
            names=names,
            seen=seen,
        )
        return cls(anchors, items, own, others)

    @property
    def heldout(self) -> bool:
        """Whether the items that are scored are not the anchors."""
        return self.items.tables is not self.anchors

    @property
    def n_anchors(self) -> int:
        """Number of rows of a fitted modality."""
        return len(self.anchors.ids[self.fitted[0]])

    def measured(self) -> dict[str, str]:
        """Return in words on which rows and queries everything is measured, and a digest of the ids of these rows."""
        items, search = self.items, self.items.searches[-1]
        stored, modality, count = items.tables.store_modality, search.modality, len(search.queries)
        how = "held out" if self.heldout else "the pairs, each by maps that were not fitted on it"
        ids = "\n".join(sorted(items.tables.ids[stored][search.rows].tolist()))
        return {
            "rows": f"{len(search.rows):,} {'' if stored == UNNAMED else f'{stored} '}rows, {how}",
            "queries": {
                "items": "the rows themselves",
                "captions": f"{modality} rows of the same items",
                "classes": f"{count:,} {modality} rows, one a class",
                "apart": f"{count:,} {modality} rows of other items",
            }[search.role],
            "queries_are": "seen" if items.seen and search.role in ("classes", "apart") else "unseen",
            "digest": sha256(ids.encode()).hexdigest(),
        }

    def notes(self) -> list[str]:
        """Return notes a reader needs to interpret the numbers."""
        scored, groups = self.items.tables, self.items.groups
        notes = []
        lost, given = self.anchors.dropped
        if lost:
            notes.append(f"{lost:,} of {given:,} rows had no partner with the same id and were left out.")
        classes = f"{len(scored.ids[scored.query_modality])} classes"
        gallery = classes if scored.by_class else f"{len(self.items.compared)} items"
        notes.append(f"Scores are over a gallery of {gallery}; in a larger one all strategies score lower.")
        if groups is not None:
            sizes = np.unique(groups, return_counts=True)[1]
            notes.append(
                f"{sizes[sizes > 1].sum():,} items have near-duplicates ({(sizes > 1).sum():,} groups): each group "
                "is scored together, by maps that were not fitted on any of its items, and counts once in the "
                "intervals."
            )
        if not self.heldout:
            notes.append(
                "Pairs are scored among each other, each by a map fitted without it. This is right for pairs "
                "drawn at random. Pairs chosen by congruence lab anchors differ from each other more than other "
                "items do, so their scores can be too high: score other items, drawn at random."
            )
        if not self.items.judged:
            notes.append(
                f"The new model has no {scored.store_modality} rows, so the score after re-embedding is unknown."
            )
        if "keep" not in self.items.searches[-1].strategies:
            notes.append(
                "The queries of the old model are not given, so it is unknown how well it finds items, and whether the "
                "queries could be mapped."
            )
        if self.items.seen:
            notes.append("The scores are those of seen queries: the map and the plan know them. New ones score lower.")
        if self.items.finds_itself:
            notes.append(
                "There are neither captions nor labels, so it is unknown whether the new model is better. The "
                "verdict is based on how often a mapped store returns the items that a re-embedded store would "
                f"return{' for text queries' if self.items.texts is not None else ''}, judged by the new model."
            )
        return notes


@dataclass(frozen=True, eq=False)
class Others:
    """Texts that search, and whose means a map that is fitted on other rows knows: descriptions of classes, or texts of
    other items.
    """

    modality: str
    ids: np.ndarray  # (m,)
    source: np.ndarray  # (m, d_source)
    target: np.ndarray  # (m, d_target)
    fold: np.ndarray  # (m,)

    def means(self, left_out: int | None) -> tuple[np.ndarray, np.ndarray]:
        """Return the rows of both models outside of one fold."""
        kept = self.fold != (-1 if left_out is None else left_out)
        return self.source[kept], self.target[kept]


def _others(
    tables: PairedTables,
    fitted: Sequence[str],
    texts: Sequence[np.ndarray | None] | None,
    ids: np.ndarray | None,
    random_state: int,
) -> Others | None:
    """Return the texts whose means the map knows, if both models have them."""
    modality, rows = "text", texts
    if texts is None and tables.by_class and tables.query_modality not in fitted:
        modality, ids = tables.query_modality, tables.ids[tables.query_modality]
        rows = [side.get(modality) for side in (tables.source, tables.target)]
    if modality in fitted or rows is None or rows[0] is None or rows[1] is None or ids is None or len(ids) < 2:
        return None
    folds = min(QUERY_FOLDS, len(ids))
    return Others(
        modality, ids, rows[0], rows[1], np.random.default_rng([random_state, 3]).permutation(len(ids)) % folds
    )


def _relevant(qrels: Mapping[str, Mapping[str, float]], queries: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return which rows are relevant to each query, (m, n)."""
    found = np.zeros((len(queries), len(rows)), bool)
    for k, name in enumerate(queries):
        wanted = [str(row) for row, grade in qrels.get(name, {}).items() if grade > 0]
        place = id_rows(rows, id_texts(wanted))
        found[k, place[place >= 0]] = True
    if not found.any():
        raise IdError(
            f"No judged query has a relevant item among the {len(rows)} that are scored.",
            "Pass judgments by the ids of the queries and of the items.",
        )
    return found


def _check_queries(anchors: PairedTables, queries: PairedTables) -> None:
    """Refuse queries that are too few, of other modalities than the anchors, or anchors themselves."""
    ours, theirs = ((side.store_modality, side.query_modality, set(side.target)) for side in (anchors, queries))
    if ours != theirs:
        raise ModalityError(
            f"Got held-out {' and '.join(queries.source)} (new: {' and '.join(queries.target)}), unlike the pairs.",
            f"Pass `queries=…` of {' and '.join(anchors.source)} (new: {' and '.join(anchors.target)}).",
        )
    names = queries.ids[queries.store_modality]
    same = names[is_in(names, anchors.ids[anchors.store_modality])]
    if len(same):
        raise InputError(
            f"{len(same)} queries are pairs too (first {name_rows(np.arange(1), same)}).", "Remove these pairs."
        )
    known = {row.tobytes() for row in _both(anchors)}
    copies = sum(row.tobytes() in known for row in _both(queries))
    if 2 * copies > queries.n:
        raise InputError(
            f"{copies} of {queries.n} queries have the vectors of pairs in both models.", "Remove these pairs."
        )
    if queries.n < _FEWEST_QUERIES:
        raise InputError(
            f"Got {queries.n} held-out items; expected at least {_FEWEST_QUERIES}.",
            "Pass more, or leave out `queries=…` to score the pairs among each other.",
        )


def _both(tables: PairedTables) -> np.ndarray:
    """Return the stored rows of both models side by side."""
    sides = [side[tables.store_modality] for side in (tables.source, tables.target) if tables.store_modality in side]
    return np.hstack([side.astype(np.float64) for side in sides])


def _join_texts(
    texts: tuple[RowsLike | None, RowsLike], tables: PairedTables
) -> tuple[np.ndarray | None, np.ndarray, np.ndarray]:
    """Pair text queries by row, check that they come from the anchors' two models, and return them with their ids."""
    if tables.store_modality != tables.query_modality or tables.classes is not None:
        raise ModalityError(
            f"Got text queries beside {'labels' if tables.classes is not None else 'captions of the pairs'}.",
            "Remove `text_queries=…`.",
        )
    ours, theirs = texts
    if theirs is None:
        raise InputError("Got text queries without those of the new model.", "Pass `text_queries=(old or None, new)`.")
    first: Embeddings | None = None
    if ours is None:
        second = as_embeddings(theirs, "text_queries[1]")
    else:
        pairs = Pairs.join(*as_pair(ours, theirs, ("text_queries[0]", "text_queries[1]")))
        first, second = pairs.source, pairs.target
    for rows, side, name in ((first, tables.source, "old"), (second, tables.target, "new")):
        if rows is not None and rows.dim != side[tables.store_modality].shape[1]:
            raise InputError(
                f"Text queries have width {rows.dim} in the {name} model.", "Encode them with the same model."
            )
    return None if first is None else first.vectors, second.vectors, id_texts(second.ids)


def _choose_fitted(tables: PairedTables, fitted: str | None, together: bool) -> list[str]:
    """Return the modalities to fit on; without ``fitted`` all if they can be fitted together, else the stored one."""
    names = dict.fromkeys((tables.store_modality, tables.query_modality))
    both = [name for name in names if name in tables.source and name in tables.target]
    if fitted is None:
        return both if together and not tables.by_class else both[:1]
    if fitted == "both":
        if len(both) < 2 or tables.by_class:
            raise ModalityError(
                '`fitted="both"` needs two modalities of items.', f"Pass `fitted=…` with one of {', '.join(both)}."
            )
        return both
    return [check_choice(fitted, both, "fitted")]
