"""``congruence train``: train a pair of heads from few pairs and many unpaired rows, and save them as a map."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from congruence.cli._base import (
    check_page,
    checkpoint_folder,
    number,
    print_facts,
    print_json,
    print_table,
    split_named,
    two_sides,
)
from congruence.cli._options import Force, Json, argument, option
from congruence.errors import CorruptFileError, ParameterError

if TYPE_CHECKING:
    from congruence.recipe import Recipe, Run


#: Names of the selection criteria.
_CRITERIA = {"mean_recall_at_1": "mean recall at 1", "source_to_target_recall_at_1": "recall at 1, source → target"}


def command(
    method: str | None = argument(
        None,
        "self_trained (the default), sotalign, sail, structure, nnclr, sclip, sue, csa, contrastive, cca, "
        "weighted_cca, procrustes or jam.",
    ),
    out: str = option(..., "Folder to write the map to.", "--out", "-o"),
    pairs: str | None = option(None, "FIRST,SECOND: files of the paired rows, paired by id or position."),
    unpaired: list[str] | None = option(None, "FIRST,SECOND: unpaired rows of both models. May be repeated."),
    validation: str | None = option(
        None,
        "Pairs to hold out: a share, a number or FIRST,SECOND; by default none for self_trained, 0.15 for jam, "
        "0.1 for others.",
    ),
    test: str | None = option(None, "Pairs for a final test, like --validation; none by default, 0.15 for jam."),
    negatives: str | None = option(None, "jam: a wrong caption for each pair, in the order of --pairs."),
    tasks: str | None = option(None, "jam: the kind of each wrong caption (file:key)."),
    report: str | None = option(None, "HTML file for a report, measured on the test pairs if there are any."),
    config: str | None = option(None, "Recipe in YAML; options on the command line take precedence."),
    entries: list[str] | None = option(
        None,
        "NAME=VALUE, may be repeated: a parameter of the method; or groups (file:key), keep_pairs, overlap, "
        "first_model, second_model, first_modality (image), second_modality (text).",
        "--set",
        metavar="NAME=VALUE",
    ),
    grid: list[str] | None = option(
        None, "NAME=VALUE,VALUE,…: choose the best on the validation pairs. May be repeated."
    ),
    checkpoint: str | None = option(None, "Folder for checkpoints; by default OUT.checkpoint, removed at the end."),
    seed: int | None = option(None, "Random seed of the held-out pairs and of the training."),
    quiet: bool = option(False, "No progress bar.", "--quiet", "-q"),
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Join two unrelated models: heads that map both into one space, from few pairs and unpaired rows.

    Example: congruence train --pairs library/old-photos.parquet,library/new-photos.parquet -o heads
    """
    from functools import partial

    from congruence.embeddings import Space
    from congruence.persist import check_map_output
    from congruence.recipe import make_recipe, read_recipe, run_recipe
    from congruence.train import METHODS

    check_map_output(out, force=force)
    if report is not None:
        check_page(report, force=force)
    settings: dict[str, Any] = {name: _value(text) for name, text in _named(entries, "--set")}
    first, second = (
        Space(settings.pop(f"{side}_model", None), modality=settings.pop(f"{side}_modality", modality))
        for side, modality in (("first", "image"), ("second", "text"))
    )
    pools = [two_sides(files, "--unpaired", "FIRST,SECOND") or ("", "") for files in unpaired or []]
    changes: dict[str, object] = {
        "method": method,
        "pairs": None if pairs is None else pairs.split(","),
        "unpaired_source": [first for first, _ in pools] or None,
        "unpaired_target": [second for _, second in pools] or None,
        "validation": None if validation is None else _held_out(validation, "--validation"),
        "test": None if test is None else _held_out(test, "--test"),
        **{name: settings.pop(name, None) for name in ("keep_pairs", "overlap", "groups")},
        "parameters": settings or None,
        "grid": {name: [_value(part) for part in text.split(",")] for name, text in _named(grid, "--grid")} or None,
        "seed": seed,
        "negatives": negatives,
        "tasks": tasks,
    }
    recipe = make_recipe({}, **changes) if config is None else read_recipe(config, **changes)
    with checkpoint_folder(out, checkpoint) as folder:
        run = run_recipe(
            recipe,
            spaces=(first, second),
            checkpoint=folder,
            verbose=not quiet,
            callback=None if quiet else partial(_print_grid_point, _CRITERIA[METHODS[recipe.method].criterion]),
        )
        run.map.save(out, force=force)
    if report is not None:
        from congruence.report import render_training, summarize_training, write_page

        items = run.items
        source, target = items.sides()
        summary = summarize_training(run.map, source, target, items.negatives, groups=items.groups, tasks=items.tasks)
        write_page(report, render_training(summary), force=force)
    if as_json:
        print_json({"output": out, **run.map.describe()})
    else:
        _print(run, recipe, out)


def _settable() -> dict[str, Any]:
    """Return the parameters of all methods."""
    from congruence.train import METHODS

    known = {"groups": str, "keep_pairs": float, "overlap": float}
    return known | {name: value for method in METHODS.values() for name, value in method().get_params().items()}


command.settable = _settable  # type: ignore[attr-defined]  # for messages that name such a parameter


def _named(entries: list[str] | None, flag: str) -> list[tuple[str, str]]:
    """Split each ``NAME=VALUE``."""
    pairs = (split_named(entry, flag, "NAME=VALUE", "max_steps=500") for entry in entries or [])
    return [(name.replace("-", "_"), text) for name, text in pairs]


def _value(text: str) -> object:
    """Parse a value as YAML does, except that 1e-4 is a number."""
    from congruence._utils.yaml import parse_yaml

    try:
        return float(text) if "e" in text.lower() else parse_yaml(text, "a value")
    except (ValueError, CorruptFileError):
        return text


def _held_out(text: str, option: str) -> float | int | list[str]:
    """Return a share, a number of pairs, or two files. Raises ParameterError."""
    if "," in text:
        return text.split(",")
    try:
        return int(text) if text.isdecimal() else float(text)
    except ValueError:
        raise ParameterError(
            f"Got {option} {text!r}; expected a share, a number of pairs, or FIRST,SECOND.",
            f"Pass {option} 0.1, for example.",
        ) from None


def _print_grid_point(criterion: str, point: dict[str, object], score: float) -> None:
    """Print the score of a grid point on standard error; without a grid, the point is empty."""
    import sys

    if point:
        values = ", ".join(
            f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}" for name, value in point.items()
        )
        print(f"{values}: {criterion} {score:.3f}", file=sys.stderr)


def _print(run: Run, recipe: Recipe, out: str) -> None:
    facts, mapping, scores = run.map.facts_, run.map, run.map.scores_
    rows = [
        ["source", f"{mapping.source_space_}"],
        ["target", f"{mapping.target_space_}"],
        ["pairs", str(facts["n_pairs"])],
    ]
    if "n_unpaired_source" in facts:
        rows.append(
            ["unpaired", f"{facts['n_unpaired_source']} of the source, {facts['n_unpaired_target']} of the target"]
        )
    if facts.get("negatives_each"):
        rows.append(["wrong captions per pair", str(facts["negatives_each"])])
    if "identical_rows" in scores:
        rows.append(
            ["pairs identical to another", f"{scores['identical_rows']} (groups: {scores['identical_groups']})"]
        )
    if "steps" in facts:
        best = "" if facts.get("best_step") is None else f", best after {facts['best_step']}"
        rows.append(["steps", f"{facts['steps']}{best}"])
    for side, error in facts.get("reconstruction_error", {}).items():
        if side != "rows":
            rows.append([f"{side} variance not reconstructed", number(error)])
    if "self_training" in scores:
        rows.append(["chosen by folds", scores["self_training"]["sentence"]])
    if run.parameters:
        rows.append(["chosen", ", ".join(f"{name}={value}" for name, value in run.parameters.items())])
    if run.score == run.score:  # NaN without validation
        rows.append(["validation pairs", str(scores["validation_pairs"])])
        rows.append([f"validation: {_CRITERIA[mapping.criterion]}", number(run.score)])
        if "teacher_validation_mean_recall_at_1" in scores:
            rows.append(["validation: its teacher's", number(scores["teacher_validation_mean_recall_at_1"])])
    if "test_pairs" in scores:
        rows += _test_rows(scores)
    rows.append(["written to", out])
    print_facts(recipe.method, rows)
    if scores.get("test_tasks", {}).keys() - {"all"}:
        _print_tasks(scores)


def _test_rows(scores: dict[str, Any]) -> list[list[str]]:
    """Return the rows of a table with the scores on the test pairs."""
    rows = [["test pairs", str(scores["test_pairs"])]]
    for k in (1, 5, 10):
        for prefix, name in (
            ("", f"recall at {k}, source → target, and back"),
            ("teacher_", f"its teacher's recall at {k}"),
        ):
            recalls = [scores.get(f"{prefix}test_{way}@{k}") for way in ("source_to_target", "target_to_source")]
            if None not in recalls:
                rows.append([name, ", ".join(map(number, recalls))])
    if "test_binary_recall" in scores:
        rows.append(["caption before its wrong ones", number(scores["test_binary_recall"])])
    if "test_choice_recall" in scores:
        rows.append([f"caption first of {scores['test_choice_options']}", number(scores["test_choice_recall"])])
    if "test_choice_note" in scores:
        rows.append(["caption first of 5", f"not measured: {scores['test_choice_note']}"])
    return rows


def _print_tasks(scores: dict[str, Any]) -> None:
    lines = [
        [task, str(line["n"]), number(line["binary"]), number(line["choice"]), str(line["ties"])]
        for task, line in scores["test_tasks"].items()
    ]
    first = f"first of {scores.get('test_choice_options', 5)}"
    print_table("recall by task, test pairs", ["task", "captions", "before its wrong ones", first, "ties"], lines)
