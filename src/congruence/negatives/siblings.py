"""Hard negatives of label-like captions: the same sentence with the name of another class."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from congruence._utils.arrays import blocks, normalize_rows
from congruence._utils.top_k import top_k
from congruence._utils.typing import RowsLike
from congruence._utils.validation import as_matrix, check_positive, check_same_rows, check_seed
from congruence.errors import ParameterError
from congruence.negatives.generate import Negative, check_captions
from congruence.negatives.words import Edit, Sentence, changed_words

__all__ = ["sibling_negatives"]


def sibling_negatives(
    names: Sequence[str],
    classes: Sequence[str],
    similarity: RowsLike | None = None,
    *,
    template: str = "a photo of a {}",
    per_caption: int = 1,
    random_state: int = 0,
) -> list[Negative]:
    """Exchange the class in captions such as “a photo of a beaver” for the nearest other class, or for any other.

    Parameters
    ----------
    names : sequence of str, length n
        The class of each caption, in the words of ``classes``.
    classes : sequence of str, length c
    similarity : array_like, shape (c, d), optional
        Text embeddings of the classes; the nearest is that of the largest cosine. By default classes are drawn at random.
    template : str
        With ``{}`` once, for the name; an article before it agrees.
    per_caption : int, default=1
        The nearest ones, or different ones at random.
    random_state : int, default=0
        Of the draw.

    Returns
    -------
    list of Negative
        ``per_caption`` for each name, of kind ``"sibling"``. Classes of one name (ImageNet has two of *crane*) are no
        siblings.

    Raises
    ------
    DtypeError, ShapeError
        Names that are no texts or are blank, or none; embeddings of another number of rows.
    ParameterError
        A name that is no class, too few classes, or no such template.

    Examples
    --------
    >>> from congruence.negatives import sibling_negatives
    >>> vectors = [[1.0, 0.1], [1.0, 0.2], [0.0, 1.0]]
    >>> sibling_negatives(["cat"], ["cat", "ocelot", "truck"], vectors)[0].negative
    'a photo of an ocelot'
    """
    labels, known = check_captions(names), check_captions(classes)
    check_positive(per_caption, "per_caption", integer=True)
    check_seed(random_state)
    if not isinstance(template, str) or template.count("{}") != 1:
        raise ParameterError(
            f"Got template={template!r}; expected a text with {{}} once. Pass template='a photo of a {{}}.', for example."
        )
    first = {name: k for k, name in reversed(list(enumerate(known)))}  # where a name occurs first
    if missing := next((name for name in labels if name not in first), None):
        raise ParameterError(
            f"Got the name {missing!r}, which is no class; expected one of the {len(known)}. Add it to the classes."
        )
    if len(first) <= per_caption:
        raise ParameterError(
            f"Got {len(first)} different classes for {per_caption} other names; expected more. Pass all classes, or a smaller per_caption=…."
        )
    captions = {name: _fill(template, name) for name in first}
    if similarity is None:
        distinct = np.array(sorted(first.values()))
        chosen = [
            [known[k] for k in _drawn(distinct, first[name], per_caption, np.random.default_rng([random_state, row]))]
            for row, name in enumerate(labels)
        ]
    else:
        nearest = _nearest(known, first, similarity, sorted({first[name] for name in labels}), per_caption)
        chosen = [nearest[name] for name in labels]
    return [
        Negative(captions[name], captions[other], "sibling", changed_words(captions[name], captions[other]), row)
        for row, name in enumerate(labels)
        for other in chosen[row]
    ]


def _drawn(distinct: np.ndarray, own: int, k: int, rng: np.random.Generator) -> np.ndarray:
    return rng.choice(distinct[distinct != own], k, replace=False)


def _nearest(
    known: list[str], first: dict[str, int], similarity: RowsLike, rows: list[int], k: int
) -> dict[str, list[str]]:
    """Return the classes of largest cosine for each of ``rows``, best first; equal ones in the order of the classes."""
    vectors = normalize_rows(as_matrix(similarity, "similarity").astype(np.float64))
    check_same_rows(len(known), len(vectors), "classes", "similarity")
    distinct = np.array(sorted(first.values()))  # the first of each name stands for all of it
    found = {}
    for part in blocks(len(rows), 8 * len(distinct)):
        likeness = vectors[rows[part]] @ vectors[distinct].T
        likeness[np.equal.outer(rows[part], distinct)] = -np.inf
        for row, best in zip(rows[part], top_k(likeness, min(k, len(distinct))), strict=True):
            found[known[row]] = [known[j] for j in distinct[best]]
    return found


def _fill(template: str, name: str) -> str:
    """Put a name into a template, with the right article before it."""
    sentence, words = Sentence.parse(template.replace("{}", "x0x")), tuple(name.split())
    if "x0x" not in sentence.words:  # the place touches other letters: no article to mind
        return template.replace("{}", name)
    place = sentence.words.index("x0x")
    return sentence.apply([Edit(place, place + 1, words)])
