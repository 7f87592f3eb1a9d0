"""From measured scores to one thing to do. The rule is written out in docs/certify.md."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from congruence._utils.validation import check_positive
from congruence.errors import ParameterError

__all__ = ["ACTIONS", "Decision", "Thresholds", "decide", "is_of_lists", "with_known"]

ACTIONS = {
    "map": "map the stored vectors",
    "queries": "map the queries",
    "collect": "collect more anchors",
    "re-embed": "re-embed",
    "keep": "keep the old model",
}


@dataclass(frozen=True)
class Thresholds:
    """What counts as good enough.

    Attributes
    ----------
    retention : float, default=0.95
        Least share of the target model's own score that mapped vectors must reach.
    worth : float, default=0.01
        Smallest difference of scores worth acting on.
    tie : float, default=0.03
        Least advantage of mapped queries over mapped stored vectors that keeps the store as it is: below, mapping the
        store is preferred, since new items can then join it without the source model.
    most_anchors : int, default=5000
        Most further anchors that could be collected.
    must_move : bool, default=False
        The source model goes away, so keeping it is no choice.

    Raises
    ------
    ParameterError
    """

    retention: float = 0.95
    worth: float = 0.01
    tie: float = 0.03
    most_anchors: int = 5000
    must_move: bool = False

    def __post_init__(self) -> None:
        check_positive(self.retention, "retention")
        check_positive(self.worth, "worth", zero=True)
        check_positive(self.tie, "tie", zero=True)
        check_positive(self.most_anchors, "most_anchors", zero=True, integer=True)
        if self.retention > 1:
            raise ParameterError(
                f"Got retention={self.retention}; expected a share of the target's own score, at most 1. Pass retention=0.9, for example."
            )

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain data."""
        return asdict(self)


@dataclass(frozen=True)
class Decision:
    """What to do.

    Attributes
    ----------
    action : str
        A key of :data:`ACTIONS`.
    more : int or None
        For ``"collect"``: how many.
    wanted : float
        Score that mapping had to reach.
    """

    action: str
    more: int | None
    wanted: float


def with_known(ways: dict[str, float], task: str) -> dict[str, float]:
    """Add what needs no measurement: the re-embedded store returns its own neighbors, and an item finds itself in it."""
    return {**ways, "re-embed": 1.0} if task == "own@1" or is_of_lists(task) else ways


def is_of_lists(task: str) -> bool:
    """Say whether a measure compares result lists with those of the re-embedded store."""
    return "overlap@" in task


def decide(
    ways: dict[str, float],
    enough: Callable[[float], int | None],
    thresholds: Thresholds,
    *,
    narrows: bool,
    of_lists: bool = False,
) -> Decision:
    """Apply the rule.

    Parameters
    ----------
    ways : dict of str to float
        Score of each way to search that was measured: ``"stored"``, and ``"queries"``, ``"keep"`` and ``"re-embed"`` where the
        data tell.
    enough : callable
        From a score to the number of further anchors that reach it by mapping, or None.
    thresholds : Thresholds
    narrows : bool
        The target has fewer dimensions, so mapped vectors cannot be mapped back.
    of_lists : bool, default=False
        The scores are overlaps with the re-embedded store, which say how alike models are, and not which is better: the old model
        is kept only if its own results are as near to the target's as they need to be, and mapping brings them no nearer.

    Returns
    -------
    Decision
    """
    keep = None if thresholds.must_move else ways.get("keep")
    best = ways.get("re-embed")
    stored, queries = ways["stored"], ways.get("queries", -1.0)
    mapped = max(stored, queries)
    if of_lists and keep is not None:
        if keep >= thresholds.retention and mapped <= keep + thresholds.worth:
            return Decision("keep", None, keep + thresholds.worth)
        keep = None
    if (
        keep is not None
        and max(mapped, best if best is not None else mapped) <= keep + thresholds.worth
        and best is not None
    ):
        return Decision("keep", None, keep + thresholds.worth)
    wanted = -1.0
    if best is not None:
        wanted = thresholds.retention * best
    if keep is not None:
        wanted = max(wanted, keep + thresholds.worth)
    if mapped >= wanted:
        # At equal scores mapping the store completes the change, unless that would lose dimensions for good.
        ahead = queries - stored
        by_queries = (
            ahead > thresholds.tie or (narrows and ahead >= -thresholds.tie) or stored < wanted - thresholds.tie
        )
        return Decision("queries" if by_queries else "map", None, wanted)
    more = enough(wanted)
    if more is not None:
        return Decision("collect", more, wanted)
    # Without the target's own score nothing says that re-embedding is better than what there is.
    return Decision("re-embed" if best is not None or keep is None else "keep", None, wanted)
