"""Which vectors are of the old model and which of the new one, by the models that they name and their widths."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

from congruence.embeddings import Embeddings, Space
from congruence.errors import DirectionError, SpaceMismatchError

#: What the vectors of one model are called, and what is known of them; None for a model that has none.
Side: TypeAlias = tuple[str, Space] | None


def exchange(word: str, other: str | None) -> str:
    """Return what to do about swapped sides."""
    return f"Pass the other model's vectors instead of {word}, or exchange the old and the new ones."


def recorded(name: str, old: object, new: object) -> tuple[Side, Side]:
    """Return two sides by what they record; arrays record nothing. ``name``: what they are called together."""
    sides = [
        (f"{name} of the {side} model", replace(rows.space, dim=rows.dim)) if isinstance(rows, Embeddings) else None
        for side, rows in (("old", old), ("new", new))
    ]
    return sides[0], sides[1]


def check_sides(*given: tuple[Side, Side], fix: Callable[[str, str | None], str] = exchange) -> None:
    """Refuse vectors that are of the other model than their place says.

    ``given``: an old and a new side at a time, of which earlier ones decide; ``fix``: what to do about two words.

    Raises
    ------
    DirectionError
        If the two sides are exchanged.
    SpaceMismatchError
        If both sides are of one model.
    """
    known: tuple[list[tuple[str, Space]], ...] = ([], [])
    for sides in given:
        clash = _clash(sides, known)
        if clash and _clash(sides[::-1], known):
            raise SpaceMismatchError(
                f"{clash}, and both are given for one model.", "Pass vectors of the same two models."
            )
        if clash:
            words = [side[0] for side in sides if side is not None]
            raise DirectionError(f"The old and the new model are swapped: {clash}.", fix(words[0], (*words, None)[1]))
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
