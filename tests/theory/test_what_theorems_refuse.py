"""What the theorems' functions refuse: rows, matrices and numbers about which they say nothing."""

import numpy as np
import pytest

from congruence import theory as t
from congruence.errors import InputError, NotFiniteError, ParameterError, ShapeError, TooFewAnchorsError, ZeroRowError
from congruence.synthetic import dual_problem, random_rotation

P = dual_problem(10, 20, 4, 6, noise=0.1, random_state=8)
F, G, F2, G2, Q = P.F, P.G, P.F_target, P.G_target, P.rotation
A = t.anchor_map(G, G2).matrix
E3, E4, WIDE = np.eye(3), np.eye(4), np.eye(3)[:, :2]
NAN = np.diag([np.nan, 0, 0])
WORLD = np.random.default_rng(0).uniform(0.2, 3, (3, 4))
TURNED = random_rotation(3, random_state=0)
REFUSED = {
    "another relation": (ParameterError, lambda: t.kernel_agreement(F, G, F, G, "quadratic")),
    "rows of norm 2": (InputError, lambda: t.kernel_agreement(2 * F, G, F, G)),
    "NaN": (NotFiniteError, lambda: t.kernel_agreement(F, np.where(G[0, 0] == G, np.nan, G), F, G)),
    "fewer images": (ShapeError, lambda: t.kernel_agreement(F, G, F[:4], G)),
    "fewer texts": (ShapeError, lambda: t.kernel_agreement(F, G, F, G[:5])),
    "texts of another width": (ShapeError, lambda: t.kernel_agreement(F, G, F, G2)),
    "one row": (TooFewAnchorsError, lambda: t.gram_agreement(F[:1], F[:1])),
    "fewer anchors than dimensions": (TooFewAnchorsError, lambda: t.anchor_map(G[:5], G2[:5])),
    "anchors that span less": (InputError, lambda: t.anchor_map(G, G @ Q)),
    "anchors of norm 2": (InputError, lambda: t.anchor_map(2 * G, G2)),
    "unpaired texts": (ShapeError, lambda: t.linear_bound(F, G, F2, G2[:-1])),
    "texts of the other model": (ShapeError, lambda: t.linear_bound(F, G2, F2, G2)),
    "images of NaN": (NotFiniteError, lambda: t.linear_bound(F * np.nan, G, F2, G2)),
    "transposed map": (ShapeError, lambda: t.linear_text_error(G, G2, A.T)),
    "linear map downwards": (ParameterError, lambda: t.linear_text_error(G2, G, A.T)),
    "map of rank 3": (InputError, lambda: t.linear_text_error(G, G2, np.diag([1.0, 1, 1, 0]) @ A)),
    "text bound downwards": (ParameterError, lambda: t.text_bound(F2, G2, F, G, Q.T)),
    "projected bound downwards": (ParameterError, lambda: t.projected_text_bound(F2, G2, F, G, Q.T)),
    "trade-off downwards": (ParameterError, lambda: t.rank_trade_off(F2, G2, F, G, Q.T)),
    "image bound downwards": (ParameterError, lambda: t.orthogonal_bound(F2, F, Q.T, 2.0)),
    "polar factor downwards": (ParameterError, lambda: t.polar_rotation(Q.T)),
    "no rotation": (InputError, lambda: t.text_bound(F, G, F2, G2, 0.9 * Q)),
    "transposed rotation": (ShapeError, lambda: t.text_bound(F, G, F2, G2, Q.T)),
    "narrow rotation": (ShapeError, lambda: t.orthogonal_bound(F, F2, Q[:, :5], 2.0)),
    "rank above that of the anchors": (ParameterError, lambda: t.projected_text_bound(F, G, F2, G2, Q, 5)),
    "rank 0": (ParameterError, lambda: t.projected_text_bound(F, G, F2, G2, Q, 0)),
    "κ below 1": (ParameterError, lambda: t.orthogonal_bound(F, F2, Q, 0.5)),
    "κ of NaN": (ParameterError, lambda: t.orthogonal_bound(F, F2, Q, float("nan"))),
    "tolerance below 0": (ParameterError, lambda: t.text_bound(F, G, F2, G2, Q, rtol=-1)),
    "target rows of norm 1.1": (InputError, lambda: t.text_bound(F, G, F2 * 1.1, G2, Q)),
    "map of NaN": (NotFiniteError, lambda: t.polar_rotation(Q * np.nan)),
    "span of NaN": (NotFiniteError, lambda: t.covered_subspace([[np.nan, 1.0]])),
    "span of zeros": (ZeroRowError, lambda: t.covered_subspace(np.zeros((2, 2)))),
    "span of nothing": (ShapeError, lambda: t.covered_subspace(np.empty((0, 3)))),
    "span of rank 4": (ParameterError, lambda: t.covered_subspace(E3, rank=4)),
    "span of rank 0": (ParameterError, lambda: t.covered_subspace(E3, rank=0)),
    "two rules for a span": (ParameterError, lambda: t.covered_subspace(E3, rtol=0.1, rank=1)),
    "queries of another width": (ShapeError, lambda: t.covered_share(E3, np.eye(2))),
    "queries of zeros": (ZeroRowError, lambda: t.covered_share(E3, np.zeros((1, 3)))),
    "classes downwards": (ParameterError, lambda: t.class_margins(E3, E3, WIDE + 1, WIDE)),
    "half a rotation of classes": (InputError, lambda: t.class_margins(E3, E3, E3, E3 / 2)),
    "rotation of too many classes": (ShapeError, lambda: t.class_margins(E3, E3, E3, E4)),
    "unpaired classes": (ShapeError, lambda: t.class_margins(E3, E3, E3[:2], E3)),
    "too few names": (ShapeError, lambda: t.class_margins(E3, E3, E3, E3, names=["a", "b"])),
    "anchors of another width": (ShapeError, lambda: t.class_margins(E4, E3, E3, E3)),
    "no anchors": (ShapeError, lambda: t.class_margins(np.empty((0, 3)), E3, E3, E3)),
    "one class": (TooFewAnchorsError, lambda: t.class_margins(E3, E3[:1], E3[:1], E3)),
    "a class of zeros": (ZeroRowError, lambda: t.class_margins(E3, E3 * [[1], [1], [0]], E3, E3)),
    **{
        f"NaN in side {k}": (NotFiniteError, lambda k=k: t.class_margins(*[E3 + NAN * (j == k) for j in range(4)]))
        for k in range(4)
    },
    "span of too many classes": (ParameterError, lambda: t.class_margins(E3, E3, E3, E3, rank=6)),
    "ρ below the measured one": (ParameterError, lambda: t.class_margins(E3, E3, TURNED, E3).certified_within(0.001)),
    "squares of infinity": (NotFiniteError, lambda: t.sym_spanning([[np.inf, 1.0]])),
    "squares of zeros": (ZeroRowError, lambda: t.sym_spanning(np.zeros((2, 2)))),
    "squares of nothing": (ShapeError, lambda: t.sym_spanning(np.empty((0, 3)))),
    "spanning below 0": (ParameterError, lambda: t.sym_spanning(E3, rtol=-1)),
    "κ of rows of norm 2": (InputError, lambda: t.kappa(2 * E3)),
    "κ below 0": (ParameterError, lambda: t.kappa(E3, rtol=-1)),
    "κ from no start": (ParameterError, lambda: t.kappa(E3, starts=0)),
    "no dimension": (ParameterError, lambda: t.anchors_needed(0)),
    "half a dimension": (ParameterError, lambda: t.anchors_needed(2.5)),
    "a pair that never occurs": (InputError, lambda: t.pmi([[0, 1], [1, 1]])),
    "a world of NaN": (NotFiniteError, lambda: t.pmi([[np.nan, 1]])),
    "scores of another world": (ShapeError, lambda: t.infonce_loss(WORLD[:2], WORLD)),
    "one candidate": (ParameterError, lambda: t.infonce_loss(WORLD, WORLD, 1)),
    "too many candidates": (ParameterError, lambda: t.infonce_loss(WORLD, WORLD, 500)),
    "scores that underflow": (InputError, lambda: t.infonce_loss(100_000 * WORLD, WORLD)),
    "an unknown image": (ParameterError, lambda: t.bayes_posterior(WORLD, 3, [0])),
    "an unknown text": (ParameterError, lambda: t.bayes_posterior(WORLD, 0, [4])),
    "too few weights": (ShapeError, lambda: t.curate(WORLD, [1, 1], np.ones(4))),
    "a weight of 0": (InputError, lambda: t.curate(WORLD, [1, 1, 0], np.ones(4))),
    "no images": (ParameterError, lambda: t.latent_joint(0, 2, 1)),
    "full rank": (InputError, lambda: t.independent_weights(WORLD[:, :3])),
    "weights all over": (ParameterError, lambda: t.independent_weights(WORLD, strength=1)),
    "two dimensions": (ParameterError, lambda: t.realize_critic(WORLD, dim=2)),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(case):
    error, call = REFUSED[case]
    with pytest.raises(error):
        call()
