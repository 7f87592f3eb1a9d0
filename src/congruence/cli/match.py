"""``congruence match``: whether similarity scores tell matching pairs from easy and from hard non-matches."""

from __future__ import annotations

from typing import Annotated

import typer


def command(
    images: Annotated[str, typer.Argument(help="Images, or any first side: a file, or file:key.")],
    texts: Annotated[str, typer.Argument(help="Their texts.")],
    hard: Annotated[
        str | None, typer.Option(help="A wrong text for each: a file, or “nearest” to exchange texts for similar ones.")
    ] = None,
    unrelated: Annotated[
        str | None, typer.Option(help="Texts about something else; by default the texts re-paired.")
    ] = None,
    metric: Annotated[
        list[str] | None, typer.Option(help="A metric, or all. May be repeated; by default the JAM paper's four.")
    ] = None,
    components: Annotated[
        int, typer.Option(help="Principal components before scoring (50 for cca); 0 for whole embeddings.")
    ] = 10,
    draws: Annotated[int, typer.Option(help="Random subsets of rows.")] = 100,
    rows: Annotated[int | None, typer.Option(help="Rows in each; half by default.")] = None,
    permutations: Annotated[int, typer.Option(help="Randomisations behind each p-value.")] = 200,
    ids: Annotated[str | None, typer.Option(help="Key, column or file of ids, in every file.")] = None,
    target_ids: Annotated[str | None, typer.Option(help="The same for the texts, if it differs.")] = None,
    seed: Annotated[int, typer.Option(help="Of draws, noise and re-pairings.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Report as JSON, all scores included.")] = False,
) -> None:
    """Score matching pairs beside noise, unrelated texts and hard negatives (Yoon et al., section 2)."""
    import numpy as np

    from congruence.cli._base import number, print_json, print_table, progress, read
    from congruence.compare.matching import DEFAULT, match_test
    from congruence.embeddings import Pairs, Space
    from congruence.metrics.null import REPAIRED

    captions = read(texts, target_ids or ids, Space())
    pairs = Pairs.join(read(images, ids, Space()), captions)
    wrong: np.ndarray | str | None = hard
    if hard is not None and hard != "nearest":
        # Paired with the texts, whose rows then say which belong to the images.
        beside = Pairs.join(captions, read(hard, target_ids or ids, Space()), missing="error").target.vectors
        place = {name: row for row, name in enumerate(captions.ids.tolist())}
        wrong = beside[[place[name] for name in pairs.target.ids.tolist()]]
    others = None if unrelated is None else read(unrelated, None, Space()).vectors
    chosen = list(REPAIRED) if metric == ["all"] else metric or list(DEFAULT)
    with progress("scoring", draws + permutations, as_json) as advance:
        found = match_test(
            pairs.source.vectors,
            pairs.target.vectors,
            wrong,
            unrelated=others,
            metrics=chosen,
            components=components or None,
            draws=draws,
            rows=rows,
            permutations=permutations,
            seed=seed,
            advance=advance,
        )
    if as_json:
        print_json({"images": images, "texts": texts, "hard": hard, "results": [one.to_dict() for one in found]})
        return
    lines = [
        [
            one.metric,
            one.against,
            number(one.match),
            number(one.other),
            f"{number(float(np.mean(one.match_scores)))} ± {number(float(np.std(one.match_scores)))}",
            f"{number(float(np.mean(one.other_scores)))} ± {number(float(np.std(one.other_scores)))}",
            number(one.effect_size, 1),
            number(one.auc),
            number(one.p_value),
        ]
        for one in found
    ]
    print_table(
        f"{found[0].n} pairs, {draws} draws of {found[0].rows}, {permutations} randomisations",
        ["metric", "against", "match", "other", "match, drawn", "other, drawn", "effect", "AUC", "p"],
        lines,
    )
