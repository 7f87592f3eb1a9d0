"""Plots of a map: cosines of pairs, singular values, both models' points, similarities, and scores by number of anchors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.collections import LineCollection

from congruence.plotting.data import CosineHistogram, FewAnchors, KernelPoints
from congruence.plotting.look import COLOR, canvas, explain, tidy, words

__all__ = ["draw_clouds", "draw_cosines", "draw_few_anchors", "draw_kernel", "draw_spectrum"]

#: Dashes of random controls, and of reference lines.
_DOTTED, _DASHED = (0, (3, 3)), (0, (4, 4))

_NAMES = {
    "before": "unmapped",
    "after": "mapped",
    "constant": "constant",
    "random_rotation": "random rotation",
}


def draw_cosines(data: CosineHistogram, ax: Axes | None = None, *, annotate: bool = True) -> Axes:
    """Draw histograms of the cosines of pairs before and after mapping, with outlines for the controls.

    Parameters
    ----------
    data : dict
        One of ``histograms`` of :func:`congruence.report.summarize`: ``name``, ``edges``, and shares of pairs ``before``, ``after``,
        ``constant`` and ``random_rotation``, of which any may be None.
    ax : matplotlib.axes.Axes, optional
        Axes to draw on; by default those of a new figure, which is not registered with pyplot.
    annotate : bool, default=True
        Add a title and labels that identify what is drawn.
    """
    with canvas(ax) as ax:
        edges = data["edges"]
        for shares, color, kind in ((data["before"], "source", "before"), (data["after"], "after", "after")):
            if shares:
                ax.stairs(shares, edges, fill=True, color=COLOR[color], alpha=0.55, label=_NAMES[kind])
        controls = (data["constant"], "solid", "constant"), (data["random_rotation"], _DOTTED, "random_rotation")
        for shares, dashes, kind in controls:
            if shares:
                ax.stairs(shares, edges, color=COLOR["ink"], linewidth=1.6, linestyle=dashes, label=_NAMES[kind])
        histograms = (data["before"], data["after"], data["constant"], data["random_rotation"])
        top = max(max(shares) for shares in histograms if shares) * 1.08 or 1.0
        ax.set(xlim=(edges[0], edges[-1]), ylim=(0, top), xlabel="cosine", ylabel="share of pairs")
        tidy(ax)
        if annotate:
            explain(ax, f"{words(data['name'])} cosines")
    return ax


def draw_spectrum(data: Mapping[str, Sequence[float]], ax: Axes | None = None, *, annotate: bool = True) -> Axes:
    """Draw the singular values of the anchors' cross-covariance, relative to the largest, and the gains.

    Parameters
    ----------
    data : dict
        ``singular_values`` and ``gains``, strongest direction first.
    ax : matplotlib.axes.Axes, optional
        Axes to draw on; by default those of a new figure, which is not registered with pyplot.
    annotate : bool, default=True
        Add a title and labels that identify what is drawn.
    """
    with canvas(ax) as ax:
        values, n = data["singular_values"], len(data["singular_values"])
        top = max(values) or 1.0
        x, shares = range(1, n + 1), [value / top for value in values]
        ax.fill_between(x, shares, color=COLOR["faint"], alpha=0.18, linewidth=0)
        ax.plot(x, shares, color=COLOR["faint"], label="singular values")
        ax.plot(x, data["gains"], color=COLOR["ink"], label="gain of the map")
        ax.set(xlim=(1, max(n, 2)), ylim=(0, 1.02), xlabel="direction, strongest first", ylabel="share of the first")
        tidy(ax)
        if annotate:
            explain(ax, "What the anchors cover")
    return ax


def draw_clouds(
    data: dict[str, Sequence[Sequence[float]]],
    ax: Axes | None = None,
    *,
    mapped: bool = False,
    names: Mapping[str, str] | None = None,
    title: str = "Two principal directions",
    annotate: bool = True,
) -> Axes:
    """Draw both models' images (dots) and texts (triangles) in two principal directions, pairs joined by lines.

    Parameters
    ----------
    data : dict
        Points, shape (n, 2), by name: ``source image``, ``source text``, ``target image``, ``target text``. Point i of a modality is the same
        item on both sides.
    ax : matplotlib.axes.Axes, optional
        Axes to draw on; by default those of a new figure, which is not registered with pyplot.
    mapped : bool, default=False
        Whether the source's points were mapped; they then have the color of mapped vectors.
    names : mapping of str to str, optional
        Labels of clouds in the legend; by default the names above.
    title : str, default="Two principal directions"
    annotate : bool, default=True
        Add the title and labels that identify what is drawn.
    """
    with canvas(ax) as ax:
        for modality in ("image", "text"):
            if {f"source {modality}", f"target {modality}"} <= {*data}:
                pairs = list(zip(data[f"source {modality}"], data[f"target {modality}"], strict=True))
                ax.add_collection(
                    LineCollection(pairs, colors=COLOR["faint"], linewidths=0.7, alpha=0.6), autolim=False
                )
        for name, points in data.items():
            side, modality = name.split(" ")
            color = COLOR["after" if mapped and side == "source" else side]
            label = f"{'mapped ' if mapped and side == 'source' else ''}{name}"
            marker, size = ("^", 5.2) if modality == "text" else ("o", 4.4)
            x, y = zip(*points, strict=True) if len(points) else ((), ())
            ax.plot(x, y, marker, color=color, markersize=size, label=(names or {}).get(name, label))
        ax.set_aspect("equal", adjustable="datalim")  # with different scales, distances could not be compared
        ax.margins(0.03)
        ax.set_axis_off()
        if annotate:
            explain(ax, words(title))
    return ax


def draw_kernel(
    data: KernelPoints,
    ax: Axes | None = None,
    *,
    color: str = "ink",
    title: str = "Similarities",
    annotate: bool = True,
) -> Axes:
    """Draw image–text similarities in one model against those in the other.

    Parameters
    ----------
    data : dict
        ``matched`` and ``other``: points of source and target similarity, shape (n, 2).
    ax : matplotlib.axes.Axes, optional
        Axes to draw on; by default those of a new figure, which is not registered with pyplot.
    color : str, default="ink"
        Color of matched pairs, which belong to both models.
    title : str, default="Similarities"
    annotate : bool, default=True
        Add the title and labels that identify what is drawn.
    """
    with canvas(ax) as ax:
        points = [*data["other"], *data["matched"]]
        low, high = min(map(min, points)), max(map(max, points))
        margin = (high - low) * 0.04 or 0.1
        span = (low - margin, high + margin)
        ax.plot(span, span, color=COLOR["faint"], linestyle=_DASHED, linewidth=1.2)
        for shown, hue, size, alpha, label in (
            (data["other"], "faint", 2.6, 0.45, "different classes"),
            (data["matched"], color, 3.6, 1.0, "same class"),
        ):
            x, y = zip(*shown, strict=True) if shown else ((), ())
            ax.plot(x, y, "o", color=COLOR[hue], markersize=size, alpha=alpha, label=label)
        ax.set(xlim=span, ylim=span, xlabel="⟨f, g⟩ in the source", ylabel="⟨f̃, g̃⟩ in the target")
        tidy(ax)
        if annotate:
            explain(ax, words(title))
    return ax


def draw_few_anchors(
    data: FewAnchors, measures: Sequence[str], ax: Axes | None = None, *, annotate: bool = True
) -> Axes:
    """Draw scores of maps fitted on few anchors, by number of anchors: means and ranges over several draws.

    Parameters
    ----------
    data : dict
        ``few_anchors`` of :func:`congruence.report.summarize`: ``n`` and ``curves``, each with ``measure``, ``items``, ``kind``,
        ``mean``, ``low`` and ``high``.
    measures : sequence of str
        Which curves to draw: ``"classified"``, ``"retrieval"``, ``"cosine"``.
    ax : matplotlib.axes.Axes, optional
        Axes to draw on; by default those of a new figure, which is not registered with pyplot.
    annotate : bool, default=True
        Add a title and labels that identify what is drawn.
    """
    with canvas(ax) as ax:
        n = data["n"]
        low = 0.0
        for curve in data["curves"]:
            if curve["measure"] not in measures:
                continue
            mapped = curve["kind"] == "mapped"
            color = COLOR["after" if mapped else "ink"]
            if mapped:
                ax.fill_between(n, curve["low"], curve["high"], color=color, alpha=0.18, linewidth=0)
            low = min(low, *curve["low"])
            marker = "s" if curve["measure"] == "classified" else "^" if curve["items"] == "text" else "o"
            dashes = _DASHED if curve["kind"] == "random rotation" else "solid"
            ax.plot(n, curve["mean"], marker=marker, color=color, linestyle=dashes, label=words(curve["name"]))
        ax.set_xscale("log")
        ax.set(xlim=(n[0] / 1.06, n[-1] * 1.06), ylim=(low, 1.02), xlabel="anchors (logarithmic)")
        tidy(ax, x_ticks=n if len(n) < 8 else n[::2])
        if annotate:
            explain(ax, "Scores by number of anchors", columns=1)
    return ax
