"""Steps that all jobs on a data set share: record receipts as they arrive, and collect the rows that were left out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

from congruence.engines._base import Engine
from congruence.engines.dataset import Fragment
from congruence.engines.journal import Journal, Receipt
from congruence.engines.outputs import Output, write_parquet
from congruence.engines.places import Place
from congruence.errors import OutputExistsError


def run_pending(
    engine: Engine,
    work: Callable[[Fragment], dict[str, Any]],
    journal: Journal,
    callback: Callable[[int], object] | None,
) -> None:
    """Run the pending fragments and record those that are finished; receipts are written even if the run fails."""
    pending = journal.pending()
    try:
        for result in engine.run(work, pending) if pending else ():
            receipt = Receipt(**result)
            if journal.add(receipt) and callback is not None:
                callback(receipt.rows + receipt.bad)
    finally:
        journal.flush()


def quarantine_place(bad_rows: str | None, *, force: bool) -> Place | None:
    """Return the place of the file of rows that are left out; None if there is to be none. Raises OutputExistsError."""
    if bad_rows is None:
        return None
    place = Place.of(bad_rows)
    if place.exists() and not force:
        raise OutputExistsError(
            f"Got a path for bad_rows that exists, {place.shown}; expected a new one. Pass force=True to replace it."
        )
    return place


def collect_bad(out: Output, journal: Journal, quarantine: Place, schema: pa.Schema) -> None:
    """Write the rows that were left out to one file, in the order of the fragments."""
    import pyarrow.parquet as pq

    def batches() -> Iterator[pa.RecordBatch]:
        for receipt in journal.receipts():
            if receipt.bad:
                with out.quarantine.child(f"{receipt.fragment}.parquet").open() as file:
                    yield from pq.ParquetFile(file).iter_batches()

    if journal.bad:
        write_parquet(quarantine, schema, batches())
