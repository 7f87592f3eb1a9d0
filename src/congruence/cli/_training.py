"""Compute the data of a joint-space map's page from the files that ``congruence report`` is given."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from congruence.datasets import SugarCrepe
    from congruence.embeddings import Embeddings
    from congruence.maps import HeadsMap


def summarize_files(
    mapping: HeadsMap, options: dict[str, str | None], *, held_out: bool | None, seed: int
) -> dict[str, Any]:
    """Read the files and score the map.

    Parameters
    ----------
    mapping : HeadsMap
    options : dict
        Values of the command's options for joint-space maps, by name.
    held_out : bool or None
    seed : int

    Returns
    -------
    dict
        As from :func:`congruence.report.summarize_training`.

    Raises
    ------
    ParameterError
        If an option is given without another one that it needs, or together with one that excludes it.
    CongruenceError
        Any error raised while reading or scoring.
    """
    from congruence.cli._base import read
    from congruence.embeddings import Embeddings, Space
    from congruence.errors import ParameterError
    from congruence.report import summarize_training
    from congruence.stores import read_column

    X, Y = (read(file, None, Space()) for file in _two_files(options["pairs"], "--pairs"))
    if not (X.has_ids and Y.has_ids):  # pairs are then identified by position
        X, Y = (Embeddings(side.vectors, space=side.space) for side in (X, Y))
    if options["sugarcrepe"] is None and options["categories"] is not None:
        raise ParameterError(
            "Got --categories without --sugarcrepe; expected both. Pass --sugarcrepe FOLDER, or leave out --categories."
        )
    for name in ("groups", "tasks", "texts"):
        if options["sugarcrepe"] is not None and options[name] is not None:
            raise ParameterError(
                f"Got --{name} together with --sugarcrepe, which has its own; expected one of the two. Leave "
                f"out --{name}."
            )
    for name in ("tasks", "texts", "sugarcrepe", "pictures"):
        if options["negatives"] is None and options[name] is not None:
            raise ParameterError(
                f"Got --{name} without --negatives; expected both. Pass --negatives FILE:KEY, the wrong captions."
            )
    if options["pictures"] is not None and options["groups"] is None and options["sugarcrepe"] is None:
        raise ParameterError(
            "Got --pictures without --groups or --sugarcrepe; expected the names of the images. Pass --groups "
            "FILE:KEY or --sugarcrepe FOLDER."
        )
    groups, tasks = (None if options[name] is None else read_column(str(options[name])) for name in ("groups", "tasks"))
    texts = None
    if options["texts"] is not None:
        caption, wrong = _two_files(options["texts"], "--texts")
        texts = read_column(caption), read_column(wrong)
    return summarize_training(
        mapping,
        X,
        Y,
        None if options["negatives"] is None else read(options["negatives"], None, Space()),
        groups=groups,
        tasks=tasks,
        texts=texts,
        items=None
        if options["sugarcrepe"] is None
        else _sugarcrepe_items(options["sugarcrepe"], options["categories"], Y),
        pictures=options["pictures"],
        note=options["note"],
        held_out=held_out,
        random_state=seed,
    )


def _two_files(spec: str | None, option: str) -> list[str]:
    """Split ``FIRST,SECOND``. Raises ParameterError for another form."""
    from congruence.errors import ParameterError

    parts = (spec or "").split(",")
    if len(parts) != 2 or not all(parts):
        raise ParameterError(
            f"Got {option} {spec!r}; expected two files, with a comma between them. Pass {option} FIRST,SECOND."
        )
    return parts


def _sugarcrepe_items(folder: str, categories: str | None, Y: Embeddings) -> SugarCrepe:
    """Return SugarCrepe's items in the order of the captions: matched by id if the captions have its ids, otherwise in
    the order of its files.
    """
    from congruence._utils.ids import id_rows
    from congruence.datasets import load_sugarcrepe

    items = load_sugarcrepe(folder) if categories is None else load_sugarcrepe(folder, categories.split(","))
    rows = id_rows(items.ids, Y.ids)
    return items.take(rows) if Y.has_ids and (rows >= 0).all() else items
