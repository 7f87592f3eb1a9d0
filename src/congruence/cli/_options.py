"""Skip the conversion of option values that need none: typer converts every value with pydantic, whose import takes a
tenth of a second.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

__all__ = ["PlainValues"]


class PlainValues:
    """Mixin for a command or group: values that already have the annotated type of their option are passed unchanged.

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
