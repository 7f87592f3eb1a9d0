"""``congruence lab shift``: the distance between two unpaired collections."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from congruence.cli._base import number, print_json, print_table, progress, read, two_sides
from congruence.cli._options import Json, Seed, argument, option, settable, with_groups

if TYPE_CHECKING:
    import numpy as np


@with_groups
def command(
    first: str = argument(..., "Vectors of one collection: a file, or file:key."),
    second: str = argument(..., "Vectors of the other collection, from the same model."),
    texts: str | None = option(None, "FIRST,SECOND: texts of both collections; their distance is added."),
    normalize: bool = option(False, "Scale rows to unit norm.", "--normalize"),
    settings: dict[str, Any] = settable(variant="circular", p=2.0, n_projections=500, max_rows=100_000, repeats=20),
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Measure the sliced Wasserstein distance between two collections on the sphere.

    Example: congruence lab shift library/old-photos.parquet library/new-photos.parquet
    """
    from congruence.embeddings import Space
    from congruence.transport import distribution_shift

    def vectors(spec: str) -> np.ndarray:
        return read(spec, None, Space()).vectors

    images = vectors(first), vectors(second)
    captions = tuple(map(vectors, two_sides(texts, "--texts", "FIRST,SECOND") or ()))
    options = {"variant": "circular", "n_projections": 500, "max_rows": 100_000, "repeats": 20, **settings}
    with progress("drawing", options["repeats"], as_json) as callback:
        shift = distribution_shift(
            *images,
            *captions,
            normalize=normalize,
            random_state=seed,
            callback=callback,
            **options,
        )
    if as_json:
        counts = [min(len(side), options["max_rows"]) for side in (*images, *captions)]
        drawn = dict(zip(("first", "second", "first_texts", "second_texts"), counts, strict=False))
        print_json({"first": first, "second": second, "rows": drawn, **shift.to_dict()})
        return
    lines = {"vectors": shift.total}
    if shift.text is not None:
        lines = {"images": shift.image, "texts": shift.text, "total": shift.total}
    print_table(
        f"{options['variant']} sliced Wasserstein distance in turns, {options['repeats']} draws of "
        f"{options['n_projections']} circles",
        ["", "distance", "sd", "floor"],
        [[name, number(d.value, 4), number(d.sd, 4), number(d.floor, 4)] for name, d in lines.items()],
    )
