"""Helpers of commands that can process data sets by fragments, on several machines: their options, the jobs, and the
report of a job.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from congruence.cli._base import number, print_facts, print_json, read, refuse_options
from congruence.cli._options import BadRows, Engine, Gpus, RayAddress, Workers

if TYPE_CHECKING:
    from congruence import engines
    from congruence.embeddings import Embeddings


@dataclass(frozen=True)
class EngineOptions:
    """Where a command runs."""

    engine: Engine = "local"
    address: RayAddress = None
    workers: Workers = None

    def by_fragments(self, *places: str | None) -> bool:
        """Return whether a job on these inputs and outputs processes data sets by fragments."""
        options = {f"--{name.replace('_', '-')}": value for name, value in vars(self).items() if name != "engine"}
        return runs_by_fragments(self.engine, " ".join(filter(None, places)), "", options)

    def open(self) -> engines.Engine:
        """Return the engine."""
        return make_engine(self.engine, self.address, self.workers, getattr(self, "gpus", 0))


@dataclass(frozen=True)
class JobOptions(EngineOptions):
    """Where a command runs that writes a data set."""

    gpus: Gpus = 0
    bad_rows: BadRows = None


def runs_by_fragments(engine: str, inputs: str, out: str, options: Mapping[str, object]) -> bool:
    """Return whether a job processes data sets by fragments: on another engine than this process, for URLs, and with
    ``--bad-rows``.

    ``options``: values of the options that only such jobs have, by flag.
    """
    from congruence._utils.validation import check_choice

    check_choice(engine, ("local", "ray"), "engine")
    if engine == "local":
        others = {flag: value for flag, value in options.items() if flag != "--bad-rows"}
        refuse_options(others, "for --engine local", "Leave it out, or pass --engine ray.")
    return engine != "local" or "://" in inputs or "://" in out or bool(options.get("--bad-rows"))


def make_engine(engine: str, address: str | None, workers: int | None, gpus: float) -> engines.Engine:
    """Return the engine selected by the options."""
    from congruence._utils.validation import check_positive
    from congruence.engines import LocalEngine, RayEngine

    if engine == "local":
        return LocalEngine()
    if workers is not None:
        check_positive(workers, "workers", integer=True)
    check_positive(gpus, "gpus", zero=True)
    return RayEngine(address, workers=workers, gpus=gpus)


def print_data_set(title: str, report: engines.DataSetReport, *, as_json: bool) -> None:
    """Print the report of a job on a data set."""
    if as_json:
        print_json(report.to_dict())
        return
    rows = [["engine", report.engine], ["rows", str(report.rows)], ["width", str(report.dim)], ["dtype", report.dtype]]
    rows.append(["norms", "1" if report.normalized else f"as {title}"])
    rows.append(["fragments", str(report.fragments)])
    if report.resumed:
        rows.append(["from an earlier run", str(report.resumed)])
    if report.bad_rows:
        rows.append(["left out", f"{report.bad_rows}, see {report.bad_rows_file}"])
    rows += [["seconds", number(report.seconds, 1)], ["written to", report.output]]
    print_facts(title, rows)


def read_sides(
    specs: Mapping[str, Mapping[str, str | None]],
    ids: str | None,
    models: Mapping[str, str | None],
    *,
    engine: engines.Engine | None,
    sample: int,
    random_state: int,
    needs_rows: Mapping[str, object],
) -> dict[str, dict[str, Embeddings]]:
    """Read the files of both models, by side and modality; with an engine, a sample of the same items of data sets.

    ``needs_rows``: values of the options, by flag, that need all rows.
    """
    from congruence._utils.validation import check_positive
    from congruence.embeddings import Space

    given = {
        (side, modality): (spec, Space(models.get(side), None, modality))
        for side, files in specs.items()
        for modality, spec in files.items()
        if spec is not None
    }
    out: dict[str, dict[str, Embeddings]] = {side: {} for side in specs}
    if engine is None:
        for (side, modality), (spec, space) in given.items():
            out[side][modality] = read(spec, ids, space)
        return out
    from congruence.engines import open_dataset, read_sample

    check_positive(sample, "sample", integer=True)
    data = {key: open_dataset(spec, ids=ids, space=space) for key, (spec, space) in given.items()}
    most = max((dataset.rows for dataset in data.values()), default=1)
    share = min(1.0, sample / most)
    if share < 1:
        why = f"for a sample of {sample} of {most} rows, since its entries are matched to all rows by position"
        refuse_options(needs_rows, why, f"Leave it out, or pass --sample {most}.")
    for (side, modality), dataset in data.items():
        out[side][modality] = read_sample(dataset, engine=engine, share=share, random_state=random_state)
    return out
