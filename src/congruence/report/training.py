"""The page of a trained joint-space map, and the computation of its data: its training and its retrieval scores."""

from __future__ import annotations

import difflib
import io
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from congruence._utils.columns import to_rows
from congruence._utils.ids import id_texts
from congruence._utils.optional import require
from congruence._utils.validation import check_positive, check_seed
from congruence._version import __version__
from congruence.datasets import SugarCrepe
from congruence.embeddings import Embeddings, Space, normalize_rows
from congruence.encoders import open_image
from congruence.errors import FileError, InputError, ParameterError, ShapeError, TooFewAnchorsError
from congruence.evaluation.compositional import TIE, chosen, recall_by_task, sugarcrepe_recall
from congruence.maps import HeadsMap, Map
from congruence.maps.history import History
from congruence.plotting import draw_loss, draw_margins, draw_recalls, draw_validation, loss_curves, validation_curve
from congruence.report.rendering import fill, svg
from congruence.report.summary import data_uri
from congruence.splits import Split, duplicate_groups
from congruence.train import split_by_group
from congruence.train.jam import Captions, read_captions
from congruence.train.retrieval import chance_recall, first_of_label, recalls, unique_pairs
from congruence.upgrade.certify.estimates import rate_interval

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from congruence._utils.typing import Labels, RowsLike


_WAYS = ("source_to_target", "target_to_source")  # directions of retrieval


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
    """Score a joint-space map, and return everything that its page shows, as plain data with pictures as data URIs.

    Parameters
    ----------
    images, captions, negatives, groups
        As in ``congruence.train.JAM.fit``: rows of the source, rows of the target, wrong rows of the target, and
        the image of each row. Without ``groups``, rows with identical vectors belong to the same image. To measure on
        the test rows of the training, pass all rows that it was given, including those it was trained on.
    tasks, texts : optional
        Kind of each wrong caption, shape (n,); texts of the captions, (n,), and of the wrong captions, (n,) or (n, k).
    items : SugarCrepe, optional
        The items that the rows belong to, in the order of ``captions``, instead of ``groups``, ``tasks`` and ``texts``.
    pictures : path-like or mapping, optional
        Folder of images named as in ``groups``, or a mapping from these names to paths, bytes or ``PIL.Image``. Only
        the images shown are opened, which needs the extra ``images``.
    held_out : bool, optional
        Measure only on the rows that the map's training held out for testing. By default, if the map records the split.
    note : str, optional
        A sentence to show below the title.
    options : int, default=5
        Captions to choose among in the second recall by task: the right one, a wrong one, and those of other images.
    examples : int, default=3
        Number of examples of each kind.
    """
    check_seed(random_state)
    if not isinstance(mapping, HeadsMap):
        problem = f"Got a map into the new model's space ({mapping.kind}); expected a joint-space map."
        raise ParameterError(problem, "Use summarize.")
    check_options(negatives, {"groups": groups, "tasks": tasks, "texts": texts}, items, pictures)
    check_positive(options, "options", integer=True)
    check_positive(examples, "examples", zero=True, integer=True)
    for rows, side in ((images, "source"), (captions, "target")):
        if isinstance(rows, Embeddings):
            mapping.side_of(rows.space, side)
    n = len(np.atleast_1d(captions.vectors if isinstance(captions, Embeddings) else to_rows(captions, "captions")))
    data = read_captions(images, captions, negatives, np.arange(n))
    order = data.groups  # row numbers of the captions, in the order of the pairs
    if isinstance(captions, Embeddings) and captions.has_ids:
        ids = names = id_texts(captions.ids)
    else:
        ids = np.arange(n).astype(str)
        names = np.char.add("row ", ids)
    if items is not None:
        if len(items) != n:
            raise ShapeError(f"Got {len(items)} items for {n} captions.", "Pass `items=…` with one item per caption.")
        groups, texts = items.filenames, (items.captions, items.negative_captions)
        tasks = [category.partition("_")[0] for category in items.categories.tolist()]
    image_names = names if groups is None else _column(groups, (n,), "groups")
    data = replace(data, groups=_same_rows(mapping, data) if groups is None else image_names[order])
    if held_out and not records_split(mapping):
        problem = "This map does not record how its rows were split."
        raise InputError(problem, "Leave out `held_out=True`, and pass rows that the map was not trained on.")
    heldout = records_split(mapping) and held_out is not False
    if heldout:
        rows = unseen_rows(mapping, data, ids[order])
        order, data = order[rows], data.take(rows)
    V, T = mapping.transform(data.source), mapping.transform_target(data.target)
    V, T = (normalize_rows(side, dtype=np.float64) for side in (V, T))
    choices = None
    if data.negatives is not None:
        k = data.negatives.shape[1]
        wrong = mapping.transform_target(data.negatives.reshape(len(data) * k, -1))
        choices = CaptionChoices(
            images=V,
            captions=T,
            wrong=normalize_rows(wrong, dtype=np.float64).reshape(len(data), k, -1),
            names=names[order],
            groups=image_names[order],
            tasks=None if tasks is None else _column(tasks, (n,), "tasks")[order],
            texts=None if texts is None else _texts(texts, n, k, order),
            text_numbers=data.texts(),
            items=None if items is None else items.take(order),
        )
    nouns = _nouns(mapping)
    facts = getattr(mapping, "facts_", {})
    record = facts.get("history")
    record = History.from_dict(record).to_dict() if isinstance(record, Mapping) else {}
    by_task = None if choices is None else choice_recalls(choices, options, random_state)
    between = _retrieval(V, T, data, mapping.search_banks)
    return {
        "version": __version__,
        "title": f"{mapping.source_space_.model or 'first model'} + {mapping.target_space_.model or 'second model'}",
        "note": note,
        "held_out": heldout,
        "where": _MEASURED_ON["held out" if heldout else "all" if records_split(mapping) else "unknown"],
        "nouns": nouns,
        "verdict": _verdict(by_task, between, len(data), heldout, nouns),
        "facts": _facts(mapping),
        "by_task": by_task,
        "margins": [] if choices is None else margins(choices),
        "examples": [] if choices is None else examples_of(choices, examples, pictures),
        "between": between,
        "teacher": _teacher(mapping) if heldout else {},
        "notes": [str(note) for note in mapping.scores_.get("notes", [])],
        "method_source": _SOURCES.get(str(facts.get("method"))),
        "curves": loss_curves(record),
        "validation": validation_curve(record, mapping.scores_.get("teacher_validation_mean_recall_at_1")),
    }


def _same_rows(mapping: HeadsMap, data: Captions) -> np.ndarray:
    """Return groups as in the training: rows with identical vectors, or each row on its own."""
    recipe = mapping.scores_.get("recipe")
    if isinstance(recipe, Mapping) and recipe.get("groups") == "none":
        return np.arange(len(data)).astype(str)
    sides = ((data.source, mapping.source_space_), (data.target, mapping.target_space_))
    rows = [Embeddings(vectors, space=Space(modality=space.modality)) for vectors, space in sides]
    return duplicate_groups(*rows).astype(str)


def check_options(
    negatives: object, described: Mapping[str, object], items: object, pictures: str | Path | Mapping[str, Any] | None
) -> None:
    """Refuse descriptions of the rows that contradict each other; ``described``: groups, tasks and texts."""
    given = [name for name, value in described.items() if value is not None]
    if items is not None and given:
        problem = f"Got `{given[0]}=…` together with `items=…`, which has its own."
        raise ParameterError(problem, f"Leave out `{given[0]}=…`.")
    if negatives is None:
        for name, value in {**described, "groups": None, "items": items, "pictures": pictures}.items():
            if value is not None:
                raise ParameterError(f"Got `{name}=…` without wrong captions.", "Pass `negatives=…`.")
    if pictures is not None:
        if "groups" not in given and items is None:
            raise ParameterError(
                "Got `pictures=…` without `groups=…` or `items=…`, the names of the images.", "Pass one."
            )
        if not isinstance(pictures, Mapping) and not Path(pictures).expanduser().is_dir():
            raise FileError(f"{str(pictures)!r} is not a folder.", "Pass a folder as `pictures=…`.")


def _column(values: object, shape: tuple[int, ...], name: str) -> np.ndarray:
    column = np.asarray(values)
    if column.shape != shape:
        problem = f"Got {name} of shape {column.shape}; expected {shape}."
        raise ShapeError(problem, f"Pass {name} with one entry per caption.")
    return column.astype(str)


def _texts(texts: object, n: int, k: int, order: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    if not isinstance(texts, (tuple, list)) or len(texts) != 2:
        raise ParameterError("Got texts other than (captions, wrong captions).", "Pass `texts=(captions, wrong)`.")
    wrong = np.asarray(texts[1])
    wrong = wrong[:, None] if wrong.ndim == 1 else wrong
    return _column(texts[0], (n,), "texts")[order], _column(wrong, (n, k), "texts of wrong captions")[order]


def _nouns(mapping: HeadsMap) -> dict[str, str]:
    sides = {"source": mapping.source_space_.modality, "target": mapping.target_space_.modality}
    if sides["source"] == sides["target"]:
        return {side: f"{side} {modality or 'row'}" for side, modality in sides.items()}
    return {side: modality or f"{side} row" for side, modality in sides.items()}


def _retrieval(
    V: np.ndarray, T: np.ndarray, data: Captions, banks: tuple[np.ndarray, np.ndarray] | None
) -> dict[str, object]:
    """Measure recall at k in both directions; identical rows of a side, which would fill several places, count once."""
    first = [first_of_label(rows, data.groups) for rows in (data.source, data.target)]
    source, target = (data.groups[rows] for rows in first)
    scores = recalls(V[first[0]], T[first[1]], source, target, banks=banks)
    rows = []
    for k in (k for k in (1, 5, 10) if f"mean@{k}" in scores):
        row: dict[str, object] = {"k": k}
        for way, queries, gallery in zip(_WAYS, (source, target), (target, source), strict=True):
            row |= {way: scores[f"{way}@{k}"], f"{way}_chance": chance_recall(queries, gallery, k)}
        rows.append(row)
    return {"rows": rows, "source": len(source), "target": len(target), "groups": len(np.unique(data.groups))}


def _verdict(
    by_task: dict[str, Any] | None, between: dict[str, Any], n: int, heldout: bool, nouns: dict[str, str]
) -> dict[str, object]:
    """Return the level of the verdict, and a sentence with the scores."""
    unseen = "held out from training" if heldout else "given"
    first = between["rows"][0]
    if by_task is None:
        articles = {side: "an" if noun[:1] in "aeiou" else "a" for side, noun in nouns.items()}
        forth, back = (f"{first[way]:.1%} (chance {first[f'{way}_chance']:.1%})" for way in _WAYS)
        sentence = (
            f"On {n:,} pairs {unseen}, {articles['source']} {nouns['source']} finds its own {nouns['target']} first of "
            f"{between['target']:,} in {forth} of cases, and {articles['target']} {nouns['target']} its own "
            f"{nouns['source']} first of {between['source']:,} in {back}."
        )
        return {"level": "", "sentence": sentence}
    total = [row for row in by_task["rows"] if not row["part"]][-1]
    chance, k = by_task["chance"], by_task["wrong"]
    low, high = by_task["low"], by_task["high"]
    level, interval, among = "", "", ""
    if low is not None:
        level = "passes" if low > chance["binary"] else "fails" if high < chance["binary"] else "partial"
        includes = ", which includes chance" if level == "partial" else ""
        interval = f"; 95 % interval {low:.1%} to {high:.1%}{includes}"
    if total["choice"] is not None:
        among = f", and {total['choice']:.1%} among {by_task['options']} captions (chance {chance['choice']:.1%})"
    sentence = (
        f"On {n:,} captions of {between['groups']:,} images {unseen}, an image is nearer its caption than "
        f"{'the wrong one' if k == 1 else f'each of {k} wrong ones'} in {total['binary']:.1%} of cases (chance "
        f"{chance['binary']:.1%}{interval}){among}. Among all {between['target']:,} captions, one of its own is "
        f"first for {first['source_to_target']:.1%} of images (chance {first['source_to_target_chance']:.1%})."
    )
    return {"level": level, "sentence": sentence}


#: Which rows were measured.
_MEASURED_ON = {
    "held out": "Measured on the rows that the map’s training held out for testing: they were not used to train it or "
    "to choose parameters.",
    "all": "Measured on all rows given, which may include rows that the map was trained on.",
    "unknown": "Measured on the rows given; it is not known whether the map was trained on some of them.",
}

#: Names of the training parameters that the page shows if a map has them.
_PARAMETERS = {
    "divergence_weight": "α",
    "spread_mix": "α",
    "temperature": "τ",
    "teacher": "Teacher",
    "divergence": "Divergence",
    "pair_loss": "Loss on pairs",
    "learning_rate": "Learning rate",
    "random_state": "Seed",
}

#: Paper of each method.
_SOURCES = {
    "jam": "JAM after Yoon, Yue and Kim (2025), “Escaping Plato’s Cave”.",
    "sotalign": "SOTAlign after Roschmann et al. (2026), “SOTAlign”.",
}


def _facts(mapping: HeadsMap) -> list[list[str]]:
    recorded = getattr(mapping, "facts_", {})
    parameters, size, error = (recorded.get(name, {}) for name in ("training", "size", "reconstruction_error"))
    method = str(recorded.get("method", mapping.kind))
    widths = [str(width) for width in [*_list(parameters.get("hidden")), mapping.d_out]]
    out = [
        ["First model", f"{mapping.source_space_.model or 'unnamed'}, {mapping.n_features_in_}-d"],
        ["Second model", f"{mapping.target_space_.model or 'unnamed'}, {mapping.d_target}-d"],
        ["Method", method + (f", loss {parameters['loss']}" if "loss" in parameters else "")],
        ["Widths, to the joint space", " → ".join(widths)],
    ]
    for side in ("source", "target"):
        if f"{side}_parameters" in size:
            weights, flops = size[f"{side}_parameters"] / 1e6, size[f"{side}_flops_per_row"] / 1e6
            out.append([f"{side.capitalize()} autoencoder", f"{weights:.3g} M parameters, {flops:.3g} MFLOP per row"])
    if "split" in recorded:
        counts = ", ".join(f"{recorded['split'][part]:,}" for part in ("train", "validation", "test"))
        out.append(["Training, validation and test rows", counts])
    elif getattr(mapping, "n_pairs_", 0):
        unpaired = [key.removeprefix("n_unpaired_") for key in recorded if key.startswith("n_unpaired_")]
        counted = [f"{recorded[f'n_unpaired_{side}']:,} unpaired {side} rows" for side in unpaired]
        out.append(["Trained on", ", ".join([f"{mapping.n_pairs_:,} pairs", *counted])])
    if "steps" in recorded:
        best = recorded.get("best_step")
        out.append(["Steps", f"{recorded['steps']:,}" + ("" if best is None else f", weights of step {best:,} kept")])
    unused = "temperature" if parameters.get("pair_loss") == "siglip" else None
    shown = [(name, parameters.get(key)) for key, name in _PARAMETERS.items() if key != unused]
    shown += [("α at the best step", recorded.get("alpha_at_best")), ("τ learned", recorded.get("temperature"))]
    for name, value in shown:
        if value is not None:
            out.append([name, " → ".join(f"{v:g}" if isinstance(v, float) else str(v) for v in _list(value))])
    if error:
        shares = ", ".join(f"{side} {error[side]:.1%}" for side in ("source", "target"))
        out.append([f"Variance not reconstructed, {error['rows']} rows", shares])
    return out


def _teacher(mapping: HeadsMap) -> dict[int, dict[str, float]]:
    """Return the recalls of the linear teacher on the training's test rows, by k."""
    scores = mapping.scores_
    names = {k: {way: f"teacher_test_{way}@{k}" for way in _WAYS} for k in (1, 5, 10)}
    known = {k: named for k, named in names.items() if all(name in scores for name in named.values())}
    return {k: {way: float(scores[name]) for way, name in named.items()} for k, named in known.items()}


def _list(value: object) -> list[object]:
    return list(value) if isinstance(value, (list, tuple)) else [] if value is None else [value]


#: Largest relative difference of two equal reconstruction errors: other rows differ by more, other machines by less.
_TOLERANCE = 1e-4

_ADVICE = "Pass the same files, groups and order, or `held_out=False` to measure on all rows."


def records_split(mapping: HeadsMap) -> bool:
    """Return whether a map records how its training rows were split, and what is needed to check a repetition."""
    facts = getattr(mapping, "facts_", {})
    by_groups = all(isinstance(facts.get(name), Mapping) for name in ("split", "training", "reconstruction_error"))
    return "holdout" in mapping.scores_ or by_groups


def unseen_rows(mapping: HeadsMap, data: Captions, names: np.ndarray) -> np.ndarray:
    """Return the numbers of the rows that the map's own training held out for testing; refuse other rows."""
    if "holdout" not in mapping.scores_:
        return _group_test_rows(mapping, data)
    rows = np.flatnonzero(Split.from_dict(mapping.scores_["holdout"]).held_out(names))
    if not len(rows):
        _refuse("none of them was held out")
    if "test_pairs" in mapping.scores_:
        _check_test_rows(mapping, data.take(rows))
    return rows


def _group_test_rows(mapping: HeadsMap, data: Captions) -> np.ndarray:
    """Return the test rows of JAM's split by groups, after checking that it is the split of the training."""
    facts = mapping.facts_
    parameters, recorded_counts = facts["training"], facts["split"]
    try:
        parts = split_by_group(data.groups, random_state=parameters["random_state"])
    except TooFewAnchorsError as error:
        raise InputError(f"These rows cannot be split as in the training ({error}).", _ADVICE) from error
    counts = dict(zip(("train", "validation", "test"), map(len, parts), strict=True))
    if counts != dict(recorded_counts):
        new, old = (", ".join(str(c.get(part, "–")) for part in counts) for c in (counts, recorded_counts))
        _refuse(f"train, validation and test have {new} rows instead of {old}")
    # Equal counts do not imply an equal split, because other labels may lead to the same counts. Reconstruction errors
    # reveal it.
    train, validation = (data.take(rows) for rows in parts[:2])
    for side, reconstruct in (("source", mapping.reconstruct), ("target", mapping.reconstruct_target)):
        rows = getattr(validation, side)
        mean = getattr(train, side).mean(0, dtype=np.float64) if parameters["standardize"] else 0.0
        spread = float(np.sum((rows - mean) ** 2))
        squared = float(np.sum((np.asarray(reconstruct(rows), np.float64) - rows) ** 2))
        lost, recorded = squared / spread if spread else 0.0, facts["reconstruction_error"][side]
        if abs(lost - recorded) > _TOLERANCE * max(lost, recorded):
            _refuse(f"the {side} vectors are reconstructed with an error of {lost:.4f} instead of {recorded:.4f}")
    return parts[2]


def _check_test_rows(mapping: HeadsMap, test: Captions) -> None:
    """Refuse test rows other than those that ``congruence train`` measured on."""
    recorded_count = mapping.scores_["test_pairs"]
    if len(test) != recorded_count:
        _refuse(f"there are {len(test)} test rows instead of {recorded_count}")
    sides = unique_pairs(test.source, test.target, test.groups)
    mapped = mapping.transform(sides[0]), mapping.transform_target(sides[1])
    for name, score in recalls(*mapped, *sides[2:], banks=mapping.search_banks).items():
        recorded = mapping.scores_.get(f"test_{name}", score)
        if abs(score - recorded) > 1.5 / len(test):  # rounding may change a rank
            _refuse(f"there are as many test rows, but different ones: {name} is {score:.3f} instead of {recorded:.3f}")


def _refuse(difference: str) -> NoReturn:
    raise InputError(f"These rows are split differently than in the training ({difference}).", _ADVICE)


def render_training(summary: dict[str, Any]) -> str:
    """Return the page of a trained map, from the data of ``congruence.report.summarize_training``."""
    tasks, validation = summary["by_task"], summary["validation"]
    plots = {
        "tasks": tasks and svg(draw_recalls, tasks, title="recall by task"),
        "margins": [
            svg(draw_margins, data, title=f"{data['name']}: cosine of the caption minus cosine of the wrong one")
            for data in summary["margins"]
        ],
        "curves": [svg(draw_loss, data, title=f"{data['name']} by step") for data in summary["curves"]],
        "validation": validation and svg(draw_validation, validation, title="validation score by step"),
    }
    return fill("training.html", s=summary, plots=plots)


# ------------------------------------------------------------------ the choice between correct and wrong captions

THUMBNAIL = 128  # longer side of a thumbnail, in pixels
_HISTOGRAMS = 6  # largest number of tasks for which each has its own histogram


@dataclass(frozen=True)
class CaptionChoices:
    """Images with their captions and wrong captions, as unit rows of the joint space; k wrong captions of each.

    Equal ``text_numbers`` mean equal texts; ``items`` are SugarCrepe's, if the rows belong to it.
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
    """Measure recall by task between a caption and its wrong captions, ``binary``, and with others, ``choice``."""
    right, wrong = choices.cosines
    k, binary = wrong.shape[1], chosen(right, wrong)
    if choices.items is not None:
        rows, note = _sugarcrepe_rows(choices, choices.items, options, random_state)
    else:
        sides = (choices.images, choices.captions, choices.wrong, choices.groups, choices.tasks)
        drawn: dict[str, Any] = {"texts": choices.text_numbers, "options": options, "random_state": random_state}
        lines, note = recall_by_task(*sides, **drawn)
        rows = [{**row, "part": False} for row in lines]
    share, images = float(binary.mean()), len(np.unique(choices.groups))
    low, high = rate_interval(share, binary - share, groups=choices.groups) if images > 1 else (None, None)
    return {
        "rows": rows,
        "wrong": k,
        "options": None if note else options + k - 1,
        "note": note,
        "chance": {"binary": 1 / (1 + k), "choice": None if note else 1 / (options + k - 1)},
        "images": images,
        "low": low,
        "high": high,
    }


def _sugarcrepe_rows(
    choices: CaptionChoices, items: SugarCrepe, options: int, random_state: int
) -> tuple[list[dict[str, Any]], str | None]:
    """Return SugarCrepe's tasks, with a last row for all items, and a note if captions for ``choice`` are too few."""
    sides, note = (choices.images, choices.captions, choices.wrong[:, 0]), None
    try:
        recalls = sugarcrepe_recall(items, *sides, options=options, random_state=random_state)
    except TooFewAnchorsError:
        recalls = sugarcrepe_recall(items, *sides, options=2, random_state=random_state)
        note = f"one of the tasks has fewer than {options - 2} captions of other images to draw."
    lines: list[dict[str, Any]] = []
    for line in recalls:
        values = {name: getattr(line, name) for name in ("task", "n", "binary", "choice", "ties")}
        lines.append({**values, "part": ", " in line.task} | ({"choice": None} if note else {}))
    tasks = [line for line in lines if not line["part"]]  # items of parts would be counted twice
    if len(tasks) > 1:
        n = sum(line["n"] for line in tasks)
        total = {"task": "all", "n": n, "ties": sum(line["ties"] for line in tasks), "choice": None, "part": False}
        for name in ("binary",) if note else ("binary", "choice"):
            total[name] = sum(line["n"] * line[name] for line in tasks) / n
        lines.append(total)
    return lines, note


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
        before = len(used)
        for row in rows.tolist():
            image = str(choices.groups[row])
            if len(used) == before + count or image in used:
                continue
            used.add(image)
            example: dict[str, object] = {"kind": kind, "name": str(choices.names[row]), "image": image}
            example["task"] = None if choices.tasks is None else str(choices.tasks[row])
            example["picture"] = None if pictures is None else thumbnail(pictures, image)
            example |= {"cosine": float(right[row]), "cosine_wrong": float(wrong[row, nearest[row]])}
            example |= {"caption": None, "wrong": None}
            if choices.texts is not None:
                caption, other = str(choices.texts[0][row]), str(choices.texts[1][row, nearest[row]])
                example |= {"caption": caption, "wrong": changed(caption, other)}
            out.append(example)
    return out


def changed(caption: str, other: str) -> list[list[Any]]:
    """Split a changed caption into pieces, each with whether it differs from the original."""
    before, after = caption.split(), other.split()
    opcodes = difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
    new = np.array([kind != "equal" for kind, _, _, a, b in opcodes for _ in range(a, b)], dtype=bool)
    if len(after) == len(before):  # for swapped words, a comparison position by position may mark fewer words
        in_place = np.array([a != b for a, b in zip(after, before, strict=True)], dtype=bool)
        new = in_place if in_place.sum() <= new.sum() else new
    marked = groupby(zip(after, new.tolist(), strict=True), key=lambda pair: pair[1])
    return [[" ".join(word for word, _ in words), is_new] for is_new, words in marked]


def thumbnail(pictures: str | Path | Mapping[str, object], name: str) -> str | None:
    """Return a picture of a folder or mapping, scaled down to 128 pixels, as a data URI of a JPEG without metadata."""
    pil = require("PIL.Image", extra="images")
    if isinstance(pictures, Mapping):
        if name not in pictures:
            raise FileError(f"No picture of {name!r}.", "Add it to `pictures=…`, or leave out `pictures=…`.")
        item = pictures[name]
    else:
        path = Path(name)
        # Names may come from a file of others, and must not put files from outside of the folder on a page.
        if path.is_absolute() or ".." in path.parts:
            problem = f"The image {name!r} is outside of the folder of pictures."
            raise ParameterError(problem, "Leave folders out of names.")
        item = Path(pictures).expanduser() / path
    image = open_image(item)
    image.thumbnail((THUMBNAIL, THUMBNAIL))
    without_metadata = pil.new("RGB", image.size)
    without_metadata.paste(image)
    file = io.BytesIO()
    without_metadata.save(file, "JPEG", quality=80)
    return data_uri(file.getvalue())
