"""Fitted methods of JAM's tables: a joint-space map, a map on contrastive towers, or a text-only score."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from congruence._utils.validation import check_choice
from congruence.datasets import SugarCrepe
from congruence.maps import TwoSidedMap
from congruence.train import Contrastive
from congruence.train.captions import Captions
from congruence_papers.jam.baselines import BASELINES, fit_baseline, fit_text_only
from congruence_papers.jam.data import JAMParts
from congruence_papers.jam.metrics import map_items, measure_outcomes, measure_recall, measure_text_only

__all__ = ["Fitted", "fit_method", "fit_towers"]

#: Parameters of the contrastive towers. The heads are linear, so that they keep distinctions made by the encoders; the number of steps and
#: the learning rate suit hundreds of pairs.
_TOWERS: dict[str, Any] = {"head": "linear", "optimizer": "adamw", "learning_rate": 1e-3}
_TOWER_STEPS = 300


@dataclass(frozen=True)
class Fitted:
    """A fitted method that can be scored on test items.

    Attributes
    ----------
    mapping : TwoSidedMap or None
        Maps images and texts into one space; None for the text-only score.
    towers : TwoSidedMap or None
        Contrastive towers applied before ``mapping``, if it was trained on their outputs.
    score : callable or None
        Text-only score, from :func:`congruence_papers.jam.fit_text_only`.
    """

    mapping: TwoSidedMap | None = None
    towers: TwoSidedMap | None = None
    score: Callable[[np.ndarray], np.ndarray] | None = None

    def measure(self, items: SugarCrepe, test: Sequence[np.ndarray], seed: int = 5) -> dict[str, dict[str, float]]:
        """Return binary and 5-way recall by task.

        Parameters
        ----------
        items : SugarCrepe
        test : sequence of ndarray
            Embeddings of the items' images, captions and wrong captions, from the encoders that the method was fitted on.
        seed : int, default=5
            Random seed of the distractors.

        Returns
        -------
        dict of str to dict of str to float
            As returned by :func:`congruence_papers.jam.measure_recall`.
        """
        if self.score is not None:
            return measure_text_only(self.score, items, test, seed)
        return measure_recall(self.mapping, items, map_items(self.towers, test), seed)

    def outcomes(self, items: SugarCrepe, test: Sequence[np.ndarray], seed: int = 5) -> np.ndarray | None:
        """Return which items are answered correctly, as :func:`congruence_papers.jam.metrics.measure_outcomes` does; None for the text-only score."""
        if self.mapping is None:
            return None
        return measure_outcomes(self.mapping, items, map_items(self.towers, test), seed)


def fit_method(method: str, parts: JAMParts, training: Mapping[str, Any] | None = None, seed: int = 5) -> Fitted:
    """Fit any method of JAM's tables to a split.

    Parameters
    ----------
    method : str
        A key of :data:`congruence_papers.jam.BASELINES`.
    parts : JAMParts
    training : mapping, optional
        Parameters of :class:`congruence.train.JAM`.
    seed : int, default=5

    Returns
    -------
    Fitted

    Raises
    ------
    ParameterError
        If the method is unknown, or JAM has no such parameter.
    """
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


def fit_towers(parts: JAMParts, training: Mapping[str, Any] | None = None, seed: int = 5) -> TwoSidedMap:
    """Train a linear head on each encoder with InfoNCE on correct captions only, as a dual encoder for these pairs.

    Parameters
    ----------
    parts : JAMParts
        The training items are used for training; the step with the best recall on the validation items is kept.
    training : mapping, optional
        Parameters of :class:`congruence.train.JAM`. Only ``latent`` (the width), ``device``, and ``max_epochs`` and ``batch_size`` are used; the last
        two limit the number of steps.
    seed : int, default=5

    Returns
    -------
    TwoSidedMap
    """
    training = training or {}
    train = parts.train
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


def _on_towers(towers: TwoSidedMap, parts: JAMParts) -> JAMParts:
    """Return a split whose rows are mapped by the towers."""
    train = parts.train
    assert train.negatives is not None  # JAM's data have them
    wrong = towers.transform_target(train.negatives.reshape(-1, train.negatives.shape[-1]))
    images, captions, negatives, *groups = parts.validation
    return replace(
        parts,
        train=Captions(
            towers.transform(train.source),
            towers.transform_target(train.target),
            wrong.reshape(*train.negatives.shape[:2], -1),
            train.groups,
        ),
        validation=(
            towers.transform(images),
            towers.transform_target(captions),
            None if negatives is None else towers.transform_target(negatives),
            *groups,
        ),
        test=map_items(towers, parts.test),
    )
