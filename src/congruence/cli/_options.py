"""How commands declare their options, and the options that several of them have."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, get_type_hints

import typer

if TYPE_CHECKING:
    from congruence.encoders import Encoder


def option(default: Any, help: str, *flags: str, panel: str | None = None, metavar: str | None = None) -> Any:
    """Declare an option; ``default`` is ``...`` if it is required, and ``flags`` are made from its name by default."""
    return typer.Option(default, *flags, help=help, rich_help_panel=panel, metavar=metavar)


def argument(default: Any, help: str, metavar: str | None = None) -> Any:
    """Declare a positional argument; ``default`` is ``...`` if it is required."""
    return typer.Argument(default, help=help, metavar=metavar)


Json: TypeAlias = Annotated[bool, typer.Option("--json", help="Report as JSON.")]
Force: TypeAlias = Annotated[bool, typer.Option("--force", help="Replace an existing output.")]
Seed: TypeAlias = Annotated[int, typer.Option(help="Random seed.")]
AllowZeroRows: TypeAlias = Annotated[bool, typer.Option("--allow-zero-rows", help="Accept rows of zeros.")]


def with_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command whose options are its own and the fields of the dataclasses that it takes: a dataclass declares
    options that belong together, and the command gets their values as an instance of it.
    """
    groups: dict[str, Any] = {}
    hints: dict[str, tuple[object, object]] = {}
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        kind = parameter.annotation
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
        command(**values)

    keyword = inspect.Parameter.KEYWORD_ONLY
    grouped.__annotations__ = {name: annotation for name, (annotation, _) in hints.items()}
    grouped.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(name, keyword, default=default, annotation=a) for name, (a, default) in hints.items()]
    )
    return grouped


@dataclass(frozen=True)
class ModelOptions:
    """How an encoder is loaded."""

    device: str = option("auto", "Device of the encoder: auto, cuda, cuda:1, mps or cpu.")
    dtype: str = option("auto", "Data type of the encoder: auto, float32, float16 or bfloat16.")
    revision: str | None = option(None, "Branch, tag or commit of the model on the Hugging Face Hub.")
    pooling: str | None = option(None, "Pooling over tokens: cls, mean, cls_mean or last.")
    normalize: bool | None = option(None, "Scale rows to unit norm, or not; by default as the model does.")
    torch_weights: bool = option(False, "Accept weights that are not in safetensors.", "--torch-weights")

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of ``load_encoder`` and of ``EncoderOptions``."""
        values = dict(vars(self))
        return {"safetensors_only": not values.pop("torch_weights"), **values}

    def load(self, name: str, modality: str | None, **others: Any) -> Encoder:
        """Load an encoder."""
        from congruence.encoders import load_encoder

        return load_encoder(name, modality, **self.arguments(), **others)


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
