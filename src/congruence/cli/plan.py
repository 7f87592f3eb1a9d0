"""``congruence plan``: estimate the time and cost of mapping a very large number of rows, from rates measured on this
machine.
"""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = ["command"]


def command(
    rows: Annotated[float, typer.Argument(help="Number of rows, e.g. 1e9.")],
    dim: Annotated[int, typer.Argument(help="Width of the vectors.")],
    dim_out: Annotated[
        int | None, typer.Option(help="Width of the new vectors; by default that of the old ones.")
    ] = None,
    dtype: Annotated[str, typer.Option(help="Type of the stored numbers: float16, float32 or float64.")] = "float32",
    payload: Annotated[float, typer.Option(help="Bytes per row in addition to its vector.")] = 8.0,
    where: Annotated[
        str | None,
        typer.Option(help="Folder or URL in which to measure reading and writing; by default a temporary folder."),
    ] = None,
    machines: Annotated[int, typer.Option(help="Number of machines.")] = 16,
    cores: Annotated[int, typer.Option(help="Cores per machine, as fast as those here.")] = 16,
    memory: Annotated[float, typer.Option(help="Memory per machine, in GB.")] = 64.0,
    network: Annotated[
        float, typer.Option(help="Network bandwidth to the storage per machine, in Gbit per second.")
    ] = 10.0,
    driver_memory: Annotated[float, typer.Option(help="Memory that the driver may use, in GB.")] = 4.0,
    price: Annotated[float, typer.Option(help="Price of one machine per hour.")] = 0.0,
    get_price: Annotated[float, typer.Option(help="Price of 1,000 reads of the object store.")] = 0.0004,
    put_price: Annotated[float, typer.Option(help="Price of 1,000 writes to the object store.")] = 0.005,
    lost: Annotated[
        float, typer.Option(help="Share of the work that is repeated after failures and preemption.")
    ] = 0.05,
    fragment_mb: Annotated[float, typer.Option(help="Size of a fragment before it is mapped, in MB.")] = 256.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan as JSON.")] = False,
) -> None:
    """Measure how fast one core reads, maps and writes here, and estimate a job of any size: bytes, hours, cost, and
    the bottleneck.
    """
    from congruence._utils.validation import check_choice, check_positive
    from congruence.cli._base import print_json, print_table, say
    from congruence.engines.planning import Machines, measure_rates, plan_rows
    from congruence.errors import ParameterError

    check_choice(dtype, ("float16", "float32", "float64"), "--dtype")
    for name, value in {"rows": rows, "memory": memory, "network": network, "driver_memory": driver_memory}.items():
        check_positive(value, name)
    for name, count in {"dim": dim, "machines": machines, "cores": cores}.items():
        check_positive(count, name, integer=True)
    check_positive(fragment_mb, "fragment_mb")
    for name, value in {"payload": payload, "price": price, "get_price": get_price, "put_price": put_price}.items():
        check_positive(value, name, zero=True)
    if not 0 <= lost < 1:
        raise ParameterError(f"Got --lost {lost}; expected a share from 0 to below 1. Pass --lost 0.05, for example.")
    width = dim if dim_out is None else int(check_positive(dim_out, "dim_out", integer=True))
    rates = measure_rates(dim, width, dtype=dtype, where=where)
    plan = plan_rows(
        int(rows),
        dim,
        width,
        rates=rates,
        machines=Machines(machines, cores, memory, network, price, get_price, put_price, driver_memory, lost),
        dtype=dtype,
        payload=payload,
        fragment_bytes=int(fragment_mb * 2**20),
    )
    if as_json:
        print_json(plan.to_dict())
        return
    facts = [
        ["one core reads", f"{rates.read:,.0f} rows/s"],
        ["one core multiplies", f"{rates.product:,.0f} rows/s"],
        ["one core writes", f"{rates.write:,.0f} rows/s"],
        ["one core, all three", f"{rates.rows:,.0f} rows/s"],
        ["read", f"{plan.bytes_read / 1e12:,.3f} TB"],
        ["written", f"{plan.bytes_written / 1e12:,.3f} TB"],
        ["fragments", f"{plan.fragments:,}"],
        ["core-hours", f"{plan.core_hours:,.1f}"],
        [f"hours on {machines} × {cores} cores", f"{plan.hours:,.2f}, limited by the {plan.bound}"],
        ["requests", f"{plan.gets:,} reads, {plan.puts:,} writes, {plan.lists:,} listings"],
        ["cost of machines", f"{plan.cost_machines:,.2f}"],
        ["cost of requests", f"{plan.cost_requests:,.2f}"],
    ]
    print_table(f"{int(rows):,} × {dim} → {width}", ["", ""], facts)
    print_table(
        "limits, the most heavily loaded first",
        ["", "load", "limit", "share"],
        [
            [check.name, f"{check.load:,.1f} {check.unit}", f"{check.limit:,.1f} {check.unit}", f"{check.share:.2f}"]
            for check in plan.checks
        ],
    )
    for check in plan.checks:
        if check.share > 1:
            say(f"{check.name}: {check.advice}")
