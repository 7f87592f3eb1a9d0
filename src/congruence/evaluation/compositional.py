"""Measure how often an image is nearer to its caption than to one that is wrong in one detail (SugarCrepe)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from congruence._utils.plain import PlainData
from congruence._utils.typing import Labels, RowsLike
from congruence._utils.validation import as_matrix, check_positive, check_same_rows, check_seed, check_width
from congruence.datasets import SugarCrepe
from congruence.embeddings import normalize_rows
from congruence.errors import NotFiniteError, ParameterError, TooFewAnchorsError

#: Cosines that differ by at most this are ties: sums of the same numbers in another order differ by about as much in
#: float32.
TIE = 1e-6

#: SugarCrepe's seven categories in words, in the order of its paper: the task, and what is replaced, added or swapped.
CATEGORY_NAMES = {
    "replace_obj": "replace, object",
    "replace_att": "replace, attribute",
    "replace_rel": "replace, relation",
    "swap_obj": "swap, object",
    "swap_att": "swap, attribute",
    "add_obj": "add, object",
    "add_att": "add, attribute",
}


@dataclass(frozen=True)
class TaskRecall(PlainData):
    """Recall at 1 on the ``n`` items of one task. ``binary`` is the share of images nearer to their caption than to the
    wrong one (chance 0.5), ``choice`` the same among ``options`` captions. Of ``ties`` items both captions have the
    same cosine; the expectation of breaking them at random is reported.
    """

    task: str
    n: int
    binary: float
    choice: float
    options: int
    ties: int


def sugarcrepe_recall(
    items: SugarCrepe,
    image: RowsLike,
    caption: RowsLike,
    negative: RowsLike,
    *,
    options: int = 5,
    random_state: int = 0,
) -> list[TaskRecall]:
    """Measure image-to-text recall at 1 by task: between a caption and a wrong one, and among these and distractors.

    ``image``, ``caption``, ``negative`` (n, d) are embeddings in one space of each item; ``options − 2`` captions of
    other images are distractors. There is one entry per task: replace, add, swap; then the two parts of swap (``"swap,
    order only"``, where both captions have the same words, and ``"swap, other words"``); then SugarCrepe's categories.

    Source: Hsieh et al. (2023), "SugarCrepe"; Yoon, Yue and Kim (2025), appendix D.2 and table 2 (binary and 5-way).
    """
    return _lines(items, *_cosines(items, image, caption, negative, options, random_state))


def sugarcrepe_outcomes(
    items: SugarCrepe,
    image: RowsLike,
    caption: RowsLike,
    negative: RowsLike,
    *,
    options: int = 5,
    random_state: int = 0,
) -> np.ndarray:
    """Return the outcomes of each item (n, 2), of two captions and of all, that ``sugarcrepe_recall`` averages."""
    right, wrong, drawn = _cosines(items, image, caption, negative, options, random_state)
    return np.column_stack([chosen(right, wrong[:, None]), chosen(right, np.column_stack([wrong, drawn]))])


def _cosines(
    items: SugarCrepe, image: RowsLike, caption: RowsLike, negative: RowsLike, options: int, random_state: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return each image's cosines with its caption, its wrong one, and its distractors, shape (n, options − 2)."""
    V, P, N = (
        normalize_rows(as_matrix(rows, name).astype(np.float64))
        for rows, name in ((image, "image"), (caption, "caption"), (negative, "negative"))
    )
    for rows, name in ((V, "image"), (P, "caption"), (N, "negative")):
        check_same_rows(len(items), len(rows), "items", name)
        check_width(rows.shape[1], V.shape[1], f"the images, beside those of {name}")
    others = distractors(items, options, random_state)
    drawn = np.einsum("ij,ikj->ik", V, P[others])
    return np.einsum("ij,ij->i", V, P), np.einsum("ij,ij->i", V, N), drawn


def text_only_recall(
    items: SugarCrepe, caption: np.ndarray, negative: np.ndarray, *, options: int = 5, random_state: int = 0
) -> list[TaskRecall]:
    """Measure by task how often scores (n,) of the two captions alone, without the image, choose the correct one."""
    right, wrong = (np.asarray(side, np.float64).reshape(-1) for side in (caption, negative))
    for side, name in ((right, "caption"), (wrong, "negative")):
        check_same_rows(len(items), len(side), "items", name)
        if not np.isfinite(side).all():
            raise NotFiniteError(f"Got scores of {name} with NaN or infinity.", "Score these texts again.")
    return _lines(items, right, wrong, right[distractors(items, options, random_state)])


def _lines(items: SugarCrepe, right: np.ndarray, wrong: np.ndarray, drawn: np.ndarray) -> list[TaskRecall]:
    """Return recall by task from scores of each item's caption, wrong one and distractors (n, options − 2)."""
    binary, choice = chosen(right, wrong[:, None]), chosen(right, np.column_stack([wrong, drawn]))
    rows = _rows(_tasks(items), binary, choice, np.abs(right - wrong) <= TIE)
    return [TaskRecall(**row, options=drawn.shape[1] + 2) for row in rows]


def _rows(
    parts: list[tuple[str, np.ndarray]], binary: np.ndarray, choice: np.ndarray | None, ties: np.ndarray
) -> list[dict[str, Any]]:
    """Return the means over the items of each part."""
    rows = []
    for name, mask in parts:
        means = [None if scores is None else float(scores[mask].mean()) for scores in (binary, choice)]
        rows.append({"task": name, "n": int(mask.sum()), "binary": means[0], "choice": means[1]})
        rows[-1]["ties"] = int(ties[mask].sum())
    return rows


def distractors(items: SugarCrepe, options: int = 5, random_state: int = 0) -> np.ndarray:
    """Draw for each item ``options − 2`` captions of other images of its task, as item numbers (n, options − 2), whose
    texts differ from each other and from the item's own: the same for every model.
    """
    check_seed(random_state)
    check_positive(options, "options", integer=True)
    if options < 2:
        raise ParameterError(f"Got `options={options}`; expected at least 2.", "Pass `options=2` or more.")
    out = np.empty((len(items), options - 2), dtype=np.int64)
    tasks = items.tasks
    for number, task in enumerate(np.unique(tasks)):
        rng = np.random.default_rng([random_state, number])
        pool = np.flatnonzero(tasks == task)
        for i in pool:
            taken = {items.captions[i], items.negative_captions[i]}
            chosen: list[int] = []
            for j in rng.permutation(pool) if options > 2 else ():
                if items.filenames[j] != items.filenames[i] and items.captions[j] not in taken:
                    taken.add(items.captions[j])
                    chosen.append(int(j))
                    if len(chosen) == options - 2:
                        break
            if len(chosen) < options - 2:
                raise TooFewAnchorsError(
                    f"Got {len(chosen)} of {options - 2} captions of other images to draw for {items.ids[i]}.",
                    "Pass more items of this task, or a smaller `options=…`.",
                )
            out[i] = chosen
    return out


def same_words(items: SugarCrepe) -> np.ndarray:
    """Return for each item whether its two captions have the same words and differ only in their order."""

    def words(text: str) -> list[str]:
        return sorted(re.findall(r"\w+", text.casefold()))

    pairs = zip(items.captions.tolist(), items.negative_captions.tolist(), strict=True)
    return np.array([words(right) == words(wrong) for right, wrong in pairs], dtype=bool)


def chosen(right: np.ndarray, wrong: np.ndarray) -> np.ndarray:
    """Return the probability that the correct caption is chosen, breaking ties within 1e-6 at random.

    ``right`` (n,) and ``wrong`` (n, k) are the cosines of each image with its caption and with the others.

    >>> import numpy as np
    >>> chosen(np.array([0.5, 0.5]), np.array([[0.4, 0.5], [0.1, 0.6]]))
    array([0.5, 0. ])
    """
    beaten = (wrong > right[:, None] + TIE).any(axis=1)
    equal = (np.abs(wrong - right[:, None]) <= TIE).sum(axis=1)
    return np.where(beaten, 0.0, 1 / (1 + equal))


def _tasks(items: SugarCrepe) -> list[tuple[str, np.ndarray]]:
    """Return a mask of the items of each task, of the parts of swap, and of each category of tasks with several."""
    tasks, order = items.tasks, same_words(items)
    parts = [(task, tasks == task) for task in ("replace", "add", "swap")]
    swap = tasks == "swap"
    parts += [("swap, order only", swap & order), ("swap, other words", swap & ~order)]
    for category, words in CATEGORY_NAMES.items():
        mask = items.categories == category
        if (tasks[~mask] == category.partition("_")[0]).any():  # otherwise it equals the line of the task
            parts.append((words, mask))
    return [(task, mask) for task, mask in parts if mask.any()]


def recall_by_task(
    image: np.ndarray,
    caption: np.ndarray,
    wrong: np.ndarray,
    groups: Labels,
    tasks: Labels | None = None,
    *,
    texts: np.ndarray | None = None,
    options: int = 5,
    random_state: int = 0,
) -> tuple[list[dict[str, Any]], str | None]:
    """Measure recall at 1 by task: between a caption (n, d) and its wrong captions (n, k, d), and among these and
    distractors, which are captions of another image by ``groups``; ``texts`` (n, 1 + k) identify equal texts, by
    default those with identical vectors. Returns a row for each task by name, with "all" last, and a note if ``choice``
    is None because there are too few captions to draw.
    """
    V, P = (normalize_rows(np.asarray(rows, np.float64)) for rows in (image, caption))
    n, k, width = np.shape(wrong)
    N = normalize_rows(np.asarray(wrong, np.float64).reshape(n * k, width))
    if texts is None:
        numbers = np.unique(np.concatenate([P, N]), axis=0, return_inverse=True)[1].reshape(-1)
        texts = np.column_stack([numbers[:n], numbers[n:].reshape(n, k)])
    text_ids = texts.astype(str)
    N = N.reshape(n, k, width)
    right, other = np.einsum("nd,nd->n", V, P), np.einsum("nd,nkd->nk", V, N)
    kinds = np.full(n, "all") if tasks is None else np.asarray(tasks).astype(str)
    names, codes = np.unique(kinds, return_inverse=True)
    labels = np.asarray(groups).astype(str)
    items = SugarCrepe(np.arange(n).astype(str), codes.astype(str), labels, text_ids[:, 0], text_ids[:, 1])
    binary, choice, note = chosen(right, other), None, None
    try:
        drawn = np.einsum("nd,nkd->nk", V, P[distractors(items, options, random_state)])
        choice = chosen(right, np.concatenate([other, drawn], axis=1))
    except TooFewAnchorsError:
        note = f"one of the tasks has fewer than {options - 2} captions of other images to draw."
    ties = np.abs(other.max(axis=1) - right) <= TIE
    parts = [(str(name), codes == code) for code, name in enumerate(names)]
    if len(parts) > 1:
        parts.append(("all", np.ones(n, bool)))
    return _rows(parts, binary, choice, ties), note
