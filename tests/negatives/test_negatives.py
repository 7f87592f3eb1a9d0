"""Hard negatives: what each kind changes, what no negative is, and what is refused."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from congruence.datasets import load_sugarcrepe
from congruence.errors import DtypeError, ParameterError, ShapeError
from congruence_papers.negatives import KINDS, count, generate
from congruence_papers.negatives.lexicon import lexicon, noun_families
from congruence_papers.negatives.words import Sentence, same_words

DETERMINERS = ("A", "The", "Two", "A young", "An old", "Three small", "A big black", "Several", "")
NOUNS = "man,woman,cat,dogs,tables,horse,boy,sheep,pizza,cake,plates,red car,jeans"
LINKS = "on,next to,riding,is sitting on,holding,with,in front of,and,behind,wearing,eats"
phrases = st.tuples(st.sampled_from(DETERMINERS), st.sampled_from(NOUNS.split(","))).map(
    lambda pair: " ".join(pair).strip()
)
captions = st.builds(
    lambda first, rest, end: " ".join([first, *(f"{link} {noun[:1].lower()}{noun[1:]}" for link, noun in rest)]) + end,
    phrases,
    st.lists(st.tuples(st.sampled_from(LINKS.split(",")), phrases), max_size=3),
    st.sampled_from(["", ".", " .", "  "]),
)


def words(text):
    """Words without what agreement may change: the form of an article, the number of a noun that is known."""
    one = {" ".join(term.plural): " ".join(term.singular) for term in lexicon().nouns.values()}
    return [{"an": "a"}.get(word, one.get(word, word)) for word in Sentence.parse(text).lower]


@settings(settings.get_profile("costly"))
@given(captions, st.integers(0, 5), st.integers(1, 4))
def test_what_each_kind_may_change(caption, seed, per_caption):
    made = generate([caption], per_caption=per_caption, random_state=seed)
    assert made == generate([caption], per_caption=per_caption, random_state=seed)
    assert max(Counter(one.kind for one in made).values(), default=0) <= per_caption
    assert len({(one.kind, one.negative) for one in made}) == len(made)
    was = words(caption)
    for one in made:
        assert one.caption == caption
        assert not same_words(one.negative, caption)
        assert "  " not in one.negative.strip() or "  " in caption.strip()
        assert one.negative[0].isupper() == caption[0].isupper()
        assert one.negative.endswith(caption[len(caption.rstrip(" .")) :])
        became = words(one.negative)
        if one.kind.startswith("swap"):
            assert Counter(became) == Counter(was), one
        if one.kind.startswith("add"):
            rest = iter(became)
            assert all(word in rest for word in was), one  # in order: a subsequence
            assert len(became) > len(was)
        if one.kind.startswith("replace"):
            for text in one.changed:
                assert len([word for word in Sentence.parse(text).lower if word not in ("a", "an")]) <= 4


@given(st.lists(captions, min_size=2, max_size=5), st.integers(0, 3))
def test_what_a_caption_gets_of_one_kind_depends_on_no_other(texts, seed):
    made = generate(texts, random_state=seed)
    alone = generate(texts, ["swap_obj", "add_att"], random_state=seed)
    assert alone == [one for one in made if one.kind in ("swap_obj", "add_att")]


def test_common_words_come_in_more_often():
    texts = ["A cat asleep."] * 500 + ["A dog and a rabbit", "A dog nearby", "A dog outside"] * 20
    made = [n.changed[1] for n in generate(texts, ["replace_obj"]) if n.row < 500]
    counts = Counter(made)
    # dogs 61, rabbits 21, goats, pigs and foxes 1 of 85
    assert abs(counts["dog"] - 500 * 61 / 85) < 4 * np.sqrt(500 * 61 * 24) / 85
    assert abs(counts["rabbit"] - 500 * 21 / 85) < 4 * np.sqrt(500 * 21 * 64) / 85


@settings(settings.get_profile("costly"))
@given(st.lists(captions, min_size=2, max_size=6), st.integers(0, 3))
def test_no_negative_is_another_caption_of_its_item(texts, seed):
    for one in generate(texts, per_caption=3, random_state=seed, groups=[0] * len(texts)):
        assert not any(same_words(one.negative, text) for text in texts)


def one(caption, kind, **options):
    return [negative.negative for negative in generate([caption], [kind], per_caption=200, **options)]


def test_a_noun_gives_way_to_its_like_in_its_own_number():
    likes = ("dog", "rabbit", "goat", "pig", "fox")
    assert set(one("A cat asleep.", "replace_obj")) == {f"A {x} asleep." for x in likes}
    assert "Two foxes near some water" in one("Two cats near some water", "replace_obj")
    assert set(one("a bike nearby", "replace_obj")) == {"a motorcycle nearby", "a scooter nearby", "a tricycle nearby"}
    assert "A glass of juice" in one("A glass of milk", "replace_obj")


def test_nothing_gives_way_to_a_word_that_may_also_be_true():
    for negative in one("A puppy and a kitten on a couch", "replace_obj"):
        assert not {"dog", "cat", "puppies", "sofa", "animal"} & set(Sentence.parse(negative).lower)
    # mentioned elsewhere about the same image
    found = generate(["A cat asleep.", "A rabbit and a fox"], ["replace_obj"], 50, groups=[7, 7])
    assert {n.negative for n in found if n.row == 0} == {f"A {x} asleep." for x in ("dog", "goat", "pig")}


@pytest.mark.parametrize(
    ("caption", "kind"),
    [
        ("A man brushing his teeth", "replace_obj"),  # "a woman brushing his teeth"
        ("A pizza box", "replace_obj"),  # "a pizza crate", "a salad box"
        ("A cat and a dog", "swap_obj"),  # as true as before
        ("A cat next to a dog.", "swap_obj"),
        ("A cup sitting on a table", "swap_att"),
        ("A boy and two other boys", "replace_att"),
        ("A statue stands in the way", "replace_rel"),  # what a statue does not do otherwise
        ("xyzzy", "add_att"),
    ],
)
def test_where_no_edit_is_sound_there_is_none(caption, kind):
    assert one(caption, kind) == []


def test_swaps_turn_one_sided_relations_round():
    assert one("A white cat on a red car.", "swap_obj") == ["A red car on a white cat."]
    assert one("A man next to a woman riding a bike", "swap_obj") == ["A woman next to a man riding a bike"]
    assert "A cup on a shelf and a plate on a desk" in one("A cup on a desk and a plate on a shelf", "swap_obj")
    # Not the cat and the dog:
    assert one("A cat near a dog on a couch.", "swap_obj") == ["A cat near a couch on a dog."]
    assert one("A very large pizza on a small table", "swap_obj") == []
    assert one("A teddy bear sitting at a table", "swap_obj") == []
    assert one("a white sofa and a gray rug", "swap_att") == ["a gray sofa and a white rug"]
    assert one("Two women with a young child", "swap_att") == ["A woman with two young children"]


def test_relations_give_way_to_what_excludes_them():
    verbs = ("lying", "standing")
    assert set(one("A boy sitting on a beach", "replace_rel")) >= {f"A boy {verb} on a beach" for verb in verbs}
    assert set(one("A cat under a chair", "replace_rel")) == {"A cat on top of a chair", "A cat next to a chair"}
    assert one("A kitchen with a stove", "replace_rel") == ["A kitchen without a stove"]
    assert one("A kitchen with some chairs", "replace_rel") == []


def test_additions_stand_where_adjectives_do():
    assert "A big broken wooden chair" in one("A big wooden chair", "add_att")
    assert not [text for text in one("A red chair", "add_att") if "turquoise" in text]
    found = one("A stove next to a sink.", "add_obj")
    assert "A stove next to a sink and a guitar." in found
    assert "A stove next to a sink with a guitar nearby." in found
    assert not [text for text in one("A man next to a boy riding a bike", "add_obj") if "boy and" in text]


def test_counts():
    texts = ["A cat asleep.", "xyzzy", "A dog on a mat"]
    made = generate(texts, ["replace_obj", "swap_att"], per_caption=2)
    assert count(made, 3, ["replace_obj", "swap_att"]) == {
        "replace_obj": {"negatives": 4, "captions": 2, "without": 1},
        "swap_att": {"negatives": 0, "captions": 0, "without": 3},
    }


def test_no_word_is_in_two_families():
    seen: dict[tuple[str, ...], str] = {}
    for term in (term for _, terms in noun_families() for term in terms):
        for form in {term.singular, term.plural}:
            assert form not in seen, f"{form} in {seen[form]} and {term.section}"
            seen[form] = term.section


def test_every_class_and_section_named_in_the_rules_exists():
    known = lexicon()
    names = {"any", "in", "never"} | set(known.classes) | set(known.classes.values())
    names |= {"_".join(term.singular) for term in known.nouns.values()}
    before = [one.before for one in (*known.prepositions, *known.verbs)]
    used = set().union(*known.fitting.values(), *before)
    assert used | set(known.added_adjectives) <= names


def test_a_generator_of_ones_own_is_asked_with_its_own_chance():
    def rhyme(caption, kind, rng):
        return f"{caption} {kind} {rng.integers(3)}"

    made = generate(["a", "b"], ["mine"], per_caption=3, generator=rhyme)
    assert {n.negative for n in made if n.row == 0} <= {"a mine 0", "a mine 1", "a mine 2"}
    assert len({n.negative for n in made}) == len(made) > 2
    assert made == generate(["a", "b"], ["mine"], per_caption=3, generator=rhyme)
    assert generate(["a"], ["mine"], generator=lambda *_: None) == []


@pytest.mark.parametrize("output", ["a  CAT.", "", "  ", "!", 3, "another cat"])
def test_refused_outputs(output):
    def bad(caption, kind, rng):
        return output

    texts, groups = ["a cat", "another cat"], [0, 0]
    assert [n for n in generate(texts, ["x"], generator=bad, groups=groups) if n.row == 0] == []


@pytest.mark.parametrize(
    ("captions", "options", "error", "message"),
    [
        ([], {}, ShapeError, "No captions"),
        ("a cat", {}, DtypeError, "one text"),
        (["a cat", None], {}, DtypeError, "caption 1"),
        (["a cat", float("nan")], {}, DtypeError, "caption 1"),
        (["a cat", " \n"], {}, ShapeError, "row 1"),
        (["a cat"], {"kinds": ["replace_verb"]}, ParameterError, "'replace_obj', 'replace_att'"),
        (["a cat"], {"kinds": "swap_obj"}, ParameterError, "a list"),
        (["a cat"], {"kinds": []}, ParameterError, "a list"),
        (["a cat"], {"kinds": [3]}, ParameterError, "a list"),
        (["a cat"], {"per_caption": 0}, ParameterError, "per_caption"),
        (["a cat"], {"random_state": -1}, ParameterError, "random_state"),
        (["a cat"], {"groups": [1, 2]}, ShapeError, "1 captions and 2 groups"),
        (["a cat"], {"generator": "gpt"}, ParameterError, "callable"),
    ],
)
def test_what_is_refused(captions, options, error, message):
    with pytest.raises(error, match=message):
        generate(captions, **options)


@pytest.mark.long
def test_on_sugarcrepes_captions(shared):
    folder = shared("sugarcrepe/swap_obj.json").parent
    texts = sorted({text.strip() for text in load_sugarcrepe(folder).captions.tolist()})[::7]
    made = generate(texts)
    found = count(made, len(texts))
    least = {"replace_obj": 0.8, "replace_att": 0.35, "replace_rel": 0.45, "swap_obj": 0.04, "swap_att": 0.03}
    for kind in KINDS:
        assert found[kind]["captions"] / len(texts) >= least.get(kind, 0.8), kind
    assert not any(same_words(n.caption, n.negative) for n in made)
