"""Hard negatives for captions made from class names: the same sentence with the name of another class."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from congruence.embeddings import normalize_rows
from congruence.errors import ParameterError, ShapeError
from congruence.metrics import nearest
from congruence_papers.core import check_embedded, check_number, check_same_rows
from congruence_papers.negatives.generation import Negative, check_captions
from congruence_papers.negatives.words import Edit, Sentence, changed_words


def sibling_negatives(
    names: Sequence[str],
    classes: Sequence[str],
    similarity: ArrayLike | None = None,
    *,
    template: str = "a photo of a {}",
    per_caption: int = 1,
    random_state: int = 0,
) -> list[Negative]:
    """Replace the class in captions such as “a photo of a beaver” by its nearest other classes, or by random ones.

    Parameters
    ----------
    names, classes : sequence of str, length n and c
        Class name of each caption, and the names of all classes. Classes with the same name (ImageNet has two called
        *crane*) count as one.
    similarity : array_like, shape (c, d), optional
        Text embeddings of the classes; the nearest classes are those with the largest cosines. By default classes are
        drawn at random, by ``random_state``.
    template : str, default="a photo of a {}"
        Caption with one ``{}`` for the class name; an article before it is adjusted to the name.
    per_caption : int, default=1
        Number of negatives per caption, which are of the kind ``"sibling"``.

    Examples
    --------
    >>> from congruence_papers.negatives import sibling_negatives
    >>> vectors = [[1.0, 0.1], [1.0, 0.2], [0.0, 1.0]]
    >>> sibling_negatives(["cat"], ["cat", "ocelot", "truck"], vectors)[0].negative
    'a photo of an ocelot'
    """
    labels, known = check_captions(names), check_captions(classes)
    check_number(per_caption, "per_caption", integer=True)
    check_number(random_state, "random_state", zero=True, integer=True)
    if not isinstance(template, str) or template.count("{}") != 1:
        raise ParameterError(
            argument="template", got=template, expected="a text with {} once", fix="Pass `template='a {}.'`."
        )
    first = {name: k for k, name in reversed(list(enumerate(known)))}  # index of the first class with each name
    if missing := next((name for name in labels if name not in first), None):
        raise ParameterError(f"The name {missing!r} is not one of the {len(known)} classes.", "Add it to the classes.")
    if len(first) <= per_caption:
        raise ParameterError(
            f"Got {len(first)} classes for `per_caption={per_caption}`.", "Pass more, or a smaller one."
        )
    distinct, own = np.array(sorted(first.values())), np.array([first[name] for name in labels])
    if similarity is None:
        rngs = [np.random.default_rng([random_state, row]) for row in range(len(labels))]
        chosen = [
            rng.choice(distinct[distinct != k], per_caption, replace=False) for rng, k in zip(rngs, own, strict=True)
        ]
    else:
        vectors = np.asarray(similarity, np.float64)
        if vectors.ndim != 2:
            raise ShapeError(f"Got similarity of shape {vectors.shape}; expected one row per class.", "Pass a matrix.")
        check_same_rows(len(known), len(vectors), "classes", "rows of similarity")
        check_embedded(vectors, "similarity")
        vectors = normalize_rows(vectors)[distinct]
        asked, place = np.unique(np.searchsorted(distinct, own), return_inverse=True)
        chosen = [*distinct[nearest(vectors[asked], per_caption, vectors, left_out=asked)][place]]
    captions = {name: _fill(template, name) for name in first}
    return [
        Negative(captions[name], wrong, "sibling", changed_words(captions[name], wrong), row)
        for row, name in enumerate(labels)
        for wrong in (captions[known[k]] for k in chosen[row])
    ]


def _fill(template: str, name: str) -> str:
    sentence, words = Sentence.parse(template.replace("{}", "x0x")), tuple(name.split())
    if "x0x" not in sentence.words:  # the placeholder touches other letters, so no article needs adjusting
        return template.replace("{}", name)
    place = sentence.words.index("x0x")
    return sentence.apply([Edit(place, place + 1, words)])
