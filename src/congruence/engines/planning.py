"""Estimate the time, cost and bottlenecks of mapping a very large number of rows, from rates measured on this machine."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field

import numpy as np
import pyarrow as pa

from congruence.embeddings import Space
from congruence.engines.dataset import FRAGMENT_BYTES, READ_BYTES, open_dataset
from congruence.engines.journal import MOST_RECEIPTS, SECONDS
from congruence.engines.outputs import write_parquet
from congruence.engines.places import Place
from congruence.maps import OrthogonalMap
from congruence.stores.fragments import TableFragment
from congruence.stores.layout import TableLayout, parquet_options
from congruence.upgrade.transform import BlockMap

__all__ = ["Check", "DataPlan", "Machines", "Rates", "measure_rates", "plan_rows"]

#: Bytes of source vectors on which rates are measured.
_MEASURED_BYTES = 64 * 2**20

#: Size in bytes of one part of an upload by Arrow.
PART_BYTES = 10 * 2**20

#: Requests per second that S3 serves for one prefix (AWS, "Best practices design patterns: optimizing Amazon S3 performance").
_GETS, _PUTS = 5500, 3500

#: Bytes that the driver keeps per fragment: its entries in the plan and in Ray's task table, and its receipt. An estimate, above what tests/engines measures for the plan and the receipts.
DRIVER_BYTES = 8192


@dataclass(frozen=True)
class Rates:
    """Rows that one core reads, multiplies and writes per second of processor time.

    Attributes
    ----------
    read, product, write : float
    place : str
        Folder or URL that was read from and written to.
    wait : float
        Seconds of waiting for reads and writes per second of processor time: 0 if the storage is faster than the core.
    """

    read: float
    product: float
    write: float
    place: str
    wait: float = 0.0

    @property
    def rows(self) -> float:
        """Rows per second of one core that does all three."""
        return 1 / (1 / self.read + 1 / self.product + 1 / self.write)


@dataclass(frozen=True)
class Machines:
    """The machines that a job runs on, and their prices.

    Attributes
    ----------
    count, cores : int
        Number of machines, and of cores per machine.
    memory, network : float
        Memory in GB and network bandwidth in Gbit per second, each per machine.
    price : float
        Price of one machine per hour.
    get_price, put_price : float
        Price of 1,000 reads from and of 1,000 writes to the object store.
    driver_memory : float
        Memory that the driver may use, in GB.
    lost : float
        Share of the work that is repeated after failures and preemption.
    """

    count: int = 16
    cores: int = 16
    memory: float = 64.0
    network: float = 10.0
    price: float = 0.0
    get_price: float = 0.0004
    put_price: float = 0.005
    driver_memory: float = 4.0
    lost: float = 0.05


@dataclass(frozen=True)
class Check:
    """A limit, and the load of a job on it.

    Attributes
    ----------
    name : str
    load, limit : float
    unit : str
        Unit of both.
    advice : str
        What to do if the load exceeds the limit.
    """

    name: str
    load: float
    limit: float
    unit: str
    advice: str

    @property
    def share(self) -> float:
        """Load divided by limit; above 1, the limit is exceeded."""
        return self.load / self.limit


@dataclass(frozen=True)
class DataPlan:
    """Estimate of the work, time and cost of mapping N rows.

    Attributes
    ----------
    rows, dim, dim_out : int
    bytes_read, bytes_written : float
    fragments : int
    core_hours, hours : float
        Hours of work of all cores together, and elapsed hours: the larger of the cores' time and the network's.
    bound : str
        What limits the speed: "cores" or "network".
    gets, puts, lists : int
        Number of requests to an object store, including those of the journal.
    cost_machines, cost_requests : float
    checks : list of Check
        Limits, the one with the largest share of its limit first.
    rates : Rates
    machines : Machines
    """

    rows: int
    dim: int
    dim_out: int
    bytes_read: float
    bytes_written: float
    fragments: int
    core_hours: float
    hours: float
    bound: str
    gets: int
    puts: int
    lists: int
    cost_machines: float
    cost_requests: float
    rates: Rates
    machines: Machines
    checks: list[Check] = field(default_factory=list)

    def to_dict(self) -> dict[str, object]:
        """Return the plan as plain data."""
        plan = asdict(self)
        plan["rates"]["rows"] = self.rates.rows
        for plain, check in zip(plan["checks"], self.checks, strict=True):
            plain["share"] = check.share
        return plan


def measure_rates(
    dim: int, dim_out: int, *, dtype: str = "float32", where: str | None = None, repeats: int = 3, random_state: int = 0
) -> Rates:
    """Measure how fast one core reads, multiplies and writes rows, as a task does.

    Parameters
    ----------
    dim, dim_out : int
        Widths of source and target.
    dtype : str, default="float32"
    where : str, optional
        Folder or URL to read from and write to; a temporary folder by default.
    repeats : int, default=3
        Number of repetitions; the fastest one counts.
    random_state : int, default=0

    Returns
    -------
    Rates

    Raises
    ------
    FileError, StorageError
        If the folder cannot be read or written.
    """
    from threadpoolctl import threadpool_limits

    rng = np.random.default_rng(random_state)
    n = max(1000, _MEASURED_BYTES // (dim * np.dtype(dtype).itemsize))
    X = rng.standard_normal((n, dim), dtype=np.float32).astype(dtype)
    function = BlockMap(_some_map(dim, dim_out, rng), Space(dim=dim), dtype, check=False, normalize=False)
    block = function.rows_of_block()
    with tempfile.TemporaryDirectory() as temporary, threadpool_limits(1):
        home = Place.of(where or temporary).child("congruence-plan")
        try:
            _write(home.child("in.parquet"), X)
            data = open_dataset(home.uri)
            read = _time(lambda: _read(data.open(data.fragments[0]), block), repeats)
            out = function(X[:block])
            product = _time(lambda: [function(X[k : k + block]) for k in range(0, n, block)], repeats)
            wide = np.resize(out, (n, dim_out)).astype(dtype)
            write = _time(lambda: _write(home.child("out.parquet"), wide), repeats)
        finally:
            home.remove()
    wait = max(0.0, (read[1] + write[1]) / (read[0] + write[0]) - 1)
    return Rates(n / read[0], n / product[0], n / write[0], where or "a temporary folder", wait)


def _some_map(dim: int, dim_out: int, rng: np.random.Generator) -> OrthogonalMap:
    import warnings

    n = 2 * max(dim, dim_out)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return OrthogonalMap(shrinkage="full").fit(rng.standard_normal((n, dim)), rng.standard_normal((n, dim_out)))


def _time(run: Callable[[], object], repeats: int) -> tuple[float, float]:
    """Return the smallest processor time and the smallest elapsed time."""
    best = [math.inf, math.inf]
    for _ in range(repeats):
        clock, processor = time.perf_counter(), time.process_time()
        run()
        best = [min(best[0], time.process_time() - processor), min(best[1], time.perf_counter() - clock)]
    return max(best[0], 1e-9), max(best[1], 1e-9)


def _write(place: Place, X: np.ndarray) -> None:
    layout = TableLayout(
        None,
        dim=X.shape[1],
        dtype=X.dtype,
        has_ids=True,
        id_type=pa.int64(),
        space=Space(),
        column_out=None,
        path=place.shown,
    )
    step = 4096
    batches = (
        layout.fill(pa.array(np.arange(k, min(k + step, len(X)))), X[k : k + step]) for k in range(0, len(X), step)
    )
    write_parquet(place, layout.schema, batches, **parquet_options(layout, kept=False))


def _read(source: TableFragment, block: int) -> None:
    for row, piece in source.tables(block):
        source.block(piece, row)


def plan_rows(
    rows: int,
    dim: int,
    dim_out: int,
    *,
    rates: Rates,
    machines: Machines,
    dtype: str = "float32",
    payload: float = 8.0,
    columns: int = 2,
    fragment_bytes: int = FRAGMENT_BYTES,
) -> DataPlan:
    """Estimate the work, time and cost of mapping a number of rows.

    Parameters
    ----------
    rows, dim, dim_out : int
    rates : Rates
        See :func:`measure_rates`.
    machines : Machines
    dtype : str, default="float32"
    payload : float, default=8
        Bytes per row in addition to its vector.
    columns : int, default=2
        Number of columns, including that of the vectors.
    fragment_bytes : int, default=268_435_456
        Size of a fragment before it is mapped.

    Returns
    -------
    DataPlan

    Notes
    -----
    Work: N / rate · (1 + lost) core-hours, distributed evenly; stragglers add at most the time of one fragment at the end.

    Requests: for each fragment, two reads for the footer, one for each 16 MB of the vectors and one for each other column; one write for each 10 MB of
    output, and two to begin and end the upload. For the journal, one write for each 256 receipts or 20 s, and two more. Two listings for each 1,000 files.

    Index: a graph with 32 links of 4 bytes per row, in memory together with the float32 vectors.
    """
    item = np.dtype(dtype).itemsize
    bytes_in, bytes_out = rows * (dim * item + payload), rows * (dim_out * item + payload)
    fragments = math.ceil(bytes_in / fragment_bytes)
    again = 1 + machines.lost
    core_hours = rows / rates.rows / 3600 * again
    cores = machines.count * machines.cores
    by_cores = core_hours / min(cores, fragments) * (1 + rates.wait)
    by_network = (bytes_in + bytes_out) * again * 8 / (machines.count * machines.network * 1e9) / 3600
    hours = max(by_cores, by_network)
    per_in, per_out = bytes_in / fragments, bytes_out / fragments
    gets = math.ceil(fragments * again * (2 + columns - 1 + math.ceil(per_in / READ_BYTES)))
    segments = max(math.ceil(fragments / MOST_RECEIPTS), min(fragments, math.ceil(hours * 3600 / SECONDS)))
    puts = math.ceil(fragments * again * (2 + math.ceil(per_out / PART_BYTES))) + segments + 2
    lists = 2 * math.ceil(fragments / 1000)
    index = rows * (dim_out * 4 + 32 * 4)
    seconds = hours * 3600
    checks = [
        Check("reads of an object store, per prefix", gets / seconds, _GETS, "requests/s", "Spread the files over several prefixes."),
        Check("writes to an object store, per prefix", (puts + lists) / seconds, _PUTS, "requests/s", "Make fragments larger, or write under several prefixes."),
        Check("memory of the driver", (0.5e9 + fragments * DRIVER_BYTES) / 1e9, machines.driver_memory, "GB", "Make fragments larger, or split the data set into several jobs."),
        Check("memory of a machine", machines.cores * (per_out + 3e8) / 1e9, machines.memory, "GB", "Make fragments smaller, or run fewer tasks per machine (--workers)."),
        Check("memory of the machines for a rebuilt graph index", index / 1e9, machines.count * machines.memory, "GB", "Quantize the index, shard it over more machines, or keep the old one with a bridge."),
    ]  # fmt: skip
    return DataPlan(
        rows,
        dim,
        dim_out,
        bytes_in,
        bytes_out,
        fragments,
        core_hours,
        hours,
        "cores" if by_cores >= by_network else "network",
        gets,
        puts,
        lists,
        hours * machines.count * machines.price,
        gets / 1000 * machines.get_price + (puts + lists) / 1000 * machines.put_price,
        rates,
        machines,
        sorted(checks, key=lambda check: -check.share),
    )
