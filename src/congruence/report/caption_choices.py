"""Images with correct and wrong captions: recall by task, margins, and examples."""

from __future__ import annotations

import base64
import difflib
import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from congruence._utils.optional import require
from congruence.datasets import SugarCrepe
from congruence.encoders import open_image
from congruence.errors import FileError, ParameterError, TooFewAnchorsError
from congruence.evaluation.compositional import TIE, chosen, sugarcrepe_recall
from congruence.evaluation.task_rows import recall_by_task
from congruence.plotting.data import Margins

__all__ = ["Questions", "by_task", "changed", "examples_of", "margins", "thumbnail"]

#: Longer side of a thumbnail, in pixels.
THUMBNAIL = 128

#: Most tasks that have a histogram of their own.
_HISTOGRAMS = 6


@dataclass(frozen=True)
class Questions:
    """Images with their captions and wrong captions in the joint space.

    Attributes
    ----------
    images, captions : ndarray of float64, shape (n, d)
        Unit rows.
    wrong : ndarray of float64, shape (n, k, d)
        Unit rows.
    names, groups : ndarray of str, shape (n,)
        What a row is called, and its image.
    tasks : ndarray of str, shape (n,), or None
    texts : tuple of ndarray of str, shapes (n,) and (n, k), or None
    same : ndarray of int, shape (n, 1 + k)
        Captions and wrong captions by number: equal numbers are one text.
    items : SugarCrepe or None
    """

    images: np.ndarray
    captions: np.ndarray
    wrong: np.ndarray
    names: np.ndarray
    groups: np.ndarray
    tasks: np.ndarray | None
    texts: tuple[np.ndarray, np.ndarray] | None
    same: np.ndarray
    items: SugarCrepe | None

    @property
    def cosines(self) -> tuple[np.ndarray, np.ndarray]:
        """Cosines of each image with its caption, shape (n,), and with the wrong ones, shape (n, k)."""
        right = np.einsum("nd,nd->n", self.images, self.captions)
        return right, np.einsum("nd,nkd->nk", self.images, self.wrong)


def by_task(asked: Questions, options: int, random_state: int) -> dict[str, Any]:
    """Measure recall between a caption and its wrong captions, and among these and captions of other images, by task.

    Returns
    -------
    dict
        ``rows``, one a task, what all items make together the last of several; ``options``, captions to choose from in ``choice``, None
        where there are too few other images to draw from, which ``note`` then says; ``chance``; and for all items together ``low`` and
        ``high``, a 95 % interval of ``binary`` with images as what is drawn, None for one image.
    """
    right, wrong = asked.cosines
    k, binary = wrong.shape[1], chosen(right, wrong)
    if asked.items is None:
        sides = asked.images, asked.captions, asked.wrong
        lines, note = recall_by_task(
            *sides, asked.groups, asked.tasks, texts=asked.same, options=options, random_state=random_state
        )
        rows: list[dict[str, object]] = [{**row, "part": False} for row in lines]
    else:
        rows, note = _of_sugarcrepe(asked, asked.items, options, random_state)
    low, high = _interval(binary, asked.groups)
    return {
        "rows": rows,
        "wrong": k,
        "options": None if note else options + k - 1,
        "note": note,
        "chance": {"binary": 1 / (1 + k), "choice": None if note else 1 / (options + k - 1)},
        "images": len(np.unique(asked.groups)),
        "low": low,
        "high": high,
    }


def _of_sugarcrepe(
    asked: Questions, items: SugarCrepe, options: int, random_state: int
) -> tuple[list[dict[str, object]], str | None]:
    """Return SugarCrepe's own lines, what all items make together last, and what there are too few captions for."""
    sides, note = (asked.images, asked.captions, asked.wrong[:, 0]), None
    try:
        found = sugarcrepe_recall(items, *sides, options=options, random_state=random_state)
    except TooFewAnchorsError:
        found = sugarcrepe_recall(items, *sides, options=2, random_state=random_state)
        note = f"one of the tasks has fewer than {options - 2} captions of other images to draw."
    lines: list[tuple[str, int, float, float, int, bool]] = [
        (line.task, line.n, line.binary, line.choice, line.ties, ", " in line.task) for line in found
    ]
    whole = [line for line in lines if not line[-1]]
    if len(whole) > 1:
        n = sum(line[1] for line in whole)
        binary = sum(line[1] * line[2] for line in whole) / n
        choice = sum(line[1] * line[3] for line in whole) / n
        lines.append(("all", n, binary, choice, sum(line[4] for line in whole), False))
    return [
        {
            "task": task, "n": n, "binary": binary, "choice": None if note else choice, "ties": ties, "part": part,
        }
        for task, n, binary, choice, ties, part in lines
    ], note  # fmt: skip


def _interval(scores: np.ndarray, groups: np.ndarray) -> tuple[float | None, float | None]:
    """Return Wilson's 95 % interval of a share, with as many trials as independent ones would have this variance between groups."""
    _, codes = np.unique(groups, return_inverse=True)
    share, n = float(scores.mean()), int(codes.max()) + 1
    if n < 2:
        return None, None
    sums = np.bincount(codes, scores - share)
    variance = float(np.sum(sums**2)) * n / (n - 1) / len(scores) ** 2
    trials = min(share * (1 - share) / variance, len(scores)) if variance else n
    middle = (share + 1.96**2 / (2 * trials)) / (1 + 1.96**2 / trials)
    half = 1.96 * np.sqrt(share * (1 - share) / trials + (1.96 / (2 * trials)) ** 2) / (1 + 1.96**2 / trials)
    return max(middle - float(half), 0.0), min(middle + float(half), 1.0)


def margins(asked: Questions) -> list[Margins]:
    """Count by how much images are nearer their captions than the nearest wrong ones, by task if there are few."""
    right, wrong = asked.cosines
    margin = right - wrong.max(axis=1)
    far = float(np.abs(margin).max()) or 1.0
    edges = np.linspace(-far, far, 41)
    parts = [("all", np.ones(len(margin), dtype=bool))]
    if asked.tasks is not None and 1 < len(names := np.unique(asked.tasks)) <= _HISTOGRAMS:
        parts = [(str(name), asked.tasks == name) for name in names]
    return [
        {
            "name": name,
            "n": int(of.sum()),
            "edges": edges.tolist(),
            "counts": (np.histogram(margin[of], edges)[0] / of.sum()).tolist(),
            "mean": float(margin[of].mean()),
        }
        for name, of in parts
    ]


def examples_of(
    asked: Questions, count: int, pictures: str | Path | Mapping[str, object] | None
) -> list[dict[str, object]]:
    """Select examples: correct with the largest margins, correct with the smallest, and wrong with the largest; each image once."""
    right, wrong = asked.cosines
    nearest = wrong.argmax(axis=1)
    margin = right - wrong[np.arange(len(wrong)), nearest]
    order = np.argsort(margin, kind="stable")
    ways = {
        "wide": order[::-1][margin[order[::-1]] > TIE],
        "narrow": order[margin[order] > TIE],
        "wrong": order[margin[order] < -TIE],
    }
    used: set[str] = set()
    out: list[dict[str, object]] = []
    for kind, rows in ways.items():
        taken = 0
        for row in rows.tolist():
            image = str(asked.groups[row])
            if taken == count:
                break
            if image in used:
                continue
            used.add(image)
            taken += 1
            caption = None if asked.texts is None else str(asked.texts[0][row])
            other = None if asked.texts is None else str(asked.texts[1][row, nearest[row]])
            out.append(
                {
                    "kind": kind,
                    "name": str(asked.names[row]),
                    "image": image,
                    "task": None if asked.tasks is None else str(asked.tasks[row]),
                    "picture": None if pictures is None else thumbnail(pictures, image),
                    "caption": caption,
                    "wrong": None if caption is None or other is None else changed(caption, other),
                    "cosine": float(right[row]),
                    "cosine_wrong": float(wrong[row, nearest[row]]),
                }
            )
    return out


def changed(caption: str, other: str) -> list[list[Any]]:
    """Cut a text into pieces, each with whether it is not in another one.

    Examples
    --------
    >>> changed("a red cat sits", "a blue cat sits")
    [['a', False], ['blue', True], ['cat sits', False]]
    """
    theirs, mine = caption.split(), other.split()
    found = difflib.SequenceMatcher(None, theirs, mine, autojunk=False).get_opcodes()
    new = np.array([kind != "equal" for kind, _, _, a, b in found for _ in range(a, b)], dtype=bool)
    if len(mine) == len(theirs):  # what was swapped reads best word by word
        in_place = np.array([a != b for a, b in zip(mine, theirs, strict=True)], dtype=bool)
        new = in_place if in_place.sum() <= new.sum() else new
    pieces: list[list[Any]] = []
    for word, is_new in zip(mine, new.tolist(), strict=True):
        if pieces and pieces[-1][1] == is_new:
            pieces[-1][0] += f" {word}"
        else:
            pieces.append([word, is_new])
    return pieces


def thumbnail(pictures: str | Path | Mapping[str, object], name: str) -> str:
    """Return a scaled-down picture as a data URI.

    Parameters
    ----------
    pictures : path-like or mapping
        A folder in which images have their names, or paths, bytes or ``PIL.Image`` by name.
    name : str

    Returns
    -------
    str
        JPEG of 128 pixels at most, nothing of the file's metadata in it, and not turned by it: as encoders see the image.

    Raises
    ------
    FileError, CorruptFileError, DtypeError, MissingExtraError
        If arrays are not real numbers; a file cannot be read; a file is damaged; or an optional dependency is not installed.
    ParameterError
        A name that leads out of the folder.
    """
    pil = require("PIL.Image", extra="images")
    if isinstance(pictures, Mapping):
        if name not in pictures:
            raise FileError(f"Got no picture of {name!r}; expected one. Add it to the folder, or leave out pictures=….")
        item = pictures[name]
    else:
        place = Path(name)
        if (
            place.is_absolute() or ".." in place.parts
        ):  # a list of names from elsewhere must not put any file into a page
            raise ParameterError(
                f"Got the image {name!r}, which leads out of the folder of pictures; expected the name of a file in it. Remove the folders from the name."
            )
        item = Path(pictures).expanduser() / place
    image = open_image(item)
    image.thumbnail((THUMBNAIL, THUMBNAIL))
    bare = pil.new("RGB", image.size)
    bare.paste(image)
    file = io.BytesIO()
    bare.save(file, "JPEG", quality=80)
    return f"data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode()}"
