"""Estimate time, cost and bottlenecks of mapping very many rows, from rates measured on this machine."""

from __future__ import annotations

import math
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa

from congruence.embeddings import Space
from congruence.io.dataset import FRAGMENT_BYTES, open_dataset
from congruence.io.jobs import MOST_RECEIPTS, SECONDS, write_file
from congruence.io.locations import READ_BYTES, Location
from congruence.io.tables import TableLayout
from congruence.maps import OrthogonalMap
from congruence.upgrade.transform import BlockMap

_MEASURED_BYTES = 64 * 2**20  # bytes of source vectors on which rates are measured
PART_BYTES = 10 * 2**20  # size in bytes of one part of an upload by Arrow

#: Requests per second that S3 serves for one prefix (AWS, "Best practices design patterns: optimizing S3 performance").
_GETS, _PUTS = 5500, 3500

#: Bytes that the driver keeps per fragment: its entries in the plan and in Ray's task table, and its receipt. An
#: estimate, above what tests/engines measures for the plan and the receipts.
DRIVER_BYTES = 8192


@dataclass(frozen=True)
class Rates:
    """Rows that one core reads, multiplies and writes per second of processor time."""

    read: float
    product: float
    write: float
    place: str  # folder or URL that was read from and written to
    # Seconds of waiting for the storage per second of processor time; 0 if it is faster than the core
    wait: float = 0.0

    @property
    def rows(self) -> float:
        """Rows per second of one core that does all three."""
        return 1 / (1 / self.read + 1 / self.product + 1 / self.write)


@dataclass(frozen=True)
class Machines:
    """The machines that a job runs on, and their prices."""

    count: int = 16
    cores: int = 16  # of each machine
    memory: float = 64.0  # of each machine, in GB
    network: float = 10.0  # bandwidth of each machine, in Gbit per second
    price: float = 0.0  # of one machine per hour
    get_price: float = 0.0004  # of 1,000 reads from the object store
    put_price: float = 0.005  # of 1,000 writes to it
    driver_memory: float = 4.0  # that the driver may use, in GB
    lost: float = 0.05  # share of the work that is repeated after failures and preemption


def measure_rates(
    dim: int, dim_out: int, *, dtype: str = "float32", where: str | None = None, repeats: int = 3
) -> Rates:
    """Measure how fast one core reads, multiplies and writes rows, as a task does; the fastest of ``repeats`` counts.

    ``where``: folder or URL to read from and write to; a temporary folder by default.
    """
    from threadpoolctl import threadpool_limits

    rng = np.random.default_rng(0)
    n = max(1000, _MEASURED_BYTES // (dim * np.dtype(dtype).itemsize))
    X = rng.standard_normal((n, dim), dtype=np.float32).astype(dtype)
    pairs = 2 * max(dim, dim_out)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mapping = OrthogonalMap(shrinkage="full")
        mapping.fit(rng.standard_normal((pairs, dim)), rng.standard_normal((pairs, dim_out)))
    function = BlockMap(mapping, Space(dim=dim), dtype, check=False, normalize=False)
    block = function.rows_of_block()
    with tempfile.TemporaryDirectory() as temporary, threadpool_limits(1):
        home = Location.of(where or temporary).child("congruence-plan")
        try:
            _write(home.child("in.parquet"), X)
            data = open_dataset(home.uri)
            read = _time(lambda: list(data.open(data.fragments[0]).scan_table(0, block)), repeats)
            out = function(X[:block])
            product = _time(lambda: [function(X[k : k + block]) for k in range(0, n, block)], repeats)
            wide = np.resize(out, (n, dim_out)).astype(dtype)
            write = _time(lambda: _write(home.child("out.parquet"), wide), repeats)
        finally:
            home.remove()
    wait = max(0.0, (read[1] + write[1]) / (read[0] + write[0]) - 1)
    return Rates(n / read[0], n / product[0], n / write[0], where or "a temporary folder", wait)


def _time(run: Callable[[], object], repeats: int) -> tuple[float, float]:
    """Return the smallest processor time and the smallest elapsed time."""
    times = []
    for _ in range(repeats):
        clock, processor = time.perf_counter(), time.process_time()
        run()
        times.append((time.process_time() - processor, time.perf_counter() - clock))
    busy, elapsed = (max(min(kind), 1e-9) for kind in zip(*times, strict=True))
    return busy, elapsed


def _write(place: Location, X: np.ndarray) -> None:
    layout = TableLayout(None, dim=X.shape[1], dtype=X.dtype, has_ids=True, id_type=pa.int64(), path=place.shown)
    starts = range(0, len(X), 4096)
    batches = (layout.fill(pa.array(np.arange(k, min(k + 4096, len(X)))), X[k : k + 4096]) for k in starts)
    write_file(place, layout.schema, batches, **layout.parquet_options())


def plan_rows(
    rows: int,
    dim: int,
    dim_out: int,
    *,
    rates: Rates,
    machines: Machines,
    dtype: str = "float32",
    payload: float = 8.0,
    fragment_bytes: int = FRAGMENT_BYTES,
) -> dict[str, Any]:
    """Estimate the work, time and cost of mapping a number of rows, as plain data.

    ``payload``: bytes per row in addition to its vector; ``fragment_bytes``: size of a fragment before it is mapped.
    ``bound`` says what limits the speed, "cores" or "network"; ``checks`` has the ``share`` that the job takes of each
    limit, the largest first, and what to do above 1.

    Notes
    -----
    Work: N / rate · (1 + lost) core-hours, distributed evenly. Requests: for each fragment, two reads for the footer,
    one for each 16 MB of the vectors and one for the ids; one write for each 10 MB of output, and two to
    begin and end the upload. For the journal, one write for each 256 receipts or 20 s, and two more. Two listings for
    each 1,000 files. Index: a graph with 32 links of 4 bytes per row, in memory with the float32 vectors.
    """
    item = np.dtype(dtype).itemsize
    bytes_in, bytes_out = rows * (dim * item + payload), rows * (dim_out * item + payload)
    fragments = math.ceil(bytes_in / fragment_bytes)
    again = 1 + machines.lost
    core_hours = rows / rates.rows / 3600 * again
    by_cores = core_hours / min(machines.count * machines.cores, fragments) * (1 + rates.wait)
    by_network = (bytes_in + bytes_out) * again * 8 / (machines.count * machines.network * 1e9) / 3600
    hours = max(by_cores, by_network)
    per_in, per_out = bytes_in / fragments, bytes_out / fragments
    gets = math.ceil(fragments * again * (3 + math.ceil(per_in / READ_BYTES)))
    segments = max(math.ceil(fragments / MOST_RECEIPTS), min(fragments, math.ceil(hours * 3600 / SECONDS)))
    puts = math.ceil(fragments * again * (2 + math.ceil(per_out / PART_BYTES))) + segments + 2
    lists = 2 * math.ceil(fragments / 1000)
    driver, each, index = 0.5e9 + fragments * DRIVER_BYTES, machines.cores * (per_out + 3e8), rows * (dim_out * 4 + 128)
    loads = [
        ("reads of an object store, per prefix", gets / hours / 3600, _GETS, "requests/s",
         "Spread the files over several prefixes."),
        ("writes to an object store, per prefix", (puts + lists) / hours / 3600, _PUTS, "requests/s",
         "Make fragments larger, or write under several prefixes."),
        ("memory of the driver", driver / 1e9, machines.driver_memory, "GB",
         "Make fragments larger, or split the data set into several jobs."),
        ("memory of a machine", each / 1e9, machines.memory, "GB",
         "Make fragments smaller, or run fewer tasks per machine (--workers)."),
        ("memory of the machines for a rebuilt graph index", index / 1e9, machines.count * machines.memory, "GB",
         "Quantize the index, shard it over more machines, or keep the old one with a bridge."),
    ]  # fmt: skip
    checks = [
        {"name": name, "load": load, "limit": limit, "unit": unit, "advice": advice, "share": load / limit}
        for name, load, limit, unit, advice in loads
    ]
    return {
        "rows": rows,
        "dim": dim,
        "dim_out": dim_out,
        "bytes_read": bytes_in,
        "bytes_written": bytes_out,
        "fragments": fragments,
        "core_hours": core_hours,
        "hours": hours,
        "bound": "cores" if by_cores >= by_network else "network",
        **{"gets": gets, "puts": puts, "lists": lists},
        "cost_machines": hours * machines.count * machines.price,
        "cost_requests": gets / 1000 * machines.get_price + (puts + lists) / 1000 * machines.put_price,
        "rates": asdict(rates) | {"rows": rates.rows},
        "machines": asdict(machines),
        "checks": sorted(checks, key=itemgetter("share"), reverse=True),
    }
