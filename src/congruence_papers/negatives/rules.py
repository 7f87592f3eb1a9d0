"""The rules, each a function that yields all its edits of a caption: replace a word, swap two, or add one."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from congruence_papers.negatives.caption import (
    AUXILIARIES,
    DETERMINERS,
    GENDERED,
    PREPOSITIONS,
    SINGULAR,
    Adjective,
    Alternatives,
    Caption,
    Phrase,
    third_persons,
)
from congruence_papers.negatives.lexicon import Term, Words, word_set
from congruence_papers.negatives.words import Edit, article

# ---------- replace: a noun, an adjective or a relation by one that excludes it

_COUNTED = word_set("counted")
_MEASURES = word_set("measures")
_STATIC = word_set("static")
_MOVING = word_set("moving")
_PORTIONS = frozenset(("slice", "slices", "piece", "pieces"))
#: Sections of adjectives that fit few other nouns.
_BOUND = frozenset(("openness", "wholeness", "cooking", "fullness"))
_AFTER_POSTURE = PREPOSITIONS - frozenset(("of", "to", "as", "like", "while", "about", "for", "before", "after"))
_AFTER_POSTURE |= {"", "together", "outside", "alone"}


def replace_obj(c: Caption) -> Alternatives:
    """Yield edits that replace a noun by another of its section."""
    gendered = bool(c.words & GENDERED)
    for phrase in c.phrases:
        section = phrase.term.section
        certain = phrase.closed and phrase.clean and phrase.number and phrase.noun == phrase.head
        if not certain or not c.only_one(phrase) or phrase.sections & _BOUND:
            continue
        if section == "meals" and c.before(phrase.start) == "of" and c.before(phrase.start - 1) in _PORTIONS:
            continue  # other meals may not come in slices
        if gendered and phrase.kind in ("person", "child") and section in ("adults", "children", "relatives"):
            continue
        yield [
            (Edit(phrase.head, phrase.stop, other.plural if phrase.number == "plural" else other.singular),)
            for other in c.lexicon.leads.get(section, ())
            if other.family not in c.nouns and _fits(phrase, other)
        ]


def _fits(phrase: Phrase, other: Term) -> bool:
    """Return whether a noun can replace that of a phrase, given the phrase's number and determiner."""
    if phrase.number == "plural" or phrase.determiner in SINGULAR:
        return other.count
    if phrase.determiner in ("", "some"):  # a bare noun is a mass noun, or articles are omitted ("man riding horse")
        return other.mass if phrase.term.mass else other.count
    return other.count if phrase.term.count else other.mass


def replace_att(c: Caption) -> Alternatives:
    """Yield edits that replace an adjective or a number by another of its section."""
    for phrase in c.phrases:
        for adjective in phrase.adjectives if phrase.closed else ():
            if c.before(adjective.start) in _MEASURES:
                continue
            changes = []
            for term in adjective.terms:
                number = term.section == "number"
                if number and (phrase.number != "plural" or c.words & _COUNTED):
                    continue
                if phrase.among(c.lexicon.fitting[term.section]):
                    changes += [
                        (Edit(adjective.start, adjective.stop, other.singular),)
                        for other in c.lexicon.adjective_leads.get(term.section, ())
                        if other.family not in c.adjectives
                        # "many" can mean five, but not two
                        and (not number or term.lead or other.singular == ("two",))
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
    words, place = c.sentence.lower, 0
    begins = {phrase.start: phrase for phrase in c.phrases if phrase.closed}
    ends = {phrase.stop for phrase in c.phrases if phrase.closed}
    while place < len(words):
        start = place
        place = max((_end(c, start, p.forms[0]) for p in c.lexicon.prepositions), default=start)
        if place == start:
            place += 1
            continue
        preposition, after, follows = words[start:place], begins.get(place), start in ends
        if after is None or not (after.determiner or after.number == "plural" or after.kind == "place"):
            continue
        if preposition[0] in _MOVING:
            replaceable = start > 0
        elif preposition == ("with",):  # not "without two" or "without some"
            replaceable = follows and "number" not in after.sections and after.determiner != "some"
        else:
            replaceable = follows or c.before(start) in _STATIC
        worn = preposition[0] in ("in", "on") and after.kind == "wear"
        if replaceable and c.sentence.joined(start) and not worn:
            yield [
                (Edit(start, place, other[0]),)
                for p in c.lexicon.prepositions
                if p.forms[0] == preposition and after.among(p.before)
                for other in p.others
                if not (after.animate and other[0][0] in ("on", "under", "underneath", "inside"))
            ]


def _end(c: Caption, start: int, preposition: Words) -> int:
    """Return the end of a preposition that is followed by a word; ``start`` if it is not there."""
    stop = start + len(preposition)
    found = c.sentence.lower[start:stop] == preposition
    return stop if found and all(c.sentence.joined(k) for k in range(start + 1, stop + 1)) else start


def _verbs(c: Caption) -> Alternatives:
    """Yield edits that replace a verb by one that excludes it, in the same form."""
    words = c.sentence.lower
    for place in range(1, len(words)):
        changes = []
        for verb in c.lexicon.verbs:
            for k, form in enumerate(verb.forms):
                stop = place + len(form)
                if words[place:stop] != form or not _has_subject(c, place, k):
                    continue
                if form[0].startswith("hold") and c.words & {"hand", "hands"}:
                    continue  # "dropping" would contradict the hand that the caption mentions
                if _object_fits(c, place, stop, verb.before):
                    free = [other for other in verb.others if not c.words & {f[0] for f in other}]
                    changes += [(Edit(place, stop, other[k]),) for other in free]
        yield changes


def _has_subject(c: Caption, place: int, form: int) -> bool:
    """Return whether a verb at ``place`` may be in the base form (0), the third person (1) or the -ing form (2)."""
    before = [p for p in c.phrases if p.stop == place]
    if form == 0:
        plural = any(p.number == "plural" and p.term.singular != p.term.plural for p in before)
        return plural or c.before(place) == "to"
    singular = any(p.closed and p.number == "singular" for p in before)
    return form == 2 or singular or c.before(place) in ("and", "that", "who")


def _object_fits(c: Caption, place: int, stop: int, before: frozenset[str]) -> bool:
    """Return whether the words after a verb are among those with which it may be replaced; see ``Relation``."""
    if "in" in before:  # "sit", "stand" and "lie" exclude each other only if the subject is a person or an animal
        subject = [p for p in c.phrases if p.stop <= place]
        return c.after(stop) in _AFTER_POSTURE and bool(subject) and subject[-1].animate
    return c.sentence.joined(stop) and any(p.start == stop and p.closed and p.among(before) for p in c.phrases)


# ---------- swap: two nouns, two adjectives, or a number and an article

_BESIDE = word_set("beside")
_VERBS_BOUND = word_set("bound")
_POSSESSIVES = word_set("possessives")
_LIFELESS = word_set("lifeless")
_SYMMETRIC = word_set("symmetric")
_UNSIDED = word_set("unsided")
#: Maximum number of phrases that a pair may span.
_REACH = 12
_PLACED = (("top", "of"), ("front", "of"))
_SOLID = ("thing", "food", "wear")
_REFERRING = GENDERED | {"it", "its", "them", "their", "they", "that", "which", "who"}


def swap_obj(c: Caption) -> Alternatives:
    """Exchange two nouns, with their adjectives, unless the caption would remain true."""
    for first, second, adjacent in _pairs(c):
        usable = all(
            p.clean and p.number and p.determiner not in _POSSESSIVES and c.only_one(p) for p in (first, second)
        )
        if usable and _swappable(c, first, second, adjacent):
            yield [_exchange(c, (_bare(first), first.stop), (_bare(second), second.stop))]


def _exchange(c: Caption, first: tuple[int, int], second: tuple[int, int]) -> tuple[Edit, ...]:
    return Edit(*first, c.sentence.moved(*second)), Edit(*second, c.sentence.moved(*first))


def _pairs(c: Caption) -> Iterator[tuple[Phrase, Phrase, bool]]:
    """Yield phrases that are not far apart, and whether none stands between them."""
    for k, first in enumerate(c.phrases):
        for second in c.phrases[k + 1 : k + _REACH]:
            if first.closed and second.closed:
                yield first, second, second is c.phrases[k + 1]


def _counts(adjective: Adjective) -> bool:
    return any(term.section == "number" for term in adjective.terms)


def _bare(phrase: Phrase) -> int:
    """Return the index of the first word that is exchanged: numbers stay with the determiner."""
    return next((adjective.start for adjective in phrase.adjectives if not _counts(adjective)), phrase.noun)


def _swappable(c: Caption, first: Phrase, second: Phrase, adjacent: bool) -> bool:
    """Return whether exchanging two nouns makes a grammatical caption with another meaning."""
    if first.number != second.number or first.term.family == second.term.family:
        return False
    if first.term.mass != second.term.mass or bool(first.determiner) != bool(second.determiner):
        return False
    if "person" in (first.kind, second.kind) and c.words & GENDERED:
        return False
    between = c.sentence.lower[first.stop : second.start]
    if not between or "of" in (between[0], c.after(second.stop)):
        return False
    governor, placed = between[-1], between[-2:] in _PLACED
    if governor == "of" and not placed:
        return False
    living = first.animate and second.animate
    alike = living or (first.kind in _SOLID and first.kind == second.kind)
    one_section = first.term.section == second.term.section or living
    if adjacent and _one_sided(c, first, between):  # "a cat on a bed"
        if living and "in" in between:  # "a man in a crowd"
            return False
        placed = placed or governor in ("on", "behind", "under", "underneath", "above", "below")
        placed = placed and all(w in PREPOSITIONS | _LIFELESS | {"top", "front"} for w in between)
        return alike or (placed and {first.kind, second.kind} in ({"animal", "thing"}, {"person", "thing"}))
    if adjacent:  # "a man next to a woman riding a bike": the description of the second then applies to the first.
        return one_section and alike and governor in _BESIDE - {"behind"} and _described(c, second.stop)
    # "a man with a bat next to a woman"
    if alike and (one_section or governor != "and") and between[0] in ("with", "wearing", "holding"):
        return governor in _BESIDE | {"while", "and"} or governor.endswith("ing") or placed
    if not (one_section and alike):
        return False
    if governor == "while":  # "a man holds a bat while a woman watches"
        return True
    if governor == "and":  # "a man holding a bat and a woman"
        return between[0].endswith("ing") or between[0] in ("with", "wearing")
    # "a cup on a table and a plate on a shelf": each has its own place.
    sided = PREPOSITIONS - _SYMMETRIC - _UNSIDED - {"of"}
    return governor in sided and c.before(first.start) in sided and "and" in between


def _described(c: Caption, stop: int) -> bool:
    return c.after(stop) in ("wearing", "holding", "riding", "carrying", "eating", "who") or (
        c.after(stop) in ("with", "in") and any(p.start == stop + 1 and p.kind == "wear" for p in c.phrases)
    )


def _one_sided(c: Caption, first: Phrase, between: Words) -> bool:
    """Return whether the words between two phrases are a relation that does not hold the other way around."""
    if len(between) > 4 or not all(c.sentence.joined(k) for k in range(first.stop, first.stop + len(between) + 1)):
        return False
    known = PREPOSITIONS | AUXILIARIES | _LIFELESS | third_persons() | {"top", "front"}
    if {*between} & (_SYMMETRIC | _UNSIDED) or not all(word in known or word.endswith("ing") for word in between):
        return False
    # "a man on a bench using a laptop": the verb is not the bench's.
    before = c.before(first.start)
    if between[0] in PREPOSITIONS:
        return before not in _VERBS_BOUND | third_persons() and not before.endswith("ing")
    return before not in PREPOSITIONS


def swap_att(c: Caption) -> Alternatives:
    """Exchange two adjectives of one section, or a number and an article."""
    for first, second, _ in _pairs(c):
        for a in first.adjectives:
            for b in second.adjectives:
                if _exchangeable(c, first, a.terms, second, b.terms):
                    yield [_exchange(c, (a.start, a.stop), (b.start, b.stop))]
        yield from _swap_counted(c, first, second)


def _exchangeable(c: Caption, first: Phrase, a: tuple[Term, ...], second: Phrase, b: tuple[Term, ...]) -> bool:
    """Return whether adjectives of two phrases exclude each other and fit the other's noun."""
    for section in (one.section for one in a for two in b if one.section == two.section and one.family != two.family):
        if section == "number":
            fits = first.number == second.number == "plural"
        else:
            fits = all(p.among(c.lexicon.fitting[section]) for p in (first, second))
        return fits and first.term.family != second.term.family
    return False


def _swap_counted(c: Caption, first: Phrase, second: Phrase) -> Alternatives:
    """Exchange "two" of one phrase and "a" of the other, if no verb would have to change its form."""
    one, many = (first, second) if first.number == "singular" else (second, first)
    if (one.number, many.number, many.determiner) != ("singular", "plural", "") or one.determiner not in ("a", "an"):
        return
    if not many.adjectives or not _counts(many.adjectives[0]) or one.term.family == many.term.family:
        return
    if {*c.sentence.lower} & (AUXILIARIES | _REFERRING | _COUNTED) or c.before(first.start) in PREPOSITIONS - {"of"}:
        return
    governor = c.before(second.start)
    if governor not in _BESIDE | {"with", "and"} and not governor.endswith("ing"):
        return
    for phrase in (one, many):
        after = c.after(phrase.stop)
        known = phrase.animate or phrase.kind in _SOLID
        ends = after in (PREPOSITIONS - {"of"}) | {"and", ""} or after.endswith("ing")
        inflected = phrase.term.singular != phrase.term.plural and phrase.term.count
        if not (known and ends and inflected and phrase.clean):
            return
    count = many.adjectives[0]
    following = (*c.sentence.words[count.stop : many.head], *many.term.singular)
    yield [
        (
            Edit(one.start, one.start + 1, c.sentence.moved(count.start, count.stop)),
            Edit(one.head, one.stop, one.term.plural),
            Edit(count.start, count.stop, (article(following[0]),)),
            Edit(many.head, many.stop, many.term.singular),
        )
    ]


# ---------- add: an object or an adjective that is not mentioned

_ALL = ("thing", "animal", "person")
_HOLDERS = word_set("beside") | {"with", "holding", "carrying"}


def add_obj(c: Caption) -> Alternatives:
    """Yield edits that add a thing, animal or person that the caption does not mention."""
    for phrase in c.phrases:
        before, after = c.before(phrase.start), c.after(phrase.stop)
        if not (phrase.closed and phrase.clean and phrase.number) or phrase.kind in ("none", "wear", "food", "place"):
            continue
        if after in ("and", "or", "of", "that", "who", "which") or c.sentence.gaps[phrase.stop].strip() == ",":
            continue
        named = phrase.start == 0 and (phrase.determiner or phrase.adjectives) and not c.words & (GENDERED | {"its"})
        kinds: tuple[str, ...] = ()
        if before in _HOLDERS and not after.endswith("ing"):  # "with a dog running": the verb would apply to both
            kinds = ("thing",) if before in ("holding", "carrying") else _ALL
        elif named and after.endswith("ing"):
            kinds = ("animal", "person") if phrase.animate else ("thing",)
        if kinds:
            yield [_added(phrase.stop, "and", term) for kind in kinds for term in _absent(c, kind)]
    words = c.sentence.lower
    if words and "background" not in words and words[-1] not in DETERMINERS | PREPOSITIONS | AUXILIARIES:
        frames = [("with", "nearby"), ("with", "in the background")]
        if "with" in words[-5:]:  # avoid two "with" in a row
            frames = [("next to", "")]
        terms = [term for kind in _ALL for term in _absent(c, kind)]
        yield [_added(len(words), lead, term, tail) for term in terms for lead, tail in frames]


def _added(place: int, lead: str, term: Term, tail: str = "") -> tuple[Edit, ...]:
    noun = (article(term.singular[0]), *term.singular)
    return (Edit(place, place, (*lead.split(), *noun, *tail.split()), after=True),)


def _absent(c: Caption, kind: str) -> list[Term]:
    return [
        t for t in c.lexicon.added[kind] if not {*t.singular} & c.words and (t.family < 0 or t.family not in c.nouns)
    ]


def add_att(c: Caption) -> Alternatives:
    """Yield edits that add an adjective that the caption does not mention."""
    known, ranks = c.lexicon.added_adjectives, c.lexicon.ranks
    for phrase in c.phrases:
        if not (phrase.closed and phrase.clean):
            continue
        looks = phrase.sections & {"color", "pattern", "material"}
        changes = []
        for rank, words in (*known.get(phrase.kind, ()), *known.get(phrase.term.section, ())):
            if not ({*words} & c.words or (rank == 5 and looks)):
                outer = [a.stop for a in phrase.adjectives if min(ranks[term.section] for term in a.terms) <= rank]
                place = outer[-1] if outer else phrase.body
                changes.append((Edit(place, place, words),))
        yield changes


#: SugarCrepe's kinds of wrong captions, with the function that yields all edits of a caption.
RULES: dict[str, Callable[[Caption], Alternatives]] = {
    rule.__name__: rule for rule in (replace_obj, replace_att, replace_rel, swap_obj, swap_att, add_obj, add_att)
}
