"""``congruence lab match``: test whether similarity scores separate matching pairs from easy and hard non-matches."""

from __future__ import annotations

from congruence.cli._base import number, print_json, print_table, progress, read
from congruence.cli._options import Json, Seed, argument, option


def command(
    images: str = argument(..., "Images, or any first side: a file, or file:key."),
    texts: str = argument(..., "Their texts."),
    hard: str | None = option(None, "Hard negatives, a wrong text for each image: a file, or nearest."),
    unrelated: str | None = option(None, "Unrelated texts; by default TEXTS, randomly re-paired."),
    metric: list[str] | None = option(None, "Name of a metric, or all; may be repeated. By default the four of JAM."),
    definition: str = option("both", "Formulas: jam (the paper's), congruence (ours), or both."),
    components: int = option(10, "Principal components to keep (50 for cca); 0 for the embeddings unchanged."),
    normalize: bool = option(False, "Scale rows to unit norm before CKNNA, as Huh et al. do.", "--normalize"),
    standardize: bool = option(
        False, "Scale columns to unit variance before SVCCA, as Huh et al. do.", "--standardize"
    ),
    draws: int = option(100, "Number of random subsets of rows."),
    rows: int | None = option(None, "Rows per subset; by default half."),
    permutations: int = option(200, "Number of randomizations for each p-value."),
    ids: str | None = option(None, "Key, column or file of the ids, in every file."),
    target_ids: str | None = option(None, "Key, column or file of the texts' ids, if different."),
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Compare scores of matching pairs with those of noise, unrelated texts and hard negatives (Yoon et al., section
    2).
    """
    import numpy as np

    from congruence._utils.ids import id_rows
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
