"""``congruence lab similarity``, ``match`` and ``shift``: how alike two spaces, or collections, are."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from congruence.cli._input import ids_of, read, refuse_options, two_sides
from congruence.cli._options import Force, Ids, Json, Seed, argument, option, settable
from congruence.cli._output import check_out, number, print_json, print_table, progress, say
from congruence.errors import InputError, ParameterError, ShapeError

if TYPE_CHECKING:
    import numpy as np

    from congruence.compare.spaces import LayerComparison, Similarities
    from congruence.embeddings import Embeddings


def similarity(
    first: str = argument(..., "Items in one model: a file, or file:key."),
    second: str = argument(..., "The same items in another model."),
    *,
    metric: list[str] | None = option(None, "Name of a metric, or all; repeatable. By default one of each family."),
    layers: bool = option(False, "Compare every matrix of one file or folder with every one of the other.", "--layers"),
    ids: Ids = None,
    permutations: int = option(200, "Number of random re-pairings."),
    seed: Seed = 0,
    settings: dict[str, Any] = settable(halves=20, max_rows=int),
    plot: str | None = option(None, "Plot the scores, or with --layers the heat map: .svg, .png or .pdf."),
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Score the similarity of two spaces with several metrics, each next to its score for randomly re-paired rows.

    Example: congruence lab similarity library/old-photos.parquet library/new-photos.parquet
    """
    refuse_options({"--set halves": layers and settings.get("halves")}, "with --layers")
    check_out(plot, force=force, kind="plot")
    columns, options = ids_of(ids), {"permutations": permutations, "random_state": seed, **settings}
    result: Any
    show: Any
    if layers:
        result = _compare_layers((first, second), columns, metric or ["linear_cka"], options, as_json)
        data, show = {"layers": result.to_dict()}, _print_layers
    else:
        result = _compare_spaces((first, second), columns, metric, options, as_json)
        data, show = {"scores": [score.to_dict() for score in result]}, _print_similarities
    if plot is not None:
        from congruence.report import write_layers, write_similarities

        write = write_layers if layers else write_similarities
        write(plot, result, f"{Path(first).name} and {Path(second).name}", force=force)
    print_json({"first": first, "second": second, **data, "plot": plot}) if as_json else show(result, permutations)


def _compare_spaces(
    files: tuple[str, str], ids: tuple[str | None, ...], metric: list[str] | None, options: dict[str, Any], quiet: bool
) -> Similarities:
    from congruence.compare.spaces import DEFAULT, compare_spaces
    from congruence.embeddings import Pairs
    from congruence.metrics import BETWEEN_SPACES

    pairs = Pairs.join(*map(read, files, ids))
    chosen = list(BETWEEN_SPACES) if metric == ["all"] else metric or list(DEFAULT)
    with progress("comparing", len(chosen) * options["permutations"], quiet) as callback:
        return compare_spaces(pairs.source.vectors, pairs.target.vectors, chosen, callback=callback, **options)


def _print_similarities(scores: Similarities, permutations: int) -> None:
    rows = [
        [
            *(score.metric, number(score.value), f"{number(score.low)} … {number(score.high)}"),
            f"{number(score.null_mean)} ± {number(score.null_sd)}",
            *map(number, (score.p_value, score.adjusted_p_value, score.held_out)),
            "" if score.larger_is_closer else "smaller is closer",
        ]
        for score in scores
    ]
    columns = ["metric", "score", "95 %", "by chance", "p", "p, best of all", "held out", ""]
    print_table(f"{scores[0].n} items, {permutations} re-pairings", columns, rows)


def _compare_layers(
    files: tuple[str, str], ids: tuple[str | None, ...], metric: list[str], options: dict[str, Any], quiet: bool
) -> LayerComparison:
    from congruence._utils.ids import id_rows
    from congruence.compare.spaces import compare_layers
    from congruence.embeddings import Pairs
    from congruence.metrics import between_spaces

    if len(metric) > 1 or metric == ["all"]:
        problem = f"Got {' and '.join(metric)} with --layers; expected one metric, which scores every pair of layers."
        raise ParameterError(problem, "Pass --metric once.")
    between_spaces(metric[0])  # an unknown metric is reported before the work starts
    sides = list(map(_read_layers, files, ids))
    pairs = Pairs.join(*(next(iter(layers.values())) for layers in sides))
    X, Y = (
        {name: layer.vectors[id_rows(layer.ids, rows.ids)] for name, layer in layers.items()}
        for layers, rows in zip(sides, (pairs.source, pairs.target), strict=True)
    )
    with progress("re-pairing", options["permutations"], quiet) as callback:
        return compare_layers(X, Y, metric[0], callback=callback, **options)


def _read_layers(spec: str, ids: str | None) -> dict[str, Embeddings]:
    """Read every matrix of a file or folder, with rows in the order of the first."""
    from congruence.embeddings import Pairs
    from congruence.io import matrices

    layers: dict[str, Embeddings] = {}
    for name, matrix in matrices(spec).items():
        try:
            layer = read(matrix, ids)
            first = next(iter(layers.values()), layer)
            layers[name] = Pairs.join(first, layer, missing="error").target
        except InputError as error:
            error.problem = f"Layer {name} of {spec}: {error.problem}"
            raise
    return layers


def _print_layers(comparison: LayerComparison, permutations: int) -> None:
    rows = []
    for name, values in zip(comparison.x_layers, comparison.values.tolist(), strict=True):
        marks = ["*" if (name, other) == comparison.best else "" for other in comparison.y_layers]
        rows.append([name, *(f"{value:.2f}{mark}" for value, mark in zip(values, marks, strict=True))])
    title = f"{comparison.metric}, {comparison.n} items, {permutations} re-pairings"
    print_table(title, ["", *comparison.y_layers], rows)
    by_chance = f"{number(comparison.best_null_mean)} ± {number(comparison.best_null_sd)}"
    p_values = f"{number(comparison.best_p_value)} alone, {number(comparison.best_adjusted_p_value)} corrected"
    say(
        f"* best of {comparison.values.size}: {' and '.join(comparison.best)}, {number(comparison.best_value)}; by "
        f"chance the best is {by_chance}. p = {p_values} for the search."
    )


def match(
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
    from congruence.embeddings import Pairs
    from congruence.metrics import BETWEEN_SPACES

    image_ids, text_ids = ids_of(ids)
    captions = read(texts, text_ids)
    pairs = Pairs.join(read(images, image_ids), captions)
    hard_texts: np.ndarray | str | None = hard
    if hard is not None and hard != "nearest":
        # Paired with the texts, and then put in the order of the pairs.
        wrong = Pairs.join(captions, read(hard, text_ids), missing="error").target.vectors
        hard_texts = wrong[id_rows(captions.ids, pairs.target.ids)]
    draws, permutations = settings.get("draws", 100), settings.get("permutations", 200)
    if settings.get("components") == 0:
        settings["components"] = None
    with progress("scoring", draws + permutations, as_json) as callback:
        separations = match_test(
            pairs.source.vectors,
            pairs.target.vectors,
            hard_texts,
            unrelated=None if unrelated is None else read(unrelated).vectors,
            metrics=list(BETWEEN_SPACES) if metric == ["all"] else metric or list(DEFAULT),
            random_state=seed,
            callback=callback,
            **settings,
        )
    if as_json:
        print_json({"images": images, "texts": texts, "hard": hard, "results": [row.to_dict() for row in separations]})
        return
    sources = {"jam": "paper", "congruence": "ours", "both": "both"}

    def drawn(values: Any) -> str:
        return f"{number(float(np.mean(values)))} ± {number(float(np.std(values)))}"

    lines = [
        [
            f"{row.metric}, {row.formula} ({sources[row.definition]})" if row.formula else row.metric,
            *(row.against, number(row.match), number(row.other), drawn(row.match_scores), drawn(row.other_scores)),
            *(number(row.effect_size, 1), number(row.auc), number(row.p_value)),
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


def shift(
    first: str = argument(..., "Vectors of one collection: a file, or file:key."),
    second: str = argument(..., "Vectors of the other collection, from the same model."),
    texts: str | None = option(None, "FIRST,SECOND: texts of both collections; their distance is added."),
    normalize: bool = option(False, "Scale rows to unit norm.", "--normalize"),
    settings: dict[str, Any] = settable(variant="circular", p=2.0, n_projections=500, max_rows=100_000, repeats=20),
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Measure the sliced Wasserstein distance between two collections on the sphere.

    Example: congruence lab shift library/old-photos.parquet library/new-photos.parquet
    """
    from congruence.transport import distribution_shift

    rows = [read(spec).vectors for spec in (first, second, *(two_sides(texts, "--texts", "FIRST,SECOND") or ()))]
    if rows[0].shape[1] != rows[1].shape[1]:
        widths = f"{rows[0].shape[1]} components in {first} and {rows[1].shape[1]} in {second}"
        raise ShapeError(f"Got vectors of {widths}.", "Pass vectors of one model.")
    options = {"variant": "circular", "n_projections": 500, "max_rows": 100_000, "repeats": 20, **settings}
    with progress("drawing", options["repeats"], as_json) as callback:
        found = distribution_shift(*rows, normalize=normalize, random_state=seed, callback=callback, **options)
    if as_json:
        names = ("first", "second", "first_texts", "second_texts")
        drawn = {name: min(len(side), options["max_rows"]) for name, side in zip(names, rows, strict=False)}
        print_json({"first": first, "second": second, "rows": drawn, **found.to_dict()})
        return
    lines = {"vectors": found.total}
    if found.text is not None:
        lines = {"images": found.image, "texts": found.text, "total": found.total}
    print_table(
        f"{options['variant']} sliced Wasserstein distance in turns, {options['repeats']} draws of "
        f"{options['n_projections']} circles",
        ["", "distance", "sd", "floor"],
        [[name, number(d.value, 4), number(d.sd, 4), number(d.floor, 4)] for name, d in lines.items()],
    )
