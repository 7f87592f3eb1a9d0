"""README and docs print what the commands print today. ``python benchmarks/regenerate.py`` writes these blocks anew."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

PATH = Path(__file__).resolve().parents[1] / "benchmarks" / "regenerate.py"
SPEC = importlib.util.spec_from_file_location("regenerate", PATH)
regenerate = importlib.util.module_from_spec(SPEC)
sys.modules["regenerate"] = regenerate
SPEC.loader.exec_module(regenerate)

PRINTED = [(page, name) for page in regenerate.PAGES for name in regenerate.blocks(page)]
QUICK = [(page, name) for page, name in PRINTED if not regenerate.BLOCKS[name][1]]


def test_every_block_stands_on_a_page():
    assert {name for _, name in PRINTED} == set(regenerate.BLOCKS)


@pytest.mark.parametrize(("page", "name"), QUICK, ids=[f"{page.name}-{name}" for page, name in QUICK])
@pytest.mark.filterwarnings("ignore::congruence.errors.CongruenceWarning")
def test_a_page_prints_what_is_measured(page, name):
    if name in regenerate.NEEDS_DATA and not regenerate.DATA.exists():
        pytest.skip(f"{name} needs embeddings in ../shared/data")
    measured = regenerate.BLOCKS[name][0]()
    printed = regenerate.blocks(page)[name]
    assert regenerate.same(printed, measured), f"run python benchmarks/regenerate.py --only {name}\n{measured}"


@pytest.mark.parametrize(
    ("printed", "measured", "same"),
    [
        ("| a | 0.123 |", "| a | 0.125 |", True),
        ("| a | 0.123 |", "| a | 0.126 |", False),
        ("| a | −0.001 |", "| a | 0.001 |", True),
        ("| a | −0.100 |", "| a | 0.100 |", False),
        ("| a | 0.123 |", "| b | 0.123 |", False),
        ("| a | 0.123 |", "| a | 0.123 | 0.1 |", False),
        ("5,000 anchors", "5,001 anchors", True),
        ("5,000 anchors", "5,010 anchors", False),
    ],
)
def test_numbers_may_differ_by_rounding_only(printed, measured, same):
    assert regenerate.same(printed, measured) is same
