"""``congruence match``: test whether similarity scores separate matching pairs from easy and hard non-matches."""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = ["command"]


def command(
    images: Annotated[str, typer.Argument(help="Images, or any first side: a file, or file:key.")],
    texts: Annotated[str, typer.Argument(help="Their texts.")],
    hard: Annotated[
        str | None,
        typer.Option(
            help="Hard negatives, a wrong text for each image: a file, or nearest, which exchanges each text with "
            "a similar one."
        ),
    ] = None,
    unrelated: Annotated[
        str | None, typer.Option(help="Unrelated texts; by default TEXTS, randomly re-paired.")
    ] = None,
    metric: Annotated[
        list[str] | None,
        typer.Option(help="Name of a metric, or all. May be repeated; by default the four of the JAM paper."),
    ] = None,
    definition: Annotated[
        str, typer.Option(help="Formulas of the metrics: jam (the paper's), congruence (ours), or both.")
    ] = "both",
    components: Annotated[
        int,
        typer.Option(
            help="Number of principal components to keep before scoring (50 for cca); 0 to use the embeddings "
            "unchanged."
        ),
    ] = 10,
    normalize: Annotated[
        bool, typer.Option("--normalize", help="Scale rows to unit norm before CKNNA, as in the code of Huh et al.")
    ] = False,
    standardize: Annotated[
        bool,
        typer.Option("--standardize", help="Scale columns to unit variance before SVCCA, as in the code of Huh et al."),
    ] = False,
    draws: Annotated[int, typer.Option(help="Number of random subsets of rows.")] = 100,
    rows: Annotated[int | None, typer.Option(help="Rows per subset; by default half.")] = None,
    permutations: Annotated[int, typer.Option(help="Number of randomizations for each p-value.")] = 200,
    ids: Annotated[str | None, typer.Option(help="Key, column or file of the ids, in every file.")] = None,
    target_ids: Annotated[str | None, typer.Option(help="Key, column or file of the texts' ids, if different.")] = None,
    seed: Annotated[int, typer.Option(help="Random seed of subsets, noise and re-pairings.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Report as JSON, including all scores.")] = False,
) -> None:
    """Compare scores of matching pairs with those of noise, unrelated texts and hard negatives (Yoon et al., section
    2).
    """
    import numpy as np

    from congruence._utils.ids import id_rows
    from congruence.cli._base import number, print_json, print_table, progress, read
    from congruence.compare.matching import DEFAULT, match_test
    from congruence.embeddings import Pairs, Space
    from congruence.metrics import BETWEEN_SPACES

    captions = read(texts, target_ids or ids, Space())
    pairs = Pairs.join(read(images, ids, Space()), captions)
    hard_texts: np.ndarray | str | None = hard
    if hard is not None and hard != "nearest":
        # Paired with the texts, and then put in the order of the pairs.
        wrong = Pairs.join(captions, read(hard, target_ids or ids, Space()), missing="error").target.vectors
        hard_texts = wrong[id_rows(captions.ids, pairs.target.ids)]
    unrelated_texts = None if unrelated is None else read(unrelated, None, Space()).vectors
    chosen = list(BETWEEN_SPACES) if metric == ["all"] else metric or list(DEFAULT)
    with progress("scoring", draws + permutations, as_json) as callback:
        separations = match_test(
            pairs.source.vectors,
            pairs.target.vectors,
            hard_texts,
            unrelated=unrelated_texts,
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
        print_json({"images": images, "texts": texts, "hard": hard, "results": [row.to_dict() for row in separations]})
        return
    sources = {"jam": "paper", "congruence": "ours", "both": "both"}
    lines = [
        [
            f"{row.metric}, {row.formula} ({sources[row.definition]})" if row.formula else row.metric,
            row.against,
            number(row.match),
            number(row.other),
            f"{number(float(np.mean(row.match_scores)))} ± {number(float(np.std(row.match_scores)))}",
            f"{number(float(np.mean(row.other_scores)))} ± {number(float(np.std(row.other_scores)))}",
            number(row.effect_size, 1),
            number(row.auc),
            number(row.p_value),
        ]
        for row in separations
    ]
    print_table(
        f"{separations[0].n} pairs, {draws} draws of {separations[0].rows}, {permutations} randomizations",
        ["metric", "against", "match", "other", "match, drawn", "other, drawn", "effect", "AUC", "p"],
        lines,
    )
    if any(row.formula for row in separations):
        print(
            "paper: Yoon et al. (JAM), appendix B.2: the first canonical correlation, biased CKA (eq. 3–4), CKNNA "
            "by eq. 6–9. ours: the mean canonical correlation, debiased CKA, CKNNA by the code of Huh et al. "
            "SVCCA is the same in both."
        )
