"""Words and gaps: what an edit keeps."""

import pytest

from congruence_papers.negatives.words import Edit, Sentence, article


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
