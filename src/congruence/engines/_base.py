"""The interface of every engine: run a function on every fragment, return results in any order, and survive failing workers."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import congruence.errors as errors
from congruence.engines.dataset import Fragment
from congruence.errors import CongruenceError

#: From a fragment to plain data that JSON can hold; it can be pickled and may be called twice for a fragment.
Work: TypeAlias = Callable[[Fragment], Mapping[str, object]]

#: From a fragment to bytes, and from the bytes of some fragments to those of all of them.
Measure: TypeAlias = Callable[[Fragment], bytes]
Merge: TypeAlias = Callable[[Sequence[bytes]], bytes]


class Engine(ABC):
    """Runs a function on every fragment, here or on other machines.

    Attributes
    ----------
    name : str
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
            What the work raises about its data: the first such error ends the job.
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
        """


class Guarded:
    """A piece of work whose errors come back as plain data: engines wrap what is raised into types and texts of their own.

    Parameters
    ----------
    work : callable
    """

    def __init__(self, work: Callable[[Fragment], object]) -> None:
        self.work = work

    def __call__(self, fragment: Mapping[str, object]) -> dict[str, object]:
        """Return ``{"value": …}``, or the type and message of an error about the data."""
        try:
            return {"value": self.work(Fragment.from_dict(fragment))}
        except CongruenceError as error:
            return {"error": type(error).__name__, "message": str(error), "fragment": fragment["name"]}


def unwrap(result: Mapping[str, Any]) -> Any:
    """Return the value of a guarded piece of work, or raise its error with the name of the fragment. Raises CongruenceError."""
    if "error" not in result:
        return result["value"]
    kind = getattr(errors, result["error"], CongruenceError)
    raise kind(f"{result['message']} The fragment is {result['fragment']}.")


def as_item(fragment: Fragment) -> dict[str, str]:
    """Return a fragment as one cell of text, which every engine's tables can hold."""
    return {"fragment": json.dumps(fragment.to_dict())}
