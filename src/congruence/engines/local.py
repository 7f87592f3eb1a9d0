"""An engine that processes one fragment after the other in the calling process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from congruence.engines._base import Engine, Guarded, Measure, Merge, Work, unwrap
from congruence.engines.dataset import Fragment

__all__ = ["LocalEngine"]

#: Number of results merged at a time.
FAN_IN = 16


class LocalEngine(Engine):
    """Runs everything in this process, without any other package: for data sets in object storage, and for trying out a job."""

    name = "local"

    def run(self, work: Work, fragments: Sequence[Fragment]) -> Iterator[dict[str, Any]]:
        """Yield the result for each fragment, in order; see :meth:`Engine.run`."""
        guarded = Guarded(work)
        for one in fragments:
            yield dict(unwrap(guarded(one.to_dict())))

    def reduce(self, measure: Measure, merge: Merge, fragments: Sequence[Fragment]) -> bytes:
        """Measure every fragment and merge the results; see :meth:`Engine.reduce`."""
        guarded = Guarded(measure)
        level: list[list[bytes]] = [[]]
        for one in fragments:
            level[0].append(unwrap(guarded(one.to_dict())))
            for k in range(
                len(level)
            ):  # like the digits of a counter: a full level is merged into one result of the next
                if len(level[k]) == FAN_IN:
                    if k + 1 == len(level):
                        level.append([])
                    level[k + 1].append(merge(level[k]))
                    level[k] = []
        rest: list[bytes] = []
        for place in level:
            rest = [merge([*place, *rest])] if place or rest else []
        return rest[0]
