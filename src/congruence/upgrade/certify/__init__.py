"""From the anchors of two models to a verdict: map the store, map the queries, collect more, re-embed, or keep the old model."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import Any

import numpy as np

from congruence._inputs import as_embeddings, as_pair, by_modality
from congruence._utils.validation import check_choice, check_positive, check_seed
from congruence._version import __version__
from congruence.compare.pairing import check_pairing
from congruence.embeddings import Embeddings, Pairs
from congruence.errors import InputError, ModalityError, ProjectionWarning
from congruence.evaluation.controls import cosine_controls
from congruence.maps import OrthogonalMap
from congruence.upgrade.certify._certificate import Certificate, Verdict
from congruence.upgrade.certify.anchors import choose_anchors, split_texts
from congruence.upgrade.certify.curve import Curve, measure_curves
from congruence.upgrade.certify.groups import near_duplicates
from congruence.upgrade.certify.intervals import (
    Estimate,
    draw_scores,
    mean_interval,
    rate_interval,
    ratio_interval,
)
from congruence.upgrade.certify.judge import judge
from congruence.upgrade.certify.overlap import searches_of
from congruence.upgrade.certify.overlap_trial import controls, cross_fit_overlap, overlap_on
from congruence.upgrade.certify.tables import Tables, check_alike, make_tables
from congruence.upgrade.certify.theorems import theory_entries
from congruence.upgrade.certify.trial import WAYS, Measured, cross_fit, fit_map, tasks_of, try_on
from congruence.upgrade.certify.verdict import ACTIONS, Thresholds

__all__ = ["ACTIONS", "WAYS", "Certificate", "Estimate", "Thresholds", "Verdict", "certify", "choose_anchors"]


def certify(
    source: Any,
    target: Any,
    *,
    modality: str | None = None,
    fitted: str | None = None,
    queries: tuple[Any, Any] | None = None,
    text_queries: tuple[Any, Any] | None = None,
    labels: Mapping[str, str] | None = None,
    thresholds: Thresholds | None = None,
    neighbors: int = 10,
    theory: str = "brief",
    folds: int = 10,
    repeats: int = 10,
    draws: int = 2000,
    random_state: int = 0,
    data: str = "",
    advance: Callable[[int], None] | None = None,
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
    neighbors : int, default=10
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
    advance : callable, optional
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
    on it. Galleries are as large as the items given: a larger one scores lower, for every way to search.
    """
    check_seed(random_state)
    thresholds = thresholds or Thresholds()
    for value, name in ((folds, "folds"), (repeats, "repeats"), (draws, "draws"), (neighbors, "neighbors")):
        check_positive(value, name, integer=True)
    check_positive(folds - 2, "folds - 2", integer=True)
    check_choice(theory, ("brief", "full"), "theory")
    source, target = by_modality(source, target, modality)
    queries = None if queries is None else by_modality(*queries, modality)
    if labels is None and text_queries is None:
        source, target, text_queries = split_texts(source, target)
        if queries is not None and text_queries is not None:
            queries = split_texts(*queries)[:2]
    tables = make_tables(source, target, labels)
    held = None if queries is None else make_tables(*queries, labels, what="queries")
    if held is not None:
        check_alike(tables, held)
    on = held or tables
    texts = None if text_queries is None else _texts(text_queries, tables)
    names = _fitted(tables, fitted)
    tasks = tasks_of(on, labels is not None)
    everything = np.arange(len(tables.ids[names[0]]))
    copies = near_duplicates(on)
    groups = copies if len(np.unique(copies)) < len(copies) else None
    of_anchors = groups if held is None and not (tables.by_class and tables.stored not in names) else None
    folds = min(folds, len(everything) if of_anchors is None else len(np.unique(of_anchors)))
    searches = searches_of(on, texts)
    with warnings.catch_warnings():
        # Said once, in the notes, instead of once a fold.
        warnings.simplefilter("ignore", ProjectionWarning)
        mapping = fit_map(tables, names, everything, parameters)
        if held is None:
            measured = cross_fit(
                tables,
                names,
                tasks,
                parameters,
                folds=folds,
                random_state=random_state,
                groups=of_anchors,
                advance=advance,
            )
            lists = cross_fit_overlap(
                tables, names, searches, neighbors, parameters, random_state=random_state, groups=of_anchors
            )
        else:
            measured = try_on(mapping, held, tasks, groups)
            lists = overlap_on(mapping, held, searches, neighbors, random_state, groups)
            if advance:
                advance(1)
        measured.scores |= lists.scores
        measured.influence |= lists.influence
        measured.groups |= lists.groups
        task = _decisive(on, tasks, measured)
        curve, cosine_curve = measure_curves(
            tables,
            held,
            names,
            task,
            tasks.get(task, neighbors),
            parameters,
            texts=texts,
            groups=of_anchors,
            repeats=repeats,
            random_state=random_state,
            advance=advance,
        )
        below = controls(mapping, on, searches, neighbors, random_state)
        for name, rows in on.target.items():
            known = cosine_controls(mapping.for_modality(name), on.source[name], rows, random_state=random_state)
            below[f"cosine/{name}"] = {k: v for k, v in asdict(known).items() if v is not None}
    rng = np.random.default_rng(random_state)
    pairing = check_pairing(
        tables.source[names[0]], tables.target[names[0]], ids=tables.ids[names[0]], random_state=random_state
    )
    measures = [name for name in dict.fromkeys(key.split("/")[0] for key in measured.scores) if name != "cosine"]
    ways = {
        name: {way: _rate(measured, f"{name}/{way}") for way in WAYS if f"{name}/{way}" in measured.scores}
        for name in sorted(measures, key=lambda name: name != task)
    }
    if "stored" not in ways[task]:
        raise InputError(
            f"Got no {tables.asked} rows in the target model; expected them, since they search the store. Encode some, and pass them as target=…."
        )
    retention, drawn = _retention(measured, task, list(ways[task]), draws, rng)
    level = ways[task]["stored"].value
    curve = curve.lifted(level - float(curve.at(curve.n)))
    shown = _shown(on)
    cosine = _mean(measured, f"cosine/{shown}")
    cosine_curve = cosine_curve.lifted(cosine.value - float(cosine_curve.at(cosine_curve.n)))
    narrows = mapping.n_features_in_ > mapping.d_target
    covered = _covered(mapping, on)
    return Certificate(
        verdict=judge(ways, drawn, curve, thresholds, narrows, pairing, task, covered, rng),
        task=task,
        n_anchors=len(everything),
        n_queries=on.n,
        fitted=list(names),
        ways=ways,
        retention=retention,
        cosines={
            name.split("/")[1]: (cosine if name == f"cosine/{shown}" else _mean(measured, name))
            for name in measured.scores
            if name.startswith("cosine/")
        },
        curve=curve.to_dict(),
        cosine_curve=cosine_curve.to_dict(),
        gains=_gains(curve, cosine_curve),
        pairing=pairing.to_dict(),
        covered=covered,
        controls=below,
        theory=theory_entries(tables, mapping, random_state, full=theory == "full"),
        thresholds=thresholds,
        facts={
            "source": _model(source),
            "target": _model(target),
            "data": data,
            "date": datetime.now(UTC).date().isoformat(),
            "seed": str(random_state),
            "version": __version__,
        },
        notes=_notes(tables, held, groups, texts) + ([pairing.sentence] if pairing.state == "cannot tell" else []),
    )


def _model(side: Mapping[str, Embeddings]) -> str:
    """Return the name of a side's model and its width."""
    named = {replace(rows.space, modality=None, dim=None, normalized=None) for rows in side.values()}
    space = next((space for space in named if space.model), next(iter(named)))
    return f"{space}, {next(iter(side.values())).dim}-d"


def _texts(texts: tuple[Any, Any], tables: Tables) -> tuple[np.ndarray | None, np.ndarray]:
    """Return text queries row by row, of the anchors' two models."""
    if tables.stored != tables.asked or tables.classes is not None:
        raise ModalityError(
            f"Got text queries beside {'labels' if tables.classes is not None else 'captions of the anchors'}; expected one "
            "stored modality alone. Remove text_queries=…."
        )
    first, second = None, texts[1]
    if second is None:
        raise InputError(
            "Got text_queries without texts of the target model; expected them, since they search the store. "
            "Pass text_queries=(source or None, target)."
        )
    if texts[0] is None:
        second = as_embeddings(second, "text_queries[1]")
    else:
        pairs = Pairs.join(*as_pair(*texts, ("text_queries[0]", "text_queries[1]")))
        first, second = pairs.source, pairs.target
    for rows, side, name in ((first, tables.source, "source"), (second, tables.target, "target")):
        if rows is not None and rows.dim != side[tables.stored].shape[1]:
            raise InputError(
                f"Got text queries of width {rows.dim} in the {name} model; expected {side[tables.stored].shape[1]} as the "
                "anchors. Encode them with the same model."
            )
    return None if first is None else first.vectors, second.vectors


def _decisive(tables: Tables, tasks: Mapping[str, int], measured: Measured) -> str:
    """Return the measure that the verdict rests on: without captions and labels, whether result lists agree."""
    if tables.stored == tables.asked and tables.classes is None:
        for measure in ("graded_text_overlap@", "graded_overlap@"):
            for name in measured.scores:
                if name.startswith(measure) and name.endswith("/stored"):
                    return name.split("/")[0]
    return next(iter(tasks))


def _fitted(tables: Tables, fitted: str | None) -> list[str]:
    both = [name for name in (tables.stored, tables.asked) if name in tables.target]
    both = list(dict.fromkeys(both))
    if fitted is None:
        return both[:1] if tables.by_class else both
    if fitted == "both":
        if len(both) < 2 or tables.by_class:
            raise ModalityError(
                'Got fitted="both"; expected two modalities of the same items in both models. Pass fitted=… with one of '
                f"{', '.join(both)}."
            )
        return both
    check_choice(fitted, both, "fitted")
    return [fitted]


def _notes(
    tables: Tables,
    held: Tables | None,
    groups: np.ndarray | None,
    texts: tuple[np.ndarray | None, np.ndarray] | None,
) -> list[str]:
    notes = []
    on = held or tables
    if tables.dropped:
        notes.append(f"{tables.dropped} rows had no partner of the same id and were left out.")
    notes.append(
        f"Scores are over a gallery of {len(on.ids[on.asked]) if on.by_class else on.n} {'classes' if on.by_class else 'items'}; "
        "a larger one scores lower, whichever way is chosen."
    )
    if groups is not None:
        sizes = np.unique(groups, return_counts=True)[1]
        notes.append(
            f"{sizes[sizes > 1].sum():,} items have near-duplicates ({(sizes > 1).sum():,} groups): each group is scored together, by "
            "maps fitted on none of it, and counts once in the intervals."
        )
    if on.stored not in on.target:
        notes.append(f"The target model has no {on.stored} rows: what re-embedding would reach is unknown.")
    if on.stored == on.asked and on.classes is None:
        notes.append(
            "One modality, and neither captions nor labels: whether the target model is the better one is unknown. The verdict rests on "
            "how far a mapped store returns the items that a re-embedded one would return"
            f"{' to text queries' if texts is not None else ''}, judged by the target model."
        )
    return notes


def _shown(tables: Tables) -> str:
    return tables.stored if tables.stored in tables.target else tables.asked


def _rate(measured: Measured, name: str) -> Estimate:
    # The correction for left-out anchors can step over the edge.
    value = float(np.clip(measured.scores[name].mean(), 0, 1))
    each = (
        int(name.split("/")[0].split("@")[1]) if "overlap@" in name else 1
    )  # results that a query's score is the mean of
    interval = rate_interval(value, measured.influence[name], groups=measured.groups.get(name), each=each)
    return Estimate(value, *interval, len(measured.scores[name]))


def _mean(measured: Measured, name: str) -> Estimate:
    values, influence, groups = measured.scores[name], measured.influence[name], measured.groups.get(name)
    low, high = mean_interval(float(values.mean()), influence, groups=groups)
    return Estimate(float(values.mean()), max(low, -1.0), min(high, 1.0), len(values))


def _retention(
    measured: Measured, task: str, ways: list[str], draws: int, rng: np.random.Generator
) -> tuple[dict[str, Estimate], dict[str, np.ndarray]]:
    """Return the ratios that say what mapping keeps, and draws of all ways' scores together."""
    n, groups = len(measured.scores[f"{task}/{ways[0]}"]), measured.groups.get(f"{task}/{ways[0]}")
    means = np.array([measured.scores[f"{task}/{way}"].mean() for way in ways])
    influence = np.stack([measured.influence[f"{task}/{way}"] for way in ways], axis=1)
    drawn = dict(zip(ways, draw_scores(means, influence, draws, rng, groups).T, strict=True))
    ratios = {}
    for over in ("re-embed", "keep"):
        for way in ("stored", "queries"):
            if over in ways and way in ways and means[ways.index(over)] > 0:
                both = [ways.index(way), ways.index(over)]
                value = float(means[both[0]] / means[both[1]])
                low, high = ratio_interval(
                    float(means[both[0]]), float(means[both[1]]), influence[:, both], groups=groups
                )
                ratios[f"{way}/{over}"] = Estimate(value, low, high, n)
    return ratios, drawn


def _gains(curve: Curve, cosine_curve: Curve) -> list[dict[str, float]]:
    steps = sorted({max(1, round(curve.n * share)) for share in (0.25, 0.5, 1.0, 3.0)})
    room = max(0.0, 1.0 - float(curve.at(curve.n)))  # no score exceeds 1
    return [
        {
            "more": more,
            "score": min(curve.gain(more), room),
            "score_at_most": min(curve.most(more), room),
            "cosine": cosine_curve.gain(more),
            "cosine_at_most": cosine_curve.most(more),
        }
        for more in steps
    ]


def _covered(mapping: OrthogonalMap, tables: Tables) -> dict[str, float]:
    return {name: float(mapping.for_modality(name).probed_energy(rows).mean()) for name, rows in tables.source.items()}
