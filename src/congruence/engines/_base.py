"""The interface of every engine: run a function on every fragment, yield the results in any order, and survive failing workers."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import congruence.errors as errors
from congruence.engines.dataset import Fragment
from congruence.errors import CongruenceError

#: Function from a fragment to plain data that JSON can represent; must be picklable, and may be called twice for a fragment.
Work: TypeAlias = Callable[[Fragment], Mapping[str, object]]

#: Function from a fragment to bytes, and function that merges such bytes.
Measure: TypeAlias = Callable[[Fragment], bytes]
Merge: TypeAlias = Callable[[Sequence[bytes]], bytes]


class Engine(ABC):
    """Runs a function on every fragment, in this process or on other machines.

    Attributes
    ----------
    name : str
        Name of the engine, for reports.
    """

    name: str

    @abstractmethod
    def run(self, work: Work, fragments: Sequence[Fragment]) -> Iterator[dict[str, Any]]:
        """Yield the function's result for each fragment as it is finished.

        Parameters
        ----------
        work : callable
            Takes a :class:`Fragment`, returns plain data.
        fragments : sequence of Fragment

        Raises
        ------
        CongruenceError
            If the work raises one for a fragment; the first such error ends the job.
        """

    @abstractmethod
    def reduce(self, measure: Measure, merge: Merge, fragments: Sequence[Fragment]) -> bytes:
        """Measure every fragment and merge the results in a tree whose shape depends on the number of fragments alone.

        Parameters
        ----------
        measure : callable
            Takes a :class:`Fragment`, returns bytes.
        merge : callable
            Takes a list of such bytes in the order of their fragments, returns bytes.
        fragments : sequence of Fragment

        Raises
        ------
        CongruenceError
            If ``measure`` or ``merge`` raises one; the first such error ends the job.
        """


class Guarded:
    """A function whose errors are returned as plain data, because engines replace exceptions by their own types and messages."""

    def __init__(self, work: Callable[[Fragment], object]) -> None:
        self.work = work

    def __call__(self, fragment: Mapping[str, object]) -> dict[str, object]:
        """Return ``{"value": …}``, or the type and message of a CongruenceError, and the name of the fragment."""
        try:
            return {"value": self.work(Fragment.from_dict(fragment))}
        except CongruenceError as error:
            return {"error": type(error).__name__, "message": str(error), "fragment": fragment["name"]}


def unwrap(result: Mapping[str, Any]) -> Any:
    """Return the value of a :class:`Guarded` function, or raise its error with the name of the fragment. Raises CongruenceError."""
    if "error" not in result:
        return result["value"]
    kind = getattr(errors, result["error"], CongruenceError)
    raise kind(f"{result['message']} The fragment is {result['fragment']}.")


def as_item(fragment: Fragment) -> dict[str, str]:
    """Return a fragment as a row with one text, which the tables of every engine can represent."""
    return {"fragment": json.dumps(fragment.to_dict())}
