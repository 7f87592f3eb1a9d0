"""Figures in pages: only variables for colors, words as text, nothing that two figures could share by mistake."""

import re
import xml.etree.ElementTree as ET
from importlib.resources import files

import numpy as np
import pytest
from matplotlib.figure import Figure

from congruence.errors import ParameterError
from congruence.plotting.look import COLOR, COLORS, HEIGHT, WIDTH, canvas, style
from congruence.report.pictures import to_document, to_svg


def crowded(ax):
    """Draw one of everything that pictures use."""
    ax.plot([0, 1, 2], [0, 1, 0], "o-", color=COLOR["after"])
    ax.plot(np.linspace(0, 2, 500), np.zeros(500), "o", color=COLOR["faint"], alpha=0.45)
    ax.plot([0.5, 1.5], [0.5, 0.5], "^", color=COLOR["target"])
    ax.fill_between([0, 1, 2], [0, 0, 0], [1, 1, 1], color=COLOR["source"], alpha=0.2, linewidth=0)
    ax.bar([0], [1], color=COLOR["mid"])
    ax.axhline(0.3, color=COLOR["ink"], linestyle=(0, (2, 2)))
    ax.text(1, 1, "a <b> & 'c'", color=COLOR["soft"], rotation=90)
    ax.set(xlabel="two\nlines", title="  indented")


def draw_svg(draw, title, size=(WIDTH, HEIGHT)):
    with canvas(None, size) as ax:
        draw(ax)
    return to_svg(ax.figure, title)


def parsed(text):
    return ET.fromstring(text.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1))


SVG = "{http://www.w3.org/2000/svg}"


def looks(node):
    """Return what the style of an element says."""
    return dict(part.split(": ", 1) for part in node.get("style", "").split("; ") if part)


def colors(root):
    """Return the colors that a figure is painted in."""
    return {look for node in root.iter() for key, look in looks(node).items() if key in ("fill", "stroke")} - {"none"}


def test_a_page_has_no_other_colors_than_its_variables():
    text = draw_svg(crowded, "t")
    root = parsed(text)
    names = ("after", "faint", "target", "source", "mid", "ink", "soft")
    assert colors(root) == {f"var(--{name})" for name in names}
    assert not re.search(r"#[0-9a-fA-F]{6}|rgb|class=", re.sub(r'(id="|href="#|url\(#)[^")]*', "", text))
    shared = {node for defs in root.iter(f"{SVG}defs") for node in defs.iter()}
    shapes = [node for node in root.iter() if node.tag in (f"{SVG}path", f"{SVG}text", f"{SVG}use")]
    assert all("fill" in looks(node) for node in shapes if node not in shared)  # without one it would be black


@pytest.mark.parametrize("color", ["#123456", "black", "C0"])
def test_a_color_that_is_not_in_the_palette_is_refused(color):
    for method, arguments in (("plot", ([0, 1],)), ("plot", ([0, 1], "o")), ("text", (0, 0, "x"))):
        with pytest.raises(ParameterError, match="palette"):
            draw_svg(lambda ax, m=method, a=arguments: getattr(ax, m)(*a, color=color), "t")


def test_nothing_is_shared_between_figures_and_nothing_is_fetched():
    text = draw_svg(crowded, "t")
    assert not re.search(r"<style|http", text)
    ids, used = re.findall(r'\bid="([^"]*)"', text), re.findall(r'(?:href="|url\()#([^")]*)', text)
    assert len(set(ids)) == len(ids)
    assert set(used) <= set(ids)
    assert draw_svg(crowded, "t") == text  # no date, and no random names
    other = draw_svg(lambda ax: (crowded(ax), ax.plot([0], [0], "o", color=COLOR["after"])), "t")
    assert not set(ids) & set(re.findall(r'\bid="([^"]*)"', other))


def test_words_stay_words():
    root = parsed(draw_svg(crowded, 'a "<title>"'))
    words = [node.text for node in root.iter(f"{SVG}text")]
    assert {"a <b> & 'c'", "two", "lines", "  indented"} <= set(words)
    assert (root.get("role"), root.get("aria-label")) == ("img", 'a "<title>"')


def test_a_file_follows_light_and_dark_and_is_light_without_style_sheets():
    with style():
        figure = Figure(figsize=(5, 4))
        crowded(figure.add_subplot())
    text = to_document(figure, "a <title>", description="more")
    root = ET.fromstring(text)
    sheet = root.find(f"{SVG}style").text
    light, dark = sheet.split("@media(prefers-color-scheme:dark)")
    for name in ("after", "ink", "paper"):
        assert f"--{name}:{COLORS[name][0]}" in light
        assert f"--{name}:{COLORS[name][1]}" in dark
        assert f'[style*="fill: {COLORS[name][0]}"]{{fill:var(--{name})!important}}' in sheet
    named = set(re.findall(r'\[style\*="(?:fill|stroke): (#\w+)"\]', sheet))
    assert colors(root) == named <= set(COLOR.values())
    assert [root.find(f"{SVG}{tag}").text for tag in ("title", "desc")] == ["a <title>", "more"]
    assert to_svg(figure, "t").count("<path") == text.count("<path")


def test_the_style_sheet_of_pages_has_the_palette():
    sheet = files("congruence.report").joinpath("templates/report.css").read_text(encoding="utf-8")
    light, dark = re.findall(r":root \{([^}]*)\}", sheet)[:2]
    for scheme, text in enumerate((light, dark)):
        said = dict(re.findall(r"--(\w+):(#\w+)", text))
        for name in ("ink", "soft", "faint", "rule", "source", "after", "target", "mid"):
            assert said[name] == COLORS[name][scheme], name
