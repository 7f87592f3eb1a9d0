"""``congruence report``: a self-contained HTML page about a map or a migration."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from congruence.cli._input import column, load_map, read, read_given, refuse_options, two_sides
from congruence.cli._options import Force, Json, Seed, argument, option, settable
from congruence.cli._output import by_side, check_out, print_json, say, sides_of
from congruence.errors import ParameterError

if TYPE_CHECKING:
    from congruence.datasets import SugarCrepe
    from congruence.embeddings import Embeddings
    from congruence.maps import HeadsMap, Map


@dataclass(frozen=True)
class PairOptions:
    """Options of joint-space maps."""

    pairs: str | None = option(None, "Joint-space maps: FIRST,SECOND, the files of the training, or others.")
    negatives: str | None = option(None, "Joint-space maps: a wrong caption for each pair, in the order of --pairs.")
    groups: str | None = option(None, "Joint-space maps: the image of each pair (file:key).")
    tasks: str | None = option(None, "Joint-space maps: the kind of each wrong caption (file:key).")
    texts: str | None = option(None, "Joint-space maps: CAPTION,WRONG, their texts (file:key,file:key).")
    sugarcrepe: str | None = option(None, "Joint-space maps: folder of SugarCrepe's files.")
    pictures: str | None = option(None, "Joint-space maps: folder of images named as in --groups.")


def report(
    map_path: str = argument(..., "Folder of a saved map or bridge, or of a migration's journal.", metavar="MAP"),
    data: str | None = argument(None, "Bundle (.parquet) of both models' embeddings, or a sample: photos, emoji."),
    *,
    out: str = option("report.html", "HTML file to write.", "--out", "-o"),
    rows: PairOptions,
    settings: dict[str, Any] = settable(categories=str, note=str),
    held_out: bool | None = option(
        None, "Only items that the map was not fitted on (if recorded), or all.", "--held-out/--all"
    ),
    seed: Seed = 0,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Score a map on both models' embeddings, and write a page of scores, plots and examples.

    Example: congruence report map photos
    """
    from congruence.maps import HeadsMap

    mapping = None
    if (Path(map_path) / "journal.json").is_file():  # a map's folder has none
        refuse_options({"DATA": data}, "for the journal of a migration", "Leave it out, or pass a map's folder.")
    else:
        # Only the map of a bridge is scored here; congruence bridge evaluate evaluates the bridge itself.
        mapping, _ = load_map(map_path)
        _check_rows(mapping, data, rows, settings)
    check_out(out, force=force, kind="page")  # once the arguments are right, and before the work starts
    from congruence import report

    if mapping is None:
        migration = report.read_migration(map_path)
        html = report.render_migration(migration, reembedding=report.read_reembedding(map_path))
        report.write_page(out, html, force=force)
        if as_json:
            print_json(migration)
        else:
            say(f"{migration['place']}: {migration['state']}, {migration['rows']:,} rows")
            say(f"Report: {out}")
        return
    if isinstance(mapping, HeadsMap):
        summary = summarize_files(mapping, rows, settings, held_out=held_out, seed=seed)
        html = report.render_training(summary)
    else:
        from congruence.datasets import open_bundle

        summary = report.summarize(mapping, open_bundle(data or ""), held_out=held_out, random_state=seed)
        html = report.render(summary)
    report.write_page(out, html, force=force)
    if as_json:
        print_json(by_side(summary, sides_of(mapping)))
    else:
        say(" ".join(filter(None, [summary["verdict"]["sentence"], summary["verdict"].get("action")])))
        say(f"Report: {out}")


#: Options by the arguments of ``summarize_training``, where these are called otherwise.
report.argument_names = {"items": "sugarcrepe"}  # type: ignore[attr-defined]


def _check_rows(mapping: Map, data: str | None, given: PairOptions, settings: dict[str, Any]) -> None:
    """Refuse rows that do not belong to this kind of map, or options that contradict each other."""
    from congruence.maps import HeadsMap
    from congruence.report.training import check_options

    if not isinstance(mapping, HeadsMap):
        foreign = {f"--{name}": value for name, value in vars(given).items()}
        foreign |= {f"--set {name}": value for name, value in settings.items()}
        why = f"for a map into the new model's space ({mapping.kind})"
        refuse_options(foreign, why, "Leave it out, and pass DATA after the map.")
        if data is None:
            raise ParameterError("Got no DATA.", "Pass a bundle (.parquet) or a sample (photos, emoji) after the map.")
        return
    if data is not None or given.pairs is None:
        problem = f"Got {'a bundle' if data else 'no --pairs'} for a joint-space map ({mapping.kind})."
        raise ParameterError(problem, "Pass --pairs FIRST,SECOND, as in the training.")
    two_sides(given.pairs, "--pairs", "FIRST,SECOND")
    two_sides(given.texts, "--texts", "CAPTION,WRONG")
    if given.sugarcrepe is None:
        refuse_options({"--set categories": settings.get("categories")}, "without --sugarcrepe")
    described = {name: getattr(given, name) for name in ("groups", "tasks", "texts")}
    check_options(given.negatives, described, given.sugarcrepe, given.pictures)


def summarize_files(
    mapping: HeadsMap, given: PairOptions, settings: dict[str, Any], *, held_out: bool | None, seed: int
) -> dict[str, Any]:
    """Read the files and score the map."""
    from congruence.embeddings import Embeddings
    from congruence.report import summarize_training

    X, Y = (read(file) for file in two_sides(given.pairs, "--pairs", "FIRST,SECOND") or ())
    if not (X.has_ids and Y.has_ids):  # pairs are then identified by position
        X, Y = (Embeddings(side.vectors, space=side.space) for side in (X, Y))
    texts = two_sides(given.texts, "--texts", "CAPTION,WRONG")
    return summarize_training(
        mapping,
        X,
        Y,
        read_given(given.negatives),
        groups=None if given.groups is None else column(given.groups, "--groups"),
        tasks=None if given.tasks is None else column(given.tasks, "--tasks"),
        texts=None if texts is None else (column(texts[0], "--texts"), column(texts[1], "--texts")),
        items=None if given.sugarcrepe is None else _sugarcrepe_items(given.sugarcrepe, settings.get("categories"), Y),
        pictures=given.pictures,
        note=settings.get("note"),
        held_out=held_out,
        random_state=seed,
    )


def _sugarcrepe_items(folder: str, categories: str | None, Y: Embeddings) -> SugarCrepe:
    """Return SugarCrepe's items in the order of the captions: matched by id if the captions have its ids, otherwise in
    the order of its files.
    """
    from congruence._utils.ids import id_rows
    from congruence.datasets import load_sugarcrepe

    items = load_sugarcrepe(folder) if categories is None else load_sugarcrepe(folder, categories.split(","))
    rows = id_rows(items.ids, Y.ids)
    return items.take(rows) if Y.has_ids and (rows >= 0).all() else items
