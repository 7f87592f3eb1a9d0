"""Names and ids are data: they are shown as they are, and neither a terminal, a page nor a spreadsheet runs them."""

import csv
import json
from xml.etree import ElementTree

import numpy as np
import pytest
from jinja2 import DictLoader
from markupsafe import Markup

import congruence
from congruence import Embeddings, LinearMap, Space
from congruence._utils.display import visible
from congruence.cli import print_table
from congruence.cli.check import print_certificate
from congruence.compare.spaces import compare_layers
from congruence.embed.run import write_failures
from congruence.errors import CongruenceWarning
from congruence.report import write_layers
from congruence.report.pictures import to_document
from congruence.report.rendering import fill, templates
from congruence.synthetic import rigid_problem
from congruence_papers.figure import draw_experiment
from congruence_papers.negatives import write_negatives
from congruence_papers.negatives.generation import Negative

P = rigid_problem(60, 5, 6, noise=0.1, random_state=3)

#: Clears the screen, sets the window's title, and writes from right to left.
RUDE = "a\x1b[2J\x9b31m\x1b]0;owned\x07\u202eb\r\n"


def saved(path, name, **facts):
    mapping = LinearMap().fit(P.X, P.Y)
    mapping.source_space_ = Space(name, dim=5)
    mapping.facts_ |= facts
    return mapping.save(path)


@pytest.mark.parametrize(
    "name", ["clip-b32[ft-v2]", "[/bold]", "[red]x[/red]", ":smile:", "[link=https://x.org]y[/link]", "\\[b]"]
)
def test_markup_in_a_name_is_shown(here, tmp_path, name):
    saved(tmp_path / "map", name)
    done = here("inspect", "map").ends(0)
    assert name in done.out


@pytest.mark.parametrize("part", ["title", "column", "cell"])
@pytest.mark.parametrize("name", ["[/bold]", "v[2]", RUDE])
def test_every_part_of_a_table_is_data(capsys, part, name):
    words = {"title": "t", "column": "c", "cell": "x", part: name}
    print_table(words["title"], ["a", words["column"]], [["b", words["cell"]]])
    out = capsys.readouterr().out
    assert visible(name) in out.replace("\n", "")  # a long title wraps
    assert visible(out, keep="\n") == out


def test_control_characters_of_a_name_reach_no_terminal(here, tmp_path):
    mapping = congruence.load(saved(tmp_path / "map", RUDE))
    np.savez(tmp_path / "x.npz", vectors=P.X, ids=[f"{RUDE}{k}" for k in range(60)])
    done = [
        here("inspect", "map"),
        here("inspect", "map", "--json"),
        here("lab match", "x.npz", "x.npz", "-o", "m.json"),
    ]
    said = [text for one in done for text in (one.out, one.err)]
    said += [repr(mapping), mapping._repr_html_(), repr(Embeddings(P.X, space=Space(RUDE))), str(Space(RUDE))]
    for text in said:
        assert visible(text, keep="\n") == text
    assert done[0].code == 0
    assert r"a\x1b[2J\x9b31m" in done[0].out
    assert json.loads(done[1].out)["old"]["model"] == RUDE  # the data are the same


def test_an_error_names_what_was_got_without_obeying_it(here, tmp_path):
    done = here("inspect", f"none{RUDE.strip()}").ends(2)
    assert visible(done.err, keep="\n") == done.err


def test_facts_of_a_strange_form_are_one_sentence(here, tmp_path):
    saved(tmp_path / "map", "a", history=["not", "a", "history"])
    done = here("inspect", "map").ends(2)
    assert done.err.startswith("error: Got facts or scores in map")
    assert json.loads(here("inspect", "map", "--json").out)["history"] == ["not", "a", "history"]


def test_a_page_shows_control_characters(monkeypatch):
    """On the line that all pages go through: what templates and plots wrote is looked at once more, as a whole."""
    template = DictLoader({"a.html": "<td>{{ name }}</td>\n<svg>{{ plot }}</svg>"})
    monkeypatch.setattr(templates(), "loader", template)
    page = fill("a.html", name=f"<b>{RUDE.strip()}", plot=Markup("\x00"))
    assert page == r"<td>&lt;b&gt;a\x1b[2J\x9b31m\x1b]0;owned\x07\u202eb</td>" + "\n" + r"<svg>\x00</svg>"


def test_a_spreadsheet_runs_no_id(tmp_path):
    ids = ["=1+1", "+1", "-1", "@SUM(A1)", "a=1"]
    place = write_failures([{"id": name, "error": "no image"} for name in ids], tmp_path / "x.npy")
    with open(place, newline="", encoding="utf-8") as stream:
        assert [row["id"] for row in csv.DictReader(stream)] == ["'=1+1", "'+1", "'-1", "'@SUM(A1)", "a=1"]
    wrong = [Negative("a cat", "a dog", "object", ("cat", "dog"), k) for k in range(5)]
    with pytest.warns(CongruenceWarning, match="4 of 5 rows with a cell that begins with ="):
        write_negatives(wrong, tmp_path / "n.csv", ids)
    with open(tmp_path / "n.csv", newline="", encoding="utf-8") as stream:
        assert [row["id"] for row in csv.DictReader(stream)] == ids  # read back by us, so left as they are
    write_negatives(wrong, tmp_path / "n.jsonl", ids)


# ------------------------------------------------------------------ files that are written

MARKED = (
    "a|b *c* <img src=x onerror=alert(1)> [d](https://x.org) `e` www.x.org $f$ &lt; https://y.org me@x.org #1 ~~g~~ \\h"
)


def shown_by_markdown(text):
    """Render with rich's own parser of CommonMark and return the words, or fail on anything but words."""
    markdown_it = pytest.importorskip("markdown_it")
    kinds, words = set(), []
    for token in markdown_it.MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).parse(text):
        for part in token.children or []:
            kinds.add(part.type)
            words.append(part.content)
    return kinds, words


@pytest.mark.parametrize("name", [MARKED, f"x{RUDE.strip()}y", "# a\n\n<script>alert(1)</script>", "|---|"])
def test_a_model_card_shows_names_and_links_nothing(tmp_path, name):
    path = saved(tmp_path / "map", name, **{"method": name})
    card = (path / "README.md").read_text(encoding="utf-8")
    assert visible(card, keep="\n") == card
    kinds, words = shown_by_markdown(card.split("---\n", 2)[2])
    assert not kinds & {"html_inline", "link_open", "image", "code_inline", "s_open"}
    assert f"LinearMap: {visible(name)} → target" in "".join(words)
    assert visible(name) in words  # a cell of the table, whole
    assert "www." not in card
    assert "http://" not in card.replace("\\:", "")
    assert "https://" not in card


def test_a_joint_map_s_card_too(tmp_path):
    mapping = congruence.ProcrustesHeads().fit(P.X, P.Y)
    mapping.source_space_ = mapping.target_space_ = Space(MARKED)
    kinds, words = shown_by_markdown((mapping.save(tmp_path / "map") / "README.md").read_text().split("---\n", 2)[2])
    assert not kinds & {"html_inline", "link_open", "image", "s_open"}
    assert f"ProcrustesHeads: {MARKED} + {MARKED}" in "".join(words)


def test_names_in_a_drawing_are_words(tmp_path):
    """XML knows no control characters: with one of them a file is no drawing any more."""
    rng = np.random.default_rng(0)
    layers = {f"{RUDE}</text><script>\x00\uffff{k}": rng.normal(size=(12, 3)) for k in range(2)}
    found = compare_layers(layers, layers, permutations=2)
    write_layers(tmp_path / "x.svg", found, f"a{RUDE}\x00")
    text = (tmp_path / "x.svg").read_text(encoding="utf-8")
    root = ElementTree.fromstring(text)
    assert visible(text, keep="\n\t") == text
    assert not [node for node in root.iter() if node.tag.endswith("script")]
    words = " ".join(" ".join(root.itertext()).split())
    assert " ".join(visible(next(iter(layers))).split()) in words


def test_names_in_the_figure_of_an_experiment_are_words():
    row = {"data": RUDE, "pair": "</text>\x00", "series": RUDE, "part": None, "x": None, "metric": "m\x1b"}
    row |= {"quantity": "after", "mean": 0.5, "sd": 0.1, "n": 3}
    results = {"experiment": "e", "title": f"t{RUDE}", "rows": [row], "extra": {}, "quick": False, "seeds": [0]}
    results |= {"data": [], "notes": [], "claim": "c", "held": {"verdict": "yes", "claims": []}, "words": {}}
    results |= {"config": {"kind": "transfer"}, "resampled": "r", "stands_for": None}
    drawn = to_document(draw_experiment(results), results["title"])
    ElementTree.fromstring(drawn)
    assert visible(drawn, keep="\n\t") == drawn


def test_a_certificate_prints_names_without_obeying_them(capsys):
    sides = [{"image": Embeddings(side, space=Space(f"m{RUDE}", modality="image"))} for side in (P.X, P.Y)]
    print_certificate(congruence.certify(*sides, data=f"d{RUDE}"))
    out = capsys.readouterr().out
    assert visible(out, keep="\n") == out
    assert visible(RUDE.strip()) in out
