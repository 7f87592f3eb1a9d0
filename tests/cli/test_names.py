"""Names and ids are data: they are shown as they are, and neither a terminal, a page nor a spreadsheet runs them."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest
from jinja2 import DictLoader
from markupsafe import Markup

import congruence
from congruence import Embeddings, LinearMap, Space
from congruence._display import visible
from congruence.cli._base import print_table
from congruence.embed.output import write_failures
from congruence.errors import CongruenceWarning
from congruence.negatives import write_negatives
from congruence.negatives.generate import Negative
from congruence.report.render import fill
from congruence.synthetic import rigid_problem

P = rigid_problem(60, 5, 6, noise=0.1, seed=3)

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
    done = here("inspect", "map")
    assert done.code == 0, done.err
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
    done = [here("inspect", "map"), here("inspect", "map", "--json"), here("match", "x.npz", "x.npz", "-o", "m.json")]
    said = [text for one in done for text in (one.out, one.err)]
    said += [repr(mapping), mapping._repr_html_inner(), repr(Embeddings(P.X, space=Space(RUDE))), str(Space(RUDE))]
    for text in said:
        assert visible(text, keep="\n") == text
    assert done[0].code == 0
    assert r"a\x1b[2J\x9b31m" in done[0].out
    assert json.loads(done[1].out)["source"]["model"] == RUDE  # the data are the same


def test_an_error_names_what_was_got_without_obeying_it(here, tmp_path):
    done = here("inspect", f"none{RUDE.strip()}")
    assert done.code == 2
    assert visible(done.err, keep="\n") == done.err


def test_facts_of_a_strange_form_are_one_sentence(here, tmp_path):
    saved(tmp_path / "map", "a", history=["not", "a", "history"])
    done = here("inspect", "map")
    assert done.code == 2
    assert done.err.startswith("error: Got facts or scores in map")
    assert json.loads(here("inspect", "map", "--json").out)["history"] == ["not", "a", "history"]


def test_a_page_shows_control_characters(monkeypatch):
    """On the line that all pages go through: what templates and plots wrote is looked at once more, as a whole."""
    template = DictLoader({"a.html": "<td>{{ name }}</td>\n<svg>{{ plot }}</svg>"})
    monkeypatch.setitem(fill.__globals__, "PackageLoader", lambda *_: template)
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
