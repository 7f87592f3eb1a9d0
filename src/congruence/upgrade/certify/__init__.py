"""From the anchors of two models to a verdict: carry the store, carry the queries, collect more, re-embed, or stay."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from congruence._check import check_choice, check_positive
from congruence._inputs import UNNAMED, by_modality
from congruence.compare.pairing import PairingReport, check_pairing
from congruence.errors import InputError, ModalityError, ProjectionWarning
from congruence.maps import OrthogonalMap
from congruence.upgrade.certify._certificate import Certificate, Verdict
from congruence.upgrade.certify.curve import Curve, measure_curves
from congruence.upgrade.certify.intervals import Estimate, percentile_interval, rate_interval, replicate, resamples
from congruence.upgrade.certify.tables import Tables, make_tables
from congruence.upgrade.certify.theorems import theory_entries
from congruence.upgrade.certify.trial import WAYS, Measured, cross_fit, fit_map, tasks_of, try_on
from congruence.upgrade.certify.verdict import ACTIONS, Decision, Thresholds, decide, with_known

__all__ = ["ACTIONS", "WAYS", "Certificate", "Estimate", "Thresholds", "Verdict", "certify"]

#: Share of a modality's energy in directions the anchors probed, below which anchors of that modality are asked for.
WELL_PROBED = 0.9

#: Curves drawn for the confidence of the verdict.
_CURVES = 100


def certify(
    source: Any,
    target: Any,
    *,
    modality: str | None = None,
    fitted: str | None = None,
    queries: tuple[Any, Any] | None = None,
    labels: Mapping[str, str] | None = None,
    thresholds: Thresholds | None = None,
    folds: int = 10,
    repeats: int = 10,
    draws: int = 2000,
    seed: int = 0,
    advance: Callable[[int], None] | None = None,
    **parameters: Any,
) -> Certificate:
    """Say what to do about a change of models, from items encoded by both.

    Parameters
    ----------
    source, target : Embeddings or array_like, or mapping of str to those
        Anchors of one modality in both models, paired by id or, without ids, by position as in :func:`congruence.fit`; or by modality: one modality, or two of the same items (by id), or, with ``labels``, items and the texts of
        their classes. The target may lack the stored modality; nothing can then be said about re-embedding.
    modality : str, optional
        Of anchors that are not in a mapping; by default what embeddings say, or else ``"other"``.
    fitted : str, optional
        Modality to fit on, or ``"both"``. By default all that both models have; with labels, the stored one.
    queries : (source, target), optional
        Held-out items in both models, in the form of the anchors. By default anchors are scored by maps not fitted on them.
    labels : mapping of str to str, optional
        Class of each stored item by id.
    thresholds : Thresholds, optional
    folds : int, default=10
        Parts of the anchors scored in turn; at least 3. Unused with ``queries``.
    repeats : int, default=10
        Random orders of the anchors for the learning curve.
    draws : int, default=2000
        Bootstrap samples.
    seed : int, default=0
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
    class; one modality alone, whether an item of the target finds itself among carried ones. Galleries are as large as
    the items given: a larger one scores lower, for every way to search.
    """
    thresholds = thresholds or Thresholds()
    for value, name in ((folds, "folds"), (repeats, "repeats"), (draws, "draws")):
        check_positive(value, name, integer=True)
    check_positive(folds - 2, "folds - 2", integer=True)
    tables = make_tables(*by_modality(source, target, modality), labels)
    held = None if queries is None else make_tables(*by_modality(*queries, modality), labels, what="queries")
    if held is not None:
        _check_alike(tables, held)
    names = _fitted(tables, fitted)
    tasks = tasks_of(held or tables, labels is not None)
    task = next(iter(tasks))
    notes = _notes(tables, held)
    everything = np.arange(len(tables.ids[names[0]]))
    folds = min(folds, len(everything))
    with warnings.catch_warnings():
        # Said once, in the notes, instead of once a fold.
        warnings.simplefilter("ignore", ProjectionWarning)
        mapping = fit_map(tables, names, everything, parameters)
        if held is None:
            measured = cross_fit(tables, names, tasks, parameters, folds=folds, seed=seed, advance=advance)
        else:
            measured = try_on(mapping, held, tasks)
            if advance:
                advance(1)
        curve, cosine_curve = measure_curves(
            tables, held, names, task, tasks[task], parameters, repeats=repeats, seed=seed, advance=advance
        )
    rng = np.random.default_rng(seed)
    pairing = check_pairing(
        tables.source[names[0]], tables.target[names[0]], ids=tables.ids[names[0]], random_state=seed
    )
    ways = {
        name: {way: _rate(measured, f"{name}/{way}") for way in WAYS if f"{name}/{way}" in measured.scores}
        for name in tasks
    }
    if "stored" not in ways[task]:
        raise InputError(
            f"Got no {tables.asked} rows in the target model; expected them, since they search the store. Encode some, and pass them as target=…."
        )
    retention, drawn = _retention(measured, task, list(ways[task]), draws, rng)
    level = ways[task]["stored"].value
    curve = curve.lifted(level - float(curve.at(curve.n)))
    shown = _shown(held or tables)
    cosine = _mean(measured, f"cosine/{shown}", draws, rng)
    cosine_curve = cosine_curve.lifted(cosine.value - float(cosine_curve.at(cosine_curve.n)))
    narrows = mapping.n_features_in_ > mapping.d_target
    probed = _probed(mapping, held or tables)
    verdict = _judge(ways[task], drawn, curve, thresholds, narrows, pairing, task, probed, rng)
    return Certificate(
        verdict=verdict,
        task=task,
        n_anchors=len(everything),
        n_queries=(held or tables).n,
        fitted=list(names),
        ways=ways,
        retention=retention,
        cosines={
            name.split("/")[1]: (cosine if name == f"cosine/{shown}" else _mean(measured, name, draws, rng))
            for name in measured.scores
            if name.startswith("cosine/")
        },
        curve=curve.to_dict(),
        cosine_curve=cosine_curve.to_dict(),
        gains=_gains(curve, cosine_curve),
        pairing=pairing.to_dict(),
        probed=probed,
        theory=theory_entries(tables, mapping, seed),
        thresholds=thresholds,
        notes=notes,
    )


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


def _check_alike(tables: Tables, held: Tables) -> None:
    """Refuse queries whose vectors are not of the anchors' two models, or that are anchors."""
    if (tables.stored, tables.asked, set(tables.target)) != (held.stored, held.asked, set(held.target)):
        raise ModalityError(
            f"Got queries of {sorted(held.source)} (target: {sorted(held.target)}); expected the anchors' modalities, "
            f"{sorted(tables.source)} (target: {sorted(tables.target)}). Pass queries=… of the same modalities as the anchors."
        )
    for one, other, name in ((tables.source, held.source, "source"), (tables.target, held.target, "target")):
        a, b = next(iter(one.values())).shape[1], next(iter(other.values())).shape[1]
        if a != b:
            raise InputError(
                f"Got queries of width {b} in the {name} model; expected {a} as the anchors. Encode them with the same model."
            )
    same = np.intersect1d(tables.ids[tables.stored], held.ids[held.stored])
    if len(same):
        raise InputError(
            f"Got {len(same)} queries that are anchors too (first {same[0]!r}); expected other items, since scores on anchors are not held out. Remove these items from the anchors."
        )


def _notes(tables: Tables, held: Tables | None) -> list[str]:
    notes = []
    on = held or tables
    if tables.dropped:
        notes.append(f"{tables.dropped} rows had no partner of the same id and were left out.")
    notes.append(
        f"Scores are over a gallery of {len(on.ids[on.asked]) if on.by_class else on.n} {'classes' if on.by_class else 'items'}; "
        "a larger one scores lower, whichever way is chosen."
    )
    if on.stored not in on.target:
        notes.append(f"The target model has no {on.stored} rows: what re-embedding would reach is unknown.")
    if on.stored == on.asked and on.classes is None:
        notes.append(
            "One modality and no labels: whether the target model is the better one is unknown, only what carrying keeps of it."
        )
    return notes


def _shown(tables: Tables) -> str:
    return tables.stored if tables.stored in tables.target else tables.asked


def _rate(measured: Measured, name: str) -> Estimate:
    # The correction for left-out anchors can step over the edge.
    value = float(np.clip(measured.scores[name].mean(), 0, 1))
    return Estimate(value, *rate_interval(value, measured.influence[name]), len(measured.scores[name]))


def _mean(measured: Measured, name: str, draws: int, rng: np.random.Generator) -> Estimate:
    values, influence = measured.scores[name], measured.influence[name]
    means = replicate(np.array([values.mean()]), influence[:, None], resamples(len(values), draws, rng))
    return Estimate(float(values.mean()), *percentile_interval(means[:, 0]), len(values))


def _retention(
    measured: Measured, task: str, ways: list[str], draws: int, rng: np.random.Generator
) -> tuple[dict[str, Estimate], dict[str, np.ndarray]]:
    """Bootstrap all ways together, and the ratios that say what carrying keeps."""
    n = len(measured.scores[f"{task}/{ways[0]}"])
    means = np.array([measured.scores[f"{task}/{way}"].mean() for way in ways])
    influence = np.stack([measured.influence[f"{task}/{way}"] for way in ways], axis=1)
    drawn = dict(zip(ways, replicate(means, influence, resamples(n, draws, rng)).T, strict=True))
    value = dict(zip(ways, means, strict=True))
    ratios = {}
    for over in ("re-embed", "stay"):
        for way in ("stored", "queries"):
            if over in value and way in value and value[over] > 0:
                with np.errstate(divide="ignore", invalid="ignore"):
                    low, high = percentile_interval(np.where(drawn[over] > 0, drawn[way] / drawn[over], np.nan))
                ratios[f"{way}/{over}"] = Estimate(float(value[way] / value[over]), low, high, n)
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


def _probed(mapping: OrthogonalMap, tables: Tables) -> dict[str, float]:
    return {name: float(mapping.for_modality(name).probed_energy(rows).mean()) for name, rows in tables.source.items()}


def _judge(
    ways: dict[str, Estimate],
    drawn: dict[str, np.ndarray],
    curve: Curve,
    thresholds: Thresholds,
    narrows: bool,
    pairing: PairingReport,
    task: str,
    probed: dict[str, float],
    rng: np.random.Generator,
) -> Verdict:
    values = {way: estimate.value for way, estimate in ways.items()}
    if pairing.decided and not pairing.looks_paired:
        return Verdict(
            "collect",
            curve.n,
            f"collect {curve.n} anchors again",
            f"the anchors of the two models do not belong together (p = {pairing.p_value:.2g} against random pairs), "
            "so nothing can be learned from them.",
            {"collect": 1.0},
        )

    def ask(values: dict[str, float], curve: Curve) -> Decision:
        return decide(
            with_known(values, task),
            lambda wanted: curve.enough(wanted, thresholds.most_anchors),
            thresholds,
            narrows=narrows,
        )

    decision = ask(values, curve)
    curves = [curve.redraw(rng) for _ in range(_CURVES)]
    said: dict[str, int] = {}
    draws = len(next(iter(drawn.values())))
    for k in range(draws):
        here = {way: float(series[k]) for way, series in drawn.items()}
        shape = curves[k % _CURVES]
        action = ask(here, shape.lifted(here["stored"] - float(shape.at(shape.n)))).action
        said[action] = said.get(action, 0) + 1
    confidence = {action: count / draws for action, count in sorted(said.items(), key=lambda item: -item[1])}
    headline, reason = _in_words(decision, values, curve, thresholds, task)
    least = min(probed, key=lambda name: probed[name])
    settled = decision.action in ("carry", "queries") or (decision.action == "stay" and "re-embed" in values)
    if not settled and probed[least] < WELL_PROBED:
        rows = "vectors'" if least == UNNAMED else least
        more = "anchors like these rows" if least == UNNAMED else f"{least} anchors"
        unseen = f"{1 - probed[least]:.0%} of the {rows} energy lies where no anchor looked, so {more} would tell most"
        reason = f"{reason[:-1]}; {unseen}."
    return Verdict(decision.action, decision.more, headline, reason, confidence)


def _in_words(
    decision: Decision, values: dict[str, float], curve: Curve, thresholds: Thresholds, task: str
) -> tuple[str, str]:
    named = {
        "recall@1": "recall at 1",
        "zero_shot": "zero-shot accuracy",
        "same_class@1": "same-class retrieval",
        "own@1": "retrieval of the same item",
    }.get(task, task)
    carry = max(values["stored"], values["queries"])
    values = with_known(values, task)
    stay, best = values.get("stay"), values.get("re-embed")
    kept = f", {carry / best:.0%} of the target model's own {best:.3f}" if best else ""
    beside = f" (staying: {stay:.3f})" if stay is not None else ""
    got = f"carried, {named} is {carry:.3f}{kept}{beside}"
    if decision.action == "carry":
        return ACTIONS["carry"], f"{got}, and {decision.wanted:.3f} was asked."
    if decision.action == "queries":
        return (
            ACTIONS["queries"],
            f"with carried queries {named} is {values['queries']:.3f}{f' of {best:.3f}' if best else ''}, with carried stored vectors "
            f"{values['stored']:.3f}{beside}, and the store stays as it is.",
        )
    if decision.action == "collect":
        assert decision.more is not None
        return (
            f"collect {decision.more:,} more anchors of this kind",
            f"{got}; the learning curve reaches the {decision.wanted:.3f} asked at about {curve.n + decision.more:,} anchors.",
        )
    if decision.action == "re-embed":
        return (
            ACTIONS["re-embed"],
            f"{got}, {decision.wanted:.3f} was asked, and no {thresholds.most_anchors:,} further anchors are expected to bring it "
            f"there (the curve levels off at {curve.best:.3f}).",
        )
    if best is not None:
        return (
            ACTIONS["stay"],
            f"the source model has {named} {stay:.3f}, the target model {best:.3f} and carried vectors {carry:.3f}: "
            "nothing is gained by moving.",
        )
    return (
        ACTIONS["stay"],
        f"the source model has {named} {stay:.3f} and carried vectors {carry:.3f}; what re-embedding would reach is unknown.",
    )
