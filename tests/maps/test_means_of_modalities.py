"""No map, however it was made from others, moves rows of one modality by the mean of another."""

import copy
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import congruence
from congruence import OrthogonalMap, errors
from congruence.maps.readout import Readout

D, N = 6, 40
NAMES = ("audio", "image", "text")
MODELS = range(3)


def rows(model, name, seed=0):
    """Return rows of a modality in a model: far from other modalities' rows, and with a mean of their own."""
    rng, own = np.random.default_rng(99), np.random.default_rng([model, seed])
    mean = 10 * np.eye(D)[NAMES.index(name)] * (1 + model) + model
    return rng.normal(size=(N, D)) @ np.linalg.qr(own.normal(size=(D, D)))[0] + mean


X = {(model, name): rows(model, name) for model in MODELS for name in NAMES}
MEAN = {key: value.mean(axis=0) for key, value in X.items()}


class Tracked:
    """A map, and what each modality's rows must be moved by: (from, to); nothing if about the origin; else refused."""

    def __init__(self, mapping, moves, models, origin):
        self.map, self.moves, self.models, self.origin = mapping, moves, models, origin

    def check(self):
        rotation = self.map.rotation_
        for name in NAMES:
            z = X[self.models[0], name]
            for role in (None, "plain", "store", "query"):
                try:
                    out = self.map.transform(z, name, role)
                except errors.ModalityError:
                    assert name not in self.moves
                    assert not self.origin
                    continue
                a, b = self.moves.get(name, (0, 0)) if name in self.moves or self.origin else (None, None)
                assert a is not None, f"{name} rows are moved by another modality's mean"
                np.testing.assert_allclose(out, (z - a) @ rotation + b, atol=1e-8)
        # However rows are read, one that equals its mean becomes the mean of its own modality.
        read = copy.copy(self.map)
        read.readout_ = Readout(store="cone", height={"text": 0.3}, share={"image": 0.5})
        read.target_space_ = replace(read.target_space_, normalized=True)
        for name, (a, b) in ((name, ends) for name, ends in self.moves.items() if ends[1].any()):
            for role in ("store", "query"):
                out = read.transform(a[None], name, role)[0]
                np.testing.assert_allclose(out, b / np.linalg.norm(b), atol=1e-6)


def fitted(draw, models, center):
    names = draw(st.sets(st.sampled_from(NAMES), min_size=1, max_size=2))
    old = np.concatenate([X[models[0], name] for name in sorted(names)])
    new = np.concatenate([X[models[1], name] for name in sorted(names)])
    mapping = OrthogonalMap(center=center, shrinkage="full").fit(old, new, modality=np.repeat(sorted(names), N))
    known = {name: (MEAN[models[0], name], MEAN[models[1], name]) for name in names} if center else {}
    return Tracked(mapping, known, models, not center)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_no_operation_mixes_the_means_of_modalities(data):
    draw, center = data.draw, data.draw(st.booleans())
    one = fitted(draw, (0, 1), center)
    for _ in range(draw(st.integers(1, 5))):
        name, models = draw(st.sampled_from(NAMES)), one.models
        means = MEAN[models[0], name], MEAN[models[1], name]
        operation = draw(
            st.sampled_from(["recenter", "rows", "for", "partial", "merge", "inverse", "then", "save", "update"])
        )
        mapping, moves = one.map, one.moves
        if operation == "recenter":
            use = draw(st.booleans())
            one = Tracked(mapping.recenter(*means, modality=name, use=use), {**moves, name: means}, models, one.origin)
        elif operation == "for" and (name in moves or one.origin):
            one = Tracked(mapping.for_modality(name), moves, models, one.origin)
        elif operation in ("partial", "merge") and mapping.moments_:
            more = OrthogonalMap(**mapping.get_params()).fit(X[models[0], name], X[models[1], name], modality=name)
            if operation == "merge":
                new = mapping.merge(more)
            else:
                new = mapping.for_modality(None).partial_fit(X[models[0], name], X[models[1], name], modality=name)
            known = {**moves, name: means} if mapping.center else moves
            one = Tracked(new, known, models, one.origin)
        elif operation == "save":
            with tempfile.TemporaryDirectory() as folder:
                one = Tracked(congruence.load(mapping.save(Path(folder) / "map")), moves, models, one.origin)
        elif operation == "inverse":
            one = Tracked(mapping.inverse(), {k: (b, a) for k, (a, b) in moves.items()}, models[::-1], one.origin)
        elif operation == "then":
            other = fitted(draw, (models[1], 2), draw(st.booleans()))
            both = {}
            for k in NAMES:
                known = k in moves, k in other.moves
                if any(known) and (known[0] or one.origin) and (known[1] or other.origin):
                    (a, b), (c, d) = moves.get(k, (np.zeros(D),) * 2), other.moves.get(k, (np.zeros(D),) * 2)
                    both[k] = a, d + (b - c) @ other.map.rotation_
            try:
                new = mapping.then(other.map)
            except errors.ModalityError:
                assert not both
                continue
            one = Tracked(new, both, (models[0], 2), one.origin and other.origin)
        elif operation == "rows":  # means that further rows of the modality may then move
            new = mapping.recenter(X[models[0], name], X[models[1], name], modality=name, use=draw(st.booleans()))
            one = Tracked(new, {**moves, name: means}, models, one.origin)
        elif operation == "update" and name in mapping.given_means_ and mapping.given_means_[name].n_source:
            new = mapping.update_means(X[models[0], name] + 2, X[models[1], name] - 2, modality=name)
            n = mapping.given_means_[name].n_source
            moved = (
                moves[name][0] + (means[0] + 2 - moves[name][0]) * N / (n + N),
                moves[name][1] + (means[1] - 2 - moves[name][1]) * N / (n + N),
            )
            one = Tracked(new, {**moves, name: moved}, models, one.origin)
        elif operation == "update" and name in mapping.given_means_ and mapping.given_means_[name].n_source is None:
            with pytest.raises(errors.ParameterError):
                mapping.update_means(X[models[0], name], X[models[1], name], modality=name)
        one.check()


@pytest.mark.parametrize("center", [True, False])
def test_a_few_photos_with_means_of_texts_stay_where_photos_belong(center):
    """The map that had been set to texts once returned itself for photos."""
    mapping = congruence.fit(
        X[0, "image"], X[1, "image"], modality="image", means={"text": (X[0, "text"], X[1, "text"])}, center=center
    )
    expected = mapping.transform(X[0, "image"], "image", "plain")
    again = mapping.for_modality("text").for_modality("image").transform(X[0, "image"], role="plain")
    np.testing.assert_allclose(again, expected)
    np.testing.assert_allclose(expected, X[0, "image"] @ mapping.rotation_ + mapping.for_modality("image").offset)
    with pytest.raises(errors.ModalityError, match="nothing says"):
        mapping.transform(X[0, "image"])


@pytest.mark.parametrize("center", [True, False])
@pytest.mark.parametrize("told", [True, False])
def test_new_means_of_the_modality_in_use_are_used(center, told):
    mapping = OrthogonalMap(center=center).fit(X[0, "image"], X[1, "image"], modality="image")
    mapping = mapping.for_modality("image") if told else mapping
    a, b = MEAN[0, "image"] + 1, MEAN[1, "image"] - 2
    again = mapping.recenter(a, b, modality="image", use=False)
    expected = (X[0, "image"] - a) @ mapping.rotation_ + b
    np.testing.assert_allclose(again.transform(X[0, "image"], "image"), expected)
