"""Run a recipe: read, split, train, choose, and score on pairs that were not used for choosing."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from congruence.embeddings import Space
from congruence.errors import TeacherWarning
from congruence.evaluation.compositional import recall_by_task
from congruence.maps import HeadsMap
from congruence.recipe.items import LabeledPairs, Unpaired, hold_out, keep_some, read_items, read_unpaired
from congruence.recipe.plan import Recipe, takes
from congruence.splits import warn_duplicates
from congruence.train import make_method
from congruence.train.retrieval import recalls, unique_pairs
from congruence.train.tuning import Tuned, tune

#: Number of captions to choose from if each pair has one wrong caption: the paper's 5-way task.
OPTIONS = 5


@dataclass(frozen=True)
class Run(Tuned):
    """Result of ``run_recipe``: the best map, whose ``scores_`` hold all measurements, and how it was chosen.

    ``score`` is NaN without validation pairs; ``items`` are all pairs that were read, including those held out.
    """

    items: LabeledPairs


def run_recipe(
    recipe: Recipe,
    *,
    spaces: tuple[Space, Space] = (Space(), Space()),
    checkpoint: str | Path | None = None,
    verbose: bool = True,
    callback: Callable[[dict[str, object], float], None] | None = None,
) -> Run:
    """Read the files, hold out pairs, train, and score.

    ``spaces`` are what is known about the models, and the files complete it; ``checkpoint`` is a folder with a
    checkpoint for each point of the grid, from which an interrupted run resumes; ``callback`` is called with the
    parameters and the validation score of each. The map's ``scores_`` hold the trials, the test scores (``test_…``)
    and, for SOTAlign, those of its linear teacher on the same rows (``teacher_…``).

    Warns
    -----
    DuplicateWarning
        If there are pairs with identical vectors, which are kept in the same part of the split.
    TeacherWarning
        If the heads retrieve worse than their teacher, on the test pairs or, without any, on the validation pairs.
    """
    all_items = items = read_items(recipe, spaces)
    unpaired = [read_unpaired(files) for files in (recipe.unpaired_source, recipe.unpaired_target)]
    divided = any(
        getattr(recipe, name) and not isinstance(getattr(recipe, name), tuple) for name in ("test", "validation")
    )
    identical = warn_duplicates(items.groups) if divided and recipe.groups == "identical" else None
    assert recipe.seed is not None
    test, items, split = hold_out(recipe, "test", items, len(all_items), recipe.seed + 1)
    heldout, items, _ = hold_out(recipe, "validation", items, len(all_items), recipe.seed)
    if recipe.keep_pairs is not None:
        items, unpaired = keep_some(items, recipe.keep_pairs, unpaired, recipe.seed, recipe.overlap or 0.0)
    parameters = dict(recipe.parameters)
    if "random_state" in recipe.default_parameters:
        parameters.setdefault("random_state", recipe.seed)
    method = make_method(recipe.method, **parameters)
    tuned = _fit(method, recipe, items, unpaired, heldout, checkpoint, verbose, callback)
    mapping = tuned.map
    mapping.scores_ |= _scores(tuned, heldout, test, identical)
    if split is not None and test is not None:
        mapping.scores_["holdout"] = split.to_dict()
        parts = {"train": len(items), "validation": 0 if heldout is None else len(heldout), "test": len(test)}
        mapping.facts_["split"] = parts
    mapping.scores_["trials"] = [{**point, method.criterion: score} for point, score in tuned.trials]
    mapping.scores_["recipe"] = recipe.to_dict()
    return Run(mapping, tuned.parameters, tuned.score, tuned.trials, all_items)


def _fit(
    method: HeadsMap,
    recipe: Recipe,
    items: LabeledPairs,
    unpaired: list[Unpaired],
    heldout: LabeledPairs | None,
    checkpoint: str | Path | None,
    verbose: bool,
    callback: Callable[[dict[str, object], float], None] | None,
) -> Tuned:
    """Fit the method to the pairs and the other rows it learns from, and choose among the points of the grid."""
    arguments: dict[str, Any] = {"verbose": verbose}
    if takes(method, "negatives"):
        arguments["negatives"] = items.negatives
        if heldout is not None:  # without, JAM would split the pairs again by the groups
            arguments["groups"] = items.groups
    else:
        arguments["unpaired"] = tuple(unpaired)
    sides = items.pairs.source, items.pairs.target
    if heldout is not None:
        arguments |= {"validation": _validation(method, heldout), "checkpoint": checkpoint, "callback": callback}
        return tune(method, recipe.grid, *sides, **arguments)
    if checkpoint is not None:  # where a search would store its first point
        Path(checkpoint).mkdir(exist_ok=True)
        arguments["checkpoint"] = Path(checkpoint) / "000"
    return Tuned(method.fit(*sides, **arguments), {}, float("nan"), [])


def _validation(method: HeadsMap, heldout: LabeledPairs) -> tuple[Any, ...]:
    """Return held-out pairs in the form that a method's ``score`` expects."""
    if takes(method, "negatives"):
        rows = heldout.captions()
        return rows.source, rows.target, rows.negatives, rows.groups
    if len(np.unique(heldout.groups)) < len(heldout):  # retrieving an identical row is not an error
        return unique_pairs(heldout.pairs.source.vectors, heldout.pairs.target.vectors, heldout.groups)
    return heldout.pairs.source, heldout.pairs.target


def _scores(
    tuned: Tuned, heldout: LabeledPairs | None, test: LabeledPairs | None, identical: dict[str, int] | None
) -> dict[str, Any]:
    """Score the chosen map and, if it has one, its teacher."""
    scores: dict[str, Any] = {}
    if identical:
        scores["identical_rows"], scores["identical_groups"] = identical["rows"], identical["groups"]
    if heldout is not None:
        scores["validation_pairs"] = len(heldout)
        scores[f"validation_{tuned.map.criterion}"] = tuned.score
    teacher = getattr(tuned.map, "teacher_", None)
    if test is not None:
        scores["test_pairs"] = len(test)
        scores |= {f"test_{name}": score for name, score in _retrieval(tuned.map, test).items()}
        if test.negatives is not None:
            scores |= _choices(tuned.map, test)
        if teacher is not None:
            scores |= {f"teacher_test_{name}": score for name, score in _retrieval(teacher, test).items()}
    if teacher is not None:
        scores |= _compare_teacher(scores, tuned, heldout, test)
    return scores


def _compare_teacher(
    scores: dict[str, Any], tuned: Tuned, heldout: LabeledPairs | None, test: LabeledPairs | None
) -> dict[str, Any]:
    """Warn if the heads retrieve worse than their teacher, on the test or else the validation pairs."""
    if test is not None:
        rows, own, teacher = f"{len(test):,} test pairs", scores["test_mean@1"], scores["teacher_test_mean@1"]
    elif heldout is not None:
        rows, own = f"{len(heldout):,} validation pairs", tuned.score
        teacher = tuned.map.scores_["teacher_validation_mean_recall_at_1"]
    else:
        return {}
    if own >= teacher:
        return {}
    note = (
        f"Got trained heads that retrieve worse than their linear teacher on the same {rows} (mean recall at 1 "
        f"{own:.3f} against {teacher:.3f}); "
        'expected better retrieval. Use the teacher alone (method "procrustes" or "cca"), start from it with '
        'init="teacher", or add unpaired rows.'
    )
    warnings.warn(TeacherWarning(note), stacklevel=4)
    return {"notes": [note]}


def _retrieval(mapping: HeadsMap, test: LabeledPairs) -> dict[str, float]:
    """Return recall in both directions, with identical rows of a group counted once."""
    sides = test.pairs.source.vectors, test.pairs.target.vectors
    X, Y, x_labels, y_labels = unique_pairs(sides[0], sides[1], test.groups)
    return recalls(mapping.transform(X), mapping.transform_target(Y), x_labels, y_labels)


def _choices(mapping: HeadsMap, test: LabeledPairs) -> dict[str, object]:
    """Return how often an image is nearer to its caption than to the wrong ones, and those of other images."""
    data = test.captions()
    assert data.negatives is not None
    n, k, width = data.negatives.shape
    wrong = mapping.transform_target(data.negatives.reshape(n * k, width)).reshape(n, k, -1)
    sides = mapping.transform(data.source), mapping.transform_target(data.target)
    rows, note = recall_by_task(*sides, wrong, test.groups, test.tasks, texts=data.texts(), options=OPTIONS)
    scores: dict[str, object] = {"test_binary_recall": rows[-1]["binary"]}
    if note is None:
        scores |= {"test_choice_recall": rows[-1]["choice"], "test_choice_options": OPTIONS + k - 1}
    else:
        scores["test_choice_note"] = note
    return {
        **scores,
        "test_tasks": {row["task"]: {name: value for name, value in row.items() if name != "task"} for row in rows},
    }
