"""``congruence lab evaluate``: scores before and after mapping, and of each model alone."""

from __future__ import annotations

from typing import Any

from congruence.cli._engines import SAMPLE, Engine, EngineOptions, read_sides
from congruence.cli._input import read_groups, read_labels, refuse_options
from congruence.cli._options import Force, Ids, Json, Links, Seed, argument, option, settable
from congruence.cli._output import by_side, check_out, print_json, sides_of
from congruence.cli._scores import print_comparison, print_scores
from congruence.cli._sides import link, refuse_same
from congruence.errors import InputError, ParameterError


def evaluate(
    map_path: str = argument(..., "Folder of a saved map.", metavar="MAP"),
    *,
    old_image: str | None = option(None, "Images in the old model."),
    old_text: str | None = option(None, "Texts in the old model."),
    new_image: str | None = option(None, "Images in the new model."),
    new_text: str | None = option(None, "Texts in the new model."),
    ids: Ids = None,
    links: Links = None,
    labels: str | None = option(None, "file:column with the class of each image; by default its id."),
    prompt_labels: str | None = option(None, "file:column with the class of each text, for several prompts a class."),
    held_out: bool = option(False, "Evaluate only items that the map was not fitted on.", "--held-out"),
    against: list[str] | None = option(None, "Another map between the same models, to compare; repeatable."),
    engine: Engine = "local",
    settings: dict[str, Any] = settable(hubness=str, fitted_rows="refuse", groups=str, **SAMPLE),
    seed: Seed = 0,
    report: str | None = option(None, "HTML file to write a report to."),
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Score a map with the paper's metrics, next to chance, controls, and the scores of each model alone.

    Example: congruence lab evaluate map --old-image library/old-photos.parquet --new-image
    library/new-photos.parquet
    """
    import congruence
    from congruence.evaluation import compare_maps, evaluate
    from congruence.evaluation.scores import held_out as held_out_rows
    from congruence.maps import HeadsMap

    runner = EngineOptions.of(engine, settings)
    groups, fitted_rows = settings.pop("groups", None), settings.pop("fitted_rows", None)
    if not against:
        needs_other = {"--set groups": groups, "--set fitted_rows": fitted_rows}
        refuse_options(needs_other, "without --against, another map to compare with", "Pass --against with its folder.")
    mapping = congruence.maps.load(map_path)
    if report is not None and isinstance(mapping, HeadsMap):
        raise ParameterError("Got --report for a joint-space map.", "Run congruence report with --pairs instead.")
    specs = {"source": {"image": old_image, "text": old_text}, "target": {"image": new_image, "text": new_text}}
    for modality, spec in specs["source"].items():
        refuse_same(spec, specs["target"][modality])
    check_out(report, force=force, kind="page")  # once the arguments are right, and before the work starts
    own_groups = None if groups == "none" else groups
    needs_rows = {"--labels": labels, "--prompt-labels": prompt_labels, "--set groups": own_groups}
    by_fragments = runner.by_fragments(*(spec for files in specs.values() for spec in files.values()))
    engine_runner = runner if by_fragments else None
    sides = read_sides(specs, ids, {}, runner=engine_runner, random_state=seed, needs_rows=needs_rows)
    if links is not None:
        refuse_options({"--links": by_fragments}, "for data sets that are read by fragments", "Pass local files.")
        both = [modality for modality in sides["source"] if modality in sides["target"]]
        for modality in both:
            two = link((sides["source"][modality], sides["target"][modality]), links)
            sides["source"][modality], sides["target"][modality] = two
        if not both:
            raise ParameterError("Got --links without a modality in both models.", "Pass --old-text and --new-text.")
    images, texts = ([side.get(modality) for side in sides.values()] for modality in ("image", "text"))
    image_labels = read_labels(labels, "--labels", *images)
    text_labels = read_labels(prompt_labels, "--prompt-labels", *texts)
    all_items = {side: dict(items) for side, items in sides.items()}  # including those that the map was fitted on
    if held_out:
        if "holdout" not in mapping.scores_:
            problem = "Got --held-out for a map fitted on all pairs; expected held-out ones."
            raise InputError(problem, "Fit the map with --holdout, or leave out --held-out.")
        for items in sides.values():
            kept = held_out_rows(mapping, items, image_labels, text_labels)
            items |= {modality: items[modality].take(rows) for modality, rows in kept.items()}
    comparison = None
    if against:
        others = {path if path != map_path else f"{path} again": congruence.maps.load(path) for path in against}
        comparison = compare_maps(
            mapping,
            others,
            *all_items.values(),
            labels=image_labels,
            prompt_labels=text_labels,
            name=map_path,
            groups=read_groups(groups),
            fitted_rows="drop" if held_out else fitted_rows or "refuse",
        )
    scores = evaluate(mapping, *sides.values(), labels=image_labels, prompt_labels=text_labels, **settings)
    if report is not None:
        from congruence.datasets import Bundle
        from congruence.report import render, summarize, write_page

        classes = {m: by_id for m, by_id in (("image", image_labels), ("text", text_labels)) if by_id}
        bundle = Bundle(all_items["source"], all_items["target"], classes=classes)
        summary = summarize(mapping, bundle, held_out=held_out, scores=scores, comparison=comparison)
        write_page(report, render(summary), force=force)
    words = sides_of(mapping)
    if as_json:
        differences = {} if comparison is None else {"comparison": comparison.to_dict()}
        print_json({"map": map_path, "held_out": held_out, **by_side({**scores.to_dict(), **differences}, words)})
    else:
        print_scores(scores, "evaluation on held-out items" if held_out else "evaluation", words)
        if comparison is not None:
            print_comparison(comparison, words)
