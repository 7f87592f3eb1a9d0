"""JAM's losses and what they are compared with, controls, and metrics."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from congruence.datasets import SugarCrepe
from congruence.errors import InputError, MissingExtraError
from congruence.evaluation.compositional import sugarcrepe_outcomes, sugarcrepe_recall, text_only_recall
from congruence.maps import CCAMap, HeadsMap
from congruence.train import JAM, Contrastive, SelfTrainedMap
from congruence.train.jam import Captions
from congruence_papers.core import check_choice, told
from congruence_papers.jam.data import JAMData, JAMParts, Layered

#: Methods that a table can compare, with their labels.
BASELINES: dict[str, str] = told("jam")["methods"]

#: Inverse penalties of the logistic regression on texts; the validation items select one.
_INVERSE_PENALTIES = (0.01, 0.1, 1.0, 10.0, 100.0)


def fit_baseline(method: str, parts: JAMParts, training: Mapping[str, Any] | None = None, seed: int = 5) -> HeadsMap:
    """Fit JAM with one of its losses, or canonical correlation analysis in closed form, to a split; "self_trained",
    which needs no validation rows, also to those.
    """
    check_choice(method, ("con", "negcon", "spread", "cca", "self_trained"), "method")
    options = dict(training or {})
    train = parts.train
    if method == "cca":
        # Rows repeat, since an image has several captions, and a caption several wrong captions.
        distinct = min(len(np.unique(rows, axis=0)) for rows in (train.source, train.target))
        width = min(options.get("latent", JAM().latent), distinct - 1, train.source.shape[1], train.target.shape[1])
        mapping: HeadsMap = CCAMap(n_components=width, ridge=0.1).fit(train.source, train.target)
    elif method == "self_trained":
        images, captions, _, groups, *_ = parts.validation
        sides = np.concatenate([train.source, images]), np.concatenate([train.target, captions])
        labels = np.concatenate([np.asarray(part).astype(str) for part in (train.groups, groups)])
        mapping = SelfTrainedMap(matches="none", random_state=seed).fit(*sides, groups=labels)
    else:
        jam = JAM(method, random_state=seed, **options)
        heldout = parts.validation
        mapping = jam.fit(train.source, train.target, negatives=train.negatives, validation=heldout, verbose=False)
    image, text = parts.encoders
    mapping.source_space_ = replace(mapping.source_space_, model=image, modality="image")
    mapping.target_space_ = replace(mapping.target_space_, model=text, modality="text")
    return mapping


def fit_text_only(parts: JAMParts) -> Callable[[np.ndarray], np.ndarray]:
    """Fit a logistic regression that tells correct from wrong captions without any image, and return its score of
    texts.

    The words alone often give a wrong caption away: an addition makes it longer, a replacement is a rarer word. A
    method trained on wrong captions can reach this score without learning anything about images.
    """
    try:
        from sklearn.linear_model import LogisticRegression
        from sklearn.model_selection import GroupKFold
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler
    except ModuleNotFoundError as error:
        raise MissingExtraError("This needs scikit-learn.", "Run pip install 'congruence[papers]'.") from error

    def flat(rows: np.ndarray) -> np.ndarray:
        return np.asarray(rows, np.float64).reshape(-1, np.shape(rows)[-1])

    def fit(inverse: float, texts: np.ndarray, labels: np.ndarray) -> Any:
        return make_pipeline(StandardScaler(), LogisticRegression(C=inverse, max_iter=2000)).fit(texts, labels)

    assert parts.train.negatives is not None  # always given for JAM's data
    correct, wrong = flat(parts.train.target), flat(parts.train.negatives)
    texts, labels = np.vstack([correct, wrong]), np.repeat([1, 0], [len(correct), len(wrong)])
    _, caption, negatives, *_ = parts.validation
    accuracies = []
    for inverse in _INVERSE_PENALTIES:
        if negatives is None:
            groups = np.concatenate([parts.train.groups, np.repeat(parts.train.groups, len(wrong) // len(correct))])
            folds = GroupKFold(3).split(texts, labels, groups)
            scores = [fit(inverse, texts[a], labels[a]).score(texts[b], labels[b]) for a, b in folds]
            accuracies.append(float(np.mean(scores)))
        else:
            model, held = fit(inverse, texts, labels), flat(negatives)
            right, other = (model.decision_function(rows) for rows in (flat(caption), held))
            accuracies.append(float(np.mean(right[:, None] > other.reshape(len(right), -1))))
    chosen = fit(_INVERSE_PENALTIES[int(np.argmax(accuracies))], texts, labels)
    return lambda rows: np.asarray(chosen.decision_function(flat(rows)))


#: Parameters of the contrastive towers. The heads are linear, so that they keep distinctions made by the encoders; the
#: number of steps and the learning rate suit hundreds of pairs.
_TOWERS: dict[str, Any] = {"head": "linear", "optimizer": "adamw", "learning_rate": 1e-3}
_TOWER_STEPS = 300


@dataclass(frozen=True)
class Fitted:
    """A fitted method to score on test items: a map, maybe after ``towers``, a score of texts, or nothing to apply."""

    mapping: HeadsMap | None = None
    towers: HeadsMap | None = None
    score: Callable[[np.ndarray], np.ndarray] | None = None

    def measure(self, items: SugarCrepe, test: Sequence[np.ndarray], seed: int = 5) -> dict[str, dict[str, float]]:
        """Return binary and 5-way recall by task."""
        if self.score is not None:
            lines = text_only_recall(items, *map(self.score, test[1:]), random_state=seed)
        else:
            lines = sugarcrepe_recall(items, *self._map(test), random_state=seed)
        return {line.task: {"binary_recall": line.binary, "five_way_recall": line.choice} for line in lines}

    def outcomes(self, items: SugarCrepe, test: Sequence[np.ndarray], seed: int = 5) -> np.ndarray | None:
        """Return which items are answered correctly, binary and 5-way (n, 2); None for the text-only score."""
        return None if self.mapping is None else sugarcrepe_outcomes(items, *self._map(test), random_state=seed)

    def _map(self, test: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        """Return images, captions and wrong captions mapped into the joint space."""
        for mapping in (self.towers, self.mapping):
            if mapping is not None:
                test = (mapping.transform(test[0]), *map(mapping.transform_target, test[1:]))
        return test


def fit_method(method: str, parts: JAMParts, training: Mapping[str, Any] | None = None, seed: int = 5) -> Fitted:
    """Fit any method of JAM's tables to a split."""
    check_choice(method, BASELINES, "method")
    if method == "text_only":
        return Fitted(score=fit_text_only(parts))
    if not method.startswith("towers"):
        return Fitted(fit_baseline(method, parts, training, seed))
    towers = fit_towers(parts, training, seed)
    if method == "towers":
        return Fitted(towers)
    _, _, loss = method.partition("_")
    return Fitted(fit_baseline(loss, _on_towers(towers, parts), training, seed), towers)


def fit_towers(parts: JAMParts, training: Mapping[str, Any] | None = None, seed: int = 5) -> HeadsMap:
    """Train a linear head on each encoder with InfoNCE on correct captions only, as a dual encoder for these pairs."""
    training, train = training or {}, parts.train
    images, captions, _, groups, *_ = parts.validation
    max_steps = training.get("max_epochs", 100) * -(-len(train.source) // training.get("batch_size", 32))
    towers = Contrastive(
        n_components=min(training.get("latent", 256), train.source.shape[1], train.target.shape[1]),
        device=training.get("device", "auto"),
        random_state=seed,
        validate_every=25,
        **_TOWERS,
        max_steps=min(_TOWER_STEPS, max_steps),
    )
    labels = np.asarray(groups).astype(str)
    return towers.fit(train.source, train.target, validation=(images, captions, labels, labels), verbose=False)


def _on_towers(towers: HeadsMap, parts: JAMParts) -> JAMParts:
    """Return a split whose training and validation rows are mapped by the towers."""
    train = parts.train
    assert train.negatives is not None  # JAM's data have them
    wrong = towers.transform_target(train.negatives.reshape(-1, train.negatives.shape[-1]))
    wrong = wrong.reshape(*train.negatives.shape[:2], -1)
    mapped = Captions(towers.transform(train.source), towers.transform_target(train.target), wrong, train.groups)
    images, captions, negatives, *groups = parts.validation
    negatives = None if negatives is None else towers.transform_target(negatives)
    heldout = (towers.transform(images), towers.transform_target(captions), negatives, *groups)
    return replace(parts, train=mapped, validation=heldout)


#: Every control, with its label in tables.
CONTROLS: dict[str, str] = told("jam")["controls"]


def noise_like(rows: np.ndarray, random_state: int = 0) -> np.ndarray:
    """Return white noise with the mean and deviation of each column of ``rows``, shape (n, d)."""
    A = np.asarray(rows, np.float64)
    drawn = np.random.default_rng([random_state, 41]).standard_normal(A.shape)
    return np.asarray(A.mean(axis=0) + A.std(axis=0) * drawn, np.float32)


def control_data(data: JAMData, control: str, random_state: int = 0) -> JAMData:
    """Return a copy of the data in which images and texts carry no information about each other."""
    check_choice(control, CONTROLS, "control")
    if control == "none":
        return data
    name = f"{data.name}, {CONTROLS[control]}"
    if control == "noise":
        images = _each(data.images, lambda rows: noise_like(rows, random_state))
        return replace(data, name=name, images=images, dual={})
    rng = np.random.default_rng([random_state, 43])
    if control == "others":
        if len(data.items.images) < 2:
            raise InputError("One image cannot get the captions of another.", "Pass more items.")
        # A random cyclic permutation: no image keeps its own captions, and all captions of an image stay together.
        cycle = rng.permutation(len(data.items.images))
        other = np.empty_like(cycle)
        other[cycle] = np.roll(cycle, 1)
        images = _each(data.images, lambda rows: np.asarray(rows)[other])
        return replace(data, name=name, images=images, dual={})
    missing = [encoder for encoder in data.captions if encoder not in data.unrelated]
    if missing:
        raise InputError(f"Got no unrelated texts of {missing[0]}.", "Pass `unrelated=…`, or leave this control out.")

    def draw(encoder: str) -> np.ndarray:
        # With replacement: otherwise, a text that is a correct caption in training could not be one of a test item, and
        # would more likely be a wrong one there.
        rows = np.asarray(data.unrelated[encoder], np.float32)
        return np.asarray(rows[rng.integers(len(rows), size=len(data.items))])

    captions, negatives = ({encoder: {"late": draw(encoder)} for encoder in data.captions} for _ in range(2))
    return replace(data, name=name, captions=captions, negatives=negatives, dual={})


def _each(side: Layered, change: Callable[[np.ndarray], np.ndarray]) -> Layered:
    return {encoder: {layer: change(rows) for layer, rows in layers.items()} for encoder, layers in side.items()}


def dual_as_encoders(data: JAMData, name: str) -> JAMData:
    """Return data whose encoders are the towers of a dual encoder, to train heads on aligned rows."""
    check_choice(name, data.dual, "dual encoder")
    images, captions, negatives = ({name: {"late": np.asarray(rows, np.float32)}} for rows in data.dual[name])
    return replace(
        data, images=images, captions=captions, negatives=negatives, encoders=((name, name),), dual={}, unrelated={}
    )
