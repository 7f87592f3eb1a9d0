"""The appearance of plots: one palette, one style, and axes that a notebook displays."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from congruence._utils.display import short, visible

WIDTH = 360  # size of a plot in points, which are pixels on a page: small enough that text is readable on a phone
HEIGHT = 250

#: The colors by their meaning, for light and dark mode. The light colors are all different, and none is black, which
#: matplotlib omits in SVG, so that a page can replace each by a CSS variable (``congruence.report.pictures``).
COLORS = {
    "ink": ("#1b1f24", "#e8eaed"),
    "soft": ("#57606a", "#a6aeb8"),
    "faint": ("#8d96a0", "#7d8793"),
    "rule": ("#d5d9de", "#3a4048"),
    "paper": ("#ffffff", "#14171b"),
    "source": ("#b4541a", "#f0a06a"),
    "after": ("#1f5fbf", "#7fb0ff"),
    "target": ("#b83a86", "#f58fc7"),
    "mid": ("#8a6100", "#e3b341"),
    # Text in cells of a heat map: contrast of at least 4.5 on every strength of "after"; see layers.py.
    "on-weak": ("#010101", "#ffffff"),
    "on-middle": ("#020202", "#000000"),
    "on-strong": ("#fffffe", "#000000"),
    # Series of an experiment, which color-blind readers can tell apart (Okabe and Ito 2008).
    "series-0": ("#0072b2", "#3d97d6"),
    "series-1": ("#e69f00", "#e6a82e"),
    "series-2": ("#009e73", "#2bbf94"),
    "series-3": ("#cc79a7", "#dd94bd"),
    "series-4": ("#d55e00", "#f08040"),
    "series-5": ("#56b4e9", "#9ad6fa"),
    "series-6": ("#8c6d1f", "#b89640"),
    "series-7": ("#5f3dc4", "#a08bf0"),
    # Unmapped vectors and single models are gray, controls are brown.
    "before": ("#d5dae1", "#4a525d"),
    "constant": ("#c9b79c", "#7d6f58"),
    "random-rotation": ("#b08d57", "#a5854f"),
    "model-a": ("#9aa4b1", "#7b8592"),
    "model-b": ("#66717f", "#a9b2bd"),
    "oracle": ("#1b2430", "#f4f5f7"),
}

COLOR = {name: light for name, (light, _) in COLORS.items()}  # the colors in which plots are drawn

_STYLE: dict[Any, Any] = {
    "figure.facecolor": COLOR["paper"],
    "axes.facecolor": "none",
    "axes.edgecolor": COLOR["soft"],
    "axes.labelcolor": COLOR["ink"],
    "axes.labelsize": 11,
    "axes.labelpad": 3,
    "axes.linewidth": 1.0,
    "axes.titlesize": 12,
    "axes.titleweight": "bold",
    "axes.titlecolor": COLOR["ink"],
    "axes.titlelocation": "left",
    "font.size": 11,
    "font.sans-serif": ["DejaVu Sans"],  # which measures text; a page sets its own
    "legend.fontsize": 10.5,
    "legend.frameon": False,
    "legend.labelcolor": COLOR["ink"],
    "legend.handlelength": 1.4,
    "legend.borderaxespad": 0,
    "legend.borderpad": 0,
    "lines.linewidth": 1.6,
    "lines.scale_dashes": False,
    "lines.markersize": 4.4,
    "lines.markeredgewidth": 0,
    "patch.linewidth": 0,
    "text.color": COLOR["ink"],
    "text.parse_math": False,
    "text.usetex": False,
    "xtick.color": COLOR["soft"],
    "ytick.color": COLOR["soft"],
    "xtick.labelsize": 11,
    "ytick.labelsize": 11,
    "figure.constrained_layout.h_pad": 0.1,
    "figure.constrained_layout.w_pad": 0.08,
    "image.composite_image": False,  # images are written to SVG and PDF one by one
    "svg.fonttype": "none",
    "svg.hashsalt": "congruence",
    "pdf.fonttype": 42,
    "savefig.facecolor": "auto",
}


@contextmanager
def style() -> Iterator[None]:
    """Use the style of the reports while the block runs; the user's settings do not count, and are restored."""
    with matplotlib.rc_context(), warnings.catch_warnings():
        # matplotlib's font only measures text: a browser draws characters that are missing from it in another font.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_STYLE)
        yield


class _NotebookAxes(Axes):
    """Axes of a figure that is not registered with pyplot; a notebook displays them as the value of a cell."""

    def _repr_svg_(self) -> str:
        file = io.StringIO()
        figure = self.figure
        assert isinstance(figure, Figure)
        with style():
            figure.savefig(file, format="svg", metadata={"Date": None})
        return file.getvalue()


@contextmanager
def canvas(
    ax: Axes | None, size: tuple[float, float] = (WIDTH, HEIGHT), *, title: str | bool = False, columns: int = 2
) -> Iterator[Axes]:
    """Yield the axes to draw on: the user's, in the user's style, or new ones in ours; a title brings a legend."""
    # Of the user's settings, only one is overridden: a name with two dollar signs is not a formula.
    with style() if ax is None else matplotlib.rc_context({"text.parse_math": False}):
        if ax is None:
            figure = Figure(figsize=(size[0] / 72, size[1] / 72), dpi=144, layout="constrained")
            ax = figure.add_subplot(axes_class=_NotebookAxes)
        yield ax
        if isinstance(title, str):
            explain(ax, title, columns=columns)


def tidy(ax: Axes, *, x_ticks: Sequence[float] | None = None) -> None:
    """Draw only the lower spine, faint horizontal grid lines, and a few round ticks."""
    ax.spines[["top", "right", "left"]].set_visible(False)
    ax.set_axisbelow(True)
    ax.grid(axis="y", color=COLOR["rule"], linewidth=0.6)
    ax.tick_params(axis="y", length=0, pad=4)
    ax.tick_params(axis="x", length=4, width=1)
    for axis, log in ((ax.xaxis, ax.get_xscale() == "log"), (ax.yaxis, ax.get_yscale() == "log")):
        axis.set_major_formatter(FuncFormatter(lambda value, _: tick(value)))
        if not log:
            axis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
            continue
        low, high = axis.get_view_interval()
        axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 316 * low else (1,), numticks=12))
        axis.set_minor_locator(NullLocator())
    if x_ticks is not None:
        ax.set_xticks(list(x_ticks), [tick(value) for value in x_ticks])


def tick(value: float) -> str:
    """Return a number formatted as a tick label."""
    return f"{value:.6g}".replace("-", "−")


def words(text: object, most: int = 80) -> str:
    """Return text for display: control characters are escaped, and text longer than ``most`` is truncated."""
    return short(visible(str(text)), most)


def explain(ax: Axes, title: str, *, columns: int = 2) -> None:
    """Write a title above the axes and, if there are several labels, a legend below the title."""
    handles, labels = ax.get_legend_handles_labels()
    if len(handles) < 2:
        ax.set_title(title, loc="left")
        return
    ax.legend(
        handles,
        labels,
        title=title,
        loc="lower left",
        bbox_to_anchor=(0, 1.02),
        ncols=columns,
        alignment="left",
        title_fontproperties={"weight": "bold", "size": matplotlib.rcParams["axes.titlesize"]},
    )
