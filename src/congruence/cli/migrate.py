"""``congruence migrate``: move the vectors of a live database to a new model: plan, write, verify, switch, roll
back.
"""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Annotated

import typer

from congruence.cli._engines import ADDRESS_HELP, WORKERS_HELP

if TYPE_CHECKING:
    import numpy as np

__all__ = ["command"]

ACTIONS = ("run", "plan", "verify", "switch", "rollback", "reembed", "thresholds", "status", "drop-old", "discard")


def command(
    where: Annotated[
        str,
        typer.Argument(
            metavar="DATABASE",
            help="URL or path of the database, as its own clients write it: photos/items.lance, "
            "postgresql://user@host/db, http://localhost:6333, photos.duckdb, photos.parquet, …",
        ),
    ],
    action: Annotated[
        str,
        typer.Argument(
            metavar="[ACTION]",
            help="run (write the new vectors next to the old ones, and verify them; the default), plan, verify, "
            "switch, rollback, reembed, thresholds, status, drop-old or discard.",
        ),
    ] = "run",
    map_path: Annotated[
        str | None, typer.Option("--map", help="Folder of a saved map. Later steps take it from the journal.")
    ] = None,
    table: Annotated[
        str | None,
        typer.Option(help="Table or collection, if the address does not name it.", rich_help_panel="Which vectors"),
    ] = None,
    column: Annotated[
        str | None, typer.Option(help="Column of the vectors, or the named vector.", rich_help_panel="Which vectors")
    ] = None,
    ids: Annotated[
        str | None,
        typer.Option(
            help="Column of the ids; by default the primary key. For .npy, a file of ids.",
            rich_help_panel="Which vectors",
        ),
    ] = None,
    modality: Annotated[
        str | None,
        typer.Option(help="Modality of all rows: image, text, audio, video, other.", rich_help_panel="Which vectors"),
    ] = None,
    modality_column: Annotated[
        str | None,
        typer.Option(
            help="Column with the modality of each row (for an .npy or FAISS index, a file); images and texts are "
            "then mapped with their own means.",
            rich_help_panel="Which vectors",
        ),
    ] = None,
    rows: Annotated[
        str | None,
        typer.Option(
            help="Only these rows: a condition in the database's query language.", rich_help_panel="Which vectors"
        ),
    ] = None,
    journal: Annotated[
        str | None,
        typer.Option(
            help="Folder of the journal; by default migration-… in the current folder.", rich_help_panel="Which vectors"
        ),
    ] = None,
    certificate: Annotated[
        str | None,
        typer.Option(
            help="JSON output of congruence certify: its verdict is printed first, and run refuses to map if it "
            "advises against mapping.",
            rich_help_panel="Before it runs",
        ),
    ] = None,
    normalize: Annotated[
        str,
        typer.Option(
            help="Scale the new vectors to unit norm: auto (if the target's rows had unit norm at the fit), yes or no.",
            rich_help_panel="How new vectors are stored",
        ),
    ] = "auto",
    element_type: Annotated[
        str | None,
        typer.Option(
            help="Type in which new vectors are stored, if the database supports it: float32, float16, int8 or "
            "binary (one bit per component); by default the type of the old ones.",
            rich_help_panel="How new vectors are stored",
        ),
    ] = None,
    ranges: Annotated[
        str | None,
        typer.Option(
            help="For int8: .npy of shape (2, components) with the smallest and largest value of each component of "
            "the new vectors; by default one range for all, from a sample.",
            rich_help_panel="How new vectors are stored",
        ),
    ] = None,
    old_ranges: Annotated[
        str | None,
        typer.Option(
            help="The ranges with which old int8 vectors were quantized.", rich_help_panel="How new vectors are stored"
        ),
    ] = None,
    encode_rate: Annotated[
        float | None,
        typer.Option(
            help="Items per second that the new model encodes, to compare with re-embedding.",
            rich_help_panel="Before it runs",
        ),
    ] = None,
    price: Annotated[
        float | None,
        typer.Option(
            help="Price of encoding one item, to compare with re-embedding.", rich_help_panel="Before it runs"
        ),
    ] = None,
    heldout: Annotated[
        str | None,
        typer.Option(
            help="For verify: vectors of the new model that the map was not fitted on, with the ids of their rows.",
            rich_help_panel="verify",
        ),
    ] = None,
    least_recall: Annotated[
        float,
        typer.Option(
            help="For verify: smallest recall of the new index against exact search.", rich_help_panel="verify"
        ),
    ] = 0.9,
    threshold: Annotated[
        list[float] | None,
        typer.Option(
            help="For thresholds: a threshold of the old model's cosine to translate. May be repeated.",
            rich_help_panel="thresholds",
        ),
    ] = None,
    queries: Annotated[
        str | None,
        typer.Option(
            help="For thresholds: queries in the new model. Without them, rows are compared with each other, as in "
            "a search for duplicates.",
            rich_help_panel="thresholds",
        ),
    ] = None,
    queries_old: Annotated[
        str | None,
        typer.Option(help="For thresholds: the same queries in the old model.", rich_help_panel="thresholds"),
    ] = None,
    among: Annotated[
        str | None,
        typer.Option(
            help="Modality of the rows to re-embed, or, for thresholds, of the rows to search.",
            rich_help_panel="reembed",
        ),
    ] = None,
    progressive: Annotated[
        bool,
        typer.Option(
            "--progressive",
            help="With run: after verification, switch and re-embed the rows that the map is least sure of.",
            rich_help_panel="reembed",
        ),
    ] = False,
    encode: Annotated[
        str | None,
        typer.Option(
            help="How to encode rows: a command with {ids} and {out}, a file of the new model's vectors, or an "
            "encoder with --items.",
            rich_help_panel="reembed",
        ),
    ] = None,
    items: Annotated[
        str | None,
        typer.Option(
            help="With an encoder: table or folder of the items to encode, as for embed, with the ids of the rows.",
            rich_help_panel="reembed",
        ),
    ] = None,
    texts: Annotated[
        str | None,
        typer.Option(
            help="Texts in the old model (a vocabulary, tags or queries), used to choose the rows that most need "
            "re-embedding.",
            rich_help_panel="reembed",
        ),
    ] = None,
    new_texts: Annotated[
        str | None, typer.Option(help="The same texts in the new model.", rich_help_panel="reembed")
    ] = None,
    batch: Annotated[
        int, typer.Option(help="Number of rows to re-embed before the map is refitted.", rich_help_panel="reembed")
    ] = 1000,
    budget: Annotated[
        int | None, typer.Option(help="Number of rows to re-embed in total.", rich_help_panel="reembed")
    ] = None,
    share: Annotated[
        float | None, typer.Option(help="Share of the rows to re-embed in total, e.g. .1.", rich_help_panel="reembed")
    ] = None,
    until: Annotated[
        float | None,
        typer.Option(
            help="Stop when the whole 95 % interval of the agreement with the new model is above this value, e.g. .99.",
            rich_help_panel="reembed",
        ),
    ] = None,
    plot: Annotated[
        str | None,
        typer.Option(help="Plot quality against the share re-embedded: .svg, .png or .pdf.", rich_help_panel="reembed"),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="The same as plan: change nothing.", rich_help_panel="Before it runs"),
    ] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Resume a run that was stopped.")] = False,
    yes: Annotated[
        bool,
        typer.Option("--yes", "-y", help="Do not ask before anything is written.", rich_help_panel="Before it runs"),
    ] = False,
    anyway: Annotated[
        bool,
        typer.Option(
            "--anyway", help="Run even if the certificate advises against mapping.", rich_help_panel="Before it runs"
        ),
    ] = False,
    allow_zero_rows: Annotated[
        bool, typer.Option("--allow-zero-rows", help="Accept rows of zeros.", rich_help_panel="Before it runs")
    ] = False,
    engine: Annotated[
        str,
        typer.Option(
            help="Where to run: local (this process), or ray, for run, switch and rollback of Parquet or Arrow "
            "files or LanceDB tables that all workers can reach.",
            rich_help_panel="On many machines",
        ),
    ] = "local",
    address: Annotated[str | None, typer.Option(help=ADDRESS_HELP, rich_help_panel="On many machines")] = None,
    workers: Annotated[int | None, typer.Option(help=WORKERS_HELP, rich_help_panel="On many machines")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Report as JSON.")] = False,
) -> None:
    """Migrate a live database to a new model, step by step.

    New vectors are written next to the old ones. Readers see them only after switch, and rollback restores the old
    ones, bit for bit.
    """
    from congruence._utils.arguments import hide_arguments
    from congruence._utils.validation import check_choice
    from congruence.cli import _migration_steps as steps
    from congruence.cli._bars import Bars
    from congruence.cli._base import print_json, say, say_error
    from congruence.cli._migration import print_plan, print_status
    from congruence.cli._reembed import ReembedOptions, open_encoder, run_progressive, run_reembed
    from congruence.cli.transform import NORMALIZE
    from congruence.databases import Address, open_database
    from congruence.errors import ParameterError
    from congruence.maps import load
    from congruence.stores import read_embeddings
    from congruence.upgrade.migrate import Migration

    hide_arguments(
        Address.parse(where).secrets
    )  # before anything else: every user of the machine can list the arguments
    check_choice(action, ACTIONS, "ACTION")
    check_choice(normalize, tuple(NORMALIZE), "--normalize")
    if dry_run:
        if action not in ("run", "plan"):
            raise ParameterError(
                f"Got --dry-run for {action}; expected it for run only. Leave it out, or use status to see the "
                "state of the migration."
            )
        action = "plan"
    if (action == "thresholds") != bool(threshold):
        raise ParameterError(
            f"Got {'no --threshold' if action == 'thresholds' else f'--threshold for {action}'}; expected it "
            "for thresholds. " + ("Pass --threshold, for example 0.28." if action == "thresholds" else "Leave it out.")
        )
    options = ReembedOptions(
        encode, items, texts, new_texts, among, batch, budget, share, until, plot, encode_rate, price
    )
    if progressive and action != "run":
        raise ParameterError(f"Got --progressive for {action}; expected it for run. Leave it out.")
    reembeds = progressive or action == "reembed"
    if reembeds:
        options.check()
    elif encode is not None:
        raise ParameterError(
            f"Got --encode for {action}; expected it for reembed. Pass --progressive, or leave it out."
        )
    executor = steps.make_executor(engine, address, workers, action, reembeds=reembeds)
    verdict = None if certificate is None else _read_certificate(certificate)
    mapping = None if map_path is None else load(map_path)
    database = open_database(where, table=table, column=column, ids=ids, modality_column=modality_column, rows=rows)
    with closing(database):
        executor = executor or steps.local_executor(database, reembeds=reembeds)
        migration = Migration(
            database,
            mapping,
            journal=journal,
            modality=modality,
            normalize=NORMALIZE[normalize],
            element_type=element_type,
            ranges=None if ranges is None else _read_ranges(ranges),
            old_ranges=None if old_ranges is None else _read_ranges(old_ranges),
            allow_zero_rows=allow_zero_rows,
            executor=executor,
        )
        migration.retry.log = say_error
        if action == "status":
            result = migration.status()
            print_json(result) if as_json else print_status(result)
            return
        if action == "plan" or (action == "run" and not resume):
            plan = migration.plan(certificate=verdict, encode_rate=encode_rate, price=price)
            if action == "plan":
                print_json(plan.to_dict()) if as_json else print_plan(plan)
                raise typer.Exit(1 if plan.refused else 0)
            if not as_json:
                print_plan(plan)
            if migration.journal is None and not yes and not (plan.refused and not anyway):
                steps.confirm_plan(plan)
        if action == "thresholds":
            new, old = (None if spec is None else read_embeddings(spec) for spec in (queries, queries_old))
            steps.thresholds(migration, as_json, threshold or [], queries=new, queries_old=old, among=among)
            return
        if reembeds:
            open_encoder(options, migration)  # fails here, before anything is written, if it cannot be opened
        result = {}
        with Bars(as_json) as bars:
            if action == "run":
                steps.run(migration, bars, certificate=verdict, resume=resume, anyway=anyway)
            if action in ("run", "verify"):
                vectors = None if heldout is None else read_embeddings(heldout)
                verification = steps.verify(migration, bars, as_json, heldout=vectors, least_recall=least_recall)
                result = verification.to_dict()
                if verification.passed and progressive:
                    result |= run_progressive(migration, options, bars, as_json)
                elif not as_json and migration.journal is not None and migration.journal.state == "verified":
                    names = {
                        "table": table,
                        "column": column,
                        "ids": ids,
                        "modality-column": modality_column,
                        "rows": rows,
                    }
                    say(f"Next: {steps.shell_command(where, 'switch', **names, journal=journal)}")
            elif action == "reembed":
                result = run_reembed(migration, options, bars, as_json)
            elif action == "switch":
                result = steps.switch(migration, bars, as_json)
            elif action == "rollback":
                result = steps.rollback(migration, as_json)
            elif action == "drop-old":
                result = steps.drop_old(migration, as_json, yes=yes)
            elif action == "discard":
                result = steps.discard(migration, as_json, yes=yes)
        if as_json:
            print_json({"action": action, "journal": str(migration.folder), **result})
        if action in ("run", "verify") and not result["passed"]:
            raise typer.Exit(1)


def _read_certificate(path: str) -> dict[str, object]:
    """Return the JSON object in a file. Raises FileError if the file cannot be read, CorruptFileError if it is none."""
    import json

    from congruence.errors import CorruptFileError, FileError

    try:
        with open(path, "rb") as file:
            certificate = json.loads(file.read(64 * 2**20).decode("utf-8"))
            if isinstance(certificate, dict):
                return certificate
    except OSError as error:
        raise FileError(f"Got no certificate at {path} ({error.strerror}); expected a file. Check the path.") from None
    except (ValueError, RecursionError):
        pass
    raise CorruptFileError(
        f"Got {path}, which is not a JSON object; expected the output of congruence certify --json. Save that "
        "output to a file, and pass this file."
    )


def _read_ranges(path: str) -> np.ndarray:
    """Return the array in an ``.npy`` file.

    Raises FileError if the file cannot be read, CorruptFileError if it is none.
    """
    import numpy as np

    from congruence.errors import CorruptFileError, FileError

    try:
        ranges = np.load(path, allow_pickle=False)
        if isinstance(ranges, np.ndarray):  # an .npz file is an archive of arrays
            return ranges
    except OSError as error:
        raise FileError(f"Got no ranges at {path} ({error.strerror}); expected a file. Check the path.") from None
    except (ValueError, EOFError):
        pass
    raise CorruptFileError(
        f"Got {path}, which is not an .npy file; expected an array of shape (2, components). Write it with numpy.save."
    )
