"""The words that the rules know: a small English lexicon of what is seen in photographs, in files under ``data``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.resources import files

from congruence.negatives.words import plural

__all__ = ["Lexicon", "Preposition", "Section", "Term", "Verb", "Words", "lexicon", "word_set"]

Words = tuple[str, ...]


@dataclass(frozen=True)
class Term:
    """A noun or an adjective.

    Attributes
    ----------
    section : str
        The set of terms that exclude one another.
    family : int
        Terms of one family do not: synonyms, a kind and its kinds.
    lead : bool
        Whether it replaces others.
    one, many : tuple of str
        Singular and plural; an adjective has one form.
    count, mass : bool
        How a noun is used: *a* pizza, pizza.
    """

    section: str
    family: int
    lead: bool
    one: Words
    many: Words
    count: bool = True
    mass: bool = False


@dataclass(frozen=True)
class Section:
    """The facts in a section's header."""

    name: str
    facts: tuple[str, ...]


@dataclass(frozen=True)
class Preposition:
    """A phrase, what contradicts it, and the nouns after which it is replaced."""

    phrase: Words
    others: tuple[Words, ...]
    before: frozenset[str]


@dataclass(frozen=True)
class Verb:
    """A verb by its forms (base, third person, -ing), what excludes it, and what follows it."""

    forms: tuple[Words, Words, Words]
    others: tuple[tuple[Words, Words, Words], ...]
    before: frozenset[str]


@dataclass(frozen=True)
class Lexicon:
    """Everything in the files; terms by their words, in lower case."""

    nouns: dict[Words, Term]
    classes: dict[str, str]
    adjectives: dict[Words, tuple[Term, ...]]
    ranks: dict[str, int]
    fitting: dict[str, frozenset[str]]
    prepositions: tuple[Preposition, ...]
    verbs: tuple[Verb, ...]
    added: dict[str, tuple[Term, ...]]
    added_adjectives: dict[str, tuple[tuple[int, Words], ...]]
    leads: dict[str, tuple[Term, ...]]
    leads_adjectives: dict[str, tuple[Term, ...]]

    @cached_property
    def incoming(self) -> frozenset[Words]:
        """What may replace something."""
        terms = [term for group in (self.leads, self.leads_adjectives) for many in group.values() for term in many]
        phrases = [phrase for term in terms for phrase in (term.one, term.many)]
        phrases += [other for preposition in self.prepositions for other in preposition.others]
        phrases += [form for verb in self.verbs for other in verb.others for form in other]
        return frozenset(phrases)


def _leads(terms: Iterable[Term]) -> dict[str, tuple[Term, ...]]:
    """Those that replace others, by section."""
    found: dict[str, tuple[Term, ...]] = {}
    for term in dict.fromkeys(terms):
        if term.lead:
            found[term.section] = (*found.get(term.section, ()), term)
    return found


def _lines(name: str) -> Iterator[tuple[Section, str]]:
    text = files("congruence.negatives").joinpath("data", name).read_text(encoding="utf-8")
    section = Section("", ())
    for line in text.splitlines():
        line = line.strip()
        if line.startswith("["):
            head, *facts = line.strip("[]").split()
            section = Section(head, tuple(facts))
        elif line and not line.startswith("#"):
            yield section, line


@cache
def word_set(name: str) -> frozenset[str]:
    """Return the words that do one thing in a sentence: a section of ``function_words.txt``.

    Parameters
    ----------
    name : str

    Returns
    -------
    frozenset of str
    """
    return frozenset(
        word for section, line in _lines("function_words.txt") if section.name == name for word in line.split()
    )


def _families() -> Iterator[tuple[Section, str]]:
    """Nouns, a family a line."""
    for section, line in _lines("objects.txt"):
        for family in [f"- {entry}" for entry in line.split()] if "single" in section.facts else [line]:
            yield section, family


def _split(text: str) -> Words:
    return tuple(text.replace("_", " ").split())


def _family(section: str, number: int, line: str) -> list[Term]:
    lead, terms = not line.startswith("-"), []
    for k, entry in enumerate(line.removeprefix("-").split()):
        mass, both = entry.startswith("~"), entry.endswith("*")
        singular, _, many = entry.strip("~*").partition("/")
        one = _split(singular)
        terms.append(
            Term(
                section,
                number,
                lead and k == 0,
                one,
                _split(many) if many else (*one[:-1], plural(one[-1])),
                count=not mass,
                mass=mass or both,
            )
        )
    return terms


def _verb(entry: str) -> tuple[Words, Words, Words]:
    first, *rest = entry.split()
    base, ing, third = (*first.split("/"), "", "")[:3]
    ing = ing or (base[:-1] if base.endswith("e") and not base.endswith("ee") else base) + "ing"
    tail = tuple(rest)
    return (base, *tail), (third or plural(base), *tail), (ing, *tail)


def _verbs(text: str) -> list[tuple[Words, Words, Words]]:
    return [_verb(entry) for entry in text.split(",")]


@cache
def lexicon() -> Lexicon:
    """Read the files, once.

    Returns
    -------
    Lexicon
    """
    nouns: dict[Words, Term] = {}
    classes: dict[str, str] = {}
    for number, (section, line) in enumerate(_families()):
        classes[section.name] = section.facts[0]
        for term in _family(section.name, number, line):
            for form in {term.one, term.many}:
                nouns.setdefault(form, term)
    adjectives: dict[Words, tuple[Term, ...]] = {}
    ranks, fitting = {}, {}
    for number, (section, line) in enumerate(_lines("attributes.txt")):
        ranks[section.name], fitting[section.name] = int(section.facts[0]), frozenset(section.facts[1:])
        for term in _family(section.name, number, line):
            adjectives[term.one] = (*adjectives.get(term.one, ()), term)
    prepositions, verbs = [], []
    for section, line in _lines("relations.txt"):
        names, others, before = (part.strip() for part in line.split("|"))
        if section.name == "prepositions":
            against = tuple(_split(other) for other in others.split(","))
            for name in names.split(","):
                prepositions.append(Preposition(_split(name), against, frozenset(before.split())))
        else:
            for forms in _verbs(names):
                verbs.append(Verb(forms, tuple(_verbs(others)), frozenset(before.split())))
    added: dict[str, tuple[Term, ...]] = {}
    added_adjectives: dict[str, tuple[tuple[int, Words], ...]] = {}
    for section, line in _lines("additions.txt"):
        kind = section.facts[0]
        if section.name == "adjectives":
            entry = (int(section.facts[1]), _split(line))
            added_adjectives[kind] = (*added_adjectives.get(kind, ()), entry)
        else:
            (term,) = _family(section.name, -1, line)
            added[kind] = (*added.get(kind, ()), nouns.get(term.one, term))
    return Lexicon(
        nouns,
        classes,
        adjectives,
        ranks,
        fitting,
        tuple(prepositions),
        tuple(verbs),
        added,
        added_adjectives,
        _leads(nouns.values()),
        _leads(term for terms in adjectives.values() for term in terms),
    )
