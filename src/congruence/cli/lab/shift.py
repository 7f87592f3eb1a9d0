"""``congruence lab shift``: the distance between two unpaired collections."""

from __future__ import annotations

from typing import TYPE_CHECKING

from congruence.cli._base import number, print_json, print_table, progress, read
from congruence.cli._options import Json, Seed, argument, option

if TYPE_CHECKING:
    import numpy as np


def command(
    unpaired: str = argument(..., "Vectors of one collection: a file, or file:key."),
    paired: str = argument(..., "Vectors of the other collection, from the same model."),
    unpaired_text: str | None = option(None, "Texts of the first collection; their distance is added."),
    paired_text: str | None = option(None, "Texts of the second collection."),
    variant: str = option("circular", "Variant of the distance: circular or linear."),
    p: float = option(2.0, "Order p of the Wasserstein distance, at least 1."),
    projections: int = option(500, "Number of great circles to project on."),
    rows: int = option(100_000, "If there are more rows, use a random sample of this size."),
    repeats: int = option(20, "Number of random draws of rows and circles."),
    normalize: bool = option(False, "Scale rows to unit norm.", "--normalize"),
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Measure the sliced Wasserstein distance between two collections on the sphere."""
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
