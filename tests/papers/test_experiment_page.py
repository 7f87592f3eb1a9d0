"""The page of an experiment: self-contained, with every number and the verdict."""

import base64
import json
import re
from html import unescape

import pytest

from congruence_papers import run
from congruence_papers.figure import render_experiment, write_experiment


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page") / "out"
    write_experiment(folder, run("fig4", quick=True, seeds=2), html=True)
    page = (folder / "report.html").read_text(encoding="utf-8")
    return json.loads((folder / "results.json").read_text()), page, folder


def test_every_number_stands_on_the_page(made):
    results, page, _ = made
    cells = [re.findall(r"<td[^>]*>([^<]*)</td>", row) for row in re.findall(r"<tr>.*?</tr>", page, flags=re.S)]
    cells = [row for row in cells if row]
    rows = sorted(results["rows"], key=lambda r: results["config"]["metrics"].index(r["metric"]))
    for row, shown in zip(rows, cells, strict=True):
        assert float(shown[-3].replace("−", "-")) == pytest.approx(row["mean"], abs=6e-4)
        assert shown[-1] == str(row["n"])


def test_the_page_has_the_figure_the_claim_and_nothing_from_outside(made):
    results, page, folder = made
    (source,) = re.findall(r'<img src="data:image/svg\+xml;base64,([^"]+)"', page)
    assert base64.b64decode(source).decode() == (folder / "figure.svg").read_text(encoding="utf-8")
    assert "Held here: " in page
    assert all(claim["claim"] in unescape(page) for claim in results["held"]["claims"])
    assert not re.search(r"<(script|iframe|object)", page)
    assert all(one.startswith(("data:", "#")) for one in re.findall(r'(?:src|href)="([^"]*)"', page))


def test_words_are_escaped(made):
    results, _, _ = made
    page = render_experiment({**results, "title": "<script>alert(1)</script>"}, "<svg/>")
    assert "<script>" not in page
    assert "&lt;script&gt;" in page


def test_the_command_writes_the_page_and_replaces_it_only_by_force(here, tmp_path):
    first = here("lab reproduce", "table1", "--html", "-o", "out").ends(0)
    assert "figure.svg, report.html" in first.out
    assert (tmp_path / "out" / "report.html").exists()
    assert here("lab reproduce", "table1", "-o", "out").code != 0
    assert here("lab reproduce", "table1", "-o", "out", "--force").code == 0
    assert not (tmp_path / "out" / "report.html").exists()
