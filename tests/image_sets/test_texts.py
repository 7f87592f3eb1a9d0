"""The texts that come with the package."""

import pytest

from congruence.datasets import anchor_texts, texts
from congruence.errors import FileError, ParameterError


def test_every_text_is_one_short_line_and_differs_from_the_others():
    lines = anchor_texts()
    assert len(set(lines)) == len(lines) == 4000
    assert all(line == line.strip() and line.isprintable() and 2 <= len(line) <= 120 for line in lines)
    assert texts.TEXTS_PATH.stat().st_size < 200_000


def test_the_beginning_is_of_many_kinds():
    words = " ".join(anchor_texts(100)).split()
    assert len(set(words)) > 150
    assert anchor_texts(100) == anchor_texts()[:100]


@pytest.mark.parametrize("n", [0, -1, 1.5, 4001])
def test_bad_numbers_are_refused(n):
    with pytest.raises(ParameterError, match=f"Got n={n}".replace("4001", "4,001")):
        anchor_texts(n)


def test_an_incomplete_installation_is_said(monkeypatch, tmp_path):
    monkeypatch.setattr(texts, "TEXTS_PATH", tmp_path / "none.txt")
    with pytest.raises(FileError, match="Install congruence again"):
        anchor_texts()
