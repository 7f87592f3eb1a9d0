"""Captions in several models, and captions in which the name of a class was replaced."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from congruence.errors import InputError, ShapeError

__all__ = ["CaptionBank", "edit_caption", "edit_captions", "no_captions", "plain", "shared_words"]


@dataclass(frozen=True)
class CaptionBank:
    """Captions and edited versions of some of them, embedded by every model.

    Attributes
    ----------
    texts : tuple of str
    labels : ndarray of int, shape (n,)
        Class of each caption; −1 where it is not among the classes at hand.
    vectors : tuple of ndarray, shape (n, d)
        Unit rows, one array a model.
    edited_texts : tuple of str
    origin, wanted : ndarray of int, shape (m,)
        The caption each edited one was made from, and the class that it names now.
    edited : tuple of ndarray, shape (m, d)
        Unit rows, one array a model.

    Raises
    ------
    ShapeError
        If arrays have the wrong shape.
    """

    texts: tuple[str, ...]
    labels: np.ndarray
    vectors: tuple[np.ndarray, ...]
    edited_texts: tuple[str, ...]
    origin: np.ndarray
    wanted: np.ndarray
    edited: tuple[np.ndarray, ...]

    def __post_init__(self) -> None:
        n, m = len(self.texts), len(self.edited_texts)
        counts = (
            {len(self.labels), *map(len, self.vectors)},
            {len(self.origin), len(self.wanted), *map(len, self.edited)},
        )
        if counts != ({n}, {m}):
            raise ShapeError(
                f"Got {n} captions and {m} edited ones with other numbers of labels or vectors; expected one each. Pass a label and a vector for each caption."
            )

    def relabel(self, classes: np.ndarray) -> CaptionBank:
        """Return the bank with class k numbered ``classes[k]``; −1: no longer at hand."""
        return replace(
            self,
            labels=np.where(self.labels >= 0, classes[self.labels], -1),
            wanted=np.where(self.wanted >= 0, classes[self.wanted], -1),
        )


def edit_caption(caption: str, before: str, after: str) -> str | None:
    """Return a caption with one name replaced by another, or None where it is not in there as whole words.

    Parameters
    ----------
    caption : str
    before, after : str
        Letter case and the difference of spaces, hyphens and underscores do not matter in ``before``. Nothing else is changed, articles included.

    Returns
    -------
    str or None

    Examples
    --------
    >>> edit_caption("A fluffy birman on a chair", "Birman", "Russian Blue")
    'A fluffy Russian Blue on a chair'
    >>> edit_caption("Two birmans", "Birman", "Russian Blue") is None
    True
    """
    words = r"[\s_-]+".join(map(re.escape, re.split(r"[\s_-]+", before.strip())))
    edited, count = re.subn(rf"(?<!\w){words}(?!\w)", lambda _: after, caption, flags=re.IGNORECASE)
    return edited if count else None


def edit_captions(
    captions: Sequence[tuple[str, str]], edits: Mapping[str, str], classes: Sequence[str], label_of: Mapping[str, int]
) -> CaptionBank:
    """Edit captions by name.

    Parameters
    ----------
    captions : sequence of (str, str)
        Id of an image or name of a class, and a caption, see :func:`congruence.datasets.read_captions`.
    edits : mapping of str to str
        Name of a class to the name that is put in its place.
    classes : sequence of str
    label_of : mapping of str to int
        Class of each image.

    Returns
    -------
    CaptionBank
        Without vectors yet.

    Raises
    ------
    InputError
        An id that is neither an image nor a class, a name that is no class, or no caption that names a class to be replaced.
    """
    number = {plain(name): k for k, name in enumerate(classes)}
    labels = []
    for i, caption in captions:
        label = label_of.get(i, number.get(plain(i)))
        if label is None:
            raise InputError(
                f"Got a caption of {i!r} ({caption!r}), which is neither an image nor a class here; expected one of them. Write an image's id or the name of a class."
            )
        labels.append(label)
    for name in (*edits, *edits.values()):
        if plain(name) not in number:
            raise InputError(
                f"Got {name!r} among the edits; expected a class of the data ({', '.join(list(classes)[:5])}, …). Write the names of two classes."
            )
    texts = [caption for _, caption in captions]
    made = [
        (k, new, number[plain(after)])
        for before, after in edits.items()
        for k, caption in enumerate(texts)
        if (new := edit_caption(caption, before, after)) is not None
    ]
    if not made:
        raise InputError(
            f"Got {len(texts)} captions of which none names {' or '.join(edits) or 'a class to replace'}; expected some. Pass edits=… with "
            "a name that is in the captions."
        )
    origin, edited, wanted = zip(*made, strict=True)
    return CaptionBank(tuple(texts), np.array(labels), (), edited, np.array(origin), np.array(wanted), ())


def no_captions(data: str, figure: str) -> InputError:
    """Return the error for data with one template a class and no captions: nothing is there that an edit of the class could keep."""
    return InputError(
        f"Got {data} with one template a class and no captions; expected captions of its images, since {figure} changes the class in a caption and asks "
        "whether the rest is kept. Pass captions=…."
    )


def plain(name: str) -> str:
    """Return a name in lower case with single spaces, so that ``russian_blue`` is ``Russian Blue``."""
    return " ".join(re.split(r"[\s_-]+", name.strip().lower()))


def shared_words(captions: Sequence[str], others: Sequence[str], names: Sequence[str]) -> np.ndarray:
    """Return the share of each caption's words, the names of classes left out, that its counterpart has too.

    Parameters
    ----------
    captions, others : sequence of str
        Of one length.
    names : sequence of str
        Names to leave out of both.

    Returns
    -------
    ndarray, shape (n,)
        From 0 to 1; NaN where nothing but a name is left.
    """
    gone = re.compile(
        "|".join(rf"(?<!\w){re.escape(plain(name))}(?!\w)" for name in sorted(names, key=len, reverse=True)) or r"(?!)"
    )

    def words(text: str) -> set[str]:
        return set(re.findall(r"\w+", gone.sub(" ", plain(text))))

    out = np.full(len(captions), np.nan)
    for k, (own, other) in enumerate(zip(captions, others, strict=True)):
        mine = words(own)
        if mine:
            out[k] = len(mine & words(other)) / len(mine)
    return out
