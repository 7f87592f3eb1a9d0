"""The rule applied to what was measured, and to draws of what it may truly be; the outcome in words."""

from __future__ import annotations

import numpy as np

from congruence._inputs import UNNAMED
from congruence.compare.pairing import PairingReport
from congruence.upgrade.certify._certificate import Verdict
from congruence.upgrade.certify.curve import Curve
from congruence.upgrade.certify.intervals import Estimate
from congruence.upgrade.certify.verdict import ACTIONS, Decision, Thresholds, decide, is_of_lists, with_known

__all__ = ["judge"]

#: Share of a modality's variance in directions the anchors cover, below which anchors of that modality are asked for.
WELL_COVERED = 0.9

#: Curves drawn for the confidence of the verdict.
_CURVES = 100

_NAMED = {
    "recall@1": "recall at 1",
    "zero_shot": "zero-shot accuracy",
    "same_class@1": "same-class retrieval",
    "own@1": "retrieval of the same item",
}


def judge(
    measured: dict[str, dict[str, Estimate]],
    drawn: dict[str, np.ndarray],
    curve: Curve,
    thresholds: Thresholds,
    narrows: bool,
    pairing: PairingReport,
    task: str,
    covered: dict[str, float],
    rng: np.random.Generator,
) -> Verdict:
    """Apply the rule and say in what share of draws it says the same.

    Parameters
    ----------
    measured : dict of str to dict of str to Estimate
        By measure and way to search.
    drawn : dict of str to ndarray, shape (draws,)
        Draws of the decisive measure by way, from :func:`~congruence.upgrade.certify.intervals.draw_scores`.
    curve : Curve
        Through the measured score of mapped stored vectors.
    thresholds : Thresholds
    narrows : bool
        The target has fewer dimensions.
    pairing : PairingReport
    task : str
        The decisive measure.
    covered : dict of str to float
        Share of variance in covered directions, by modality.
    rng : numpy.random.Generator

    Returns
    -------
    Verdict
    """
    values = {way: estimate.value for way, estimate in measured[task].items()}
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
            of_lists=is_of_lists(task),
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
    headline, reason = _in_words(decision, measured, curve, thresholds, task)
    least = min(covered, key=lambda name: covered[name])
    settled = decision.action in ("map", "queries") or (
        decision.action == "keep" and ("re-embed" in values or is_of_lists(task))
    )
    if not settled and covered[least] < WELL_COVERED:
        rows = "vectors'" if least == UNNAMED else least
        more = "anchors like these rows" if least == UNNAMED else f"{least} anchors"
        unseen = f"{1 - covered[least]:.0%} of the {rows} variance lies in directions no anchor covers, so {more} would help most"
        reason = f"{reason[:-1]}; {unseen}."
    return Verdict(decision.action, decision.more, headline, reason, confidence)


def _in_words(
    decision: Decision, measured: dict[str, dict[str, Estimate]], curve: Curve, thresholds: Thresholds, task: str
) -> tuple[str, str]:
    values = with_known({way: estimate.value for way, estimate in measured[task].items()}, task)
    of_lists = is_of_lists(task)
    named = "the graded overlap of result lists" if of_lists else _NAMED.get(task, task)
    mapped = max(values["stored"], values.get("queries", 0.0))
    keep, best = values.get("keep"), values.get("re-embed")
    kept = f", {mapped / best:.0%} of the target model's own {best:.3f}" if best and not of_lists else ""
    beside = f" (old model kept: {keep:.3f})" if keep is not None else ""
    got = f"mapped, {named} is {mapped:.3f}{kept}{beside}"
    if of_lists:  # what it is made of: a share of results that are the same, and near misses
        way = max(("stored", "queries"), key=lambda way: values.get(way, -1.0))
        plain = measured[task.removeprefix("graded_")][way].value
        got = f"{plain:.0%} of the results after mapping are those of a re-embedded store; counting near misses in part, {got[8:]}"
    if decision.action == "map":
        return ACTIONS["map"], f"{got}, and {decision.wanted:.3f} was required."
    if decision.action == "queries":
        return (
            ACTIONS["queries"],
            f"with mapped queries {named} is {values['queries']:.3f}{f' of {best:.3f}' if best else ''}, with mapped stored vectors "
            f"{values['stored']:.3f}{beside}, and the store stays as it is.",
        )
    if decision.action == "collect":
        assert decision.more is not None
        return (
            f"collect {decision.more:,} more anchors of this kind",
            f"{got}; the learning curve reaches the required {decision.wanted:.3f} at about {curve.n + decision.more:,} anchors.",
        )
    if decision.action == "re-embed":
        return (
            ACTIONS["re-embed"],
            f"{got}, {decision.wanted:.3f} was required, and up to {thresholds.most_anchors:,} further anchors are not expected to "
            f"reach it (the curve levels off at {curve.best:.3f}).",
        )
    if of_lists:
        return ACTIONS["keep"], f"{got}: mapping brings its results no nearer to those of the target model."
    if best is not None:
        return (
            ACTIONS["keep"],
            f"{named} is {keep:.3f} with the source model, {best:.3f} with the target model and {mapped:.3f} with mapped vectors: "
            "nothing is gained by changing.",
        )
    return (
        ACTIONS["keep"],
        f"{named} is {keep:.3f} with the source model and {mapped:.3f} with mapped vectors; what re-embedding would reach is unknown.",
    )
