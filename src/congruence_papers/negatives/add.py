"""Rules that add an object or an adjective that the caption does not mention."""

from __future__ import annotations

from congruence_papers.negatives.caption import Alternatives, Caption
from congruence_papers.negatives.lexicon import Term, word_set
from congruence_papers.negatives.tagging import AUXILIARIES, DETERMINERS, GENDERED, PREPOSITIONS
from congruence_papers.negatives.words import Edit, article

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
