"""``congruence transform``: map a file of vectors, keeping the file's other columns."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import Any

from congruence.cli._engines import JOB, Engine, EngineOptions, print_job
from congruence.cli._input import in_python, inverse_of, load_map, read, unit_rows
from congruence.cli._options import Force, Ids, Json, Normalize, argument, option, settable
from congruence.cli._output import progress
from congruence.cli._sides import exchanged
from congruence.errors import DirectionError, ParameterError

#: How stored vectors stand for those of the model: codes, their ranges (a file), and the columns that are kept.
FORM = {"quantized": str, "ranges": str, "prefix": int}


def transform(
    map_path: str = argument(..., "Folder of a saved map, or of a bridge, which maps queries.", metavar="MAP"),
    vectors: str = argument(..., "Vectors to map: a file, file:key, or a folder of parts.", metavar="IN"),
    *,
    out: str = option(..., "File to write; the suffix determines the format.", "--out", "-o"),
    modality: str | None = option(None, "Modality whose means are used: image, text, etc."),
    inverse: bool = option(False, "Map vectors of the new model back to the old one.", "--inverse"),
    side: str | None = option(None, "first or second: head of a joint-space map; by default by the vectors' space."),
    normalize: Normalize = "auto",
    ids: Ids = None,
    engine: Engine = "local",
    settings: dict[str, Any] = settable(
        column_out=str, dtype=str, model=str, revision=str, check=True, allow_zero_rows=False, **FORM, **JOB
    ),
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Map a file of vectors of the old model to the new one (with a joint-space map, of either), in bounded memory.

    Example: congruence transform map library/old-photos.parquet --modality image -o mapped.parquet

    A table keeps all its columns; the output must not be the input. With --engine ray, or for URLs, Parquet and Lance
    data sets are mapped fragment by fragment; after an interruption, run the same command again to resume.
    """
    import numpy as np

    from congruence._utils.validation import check_choice
    from congruence.embeddings import Space
    from congruence.io import Source, open_source
    from congruence.persist import why_no_map
    from congruence.upgrade.transform import transform_file

    unit = unit_rows(normalize)
    runner = EngineOptions.of(engine, settings)
    if "dtype" in settings:
        settings["dtype"] = np.dtype(check_choice(settings["dtype"], ("float16", "float32", "float64"), "dtype"))
    if "ranges" in settings:
        settings["ranges"] = read(settings["ranges"], "none", True).vectors
    space = Space(settings.pop("model", None), settings.pop("revision", None))
    if os.path.isfile(map_path) and os.path.isdir(vectors) and not why_no_map(Path(vectors)):
        problem = f"{vectors} is the map, and {map_path} a file of vectors: the map comes first."
        raise ParameterError(problem, exchanged(map_path, vectors))
    mapping, bridge = load_map(map_path)
    if inverse:
        mapping = inverse_of(mapping if bridge is None else bridge)
    if bridge is not None and unit == "auto":
        unit = bridge.normalize
    if by_fragments := runner.by_fragments(vectors, out):
        from congruence.engines import open_dataset

        source: Source = open_dataset(vectors, ids=ids, space=space)
    else:
        source = open_source(vectors, ids=ids, space=space)
    if bridge is not None:
        modality = modality or source.space.modality or bridge.modality
        mapping = bridge.for_modality(modality)  # a bridge selects the means by the modality of its queries
    options = {"modality": modality, "normalize": unit, "force": force, "side": in_python(side), **settings}
    if by_fragments:
        options |= {"engine": runner.open(), "bad_rows": runner.bad_rows}
    rows = source.table_rows if by_fragments else source.n  # a data set is not read to count its vectors
    with progress("mapping", rows or 0, as_json) as callback:
        try:
            report = transform_file(mapping, source, out, callback=callback, **options)
        except DirectionError as error:
            if mapping.sides == ("source",) and hasattr(mapping, "inverse"):  # else the other side, as the error says
                words = [word for word in sys.argv[1:] if word != "--inverse"] + ["--inverse"] * (not inverse)
                aim = "map them to the new model" if inverse else "map them back to the old model"
                error.fix = (f"To {aim}, type: {shlex.join(['congruence', *words])}",)
            raise
    taken = f"vectors of the {'new' if inverse else 'old'} model ({mapping.source_space_.model or 'unnamed'})"
    told = None if "target" in mapping.sides or by_fragments else taken
    print_job("mapped", report, as_json=as_json, taken=told)
