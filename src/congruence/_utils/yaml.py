"""Safe reading of untrusted YAML: limited in length and depth, without aliases, object tags or duplicate keys."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from congruence.errors import CorruptFileError, FileError

if TYPE_CHECKING:
    import yaml

MAX_BYTES = 256 * 2**10  # maximum length of a text, in bytes; the longest YAML file of this library has 3,000
MAX_DEPTH = 20  # maximum depth of nested lists and mappings; recipes and experiments need four


def read_yaml(path: str | Path, what: str) -> str:
    """Return the text of a YAML file, if it is within the length that ``parse_yaml`` accepts."""
    try:
        with open(path, "rb") as stream:
            raw = stream.read(MAX_BYTES + 1)
    except OSError as error:
        problem = f"Got {path}, which cannot be read ({error.strerror}); expected {what} in YAML."
        raise FileError(problem, "Check the path and its permissions.") from error
    _check_length(len(raw), path)
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        problem = f"Got {path} that is not UTF-8; expected {what} in YAML."
        raise CorruptFileError(problem, "Save it as UTF-8.") from error


def parse_yaml(text: str, where: str) -> object:
    """Return the plain data of a YAML document."""
    import yaml

    _check_length(len(text.encode("utf-8", "surrogatepass")), where)
    try:
        return yaml.load(text, Loader=_loader())
    # PyYAML does not catch the exceptions of int(), float() and date() for invalid numbers and dates.
    except (yaml.YAMLError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        problem = f"Got {where} that is not YAML ({error}); expected key: value lines."
        raise CorruptFileError(problem, "Correct the line that the parser names.") from error


def find_line(text: str, path: Sequence[str | int]) -> int | None:
    """Return the line, from 1, of an entry given by keys and indices, as far as they exist; None if none does."""
    import yaml

    node, line = yaml.compose(text, Loader=yaml.SafeLoader), None
    for step in path:
        if isinstance(node, yaml.MappingNode):
            pairs = [(key, value) for key, value in node.value if str(key.value) == str(step)]
            key, node = pairs[0] if pairs else (None, None)
        elif isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
            key = node = node.value[step]
        else:
            break
        if key is None:
            break
        line = key.start_mark.line + 1
    return line


def _check_length(length: int, where: str | Path) -> None:
    if length > MAX_BYTES:
        problem = f"Got {where} of more than {MAX_BYTES // 2**10} KiB; expected less."
        raise CorruptFileError(problem, "Put long lists into files of their own.")


@cache
def _loader() -> type[yaml.SafeLoader]:
    import yaml

    class Loader(yaml.SafeLoader):
        """Loader that rejects aliases and deep nesting while parsing, and duplicate keys."""

        def __init__(self, stream: str) -> None:
            super().__init__(stream)
            self._depth = 0

        def get_event(self) -> yaml.Event:
            """Return the next event; it raises before any object is built from a rejected event."""
            event = super().get_event()
            if isinstance(event, yaml.AliasEvent):
                raise yaml.MarkedYAMLError(problem="an alias; write the value out", problem_mark=event.start_mark)
            if isinstance(event, yaml.ScalarEvent):
                event.value.encode("utf-8")  # a lone surrogate could not be printed or written
            self._depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if self._depth > MAX_DEPTH:
                raise yaml.MarkedYAMLError(problem=f"more than {MAX_DEPTH} levels", problem_mark=event.start_mark)
            return event

        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[object, object]:
            """Return the mapping of a node, after checking for duplicate keys."""
            seen = set()
            for key, _ in node.value:
                name = (key.tag, str(key.value))
                if name in seen:
                    raise yaml.MarkedYAMLError(problem=f"the key {key.value!r} twice", problem_mark=key.start_mark)
                seen.add(name)
            return super().construct_mapping(node, deep)

    return Loader
