"""The choice between correct and wrong captions of images: recall by task, margins, and examples."""

from __future__ import annotations

import base64
import difflib
import io
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from congruence._utils.optional import require
from congruence.datasets import SugarCrepe
from congruence.encoders import open_image
from congruence.errors import FileError, ParameterError, TooFewAnchorsError
from congruence.evaluation.compositional import TIE, chosen, recall_by_task, sugarcrepe_recall

#: Longer side of a thumbnail, in pixels.
THUMBNAIL = 128

#: Largest number of tasks for which each has its own histogram.
_HISTOGRAMS = 6


@dataclass(frozen=True)
class CaptionChoices:
    """Images with their captions and wrong captions, mapped to the joint space.

    ``images`` and ``captions`` (n, d) and ``wrong`` (n, k, d) are unit rows in float64. ``names`` (n,) are the rows'
    names, ``groups`` (n,) their images, ``tasks`` (n,) the kinds of wrong captions. ``texts`` are those of captions
    (n,) and wrong captions (n, k), and ``text_numbers`` (n, 1 + k) their numbers; equal texts have equal numbers.
    ``items`` are SugarCrepe's, if the rows belong to it.
    """

    images: np.ndarray
    captions: np.ndarray
    wrong: np.ndarray
    names: np.ndarray
    groups: np.ndarray
    tasks: np.ndarray | None
    texts: tuple[np.ndarray, np.ndarray] | None
    text_numbers: np.ndarray
    items: SugarCrepe | None

    @cached_property
    def cosines(self) -> tuple[np.ndarray, np.ndarray]:
        """Cosines of each image with its caption, shape (n,), and with its wrong captions, shape (n, k)."""
        right = np.einsum("nd,nd->n", self.images, self.captions)
        return right, np.einsum("nd,nkd->nk", self.images, self.wrong)


def choice_recalls(choices: CaptionChoices, options: int, random_state: int) -> dict[str, Any]:
    """Measure recall between a caption and its wrong captions (``binary``), and with others too (``choice``).

    ``rows`` has one row per task and, if there are several tasks, a last one for all items; ``wrong`` is the number of
    wrong captions per image; ``options``, the number of captions in ``choice``, or None if there are too few other
    images, for which ``note`` gives the reason; ``low`` and ``high``, a 95 % interval of ``binary`` over all items,
    which treats images as the sampling units (None for a single image).
    """
    right, wrong = choices.cosines
    k, binary = wrong.shape[1], chosen(right, wrong)
    if choices.items is None:
        lines, note = recall_by_task(
            choices.images,
            choices.captions,
            choices.wrong,
            choices.groups,
            choices.tasks,
            texts=choices.text_numbers,
            options=options,
            random_state=random_state,
        )
        rows: list[dict[str, object]] = [{**row, "part": False} for row in lines]
    else:
        rows, note = _sugarcrepe_rows(choices, choices.items, options, random_state)
    low, high = _interval(binary, choices.groups)
    return {
        "rows": rows,
        "wrong": k,
        "options": None if note else options + k - 1,
        "note": note,
        "chance": {"binary": 1 / (1 + k), "choice": None if note else 1 / (options + k - 1)},
        "images": len(np.unique(choices.groups)),
        "low": low,
        "high": high,
    }


def _sugarcrepe_rows(
    choices: CaptionChoices, items: SugarCrepe, options: int, random_state: int
) -> tuple[list[dict[str, object]], str | None]:
    """Return SugarCrepe's tasks, with a last row for all items, and a note if captions for ``choice`` are too few."""
    sides, note = (choices.images, choices.captions, choices.wrong[:, 0]), None
    try:
        recalls = sugarcrepe_recall(items, *sides, options=options, random_state=random_state)
    except TooFewAnchorsError:
        recalls = sugarcrepe_recall(items, *sides, options=2, random_state=random_state)
        note = f"one of the tasks has fewer than {options - 2} captions of other images to draw."
    lines: list[dict[str, Any]] = [
        {"task": line.task, "n": line.n, "binary": line.binary, "choice": None if note else line.choice}
        | {"ties": line.ties, "part": ", " in line.task}
        for line in recalls
    ]
    tasks = [line for line in lines if not line["part"]]  # items of parts would be counted twice
    if len(tasks) > 1:
        n = sum(line["n"] for line in tasks)
        binary, choice = (
            None if name == "choice" and note else sum(line["n"] * line[name] for line in tasks) / n
            for name in ("binary", "choice")
        )
        ties = sum(line["ties"] for line in tasks)
        lines.append({"task": "all", "n": n, "binary": binary, "choice": choice, "ties": ties, "part": False})
    return lines, note


def _interval(scores: np.ndarray, groups: np.ndarray) -> tuple[float | None, float | None]:
    """Return Wilson's 95 % interval of a share, for independent trials with the variance observed between groups."""
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


def margins(choices: CaptionChoices) -> list[dict[str, Any]]:
    """Return histograms of the caption's cosine minus that of the nearest wrong caption, by task if they are few."""
    right, wrong = choices.cosines
    margin = right - wrong.max(axis=1)
    largest = float(np.abs(margin).max()) or 1.0
    edges = np.linspace(-largest, largest, 41)
    parts = [("all", np.ones(len(margin), dtype=bool))]
    if choices.tasks is not None and 1 < len(names := np.unique(choices.tasks)) <= _HISTOGRAMS:
        parts = [(str(name), choices.tasks == name) for name in names]
    return [
        {
            "name": name,
            "n": int(mask.sum()),
            "edges": edges.tolist(),
            "counts": (np.histogram(margin[mask], edges)[0] / mask.sum()).tolist(),
            "mean": float(margin[mask].mean()),
        }
        for name, mask in parts
    ]


def examples_of(
    choices: CaptionChoices, count: int, pictures: str | Path | Mapping[str, object] | None
) -> list[dict[str, object]]:
    """Select examples, each image once: right with the largest margins, with the smallest, and most wrong."""
    right, wrong = choices.cosines
    nearest = wrong.argmax(axis=1)
    margin = right - wrong[np.arange(len(wrong)), nearest]
    order = np.argsort(margin, kind="stable")
    ranked = {
        "wide": order[::-1][margin[order[::-1]] > TIE],
        "narrow": order[margin[order] > TIE],
        "wrong": order[margin[order] < -TIE],
    }
    used: set[str] = set()
    out: list[dict[str, object]] = []
    for kind, rows in ranked.items():
        n_selected = 0
        for row in rows.tolist():
            image = str(choices.groups[row])
            if n_selected == count:
                break
            if image in used:
                continue
            used.add(image)
            n_selected += 1
            caption = None if choices.texts is None else str(choices.texts[0][row])
            other = None if choices.texts is None else str(choices.texts[1][row, nearest[row]])
            out.append(
                {
                    "kind": kind,
                    "name": str(choices.names[row]),
                    "image": image,
                    "task": None if choices.tasks is None else str(choices.tasks[row]),
                    "picture": None if pictures is None else thumbnail(pictures, image),
                    "caption": caption,
                    "wrong": None if caption is None or other is None else changed(caption, other),
                    "cosine": float(right[row]),
                    "cosine_wrong": float(wrong[row, nearest[row]]),
                }
            )
    return out


def changed(caption: str, other: str) -> list[list[Any]]:
    """Split a changed caption into pieces, each with whether it differs from the original.

    Examples
    --------
    >>> changed("a red cat sits", "a blue cat sits")
    [['a', False], ['blue', True], ['cat sits', False]]
    """
    before, after = caption.split(), other.split()
    opcodes = difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
    new = np.array([kind != "equal" for kind, _, _, a, b in opcodes for _ in range(a, b)], dtype=bool)
    if len(after) == len(before):  # for swapped words, a comparison position by position may mark fewer words
        in_place = np.array([a != b for a, b in zip(after, before, strict=True)], dtype=bool)
        new = in_place if in_place.sum() <= new.sum() else new
    pieces: list[list[Any]] = []
    for word, is_new in zip(after, new.tolist(), strict=True):
        if pieces and pieces[-1][1] == is_new:
            pieces[-1][0] += f" {word}"
        else:
            pieces.append([word, is_new])
    return pieces


def thumbnail(pictures: str | Path | Mapping[str, object], name: str) -> str:
    """Return a picture, scaled down to 128 pixels, as a data URI of a JPEG without the file's metadata.

    ``pictures`` is a folder of images, in which ``name`` is the path of a file, or a mapping from names to paths, bytes
    or ``PIL.Image``. EXIF rotation is not applied, as for the encoders.
    """
    pil = require("PIL.Image", extra="images")
    if isinstance(pictures, Mapping):
        if name not in pictures:
            raise FileError(f"No picture of {name!r}.", "Add it to `pictures=…`, or leave out `pictures=…`.")
        item = pictures[name]
    else:
        path = Path(name)
        # Names may come from a file of others, and must not put files from outside of the folder on a page.
        if path.is_absolute() or ".." in path.parts:
            raise ParameterError(
                f"The image {name!r} is outside of the folder of pictures.", "Leave folders out of names."
            )
        item = Path(pictures).expanduser() / path
    image = open_image(item)
    image.thumbnail((THUMBNAIL, THUMBNAIL))
    without_metadata = pil.new("RGB", image.size)
    without_metadata.paste(image)
    file = io.BytesIO()
    without_metadata.save(file, "JPEG", quality=80)
    return f"data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode()}"
