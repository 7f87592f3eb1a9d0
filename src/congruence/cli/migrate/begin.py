"""How a migration begins: ``congruence migrate URL plan`` and ``run``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from congruence.cli._input import unit_rows
from congruence.cli._options import Json, option, settable
from congruence.cli._output import Bars, number, print_facts, print_json, print_table, say
from congruence.cli.migrate._step import ENGINE, FINDING, Step, Yes, ask, each, opened, read_certified, read_ranges
from congruence.cli.migrate.later import print_verification, stored_recall, verified
from congruence.errors import DirectionError, MigrationError, ModalityError, ParameterError

if TYPE_CHECKING:
    from congruence.databases import DatabaseInfo
    from congruence.maps import Map
    from congruence.upgrade.migrate import Plan
    from congruence.upgrade.migrate.journal import Journal

#: Rarely needed parameters, of which the first are arguments of ``Migration``.
ARGUMENTS = {"normalize": "auto", "element_type": str, "ranges": str, "old_ranges": str, "allow_zero_rows": False}
SETTINGS: dict[str, Any] = {"ids": str, "rows": str, **ARGUMENTS, "encode_rate": float, "price": float}
SETTINGS |= {"anyway": False, "rate": float, "least_recall": 0.9, **ENGINE}

#: What a run may be told to accept, which later runs need not be told again.
FLAGS = ("mixed", "allow_unknown")


@dataclass(frozen=True)
class BeginOptions:
    """Which vectors are migrated, and with which map."""

    from_: str | None = option(None, "Folder that congruence check wrote: its map and verdict.", "--from")
    map_path: str | None = option(None, "Folder of a map without a certificate, instead of --from.", "--map")
    modality: str | None = option(None, "Modality of all rows, if nothing else tells it: image, text, audio, …")
    modality_column: str | None = option(None, "Column (or file) with the modality of each row.")
    table: str | None = option(None, "Table or collection, if the address does not name it.")
    column: str | None = option(None, "Column of the vectors, or the named vector, if there are several.")
    mixed: bool = option(False, "Migrate only the rows of --set rows=…; the others keep their old vectors.", "--mixed")
    allow_unknown: bool = option(
        False, "Map rows that look like neither model's as the old model's.", "--allow-unknown"
    )
    journal: str | None = option(None, "Folder of the journal; by default migration-… here.")
    as_json: Json = False

    def words(self, given: Mapping[str, Any]) -> list[str]:
        """Return the options and settings as words of a command, without those of the report."""
        texts = {"--from": self.from_, "--map": self.map_path, "--modality": self.modality}
        texts |= {"--modality-column": self.modality_column, "--table": self.table, "--column": self.column}
        words = [word for flag, value in texts.items() if value is not None for word in (flag, value)]
        words += [flag for flag, on in (("--mixed", self.mixed), ("--allow-unknown", self.allow_unknown)) if on]
        return words + [word for name, value in given.items() for word in ("--set", f"{name}={value}")]


class Beginning:
    """The map and the certificate of a migration that begins, and the arguments of ``Migration`` for it."""

    def __init__(self, options: BeginOptions, settings: Mapping[str, Any]) -> None:
        found = {name: getattr(options, name) for name in ("table", "column", "modality_column")}
        self.options, self.given = options, {**found, **settings}
        self.mapping: Map | None = None
        self.certificate: dict[str, Any] | None = None
        if options.from_ and options.map_path:
            raise ParameterError("Got --from and --map; expected one of them.", "Leave out --map.")
        if options.from_ is not None:
            self.mapping, self.certificate = read_certified(options.from_)
        elif options.map_path is not None:
            from congruence.maps import load

            self.mapping = load(options.map_path)
        self.arguments = {name: settings[name] for name in ARGUMENTS if name in settings}
        if "normalize" in settings:
            self.arguments["normalize"] = unit_rows(settings["normalize"])
        for name in {"ranges", "old_ranges"} & settings.keys():
            self.arguments[name] = read_ranges(Path(settings[name]))

    def __call__(self, info: DatabaseInfo, begun: Journal | None) -> dict[str, Any]:
        """Return the arguments of ``Migration``."""
        modality = self.options.modality
        if self.mapping is None and begun is None:
            raise ParameterError(
                "Got neither --from nor --map, and no migration of this database has begun here.",
                "Pass --from with the folder that was written by: congruence check OLD NEW -o FOLDER",
            )
        if self.mapping is not None and self.options.modality_column is None:
            declared = info.space.modality  # what the store says counts, then what was certified
            if modality and declared and modality != declared:
                raise ModalityError(
                    f"Got --modality {modality} for vectors that are recorded as {declared}.", "Leave out --modality."
                )
            certified = (self.certificate or {}).get("facts", {}).get("modality")
            modality = modality or declared or (certified if certified != "other" else None)
            if self.certificate is not None and info.dim == self.mapping.n_features_in_:
                try:
                    self.mapping.for_modality(modality)
                except ModalityError as error:
                    unnamed = certified in (None, "other")
                    words = f"--modality {modality}" if unnamed else f"--also {modality}=OLD,NEW"
                    typed = f"congruence check OLD NEW {words} -o {self.options.from_} --force"
                    error.fix = (f"{'Name what was checked' if unnamed else 'Check with these rows too'}: {typed}",)
                    raise
        return {"mapping": self.mapping, "modality": modality, **self.arguments}

    def flags(self, step: Step) -> dict[str, bool]:
        """Return what this or an earlier command accepts, as arguments of ``plan`` and ``run``."""
        return {name: getattr(self.options, name) or name in step.kept for name in FLAGS}

    def plan(self, step: Step) -> Plan:
        """Return the plan. Raises an error if the map cannot be applied to the rows."""
        from congruence.upgrade.migrate.plan import SAMPLE

        migration = step.migration
        sample = next(iter(migration.database.scan("old", batch=SAMPLE)), None)
        if sample is not None:
            try:
                migration.mapper.check(migration.info, sample)
            except DirectionError as error:
                error.fix = ("Pass the model of these rows first: congruence check OLD NEW -o FOLDER",)
                raise
        costs: dict[str, Any] = {name: self.given.get(name) for name in ("encode_rate", "price")}
        planned = migration.plan(certificate=self.certificate, **costs, **self.flags(step))
        if sample is not None and any(one["check"] == "rows" and one["outcome"] == "bad" for one in planned.checks):
            migration.mapper(sample.ids, sample.vectors, sample.modalities)  # raises what the plan has noted
        return planned

    def write(self, step: Step, bars: Bars) -> None:
        """Write the new vectors, and keep what later steps need; if this fails, report how to continue."""
        migration, resume, begins = step.migration, step.migration.journal is not None, False
        if resume:
            migration.database.check_unchanged()

        def stage(label: str) -> None:
            nonlocal begins
            if label != "beginning":
                bars.begin(label, migration.info.rows)
                return
            begins = True  # the folder is locked, and what it keeps is no other run's
            kept = {name: self.given.get(name) for name in (*FINDING, *ENGINE)}
            kept |= {name: getattr(self.options, name) or None for name in FLAGS}
            kept |= {"from": self.options.from_, "map": self.options.map_path, "modality": self.options.modality}
            step.keep(**kept, share=(self.certificate or {}).get("verdict", {}).get("share"))

        try:
            migration.run(
                certificate=self.certificate,
                **self.flags(step),
                resume=resume,
                anyway=self.given.get("anyway", False),
                rate=self.given.get("rate"),
                callback=bars.advance,
                stage=stage,
            )
        except BaseException as error:
            bars.close()
            if begins and migration.journal is None:
                step.forget()
            elif migration.journal is not None and migration.journal.state not in ("switched", "dropped"):
                error.add_note(f"The journal is in {migration.folder}. To continue: {step.command('run')}")
            raise


@each
def plan(ctx: typer.Context, *, options: BeginOptions, settings: dict[str, Any] = settable(**SETTINGS)) -> None:
    """Report what a run would do, and check all that can be checked in advance; nothing is changed.

    Example: congruence migrate library/photos.lance plan --from checked
    """
    from congruence.upgrade.migrate.plan import refuse

    beginning = Beginning(options, settings)
    with opened(ctx, options.journal, given=beginning.given, begin=beginning) as step:
        if (journal := step.migration.journal) is not None:
            raise MigrationError(
                f"This migration has already begun and is {journal.state} ({step.migration.folder}).",
                f"Type: {step.command('status')}",
            )
        planned = beginning.plan(step)
        following = step.command("run", *options.words(settings))
        print_json({**planned.to_dict(), "next": following}) if options.as_json else print_plan(planned)
        refuse(planned, anyway=True)
        if planned.refused:
            raise typer.Exit(1)  # the certificate advises against it
        if not options.as_json:
            say(f"Next: {following}")


@each
def run(
    ctx: typer.Context, *, options: BeginOptions, settings: dict[str, Any] = settable(**SETTINGS), yes: Yes = False
) -> None:
    """Write the new vectors next to the old ones, and verify them; run it again to continue after an interruption.

    Example: congruence migrate library/photos.lance run --from checked --yes
    """
    from congruence.upgrade.migrate.plan import refuse

    beginning = Beginning(options, settings)
    with opened(ctx, options.journal, given=beginning.given, begin=beginning) as step:
        if step.migration.journal is None:
            planned = beginning.plan(step)
            if not options.as_json:
                print_plan(planned)
            refuse(planned, anyway=settings.get("anyway", False))
            ask(f"Write {planned.rows:,} new vectors next to the old ones?", yes)
        with Bars(options.as_json) as bars:
            beginning.write(step, bars)
            verification = verified(step.migration, bars, least_recall=settings.get("least_recall", 0.9))
        if not options.as_json:
            print_verification(verification, step.migration)
        step.report("run", verification.to_dict(), [], options.as_json)
        if not verification.passed:
            raise typer.Exit(1)


def print_plan(planned: Plan) -> None:
    """Print what a run would do and cost, and the results of the checks."""
    from congruence._utils.memory import say_size

    if planned.verdict:
        say(f"{planned.verdict['headline']}: {planned.verdict['reason']}")
    old_type, new_type = planned.old_type, planned.element_type
    types = new_type if new_type == old_type else f"{old_type} to {new_type}"
    without = f" ({planned.rows_without:,} more without a vector)" if planned.rows_without else ""
    steps = "one step" if planned.atomic_switch else "several steps"
    free = f", and {say_size(planned.free_bytes)} free" if planned.free_bytes else ""
    to_write, time = (
        "not measured: this database has no scratch table",
        "to read and map, without writing and the index",
    )
    if planned.written_per_second is not None:
        to_write = f"{planned.written_per_second:,.0f} rows/s, a sample to a scratch table"
        time = "for both, which overlap, without the index"
    quantized = f"unknown, since the vectors before their quantization to {old_type} are not available"
    minutes_instead, price = planned.encode_minutes, planned.encode_cost
    facts = {
        "rows": f"{planned.rows:,}{without}",
        "vectors": f"{planned.dim_old} to {planned.dim_new} components, {types}",
        "written": f"to a separate {planned.container}; the switch takes {steps}",
        "size": f"{say_size(planned.bytes_new)}{free}",
        "index": planned.index or "none",
        "to read and map": f"{planned.rows_per_second:,.0f} rows/s, on a sample",
        "to write": to_write,
        "time": f"{number(planned.minutes, 2)} min {time}",
        "stored as": planned.stored_as or None,
        f"recall as {new_type}": None if new_type == "float32" else stored_recall(planned.stored_recall, "on a sample"),
        "recall already lost": quantized if old_type in ("int8", "binary") else None,
        "time to re-embed instead": None if minutes_instead is None else f"{minutes_instead:.1f} min",
        "price of re-embedding": None if price is None else f"{price:,.2f}",
    }
    print_facts(f"{planned.place} ({planned.kind})", facts)
    marks = {"good": "ok", "bad": "NO", "unknown": "?"}
    checks = [[line["check"], marks[line["outcome"]], line["detail"]] for line in planned.checks]
    print_table("Checks", ["", "", ""], checks)
