"""``congruence similarity``: how similar two spaces are, and whether this is more than chance."""

from __future__ import annotations

from typing import TYPE_CHECKING

from congruence._utils.atomic import check_output
from congruence._utils.display import visible
from congruence.cli._base import number, print_json, print_table, progress, read
from congruence.cli._options import Force, Json, Seed, argument, option
from congruence.errors import InputError, ParameterError

if TYPE_CHECKING:
    from congruence.compare.layers import LayerComparison
    from congruence.embeddings import Embeddings


def command(
    first: str = argument(..., "Items in one model: a file, or file:key."),
    second: str = argument(..., "The same items in another model."),
    metric: list[str] | None = option(
        None, "Name of a metric, or all; may be repeated. By default one of each family."
    ),
    layers: bool = option(False, "Compare every matrix of one file or folder with every one of the other.", "--layers"),
    ids: str | None = option(None, "Key, column or file of the ids, in both files."),
    target_ids: str | None = option(None, "Key, column or file of the second file's ids, if different."),
    permutations: int = option(200, "Number of random re-pairings."),
    halves: int = option(20, "Number of random halves for the interval; not used with --layers."),
    max_rows: int | None = option(None, "If there are more rows, use a random sample of this size."),
    seed: Seed = 0,
    plot: str | None = option(None, "Plot the scores, or with --layers the heat map: .svg, .png or .pdf."),
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Score the similarity of two spaces with several metrics, each next to its score for randomly re-paired rows."""
    from congruence.compare.spaces import DEFAULT, compare_spaces
    from congruence.embeddings import Pairs, Space
    from congruence.metrics import BETWEEN_SPACES

    if plot is not None:
        _check_plot(plot, force)
    if layers:
        _layers(first, second, metric, ids, target_ids, permutations, max_rows, seed, plot, force, as_json)
        return
    pairs = Pairs.join(read(first, ids, Space()), read(second, target_ids or ids, Space()))
    chosen = list(BETWEEN_SPACES) if metric == ["all"] else metric or list(DEFAULT)
    with progress("comparing", len(chosen), as_json) as callback:
        scores = compare_spaces(
            pairs.source.vectors,
            pairs.target.vectors,
            chosen,
            permutations=permutations,
            halves=halves,
            max_rows=max_rows,
            random_state=seed,
            callback=callback,
        )
    if plot is not None:
        from congruence.report import write_similarities

        write_similarities(plot, scores, _title(first, second), force=force)
    if as_json:
        print_json({"first": first, "second": second, "scores": [score.to_dict() for score in scores], "plot": plot})
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


def _check_plot(plot: str, force: bool) -> None:
    """Check before the work starts that the plot can be written."""
    from congruence.report.pictures import check_suffix

    check_suffix(plot)
    check_output(plot, force=force)


def _title(first: str, second: str) -> str:
    from pathlib import Path

    return f"{Path(first).name} and {Path(second).name}"


def _layers(
    first: str,
    second: str,
    metric: list[str] | None,
    ids: str | None,
    target_ids: str | None,
    permutations: int,
    max_rows: int | None,
    seed: int,
    plot: str | None,
    force: bool,
    as_json: bool,
) -> None:
    """Compare every layer with every layer."""
    from congruence._utils.ids import id_rows
    from congruence.compare.layers import compare_layers
    from congruence.embeddings import Pairs
    from congruence.metrics import between_spaces

    if metric is not None and (len(metric) > 1 or metric == ["all"]):
        raise ParameterError(
            f"Got {' and '.join(metric)} with --layers; expected one metric, which scores every pair of layers.",
            "Pass --metric once.",
        )
    chosen = metric[0] if metric else "linear_cka"
    between_spaces(chosen)  # an unknown metric is reported before the work starts
    x_layers, y_layers = _read_layers(first, ids), _read_layers(second, target_ids or ids)
    pairs = Pairs.join(next(iter(x_layers.values())), next(iter(y_layers.values())))
    with progress("re-pairing", permutations, as_json) as callback:
        comparison = compare_layers(
            {name: layer.vectors[id_rows(layer.ids, pairs.source.ids)] for name, layer in x_layers.items()},
            {name: layer.vectors[id_rows(layer.ids, pairs.target.ids)] for name, layer in y_layers.items()},
            chosen,
            permutations=permutations,
            max_rows=max_rows,
            random_state=seed,
            callback=callback,
        )
    if plot is not None:
        from congruence.report import write_layers

        write_layers(plot, comparison, _title(first, second), force=force)
    if as_json:
        print_json({"first": first, "second": second, "layers": comparison.to_dict(), "plot": plot})
    else:
        _print_heatmap(comparison)


def _read_layers(spec: str, ids: str | None) -> dict[str, Embeddings]:
    """Read every matrix of a file or folder, with rows in the order of the first."""
    from congruence.embeddings import Pairs, Space
    from congruence.stores import matrices

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


def _print_heatmap(comparison: LayerComparison) -> None:
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
        f"[bold]{comparison.metric}, {comparison.n} items, {comparison.permutations} re-pairings[/]; stronger "
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
