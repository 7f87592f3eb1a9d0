"""A table in a pipe: one line a row, nothing cut, nothing padded."""

from __future__ import annotations

from congruence.cli._base import print_table


def test_a_long_cell_costs_no_other_cell_of_its_column(capsys):
    long = "a reason that goes on " * 40
    print_table("Checks", ["", "", ""], [["stage", "ok", "short"], ["certificate", "NO", long]])
    lines = [line for line in capsys.readouterr().out.splitlines() if line]
    assert lines == ["Checks", " stage         ok   short", f" certificate   NO   {long}".rstrip()]
