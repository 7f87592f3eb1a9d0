"""Each picture, on axes of the caller's: numbers stand where the data say, and no other figure is touched."""

import importlib
import sys

import matplotlib
import numpy as np
import pytest
from matplotlib._pylab_helpers import Gcf
from matplotlib.collections import LineCollection
from matplotlib.container import BarContainer, ErrorbarContainer
from matplotlib.figure import Figure
from matplotlib.patches import StepPatch

from congruence import Embeddings, plotting
from congruence.errors import MissingExtraError, ParameterError
from congruence.synthetic import upgrade_problem
from congruence.train import History
from congruence.upgrade.certify import certify
from congruence_papers import panels, run
from congruence_papers.figure import draw_panel


def axes():
    return Figure().add_subplot()


def lines(ax):
    return {line.get_label(): np.transpose(line.get_data()) for line in ax.lines if line.get_label()[0] != "_"}


def legend(ax):
    return [text.get_text() for text in ax.get_legend().get_texts()] if ax.get_legend() else []


def test_cosines():
    data = {"name": "image–image", "edges": [-1.0, 0.0, 1.0], "before": [0.9, 0.1], "after": [0.2, 0.8]}
    ax = axes()
    assert plotting.draw_cosines({**data, "constant": [0.5, 0.5], "random_rotation": None}, ax) is ax
    steps = {patch.get_label(): patch for patch in ax.patches if isinstance(patch, StepPatch)}
    values = {name: patch.get_data().values.tolist() for name, patch in steps.items()}
    assert values == {"unmapped": [0.9, 0.1], "mapped": [0.2, 0.8], "constant": [0.5, 0.5]}
    assert legend(ax) == ["unmapped", "mapped", "constant"]
    assert ax.get_legend().get_title().get_text() == "image–image cosines"


@pytest.mark.parametrize(
    ("draw", "data", "drawn"),
    [
        (
            plotting.draw_covered,
            {"shares": {"random": [0.1, 0.3], "variance": [0.2, 0.5, 0.6]}},
            {"variance": [[1, 0.2], [2, 0.5], [3, 0.6]], "in random order": [[1, 0.1], [2, 0.3]]},
        ),
        (
            plotting.draw_spectrum,
            {"singular_values": [4.0, 2.0], "gains": [1.0, 0.0]},
            {"singular values": [[1, 1], [2, 0.5]], "gain of the map": [[1, 1], [2, 0]]},
        ),
        (
            plotting.draw_kernel,
            {"matched": [[0.5, 0.6], [0.7, 0.8]], "other": [[0.0, -0.1]]},
            {"different classes": [[0.0, -0.1]], "same class": [[0.5, 0.6], [0.7, 0.8]]},
        ),
    ],
)
def test_lines_stand_where_the_data_say(draw, data, drawn):
    found = {label: line.tolist() for label, line in lines(draw(data, axes())).items()}
    assert found == drawn


def test_clouds_join_the_same_item_and_have_one_scale():
    points = {"source image": [[0.0, 0.0], [4.0, 1.0]], "source text": [[1.0, 1.0]]}
    points |= {"target image": [[0.5, 0.0], [4.0, 2.0]], "target text": [[2.0, 2.0]]}
    ax = plotting.draw_clouds(points, axes(), mapped=True)
    joined = [segment.tolist() for c in ax.collections if isinstance(c, LineCollection) for segment in c.get_segments()]
    assert joined == [[[0, 0], [0.5, 0]], [[4, 1], [4, 2]], [[1, 1], [2, 2]]]
    assert lines(ax)["mapped source image"].tolist() == points["source image"]
    assert lines(ax)["target text"].tolist() == points["target text"]
    assert ax.get_aspect() == 1


def test_few_anchors():
    n = [5, 10, 20, 50, 100, 200, 500, 1000]

    def curve(measure, kind, height):
        values = {"mean": [height] * 8, "low": [height - 0.1] * 8, "high": [height + 0.1] * 8}
        return {"name": f"{measure} {kind}", "measure": measure, "items": "text", "kind": kind, **values}

    curves = [curve("retrieval", "mapped", 0.5), curve("cosine", "mapped", 0.7), curve("cosine", "constant", 0.4)]
    ax = plotting.draw_few_anchors({"n": n, "curves": curves}, ["cosine"], axes())
    assert lines(ax).keys() == {"cosine mapped", "cosine constant"}
    assert lines(ax)["cosine constant"].tolist() == [[k, 0.4] for k in n]
    (band,) = ax.collections  # controls have none
    heights = band.get_paths()[0].vertices[:, 1]
    assert [heights.min(), heights.max()] == pytest.approx([0.6, 0.8])
    assert (ax.get_xscale(), [t.get_text() for t in ax.get_xticklabels()]) == ("log", ["5", "20", "100", "500"])


LOSSES = {"step": [10, 20, 30], "loss": [9.0, 3.0, 0.1], "part_source": [1.0, 2.0, 3.0], "part_target": [2.0, 1.0, 4.0]}
RECORD = {"losses": LOSSES, "validation": [[0, 0.1], [15, 0.6], [30, 0.4]], "best_step": 15, "steps": 30}


def test_a_history_draws_its_score_and_its_terms():
    history = History(RECORD["losses"], [tuple(pair) for pair in RECORD["validation"]], 15, 30)
    ax = axes()
    assert history.plot(ax) is ax
    assert lines(ax)["heads"].tolist() == RECORD["validation"]
    (best,) = (line for line in ax.lines if line.get_markersize() == 8)
    assert np.transpose(best.get_data()).tolist() == [[15, 0.6]]
    assert [15, 15] in [list(line.get_xdata()) for line in ax.lines]  # the step whose weights were kept
    both = history.plot(axes(), term="part")
    assert lines(both)["source"].tolist() == [[10, 1], [20, 2], [30, 3]]
    assert lines(both)["target"].tolist() == [[10, 2], [20, 1], [30, 4]]
    assert both.get_yscale() == "linear"
    total = history.plot(axes(), term="loss")
    assert (total.get_yscale(), total.get_ylim()) == ("log", pytest.approx((0.09, 9.9)))
    assert lines(total)["total loss"].tolist() == [[10, 9], [20, 3], [30, 0.1]]
    with pytest.raises(ParameterError, match="'validation', 'loss', 'part'"):
        history.plot(term="klot")
    with pytest.raises(ParameterError, match="before the first step"):
        History().plot()


def test_a_teacher_is_beside_the_validation_score():
    data = plotting.validation_curve(RECORD, 0.5)
    ax = plotting.draw_validation(data, axes())
    assert lines(ax)["their linear teacher"].tolist() == [[0, 0.5], [30, 0.5]]


def test_recalls_stand_beside_chance():
    rows = [
        {"task": "swap $a$ & $b$", "n": 1200, "binary": 0.75, "choice": None},
        {"task": "all", "n": 2000, "binary": 0.5, "choice": 0.25},
    ]
    data = {"rows": rows, "wrong": 1, "options": 5, "chance": {"binary": 0.5, "choice": 0.2}}
    ax = plotting.draw_recalls(data, axes())
    found = (bar for bar in ax.containers if isinstance(bar, BarContainer))
    bars = {bar.get_label(): [patch.get_width() for patch in bar] for bar in found}
    assert bars == {"of 2 captions": [0.75, 0.5], "of 5": [0.25]}
    drawn = {tuple(segment[:, 0]) for c in ax.collections for segment in c.get_segments()}
    assert drawn == {(0.5, 0.5), (0.2, 0.2)}
    said = [text.get_text() for text in ax.texts]
    assert {"swap $a$ & $b$, 1,200", "all, 2,000", "0.750", "0.250"} <= set(said)
    many = {**data, "rows": [rows[0]] * 30 + [rows[1]]}
    assert len(plotting.draw_recalls(many, axes()).containers[0]) == 14  # tasks, parts of swap, categories, all
    assert [text.get_text() for text in plotting.draw_recalls(many, axes()).texts][-1] == "all, 2,000"


def test_margins_change_color_at_zero():
    data = {"name": "swap", "edges": [-1.0, -0.5, 0.0, 0.5, 1.0], "counts": [0.1, 0.2, 0.3, 0.4], "mean": 0.25}
    ax = plotting.draw_margins(data, axes())
    parts = {patch.get_label(): patch for patch in ax.patches}
    assert parts["nearer the wrong one"].get_data().values.tolist() == [0.1, 0.2]
    assert parts["nearer the caption"].get_data().edges.tolist() == [0, 0.5, 1]
    assert list(ax.lines[0].get_xdata()) == [0.25, 0.25]


def test_strategies_have_intervals_and_controls():
    strategies = {"re-embed": (0.7, 0.65, 0.75), "keep": (0.5, 0.4, 0.55)}
    controls = {"chance": 0.1, "random_rotation": 0.2, "constant": 9}
    data = {"task": "recall@1", "strategies": strategies, "controls": controls}
    ax = plotting.draw_strategies(data, axes())
    found = [c for c in ax.containers if isinstance(c, ErrorbarContainer)]
    points = [c.lines[0].get_xydata().tolist()[0] for c in found]
    ends = [segment[:, 1].tolist() for c in found for segment in c.lines[2][0].get_segments()]
    assert points == [[0, 0.5], [1, 0.7]]
    np.testing.assert_allclose(ends, [[0.4, 0.55], [0.65, 0.75]])
    assert [t.get_text() for t in ax.get_xticklabels()] == ["keep old", "re-embed"]
    levels = {name: float(line[0, 1]) for name, line in lines(ax).items()}
    assert levels == {"a random list": 0.1, "random rotation": 0.2}
    assert [text.get_text() for text in ax.texts] == ["0.500", "0.700"]


def test_the_learning_curve_goes_on_by_its_law():
    law = {"best": 0.9, "drop": 2.0, "exponent": 1.0}
    curve = {"anchors": [10, 20, 40], "mean": [0.7, 0.8, 0.85], "error": [0.1, 0.05, 0.0], "law": law}
    data = {"task": "recall@1", "n_anchors": 50, "curve": curve, "re-embed": 0.95}
    ax = plotting.draw_learning_curve(data, axes())
    found = lines(ax)
    assert found["measured"].tolist() == [[10, 0.7], [20, 0.8], [40, 0.85]]
    extrapolated = found["extrapolated"]
    assert (extrapolated[0, 0], extrapolated[-1, 0]) == (pytest.approx(40), pytest.approx(100))
    np.testing.assert_allclose(extrapolated[:, 1], 0.9 - 2 / extrapolated[:, 0])
    assert found["re-embed"][:, 1].tolist() == [0.95, 0.95]
    (band,) = ax.collections
    assert {(10, 0.6), (10, 0.8)} <= {tuple(np.round(point, 6)) for point in band.get_paths()[0].vertices}
    assert "re-embed" not in lines(plotting.draw_learning_curve({**data, "re-embed": None}, axes()))


def test_bars_stand_by_group():
    series = [
        {"name": "before", "color": "before", "group": [0, 1], "mean": [0.1, 0.2], "sd": [None, 0.0]},
        {"name": "orthogonal", "color": "series-0", "group": [1], "mean": [-0.6], "sd": [0.05]},
    ]
    panel = {"kind": "bars", "title": "cosine of $a$", "groups": ["a → b", "c → d"], "series": series}
    ax = draw_panel(panel, axes())
    first, second = (bar for bar in ax.containers if isinstance(bar, BarContainer))
    assert [patch.get_height() for patch in first] == [0.1, 0.2]
    assert [round(patch.get_x() + patch.get_width() / 2) for patch in (*first, *second)] == [0, 1, 1]
    assert first[1].get_x() + first[1].get_width() <= second[0].get_x()
    (spread,) = (c for c in ax.containers if isinstance(c, ErrorbarContainer))
    np.testing.assert_allclose(spread.lines[2][0].get_segments()[0][:, 1], [-0.65, -0.55])
    assert [t.get_text() for t in ax.get_xticklabels()] == ["a → b", "c → d"]


def test_lines_have_bands_and_wide_ranges_are_logarithmic():
    line = {"name": "orthogonal", "color": "series-1", "mean": [0.1, 0.5, 0.6]}
    panel = {"kind": "lines", "title": "t", "label": "classes"}
    ax = draw_panel({**panel, "series": [{**line, "x": [2, 8, 40], "sd": [0.1, None, 0.0]}]}, axes())
    assert lines(ax)["orthogonal"].tolist() == [[2, 0.1], [8, 0.5], [40, 0.6]]
    assert (ax.get_xscale(), ax.get_xlabel()) == ("log", "classes")
    assert [t.get_text() for t in ax.get_xticklabels()] == ["2", "8", "40"]
    assert len(ax.collections) == 1
    near = draw_panel({**panel, "series": [{**line, "x": [2, 8, 16], "sd": [None] * 3}]}, axes())
    assert (near.get_xscale(), len(near.collections)) == ("linear", 0)


def test_new_axes_look_the_same_whatever_the_user_has_set():
    data = {"singular_values": [4.0, 2.0], "gains": [1.0, 1.0]}
    plain = plotting.draw_spectrum(data)._repr_svg_()
    with matplotlib.rc_context({"font.size": 31, "axes.facecolor": "black", "text.color": "red", "svg.hashsalt": "u"}):
        before = dict(matplotlib.rcParams)
        ax = plotting.draw_spectrum(data)
        assert ax._repr_svg_() == plain
        assert dict(matplotlib.rcParams) == before
    assert ax.get_title() == ""
    assert "What the pairs span" in plain


def test_pyplot_knows_of_no_figure():
    known = Gcf.get_all_fig_managers()
    assert plotting.draw_spectrum({"singular_values": [1.0], "gains": [1.0]}).figure.canvas.manager is None
    assert Gcf.get_all_fig_managers() == known


def test_dollars_and_control_characters_are_words():
    data = {"name": "$x$ \x1b[2J\n^_{", "edges": [0.0, 1.0], "before": [1.0], "after": [1.0]}
    ax = plotting.draw_cosines({**data, "constant": None, "random_rotation": None})
    assert "$x$ \\x1b[2J\\n^_{ cosines" in ax._repr_svg_()
    given = plotting.draw_cosines({**data, "constant": None, "random_rotation": None}, axes())
    given.figure.canvas.draw()  # read as a formula, the name would be refused here


def test_a_certificate_draws_what_it_holds():
    p = upgrade_problem(80, 12, random_state=0)
    models = (p.source_images, p.source_texts), (p.target_images, p.target_texts)
    sides = [{"image": Embeddings(images), "text": Embeddings(texts)} for images, texts in models]
    certificate = certify(*sides)
    overlap = next(task for task in certificate.strategies if task in certificate.controls)
    ax = certificate.plot(axes(), task=overlap)
    points = [c.lines[0].get_ydata()[0] for c in ax.containers if isinstance(c, ErrorbarContainer)]
    scores = certificate.strategies[overlap]
    order = ("keep", "leave", "queries", "stored", "re-embed")
    assert points == [scores[name].value for name in order if name in scores]
    assert float(lines(ax)["a random list"][0, 1]) == certificate.controls[overlap]["chance"]
    assert certificate.plot(axes()).get_ylabel() == certificate.task
    with pytest.raises(ParameterError, match="task='nonsense'"):
        certificate.plot(task="nonsense")
    curve = certificate.plot_learning_curve(axes())
    np.testing.assert_allclose(lines(curve)["measured"][:, 1], certificate.curve["mean"])
    assert lines(curve)["extrapolated"][-1, 0] == pytest.approx(2 * certificate.n_anchors)


def test_images_of_one_model_are_joined_to_its_own_texts():
    points = {"target image": [[0.0, 0.0]], "target text": [[1.0, 2.0]]}
    (panel,) = panels({"rows": [], "words": {}, "extra": {"clouds": [{"title": "gap", "points": points}]}})
    ax = draw_panel(panel, axes())
    assert {name: line.tolist() for name, line in lines(ax).items()} == {"images": [[0, 0]], "texts": [[1, 2]]}
    assert ax.collections[0].get_segments()[0].tolist() == [[0, 0], [1, 2]]


def test_an_outcome_draws_each_of_its_panels():
    outcome = run("table1", quick=True)
    shown = panels(outcome.results)
    rows = outcome.results["rows"]
    assert [panel["kind"] for panel in shown] == ["bars"] * len({row["metric"] for row in rows})
    first = [row["mean"] for row in rows if row["metric"] == rows[0]["metric"]]
    ax = outcome.plot(axes())
    heights = [patch.get_height() for bar in ax.containers if isinstance(bar, BarContainer) for patch in bar]
    assert sorted(heights) == pytest.approx(sorted(first))
    last = outcome.plot(axes(), panel=len(shown) - 1)
    assert last.get_title(loc="left") or last.get_legend().get_title().get_text() == shown[-1]["title"]
    for panel in (-1, len(shown)):
        with pytest.raises(ParameterError, match=f"panel {panel}"):
            outcome.plot(panel=panel)


def test_without_matplotlib_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "congruence.plotting")
    with pytest.raises(MissingExtraError, match=r"congruence\[plot\]"):
        importlib.import_module("congruence.plotting")
