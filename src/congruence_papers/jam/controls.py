"""Controls for JAM's scores: the same data with images and texts that carry no information about each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from congruence._utils.validation import check_choice, check_seed
from congruence.errors import InputError
from congruence_papers.jam.data import JAMData

__all__ = ["CONTROLS", "control_data", "dual_as_encoders", "noise_like"]

#: Every control, with its label in tables.
CONTROLS = {
    "none": "as they are",
    "noise": "images: white noise",
    "others": "captions of other images",
    "unrelated": "unrelated texts",
}


def noise_like(rows: np.ndarray, random_state: int = 0) -> np.ndarray:
    """Return white noise with the mean and the standard deviation of each column of ``rows``.

    Parameters
    ----------
    rows : ndarray, shape (n, d)
    random_state : int, default=0

    Returns
    -------
    ndarray of float32, shape (n, d)
        Unlike those of embeddings, the columns are independent.
    """
    check_seed(random_state)
    A = np.asarray(rows, np.float64)
    drawn = np.random.default_rng([random_state, 41]).standard_normal(A.shape)
    return np.asarray(A.mean(axis=0) + A.std(axis=0) * drawn, np.float32)


def control_data(data: JAMData, control: str, random_state: int = 0) -> JAMData:
    """Return a copy of the data in which images and texts carry no information about each other.

    Parameters
    ----------
    data : JAMData
    control : {"none", "noise", "others", "unrelated"}
        ``"noise"``: each image embedding is replaced by white noise with the same column means and standard deviations, the same row for all items
        of the image (:func:`noise_like`). Correct and wrong captions can still be told apart by the texts alone. ``"others"``: each image gets
        the captions and wrong captions of another image, kept together, so that the texts alone carry as much information as before.
        ``"unrelated"``: captions and wrong captions are drawn at random from ``data.unrelated`` of the text encoder; they cannot be told
        apart. ``"none"``: ``data`` itself.
    random_state : int, default=0

    Returns
    -------
    JAMData
        Data with the same encoders and splits, but without dual encoders (except for ``"none"``).

    Raises
    ------
    ParameterError
        If the control is unknown.
    InputError
        If ``control="unrelated"`` and a text encoder has no unrelated texts, or ``control="others"`` and there is only one image.

    Examples
    --------
    >>> from congruence_papers.jam import open_sample
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
                "Got one image; expected at least two, so that each gets the captions of another. Pass more items."
            )
        # A random cyclic permutation: no image keeps its own captions, and all captions of an image stay together.
        cycle = rng.permutation(len(data.items.images))
        other = np.empty_like(cycle)
        other[cycle] = np.roll(cycle, 1)
        images = {
            encoder: {layer: np.asarray(rows)[other] for layer, rows in layers.items()}
            for encoder, layers in data.images.items()
        }
        return replace(data, name=name, images=images, dual={})
    missing = [encoder for encoder in data.captions if encoder not in data.unrelated]
    if missing:
        raise InputError(
            f"Got no unrelated texts of {missing[0]}; expected some, embedded by this encoder. Pass unrelated={{{missing[0]!r}: rows}}, or leave this control out."
        )
    n = len(data.items)
    captions, negatives = (
        {encoder: {"late": _draw_unrelated(data, encoder, n, rng)} for encoder in data.captions} for _ in range(2)
    )
    return replace(data, name=name, captions=captions, negatives=negatives, dual={})


def dual_as_encoders(data: JAMData, name: str) -> JAMData:
    """Return data whose image and text encoders are the towers of one dual encoder, to train heads on rows that are already aligned.

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
        If there is no such dual encoder.
    """
    check_choice(name, data.dual, "dual encoder")
    V, P, N = (np.asarray(rows, np.float32) for rows in data.dual[name])
    sides: list[Mapping[str, Mapping[str, np.ndarray]]] = [{name: {"late": rows}} for rows in (V, P, N)]
    images, captions, negatives = sides
    return replace(
        data, images=images, captions=captions, negatives=negatives, encoders=((name, name),), dual={}, unrelated={}
    )


def _draw_unrelated(data: JAMData, encoder: str, n: int, rng: np.random.Generator) -> np.ndarray:
    """Draw n unrelated texts with replacement.

    Without replacement, a text that is a correct caption in training could not be one of a test item, and would more likely be a wrong one there.
    """
    rows = np.asarray(data.unrelated[encoder], np.float32)
    return np.asarray(rows[rng.integers(len(rows), size=n)])
