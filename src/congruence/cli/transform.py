"""``congruence transform``: map a file of vectors, keeping the file's other columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from congruence.cli._base import inverse_of, load_map, number, print_facts, print_json, progress, unit_rows
from congruence.cli._engines import JobOptions, print_data_set
from congruence.cli._options import AllowZeroRows, Force, Json, argument, option, with_groups

if TYPE_CHECKING:
    from congruence.engines import DataSet


@with_groups
def command(
    map_path: str = argument(..., "Folder of a saved map, or of a bridge, which maps queries.", metavar="MAP"),
    vectors: str = argument(..., "Vectors to map: a file, file:key, or a folder of parts.", metavar="IN"),
    *,
    out: str = option(..., "File to write; the suffix determines the format.", "--out", "-o"),
    modality: str | None = option(None, "Modality whose means are used: image, text, etc."),
    inverse: bool = option(False, "Map from the map's target back to its source.", "--inverse"),
    side: str | None = option(None, "source or target: head of a joint-space map; by default by the vectors' space."),
    normalize: str = option(
        "auto",
        "Scale mapped rows to unit norm; auto: as the target's at the fit. No value means yes.",
        metavar="auto|yes|no",
    ),
    column_out: str | None = option(None, "Write the mapped vectors to a new column, and keep the input's."),
    dtype: str | None = option(None, "Data type of the output: float16, float32 or float64; by default the input's."),
    ids: str | None = option(None, "Key, column or file of the ids."),
    model: str | None = option(None, "Name of the model the vectors come from, which is checked against the map."),
    revision: str | None = option(None, "Revision of that model, which is checked against the map."),
    check_space: bool = option(True, "Refuse vectors of another space than the map's source."),
    allow_zero_rows: AllowZeroRows = False,
    runner: JobOptions,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Map vectors from a map's source space to its target space (with a joint-space map, from either model), in bounded
    memory.

    A table keeps all its columns; the output must not be the input. With --engine ray, or for URLs, Parquet and Lance
    data sets are mapped fragment by fragment; after an interruption, run the same command again to resume.
    """
    import numpy as np

    from congruence._utils.validation import check_choice
    from congruence.embeddings import Space
    from congruence.io import Source, open_source
    from congruence.upgrade.transform import transform_file

    unit = unit_rows(normalize)
    if dtype is not None:
        check_choice(dtype, ("float16", "float32", "float64"), "dtype")
    mapping, bridge = load_map(map_path)
    if inverse:
        mapping = inverse_of(mapping if bridge is None else bridge)
    if bridge is not None and unit == "auto":
        unit = bridge.normalize
    if runner.by_fragments(vectors, out):
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
        options |= {"engine": runner.open(), "bad_rows": runner.bad_rows}
    with progress("mapping", source.n, as_json) as callback:
        report = transform_file(mapping, source, out, callback=callback, **options)
    if not isinstance(source, Source):
        print_data_set("mapped", report, as_json=as_json)
        return
    if as_json:
        print_json(report.to_dict())
        return
    rows = [["rows", str(report.rows)], ["width", str(report.dim)], ["dtype", report.dtype]]
    rows.append(["norms", "1" if report.normalized else "as mapped"])
    if report.covered_share is not None:
        rows.append(["variance in covered directions", number(report.covered_share)])
    rows += [["seconds", number(report.seconds, 1)], ["written to", report.output]]
    print_facts("mapped", rows)
