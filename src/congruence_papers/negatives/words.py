"""A caption as words and gaps, and edits that keep spacing, punctuation, articles and capitals correct."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

# An apostrophe or a hyphen inside a word belongs to it.
_WORD = re.compile(r"[^\W_]+(?:['’-][^\W_]+)*")
_CONSONANT = re.compile(r"(?:uni(?!n)|us(?:e|u|a)|eu|ewe|one\b|once|ukulele|u\.|uk\b|ut(?:e|i))")
_SILENT_H = ("hour", "honest", "honor", "honour", "heir")


@dataclass(frozen=True)
class Edit:
    """Replacement of words ``start`` to ``stop`` by others."""

    start: int
    stop: int
    words: tuple[str, ...]
    after: bool = False


@dataclass(frozen=True)
class Sentence:
    """A caption as words and gaps."""

    words: tuple[str, ...]
    gaps: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> Sentence:
        """Split a text into words and gaps."""
        words, gaps, end = [], [], 0
        for match in _WORD.finditer(text):
            gaps.append(text[end : match.start()])
            words.append(match.group())
            end = match.end()
        return cls(tuple(words), (*gaps, text[end:]))

    @cached_property
    def lower(self) -> tuple[str, ...]:
        """The words in lower case."""
        return tuple(word.lower() for word in self.words)

    def joined(self, place: int) -> bool:
        """Return whether the word at ``place`` follows another one with only whitespace in between."""
        return 0 < place < len(self.words) and not self.gaps[place].strip()

    def moved(self, start: int, stop: int) -> tuple[str, ...]:
        """Return words for use at another place: the first word of the sentence loses its capital."""
        words = list(self.words[start:stop])
        if start == 0 and words and words[0].istitle() and words[0] != "I":
            words[0] = words[0].lower()
        return tuple(words)

    def apply(self, edits: Iterable[Edit]) -> str:
        """Return the text with edits applied.

        An article that was changed, or precedes a changed word, is adjusted to the next word. A new first word is
        capitalized if the old one was, and a text in capitals stays in capitals.
        """
        out: list[tuple[str, str, bool]] = []  # gap before, word, changed
        place, gap = 0, self.gaps[0]
        own = list(self.words)
        for edit in sorted(edits, key=lambda e: (e.start, e.stop)):
            for k in range(place, edit.start):
                out.append((gap, own[k], False))
                gap = self.gaps[k + 1]
            place = edit.stop
            if edit.start < edit.stop:
                out += [(gap if k == 0 else " ", word, True) for k, word in enumerate(edit.words)]
                gap = self.gaps[edit.stop]
            elif edit.after or edit.start == len(self.words):
                out += [(" ", word, True) for word in edit.words]
            else:
                out += [(gap if k == 0 else " ", word, True) for k, word in enumerate(edit.words)]
                own[place : place + 1] = self.moved(place, place + 1)
                gap = " "
        for k in range(place, len(self.words)):
            out.append((gap, own[k], False))
            gap = self.gaps[k + 1]
        words = _articles(out)
        if self.words and self.words[0][0].isupper() and out and out[0][2]:
            words[0] = words[0][0].upper() + words[0][1:]
        text = "".join(before + word for (before, _, _), word in zip(out, words, strict=True)) + gap
        letters = [word for word in self.words if len(word) > 1]
        return text.upper() if letters and all(word.isupper() for word in letters) else text


def _articles(out: Sequence[tuple[str, str, bool]]) -> list[str]:
    """Return the words of (gap before, word, changed) triples, with articles adjusted to the words after them."""
    words = [word for _, word, _ in out]
    for k in range(len(out) - 1):
        if words[k].lower() in ("a", "an") and (out[k][2] or out[k + 1][2]) and not out[k + 1][0].strip():
            adjusted = article(words[k + 1])
            words[k] = adjusted.capitalize() if words[k][0].isupper() else adjusted
    return words


def article(word: str) -> str:
    """Return the indefinite article for a word, judged by its spelling.

    >>> [article(word) for word in ("cat", "apple", "uniform", "umbrella", "hour")]
    ['a', 'an', 'a', 'an', 'an']
    """
    word = word.lower()
    vowel = word[:1] in "aeiou" and not _CONSONANT.match(word)
    return "an" if vowel or word.startswith(_SILENT_H) else "a"


def plural(word: str) -> str:
    """Return the regular plural of a noun, which is spelled like the third person singular of a verb.

    >>> [plural(word) for word in ("cat", "box", "city", "toy")]
    ['cats', 'boxes', 'cities', 'toys']
    """
    if word.endswith(("s", "x", "z", "ch", "sh")):
        return word + "es"
    if word.endswith("y") and word[-2:-1] not in "aeiou":
        return word[:-1] + "ies"
    return word + "s"


def same_words(first: str, second: str) -> bool:
    """Return whether two texts differ only in capitals, spaces and punctuation."""
    return Sentence.parse(first).lower == Sentence.parse(second).lower


def changed_words(first: str, second: str) -> tuple[str, str]:
    """Return the words in which two texts differ: the shortest run in each outside of which they agree.

    >>> changed_words("A cat on a bed.", "A dog on a bed.")
    ('cat', 'dog')
    """
    one, two = Sentence.parse(first), Sentence.parse(second)
    head = _shared_start(one.lower, two.lower)
    tail = _shared_start(one.lower[head:][::-1], two.lower[head:][::-1])
    return " ".join(one.words[head : len(one.words) - tail]), " ".join(two.words[head : len(two.words) - tail])


def _shared_start(a: Sequence[str], b: Sequence[str]) -> int:
    return next((k for k, (one, two) in enumerate(zip(a, b, strict=False)) if one != two), min(len(a), len(b)))
