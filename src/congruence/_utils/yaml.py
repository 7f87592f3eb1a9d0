"""YAML from other people: bounded in length and depth, without aliases, tags that make objects, or keys given twice."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from congruence.errors import CorruptFileError, FileError

if TYPE_CHECKING:
    import yaml

#: Longest text that is parsed, in bytes; the longest of our own has 3,000.
LONGEST = 256 * 2**10

#: Lists and mappings within each other; recipes and experiments need four.
DEEPEST = 20


def read_yaml(path: str | Path, what: str) -> str:
    """Read a YAML file, no further than :func:`parse_yaml` would parse it.

    Parameters
    ----------
    path : path-like
    what : str
        What is expected there, for messages: "a recipe".

    Returns
    -------
    str

    Raises
    ------
    FileError
        No such file, a folder, or one that may not be read.
    CorruptFileError
        Not UTF-8, or longer than :data:`LONGEST`.
    """
    try:
        with open(path, "rb") as stream:
            raw = stream.read(LONGEST + 1)
        _check_length(len(raw), path)
        return raw.decode("utf-8")
    except FileNotFoundError:
        raise FileError(f"Got no file at {path}; expected {what} in YAML. Check the path.") from None
    except CorruptFileError:
        raise
    except OSError as error:
        raise FileError(
            f"Got {path}, which cannot be read ({error.strerror}); expected {what} in YAML. Check the path and its permissions."
        ) from error
    except UnicodeDecodeError as error:
        raise CorruptFileError(f"Got {path} that is not UTF-8; expected {what} in YAML. Save it as UTF-8.") from error


def parse_yaml(text: str, where: str) -> object:
    """Return the plain data of a YAML document.

    Parameters
    ----------
    text : str
    where : str
        What the text is called in messages.

    Returns
    -------
    dict, list, str, int, float, bool, date or None

    Raises
    ------
    CorruptFileError
        Not YAML, longer than :data:`LONGEST`, nested deeper than :data:`DEEPEST`, or with an alias, a repeated key, or a tag that
        makes an object.
    """
    import yaml

    _check_length(len(text), where)
    _check_length(len(text.encode("utf-8", "surrogatepass")), where)
    try:
        return yaml.load(text, Loader=_loader())
    # PyYAML lets through what int(), float() and date() raise of numbers and dates that are none.
    except (yaml.YAMLError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise CorruptFileError(
            f"Got {where} that is not YAML ({error}); expected key: value lines. Correct the line that the parser names."
        ) from error


def find_line(text: str, path: Sequence[str | int]) -> int | None:
    """Return the line that an entry of a YAML document is on.

    Parameters
    ----------
    text : str
        As :func:`parse_yaml` took it.
    path : sequence of str and int
        Keys and places in lists, from the document down. What leads further than the document does is left out.

    Returns
    -------
    int or None
        From 1, of the entry's key or item; None if the first step leads nowhere.
    """
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
    if length > LONGEST:
        raise CorruptFileError(
            f"Got {where} of more than {LONGEST // 2**10} KiB; expected less. Put long lists into files of their own."
        )


@cache
def _loader() -> type[yaml.SafeLoader]:
    import yaml

    class Loader(yaml.SafeLoader):
        """Refuses aliases and deep nesting as the text is read token by token, and a key given twice, of which YAML would silently keep the last."""

        def __init__(self, stream: str) -> None:
            super().__init__(stream)
            self._depth = 0

        def get_event(self) -> yaml.Event:
            """Return the next event; nothing is built of one that is refused, nor of anything around it."""
            event = super().get_event()
            if isinstance(event, yaml.AliasEvent):
                raise yaml.MarkedYAMLError(problem="an alias; write the value out", problem_mark=event.start_mark)
            if isinstance(event, yaml.ScalarEvent):
                event.value.encode("utf-8")  # a lone surrogate could be neither printed nor written
            self._depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if self._depth > DEEPEST:
                raise yaml.MarkedYAMLError(problem=f"more than {DEEPEST} levels", problem_mark=event.start_mark)
            return event

        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[object, object]:
            """Return the mapping of a node."""
            seen = set()
            for key, _ in node.value:
                name = (key.tag, str(key.value))
                if name in seen:
                    raise yaml.MarkedYAMLError(problem=f"the key {key.value!r} twice", problem_mark=key.start_mark)
                seen.add(name)
            return super().construct_mapping(node, deep)

    return Loader
