"""Recall between captions and wrong captions for any data: with several wrong captions per row, and any task names."""

from __future__ import annotations

from typing import TypedDict

import numpy as np

from congruence._utils.typing import Labels
from congruence._utils.validation import check_seed
from congruence.datasets import SugarCrepe
from congruence.embeddings import normalize_rows
from congruence.errors import TooFewAnchorsError
from congruence.evaluation.compositional import TIE, check_choices, chosen, distractors


class TaskRow(TypedDict):
    """A line of :func:`recall_by_task`; ``choice`` is None where too few captions can be drawn."""

    task: str
    n: int
    binary: float
    choice: float | None
    ties: int


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
) -> tuple[list[TaskRow], str | None]:
    """Measure recall at 1 by task: between a caption and its wrong captions, and among these and distractors.

    ``image`` and ``caption`` (n, d), ``wrong`` (n, k, d). Captions of the same image, which ``groups`` names, are never
    distractors. ``tasks`` are the kinds of the wrong captions. ``texts`` (n, 1 + k) identify the texts of the caption
    and the wrong captions, so that none is drawn twice; by default those with identical vectors. Of ``options``
    captions to choose from, one is wrong and the others are distractors of the same task.

    Returns a row for each task in the order of their names, with "all" last, and a note if ``choice`` is None because
    there are too few captions of other images to draw.
    """
    check_seed(random_state)
    check_choices(options)
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
        drawn = (
            np.einsum("nd,nkd->nk", V, P[distractors(items, options, random_state)]) if options > 2 else other[:, :0]
        )
        choice = chosen(right, np.concatenate([other, drawn], axis=1))
    except TooFewAnchorsError:
        note = f"one of the tasks has fewer than {options - 2} captions of other images to draw."
    ties = np.abs(other.max(axis=1) - right) <= TIE
    parts = [(str(name), codes == code) for code, name in enumerate(names)]
    if len(parts) > 1:
        parts.append(("all", np.ones(n, bool)))
    rows: list[TaskRow] = [
        {
            "task": name,
            "n": int(mask.sum()),
            "binary": float(binary[mask].mean()),
            "choice": None if choice is None else float(choice[mask].mean()),
            "ties": int(ties[mask].sum()),
        }
        for name, mask in parts
    ]
    return rows, note
