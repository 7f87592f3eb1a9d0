"""The rules, each a function that yields all its edits of a caption: replace a word, swap two, or add one."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from congruence_papers.negatives.caption import (
    AUXILIARIES,
    DETERMINERS,
    GENDERED,
    PREPOSITIONS,
    SINGULAR,
    Alternatives,
    Caption,
    Phrase,
    among,
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
    """Return whether the words after a verb are among those with which it may be replaced; see ``Verb``."""
    if "in" in before:  # "sit", "stand" and "lie" exclude each other only if the subject is a person or an animal
        subject = [p for p in c.phrases if p.stop <= place]
        return c.after(stop) in _AFTER_POSTURE and bool(subject) and subject[-1].animate
    return c.sentence.joined(stop) and any(p.start == stop and p.closed and among(p, before) for p in c.phrases)


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


def swap_obj(c: Caption) -> Alternatives:
    """Exchange two nouns, with their adjectives, unless the caption would remain true."""
    for first, second, adjacent in _pairs(c):
        usable = all(
            p.clean and p.number and p.determiner not in _POSSESSIVES and c.only_one(p) for p in (first, second)
        )
        if usable and _swappable(c, first, second, adjacent):
            (i, j), (k, m) = ((_bare(p), p.stop) for p in (first, second))
            yield [(Edit(i, j, c.sentence.moved(k, m)), Edit(k, m, c.sentence.moved(i, j)))]


def _pairs(c: Caption) -> Iterator[tuple[Phrase, Phrase, bool]]:
    """Yield phrases that are not far apart, and whether none stands between them."""
    for k, first in enumerate(c.phrases):
        for second in c.phrases[k + 1 : k + _REACH]:
            if first.closed and second.closed:
                yield first, second, second is c.phrases[k + 1]


def _bare(phrase: Phrase) -> int:
    """Return the index of the first word that is exchanged: numbers stay with the determiner."""
    for adjective in phrase.adjectives:
        if not any(term.section == "number" for term in adjective.terms):
            return adjective.start
    return phrase.noun


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
    governor = between[-1]
    if governor == "of" and between[-2:] not in _PLACED:
        return False
    alike = (first.animate and second.animate) or (first.kind in _SOLID and first.kind == second.kind)
    one_section = first.term.section == second.term.section or (first.animate and second.animate)
    if adjacent:
        # "a cat on a bed": a one-sided relation between the two.
        if _one_sided(c, first, between):
            if first.animate and second.animate and "in" in between:  # "a man in a crowd"
                return False
            placed = governor in ("on", "behind", "under", "underneath", "above", "below") or between[-2:] in _PLACED
            placed = placed and all(w in PREPOSITIONS | _LIFELESS | {"top", "front"} for w in between)
            return alike or (placed and {first.kind, second.kind} in ({"animal", "thing"}, {"person", "thing"}))
        # "a man next to a woman riding a bike": the description of the second then applies to the first.
        return one_section and alike and governor in _BESIDE - {"behind"} and _described(c, second.stop)
    # "a man with a bat next to a woman"
    if alike and (one_section or governor != "and") and between[0] in ("with", "wearing", "holding"):
        return governor in _BESIDE | {"while", "and"} or governor.endswith("ing") or between[-2:] in _PLACED
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
    """Return whether a phrase is followed by words that describe it alone."""
    return c.after(stop) in ("wearing", "holding", "riding", "carrying", "eating", "who") or (
        c.after(stop) in ("with", "in") and any(p.start == stop + 1 and p.kind == "wear" for p in c.phrases)
    )


def _one_sided(c: Caption, first: Phrase, between: Words) -> bool:
    """Return whether the words between two phrases are a relation that does not hold the other way around."""
    if len(between) > 4 or not all(c.sentence.joined(k) for k in range(first.stop, first.stop + len(between) + 1)):
        return False
    if set(between) & (_SYMMETRIC | _UNSIDED):
        return False
    known = PREPOSITIONS | AUXILIARIES | _LIFELESS | third_persons() | {"top", "front"}
    if not all(word in known or word.endswith("ing") for word in between):
        return False
    # "a man on a bench using a laptop": the verb is not the bench's.
    before = c.before(first.start)
    if between[0] in PREPOSITIONS:
        return before not in _VERBS_BOUND and not before.endswith("ing") and before not in third_persons()
    return before not in PREPOSITIONS


def swap_att(c: Caption) -> Alternatives:
    """Exchange two adjectives of one section, or a number and an article."""
    for first, second, _ in _pairs(c):
        for a in first.adjectives:
            for b in second.adjectives:
                if _exchangeable(c, first, a.terms, second, b.terms):
                    words_a, words_b = c.sentence.moved(a.start, a.stop), c.sentence.moved(b.start, b.stop)
                    yield [(Edit(a.start, a.stop, words_b), Edit(b.start, b.stop, words_a))]
        yield from _swap_counted(c, first, second)


def _exchangeable(c: Caption, first: Phrase, a: tuple[Term, ...], second: Phrase, b: tuple[Term, ...]) -> bool:
    """Return whether adjectives of two phrases exclude each other and fit the other's noun."""
    for one in a:
        for two in b:
            if one.section != two.section or one.family == two.family:
                continue
            if one.section == "number":
                return first.number == second.number == "plural" and first.term.family != second.term.family
            return first.term.family != second.term.family and all(
                among(p, c.lexicon.fitting[one.section]) for p in (first, second)
            )
    return False


def _swap_counted(c: Caption, first: Phrase, second: Phrase) -> Alternatives:
    """Exchange "two" of one phrase and "a" of the other, if no verb would have to change its form."""
    singular, plural = (first, second) if first.number == "singular" else (second, first)
    if not (
        singular.number == "singular"
        and plural.number == "plural"
        and singular.determiner in ("a", "an")
        and not plural.determiner
    ):
        return
    count = plural.adjectives[0] if plural.adjectives else None
    if (
        count is None
        or not any(t.section == "number" for t in count.terms)
        or singular.term.family == plural.term.family
    ):
        return
    words = c.sentence.lower
    if set(words) & (
        AUXILIARIES | {"it", "its", "them", "their", "they", "that", "which", "who"} | GENDERED | _COUNTED
    ):
        return
    governor = c.before(second.start)
    if c.before(first.start) in PREPOSITIONS - {"of"}:
        return
    if governor not in _BESIDE | {"with", "and"} and not governor.endswith("ing"):
        return
    for phrase in (singular, plural):
        if not (phrase.animate or phrase.kind in _SOLID):
            return
        after = c.after(phrase.stop)
        if not (after in (PREPOSITIONS - {"of"}) | {"and", ""} or after.endswith("ing")):
            return
        if phrase.term.singular == phrase.term.plural or not phrase.term.count or not phrase.clean:
            return
    number = c.sentence.moved(count.start, count.stop)
    following = (*c.sentence.words[count.stop : plural.head], *plural.term.singular)
    yield [
        (
            Edit(singular.start, singular.start + 1, number),
            Edit(singular.head, singular.stop, singular.term.plural),
            Edit(count.start, count.stop, (article(following[0]),)),
            Edit(plural.head, plural.stop, plural.term.singular),
        )
    ]


# ---------- add: an object or an adjective that is not mentioned

_ALL = ("thing", "animal", "person")
_HOLDERS = word_set("beside") | {"with", "holding", "carrying"}


def add_obj(c: Caption) -> Alternatives:
    """Yield edits that add a thing, animal or person that the caption does not mention."""
    words = c.sentence.lower
    kinds: tuple[str, ...]
    for phrase in c.phrases:
        if not (phrase.closed and phrase.clean and phrase.number) or phrase.kind in ("none", "wear", "food", "place"):
            continue
        before, after = c.before(phrase.start), c.after(phrase.stop)
        if after in ("and", "or", "of", "that", "who", "which") or c.sentence.gaps[phrase.stop].strip() == ",":
            continue
        if before in _HOLDERS and not after.endswith("ing"):  # "with a dog running": the verb would apply to both
            kinds = ("thing",) if before in ("holding", "carrying") else _ALL
        elif (
            phrase.start == 0
            and not c.words & (GENDERED | {"its"})
            and (phrase.determiner or phrase.adjectives)
            and after.endswith("ing")
        ):
            kinds = ("animal", "person") if phrase.animate else ("thing",)
        else:
            continue
        yield [
            (Edit(phrase.stop, phrase.stop, ("and", article(term.singular[0]), *term.singular), after=True),)
            for kind in kinds
            for term in _absent(c, kind)
        ]
    if words and "background" not in words and words[-1] not in DETERMINERS | PREPOSITIONS | AUXILIARIES:
        frames = [("with", "nearby"), ("with", "in the background")]
        if "with" in words[-5:]:  # avoid two "with" in a row
            frames = [("next to", "")]
        yield [
            (
                Edit(
                    len(words),
                    len(words),
                    (*lead.split(), article(term.singular[0]), *term.singular, *tail.split()),
                    after=True,
                ),
            )
            for kind in _ALL
            for term in _absent(c, kind)
            for lead, tail in frames
        ]


def _absent(c: Caption, kind: str) -> list[Term]:
    """Return the nouns of a kind that may be added and that no caption of the item mentions."""
    return [
        t for t in c.lexicon.added[kind] if not set(t.singular) & c.words and (t.family < 0 or t.family not in c.nouns)
    ]


def add_att(c: Caption) -> Alternatives:
    """Yield edits that add an adjective that the caption does not mention."""
    for phrase in c.phrases:
        if not (phrase.closed and phrase.clean):
            continue
        sections = {term.section for adjective in phrase.adjectives for term in adjective.terms}
        changes = []
        known = c.lexicon.added_adjectives
        for rank, words in (*known.get(phrase.kind, ()), *known.get(phrase.term.section, ())):
            if set(words) & c.words or (rank == 5 and sections & {"color", "pattern", "material"}):
                continue
            position = phrase.body
            for adjective in phrase.adjectives:
                if min(c.lexicon.ranks[term.section] for term in adjective.terms) <= rank:
                    position = adjective.stop
            changes.append((Edit(position, position, words),))
        yield changes


#: SugarCrepe's kinds of wrong captions, with the function that yields all edits of a caption.
RULES: dict[str, Callable[[Caption], Alternatives]] = {
    rule.__name__: rule for rule in (replace_obj, replace_att, replace_rel, swap_obj, swap_att, add_obj, add_att)
}
