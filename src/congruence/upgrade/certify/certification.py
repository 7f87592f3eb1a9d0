"""From the anchors of two models to a certificate: what is asked is laid out, measured on unseen items, and judged."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np

from congruence._inputs import by_modality
from congruence._utils.typing import RowsLike
from congruence._utils.validation import check_choice, check_positive, check_seed
from congruence._version import __version__
from congruence.compare.pairing import check_pairing
from congruence.embeddings import Embeddings
from congruence.errors import InputError, ProjectionWarning
from congruence.evaluation import Ranking, rankings
from congruence.evaluation.controls import cosine_controls
from congruence.maps import OrthogonalMap
from congruence.metrics import Hubness
from congruence.upgrade.certify._certificate import Certificate
from congruence.upgrade.certify.anchors import choose_fitted, join_texts, split_texts
from congruence.upgrade.certify.curve import gains, measure_curves
from congruence.upgrade.certify.groups import near_duplicates
from congruence.upgrade.certify.intervals import Measured
from congruence.upgrade.certify.overlap import Search, searches_of
from congruence.upgrade.certify.overlap_trial import controls, cross_fit_overlap, overlap_on
from congruence.upgrade.certify.tables import Tables, check_alike, describe_model, make_tables
from congruence.upgrade.certify.theorems import theory_entries
from congruence.upgrade.certify.trial import cross_fit, fit_map, tasks_of, try_on
from congruence.upgrade.certify.verdict import Thresholds, judge
from congruence.upgrade.choose import choice_rows, choose_map

__all__ = ["certify"]

#: The map that is certified where no parameters are given, in the words of a choice.
CERTIFIED = "rotation about the means"


def certify(
    source: RowsLike | Mapping[str, RowsLike],
    target: RowsLike | Mapping[str, RowsLike],
    *,
    modality: str | None = None,
    fitted: str | None = None,
    queries: tuple[RowsLike | Mapping[str, RowsLike], RowsLike | Mapping[str, RowsLike]] | None = None,
    text_queries: tuple[RowsLike | None, RowsLike] | None = None,
    labels: Mapping[str, str] | None = None,
    thresholds: Thresholds | None = None,
    n_neighbors: int = 10,
    theory: str = "brief",
    folds: int = 10,
    repeats: int = 10,
    draws: int = 2000,
    random_state: int = 0,
    data: str = "",
    center: bool = False,
    hubness: str | Hubness | None = None,
    callback: Callable[[int], None] | None = None,
    **parameters: Any,
) -> Certificate:
    """Say what to do about a change of models, from items encoded by both.

    Parameters
    ----------
    source, target : Embeddings or array_like, or mapping of str to those
        Anchors of one modality in both models, paired by id or, without ids, by position as in :func:`congruence.fit`; or by
        modality: one modality, or two of the same items (by id), or, with ``labels``, items and the texts of
        their classes. The target may lack the stored modality; nothing can then be said about re-embedding. Texts that share
        no id with the images are taken as ``text_queries``.
    modality : str, optional
        Of anchors that are not in a mapping; by default what embeddings say, or else ``"other"``.
    fitted : str, optional
        Modality to fit on, or ``"both"``. By default all that both models have; with labels, the stored one.
    queries : (source, target), optional
        Held-out items in both models, in the form of the anchors. By default anchors are scored by maps not fitted on them.
    text_queries : (source, target), optional
        Texts of any items in the source model, or None, and in the target model: do they return the same items from the mapped
        store as from the re-embedded one? For one stored modality without labels.
    labels : mapping of str to str, optional
        Class of each stored item by id.
    thresholds : Thresholds, optional
    n_neighbors : int, default=10
        Length of the result lists that overlap compares.
    theory : {"brief", "full"}, default="brief"
        ``"full"`` computes κ of Definition 5.4 as well: linear programs that take minutes.
    folds : int, default=10
        Parts of the anchors scored in turn; at least 3. Unused with ``queries``.
    repeats : int, default=10
        Random orders of the anchors for the learning curve.
    draws : int, default=2000
        Draws of the scores and of the learning curve, for the confidence of the verdict.
    random_state : int, default=0
    data : str, optional
        Name of the data, for the certificate.
    center : bool, default=False
        Search with queries and store each less its own mean, under every strategy.
    hubness : {"csls", "qb_norm"} or Hubness, optional
        Search with hubs corrected for, under every strategy; the scored queries are the bank (transductive).
    callback : callable, optional
        Called with 1 after each of ``folds + repeats`` steps (one step for the folds with ``queries``).
    **parameters
        Of :class:`~congruence.OrthogonalMap`.

    Returns
    -------
    Certificate

    Raises
    ------
    InputError, ShapeError, IdError, ModalityError, TooFewAnchorsError, ParameterError, SpaceMismatchError

    Notes
    -----
    Measured, by what the data hold: two modalities, recall at 1 and 10 of each query's own item in the store; with labels, the
    accuracy of assigning stored items to classes; one modality with labels, whether the nearest other item has the same
    class; one modality alone, whether an item of the target finds itself among mapped ones. Always, if the target has the stored
    modality: the overlap of result lists from the mapped and the re-embedded store; without captions and labels the verdict rests
    on it. Galleries are as large as the items given: a larger one scores lower, for every strategy.
    """
    check_seed(random_state)
    thresholds = thresholds or Thresholds()
    ranking = rankings(center, hubness)[-1]
    for value, name in ((folds, "folds"), (repeats, "repeats"), (draws, "draws"), (n_neighbors, "n_neighbors")):
        check_positive(value, name, integer=True)
    check_positive(folds - 2, "folds - 2", integer=True)
    check_choice(theory, ("brief", "full"), "theory")
    source, target = by_modality(source, target, modality)
    queries = None if queries is None else by_modality(*queries, modality)
    question = _Question.of(source, target, queries, text_queries, labels, fitted)
    tables, scored = question.tables, question.scored
    with warnings.catch_warnings():
        # Said once, in the notes, instead of once a fold.
        warnings.simplefilter("ignore", ProjectionWarning)
        mapping = fit_map(tables, question.fitted, np.arange(question.n_anchors), parameters)
        measured = _measure(
            question,
            mapping,
            n_neighbors,
            parameters,
            ranking,
            folds=folds,
            random_state=random_state,
            callback=callback,
        )
        task = _decisive(scored, question.tasks, measured)
        curves = measure_curves(
            tables,
            question.heldout,
            question.fitted,
            task,
            question.tasks.get(task, n_neighbors),
            parameters,
            texts=question.texts,
            groups=question.groups_of_anchors,
            ranking=ranking,
            repeats=repeats,
            random_state=random_state,
            callback=callback,
        )
        below = _controls(question, mapping, n_neighbors, random_state, ranking)
    rng = np.random.default_rng(random_state)
    first = question.fitted[0]
    pairing = check_pairing(
        tables.source[first], tables.target[first], ids=tables.ids[first], random_state=random_state
    )
    strategies = measured.estimates(task)
    if "stored" not in strategies[task]:
        raise InputError(
            f"Got no {tables.asked} rows in the target model; expected them, since they search the store. Encode some, and pass them as target=…."
        )
    retention, drawn = measured.retention(task, list(strategies[task]), draws, rng)
    cosines = measured.cosines()
    # A curve is measured on few items; its level is set by all of them.
    curve, cosine_curve = (
        curve.lifted(level - float(curve.at(curve.n)))
        for curve, level in zip(curves, (strategies[task]["stored"].value, cosines[scored.shown].value), strict=True)
    )
    covered = {
        name: float(mapping.for_modality(name).probed_energy(rows).mean()) for name, rows in scored.source.items()
    }
    narrows = mapping.n_features_in_ > mapping.d_target
    return Certificate(
        verdict=judge(strategies, drawn, curve, thresholds, narrows, pairing, task, covered, rng),
        task=task,
        n_anchors=question.n_anchors,
        n_queries=scored.n,
        fitted=question.fitted,
        strategies=strategies,
        retention=retention,
        cosines=cosines,
        curve=curve.to_dict(),
        cosine_curve=cosine_curve.to_dict(),
        gains=gains(curve, cosine_curve),
        pairing=pairing.to_dict(),
        covered=covered,
        controls=below,
        theory=theory_entries(tables, mapping, random_state, full=theory == "full"),
        thresholds=thresholds,
        facts={
            "source": question.models[0],
            "target": question.models[1],
            "data": data,
            "date": datetime.now(UTC).date().isoformat(),
            "seed": str(random_state),
            "version": __version__,
        },
        notes=question.notes()
        + ranking.notes
        + [_which_map(question, parameters, random_state)]
        + ([pairing.sentence] if pairing.state == "cannot tell" else []),
    )


@dataclass(frozen=True)
class _Question:
    """What is asked of the data.

    Attributes
    ----------
    tables : Tables
        The anchors.
    heldout : Tables or None
        Items to score, if they are not the anchors themselves.
    texts : (ndarray or None, ndarray) or None
        Text queries of other items, in both models.
    fitted : list of str
        Modalities to fit on.
    tasks : dict of str to int
        What can be measured, with how deep each looks.
    searches : list of Search
        What result lists are compared for.
    groups : ndarray of int, shape (n,), or None
        Scored items whose errors depend on each other, where there are any.
    groups_of_anchors : ndarray of int, shape (n_anchors,), or None
        Anchors that are fitted on or scored together.
    models : (str, str)
        Name and width of the source and of the target model.
    """

    tables: Tables
    heldout: Tables | None
    texts: tuple[np.ndarray | None, np.ndarray] | None
    fitted: list[str]
    tasks: dict[str, int]
    searches: list[Search]
    groups: np.ndarray | None
    groups_of_anchors: np.ndarray | None
    models: tuple[str, str]

    @classmethod
    def of(
        cls,
        source: Mapping[str, Embeddings],
        target: Mapping[str, Embeddings],
        queries: tuple[Mapping[str, Embeddings], Mapping[str, Embeddings]] | None,
        text_queries: tuple[RowsLike | None, RowsLike] | None,
        labels: Mapping[str, str] | None,
        fitted: str | None,
    ) -> _Question:
        """Pair the rows, and find out what they can tell."""
        if labels is None and text_queries is None:
            source, target, text_queries = split_texts(source, target)
            if queries is not None and text_queries is not None:
                queries = split_texts(*queries)[:2]
        tables = make_tables(source, target, labels)
        heldout = None if queries is None else make_tables(*queries, labels, what="queries")
        if heldout is not None:
            check_alike(tables, heldout)
        scored = heldout or tables
        texts = None if text_queries is None else join_texts(text_queries, tables)
        names = choose_fitted(tables, fitted)
        copies = near_duplicates(scored)
        groups = copies if len(np.unique(copies)) < len(copies) else None
        apart = heldout is not None or (tables.by_class and tables.stored not in names)
        return cls(
            tables=tables,
            heldout=heldout,
            texts=texts,
            fitted=names,
            tasks=tasks_of(scored, labels is not None),
            searches=searches_of(scored, texts),
            groups=groups,
            groups_of_anchors=None if apart else groups,
            models=(describe_model(source), describe_model(target)),
        )

    @property
    def scored(self) -> Tables:
        """The items that are scored: those held out, or else the anchors."""
        return self.heldout or self.tables

    @property
    def n_anchors(self) -> int:
        """RowsLike of a fitted modality."""
        return len(self.tables.ids[self.fitted[0]])

    def notes(self) -> list[str]:
        """Say what a reader must know to read the numbers."""
        tables, scored = self.tables, self.scored
        notes = []
        if tables.dropped:
            notes.append(f"{tables.dropped} rows had no partner of the same id and were left out.")
        notes.append(
            f"Scores are over a gallery of {len(scored.ids[scored.asked]) if scored.by_class else scored.n} {'classes' if scored.by_class else 'items'}; "
            "a larger one scores lower, whichever way is chosen."
        )
        if self.groups is not None:
            sizes = np.unique(self.groups, return_counts=True)[1]
            notes.append(
                f"{sizes[sizes > 1].sum():,} items have near-duplicates ({(sizes > 1).sum():,} groups): each group is scored together, by "
                "maps fitted on none of it, and counts once in the intervals."
            )
        if scored.stored not in scored.target:
            notes.append(f"The target model has no {scored.stored} rows: what re-embedding would reach is unknown.")
        if scored.stored == scored.asked and scored.classes is None:
            notes.append(
                "One modality, and neither captions nor labels: whether the target model is the better one is unknown. The verdict rests on "
                "how far a mapped store returns the items that a re-embedded one would return"
                f"{' to text queries' if self.texts is not None else ''}, judged by the target model."
            )
        return notes


def _which_map(question: _Question, parameters: Mapping[str, Any], random_state: int) -> str:
    """Say which map was certified, and which one ``congruence fit`` would choose on these anchors."""
    if parameters:
        return f"Certified is a rotation with {', '.join(f'{name}={value!r}' for name, value in parameters.items())}."
    tables, first = question.tables, question.fitted[0]
    choice = choose_map(
        tables.source[first], tables.target[first], groups=question.groups_of_anchors, random_state=random_state
    )
    told = dict(choice_rows(choice.to_dict()))
    why = told.get("chosen by", told.get("chosen because"))
    where = "which is also what" if choice.name == CERTIFIED else f"but {choice.name} is what"
    return f"Certified is a {CERTIFIED} (congruence fit --method orthogonal), {where} congruence fit chooses on the {first} anchors: {why}."


def _measure(
    question: _Question,
    mapping: OrthogonalMap,
    n_neighbors: int,
    parameters: Mapping[str, Any],
    ranking: Ranking,
    *,
    folds: int,
    random_state: int,
    callback: Callable[[int], None] | None,
) -> Measured:
    """Score items under each strategy: held-out ones by the map, or anchors by maps that have not seen them."""
    tables, heldout, fitted = question.tables, question.heldout, question.fitted
    searches, groups = question.searches, question.groups_of_anchors
    if heldout is not None:
        measured = try_on(mapping, heldout, question.tasks, question.groups, ranking)
        lists = overlap_on(mapping, heldout, searches, n_neighbors, random_state, question.groups, ranking)
        if callback:
            callback(1)
        return measured | lists
    folds = min(folds, question.n_anchors if groups is None else len(np.unique(groups)))
    measured = cross_fit(
        tables,
        fitted,
        question.tasks,
        parameters,
        folds=folds,
        random_state=random_state,
        groups=groups,
        ranking=ranking,
        callback=callback,
    )
    return measured | cross_fit_overlap(
        tables, fitted, searches, n_neighbors, parameters, random_state=random_state, groups=groups, ranking=ranking
    )


def _controls(
    question: _Question, mapping: OrthogonalMap, n_neighbors: int, random_state: int, ranking: Ranking
) -> dict[str, dict[str, float]]:
    """Return what chance, a constant and a random rotation reach, by measure and for each cosine."""
    scored = question.scored
    below = controls(mapping, scored, question.searches, n_neighbors, random_state, ranking)
    for name, rows in scored.target.items():
        known = cosine_controls(mapping.for_modality(name), scored.source[name], rows, random_state=random_state)
        below[f"cosine/{name}"] = {k: v for k, v in asdict(known).items() if v is not None}
    return below


def _decisive(tables: Tables, tasks: Mapping[str, int], measured: Measured) -> str:
    """Return the measure that the verdict rests on: without captions and labels, whether result lists agree."""
    if tables.stored == tables.asked and tables.classes is None:
        for measure in ("graded_text_overlap@", "graded_overlap@"):
            for name in measured.scores:
                if name.startswith(measure) and name.endswith("/stored"):
                    return name.split("/")[0]
    return next(iter(tasks))
