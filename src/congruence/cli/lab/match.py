"""``congruence lab match``: test whether similarity scores separate matching pairs from easy and hard non-matches."""

from __future__ import annotations

from typing import Any

from congruence.cli._base import ids_of, number, print_json, print_table, progress, read
from congruence.cli._options import Ids, Json, Seed, argument, option, settable, with_groups


@with_groups
def command(
    images: str = argument(..., "Images, or any first side: a file, or file:key."),
    texts: str = argument(..., "Their texts."),
    hard: str | None = option(None, "Hard negatives, a wrong text for each image: a file, or nearest."),
    unrelated: str | None = option(None, "Unrelated texts; by default TEXTS, randomly re-paired."),
    metric: list[str] | None = option(None, "Name of a metric, or all; may be repeated. By default the four of JAM."),
    ids: Ids = None,
    settings: dict[str, Any] = settable(
        definition="both", components=10, normalize=False, standardize=False, draws=100, rows=int, permutations=200
    ),
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Compare scores of matching pairs with those of noise, unrelated texts and hard negatives (Yoon et al., section
    2).

    Example: congruence lab match library/old-photos.parquet library/new-photos.parquet
    """
    import numpy as np

    from congruence._utils.ids import id_rows
    from congruence.compare.matching import DEFAULT, match_test
    from congruence.embeddings import Pairs, Space
    from congruence.metrics import BETWEEN_SPACES

    image_ids, text_ids = ids_of(ids)
    captions = read(texts, text_ids, Space())
    pairs = Pairs.join(read(images, image_ids, Space()), captions)
    hard_texts: np.ndarray | str | None = hard
    if hard is not None and hard != "nearest":
        # Paired with the texts, and then put in the order of the pairs.
        wrong = Pairs.join(captions, read(hard, text_ids, Space()), missing="error").target.vectors
        hard_texts = wrong[id_rows(captions.ids, pairs.target.ids)]
    unrelated_texts = None if unrelated is None else read(unrelated, None, Space()).vectors
    chosen = list(BETWEEN_SPACES) if metric == ["all"] else metric or list(DEFAULT)
    draws, permutations = settings.get("draws", 100), settings.get("permutations", 200)
    if settings.get("components") == 0:
        settings["components"] = None
    with progress("scoring", draws + permutations, as_json) as callback:
        separations = match_test(
            pairs.source.vectors,
            pairs.target.vectors,
            hard_texts,
            unrelated=unrelated_texts,
            metrics=chosen,
            random_state=seed,
            callback=callback,
            **settings,
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
