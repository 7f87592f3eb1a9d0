"""Rules that exchange two nouns, two adjectives, or a number and an article, unless the caption would remain true."""

from __future__ import annotations

from collections.abc import Iterator

from congruence_papers.negatives.caption import Alternatives, Caption, among
from congruence_papers.negatives.lexicon import Term, Words, word_set
from congruence_papers.negatives.tagging import AUXILIARIES, GENDERED, PREPOSITIONS, Phrase, third_persons
from congruence_papers.negatives.words import Edit, article

_BESIDE = word_set("beside")
_BOUND = word_set("bound")
_COUNTED = word_set("counted")
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
        return before not in _BOUND and not before.endswith("ing") and before not in third_persons()
    return before not in PREPOSITIONS


def swap_att(c: Caption) -> Alternatives:
    """Exchange two adjectives of one section, or a number and an article."""
    for first, second, _ in _pairs(c):
        for a in first.adjectives:
            for b in second.adjectives:
                if _exchangeable(c, first, a.terms, second, b.terms):
                    words_a, words_b = c.sentence.moved(a.start, a.stop), c.sentence.moved(b.start, b.stop)
                    yield [(Edit(a.start, a.stop, words_b), Edit(b.start, b.stop, words_a))]
        yield from _counted(c, first, second)


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


def _counted(c: Caption, first: Phrase, second: Phrase) -> Alternatives:
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
