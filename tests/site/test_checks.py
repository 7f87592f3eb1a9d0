"""The checks of the finished site fail where they should, on a site of two pages."""

from __future__ import annotations

import sys
import zlib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

from docsite import api, check, roles  # noqa: E402

PAGE = '<h1 id="top">A</h1><a href="b.html#there">b</a><a href="https://example.org/x">out</a><img src="c.png">'
OTHER = '<h2 id="there">B</h2><a href="index.html">a</a><a href="#there">here</a><script>1</script>'


@pytest.fixture
def site(tmp_path):
    (tmp_path / "index.html").write_text(PAGE)
    (tmp_path / "b.html").write_text(OTHER)
    (tmp_path / "c.png").touch()
    names = zlib.compress(b"package.f py:function 1 api.html#$ -\n")
    (tmp_path / "objects.inv").write_bytes(
        b"# Sphinx inventory version 2\n# Project: x\n# Version: 1\n# zlib\n" + names
    )
    return tmp_path


MODULES = {"package": api.Module("package", ["f"])}


def test_a_good_site_passes(site):
    assert check.problems(site, MODULES) == []


@pytest.mark.parametrize(
    ("old", "new", "result"),
    [
        ("b.html#there", "b.html#gone", "index.html leads to b.html#gone, which has no such anchor"),
        ("b.html#there", "gone.html", "index.html leads to gone.html, which is not there"),
        ("c.png", "https://example.org/c.png", "index.html fetches https://example.org/c.png"),
        ("c.png", "d.png", "index.html leads to d.png, which is not there"),
        (
            'id="top"',
            'id="top"><link rel="stylesheet" href="//cdn.example/x.css"',
            "index.html fetches //cdn.example/x.css",
        ),
    ],
)
def test_what_leads_nowhere_or_elsewhere_is_told(site, old, new, result):
    (site / "index.html").write_text(PAGE.replace(old, new))
    assert check.problems(site, MODULES) == [result]


def test_a_public_name_without_a_description_is_told(site):
    assert check.problems(site, {"package": api.Module("package", ["f", "g"])}) == [
        "package.g is public, and no page describes it"
    ]


@pytest.mark.parametrize("mark", [":func:<code>f</code>", ":class:`A`", "<p>.. math::</p>", "<code>::</code>"])
def test_marks_of_docstrings_are_told(site, mark):
    (site / "api").mkdir()
    (site / "api" / "maps.html").write_text(f"<p>A text.</p>{mark}")
    (result,) = check.problems(site, MODULES)
    assert result.startswith("api/maps.html shows the mark ")


@pytest.mark.parametrize(
    ("text", "written"),
    [
        (":class:`congruence.maps.OrthogonalMap`", "[`maps.OrthogonalMap`][congruence.maps.orthogonal.OrthogonalMap]"),
        (":func:`~congruence.transport.balanced.sinkhorn`", "[`sinkhorn`][congruence.transport.balanced.sinkhorn]"),
        (":meth:`Database.write`", "[`Database.write`][congruence.databases.Database]"),
        (":func:`congruence.load`", "[`load`][congruence.upgrade.bridge.bridge.load]"),
        (":class:`a map <congruence.maps.Map>`", "[`a map`][congruence.maps.Map]"),
        (":meth:`transform`", "`transform`"),
        (":func:`congruence._utils.ids.to_ids`", "`_utils.ids.to_ids`"),
        ("A tree.\n\n::\n\n    A\n    └── B\n", "A tree.\n\n    A\n    └── B\n"),
        ("``plain``, *stressed*, a::b", "``plain``, *stressed*, a::b"),
    ],
)
def test_roles_become_links_to_what_the_pages_describe(text, written):
    assert roles.in_markdown(text) == written


def test_every_role_names_something_that_is_there():
    """A role that leads nowhere names a method, a private helper, or something that was renamed: the last is to be found."""
    lost = set()
    for path in (ROOT / "src" / "congruence").rglob("*.py"):
        for found in roles.ROLE.finditer(path.read_text(encoding="utf-8")):
            name = found["name"]
            if name.startswith("congruence.") and "._" not in name and roles.described(name) is None:
                lost.add(name)
    packages = {".".join(name.split(".")[:2]) for name in api.public_modules()}
    assert lost <= packages
