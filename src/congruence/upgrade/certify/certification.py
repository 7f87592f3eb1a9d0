"""Certify a change of models: measure each strategy on unseen anchors, and recommend one."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

import numpy as np

from congruence._utils.typing import RowsLike
from congruence._utils.validation import check_choice, check_positive, check_seed
from congruence._version import __version__
from congruence.compare.pairing import check_pairing
from congruence.embeddings import by_modality
from congruence.errors import ProjectionWarning
from congruence.evaluation import rankings
from congruence.maps.evidence import choice_rows
from congruence.metrics import Hubness
from congruence.upgrade.certify._certificate import Certificate
from congruence.upgrade.certify.controls import measure_controls
from congruence.upgrade.certify.costs import strategy_costs
from congruence.upgrade.certify.cross_fit import cross_fit
from congruence.upgrade.certify.cross_fit_lists import cross_fit_lists
from congruence.upgrade.certify.curve import gains, measure_curves
from congruence.upgrade.certify.design import Design
from congruence.upgrade.certify.evaluation_set import EvaluationSet
from congruence.upgrade.certify.heldout import score_heldout
from congruence.upgrade.certify.measured import Measured
from congruence.upgrade.certify.mixed import MixedStore, measure_mixed
from congruence.upgrade.certify.recipe import Recipe
from congruence.upgrade.certify.theorems import theory_entries
from congruence.upgrade.certify.verdict import Thresholds, Verdict, is_of_lists, judge
from congruence.upgrade.choose import Choice

__all__ = ["certify"]


def certify(
    source: RowsLike | Mapping[str, RowsLike],
    target: RowsLike | Mapping[str, RowsLike],
    method: str = "auto",
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
    single_modality: bool = False,
    rows: int | None = None,
    encode_rate: float | None = None,
    price: float | None = None,
    callback: Callable[[int], None] | None = None,
    **parameters: object,
) -> Certificate:
    """Measure what each upgrade strategy costs in quality, from items encoded by both models, and recommend one.

    Parameters
    ----------
    source, target : Embeddings or array_like, or mapping of str to those
        Anchors of one modality in both models, paired by id, or by position if they have no ids, as in :func:`congruence.fit`. Or a mapping
        by modality: one modality, or two modalities of the same items (matched by id), or, with ``labels``, items and the texts of
        their classes. The target may lack the stored modality; re-embedding is then not evaluated. Texts that share
        no id with the images are used as ``text_queries``.
    method : {"auto", "orthogonal", "linear"}, default="auto"
        The map to certify. ``"auto"`` is the map that :func:`congruence.fit` chooses on these anchors, with rows of the other modality as its
        ``means``. The choice is repeated for every part of the anchors that is left out, without looking at that part.
    modality : str, optional
        Modality of anchors that are not in a mapping; by default the modality the embeddings declare, else ``"other"``.
    fitted : str, optional
        Modality to fit on, or ``"both"``. By default all modalities that both models have; with labels, or with ``method="linear"``, the
        stored modality. A rotation is fitted on several modalities together, each centered at its own means.
    queries : (source, target), optional
        Held-out items in both models, in the same form as the anchors. By default anchors are scored by maps that were not fitted on them.
    text_queries : (source, target), optional
        Texts of any items, in the source model (or None) and in the target model. They test whether the mapped store returns the same
        items as the re-embedded store. Only for one stored modality without labels.
    labels : mapping of str to str, optional
        Class of each stored item by id.
    thresholds : Thresholds, optional
    n_neighbors : int, default=10
        Length of the result lists whose overlap is measured.
    theory : {"brief", "full"}, default="brief"
        ``"full"`` also computes κ of Definition 5.4, by linear programs that take minutes.
    folds : int, default=10
        Number of parts of the anchors that are scored in turn; at least 3. Not used with ``queries``.
    repeats : int, default=10
        Number of random orders of the anchors for the learning curve.
    draws : int, default=2000
        Number of random draws of the true scores and learning curve, given the measured ones; they determine the verdict's confidence.
    random_state : int, default=0
    data : str, optional
        Name of the data, shown in the certificate.
    center : bool, default=False
        Subtract the mean of the queries from the queries and the mean of the store from the store before searching, for every strategy.
    hubness : {"csls", "qb_norm"} or Hubness, optional
        Correct for hubs in the search, for every strategy; the scored queries are the query bank (transductive).
    single_modality : bool, default=False
        Declare that no other modality will be mapped, so that ``"auto"`` may choose a linear map, as in :func:`congruence.fit`.
    rows : int, optional
        Number of rows of the store, used to compute what each strategy costs. If progressive re-embedding needs to encode fewer items
        than anchors had to be collected, the verdict prefers it.
    encode_rate : float, optional
        Items per second that the target model encodes.
    price : float, optional
        Price of encoding one item.
    callback : callable, optional
        Called with 1 after each of ``folds + repeats`` steps (with ``queries``, the folds are a single step).
    **parameters
        Parameters of the method, as for :func:`congruence.fit`.

    Returns
    -------
    Certificate

    Raises
    ------
    InputError, ShapeError, IdError
        If the anchors cannot be used or paired.
    ModalityError
        If the modalities passed and declared contradict each other.
    TooFewAnchorsError
        If there are too few anchors to score.
    ParameterError
        If a parameter has an invalid value.
    SpaceMismatchError
        If the queries belong to other spaces than the anchors.

    Notes
    -----
    What is measured depends on the data. Two modalities: recall at 1 and 10 of each query's own item in the store. Items with labels and class
    texts: the accuracy of assigning stored items to classes. One modality with labels: whether the nearest other item has the same
    class. One modality alone: whether an item of the target model finds itself among the mapped items. If the target has the stored
    modality, the overlap of the result lists of the mapped and of the re-embedded store is always measured; without captions and labels the
    verdict is based on it. The gallery is as large as the set of items given; with a larger gallery every strategy scores lower.
    """
    check_seed(random_state)
    thresholds = thresholds or Thresholds()
    ranking = rankings(center, hubness)[-1]
    for value, name in ((folds, "folds"), (repeats, "repeats"), (draws, "draws"), (n_neighbors, "n_neighbors")):
        check_positive(value, name, integer=True)
    check_positive(folds - 2, "folds - 2", integer=True)
    for given, name in ((rows, "rows"), (encode_rate, "encode_rate"), (price, "price")):
        if given is not None:
            check_positive(given, name, integer=name == "rows")
    check_choice(theory, ("brief", "full"), "theory")
    source, target = by_modality(source, target, modality)
    queries = None if queries is None else by_modality(*queries, modality)
    design = Design.of(
        source,
        target,
        queries,
        text_queries,
        labels,
        fitted,
        method,
        n_neighbors=n_neighbors,
        ranking=ranking,
        random_state=random_state,
    )
    anchors, items = design.anchors, design.items
    recipe = Recipe(design.fitted, method, parameters, single_modality, random_state)
    recipe.check(anchors)
    everything = np.arange(design.n_anchors)
    with warnings.catch_warnings():
        # Reported once, in the notes, instead of once per fold.
        warnings.simplefilter("ignore", ProjectionWarning)
        choice = recipe.choose(anchors, everything)
        mapping = recipe.fit(anchors, everything, choice)
        rotation = recipe.about_means(anchors, everything, mapping)
        if design.heldout:
            measured = score_heldout(mapping, items)
            if callback:
                callback(1)
        else:
            measured = cross_fit(items, recipe, folds=folds, callback=callback) | cross_fit_lists(items, recipe)
        task = _deciding_task(items, measured)
        curves = measure_curves(design, recipe, task, repeats=repeats, callback=callback)
        mixed = measure_mixed(items, measured, task, rows)
        controls = measure_controls(mapping, rotation, items)
    rng = np.random.default_rng(random_state)
    first = design.fitted[0]
    pairing = check_pairing(
        anchors.source[first], anchors.target[first], ids=anchors.ids[first], random_state=random_state
    )
    strategies = measured.estimates(task)
    retention, drawn = measured.retention(task, list(strategies[task]), draws, rng)
    cosines = measured.cosines()
    # The shape of the learning curve is measured on few items; its level is set by the score on all of them.
    curve, cosine_curve = (
        curve.lifted(level - float(curve.at(curve.n)))
        for curve, level in zip(
            curves, (strategies[task]["stored"].value, cosines[items.tables.shown].value), strict=True
        )
    )
    covered = {name: float(mapping.covered_share(name, rows).mean()) for name, rows in items.tables.source.items()}
    narrows = mapping.d_source > mapping.d_target
    verdict = judge(strategies, drawn, curve, thresholds, narrows, pairing, task, covered, rng, mixed, rows)
    by_definition = task == "own@1" or is_of_lists(task)
    costs = strategy_costs(
        strategies[task],
        mixed,
        verdict,
        by_definition=by_definition,
        rows=rows,
        encode_rate=encode_rate,
        price=price,
    )
    return Certificate(
        verdict=verdict,
        task=task,
        n_anchors=design.n_anchors,
        n_queries=items.tables.n,
        fitted=design.fitted,
        strategies=strategies,
        retention=retention,
        cosines=cosines,
        curve=curve.to_dict(),
        cosine_curve=cosine_curve.to_dict(),
        gains=gains(curve, cosine_curve),
        pairing=pairing.to_dict(),
        covered=covered,
        controls=controls,
        theory=theory_entries(
            anchors,
            rotation,
            random_state,
            full=theory == "full",
            instead=None if rotation is mapping.forward else choice.name,
        ),
        choice=choice.to_dict(),
        how_to_fit=recipe.in_words(anchors, choice),
        thresholds=thresholds,
        facts={
            "source": design.models[0],
            "target": design.models[1],
            "data": data,
            "date": datetime.now(UTC).date().isoformat(),
            "seed": str(random_state),
            "version": __version__,
        },
        notes=design.notes()
        + ranking.notes
        + _map_notes(recipe, choice, measured.maps)
        + ([pairing.sentence] if pairing.state == "cannot tell" else []),
        costs=costs,
        progressive=_forecast(verdict, mixed, task),
    )


def _forecast(verdict: Verdict, mixed: MixedStore | None, task: str) -> dict[str, object]:
    """Return the forecast as plain data, with an explanation if no share up to one half is sufficient."""
    if mixed is None:
        return {}
    sentence = ""
    if verdict.action == "re-embed" and verdict.wanted is not None:
        sentence = (
            f"Progressive re-embedding is not expected to suffice: with half of the store re-embedded and the map refitted, {task} would be {mixed.values[-1]:.3f}; "
            f"the required score was {verdict.wanted:.3f}."
        )
    return {**mixed.to_dict(), "sentence": sentence}


def _map_notes(recipe: Recipe, choice: Choice, of_folds: list[str]) -> list[str]:
    """Describe which map was certified, on what evidence it was chosen, and which maps were chosen in the scored folds."""
    if recipe.method != "auto":
        return [f"Certified map: {choice.name}, as given."]
    facts = dict(choice_rows(choice.to_dict()))
    why = facts.get("chosen by", facts.get("chosen because"))
    if len(recipe.fitted) > 1:
        where = f"chosen among rotations, since {' and '.join(recipe.fitted)} anchors are fitted on together"
    else:
        where = f"which is what congruence fit chooses on the {recipe.fitted[0]} anchors"
    notes = [f"Certified map: {choice.name}, {where}: {why}."]
    if of_folds.count(choice.name) < len(of_folds):
        notes.append(
            f"The choice is made again without each part of the anchors that is scored: {of_folds.count(choice.name)} of {len(of_folds)} times it was the same. "
            "The scores are those of choosing and fitting together."
        )
    return notes


def _deciding_task(items: EvaluationSet, measured: Measured) -> str:
    """Return the measure that determines the verdict: without captions and labels, the overlap of result lists."""
    if items.tables.store_modality == items.tables.query_modality and items.tables.classes is None:
        for measure in ("graded_text_overlap@", "graded_overlap@"):
            for name in measured.scores:
                if name.startswith(measure) and name.endswith("/stored"):
                    return name.split("/")[0]
    return next(iter(items.tasks))
