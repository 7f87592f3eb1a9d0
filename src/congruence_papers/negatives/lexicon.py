"""The lexicon of the rules: English words for what is visible in photographs, read from the files in ``data``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.resources import files
from typing import NamedTuple

from congruence_papers.negatives.words import plural

Words = tuple[str, ...]


@dataclass(frozen=True)
class Term:
    """A noun or an adjective; ``lead``: it may replace others of its section."""

    section: str
    family: int
    lead: bool
    singular: Words
    plural: Words
    count: bool = True
    mass: bool = False


class Relation(NamedTuple):
    """A preposition or a verb in three forms, those that exclude it, and the nouns before which it is replaced."""

    forms: tuple[Words, ...]
    others: list[tuple[Words, ...]]
    before: frozenset[str]


@dataclass(frozen=True)
class Lexicon:
    """The contents of all files; ``leads`` and ``adjective_leads`` are the terms that replace others, by section."""

    nouns: dict[Words, Term]
    classes: dict[str, str]
    adjectives: dict[Words, tuple[Term, ...]]
    ranks: dict[str, int]
    fitting: dict[str, frozenset[str]]
    prepositions: list[Relation]
    verbs: list[Relation]
    added: dict[str, list[Term]]
    added_adjectives: dict[str, list[tuple[int, Words]]]
    leads: dict[str, list[Term]]
    adjective_leads: dict[str, list[Term]]

    @cached_property
    def replacements(self) -> frozenset[Words]:
        """All words and phrases that may replace others."""
        terms = [term for group in (self.leads, self.adjective_leads) for leads in group.values() for term in leads]
        phrases = [phrase for term in terms for phrase in (term.singular, term.plural)]
        relations = (*self.prepositions, *self.verbs)
        return frozenset([*phrases, *(form for one in relations for other in one.others for form in other)])


def _lines(name: str) -> Iterator[tuple[str, list[str], str]]:
    """Yield the lines of a data file with the name of their section and the facts in its header, without comments."""
    text = files("congruence_papers.negatives").joinpath("data", name).read_text(encoding="utf-8")
    section, facts = "", list[str]()
    for line in map(str.strip, text.splitlines()):
        if line.startswith("["):
            section, *facts = line.strip("[]").split()
        elif line and not line.startswith("#"):
            yield section, facts, line


@cache
def word_set(name: str) -> frozenset[str]:
    """Return the words in a section of ``function_words.txt``, which have one function in a sentence."""
    lines = _lines("function_words.txt")
    return frozenset(word for section, _, line in lines if section == name for word in line.split())


def _split(text: str) -> Words:
    return tuple(text.replace("_", " ").split())


def _family(section: str, number: int, line: str) -> list[Term]:
    """Parse a family of terms; the format is described in ``objects.txt``."""
    lead, terms = not line.startswith("-"), []
    for k, entry in enumerate(line.removeprefix("-").split()):
        mass, both = entry.startswith("~"), entry.endswith("*")
        singular, _, irregular = entry.strip("~*").partition("/")
        words = _split(singular)
        form = _split(irregular) if irregular else (*words[:-1], plural(words[-1]))
        terms.append(Term(section, number, lead and k == 0, words, form, count=not mass, mass=mass or both))
    return terms


def noun_families() -> Iterator[tuple[str, list[Term]]]:
    """Yield each family of nouns with the class of its section."""
    number = 0
    for section, facts, line in _lines("objects.txt"):
        for family in [f"- {entry}" for entry in line.split()] if "single" in facts else [line]:
            yield facts[0], _family(section, number, family)
            number += 1


def _leads(terms: Iterable[Term]) -> dict[str, list[Term]]:
    leads: dict[str, list[Term]] = {}
    for term in dict.fromkeys(terms):
        if term.lead:
            leads.setdefault(term.section, []).append(term)
    return leads


def _verb(entry: str) -> tuple[Words, ...]:
    """Return the base form, the third person and the -ing form of an entry of ``relations.txt``."""
    verb, *particles = entry.split()
    base, ing, third = (*verb.split("/"), "", "")[:3]
    ing = ing or (base[:-1] if base.endswith("e") and not base.endswith("ee") else base) + "ing"
    return (base, *particles), (third or plural(base), *particles), (ing, *particles)


@cache
def lexicon() -> Lexicon:
    """Return the lexicon; its files are read once."""
    nouns: dict[Words, Term] = {}
    classes: dict[str, str] = {}
    for kind, terms in noun_families():
        for term in terms:
            classes[term.section] = kind
            for form in {term.singular, term.plural}:
                nouns.setdefault(form, term)
    adjectives: dict[Words, tuple[Term, ...]] = {}
    ranks, fitting = {}, {}
    for number, (section, facts, line) in enumerate(_lines("attributes.txt")):
        ranks[section], fitting[section] = int(facts[0]), frozenset(facts[1:])
        for term in _family(section, number, line):
            adjectives[term.singular] = (*adjectives.get(term.singular, ()), term)
    relations: dict[str, list[Relation]] = {}
    for section, _, line in _lines("relations.txt"):
        names, against, before = (part.strip() for part in line.split("|"))
        parse = (lambda entry: (_split(entry),)) if section == "prepositions" else _verb
        others = [parse(entry) for entry in against.split(",")]
        relations.setdefault(section, []).extend(
            Relation(parse(name), others, frozenset(before.split())) for name in names.split(",")
        )
    added: dict[str, list[Term]] = {}
    added_adjectives: dict[str, list[tuple[int, Words]]] = {}
    for section, (kind, *facts), line in _lines("additions.txt"):
        if section == "adjectives":
            added_adjectives.setdefault(kind, []).append((int(facts[0]), _split(line)))
        else:
            (term,) = _family(section, -1, line)
            added.setdefault(kind, []).append(nouns.get(term.singular, term))
    groups = _leads(nouns.values()), _leads(term for terms in adjectives.values() for term in terms)
    known = relations["prepositions"], relations["verbs"]
    return Lexicon(nouns, classes, adjectives, ranks, fitting, *known, added, added_adjectives, *groups)
