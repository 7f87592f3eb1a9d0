"""How commands declare their options, and the options that several of them have."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from functools import wraps
from typing import Annotated, Any, TypeAlias, get_type_hints

import typer

from congruence.errors import ParameterError


def option(default: Any, help: str, *flags: str, panel: str | None = None, metavar: str | None = None) -> Any:
    """Declare an option; ``default`` is ``...`` if it is required, and ``flags`` are made from its name by default."""
    return typer.Option(default, *flags, help=help, rich_help_panel=panel, metavar=metavar)


def argument(default: Any, help: str, metavar: str | None = None) -> Any:
    """Declare a positional argument; ``default`` is ``...`` if it is required."""
    return typer.Argument(default, help=help, metavar=metavar)


Json: TypeAlias = Annotated[bool, typer.Option("--json", help="Report as JSON.")]
Force: TypeAlias = Annotated[bool, typer.Option("--force", help="Replace an existing output.")]
Seed: TypeAlias = Annotated[int, typer.Option(help="Random seed.")]
Ids: TypeAlias = Annotated[
    str | None, typer.Option(help="Key, column or file of the ids (OLD,NEW if they differ); none to pair by position.")
]
Links: TypeAlias = Annotated[
    str | None,
    typer.Option(help="Pairs of other ids on both sides: a file with columns old_id and new_id, or FILE:OLD,NEW."),
]
Normalize: TypeAlias = Annotated[
    str,
    typer.Option(help="Scale mapped rows to unit norm; auto: as the new rows at the fit.", metavar="auto|yes|no"),
]

#: What the values of ``--set`` are called in messages.
_SWITCH = {"true": True, "yes": True, "false": False, "no": False}
_KINDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}


class Settings:
    """Rarely needed parameters of a command, given as ``--set NAME=VALUE``, which the command gets as a dict.

    ``known`` has the type of each parameter by its name in Python, or the default that has this type.
    """

    def __init__(self, **known: Any) -> None:
        self.known = known
        shown = (name if isinstance(value, type) else f"{name} ({value})" for name, value in known.items())
        help = f"NAME=VALUE, may be repeated: {', '.join(shown)}."
        self.option = typer.Option("--set", help=help, metavar="NAME=VALUE")

    def read(self, entry: str) -> tuple[str, Any]:
        """Return name and value of an entry. Raises ParameterError for other names and kinds."""
        name, _, text = entry.partition("=")
        name = name.strip().replace("-", "_")
        if name not in self.known or not text:
            near = (*get_close_matches(name, self.known, 1), *self.known)[0]
            problem = f"Got --set {entry}; expected NAME=VALUE with one of the names {', '.join(self.known)}."
            raise ParameterError(problem, f"Pass --set {near}=VALUE, for example.")
        kind = self.known[name] if isinstance(self.known[name], type) else type(self.known[name])
        try:
            return name, _SWITCH[text.lower()] if kind is bool else kind(text)
        except (KeyError, ValueError):
            raise ParameterError(f"Got --set {entry}; expected {_KINDS[kind]}.") from None


def settable(**known: Any) -> Any:
    """Declare the option ``--set`` of a command."""
    return Settings(**known)


def with_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command whose options are its own and the fields of the dataclasses that it takes: a dataclass declares
    options that belong together, and the command gets their values as an instance of it; ``Settings`` become a dict.
    """
    groups: dict[str, Any] = {}
    settings: dict[str, Settings] = {}
    hints: dict[str, tuple[object, object]] = {}
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        kind = parameter.annotation
        if isinstance(parameter.default, Settings):
            settings[parameter.name] = parameter.default
            hints[parameter.name] = Annotated[list[str] | None, parameter.default.option], None
            continue
        if not is_dataclass(kind):
            hints[parameter.name] = kind, parameter.default
            continue
        groups[parameter.name] = kind
        types = get_type_hints(kind, include_extras=True)
        hints |= {field.name: (types[field.name], field.default) for field in fields(kind)}

    @wraps(command)
    def grouped(**values: Any) -> None:
        for name, kind in groups.items():
            values[name] = kind(**{field.name: values.pop(field.name) for field in fields(kind)})
        for name, known in settings.items():
            values[name] = dict(map(known.read, values[name] or ()))
        command(**values)

    keyword = inspect.Parameter.KEYWORD_ONLY
    grouped.__annotations__ = {name: annotation for name, (annotation, _) in hints.items()}
    grouped.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(name, keyword, default=default, annotation=a) for name, (a, default) in hints.items()]
    )
    if settings:
        known = {name: kind for one in settings.values() for name, kind in one.known.items()}
        grouped.settable = known  # type: ignore[attr-defined]
    return grouped


#: Parameters of every encoder, for ``--set``.
MODEL = {"dtype": "auto", "revision": str, "pooling": str, "normalize": bool, "safetensors_only": True, "prompt": str}


class PlainValues:
    """Mixin for a command or group: values that already have the annotated type of their option are passed unchanged,
    because typer converts every value with pydantic, whose import takes a tenth of a second.

    These are strings, most defaults, and options that were left out. All other values are converted by typer, with
    typer's messages.
    """

    params: list[Any]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        _skip_conversion(self.params)
        for one in self.params:
            if one.param_type_name == "argument":
                one.metavar = one.metavar or one.name.upper()

    def get_help_option(self, ctx: Any) -> Any:
        """Return the option that typer adds to every command."""
        option = super().get_help_option(ctx)  # type: ignore[misc]  # of the command this is mixed into
        _skip_conversion([option] if option else [])
        return option


def _skip_conversion(options: Iterable[Any]) -> None:
    """Replace ``process_value`` of the options that have neither a parser nor a range."""
    for option in options:
        descriptor = getattr(option, "type_descriptor", None)  # typer before 0.29 has none, and does without pydantic
        if descriptor is not None and "process_value" not in vars(option):
            info = descriptor.parameter_info
            if info.parser is None and info.min is None and info.max is None:
                option.process_value = _process_value(option, descriptor.annotation, option.process_value)


def _process_value(option: Any, annotation: Any, convert: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Return a replacement for an option's ``process_value``."""
    several = option.multiple or option.nargs == -1

    def process(ctx: Any, value: Any) -> Any:
        if value is None and not option.required:
            value = () if several else None
        elif annotation is float and type(value) is int:  # a default value; values from the command line are strings
            value = float(value)
        elif annotation not in (str, int, float) or type(value) is not annotation:
            return convert(ctx, value)
        return value if option.callback is None else option.callback(ctx, option, value)

    return process
