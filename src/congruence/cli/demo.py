"""``congruence demo``: move a photo library to a new model, or test the paper's claim on emoji; offline, in seconds."""

from __future__ import annotations

from typing import Any

from congruence._utils.atomic import check_output
from congruence.cli._input import refuse_options
from congruence.cli._options import Json, Seed, option
from congruence.cli._output import check_out, print_json, progress, say
from congruence.errors import ParameterError


def demo(
    sample: str = option("photos", "photos: move a library to a new model. emoji: one map for pictures and texts."),
    out: str | None = option(None, "HTML page to write: demo.html, or report.html for emoji.", "--out", "-o"),
    files: str | None = option(None, "Photos: only write the sample as files into this folder."),
    share: float | None = option(None, "Photos: share of the library to re-embed; .1 by default."),
    classes: int | None = option(None, "Emoji: number of classes to fit on, by their images; 800 by default."),
    seed: Seed = 0,
    save_map: str | None = option(None, "Folder to save the map to."),
    report: bool = option(True, "Write the HTML page."),
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
    foreign = {"--files": files is not None, "--share": share is not None}
    if photos:
        foreign = {"--classes": classes is not None}
    other = "emoji" if photos else "photos"
    refuse_options(foreign, f"with the sample {sample}", f"Leave it out, or pass --sample {other}.")
    if save_map is not None:
        check_out(save_map, force=False, kind="map")
    page = (out if out is not None else "demo.html" if photos else "report.html") if report else None
    if files is not None:
        _write_files(files, as_json)
    elif photos:
        _move_photos(page, 0.1 if share is None else share, seed, save_map, as_json)
    else:
        from congruence.cli._demo_emoji import run

        run(page, classes=800 if classes is None else classes, seed=seed, save_map=save_map, as_json=as_json)


def _write_files(folder: str, as_json: bool) -> None:
    from congruence.cli._demo_photos import why_not_replaced, write_files
    from congruence.datasets import load_sample

    check_output(folder, force=True, directory=True, foreign=why_not_replaced)
    names = write_files(load_sample("photos"), folder)
    print_json({"folder": folder, "files": names}) if as_json else say(f"{folder}: {', '.join(names)}")


def _move_photos(page: str | None, share: float, seed: int, save_map: str | None, as_json: bool) -> None:
    from threadpoolctl import threadpool_limits

    from congruence.cli import _demo_photos as demo
    from congruence.datasets import load_sample
    from congruence.report import render_story, write_page

    if not 0.01 <= share <= 1:
        raise ParameterError(f"Got --share {share:g}; expected .01 to 1.", "Pass --share .1, for example.")
    if page is not None:
        check_output(page, force=True)
    photos = load_sample("photos")
    # The matrices have only 1,500 rows: on a busy machine, BLAS threads spend more time waiting for each other than
    # computing.
    with threadpool_limits(1), progress("moving the library", 1 + demo.STEPS, as_json) as callback:
        certificate = demo.certify_sample(photos, random_state=seed)
        if callback:
            callback(1)
        mapping = certificate.fit()
        if save_map is not None:
            mapping.save(save_map)
        story: dict[str, Any] = demo.move_library(photos, mapping, share=share, random_state=seed, callback=callback)
    story["certificate"] = demo.certified(certificate)
    if page is not None:
        write_page(page, render_story(story), force=True)
    if as_json:
        print_json({key: value for key, value in story.items() if key != "examples"} | {"page": page})  # no pictures
        return
    demo.print_story(story)
    if page is not None:
        say(f"Report: {page}")
