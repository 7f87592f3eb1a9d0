"""Rules that replace a noun, an adjective or a relation by one that excludes it."""

from __future__ import annotations

from congruence_papers.negatives.caption import Alternatives, Caption, among
from congruence_papers.negatives.lexicon import Term, word_set
from congruence_papers.negatives.tagging import GENDERED, PREPOSITIONS, SINGULAR, Phrase
from congruence_papers.negatives.words import Edit

_COUNTED = word_set("counted")
_MEASURES = word_set("measures")
_STATIC = word_set("static")
_MOVING = word_set("moving")
_PORTIONS = frozenset(("slice", "slices", "piece", "pieces"))
#: Sections of adjectives that fit few other nouns.
_BOUND = frozenset(("openness", "wholeness", "cooking", "fullness"))
_AFTER_POSTURE = PREPOSITIONS - frozenset(("of", "to", "as", "like", "while", "about", "for", "before", "after")) | {
    "",
    "together",
    "outside",
    "alone",
}


def replace_obj(c: Caption) -> Alternatives:
    """Yield edits that replace a noun by another of its section."""
    gendered = bool(c.words & GENDERED)
    for phrase in c.phrases:
        term = phrase.term
        if not (phrase.closed and phrase.clean and phrase.number and phrase.noun == phrase.head):
            continue
        sections = {t.section for adjective in phrase.adjectives for t in adjective.terms}
        if not c.only_one(phrase) or sections & _BOUND:
            continue
        if term.section == "meals" and c.before(phrase.start) == "of" and c.before(phrase.start - 1) in _PORTIONS:
            continue  # other meals may not come in slices
        if phrase.kind in ("person", "child") and gendered and term.section in ("adults", "children", "relatives"):
            continue
        others = [
            other
            for other in c.lexicon.leads.get(term.section, ())
            if other.family not in c.nouns and _fits(phrase, other)
        ]
        yield [
            (Edit(phrase.head, phrase.stop, other.plural if phrase.number == "plural" else other.singular),)
            for other in others
        ]


def _fits(phrase: Phrase, other: Term) -> bool:
    """Return whether a noun can replace that of a phrase, given the phrase's number and determiner."""
    if phrase.number == "plural":
        return other.count
    if phrase.determiner in SINGULAR:
        return other.count
    if phrase.determiner in ("", "some"):  # a bare noun is a mass noun, or articles are omitted ("man riding horse")
        return other.mass if phrase.term.mass else other.count
    return other.count if phrase.term.count else other.mass


def replace_att(c: Caption) -> Alternatives:
    """Yield edits that replace an adjective or a number by another of its section."""
    for phrase in c.phrases:
        if not phrase.closed:
            continue
        for adjective in phrase.adjectives:
            if c.before(adjective.start) in _MEASURES:
                continue
            changes = []
            for term in adjective.terms:
                if not among(phrase, c.lexicon.fitting[term.section]):
                    continue
                if term.section == "number" and (phrase.number != "plural" or c.words & _COUNTED):
                    continue
                changes += [
                    (Edit(adjective.start, adjective.stop, other.singular),)
                    for other in c.lexicon.leads_adjectives.get(term.section, ())
                    if other.family not in c.adjectives
                    # "many" can mean five, but not two
                    and (term.section != "number" or term.lead or other.singular == ("two",))
                ]
            yield changes


def replace_rel(c: Caption) -> Alternatives:
    """Yield edits that replace a preposition or a verb by one that excludes it."""
    alternatives = [changes for changes in (*_prepositions(c), *_verbs(c)) if changes]
    # "without" gives a negative away, so it is used only if there is no other replacement.
    preferred = [changes for changes in alternatives if changes[0][0].words != ("without",)]
    yield from preferred or alternatives


def _prepositions(c: Caption) -> Alternatives:
    """Yield edits that replace a preposition by one that contradicts it, given the phrase after it."""
    words = c.sentence.lower
    begins = {phrase.start: phrase for phrase in c.phrases if phrase.closed}
    ends = {phrase.stop: phrase for phrase in c.phrases if phrase.closed}
    place = 0
    while place < len(words):
        length = max(
            (
                len(p.phrase)
                for p in c.lexicon.prepositions
                if words[place : place + len(p.phrase)] == p.phrase
                and all(c.sentence.joined(k) for k in range(place + 1, place + len(p.phrase) + 1))
            ),
            default=0,
        )
        if not length:
            place += 1
            continue
        phrase, stop = words[place : place + length], place + length
        after, before = begins.get(stop), ends.get(place)
        place = stop
        if after is None or not (after.determiner or after.number == "plural" or after.kind == "place"):
            continue
        start = stop - length
        if phrase[0] in _MOVING:
            replaceable = start > 0
        elif phrase == ("with",):  # not "without two" or "without some"
            counted = any(t.section == "number" for a in after.adjectives for t in a.terms)
            replaceable = before is not None and not counted and after.determiner != "some"
        else:
            replaceable = before is not None or c.before(start) in _STATIC
        if not replaceable or not c.sentence.joined(start) or (phrase[0] in ("in", "on") and after.kind == "wear"):
            continue
        changes = [
            (Edit(start, stop, other),)
            for p in c.lexicon.prepositions
            if p.phrase == phrase and among(after, p.before)
            for other in p.others
            if not (after.animate and other[0] in ("on", "under", "underneath", "inside"))
        ]
        yield changes


def _verbs(c: Caption) -> Alternatives:
    """Yield edits that replace a verb by one that excludes it, in the same form."""
    words = c.sentence.lower
    for place in range(1, len(words)):
        changes = []
        for verb in c.lexicon.verbs:
            for k, form in enumerate(verb.forms):
                stop = place + len(form)
                if words[place:stop] != form or (k == 0 and not _plural_subject(c, place)):
                    continue
                if k == 1 and not _singular_subject(c, place):
                    continue
                if form[0].startswith("hold") and c.words & {"hand", "hands"}:
                    continue  # "dropping" would contradict the hand that the caption mentions
                if not _object_fits(c, place, stop, verb.before):
                    continue
                changes += [
                    (Edit(place, stop, other[k]),) for other in verb.others if not c.words & {f[0] for f in other}
                ]
        yield changes


def _singular_subject(c: Caption, place: int) -> bool:
    """Return whether a verb at ``place`` may be in the third person singular."""
    return c.before(place) in ("and", "that", "who") or any(
        p.stop == place and p.closed and p.number == "singular" for p in c.phrases
    )


def _plural_subject(c: Caption, place: int) -> bool:
    """Return whether a verb at ``place`` may be in the base form: after a plural or "to"."""
    return c.before(place) == "to" or any(
        p.stop == place and p.number == "plural" and p.term.singular != p.term.plural for p in c.phrases
    )


def _object_fits(c: Caption, place: int, stop: int, before: frozenset[str]) -> bool:
    """Return whether the words after a verb are among those with which it may be replaced; see :class:`Verb`."""
    if "in" in before:  # "sit", "stand" and "lie" exclude each other only if the subject is a person or an animal
        subject = [p for p in c.phrases if p.stop <= place]
        return c.after(stop) in _AFTER_POSTURE and bool(subject) and subject[-1].animate
    return c.sentence.joined(stop) and any(p.start == stop and p.closed and among(p, before) for p in c.phrases)
