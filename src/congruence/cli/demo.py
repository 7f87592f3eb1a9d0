"""``congruence demo``: search a photo library and move it, or test the paper's claim on emoji; offline, in seconds."""

from __future__ import annotations

from importlib import import_module
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
    query: str | None = option(None, "Photos: name to search for; without one, the names are listed."),
    classes: int | None = option(None, "Emoji: number of classes to fit on, by their images; 800 by default."),
    seed: Seed = 0,
    save_map: str | None = option(None, "Folder to save the map to."),
    report: bool = option(True, "Write the HTML page."),
    as_json: Json = False,
) -> None:
    """Search a photo library by an old model, mapped, and by a new one; move it and move it back; and write a page of
    the photos found.

    Example: congruence demo --query "water lilly"

    All data are included in congruence, and none of your files are changed. The library is a LanceDB table (without the
    extra lancedb, a Parquet file) in a temporary folder.
    """
    from threadpoolctl import threadpool_limits

    from congruence._utils.validation import check_choice
    from congruence.datasets import SAMPLES, load_sample

    photos = check_choice(sample, SAMPLES, "sample") == "photos"
    foreign = {"--files": files is not None, "--query": query is not None}
    if photos:
        foreign = {"--classes": classes is not None}
    other = "emoji" if photos else "photos"
    refuse_options(foreign, f"with the sample {sample}", f"Leave it out, or pass --sample {other}.")
    if files is not None:
        others = {"--query": query is not None, "--out": out is not None, "--save-map": save_map is not None}
        others |= {"--seed": seed != 0, "--no-report": not report}
        refuse_options(others, "with --files, which only writes the sample", "Run the demo without --files too.")
    check_out(save_map, force=False, kind="map")
    page = (out if out is not None else "demo.html" if photos else "report.html") if report else None
    if files is not None:
        _write_files(files, as_json)
        return
    if page is not None:
        check_output(page, force=True)
    shown: Any = import_module(f"congruence.cli._demo_{sample}")
    data = load_sample(sample)
    # The matrices have only 1,500 rows: on a busy machine, BLAS threads spend more time waiting for each other than
    # computing.
    with threadpool_limits(1), progress(shown.LABEL, shown.STEPS, as_json) as callback:
        mapping, told, result = shown.run(data, query if photos else classes, seed, callback or (lambda _: None))
    if save_map is not None:
        mapping.save(save_map)
    if page is not None:
        from congruence import report as pages

        pages.write_page(page, getattr(pages, shown.RENDER)(told), force=True)
    if as_json:
        print_json({**result, shown.PAGE: page})
        return
    shown.tell(data, told, result)
    if page is not None:
        say(f"Report: {page}")


def _write_files(folder: str, as_json: bool) -> None:
    from congruence.cli._demo_photos import why_not_replaced, write_files
    from congruence.datasets import load_sample

    check_output(folder, force=True, directory=True, foreign=why_not_replaced)
    names = write_files(load_sample("photos"), folder)
    print_json({"folder": folder, "files": names}) if as_json else say(f"{folder}: {', '.join(names)}")


def _list_names() -> ParameterError:
    from congruence.cli._demo_photos import unknown_name

    return unknown_name()


demo.without_value = {"--query": _list_names}  # type: ignore[attr-defined]
