"""``congruence match``: whether similarity scores tell matching pairs from easy and from hard non-matches."""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = ["command"]


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
    definition: Annotated[
        str, typer.Option(help="jam: the paper's formulas; congruence: ours; or both, one below the other.")
    ] = "both",
    components: Annotated[
        int, typer.Option(help="Principal components before scoring (50 for cca); 0 for whole embeddings.")
    ] = 10,
    normalize: Annotated[
        bool, typer.Option("--normalize", help="Scale rows to unit norm before CKNNA, as Huh et al.'s code does.")
    ] = False,
    standardize: Annotated[
        bool, typer.Option("--standardize", help="Scale columns to unit variance before SVCCA, as that code does.")
    ] = False,
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

    from congruence._utils.ids import id_rows
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
        wrong = beside[id_rows(captions.ids, pairs.target.ids)]
    others = None if unrelated is None else read(unrelated, None, Space()).vectors
    chosen = list(REPAIRED) if metric == ["all"] else metric or list(DEFAULT)
    with progress("scoring", draws + permutations, as_json) as callback:
        found = match_test(
            pairs.source.vectors,
            pairs.target.vectors,
            wrong,
            unrelated=others,
            metrics=chosen,
            definition=definition,
            components=components or None,
            normalize=normalize,
            standardize=standardize,
            draws=draws,
            rows=rows,
            permutations=permutations,
            random_state=seed,
            callback=callback,
        )
    if as_json:
        print_json({"images": images, "texts": texts, "hard": hard, "results": [one.to_dict() for one in found]})
        return
    whose = {"jam": "paper", "congruence": "ours", "both": "both"}
    lines = [
        [
            f"{one.metric}, {one.formula} ({whose[one.definition]})" if one.formula else one.metric,
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
    if any(one.formula for one in found):
        print(
            "paper: Yoon et al. (JAM), appendix B.2: the first canonical correlation, biased CKA (eq. 3–4), CKNNA by eq. 6–9. "
            "ours: the mean canonical correlation, debiased CKA, CKNNA by the code of Huh et al. SVCCA is the same in both."
        )
