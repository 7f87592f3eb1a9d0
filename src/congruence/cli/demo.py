"""``congruence demo``: move a photo library to a new model, or test the paper's claim on emoji; offline, in seconds."""

from __future__ import annotations

from typing import Any

from congruence._utils.atomic import check_output
from congruence.cli._base import print_json, progress, refuse_options, say
from congruence.cli._options import Json, Seed, option
from congruence.errors import ParameterError


def command(
    sample: str = option(
        "photos", "photos: move a photo library to a new model. emoji: one map for pictures and texts."
    ),
    out: str | None = option(
        None, "HTML page to write; by default demo.html, or report.html for emoji.", "--out", "-o"
    ),
    files: str | None = option(
        None, "Photos: only write the sample as files into this folder, to try the commands on."
    ),
    share: float | None = option(None, "Photos: share of the library to re-embed; .1 by default."),
    classes: int | None = option(None, "Emoji: number of classes to fit on, by their images; 800 by default."),
    seed: Seed = 0,
    save_map: str | None = option(None, "Folder to save the map to."),
    report: bool = option(True, "Write the HTML page."),
    migration: bool = option(True, "Emoji: also migrate and search a LanceDB table (extra lancedb)."),
    migration_page: str | None = option(None, "Emoji: report of that migration; migration.html by default."),
    as_json: Json = False,
) -> None:
    """Move a photo library to a new model: check, map, switch, re-embed the worst tenth, roll back; and write a
    page that shows each step.

    Example: congruence demo

    All data are included in congruence, and none of your files are changed. The library is a LanceDB table (without the
    extra lancedb, a Parquet file) in a temporary folder.
    """
    from congruence._utils.validation import check_choice
    from congruence.datasets import SAMPLES

    photos = check_choice(sample, SAMPLES, "sample") == "photos"
    foreign: dict[str, object] = {"--files": files, "--share": share}
    if photos:
        foreign = {
            "--classes": classes,
            "--migration-page": migration_page,
            "--no-migration": None if migration else True,
        }
    given = {flag: value is not None for flag, value in foreign.items()}
    other = "emoji" if photos else "photos"
    refuse_options(given, f"with the sample {sample}", f"Leave it out, or pass --sample {other}.")
    if not photos:
        from congruence.cli._demo_emoji import run

        run(
            "report.html" if out is None else out,
            classes=800 if classes is None else classes,
            seed=seed,
            save_map=save_map,
            report=report,
            migration=migration,
            migration_page="migration.html" if migration_page is None else migration_page,
            as_json=as_json,
        )
        return
    if files is not None:
        _write_files(files, as_json)
        return
    _move_photos("demo.html" if out is None else out, 0.1 if share is None else share, seed, save_map, report, as_json)


def _write_files(folder: str, as_json: bool) -> None:
    from congruence.cli._demo_photos import why_not_replaced, write_files
    from congruence.datasets import load_sample

    check_output(folder, force=True, directory=True, foreign=why_not_replaced)
    names = write_files(load_sample("photos"), folder)
    if as_json:
        print_json({"folder": folder, "files": names})
    else:
        say(f"{folder}: {', '.join(names)}")


def _move_photos(out: str, share: float, seed: int, save_map: str | None, report: bool, as_json: bool) -> None:
    from threadpoolctl import threadpool_limits

    from congruence.cli._demo_photos import (
        ANCHORS,
        STEPS,
        certified_strategies,
        certify_sample,
        fit_on_names,
        move_library,
        print_story,
    )
    from congruence.datasets import load_sample
    from congruence.persist import check_map_output
    from congruence.report import render_story, write_page

    if not 0.01 <= share <= 1:
        raise ParameterError(f"Got --share {share:g}; expected .01 to 1.", "Pass --share .1, for example.")
    if save_map is not None:
        check_map_output(save_map)
    if report:
        check_output(out, force=True)
    photos = load_sample("photos")
    # The matrices have only 1,500 rows: on a busy machine, BLAS threads spend more time waiting for each other than
    # computing.
    with threadpool_limits(1), progress("moving the library", 1 + STEPS, as_json) as callback:
        certificate = certify_sample(photos, random_state=seed)
        if callback:
            callback(1)
        mapping = fit_on_names(photos)
        if save_map is not None:
            mapping.save(save_map)
        result = move_library(photos, mapping, share=share, random_state=seed, callback=callback)
    story: dict[str, Any] = {
        **result,
        "certificate": {
            "anchors": ANCHORS,
            "headline": certificate.verdict.headline,
            "reason": certificate.verdict.reason,
            "costs": certified_strategies(certificate),
        },
    }
    if report:
        write_page(out, render_story(story), force=True)
    if as_json:
        facts = {key: value for key, value in story.items() if key != "examples"}  # without pictures
        print_json(facts | {"page": out if report else None})
        return
    print_story(story)
    if report:
        say(f"Report: {out}")
