"""``congruence similarity``: how alike two spaces are, and whether it is more than chance."""

from __future__ import annotations

from typing import Annotated

import typer


def command(
    first: Annotated[str, typer.Argument(help="Items in one model: a file, or file:key.")],
    second: Annotated[str, typer.Argument(help="The same items in another.")],
    metric: Annotated[
        list[str] | None, typer.Option(help="A metric, or all. May be repeated; by default one of each family.")
    ] = None,
    ids: Annotated[str | None, typer.Option(help="Key, column or file of ids, on both sides.")] = None,
    target_ids: Annotated[str | None, typer.Option(help="The same for the second, if it differs.")] = None,
    permutations: Annotated[int, typer.Option(help="Random re-pairings.")] = 200,
    halves: Annotated[int, typer.Option(help="Random halves for the interval.")] = 20,
    max_rows: Annotated[int | None, typer.Option(help="Draw this many rows if there are more.")] = None,
    seed: Annotated[int, typer.Option(help="Of re-pairings, halves and rows drawn.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Report as JSON.")] = False,
) -> None:
    """Score two spaces with several metrics, each beside what unrelated rows would score."""
    from congruence.cli._base import number, print_json, print_table, progress, read
    from congruence.embeddings import Pairs, Space
    from congruence.metrics.null import REPAIRED
    from congruence.similarity import DEFAULT, similarity

    pairs = Pairs.join(read(first, ids, Space()), read(second, target_ids or ids, Space()))
    chosen = list(REPAIRED) if metric == ["all"] else metric or list(DEFAULT)
    with progress("comparing", len(chosen), as_json) as advance:
        scores = similarity(
            pairs.source.vectors,
            pairs.target.vectors,
            chosen,
            permutations=permutations,
            halves=halves,
            max_rows=max_rows,
            seed=seed,
            advance=advance,
        )
    if as_json:
        print_json({"first": first, "second": second, "scores": [score.to_dict() for score in scores]})
        return
    rows = [
        [
            score.metric,
            number(score.value),
            f"{number(score.low)} … {number(score.high)}",
            f"{number(score.null_mean)} ± {number(score.null_sd)}",
            number(score.p_value),
            number(score.adjusted_p_value),
            number(score.held_out),
            "" if score.larger_is_closer else "smaller is closer",
        ]
        for score in scores
    ]
    print_table(
        f"{scores[0].n} items, {permutations} re-pairings",
        ["metric", "score", "95 %", "by chance", "p", "p, best of all", "held out", ""],
        rows,
    )
