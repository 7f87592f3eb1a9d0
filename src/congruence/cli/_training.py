"""Compute the summary of a joint-space map from the files named in ``congruence report``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from congruence.datasets import SugarCrepe
    from congruence.embeddings import Embeddings
    from congruence.maps import TwoSidedMap


def summarize_files(
    mapping: TwoSidedMap, given: dict[str, str | None], *, held_out: bool | None, seed: int
) -> dict[str, Any]:
    """Read the files and score the map; ``given`` holds the options by name."""
    from congruence.cli._base import read
    from congruence.embeddings import Embeddings, Space
    from congruence.errors import ParameterError
    from congruence.report import summarize_training
    from congruence.stores import read_column

    X, Y = (read(file, None, Space()) for file in _two(given["pairs"], "--pairs"))
    if not (X.has_ids and Y.has_ids):  # pairs are then identified by position
        X, Y = (Embeddings(side.vectors, space=side.space) for side in (X, Y))
    if given["sugarcrepe"] is None and given["categories"] is not None:
        raise ParameterError(
            "Got --categories without --sugarcrepe; expected both. Pass --sugarcrepe FOLDER, or leave out --categories."
        )
    for name in ("groups", "tasks", "texts"):
        if given["sugarcrepe"] is not None and given[name] is not None:
            raise ParameterError(
                f"Got --{name} together with --sugarcrepe, which has its own; expected one of the two. Leave out --{name}."
            )
    for name in ("tasks", "texts", "sugarcrepe", "pictures"):
        if given["negatives"] is None and given[name] is not None:
            raise ParameterError(
                f"Got --{name} without --negatives; expected both. Pass --negatives FILE:KEY, the wrong captions."
            )
    if given["pictures"] is not None and given["groups"] is None and given["sugarcrepe"] is None:
        raise ParameterError(
            "Got --pictures without --groups or --sugarcrepe; expected the names of the images. Pass --groups FILE:KEY or --sugarcrepe FOLDER."
        )
    groups, tasks = (None if given[name] is None else read_column(str(given[name])) for name in ("groups", "tasks"))
    texts = None
    if given["texts"] is not None:
        caption, wrong = _two(given["texts"], "--texts")
        texts = read_column(caption), read_column(wrong)
    return summarize_training(
        mapping,
        X,
        Y,
        None if given["negatives"] is None else read(given["negatives"], None, Space()),
        groups=groups,
        tasks=tasks,
        texts=texts,
        items=None if given["sugarcrepe"] is None else _items(given["sugarcrepe"], given["categories"], Y),
        pictures=given["pictures"],
        note=given["note"],
        held_out=held_out,
        random_state=seed,
    )


def _two(spec: str | None, option: str) -> list[str]:
    from congruence.errors import ParameterError

    parts = (spec or "").split(",")
    if len(parts) != 2 or not all(parts):
        raise ParameterError(
            f"Got {option} {spec!r}; expected two files, with a comma between them. Pass {option} FIRST,SECOND."
        )
    return parts


def _items(folder: str, categories: str | None, Y: Embeddings) -> SugarCrepe:
    """Return the items of the captions: by id if the captions have SugarCrepe's ids, otherwise in the order of its files."""
    from congruence._utils.ids import id_rows
    from congruence.datasets import load_sugarcrepe

    items = load_sugarcrepe(folder) if categories is None else load_sugarcrepe(folder, categories.split(","))
    rows = id_rows(items.ids, Y.ids)
    return items.take(rows) if Y.has_ids and (rows >= 0).all() else items
