"""The rule that turns scores into a recommendation, and what each strategy costs; see docs/certify.md."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any, cast

import numpy as np

from congruence._utils.plain import PlainData
from congruence._utils.validation import check_positive
from congruence.compare.pairing import PairingReport
from congruence.embeddings import UNNAMED
from congruence.errors import ParameterError
from congruence.upgrade.certify.estimates import LearningCurve
from congruence.upgrade.certify.mixed import SHARES, MixedStore, reached
from congruence.upgrade.progressive.meter import Estimate

#: The answers to what to do, from the cheapest to the dearest.
ACTIONS = {
    "keep": "keep the old model",
    "leave": "leave the stored vectors as they are",
    "queries": "map the queries",
    "map": "map the stored vectors",
    "progressive": "map, then re-embed a part",
    "re-embed": "re-embed",
}

UNDECIDED = "undecided"  # instead of an answer

#: Exit code of ``congruence check --exit-code``.
EXIT_CODES = {"map": 0, "queries": 10, "leave": 11, "progressive": 12, "re-embed": 13, "keep": 14, UNDECIDED: 15}

SURE = 0.9  # smallest share of the resamples that must recommend an answer
SUPPORTED = 1 / 3  # smallest share for which a third answer is named where the evidence does not decide

#: Multiples of the items at which the verdict is tried: the curve is not extrapolated beyond twice the anchors.
FURTHER = (1.1, 1.25, 1.5, 1.75, 2.0)


def name_strategy(strategy: str, share: float = 0.0) -> str:
    """Return the name of a strategy of a certificate's scores or costs; ``share``: of the store re-embedded."""
    if strategy == "progressive":
        return f"map, re-embed {share:.0%}"
    return ACTIONS["map" if strategy == "stored" else strategy]


#: If the anchors cover directions with less than this share of a modality's variance, the verdict recommends more
#: anchors of that modality.
WELL_COVERED = 0.9

_CURVES = 100  # number of learning curves drawn for the confidence of the verdict

_NAMED = {
    "recall@1": "recall at 1",
    "zero_shot": "zero-shot accuracy",
    "same_class@1": "same-class retrieval",
    "own@1": "retrieval of the same item",
}


def name_measure(task: str) -> str:
    """Return the name of a measure in words."""
    return "the graded overlap of result lists" if is_of_lists(task) else _NAMED.get(task, task)


@dataclass(frozen=True)
class Criteria(PlainData):
    """Criteria for a sufficient map."""

    retention: float = 0.95  # smallest share of the new model's own score that mapped vectors must reach
    worth: float = 0.01  # smallest difference of scores that is worth acting on
    #: Smallest advantage of mapped queries over mapped stored vectors for which queries are mapped. Below it, mapping
    #: the store is preferred, since new items can then be added without the source model.
    tie: float = 0.03
    must_move: bool = False  # the source model will no longer be available, so keeping it is not an option

    def __post_init__(self) -> None:
        for name in ("retention", "worth", "tie"):
            check_positive(getattr(self, name), name, zero=name != "retention")
        if self.retention > 1:
            raise ParameterError(f"Got `retention={self.retention}`; expected at most 1.", "Pass `retention=0.9`.")


@dataclass(frozen=True)
class Verdict:
    """The recommended action, and the reasons."""

    action: str  # a key of ACTIONS, or UNDECIDED
    headline: str = ""  # the action in words
    reason: str = ""  # the scores that led to it, in words
    confidence: dict[str, float] = field(default_factory=dict)  # by action: share of the resamples that recommend it
    between: list[str] = field(default_factory=list)  # the possible actions if undecided, the likeliest first
    more: int | None = None  # further anchors that are expected to decide, with queries in proportion
    share: float | None = None  # for "progressive": share of the store to re-embed
    share_interval: tuple[float | None, float | None] | None = None
    wanted: float | None = None  # the required score; None if anchors are mispaired

    @property
    def settled(self) -> bool:
        """Whether at least 90 % of the resamples recommend one action."""
        return self.action != UNDECIDED


def with_known(strategies: Mapping[str, float], task: str) -> dict[str, float]:
    """Add what is known without measurement: the re-embedded store returns its own result lists."""
    return {**strategies, "re-embed": 1.0} if is_of_lists(task) else dict(strategies)


def is_of_lists(task: str) -> bool:
    """Return whether a measure compares result lists with those of the re-embedded store."""
    return "overlap@" in task


def decide(
    strategies: Mapping[str, float],
    thresholds: Criteria,
    *,
    narrows: bool,
    of_lists: bool = False,
    share: Callable[[float], float | None] = lambda wanted: None,
) -> Verdict:
    """Apply the rule to a set of scores.

    ``share`` returns the share of the store at which re-embedding it progressively reaches a score, or None. Scores
    ``of_lists`` do not show which model is better: the old one is then kept only if its results are close enough to the
    target's and mapping brings them no closer.
    """
    keep = None if thresholds.must_move else strategies.get("keep")
    best, left = strategies.get("re-embed"), strategies.get("leave", -1.0)
    stored, queries = strategies["stored"], strategies.get("queries", -1.0)
    mapped = max(stored, queries)
    better = -1.0 if keep is None else keep + thresholds.worth
    if keep is not None and of_lists:
        if keep >= thresholds.retention and max(mapped, left) <= better:
            return Verdict("keep", wanted=better)
        keep, better = None, -1.0
    if keep is not None and best is not None and max(mapped, left, best) <= better:
        return Verdict("keep", wanted=better)
    wanted = max(better, -1.0 if best is None else thresholds.retention * best)
    if left >= wanted and mapped <= left + thresholds.worth:
        return Verdict("leave", wanted=wanted)
    if mapped >= wanted:
        # At equal scores, map the store, which completes the migration, unless this would permanently lose dimensions.
        ahead = queries - stored
        by_queries = (
            ahead > thresholds.tie or (narrows and ahead >= -thresholds.tie) or stored < wanted - thresholds.tie
        )
        return Verdict("queries" if by_queries else "map", wanted=wanted)
    part = None if best is None else share(wanted)
    if part is not None:
        return Verdict("progressive", share=part, wanted=wanted)
    # Without the target's own score, there is no evidence that re-embedding is better than the old model.
    return Verdict("re-embed" if best is not None or keep is None else "keep", wanted=wanted)


def judge(
    measured: dict[str, dict[str, Estimate]],
    drawn: dict[str, np.ndarray],
    curve: LearningCurve,
    thresholds: Criteria,
    narrows: bool,
    pairing: PairingReport,
    task: str,
    covered: dict[str, float],
    rng: np.random.Generator,
    mixed: MixedStore | None = None,
) -> Verdict:
    """Apply the rule to the scores, and to resamples of them: an action is recommended if ``SURE`` of these agree."""
    if pairing.decided and not pairing.looks_paired:
        advice = "Check that both files list the same items in the same order, or pair them by id."
        return Verdict(UNDECIDED, "undecided: the pairs look mispaired", f"{pairing.sentence} {advice}")
    of_lists = is_of_lists(task)
    values = {strategy: estimate.value for strategy, estimate in measured[task].items()}

    def rule(values: Mapping[str, float], mixtures: np.ndarray | None) -> Verdict:
        share = partial(reached, mixtures) if mixtures is not None else lambda wanted: None
        return decide(with_known(values, task), thresholds, narrows=narrows, of_lists=of_lists, share=share)

    # A separate generator, so that draws of the other strategies are the same with and without a mixed store.
    mixtures = None if mixed is None else mixed.draw(drawn, values, np.random.default_rng(len(mixed.influence)))

    def resample(multiple: float, gains: np.ndarray) -> list[Verdict]:
        """Apply the rule to resamples as they would be with this multiple of the items, and mapping better by gains."""
        shrink, found = 1 / np.sqrt(multiple), []
        mapped = {name: gains if name in ("stored", "queries") else 0.0 for name in drawn}
        scores = {name: values[name] + mapped[name] + shrink * (of - values[name]) for name, of in drawn.items()}
        stores = None
        if mixed is not None and mixtures is not None:
            stores = mixed.values + np.outer(gains, 1 - np.array(SHARES)) + shrink * (mixtures - mixed.values)
        for k, one in enumerate(zip(*scores.values(), strict=True)):
            here = dict(zip(scores, map(float, one), strict=True))
            found.append(rule(here, None if stores is None else stores[k]))
        return found

    draws = len(next(iter(drawn.values())))
    resamples = resample(1.0, np.zeros(draws))
    confidence = _shares(resamples)
    verdict = rule(values, None if mixed is None else mixed.values)
    if confidence.get(verdict.action, 0.0) < SURE:
        likely = [action for k, (action, share) in enumerate(confidence.items()) if k < 2 or share >= SUPPORTED]
        verdict = Verdict(UNDECIDED, between=likely, wanted=verdict.wanted, more=_more(resample, curve, draws, rng))
    if verdict.action == "progressive" and mixtures is not None:
        shares = [reached(store, cast("float", one.wanted)) for store, one in zip(mixtures, resamples, strict=True)]
        # The middle 95 %; None for an end at which no share was sufficient.
        ends = np.quantile([np.inf if share is None else share for share in shares], (0.025, 0.975), method="higher")
        low, high = (end if np.isfinite(end) else None for end in ends.tolist())
        verdict = replace(verdict, share_interval=(low, high))
    headline, reason = _in_words(verdict, measured, curve, task, mixed, thresholds, confidence)
    least = min(covered, key=lambda name: covered[name])
    if verdict.action in ("progressive", "re-embed", UNDECIDED) and covered[least] < WELL_COVERED:
        these, more = ("vectors'", "pairs like these rows") if least == UNNAMED else (least, f"{least} pairs")
        reason += (
            f" {1 - covered[least]:.0%} of the {these} variance lies in directions that no pair spans, so "
            f"{more} would help most."
        )
    return replace(verdict, headline=headline, reason=reason, confidence=confidence)


def _shares(verdicts: Sequence[Verdict]) -> dict[str, float]:
    """Return the share of each action, the largest first."""
    counts = Counter(one.action for one in verdicts)
    return {action: count / counts.total() for action, count in counts.most_common()}


def _more(
    resample: Callable[[float, np.ndarray], list[Verdict]],
    curve: LearningCurve,
    draws: int,
    rng: np.random.Generator,
) -> int | None:
    """Return how many further anchors, with queries in proportion, are expected to decide; None if the curve is flat,
    or even twice as many are not expected to.
    """
    if not curve.rises:
        return None
    curves = [curve.redraw(rng) for _ in range(_CURVES)]
    for multiple in FURTHER:
        n = round(curve.n * multiple)
        gains = np.resize([one.at(n) - one.at(one.n) for one in curves], draws)
        if max(_shares(resample(multiple, gains)).values()) >= SURE:
            more = max(n - curve.n, 1)
            step = 10 ** max(0, int(np.log10(more)) - 1)  # two digits, rounded up: more would suggest false precision
            return -(-more // step) * step
    return None


#: Headline and reason of each action; "keep" has one reason for each kind of evidence.
_WORDS = {
    "leave": (
        ACTIONS["leave"],
        "{named} is {left:.3f} where the new model's queries search the old vectors as they are, and {mapped:.3f} "
        "after mapping{old}; the score to reach was {wanted:.3f}.",
    ),
    "map": (ACTIONS["map"], "{got}; the score to reach was {wanted:.3f}."),
    "queries": (
        ACTIONS["queries"],
        "{named} is {queries:.3f} with mapped queries and {stored:.3f} with mapped stored vectors{after}{old}. The "
        "store does not change.",
    ),
    "progressive": (
        "map, then re-embed {share:.0%}",
        "{got}; the score to reach was {wanted:.3f}. Re-embedding {share:.0%} of the store, and refitting the map on "
        "them, is expected to reach it{sure}.{first}",
    ),
    "re-embed": (ACTIONS["re-embed"], "{got}; the score to reach was {wanted:.3f}."),
    "keep, by lists": (
        ACTIONS["keep"],
        "{got}. Mapping does not bring the results closer to those of the new model.",
    ),
    "keep": (
        ACTIONS["keep"],
        "{named} is {keep:.3f} with the old model, {best:.3f} with the new model and {mapped:.3f} after mapping: "
        "changing the model gains nothing.",
    ),
    "keep, target unknown": (
        ACTIONS["keep"],
        "{named} is {keep:.3f} with the old model and {mapped:.3f} after mapping; the score after re-embedding is "
        "unknown.",
    ),
    UNDECIDED: ("undecided between {options}", "{got}. What decides it is {question}.{items}"),
}


def _question(
    options: Sequence[str],
    measured: Mapping[str, Estimate],
    verdict: Verdict,
    thresholds: Criteria,
    named: str,
    mixed: MixedStore | None,
) -> str:
    """Return in words what decides between actions."""
    stored = measured["stored"]
    queries, best = measured.get("queries", stored), measured.get("re-embed", stored)
    mapped = max(stored, queries, key=lambda e: e.value)
    one, other = sorted(options[:2], key=list(ACTIONS).index)
    if one == "keep":
        most, old = max(mapped, best, key=lambda e: e.value), measured.get("keep")
        if old is None:
            return f"whether mapping, {mapped}, is enough"
        return f"whether the new model, {named} {most}, exceeds the old one, {old}, by {thresholds.worth:g}"
    if {one, other} == {"queries", "map"}:
        return f"whether mapped queries, {queries}, exceed mapped vectors, {stored}, by {thresholds.tie:g}"
    if one == "leave" and other in ("queries", "map"):
        left = measured["leave"]
        return f"whether mapping, {mapped}, exceeds the vectors as they are, {left}, by {thresholds.worth:g}"
    how, score = ("with mapped queries", queries) if one == "queries" else ("with mapped stored vectors", stored)
    if one == "progressive" and mixed is not None:
        how, score = "with half of the store re-embedded", mixed.at(SHARES[-1])
    elif one == "leave":
        how, score = "with the vectors as they are", measured["leave"]
    return f"whether {named} {how}, {score}, reaches the required {verdict.wanted:.3f}"


def _in_words(
    verdict: Verdict,
    measured: dict[str, dict[str, Estimate]],
    curve: LearningCurve,
    task: str,
    mixed: MixedStore | None,
    thresholds: Criteria,
    confidence: Mapping[str, float],
) -> tuple[str, str]:
    """Return headline and reason."""
    values = with_known({strategy: estimate.value for strategy, estimate in measured[task].items()}, task)
    of_lists, action = is_of_lists(task), verdict.action
    named = name_measure(task)
    strategy = "stored"
    if action != "progressive" and values.get("queries", -1.0) > values["stored"]:
        strategy = "queries"
    mapped, keep, best = max(values[strategy], 0.0), values.get("keep"), values.get("re-embed")
    old = "" if keep is None else f" (old model: {keep:.3f})"
    kept = f", {mapped / best:.0%} of the new model's {best:.3f}" if best and not of_lists else ""
    got = f"{named} is {mapped:.3f} after mapping{kept}{old}"
    # Lists and hits are two numbers: the share of identical results is told beside either.
    lists = [ways for name, ways in measured.items() if name.startswith(("text_overlap@", "overlap@"))]
    if lists and strategy in lists[-1]:
        same = f"{lists[-1][strategy].value:.0%} of the results after mapping are those of a re-embedded store"
        got = f"{same}; with partial credit for near misses, {got}" if of_lists else f"{got}; {same}"
    sure = first = items = question = ""
    if mixed is not None and action == "progressive":
        least, most = verdict.share_interval or (None, None)
        if least is not None and (most is not None or least > min(SHARES[1:])):  # else any share, or more than half
            sure = f" (95% interval: {least:.0%} to {f'{most:.0%}' if most else 'more than half'})"
        if keep is not None and not of_lists and keep > values["stored"]:
            better = reached(mixed.values, keep)
            first = f" Switch once {better:.0%} are re-embedded: until then, the old model scores higher."
    if action == "keep" and (of_lists or best is None):
        action = "keep, by lists" if of_lists else "keep, target unknown"
    if action == UNDECIDED:
        question = _question(verdict.between, measured[task], verdict, thresholds, named, mixed)
        if verdict.more is not None:
            items = f" About {verdict.more:,} more items in both models, with queries in proportion, would decide it."
    facts: dict[str, Any] = {"named": named, "got": got, "old": old, "mapped": mapped, "best": best}
    facts |= {"left": values.get("leave"), "sure": sure, "first": first, "items": items, "question": question}
    facts["options"] = " and ".join(ACTIONS[option] for option in verdict.between)
    facts["after"] = f", compared with {best:.3f} after re-embedding" if best else ""
    headline, reason = (words.format(**(values | asdict(verdict) | facts)) for words in _WORDS[action])
    return headline, reason


_SOME = 0.1  # share shown where mapping alone is enough


def strategy_costs(
    scores: dict[str, Estimate],
    mixed: MixedStore | None,
    verdict: Verdict,
    task: str,
    rows: int | None,
    encode_rate: float | None,
    price: float | None,
) -> list[dict[str, Any]]:
    """Return the strategies for changing models, the cheapest first.

    The share of ``"progressive"`` is that at which the required score is reached; one tenth if mapping alone is
    sufficient, and one half if no smaller share is.
    """
    stored, best = scores["stored"], scores.get("re-embed")
    if is_of_lists(task):
        best = Estimate(1.0, 1.0, 1.0, stored.n)
    free = {"keep": "keep", "leave": "leave", "queries": "queries", "map": "stored"}
    found: list[tuple[str, Estimate | None, float]]
    found = [(name, scores.get(key), 0.0) for name, key in free.items() if key in scores or name == "keep"]
    if mixed is not None:
        wanted = np.inf if verdict.wanted is None else verdict.wanted
        enough = _SOME if stored.value >= wanted else reached(mixed.values, wanted)
        share = SHARES[-1] if enough is None else enough
        found.append(("progressive", mixed.at(share), share))
    out: list[dict[str, Any]] = []
    for strategy, score, share in (*found, ("re-embed", best, 1.0)):
        items = 0 if share == 0 else None if rows is None else round(share * rows)
        minutes = None if items is None or encode_rate is None else items / encode_rate / 60
        cost = None if items is None or price is None else items * price
        line = {"strategy": strategy, "score": score, "share": share, "items": items}
        out.append({**line, "minutes": minutes, "price": cost})
    return out


def forecast(mixed: MixedStore, verdict: Verdict, task: str) -> dict[str, Any]:
    """Return the scores by share re-embedded, with a sentence if the verdict is that no share is enough."""
    words = ""
    if verdict.action == "re-embed" and verdict.wanted is not None:
        words = (
            "Progressive re-embedding is not expected to suffice: with half of the store re-embedded and the map "
            f"refitted, {task} would be {mixed.values[-1]:.3f}; the score to reach was {verdict.wanted:.3f}."
        )
    return {**mixed.to_dict(), "sentence": words}
