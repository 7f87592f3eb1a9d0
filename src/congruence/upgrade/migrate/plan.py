"""Report what a migration would do and cost without changing anything, and refuse one that fails a check."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from congruence import errors
from congruence._utils.memory import say_size
from congruence._utils.plain import PlainData
from congruence.compare.origins import JUDGED
from congruence.databases import Block, Database, DatabaseInfo, NewVectors, Stage, bytes_a_row
from congruence.upgrade.migrate.mapper import RowMapper, all_bad_rows, judge_rows, misfit
from congruence.upgrade.migrate.quantize import recall_of

SAMPLE = 4096  # number of rows that are read and mapped to measure the rate

#: Actions of a certificate (``congruence.upgrade.certify.ACTIONS``) that recommend mapping the stored vectors.
FOR_MAPPING = ("map", "progressive")


@dataclass
class Plan(PlainData):
    """What ``Migration.run`` would do."""

    place: str  # database, table and column, without credentials
    kind: str
    rows: int  # to map
    rows_without: int  # without a vector
    dim_old: int
    dim_new: int
    element_type: str  # in which the new vectors are stored
    container: str  # where they are written: column, named vector, table, collection or file
    atomic_switch: bool
    bytes_new: int  # of the new vectors, without an index
    free_bytes: int | None
    index: str | None  # over the old vectors; the new ones get a similar one
    minutes: float = 0.0  # of the first pass, at the rates of the sample; reading and mapping overlap with writing
    rows_per_second: float = 0.0  # read and mapped
    written_per_second: float | None = None  # to a scratch table, if there can be one
    old_type: str = "float32"
    stored_as: str = ""  # how int8 values and bits are computed, in words
    stored_recall: float | None = None  # share of the 10 nearest rows in float32 that are found in the stored type
    encode_minutes: float | None = None  # to encode all items with the new model instead
    encode_cost: float | None = None  # at the given price
    verdict: dict[str, str] = field(default_factory=dict)  # action, headline, reason and models of the certificate
    #: "check", "outcome" ("good", "bad" or "unknown"), "detail", and "fix" where rows do not fit the map
    checks: list[dict[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        #: The error of each check that is bad, by its name.
        self.refusals: dict[str, errors.CongruenceError] = {}

    def note(self, check: str, outcome: str, detail: str, error: errors.CongruenceError | None = None) -> None:
        """Add a check; ``error`` is raised by ``refuse`` if it is bad."""
        self.checks.append({"check": check, "outcome": outcome, "detail": detail})
        if error is not None and outcome == "bad":
            self.refusals.setdefault(check, error)

    @property
    def refused(self) -> list[str]:
        """Details of the failed checks."""
        return [check["detail"] for check in self.checks if check["outcome"] == "bad"]


def read_verdict(certificate: Mapping[str, Any]) -> dict[str, str]:
    """Return action, headline and reason of a certificate, and the models it refers to."""
    try:
        verdict, facts = certificate["verdict"], certificate["facts"]
        content = {"action": verdict["action"], "headline": verdict["headline"], "reason": verdict["reason"]}
        content["between"] = ", ".join(verdict.get("between", ()))  # the answers between which it is undecided
        for side, name in (("source", "old"), ("target", "new")):  # as in Python and in a folder, and as printed
            content[side] = facts.get(side, facts.get(name, ""))
        if not all(isinstance(value, str) for value in content.values()):
            raise TypeError
    except (KeyError, TypeError, AttributeError):
        raise errors.ParameterError(
            "The certificate has no verdict.", "Pass the output of congruence check --json."
        ) from None
    return content


def make_plan(
    database: Database,
    mapper: RowMapper,
    info: DatabaseInfo,
    *,
    mixed: bool | None = None,
    certificate: Mapping[str, object] | None = None,
    encode_rate: float | None = None,
    price: float | None = None,
    measure: bool = True,
    allow_unknown: bool = False,
) -> Plan:
    """Read a sample, check it, and report what the migration would do; the database is not changed.

    If int8 ranges were not given, those of ``mapper.new`` are set from the mapped sample, and the modality of
    ``mapper``, if the map needs one, from the rows. ``mixed``: whether rows outside a condition may keep their vectors;
    None if that was decided before. ``measure``: also write the sample to a scratch table, and measure search in the
    stored type. ``allow_unknown``: rows of no model that the map knows are no reason to refuse.
    """
    place, element_type = info.place, mapper.new.element_type
    plan = Plan(
        place=place,
        kind=database.kind,
        rows=info.rows,
        rows_without=info.rows_without,
        dim_old=info.dim,
        dim_new=mapper.dim,
        element_type=element_type,
        container=database.capabilities.container,
        atomic_switch=database.capabilities.atomic_switch,
        bytes_new=info.rows * bytes_a_row(mapper.dim, element_type),
        free_bytes=database.free_bytes(),
        index=info.index,
        old_type=info.element_type,
        encode_minutes=None if encode_rate is None else info.rows / encode_rate / 60,
        encode_cost=None if price is None else info.rows * price,
    )
    started = time.perf_counter()
    sample = next(iter(database.scan("old", batch=SAMPLE)), None)
    if sample is None:
        raise errors.ShapeError(f"No rows with a vector in {place}.", "Check the table, the column and the condition.")
    mapper.check_width(sample.vectors)
    _check_stage(plan, database, mapper)
    _check_space(plan, mapper, info, sample)
    seconds = time.perf_counter() - started
    if mapper.old.element_type == "binary" or plan.refusals:
        rows = "bits" if mapper.old.element_type == "binary" else "these vectors"
        plan.note("origin", "unknown", f"which model made these rows cannot be told from {rows}")
    else:
        for check in judge_rows(mapper, database.spread(info.rows, JUDGED), allow_unknown, database):
            plan.checks.append(check)
            if check["outcome"] == "bad":
                plan.refusals.setdefault(check["check"], misfit(f"at {place}", check))
    started = time.perf_counter()
    mapped = _map_sample(plan, database, mapper, sample)
    seconds += time.perf_counter() - started
    rate = len(sample.ids) / max(seconds, 1e-9)
    plan.rows_per_second, plan.minutes = rate, info.rows / rate / 60
    if mapped is not None:
        mapper.new = mapper.new.calibrated(mapped)
        if measure:
            write_seconds, plan.stored_recall = _measure(database, mapper, mapped, info.distance)
            if write_seconds is not None:
                plan.written_per_second = written = len(sample.ids) / max(write_seconds, 1e-9)
                plan.minutes = info.rows / min(rate, written) / 60
        for step, outcome, words in database.rehearse(sample.ids, mapper.new.encode(mapped), element_type):
            plan.note(step, outcome, words, _obstacle(place, step, words))
    if repeated := database.repeated_ids():
        words = f"several rows have the id {', '.join(repeated[:3])}"
        plan.note("ids", "bad", words, errors.IdError(f"At {place}, {words}.", "Make the ids unique first."))
    else:
        plan.note("ids", "good", "each id occurs once")
    plan.stored_as = mapper.new.describe()
    if (free := plan.free_bytes) is not None:
        size = database.bytes_needed(info, mapper.dim, element_type)
        enough, words = free >= size, f"{say_size(free)} free, {say_size(size)} needed"
        why = f"The database's disk has {free:,} bytes free, and {size:,} are needed."
        fix = "Free some, or pass `element_type='float16'`."
        plan.note("disk", "good" if enough else "bad", words, errors.StorageError(why, fix))
    _check_certificate(plan, mapper, certificate)
    if mixed is not None and database.condition is not None:
        outcome, words, fix = _check_partial(database, mapper, info, mixed)
        error = errors.ParameterError(f"At {place}, {words}.", fix or "Migrate all rows.")
        plan.note("partial run", outcome, words, error)
    return plan


def _check_stage(plan: Plan, database: Database, mapper: RowMapper) -> None:
    """Note what stands in the way of a step, or that new vectors are there."""
    stage = database.stage()
    if stage is Stage.UNTOUCHED:
        new = NewVectors(mapper.dim, plan.element_type, {})
        database.check(new)
        obstacles = database.obstacles(new)
        plan.note("stage", "good", "there are only old vectors")
        found = [("run", "bad", f"the table has {words}") for step, words in obstacles if step == "run"]
        for step, outcome, words in (*found, *database.foresee(obstacles, hasattr(mapper.map, "inverse"))):
            plan.note(step, outcome, words, _obstacle(plan.place, step, words))
        return
    words = f"new vectors have already been {'written' if stage is Stage.PREPARED else 'switched on'}"
    fix = ", or remove the new vectors with the database's own client" * (stage is Stage.PREPARED)
    why = f"At {plan.place}, {words}, without the journal of that migration."
    plan.note("stage", "bad", words, errors.MigrationError(why, f"Pass `journal=…` with its folder{fix}."))


def _check_space(plan: Plan, mapper: RowMapper, info: DatabaseInfo, sample: Block) -> None:
    try:
        mapper.check(info, sample)
    except errors.CongruenceError as error:
        plan.note("space", "bad", str(error), error)
        return
    words = f"vectors of {info.space.model}, as the map expects"
    if not info.space.model:
        words = f"{info.dim}-d, as the map expects; the database does not record which model they come from"
    plan.note("space", "good" if info.space.model else "unknown", words)


def _map_sample(plan: Plan, database: Database, mapper: RowMapper, sample: Block) -> np.ndarray | None:
    """Return the mapped sample; None if it cannot be mapped."""
    try:
        mapped = mapper(sample.ids, sample.vectors, sample.modalities)
    except errors.CongruenceError as error:
        if isinstance(error, errors.NotFiniteError | errors.ZeroRowError):
            error = all_bad_rows(database, mapper.allow_zero_rows) or error
        plan.note("rows", "bad", str(error), error)
        return None
    plan.note("rows", "good", f"the first {len(sample.ids):,} rows are finite and not zero")
    return mapped


def _check_certificate(plan: Plan, mapper: RowMapper, certificate: Mapping[str, object] | None) -> None:
    if certificate is None:
        plan.note("certificate", "unknown", "none given: congruence check measures whether mapping is worth it")
        return
    plan.verdict = verdict = read_verdict(certificate)
    words = f"{verdict['headline']}: {verdict['reason']}"
    why = f"The certificate advises against mapping ({words})."
    if verdict["action"] == "progressive":
        words += " Mapping alone does not reach the required quality: re-embed afterward."
    supports = "good" if verdict["action"] in FOR_MAPPING else "bad"
    if not set(FOR_MAPPING).isdisjoint(verdict["between"].split(", ")):
        supports = "unknown"
    plan.note("certificate", supports, words, errors.MigrationError(why, "Follow it, or pass `anyway=True`."))
    models = {"source": mapper.map.source_space_.model, "target": mapper.map.target_space_.model}
    differing = [
        f"{verdict[side]} (the map has {model})"
        for side, model in models.items()
        if model and verdict[side] and not verdict[side].startswith(model)
    ]
    if differing:
        plan.note("certificate's models", "unknown", f"the certificate names {' and '.join(differing)}")


def _obstacle(place: str, step: str, words: str) -> errors.DatabaseError:
    words, _, fix = words.partition("). ")  # what a server refuses comes with what to do
    return errors.DatabaseError(
        f"{place} cannot be migrated in place: for {step}, {words}{')' if fix else ''}.",
        f"{fix}."
        if fix
        else "Remove it, and create it again after `drop-old`; or copy the rows into a table without it.",
    )


def _check_partial(database: Database, mapper: RowMapper, info: DatabaseInfo, mixed: bool) -> tuple[str, str, str]:
    """Return whether the rows of the condition can be migrated without the others, why, and what to do if not."""
    total = database.without_condition().count("old")
    others = f"the condition leaves out {total - info.rows:,} of {total:,} rows"
    if info.dim != mapper.dim and not database.mixes_widths:
        return "bad", f"{others}, which are {info.dim}-d, and the new vectors {mapper.dim}-d", "Migrate all rows."
    if mapper.new.element_type != info.element_type or mapper.old.coded or not database.exact:
        return "bad", f"{others}, which a copy in {mapper.new.element_type} would change", "Migrate all rows."
    if not mixed:
        return "bad", f"{others}, and readers would see vectors of both models", "Pass `mixed=True`, or all rows."
    return "unknown", f"{others}: they keep their vectors, and readers see vectors of both models", ""


def _measure(
    database: Database, mapper: RowMapper, mapped: np.ndarray, distance: str | None
) -> tuple[float | None, float | None]:
    """Return the seconds that writing the sample takes, and the recall in the type in which it is stored."""
    vectors, kind = mapper.new.encode(mapped), mapper.new.element_type
    try:
        seconds = database.time_write(vectors, kind)
    except errors.DatabaseUnavailableError:
        raise
    except errors.CongruenceError:  # for example no permission to create temporary tables: the plan omits the rate
        seconds = None
    if kind == "float32":
        return seconds, None
    with np.errstate(over="ignore"):
        stored = vectors.astype(np.float16).astype(np.float32) if kind == "float16" else vectors
    return seconds, recall_of(database.as_stored(mapped), database.as_stored(stored), distance)


def refuse(plan: Plan, *, anyway: bool = False) -> None:
    """Raise the error of the first bad check of a plan; ``anyway`` ignores the advice of a certificate alone."""
    for check, error in plan.refusals.items():
        if check != "certificate" or not anyway:
            raise error
