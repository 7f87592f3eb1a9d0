"""Ray Data as an engine (extra ``ray``): one task per fragment, on one machine or a cluster."""

from __future__ import annotations

import json
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from congruence._utils.optional import require
from congruence.engines._base import Engine, Guarded, Measure, Merge, Work, as_item, unwrap
from congruence.engines.dataset import Fragment

__all__ = ["RayEngine"]

#: Number of results merged at a time.
FAN_IN = 16


class RayEngine(Engine):
    """Runs one task of Ray Data per fragment.

    Workers receive only the description of a fragment: rows never pass through the driver or Ray's object store. A task whose worker dies is
    run again.

    Parameters
    ----------
    address : str, optional
        Address of a running cluster: ``auto``, ``host:port`` or ``ray://host:port``; by default that in ``RAY_ADDRESS``, or else a new cluster
        on this machine, which ends with the process. If the process is already connected to a cluster, that cluster is used.
    workers : int, optional
        Maximum number of concurrent tasks; for a cluster that is started here, also its number of cores.
    gpus : float, default=0
        Number or share of GPUs that a task requests; Ray hides GPUs that a task has not requested.
    retries : int, default=10
        Number of times that a fragment is repeated after its worker died.
    """

    name = "ray"

    def __init__(
        self, address: str | None = None, *, workers: int | None = None, gpus: float = 0, retries: int = 10
    ) -> None:
        self.address, self.workers, self.gpus, self.retries = address, workers, gpus, retries

    def run(self, work: Work, fragments: Sequence[Fragment]) -> Iterator[dict[str, Any]]:
        """Yield the result for each fragment; see :meth:`Engine.run`."""
        self._connect()
        call = Guarded(work)

        def task(row: dict[str, str]) -> dict[str, str]:
            return {"result": json.dumps(call(json.loads(row["fragment"])))}

        for row in self._tasks(task, fragments, in_order=False).iter_rows():
            yield dict(unwrap(json.loads(row["result"])))

    def reduce(self, measure: Measure, merge: Merge, fragments: Sequence[Fragment]) -> bytes:
        """Measure every fragment and merge the results; see :meth:`Engine.reduce`."""
        self._connect()
        call = Guarded(measure)

        def task(row: dict[str, str]) -> dict[str, Any]:
            result = call(json.loads(row["fragment"]))
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
            unwrap(json.loads(row["error"]))
        value: bytes = row["value"]
        return value

    def _tasks(
        self, task: Callable[[dict[str, str]], Mapping[str, Any]], fragments: Sequence[Fragment], *, in_order: bool
    ) -> Any:
        self._connect()
        import ray.data

        logging.getLogger("ray.data").setLevel(logging.ERROR)
        context = ray.data.DataContext.get_current()
        context.enable_progress_bars = False
        context.execution_options.preserve_order = in_order
        items = ray.data.from_items([as_item(fragment) for fragment in fragments], override_num_blocks=len(fragments))
        return items.map(task, **self._options())

    def _options(self) -> dict[str, Any]:
        import ray.data

        retries = self.retries
        # Ray Data has no parameter for this argument of tasks; its default is to retry without limit.
        options: dict[str, Any] = {"num_cpus": 1, "ray_remote_args_fn": lambda: {"max_retries": retries}}
        if self.gpus:
            options["num_gpus"] = self.gpus
            # Without this, Ray ends a worker after one task with a GPU, and the next worker loads the model again.
            options["max_calls"] = 0
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
    """Restore the handler of SIGTERM, which ``ray.init`` replaces: with it, a command that is stopped reports what it has written."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)
