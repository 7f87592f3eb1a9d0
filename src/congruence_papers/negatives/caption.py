"""Captions analyzed for the rules: their noun phrases, found with the lexicon, and what edits must not introduce.

The words around each phrase decide whether its start and end are certain.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property

from congruence_papers.negatives.lexicon import Lexicon, Term, lexicon, word_set
from congruence_papers.negatives.words import Edit, Sentence

SINGULAR = word_set("singular")
DETERMINERS = word_set("determiners")
PREPOSITIONS = word_set("prepositions")
LINKS = word_set("links")
AUXILIARIES = word_set("auxiliaries")
GENDERED = word_set("gendered")
#: Words that may follow the last noun of a phrase.
CLOSERS = PREPOSITIONS | LINKS | AUXILIARIES | DETERMINERS | word_set("followers")
_LONGEST = 4
_COMPOUND = frozenset(("sign", "area", "lot", "board", "machine", "equipment"))
_PARTICIPLES = frozenset(("seen", "shown", "taken", "eaten", "made"))
_DEGREES = frozenset(("very", "so", "too", "extremely", "quite"))

#: For each position in a caption, the possible changes, each a tuple of edits made together; all are equally valid.
Alternatives = Iterator[Sequence[tuple[Edit, ...]]]


@dataclass(frozen=True)
class Adjective:
    """An adjective before a noun: words ``start`` to ``stop``, and the lexicon's terms for them."""

    start: int
    stop: int
    terms: tuple[Term, ...]


@dataclass(frozen=True)
class Phrase:
    """A noun with its determiner and adjectives; ``clean`` and ``closed``: its start and its end are certain."""

    start: int
    body: int
    noun: int
    head: int
    stop: int
    determiner: str
    adjectives: tuple[Adjective, ...]
    term: Term
    kind: str
    number: str
    closed: bool
    clean: bool

    @property
    def animate(self) -> bool:
        """Whether the noun is a person or an animal."""
        return self.kind in ("person", "child", "animal") or self.term.section in ("anyone", "creatures")

    @property
    def sections(self) -> set[str]:
        """The sections of its adjectives."""
        return {term.section for adjective in self.adjectives for term in adjective.terms}

    def among(self, names: frozenset[str]) -> bool:
        """Return whether ``names`` contains the noun, its section, its class, or "any"."""
        return bool(names & {"any", self.kind, self.term.section, "_".join(self.term.singular)})


def _noun_at(sentence: Sentence, place: int, known: Lexicon) -> tuple[int, Term] | None:
    """Return the end and the term of the longest noun that begins at ``place``, or None."""
    words = sentence.lower
    for stop in range(min(place + _LONGEST, len(words)), place, -1):
        term = known.nouns.get(words[place:stop])
        if term is not None and all(sentence.joined(k) for k in range(place + 1, stop)):
            return stop, term
    return None


def find_phrases(sentence: Sentence, known: Lexicon) -> list[Phrase]:
    """Return the noun phrases of a sentence, from left to right."""
    words, place, phrases = sentence.lower, 0, []
    while place < len(words):
        first = _noun_at(sentence, place, known)
        # "orange" is a noun, unless an adjective or a noun follows.
        if first is None or (words[place : place + 1] in known.adjectives and _modifies(sentence, first[0], known)):
            place += 1
            continue
        head, (stop, term) = place, first
        while sentence.joined(stop) and (following := _noun_at(sentence, stop, known)) is not None:
            if words[head:stop] == term.plural and words[head:stop] != term.singular:
                break  # a plural does not modify another noun: the next word is a verb that looks like one
            head, (stop, term) = stop, following
        phrases.append(_phrase(sentence, place, head, stop, term, known))
        place = stop
    return phrases


def _modifies(sentence: Sentence, stop: int, known: Lexicon) -> bool:
    """Return whether an adjective or a noun follows at ``stop``."""
    follows = sentence.lower[stop : stop + 1] in known.adjectives or _noun_at(sentence, stop, known) is not None
    return sentence.joined(stop) and follows


def _phrase(sentence: Sentence, noun: int, head: int, stop: int, term: Term, known: Lexicon) -> Phrase:
    """Return the phrase of a noun, with the determiner and the adjectives before it."""
    words = sentence.lower
    adjectives: list[Adjective] = []
    body = noun
    while body > 0 and (sentence.joined(body) or sentence.gaps[body] == ", "):
        for length in (3, 2, 1):
            terms = known.adjectives.get(words[max(body - length, 0) : body])
            if terms and body >= length and (adjectives or sentence.joined(body)):
                adjectives.insert(0, Adjective(body - length, body, terms))
                body -= length
                break
        else:
            break
    start, determiner = body, ""
    if sentence.joined(body) and words[body - 1] in DETERMINERS:
        start, determiner = body - 1, words[body - 1]
    counted = any(t.section == "number" for a in adjectives for t in a.terms)
    if term.singular != term.plural:
        number = "singular" if words[head:stop] == term.singular else "plural"
    elif determiner in SINGULAR:
        number = "singular"
    elif counted or determiner in ("these", "those", "some", ""):
        number = "plural"
    else:
        number = ""
    before = words[start - 1] if sentence.joined(start) else ""
    clean = bool(determiner or counted) or not before or before in CLOSERS or before.endswith("ing")
    agrees = number != "plural" or not (determiner in SINGULAR or determiner in ("this", "that"))
    agrees = agrees and (number != "singular" or not (counted or determiner in ("these", "those")))
    return Phrase(
        *(start, body, noun, head, stop, determiner, tuple(adjectives), term, known.classes.get(term.section, "none")),
        *(number, agrees and _closed(sentence, stop)),
        clean=clean and agrees and before not in _DEGREES,  # "a very large": the phrase begins before the adverb
    )


def _closed(sentence: Sentence, stop: int) -> bool:
    """Return whether the word at ``stop`` cannot belong to a noun phrase that ends before it."""
    words = sentence.lower
    if not sentence.joined(stop) or words[stop] in CLOSERS:
        return True
    after, last = words[stop], stop + 1 == len(words)
    if after.endswith("ing"):  # "a dog walking", but not "a parking lot"
        return last or words[stop + 1] not in _COMPOUND
    if after.endswith("ed") or after in _PARTICIPLES:  # "a bus parked on", but not "a snow covered hill"
        return last or words[stop + 1] in PREPOSITIONS | LINKS
    return after in third_persons()


@cache
def third_persons() -> frozenset[str]:
    """Return the third-person forms of the lexicon's verbs, without those that are also nouns."""
    known = lexicon()
    forms = {form[1][0] for verb in known.verbs for form in (verb.forms, *verb.others)}
    return frozenset(word for word in forms if (word,) not in known.nouns)


@dataclass(frozen=True)
class Caption:
    """An analyzed caption, with all that the captions of its item mention, none of which an edit may introduce."""

    sentence: Sentence
    phrases: list[Phrase]
    nouns: set[int]
    adjectives: set[int]
    words: set[str]
    lexicon: Lexicon

    def before(self, place: int) -> str:
        """Return the word before ``place``, in lower case; empty at the start or after punctuation."""
        return self.sentence.lower[place - 1] if self.sentence.joined(place) else ""

    def after(self, place: int) -> str:
        """Return the word at ``place``, in lower case; empty at the start, the end or after punctuation."""
        return self.sentence.lower[place] if self.sentence.joined(place) else ""

    @cached_property
    def families(self) -> Counter[int]:
        """Number of phrases of each noun family."""
        return Counter(phrase.term.family for phrase in self.phrases)

    def only_one(self, phrase: Phrase) -> bool:
        """Return whether a phrase is the only one of its noun's family; another one could refer to the same thing."""
        return self.families[phrase.term.family] == 1


def parse_caption(text: str, others: Collection[str]) -> Caption:
    """Analyze a caption, together with the other captions of its item."""
    known, sentence = lexicon(), Sentence.parse(text)
    nouns: set[int] = set()
    adjectives: set[int] = set()
    words: set[str] = set()
    for caption in (sentence, *map(Sentence.parse, others)):
        lower = caption.lower
        words.update(lower)
        for place in range(len(lower)):
            if (noun := _noun_at(caption, place, known)) is not None:
                nouns.add(noun[1].family)
            for length in (1, 2, 3):
                adjectives.update(term.family for term in known.adjectives.get(lower[place : place + length], ()))
    return Caption(sentence, find_phrases(sentence, known), nouns, adjectives, words, known)
