"""``congruence shift``: how far one collection is from another, without any pairing."""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = ["command"]


def command(
    unpaired: Annotated[str, typer.Argument(help="Vectors of one collection: a file, or file:key.")],
    paired: Annotated[str, typer.Argument(help="Vectors of the other, by the same model.")],
    unpaired_text: Annotated[str | None, typer.Option(help="Texts of the first, to be added.")] = None,
    paired_text: Annotated[str | None, typer.Option(help="Texts of the second.")] = None,
    variant: Annotated[str, typer.Option(help="circular or linear.")] = "circular",
    p: Annotated[float, typer.Option(help="Power of the distance, at least 1.")] = 2.0,
    projections: Annotated[int, typer.Option(help="Great circles projected on.")] = 500,
    rows: Annotated[int, typer.Option(help="Draw this many rows where there are more.")] = 100_000,
    repeats: Annotated[int, typer.Option(help="Draws of rows and circles.")] = 20,
    normalize: Annotated[bool, typer.Option("--normalize", help="Take the direction of each row.")] = False,
    seed: Annotated[int, typer.Option(help="Of rows and circles drawn.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Report as JSON.")] = False,
) -> None:
    """Measure the sliced Wasserstein distance between two collections on the sphere."""
    from congruence.cli._base import number, print_json, print_table, progress, read
    from congruence.embeddings import Space
    from congruence.transport import distribution_shift

    sides = [
        None if spec is None else read(spec, None, Space()).vectors
        for spec in (unpaired, paired, unpaired_text, paired_text)
    ]
    with progress("drawing", repeats, as_json) as callback:
        shift = distribution_shift(
            *sides,
            p=p,
            n_projections=projections,
            variant=variant,
            normalize=normalize,
            max_rows=rows,
            repeats=repeats,
            random_state=seed,
            callback=callback,
        )
    if as_json:
        counts = [None if side is None else min(len(side), rows) for side in sides]
        names = ("unpaired", "paired", "unpaired_text", "paired_text")
        drawn = {name: count for name, count in zip(names, counts, strict=True) if count is not None}
        print_json({"first": unpaired, "second": paired, "rows": drawn, **shift.to_dict()})
        return
    lines = {"vectors": shift.total}
    if shift.text is not None:
        lines = {"images": shift.image, "texts": shift.text, "total": shift.total}
    print_table(
        f"{variant} sliced Wasserstein distance in turns, {repeats} draws of {projections} circles",
        ["", "distance", "sd", "floor"],
        [[name, number(d.value, 4), number(d.sd, 4), number(d.floor, 4)] for name, d in lines.items()],
    )
