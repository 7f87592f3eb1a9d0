"""``congruence report``: a self-contained HTML page about a map or a migration."""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = ["command"]


def command(
    map_path: Annotated[
        str,
        typer.Argument(
            metavar="MAP",
            help="Folder of a saved map, of a bridge (its map is scored), or of a migration's journal.",
        ),
    ],
    data: Annotated[
        str | None,
        typer.Argument(
            help="Bundle (.parquet) of both models' embeddings, or the name of a built-in sample: photos, emoji. "
            "For joint-space maps, pass --pairs instead."
        ),
    ] = None,
    out: Annotated[str, typer.Option("--out", "-o", help="HTML file to write.")] = "report.html",
    pairs: Annotated[
        str | None, typer.Option(help="Joint-space maps: SOURCE,TARGET, the files of the training, or other pairs.")
    ] = None,
    negatives: Annotated[
        str | None,
        typer.Option(help="Joint-space maps: a wrong caption for each pair, paired in the same way as --pairs."),
    ] = None,
    groups: Annotated[
        str | None, typer.Option(help="Joint-space maps: the image of each pair (file:key), as in the training.")
    ] = None,
    tasks: Annotated[
        str | None, typer.Option(help="Joint-space maps: the kind of each wrong caption (file:key).")
    ] = None,
    texts: Annotated[
        str | None,
        typer.Option(
            help="Joint-space maps: CAPTION,WRONG, the texts of captions and wrong captions (file:key,file:key), "
            "for the examples."
        ),
    ] = None,
    sugarcrepe: Annotated[
        str | None,
        typer.Option(help="Joint-space maps: folder of SugarCrepe's files, which give images, tasks and texts."),
    ] = None,
    categories: Annotated[
        str | None, typer.Option(help="Which of SugarCrepe's files to use, separated by commas; by default all seven.")
    ] = None,
    pictures: Annotated[
        str | None,
        typer.Option(help="Joint-space maps: folder of images named as in --groups, or as in SugarCrepe."),
    ] = None,
    note: Annotated[str | None, typer.Option(help="Joint-space maps: a sentence to show below the title.")] = None,
    held_out: Annotated[
        bool | None,
        typer.Option(
            "--held-out/--all",
            help="Use only items that the map was not fitted on (the default if the map records them), or all.",
        ),
    ] = None,
    seed: Annotated[
        int,
        typer.Option(
            help="Random seed of examples and anchors; for joint-space maps, of the captions of other images to "
            "choose among."
        ),
    ] = 0,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the data of the report as JSON.")] = False,
) -> None:
    """Score a map on both models' embeddings, and write a page of scores, plots and examples."""
    from congruence._utils.atomic import check_output
    from congruence.cli._base import load_map, print_json, say
    from congruence.errors import ParameterError
    from congruence.maps import HeadsMap

    check_output(out, force=force)  # checked before the work starts
    if _is_journal(map_path):
        from congruence.report import read_migration, read_reembedding, write_migration

        if data is not None:
            raise ParameterError(
                "Got DATA for the journal of a migration; expected the journal's folder alone. Leave out "
                "DATA, or pass the folder of a map."
            )
        migration = read_migration(map_path)
        write_migration(out, migration, reembedding=read_reembedding(map_path), force=force)
        if as_json:
            print_json(migration)
        else:
            say(f"{migration['place']}: {migration['state']}, {migration['rows']:,} rows")
            say(f"Report: {out}")
        return
    # Only the map of a bridge is scored here; congruence bridge evaluates the bridge itself.
    mapping, _ = load_map(map_path)
    pair_options = {
        "--pairs": pairs,
        "--negatives": negatives,
        "--groups": groups,
        "--tasks": tasks,
        "--texts": texts,
        "--sugarcrepe": sugarcrepe,
        "--categories": categories,
        "--pictures": pictures,
        "--note": note,
    }
    if isinstance(mapping, HeadsMap):
        from congruence.cli._training import summarize_files
        from congruence.report import write_training

        if data is not None or pairs is None:
            raise ParameterError(
                f"Got {'a bundle' if data else 'no --pairs'} for a joint-space map ({mapping.kind}); expected "
                "--pairs SOURCE,TARGET. Pass the same two files as in the training."
            )
        options = {flag.removeprefix("--"): value for flag, value in pair_options.items()}
        summary = summarize_files(mapping, options, held_out=held_out, seed=seed)
        write_training(out, summary, force=force)
    else:
        from congruence.datasets import open_bundle
        from congruence.report import summarize, write_report

        for flag, value in pair_options.items():
            if value is not None:
                raise ParameterError(
                    f"Got {flag} for a map into the target's space ({mapping.kind}); expected a bundle, or a "
                    f"sample. Leave out {flag}, and pass DATA after the map."
                )
        if data is None:
            raise ParameterError(
                "Got no DATA; expected a bundle (.parquet), or a sample (photos, emoji). Pass DATA after the map."
            )
        bundle = open_bundle(data)
        summary = summarize(mapping, bundle, held_out=held_out, random_state=seed)
        write_report(out, summary, force=force)
    if as_json:
        print_json(summary)
    else:
        say(" ".join(filter(None, [summary["verdict"]["sentence"], summary["verdict"].get("action")])))
        say(f"Report: {out}")


def _is_journal(folder: str) -> bool:
    """Return whether a folder belongs to a migration; a map's folder has no journal."""
    from pathlib import Path

    return (Path(folder) / "journal.json").is_file()
