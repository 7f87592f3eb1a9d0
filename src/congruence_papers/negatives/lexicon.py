"""The lexicon of the rules: English words for what is visible in photographs, read from the files in ``data``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.resources import files

from congruence_papers.negatives.words import plural

Words = tuple[str, ...]


@dataclass(frozen=True)
class Term:
    """A noun or an adjective."""

    section: str
    family: int
    lead: bool
    singular: Words
    plural: Words
    count: bool = True
    mass: bool = False


@dataclass(frozen=True)
class Section:
    """The header of a section: its name and the facts that follow it."""

    name: str
    facts: tuple[str, ...]


@dataclass(frozen=True)
class Preposition:
    """A preposition, those that contradict it, and the nouns before which it is replaced."""

    phrase: Words
    others: tuple[Words, ...]
    before: frozenset[str]


@dataclass(frozen=True)
class Verb:
    """A verb, and verbs that exclude it, in three forms (base, third person, -ing)."""

    forms: tuple[Words, Words, Words]
    others: tuple[tuple[Words, Words, Words], ...]
    before: frozenset[str]


@dataclass(frozen=True)
class Lexicon:
    """The contents of all files."""

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
    def replacements(self) -> frozenset[Words]:
        """All words and phrases that may replace others."""
        terms = [term for group in (self.leads, self.leads_adjectives) for leads in group.values() for term in leads]
        phrases = [phrase for term in terms for phrase in (term.singular, term.plural)]
        phrases += [other for preposition in self.prepositions for other in preposition.others]
        phrases += [form for verb in self.verbs for other in verb.others for form in other]
        return frozenset(phrases)


def _leads(terms: Iterable[Term]) -> dict[str, tuple[Term, ...]]:
    """Return the terms that may replace others, by section."""
    leads: dict[str, tuple[Term, ...]] = {}
    for term in dict.fromkeys(terms):
        if term.lead:
            leads[term.section] = (*leads.get(term.section, ()), term)
    return leads


def _lines(name: str) -> Iterator[tuple[Section, str]]:
    """Yield the lines of a data file with their sections, without comments."""
    text = files("congruence_papers.negatives").joinpath("data", name).read_text(encoding="utf-8")
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
    """Return the words in a section of ``function_words.txt``, which have one function in a sentence."""
    return frozenset(
        word for section, line in _lines("function_words.txt") if section.name == name for word in line.split()
    )


def _families() -> Iterator[tuple[Section, str]]:
    """Yield the families of nouns with their sections, each as one line of text."""
    for section, line in _lines("objects.txt"):
        for family in [f"- {entry}" for entry in line.split()] if "single" in section.facts else [line]:
            yield section, family


def _split(text: str) -> Words:
    return tuple(text.replace("_", " ").split())


def _family(section: str, number: int, line: str) -> list[Term]:
    """Parse a family of terms; the format is described in ``objects.txt``."""
    lead, terms = not line.startswith("-"), []
    for k, entry in enumerate(line.removeprefix("-").split()):
        mass, both = entry.startswith("~"), entry.endswith("*")
        singular, _, irregular = entry.strip("~*").partition("/")
        words = _split(singular)
        terms.append(
            Term(
                section,
                number,
                lead and k == 0,
                words,
                _split(irregular) if irregular else (*words[:-1], plural(words[-1])),
                count=not mass,
                mass=mass or both,
            )
        )
    return terms


def _verb(entry: str) -> tuple[Words, Words, Words]:
    """Return the base form, the third person and the -ing form of an entry of ``relations.txt``."""
    verb, *particles = entry.split()
    base, ing, third = (*verb.split("/"), "", "")[:3]
    ing = ing or (base[:-1] if base.endswith("e") and not base.endswith("ee") else base) + "ing"
    return (base, *particles), (third or plural(base), *particles), (ing, *particles)


def _verbs(text: str) -> list[tuple[Words, Words, Words]]:
    return [_verb(entry) for entry in text.split(",")]


@cache
def lexicon() -> Lexicon:
    """Return the lexicon; its files are read once."""
    nouns: dict[Words, Term] = {}
    classes: dict[str, str] = {}
    for number, (section, line) in enumerate(_families()):
        classes[section.name] = section.facts[0]
        for term in _family(section.name, number, line):
            for form in {term.singular, term.plural}:
                nouns.setdefault(form, term)
    adjectives: dict[Words, tuple[Term, ...]] = {}
    ranks, fitting = {}, {}
    for number, (section, line) in enumerate(_lines("attributes.txt")):
        ranks[section.name], fitting[section.name] = int(section.facts[0]), frozenset(section.facts[1:])
        for term in _family(section.name, number, line):
            adjectives[term.singular] = (*adjectives.get(term.singular, ()), term)
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
            added[kind] = (*added.get(kind, ()), nouns.get(term.singular, term))
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
