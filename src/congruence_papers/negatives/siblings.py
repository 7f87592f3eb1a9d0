"""Hard negatives for captions made from class names: the same sentence with the name of another class."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from congruence._utils.arrays import blocks, normalize_rows
from congruence._utils.top_k import top_k
from congruence._utils.typing import RowsLike
from congruence._utils.validation import as_matrix, check_positive, check_same_rows, check_seed
from congruence.errors import ParameterError
from congruence_papers.negatives.generation import Negative, check_captions
from congruence_papers.negatives.words import Edit, Sentence, changed_words

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
    """Replace the class in captions such as “a photo of a beaver” by its nearest other classes, or by random ones.

    Parameters
    ----------
    names : sequence of str, length n
        Class name of each caption, one of ``classes``.
    classes : sequence of str, length c
        Names of all classes.
    similarity : array_like, shape (c, d), optional
        Text embeddings of the classes; the nearest classes are those with the largest cosines. By default classes are drawn at random.
    template : str, default="a photo of a {}"
        Caption with one ``{}`` for the class name; an article before it is adjusted to the name.
    per_caption : int, default=1
        Number of negatives per caption: the nearest classes, or distinct classes drawn at random.
    random_state : int, default=0
        Seed for drawing classes; not used with ``similarity``.

    Returns
    -------
    list of Negative
        ``per_caption`` for each name, of kind ``"sibling"``. Classes with the same name (ImageNet has two called *crane*) count as
        one.

    Raises
    ------
    DtypeError, ShapeError
        If names or classes are missing, blank or not texts, or the number of embeddings differs from that of the classes.
    NotFiniteError, ZeroRowError
        If an embedding contains NaN or infinity, or is all zeros.
    ParameterError
        If a name is not among the classes, there are too few classes, ``template`` does not contain ``{}`` exactly once, or another parameter is
        out of range.

    Examples
    --------
    >>> from congruence_papers.negatives import sibling_negatives
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
    first = {name: k for k, name in reversed(list(enumerate(known)))}  # index of the first class with each name
    if missing := next((name for name in labels if name not in first), None):
        raise ParameterError(
            f"Got the name {missing!r}, which is not a class; expected one of the {len(known)}. Add it to the classes."
        )
    if len(first) <= per_caption:
        raise ParameterError(
            f"Got {len(first)} different classes; expected more than per_caption={per_caption}. Pass all classes, or a smaller per_caption=…."
        )
    captions = {name: _fill(template, name) for name in first}
    if similarity is None:
        distinct = np.array(sorted(first.values()))
        chosen = [
            [known[k] for k in _draw(distinct, first[name], per_caption, np.random.default_rng([random_state, row]))]
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


def _draw(distinct: np.ndarray, own: int, k: int, rng: np.random.Generator) -> np.ndarray:
    """Draw k classes other than ``own``."""
    return rng.choice(distinct[distinct != own], k, replace=False)


def _nearest(
    known: list[str], first: dict[str, int], similarity: RowsLike, rows: list[int], k: int
) -> dict[str, list[str]]:
    """Return for each of ``rows`` the k classes with the largest cosines, best first; ties keep the order of the classes."""
    vectors = normalize_rows(as_matrix(similarity, "similarity").astype(np.float64))
    check_same_rows(len(known), len(vectors), "classes", "similarity")
    distinct = np.array(sorted(first.values()))  # one class per name: the first
    nearest = {}
    for part in blocks(len(rows), 8 * len(distinct)):
        cosines = vectors[rows[part]] @ vectors[distinct].T
        cosines[np.equal.outer(rows[part], distinct)] = -np.inf
        for row, best in zip(rows[part], top_k(cosines, min(k, len(distinct))), strict=True):
            nearest[known[row]] = [known[j] for j in distinct[best]]
    return nearest


def _fill(template: str, name: str) -> str:
    """Return a template filled with a name, with the article before it adjusted."""
    sentence, words = Sentence.parse(template.replace("{}", "x0x")), tuple(name.split())
    if "x0x" not in sentence.words:  # the placeholder touches other letters, so no article needs adjusting
        return template.replace("{}", name)
    place = sentence.words.index("x0x")
    return sentence.apply([Edit(place, place + 1, words)])
