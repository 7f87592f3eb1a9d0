"""A caption analyzed once, for all kinds of edits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from congruence_papers.negatives.lexicon import Lexicon
from congruence_papers.negatives.tagging import Phrase, find_phrases, noun_at
from congruence_papers.negatives.words import Edit, Sentence

#: For each position in a caption, the possible changes, each a tuple of edits made together; all are equally valid.
Alternatives = Iterator[Sequence[tuple[Edit, ...]]]


@dataclass(frozen=True)
class Caption:
    """An analyzed caption, with everything that it and the other captions of its item mention, none of which an edit
    may introduce.
    """

    sentence: Sentence
    phrases: list[Phrase]
    nouns: frozenset[int]
    adjectives: frozenset[int]
    words: frozenset[str]
    lexicon: Lexicon

    def before(self, place: int) -> str:
        """Return the word before the one at ``place``, in lower case; empty if there is none, or there is punctuation
        in between.
        """
        return self.sentence.lower[place - 1] if self.sentence.joined(place) else ""

    def after(self, place: int) -> str:
        """Return the word at ``place``, in lower case; empty at the start or end of the caption, or after
        punctuation.
        """
        return self.sentence.lower[place] if self.sentence.joined(place) else ""

    @cached_property
    def families(self) -> Counter[int]:
        """Number of phrases of each noun family."""
        return Counter(phrase.term.family for phrase in self.phrases)

    def only_one(self, phrase: Phrase) -> bool:
        """Return whether a phrase is the only one of its noun's family; another one could refer to the same thing."""
        return self.families[phrase.term.family] == 1


def parse_caption(text: str, others: Collection[str], lexicon: Lexicon) -> Caption:
    """Analyze a caption, together with the other captions of its item."""
    sentence = Sentence.parse(text)
    nouns: set[int] = set()
    adjectives: set[int] = set()
    words: set[str] = set()
    for caption in (sentence, *map(Sentence.parse, others)):
        lower = caption.lower
        words.update(lower)
        for place in range(len(lower)):
            if (noun := noun_at(lower, place, caption, lexicon)) is not None:
                nouns.add(noun[1].family)
            for length in (1, 2, 3):
                adjectives.update(term.family for term in lexicon.adjectives.get(lower[place : place + length], ()))
    return Caption(
        sentence, find_phrases(sentence, lexicon), frozenset(nouns), frozenset(adjectives), frozenset(words), lexicon
    )


def among(phrase: Phrase, names: frozenset[str]) -> bool:
    """Return whether ``names`` contains a phrase's noun, its section, its class, or "any"."""
    return bool(names & {"any", phrase.kind, phrase.term.section, "_".join(phrase.term.singular)})
