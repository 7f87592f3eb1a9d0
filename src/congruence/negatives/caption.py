"""A caption looked at once, for all kinds of edit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from congruence.negatives.lexicon import Lexicon
from congruence.negatives.tagging import Phrase, find_phrases, noun_at
from congruence.negatives.words import Edit, Sentence

__all__ = ["Caption", "Spots", "among", "look_at"]

#: Edits by the place they are made at; one of a place is as good as another.
Spots = Iterator[Sequence[tuple[Edit, ...]]]


@dataclass(frozen=True)
class Caption:
    """A caption, and what it and the other captions of its item mention: nothing of that may come in.

    Attributes
    ----------
    sentence : Sentence
    phrases : list of Phrase
    nouns, adjectives : frozenset of int
        Families mentioned.
    words : frozenset of str
        All words, in lower case.
    lexicon : Lexicon
    """

    sentence: Sentence
    phrases: list[Phrase]
    nouns: frozenset[int]
    adjectives: frozenset[int]
    words: frozenset[str]
    lexicon: Lexicon

    def before(self, place: int) -> str:
        """Return the word before a place, in lower case; empty if punctuation, or nothing, stands there."""
        return self.sentence.lower[place - 1] if self.sentence.joined(place) else ""

    def after(self, place: int) -> str:
        """Return the word at a place, in lower case; empty if punctuation stands before it, or it is the end."""
        return self.sentence.lower[place] if self.sentence.joined(place) else ""

    @cached_property
    def families(self) -> Counter[int]:
        """How many phrases there are of each family of nouns."""
        return Counter(phrase.term.family for phrase in self.phrases)

    def only_one(self, phrase: Phrase) -> bool:
        """Tell whether nothing else of a noun's family is in the caption, which would be meant as well."""
        return self.families[phrase.term.family] == 1


def look_at(text: str, others: Collection[str], lexicon: Lexicon) -> Caption:
    """Prepare a caption.

    Parameters
    ----------
    text : str
    others : collection of str
        Other captions of its item.
    lexicon : Lexicon

    Returns
    -------
    Caption
    """
    sentence = Sentence.parse(text)
    nouns: set[int] = set()
    adjectives: set[int] = set()
    words: set[str] = set()
    for one in (sentence, *map(Sentence.parse, others)):
        lower = one.lower
        words.update(lower)
        for place in range(len(lower)):
            if (found := noun_at(lower, place, one, lexicon)) is not None:
                nouns.add(found[1].family)
            for length in (1, 2, 3):
                adjectives.update(term.family for term in lexicon.adjectives.get(lower[place : place + length], ()))
    return Caption(
        sentence, find_phrases(sentence, lexicon), frozenset(nouns), frozenset(adjectives), frozenset(words), lexicon
    )


def among(phrase: Phrase, names: frozenset[str]) -> bool:
    """Tell whether a phrase's noun, its section or its class is one of ``names``."""
    return bool(names & {"any", phrase.kind, phrase.term.section, "_".join(phrase.term.one)})
