"""``congruence transform``: map a file of vectors, keeping the file's other columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from congruence.cli._engines import ADDRESS_HELP, BAD_ROWS_HELP, ENGINE_HELP, GPUS_HELP, WORKERS_HELP, runs_by_fragments

if TYPE_CHECKING:
    from congruence.engines import DataSet

__all__ = ["NORMALIZE", "command"]

NORMALIZE: dict[str, bool | str] = {"auto": "auto", "yes": True, "no": False}


def command(
    map_path: Annotated[
        str,
        typer.Argument(
            metavar="MAP", help="Folder of a saved map, or of a bridge, which maps queries into the index's space."
        ),
    ],
    vectors: Annotated[
        str, typer.Argument(metavar="IN", help="Vectors to map: a file, file:key, or a folder of parts.")
    ],
    out: Annotated[str, typer.Option("--out", "-o", help="File to write; the suffix determines the format.")],
    modality: Annotated[str | None, typer.Option(help="Modality whose means are used: image, text, etc.")] = None,
    inverse: Annotated[bool, typer.Option("--inverse", help="Map from the map's target back to its source.")] = False,
    side: Annotated[
        str | None,
        typer.Option(
            help="source or target: which head of a joint-space map to use; by default determined by the vectors' "
            "space."
        ),
    ] = None,
    normalize: Annotated[
        str,
        typer.Option(
            metavar="auto|yes|no",
            help="Scale mapped rows to unit norm; auto: if the target's rows had unit norm at the fit. --normalize "
            "without a value means yes.",
        ),
    ] = "auto",
    column_out: Annotated[
        str | None,
        typer.Option(help="Write the mapped vectors to a new column of this name, and keep the input's column."),
    ] = None,
    dtype: Annotated[
        str | None, typer.Option(help="Data type of the output: float16, float32 or float64; by default the input's.")
    ] = None,
    ids: Annotated[str | None, typer.Option(help="Key, column or file of the ids.")] = None,
    model: Annotated[
        str | None, typer.Option(help="Name of the model the vectors come from, which is checked against the map.")
    ] = None,
    revision: Annotated[
        str | None, typer.Option(help="Revision of that model, which is checked against the map.")
    ] = None,
    check_space: Annotated[bool, typer.Option(help="Refuse vectors of another space than the map's source.")] = True,
    allow_zero_rows: Annotated[bool, typer.Option("--allow-zero-rows", help="Accept rows of zeros.")] = False,
    engine: Annotated[str, typer.Option(help=ENGINE_HELP)] = "local",
    address: Annotated[str | None, typer.Option(help=ADDRESS_HELP)] = None,
    workers: Annotated[int | None, typer.Option(help=WORKERS_HELP)] = None,
    gpus: Annotated[float, typer.Option(help=GPUS_HELP)] = 0,
    bad_rows: Annotated[str | None, typer.Option(help=BAD_ROWS_HELP)] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing output.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Report as JSON.")] = False,
) -> None:
    """Map vectors from a map's source space to its target space (with a joint-space map, from either model), in bounded
    memory.

    A table keeps all its columns; the output must not be the input. With --engine ray, or for URLs, Parquet and Lance
    data sets are mapped fragment by fragment; after an interruption, run the same command again to resume.
    """
    import numpy as np

    from congruence._utils.validation import check_choice
    from congruence.cli._base import load_map, number, print_json, print_table, progress
    from congruence.embeddings import Space
    from congruence.errors import ParameterError
    from congruence.maps import OrthogonalMap
    from congruence.stores import Source, open_source
    from congruence.upgrade.transform import transform_file

    if dtype is not None:
        check_choice(dtype, ("float16", "float32", "float64"), "--dtype")
    check_choice(normalize, tuple(NORMALIZE), "--normalize")
    mapping, bridge = load_map(map_path)
    unit = NORMALIZE[normalize]
    if bridge is not None:
        if inverse:
            raise ParameterError(
                f"Got --inverse for a bridge; expected a map, since a bridge maps from {bridge.source} to "
                f"{bridge.target} only. Leave out --inverse, or pass the folder of the map that it was made from."
            )
        unit = bridge.normalize if unit == "auto" else unit
    if inverse:
        if not isinstance(mapping, OrthogonalMap):
            raise ParameterError(
                f"Got --inverse for a {mapping.kind} map; expected an orthogonal one, the only kind with an inverse. "
                "Fit a map from the target to the source instead, and leave out --inverse."
            )
        mapping = mapping.inverse()
    if runs_by_fragments(
        engine, vectors, out, {"--address": address, "--workers": workers, "--gpus": gpus, "--bad-rows": bad_rows}
    ):
        from congruence.engines import open_dataset

        source: Source | DataSet = open_dataset(vectors, ids=ids, space=Space(model, revision))
    else:
        source = open_source(vectors, ids=ids, space=Space(model, revision))
    if bridge is not None:
        modality = modality or source.space.modality or bridge.modality
        mapping = bridge.for_modality(modality)  # a bridge selects the means by the modality of its queries
    options: dict[str, Any] = {
        "modality": modality,
        "normalize": unit,
        "dtype": None if dtype is None else np.dtype(dtype),
        "force": force,
        "check": check_space,
        "allow_zero_rows": allow_zero_rows,
        "side": side,
        "column_out": column_out,
    }
    if not isinstance(source, Source):
        from congruence.cli._engines import make_engine, print_data_set
        from congruence.engines import transform_dataset

        with progress("mapping", source.rows, as_json) as callback:
            job = transform_dataset(
                mapping,
                source,
                out,
                engine=make_engine(engine, address, workers, gpus),
                bad_rows=bad_rows,
                callback=callback,
                **options,
            )
        print_data_set("mapped", job, as_json=as_json)
        return
    with progress("mapping", source.n, as_json) as callback:
        report = transform_file(mapping, source, out, callback=callback, **options)
    if as_json:
        print_json(report.to_dict())
        return
    rows = [["rows", str(report.rows)], ["width", str(report.dim)], ["dtype", report.dtype]]
    rows.append(["norms", "1" if report.normalized else "as mapped"])
    if report.covered_share is not None:
        rows.append(["variance in covered directions", number(report.covered_share)])
    rows += [["seconds", number(report.seconds, 1)], ["written to", report.output]]
    print_table("mapped", ["", ""], rows)
