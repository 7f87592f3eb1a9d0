"""``congruence migrate``: move the vectors of a live database to a new model: plan, write, verify, switch, roll
back.
"""

from __future__ import annotations

import os
import sys
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO
from zipfile import BadZipFile

import typer

from congruence.cli._base import (
    Bars,
    check_plot,
    number,
    open_asking,
    print_facts,
    print_json,
    print_table,
    say,
    say_error,
    unit_rows,
)
from congruence.cli._engines import EngineOptions
from congruence.cli._options import AllowZeroRows, Json, argument, option, with_groups
from congruence.cli._scores import print_thresholds
from congruence.errors import CorruptFileError, FileError, ParameterError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy as np

    from congruence.engines import Engine
    from congruence.upgrade.migrate import Migration, Plan, Verification
    from congruence.upgrade.migrate.stages import Encode


#: Panels of the help.
VECTORS, BEFORE, STORED = "Which vectors", "Before it runs", "How new vectors are stored"
THRESHOLDS, REEMBED = "thresholds", "reembed"

ACTIONS = ("run", "plan", "verify", "switch", "rollback", "reembed", "thresholds", "status", "drop-old", "discard")

#: What is asked before vectors are removed.
QUESTIONS = {"drop-old": "Remove the old vectors for good?", "discard": "Remove the new vectors?"}


@dataclass(frozen=True)
class VectorOptions:
    """Which vectors are migrated."""

    table: str | None = option(None, "Table or collection, if the address does not name it.", panel=VECTORS)
    column: str | None = option(None, "Column of the vectors, or the named vector.", panel=VECTORS)
    ids: str | None = option(None, "Column of the ids; by default the primary key. For .npy, a file.", panel=VECTORS)
    modality_column: str | None = option(
        None, "Column of each row's modality (for .npy or FAISS, a file), whose own means are then used.", panel=VECTORS
    )
    rows: str | None = option(None, "Only these rows: a condition in the database's own language.", panel=VECTORS)


@dataclass(frozen=True)
class StoredOptions:
    """How new vectors are stored."""

    normalize: str = option(
        "auto", "Scale the new vectors to unit norm: auto (as the target's at the fit), yes or no.", panel=STORED
    )
    element_type: str | None = option(
        None,
        "Type of the new vectors: float32, float16, int8 or binary; by default that of the old ones.",
        panel=STORED,
    )
    ranges: str | None = option(
        None,
        "For int8: .npy (2, components), the least and largest value of each; by default from a sample.",
        panel=STORED,
    )
    old_ranges: str | None = option(None, "The ranges with which old int8 vectors were quantized.", panel=STORED)

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of ``Migration``, whose files are read here."""
        ranges, old_ranges = (None if path is None else _read_ranges(path) for path in (self.ranges, self.old_ranges))
        return {
            "normalize": unit_rows(self.normalize),
            "element_type": self.element_type,
            "ranges": ranges,
            "old_ranges": old_ranges,
        }


@dataclass(frozen=True)
class ThresholdOptions:
    """Options for the thresholds of an application."""

    threshold: list[float] | None = option(
        None, "For thresholds: a threshold of the old model to translate; may be repeated.", panel=THRESHOLDS
    )
    queries: str | None = option(
        None,
        "For thresholds: queries in the new model; without them rows are compared with each other.",
        panel=THRESHOLDS,
    )
    queries_old: str | None = option(None, "For thresholds: the same queries in the old model.", panel=THRESHOLDS)

    def check(self, action: str) -> None:
        """Check the options before anything is read."""
        _refuse_misplaced("--threshold", bool(self.threshold), action, "thresholds")
        if action == "thresholds" and not self.threshold:
            raise ParameterError("Got no --threshold.", "Pass --threshold, for example 0.28.")


@dataclass(frozen=True)
class ReembedOptions:
    """Which rows are re-embedded, and how."""

    among: str | None = option(None, "Modality of the rows to re-embed, or to search for thresholds.", panel=REEMBED)
    progressive: bool = option(
        False,
        "With run: also switch, and re-embed the rows that the map is least sure of.",
        "--progressive",
        panel=REEMBED,
    )
    encode: str | None = option(
        None,
        "How to encode: a command with {ids} and {out}, a file of vectors, or an encoder with --items.",
        panel=REEMBED,
    )
    items: str | None = option(
        None, "With an encoder: table or folder of the items, as for embed, with the ids of the rows.", panel=REEMBED
    )
    texts: str | None = option(
        None,
        "Texts in the old model (a vocabulary, tags, queries), to choose what needs re-embedding most.",
        panel=REEMBED,
    )
    new_texts: str | None = option(None, "The same texts in the new model.", panel=REEMBED)
    batch: int = option(1000, "Number of rows to re-embed before the map is refitted.", panel=REEMBED)
    budget: int | None = option(None, "Number of rows to re-embed in total.", panel=REEMBED)
    share: float | None = option(None, "Share of the rows to re-embed in total, e.g. .1.", panel=REEMBED)
    until: float | None = option(
        None, "Stop when the whole 95 % interval of the agreement is above this value, e.g. .99.", panel=REEMBED
    )
    plot: str | None = option(None, "Plot quality against the share re-embedded: .svg, .png or .pdf.", panel=REEMBED)
    encode_rate: float | None = option(None, "Items per second that the new model encodes, to compare.", panel=BEFORE)
    price: float | None = option(None, "Price of encoding one item, to compare with re-embedding.", panel=BEFORE)

    def check(self, action: str) -> None:
        """Check the options before anything is read."""
        _refuse_misplaced("--progressive", self.progressive, action, "run")
        if not self.progressive and action != "reembed":
            _refuse_misplaced("--encode", self.encode is not None, action, "reembed")
            return
        if self.encode is None:
            raise ParameterError(
                "Got no --encode, which says how to encode rows with the new model.",
                "Pass a command with {ids} and {out}, a file of vectors, or an encoder with --items.",
            )
        if self.budget is not None and self.share is not None:
            raise ParameterError(
                f"Got --budget {self.budget} and --share {self.share}; expected one of the two.", "Leave out one."
            )
        for name in ("budget", "share", "until", "batch"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ParameterError(argument=name, got=value, expected="a number above 0")
            if value is not None and value > 1 and name in ("share", "until"):
                raise ParameterError(argument=name, got=value, expected="at most 1", fix=f"Pass --{name} .9.")
        if self.budget is None and self.share is None and self.until is None:
            raise ParameterError(
                "Got no --budget, --share or --until; expected one of them, which says when to stop.",
                "Pass --share .1, for example.",
            )
        if (self.texts is None) != (self.new_texts is None):
            raise ParameterError(
                "Got texts of one model only; expected the same texts encoded by both.",
                "Pass --texts and --new-texts, or neither.",
            )
        if self.plot is not None:
            check_plot(self.plot, force=False)


@dataclass(frozen=True)
class PassOptions(EngineOptions):
    """Where the passes over the rows run."""

    engine: str = option(
        "local",
        "local, or ray, for run, switch and rollback of files or LanceDB tables that all workers reach.",
        panel="On many machines",
    )


@with_groups
def command(
    where: str = argument(
        ...,
        "URL or path of the database, as its own clients write it: photos/items.lance, postgresql://user@host/db, "
        "http://localhost:6333, photos.duckdb, photos.parquet, …",
        metavar="DATABASE",
    ),
    action: str = argument(
        "run",
        "run (write the new vectors next to the old ones, and verify them; the default), plan, verify, switch, "
        "rollback, reembed, thresholds, status, drop-old or discard.",
        metavar="[ACTION]",
    ),
    *,
    map_path: str | None = option(None, "Folder of a saved map. Later steps take it from the journal.", "--map"),
    which: VectorOptions,
    modality: str | None = option(None, "Modality of all rows: image, text, audio, video, other.", panel=VECTORS),
    journal: str | None = option(None, "Folder of the journal; by default migration-… here.", panel=VECTORS),
    certificate: str | None = option(
        None, "JSON of congruence certify, printed first; run obeys its verdict.", panel=BEFORE
    ),
    stored: StoredOptions,
    heldout: str | None = option(
        None, "For verify: rows in the new model, with their ids, that the map was not fitted on.", panel="verify"
    ),
    least_recall: float = option(0.9, "For verify: smallest recall of the index against exact search.", panel="verify"),
    thresholds: ThresholdOptions,
    options: ReembedOptions,
    dry_run: bool = option(False, "The same as plan: change nothing.", "--dry-run", panel=BEFORE),
    resume: bool = option(False, "Resume a run that was stopped.", "--resume"),
    yes: bool = option(False, "Do not ask before anything is written.", "--yes", "-y", panel=BEFORE),
    anyway: bool = option(False, "Run even if the certificate advises against it.", "--anyway", panel=BEFORE),
    allow_zero_rows: AllowZeroRows = False,
    runner: PassOptions,
    as_json: Json = False,
) -> None:
    """Migrate a live database to a new model, step by step.

    New vectors are written next to the old ones. Readers see them only after switch, and rollback restores the old
    ones, bit for bit.
    """
    from congruence._utils.validation import check_choice
    from congruence.maps import load
    from congruence.upgrade.migrate import Migration

    check_choice(action, ACTIONS, "action")
    unit_rows(stored.normalize)  # refused before the database is opened
    reembeds = options.progressive or action == "reembed"
    _refuse_misplaced("--dry-run", dry_run, action, "run", "plan")
    thresholds.check(action)
    options.check(action)
    if dry_run:
        action = "plan"
    engine = _engine(runner, "reembed" if reembeds else action)
    verdict = None if certificate is None else _read_certificate(certificate)
    mapping = None if map_path is None else load(map_path)
    database = open_asking(where, **vars(which))
    with closing(database):
        migration = Migration(
            database,
            mapping,
            journal=journal,
            modality=modality,
            **stored.arguments(),
            allow_zero_rows=allow_zero_rows,
            engine=engine,
        )
        migration.retry.log = say_error
        if action == "status":
            _show_status(migration, as_json)
            return
        if action == "thresholds":
            _translate_thresholds(migration, thresholds, options.among, as_json)
            return
        if action == "plan" or (action == "run" and not resume):
            planned = migration.plan(certificate=verdict, encode_rate=options.encode_rate, price=options.price)
            if not as_json or action == "plan":
                print_json(planned.to_dict()) if as_json else _print_plan(planned)
            if action == "plan":
                raise typer.Exit(1 if planned.refused else 0)
            if migration.journal is None and not yes and not (planned.refused and not anyway):
                _ask(f"Write {planned.rows:,} new vectors next to the old ones?")
        if reembeds:
            open_encoder(options, migration)  # fails here, before anything is written, if it cannot be opened
        if action in QUESTIONS and not yes:
            _ask(QUESTIONS[action])
        said: list[str] = []
        with Bars(as_json) as bars:
            if action == "run":
                _run(migration, bars, certificate=verdict, resume=resume, anyway=anyway)
            if action in ("run", "verify"):
                result = _verify(migration, bars, heldout, least_recall, as_json)
                if result["passed"] and options.progressive:
                    result |= _run_progressive(migration, options, bars, as_json)
                elif migration.journal is not None and migration.journal.state == "verified":
                    said = [f"Next: {shell_command(where, 'switch', **vars(which), journal=journal)}"]
            elif action == "reembed":
                result = _run_reembed(migration, options, bars, as_json)
            else:
                result, said = _change(migration, action, bars)
        if as_json:
            print_json({"action": action, "journal": str(migration.folder), **result})
        else:
            for line in said:
                say(line)
        if action in ("run", "verify") and not result["passed"]:
            raise typer.Exit(1)


def _refuse_misplaced(flag: str, given: bool, action: str, *actions: str) -> None:
    """Raise ParameterError if a flag is given with an action to which it does not belong."""
    if given and action not in actions:
        raise ParameterError(f"Got {flag} for {action}; expected it for {actions[0]} only.", "Leave it out.")


def _show_status(migration: Migration, as_json: bool) -> None:
    status = migration.status()
    print_json(status) if as_json else _print_status(status)


def _translate_thresholds(migration: Migration, given: ThresholdOptions, among: str | None, as_json: bool) -> None:
    """Print similarity thresholds of the old model in terms of the new one."""
    from congruence.io import read_embeddings

    new, old = (None if spec is None else read_embeddings(spec) for spec in (given.queries, given.queries_old))
    fitted = migration.fit_thresholds(new, old, among=among)
    translated = [fitted.translate(value) for value in given.threshold or []]
    if as_json:
        lines = [row.to_dict() for row in translated]
        print_json({"action": "thresholds", **fitted.describe(), "thresholds": lines})
    else:
        print_thresholds(translated)


def _verify(
    migration: Migration, bars: Bars, heldout: str | None, least_recall: float, as_json: bool
) -> dict[str, Any]:
    """Verify the new vectors, print the checks, and return them as plain data."""
    from congruence.io import read_embeddings

    vectors = None if heldout is None else read_embeddings(heldout)
    bars.begin("verifying", migration.info.rows)
    verification = migration.verify(heldout=vectors, least_recall=least_recall, callback=bars.advance)
    bars.close()
    if not as_json:
        _print_verification(verification, migration)
    return verification.to_dict()


def _change(migration: Migration, action: str, bars: Bars) -> tuple[dict[str, Any], list[str]]:
    """Change what readers see, or remove vectors; return the result as plain data, and lines that describe it."""
    if action == "switch":
        bars.begin("comparing", migration.info.rows)
        result = migration.switch(callback=bars.advance)
        return result, [
            f"switched: readers see the new vectors of {result['rows']:,} rows. The old ones are kept: "
            "rollback restores them, drop-old removes them",
            f"summary: {migration.folder / 'summary.json'}",
        ]
    if action == "rollback":
        result = migration.rollback()
        states = {True: "bit for bit as before", False: "changed by others since", None: "not compared"}
        state = states[result["identical"]]
        return result, [f"rolled back: readers see the old vectors of {result['rows']:,} rows, {state}"]
    if action == "drop-old":
        migration.drop_old()
        return {"dropped": True}, ["removed the old vectors"]
    migration.discard()
    return {"discarded": True}, ["removed the new vectors"]


def _ask(question: str) -> None:
    """Ask for confirmation, and exit with 1 if it is denied."""
    if not sys.stdin.isatty():
        raise ParameterError(
            "There is no terminal to ask for confirmation before data are changed.", "Pass --yes to confirm in advance."
        )
    if not typer.confirm(question, err=True):
        raise typer.Exit(1)


def shell_command(where: str, action: str, **options: str | None) -> str:
    """Return the shell command for a later step: the address without its secrets, and the options that identify the
    vectors.
    """
    import shlex

    from congruence.databases import Address

    address = Address.parse(where)
    words = ["congruence", "migrate", address.shown if address.secrets else where, action]
    for name, value in options.items():
        words += [] if value is None else [f"--{name.replace('_', '-')}", value]
    return shlex.join(words)


def _read_certificate(path: str) -> dict[str, object]:
    import json

    fix = "Save the output of congruence certify --json to a file, and pass this file."
    read = lambda file: json.loads(file.read(64 * 2**20).decode("utf-8"))  # noqa: E731
    return _read(path, "certificate", read, dict, "a JSON object", fix)


def _read_ranges(path: str) -> np.ndarray:
    import numpy as np

    fix = "Write an array of shape (2, components) with numpy.save, and pass its file."
    # An .npz file is an archive of arrays, and no array itself.
    return _read(path, "ranges", partial(np.load, allow_pickle=False), np.ndarray, "an .npy file", fix)


def _read(path: str, name: str, read: Callable[[BinaryIO], Any], kind: type, expected: str, fix: str) -> Any:
    """Return the content of a file that a user names, if it is of a kind."""
    try:
        with open(path, "rb") as file:
            if isinstance(content := read(file), kind):
                return content
    except OSError as error:
        raise FileError(f"The {name} {path} cannot be read ({error.strerror}).", "Check the path.") from None
    except (ValueError, EOFError, RecursionError, BadZipFile):  # of JSON, and of an array or archive
        pass
    raise CorruptFileError(f"{path} is not {expected}.", fix)


def _engine(runner: PassOptions, action: str) -> Engine | None:
    """Return what runs a migration's passes; None for this process."""
    if not runner.by_fragments():
        return None
    if action not in ("run", "switch", "rollback"):
        raise ParameterError(
            f"Got --engine {runner.engine} for {action}; expected it for run, switch or rollback only.",
            "Leave it out.",
        )
    return runner.open()


def _run(
    migration: Migration, bars: Bars, *, certificate: Mapping[str, object] | None, resume: bool, anyway: bool
) -> None:
    """Write the new vectors next to the old ones; if this fails, report where the journal is."""
    try:
        migration.run(
            certificate=certificate,
            resume=resume,
            anyway=anyway,
            callback=bars.advance,
            stage=lambda label: bars.begin(label, migration.info.rows),
        )
    except BaseException:
        bars.close()
        if migration.journal is not None and migration.folder.exists():
            say_error(f"The journal is in {migration.folder}. Run the command again with --resume to continue.")
        raise


# ------------------------------------------------------------------ re-embedding


def open_encoder(options: ReembedOptions, migration: Migration) -> Encode:
    """Return the function that encodes rows, according to the form of ``--encode``."""
    from dataclasses import replace

    from congruence.embeddings import check_space
    from congruence.upgrade.migrate.encode import CommandEncoder, FileEncoder, ItemsEncoder

    spec = options.encode or ""
    if "{" in spec or " " in spec.strip():
        return CommandEncoder(spec)
    target, source = migration.mapper.map.target_space_, migration.mapper.map.source_space_
    if options.items is None and os.path.exists(spec.partition(":")[0]):
        from congruence.io import read_embeddings

        vectors = read_embeddings(spec)
        check_space(replace(vectors.space, normalized=None), target, source, modality=False)
        return FileEncoder(vectors)
    if options.items is None:
        raise ParameterError(
            f"Got --encode {spec}, which is neither a file nor a command with {{ids}} and {{out}}, and no --items.",
            "Pass --items with the table or folder of the items to encode.",
        )
    from congruence.embed import open_items
    from congruence.encoders import load_encoder

    items = open_items(options.items, modality=options.among)
    encoder = load_encoder(spec, items.modality)
    check_space(replace(encoder.space, normalized=None), target, source, modality=False)
    return ItemsEncoder(encoder, items)


def _run_progressive(migration: Migration, options: ReembedOptions, bars: Bars, as_json: bool) -> dict[str, object]:
    """Switch and re-embed, and return the report as plain data; if a switch takes complete files only, re-embed and
    verify before it.
    """
    switches_first = migration.database.capabilities.writes_after_switch
    result: dict[str, object] = {}
    if not switches_first:
        result = _run_reembed(migration, options, bars, as_json)
        bars.begin("verifying", migration.info.rows)
        verification = migration.verify(callback=bars.advance)
        result |= verification.to_dict()
        if not verification.passed:
            bars.close()
            return result
    bars.begin("comparing", migration.info.rows)
    migration.switch(callback=bars.advance)
    bars.close()
    if not as_json:
        seen = "mapped vectors, and re-embedded ones once they are written" if switches_first else "the new vectors"
        say(f"switched: readers see {seen}")
    return _run_reembed(migration, options, bars, as_json) if switches_first else result


def _run_reembed(migration: Migration, options: ReembedOptions, bars: Bars, as_json: bool) -> dict[str, object]:
    """Re-embed, print each stage, and return all stages and the forecast as plain data."""
    from congruence.io import read_embeddings
    from congruence.upgrade.migrate.stages import reembed

    texts, new_texts = (None if spec is None else read_embeddings(spec) for spec in (options.texts, options.new_texts))
    encode = open_encoder(options, migration)
    n_embedded = 0 if migration.mapper.native is None else len(migration.mapper.native.ids)
    total = options.budget or round((options.share or 1) * migration.info.rows)
    with bars.shown("encoding", max(total - n_embedded, 0)) as advance:
        done = reembed(
            migration,
            encode,
            texts=texts,
            new_texts=new_texts,
            among=options.among,
            size=options.batch,
            budget=options.budget,
            share=options.share,
            until=options.until,
            callback=advance,
            stage=None if as_json else say,
        )
    lines = ["no rows were re-embedded"]
    result: dict[str, object] = {"stages": [stage.to_dict() for stage in done.history_], "order": done.order_}
    if done.history_:
        forecast = done.forecast(rate=options.encode_rate and 60 * options.encode_rate, price=options.price)
        result["forecast"] = forecast.to_dict()
        lines = str(forecast).split("\n")
        if options.plot is not None:
            from congruence.report.pictures import write_figure

            write_figure(options.plot, done.plot(), "quality by the share re-embedded", force=True)
            result["plot"] = options.plot
    if not as_json:
        for line in lines:
            say(line)
    return {**result, "words": lines}


# ------------------------------------------------------------------ what is printed


def _print_plan(planned: Plan) -> None:
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
        facts.append([f"recall as {new_type}", _stored_recall(planned.stored_recall, "on a sample")])
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


def _stored_recall(recall: float | None, where: str) -> str:
    """Describe how much search quality remains when vectors are stored in fewer bits."""
    if recall is None:
        return "not measured: too few rows"
    return f"{recall:.3f} of the 10 nearest rows in float32 are among the 10 nearest as stored, {where}"


def _print_verification(verification: Verification, migration: Migration) -> None:
    """Print the result of a verification, and how queries must be quantized if the new vectors are."""
    recalls = f"{number(verification.index_recall)} (old: {number(verification.index_recall_old)})"
    wrong = f"{verification.wrong} wrong; largest difference {verification.largest_difference:.1e}"
    facts = [
        ["rows", f"{verification.rows_old:,} old, {verification.rows_new:,} new"],
        ["read back", f"{verification.read_back:,}, {wrong}"],
        ["recall of the index against exact search", f"{recalls}, {verification.k} nearest"],
    ]
    if verification.stored_recall is not None:
        facts.append(["recall as stored", _stored_recall(verification.stored_recall, "on the sample read back")])
    if verification.clipped:
        facts.append(["outside the ranges", f"{100 * verification.clipped:.2g} % of components, which were clipped"])
    if scores := verification.heldout:
        first, tenth, chance = (
            number(scores[key], k) for key, k in (("recall@1", 3), ("recall@10", 3), ("chance@10", 4))
        )
        facts.append(["held-out vectors", f"recall@1 {first}, @10 {tenth} (chance {chance})"])
    print_facts("verified" if verification.passed else "NOT verified", facts)
    for problem in verification.problems:
        say(problem)
    if rule := migration.mapper.new.describe():
        say(f"Quantize queries in the same way: {rule}")
        if migration.mapper.new.ranges is not None:
            path = migration.folder / "ranges.npy"
            say(f"The ranges, in the form that quantize_embeddings of sentence-transformers expects: {path}")


def _print_status(status: dict[str, Any]) -> None:
    """Print the state of a migration, and its events."""
    facts = [["database", status["stage"]], ["journal", status.get("state", "none")]]
    if "rows" in status:
        facts.append(["rows", f"{status['rows_mapped']:,} of {status['rows']:,} mapped"])
    if "reembedded" in status:
        facts.append(["re-embedded", f"{status['reembedded']:,} rows"])
    print_facts(status["place"], facts)
    for event in status.get("events", []):
        say(f"{event['at'].replace('T', ' ')}  {event['what']}")
