"""What a score of JAM is worth: the same data with images or texts that say nothing of each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from congruence._utils.validation import check_choice, check_seed
from congruence.errors import InputError
from congruence.papers.jam.data import JAMData

__all__ = ["CONTROLS", "control_data", "dual_as_encoders", "noise_like"]

#: Every control, with what stands in a table.
CONTROLS = {
    "none": "as they are",
    "noise": "images: white noise",
    "others": "captions of other images",
    "unrelated": "unrelated texts",
}


def noise_like(rows: np.ndarray, random_state: int = 0) -> np.ndarray:
    """Return white noise with the mean and the standard deviation of each column.

    Parameters
    ----------
    rows : ndarray, shape (n, d)
    random_state : int, default=0

    Returns
    -------
    ndarray of float32, shape (n, d)
        Columns are independent, which those of embeddings are not.
    """
    check_seed(random_state)
    A = np.asarray(rows, np.float64)
    drawn = np.random.default_rng([random_state, 41]).standard_normal(A.shape)
    return np.asarray(A.mean(axis=0) + A.std(axis=0) * drawn, np.float32)


def control_data(data: JAMData, control: str, random_state: int = 0) -> JAMData:
    """Return data in which images and texts say nothing of each other; everything that runs on data runs on these.

    Parameters
    ----------
    data : JAMData
    control : {"none", "noise", "others", "unrelated"}
        ``"noise"``: each image is a row of white noise with the moments of its encoder's, the same one for all its items
        (:func:`noise_like`). A caption can be told from its wrong one by the texts alone. ``"others"``: the captions and wrong captions of an
        image are those of another image, kept together, so that the texts alone tell what they told before. ``"unrelated"``: captions and wrong captions
        are ``data.unrelated`` of the text encoder, drawn at random: nothing can be told. ``"none"``: the data themselves.
    random_state : int, default=0

    Returns
    -------
    JAMData
        Without dual encoders, except for ``"none"``. Encoders and divisions are those of ``data``.

    Raises
    ------
    ParameterError
        An unknown control.
    InputError
        ``"unrelated"`` without unrelated texts, or ``"others"`` with one image.

    Examples
    --------
    >>> from congruence.papers.jam import open_sample
    >>> data = open_sample("synthetic")
    >>> noise = control_data(data, "noise")
    >>> noise.images["made-up images"]["late"].shape == data.images["made-up images"]["late"].shape
    True
    """
    check_choice(control, CONTROLS, "control")
    check_seed(random_state)
    if control == "none":
        return data
    name = f"{data.name}, {CONTROLS[control]}"
    if control == "noise":
        images = {
            encoder: {layer: noise_like(rows, random_state) for layer, rows in layers.items()}
            for encoder, layers in data.images.items()
        }
        return replace(data, name=name, images=images, dual={})
    rng = np.random.default_rng([random_state, 43])
    if control == "others":
        if len(data.items.images) < 2:
            raise InputError(
                "Got one image; expected others whose captions take the place of its own. Pass more items."
            )
        # Neighbors in a random cycle of the images: each gets another one, and what belongs to one image stays together.
        cycle = rng.permutation(len(data.items.images))
        other = np.empty_like(cycle)
        other[cycle] = np.roll(cycle, 1)
        images = {
            encoder: {layer: np.asarray(rows)[other] for layer, rows in layers.items()}
            for encoder, layers in data.images.items()
        }
        return replace(data, name=name, images=images, dual={})
    absent = [text for text in data.captions if text not in data.unrelated]
    if absent:
        raise InputError(
            f"Got no unrelated texts of {absent[0]}; expected some, embedded by it. Pass unrelated={{{absent[0]!r}: rows}}, or leave this control out."
        )
    n = len(data.items)
    captions, negatives = ({text: {"late": _drawn(data, text, n, rng)} for text in data.captions} for _ in range(2))
    return replace(data, name=name, captions=captions, negatives=negatives, dual={})


def dual_as_encoders(data: JAMData, name: str) -> JAMData:
    """Return data whose image and text encoder are the towers of one dual encoder, so that heads can be trained on rows that are aligned already.

    Parameters
    ----------
    data : JAMData
    name : str
        A key of ``data.dual``.

    Returns
    -------
    JAMData

    Raises
    ------
    ParameterError
        There is no such dual encoder.
    """
    check_choice(name, data.dual, "dual encoder")
    V, P, N = (np.asarray(rows, np.float32) for rows in data.dual[name])
    sides: list[Mapping[str, Mapping[str, np.ndarray]]] = [{name: {"late": rows}} for rows in (V, P, N)]
    images, captions, negatives = sides
    return replace(
        data, images=images, captions=captions, negatives=negatives, encoders=((name, name),), dual={}, unrelated={}
    )


def _drawn(data: JAMData, text: str, n: int, rng: np.random.Generator) -> np.ndarray:
    """Return n unrelated texts, each drawn by itself: without replacement, a text that was right once would sooner be wrong the next time."""
    rows = np.asarray(data.unrelated[text], np.float32)
    return np.asarray(rows[rng.integers(len(rows), size=n)])
