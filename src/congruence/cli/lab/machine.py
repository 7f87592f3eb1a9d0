"""``congruence lab plan`` and ``info``: what this machine can do, and what it has."""

from __future__ import annotations

from typing import Any

from congruence.cli._options import Json, argument, option, settable
from congruence.cli._output import print_facts, print_json, print_table, say
from congruence.errors import ParameterError

#: Type of the stored numbers, bytes per row beside its vector, size of a fragment in MB, memory of the driver in GB,
#: prices of 1,000 reads and writes of the object store, and the share of the work that is repeated after failures.
STORAGE = {"dtype": "float32", "payload": 8.0, "fragment_mb": 256.0, "driver_memory": 4.0}
STORAGE |= {"get_price": 0.0004, "put_price": 0.005, "lost": 0.05}


def plan(
    rows: float = argument(..., "Number of rows, e.g. 1e9."),
    dim: int = argument(..., "Width of the vectors."),
    dim_out: int | None = option(None, "Width of the new vectors; by default the same."),
    where: str | None = option(None, "Folder or URL to measure in; by default a temporary folder."),
    machines: int = option(16, "Number of machines."),
    cores: int = option(16, "Cores per machine, as fast as those here."),
    memory: float = option(64.0, "Memory per machine, in GB."),
    network: float = option(10.0, "Bandwidth to the storage per machine, in Gbit per second."),
    price: float = option(0.0, "Price of one machine per hour."),
    settings: dict[str, Any] = settable(**STORAGE),
    as_json: Json = False,
) -> None:
    """Measure how fast one core reads, maps and writes here, and estimate a job of any size: bytes, hours, cost, and
    the bottleneck.

    Example: congruence lab plan 1e9 768
    """
    from congruence._utils.validation import check_choice, check_positive
    from congruence.engines.planning import Machines, measure_rates, plan_rows

    dtype, payload, fragment_mb, driver_memory, get_price, put_price, lost = {**STORAGE, **settings}.values()
    check_choice(dtype, ("float16", "float32", "float64"), "dtype")
    positive = {"rows": rows, "memory": memory, "network": network, "driver_memory": driver_memory}
    for name, value in {**positive, "fragment_mb": fragment_mb}.items():
        check_positive(value, name)
    width = dim if dim_out is None else dim_out
    for name, count in {"dim": dim, "dim_out": width, "machines": machines, "cores": cores}.items():
        check_positive(count, name, integer=True)
    for name, value in {"payload": payload, "price": price, "get_price": get_price, "put_price": put_price}.items():
        check_positive(value, name, zero=True)
    if not 0 <= lost < 1:
        raise ParameterError(
            f"Got --set lost={lost}; expected a share from 0 to below 1.", "Pass --set lost=0.05, for example."
        )
    rates = measure_rates(dim, width, dtype=dtype, where=where)
    cluster = Machines(machines, cores, memory, network, price, get_price, put_price, driver_memory, lost)
    size = int(fragment_mb * 2**20)
    found = plan_rows(
        int(rows), dim, width, rates=rates, machines=cluster, dtype=dtype, payload=payload, fragment_bytes=size
    )
    if as_json:
        print_json(found)
        return
    facts = {
        "one core reads": f"{rates.read:,.0f} rows/s",
        "one core multiplies": f"{rates.product:,.0f} rows/s",
        "one core writes": f"{rates.write:,.0f} rows/s",
        "one core, all three": f"{rates.rows:,.0f} rows/s",
        "read": f"{found['bytes_read'] / 1e12:,.3f} TB",
        "written": f"{found['bytes_written'] / 1e12:,.3f} TB",
        "fragments": f"{found['fragments']:,}",
        "core-hours": f"{found['core_hours']:,.1f}",
        f"hours on {machines} × {cores} cores": f"{found['hours']:,.2f}, limited by the {found['bound']}",
        "requests": f"{found['gets']:,} reads, {found['puts']:,} writes, {found['lists']:,} listings",
        "cost of machines": f"{found['cost_machines']:,.2f}",
        "cost of requests": f"{found['cost_requests']:,.2f}",
    }
    print_facts(f"{int(rows):,} × {dim} → {width}", facts)
    loads = [
        [name, f"{load:,.1f} {unit}", f"{limit:,.1f} {unit}", f"{share:.2f}"]
        for name, load, limit, unit, _, share in (one.values() for one in found["checks"])
    ]
    print_table("limits, the most heavily loaded first", ["", "load", "limit", "share"], loads)
    for one in found["checks"]:
        if one["share"] > 1:
            say(f"{one['name']}: {one['advice']}")


def info(
    devices: bool = option(True, "List torch's devices, which takes seconds.", "--devices/--no-devices"),
    as_json: Json = False,
) -> None:
    """Show versions, extras, threads, memory and devices, to paste into a bug report.

    Example: congruence lab info

    Contains no user, host or path names.
    """
    from congruence.system import system_info

    facts = system_info(devices=devices)
    if as_json:
        print_json(facts.to_dict())
        return
    say(*str(facts).splitlines())
