"""Helpers of commands that can process data sets by fragments, on several machines: their options, the jobs, and the
report of a job.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from congruence.cli._base import number, print_json, print_table, progress
from congruence.errors import ParameterError

if TYPE_CHECKING:
    from congruence.embeddings import Embeddings, Space
    from congruence.engines import DataSetReport, EncoderSpec, Engine
    from congruence.maps import Map

ENGINES = ("local", "ray")


def runs_by_fragments(engine: str, inputs: str, out: str, options: Mapping[str, object]) -> bool:
    """Return whether a job processes data sets by fragments: on another engine than this process, for URLs, and with
    ``--bad-rows``.

    ``options``: values of the options that only such jobs have, by flag.
    """
    from congruence._utils.validation import check_choice

    check_choice(engine, ENGINES, "--engine")
    for flag, value in options.items():
        if value and engine == "local" and flag != "--bad-rows":
            raise ParameterError(
                f"Got {flag} for --engine local; expected --engine ray.", f"Leave out {flag}, or pass --engine ray."
            )
    return engine != "local" or "://" in inputs or "://" in out or bool(options.get("--bad-rows"))


def make_engine(engine: str, address: str | None, workers: int | None, gpus: float) -> Engine:
    """Return the engine selected by the options."""
    from congruence._utils.validation import check_positive
    from congruence.engines import LocalEngine, RayEngine

    if engine == "local":
        return LocalEngine()
    if workers is not None:
        check_positive(workers, "workers", integer=True)
    check_positive(gpus, "gpus", zero=True)
    return RayEngine(address, workers=workers, gpus=gpus)


def print_data_set(title: str, report: DataSetReport, *, as_json: bool) -> None:
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
    print_table(title, ["", ""], rows)


def embed_by_fragments(
    encoder: EncoderSpec,
    inputs: str,
    out: str,
    *,
    column: str | None,
    id_column: str | None,
    engine: Engine,
    batch_size: int,
    bad_rows: str | None,
    force: bool,
    local_only: list[str],
    as_json: bool,
) -> None:
    """Encode a data set by fragments, and print the report."""
    from dataclasses import replace

    from congruence.engines import embed_dataset, open_itemset

    if local_only:
        instead = "pass --bad-rows" if local_only[0] == "--on-error" else "embed local files with --engine local"
        raise ParameterError(
            f"Got {local_only[0]} for a data set that is encoded by fragments; expected options that also "
            "apply to data sets.",
            f"Leave out {local_only[0]}, or {instead}.",
        )
    data = open_itemset(inputs, column=column, id_column=id_column, modality=encoder.modality)
    with progress("embedding", data.rows, as_json) as callback:
        report = embed_dataset(
            replace(encoder, modality=data.modality),
            data,
            out,
            engine=engine,
            batch_size=batch_size,
            bad_rows=bad_rows,
            force=force,
            callback=callback,
        )
    print_data_set("embedded", report, as_json=as_json)


def fit_by_fragments(
    specs: tuple[str, str],
    ids: tuple[str | None, str | None],
    spaces: tuple[Space, Space],
    method: str,
    *,
    engine: Engine,
    needs_rows: list[str],
    modality: str | None,
    check: bool,
    strict: bool,
    allow_zero_rows: bool,
    parameters: dict[str, object],
) -> Map:
    """Fit a map from the moments of fragments."""
    from congruence.engines import fit_dataset, open_pairs

    if needs_rows:
        raise ParameterError(
            f"Got {needs_rows[0]} for data sets that are read once, by fragments; expected options that do not "
            "need all rows at once.",
            f"Leave out {needs_rows[0]}, or fit on local files with --engine local.",
        )
    columns: list[str | bool | None] = [False if column == "none" else column for column in ids]
    pairs = open_pairs(*specs, ids=columns[0], target_ids=columns[1], spaces=spaces, allow_zero_rows=allow_zero_rows)
    return fit_dataset(pairs, method, engine=engine, modality=modality, check=check, strict=strict, **parameters)


def sample_data_sets(
    specs: Mapping[str, Mapping[str, str | None]],
    ids: str | None,
    models: Mapping[str, str | None],
    *,
    engine: Engine,
    sample: int,
    random_state: int,
    needs_rows: list[str],
) -> dict[str, dict[str, Embeddings]]:
    """Read a sample of the same items from all data sets: by side, then by modality."""
    from congruence._utils.validation import check_positive
    from congruence.embeddings import Space
    from congruence.engines import open_dataset, read_sample

    check_positive(sample, "sample", integer=True)
    data = {
        side: {
            modality: open_dataset(spec, ids=ids, space=Space(models.get(side), None, modality))
            for modality, spec in files.items()
            if spec is not None
        }
        for side, files in specs.items()
    }
    most = max((dataset.rows for datasets in data.values() for dataset in datasets.values()), default=1)
    share = min(1.0, sample / most)
    if share < 1 and needs_rows:
        raise ParameterError(
            f"Got {needs_rows[0]} for a sample of {sample} of {most} rows; expected all rows, because its "
            "entries are matched to them by position.",
            f"Leave out {needs_rows[0]}, or pass --sample {most}.",
        )
    return {
        side: {
            modality: read_sample(dataset, engine=engine, share=share, random_state=random_state)
            for modality, dataset in datasets.items()
        }
        for side, datasets in data.items()
    }
