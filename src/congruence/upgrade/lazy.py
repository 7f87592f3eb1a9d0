"""Search a mapped index: encode the first rows of each list with the new model, answer by its scores, and keep them."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NoAnswer
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import pyarrow as pa

from congruence._utils.arrays import blocks, normalize_rows, to_numpy
from congruence._utils.atomic import atomic_path, locked
from congruence._utils.ids import id_rows, id_texts
from congruence._utils.typing import Ids, RowsLike
from congruence._utils.validation import check_choice, check_positive, check_seed, check_width
from congruence.databases import Database, open_database
from congruence.embed import Items, open_items
from congruence.embeddings import Embeddings, as_embeddings, check_space
from congruence.encoders import Encoder
from congruence.errors import (
    FileError,
    IdError,
    LockedError,
    MigrationError,
    ParameterError,
    ShapeError,
    SpaceMismatchError,
)
from congruence.io import read_embeddings
from congruence.maps import HeadsMap, Map
from congruence.upgrade.bridge.search import as_rows
from congruence.upgrade.migrate.encode import Encode, encode_items
from congruence.upgrade.migrate.journal import PROGRESSIVE, Journal, default_folder, hashes, make_folder
from congruence.upgrade.migrate.migration import Migration, of_modality
from congruence.upgrade.migrate.native import EncodedRows, plan_folder
from congruence.upgrade.migrate.stages import reembed
from congruence.upgrade.progressive import Progressive
from congruence.upgrade.progressive.refit import FEWEST_CHOOSING, Correction, Known, Refit
from congruence.upgrade.progressive.state import STATE
from congruence.upgrade.ranked import POOL, ROUND, RankedList

NEAR = 50  # re-embedded rows that correct the scores of a query's mapped ones
GROUP = 32  # queries whose rounds go together, so that the encoder gets larger batches
QUEUE = 64  # groups of queries that wait in the background; further ones are answered and not looked at again
GROWTH, LEAST = 1.5, 100  # growth of the re-embedded rows, from the least number of them, at which the map is refitted
FITTED = 20_000  # most re-embedded rows of a database on which it is refitted
CHECKED, SAME, CHANCE = 20, 0.95, 4  # rows by which encode is checked; least cosine; own rows found by chance
LAGS, SURE = 20, 4  # rows by which an encoder may be off that are looked at, and standard errors that tell
SAMPLE = 200  # rows of a database from which those to check an encoder by are drawn
BUSY = 60  # seconds that a write waits while another process is at work on the migration
LAST = 200  # queries over which the agreement is estimated


class Hits(NamedTuple):
    """Result of a search, nearest first; without the axis of queries for one query."""

    ids: np.ndarray  # (m, k), row numbers if the index has no ids; for rows not found −1, or None (texts, unsigned)
    scores: np.ndarray  # (m, k), cosines with the queries; estimated for rows that are not re-embedded
    reembedded: np.ndarray  # (m, k), whether the score is by the new model's own vector


class LazySearch:
    """Search an old index with the new model's queries, and re-embed the rows that they ask for.

    The mapped rows nearest to a query are encoded with the new model, ten at a time; what each ten teach about the
    map's errors nearby corrects the order of the others. The answer is by the new model's own scores, and the vectors
    are kept for later queries.

    Parameters
    ----------
    index : array_like or Embeddings, shape (n, d_old), path, Database or Migration
        The old model's rows: an array (ids are row numbers), a saved file, or a database. The rows of a database with
        a migration are searched by the database itself, and kept in the migration's journal; ``write`` stores them.
    mapping : Map
        From the old model to the new one; None for a migration, which has it.
    encode : callable or Encoder
        Function from ids to the new model's vectors, (m, d_new), with None or a row of NaN for what cannot be encoded:
        from row numbers, (m,), of an index without ids, else from a list of ids as texts. Or an encoder of ``items``.
    budget : int, default=50
        Largest number of rows encoded for one query: its first ones that are not known yet.
    mode : {"wait", "background"}, default="wait"
        "wait": the answer has re-embedded rows only, as far as the budget allows. "background": answer at once by what
        is known, encode meanwhile, and answer better the next time; ``join`` waits for it.
    items : Items, path or sequence, optional
        For an encoder: texts, or paths of images, by row; or what ``congruence.embed.open_items`` opens, by id.
    journal : path, optional
        Folder of the migration's journal, by default the database's own; of arrays and files, a folder that keeps what
        is encoded, for later searches and other processes.
    known : tuple of ids and array_like, shape (m, d_new), optional
        Rows that are re-embedded already, such as the map's pairs; ``encode`` is compared with them.
    rate, limit : float and int, optional
        Largest number of encodings a second, and of all.
    timeout : float, optional
        Seconds after which a search answers by what is known; vectors that come later are kept.
    check : bool, default=True
        Before others, encode 20 rows, known ones if there are any, to refuse vectors of another model or order.
    refit : bool, default=True
        Fit the map again, and map the other rows of an array again, whenever the re-embedded ones have grown by half.
        In a database only the order of the rows that a query looks at follows, until ``write(remap=True)``, or
        ``congruence migrate URL reembed --remap``, maps them again.

    Notes
    -----
    The correction is the posterior mean of a Gaussian process over old rows with kernel exp((cos − 1) / .15), from what
    the new model's scores of this query differ by from the map's. ``counts_`` has the rows that were ``encoded``, that
    ``failed`` (they stay mapped) or were deleted meanwhile (``skipped``), searches without an answer of the encoder
    (``late``), ``errors`` of it (the last is ``error_``), and queries ``left`` out of a full queue. ``agreement_``
    estimates the agreement with the new model's lists, by the last queries: the overlap of what was known with what the
    encodings then showed.

    Examples
    --------
    >>> from congruence import LazySearch, fit
    >>> from congruence.synthetic import rigid_problem
    >>> p = rigid_problem(n=200, d_source=16, random_state=0)
    >>> mapping = fit(p.X[:40], p.Y[:40], check=False)
    >>> search = LazySearch(p.X, mapping, lambda rows: p.Y[rows], budget=20)
    >>> ids, scores, reembedded = search.search(p.Y[7], k=3)
    >>> int(ids[0]), reembedded.tolist()
    (7, [True, True, True])
    >>> search.reembedded_share_ < 0.25
    True
    """

    def __init__(
        self,
        index: RowsLike | Embeddings | str | Path | Database | Migration,
        mapping: Map | None,
        encode: Encode | Callable[[Any], Any] | Encoder,
        budget: int = 50,
        mode: str = "wait",
        *,
        items: Items | str | Path | Sequence[str] | None = None,
        known: tuple[Ids, RowsLike] | None = None,
        modality: str | None = None,
        journal: str | Path | None = None,
        rate: float | None = None,
        limit: int | None = None,
        timeout: float | None = None,
        check: bool = True,
        refit: bool = True,
        random_state: int = 0,
    ) -> None:
        self.budget = check_positive(budget, "budget", integer=True)
        self.mode = check_choice(mode, ("wait", "background"), "mode")
        for name, value in {"rate": rate, "limit": limit, "timeout": timeout}.items():
            if value is not None:
                check_positive(value, name, zero=name == "limit", integer=name == "limit")
        self.rate, self.limit, self.timeout, self.refits = rate, limit, timeout, refit
        self.rows = _open(index, mapping, modality, journal)
        self.encode = _encoder(encode, items)
        self.counts_ = dict.fromkeys(("encoded", "failed", "skipped", "late", "errors", "left"), 0)
        self.error_: Exception | None = None
        self._rng = np.random.default_rng(check_seed(random_state))
        self._tries: dict[Any, int] = {}  # of rows that could not be encoded
        self._asked, self._free, self._checked = 0, 0.0, not check
        self._lock, self._encoding = threading.RLock(), threading.RLock()
        self._workers: ThreadPoolExecutor | None = None
        self._waiting: list[Future[bool]] = []
        self._stopped, self._agreed = threading.Event(), deque[float](maxlen=LAST)
        if known is not None:
            if not isinstance(self.rows, _Array):
                raise ParameterError("Got known rows of a migration, whose journal has them.", "Leave out `known=…`.")
            ids, vectors = known
            self.rows.put(self.rows.find(ids), self._as_vectors(vectors, len(ids)), random=True)
        self._refit_if_grown()

    @property
    def reembedded_share_(self) -> float:
        """The share of the rows that have the new model's own vectors."""
        return self.rows.n_native / max(self.rows.n, 1)

    @property
    def agreement_(self) -> float:
        """The mean overlap of the last queries' lists before and after their encodings; NaN if there are none."""
        return float(np.mean(self._agreed)) if self._agreed else float("nan")

    @property
    def queued_(self) -> int:
        """The number of searches whose rows wait to be encoded in the background."""
        return sum(not one.done() for one in list(self._waiting))

    def __repr__(self) -> str:
        done = f"{self.rows.n_native:,} of {self.rows.n:,} rows re-embedded"
        return f"LazySearch({done}, budget={self.budget}, mode={self.mode!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.close()
        if error is not None and not isinstance(error, Exception) and self.rows.folder and self.counts_["encoded"]:
            error.add_note(f"{self.counts_['encoded']:,} rows were encoded, which are kept.")

    def search(self, queries: RowsLike, k: int = 10) -> Hits:
        """Return the ``k`` nearest rows of the new model's queries, (m, d_new) or (d_new,), as far as they are known.

        Raises ShapeError or SpaceMismatchError if the encoder's vectors are not those of the new model, and in mode
        "background" also for those of earlier searches.
        """
        check_positive(k, "k", integer=True)
        Q, single = self._queries(queries)
        answers = [self._answer(Q[start : start + GROUP], k) for start in range(0, len(Q), GROUP)]
        hits = Hits(*(np.concatenate(side) for side in zip(*answers, strict=True)))
        return Hits(*(side[0] for side in hits)) if single else hits

    def _queries(self, queries: RowsLike) -> tuple[np.ndarray, bool]:
        if isinstance(queries, Embeddings):
            check_space(queries.space, *self.rows.spaces, modality=False)
        rows, single = as_rows(queries)
        Q = as_embeddings(rows, "queries").vectors
        check_width(Q.shape[1], self.rows.dim, "LazySearch", self.rows.dim_old, "Encode queries by the new model")
        return np.asarray(normalize_rows(np.asarray(Q, np.float32))), single

    def _answer(self, Q: np.ndarray, k: int) -> Hits:
        lists = self._near(Q, k)
        # by what is known when the query comes, to be compared with the list in the end
        complete, known = False, [one.keys[one.first(k, False)[0]].tolist() for one in lists]
        if self.mode == "wait":
            complete = self._rounds(lists, known, None if self.timeout is None else time.monotonic() + self.timeout)
        else:
            with self._lock:
                done = [future for future in self._waiting if future.done()]
                self._waiting = [future for future in self._waiting if future not in done]
                for future in done:
                    future.result()  # raises the errors of earlier searches
                if len(self._waiting) < QUEUE:
                    self._waiting.append(self._worker().submit(lambda: self._rounds(self._near(Q, k), known, None)))
                else:
                    self.counts_["left"] += len(Q)
        shape = len(lists), min(k, self.rows.n)
        signed = self.rows.id_type.kind == "i"
        ids = np.full(shape, -1 if signed else None, self.rows.id_type if signed else object)
        hits = Hits(ids, np.full(shape, np.nan), np.zeros(shape, bool))
        for one, *rows in zip(lists, *hits, strict=True):
            places, *found = one.first(shape[1], complete)
            names = one.keys[places] if self.rows.ids is None else self.rows.ids[one.keys[places]]
            for row, values in zip(rows, (names, *found), strict=True):
                row[: len(places)] = values
        return hits

    def _near(self, Q: np.ndarray, k: int) -> list[RankedList]:
        with self._lock:
            lists = self.rows.near(Q, max(POOL, 5 * self.budget, k), max(NEAR, self.budget, k))
            self.counts_["skipped"] = self.rows.skipped
        return lists

    def _rounds(self, lists: list[RankedList], known: list[list[Any]], until: float | None) -> bool:
        """Encode the first rows of each list; return whether none of them was left out for want of an answer."""
        for start in range(0, self.budget, ROUND):
            wanted = [one.ranked(self._tries, self.budget)[1][: min(ROUND, self.budget - start)] for one in lists]
            if not sum(map(len, wanted)):
                break
            if not self._learn(np.concatenate(wanted), lists, until):
                return False
        for one, before in zip(lists, known, strict=True):
            after = one.keys[one.first(len(before), True)[0]].tolist()
            self._agreed.append(len({*before} & {*after}) / max(len(after), 1))
        self._refit_if_grown()
        return True

    def _learn(self, keys: np.ndarray, lists: list[RankedList], until: float | None) -> bool:
        """Encode rows, and give the lists their vectors; return whether the encoder can go on."""
        keys = np.array(list(dict.fromkeys(keys.tolist())), keys.dtype)
        if until is None:
            go_on = self._obtain(keys)
        else:
            try:
                go_on = self._worker().submit(self._obtain, keys).result(max(until - time.monotonic(), 0.0))
            except NoAnswer:
                self.counts_["late"] += 1
                return False
        with self._lock:
            vectors = self.rows.known(keys)
        has = np.isfinite(vectors[:, 0])
        for one in lists:
            one.learn(keys[has], vectors[has])
        return go_on

    def _worker(self) -> ThreadPoolExecutor:
        if self._workers is None:
            self._workers = ThreadPoolExecutor(1, thread_name_prefix="congruence-lazy")
        return self._workers

    def join(self) -> None:
        """Wait until the rows of earlier searches in the background are encoded; raises their errors."""
        while self._waiting:
            self._waiting.pop(0).result()

    def check(self) -> bool:
        """Encode the rows by which the encoder is checked now, not at the first search; return whether it answers."""
        with self._encoding, _alone(self.rows.folder):
            return self._checked or self._check()

    def stop(self) -> None:
        """Encode nothing further: searches, and those in the background, end by what is known."""
        self._stopped.set()

    def close(self) -> None:
        """Wait for the encoder, write to the database what was encoded, and close it."""
        try:
            self.join()
            self.write()
        finally:
            if self._workers is not None:
                self._workers.shutdown()
            self.rows.close()

    def _obtain(self, keys: np.ndarray, *, most: int = CHECKED) -> bool:
        """Encode the rows that are not known yet, and keep them; False if the limit is reached or nothing answers."""
        with self._encoding, _alone(self.rows.folder):
            keys = self._unknown(keys)
            if not len(keys):
                return True
            if self._stopped.is_set() or (self.limit is not None and self._asked >= self.limit):
                return False
            if not self._checked and not self._check(most):
                return False
            keys = self._unknown(keys)
            left = len(keys) if self.limit is None else max(self.limit - self._asked, 0)
            whole, keys = len(keys) <= left, keys[:left]
            if not len(keys):
                return whole
            vectors = self._call(keys)
            if vectors is None:
                return False
            good = np.isfinite(vectors).all(axis=1)
            for key in keys[~good].tolist():
                self._tries[key] = self._tries.get(key, 0) + 1
                self.counts_["failed"] += self._tries[key] == 1
            for key in keys[good].tolist():
                self.counts_["failed"] -= self._tries.pop(key, 0) > 0
            self._keep(keys[good], vectors[good], random=False)
        return whole

    def _unknown(self, keys: np.ndarray) -> np.ndarray:
        with self._lock:
            self.rows.refresh()  # by what other processes have encoded
            return keys[np.isnan(self.rows.known(keys)[:, 0])]

    def _keep(self, keys: np.ndarray, vectors: np.ndarray, *, random: bool) -> None:
        if len(keys):
            self.counts_["encoded"] += len(keys)
            with self._lock:
                self.rows.put(keys, np.asarray(normalize_rows(vectors)), random=random)

    def _call(self, keys: np.ndarray) -> np.ndarray | None:
        """Return vectors, with NaN for the rows that fail, apart from others; None if the encoder does not answer."""
        self._asked += len(keys)
        if self.rate is not None:
            start = max(time.monotonic(), self._free)
            self._free = start + len(keys) / self.rate
            if self._stopped.wait(max(start - time.monotonic(), 0.0)):
                return None
        if (whole := self._ask(keys)) is not None:
            return whole
        out = np.full((len(keys), self.rows.dim), np.nan, np.float32)
        if len(keys) > 1:  # one of them may be to blame
            for tried, i in enumerate(self._rng.permutation(len(keys)).tolist(), 1):
                if (one := self._ask(keys[i : i + 1])) is not None:
                    out[i] = one[0]
                elif tried >= min(len(keys), ROUND) and np.isnan(out).all():
                    self.counts_["errors"] += 1
                    return None
        return out

    def trouble(self) -> str | None:
        """Say how many rows could not be encoded, and the encoder's last error; None if there was neither."""
        if not self.counts_["failed"] and self.error_ is None:
            return None
        last = "" if self.error_ is None else f"; the encoder's last error: {self.error_}"
        return f"{self.counts_['failed']:,} rows could not be encoded and stay mapped{last}"

    def _ask(self, keys: np.ndarray) -> np.ndarray | None:
        try:
            return self._as_vectors(self.encode(self.rows.names(keys)), len(keys))
        except Exception as error:  # whatever the caller's encoder raises
            if isinstance(error, ShapeError) and not self.counts_["encoded"]:  # else it was right before
                raise
            self.error_ = error
            return None

    def _as_vectors(self, got: Any, m: int) -> np.ndarray:
        if not hasattr(got, "shape") and np.iterable(got) and any(one is None for one in got):
            got = np.stack([np.full(self.rows.dim, np.nan) if one is None else to_numpy(one) for one in got])
        vectors = np.asarray(to_numpy(got.vectors if isinstance(got, Embeddings) else got))
        if vectors.shape != (m, self.rows.dim) or vectors.dtype.kind not in "fiu":
            got = f"{vectors.dtype} vectors of shape {vectors.shape}"
            problem = f"Got {got} from encode; expected numbers of shape ({m}, {self.rows.dim})."
            raise ShapeError(problem, "Return one vector of the new model per id, in the same order.")
        vectors = vectors.astype(np.float32)
        vectors[~vectors.any(axis=1)] = np.nan  # zeros are an encoding that failed
        return vectors

    def _check(self, most: int = CHECKED) -> bool:
        """Encode at most so many rows, and raise an error if they are certainly of another model or in another order.

        Returns whether the encoder answers.
        """
        most = min(CHECKED, most, CHECKED if self.limit is None else self.limit - self._asked)
        if most < CHECKED // 2:  # too few to tell
            return True
        with self._lock:
            keys, expected, exact = self.rows.sample(most, self._rng)
        if len(keys) < CHECKED // 2:
            self._checked = True
            return True
        vectors = self._call(keys)
        if vectors is None:
            return False
        if (good := np.isfinite(vectors).all(axis=1)).sum() < CHECKED // 2:
            return True  # too few to tell; it is checked again
        keys, ours, theirs = keys[good], expected[good], np.asarray(normalize_rows(vectors[good]))
        if not exact:  # of mapped rows the direction off the mean tells items apart
            ours, theirs = (side - side.mean(axis=0) for side in (ours, theirs))
            theirs /= np.maximum(np.linalg.norm(theirs, axis=1, keepdims=True), 1e-30)
        similar = theirs @ np.asarray(normalize_rows(ours)).T
        first, own = similar.argmax(axis=1), np.arange(len(keys))
        right = np.median(similar[own, own]) >= SAME if exact else (first == own).sum() > CHANCE * len(keys) / CHECKED
        if not right:
            moved = exact and len(np.unique(first)) > 0.7 * len(keys) and np.median(similar.max(axis=1)) >= SAME
            what = "in another order than the ids" if moved else "not those of the new model, or in another order"
            problem = f"The vectors from encode are {what}: {(first == own).sum()} of {len(keys)} rows are nearest to "
            problem += f"their own {'' if exact else 'mapped '}vector."
            raise SpaceMismatchError(problem, "Return one per id, in the same order; or pass `check=False`.")
        if not exact and isinstance(self.rows, _Array) and (lag := self.rows.lag(keys, normalize_rows(vectors[good]))):
            problem = (
                f"The vectors from encode look like those of other rows, {abs(lag)} {'on' if lag > 0 else 'back'}."
            )
            raise SpaceMismatchError(problem, "Return those of the ids; or pass `check=False`.")
        self._checked = True
        if not exact:
            self._keep(keys, vectors[good], random=True)
        return True

    def _refit_if_grown(self) -> None:
        rows = self.rows
        if self.refits and rows.n_native >= max(LEAST, rows.n // 100, GROWTH * rows.fitted_at):
            with self._encoding, self._lock:
                rows.refit()

    def reembed(
        self, queries: RowsLike, *, budget: int, k: int = 10, callback: Callable[[int], object] | None = None
    ) -> int:
        """Encode the ``budget`` rows that a log of queries (m, d_new) is expected to use most; return their number.

        A row's expected use is the sum over the queries of k / (k + its rank), with ranks corrected after each fifth
        of the budget. A query that was asked twice counts twice.
        """
        left = check_positive(budget, "budget", integer=True)
        Q, _ = self._queries(queries)
        Q, use = np.unique(Q, axis=0, return_counts=True)
        step, begun = -(-left // 5), self.counts_["encoded"]
        with self._encoding, _alone(self.rows.folder):
            if not self._checked and not self._check(left):
                return 0
        left -= self.counts_["encoded"] - begun
        while left > 0:
            expected: dict[Any, float] = {}
            for start in range(0, len(Q), GROUP):
                lists = self._near(Q[start : start + GROUP], k)
                for one, times in zip(lists, use[start : start + GROUP].tolist(), strict=True):
                    ranks, keys = one.ranked(self._tries)
                    for rank, key in zip(ranks.tolist(), keys.tolist(), strict=True):
                        expected[key] = expected.get(key, 0.0) + times * k / (k + rank)
            chosen = sorted(expected, key=expected.__getitem__, reverse=True)[: min(step, left)]
            if not chosen:
                break
            before = self.counts_["encoded"]
            keys = np.array(chosen, self.rows.key_type)
            whole = all([self._obtain(keys[part], most=0) for part in blocks(len(keys), 1, 256)])
            done = self.counts_["encoded"] - before
            left -= max(done, 1)
            if callback is not None:
                callback(done)
            if not whole:
                break
            self._refit_if_grown()
        return self.counts_["encoded"] - begun

    def write(self, *, remap: bool = False) -> Progressive | None:
        """Write what was encoded to the database, and return the migration's plan; None if there was nothing.

        ``remap``: also fit its map again, and map the other rows again. Waits a minute while another run is at work.
        """
        with self._encoding, self._lock:
            return self.rows.write(remap)

    def save(self, path: str | Path, *, force: bool = False) -> Path:
        """Save the re-embedded rows, without index, map and encoder, as a folder for ``load`` or ``journal``."""
        if not isinstance(self.rows, _Array):
            problem = "What was encoded for a database is in its journal already."
            raise ParameterError(problem, f"Keep {self.rows.migration.folder}.")
        foreign = lambda folder: None if (folder / "encoded").is_dir() else "is no folder of re-embedded rows"  # noqa: E731
        with self._encoding, self._lock, atomic_path(path, force=force, directory=True, foreign=foreign) as temporary:
            self.rows.keep(EncodedRows(temporary, self.rows.dim), self.rows.native)
        return Path(path)

    @classmethod
    def load(cls, path: str | Path, index: Any, mapping: Map, encode: Any, **options: Any) -> Self:
        """Return a search with the rows that ``save`` wrote, which keeps further ones there, too.

        Rows that are no longer in the index, or whose old vector has changed, are left out and counted as skipped.
        """
        if not Path(path).is_dir():
            raise FileError(f"No folder {path}.", "Pass that of a saved search.")
        return cls(index, mapping, encode, journal=path, **options)


class _Array:
    """Rows in memory: the old vectors, and mapped ones, which the new model's replace."""

    key_type: Any = np.intp
    waiting = ()

    def __init__(
        self, old: Embeddings, mapping: Map | None, modality: str | None, journal: str | Path | None = None
    ) -> None:
        if not isinstance(mapping, Map):
            got = "no map" if mapping is None else type(mapping).__name__
            raise ParameterError(f"Got {got} for the old model's rows.", "Pass the map as the second argument.")
        if isinstance(mapping, HeadsMap):
            problem = f"A map of kind {mapping.kind} leads both models into a third space."
            raise ParameterError(problem, "Pass an orthogonal map, for example.")
        check_space(old.space, mapping.source_space_, mapping.target_space_, modality=False)
        self.spaces, self.skipped = (mapping.target_space_, mapping.source_space_), 0
        self.ids, self.texts = old.ids, id_texts(old.ids) if old.has_ids else None
        self.id_type = old.ids.dtype
        self.old, self.n, self.dim_old = old.vectors, len(old), old.dim
        self.first = mapping.for_modality(modality or old.space.modality)
        sample = np.asarray(self.old[:: -(-self.n // 4096)], np.float64)
        self.map = Refit(self.first, None, float(np.mean(np.einsum("ij,ij->i", sample, sample))))
        self.correction = self.map.first()
        self.dim, self.fitted_at = int(mapping.d_target), 0
        self.vectors = np.empty((self.n, self.dim), np.float32)
        self.native = np.empty(0, np.intp)  # row numbers, in order of arrival
        self.random = np.empty(0, bool)  # which of them no query chose
        self._at = np.full(self.n, -1, np.int32)
        self._before = np.empty((0, self.dim), np.float32)  # their mapped vectors
        self._map(np.arange(self.n))
        self.folder = None if journal is None else Path(journal)
        inside = {one.name for one in self.folder.iterdir()} if self.folder and self.folder.is_dir() else set()
        if "journal.json" in inside or (inside and inside.isdisjoint(("encoded", "encoding"))):
            raise ParameterError(f"{journal} has other files than re-embedded rows.", "Pass another `journal=…`.")
        self.encoded = None if self.folder is None else EncodedRows(self.folder, self.dim)
        self._seen = 0  # rows of that folder which were looked at
        self.refresh()

    @property
    def n_native(self) -> int:
        return len(self.native)

    def close(self) -> None:
        """Do nothing: all is in memory."""

    def _mapped(self, rows: np.ndarray) -> np.ndarray:
        return self.map.transform(np.asarray(self.old[rows], np.float32), self.correction)

    def _map(self, rows: np.ndarray) -> None:
        for part in blocks(len(rows), 8 * (self.dim_old + self.dim)):
            self.vectors[rows[part]] = self._mapped(rows[part])

    def find(self, ids: Ids) -> np.ndarray:
        """Return the keys of ids. Raises IdError for an unknown one."""
        rows = np.asarray(ids) if self.texts is None else id_rows(self.texts, id_texts(list(ids)))
        if rows.dtype.kind not in "iu" or ((rows < 0) | (rows >= self.n)).any():
            raise IdError(f"Some of {len(rows)} ids are not in the index.", "Pass ids of its rows.")
        return rows.astype(np.intp)

    def names(self, keys: np.ndarray) -> Any:
        """Return what ``encode`` is called with."""
        return keys if self.texts is None else self.texts[keys].tolist()

    def near(self, Q: np.ndarray, pool: int, near: int) -> list[RankedList]:
        """Return the lists of queries: the nearest mapped rows, and the nearest of the re-embedded ones."""
        lists = []
        for part in blocks(len(Q), 8 * self.n):
            similar = Q[part] @ self.vectors.T
            for query, scores in zip(Q[part], similar, strict=True):
                own = scores[self.native]
                top = self.native[_largest(own, near)]
                exact = scores[top].astype(np.float64)
                scores[self.native] = -np.inf
                rest = _largest(scores, min(pool, self.n - len(self.native)))
                mapped = np.concatenate([self._before[self._at[top]] @ query, scores[rest]])
                keys = np.concatenate([top, rest])
                exact = np.concatenate([exact, np.full(len(rest), np.nan)])
                lists.append(RankedList(query, keys, self.old[keys], mapped, exact))
        return lists

    def known(self, keys: np.ndarray) -> np.ndarray:
        """Return the new model's vectors of rows, NaN for those without, (b, d_new)."""
        return np.where(self._at[keys, None] >= 0, self.vectors[keys], np.float32(np.nan))

    def sample(self, n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, bool]:
        """Return keys of rows to check an encoder by, their vectors, and whether these are the new model's."""
        exact = len(self.native) >= n // 2
        among = self.native if exact else np.arange(self.n)
        keys = rng.choice(among, min(n, len(among)), replace=False)
        return keys, self.vectors[keys], exact

    def lag(self, keys: np.ndarray, vectors: np.ndarray) -> int:
        """Return the number of rows by which vectors are surely off, nearer to the mapped rows there; else 0."""
        lags = [lag for k in range(1, LAGS + 1) for lag in (k, -k) if k < self.n]
        own, *others = (np.einsum("ij,ij->i", vectors, self.vectors[(keys + lag) % self.n]) for lag in (0, *lags))
        leads = [(more := other - own).mean() / max(more.std() / len(keys) ** 0.5, 1e-9) for other in others]
        return lags[int(np.argmax(leads))] if leads and max(leads) > SURE else 0

    def put(self, keys: np.ndarray, vectors: np.ndarray, *, random: bool) -> None:
        """Replace mapped rows by the new model's unit vectors of them."""
        again = self._at[keys] >= 0
        self.vectors[keys[again]] = vectors[again]
        keys, vectors, n = keys[~again], vectors[~again], len(self.native)
        if n + len(keys) > len(self._before):
            room = np.empty((max(2 * len(self._before), n + len(keys)), self.dim), np.float32)
            room[:n] = self._before[:n]
            self._before = room
        self._before[n : n + len(keys)] = self.vectors[keys]
        self.vectors[keys], self._at[keys] = vectors, np.arange(n, n + len(keys), dtype=np.int32)
        self.native = np.concatenate([self.native, keys])
        self.random = np.concatenate([self.random, np.full(len(keys), random)])
        if self.encoded is not None:
            self.keep(self.encoded, keys)
            self._seen = len(self.encoded.rows)

    def refit(self) -> None:
        """Fit the map again, and map the other rows anew."""

        def known(part: slice) -> Known:
            rows = self.native[part]
            old, new = np.asarray(self.old[rows], np.float32), self.vectors[rows].astype(np.float64)
            return Known(old, new, np.ones(len(rows)), self.random[part])

        n, parts = len(self.native), list(blocks(len(self.native), 16 * (self.dim_old + self.dim)))
        choose = bool(self.random.sum() >= FEWEST_CHOOSING)
        self.correction = self.map.fit(map(known, parts), n, self.correction, choose=choose)
        self.fitted_at = n
        for part in parts:
            self._before[part] = self._mapped(self.native[part])
        self._map(np.flatnonzero(self._at < 0))

    def write(self, remap: bool) -> None:
        """Do nothing: all is in memory."""

    def _digests(self, keys: np.ndarray) -> np.ndarray:
        names = keys if self.texts is None else self.texts[keys]
        return hashes(pa.array(names.tolist()), np.asarray(self.old[keys], np.float32))

    def keep(self, folder: EncodedRows, keys: np.ndarray) -> None:
        """Write the vectors of rows to a folder, unless they are there."""
        names, digests = id_texts(keys if self.texts is None else self.texts[keys]), self._digests(keys)
        fresh = ~folder.has(names.tolist(), digests)
        if fresh.any():
            folder.add(names[fresh].tolist(), digests[fresh], self.vectors[keys[fresh]])

    def refresh(self) -> None:
        """Put what another process has kept in the folder, of rows that are as they were then."""
        if self.encoded is None:
            return
        self.encoded.read()
        if len(self.encoded.rows) > self._seen:
            names, (digests, vectors) = [*self.encoded.rows], zip(*self.encoded.rows.values(), strict=True)
            numbers = [int(name) if name.isdecimal() else -1 for name in names]
            rows = np.array(numbers) if self.texts is None else id_rows(self.texts, id_texts(names))
            same = (rows >= 0) & (rows < self.n)
            same[same] = self._digests(rows[same]) == np.array(digests, np.uint64)[same]
            self.skipped = int((~same).sum())
            self.put(rows[same].astype(np.intp), unit_rows(np.stack(vectors)[same]), random=False)
        self._seen = len(self.encoded.rows)


class _Stored:
    """Rows of a migrated database, which searches them; what is encoded is kept in the migration's journal."""

    key_type: Any = object
    ids = None  # keys are ids

    def __init__(self, migration: Migration, modality: str | None, *, own: bool) -> None:
        journal, mapper = _read_complete(migration), migration.mapper
        self.migration, self._closes, self.modality = migration, own, modality or mapper.modality
        self.folder: Path | None = migration.folder
        self.dim, self.dim_old, self.n = mapper.dim, mapper.map.n_features_in_, migration.info.rows
        self.spaces = mapper.map.target_space_, mapper.map.source_space_
        self.skipped = 0
        self._digests: dict[str, int] = {}  # of the old vectors of rows that were looked at
        some = migration.retry(migration.database.fetch, pa.array(journal.sample[:SAMPLE]), "old")
        self._type = some.ids.type
        before = np.asarray(mapper.rows(some.vectors), np.float64)
        scale = float(np.mean(np.einsum("ij,ij->i", before, before))) if len(before) else 1.0
        self.map = Refit(mapper.map.for_modality(self.modality), None, scale)
        self.correction: Correction | None = None  # of rows that are looked at, beyond the table's
        self.id_type = np.dtype(self._type.to_pandas_dtype() if pa.types.is_integer(self._type) else object)
        self.among = None
        if some.modalities is not None and mapper.modality is None:
            if modality is None and len(kinds := set(some.modalities.to_pylist())) > 1:
                raise ParameterError(f"The table has rows of {', '.join(sorted(kinds))}.", "Pass `modality=…`.")
            self.among = modality
        self.encoded = EncodedRows(migration.folder, self.dim)
        self._read = self._stamp()
        self._list_known()
        self.fitted_at = len(self._place)

    def close(self) -> None:
        if self._closes:
            self.migration.database.close()

    def _stamp(self) -> list[object]:
        """Return what differs once another process has changed the journal's folder; times alone are too coarse."""
        folder = self.migration.folder
        files = (plan_folder(folder, self.among) / STATE, folder / PROGRESSIVE / STATE, folder / "journal.json")
        seen = [(status.st_mtime_ns, status.st_ino) for file in files if file.exists() and (status := file.stat())]
        return [*seen, *sorted(path.name for path in self.encoded.folder.glob("part-*"))]

    def refresh(self) -> None:
        """Learn what other processes have encoded or written."""
        if (stamp := self._stamp()) != self._read:
            _read_complete(self.migration)
            self.encoded.read()
            self._read = stamp
            self._list_known()

    def _list_known(self) -> None:
        native = self.migration.mapper.native
        self.plan = native.get(self.among) or native.get(None)
        self._place = {} if self.plan is None else {name: i for i, name in enumerate(self.plan.ids.tolist())}
        self._waiting = np.array([name for name in self.encoded.rows if name not in self._place], object)
        self._vectors = unit_rows(self.encoded.take(self._waiting.tolist())) if len(self._waiting) else None

    @property
    def n_native(self) -> int:
        return len(self._place) + len(self._waiting)

    def known(self, keys: np.ndarray) -> np.ndarray:
        """Return the new model's vectors of rows as they are now, NaN for those without, (b, d_new)."""
        out, plan = np.full((len(keys), self.dim), np.nan, np.float32), self.plan
        for i, name in enumerate(keys.tolist()):
            digest, place = self._digests.get(name), self._place.get(name, -1)
            if plan is not None and place >= 0 and plan.digests[place] == digest:
                out[i] = plan.take(np.array([place]))[0]
            elif name in self.encoded.rows and self.encoded.rows[name][0] == digest:
                out[i] = unit_rows(self.encoded.rows[name][1][None])[0]
        return out

    def _look(self, ids: pa.Array) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Return names, old rows, mapped and own vectors (NaN without) of the rows that are there, of the modality."""
        migration, mapper = self.migration, self.migration.mapper
        new, old = (migration.retry(migration.database.fetch, ids, side) for side in ("new", "old"))
        self.skipped += len(ids) - len(new.ids)
        here = of_modality(new, self.among)
        new = new._replace(ids=new.ids.filter(pa.array(here)), vectors=new.vectors[here])
        names, stored = id_texts(new.ids.to_pylist()), unit_rows(mapper.new.decode(new.vectors))
        at = id_rows(id_texts(old.ids.to_pylist()), id_texts(new.ids.to_pylist()))
        has_old = at >= 0  # others were written by the application, by the new model
        rows, theirs = np.zeros((len(names), self.dim_old), np.float32), ~has_old
        if has_old.any():
            before, which = old.vectors[at[has_old]], pa.array(has_old)
            rows[has_old] = mapper.rows(before)
            self._digests |= zip(names[has_old].tolist(), hashes(new.ids.filter(which), before).tolist(), strict=True)
            if migration.marks is not None:
                theirs[has_old] |= migration.marks.theirs(new.ids.filter(which), before, new.vectors[has_old])
        own = self.known(names)
        own[theirs] = stored[theirs]
        mapped, again = stored.copy(), has_old & (np.isfinite(own[:, 0]) | (self.correction is not None))
        mapped[again] = self._mapped(rows[again])
        return names, rows, mapped, own

    def _mapped(self, rows: np.ndarray) -> np.ndarray:
        if self.plan is None or self.correction is not None:
            return self.map.transform(rows, self.correction or self.map.first())
        return self.plan.refit.transform(rows, self.plan.correction)

    def refit(self) -> None:
        """Fit the map again, by which rows that are looked at are then scored; the table keeps its vectors."""
        names, parts = np.array([*self._place, *self._waiting], object), []
        some, skipped = names[np.random.default_rng(0).permutation(len(names))[:FITTED]], self.skipped
        for part in blocks(len(some), 16 * (self.dim_old + self.dim)):
            _, rows, _, own = self._look(pa.array(some[part].tolist(), pa.large_string()).cast(self._type))
            has = np.isfinite(own[:, 0]) & rows.any(axis=1)
            parts.append(Known(rows[has], own[has].astype(np.float64), np.ones(has.sum()), np.zeros(has.sum(), bool)))
        n, self.skipped, self.fitted_at = sum(len(part.old) for part in parts), skipped, len(names)
        self.correction = self.map.fit(parts, n, self.correction or self.map.first(), choose=False)

    def near(self, Q: np.ndarray, pool: int, near: int) -> list[RankedList]:
        """Return the lists of queries: the rows that the database finds, and those encoded and not yet written."""
        self.refresh()
        migration = self.migration
        found = migration.retry(migration.database.search, migration.mapper.new.encode(Q), min(pool, 1000))
        tops = [np.empty(0, object)] * len(Q)
        if self._vectors is not None:
            tops = [self._waiting[_largest(self._vectors @ query, near)] for query in Q]
        extra = [pa.array(top.tolist(), pa.large_string()).cast(self._type) for top in tops]
        lists = [
            pa.concat_arrays([ids.cast(self._type), more]).unique() for ids, more in zip(found, extra, strict=True)
        ]
        names, rows, mapped, own = self._look(pa.concat_arrays(lists).unique())
        out = []
        for query, ids in zip(Q, lists, strict=True):
            here = id_rows(names, id_texts(ids.to_pylist()))
            here = here[here >= 0]
            out.append(RankedList(query, names[here], rows[here], mapped[here] @ query, own[here] @ query))
        return out

    def names(self, keys: np.ndarray) -> list[str]:
        """Return what ``encode`` is called with."""
        return list(keys.tolist())

    def sample(self, n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, bool]:
        """Return keys of rows to check an encoder by, their vectors, and whether these are the new model's."""
        names = list(self._place) if len(self._place) >= n // 2 else list(map(str, self.migration.reload().sample))
        ids = pa.array(rng.choice(names, min(2 * n, len(names)), replace=False).tolist(), pa.large_string())
        keys, _, mapped, own = self._look(ids.cast(self._type))
        has = np.isfinite(own[:, 0])
        exact = bool(has.sum() >= n // 2)
        which = np.flatnonzero(has if exact else ~has)[:n]
        return keys[which], (own if exact else mapped)[which], exact

    def put(self, keys: np.ndarray, vectors: np.ndarray, *, random: bool) -> None:
        """Keep new vectors of rows in the journal."""
        digests = np.array([self._digests.get(key, 0) for key in keys.tolist()], np.uint64)
        self.encoded.add(keys.tolist(), digests, vectors)
        self._read = self._stamp()
        self._list_known()

    def write(self, remap: bool) -> Progressive | None:
        """Write the encoded rows to the database by the migration's own steps; None if there are none."""
        self.refresh()
        if not self.waiting and not remap:
            return None
        for last in (False,) * BUSY + (True,):
            try:
                plan = reembed(self.migration, _nothing, rows=self.waiting, among=self.among, remap=remap, size=4096)
                break
            except LockedError:
                if last:
                    raise
                time.sleep(1.0)
        self.refresh()
        if remap:  # the table's own vectors are by the latest map
            self.correction, self.fitted_at = None, self.n_native
        return plan

    @property
    def waiting(self) -> Sequence[str]:
        """The ids of rows that are encoded and not yet written to the database."""
        return list(self._waiting.tolist())


def _read_complete(migration: Migration) -> Journal:
    """Return the journal as it is now; MigrationError for one whose rows cannot be searched, or no longer."""
    journal, unit = migration.reload(), migration.mapper.unit
    if journal.state in ("filling", "dropped") or journal.condition is not None or not unit:
        what = journal.state if unit and journal.condition is None else "of some rows, or not of unit rows"
        raise MigrationError(f"This migration is {what}.", "Search one of all rows whose run is complete.")
    return journal


@contextmanager
def _alone(journal: Path | None) -> Iterator[None]:
    """Wait until no other process encodes for this journal, and keep others from it."""
    with ExitStack() as stack:
        while journal is not None:
            try:
                make_folder(journal / "encoding")
                stack.enter_context(locked(journal / "encoding", "Another process is encoding."))
                break
            except LockedError:
                time.sleep(0.02)
        yield


def _nothing(ids: list[str]) -> np.ndarray:
    """Refuse to encode rows that have changed since they were."""
    raise MigrationError(f"{len(ids)} rows have changed since they were encoded.", "Search, and write again.")


def unit_rows(rows: np.ndarray) -> np.ndarray:
    """Return rows with unit norm, or zeros, float32."""
    rows = np.asarray(rows, np.float32)
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-30)


def _largest(scores: np.ndarray, n: int) -> np.ndarray:
    """Return the places of the ``n`` largest scores, in any order."""
    if n >= len(scores):
        return np.arange(len(scores))
    return np.argpartition(scores, len(scores) - n)[len(scores) - n :] if n else np.empty(0, np.intp)


def _encoder(encode: Any, items: Any) -> Callable[[Any], Any]:
    """Return the function from ids to vectors."""
    if not isinstance(encode, Encoder):
        if items is not None or not callable(encode):
            problem = f"Got items={type(items).__name__} and encode={type(encode).__name__}."
            raise ParameterError(problem, "Pass a function of ids without items, or an Encoder with items.")
        return encode
    if items is None:
        raise ParameterError("Got an encoder without items.", "Pass `items=…`, texts or paths by row.")
    if isinstance(items, str | Path):
        items = open_items(items, modality=encode.space.modality)
    elif not isinstance(items, Items):
        listed, rows = list(map(str, items)), np.arange(len(items))
        kind = encode.space.modality or "text"
        texts = kind == "text"
        items = Items.of_texts("items", rows, listed) if texts else Items.of_files("items", rows, Path(), listed, kind)
    return encode_items(encode, items)


def _open(index: Any, mapping: Map | None, modality: str | None, journal: str | Path | None) -> _Array | _Stored:
    """Open the rows of an index; a file, or a database without a migration, is read into memory."""
    own = not isinstance(index, Database | Migration)
    if isinstance(index, str | Path):
        with suppress(ParameterError):  # of no kind of database
            index = open_database(index)
        if not isinstance(index, Database):
            index = read_embeddings(str(index))
    if isinstance(index, Database):
        folder = Path(journal) if journal is not None else default_folder(index.identify(index.info().place))
        if Journal.read(folder) is not None:
            index = Migration(index, mapping, journal=folder)
        elif own and not index.capabilities.searches:
            index = read_embeddings(index.info().place)
    if isinstance(index, Migration):
        if index.database.capabilities.searches:
            return _Stored(index, modality, own=own)
        raise ParameterError(f"{index.database.kind} files have no search of their own.", "Pass an array of vectors.")
    if isinstance(index, Database):
        raise ParameterError("Got a database without a migration.", "Migrate it first, or pass its vectors.")
    return _Array(as_embeddings(index, "index"), mapping, modality, journal)
