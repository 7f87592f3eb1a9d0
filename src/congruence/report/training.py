"""Compute the data of a joint-space map's page, its training and its retrieval scores, from the map and embeddings of both models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from congruence._utils.columns import to_rows
from congruence._utils.ids import id_texts
from congruence._utils.validation import check_positive, check_seed
from congruence._version import __version__
from congruence.datasets import SugarCrepe
from congruence.embeddings import Embeddings, Space, normalize_rows
from congruence.errors import FileError, InputError, ParameterError, ShapeError
from congruence.maps import HeadsMap, Map
from congruence.report import caption_choices, history
from congruence.report.caption_choices import CaptionChoices
from congruence.report.heldout import records_split, unseen_rows
from congruence.splits import duplicate_groups
from congruence.train.captions import Captions, read_captions
from congruence.train.retrieval import chance_recall, first_of_label, recalls

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from congruence._utils.typing import Labels, RowsLike

__all__ = ["summarize_training"]


def summarize_training(
    mapping: Map,
    images: RowsLike,
    captions: RowsLike,
    negatives: RowsLike | None = None,
    *,
    groups: Labels | None = None,
    tasks: Labels | None = None,
    texts: tuple[ArrayLike, ArrayLike] | None = None,
    items: SugarCrepe | None = None,
    pictures: str | Path | Mapping[str, Any] | None = None,
    held_out: bool | None = None,
    note: str | None = None,
    options: int = 5,
    random_state: int = 0,
    examples: int = 3,
) -> dict[str, Any]:
    """Score a joint-space map, and return everything that its page shows, as plain data.

    Parameters
    ----------
    mapping : HeadsMap
        A fitted map: JAM, SOTAlign, a baseline, or a closed form.
    images, captions, negatives, groups
        As in :meth:`congruence.train.JAM.fit`: rows of the source, rows of the target, wrong rows of the target, and the image of each row.
        Without ``groups``, rows with identical vectors belong to the same image. To measure on the test rows of the training, pass all rows
        that it was given, including those it was trained on.
    tasks : sequence of str, shape (n,), optional
        Kind of each wrong caption.
    texts : tuple, optional
        The texts of the captions, shape (n,), and of the wrong captions, shape (n,) or (n, k).
    items : SugarCrepe, optional
        The items that the rows belong to, instead of ``groups``, ``tasks`` and ``texts``. All of these are in the order of ``captions``.
    pictures : path-like or mapping, optional
        Folder of images named as in ``groups``, or a mapping from these names to paths, bytes or ``PIL.Image``. Only the images shown are
        opened, which needs the extra ``images``.
    held_out : bool, optional
        Measure only on the rows that the map's training held out for testing. By default, if the map records the split.
    note : str, optional
        A sentence to show below the title.
    options : int, default=5
        Number of captions to choose among in the second recall by task: the caption, one wrong caption, and captions of other images.
    random_state : int, default=0
        Determines which captions of other images these are.
    examples : int, default=3
        Number of examples of each kind.

    Returns
    -------
    dict
        JSON-able: numbers, text, lists, and thumbnails as data URIs.

    Raises
    ------
    ParameterError
        If the map is not a joint-space map, an option is out of range, or an argument is given without another one that it needs or together
        with one that replaces it.
    InputError
        If ``held_out`` is set for a map that does not record a split, or the rows are split differently than in the training.
    SpaceMismatchError, DirectionError
        If the embeddings belong to other models, or source and target are exchanged.
    FileError, CorruptFileError, MissingExtraError
        If a picture is missing or cannot be decoded, or Pillow is not installed.
    ShapeError, DtypeError, NotFiniteError, ZeroRowError, IdError
        If arrays have the wrong shape, are not real numbers, contain NaN or infinity or have a row of zeros, or ids are missing, repeated
        or without a partner.
    """
    check_seed(random_state)
    if not isinstance(mapping, HeadsMap):
        raise ParameterError(
            f"Got a map into the target's space ({mapping.kind}); expected a joint-space map. Use summarize for maps into the target's space."
        )
    _check_options(negatives, groups, tasks, texts, items, pictures)
    check_positive(options, "options", integer=True)
    check_positive(examples, "examples", zero=True, integer=True)
    for rows, side in ((images, "source"), (captions, "target")):
        if isinstance(rows, Embeddings):
            mapping.side_of(rows.space, side)
    shape = (captions.vectors if isinstance(captions, Embeddings) else to_rows(captions, "captions")).shape
    n = shape[0] if shape else 0
    data = read_captions(images, captions, negatives, np.arange(n))
    order = data.groups  # row numbers of the captions, in the order of the pairs
    if isinstance(captions, Embeddings) and captions.has_ids:
        ids = names = id_texts(captions.ids)
    else:
        ids = np.arange(n).astype(str)
        names = np.char.add("row ", ids)
    if items is not None:
        if len(items) != n:
            raise ShapeError(
                f"Got {len(items)} items for {n} captions; expected one item per caption. Pass items=… with one item per caption."
            )
        groups, texts = items.filenames, (items.captions, items.negative_captions)
        tasks = [category.partition("_")[0] for category in items.categories.tolist()]
    image_names = names if groups is None else _column(groups, n, "groups")
    if groups is None:  # grouped as in the training: by identical vectors, or each row on its own
        recipe = mapping.scores_.get("recipe")
        ungrouped = isinstance(recipe, Mapping) and recipe.get("groups") == "none"
        numbers = np.arange(len(data)) if ungrouped else _duplicate_groups(mapping, data)
        data = replace(data, groups=numbers.astype(str))
    else:
        data = replace(data, groups=image_names[order])
    if held_out and not records_split(mapping):
        raise InputError(
            "Got held_out=True for a map that does not record how its rows were split; expected a map trained with held-out test rows. "
            "Leave out held_out=True, and pass rows that the map was not trained on."
        )
    heldout = records_split(mapping) and held_out is not False
    if heldout:
        rows = unseen_rows(mapping, data, ids[order])
        order, data = order[rows], data.take(rows)
    V, T = _unit(mapping.transform(data.source)), _unit(mapping.transform_target(data.target))
    choices = None
    if data.negatives is not None:
        k = data.negatives.shape[1]
        choices = CaptionChoices(
            images=V,
            captions=T,
            wrong=_unit(mapping.transform_target(data.negatives.reshape(len(data) * k, -1))).reshape(len(data), k, -1),
            names=names[order],
            groups=image_names[order],
            tasks=None if tasks is None else _column(tasks, n, "tasks")[order],
            texts=None if texts is None else _texts(texts, n, k, order),
            text_numbers=data.texts(),
            items=None if items is None else items.take(order),
        )
    nouns = _nouns(mapping)
    by_task = None if choices is None else caption_choices.by_task(choices, options, random_state)
    between = _retrieval(V, T, data)
    return {
        "version": __version__,
        "title": _title(mapping),
        "note": note,
        "held_out": heldout,
        "where": _measured_on(heldout, records_split(mapping)),
        "nouns": nouns,
        "verdict": _verdict(by_task, between, len(data), heldout, nouns),
        "facts": history.facts(mapping),
        "by_task": by_task,
        "margins": [] if choices is None else caption_choices.margins(choices),
        "examples": [] if choices is None else caption_choices.examples_of(choices, examples, pictures),
        "between": between,
        "teacher": history.teacher(mapping) if heldout else {},
        "notes": [str(note) for note in mapping.scores_.get("notes", [])],
        "method_source": history.source(mapping),
        "curves": history.curves(mapping),
        "validation": history.validation(mapping),
    }


def _check_options(
    negatives: object,
    groups: object,
    tasks: object,
    texts: object,
    items: object,
    pictures: str | Path | Mapping[str, Any] | None,
) -> None:
    if items is not None:
        for name, value in (("groups", groups), ("tasks", tasks), ("texts", texts)):
            if value is not None:
                raise ParameterError(
                    f"Got {name} together with items, which have their own; expected one of the two. Leave out {name}=…."
                )
    if negatives is None:
        for name, value in (("tasks", tasks), ("texts", texts), ("items", items), ("pictures", pictures)):
            if value is not None:
                raise ParameterError(
                    f"Got {name} without wrong captions; expected both, since {name} are only used with wrong captions. Pass negatives=…."
                )
    if pictures is not None:
        if groups is None and items is None:
            raise ParameterError(
                "Got pictures without the names of the images; expected both. Pass groups=… or items=… with the names."
            )
        if not isinstance(pictures, Mapping) and not Path(pictures).expanduser().is_dir():
            raise FileError(
                f"Got pictures={str(pictures)!r}, which is not a folder; expected a folder of images. Check the path."
            )


def _column(values: object, n: int, name: str) -> np.ndarray:
    column = np.asarray(values)
    if column.shape != (n,):
        raise ShapeError(
            f"Got {name} of shape {column.shape}; expected ({n},), one entry per caption. Pass {name}=… of that shape."
        )
    return column.astype(str)


def _texts(texts: object, n: int, k: int, order: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    if not isinstance(texts, (tuple, list)) or len(texts) != 2:
        raise ParameterError(
            "Got texts that are not (captions, wrong captions); expected these two. Pass texts=(captions, wrong)."
        )
    wrong = np.asarray(texts[1])
    if wrong.shape == (n,):
        wrong = wrong[:, None]
    if wrong.shape != (n, k):
        raise ShapeError(
            f"Got texts of wrong captions of shape {wrong.shape}; expected ({n}, {k}), one text per wrong caption. Pass texts=… whose second part has that shape."
        )
    return _column(texts[0], n, "texts")[order], wrong.astype(str)[order]


def _duplicate_groups(mapping: HeadsMap, data: Captions) -> np.ndarray:
    sides = ((data.source, mapping.source_space_), (data.target, mapping.target_space_))
    return duplicate_groups(*(Embeddings(rows, space=Space(modality=space.modality)) for rows, space in sides))


def _unit(rows: np.ndarray) -> np.ndarray:
    return normalize_rows(rows.astype(np.float64))


def _title(mapping: HeadsMap) -> str:
    source, target = mapping.source_space_.model, mapping.target_space_.model
    return f"{source or 'source model'} + {target or 'target model'}"


def _nouns(mapping: HeadsMap) -> dict[str, str]:
    """Return a noun for a row of each side, such as image and text."""
    sides = {"source": mapping.source_space_.modality, "target": mapping.target_space_.modality}
    if sides["source"] == sides["target"]:
        return {side: f"{side} {modality or 'row'}" for side, modality in sides.items()}
    return {side: modality or f"{side} row" for side, modality in sides.items()}


def _retrieval(V: np.ndarray, T: np.ndarray, data: Captions) -> dict[str, object]:
    """Measure recall at k in both directions. Identical rows of a side count once, since they would fill several of the k places."""
    sides = [first_of_label(rows, data.groups) for rows in (data.source, data.target)]
    source, target = (data.groups[rows] for rows in sides)
    scores = recalls(V[sides[0]], T[sides[1]], source, target)
    rows = []
    for k in (1, 5, 10):
        if f"mean@{k}" in scores:
            row: dict[str, object] = {"k": k}
            for way, queries, gallery in (("source_to_target", source, target), ("target_to_source", target, source)):
                row[way] = scores[f"{way}@{k}"]
                row[f"{way}_chance"] = chance_recall(queries, gallery, k)
            rows.append(row)
    return {"rows": rows, "source": len(source), "target": len(target), "groups": len(np.unique(data.groups))}


def _measured_on(heldout: bool, split_known: bool) -> str:
    if heldout:
        return "Measured on the rows that the map’s training held out for testing: they were not used to train it or to choose parameters."
    if split_known:
        return "Measured on all rows given, which may include rows that the map was trained on."
    return "Measured on the rows given; it is not known whether the map was trained on some of them."


def _verdict(
    by_task: dict[str, Any] | None, between: dict[str, Any], n: int, heldout: bool, nouns: dict[str, str]
) -> dict[str, object]:
    """Return the level of the verdict, and a sentence with the scores."""
    unseen = "held out from training" if heldout else "given"
    first = between["rows"][0]
    if by_task is None:
        forth, back = (
            f"{first[way]:.1%} (chance {first[f'{way}_chance']:.1%})"
            for way in ("source_to_target", "target_to_source")
        )
        sentence = (
            f"On {n:,} pairs {unseen}, {_with_article(nouns['source'])} finds its own {nouns['target']} first of {between['target']:,} in "
            f"{forth} of cases, and {_with_article(nouns['target'])} its own {nouns['source']} first of {between['source']:,} in {back}."
        )
        return {"level": "", "sentence": sentence}
    total = [row for row in by_task["rows"] if not row["part"]][-1]
    chance, k = by_task["chance"], by_task["wrong"]
    low, high = by_task["low"], by_task["high"]
    level, interval = "", ""
    if low is not None:
        level = "passes" if low > chance["binary"] else "fails" if high < chance["binary"] else "partial"
        interval = f"; 95 % interval {low:.1%} to {high:.1%}"
    if level == "partial":
        interval += ", which includes chance"
    among = ""
    if total["choice"] is not None:
        among = f", and {total['choice']:.1%} among {by_task['options']} captions (chance {chance['choice']:.1%})"
    sentence = (
        f"On {n:,} captions of {between['groups']:,} images {unseen}, an image is nearer its caption than "
        f"{'the wrong one' if k == 1 else f'each of {k} wrong ones'} in {total['binary']:.1%} of cases (chance "
        f"{chance['binary']:.1%}{interval}){among}. Among all {between['target']:,} captions, one of its own is first for "
        f"{first['source_to_target']:.1%} of images (chance {first['source_to_target_chance']:.1%})."
    )
    return {"level": level, "sentence": sentence}


def _with_article(noun: str) -> str:
    return f"{'an' if noun[:1] in 'aeiou' else 'a'} {noun}"
