"""Baselines of JAM: each of its losses, canonical correlation analysis in closed form, and a classifier of texts alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from sklearn.base import clone

from congruence._utils.validation import check_choice
from congruence.maps import CCAMap, TwoSidedMap
from congruence.train import JAM
from congruence_papers.jam.data import JAMParts

__all__ = ["BASELINES", "fit_baseline", "fit_text_only"]

#: Methods that a table can compare, with their labels.
BASELINES = {
    "con": "Con",
    "negcon": "NegCon",
    "spread": "Spread",
    "cca": "CCA",
    "text_only": "text only",
    "towers": "contrastive towers",
    "towers_con": "Con on contrastive towers",
    "towers_negcon": "NegCon on contrastive towers",
    "towers_spread": "Spread on contrastive towers",
}

#: Inverse penalties of the logistic regression on texts; the validation items select one.
_INVERSE_PENALTIES = (0.01, 0.1, 1.0, 10.0, 100.0)


def fit_baseline(method: str, parts: JAMParts, training: Mapping[str, Any] | None = None, seed: int = 5) -> TwoSidedMap:
    """Fit JAM with one of its losses, or canonical correlation analysis in closed form, to a split.

    Parameters
    ----------
    method : {"con", "negcon", "spread", "cca"}
    parts : JAMParts
        The split: training items, validation items and encoders.
    training : mapping, optional
        Parameters of :class:`congruence.train.JAM`. Canonical correlation analysis uses only ``latent``, as its width.
    seed : int, default=5
        Random seed of JAM; canonical correlation analysis has none.

    Returns
    -------
    TwoSidedMap
        A fitted map into a joint space. Its source and target spaces are named after the encoders.

    Raises
    ------
    ParameterError
        If the method is unknown, or a parameter of JAM is out of range.
    """
    check_choice(method, ("con", "negcon", "spread", "cca"), "method")
    options = dict(training or {})
    train = parts.train
    if method == "cca":
        # Rows repeat, since an image has several captions, and a caption several wrong captions.
        distinct = min(len(np.unique(rows, axis=0)) for rows in (train.source, train.target))
        width = min(options.get("latent", JAM().latent), distinct - 1, train.source.shape[1], train.target.shape[1])
        mapping: TwoSidedMap = CCAMap(n_components=width, ridge=0.1).fit(train.source, train.target)
    else:
        jam = JAM(method, random_state=seed, **options)
        heldout = parts.validation
        mapping = jam.fit(train.source, train.target, negatives=train.negatives, validation=heldout, verbose=False)
    for side, model in zip(("source", "target"), parts.encoders, strict=True):
        space = getattr(mapping, f"{side}_space_")
        setattr(
            mapping, f"{side}_space_", replace(space, model=model, modality={"source": "image", "target": "text"}[side])
        )
    return mapping


def fit_text_only(parts: JAMParts) -> Callable[[np.ndarray], np.ndarray]:
    """Fit a logistic regression that separates correct from wrong captions by their embeddings, without any image.

    The words alone often give a wrong caption away: an addition makes it longer, a replacement is a rarer word. A method that is trained on wrong
    captions can reach this score without learning anything about images.

    Parameters
    ----------
    parts : JAMParts
        The split; the model is fitted on the training items. The penalty is the one with which most validation captions score above their wrong
        captions. If the validation items have no wrong captions, because they are searched by class, the penalty is selected by 3-fold
        cross-validation on the training items, with folds grouped by image.

    Returns
    -------
    callable
        Function of text embeddings, shape (n, e), that returns scores, shape (n,). A higher score means that a text is more likely a correct caption.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV, GroupKFold
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    def flat(rows: np.ndarray) -> np.ndarray:
        return np.asarray(rows, np.float64).reshape(-1, np.shape(rows)[-1])

    assert parts.train.negatives is not None  # always given for JAM's data
    correct, wrong = flat(parts.train.target), flat(parts.train.negatives)
    texts, labels = np.vstack([correct, wrong]), np.repeat([1, 0], [len(correct), len(wrong)])
    regression = make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000))
    _, caption, negatives, *_ = parts.validation
    if negatives is None:
        groups = np.concatenate([parts.train.groups, np.repeat(parts.train.groups, len(wrong) // len(correct))])
        grid = {"logisticregression__C": _INVERSE_PENALTIES}
        chosen = GridSearchCV(regression, grid, cv=GroupKFold(3)).fit(texts, labels, groups=groups).best_estimator_
        return lambda rows: np.asarray(chosen.decision_function(flat(rows)))
    heldout = [flat(caption), flat(negatives)]
    each = len(heldout[1]) // len(heldout[0])
    best, chosen = -1.0, None
    for inverse in _INVERSE_PENALTIES:
        model = clone(regression).set_params(logisticregression__C=inverse).fit(texts, labels)
        scores = [model.decision_function(rows) for rows in heldout]
        accuracy = float(np.mean(scores[0][:, None] > scores[1].reshape(-1, each)))
        if accuracy > best:
            best, chosen = accuracy, model
    assert chosen is not None
    return lambda rows: np.asarray(chosen.decision_function(flat(rows)))
