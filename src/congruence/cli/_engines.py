"""Helpers of commands that can process data sets by fragments, on several machines: their options, the jobs, and the
report of a job.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from congruence.cli._input import read, refuse_options
from congruence.cli._output import report_as

if TYPE_CHECKING:
    from congruence import engines
    from congruence.embeddings import Embeddings


#: Where a command runs; what belongs to it is given with ``--set``.
Engine: TypeAlias = Annotated[
    str, typer.Option(help="local, or ray: one task per fragment of a Parquet or Lance data set.")
]

#: Settings of the engine; of commands that read a sample; of commands that write a data set.
RAY = {"address": str, "workers": int}
SAMPLE = {**RAY, "sample": 20_000}
JOB = {**RAY, "gpus": 0.0, "bad_rows": str}


@dataclass(frozen=True)
class EngineOptions:
    """Where a command runs."""

    engine: str = "local"
    address: str | None = None
    workers: int | None = None
    sample: int = 20_000
    gpus: float = 0.0
    bad_rows: str | None = None

    @classmethod
    def of(cls, engine: str, settings: dict[str, Any]) -> EngineOptions:
        """Return the options of an engine, which are taken out of the settings of a command."""
        names = [field.name for field in fields(cls) if field.name in settings]
        return cls(engine, **{name: settings.pop(name) for name in names})

    def by_fragments(self, *places: str | None) -> bool:
        """Return whether a job on these inputs and outputs processes data sets by fragments: on another engine than
        this process, for URLs, and with ``bad_rows``.
        """
        from congruence._utils.validation import check_choice

        check_choice(self.engine, ("local", "ray"), "engine")
        if self.engine == "local":
            others = {f"--set {name}": getattr(self, name) for name in ("address", "workers", "gpus")}
            refuse_options(others, "for --engine local", "Leave it out, or pass --engine ray.")
        return self.engine != "local" or self.bad_rows is not None or any(map(_is_data_set, places))

    def open(self) -> engines.Engine:
        """Return the engine."""
        from congruence._utils.validation import check_positive
        from congruence.engines import LocalEngine, RayEngine

        if self.engine == "local":
            return LocalEngine()
        if self.workers is not None:
            check_positive(self.workers, "workers", integer=True)
        return RayEngine(self.address, workers=self.workers, gpus=check_positive(self.gpus, "gpus", zero=True))


def _is_data_set(place: str | None) -> bool:
    """Return whether this is the URL of a folder or of a file that is read by fragments."""
    if place is None or "://" not in place:
        return False
    from congruence.io.formats import suffix_of
    from congruence.io.locations import split_url

    return suffix_of(split_url(place)[0].name) in ("", ".parquet", ".lance")


def print_job(title: str, report: Any, *, as_json: bool, taken: str | None = None, **more: object) -> None:
    """Print the report of a job on one file or on a data set: what is as usual is left out."""

    def unless(usual: object, name: str) -> object:
        value = getattr(report, name, usual)
        return None if value == usual else value

    left_out = unless(0, "bad_rows"), unless(None, "bad_rows_file")
    if failures := unless([], "failures"):
        left_out = len(failures), report.failures_file  # type: ignore[arg-type]
    normalized, kept = getattr(report, "normalized", None), unless(None, "kept")
    facts = {
        "taken as": taken,
        "engine": unless("local", "engine"),
        "encoder": unless(None, "encoder"),
        "rows": report.rows,
        "layers": unless(1, "layers"),
        "width": report.dim,
        "dtype": unless(None, "dtype"),
        "columns of zeros after them, which stay": unless(0, "padding"),
        "nearest rows that the stored form keeps": None if kept is None else f"{kept:.1%}",
        "norms": None if normalized is None else "1" if normalized else f"as {title}",
        "variance in directions that the pairs span": unless(None, "covered_share"),
        "fragments": unless(1, "fragments"),
        "encoded": unless(None, "encoded"),
        "from the cache": unless(0, "cached"),
        "from an earlier run": unless(0, "resumed"),
        "left out": f"{left_out[0]}, see {left_out[1]}" if left_out[0] else None,
        "seconds": f"{report.seconds:.1f}",
        "written to": report.output,
        "ids": unless(None, "ids"),
    }
    report_as(as_json, {**report.to_dict(), **more}, title, facts)


def read_sides(
    specs: Mapping[str, Mapping[str, str | None]],
    ids: str | None,
    models: Mapping[str, str | None],
    *,
    runner: EngineOptions | None,
    random_state: int,
    needs_rows: Mapping[str, object],
) -> dict[str, dict[str, Embeddings]]:
    """Read the files of both models, by side and modality; with a runner, a sample of the same items of data sets.

    ``needs_rows``: values of the options, by flag, that need all rows.
    """
    from congruence._utils.validation import check_positive
    from congruence.embeddings import Space

    given: dict[tuple[str, str], tuple[str, dict[str, Any]]] = {
        (side, modality): (spec, {"model": models.get(side), "modality": modality})
        for side, files in specs.items()
        for modality, spec in files.items()
        if spec is not None
    }
    out: dict[str, dict[str, Embeddings]] = {side: {} for side in specs}
    if runner is None:
        for (side, modality), (spec, space) in given.items():
            out[side][modality] = read(spec, ids, **space)
        return out
    from congruence.engines import open_dataset, read_sample

    sample, engine = check_positive(runner.sample, "sample", integer=True), runner.open()
    data = {key: open_dataset(spec, ids=ids, space=Space(**space)) for key, (spec, space) in given.items()}
    most = max((dataset.table.n for dataset in data.values()), default=1)
    share = min(1.0, sample / most)
    if share < 1:
        why = f"for a sample of {sample} of {most} rows, since its entries are matched to all rows by position"
        refuse_options(needs_rows, why, f"Leave it out, or pass --set sample={most}.")
    for (side, modality), dataset in data.items():
        out[side][modality] = read_sample(dataset, engine=engine, share=share, random_state=random_state)
    return out
