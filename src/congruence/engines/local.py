"""An engine that processes the fragments one after the other in the calling process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from congruence.engines._base import Engine, Guarded, Measure, Merge, Work, unwrap
from congruence.engines.dataset import Fragment


#: Number of results merged at a time.
FAN_IN = 16


class LocalEngine(Engine):
    """Runs everything in this process and needs no other package: for data sets in object storage, and for trying out a job."""

    name = "local"

    def run(self, work: Work, fragments: Sequence[Fragment]) -> Iterator[dict[str, Any]]:
        """Yield the result for each fragment, in order; see :meth:`Engine.run`."""
        guarded = Guarded(work)
        for fragment in fragments:
            yield dict(unwrap(guarded(fragment.to_dict())))

    def reduce(self, measure: Measure, merge: Merge, fragments: Sequence[Fragment]) -> bytes:
        """Measure every fragment and merge the results; see :meth:`Engine.reduce`."""
        guarded = Guarded(measure)
        levels: list[list[bytes]] = [
            []
        ]  # like the digits of a counter: a full level is merged into one result of the next level
        for fragment in fragments:
            levels[0].append(unwrap(guarded(fragment.to_dict())))
            for k in range(len(levels)):
                if len(levels[k]) == FAN_IN:
                    if k + 1 == len(levels):
                        levels.append([])
                    levels[k + 1].append(merge(levels[k]))
                    levels[k] = []
        merged: list[bytes] = []
        for level in levels:
            merged = [merge([*level, *merged])] if level or merged else []
        return merged[0]
