"""How a migration begins: which vectors, with which map, and what the plan says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from congruence.cli._base import number, print_facts, print_table, say, unit_rows
from congruence.cli._options import Json, option
from congruence.cli.migrate._step import ENGINE, FINDING, read_certified, read_ranges
from congruence.errors import DirectionError, ModalityError, ParameterError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from congruence.cli.migrate._step import Step
    from congruence.databases import DatabaseInfo
    from congruence.maps import Map
    from congruence.upgrade.migrate import Plan
    from congruence.upgrade.migrate.journal import Journal

#: Rarely needed parameters.
SETTINGS: dict[str, Any] = {
    "ids": str,
    "rows": str,
    "normalize": "auto",
    "element_type": str,
    "ranges": str,
    "old_ranges": str,
    "allow_zero_rows": False,
    "encode_rate": float,
    "price": float,
    "anyway": False,
    "rate": float,
    "least_recall": 0.9,
    **ENGINE,
}

#: Those that are arguments of ``Migration``.
_ARGUMENTS = ("normalize", "element_type", "ranges", "old_ranges", "allow_zero_rows")

_FLAGS = ("mixed", "allow_unknown")


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
        False, "Accept rows that look like neither model's: they are mapped as the old model's.", "--allow-unknown"
    )
    journal: str | None = option(None, "Folder of the journal; by default migration-… here.")
    as_json: Json = False

    def words(self, given: Mapping[str, Any]) -> list[str]:
        """Return the options and settings as words of a command, without those of the report."""
        options = {"--from": self.from_, "--map": self.map_path, "--modality": self.modality}
        options |= {"--modality-column": self.modality_column, "--table": self.table, "--column": self.column}
        words = [word for flag, value in options.items() if value is not None for word in (flag, value)]
        words += [flag for flag, on in (("--mixed", self.mixed), ("--allow-unknown", self.allow_unknown)) if on]
        return words + [word for name, value in given.items() for word in ("--set", f"{name}={value}")]


class Beginning:
    """The map and the certificate of a migration that begins, and the arguments of ``Migration`` for it."""

    def __init__(self, options: BeginOptions, settings: Mapping[str, Any]) -> None:
        finding = {name: getattr(options, name) for name in ("table", "column", "modality_column")}
        self.options, self.given = options, {**finding, **settings}
        if options.from_ and options.map_path:
            raise ParameterError("Got --from and --map; expected one of them.", "Leave out --map.")
        self.mapping: Map | None = None
        self.certificate: dict[str, Any] | None = None
        if options.from_ is not None:
            self.mapping, self.certificate = read_certified(options.from_)
        elif options.map_path is not None:
            from congruence.maps import load

            self.mapping = load(options.map_path)
        self.modality = options.modality
        self._arguments = {name: value for name, value in self.given.items() if name in _ARGUMENTS}
        if "normalize" in self._arguments:
            self._arguments["normalize"] = unit_rows(self._arguments["normalize"])
        for name in {"ranges", "old_ranges"} & self._arguments.keys():
            self._arguments[name] = read_ranges(self._arguments[name])

    def __call__(self, info: DatabaseInfo, begun: Journal | None) -> dict[str, Any]:
        """Return the arguments of ``Migration``."""
        if self.mapping is None and begun is None:
            raise ParameterError(
                "Got neither --from nor --map, and no migration of this database has begun here.",
                "Pass --from with the folder that was written by: congruence check OLD NEW -o FOLDER",
            )
        if self.mapping is not None and self.options.modality_column is None:
            self.modality = self._find_modality(info)
        return {"mapping": self.mapping, "modality": self.modality, **self._arguments}

    def _find_modality(self, info: DatabaseInfo) -> str | None:
        """Return the modality of all rows: as typed, as the store says, or as the certificate says."""
        declared, typed = info.space.modality, self.options.modality
        if typed and declared and typed != declared:
            raise ModalityError(
                f"Got --modality {typed} for vectors that are recorded as {declared}.", "Leave out --modality."
            )
        certified = (self.certificate or {}).get("facts", {}).get("modality")
        return typed or declared or (certified if certified != "other" else None)

    @property
    def kept(self) -> dict[str, Any]:
        """Options that later steps need."""
        verdict = (self.certificate or {}).get("verdict", {})
        names = (*FINDING, *ENGINE)
        flags = {name: getattr(self.options, name) or None for name in _FLAGS}
        return {**{name: self.given.get(name) for name in names}, **flags, "share": verdict.get("share")}

    def flags(self, step: Step) -> dict[str, bool]:
        """Return what this or an earlier command accepts, as arguments of ``plan`` and ``run``."""
        return {name: getattr(self.options, name) or name in step.kept for name in _FLAGS}

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
        rate, price = self.given.get("encode_rate"), self.given.get("price")
        planned = migration.plan(certificate=self.certificate, encode_rate=rate, price=price, **self.flags(step))
        if sample is not None and any(one["check"] == "rows" and one["outcome"] == "bad" for one in planned.checks):
            migration.mapper(sample.ids, sample.vectors, sample.modalities)  # raises what the plan has noted
        return planned


def print_plan(planned: Plan) -> None:
    """Print what a run would do and cost, and the results of the checks."""
    from congruence._utils.memory import say_size

    if planned.verdict:
        say(f"{planned.verdict['headline']}: {planned.verdict['reason']}")
    old_type, new_type, written = planned.old_type, planned.element_type, planned.written_per_second
    types = new_type if new_type == old_type else f"{old_type} to {new_type}"
    without = f" ({planned.rows_without:,} more without a vector)" if planned.rows_without else ""
    steps = "one step" if planned.atomic_switch else "several steps"
    free = f", and {say_size(planned.free_bytes)} free" if planned.free_bytes else ""
    facts = [
        ["rows", f"{planned.rows:,}{without}"],
        ["vectors", f"{planned.dim_old} to {planned.dim_new} components, {types}"],
        ["written", f"to a separate {planned.container}; the switch takes {steps}"],
        ["size", f"{say_size(planned.bytes_new)}{free}"],
        ["index", planned.index or "none"],
        ["to read and map", f"{planned.rows_per_second:,.0f} rows/s, on a sample"],
    ]
    if written is None:
        facts.append(["to write", "not measured: this database has no scratch table"])
        facts.append(["time", f"{number(planned.minutes, 2)} min to read and map, without writing and the index"])
    else:
        facts.append(["to write", f"{written:,.0f} rows/s, a sample to a scratch table"])
        facts.append(["time", f"{number(planned.minutes, 2)} min for both, which overlap, without the index"])
    if planned.stored_as:
        facts.append(["stored as", planned.stored_as])
    if new_type != "float32":
        facts.append([f"recall as {new_type}", stored_recall(planned.stored_recall, "on a sample")])
    if old_type in ("int8", "binary"):
        lost = f"unknown, since the vectors before their quantization to {old_type} are not available"
        facts.append(["recall already lost", lost])
    if planned.encode_minutes is not None:
        facts.append(["time to re-embed instead", f"{number(planned.encode_minutes, 1)} min"])
    if planned.encode_cost is not None:
        facts.append(["price of re-embedding", f"{planned.encode_cost:,.2f}"])
    print_facts(f"{planned.place} ({planned.kind})", facts)
    marks = {"good": "ok", "bad": "NO", "unknown": "?"}
    checks = [[line["check"], marks[line["outcome"]], line["detail"]] for line in planned.checks]
    print_table("Checks", ["", "", ""], checks)


def stored_recall(recall: float | None, where: str) -> str:
    """Describe how much search quality remains when vectors are stored in fewer bits."""
    if recall is None:
        return "not measured: too few rows"
    return f"{recall:.3f} of the 10 nearest rows in float32 are among the 10 nearest as stored, {where}"
