"""The progress bar: on a terminal's standard error, and nowhere else."""

import io
import sys

import pytest

from congruence._utils.progress import progress_bar


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(("stream", "quiet"), [(io.StringIO(), False), (Terminal(), True)])
def test_nothing_is_shown_where_nobody_looks(stream, quiet, monkeypatch):
    monkeypatch.setattr(sys, "stderr", stream)
    with progress_bar("mapping", 3, quiet=quiet) as bar:
        assert bar is None
    assert stream.getvalue() == ""


def test_a_terminal_shows_label_count_and_note_as_they_are(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("TERM", "xterm")
    with progress_bar("{x} [red]data[/red]\x1b[2J", 4, done=1) as bar:
        assert bar is not None
        bar.advance(1)
        bar.show(3, "loss [0.5]")
        bar._progress.refresh()
    shown = sys.stderr.getvalue()
    assert "{x} [red]data[/red]" in shown  # no markup, no format
    assert "\x1b[2J" not in shown
    assert "3/4" in shown
    assert "loss [0.5]" in shown
    assert capsys.readouterr().out == ""
