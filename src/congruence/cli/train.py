"""``congruence train``: train a pair of heads from few pairs and many unpaired rows, and save them as a map."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from congruence.cli._input import split_named, two_sides
from congruence.cli._options import Force, Json, Links, argument, option
from congruence.cli._output import (
    FIRST_SECOND,
    by_side,
    check_out,
    checkpoint_folder,
    number,
    print_facts,
    print_json,
    print_table,
    say_error,
)
from congruence.cli._scores import map_facts
from congruence.cli._sides import refuse_same
from congruence.errors import CorruptFileError, ParameterError

if TYPE_CHECKING:
    from congruence.recipe import Recipe, Run


#: Names of the selection criteria.
_CRITERIA = {
    "mean_recall_at_1": "mean recall at 1",
    "source_to_target_recall_at_1": "recall at 1, first → second",
    "reciprocal_rank": "mean reciprocal rank of pairs left out",
}


def train(
    method: str | None = argument(
        None,
        "self_trained (the default), sotalign, sail, structure, nnclr, sclip, sue, csa, contrastive, cca, "
        "weighted_cca, procrustes or jam.",
    ),
    out: str = option(..., "Folder to write the map to.", "--out", "-o"),
    pairs: str | None = option(None, "FIRST,SECOND: files of the paired rows, paired by id or position."),
    links: Links = None,
    unpaired: list[str] | None = option(None, "FIRST,SECOND: unpaired rows of both models; repeatable."),
    validation: str | None = option(
        None, "Pairs to choose steps and parameters by: a share, number or FIRST,SECOND (none, for jam .15)."
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
    grid: list[str] | None = option(None, "NAME=VALUE,VALUE,…: choose the best by pairs left out; repeatable."),
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
    from congruence.recipe import make_recipe, read_recipe, run_recipe

    settings: dict[str, Any] = {name: _value(text) for name, text in _named(entries, "--set")}
    first, second = (
        Space(settings.pop(f"{side}_model", None), modality=settings.pop(f"{side}_modality", modality))
        for side, modality in (("first", "image"), ("second", "text"))
    )
    pools = [_two_files(files, "--unpaired") for files in unpaired or []]
    changes: dict[str, object] = {
        "method": method,
        "pairs": None if pairs is None else list(_two_files(pairs, "--pairs")),
        "links": links,
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
    check_out(out, force=force, kind="map")  # once the arguments are right, and before the work starts
    check_out(report, force=force, kind="page")
    with checkpoint_folder(out, checkpoint) as folder:
        run = run_recipe(
            recipe,
            spaces=(first, second),
            checkpoint=folder,
            verbose=not quiet,
            callback=None if quiet else partial(_print_grid_point, _CRITERIA[recipe.criterion]),
        )
        run.map.save(out, force=force)
    if report is not None:
        from congruence.report import render_training, summarize_training, write_page

        items = run.items
        source, target = items.sides()
        summary = summarize_training(run.map, source, target, items.negatives, groups=items.groups, tasks=items.tasks)
        write_page(report, render_training(summary), force=force)
    if as_json:
        print_json({"output": out, **by_side(run.map.describe(), FIRST_SECOND)})
    else:
        _print(run, recipe, out)


def _settable() -> dict[str, Any]:
    """Return the parameters of all methods."""
    from congruence.train import METHODS

    known = {"groups": str, "keep_pairs": float, "overlap": float}
    return known | {name: value for method in METHODS.values() for name, value in method().get_params().items()}


train.settable = _settable  # type: ignore[attr-defined]  # for messages that name such a parameter


def _two_files(text: str, flag: str) -> tuple[str, str]:
    """Split ``FIRST,SECOND``; refuse one file twice."""
    files = two_sides(text, flag, "FIRST,SECOND") or ("", "")
    refuse_same(*files)
    return files


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
        return list(_two_files(text, option))
    try:
        return int(text) if text.isdecimal() else float(text)
    except ValueError:
        problem = f"Got {option} {text!r}; expected a share, a number of pairs, or FIRST,SECOND."
        raise ParameterError(problem, f"Pass {option} 0.1, for example.") from None


def _print_grid_point(criterion: str, point: dict[str, object], score: float) -> None:
    """Print the score of a grid point on standard error; without a grid, the point is empty."""
    if point:
        values = [
            f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}" for name, value in point.items()
        ]
        say_error(f"{', '.join(values)}: {criterion} {score:.3f}")


def _print(run: Run, recipe: Recipe, out: str) -> None:
    mapping, scores = run.map, run.map.scores_
    validated = run.score == run.score  # NaN without validation
    shown = {
        "first model": mapping.source_space_,
        "second model": mapping.target_space_,
        **map_facts(mapping),
        "chosen": ", ".join(f"{name}={value}" for name, value in (run.parameters or {}).items()) or None,
        f"{'validation: ' * (not recipe.by_folds)}{_CRITERIA[recipe.criterion]}": run.score if validated else None,
        "written to": out,
    }
    print_facts(recipe.method, shown)
    tasks = scores.get("test_tasks", {})
    if tasks.keys() - {"all"}:
        lines = [
            [task, str(line["n"]), number(line["binary"]), number(line["choice"]), str(line["ties"])]
            for task, line in tasks.items()
        ]
        first = f"first of {scores.get('test_choice_options', 5)}"
        print_table("recall by task, test pairs", ["task", "captions", "before its wrong ones", first, "ties"], lines)
