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
from congruence._utils.process import runs_command
from congruence.engines._base import Engine, Guarded, Measure, Merge, Work, as_item, unwrap
from congruence.engines.dataset import Fragment

__all__ = ["RayEngine"]

#: Results that are merged at a time.
FAN_IN = 16


class RayEngine(Engine):
    """Runs a task of Ray Data for every fragment.

    Fragments go to workers by name: rows never pass the driver or Ray's object store. A task whose worker dies is run again.

    Parameters
    ----------
    address : str, optional
        Of a running cluster: ``auto``, ``host:port`` or ``ray://host:port``; by default what ``RAY_ADDRESS`` says, or else a cluster of
        this machine that ends with the process. A connection that the process has is used as it is.
    workers : int, optional
        Most tasks at a time; of a cluster that is started here also its cores.
    gpus : float, default=0
        Share of a GPU that a task asks for; Ray shows a task no GPU that it did not ask for.
    retries : int, default=10
        How often a fragment is begun again after the death of its worker.
    """

    name = "ray"

    def __init__(
        self, address: str | None = None, *, workers: int | None = None, gpus: float = 0, retries: int = 10
    ) -> None:
        self.address, self.workers, self.gpus, self.retries = address, workers, gpus, retries

    def run(self, work: Work, fragments: Sequence[Fragment]) -> Iterator[dict[str, Any]]:
        """Yield what the work returns of each fragment; see :meth:`Engine.run`."""
        self._connect()
        call = _sent(Guarded(work))

        def task(row: dict[str, str]) -> dict[str, str]:
            return {"result": json.dumps(call(json.loads(row["fragment"])))}

        for row in self._tasks(task, fragments, in_order=False).iter_rows():
            yield dict(unwrap(json.loads(row["result"])))

    def reduce(self, measure: Measure, merge: Merge, fragments: Sequence[Fragment]) -> bytes:
        """Measure every fragment and merge the results; see :meth:`Engine.reduce`."""
        self._connect()
        call = _sent(Guarded(measure))

        def task(row: dict[str, str]) -> dict[str, Any]:
            found = call(json.loads(row["fragment"]))
            return {"value": found.pop("value", b""), "error": json.dumps(found) if found else ""}

        def join(batch: Any) -> dict[str, Any]:
            error = next((text for text in batch["error"] if text), "")
            return {"value": [b"" if error else merge(list(batch["value"]))], "error": [error]}

        found = self._tasks(task, fragments, in_order=True)
        left = len(fragments)
        while left > 1:
            found = found.map_batches(join, batch_size=FAN_IN, **self._options())
            left = -(-left // FAN_IN)
        (row,) = found.take_all()
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
        items = ray.data.from_items([as_item(one) for one in fragments], override_num_blocks=len(fragments))
        return items.map(task, **self._options())

    def _options(self) -> dict[str, Any]:
        import ray.data

        retries = self.retries
        # Arguments of Ray's tasks that its data sets have no parameter for; their own default is to try for ever.
        options: dict[str, Any] = {"num_cpus": 1, "ray_remote_args_fn": lambda: {"max_retries": retries}}
        if self.gpus:
            options["num_gpus"] = self.gpus
            # Ray ends a worker after one task with a GPU, and the next would load the model again.
            options["max_calls"] = 0
        if self.workers is not None:
            options["compute"] = ray.data.TaskPoolStrategy(size=self.workers)
        return options

    def _connect(self) -> None:
        ray = require("ray", extra="ray")
        if not ray.is_initialized():
            address = self.address or os.environ.get("RAY_ADDRESS") or "local"
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            own = {"include_dashboard": False, "num_cpus": self.workers} if address == "local" else {}
            with _own_signals():
                ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False, **own)


@contextmanager
def _own_signals() -> Iterator[None]:
    """Keep what SIGTERM does in this process: ``ray.init`` overwrites it, and a command that is stopped says what it had written."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


def _sent(guarded: Guarded) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Return a function that workers unpack on its first call, so that those of a command do without scikit-learn as it does itself.

    A worker of Ray serves one driver. Importing scikit-learn takes it as long as mapping some 50,000 rows.
    """
    import ray.cloudpickle

    content, alone = ray.cloudpickle.dumps(guarded), runs_command()
    kept: list[Any] = []

    def call(fragment: dict[str, Any]) -> dict[str, Any]:
        if not kept:
            import ray.cloudpickle

            if alone:
                from congruence._utils.process import start_command

                start_command()
            kept.append(ray.cloudpickle.loads(content))
        found: dict[str, Any] = kept[0](fragment)
        return found

    return call
