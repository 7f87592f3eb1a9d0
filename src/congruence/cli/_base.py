"""Helpers shared by commands: printing reports, progress bars, and reading inputs according to the options."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from congruence._utils.atomic import atomic_path, check_output
from congruence._utils.display import visible, visible_json
from congruence._utils.optional import require
from congruence._utils.progress import progress_bar
from congruence.cli._ending import knows_unicode
from congruence.errors import DatabaseError, ParameterError

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Mapping
    from pathlib import Path

    import numpy as np
    import pyarrow as pa

    from congruence.databases import Database
    from congruence.embeddings import Embeddings
    from congruence.io import Source
    from congruence.maps import Map
    from congruence.upgrade.bridge import Bridge


def print_json(data: object) -> None:
    """Print plain data as JSON that every parser accepts: NaN and infinity become null."""
    text = json.dumps(_plain(data), indent=2, ensure_ascii=not knows_unicode(), allow_nan=False)
    print(visible_json(text))


def _plain(data: object) -> object:
    if isinstance(data, dict):
        return {str(key): _plain(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [_plain(value) for value in data]
    if isinstance(data, float) and not math.isfinite(data):
        return None
    return data


def say(text: str) -> None:
    """Print a line that may contain names and ids; control characters in them are escaped."""
    print(visible(text))


def say_error(text: str) -> None:
    """Print a line on standard error; control characters in it are escaped."""
    print(visible(text), file=sys.stderr, flush=True)


def number(value: float | None, digits: int = 3) -> str:
    """Format a number for a table; an unknown value is a dash."""
    return "–" if value is None else f"{value:.{digits}f}"


def print_table(title: str, columns: list[str], rows: list[list[str]]) -> None:
    """Print a table on standard output; columns of numbers are right-aligned, except the first column.

    Title, columns and cells are treated as data: rich markup in them is shown literally and control characters are
    escaped. In a narrow terminal text wraps, and numbers are never broken.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(
        title=Text(visible(title), style="bold") if title else None,
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        show_header=any(columns),
    )
    for k, column in enumerate(columns):
        numeric = k > 0 and all(row[k][:1] in "–-+0123456789" for row in rows if row[k])
        words = [word for row in rows for word in row[k].split()]
        table.add_column(
            Text(visible(column)),
            justify="right" if numeric else "left",
            no_wrap=not sys.stdout.isatty(),
            overflow="fold",
            min_width=max(map(len, words), default=0) if numeric else None,
        )
    for row in rows:
        table.add_row(*(Text(visible(cell)) for cell in row))
    if sys.stdout.isatty():
        Console(highlight=False).print(table)
        return
    # A pipe has no width: a table written to a file is as wide as its longest row, and nothing is truncated.
    wide = Console(width=100_000, highlight=False)
    with wide.capture() as captured:
        wide.print(table)
    sys.stdout.write("".join(f"{line.rstrip()}\n" for line in captured.get().splitlines()))


def print_facts(title: str, facts: Mapping[str, object]) -> None:
    """Print names and values as a table, without the values that are None; decimals are rounded as by ``number``."""
    known = {name: value for name, value in facts.items() if value is not None}
    print_table(title, ["", ""], [[name, number(v) if isinstance(v, float) else str(v)] for name, v in known.items()])


@contextmanager
def progress(label: str, total: int, quiet: bool) -> Iterator[Callable[[int], None] | None]:
    """Show a progress bar on standard error while the block runs, if standard error is a terminal."""
    with progress_bar(label, total, quiet=quiet) as bar:
        yield None if bar is None else bar.advance


#: An address on the command line, which may be the value of an option.
_ADDRESS = re.compile(r"(?:--[\w-]+=)?([A-Za-z][\w+.-]*://.*)", re.DOTALL)


def refuse_passwords(words: Iterable[str]) -> None:
    """Raise ParameterError if an address among the words of the command line has a secret, which others can list."""
    for word in words:
        if (found := _ADDRESS.fullmatch(word)) is None:
            continue
        from congruence.databases import Address

        address = Address.parse(found[1])
        if address.secrets:
            own = "PGPASSWORD, write it to ~/.pgpass, or type it when you are asked"
            others = "that the database's client reads, such as QDRANT_API_KEY, CHROMA_API_KEY or MILVUS_TOKEN"
            raise ParameterError(
                f"Got a password in {address.shown}, and everybody on this machine can list the words of a command.",
                f"Leave it out, and set the environment variable {own if 'postgres' in address.scheme else others}.",
            )


def open_asking(where: str, **options: str | None) -> Database:
    """Open a database, and ask for the password if its server wants one and none is known."""
    from congruence.databases import open_database

    try:
        return open_database(where, **options)
    except DatabaseError as error:
        if "no password supplied" not in str(error) or not sys.stdin.isatty():
            raise
    import os
    from getpass import getpass

    os.environ["PGPASSWORD"] = getpass(f"Password for {where}: ")
    return open_database(where, **options)


def load_map(path: str) -> tuple[Map, Bridge | None]:
    """Load a saved map, or a bridge and its map. Commands on a map do not import the modules that bridges need."""
    from congruence import persist
    from congruence.maps import restore_map

    arrays, config = persist.read_folder(path)
    if config.get("kind") != "bridge":
        return restore_map(arrays, config, path), None
    from congruence.upgrade.bridge import Bridge

    bridge = Bridge.load(path)
    return bridge.map, bridge


def inverse_of(mapping: Map | Bridge) -> Map:
    """Return the inverse of an orthogonal map; refuse others."""
    from congruence.maps import Map, OrthogonalMap

    if isinstance(mapping, OrthogonalMap):
        return mapping.inverse()
    kind = f"{mapping.kind} map" if isinstance(mapping, Map) else "bridge"
    raise ParameterError(
        f"Got --inverse for a {kind}; expected an orthogonal map, the only kind with an inverse.",
        "Fit a map from the new model to the old one instead, and leave out --inverse.",
    )


def unit_rows(normalize: str) -> bool | str:
    """Return the argument of the library for a value of ``--normalize``."""
    from congruence._utils.validation import check_choice

    values: dict[str, bool | str] = {"auto": "auto", "yes": True, "no": False}
    return values[check_choice(normalize, tuple(values), "normalize")]


#: What commands call the two sides of a joint-space map, and Python does.
_SIDES = {"first": "source", "second": "target"}


def in_python(side: str | None) -> str | None:
    """Return the argument of the library for ``first`` or ``second``."""
    if side is not None and side not in _SIDES:
        raise ParameterError(f"Got --side {side}; expected first or second.", "Pass --side first, or leave it out.")
    return None if side is None else _SIDES[side]


def two_sides(text: str | None, flag: str, form: str = "OLD,NEW") -> tuple[str, str] | None:
    """Split ``OLD,NEW``, or a pair of another form. Raises ParameterError for any other text."""
    if text is None:
        return None
    old, comma, new = text.partition(",")
    if not (old and comma and new) or "," in new:
        raise ParameterError(f"Got {flag} {text}; expected {form}.", f"Pass {flag} {form}, two files with a comma.")
    return old, new


def ids_of(ids: str | None) -> tuple[str | None, str | None]:
    """Return where both sides' ids are, of a value of ``--ids``."""
    old, _, new = (ids or "").partition(",")
    return old or None, new or old or None


def read(spec: str, ids: str | bool | None = None, allow_zero_rows: bool = False, **space: str | None) -> Embeddings:
    """Read embeddings named on the command line; ``ids`` as of ``--ids``, ``space``: fields of their space."""
    from congruence.embeddings import Space
    from congruence.io import read_embeddings

    column = False if ids == "none" else ids
    return read_embeddings(spec, ids=column, space=Space(**space), allow_zero_rows=allow_zero_rows)  # type: ignore[arg-type]


def refuse_options(options: Mapping[str, object], why: str, fix: str = "Leave it out.") -> None:
    """Refuse the first of these options, by flag, that was given; ``why`` completes the sentence ``Got FLAG …``."""
    for flag, value in options.items():
        if value:
            raise ParameterError(f"Got {flag} {why}.", fix)


def check_not_input(out: str, path: str) -> None:
    """Check that an output is not the file that it is made from, not even through a link. Raises ParameterError."""
    import os

    if os.path.isfile(out) and os.path.isfile(path) and os.path.samefile(out, path):
        raise ParameterError(
            f"Got the output {out}, which is also the input; expected two files.", "Pass another --out."
        )


def check_out(out: str, *inputs: Source, force: bool, kind: str = "file") -> None:
    """Check before the work starts that an output can be written, and that it is none of the inputs.

    ``kind``: a file; a table (.csv or .parquet), a plot or a page, which matplotlib draws.
    """
    from congruence.io import check_output_place

    if kind == "table" and not out.lower().endswith((".csv", ".parquet")):
        raise ParameterError(f"Got --out {out}; expected a .csv or .parquet file.", "Pass --out rows.csv, for example.")
    if kind == "plot":
        from congruence.report.pictures import check_suffix

        check_suffix(out)
    check_output(out, force=force)
    if kind == "page":
        require("matplotlib", extra="plot")
    for source in inputs:
        check_output_place(source, out)


def split_named(entry: str, flag: str, form: str, example: str) -> tuple[str, str]:
    """Split ``NAME=VALUE``; ``form`` and ``example`` say what is expected instead of another form."""
    name, equals, value = entry.partition("=")
    if not (name and equals and value):
        raise ParameterError(f"Got {flag} {entry}; expected {form}.", f"Pass {flag} {example}, for example.")
    return name, value


def read_groups(spec: str | None) -> str | np.ndarray | None:
    """Read the argument of ``--groups``: labels from a file, None for ``none``, or identical rows if it was not
    given.
    """
    from congruence.io import read_column

    return "identical" if spec is None else None if spec == "none" else read_column(spec)


@contextmanager
def checkpoint_folder(out: str, checkpoint: str | None) -> Iterator[Path]:
    """Yield the folder given by ``--checkpoint``, or by default one next to the output that is removed on success."""
    from pathlib import Path

    from congruence.train.checkpoint import named_folder, own_folder

    if checkpoint is not None:
        with named_folder(Path(checkpoint)) as folder:
            yield folder
        return
    with own_folder(Path(f"{out.rstrip('/')}.checkpoint")) as folder:
        yield folder
    if folder.is_dir() and any(folder.iterdir()):
        print(f"note: {folder} contains files that are not checkpoints, so it was not removed.", file=sys.stderr)


#: Arguments of the library whose options have other names.
_OPTION_NAMES = {
    "random_state": "seed",
    "metrics": "metric",
    "unpaired_source": "unpaired",
    "unpaired_target": "unpaired",
    "queries_old": "old_queries",
    "index_new": "new_index",
}


def spelling(
    options: Iterable[Any], settable: Container[str] = ()
) -> tuple[Callable[[str, str], str], Callable[[str], bool]]:
    """Return how a command with these options writes an argument of the library, and whether it has one of that name.

    ``settable``: names that the command accepts as ``--set NAME=VALUE``.
    """
    known = {option.name: option for option in options}

    def find(name: str) -> Any:
        return known.get(name) or known.get(_OPTION_NAMES.get(name, name))

    def spell(name: str, value: str) -> str:
        unquoted = value[1:-1] if value[:1] in ("'", '"') and not re.search(r"\s", value) else value
        unquoted = "" if unquoted == "…" else unquoted
        if name == "side":
            unquoted = next((ours for ours, theirs in _SIDES.items() if theirs == unquoted), unquoted)
        if (option := find(name)) is None:
            unquoted = unquoted.lower() if unquoted in ("True", "False") else unquoted
            return f"--set {name}={unquoted or '…'}" if name in settable else f"{name}={value or '…'}"
        if option.param_type_name == "argument":
            return f"{option.name.upper()} {unquoted}".rstrip()
        on, off = ([text for text in texts if text[:2] == "--"] for texts in (option.opts, option.secondary_opts))
        if unquoted in ("True", "False"):
            return on[0] if unquoted == "True" else off[0] if off else f"no {on[0]}"
        return f"{on[0]} {'none' if unquoted == 'None' else unquoted}".rstrip()

    return spell, lambda name: find(name) is not None or name in settable


def write_table(table: pa.Table, out: str, *, force: bool) -> None:
    """Write a table atomically, in the format that its name specifies."""
    import pyarrow.csv

    from congruence.io.parquet import write_parquet

    # Opened here, so that errors of the operating system are reported in its own words and not in Arrow's.
    with atomic_path(out, force=force) as temporary, open(temporary, "wb") as file:
        if out.lower().endswith(".csv"):
            pyarrow.csv.write_csv(table, file)
        else:
            write_parquet(file, table.schema, table.to_batches())


class Bars(ExitStack):
    """Shows one progress bar at a time; as a context manager, it removes the last one."""

    def __init__(self, quiet: bool) -> None:
        super().__init__()
        self._quiet = quiet
        self._advance: Callable[[int], None] | None = None

    def begin(self, label: str, total: int) -> None:
        """Show a new bar instead of the current one."""
        self.close()
        self._advance = self.enter_context(progress(label, total, self._quiet))

    def advance(self, count: int) -> None:
        """Advance the current bar."""
        if self._advance is not None:
            self._advance(count)
