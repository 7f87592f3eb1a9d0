"""Anchors that say little: ``fit`` is finite and no worse than the fixed rotation, or refuses with what to do."""

import json

import numpy as np
import pytest

import congruence
from congruence import OrthogonalMap
from congruence.errors import InputError, NotFiniteError, PairingWarning, TooFewAnchorsError
from congruence.metrics import class_retrieval
from congruence.synthetic import random_rotation
from congruence.upgrade.choose import FEWEST

WIDTH = 24
ROTATION = random_rotation(WIDTH, random_state=1)


def draw(n, *, noise=0.2, seed=0):
    """Rows of two models that differ by a rotation, an offset and noise."""
    rng = np.random.default_rng(seed)
    means = rng.standard_normal((2, WIDTH)) * 2 / np.sqrt(WIDTH)
    z = rng.standard_normal((n, WIDTH)) * np.geomspace(3, 0.3, WIDTH)
    return z + means[0], z @ ROTATION + means[1] + noise * rng.standard_normal((n, WIDTH))


X, Y = draw(260)
UNSEEN = slice(200, 260)
#: One direction of the source, the same of the target, and nothing else.
LINE = np.linspace(-3, 3, 30)


def found(mapping):
    """Mapped unseen rows find their own, and are found."""
    moved, own = mapping.transform(X[UNSEEN]), np.arange(60)
    assert np.isfinite(moved).all()
    return np.array([class_retrieval(moved, Y[UNSEEN], own), class_retrieval(Y[UNSEEN], moved, own)])


def wrong(n, share, seed=0):
    """``n`` pairs, of which a share have each other's targets."""
    rows = np.random.default_rng(seed).permutation(n)[: max(2, round(share * n))]
    swapped = Y[:n].copy()
    swapped[rows] = swapped[np.roll(rows, 1)]
    return X[:n], swapped


POOR = {
    "two": lambda: (X[:2], Y[:2]),
    "fewer than are compared": lambda: (X[: FEWEST - 1], Y[: FEWEST - 1]),
    "copies of two": lambda: tuple(np.repeat(side[:2], 20, axis=0) for side in (X, Y)),
    "copies of fifteen": lambda: tuple(np.repeat(side[:15], 4, axis=0) for side in (X, Y)),
    "rank one": lambda: (np.outer(LINE, X[0]), np.outer(LINE, Y[0])),
    "rank one beside a mean": lambda: (X[1] + np.outer(LINE, X[0]), Y[1] + np.outer(LINE, Y[0])),
    "one class": lambda: tuple(side[0] + 0.05 * (side[1:31] - side.mean(axis=0)) for side in (X, Y)),
    "target nearly constant": lambda: (X[:30], Y[0] + 1e-9 * draw(30, seed=5)[1]),
    "10 % wrong of 15": lambda: wrong(15, 0.1),
    "30 % wrong of 20": lambda: wrong(20, 0.3),
    "30 % wrong of 40": lambda: wrong(40, 0.3),
    "all wrong": lambda: (X[:30], Y[:30][np.random.default_rng(3).permutation(30)]),
}


@pytest.mark.long
@pytest.mark.parametrize("kind", POOR)
@pytest.mark.parametrize("single_modality", [False, True])
@pytest.mark.filterwarnings("ignore::congruence.errors.CongruenceWarning")
def test_the_chosen_map_is_finite_and_no_worse_than_the_fixed_one(kind, single_modality):
    anchors = POOR[kind]()
    chosen = congruence.fit(*anchors, single_modality=single_modality)
    choice = chosen.scores_["choice"]
    assert single_modality or choice["method"] == "orthogonal"
    for one in choice["tried"]:
        assert np.isfinite([one["score"], one["behind"], one["error"]]).all()
    # One of 60 rows is 0.017: what is as good on the anchors may be off by a few of them.
    assert (found(chosen) >= found(OrthogonalMap().fit(*anchors)) - 0.051).all()


ONE, SEVERAL = (X[:1], Y[:1]), (X[:30], Y[:30])
REFUSED = {
    "one pair": (ONE, TooFewAnchorsError, "Pass more pairs"),
    "constant source": ((np.tile(X[:1], (30, 1)), Y[:30]), InputError, "pairs are equal"),
    "constant target": ((X[:30], np.tile(Y[:1], (30, 1))), InputError, "pairs are equal"),
    "copies of one pair": (tuple(np.repeat(side, 20, axis=0) for side in ONE), InputError, "pairs are equal"),
    "NaN": ((np.where(np.arange(30)[:, None] == 4, np.nan, X[:30]), Y[:30]), NotFiniteError, "rows 4"),
    "no pair": ((X[:0], Y[:0]), InputError, "0"),
}


@pytest.mark.parametrize("kind", REFUSED)
@pytest.mark.filterwarnings("ignore::congruence.errors.PairingWarning")
@pytest.mark.filterwarnings("ignore::congruence.errors.DuplicateWarning")
def test_what_cannot_be_fitted_is_refused(kind, here, tmp_path):
    anchors, error, words = REFUSED[kind]
    with pytest.raises(error, match=words):
        congruence.fit(*anchors)
    np.savez(tmp_path / "pairs.npz", X=anchors[0], Y=anchors[1])
    said = here("fit", "pairs.npz:X", "pairs.npz:Y", "-o", "map")
    assert said.code == 2
    assert "error: " in said.err
    assert words in said.err
    assert not (tmp_path / "map").exists()


@pytest.mark.parametrize("center", [True, False])
def test_copies_of_one_pair_have_no_direction_about_their_mean(center):
    """Their mean is off by rounding, which is all that is left of the rows; about the origin they are one direction."""
    copies = [np.repeat(np.float32(side[:1]), 20, axis=0).astype(np.float64) * np.pi for side in (X, Y)]
    if center:
        with pytest.raises(InputError, match="do not vary together"):
            OrthogonalMap().fit(*copies)
    else:
        assert OrthogonalMap(center=False).fit(*copies).rank_ == 1


def test_variation_far_below_the_mean_is_still_found():
    rng = np.random.default_rng(0)
    small = 1e-6 * rng.standard_normal((100, WIDTH))
    mapping = OrthogonalMap(shrinkage="full").fit(X[0] + small, Y[0] + small @ ROTATION)
    np.testing.assert_allclose(mapping.rotation_, ROTATION, atol=1e-6)


def test_the_command_fits_two_pairs_and_a_line_and_says_how_little_they_probe(here, tmp_path):
    for name, anchors in (("two", POOR["two"]()), ("line", POOR["rank one"]())):
        np.savez(tmp_path / f"{name}.npz", X=anchors[0], Y=anchors[1])
        said = here("fit", f"{name}.npz:X", f"{name}.npz:Y", "-o", name)
        assert said.code == 0
        assert "directions that the pairs span" in said.out
        assert "1 of 24" in said.out
    choice = json.loads(here("inspect", "two", "--json").out)["scores"]["choice"]
    assert choice["evidence"] == "2 different pairs are too few to compare maps on"


def test_three_wrong_pairs_of_twenty_are_warned_of():
    with pytest.warns(PairingWarning):
        mapping = congruence.fit(*wrong(20, 0.15, seed=1))
    assert found(mapping).min() > 0.5
