"""Engines run a function on every part of a job, here or with Ray (extra ``ray``), and yield results in any order."""

from __future__ import annotations

import json
import logging
import os
import signal
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import congruence.errors as errors
from congruence._utils.optional import require
from congruence.errors import CongruenceError

#: A part of a job that has a ``name``: a fragment of a data set, or a range of a table's rows; a dataclass or a named
#: tuple of values that JSON can represent, which is how it gets to a worker.
Part: TypeAlias = Any

#: Function from a part to plain data that JSON can represent; must be picklable, and may be called twice for a part.
Work: TypeAlias = Callable[[Part], Mapping[str, object]]

Measure: TypeAlias = Callable[[Part], bytes]  # function from a part to bytes, and function that merges such bytes
Merge: TypeAlias = Callable[[Sequence[bytes]], bytes]

FAN_IN = 16  # number of results merged at a time


class Engine(ABC):
    """Runs a function on every fragment, in this process or on other machines; ``name`` is for reports."""

    name: str

    @abstractmethod
    def run(self, work: Work, fragments: Sequence[Part]) -> Iterator[dict[str, Any]]:
        """Yield the work's result for each fragment as it is finished; the first CongruenceError ends the job."""

    @abstractmethod
    def reduce(self, measure: Measure, merge: Merge, fragments: Sequence[Part]) -> bytes:
        """Measure every fragment, and merge in their order, in a tree whose shape depends on their number alone."""


def _pack(part: Part) -> str:
    """Return a part as JSON, from which a worker builds it again."""
    return json.dumps(part._asdict() if hasattr(part, "_asdict") else vars(part))


class _Guarded:
    """A function of packed parts whose errors are plain data, because engines replace exceptions by their own."""

    def __init__(self, work: Callable[[Part], object], parts: Sequence[Part]) -> None:
        self.work, self.kind = work, next(map(type, parts), object)

    def __call__(self, packed: str) -> dict[str, object]:
        """Return ``{"value": …}``, or the type and message of a CongruenceError, and the name of the part."""
        part = self.kind(**json.loads(packed))
        try:
            return {"value": self.work(part)}
        except CongruenceError as error:
            return {"error": type(error).__name__, "message": str(error), "fragment": part.name}


def _unwrap(result: Mapping[str, Any]) -> Any:
    """Return the value of a ``_Guarded`` function, or raise its error with the name of the fragment."""
    if "error" not in result:
        return result["value"]
    kind = getattr(errors, result["error"], CongruenceError)
    raise kind(f"{result['message']} The fragment is {result['fragment']}.")


class LocalEngine(Engine):
    """Runs everything in this process: for data sets in object storage, and for trying out a job."""

    name = "local"

    def run(self, work: Work, fragments: Sequence[Part]) -> Iterator[dict[str, Any]]:
        """Yield the result for each fragment, in order."""
        guarded = _Guarded(work, fragments)
        return (dict(_unwrap(guarded(_pack(fragment)))) for fragment in fragments)

    def reduce(self, measure: Measure, merge: Merge, fragments: Sequence[Part]) -> bytes:
        """Measure and merge in the tree in which Ray merges, depth first, so that few results are in memory."""
        guarded = _Guarded(measure, fragments)

        def tree(parts: Sequence[Part], width: int) -> bytes:
            if width == 1:
                value: bytes = _unwrap(guarded(_pack(parts[0])))
                return value
            step = width // FAN_IN
            return merge([tree(parts[k : k + step], step) for k in range(0, len(parts), step)])

        width = 1
        while width < len(fragments):
            width *= FAN_IN
        return tree(fragments, width)


class RayEngine(Engine):
    """Runs one task of Ray Data per fragment; a task whose worker dies is run again, ``retries`` times.

    Workers receive only the description of a fragment: rows never pass through the driver or Ray's object store.
    ``address`` is that of a running cluster (``auto``, ``host:port`` or ``ray://host:port``), by default
    ``RAY_ADDRESS``, or else a new cluster on this machine. ``workers`` is the number of concurrent tasks, and of cores
    of such a cluster; ``gpus``, the number or share of GPUs of a task.
    """

    name = "ray"

    def __init__(
        self, address: str | None = None, *, workers: int | None = None, gpus: float = 0, retries: int = 10
    ) -> None:
        self.address, self.workers, self.gpus, self.retries = address, workers, gpus, retries

    def run(self, work: Work, fragments: Sequence[Part]) -> Iterator[dict[str, Any]]:
        """Yield the result for each fragment as it is finished."""
        self._connect()
        call = _Guarded(work, fragments)

        def task(row: dict[str, Any]) -> dict[str, str]:
            return {"result": json.dumps(call(row["fragment"]))}

        for row in self._tasks(task, fragments, in_order=False).iter_rows():
            yield dict(_unwrap(json.loads(row["result"])))

    def reduce(self, measure: Measure, merge: Merge, fragments: Sequence[Part]) -> bytes:
        """Measure every fragment, and merge ``FAN_IN`` results at a time until one is left."""
        self._connect()
        call = _Guarded(measure, fragments)

        def task(row: dict[str, Any]) -> dict[str, Any]:
            result = call(row["fragment"])
            return {"value": result.pop("value", b""), "error": json.dumps(result) if result else ""}

        def join(batch: Any) -> dict[str, Any]:
            error = next((text for text in batch["error"] if text), "")
            return {"value": [b"" if error else merge(list(batch["value"]))], "error": [error]}

        results = self._tasks(task, fragments, in_order=True)
        count = len(fragments)
        while count > 1:
            results = results.map_batches(join, batch_size=FAN_IN, **self._options())
            count = -(-count // FAN_IN)
        (row,) = results.take_all()
        if row["error"]:
            _unwrap(json.loads(row["error"]))
        value: bytes = row["value"]
        return value

    def _tasks(
        self, task: Callable[[dict[str, Any]], Mapping[str, Any]], fragments: Sequence[Part], *, in_order: bool
    ) -> Any:
        import ray.data

        logging.getLogger("ray.data").setLevel(logging.ERROR)
        context = ray.data.DataContext.get_current()
        context.enable_progress_bars = False
        context.execution_options.preserve_order = in_order
        rows = [{"fragment": _pack(fragment)} for fragment in fragments]
        return ray.data.from_items(rows, override_num_blocks=len(rows)).map(task, **self._options())

    def _options(self) -> dict[str, Any]:
        import ray.data

        retries = self.retries
        # Ray Data has no parameter for this argument of tasks; its default is to retry without limit.
        options: dict[str, Any] = {"num_cpus": 1, "ray_remote_args_fn": lambda: {"max_retries": retries}}
        if self.gpus:
            # Without max_calls, Ray ends a worker after one task with a GPU, and the next one loads the model again.
            options |= {"num_gpus": self.gpus, "max_calls": 0}
        if self.workers is not None:
            options["compute"] = ray.data.TaskPoolStrategy(size=self.workers)
        return options

    def _connect(self) -> None:
        ray = require("ray", extra="ray")
        if not ray.is_initialized():
            address = self.address or os.environ.get("RAY_ADDRESS") or "local"
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            options = {"include_dashboard": False, "num_cpus": self.workers} if address == "local" else {}
            with _keep_sigterm():
                ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False, **options)


@contextmanager
def _keep_sigterm() -> Iterator[None]:
    """Restore the handler of SIGTERM, which ``ray.init`` replaces, so that a stopped command reports."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)
