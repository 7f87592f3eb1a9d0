"""Words and gaps: what an edit keeps."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from congruence_papers.negatives.words import Edit, Sentence, article, changed_words, same_words

TEXTS = st.text(st.sampled_from("abAB é'-.,!  \n\t1"), max_size=40)


@given(TEXTS)
def test_a_text_divided_and_joined_is_itself(text):
    sentence = Sentence.parse(text)
    assert len(sentence.gaps) == len(sentence.words) + 1
    assert sentence.apply([]) == text


@given(TEXTS, st.data())
def test_an_edit_leaves_the_other_words_alone(text, data):
    sentence = Sentence.parse(text)
    n = len(sentence.words)
    start = data.draw(st.integers(0, n))
    stop = data.draw(st.integers(start, n))
    after = data.draw(st.booleans())
    found = Sentence.parse(sentence.apply([Edit(start, stop, ("zebra", "zoo"), after)])).lower
    articles = {"an": "a"}
    plain = [articles.get(word, word) for word in found]
    expected = [*sentence.lower[:start], "zebra", "zoo", *sentence.lower[stop:]]
    assert plain == [articles.get(word, word) for word in expected]


def edited(text, *edits):
    return Sentence.parse(text).apply([Edit(*edit) for edit in edits])


def test_articles_agree_with_what_follows_where_something_changed():
    assert edited("A dog and an cat.", (1, 2, ("owl",))) == "An owl and an cat."  # the other mistake is the author's
    assert edited("An old dog", (1, 1, ("tall",))) == "A tall old dog"
    assert edited("see a, dog", (2, 3, ("owl",))) == "see a, owl"


def test_capitals_and_punctuation_stay_in_their_places():
    assert edited("Dogs, two cats!", (0, 1, ("owls",))) == "Owls, two cats!"
    assert edited("Dogs on grass.", (0, 0, ("wet",))) == "Wet dogs on grass."
    assert edited("TV on a desk.", (0, 0, ("broken",))) == "Broken TV on a desk."
    assert edited("dogs on grass .", (0, 1, ("owls",))) == "owls on grass ."
    assert edited("A DOG SITS", (1, 2, ("owl",))) == "AN OWL SITS"
    assert edited("A dog, asleep.", (2, 2, ("and", "an", "owl"), True)) == "A dog and an owl, asleep."
    assert Sentence.parse("Dogs chase cats").moved(0, 1) == ("dogs",)


@pytest.mark.parametrize(
    ("word", "right"),
    [
        *[(word, "an") for word in ("apple", "hour", "umbrella", "uninformed", "Elephant", "heirloom", "onion")],
        *[(word, "a") for word in ("cat", "uniform", "unicorn", "one-eyed", "European", "user", "house", "3d", "ewe")],
    ],
)
def test_articles(word, right):
    assert article(word) == right


def test_texts_are_compared_by_their_words():
    assert same_words("A cat ,  on a mat", "a CAT on a mat.")
    assert not same_words("a cat", "a cats")
    assert changed_words("a cat on a bed", "a bed on a cat") == ("cat on a bed", "bed on a cat")
    assert changed_words("a cat", "a cat and a dog") == ("", "and a dog")
    assert changed_words("the the", "the") == ("the", "")
