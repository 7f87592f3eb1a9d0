"""What the actions of ``congruence migrate`` share: the opened migration, what is kept, and the next command."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, TypeAlias
from zipfile import BadZipFile

import typer

from congruence.cli._ending import Stopped, redact
from congruence.cli._input import open_asking
from congruence.cli._output import gathered, print_json, say, say_error
from congruence.errors import CongruenceError, CorruptFileError, FileError, MigrationError, ParameterError

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np

    from congruence.databases import DatabaseInfo
    from congruence.maps import Map
    from congruence.upgrade.migrate import Migration
    from congruence.upgrade.migrate.journal import Journal as JournalState

Journal: TypeAlias = Annotated[str | None, typer.Option(help="Folder of the journal, if it is not here; '*' for all.")]
Yes: TypeAlias = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]

#: File beside the journal with the address and the options of earlier steps, which later steps need not repeat.
KEPT = "options.json"

#: Options that find the vectors in a database.
FINDING = ("table", "column", "ids", "modality_column", "rows")

#: Options that say where the passes over the rows run.
ENGINE = {"engine": str, "address": str, "workers": int}

#: A step of ``Migration`` in the messages of the library.
_STEP = re.compile(r"`(run|verify|switch|rollback|drop_old|discard)`")


def shell_command(url: str, action: str, *words: str) -> str:
    """Return the shell command of a step, with the address without its secrets."""
    from congruence.databases import Address

    address = Address.parse(url)
    return shlex.join(["congruence", "migrate", address.shown if address.secrets else url, action, *words])


@dataclass(frozen=True)
class Step:
    """An open migration, and what earlier steps were given."""

    migration: Migration
    url: str
    journal: str | None  # as typed, because the next command then needs it too
    kept: dict[str, str]

    def command(self, action: str, *words: str) -> str:
        """Return the shell command of another step."""
        return _command(self.url, self.journal, self.migration.folder, action, *words)

    def next(self) -> str | None:
        """Return the command of the next step, by the state; None if nothing is left to do."""
        journal, migration = self.migration.journal, self.migration
        if journal is None:
            words = [f"--{name.replace('_', '-')}" for name in ("mixed", "allow_unknown") if name in self.kept]
            words += ["--modality", self.kept["modality"]] if "modality" in self.kept else []
            for name in (name for name in FINDING if name in self.kept):
                setting = name in ("ids", "rows")
                flag = f"--{name.replace('_', '-')}"
                words += ["--set", f"{name}={self.kept[name]}"] if setting else [flag, self.kept[name]]
            return self.command("run", *_source(self.kept), *words)
        if journal.state not in ("switched", "dropped") and migration.refused():
            return self.command("discard")
        late = migration.database.capabilities.writes_after_switch
        if "share" in self.kept and not migration.mapper.native and journal.state == ("verified", "switched")[late]:
            return self.command("reembed", "--encode", "FILE")  # as the certificate advises
        if journal.state == "switched":
            return self.command("finish")
        first = journal.first()
        return None if first is None else self.command(first)

    def keep(self, **options: object) -> None:
        """Write options beside the journal for later steps, except those with a secret."""
        from congruence.io.locations import Location
        from congruence.upgrade.migrate.journal import make_folder

        texts = {name: str(value) for name, value in options.items() if value is not None}
        self.kept.update({name: text for name, text in texts.items() if redact(text) == text}, url=_identity(self.url))
        make_folder(self.migration.folder)
        Location.of(self.migration.folder / KEPT).write(json.dumps(self.kept, indent=1).encode() + b"\n")

    def forget(self) -> None:
        """Remove the options of a migration that has ended or never began, and the folder if nothing else is there."""
        (self.migration.folder / KEPT).unlink(missing_ok=True)
        with suppress(OSError):
            self.migration.folder.rmdir()

    def report(self, action: str, result: Mapping[str, Any], lines: list[str], as_json: bool) -> None:
        """Report what was done, and the next command."""
        following = self.next()
        if as_json:
            print_json({"action": action, "journal": str(self.migration.folder), **result, "next": following})
            return
        for line in lines:
            say(line)
        if following is not None:
            say(f"{'Once you are sure' if following == self.command('finish') else 'Next'}: {following}")


def _source(kept: Mapping[str, str]) -> list[str]:
    """Return the option that names the map, as it was given."""
    name = "map" if "map" in kept else "from"
    return [f"--{name}", kept.get(name, "FOLDER")]


def _command(url: str, journal: str | None, folder: Path, action: str, *words: str) -> str:
    """Return the shell command of a step that finds this journal, also where there are others."""
    if journal is None and any(other != folder for other, _ in _journals_here(url, {})):
        journal = str(folder)
    return shell_command(url, action, *words, *(["--journal", journal] if journal else []))


def each(step: Callable[..., None]) -> Callable[..., None]:
    """Take a step for each table, or each journal here, whose name matches a pattern such as ``*``, one after another.

    What is refused does not stop the others; it is listed with the reasons, and the command ends with 1.
    """

    @wraps(step)
    def taken(ctx: typer.Context, **given: Any) -> None:
        options = given.get("options")
        pattern = str((given.get("journal") if options is None else options.table) or "")
        if "*" not in pattern:
            step(ctx, **given)
            return
        url, refused = ctx.parent.params["url"], dict[str, str]()  # type: ignore[union-attr]  # of the group
        if options is None:
            names = [str(folder) for folder, _ in _journals_here(url, {})]
        elif options.journal is None:
            names = _tables_in(url, pattern)
        else:
            raise ParameterError(f"Got --table {pattern} and one journal.", "Leave out --journal: each has its own.")
        chosen = [name for name in names if fnmatchcase(name, pattern) or fnmatchcase(name, f"public.{pattern}")]
        if not chosen:
            what = "migration here" if options is None else "table"
            fix = f"Pass one of {', '.join(names)}." if names else "Check the address."
            raise ParameterError(f"No {what} of {url} has a name like {pattern}.", fix)
        as_json = bool(given.get("as_json") or getattr(options, "as_json", False))
        told: dict[str, object] = {}
        for place, name in enumerate(chosen):
            say_error(f"{name}:")
            own = {"journal": name} if options is None else {"options": replace(options, table=name)}
            try:
                with gathered(as_json) as reports:
                    step(ctx, **{**given, **own})
            except CongruenceError as error:
                refused[name] = ctx.command.tell(error)  # type: ignore[attr-defined]
            except typer.Exit as stop:
                refused[name] = "see above" if stop.exit_code else ""
            except BaseException:
                done = ", ".join(one for one in chosen[:place] if not refused.get(one))
                say_error(f"Done: {done or 'none'}. The same command goes on with the others.")
                raise
            told[name] = next(iter(reports), None)
        failed = {name: why for name, why in refused.items() if why}
        if as_json:
            print_json({name: {"refused": failed[name]} if name in failed else told[name] for name in chosen})
        if len(failed) == len(chosen) > 1 and len({*failed.values()} - {"see above"}) == 1:
            say_error(f"error: {failed[chosen[0]]}")  # what is wrong is none of the tables
            raise typer.Exit(2)
        for name, why in failed.items():
            say_error(f"refused: {name}: {why}")
        if failed:
            raise typer.Exit(1)

    return taken


def _tables_in(url: str, pattern: str) -> list[str]:
    """Return the names of the tables or collections at an address, which an unknown name is answered with."""
    try:
        open_asking(url, table=pattern).close()
    except ParameterError as error:
        if error.argument == "table" and isinstance(error.expected, list):
            return error.expected
        raise
    return [pattern]


@contextmanager
def opened(
    ctx: typer.Context,
    journal: str | None,
    *,
    given: Mapping[str, Any] | None = None,
    begin: Callable[[DatabaseInfo, JournalState | None], dict[str, Any]] | None = None,
) -> Iterator[Step]:
    """Open the database and its migration.

    ``given``: options of this step that were given, where the ones that are left out are those of earlier steps;
    ``begin``: returns the arguments of a migration, also of one that has not begun, which is else refused.
    """
    from congruence.cli._engines import EngineOptions
    from congruence.upgrade.migrate import Migration
    from congruence.upgrade.migrate.journal import Journal, default_folder
    from congruence.upgrade.migrate.passes import Retry

    url, given = ctx.parent.params["url"], dict(given or {})  # type: ignore[union-attr]  # of the group
    folder, kept = _find_journal(url, journal, given)
    values: dict[str, Any] = {**kept, **{name: value for name, value in given.items() if value is not None}}
    retry = Retry()
    retry.log = say_error
    try:
        found = open_asking(url, **{name: values.get(name) for name in FINDING})
    except ParameterError as error:
        named = any(f"`{name}=" in fix for name in FINDING for fix in error.fix)
        if begin is not None or folder is not None or not named:  # else a journal would know the name
            raise
        raise MigrationError(
            f"No migration of this database has begun here. {error.problem}",
            f"Pass --journal with its folder, or begin with: {shell_command(url, 'run', '--from', 'FOLDER')}",
        ) from None
    with closing(found) as database:
        info = retry.of(database)(database.info)
        if folder is None:
            folder = default_folder(database.identify(info.place))
            kept = read_kept(folder)
        with _as_commands(url, journal, folder):
            begun = Journal.read(folder)
            if begun is None and begin is None:
                fix = f"Begin with: {_command(url, journal, folder, 'run', *_source(kept))}"
                if others := [str(one) for one, _ in _journals_here(url, {})]:
                    fix = f"Pass --journal {shlex.quote(others[0])}, which is here."
                raise MigrationError(
                    f"No migration of this database has begun, or its journal is not in {folder}.", fix
                )
            arguments = {} if begin is None else begin(info, begun)
            if begun is not None and begun.state == "dropped" and arguments.get("mapping") is not None:
                raise MigrationError(
                    f"The last migration of {info.place} is complete, and its journal is still in {folder}.",
                    "Remove that folder, or pass --journal with another one.",
                )
            engine = None
            if ctx.info_name in ("run", "switch", "rollback"):
                workers = values.get("workers")
                runner = EngineOptions(values.get("engine", "local"), values.get("address"), workers and int(workers))
                engine = runner.open() if runner.by_fragments() else None
            migration = Migration(database, journal=folder, retry=retry, engine=engine, **arguments)
            try:
                yield Step(migration, url, journal, kept)
            except (KeyboardInterrupt, Stopped) as error:
                changes = ctx.info_name not in ("plan", "status") and (folder / "journal.json").exists()
                if changes and not hasattr(error, "__notes__"):
                    status = _command(url, journal, folder, "status")
                    error.add_note(f"Repeat the command to continue. To see where the migration stands: {status}")
                raise


@contextmanager
def _as_commands(url: str, journal: str | None, folder: Path) -> Iterator[None]:
    """Write the steps that an error of the library names as commands."""
    try:
        yield
    except CongruenceError as error:

        def spelled(text: str) -> str:
            text = text.replace("pass `resume=True`", "repeat the command").replace("`resume=True`", "`run`")
            return _STEP.sub(lambda found: _command(url, journal, folder, found[1].replace("_", "-")), text)

        error.problem, error.fix = spelled(error.problem), tuple(map(spelled, error.fix))
        raise


def _identity(url: str) -> str:
    """Return an address without user and password, and independent of how a path is written."""
    from congruence.databases import Address

    address = Address.parse(url)
    return re.sub(r"(?<=://)[^/?#]*@", "", address.shown) if address.scheme else os.path.abspath(url)


def _find_journal(url: str, journal: str | None, given: Mapping[str, Any]) -> tuple[Path | None, dict[str, str]]:
    """Return the folder of a database's journal, and what is kept there: the one that is named, or the only one here
    with these options.
    """
    if journal is not None:
        kept, own = read_kept(Path(journal)), _identity(url)
        if _identity(kept.get("url", own)) != own:
            raise MigrationError(
                f"{journal} is the journal of {kept['url']}, not of {own}.",
                f"Type: {shell_command(kept['url'], 'status', '--journal', journal)}",
            )
        return Path(journal), kept
    found = _journals_here(url, given)
    if len(found) > 1:
        names = [str(folder) for folder, _ in found]
        raise ParameterError(
            f"{len(found)} migrations of this database are here: {', '.join(names)}.",
            f"Pass --journal {shlex.quote(names[0])}, for example, or --journal '*' for all.",
        )
    return found[0] if found else (None, {})


def _journals_here(url: str, given: Mapping[str, Any]) -> list[tuple[Path, dict[str, str]]]:
    """Return the journals of an address in the current folder, and what is kept there: of those with these options the
    ones that have not ended, or else the first.
    """
    from congruence.upgrade.migrate.journal import Journal

    found = []
    for folder in sorted(path for path in Path().iterdir() if os.path.isfile(path / "journal.json")):
        kept = read_kept(folder)
        same = all(value is None or kept.get(name) == value for name, value in given.items() if name in FINDING)
        if "url" in kept and _identity(kept["url"]) == _identity(url) and same:
            found.append((folder, kept))
    if len(found) > 1:
        journals = [Journal.read(folder) for folder, _ in found]
        ended = [journal is not None and journal.state == "dropped" for journal in journals]
        found = [one for one, over in zip(found, ended, strict=True) if not over] or found[:1]
    return found


def read_kept(folder: Path) -> dict[str, str]:
    path = folder / KEPT
    if not path.exists():
        return {}
    kept = read_file(path, "file", _load_json, dict, "what an earlier step wrote", "Remove it.")
    if not all(isinstance(value, str) for value in kept.values()):
        raise CorruptFileError(f"{path} is not what an earlier step wrote.", "Remove it.")
    return kept


def ask(question: str, yes: bool) -> None:
    """Ask for confirmation unless it was given, and exit with 1 if it is denied."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise ParameterError(
            "There is no terminal to ask for confirmation before data are changed.", "Pass --yes to confirm in advance."
        )
    if not typer.confirm(question, err=True):
        raise typer.Exit(1)


def read_certified(folder: str) -> tuple[Map, dict[str, Any]]:
    """Return the map and the certificate in a folder that ``congruence check`` wrote."""
    from congruence.maps import load

    certificate = read_certificate(Path(folder) / "certificate.json")
    return load(Path(folder) / "map"), certificate


def read_certificate(path: Path) -> dict[str, Any]:
    """Return a certificate."""
    fix = "Pass the folder that was written by: congruence check OLD NEW -o FOLDER"
    if (path.parent / "config.json").is_file():
        fix = f"Pass --map {shlex.quote(str(path.parent))}, since it is a map without a certificate."
    return read_file(path, "certificate", _load_json, dict, "a JSON object", fix)


def read_ranges(path: Path) -> np.ndarray:
    """Return the ranges of int8 components."""
    import numpy as np

    fix = "Write an array of shape (2, components) with numpy.save, and pass its file."
    # An .npz file is an archive of arrays, and no array itself.
    return read_file(path, "ranges", partial(np.load, allow_pickle=False), np.ndarray, "an .npy file", fix)


def _load_json(file: BinaryIO) -> object:
    return json.loads(file.read(64 * 2**20).decode("utf-8"))


def read_file(path: Path, name: str, read: Callable[[BinaryIO], Any], kind: type, expected: str, fix: str) -> Any:
    """Return the content of a file that a user names, if it is of a kind."""
    try:
        with open(path, "rb") as file:
            if isinstance(content := read(file), kind):
                return content
    except OSError as error:
        raise FileError(f"The {name} {path} cannot be read ({error.strerror}).", fix) from None
    except (ValueError, EOFError, RecursionError, BadZipFile):  # of JSON, and of an array or archive
        pass
    raise CorruptFileError(f"{path} is not {expected}.", fix)
