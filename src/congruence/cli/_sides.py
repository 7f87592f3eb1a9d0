"""Which files are of the old model and which of the new one: swapped files are answered with the command to type."""

from __future__ import annotations

import re
import shlex
import sys
from typing import TYPE_CHECKING, TypeAlias

from congruence.errors import DirectionError, SpaceMismatchError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from congruence.embeddings import Embeddings, Space

    #: A word that was typed for the vectors of one model, and what is known of them; None for a model that has no word.
    Side: TypeAlias = tuple[str, Space] | None


def placed(words: Sequence[str | None], rows: Sequence[Embeddings | None]) -> tuple[Side, Side]:
    """Return an old and a new side: the words that were typed for them, and what was read; either may be missing."""
    sides = [None if read is None else (str(word), read.space) for word, read in zip(words, rows, strict=False)]
    return sides[0], (*sides, None)[1]


def check_sides(*given: tuple[Side, Side]) -> None:
    """Refuse files that are of the other model than their place says, by the models that they name and their widths.

    ``given``: an old and a new side at a time, of which earlier ones decide.
    """
    known: tuple[list[tuple[str, Space]], ...] = ([], [])
    for sides in given:
        clash = _clash(sides, known)
        if clash and _clash(sides[::-1], known):
            raise SpaceMismatchError(
                f"{clash}, and both are given for one model.", "Pass files of the same two models."
            )
        if clash:
            raise swapped(clash, *(side[0] for side in sides if side is not None))
        for side, before in zip(sides, known, strict=True):
            before += [side] if side is not None else []


def _clash(sides: tuple[Side, Side], known: tuple[list[tuple[str, Space]], ...]) -> str:
    """Return in words which earlier vectors say that a side is of the other model; empty if none do."""
    for side, own, opposite in zip(sides, known, known[::-1], strict=True):
        if side is None:
            continue
        word, space = side
        for other, before in own:
            if space.model and before.model and space.model != before.model:
                return f"{word} holds vectors of {space.model}, and {other} of {before.model}"
            if space.dim and before.dim and space.dim != before.dim:
                return f"{word} holds vectors of {space.dim} components, and {other} of {before.dim}"
        if space.model and not any(before.model for _, before in own):
            for other, before in opposite:
                if before.model == space.model:
                    return f"{word} holds vectors of {space.model}, as {other} does"
    return ""


def swapped(why: str, word: str, other: str | None = None) -> DirectionError:
    """Return the error for two words that have to be exchanged, with the command to type."""
    typed = [re.split("([,=])", one) for one in sys.argv[1:]]
    fix = f"Pass the other model's vectors instead of {word}, or exchange OLD and NEW."
    if other is not None and all(any(one in parts for parts in typed) for one in (word, other)):
        swap = {word: other, other: word}
        store = [False, *(one == ["--store"] for one in typed)]  # may name one of them, and stays
        words = [
            "".join(parts if kept else [swap.get(part, part) for part in parts])
            for parts, kept in zip(typed, store, strict=False)
        ]
        fix = f"Type: {shlex.join(['congruence', *words])}"
    return DirectionError(f"The old and the new model are swapped: {why}.", fix)
