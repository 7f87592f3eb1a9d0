"""``congruence shift``: the distance between two unpaired collections."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    import numpy as np


def command(
    unpaired: Annotated[str, typer.Argument(help="Vectors of one collection: a file, or file:key.")],
    paired: Annotated[str, typer.Argument(help="Vectors of the other collection, from the same model.")],
    unpaired_text: Annotated[
        str | None,
        typer.Option(help="Texts of the first collection; the distance between both sides' texts is added."),
    ] = None,
    paired_text: Annotated[str | None, typer.Option(help="Texts of the second collection.")] = None,
    variant: Annotated[str, typer.Option(help="Variant of the distance: circular or linear.")] = "circular",
    p: Annotated[float, typer.Option(help="Order p of the Wasserstein distance, at least 1.")] = 2.0,
    projections: Annotated[int, typer.Option(help="Number of great circles to project on.")] = 500,
    rows: Annotated[int, typer.Option(help="If there are more rows, use a random sample of this size.")] = 100_000,
    repeats: Annotated[int, typer.Option(help="Number of random draws of rows and circles.")] = 20,
    normalize: Annotated[bool, typer.Option("--normalize", help="Scale rows to unit norm.")] = False,
    seed: Annotated[int, typer.Option(help="Random seed of rows and circles.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Report as JSON.")] = False,
) -> None:
    """Measure the sliced Wasserstein distance between two collections on the sphere."""
    from congruence.cli._base import number, print_json, print_table, progress, read
    from congruence.embeddings import Space
    from congruence.transport import distribution_shift

    def vectors(spec: str) -> np.ndarray:
        return read(spec, None, Space()).vectors

    images = vectors(unpaired), vectors(paired)
    texts = [None if spec is None else vectors(spec) for spec in (unpaired_text, paired_text)]
    with progress("drawing", repeats, as_json) as callback:
        shift = distribution_shift(
            *images,
            *texts,
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
        counts = [None if side is None else min(len(side), rows) for side in (*images, *texts)]
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
