"""What fits, and what is done with fitted maps, refuse beyond what every map refuses (test_contract.py)."""

import warnings

import numpy as np
import pytest

from arrays import spoiled
from congruence import (
    CanonicalFrame,
    CCAMap,
    Embeddings,
    HeadsMap,
    LinearMap,
    MLPMap,
    OrthogonalMap,
    ProcrustesHeads,
    RefinedMap,
    Space,
    UnpairedMap,
    errors,
    refine,
)
from congruence.linalg.moments import CrossMoments
from congruence.maps import make_map
from congruence.synthetic import rigid_problem

P, Q = rigid_problem(60, 4, random_state=1), rigid_problem(60, 4, 5, random_state=0)
X, Y, WIDE = P.X, P.Y, Q.Y
MAP = OrthogonalMap().fit(X, Y, modality="text")
CV = OrthogonalMap(shrinkage="cv").fit(X, Y)
POOLS = X[8:40], Y[8:40][::-1]
HEAD = [{"kind": "linear", "weight": np.eye(4)}]
HEADS = HeadsMap.from_layers(HEAD, HEAD)
JOINT = ProcrustesHeads(n_components=2).fit(Q.X, Q.Y)
LONG, SHORT = (Embeddings(X[:n], range(n)) for n in (12, 6))
TEXT = Embeddings(X, range(60), space=Space(modality="text"))
FRAME = CanonicalFrame().fit({"a": TEXT, "b": Embeddings(Y, range(60), space=Space(modality="text"))})


def pooled(U, V, **more):
    return lambda: RefinedMap().fit(X[:8], Y[:8], unpaired=(U, V), **more)


def frame(models, **more):
    return lambda: CanonicalFrame().fit(models, **more)


def numbered(**rows):
    return {
        name: Embeddings((X, Y, X @ np.diag([1, 2, 3, 4]))[k][which], which)
        for k, (name, which) in enumerate(rows.items())
    }


OF_MAPS = {
    "no reflection of unequal widths": ("Parameter", lambda: OrthogonalMap(allow_reflection=False).fit(Q.X, Q.Y)),
    "no reflection of a shrunk map": (
        "Parameter",
        lambda: OrthogonalMap(allow_reflection=False, shrinkage="covered").fit(X, Y),
    ),
    "an unknown shrinkage": ("Parameter", lambda: OrthogonalMap(shrinkage="best").fit(X, Y)),
    "a negative strength": ("Parameter", lambda: OrthogonalMap(shrinkage_strength=-1).fit(X, Y)),
    "the identity of unequal widths": ("Parameter", lambda: OrthogonalMap(identity=0.5).fit(Q.X, Q.Y)),
    "moments and options that exclude each other": (
        "Parameter",
        lambda: OrthogonalMap.from_moments({"": CrossMoments.of(X, Y)}, allow_reflection=False, shrinkage="soft"),
    ),
    "no moments": ("TooFewAnchors", lambda: OrthogonalMap.from_moments({})),
    "moments without a Gram matrix": ("Parameter", lambda: LinearMap.from_moments(CrossMoments.of(X, Y))),
    "nine pairs to cross-validate": ("Parameter", lambda: OrthogonalMap(shrinkage="cv").fit(X[:9], Y[:9])),
    "batches to cross-validate": ("Parameter", lambda: OrthogonalMap(shrinkage="cv").partial_fit(X, Y)),
    "constant rows": ("Input", lambda: OrthogonalMap().fit(np.ones((60, 4)), Y)),
    "negative weights": ("Input", lambda: OrthogonalMap().fit(X, Y, sample_weight=-np.ones(60))),
    "too few weights": ("Shape", lambda: OrthogonalMap().fit(X, Y, sample_weight=np.ones(59))),
    "too few modalities": ("Input", lambda: OrthogonalMap().fit(X, Y, modality=["text"] * 59)),
    "an unknown modality": ("Parameter", lambda: OrthogonalMap().fit(X, Y, modality="sound")),
    "merging other parameters": ("Parameter", lambda: MAP.merge(OrthogonalMap(center=False).fit(X, Y))),
    "merging another kind": ("Parameter", lambda: MAP.merge(LinearMap().fit(X, Y))),
    "merging a composed map": ("Parameter", lambda: MAP.merge(MAP.then(MAP))),
    "merging without rows": ("Parameter", lambda: CV.merge(CV)),
    "more pairs of a composed map": ("Parameter", lambda: MAP.then(MAP).partial_fit(X, Y)),
    "more pairs of another width": ("Shape", lambda: OrthogonalMap().fit(X, Y).partial_fit(X, WIDE)),
    "means without a name and more pairs": (
        "Parameter",
        lambda: OrthogonalMap().fit(X, Y).recenter(X + 1, Y).partial_fit(X, Y),
    ),
    **{
        f"forgetting {bad!r}": (
            "Parameter",
            lambda bad=bad: OrthogonalMap().fit(X, Y).partial_fit(X, Y, forgetting=bad),
        )
        for bad in (0, 1.5, -1, float("nan"), "1")
    },
    "means of another width": ("Shape", lambda: MAP.recenter(np.ones(5))),
    "a modality without means": ("Modality", lambda: MAP.for_modality("image")),
    "more rows of no mean": ("Modality", lambda: MAP.update_means(X, modality="image")),
    "more rows of a mean vector": (
        "Parameter",
        lambda: MAP.recenter(X.mean(0), Y, modality="image").update_means(X, modality="image"),
    ),
    "a vector more": ("Parameter", lambda: MAP.recenter(X, Y, modality="image").update_means(X[0], modality="image")),
    "composing other widths": ("Shape", lambda: MAP.then(OrthogonalMap().fit(Q.Y, Q.X))),
    "an unknown role": ("Parameter", lambda: MAP.transform(X, role="index")),
    "an unknown method": ("Parameter", lambda: make_map("rotation")),
    "heads, which are no method": ("Parameter", lambda: make_map("heads")),
    "no hidden units": ("Parameter", lambda: MLPMap(hidden=0).fit(X, Y)),
    "all pairs for validation": ("Parameter", lambda: MLPMap(validation_share=1.0).fit(X, Y)),
    "a negative learning rate": ("Parameter", lambda: MLPMap(learning_rate=-1).fit(X, Y)),
    "half an epoch of patience": ("Parameter", lambda: MLPMap(patience=1.5).fit(X, Y)),
    "a negative decay": ("Parameter", lambda: MLPMap(weight_decay=-1).fit(X, Y)),
}
OF_JOINT_SPACES = {
    "no components": ("Parameter", lambda: ProcrustesHeads(n_components=0).fit(X, Y)),
    "half a component": ("Parameter", lambda: CCAMap(n_components=2.5).fit(X, Y)),
    "a negative ridge": ("Parameter", lambda: CCAMap(ridge=-1).fit(X, Y)),
    "an infinite ridge": ("Parameter", lambda: CCAMap(ridge=np.inf).fit(X, Y)),
    "a negative ridge of several": ("Parameter", lambda: CCAMap().fit_ridges(X, Y, (1.0, -1.0))),
    "a negative power": ("Parameter", lambda: CCAMap(power=-0.5).fit(X, Y)),
    "equal rows without a ridge": ("Input", lambda: CCAMap(ridge=0.0).fit(np.ones((60, 4)), Y)),
    "target rows": ("Shape", lambda: JOINT.transform(Q.Y)),
    "source rows": ("Shape", lambda: JOINT.transform_target(Q.X)),
    "rows of another width": ("Shape", lambda: JOINT.transform_target(Q.X[:, :3])),
    "NaN": ("NotFinite", lambda: JOINT.transform_target(np.full((1, 5), np.nan))),
    "an unfitted map": ("Congruence", lambda: CCAMap().transform_target(Y)),
    "fitting trained heads": ("Parameter", lambda: HEADS.fit(X, Y)),
    "heads without layers": ("Congruence", lambda: HeadsMap().transform(X)),
    "heads without decoders": ("Parameter", lambda: HEADS.reconstruct(X)),
    "targets without decoders": ("Parameter", lambda: HEADS.reconstruct_target(X)),
    "a decoder of another width": (
        "Shape",
        lambda: HeadsMap.from_layers(HEAD, HEAD, decode_source=[{"kind": "center", "mean": np.ones(5)}]),
    ),
    "a space of another width": ("Shape", lambda: HeadsMap.from_layers(HEAD, HEAD, source_space=Space(dim=7))),
    "facts of a reserved name": ("Parameter", lambda: HeadsMap.from_layers(HEAD, HEAD, facts={"layers": 3})),
}
OF_UNPAIRED_ROWS = {
    "pools of NaN": ("NotFinite", pooled(spoiled(POOLS[0], 3, np.nan), POOLS[1])),
    "pools of zeros": ("ZeroRow", pooled(POOLS[0], spoiled(POOLS[1], 3, 0))),
    "empty pools": ("Shape", pooled(POOLS[0][:0], POOLS[1])),
    "pools of another width": ("Shape", pooled(POOLS[0], WIDE)),
    "one pool": ("Parameter", pooled(POOLS[0], None)),
    "pools that are no two": ("Parameter", lambda: RefinedMap().fit(X[:8], Y[:8], unpaired=POOLS[0])),
    "pools of the pairs": ("Input", pooled(X[:8], POOLS[1])),
    "pools and weights": ("Parameter", pooled(*POOLS, sample_weight=np.ones(8))),
    "four pairs": ("TooFewAnchors", lambda: refine(X[[0, 1, 2, 3, 3]], Y[[0, 1, 2, 3, 3]], POOLS)),
    "unpaired pairs": ("Shape", lambda: refine(X[:8], Y[:7], POOLS)),
    "one fold": ("Parameter", lambda: refine(X[:8], Y[:8], POOLS, folds=1)),
    "no round": ("Parameter", lambda: refine(X[:8], Y[:8], POOLS, max_iter=0)),
    "old NaN": ("NotFinite", lambda: UnpairedMap().fit(spoiled(X, 3, np.nan), Y)),
    "new infinity": ("NotFinite", lambda: UnpairedMap().fit(X, spoiled(Y, 3, np.inf))),
    "new zeros": ("ZeroRow", lambda: UnpairedMap().fit(X, spoiled(Y, 3, 0))),
    "no rows": ("Shape", lambda: UnpairedMap().fit(X[:0], Y)),
    "three rows": ("TooFewAnchors", lambda: UnpairedMap().fit(X[:3], Y)),
    "copies of one row": ("Input", lambda: UnpairedMap().fit(X, np.repeat(Y[:1], 5, axis=0))),
    "one axis": ("Shape", lambda: UnpairedMap().fit(X[0], Y)),
    "text": ("Dtype", lambda: UnpairedMap().fit(X.astype(str), Y)),
    "no target": ("Input", lambda: UnpairedMap().fit(X, None)),
    **{
        f"{name} {value}": ("Parameter", lambda name=name, value=value: UnpairedMap(**{name: value}).fit(X, Y))
        for name, value in (("n_restarts", 1), ("n_neighbors", 0), ("max_rows", -1), ("random_state", -1))
    },
}
OF_FRAMES = {
    "one model": ("Input", frame({"a": X})),
    "models without names": ("Input", frame([X, Y])),
    "models apart": ("Id", frame(numbered(a=range(6), b=range(6), c=range(6, 12)))),
    "one item in common": ("TooFewAnchors", frame(numbered(a=range(6), b=range(6), c=range(5, 12)))),
    "rows that do not vary together": ("Input", frame({"a": X, "b": Y, "c": np.ones((60, 4))})),
    "rows of zeros": ("ZeroRow", frame({"a": X, "b": Embeddings(0 * Y, allow_zero_rows=True)})),
    "ids of one model": ("Id", frame({"a": LONG, "b": Y[:12]})),
    "unequal rows without ids": ("Shape", frame({"a": X, "b": Y[1:]})),
    "a modality of one model": ("Modality", frame({"a": {"text": X, "image": X}, "b": Y})),
    "a model of two widths": ("Shape", frame({"a": {"text": X, "image": X[:, 1:]}, "b": {"text": Y}})),
    "an empty name": ("Parameter", frame({"": X, "b": Y})),
    "a frame of NaN": ("NotFinite", frame({"a": spoiled(X, 0, np.nan), "b": Y})),
    "texts as images": ("Modality", frame({"a": TEXT, "b": Y}, modality="image")),
    "cross-validation": ("Parameter", lambda: CanonicalFrame(shrinkage="cv").fit({"a": X, "b": Y})),
    "a frame that is not fitted": ("Congruence", lambda: CanonicalFrame().map("a", "b")),
    "a map to itself": ("Parameter", lambda: FRAME.map("a", "a")),
    "a map to a stranger": ("Parameter", lambda: FRAME.map("a", "x")),
    "a map of another modality": ("Modality", lambda: FRAME.map("a", "b", modality="image")),
    "a name that is taken": ("Parameter", lambda: FRAME.add("a", TEXT)),
    "no item of the frame": ("Id", lambda: FRAME.add("d", Embeddings(X, range(100, 160)))),
    "no ids for the frame": ("Id", lambda: FRAME.add("d", X)),
    "more items of a stranger": ("Parameter", lambda: FRAME.extend("x", TEXT)),
    "more items of another width": ("Shape", lambda: FRAME.extend("b", Embeddings(WIDE, range(60)))),
}
CASES = {**OF_MAPS, **OF_JOINT_SPACES, **OF_UNPAIRED_ROWS, **OF_FRAMES}


@pytest.mark.parametrize("case", CASES)
def test_what_is_refused(case):
    kind, call = CASES[case]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", errors.CongruenceWarning)
        with pytest.raises(getattr(errors, f"{kind}Error")):
            call()
