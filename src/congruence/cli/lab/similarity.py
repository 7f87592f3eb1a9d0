"""``congruence lab similarity``: how similar two spaces are, and whether this is more than chance."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from congruence._utils.display import visible
from congruence.cli._base import check_plot, ids_of, number, print_json, print_table, progress, read, refuse_options
from congruence.cli._options import Force, Ids, Json, Seed, argument, option, settable, with_groups
from congruence.errors import InputError, ParameterError

if TYPE_CHECKING:
    from collections.abc import Callable

    from congruence.compare.layers import LayerComparison
    from congruence.compare.spaces import Similarities
    from congruence.embeddings import Embeddings


@dataclass(frozen=True)
class Options:
    """What is compared, and how."""

    metric: list[str] | None = option(None, "Name of a metric, or all; may be repeated. By default one of each family.")
    layers: bool = option(False, "Compare every matrix of one file or folder with every one of the other.", "--layers")
    ids: Ids = None
    permutations: int = option(200, "Number of random re-pairings.")
    seed: Seed = 0

    def arguments(self) -> dict[str, Any]:
        """Return the arguments that both comparisons have."""
        return {"permutations": self.permutations, "random_state": self.seed}


@with_groups
def command(
    first: str = argument(..., "Items in one model: a file, or file:key."),
    second: str = argument(..., "The same items in another model."),
    *,
    options: Options,
    settings: dict[str, Any] = settable(halves=20, max_rows=int),
    plot: str | None = option(None, "Plot the scores, or with --layers the heat map: .svg, .png or .pdf."),
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Score the similarity of two spaces with several metrics, each next to its score for randomly re-paired rows.

    Example: congruence lab similarity library/old-photos.parquet library/new-photos.parquet
    """
    if plot is not None:
        check_plot(plot, force=force)
    compare: Callable[..., tuple[Any, dict[str, object]]] = _compare_layers if options.layers else _compare_spaces
    show: Callable[..., None] = _print_heatmap if options.layers else _print_scores
    result, data = compare(first, second, options, settings, as_json)
    if plot is not None:
        from congruence.report import write_layers, write_similarities

        write = write_layers if options.layers else write_similarities
        write(plot, result, f"{Path(first).name} and {Path(second).name}", force=force)
    if as_json:
        print_json({"first": first, "second": second, **data, "plot": plot})
    else:
        show(result, options)


def _compare_spaces(
    first: str, second: str, options: Options, settings: dict[str, Any], quiet: bool
) -> tuple[Similarities, dict[str, object]]:
    """Return the scores, also as plain data."""
    from congruence.compare.spaces import DEFAULT, compare_spaces
    from congruence.embeddings import Pairs, Space
    from congruence.metrics import BETWEEN_SPACES

    pairs = Pairs.join(read(first, ids_of(options.ids)[0], Space()), read(second, ids_of(options.ids)[1], Space()))
    chosen = list(BETWEEN_SPACES) if options.metric == ["all"] else options.metric or list(DEFAULT)
    with progress("comparing", len(chosen), quiet) as callback:
        X, Y = pairs.source.vectors, pairs.target.vectors
        scores = compare_spaces(X, Y, chosen, callback=callback, **settings, **options.arguments())
    return scores, {"scores": [score.to_dict() for score in scores]}


def _print_scores(scores: Similarities, options: Options) -> None:
    rows = [
        [
            score.metric,
            number(score.value),
            f"{number(score.low)} … {number(score.high)}",
            f"{number(score.null_mean)} ± {number(score.null_sd)}",
            *map(number, (score.p_value, score.adjusted_p_value, score.held_out)),
            "" if score.larger_is_closer else "smaller is closer",
        ]
        for score in scores
    ]
    title = f"{scores[0].n} items, {options.permutations} re-pairings"
    print_table(title, ["metric", "score", "95 %", "by chance", "p", "p, best of all", "held out", ""], rows)


def _compare_layers(
    first: str, second: str, options: Options, settings: dict[str, Any], quiet: bool
) -> tuple[LayerComparison, dict[str, object]]:
    """Compare every layer with every layer, and return the scores, also as plain data."""
    from congruence._utils.ids import id_rows
    from congruence.compare.layers import compare_layers
    from congruence.embeddings import Pairs
    from congruence.metrics import between_spaces

    refuse_options({"--set halves": settings.get("halves")}, "with --layers")
    metric = options.metric or ["linear_cka"]
    if len(metric) > 1 or metric == ["all"]:
        raise ParameterError(
            f"Got {' and '.join(metric)} with --layers; expected one metric, which scores every pair of layers.",
            "Pass --metric once.",
        )
    between_spaces(metric[0])  # an unknown metric is reported before the work starts
    sides = [_read_layers(spec, one) for spec, one in zip((first, second), ids_of(options.ids), strict=True)]
    pairs = Pairs.join(*(next(iter(layers.values())) for layers in sides))
    X, Y = (
        {name: layer.vectors[id_rows(layer.ids, rows.ids)] for name, layer in layers.items()}
        for layers, rows in zip(sides, (pairs.source, pairs.target), strict=True)
    )
    with progress("re-pairing", options.permutations, quiet) as callback:
        comparison = compare_layers(X, Y, metric[0], callback=callback, **settings, **options.arguments())
    return comparison, {"layers": comparison.to_dict()}


def _read_layers(spec: str, ids: str | None) -> dict[str, Embeddings]:
    """Read every matrix of a file or folder, with rows in the order of the first."""
    from congruence.embeddings import Pairs, Space
    from congruence.io import matrices

    layers: dict[str, Embeddings] = {}
    for name, matrix in matrices(spec).items():
        try:
            layer = read(matrix, ids, Space())
            first = next(iter(layers.values()), layer)
            layers[name] = Pairs.join(first, layer, missing="error").target
        except InputError as error:
            raise type(error)(f"Layer {name} of {spec}: {error}") from error
    return layers


#: Intensity of a cell's color above which white text is more legible than black.
_WHITE = 0.86


def _print_heatmap(comparison: LayerComparison, options: Options) -> None:
    """Print the scores as a table, colored if the terminal supports color."""
    import sys

    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("", no_wrap=True)
    for name in comparison.y_layers:
        table.add_column(Text(visible(name)), justify="right", no_wrap=True)
    for i, (name, strengths) in enumerate(zip(comparison.x_layers, comparison.strength.tolist(), strict=True)):
        cells = []
        for j, (other, strength) in enumerate(zip(comparison.y_layers, strengths, strict=True)):
            red, green, blue = (round(255 + strength * (full - 255)) for full in (31, 95, 191))
            ink = "#ffffff" if strength > _WHITE else "#000000"
            mark = "*" if (name, other) == comparison.best else " "
            cells.append(Text(f" {comparison.values[i, j]:.2f}{mark}", style=f"{ink} on rgb({red},{green},{blue})"))
        table.add_row(Text(visible(name)), *cells)
    # A table wider than the terminal wraps, and one written to a file has no width limit: nothing is truncated.
    needed = Console(width=100_000).measure(table).maximum
    console = Console(width=max(needed, Console().width if sys.stdout.isatty() else 160), highlight=False)
    console.print(
        f"[bold]{comparison.metric}, {comparison.n} items, {options.permutations} re-pairings[/]; stronger "
        "color: further above chance"
    )
    console.print(table)
    best = " and ".join(map(visible, comparison.best))
    print(
        f"* best of {comparison.values.size}: {best}, {number(comparison.best_value)}; by chance the best is "
        f"{number(comparison.best_null_mean)} ± {number(comparison.best_null_sd)}. p = "
        f"{number(comparison.best_p_value)} alone, {number(comparison.best_adjusted_p_value)} corrected for the "
        "search."
    )
