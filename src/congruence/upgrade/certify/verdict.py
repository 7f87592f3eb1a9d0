"""The rule that turns scores into a recommendation, and what each strategy costs; see docs/certify.md."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
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

ACTIONS = {
    "map": "map the stored vectors",
    "queries": "map the queries",
    "collect": "collect more anchors",
    "progressive": "map now, re-embed progressively",
    "re-embed": "re-embed",
    "keep": "keep the old model",
}


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


@dataclass(frozen=True)
class Criteria(PlainData):
    """Criteria for a sufficient map."""

    retention: float = 0.95  # smallest share of the new model's own score that mapped vectors must reach
    worth: float = 0.01  # smallest difference of scores that is worth acting on
    #: Smallest advantage of mapped queries over mapped stored vectors for which queries are mapped. Below it, mapping
    #: the store is preferred, since new items can then be added without the source model.
    tie: float = 0.03
    most_anchors: int = 5000  # largest number of further anchors that could be collected
    must_move: bool = False  # the source model will no longer be available, so keeping it is not an option

    def __post_init__(self) -> None:
        for name in ("retention", "worth", "tie", "most_anchors"):
            check_positive(getattr(self, name), name, zero=name != "retention", integer=name == "most_anchors")
        if self.retention > 1:
            raise ParameterError(
                f"Got `retention={self.retention}`; expected a share, at most 1.", "Pass `retention=0.9`, for example."
            )


@dataclass(frozen=True)
class Verdict:
    """The recommended action, and the reasons."""

    action: str  # a key of ACTIONS
    more: int | None = None  # for "collect": further anchors
    headline: str = ""  # the action in words
    reason: str = ""  # the scores that led to it, in words
    confidence: dict[str, float] = field(default_factory=dict)  # by action: share of the draws that recommend it
    share: float | None = None  # for "progressive": share of the store to re-embed
    share_interval: tuple[float | None, float | None] | None = None
    wanted: float | None = None  # the required score; None if anchors are mispaired

    @property
    def settled(self) -> bool:
        """Whether nine in ten draws agree: in simulations 62 of 63 such verdicts were correct, of others 67 of 97."""
        return self.confidence.get(self.action, 0.0) >= 0.9


def with_known(strategies: Mapping[str, float], task: str) -> dict[str, float]:
    """Add what is known without measurement: the re-embedded store returns its own result lists."""
    return {**strategies, "re-embed": 1.0} if is_of_lists(task) else dict(strategies)


def is_of_lists(task: str) -> bool:
    """Return whether a measure compares result lists with those of the re-embedded store."""
    return "overlap@" in task


def decide(
    strategies: Mapping[str, float],
    enough: Callable[[float], int | None],
    thresholds: Criteria,
    *,
    narrows: bool,
    of_lists: bool = False,
    share: Callable[[float], float | None] = lambda wanted: None,
    rows: int | None = None,
) -> Verdict:
    """Apply the rule to a set of scores.

    ``enough`` returns the number of further anchors with which mapping reaches a score, and ``share`` the share of the
    store at which progressive re-embedding does, or None. Scores ``of_lists`` do not show which model is better: the
    old one is then kept only if its results are close enough to the target's and mapping brings them no closer.
    """
    keep = None if thresholds.must_move else strategies.get("keep")
    best = strategies.get("re-embed")
    stored, queries = strategies["stored"], strategies.get("queries", -1.0)
    mapped = max(stored, queries)
    better = -1.0 if keep is None else keep + thresholds.worth
    if keep is not None and of_lists:
        if keep >= thresholds.retention and mapped <= better:
            return Verdict("keep", wanted=better)
        keep, better = None, -1.0
    if keep is not None and best is not None and max(mapped, best) <= better:
        return Verdict("keep", wanted=better)
    wanted = max(better, -1.0 if best is None else thresholds.retention * best)
    if mapped >= wanted:
        # At equal scores, map the store, which completes the migration, unless this would permanently lose dimensions.
        ahead = queries - stored
        by_queries = (
            ahead > thresholds.tie or (narrows and ahead >= -thresholds.tie) or stored < wanted - thresholds.tie
        )
        return Verdict("queries" if by_queries else "map", wanted=wanted)
    more, part = enough(wanted), None if best is None else share(wanted)
    if more is not None and (part is None or rows is None or part * rows > more):
        return Verdict("collect", more, wanted=wanted)
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
    rows: int | None = None,
) -> Verdict:
    """Apply the rule, and count in what share of draws it recommends each action."""
    if pairing.decided and not pairing.looks_paired:
        advice = "Check that both files list the same items in the same order, or pair them by id."
        headline, reason = f"collect {curve.n} anchors again", f"{pairing.sentence} {advice}"
        return Verdict("collect", curve.n, headline, reason, {"collect": 1.0})

    def rule(values: dict[str, float], curve: LearningCurve, mixtures: np.ndarray | None) -> Verdict:
        return decide(
            with_known(values, task),
            lambda wanted: curve.enough(wanted, thresholds.most_anchors),
            thresholds,
            narrows=narrows,
            of_lists=is_of_lists(task),
            share=lambda wanted: None if mixtures is None else reached(mixtures, wanted),
            rows=rows,
        )

    values = {strategy: estimate.value for strategy, estimate in measured[task].items()}
    verdict = rule(values, curve, None if mixed is None else mixed.values)
    # A separate generator, so that draws of the other strategies are the same with and without a mixed store.
    mixtures = None if mixed is None else mixed.draw(drawn, values, np.random.default_rng(len(mixed.influence)))
    curves = [curve.redraw(rng) for _ in range(_CURVES)]
    counts: Counter[str] = Counter()
    shares: list[float] = []
    for k, scores in enumerate(zip(*drawn.values(), strict=True)):
        here, shape = dict(zip(drawn, map(float, scores), strict=True)), curves[k % _CURVES]
        mixture = None if mixtures is None else mixtures[k]
        redrawn = rule(here, shape.lifted(here["stored"] - shape.at(shape.n)), mixture)
        counts[redrawn.action] += 1
        if mixture is not None and verdict.share is not None:
            share = reached(mixture, cast("float", redrawn.wanted))
            shares.append(np.inf if share is None else share)
    if shares:  # the middle 95 %; None for an end at which no share was sufficient
        ends = np.quantile(shares, (0.025, 0.975), method="higher").tolist()
        low, high = (end if np.isfinite(end) else None for end in ends)
        verdict = replace(verdict, share_interval=(low, high))
    headline, reason = _in_words(verdict, measured, curve, thresholds, task, mixed)
    least = min(covered, key=lambda name: covered[name])
    final = verdict.action in ("map", "queries") or (
        verdict.action == "keep" and ("re-embed" in values or is_of_lists(task))
    )
    if not final and covered[least] < WELL_COVERED:
        these, more = ("vectors'", "anchors like these rows") if least == UNNAMED else (least, f"{least} anchors")
        reason += (
            f" {1 - covered[least]:.0%} of the {these} variance lies in directions that no anchor covers, so "
            f"{more} would help most."
        )
    confidence = {action: count / counts.total() for action, count in counts.most_common()}
    return replace(verdict, headline=headline, reason=reason, confidence=confidence)


#: Headline and reason of each action; "keep" has one reason for each kind of evidence.
_WORDS = {
    "map": (ACTIONS["map"], "{got}; the required score was {wanted:.3f}."),
    "queries": (
        ACTIONS["queries"],
        "{named} is {queries:.3f} with mapped queries and {stored:.3f} with mapped stored vectors{after}{old}. The "
        "store does not change.",
    ),
    "collect": (
        "collect {more:,} more anchors of this kind",
        "{got}. The learning curve reaches the required {wanted:.3f} at about {total:,} anchors. Choose them with "
        "congruence lab anchors, and score the map on queries drawn at random.",
    ),
    "progressive": (
        "map now, re-embed {share:.0%} progressively",
        "{got}; the required score was {wanted:.3f}. Re-embedding the {share:.0%} of the store that the map is least "
        "sure of, and refitting the map on them, is expected to reach it{sure}.{first}",
    ),
    "re-embed": (
        ACTIONS["re-embed"],
        "{got}; the required score was {wanted:.3f}, and up to {most:,} more anchors are not expected to reach it (the "
        "learning curve levels off at {limit:.3f}).",
    ),
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
}


def _in_words(
    verdict: Verdict,
    measured: dict[str, dict[str, Estimate]],
    curve: LearningCurve,
    thresholds: Criteria,
    task: str,
    mixed: MixedStore | None,
) -> tuple[str, str]:
    """Return headline and reason."""
    values = with_known({strategy: estimate.value for strategy, estimate in measured[task].items()}, task)
    of_lists, action = is_of_lists(task), verdict.action
    named = "the graded overlap of result lists" if of_lists else _NAMED.get(task, task)
    strategy = "stored"
    if action != "progressive" and values.get("queries", -1.0) > values["stored"]:
        strategy = "queries"
    mapped, keep, best = max(values[strategy], 0.0), values.get("keep"), values.get("re-embed")
    old = "" if keep is None else f" (old model: {keep:.3f})"
    kept = f", {mapped / best:.0%} of the new model's {best:.3f}" if best and not of_lists else ""
    got = f"{named} is {mapped:.3f} after mapping{kept}{old}"
    if of_lists:  # state the share of identical results, which is easier to understand than the graded score
        got = (
            f"{measured[task.removeprefix('graded_')][strategy].value:.0%} of the results after mapping are those of a "
            f"re-embedded store; with partial credit for near misses, {got}"
        )
    sure = first = ""
    if mixed is not None and action == "progressive":
        least, most = verdict.share_interval or (None, None)
        if least is not None and (most is not None or least > min(SHARES[1:])):  # else any share, or more than half
            sure = f" (95% interval: {least:.0%} to {f'{most:.0%}' if most else 'more than half'})"
        if keep is not None and not of_lists and keep > values["stored"]:
            better = reached(mixed.values, keep)
            first = f" Switch once {better:.0%} are re-embedded: until then, the old model scores higher."
    if action == "keep" and (of_lists or best is None):
        action = "keep, by lists" if of_lists else "keep, target unknown"
    facts = {**values, **asdict(verdict), "named": named, "got": got, "old": old, "mapped": mapped, "best": best}
    facts |= {"sure": sure, "first": first, "total": curve.n + (verdict.more or 0), "limit": curve.best}
    facts |= {
        "after": f", compared with {best:.3f} after re-embedding" if best else "",
        "most": thresholds.most_anchors,
    }
    headline, reason = (words.format(**facts) for words in _WORDS[action])
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
    found: list[tuple[str, Estimate | None, float]] = [("keep", scores.get("keep"), 0.0), ("map", stored, 0.0)]
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
            f"refitted, {task} would be {mixed.values[-1]:.3f}; the required score was {verdict.wanted:.3f}."
        )
    return {**mixed.to_dict(), "sentence": words}
