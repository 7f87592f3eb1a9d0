"""Captions embedded by several models, and captions in which the name of a class is replaced."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from congruence.errors import InputError, ShapeError

__all__ = ["CaptionBank", "edit_caption", "edit_captions", "no_captions", "normalize_name", "shared_words"]


@dataclass(frozen=True)
class CaptionBank:
    """Captions and edited versions of some of them, embedded by every model.

    Attributes
    ----------
    texts : tuple of str
    labels : ndarray of int, shape (n,)
        Class of each caption; −1 if it is not one of the available classes.
    vectors : tuple of ndarray, shape (n, d)
        Unit rows, one array per model.
    edited_texts : tuple of str
    origin, wanted : ndarray of int, shape (m,)
        Index of the original of each edited caption, and the class that the edited caption names.
    edited : tuple of ndarray, shape (m, d)
        Unit rows, one array per model.

    Raises
    ------
    ShapeError
        If the numbers of texts, labels and vectors differ.
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
                f"Got {n} captions and {m} edited captions, but other numbers of labels or vectors; expected one per caption. Pass a label and a vector for each caption."
            )

    def relabel(self, classes: np.ndarray) -> CaptionBank:
        """Return the captions with class k renumbered to ``classes[k]``, where −1 marks a class that is no longer available."""
        return replace(
            self,
            labels=np.where(self.labels >= 0, classes[self.labels], -1),
            wanted=np.where(self.wanted >= 0, classes[self.wanted], -1),
        )


def edit_caption(caption: str, before: str, after: str) -> str | None:
    """Return a caption with one name replaced by another, or None if it does not contain the name as whole words.

    Parameters
    ----------
    caption : str
    before, after : str
        ``before`` matches regardless of case, and spaces, hyphens and underscores are equivalent. The rest of the caption is not changed, not
        even articles.

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
    """Return captions, and versions of them in which class names are replaced.

    Parameters
    ----------
    captions : sequence of (str, str)
        Id of an image or name of a class, and a caption; see :func:`congruence.datasets.read_captions`.
    edits : mapping of str to str
        Class names, and the class names that replace them.
    classes : sequence of str
    label_of : mapping of str to int
        Class of each image.

    Returns
    -------
    CaptionBank
        Without vectors.

    Raises
    ------
    InputError
        If an id is neither an image nor a class, a name is not a class, or no caption names a class to be replaced.
    """
    number = {normalize_name(name): k for k, name in enumerate(classes)}
    labels = []
    for i, caption in captions:
        label = label_of.get(i, number.get(normalize_name(i)))
        if label is None:
            raise InputError(
                f"Got a caption of {i!r} ({caption!r}), which is neither an image nor a class of the data; expected one of these. Use the id of an image or the name of a class."
            )
        labels.append(label)
    for name in (*edits, *edits.values()):
        if normalize_name(name) not in number:
            raise InputError(
                f"Got {name!r} among the edits; expected a class of the data ({', '.join(list(classes)[:5])}, …). Pass edits=… with names of classes."
            )
    texts = [caption for _, caption in captions]
    versions = [
        (k, new, number[normalize_name(after)])
        for before, after in edits.items()
        for k, caption in enumerate(texts)
        if (new := edit_caption(caption, before, after)) is not None
    ]
    if not versions:
        raise InputError(
            f"Got {len(texts)} captions, none of which contains {' or '.join(edits) or 'a class to replace'}; expected at least one. Pass edits=… with "
            "a name that occurs in the captions."
        )
    origin, edited, wanted = zip(*versions, strict=True)
    return CaptionBank(tuple(texts), np.array(labels), (), edited, np.array(origin), np.array(wanted), ())


def no_captions(data: str, figure: str) -> InputError:
    """Return the error for data with one template per class and no captions, where a text contains nothing but the class that is edited."""
    return InputError(
        f"Got {data} with one template per class and no captions; expected captions of its images, since {figure} changes the class in a caption and measures "
        "whether the rest is kept. Pass captions=…."
    )


def normalize_name(name: str) -> str:
    """Return a name in lower case with single spaces, so that ``russian_blue`` and ``Russian Blue`` are equal."""
    return " ".join(re.split(r"[\s_-]+", name.strip().lower()))


def shared_words(captions: Sequence[str], others: Sequence[str], names: Sequence[str]) -> np.ndarray:
    """Return the share of each caption's words, without class names, that its counterpart also contains.

    Parameters
    ----------
    captions, others : sequence of str
        Captions and their counterparts, equally many.
    names : sequence of str
        Names to leave out of both.

    Returns
    -------
    ndarray, shape (n,)
        Between 0 and 1; NaN for a caption that contains nothing but names.
    """
    longest_first = [re.escape(normalize_name(name)) for name in sorted(names, key=len, reverse=True)]
    class_name = re.compile("|".join(rf"(?<!\w){name}(?!\w)" for name in longest_first) or r"(?!)")

    def words(text: str) -> set[str]:
        return set(re.findall(r"\w+", class_name.sub(" ", normalize_name(text))))

    out = np.full(len(captions), np.nan)
    for k, (caption, other) in enumerate(zip(captions, others, strict=True)):
        own = words(caption)
        if own:
            out[k] = len(own & words(other)) / len(own)
    return out
