"""Class names exchanged for others."""

import numpy as np
import pytest

from congruence.errors import DtypeError, NotFiniteError, ParameterError, ShapeError, ZeroRowError
from congruence_papers.negatives import sibling_negatives

CLASSES = ["cat", "ocelot", "truck", "crane", "umbrella bird", "crane"]


def test_the_nearest_is_that_of_the_largest_cosine():
    rng = np.random.default_rng(0)
    classes = [f"c{k}" for k in range(60)]
    X = rng.standard_normal((60, 5)) * rng.uniform(0.1, 9, (60, 1))
    before = X.copy()
    U = X / np.linalg.norm(X, axis=1, keepdims=True)
    likeness = U @ U.T
    np.fill_diagonal(likeness, -2)
    made = sibling_negatives(classes[::-1], classes, X, per_caption=2)
    order = np.argsort(-likeness, axis=1)[:, :2]
    expected = [f"a photo of a c{j}" for k in range(59, -1, -1) for j in order[k]]
    assert [n.negative for n in made] == expected
    assert [n.row for n in made] == np.repeat(np.arange(60), 2).tolist()
    np.testing.assert_array_equal(X, before)


def test_classes_of_one_name_are_no_siblings():
    X = np.eye(6) + 0.01
    X[3] = X[5]
    made = sibling_negatives(["crane", "crane"], CLASSES, X, per_caption=4)
    assert len(made) == 8
    others = ("a cat", "an ocelot", "a truck", "an umbrella bird")
    assert {n.negative for n in made} == {f"a photo of {one}" for one in others}
    for seed in range(5):
        drawn = sibling_negatives(["crane"] * 9, CLASSES, per_caption=4, random_state=seed)
        assert all(n.negative != n.caption for n in drawn)
        assert len({(n.row, n.negative) for n in drawn}) == 36


def test_drawn_by_seed_from_all_others():
    names = ["cat"] * 400
    made = sibling_negatives(names, CLASSES, random_state=3)
    assert made == sibling_negatives(names, CLASSES, random_state=3)
    assert made != sibling_negatives(names, CLASSES, random_state=4)
    drawn = [n.changed[1] for n in made]
    assert len(set(drawn)) == 4
    assert min(drawn.count(name) for name in set(drawn)) > 60  # 100 expected, standard deviation 8.7


def test_templates():
    (made,) = sibling_negatives(["ocelot"], ["ocelot", "cat"], template="A photo of an {}, small.")
    assert (made.caption, made.negative) == ("A photo of an ocelot, small.", "A photo of a cat, small.")
    assert (made.kind, made.changed) == ("sibling", ("an ocelot", "a cat"))
    (made,) = sibling_negatives(["cat"], ["ocelot", "cat"], template="{} in snow")
    assert (made.caption, made.negative) == ("cat in snow", "ocelot in snow")
    (made,) = sibling_negatives(["cat"], ["ocelot", "cat"], template="#{}s")
    assert made.negative == "#ocelots"


@pytest.mark.parametrize(
    ("names", "classes", "similarity", "options", "error", "message"),
    [
        (["dog"], CLASSES, None, {}, ParameterError, "'dog'"),
        (["cat"], ["cat", "cat"], None, {}, ParameterError, "1 classes"),
        (["cat"], ["cat", "dog"], None, {"per_caption": 2}, ParameterError, "2 classes"),
        (["cat"], ["cat", "dog"], None, {"per_caption": 0}, ParameterError, "per_caption"),
        (["cat"], ["cat", "dog"], None, {"random_state": -1}, ParameterError, "random_state"),
        (["cat"], ["cat", "dog"], None, {"template": "a photo"}, ParameterError, "template"),
        ([], ["cat", "dog"], None, {}, ShapeError, "No captions"),
        ([3], ["cat", "dog"], None, {}, DtypeError, "caption 0"),
        (["cat"], ["cat", "dog"], np.ones((3, 2)), {}, ShapeError, "2 classes and 3 rows of similarity"),
        (["cat"], ["cat", "dog"], [[1.0, np.nan], [1, 2]], {}, NotFiniteError, "similarity"),
        (["cat"], ["cat", "dog"], [[0.0, 0.0], [1, 2]], {}, ZeroRowError, "similarity"),
    ],
)
def test_what_is_refused(names, classes, similarity, options, error, message):
    with pytest.raises(error, match=message):
        sibling_negatives(names, classes, similarity, **options)


def test_imagenets_names(shared):
    with np.load(shared("imagenet1000_unimodal.npz"), allow_pickle=False) as data:
        names = data["names"].astype(str).tolist()
    made = sibling_negatives(names, names, random_state=0)
    assert len(made) == len(names)
    assert all(n.caption != n.negative for n in made)
