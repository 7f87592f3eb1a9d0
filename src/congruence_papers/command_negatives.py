"""``congruence negatives``: change captions so that they are wrong in one detail."""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = ["command"]


def command(
    captions: Annotated[
        str, typer.Argument(metavar="IN", help="English captions in a .csv, .jsonl, .parquet or .txt.")
    ],
    out: Annotated[str, typer.Option("--out", "-o", help="File to write: .csv, .jsonl or .parquet.")],
    column: Annotated[str | None, typer.Option(help="Column with the captions.")] = None,
    id_column: Annotated[str | None, typer.Option(help="Column with unique ids.")] = None,
    group_column: Annotated[
        str | None, typer.Option(help="Column that names the item (e.g. an image) that each caption belongs to.")
    ] = None,
    kinds: Annotated[str, typer.Option(help="Kinds of negatives, separated by commas; or all.")] = "all",
    per_caption: Annotated[int, typer.Option(help="Largest number of negatives of each kind per caption.")] = 1,
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing output.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Report as JSON.")] = False,
) -> None:
    """Create hard negatives of captions: replace a word, swap two words, or add a word."""
    from congruence._utils.atomic import check_output
    from congruence.cli._base import check_not_input, number, print_json, print_table
    from congruence.embed import open_items
    from congruence.errors import ParameterError
    from congruence.stores import read_column
    from congruence_papers.negatives import KINDS, count, generate, write_negatives

    check_output(out, force=force)  # checked before the work starts
    check_not_input(out, captions)
    chosen = KINDS if kinds == "all" else tuple(kind.strip() for kind in kinds.split(","))
    items = open_items(captions, modality="text", column=column, id_column=id_column)
    if group_column is not None and captions.lower().endswith(".txt"):
        raise ParameterError(
            f"Got --group-column for {captions}; expected a table. Leave out --group-column, or pass a .csv, .jsonl or .parquet."
        )
    groups = None if group_column is None else read_column(f"{captions}:{group_column}").tolist()
    texts = [str(items.fetch(row)) for row in range(len(items))]
    negatives = generate(texts, chosen, per_caption, seed, groups=groups)
    write_negatives(negatives, out, items.ids.tolist(), force=force)
    counts = count(negatives, len(texts), chosen)
    if as_json:
        print_json({"captions": len(texts), "negatives": len(negatives), "kinds": counts, "seed": seed, "output": out})
        return
    print_table(
        f"{len(negatives)} negatives of {len(texts)} captions, written to {out}",
        ["kind", "negatives", "captions", "without", "share"],
        [
            [kind, str(c["negatives"]), str(c["captions"]), str(c["without"]), number(c["captions"] / len(texts))]
            for kind, c in counts.items()
        ],
    )
